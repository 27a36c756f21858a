"""The ledger: entries survive the store's JSON, and rates count what they should."""

from __future__ import annotations

import json
from dataclasses import replace

from ucutlass.ir.hardware import DEVICES
from ucutlass.runtime.evidence import Machine, Record, RecordSubject, sealed
from ucutlass.runtime.profile.ledger import LedgerEntry, entry_of, hit_rates, tallies, to_result

ENTRY = LedgerEntry(4, "latency", "tile 1", "tile 2", (0.5, 0.9), 0.7, 0.68, 0.72)


def kept(entry: LedgerEntry, device: str = "NVIDIA H200", created: str = "1") -> Record:
    subject = RecordSubject("k", "", "", entry.schedule, "sm90a", "bf16", {"M": 1})
    result = json.loads(json.dumps(to_result(entry)))
    return sealed(Record("advice", subject, Machine(device, "GPU-1", {}), "", {}, result, created))


def test_an_entry_survives_the_store() -> None:
    assert entry_of(kept(ENTRY)) == ENTRY


def test_other_records_are_no_entries() -> None:
    record = kept(ENTRY)
    assert entry_of(replace(record, kind="bench")) is None
    assert entry_of(replace(record, result={"rule": "four"})) is None


def test_faster_only_where_the_interval_says_so() -> None:
    assert ENTRY.faster and ENTRY.kept
    unsure = replace(ENTRY, ratio=0.99, low=0.97, high=1.01)
    assert not unsure.faster and not unsure.kept


def test_rates_by_device_and_rule() -> None:
    slower = replace(ENTRY, ratio=1.2, low=1.1, high=1.3)
    records = [
        kept(ENTRY),
        kept(slower),
        kept(replace(ENTRY, rule=6)),
        kept(ENTRY, "NVIDIA A100-SXM4-80GB"),
        kept(ENTRY),  # the same record again
    ]
    rates = hit_rates(records, DEVICES["H200"])
    assert (rates[4].tried, rates[4].faster) == (2, 1)
    assert (rates[6].tried, rates[6].faster) == (1, 1)
    assert set(rates) == {4, 6}
    assert str(rates[4]) == "1 of 2 tries were faster"
    assert tallies(records)["H200", 4].median == 0.95
    assert hit_rates(records, DEVICES["A100-SXM4-80GB"])[4].tried == 1


def test_an_unknown_device_keeps_its_own_name() -> None:
    assert list(tallies([kept(ENTRY, "NVIDIA T4")])) == [("NVIDIA T4", 4)]


def test_without_records_there_are_no_rates() -> None:
    assert hit_rates([], DEVICES["H200"]) == {}

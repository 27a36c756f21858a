"""Keeps the ledger of edits: what a rule promised, and what its edit then brought.

An entry is a record of kind "advice" in the evidence store. Hit rates come from such records
alone; a rule without any has no rate.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ucutlass.advice import HitRate
from ucutlass.ir.hardware import Device, device_named
from ucutlass.runtime.evidence import Record


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A tried edit. `predicted` is the promised range of new over old time, `ratio` what was measured
    with its interval (`low`, `high`)."""

    rule: int
    bottleneck: str
    schedule: str
    edit: str
    predicted: tuple[float, float]
    ratio: float
    low: float
    high: float

    @property
    def faster(self) -> bool:
        """Only where the whole interval says so."""
        return self.high < 1.0

    @property
    def kept(self) -> bool:
        """Whether the measured ratio lies in the promised range."""
        return self.predicted[0] <= self.ratio <= self.predicted[1]


def to_result(entry: LedgerEntry) -> dict[str, Any]:
    """Returns the `result` of the record."""
    return {
        "rule": entry.rule,
        "class": entry.bottleneck,
        "schedule": entry.schedule,
        "edit": entry.edit,
        "predicted": list(entry.predicted),
        "ratio": entry.ratio,
        "interval": [entry.low, entry.high],
    }


def entry_of(record: Record) -> LedgerEntry | None:
    """Returns the entry of a record of kind "advice"; None for other records, and for what is no entry."""
    if record.kind != "advice":
        return None
    match record.result:
        case {
            "rule": int(rule),
            "class": str(bottleneck),
            "schedule": str(schedule),
            "edit": str(edit),
            "predicted": [float() | int() as first, float() | int() as last],
            "ratio": float() | int() as ratio,
            "interval": [float() | int() as low, float() | int() as high],
        }:
            return LedgerEntry(rule, bottleneck, schedule, edit, (first, last), ratio, low, high)
    return None


@dataclass(frozen=True, slots=True)
class Tally:
    """A rule's past on a device: tries, those that were faster, those within the promise, and the
    median ratio."""

    rate: HitRate
    kept: int
    median: float


def tallies(records: Iterable[Record]) -> dict[tuple[str, int], Tally]:
    """Tallies entries by device and rule. One try counts once, however often the same record is given."""
    groups: dict[tuple[str, int], list[LedgerEntry]] = {}
    for record in {r.id: r for r in records}.values():
        if (entry := entry_of(record)) is not None:
            groups.setdefault((_device(record), entry.rule), []).append(entry)
    return {key: _tally(entries) for key, entries in sorted(groups.items())}


def _tally(entries: list[LedgerEntry]) -> Tally:
    return Tally(
        HitRate(len(entries), sum(e.faster for e in entries)),
        sum(e.kept for e in entries),
        statistics.median(e.ratio for e in entries),
    )


def hit_rates(records: Iterable[Record], device: Device) -> Mapping[int, HitRate]:
    """Returns how often each rule's edit was faster on a device, by rule; rules without a record are left
    out."""
    return {rule: t.rate for (name, rule), t in tallies(records).items() if name == device.name}


def _device(record: Record) -> str:
    """Our name of the device, whatever words the driver puts around it."""
    device = device_named(record.machine.device)
    return device.name if device else record.machine.device

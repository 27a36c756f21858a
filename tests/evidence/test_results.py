"""`ucc results`, and what may be said of two bench records."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from records import MACHINE, SUBJECT, about, made

from ucutlass.cli import main
from ucutlass.runtime.bench.protocol import Protocol
from ucutlass.runtime.evidence import Record, to_json
from ucutlass.runtime.store import EvidenceStore
from ucutlass.runtime.store.compare import Incomparable, compare, time_of

PROTOCOL = {**asdict(Protocol()), "comparison": "run 1"}


def outcome(median: float, seed: int = 0, *, count: int = 24, **more: Any) -> dict[str, Any]:
    rng = random.Random(seed)
    times = [median * (1 + rng.gauss(0, 0.002)) for _ in range(count)]
    measured = [{"median": t, "spread": 0.01, "clock": 1.7e9} for t in times]
    span = {
        "count": 9,
        "min": 0.9 * median,
        "p10": 0.98 * median,
        "median": median,
        "p90": 1.1 * median,
        "mad": 0.01,
    }
    return {"name": "candidate", "clock": "span", "span": span, "trusted": True, "blocks": measured, **more}


Facts = dict[str, Any]


def bench(
    median: float,
    seed: int = 0,
    *,
    subject: Facts | None = None,
    machine: Facts | None = None,
    protocol: Facts | None = None,
    **more: Any,
) -> Record:
    return made(
        seed,
        result={"outcomes": [outcome(median, seed, **more)]},
        protocol={**PROTOCOL, **(protocol or {})},
        subject=replace(SUBJECT, **subject or {}),
        machine=replace(MACHINE, **machine or {}),
    )


# --- comparing -------------------------------------------------------------------

SLOW = [{"median": 1.0, "spread": 0.01, "clock": 1.4e9}] * 18
BOOLEAN = {"median": True, "p10": 1, "p90": 1}
NOISY = [{"median": 1.0, "spread": 0.2, "clock": None}] * 18


@pytest.mark.parametrize(
    ("a", "b", "said"), [(90, 100, "faster"), (100, 90, "slower"), (100, 100.5, "no difference")]
)
def test_records_of_one_comparison_have_a_verdict(a: float, b: float, said: str) -> None:
    record_comparison = compare(bench(a, 1), bench(b, 2))
    assert record_comparison.verdict == said and record_comparison.cautions == ()
    assert (
        record_comparison.ratio is not None
        and record_comparison.ratio.low <= a / b <= record_comparison.ratio.high
    )
    assert record_comparison.medians == pytest.approx(a / b)


@pytest.mark.parametrize("protocol", [{"comparison": "run 2"}, {"comparison": ""}, {"comparison": None}])
def test_records_of_different_runs_have_none(protocol: dict[str, Any]) -> None:
    record_comparison = compare(bench(50, 1, protocol=protocol), bench(100, 2))
    assert (record_comparison.verdict, record_comparison.ratio) == (
        None,
        None,
    ) and record_comparison.medians == pytest.approx(0.5)
    assert "not interleaved" in record_comparison.cautions[0]
    both = compare(bench(50, 1, protocol={"comparison": ""}), bench(100, 2, protocol={"comparison": ""}))
    assert both.verdict is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"trusted": False}, "not to be trusted"),
        ({"trusted": None}, "not to be trusted"),
        ({"count": 18}, "18 and 24 blocks"),
        ({"count": 23}, "23 and 24 blocks"),
        ({"blocks": outcome(1.0)["blocks"][:6] + SLOW}, "3 of 12 rounds"),
        ({"blocks": outcome(1.0)["blocks"][:6] + NOISY}, "3 of 12 rounds"),
        ({"protocol": {"seed": None}}, "names no seed"),
    ],
)
def test_what_takes_the_verdict_away(change: dict[str, Any], words: str) -> None:
    record_comparison = compare(bench(50, 1, **change), bench(100, 2))
    assert record_comparison.verdict is None and words in record_comparison.cautions[0]


def test_at_the_power_cap_clocks_that_differ_are_no_reason() -> None:
    """As `ucc bench` says of the same rounds."""

    def capped(record: Record, *findings: str) -> Record:
        listed = [{"name": name, "level": "note", "message": ""} for name in findings]
        return replace(record, result={**record.result, "findings": listed})

    slow = outcome(50.0, 1)["blocks"]
    ours, theirs = bench(50, 1, blocks=[{**b, "clock": 1.6e9} for b in slow]), bench(100, 2)
    assert compare(capped(ours, "throttled"), capped(theirs, "throttled")).verdict is None
    assert compare(capped(ours, "power-capped"), theirs).verdict is None
    both = [capped(r, "throttled", "power-capped") for r in (ours, theirs)]
    assert compare(*both).verdict == "faster"


def test_another_gpu_of_the_kind_has_no_verdict() -> None:
    record_comparison = compare(bench(50, 1, machine={"uuid": "GPU-2"}), bench(100, 2))
    assert record_comparison.verdict is None and any("the GPUs are" in c for c in record_comparison.cautions)


def test_what_else_differs_is_told() -> None:
    changed = bench(90, 1, subject={"algorithm": "9" * 64}, machine={"versions": {"driver": "1"}})
    record_comparison = compare(replace(changed, harness="7" * 64), bench(100, 2))
    assert record_comparison.verdict == "faster"
    assert [c.split()[1] for c in record_comparison.cautions] == ["computations", "harnesses", "versions"]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (bench(1, subject={"lane": "f16"}), "compute types are f16 and bf16"),
        (bench(1, machine={"device": "NVIDIA A100"}), "devices are NVIDIA A100 and NVIDIA H200"),
        (bench(1, subject={"sizes": {"M": 1}}), "sizes are M=1 and M=64 N=128"),
        (bench(1, protocol={"regime": "warm"}), "regimes are warm and cold"),
        (bench(1, clock="events"), "clocks are events and span"),
        (made(kind="verify"), "of kind verify"),
        (made(result={"outcomes": []}), "no time"),
        (made(result={"outcomes": [{"failed": "capture", "words": "out of memory"}]}), "out of memory"),
        (bench(0.0), "no time"),
        (made(result={"outcomes": [{**outcome(1), "span": BOOLEAN}]}), "no time"),
        (made(result={"outcomes": [{**outcome(1), "blocks": [{"median": "fast"}]}]}), "no time"),
        (made(result={"outcomes": [{**outcome(1), "blocks": 3}]}), "no time"),
    ],
)
def test_times_that_mean_different_things_are_refused(other: Record, words: str) -> None:
    for pair in ((other, bench(2, 5)), (bench(2, 5), other)):
        with pytest.raises(Incomparable) as caught:
            compare(*pair)
    with pytest.raises(Incomparable, match=words):
        compare(other, bench(2, 5))
    assert str(caught.value).startswith("these records cannot be compared: ")


def test_comparing_is_fair() -> None:
    a, b = bench(90, 1), bench(100, 2)
    there, back = compare(a, b), compare(b, a)
    assert there.ratio is not None and back.ratio is not None
    assert there.ratio.low == pytest.approx(1 / back.ratio.high)
    assert (there.verdict, back.verdict) == ("faster", "slower")
    assert time_of(a) == there.a == back.b


# --- the command -----------------------------------------------------------------


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EvidenceStore:
    monkeypatch.setenv("UCUTLASS_DATA_DIR", str(tmp_path / "data"))
    return EvidenceStore.open()


def results(*arguments: str | Path, status: int = 0, stdin: str | None = None) -> Any:
    done = CliRunner().invoke(
        main, ["results", *map(str, arguments)], input=stdin, catch_exceptions=False, prog_name="ucc"
    )
    assert done.exit_code == status, done.output + done.stderr
    return done


def lines(done: Any) -> list[list[str]]:
    return [line.split("\t") for line in done.stdout.splitlines()]


def test_an_empty_store(mine: EvidenceStore, tmp_path: Path) -> None:
    assert results("list").stdout.startswith("no records in ")
    assert json.loads(results("list", "--json").stdout) == []
    assert "0 records" in results("check").stdout
    results("export", tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_text() == ""
    assert not mine.path.exists()


def test_the_list_and_its_filters(mine: EvidenceStore) -> None:
    now = datetime.now(timezone.utc)
    records = [
        bench(12.346, 1),
        made(2, kind="verify", result={"ok": False}),
        made(3, kind="audit", result={"verdict": "gaming"}),
        about(4, {"kernel": "norm"}, device="", uuid=""),
        made(5, created=now.isoformat(), kind="profile", result={}),
    ]
    for one in records:
        mine.add(one)
    heading, *rows = lines(results("list"))
    assert heading[:3] == ["id", "created", "kind"]
    assert [row[0] for row in rows] == [r.id[:16] for r in reversed(records)]
    assert rows[-1][1:] == [
        "2026-03-01 12:00:01",
        "bench",
        "linear",
        "M=64,N=128",
        "bf16",
        "NVIDIA H200",
        "12.35 us",
    ]
    assert [row[-1] for row in rows[:-1]] == ["", "no time", "gaming", "failed"]
    assert rows[1][6] == "CPU"

    def found(*arguments: str) -> Sequence[int]:
        ids = [r["id"] for r in json.loads(results("list", "--json", *arguments).stdout)]
        return [[r.id[:16] for r in records].index(i) + 1 for i in ids]

    assert found("--kind", "verify") == [2]
    assert found("--kernel", "norm") == [4]
    assert found("--device", "h200") == [5, 3, 2, 1]
    assert found("--limit", "2") == [5, 4]
    assert found("--since", "1h") == found("--since", (now - timedelta(days=1)).strftime("%Y-%m-%d")) == [5]
    assert found("--since", "2026-03-01T12:00:03Z", "--kind", "audit") == [3]
    assert "answer to that" in results("list", "--kernel", "nobody").stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "--kind", "hope"),
        ("list", "--since", "soon"),
        ("list", "--limit", "0"),
        ("show",),
        ("remove", "a"),
    ],
)
def test_calls_that_make_no_sense(mine: EvidenceStore, arguments: tuple[str, ...]) -> None:
    results(*arguments, status=2)
    assert not mine.path.exists()


def test_one_record(mine: EvidenceStore) -> None:
    one = bench(12.0)
    mine.add(one)
    shown = dict(lines(results("show", one.id[:6])))
    assert shown["id"] == one.id and shown["subject.sizes.N"] == "128"
    assert shown["result.outcomes[0].span.median"] == "12.0"
    assert shown["result.outcomes[0].blocks"] == "24 values"
    assert json.loads(results("show", one.id, "--json").stdout) == json.loads(to_json(one))


@pytest.mark.parametrize("id", ["feed", "x", "'; DROP TABLE record"])
def test_a_record_that_is_not_there(mine: EvidenceStore, id: str) -> None:
    mine.add(made())
    assert results("show", id, status=2).stderr.startswith("ucc: ")
    assert json.loads(results("show", id, "--json", status=2).stdout)["status"] == 2


def test_text_of_a_record_cannot_drive_the_terminal(mine: EvidenceStore) -> None:
    hostile = about(0, {"kernel": "\x1b[2Jgo\tne\r\n"}, device="\x9b2J\u202e")
    mine.add(hostile)
    for said in (results("list"), results("show", hostile.id)):
        assert not {"\x1b", "\r", "\x9b", "\u202e"} & set(said.stdout)
        assert "\\x1b[2Jgo ne" in said.stdout and "\\x09" not in said.stdout


def test_compare(mine: EvidenceStore) -> None:
    a, b, elsewhere = bench(90, 1), bench(100, 2), bench(50, 3, protocol={"comparison": "run 2"})
    lane = bench(1, 4, subject={"lane": "f16"})
    for one in (a, b, elsewhere, lane):
        mine.add(one)
    stdout = results("compare", a.id, b.id[:8]).stdout
    assert "a takes 0.900 of b's median" in stdout and "verdict: a is faster" in stdout
    assert "over 12 blocks A B B A" in stdout
    apart = results("compare", elsewhere.id, b.id).stdout
    assert "a takes 0.500" in apart and "verdict: a" not in apart and "not interleaved" in apart
    assert json.loads(results("compare", elsewhere.id, b.id, "--json").stdout)["verdict"] is None
    refused = results("compare", lane.id, b.id, status=2)
    assert refused.stdout == "" and "the compute types are f16 and bf16" in refused.stderr


def test_carrying_records_elsewhere(
    mine: EvidenceStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [made(1), made(2, kind="verify"), made(3)]
    for one in records:
        mine.add(one)
    out = tmp_path / "out.jsonl"
    assert "3 records" in results("export", out).stdout
    assert results("export", "-", "--kind", "verify").stdout == to_json(records[1]) + "\n"
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
    monkeypatch.setenv("UCUTLASS_DATA_DIR", str(tmp_path / "other"))
    assert results("import", out).stdout.startswith("3 records added, 0 here already, 0 refused")
    assert results("import", "-", stdin=out.read_text()).stdout.startswith("0 records added, 3 here")
    assert EvidenceStore.open().find() == mine.find()
    assert results("check").stdout == "3 records, all as sealed\n"


def test_an_import_with_a_changed_record(mine: EvidenceStore, tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    good, changed = to_json(made(1)), to_json(made(2)).replace('"median":1.5', '"median":0.5')
    file.write_bytes(f"{good}\n{changed}\n".encode() + b"\xff\xfe\n")
    done = results("import", file, status=2)
    assert done.stdout == "1 record added, 0 here already, 2 refused\n"
    assert f"{file}:2: " in done.stderr and f"{file}:3: " in done.stderr
    assert len(mine.find()) == 1


def test_a_store_with_a_changed_record(mine: EvidenceStore) -> None:
    import sqlite3

    mine.add(made(1))
    mine.add(made(2))
    with sqlite3.connect(mine.path) as c:
        c.execute("DROP TRIGGER record_holds")
        c.execute("UPDATE record SET content = replace(content, '1.5', '0.5') WHERE number = 1")
    c.close()
    listed = results("list")
    assert len(lines(listed)) == 2 and "ucc: record" in listed.stderr and "left out" in listed.stderr
    assert lines(results("check", status=3))[1][:2] == ["1", made(1).id[:16]]
    assert json.loads(results("check", "--json", status=3).stdout)[0]["number"] == 1
    assert "is not the seal" in results("show", made(1).id, status=3).stderr


def test_a_damaged_store_is_put_aside_in_words(mine: EvidenceStore) -> None:
    mine.path.parent.mkdir()
    mine.path.write_bytes(b"nothing of the kind" * 100)
    said = results("list")
    assert said.stderr.startswith("ucc: the evidence store") and "put aside as" in said.stderr
    assert said.stdout.startswith("no records")


def test_a_newer_store(mine: EvidenceStore) -> None:
    import sqlite3

    mine.add(made())
    with sqlite3.connect(mine.path) as c:
        c.execute("PRAGMA user_version = 7")
    c.close()
    for arguments in (("list",), ("check",), ("show", "abcd")):
        assert "update ucutlass" in results(*arguments, status=3).stderr

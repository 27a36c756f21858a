"""What the campaign of mutants reports, from rows of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import honest, mutants
from benchmarks.honest import Honest
from benchmarks.mutants import B_ROWS, Result, summary
from tests.mutants import gpu, injection, judging, timing
from tests.mutants.emulated import Row
from tests.mutants.hopper import HOPPER
from tests.mutants.lowering import LOWERINGS
from ucutlass.runtime import isolate, sanitize

KILLED = Row("a", (6, 11), ("unwritten",), True)
SURVIVES = Row("b", (17,), (), False, "nothing was seen")


def test_the_summary_counts_by_part_and_row() -> None:
    results = [
        Result("lowering", KILLED),
        Result("lowering", SURVIVES),
        Result("judge", Row("c", (18,), ("t",), False)),
        Result("lowering", Row("base", (), (), True), True),
    ]
    passed = [Honest("seed 1", "ok", ""), Honest("seed 2", "gaming", "tolerance")]
    found = summary(results, passed)
    assert (found["mutants"], found["killed"], found["flat_check_passes"]) == (3, 2, 1)
    assert found["parts"] == {"lowering": [1, 2], "judge": [1, 1]}
    assert found["rows"]["6"] == [1, 1] and found["rows"]["17"] == [0, 1] and found["rows"]["64"] == [0, 0]
    assert (found["honest"], found["false_alarms"]) == (3, 1)


def test_every_row_of_ours_has_a_mutant_somewhere() -> None:
    every = [*LOWERINGS, *HOPPER, *judging.MUTANTS, *timing.MUTANTS, *injection.MUTANTS]
    assert set(B_ROWS) <= {row for m in every for row in m.patterns}


@pytest.mark.parametrize(
    ("verdict", "ok"),
    [("ok", True), ("minor", True), ("flawed-problem", True), ("gaming", False), ("unproven", False)],
)
def test_what_an_honest_kernel_may_be_called(verdict: str, ok: bool) -> None:
    assert Honest("seed", verdict, "").ok == ok


@pytest.mark.parametrize(("rows", "status"), [([KILLED], 0), ([KILLED, SURVIVES], 1)])
def test_the_exit_status_and_the_file(
    rows: list[Row], status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "mutants.json"
    monkeypatch.setattr(mutants, "guards", lambda only: ())
    monkeypatch.setattr(mutants, "lowerings", lambda only, processes: [Result("lowering", r) for r in rows])
    monkeypatch.setattr(honest, "jobs", lambda count, seed, device: [])
    monkeypatch.setattr("sys.argv", ["mutants", "--json", str(file)])
    with pytest.raises(SystemExit) as ended:
        mutants.main()
    assert ended.value.code == status
    assert [r["killed"] for r in json.loads(file.read_text())["results"]] == [r.killed for r in rows]


# --- on a GPU, as far as it goes without one --------------------------------------------


def outcome(monkeypatch: pytest.MonkeyPatch, answer: isolate.Outcome, library: str = "kernel.so") -> Row:
    monkeypatch.setattr(isolate, "run", lambda *_, **__: answer)
    monkeypatch.setattr(gpu, "built", lambda sources: [library] * len(sources))
    monkeypatch.setattr(sanitize, "find", lambda: None)
    (row,) = gpu.run(["tma: bias assumed zero"])
    return row


def test_what_becomes_of_a_mutant_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {"killed_by": ["value (normal)"], "flat_check": False, "detail": ""}
    assert outcome(monkeypatch, isolate.Returned(seen, "")).killed_by == ("value (normal)",)
    illegal = isolate.Raised("AcceleratorError", "CUDA error: an illegal memory access", "", "")
    assert outcome(monkeypatch, illegal).killed_by == ("a CUDA error (AcceleratorError)",)
    assert outcome(monkeypatch, isolate.Crashed("SIGSEGV", "")).killed_by == ("crashed",)
    stillborn = outcome(monkeypatch, isolate.Crashed("SIGSEGV", ""), "not built: error")
    assert not stillborn.killed and stillborn.detail == "not built: error"


def test_an_error_of_our_own_is_no_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="EditStale"):
        outcome(monkeypatch, isolate.Raised("EditStale", "write the edit anew", "", ""))


def test_what_nothing_saw_survives_and_says_what_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    unseen = {"killed_by": [], "flat_check": True, "detail": ""}
    row = outcome(monkeypatch, isolate.Returned(unseen, ""))
    assert not row.killed and "compute-sanitizer is not installed" in row.detail


def test_a_sanitizer_kills_what_the_judge_does_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    report = sanitize.Report("racecheck", "findings", "2 errors: Race reported in gemm")
    monkeypatch.setattr(sanitize, "check", lambda *_, **__: report)
    unseen = {"killed_by": [], "flat_check": True, "detail": ""}
    monkeypatch.setattr(isolate, "run", lambda *_, **__: isolate.Returned(unseen, ""))
    monkeypatch.setattr(gpu, "built", lambda sources: ["kernel.so"] * len(sources))
    monkeypatch.setattr(sanitize, "find", lambda: Path("compute-sanitizer"))
    (row,) = gpu.run(["tma: no barrier in the combination"])
    assert row.killed_by == ("memcheck: 2 errors: Race reported in gemm",)

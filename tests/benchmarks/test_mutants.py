"""What the campaign of mutants reports, from rows of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from benchmarks import honest, mutants
from benchmarks.budget import NEVER, OUT_OF_TIME, Deadline, after, append
from benchmarks.honest import Honest
from benchmarks.mutants import B_ROWS, Result, guards, lowerings, names_of, summary
from tests.mutants import emulated, gpu, injection, judging, timing
from tests.mutants.emulated import Row
from tests.mutants.hopper import HOPPER
from tests.mutants.lowering import LOWERINGS
from ucutlass.emit.text import Source
from ucutlass.runtime import isolation, sanitize
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.errors import BuildCancelled, BuildError
from ucutlass.runtime.ptxas import Report

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


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["mutants", *arguments])
    return mutants.main()


@pytest.mark.parametrize(("rows", "status"), [([KILLED], 0), ([KILLED, SURVIVES], 1)])
def test_the_exit_status_and_the_file(
    rows: list[Row], status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "mutants.json"
    monkeypatch.setattr(mutants, "names_of", lambda device: [r.name for r in rows])
    monkeypatch.setattr(mutants, "on_host", lambda *_: [Result("lowering", r) for r in rows])
    assert call(monkeypatch, "--json", str(file)) == status
    assert [r["killed"] for r in json.loads(file.read_text())["results"]] == [r.killed for r in rows]


def test_a_result_survives_its_file() -> None:
    made = Result("judge", SURVIVES, honest=True)
    assert Result.from_json(json.loads(json.dumps(made.as_json()))) == made


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_names_tell_all_of_a_campaign_apart(device: str) -> None:
    names = names_of(device)
    assert len(set(names)) == len(names)


def test_guards_run_by_name_and_in_time() -> None:
    name = timing.MUTANTS[0].name
    assert [(r.part, r.row.name) for r in guards([name], NEVER)] == [("timing", name)]
    assert list(guards([name], Deadline(0.0))) == []


def test_lowerings_run_by_name_and_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulated, "run", lambda name: Row(name, (), (), True))
    found = [(r.row.name, r.honest) for r in lowerings(["bias", LOWERINGS[0].name, "no lowering"], 2, NEVER)]
    assert found == [("bias", True), (LOWERINGS[0].name, False)]
    assert list(lowerings(["bias"], 2, Deadline(0.0))) == []


# --- on a GPU, as far as it goes without one --------------------------------------------

SEEN = {"killed_by": ["value (normal)"], "flat_check": False, "detail": ""}
UNSEEN = {"killed_by": [], "flat_check": True, "detail": ""}
ILLEGAL = isolation.Raised("AcceleratorError", "CUDA error: an illegal memory access", "", "")


def outcome(
    monkeypatch: pytest.MonkeyPatch,
    answer: isolation.Outcome,
    library: str = "kernel.so",
    deadline: Deadline = NEVER,
) -> Row | None:
    monkeypatch.setattr(isolation, "run", lambda *_, **__: answer)
    monkeypatch.setattr(sanitize, "find", lambda: None)
    return gpu.judged("tma: bias assumed zero", library, deadline)


@pytest.mark.parametrize(
    ("answer", "killed_by"),
    [
        (isolation.Returned(SEEN, ""), "value (normal)"),
        (ILLEGAL, "a CUDA error (AcceleratorError)"),
        (isolation.Crashed("SIGSEGV", ""), "crashed"),
        (isolation.TimedOut(1.0, ""), "timedout"),
    ],
)
def test_what_becomes_of_a_mutant_on_the_gpu(
    answer: isolation.Outcome, killed_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = outcome(monkeypatch, answer)
    assert row is not None and row.killed_by == (killed_by,)


def test_a_mutant_that_is_not_built_was_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    row = outcome(monkeypatch, isolation.Crashed("SIGSEGV", ""), "not built: error")
    assert row is not None and not row.killed and row.detail == "not built: error"


@pytest.mark.parametrize(
    "answer",
    [
        isolation.Raised("EditStale", "write the edit anew", "", ""),
        isolation.Raised("OutOfMemoryError", "CUDA out of memory. Tried to allocate", "", ""),
        isolation.Raised("AssertionError", "Torch not compiled with CUDA enabled", "", ""),
        isolation.Crashed("SIGKILL", ""),
    ],
)
def test_an_error_of_our_own_is_no_kill(answer: isolation.Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="tma: bias assumed zero"):
        outcome(monkeypatch, answer)


def test_the_end_of_the_time_is_no_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome(monkeypatch, isolation.Returned(SEEN, ""), deadline=Deadline(0.0)) is None

    def hang(*_: object, limit_seconds: float) -> isolation.Outcome:
        time.sleep(limit_seconds)
        return isolation.TimedOut(limit_seconds, "")

    monkeypatch.setattr(isolation, "run", hang)
    assert gpu.judged("tma: bias assumed zero", "kernel.so", after(0.2)) is None


def test_what_nothing_saw_survives_and_says_what_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    row = outcome(monkeypatch, isolation.Returned(UNSEEN, ""))
    assert row is not None and not row.killed and "compute-sanitizer is not installed" in row.detail


def test_a_sanitizer_kills_what_the_judge_does_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    report = sanitize.Report("racecheck", "findings", "2 errors: Race reported in gemm")
    monkeypatch.setattr(sanitize, "check", lambda *_, **__: report)
    monkeypatch.setattr(isolation, "run", lambda *_, **__: isolation.Returned(UNSEEN, ""))
    monkeypatch.setattr(sanitize, "find", lambda: Path("compute-sanitizer"))
    row = gpu.judged("tma: no barrier in the combination", "kernel.so")
    assert row is not None and row.killed_by == ("memcheck: 2 errors: Race reported in gemm",)


def test_mutants_of_one_base_can_stand_in_one_unit() -> None:
    names = ["tma", *(m.name for m in HOPPER if m.base == "tma")]
    sources = {name: gpu.prepared(name).source for name in names}
    assert len({source.entry for source in sources.values()}) == len(names)
    for source in sources.values():
        assert source.entry in source.code and source.preamble != source.code


def test_units_meet_by_what_they_include(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "jobs", lambda group=1: 2)
    names = ("bias", "vector", "low", "split", "vector_sum", "residual")
    sources = {name: gpu.prepared(name).source for name in names}
    found = [list(unit) for unit in gpu.units(sources)]
    assert found == [["bias", "low", "split"], ["residual"], ["vector", "vector_sum"]]


ARTIFACT = Artifact("key", Path("kernel.so"), "nvcc", "ucc_0", "sm_90a", "nvcc", {}, 1.0, Report())
REFUSED = BuildError("ucc_0", ("error: no",), Path("s"), Path("l"), "nvcc")


def test_libraries_come_unit_by_unit_and_what_is_cut_short_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    results = {"a": ARTIFACT, "b": REFUSED, "c": BuildCancelled("ucc_0"), "d": ARTIFACT}
    monkeypatch.setattr(gpu, "build_many", lambda sources, *_, **__: [results[s.code] for s in sources])
    monkeypatch.setattr(gpu, "toolchain", lambda: None)
    made = list(gpu.built([{n: Source("", n, "", "") for n in unit} for unit in ("abc", "d")]))
    found = {name: library for unit in made for name, library in unit.items()}
    assert len(made) == 2 and sorted(found) == ["a", "b", "d"]
    assert found["a"] == str(ARTIFACT.library) and not gpu.is_built(found["b"])


def test_the_deadline_stops_the_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    def build_many(sources: Sequence[Source], *_: object, cancel: Event, **__: object) -> list[object]:
        assert cancel.wait(60.0)
        return [BuildCancelled("ucc_0") for _ in sources]

    monkeypatch.setattr(gpu, "build_many", build_many)
    monkeypatch.setattr(gpu, "toolchain", lambda: None)
    unit = {"a": Source("", "a", "", "")}
    assert list(gpu.built([unit], after(gpu.JUDGING_SECONDS + 0.2))) == [{}]


class Machine:
    """In place of compilers and a GPU: `cut` are not reached, `survive`, `fail` and `lose` say how the
    processes of those end."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        cut: Sequence[str] = (),
        survive: Sequence[str] = (),
        fail: Sequence[str] = (),
        lose: Sequence[str] = (),
    ) -> None:
        self.cut, self.survive, self.fail, self.lose = cut, survive, fail, lose
        self.judged: list[str] = []
        monkeypatch.setattr(gpu, "built", self.built)
        monkeypatch.setattr(isolation, "run", self.run)
        monkeypatch.setattr(sanitize, "find", lambda: None)
        monkeypatch.setattr(mutants, "names_of", lambda device: ["tma", *TMA])

    def built(self, units: Sequence[gpu.Unit], deadline: Deadline) -> Iterator[dict[str, str]]:
        for unit in units:
            yield {name: f"{name}.so" for name in unit if name not in self.cut}

    def run(self, target: str, arguments: Mapping[str, Any], **_: object) -> isolation.Outcome:
        if target == "tests.mutants.gpu:judged_here":
            self.judged.append(arguments["name"])
            return self._outcome(arguments["name"])
        assert target == "benchmarks.honest:serve"
        for item in arguments["items"]:
            self.judged.append(item["name"])
            if item["name"] in self.lose:
                return isolation.Crashed("SIGSEGV", "")
            assert item["library"] == f"{item['name']}.so"
            append(Path(arguments["rows"]), Honest(item["name"], "ok", "", 0.5, 0.1).as_json())
        return isolation.Returned(0, "")

    def _outcome(self, name: str) -> isolation.Outcome:
        if name in self.fail:
            return isolation.Raised("EditStale", "write the edit anew", "", "")
        if name in self.lose:
            return isolation.Crashed("SIGSEGV", "")
        return isolation.Returned(UNSEEN if name == "tma" or name in self.survive else SEEN, "")


TMA = [m.name for m in HOPPER if m.base == "tma"][:3]


def campaign(monkeypatch: pytest.MonkeyPatch, folder: Path, *more: str) -> tuple[int, dict[str, Any]]:
    file = folder / "mutants.json"
    status = call(monkeypatch, "--gpu", "--honest", "3", "--json", str(file), *more)
    return status, json.loads(file.read_text())


def test_a_campaign_on_a_gpu_goes_on_in_another_call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seeds = [job.name for job in honest.jobs(3, 0, "cuda")]
    Machine(monkeypatch, cut=[TMA[1], seeds[2]])
    status, made = campaign(monkeypatch, tmp_path, "--seconds", "500")
    assert (status, made["left"]) == (OUT_OF_TIME, [TMA[1], seeds[2]])
    assert (made["summary"]["mutants"], made["summary"]["honest"]) == (2, 3)

    second = Machine(monkeypatch)
    status, made = campaign(monkeypatch, tmp_path, "--seconds", "500")
    assert (status, made["left"]) == (0, [])
    assert sorted(second.judged) == sorted([TMA[1], seeds[2]]), "what has a row is not run again"
    assert [r["name"] for r in made["results"]] == ["tma", *TMA]
    assert [h["name"] for h in made["honest"]] == seeds
    assert (made["summary"]["killed"], made["summary"]["mutants"], made["summary"]["honest"]) == (3, 3, 4)


def test_one_that_survives_fails_the_campaign_once_all_rows_are_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Machine(monkeypatch, survive=TMA[:1], cut=TMA[1:2])
    assert campaign(monkeypatch, tmp_path)[0] == OUT_OF_TIME
    Machine(monkeypatch)
    status, made = campaign(monkeypatch, tmp_path)
    assert (status, made["summary"]["killed"], made["summary"]["mutants"]) == (1, 2, 3)


def test_lost_processes_cost_one_kernel_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seeds = [job.name for job in honest.jobs(3, 0, "cuda")]
    Machine(monkeypatch, lose=[TMA[0], seeds[1]])
    status, made = campaign(monkeypatch, tmp_path)
    assert (status, made["left"]) == (1, [])
    assert {r["name"]: r["killed_by"] for r in made["results"]}[TMA[0]] == ["crashed"]
    assert {h["name"]: h["verdict"] for h in made["honest"]} == {
        seeds[0]: "ok",
        seeds[1]: "unproven",
        seeds[2]: "ok",
    }


def test_a_failure_of_the_campaign_itself_is_told_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Machine(monkeypatch, fail=TMA[:1])
    status, made = campaign(monkeypatch, tmp_path)
    assert (status, list(made["failed"])) == (1, TMA[:1])
    assert "EditStale" in made["failed"][TMA[0]] and made["summary"]["mutants"] == 2
    assert campaign(monkeypatch, tmp_path)[0] == 1
    Machine(monkeypatch)
    assert campaign(monkeypatch, tmp_path)[0] == 0


def test_an_honest_kernel_that_is_not_built_is_unproven(tmp_path: Path) -> None:
    jobs = honest.jobs(1, 0, "cuda")
    (found,) = honest.judge(jobs, {jobs[0].name: "not built: error"}, tmp_path / "rows.jsonl")
    assert (found.verdict, found.words, found.ok) == ("unproven", "not built: error", False)

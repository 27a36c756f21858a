"""What the campaign of mutants reports, from rows of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks import honest, mutants
from benchmarks.campaign import claim
from benchmarks.harness import append
from benchmarks.honest import Honest
from benchmarks.mutants import B_ROWS, Result, guards, lowerings, names_of, summary
from tests.mutants import emulated, gpu, injection, judging, timing
from tests.mutants.emulated import Row
from tests.mutants.hopper import HOPPER
from tests.mutants.lowering import LOWERINGS
from ucutlass.emit.text import Source
from ucutlass.reference import evaluate
from ucutlass.runtime import isolation, sanitize
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.errors import BuildError
from ucutlass.runtime.ptxas import PtxasReport

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
    values = summary(results, passed)
    assert (values["mutants"], values["killed"], values["flat_check_passes"]) == (3, 2, 1)
    assert values["parts"] == {"lowering": [1, 2], "judge": [1, 1]}
    assert values["rows"]["6"] == [1, 1] and values["rows"]["17"] == [0, 1] and values["rows"]["64"] == [0, 0]
    assert (values["honest"], values["false_alarms"]) == (3, 1)


def test_every_row_of_ours_has_a_mutant_somewhere() -> None:
    every = [*LOWERINGS, *HOPPER, *judging.MUTANTS, *timing.MUTANTS, *injection.MUTANTS]
    assert set(B_ROWS) <= {row for m in every for row in m.patterns}


@pytest.mark.parametrize(
    ("verdict", "ok"),
    [
        ("ok", True),
        ("minor", True),
        ("flawed-problem", True),
        ("undecided", True),
        ("gaming", False),
        ("unproven", False),
    ],
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
    assert call(monkeypatch, "--out", str(file)) == status
    assert [r["killed"] for r in json.loads(file.read_text())["results"]] == [r.killed for r in rows]


def test_a_result_survives_its_file() -> None:
    result = Result("judge", SURVIVES, honest=True)
    assert Result.from_json(json.loads(json.dumps(result.as_json()))) == result


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_names_tell_all_of_a_campaign_apart(device: str) -> None:
    names = names_of(device)
    assert len(set(names)) == len(names)


def test_guards_run_by_name() -> None:
    name = timing.MUTANTS[0].name
    assert [(r.part, r.row.name) for r in guards([name])] == [("timing", name)]


def test_no_mutant_is_lost(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As many as the catalogue of the integrity page counts."""
    assert call(monkeypatch, "--list") == 0
    assert capsys.readouterr().out.endswith("75 mutants, 9 unchanged kernels\n")
    assert call(monkeypatch, "--list", "--gpu") == 0
    assert capsys.readouterr().out.endswith("58 mutants, 11 unchanged kernels\n")


def test_lowerings_run_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulated, "run", lambda name: Row(name, (), (), True))
    found = [(r.row.name, r.honest) for r in lowerings(["bias", LOWERINGS[0].name, "no lowering"], 2)]
    assert found == [("bias", True), (LOWERINGS[0].name, False)]


# --- on a GPU, as far as it goes without one --------------------------------------------

SEEN = {"killed_by": ["value (normal)"], "flat_check": False, "detail": ""}
UNSEEN = {"killed_by": [], "flat_check": True, "detail": ""}
ILLEGAL = isolation.Raised("AcceleratorError", "CUDA error: an illegal memory access", "", "")


def outcome(
    monkeypatch: pytest.MonkeyPatch, answer: isolation.CallOutcome, library: str = "kernel.so"
) -> Row:
    monkeypatch.setattr(isolation, "run", lambda *_, **__: answer)
    monkeypatch.setattr(sanitize, "find", lambda: None)
    return gpu.judged("tma: bias assumed zero", library)


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
    answer: isolation.CallOutcome, killed_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = outcome(monkeypatch, answer)
    assert row.killed_by == (killed_by,)


def test_a_mutant_that_is_not_built_was_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    row = outcome(monkeypatch, isolation.Crashed("SIGSEGV", ""), "not built: error")
    assert not row.killed and row.detail == "not built: error"


@pytest.mark.parametrize(
    "answer",
    [
        isolation.Raised("EditStale", "write the edit anew", "", ""),
        isolation.Raised("OutOfMemoryError", "CUDA out of memory. Tried to allocate", "", ""),
        isolation.Raised("AssertionError", "Torch not compiled with CUDA enabled", "", ""),
        isolation.Crashed("SIGKILL", ""),
    ],
)
def test_an_error_of_our_own_is_no_kill(
    answer: isolation.CallOutcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AssertionError, match="tma: bias assumed zero"):
        outcome(monkeypatch, answer)


def test_what_nothing_saw_survives_and_says_what_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    row = outcome(monkeypatch, isolation.Returned(UNSEEN, ""))
    assert not row.killed and "compute-sanitizer is not installed" in row.detail


def test_a_sanitizer_kills_what_the_judge_does_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    report = sanitize.SanitizerReport("racecheck", "findings", "2 errors: Race reported in gemm")
    monkeypatch.setattr(sanitize, "check", lambda *_, **__: report)
    monkeypatch.setattr(isolation, "run", lambda *_, **__: isolation.Returned(UNSEEN, ""))
    monkeypatch.setattr(sanitize, "find", lambda: Path("compute-sanitizer"))
    row = gpu.judged("tma: no barrier in the combination", "kernel.so")
    assert row.killed_by == ("memcheck: 2 errors: Race reported in gemm",)


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


ARTIFACT = Artifact("key", Path("kernel.so"), "nvcc", "ucc_0", "sm_90a", "nvcc", {}, 1.0, PtxasReport())
REFUSED = BuildError("ucc_0", ("error: no",), Path("s"), Path("l"), "nvcc")


def test_libraries_come_unit_by_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    results = {"a": ARTIFACT, "b": REFUSED, "c": ARTIFACT}
    monkeypatch.setattr(gpu, "build_many", lambda sources, *_, **__: [results[s.code] for s in sources])
    monkeypatch.setattr(gpu, "toolchain", lambda: None)
    made = list(gpu.built([{n: Source("", n, "", "") for n in unit} for unit in ("ab", "c")]))
    found = {name: library for unit in made for name, library in unit.items()}
    assert len(made) == 2 and sorted(found) == ["a", "b", "c"]
    assert found["a"] == str(ARTIFACT.library) and not gpu.is_built(found["b"])


class Machine:
    """In place of compilers and a GPU: `survive`, `fail` and `lose` say how the processes of those end."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        survive: Sequence[str] = (),
        fail: Sequence[str] = (),
        lose: Sequence[str] = (),
    ) -> None:
        self.survive, self.fail, self.lose = survive, fail, lose
        self.judged: list[str] = []
        monkeypatch.setattr(gpu, "built", self.built)
        monkeypatch.setattr(isolation, "run", self.run)
        monkeypatch.setattr(sanitize, "find", lambda: None)
        monkeypatch.setattr(mutants, "names_of", lambda device: ["tma", *TMA])

    def built(self, units: Sequence[gpu.Unit]) -> Iterator[dict[str, str]]:
        for unit in units:
            yield {name: f"{name}.so" for name in unit}

    def run(self, target: str, arguments: Mapping[str, Any], **_: object) -> isolation.CallOutcome:
        if target == "tests.mutants.gpu:judged_here":
            self.judged.append(arguments["name"])
            return self._outcome(arguments["name"])
        assert target == "benchmarks.campaign:serve" and arguments["target"] == "benchmarks.honest:judged_row"
        for item in arguments["items"]:
            if not claim(Path(arguments["folder"]), item, arguments["worker"]):
                continue
            self.judged.append(item["name"])
            if item["name"] in self.lose:
                return isolation.Crashed("SIGSEGV", "")
            assert item["library"] == f"{item['name']}.so"
            row = Honest(item["name"], "ok", "", 0.5, 0.1).as_json()
            append(Path(arguments["rows"]), {"key": item["key"]} | row)
        return isolation.Returned(0, "")

    def _outcome(self, name: str) -> isolation.CallOutcome:
        if name in self.fail:
            return isolation.Raised("EditStale", "write the edit anew", "", "")
        if name in self.lose:
            return isolation.Crashed("SIGSEGV", "")
        return isolation.Returned(UNSEEN if name == "tma" or name in self.survive else SEEN, "")


TMA = [m.name for m in HOPPER if m.base == "tma"][:3]


def campaign(monkeypatch: pytest.MonkeyPatch, folder: Path, *more: str) -> tuple[int, dict[str, Any]]:
    file = folder / "mutants.json"
    status = call(monkeypatch, "--gpu", "--honest", "3", "--out", str(file), *more)
    return status, json.loads(file.read_text())


def test_a_campaign_on_a_gpu_judges_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seeds = [job.name for job in honest.jobs(3, 0, "cuda")]
    machine = Machine(monkeypatch)
    status, report = campaign(monkeypatch, tmp_path)
    assert status == 0 and sorted(machine.judged) == sorted(["tma", *TMA, *seeds])
    assert [r["name"] for r in report["results"]] == ["tma", *TMA]
    assert [h["name"] for h in report["honest"]] == seeds
    counts = report["summary"]
    assert (counts["killed"], counts["mutants"], counts["honest"]) == (3, 3, 4)


def test_one_that_survives_fails_the_campaign(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Machine(monkeypatch, survive=TMA[:1])
    status, report = campaign(monkeypatch, tmp_path)
    assert (status, report["summary"]["killed"], report["summary"]["mutants"]) == (1, 2, 3)


def test_lost_processes_cost_one_kernel_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seeds = [job.name for job in honest.jobs(3, 0, "cuda")]
    Machine(monkeypatch, lose=[TMA[0], seeds[1]])
    status, made = campaign(monkeypatch, tmp_path)
    assert status == 1
    assert {r["name"]: r["killed_by"] for r in made["results"]}[TMA[0]] == ["crashed"]
    assert {h["name"]: h["verdict"] for h in made["honest"]} == {
        seeds[0]: "ok",
        seeds[1]: "unproven",
        seeds[2]: "ok",
    }


def test_a_failure_of_the_campaign_itself_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Machine(monkeypatch, fail=TMA[:1])
    status, made = campaign(monkeypatch, tmp_path)
    assert (status, list(made["failed"])) == (1, TMA[:1])
    assert "EditStale" in made["failed"][TMA[0]] and made["summary"]["mutants"] == 2


def test_an_honest_kernel_that_is_not_built_is_unproven(tmp_path: Path) -> None:
    jobs = honest.jobs(1, 0, "cuda")
    (found,) = honest.judge(jobs, {jobs[0].name: "not built: error"}, tmp_path / "rows.jsonl")
    assert (found.verdict, found.words, found.ok) == ("unproven", "not built: error", False)


def test_honest_kernels_of_a_gpu_are_those_that_nvcc_builds() -> None:
    """Its campaign compiles them beside the mutants; f32 by wgmma is built in parts."""
    drawn = honest.jobs(60, 33115, "cuda")
    assert len(drawn) == 60
    assert not any(honest.prepared(job).source.in_parts for job in drawn)


def test_an_honest_kernel_is_judged_so_on_the_host() -> None:
    (job,) = honest.jobs(1, 0, "cpu")
    judged = Honest(job.name, **honest.judged_here(asdict(job), ""))
    assert judged.ok, judged.words


FAST_MEAN = """
kernel k(x: e5m2[K=512, M=3], w: e5m2[N=144, K]) -> (y0: bf16[M, N], y1: bf16[M]) {
  d = dot[K](x, w, acc=fast)
  return y0 = d, y1 = mean[N](d)
  schedule sm90a { warps gemv  rows 1 }
}
"""


@pytest.mark.parametrize(
    ("text", "off", "verdict"),
    [
        (FAST_MEAN, 0.0, "undecided"),
        (FAST_MEAN, 1e4, "unproven"),
        (FAST_MEAN.replace(", acc=fast", "").replace("e5m2", "bf16"), 0.0, "ok"),
    ],
)
def test_what_no_bound_decides_is_no_alarm_and_what_is_wrong_stays_one(
    text: str, off: float, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The errors of a fast accumulation may all have one sign, so that a mean of them has the bound of each."""

    def launch(kernel: emulated.Prepared) -> Any:
        def run(arguments: Sequence[Any], outputs: Sequence[Any]) -> None:
            for out, result in zip(outputs, evaluate(kernel.kernel, arguments), strict=True):
                out.copy_(result)
            outputs[1][0] += off

        return run

    monkeypatch.setattr(honest, "_emulated", launch)
    row = honest.judged_here(asdict(honest.Job("k", text, {})), "")
    assert row["verdict"] == verdict and Honest("k", **row).ok == (verdict != "unproven")
    assert ("says nothing of 3 of 3" in row["words"]) == (verdict == "undecided")

"""The gate of stage B: what it asks for, what it counts as the same, and what it does without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import relay, stage_gate
from benchmarks.budget import after
from benchmarks.farm import Accepted, Case, plan
from benchmarks.stage_gate import SIGNATURES, SPEED, building, gate, program, served, speed, tma
from tests.emit.gemm_plans import SMALL as SM80
from tests.emit.test_gemm_sm90 import bias_gelu
from ucutlass import frontend
from ucutlass.kernels.gemm.plan import GemmPlan, Sm90Schedule
from ucutlass.runtime import switches
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.errors import BuildTimedOut
from ucutlass.runtime.jit import link
from ucutlass.runtime.ptxas import Report
from ucutlass.shapes import complete

ROOT = Path(__file__).resolve().parents[2]
TEXT = "kernel k(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return dot[K](x, w)\n%s }"
SHAPE = {"M": 64, "N": 64, "K": 64}


def accepted(name: str, schedule: str = "schedule sm90a { warps pingpong  tile 64x64x64 }") -> Accepted:
    found = plan(Case(name, TEXT % schedule, (SHAPE,)))
    assert isinstance(found, Accepted)
    return found


def test_each_plan_has_the_first_stage_that_serves_it() -> None:
    assert served(bias_gelu()) == "b"
    half = replace(bias_gelu(), problem=replace(bias_gelu().problem, accumulate="f16"))
    assert served(half).startswith("a: accumulation in f16")
    other = GemmPlan("sm_80", bias_gelu().problem, SM80, ("direct", "direct"))
    assert served(other).startswith("plain: only TMA kernels")


def test_the_gate_is_of_tma_kernels_alone() -> None:
    multistage = "schedule sm80 { warps multistage  tile 64x64x32 }"
    found = plan(Case("sm80", TEXT % multistage, (SHAPE,), arch="sm80"))
    assert isinstance(found, Accepted)
    assert tma(accepted("a")) and not tma(found)


@pytest.mark.parametrize(("kind", "element", "sizes"), SPEED)
def test_every_timed_kernel_is_built_in_stages(kind: str, element: str, sizes: dict[str, int]) -> None:
    checked = frontend.read_text(program(kind, element))
    kernel = frontend.kernel(checked)
    chosen = frontend.plan_kernel(checked, kernel, complete(kernel, sizes), "sm90a").planned.plan
    assert isinstance(chosen.schedule, Sm90Schedule)
    assert served(chosen)[0] in link.STAGES


def test_every_kind_of_kernel_is_timed() -> None:
    assert {kind for kind, _, _ in SPEED} == set(SIGNATURES)


def test_the_plan_of_the_gate_needs_no_gpu() -> None:
    """All cases of the correctness suite are counted, each by the stage that serves it."""
    blind = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "benchmarks.stage_gate", "--plan"]
    done = subprocess.run(command, cwd=ROOT, env=blind, capture_output=True, text=True, check=True)
    counts = {what: int(count) for count, what in (row.split(None, 1) for row in done.stdout.splitlines())}
    assert {what[0] for what in counts} <= {"a", "b", "p"}
    assert counts["b"] > sum(counts.values()) / 2, "the main path"
    assert all(what == "b" or ": " in what for what in counts), "every other one says why"


def test_a_folder_is_asked_for() -> None:
    command = [sys.executable, "-m", "benchmarks.stage_gate", "--only", "none"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "--out FOLDER is needed" in done.stderr


@pytest.mark.parametrize("before", [None, "a"])
def test_the_stage_is_put_back(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(switches.BUILD_STAGE, raising=False)
    if before is not None:
        monkeypatch.setenv(switches.BUILD_STAGE, before)
    with pytest.raises(ZeroDivisionError), building("b"):
        assert switches.read().stage == "b"
        raise ZeroDivisionError
    assert os.environ.get(switches.BUILD_STAGE) == before


# --- what it builds and judges ----------------------------------------------------


class Bench:
    """In place of compilers and processes with a GPU."""

    def __init__(self, *failing: str) -> None:
        self.failing = failing
        self.built: list[tuple[str, int]] = []
        self.judged: list[dict[str, Any]] = []

    def build_sources(self, pairs: Any, *, stage: str, **_: object) -> list[object]:
        self.built.append((stage, len(pairs)))
        one = Artifact("key", Path("nowhere"), "nvcc", "ucc_0", "sm_90a", "", {}, 1.0, Report())
        return [BuildTimedOut("ucc_0", 1.0) if stage in self.failing else one for _ in pairs]

    def run(self, target: str, items: list[dict[str, Any]], rows: Path, **_: object) -> list[dict[str, Any]]:
        module, function = target.split(":")
        assert module == stage_gate.__name__ and callable(getattr(stage_gate, function))
        self.judged += items
        return [{"name": item["name"], "ok": True} for item in items]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench("b")
    monkeypatch.setattr(stage_gate, "build_sources", made.build_sources)
    monkeypatch.setattr(relay, "run", made.run)
    return made


def test_each_case_is_built_both_ways_and_judged(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = gate([accepted("x"), accepted("y")], "b", tmp_path, after(60.0))
    assert sorted(bench.built) == [("b", 2), ("plain", 2)]
    assert [row["name"] for row in rows] == ["x", "y"]
    assert {item["stage"] for item in bench.judged} == {"b"}
    said = capsys.readouterr().out
    assert "x: not built" in said and "y: not built" in said


def test_speed_is_that_of_stages_which_serve(bench: Bench, tmp_path: Path) -> None:
    speed(("plain", "b", "a"), tmp_path, after(60.0))
    assert [stage for stage, _ in bench.built] == ["plain", "b", "a"]
    assert [item["name"] for item in bench.judged] == sorted(
        {item["name"] for item in bench.judged}, key=[item["name"] for item in bench.judged].index
    ), "rows are found by their names"
    assert len(bench.judged) == len(SPEED)
    assert all(item["stages"][0] == "plain" for item in bench.judged)


@dataclass(frozen=True)
class Compared:
    worst: float


@dataclass(frozen=True)
class Verdict:
    ok: bool
    comparisons: tuple[Compared, ...] = (Compared(0.5),)


class Kernel:
    """Results come by the stage of the first call, which builds it; those from `wavers` on are others."""

    def __init__(self, results: dict[str, float], wavers: int | None) -> None:
        self.results, self.program, self.wavers = results, None, wavers
        self.stage, self.calls = "", 0

    def __call__(self, *_: object, out: Any = None) -> Any:
        import torch

        self.stage = self.stage or switches.read().stage
        self.calls += 1
        raced = self.stage == "b" and self.wavers is not None and self.calls >= self.wavers
        made = torch.tensor([2.0 if raced else self.results[self.stage]])
        return made if out is None else out.copy_(made)


@pytest.mark.parametrize(
    ("ours", "wavers", "right", "ok", "same"),
    [
        (1.0, None, True, True, 1),
        (1.0000001, None, True, False, 0),
        (1.0, None, False, False, 1),
        (-0.0, None, True, False, 0),
        (1.0, stage_gate.REPEATS, True, False, 0),
    ],
)
def test_only_the_same_bits_pass(
    ours: float, wavers: int | None, right: bool, ok: bool, same: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zero of another sign too is another result, and so is one that comes now and then."""
    import ucutlass
    from ucutlass.runtime import inputs, verify

    plainly = 0.0 if ours == 0.0 else 1.0
    monkeypatch.setattr(ucutlass, "loads", lambda *_, **__: Kernel({"b": ours, "plain": plainly}, wavers))
    monkeypatch.setattr(inputs, "generate", lambda *_, **__: ())
    monkeypatch.setattr(verify, "check", lambda *_, **__: Verdict(right))
    item = {"text": "", "shapes": [SHAPE], "distributions": ["normal"], "stage": "b"}
    row = stage_gate._judge(item)
    assert (row["ok"], row["right"], row["same"], row["runs"]) == (ok, int(right), same, 1)
    assert bool(row["details"]) is not ok

"""`ucc run`: what it says, and that nothing that happens in the kernel's process hurts it."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from cli_machine import H200, LINEAR, SIZES, Machine, Result

from ucutlass.runtime import isolation

command = importlib.import_module("ucutlass.cli.run")

pytestmark = pytest.mark.usefixtures("forked")

Run: TypeAlias = Callable[..., Result]


@pytest.fixture
def run(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `ucc run` as on a machine with an H200, `candidate` in the kernel's place."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setattr("ucutlass.runtime.system.driver", lambda: H200)
    real = isolation.run

    def called(candidate: str, *more: str) -> Result:
        def replaced(target: str, arguments: dict[str, Any], **limits: Any) -> isolation.CallOutcome:
            assert target == "ucutlass.tasks.run:on_gpu"
            return real(f"run_candidates:{candidate}", arguments, **limits)

        monkeypatch.setattr(isolation, "run", replaced)
        return machine.ucc("run", LINEAR, *SIZES, *more)

    return called


@pytest.mark.parametrize(
    "candidate, words",
    [
        ("crash", "SIGSEGV"),
        ("hang", "did not end within 1 s"),
        ("leave", "ended by itself with status 7"),
        ("fail", "RuntimeError: an illegal memory access was encountered"),
    ],
)
def test_a_lost_kernel_is_one_line(run: Run, candidate: str, words: str) -> None:
    limit = ("--limit", "1") if candidate == "hang" else ()
    result = run(candidate, *limit)
    assert result.status == 1
    assert result.out == ""
    assert result.err.startswith("ucc: linear_gelu: ")
    assert words in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("candidate", ["crash", "leave"])
def test_a_lost_kernel_is_one_json_object(run: Run, candidate: str) -> None:
    result = run(candidate, "--json")
    row = json.loads(result.out)
    assert result.status == 1
    assert row["ok"] is False and row["lost"]
    assert row["ran"] == "GPU" and row["kernel"] == "linear_gelu"


def test_what_is_undecided_is_not_right_and_says_where(run: Run) -> None:
    result = run("undecided")
    assert result.status == 1
    lines = dict(line.split("\t", 1) for line in result.out.splitlines())
    assert lines["stage"] == "stage h = layer: .. says nothing"
    assert lines["verdict"].startswith("undecided: 1 of 2 stages")
    assert "time" not in lines


def test_a_right_kernel_is_timed_against_the_bound(run: Run) -> None:
    result = run("right")
    assert result.status == 0
    lines = dict(line.split("\t", 1) for line in result.out.splitlines())
    assert lines["ran on"] == "NVIDIA H200"
    assert lines["time"] == "12.50 us, spread 1.0%"
    assert lines["verdict"] == "right"
    assert lines["result"] == "largest error 0.25 of the bound"
    assert "% of H200's bound" in lines["speed of light"]


def test_a_wrong_kernel_has_no_speed(run: Run) -> None:
    result = run("wrong")
    assert result.status == 1
    assert "3 of 64 elements beyond the bound" in result.out
    assert "memory beyond the result was written" in result.out
    assert "time\t" not in result.out and "speed of light" not in result.out


def test_what_the_kernel_prints_does_not_reach_the_output(run: Run) -> None:
    result = run("talk", "--json")
    assert result.status == 0
    assert json.loads(result.out)["ok"] is True
    assert "noise" not in result.out + result.err


def test_without_a_gpu_the_interpreter_runs_and_says_so(machine: Machine) -> None:
    result = machine.ucc("run", LINEAR, "-s", "M=64,N=700,K=64")
    assert result.status == 0, result.err
    assert machine.builds == 1
    assert "the CPU, no GPU here: the float64 reference interpreter, at M=64 N=512 K=64" in result.out
    assert "the kernel itself was built, not run" in result.out
    assert "nothing was timed" in result.out


def test_without_a_gpu_the_json_says_where_it_ran(machine: Machine) -> None:
    row = machine.ucc("run", LINEAR, *SIZES, "--json").json
    assert row["ran"] == "CPU"
    assert row["sizes"] == {"M": 256, "K": 256, "N": 256}
    assert row["results"][0]["shape"] == [256, 256]
    assert row["results"][0]["finite"] is True
    assert "microseconds" not in row

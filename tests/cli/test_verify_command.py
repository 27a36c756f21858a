"""`ucc verify`: what it runs, says and keeps, on a machine with and without a GPU."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from cli_machine import H200, LINEAR, Machine, Result

from ucutlass.runtime import isolation, sanitize
from ucutlass.runtime.store import EvidenceStore

command = importlib.import_module("ucutlass.cli.verify")

SIZES = ("-s", "M=64,N=64,K=64")
FEW = ("--distribution", "integer", "--distribution", "normal", "--cases", "5")

pytestmark = pytest.mark.usefixtures("forked")

Verify: TypeAlias = Callable[..., Result]


@pytest.fixture
def verify(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Verify:
    """Runs `ucc verify` as on a machine with an H200, `candidate` in the place of the kernel's process."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setattr("ucutlass.runtime.system.driver", lambda: H200)
    monkeypatch.setattr(command, "_gpu_lock", lambda _: nullcontext())
    monkeypatch.setattr(sanitize, "find", lambda: None)
    real = isolation.run

    def called(candidate: str, *more: str, driver: bool = True) -> Result:
        def replaced(target: str, arguments: dict[str, Any], **limits: Any) -> isolation.CallOutcome:
            match target.removeprefix("ucutlass.tasks.verify_cases:"):
                case "machine" if driver:
                    made = {"device": "NVIDIA H200", "uuid": "GPU-0", "versions": arguments["built_with"]}
                    return isolation.Returned(made, "")
                case "machine":
                    return isolation.Raised("RuntimeError", "CUDA driver initialization failed", "", "")
                case "judged":
                    return real(f"verify_candidates:{candidate}", arguments, **limits)
                case other:
                    raise AssertionError(other)

        monkeypatch.setattr(isolation, "run", replaced)
        return machine.ucc("verify", LINEAR, *SIZES, *FEW, *more)

    return called


def test_without_a_gpu_nothing_is_verified(machine: Machine) -> None:
    result = machine.ucc("verify", LINEAR, *SIZES)
    assert result.status == 3
    assert result.out == "" and "nothing was verified: there is no NVIDIA GPU" in result.err
    assert machine.builds == 0
    assert machine.ucc("verify", LINEAR, *SIZES, "--json").json["status"] == 3


def test_a_right_kernel_becomes_a_record(verify: Verify, machine: Machine) -> None:
    result = verify("right", "--seed", "7")
    assert result.status == 0, result.out + result.err
    lines = [line.split("\t") for line in result.out.splitlines()]
    assert lines[0][:2] == ["case", "extents"]
    assert lines[1][:2] == ["integer", "M=64 K=64 N=64"]
    assert lines[1][-1] == "right"
    said = {line[0]: line[1] for line in lines if len(line) == 2}
    assert said["verdict"] == "right: 5 of 5 cases right"
    assert said["repeat with"] == "--seed 7"
    (record,) = EvidenceStore.open(machine.home / "data" / "evidence.sqlite").find(kind="verify")
    assert record.id.startswith(said["record"])
    assert record.result["ok"] is True and len(record.result["cases"]) == 5
    assert record.protocol["seed"] == 7
    assert record.subject.kernel == "linear_gelu" and record.subject.binary and record.subject.source
    assert record.machine.device == "NVIDIA H200"


@pytest.mark.slow
def test_the_seed_is_secret_unless_given(verify: Verify) -> None:
    first, again = (verify("right", "--json").json for _ in range(2))
    assert first["seed"] != again["seed"]
    repeated = verify("right", "--seed", str(first["seed"]), "--json").json
    assert [c["seed"] for c in repeated["cases"]] == [c["seed"] for c in first["cases"]]


def test_a_wrong_kernel(verify: Verify) -> None:
    result = verify("wrong")
    assert result.status == 1
    assert "1 of 4096 elements of the result, first [63, 63]" in result.out
    assert "not verified: 0 of 5 cases right" in result.out


def test_what_is_left_open_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    case = {
        "kind": "values",
        "distribution": "large",
        "sizes": {"M": 64},
        "stages": [],
        "comparisons": [],
        "ok": True,
        "outcome": "undecided",
        "rests_on_stages": False,
    }
    right = case | {"distribution": "normal", "outcome": "right"}
    row = {
        "cases": [right, case],
        "sanitizers": [],
        "left_out": [],
        "failures": [],
        "ok": True,
        "seed": 7,
        "open": ["large M=64: undecided: its bound says nothing"],
        "kernel": "k",
        "arch": "sm90a",
        "schedule": "",
        "device": "NVIDIA H200",
        "record": "0" * 64,
    }
    command._report(row, False)
    out = capsys.readouterr().out
    assert "left open\tlarge M=64: undecided" in out and "against it" not in out
    assert "right: 1 of 2 cases right" in out


@pytest.mark.slow
def test_a_lost_kernel(verify: Verify) -> None:
    row = verify("crash", "--json")
    assert row.status == 1
    assert {c["outcome"] for c in row.json["cases"]} == {"lost"}
    assert all("SIGSEGV" in words for words in row.json["failures"])


def test_a_tool_that_is_asked_for_and_not_there_is_the_machines_fault(verify: Verify) -> None:
    result = verify("right", "--sanitize")
    assert result.status == 3
    assert "sanitizer memcheck\tnot available: compute-sanitizer is not installed" in result.out
    assert "not verified" in result.out


def test_a_gpu_that_does_not_answer(verify: Verify, machine: Machine) -> None:
    result = verify("right", driver=False)
    assert result.status == 3
    assert "the GPU cannot be used: RuntimeError: CUDA driver initialization failed" in result.err
    assert EvidenceStore.open(machine.home / "data" / "evidence.sqlite").find(kind="verify") == ()

"""A suite as an engine's GPU runs it: the plan crosses as JSON, libraries by their keys."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ucutlass import frontend
from ucutlass.kernels.granularity import Granularity
from ucutlass.runtime import isolation
from ucutlass.runtime.verify import pool
from ucutlass.runtime.verify.evidence import CaseResult, plain
from ucutlass.runtime.verify.suite import suite
from ucutlass.runtime.verify.verdict import LaunchVerdict
from ucutlass.tasks import verification
from ucutlass.tasks.built import ArtifactGone
from ucutlass.tasks.verify_cases import facts

TEXT = "kernel k(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return dot[K](x, w) }"
SIZES = {"M": 64, "N": 64, "K": 64}


@dataclass
class Kept:
    library: Path


class Process:
    """A fresh process: it says what machine it is, and loses the case at its head in `loses`."""

    def __init__(self, number: int, log: list[tuple[int, str]], loses: bool) -> None:
        self.number, self.log, self.loses = number, log, loses

    def call(self, target: str, arguments: Mapping[str, Any], **limits: Any) -> isolation.CallOutcome:
        self.log.append((self.number, target.partition(":")[2]))
        if target.endswith(":machine"):
            return isolation.Returned({"device": "NVIDIA H200", "uuid": "GPU-0", "versions": {}}, "")
        cases = arguments["cases"][:1] if self.loses else arguments["cases"]
        with Path(arguments["journal"]).open("w") as journal:
            for number, _ in enumerate(cases):
                ended = {"ended": number, "verdict": RIGHT, "raised": "", "seconds": 0.1}
                for entry in ({"begun": number}, *(() if self.loses else (ended,))):
                    journal.write(json.dumps(entry) + "\n")
        return isolation.Crashed("SIGSEGV", "") if self.loses else isolation.Returned("", "")


RIGHT = plain(LaunchVerdict((), ()))


def asked() -> dict[str, Any]:
    checked = frontend.read_text(TEXT, "k.ucu")
    program = frontend.program(checked)
    grain = Granularity({"M": 64}, {}, {})
    verification_plan = verification.VerificationPlan(
        facts(checked, "k", [("/not/here.so", "entry", (1,)), None]),
        grain,
        suite(program, SIZES, grain, seed=3, most=6),
        (),
    )
    arguments = {
        "kernel": dict(verification_plan.kernel),
        "keys": ["key-of-it"],
        "tile": dict(verification_plan.granularity.tile),
        "suite": verification.asdict(verification_plan.suite),
        "case_seconds": 7.0,
        "built_with": {"nvcc": "13"},
    }
    crossed: dict[str, Any] = json.loads(json.dumps(arguments))
    return crossed


def test_cases_are_judged_by_the_libraries_that_lie_there(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def ran(target: str, shared: Any, cases: Any, **limits: Any) -> Any:
        seen.append((shared, cases, limits["case_seconds"]))
        return tuple(CaseResult(c, "right", None) for c in cases)

    monkeypatch.setattr(pool, "run", ran)
    monkeypatch.setattr(verification, "artifact_of", lambda key: Kept(Path(f"/worker/{key}/kernel.so")))
    log: list[tuple[int, str]] = []
    values = verification.on_gpu(**asked(), fresh=lambda: nullcontext(Process(0, log, False)))
    assert log == [(0, "machine")]
    ((shared, cases, limit),) = seen
    stages = shared["kernel"]["stages"]
    assert stages[0]["library"] == "/worker/key-of-it/kernel.so" and stages[1] is None
    assert len(cases) == 6 and limit == 7.0 and shared["tile"] == {"M": 64}
    assert values["machine"]["device"] == "NVIDIA H200"
    assert len(values["evidence"]["cases"]) == 6 and values["evidence"]["seed"] == 3
    assert values["evidence"]["left_out"], "what the limit left out is still said"


def test_a_library_that_is_gone_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ucutlass.runtime.build.cached_artifact", lambda key, cache: None)
    with pytest.raises(ArtifactGone, match="has no entry key-of-it"):
        verification.on_gpu(**asked(), fresh=lambda: nullcontext(Process(0, [], False)))


def test_one_fresh_process_judges_until_it_is_lost_with_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "artifact_of", lambda key: Kept(Path(f"/worker/{key}/kernel.so")))
    log: list[tuple[int, str]] = []
    open_processes: list[int] = []

    @contextmanager
    def fresh() -> Iterator[Any]:
        number = len(open_processes)
        open_processes.append(number)
        yield Process(number, log, loses=number == 0)

    evidence = verification.on_gpu(**asked(), fresh=fresh)["evidence"]
    assert log == [(0, "machine"), (0, "judged"), (1, "judged")]
    outcomes = [case["outcome"] for case in evidence["cases"]]
    assert outcomes[0] == "lost" and "SIGSEGV" in str(evidence["cases"][0]) and "lost" not in outcomes[1:]

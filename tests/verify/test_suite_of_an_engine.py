"""A suite as an engine's GPU runs it: the plan crosses as JSON, libraries by their keys."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ucutlass import frontend
from ucutlass.kernels.granularity import Granularity
from ucutlass.runtime import isolation
from ucutlass.runtime.verify import pool
from ucutlass.runtime.verify.evidence import CaseResult
from ucutlass.runtime.verify.suite import suite
from ucutlass.tasks import verification
from ucutlass.tasks.built import ArtifactGone
from ucutlass.tasks.verify_cases import facts

TEXT = "kernel k(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return dot[K](x, w) }"
SIZES = {"M": 64, "N": 64, "K": 64}


@dataclass
class Kept:
    library: Path


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
    told = {"device": "NVIDIA H200", "uuid": "GPU-0", "versions": {"nvcc": "13"}}
    monkeypatch.setattr(isolation, "run", lambda *_, **__: isolation.Returned(told, ""))
    values = verification.on_gpu(**asked())
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
        verification.on_gpu(**asked())

"""What stands for a GPU where a source is held to its program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ucutlass.runtime.evidence import Machine, Record
from ucutlass.runtime.store import record
from ucutlass.runtime.subject import subject_of

RIGHT: Mapping[str, Any] = {"ok": True, "failures": [], "cases": [], "left_out": []}


def outcome(name: str, microseconds: float) -> dict[str, Any]:
    return {"name": name, "trusted": True, "span": {"median": microseconds}, "findings": []}


def comparison(verdict: str = "faster", **more: Any) -> dict[str, Any]:
    """What the process that times returns."""
    regime = {
        "protocol": {"regime": "cold"},
        "outcomes": [outcome("candidate", 10.0), outcome("text", 12.0)],
        "versus": [
            {"baseline": "text", "verdict": verdict, "ratio": {"low": 0.8, "median": 0.83, "high": 0.9}}
        ],
        "rounds": 9,
        "seconds": 1.0,
        "settled": True,
        "l2_reset": False,
        "no_profiler": "",
        "findings": [],
        "buffers": {},
    }
    machine = {"device": "NVIDIA H200", "uuid": "GPU-0", "versions": {}}
    verified = [{"case": "normal", "ok": True, "words": ""}]
    return {"machine": machine, "verified": verified, "regimes": [regime | more], "stages": []}


def audit_record(candidate: Any) -> Record:
    sizes, text = list(candidate.sizes.values()), candidate.checked.source
    about = subject_of(candidate.program, text, sizes, arch="", compute_type="", schedule="")
    return record("audit", about, Machine("", "", {}), {}, {"verdict": "ok"})

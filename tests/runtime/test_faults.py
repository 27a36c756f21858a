"""A candidate that is lost costs itself: whatever it did, the next one starts clean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.verify import candidates
from ucutlass.runtime import isolation
from ucutlass.runtime.verify import pool
from ucutlass.runtime.verify.suite import VerifyCase

FAULTS: dict[str, tuple[str, dict[str, Any], type[object]]] = {
    "a hang": ("isolation_candidates:hangs", {"note": "note"}, isolation.TimedOut),
    "an illegal address": ("isolation_candidates:segfault", {}, isolation.Crashed),
    "a sticky error": ("tests.runtime.fault_candidates:breaks", {}, isolation.Raised),
    "too much memory": ("isolation_candidates:devours", {}, isolation.TooMuchMemory),
    "an early exit": ("isolation_candidates:leaves", {}, isolation.Exited),
    "noise": ("isolation_candidates:noisy", {}, isolation.Returned),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_next_candidate_runs_on_a_clean_context(fault: str, tmp_path: Path) -> None:
    target, arguments, kind = FAULTS[fault]
    given = {name: str(tmp_path / value) for name, value in arguments.items()}
    limit = 3.0 if fault == "a hang" else 60.0
    memory = 256 * 2**20 if fault == "too much memory" else 2**31  # some of the others import torch
    lost = isolation.run(target, given, limit_seconds=limit, memory_bytes=memory)
    assert isinstance(lost, kind)
    assert isolation.run("isolation_candidates:add", {"a": 2, "b": 3}, limit_seconds=60).value == 5  # type: ignore[union-attr]


def test_a_sticky_error_is_not_the_next_cases() -> None:
    rows = (20, 1, 17, 3)
    cases = [VerifyCase(f"{m} rows", "values", {"M": m, "N": 16, "K": 72}, "integer", 1, "") for m in rows]
    results = pool.run("tests.runtime.fault_candidates:batch", {"tile": candidates.TILE}, cases)
    assert [r.outcome for r in results] == ["right", "lost", "right", "right"]
    assert "illegal memory access" in results[1].message

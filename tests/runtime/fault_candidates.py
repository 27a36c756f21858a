"""Candidates that break things for those after them; `test_faults` runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tests.verify import candidates
from ucutlass import frontend
from ucutlass.runtime.verify.batch import judge_all

_broken: list[str] = []
"""As a CUDA context: once broken, every later call of the process fails."""


def sticky(parts: candidates.Parts) -> None:
    if parts.out.shape[0] == 1:
        _broken.append("CUDA error: an illegal memory access was encountered")
    if _broken:
        raise RuntimeError(_broken[0])
    parts.honest()


def batch(
    tile: Mapping[str, int], cases: Sequence[Mapping[str, Any]], journal: str, case_seconds: float
) -> str:
    torch.set_num_threads(1)
    program = frontend.kernel(frontend.read_text(candidates.TEXT))
    launch = candidates.launcher(sticky)
    return judge_all(program, launch, cases, journal, tile=tile, device="cpu", case_seconds=case_seconds)


def breaks() -> str:
    """Breaks the context; a second call in the same process would raise."""
    if _broken:
        raise RuntimeError(_broken[0])
    _broken.append("CUDA error: an illegal memory access was encountered")
    raise RuntimeError(_broken[0])


def works() -> str:
    if _broken:
        raise RuntimeError(_broken[0])
    return "right"

"""Programs for every pair of features, built and launched on a GPU, in slices that workers share."""

from __future__ import annotations

import shutil
from functools import cache

import pytest
import torch

from tests.pairs.on_gpu import UNIT, launched
from tests.pairs.pairs import Cover, Judged, cover, undrawn
from tests.pairs.spaces import SPACES

pytestmark = [pytest.mark.gpu, pytest.mark.long]

SEED = 1
SLICES = {"reduction": 10, "gemm": 8, "grouped_gemm": 8, "attention": 5, "convolution": 5}
"""Tests of a family, of at most `UNIT` programs each, so that one process judges a slice."""


@cache
def drawn(name: str) -> Cover:
    """The programs of a family, drawn once for its slices."""
    return cover(SPACES[name], SEED)


@pytest.mark.parametrize(("name", "slice_"), [(name, i) for name in SPACES for i in range(SLICES[name])])
def test_every_pair_that_the_compiler_accepts_is_drawn_and_none_is_wrong(name: str, slice_: int) -> None:
    if not torch.cuda.is_available() or shutil.which("nvcc") is None:
        pytest.skip("no NVIDIA GPU or no nvcc")
    space, covered = SPACES[name], drawn(name)
    assert not undrawn(space, covered, [Judged(drawn, "right") for drawn in covered.drawn])
    part = covered.drawn[slice_ :: SLICES[name]]
    assert len(part) <= UNIT, "more programs than a process judges: cut the family into more slices"
    wrong = [j for j in launched(part, processes=1) if j.state not in ("right", "undecided")]
    assert not wrong, "\n".join(f"{w.drawn.program.text}{w.drawn.program.sizes}\n{w.detail}" for w in wrong)

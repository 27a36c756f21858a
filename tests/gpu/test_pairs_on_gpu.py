"""Programs for every pair of features, built and launched on a GPU."""

from __future__ import annotations

import shutil

import pytest
import torch

from benchmarks.pair_spaces import SPACES
from benchmarks.pairs import cover, table, undrawn
from benchmarks.pairs_gpu import launched

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", SPACES)
def test_every_pair_that_the_compiler_accepts_is_drawn_and_none_is_wrong(name: str) -> None:
    if not torch.cuda.is_available() or shutil.which("nvcc") is None:
        pytest.skip("no NVIDIA GPU or no nvcc")
    space = SPACES[name]
    covered = cover(space, seed=1)
    judged = launched(covered.drawn, processes=3)
    print(table(space, covered, judged))
    wrong = [one for one in judged if one.state == "wrong"]
    assert not wrong, "\n".join(f"{w.drawn.program.text}{w.drawn.program.sizes}\n{w.detail}" for w in wrong)
    assert not undrawn(space, covered, judged)

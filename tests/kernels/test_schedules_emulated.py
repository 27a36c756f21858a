"""Kernels by schedules that the planner would not choose, on the host: the emitted CUDA file against the
float64 reference."""

from __future__ import annotations

import random
import shutil

import pytest

from tests.emulated import Job, emulate
from tests.kernels.test_schedules import CASES, _with, space
from ucutlass.ir.schedule import show
from ucutlass.shapes import free_dims

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile emulated kernels")

SMALL = [
    n for n in CASES if n.startswith(("reduction", "attention", "convolution")) and not n.endswith("large")
]

FORCED = [
    ("reduction, softmax", "keep reread  split_k 4  threads 64  vector 2"),
    ("reduction, softmax", "rows 2  threads 256  vector 1  items 17"),
    ("reduction, transpose", "keep shared  rows 128  vector 4"),
    ("reduction, reverse scan", "threads 32  rows 4  items 3"),
    ("reduction, reverse scan", "keep registers  threads 32  items 1"),
    ("reduction, reverse scan", "keep registers"),
    ("convolution, depthwise", "vector 4  rows 2  threads 64"),
    ("attention, causal", "tile 64x48x64  stages 3"),
]
"""One of each way that a field takes through the emitters."""


def _right(name: str, schedule: str, seed: int) -> None:
    text, sizes = CASES[name]
    kernel = space(name)[1]
    extents = {d: sizes[d] for d in free_dims(kernel)}
    if name.startswith("attention"):
        extents |= {d: n for d, n in {"B": 1, "L": 70, "S": 150}.items() if d in extents}
    row = emulate(Job(name, _with(text, schedule), kernel.name, extents, None, seed))
    assert row.status == "right", f"{schedule}: {row.detail}"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "schedule"), FORCED, ids=lambda v: v.split("  ")[0])
def test_forced_schedules_compute_their_programs(name: str, schedule: str) -> None:
    _right(name, schedule, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_schedules_of_the_space_compute_their_programs(seed: int) -> None:
    draw = random.Random(seed)
    name = draw.choice(SMALL)
    _right(name, show(draw.choice(space(name)[2]).request), seed)

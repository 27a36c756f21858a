"""Schedules drawn from the spaces of every family but GEMM's, on a GPU against the float64 reference."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest

import ucutlass
from tests.gpu.turns import build_in_turn
from tests.kernels.test_schedules import CASES, _with, space
from ucutlass.backend import source_of
from ucutlass.emit.text import Source
from ucutlass.ir.schedule import show
from ucutlass.kernels.families import Plan
from ucutlass.kernels.planned import Planned
from ucutlass.runtime import verify
from ucutlass.runtime.inputs import generate
from ucutlass.shapes import free_dims

pytestmark = pytest.mark.gpu

EACH = 15
"""Kernels a family."""

DRAWN = [
    (family, i) for family in ("reduction", "convolution", "grouped_gemm", "attention") for i in range(EACH)
]


@cache
def drawn(family: str, number: int) -> tuple[str, Planned]:
    """A program's name and one of its kernels; another build than the planner's."""
    draw = random.Random(f"{family} {number}")
    while True:
        name = draw.choice([n for n in CASES if n.startswith(family)])
        found = space(name)[2]
        others = [k for k in found if k.plan != found[0].plan]
        if others:
            return name, draw.choice(others)


def sources() -> list[tuple[Source, Plan]]:
    """The kernel of every case, in their order."""
    pairs = []
    for family, number in DRAWN:
        name, planned = drawn(family, number)
        checked, kernel, _ = space(name)
        pairs.append((source_of(checked, kernel, planned), planned.plan))
    return pairs


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """Every kernel, built once and in parallel; the calls then find them in the cache."""
    build_in_turn("schedules", sources, [(case, show(drawn(*case)[1].request)) for case in DRAWN])


@pytest.mark.parametrize("distribution", ["integer", "normal"])
@pytest.mark.parametrize(("family", "number"), DRAWN)
def test_schedules_agree_with_the_reference(family: str, number: int, distribution: Any) -> None:
    name, planned = drawn(family, number)
    text, sizes = CASES[name]
    kernel = ucutlass.loads(_with(text, show(planned.request)), arch="sm90a")
    program = kernel.program
    extents = {d: sizes[d] for d in free_dims(program)}
    arguments = generate(program, extents, distribution, seed=number, device="cuda")

    def launch(given: Any, outputs: Any) -> None:
        kernel(*given, out=outputs[0] if len(outputs) == 1 else tuple(outputs))

    verdict = verify.check(program, launch, arguments)
    assert verdict.ok, f"{name}: {show(planned.request)}\n{verdict}"

"""Reductions on a GPU against the float64 reference: large and odd extents, poisoned results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

import ucutlass
from tests.gpu.turns import build_in_turn
from tests.kernels.huge_numbers import arguments_of
from tests.kernels.reduction_programs import REDUCTIONS
from ucutlass import frontend
from ucutlass.backend import source_of
from ucutlass.emit.text import Source
from ucutlass.kernels.families import Plan
from ucutlass.reference import expect
from ucutlass.runtime import verify
from ucutlass.runtime.inputs import DISTRIBUTIONS, generate
from ucutlass.runtime.verify.guards import shifted
from ucutlass.shapes import complete

pytestmark = pytest.mark.gpu

CASES = [(name, i) for name, reduction in REDUCTIONS.items() for i in range(len(reduction.large) + 1)]


def sizes_of(name: str, number: int) -> Mapping[str, int]:
    reduction = REDUCTIONS[name]
    return (reduction.small, *reduction.large)[number]


def sources() -> list[tuple[Source, Plan]]:
    """The kernel of every case, in their order."""
    pairs = []
    for name, number in CASES:
        checked = frontend.read_text(REDUCTIONS[name].text)
        program = frontend.kernel(checked)
        planned = frontend.plan_kernel(
            checked, program, complete(program, sizes_of(name, number)), "sm90a"
        ).planned
        pairs.append((source_of(checked, program, planned), planned.plan))
    return pairs


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """Every kernel, built once and in parallel; the calls then find them in the cache."""
    build_in_turn("reduction", sources, CASES)


@pytest.mark.parametrize("distribution", ["integer", "normal"])
@pytest.mark.parametrize(("name", "number"), CASES)
def test_reductions_agree_with_the_reference(name: str, number: int, distribution: Any) -> None:
    assert distribution in DISTRIBUTIONS
    kernel = ucutlass.loads(REDUCTIONS[name].text)
    program = kernel.program
    arguments = generate(program, dict(sizes_of(name, number)), distribution, seed=7, device="cuda")

    def launch(given: Any, outputs: Any) -> None:
        kernel(*given, out=outputs[0] if len(outputs) == 1 else tuple(outputs))

    verdict = verify.check(program, launch, arguments)
    # Of long products and scans the derived bound says nothing of some elements, which is no fault of the kernel.
    assert verdict.state == "right" or (verdict.state == "undecided" and "in one pass" in name), str(verdict)


@pytest.mark.parametrize("name", ["transposed", "softmax", "window over two names"])
def test_tensors_that_do_not_begin_at_16_bytes(name: str) -> None:
    kernel = ucutlass.loads(REDUCTIONS[name].text)
    made = generate(kernel.program, dict(REDUCTIONS[name].small), "integer", seed=5, device="cuda")
    arguments = [shifted(a, a.element_size()) if isinstance(a, torch.Tensor) else a for a in made]

    def launch(given: Any, outputs: Any) -> None:
        kernel(*given, out=outputs[0])

    verdict = verify.check(kernel.program, launch, arguments)
    assert verdict.ok, str(verdict)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("softmax", {"T": 18, "D": 4100}),
        ("softmax of long rows", {"T": 36, "D": 8192}),
        ("softmax of long rows", {"T": 18, "D": 262_144}),
        ("softmax of a middle name", {"A": 18, "D": 333, "C": 200}),
    ],
)
def test_softmax_of_huge_numbers(name: str, sizes: dict[str, int]) -> None:
    """Also where a number's last place times log2(e) is more than exponentials span."""
    kernel = ucutlass.loads(REDUCTIONS[name].text)
    arguments = arguments_of(kernel.program, sizes, "rows", seed=3)
    (expected,) = expect(kernel.program, arguments)
    actual = kernel(*(a.cuda() for a in arguments)).cpu().double()
    assert bool(actual.isfinite().all())
    relative = (actual - expected.reference).abs().max() / expected.reference.max()
    assert float(relative) < (2.0**-7 if "bf16" in REDUCTIONS[name].text else 2.0**-14)

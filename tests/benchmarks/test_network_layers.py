"""Drawn layers of networks and other convolutions: their programs compute what torch does."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import ucutlass
from benchmarks import convolution_cases, network_layers
from benchmarks.network_layers import Layer, Task, drawn
from ucutlass.shapes import complete


def test_a_seed_draws_each_kind_again() -> None:
    assert drawn(36, 3) == drawn(36, 3) != drawn(36, 4)
    assert {task.layer.kind for task in drawn(36, 3)} == set(network_layers.GROUPS)


@pytest.mark.parametrize("which", ["forward", "data", "weights"])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    "layer",
    [
        Layer(6, 4, 3, 3, 2, 2, 1, 1, 1, 1, 2, 8, 6),
        Layer(5, 5, 5, 3, 1, 2, 2, 1, 1, 1, 5, 7, 8),
        Layer(3, 4, 1, 3, 1, 1, 0, 2, 1, 2, 1, 5, 7),
        Layer(4, 6, 1, 1, 2, 2, 0, 0, 1, 1, 1, 6, 8),
        Layer(4, 6, 1, 1, 1, 1, 0, 0, 1, 1, 1, 6, 8),
    ],
)
def test_programs_are_torch_s_layers(which: str, last: bool, layer: Layer) -> None:
    task = Task(layer, which, "f32", 2, last)
    shapes = (
        (2, layer.c, layer.h, layer.w),
        (layer.k, layer.c // layer.groups, layer.r, layer.s),
        (2, layer.k, *layer.results),
    )
    tensors = network_layers.Tensors(*(torch.randn(s) for s in shapes))
    result = ucutlass.loads(task.text).reference(*network_layers.arguments(task, tensors))
    assert isinstance(result, torch.Tensor)
    assert torch.allclose(result.float(), network_layers.expected(task, tensors), atol=1e-4)


def test_other_convolutions_are_torch_s() -> None:
    cases = convolution_cases.drawn(20, 5)
    assert cases == convolution_cases.drawn(20, 5) != convolution_cases.drawn(20, 6)
    assert {case.name.split()[0] for case in cases} == set(convolution_cases.DRAWN)
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        small = replace(case, n=1, size=8, c=min(case.c, 4), k=4, t="bf16")
        kernel = ucutlass.loads(small.text(False))
        program = kernel.program
        sizes = dict(zip(program.dims, complete(program, small.sizes()), strict=True))
        shapes = [[math.prod(sizes[d] for d in axis.dims) for axis in p.type.axes] for p in program.params]
        operands = [torch.randn(shape).bfloat16() for shape in shapes]
        result = kernel.reference(*operands)
        assert isinstance(result, torch.Tensor)
        theirs = convolution_cases.eager(small, False)(*convolution_cases.given(small, [*operands, result]))
        # Each rounds the same sum to bf16 once.
        distance = (theirs.movedim(1, -1).double() - result.double()).norm() / result.double().norm()
        assert float(distance) < 2**-7, case.name

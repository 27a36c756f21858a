"""Bounds of what torch functions make of inexact buffers."""

from __future__ import annotations

import pytest
import torch

from tests.reference.tasks import named
from ucutlass.reference import expect
from ucutlass.reference.errors import UnsupportedError
from ucutlass.runtime.inputs import generate


def test_bounds_go_through_torch_functions_that_move_elements() -> None:
    """An inexact buffer flipped, cut to a triangle, sorted or clipped at 0 is inexact by as much."""
    for call, moved in {
        "torch.flip(h, dims=0)": lambda r: r.flip(0),
        "torch.tril(h)": torch.tril,
        "torch.relu(h)": lambda r: r,
        "torch.sort(h, dim=1)": lambda r: r.amax(1, keepdim=True).expand_as(r),
    }.items():
        before = (
            "pipeline p(x: f32[M, K], w: f32[N, K]) -> f32[M, N] {\n"
            "  h: f32[M, N] = dot[K](tf32(x), tf32(w))\n"
        )
        plain = named(before + "  return h\n}", "p")
        program = named(before + f"  y: f32[M, N] = {call}\n  return y\n}}", "p")
        arguments = generate(program, {"M": 4, "N": 4, "K": 9}, seed=2)
        (first,), (through,) = expect(plain, arguments), expect(program, arguments)
        assert bool((first.bound > 0).all())
        # What is returned is a copy, whose rounding takes up the last place of the element that comes there.
        assert torch.allclose(through.bound, moved(first.bound), rtol=0.02, atol=0.0)


def test_other_torch_functions_of_an_inexact_buffer_have_no_bound() -> None:
    program = named(
        "pipeline p(x: f32[M, K], w: f32[M, K]) -> f32[M, N] {\n"
        "  h: f32[M, N=M] = dot[K](tf32(x), tf32(w[M = N]))\n"
        "  y: f32[M, N] = torch.inverse(h)\n  return y\n}",
        "p",
    )
    with pytest.raises(UnsupportedError, match=r"torch\.inverse takes a buffer"):
        expect(program, generate(program, {"M": 4, "K": 9}, seed=2))

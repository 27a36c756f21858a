"""The bound of recurrent layers: an evaluation that sums in another order keeps it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ucutlass import frontend
from ucutlass.reference import expect

LAYER = """
pipeline layer(
  x: f32[T, B, D], h: f32[N=1, B, H], {cell_state}w: f32[G, D], u: f32[G, H], a: f32[G], b: f32[G]
) -> f32[T, B, H] {{
  y: f32[T, B, H] = torch.{cell}(x, h, {cell_name}w, u, a, b, layers=1)
  return y
}}
"""

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def drawn(cell: str, sizes: tuple[int, int, int, int], seed: int) -> list[Tensor]:
    """x, the states, the weights and the biases; products are as large as their inputs."""
    steps, batch, width, hidden = sizes
    generator = torch.Generator().manual_seed(seed)
    rows = GATES[cell] * hidden
    shapes: list[tuple[int, ...]] = [(steps, batch, width), (1, batch, hidden)]
    shapes += [(1, batch, hidden)] * (cell == "lstm") + [(rows, width), (rows, hidden), (rows,), (rows,)]
    tensors = [torch.randn(shape, generator=generator) for shape in shapes]
    return [t / math.sqrt(t.shape[1]) if t.ndim == 2 else t for t in tensors]


def in_another_order(cell: str, arguments: list[Tensor], seed: int) -> Tensor:
    """Every step's state, by layers whose inputs and units are numbered otherwise."""
    x, *states, w, u, a, b = arguments
    hidden = u.shape[1]
    generator = torch.Generator().manual_seed(seed)
    columns, units = (torch.randperm(n, generator=generator) for n in (x.shape[2], hidden))
    rows = torch.cat([units + gate * hidden for gate in range(GATES[cell])])
    weights = [w[rows][:, columns], u[rows][:, units], a[rows], b[rows]]
    first = [state[..., units] for state in states]
    results = getattr(torch, cell)(
        x[..., columns],
        tuple(first) if cell == "lstm" else first[0],
        [t.contiguous() for t in weights],
        True,
        1,
        0.0,
        False,
        False,
        False,
    )
    y = torch.empty_like(results[0])
    y[..., units] = results[0]
    return y


@pytest.mark.parametrize("cell", GATES)
@pytest.mark.parametrize("sizes", [(8, 1, 8, 16), (64, 4, 64, 48), (16, 2, 100, 128)], ids=str)
def test_evaluations_in_other_orders_keep_the_bound(cell: str, sizes: tuple[int, int, int, int]) -> None:
    of_lstm = {"cell_state": "c: f32[N, B, H], ", "cell_name": "c, "} if cell == "lstm" else {}
    text = LAYER.format(cell=cell, **{"cell_state": "", "cell_name": "", **of_lstm})
    (pipeline,) = frontend.read_text(text).module.programs
    arguments = drawn(cell, sizes, seed=11)
    (expected,) = expect(pipeline, arguments)
    for seed in range(8):
        error = (in_another_order(cell, arguments, seed).double() - expected.reference).abs()
        assert bool((error <= expected.bound).all())
    coarse = arguments[:-4] + [t.bfloat16().float() for t in arguments[-4:]]
    error = (in_another_order(cell, coarse, 0).double() - expected.reference).abs()
    assert bool((error > expected.bound).any()), "weights of 16 bits do not"


def test_what_a_layer_magnifies_is_in_its_bound() -> None:
    """Gates at their thresholds: an evaluation may be right where torch's own happens to be much closer."""
    of_lstm = {"cell_state": "c: f32[N, B, H], ", "cell_name": "c, "}
    (pipeline,) = frontend.read_text(LAYER.format(cell="lstm", **of_lstm)).module.programs
    generator = torch.Generator().manual_seed(5)
    arguments = [
        t.sign() * 2.0 ** torch.randint(-8, 9, t.shape, generator=generator)
        for t in drawn("lstm", (64, 4, 64, 48), seed=11)
    ]
    (expected,) = expect(pipeline, arguments)
    errors = [
        float((in_another_order("lstm", arguments, seed).double() - expected.reference).abs().max())
        for seed in range(16)
    ]
    assert max(errors) <= float(expected.bound.max()) <= 100 * max(errors)

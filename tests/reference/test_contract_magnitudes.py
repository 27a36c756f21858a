"""Products and those of their magnitudes together: what two contractions give, with every window read once."""

from __future__ import annotations

import pytest
import torch

from ucutlass import frontend, ir
from ucutlass.reference import contract as contract_module
from ucutlass.reference.contract import Operand, contract, contract_with_magnitudes, magnitude
from ucutlass.reference.indexing import LazyRead, read
from ucutlass.reference.named_tensor import Named

TEXT = """kernel k(x: f32[B, C, H], w: f32[K, C, R=3]) -> f32[B, K, P=H] {
  return dot[C, R](x[H = P + R - 1], w)
}"""
SIZES = {"B": 2, "C": 4, "H": 9, "P": 9, "R": 3, "K": 5}


@pytest.mark.parametrize("unrolled", [1, 1 << 24])
@pytest.mark.parametrize("swapped", [False, True])
def test_both_are_what_two_contractions_give(
    unrolled: int, swapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    dot = frontend.kernel(frontend.read_text(TEXT)).results[0].value
    assert isinstance(dot, ir.Dot) and isinstance(dot.left, ir.Read)
    torch.manual_seed(1)
    x = Named(torch.randn(2, 4, 9, dtype=torch.float64), ("B", "C", "H"))
    w = Named(torch.randn(5, 4, 3, dtype=torch.float64), ("K", "C", "R"))
    operands: list[Operand] = [LazyRead(x, dot.left, SIZES), w]
    left, right = reversed(operands) if swapped else operands
    reads: list[LazyRead] = []
    monkeypatch.setattr(contract_module, "UNROLLED", unrolled)
    monkeypatch.setattr(contract_module, "read", lambda window: reads.append(window) or read(window))
    both = contract_with_magnitudes(left, right, dot.over, dot.dims)
    assert len(reads) == (3 if unrolled == 1 else 1), "once, or once a tap"
    plain = contract(left, right, dot.over, dot.dims)
    absolute = contract(magnitude(left), magnitude(right), dot.over, dot.dims)
    for ours, theirs in zip(both, (plain, absolute), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-14, atol=1e-14)
    assert bool((both[1] > both[0].abs()).any())

"""Values of four bits: how they lie in bytes, and what a program reads of them."""

from __future__ import annotations

import pytest
import torch

import ucutlass
from ucutlass.reference import evaluate
from ucutlass.reference.errors import ElementMismatchError

TEXT = (
    "kernel k(x: bf16[M, (G J=4)], w: s4[N, (G J)], s: f32[N, G]) -> f32[M, N] "
    "{ return sum[G](dot[J](x, bf16(w)) * s) }"
)


def test_the_first_value_lies_in_the_low_bits() -> None:
    assert ucutlass.pack_s4(torch.tensor([[1, -1, 7, -8]])).tolist() == [[0xF1, 0x87]]


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.float32])
def test_all_pairs_come_back(dtype: torch.dtype) -> None:
    both = torch.cartesian_prod(torch.arange(-8, 8), torch.arange(-8, 8)).to(dtype)
    packed = ucutlass.pack_s4(both)
    assert packed.dtype == torch.uint8 and packed.shape == (256, 1)
    assert torch.equal(ucutlass.unpack_s4(packed), both.to(torch.int8))
    assert torch.equal(ucutlass.unpack_s4(packed.view(torch.int8)), both.to(torch.int8))


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (torch.zeros(2, 3), r"odd in \(2, 3\)"),
        (torch.tensor(1), "odd"),
        (torch.tensor([8, 0]), "0 to 8"),
        (torch.tensor([0.5, 0]), "integers"),
    ],
)
def test_what_does_not_fit_is_refused(values: torch.Tensor, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ucutlass.pack_s4(values)


def test_a_program_reads_the_values() -> None:
    kernel = ucutlass.loads(TEXT)
    x = torch.randn(3, 12).bfloat16()
    w, s = torch.randint(-8, 8, (5, 12)), torch.rand(5, 3)
    expected = x.double() @ (w.double() * s.double().repeat_interleave(4, 1)).t()
    found = kernel.reference(x, ucutlass.pack_s4(w), s)
    torch.testing.assert_close(found, expected.float())
    (again,) = evaluate(kernel.program, [x, ucutlass.pack_s4(w).view(torch.int8), s])
    assert torch.equal(found, again)
    with pytest.raises(ElementMismatchError, match="w is s4"):
        kernel.reference(x, w, s)

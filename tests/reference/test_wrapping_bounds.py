"""The error bound of integer work that may wrap."""

from __future__ import annotations

import torch

from tests.reference.tasks import named
from ucutlass.reference.expect import expect


def test_an_uncertain_integer_that_may_wrap_may_be_anything() -> None:
    """The dot's rounding moves the integer by a few; within 32 bits so does the product, and at their
    end the neighbours lie 2**32 apart."""
    text = (
        "kernel k(x: f16[M, K], w: f16[N, K], s: i32[]) -> i32[M, N] { return i32(dot[K](x, w) * 3.0) * s }"
    )
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn((4, 1024), generator=generator).half() for _ in range(2))
    kernel = named(text, "k")
    for factor, wraps in ((1, False), (1_000_000_000, True)):
        (one,) = expect(kernel, [x, w, torch.tensor(factor, dtype=torch.int32)])
        unsure = one.bound[one.bound > 0]
        assert unsure.numel()
        assert bool((unsure > 2**31).all()) == wraps
        assert bool((unsure <= 2**32).all())

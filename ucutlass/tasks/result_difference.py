"""Describes where two results differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def first_difference(expected: Tensor, actual: Tensor, allowed: Tensor | float) -> str:
    """Returns which element of `actual` is the first that lies further from `expected` than `allowed` (for
    each element of a tensor of their shape, or for all), and how many do; "" where none does. What is not
    finite has to be the same."""
    import torch

    from ucutlass.runtime.module.reference import PART

    if actual.shape != expected.shape:
        return f"it has shape {tuple(actual.shape)} and should have {tuple(expected.shape)}"
    bounds = (
        allowed.reshape(-1)
        if isinstance(allowed, torch.Tensor)
        else torch.tensor(allowed, dtype=torch.float64, device=expected.device).expand(expected.numel())
    )
    flattened = (expected.reshape(-1), actual.reshape(-1), bounds)
    first, count = "", 0
    # Piece by piece: results may fill half of the memory.
    for start in range(0, expected.numel(), PART):
        x, y, bound = (t[start : start + PART].to(torch.float64) for t in flattened)
        both = x.isfinite() & y.isfinite()
        wrong = torch.where(both, (x - y).abs() > bound, x.nan_to_num(7.0) != y.nan_to_num(7.0))
        if not first and bool(wrong.any()):
            at = int(wrong.nonzero()[0])
            should = f"{float(x[at]):.9g}, to {float(bound[at]):.1e}"
            first = (
                f"element {_place(start + at, expected.shape)} is {float(y[at]):.9g} and should be {should}"
            )
        count += int(wrong.sum())
    return first and f"{first} ({count} of {expected.numel()} elements)"


def _place(at: int, shape: Sequence[int]) -> tuple[int, ...]:
    index: list[int] = []
    for extent in reversed(shape):
        at, here = divmod(at, extent)
        index.append(here)
    return tuple(reversed(index))

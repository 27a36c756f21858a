"""Where two results differ, in words: for the questions whether two programs compute the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def differing(wanted: Tensor, found: Tensor, allowed: Tensor | float) -> str:
    """Which element of `found` is the first that lies further from `wanted` than `allowed` (for each element
    of a tensor of their shape, or for all), and how many do; "" where none does. What is not finite has to
    be the same."""
    import torch

    from ucutlass.runtime.module.reference import PART

    if found.shape != wanted.shape:
        return f"it has shape {tuple(found.shape)} and should have {tuple(wanted.shape)}"
    bounds = (
        allowed.reshape(-1)
        if isinstance(allowed, torch.Tensor)
        else torch.tensor(allowed, dtype=torch.float64, device=wanted.device).expand(wanted.numel())
    )
    whole = (wanted.reshape(-1), found.reshape(-1), bounds)
    said, count = "", 0
    # Piece by piece: results may fill half of the memory.
    for start in range(0, wanted.numel(), PART):
        x, y, bound = (t[start : start + PART].to(torch.float64) for t in whole)
        both = x.isfinite() & y.isfinite()
        wrong = torch.where(both, (x - y).abs() > bound, x.nan_to_num(7.0) != y.nan_to_num(7.0))
        if not said and bool(wrong.any()):
            at = int(wrong.nonzero()[0])
            should = f"{float(x[at]):.9g}, to {float(bound[at]):.1e}"
            said = f"element {_place(start + at, wanted.shape)} is {float(y[at]):.9g} and should be {should}"
        count += int(wrong.sum())
    return said and f"{said} ({count} of {wanted.numel()} elements)"


def _place(at: int, shape: Sequence[int]) -> tuple[int, ...]:
    found: list[int] = []
    for extent in reversed(shape):
        at, here = divmod(at, extent)
        found.append(here)
    return tuple(reversed(found))

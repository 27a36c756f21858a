"""Modules in float64: what torch computes with constants in single precision on a GPU is computed by its definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from torch.utils._python_dispatch import TorchDispatchMode

from ucutlass.runtime.module.reference import Widened


class Noted(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func._schema.name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("function", [functional.hardswish, functional.hardsigmoid])
@pytest.mark.parametrize("inplace", [False, True])
def test_a_sixth_is_not_rounded_to_single_precision(
    function: Callable[..., torch.Tensor], inplace: bool
) -> None:
    x = torch.linspace(-5, 5, 101, dtype=torch.float64)
    part = (x + 3).clamp(0, 6) / 6
    exact = x * part if function is functional.hardswish else part
    given = x.clone()
    with Noted() as noted, Widened(torch.float64):
        out = function(given, inplace=inplace)
    assert noted.names.isdisjoint(
        {"aten::hardswish", "aten::hardsigmoid", "aten::hardswish_", "aten::hardsigmoid_"}
    )
    torch.testing.assert_close(out, exact, rtol=1e-15, atol=1e-16)
    assert torch.equal(given, out if inplace else x)


def test_single_precision_is_torch_s_own() -> None:
    x = torch.linspace(-5, 5, 101)
    with Noted() as noted, Widened(torch.float32):
        out = functional.hardswish(x)
    assert torch.equal(out, functional.hardswish(x)) and "aten::hardswish" in noted.names

"""Kernels as torch operators: traced without data, checked by torch's own opcheck."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ucutlass.runtime.arguments import ExtentMismatch, WrongDtype
from ucutlass.runtime.torch_operator import BadOperatorName, as_operator, schema_of

from .conftest import MakeLauncher
from .specs import REPORT, SCALE_ADD, SUM_AND_NEXT

_COUNT = itertools.count()


@pytest.fixture
def operator(launcher: MakeLauncher) -> Callable[..., Any]:
    kernel, _ = launcher(SCALE_ADD, "scale_add")
    return as_operator(kernel, f"ucutlass_test::scale_add_{next(_COUNT)}")


def test_schema_has_no_name_of_the_program() -> None:
    assert schema_of(SCALE_ADD) == "(Tensor a0, float a1, Tensor a2) -> Tensor"
    assert schema_of(SUM_AND_NEXT) == "(Tensor a0) -> (Tensor, Tensor)"
    assert schema_of(REPORT) == "(Tensor a0, int a1, bool a2, Tensor a3) -> Tensor"


def test_eager_and_opcheck(operator: Callable[..., Any]) -> None:
    x, b = torch.randn(3, 4), torch.randn(4)
    torch.testing.assert_close(operator(x, 2.0, b), 2.0 * x + b)
    torch.library.opcheck(
        operator, (x, 2.0, b), test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    )


def test_several_results(launcher: MakeLauncher) -> None:
    kernel, _ = launcher(SUM_AND_NEXT, "sum_and_next", launch_parameters=(7, -1), workspace=64)
    operator = as_operator(kernel, f"ucutlass_test::sum_and_next_{next(_COUNT)}")
    total, following = operator(x := torch.randn(3, 4))
    torch.testing.assert_close(total, x.sum(1))
    torch.testing.assert_close(following, x + 1)
    meta = operator(x.to("meta"))
    assert [tuple(t.shape) for t in meta] == [(3,), (3, 4)]


@pytest.mark.parametrize("dynamic", [False, True])
def test_under_torch_compile(operator: Callable[..., Any], dynamic: bool) -> None:
    """aot_eager traces through fake tensors as Inductor does, and needs no compiler."""
    compiled = torch.compile(
        lambda x, b: operator(x * 2, 3.0, b).relu(), backend="aot_eager", fullgraph=True, dynamic=dynamic
    )
    for m in (3, 5, 9):
        x, b = torch.randn(m, 4), torch.randn(4)
        torch.testing.assert_close(compiled(x, b), (3.0 * (x * 2) + b).relu())


def test_direct_call_under_torch_compile(launcher: MakeLauncher) -> None:
    """Not an operator: the graph breaks there, and the launcher's own Python is not traced."""
    kernel, asked = launcher(SCALE_ADD, "scale_add")
    compiled = torch.compile(lambda x, b: kernel(x * 2, 3.0, b).relu(), backend="aot_eager")
    x, b = torch.randn(3, 4), torch.randn(4)
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Dynamo does not know how to trace .*empty_strided")
            torch.testing.assert_close(compiled(x, b), (3.0 * (x * 2) + b).relu())
    assert len(asked) == 1


def test_mistakes_are_found_while_tracing(operator: Callable[..., Any]) -> None:
    with pytest.raises(ExtentMismatch, match=r"b axis 0 is K"):
        operator(torch.ones(3, 4, device="meta"), 1.0, torch.ones(5, device="meta"))
    with pytest.raises(WrongDtype, match=r"x is torch.float16"):
        operator(torch.ones(3, 4, device="meta").half(), 1.0, torch.ones(4, device="meta"))


@pytest.mark.parametrize("name", ["scale_add", "A::b", "a::b::c", "a::", "a::b()->", "a::b.c"])
def test_operator_names(launcher: MakeLauncher, name: str) -> None:
    kernel, _ = launcher(SCALE_ADD, "scale_add")
    with pytest.raises(BadOperatorName):
        as_operator(kernel, name)

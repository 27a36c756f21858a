"""A kernel on the host that reads behind a tensor ends its process."""

from __future__ import annotations

import ctypes

import pytest
import torch

from tests import isolated
from tests.emit.guarded import ALIGNED, guarded
from ucutlass.runtime import isolation


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(15.0).view(3, 5),
        torch.tensor(True),
        torch.arange(9.0)[1:],
        torch.arange(4096 * 3).to(torch.bfloat16),
        torch.empty(0, 3),
    ],
)
def test_a_guarded_tensor_is_the_same_as_far_past_a_vector(tensor: torch.Tensor) -> None:
    copy = guarded(tensor)
    assert (copy.shape, copy.dtype) == (tensor.shape, tensor.dtype) and torch.equal(copy, tensor)
    assert copy.data_ptr() % ALIGNED == tensor.data_ptr() % ALIGNED


def read_here(place: int) -> float:
    """A word of seven, at the end of which a vector has room for one more; for `isolated`."""
    tensor = guarded(torch.arange(7.0))
    return (ctypes.c_float * (place + 1)).from_address(tensor.data_ptr())[place]


@pytest.mark.parametrize(("place", "ends"), [(6, False), (7, False), (8, True), (1000, True)])
def test_what_lies_behind_the_last_vector_is_not_read(place: int, ends: bool) -> None:
    outcome = isolated.run("tests.emit.test_guarded:read_here", {"place": place}, limit_seconds=60)
    assert isinstance(outcome, isolation.Returned) is not ends
    if isinstance(outcome, isolation.Returned):
        assert place == 7 or outcome.value == 6

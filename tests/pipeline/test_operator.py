"""A pipeline as a torch operator: torch sees its results' shapes without a launch."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.pipeline.conftest import Load, numbers
from tests.pipeline.test_series import DIAMOND
from ucutlass.runtime.torch_operator import as_operator


def test_a_pipeline_is_an_operator_like_a_kernel(load: Load) -> None:
    made = load(DIAMOND)
    operator = as_operator(made.call, f"ucutlass_test::diamond_{made.call.route}")
    x = numbers(3, 5)
    y, z = operator(x, 0.5)
    assert torch.allclose(y, (x + 1.5) * (x + 4), atol=1e-5)
    assert torch.allclose(z, torch.full_like(x, -2.5), atol=1e-5)
    made.trace()
    with FakeTensorMode() as mode:
        fake = operator(mode.from_tensor(x), 0.5)
    assert [tuple(f.shape) for f in fake] == [(3, 5), (3, 5)] and made.trace() == []

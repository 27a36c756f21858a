"""Calls as CUDA graphs, on a device that captures by remembering the call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from tests.dynamo.test_backend import HOOKS, Block, compiled
from tests.dynamo.test_serving import said
from ucutlass.dynamo import replays
from ucutlass.dynamo.backend import compiled as by_name
from ucutlass.dynamo.fallback import FallbackWarning
from ucutlass.dynamo.replays import Capture, Replays


class Remembering:
    """Replays a call on the tensors it was captured with, into the tensors that it gave."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.captures = self.replays = 0

    def capture(self, call: Callable[[], Any]) -> Capture:
        results = call()
        self.captures += 1

        def replay() -> None:
            self.replays += 1
            with torch.inference_mode():
                for own, new in zip(tree_leaves(results), tree_leaves(call()), strict=True):
                    own.copy_(new)

        return Capture(replay, results)

    @contextmanager
    def turn(self) -> Iterator[None]:
        yield


def test_each_call_has_results_of_its_own_on_its_own_inputs() -> None:
    device = Remembering()
    call = Replays(lambda x, w: (x @ w, x + 1), {1}, device)
    w = torch.randn(4, 3)
    results = []
    for _ in range(4):
        x = torch.randn(2, 4)
        results.append((call(x, w), (x @ w, x + 1)))
    for result, expected in results:
        torch.testing.assert_close(result, expected)
    assert device.captures == 1 and device.replays == 3


def test_weights_are_read_where_they_lie() -> None:
    device = Remembering()
    call = Replays(torch.matmul, {1}, device)
    x, w = torch.randn(2, 4), torch.randn(4, 3)
    for _ in range(2):
        call(x, w)
    w.mul_(2)
    torch.testing.assert_close(call(x, w), x @ w)
    other = torch.randn(4, 3)
    torch.testing.assert_close(call(x, other), x @ other)
    torch.testing.assert_close(call(x, other), x @ other)
    assert device.captures == 2


def test_each_shape_stride_and_number_is_a_graph() -> None:
    device = Remembering()
    call = Replays(lambda x, n: x * n, set(), device)
    x = torch.randn(4, 4)
    for tensor, number in ((x, 2), (x, 3), (x.t(), 2), (x[:2], 2), (x[:, ::2], 2)) * 2:
        torch.testing.assert_close(call(tensor, number), tensor * number)
    assert device.captures == 5


@pytest.mark.parametrize(
    ("function", "argument", "words"),
    [
        (lambda x: x.view(-1), torch.randn(4), "view of an argument"),
        (lambda x: x + 1, torch.randn(1, 4).expand(3, 4), "overlaps"),
    ],
)
def test_what_cannot_be_captured_runs_as_it_is(
    function: Callable[..., Any], argument: torch.Tensor, words: str
) -> None:
    device = Remembering()
    call = Replays(function, set(), device)
    with said() as lines:
        for _ in range(3):
            torch.testing.assert_close(call(argument), function(argument))
    assert device.captures == 0 and [words in line for line in lines()] == [True]


def test_a_capture_that_fails_is_said_once() -> None:
    class Failing(Remembering):
        def capture(self, call: Callable[[], Any]) -> Capture:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")

    call = Replays(torch.relu, set(), Failing())
    x = torch.randn(3)
    with said() as lines:
        for _ in range(3):
            torch.testing.assert_close(call(x), torch.relu(x))
    assert len(lines()) == 1 and "more" not in lines()[0]


def test_graphs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "MOST_GRAPHS", 2)
    device = Remembering()
    call = Replays(torch.relu, set(), device)
    for size in (1, 2, 3, 4, 1):
        call(torch.randn(size))
    assert device.captures == 2 and device.replays == 1


def test_a_compiled_module_is_replayed_without_gradients_alone() -> None:
    device = Remembering()
    model = Block()
    fast, _ = compiled(model, replace(HOOKS, replaying=lambda _: device), cuda_graphs=True)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(4, 32)
            torch.testing.assert_close(fast(x), model(x))
    assert device.captures == 1 and device.replays == 2
    x = torch.randn(4, 32)
    for _ in range(2):
        torch.testing.assert_close(fast(x), model(x))
    assert device.replays == 2


def test_replays_in_and_out_of_inference_mode() -> None:
    device = Remembering()
    call = Replays(torch.relu, set(), device)
    x = torch.randn(5)
    with torch.inference_mode():
        for _ in range(2):
            torch.testing.assert_close(call(torch.randn(5) * 0 + x), torch.relu(x))
    with torch.no_grad():
        torch.testing.assert_close(call(x), torch.relu(x))
    assert device.captures == 1


def test_a_call_that_changes_buffers_is_replayed_on_them() -> None:
    device = Remembering()
    model, twin = (nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10)) for _ in range(2))
    twin.load_state_dict(model.state_dict())
    fast, _ = compiled(model, replace(HOOKS, replaying=lambda _: device), cuda_graphs=True)
    with torch.no_grad():
        for _ in range(2):
            fast(torch.ones(12, 6))
    # Capturing runs nothing on a GPU; here it runs the call once more.
    assert device.captures == 1 and int(model[1].num_batches_tracked) == 3


def test_a_call_that_changes_its_arguments_is_not_replayed() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return torch.relu(x)

    device = Remembering()
    fast, _ = compiled(model, replace(HOOKS, replaying=lambda _: device), cuda_graphs=True)
    x = torch.zeros(3)
    with pytest.warns(FallbackWarning, match="changes its arguments"):
        for _ in range(3):
            fast(x)
    torch.testing.assert_close(x, torch.full((3,), 3.0))
    assert device.captures == 0


def test_the_mode_asks_for_graphs_and_others_are_refused() -> None:
    with pytest.raises(ValueError, match="max-autotune"):
        by_name(torch.fx.symbolic_trace(nn.ReLU()), [], mode="max-autotune")

"""Input that no program serves: the fallback's result and one line, or an error that names the operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from tests.dynamo.test_backend import HOOKS, compiled
from tests.dynamo.test_serving import said
from ucutlass.dynamo import region
from ucutlass.dynamo.backend import BackendHooks
from ucutlass.dynamo.backend import compiled as by_name

X = torch.randn(6, 8)

UNSERVED: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "complex": (lambda x: x * 2, (torch.randn(4, 5, dtype=torch.complex64),), "complex64"),
    "quantised": (
        lambda x: x.dequantize() + 1,
        (torch.quantize_per_tensor(X, 0.1, 0, torch.qint8),),
        "qint8|not served",
    ),
    "sparse": (lambda s, x: torch.sparse.mm(s, x), (torch.eye(6).to_sparse(), X), "sparse"),
    "integers of another width": (lambda x: x + 1, (torch.ones(5, dtype=torch.int16),), "int16"),
    "no elements": (lambda x: x * 3, (torch.empty(0, 4),), "no elements"),
}


def dense(value: torch.Tensor) -> torch.Tensor:
    return value.to_dense() if value.layout != torch.strided else value


@pytest.mark.parametrize("name", UNSERVED)
def test_the_fallback_computes_it_and_one_line_says_why(name: str) -> None:
    function, inputs, words = UNSERVED[name]
    fast, report = compiled(function)
    with said() as lines:
        results = [fast(*inputs) for _ in range(2)]
    for result in results:
        torch.testing.assert_close(dense(result), dense(function(*inputs)))
    if report.graphs:  # TorchDynamo leaves some to Python itself
        assert len(lines()) == 1 and any(word in lines()[0] for word in words.split("|")), lines()


@pytest.mark.parametrize("name", ["complex", "integers of another width"])
def test_without_a_fallback_the_operator_and_the_line_are_named(name: str) -> None:
    function, inputs, words = UNSERVED[name]
    fast, _ = compiled(function, fallback="error")
    with pytest.raises(Exception, match=rf"aten\..* at .*test_unserved\.py.*{words}"):
        fast(*inputs)


def test_tensors_on_the_cpu_are_said_once() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU())
    fast, _ = compiled(model, BackendHooks())
    with said() as lines, torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(fast(X), model(X))
    assert len(lines()) == 1 and "a tensor is on cpu" in lines()[0]


def test_nested_tensors() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * 2

    nested = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(5, 4)], layout=torch.jagged)
    fast, _ = compiled(model)
    for mine, expected in zip(fast(nested).unbind(), model(nested).unbind(), strict=True):
        torch.testing.assert_close(mine, expected)


def test_subclasses_of_tensor() -> None:
    def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w)

    x = TwoTensor(torch.randn(3, 4), torch.randn(3, 4))
    w = torch.randn(4, 5)
    fast, report = compiled(model)
    result, expected = fast(x, w), model(x, w)
    assert isinstance(result, TwoTensor) and report.graphs
    torch.testing.assert_close(result.a, expected.a)
    torch.testing.assert_close(result.b, expected.b)


def test_hooks_of_modules_and_of_tensors_run() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    model[0].register_forward_hook(lambda module, inputs, result: result * 3)
    seen: list[torch.Tensor] = []
    fast, report = compiled(model)
    x = X.clone().requires_grad_()
    x.register_hook(lambda gradient: seen.append(gradient))
    fast(x).sum().backward()
    (mine,) = seen
    x.grad = None
    model(x).sum().backward()
    torch.testing.assert_close(mine, seen[1])
    assert report.graphs[0].texts


def test_control_flow_that_depends_on_data_breaks_the_graph() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x) * 2
        return y + 1 if y.sum() > 0 else y - 1

    fast, report = compiled(model)
    for x in (X.abs(), -X.abs()):
        torch.testing.assert_close(fast(x), model(x))
    assert len(report.graphs) >= 2 and HOOKS.devices == ("cpu",)


def test_the_registered_function_takes_what_torch_compile_gives() -> None:
    model = nn.Linear(8, 4)
    options = {"fallback": "eager", "choose": "always", "cuda_graphs": True}
    fast = torch.compile(model, backend=by_name, fullgraph=True, dynamic=True, options=options)
    with torch.no_grad(), said() as lines:
        for rows in (2, 3, 5):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(fast(x), model(x))
    assert any("no program serves a graph" in line for line in lines())
    assert any("tensors are on cpu" in line for line in lines())


def test_autocast_is_followed() -> None:
    model = nn.Linear(8, 4)
    fast, _ = compiled(model)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(fast(X), model(X), rtol=2e-2, atol=2e-2)


def test_an_argument_list_is_emptied_as_it_is_read() -> None:
    """AOTAutograd hands over its only reference to saved tensors."""
    from ucutlass.dynamo.calls import boxed

    graph = torch.fx.symbolic_trace(lambda x, y: (torch.relu(x) + y,))
    arguments = [torch.ones(3), torch.ones(3)]
    (result,) = boxed(graph, {})(arguments)
    torch.testing.assert_close(result, torch.full((3,), 2.0))
    assert arguments == []


def test_what_reads_no_tensor_is_the_fallbacks() -> None:
    fast, report = compiled(lambda x: (torch.arange(5) * 2, torch.relu(x)))
    numbers, result = fast(X)
    assert numbers.tolist() == [0, 2, 4, 6, 8]
    torch.testing.assert_close(result, torch.relu(X))
    assert report.graphs[0].texts


def test_inference_mode() -> None:
    model = nn.Linear(8, 4)
    fast, report = compiled(model)
    with torch.inference_mode():
        x = torch.randn(3, 8)
        torch.testing.assert_close(fast(x), model(x))
    assert report.graphs[0].texts


def test_arguments_that_a_rule_does_not_expect_are_the_fallbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(*_: Any) -> Any:
        raise KeyError("an argument")

    rules = {**region.RULES, "aten.tanh.default": careless}
    monkeypatch.setattr(region, "RULES", rules)
    fast, report = compiled(lambda x: torch.relu(torch.tanh(x)))
    x = torch.randn(3, 4)
    torch.testing.assert_close(fast(x), torch.relu(torch.tanh(x)))
    (outside,) = report.graphs[0].outside
    assert outside.operator == "aten.tanh.default" and "its rule does not serve it" in outside.why


def test_tensors_without_elements_beside_others() -> None:
    """What is joined with an empty part is a program's all the same."""
    fast, report = compiled(lambda x: torch.relu(torch.cat([x[:, 4:], x], 1)))
    x = torch.randn(3, 4)
    torch.testing.assert_close(fast(x), torch.relu(x))
    assert len(report.graphs[0].texts) == 1 and "relu" in next(iter(report.graphs[0].texts.values()))


def test_a_part_without_elements_does_not_divide_what_it_is_joined_to() -> None:
    """As rotary embeddings of a whole head join what they leave as it is."""

    def rotated(x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x)
        return torch.relu(torch.cat([y * 2, y[:, 4:]], 1))

    fast, report = compiled(rotated)
    x = torch.randn(3, 4)
    torch.testing.assert_close(fast(x), rotated(x))
    assert len(report.graphs[0].texts) == 1 and not report.graphs[0].outside


def test_torch_says_which_of_equal_elements_is_among_the_largest() -> None:
    fast, report = compiled(lambda x: torch.relu(x).topk(2, -1)[1] + 1)
    x = -torch.rand(3, 6)
    assert torch.equal(fast(x), torch.relu(x).topk(2, -1)[1] + 1)
    assert any(o.operator == "aten.topk.default" for o in report.graphs[0].outside)

"""The torch.compile backend on the CPU: programs are computed by the float64 reference, the rest by torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.nn import functional

from ucutlass import frontend
from ucutlass.dynamo import partition
from ucutlass.dynamo.backend import BackendHooks, Report, backend
from ucutlass.dynamo.builds import Job, Outcome
from ucutlass.dynamo.options import CompileOptions, options_of
from ucutlass.dynamo.region import RegionRefused
from ucutlass.grammar import parse
from ucutlass.reference import evaluate


def by_reference(jobs: Sequence[Job], options: CompileOptions) -> Callable[[], list[Outcome]]:
    return lambda: [executor(job) for job in jobs]


def executor(job: Job) -> Callable[..., Any]:
    program = frontend.program(frontend.read_text(job.region.text), job.region.name)

    def execute(*arguments: torch.Tensor) -> Any:
        assert all(argument.is_contiguous() for argument in arguments)
        results = evaluate(program, arguments)
        return results[0] if len(results) == 1 else results

    return execute


HOOKS = BackendHooks(launch=by_reference, measure=None, devices=("cpu",))


def compiled(
    model: Callable[..., Any], hooks: BackendHooks = HOOKS, **options: Any
) -> tuple[Callable[..., Any], Report]:
    report = Report()
    settings = CompileOptions(**{"fallback": "eager", **options})
    torch._dynamo.reset()
    return torch.compile(model, backend=backend(settings, hooks=hooks, report=report)), report


class Block(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 48), nn.Linear(48, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


def test_a_block_is_one_program_and_right() -> None:
    torch.manual_seed(0)
    model, x = Block(), torch.randn(5, 7, 32)
    fast, report = compiled(model)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))
    (graph,) = report.graphs
    assert len(graph.texts) == 1 and not [o for o in graph.outside if "view" not in o.why]
    (text,) = graph.texts.values()
    assert "x: f32[" in text and "up_weight: f32[" in text and "norm_bias: f32[" in text


def test_an_operator_without_a_rule_goes_to_the_fallback() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x) * 2
        values, _ = torch.sort(y, dim=-1)
        return torch.softmax(values, dim=-1)

    x = torch.randn(6, 9)
    fast, report = compiled(model)
    torch.testing.assert_close(fast(x), model(x))
    (graph,) = report.graphs
    assert len(graph.texts) == 2
    assert any(o.operator == "aten.sort.default" and o.line for o in graph.outside)


def test_a_program_that_would_be_too_long_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing of it goes to the fallback."""
    monkeypatch.setattr(parse, "MAX_CHARACTERS", 1200)
    torch.manual_seed(0)
    model, x = nn.Sequential(*(Block() for _ in range(4))), torch.randn(3, 32)
    fast, report = compiled(model)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))
    (graph,) = report.graphs
    assert 2 <= len(graph.texts) <= 8 and max(map(len, graph.texts.values())) <= 1200
    assert not [o for o in graph.outside if "view" not in o.why]


def test_halves_keep_the_results_of_one_operator_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse, "MAX_CHARACTERS", 400)

    def model(x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            a, b = torch.relu(x + 1).chunk(2, -1)
            x = torch.cat((torch.sigmoid(b * 2) * a, torch.tanh(a) - b), -1)
        return x

    fast, report = compiled(model)
    x = torch.randn(3, 8)
    torch.testing.assert_close(fast(x), model(x))
    assert len(report.graphs[0].texts) > 1


def test_what_is_refused_however_small_goes_to_the_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where an operator has several results, which cannot be halved."""

    def attempt(graph: fx.GraphModule, nodes: Sequence[fx.Node], name: str) -> RegionRefused:
        return RegionRefused({nodes[0].name: "it is too long"}, whole=True)

    monkeypatch.setattr(partition, "_attempt", attempt)
    fast, report = compiled(lambda x: torch.relu(functional.layer_norm(x, (4,))))
    x = torch.randn(3, 4, requires_grad=True)
    torch.testing.assert_close(fast(x), torch.relu(functional.layer_norm(x, (4,))))
    assert not any(graph.texts for graph in report.graphs)


def test_a_write_to_a_slice_without_elements_is_nothing() -> None:
    """As where windows are numbered that are not shifted: `mask[-window:-0] = number`."""

    def model(x: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(6)
        for number, part in enumerate((slice(0, -2), slice(-2, -0), slice(-0, None))):
            mask[part] = number
        return torch.softmax(x * mask, -1)

    fast, report = compiled(model, fallback="error")
    x = torch.randn(4, 6)
    torch.testing.assert_close(fast(x), model(x))
    assert len(report.graphs[0].texts) == 1


def test_without_a_fallback_the_operator_and_its_line_are_named() -> None:
    fast, _ = compiled(lambda x: torch.sort(torch.relu(x))[0], fallback="error")
    with pytest.raises(Exception, match=r"FallbackNeeded: aten\.sort\.default at .*test_backend\.py"):
        fast(torch.randn(4, 5))


def test_a_check_of_values_is_no_operator_outside() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all(), "all are above zero")
        return torch.softmax(x * 2, -1)

    fast, report = compiled(model, fallback="error")
    x = torch.rand(3, 8) + 0.1
    torch.testing.assert_close(fast(x), model(x))
    assert [o.operator for o in report.graphs[0].outside] == ["aten._assert_async.msg"]
    with pytest.raises(RuntimeError):
        fast(x - 1)


def test_strides_that_are_dense_in_another_order_are_read_and_kept() -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU())
    x = torch.randn(2, 4, 6, 5).to(memory_format=torch.channels_last)
    fast, _ = compiled(model)
    with torch.no_grad():
        result, expected = fast(x), model(x)
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize(
    "sliced", [lambda x: x[:, ::2], lambda x: x.t(), lambda x: x[None].expand(3, -1, -1)]
)
def test_inputs_of_any_strides(sliced: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 3, dim=-1)

    x = sliced(torch.randn(6, 8))
    fast, _ = compiled(model)
    torch.testing.assert_close(fast(x), model(x))


def test_training_gives_the_gradients_of_eager() -> None:
    torch.manual_seed(1)
    model = Block()
    x = torch.randn(3, 32, requires_grad=True)
    fast, report = compiled(model)
    fast(x).square().sum().backward()
    gradients = [x.grad, *(p.grad for p in model.parameters())]
    x.grad = None
    model.zero_grad()
    model(x).square().sum().backward()
    for mine, expected in zip(gradients, [x.grad, *(p.grad for p in model.parameters())], strict=True):
        torch.testing.assert_close(mine, expected)
    assert len(report.graphs) == 2 and all(graph.texts for graph in report.graphs)


@pytest.mark.slow
def test_the_rest_of_forward_and_backward_is_inductors() -> None:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 8))
    x = torch.randn(12, 16, requires_grad=True)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return torch.sort(model(x).view(3, 4, 8), dim=-1)[0].square().sum()

    fast, report = compiled(loss, fallback="inductor")
    fast(x).backward()
    gradients = [x.grad, *(p.grad for p in model.parameters())]
    x.grad = None
    model.zero_grad()
    loss(x).backward()
    for mine, expected in zip(gradients, [x.grad, *(p.grad for p in model.parameters())], strict=True):
        torch.testing.assert_close(mine, expected)
    assert len(report.graphs) == 2 and all(graph.texts for graph in report.graphs)


def test_no_program_gives_a_view_and_nothing_is_computed_twice() -> None:
    model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 4))
    fast, report = compiled(model, fallback="error")
    fast(torch.randn(3, 6))
    text = report.graphs[0].texts["program_0"]
    assert not re.search(r"y\d = _\d_weight", text), text
    assert all(o.why.startswith("a view") for o in report.graphs[0].outside)


def test_buffers_that_forward_writes_are_written() -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10))
    twin = nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10))
    twin.load_state_dict(model.state_dict())
    x = torch.randn(12, 6)
    fast, _ = compiled(model)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), twin(x))
    torch.testing.assert_close(model[1].running_mean, twin[1].running_mean)
    torch.testing.assert_close(model[1].num_batches_tracked, twin[1].num_batches_tracked)


def test_attention_is_one_program() -> None:
    def model(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    q, k, v = (torch.randn(2, 3, 8, 16) for _ in range(3))
    fast, report = compiled(model)
    with torch.no_grad():
        torch.testing.assert_close(fast(q, k, v), model(q, k, v))
    assert sum(len(graph.texts) for graph in report.graphs) == 1


def test_heads_of_one_projection_are_copied_for_attention_in_one_launch() -> None:
    def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        q, k, v = (x @ w.T).view(2, 8, 3, 2, 16).permute(2, 0, 3, 1, 4)
        return functional.scaled_dot_product_attention(q, k, v)

    torch.manual_seed(4)
    x, w = torch.randn(2, 8, 32).bfloat16(), torch.randn(96, 32).bfloat16() / 6
    fast, report = compiled(model)
    with torch.no_grad():
        torch.testing.assert_close(fast(x, w), model(x, w), rtol=2e-2, atol=2e-2)
    (graph,) = report.graphs
    (text,) = graph.texts.values()
    assert re.search(r"return dot\[S\]\(bf16\(softmax\[S", text), text


def test_a_norm_whose_saved_statistics_are_empty_is_served() -> None:
    torch.manual_seed(6)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    x = torch.randn(2, 3, 8, 8)
    fast, report = compiled(model, fallback="error")
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))
    assert len(report.graphs[0].texts) == 1


def test_halves_that_different_parts_read_are_views() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        first, second = (torch.relu(x) * 2).chunk(2, dim=1)
        ordered = torch.sort(first)[0]
        return torch.cat([second * 3, torch.exp(ordered)], dim=1)

    x = torch.randn(3, 8)
    fast, report = compiled(model)
    torch.testing.assert_close(fast(x), model(x))
    assert len(report.graphs[0].texts) == 2


def test_tensors_on_a_device_without_kernels_go_to_the_fallback() -> None:
    report = Report()
    torch._dynamo.reset()
    fast = torch.compile(torch.relu, backend=backend(CompileOptions("eager"), report=report))
    x = torch.randn(4)
    torch.testing.assert_close(fast(x), torch.relu(x))
    (graph,) = report.graphs
    assert not graph.texts and "on cpu" in graph.outside[0].why


def test_symbolic_extents_are_free_and_nothing_is_compiled_anew() -> None:
    torch.manual_seed(3)
    model = Block()
    fast, report = compiled(model, fallback="error")
    for tokens in (5, 9, 14, 31, 3):
        x = torch.randn(2, tokens, 32)
        torch._dynamo.mark_dynamic(x, 1, min=2, max=4096)
        with torch.no_grad():
            torch.testing.assert_close(fast(x), model(x))
    (graph,) = report.graphs
    (text,) = graph.texts.values()
    assert "1009" not in text and "=2" in text


@pytest.mark.parametrize(
    ("model", "free"),
    [(lambda x: torch.relu(x) + x.shape[0], True), (lambda x: torch.relu(x) + x.std(), False)],
)
def test_a_number_that_depends_on_an_extent_is_a_formula_or_the_fallbacks(
    model: Callable[[torch.Tensor], torch.Tensor], free: bool
) -> None:
    fast, report = compiled(model)
    for rows in (4, 7):
        x = torch.randn(rows, 3)
        torch._dynamo.mark_dynamic(x, 0, min=2, max=64)
        torch.testing.assert_close(fast(x), model(x))
    (graph,) = report.graphs
    assert any("depends on an extent" in o.why for o in graph.outside) != free
    assert any("size(" in text for text in graph.texts.values()) == free


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fallbak": "eager"}, "fallbak"),
        ({"fallback": "none"}, "one of inductor"),
        ({"check": 1}, "True or False"),
    ],
)
def test_what_is_no_option_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        options_of(options)


def test_attention_of_fewer_heads_of_keys() -> None:
    """A device's own attention takes them without an argument that says so."""
    fast, report = compiled(
        lambda q, k: functional.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)
    )
    q, k = torch.randn(2, 6, 5, 8), torch.randn(2, 2, 5, 8)
    expected = functional.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(fast(q, k), expected)
    assert report.graphs[0].texts and not report.graphs[0].outside


@pytest.mark.parametrize("padded", [False, True])
def test_rows_that_a_mask_hides_from_every_key_are_zero(padded: bool) -> None:
    """They are not looked at where the mask depends on no input."""

    def model(q: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        mask = torch.arange(4)[:, None] >= torch.arange(4)
        mask = mask & tokens[:, None, None, :] if padded else mask
        return functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    fast, report = compiled(model)
    q, tokens = torch.randn(2, 3, 4, 8), torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]]).bool()
    with torch.no_grad():
        torch.testing.assert_close(fast(q, tokens), model(q, tokens))
    assert ("attends" in "".join(report.graphs[0].texts.values())) == padded


def test_memory_read_under_other_strides_is_a_view() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x).contiguous(memory_format=torch.channels_last)
        return torch.softmax(torch.as_strided(y, (2, 20, 3), (60, 3, 1)), -1)

    fast, report = compiled(model)
    x = torch.randn(2, 3, 4, 5)
    torch.testing.assert_close(fast(x), model(x))
    assert len(report.graphs[0].texts) == 1


@pytest.mark.parametrize(
    "model",
    [
        lambda x: functional.interpolate(x, size=(3, 5), mode="bilinear", antialias=True),
        lambda x: functional.interpolate(x, scale_factor=0.6, mode="bicubic", antialias=True),
        lambda x: functional.bilinear(x, x - 1, x[0], x[0, 0, 0]),
    ],
    ids=["antialiased", "antialiased by a factor", "bilinear"],
)
def test_what_autograd_names_otherwise_than_export_is_served(
    model: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    torch.manual_seed(0)
    x = torch.rand(2, 7, 7, 7)
    fast, report = compiled(model)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))
    assert report.graphs[0].texts and not [o for o in report.graphs[0].outside if "view" not in o.why]


def test_a_stride_may_vary_alone() -> None:
    """Its symbol is in no extent."""

    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x @ y).softmax(-1) + x.sum()

    fast, _ = compiled(model)
    for x, y in (
        (torch.randn(5, 4).t(), torch.randn(6, 10)[:5, ::2]),
        (torch.randn(1, 5).expand(4, 5), torch.randn(5, 3, 2)[..., 1]),
    ):
        torch.testing.assert_close(fast(x, y), model(x, y))

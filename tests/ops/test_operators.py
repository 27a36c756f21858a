"""The operators of ucutlass.ops on the CPU: their programs, gradients, tracing and what no kernel serves."""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import ucutlass
from tests.emulated import Job, emulate
from tests.ops.cases import CALLS, OperatorCall, as_tuple, converted, normal
from tests.ops.plans import plan_call
from ucutlass import frontend, ir, ops
from ucutlass.api import NoKernelsHere
from ucutlass.grammar.format import format_file
from ucutlass.grammar.parse import parse
from ucutlass.ops import functions, registry
from ucutlass.ops.equivalents import ACTIVATIONS
from ucutlass.ops.programs import FOLDER, ServedProgram, files, served
from ucutlass.ops.registry import OPERATORS, equivalent_results, shaped, warn_once
from ucutlass.ops.table import TABLE

pytestmark = pytest.mark.filterwarnings("ignore::ucutlass.ops.UnservedWarning")

SERVED = [
    pytest.param(call, dtype, id=f"{title}-{str(dtype).removeprefix('torch.')}")
    for title, call in CALLS.items()
    for dtype in TABLE[call.name].elements
]
ROUNDINGS = {"gated_mlp": 4, "expert_mlp": 4, "attention": 4, "token_attention": 4}
"""Of the operators that round in between, how many times further their results may lie."""


def by_program(call: OperatorCall, dtype: torch.dtype) -> tuple[tuple[torch.Tensor, ...], tuple[Any, ...]]:
    """Returns the results of a call's program as the interpreter computes them, and the arguments."""
    arguments = call.arguments(normal(dtype))
    entry = TABLE[call.name]
    launch = entry.call(*arguments)
    program = served(launch.file, launch.name, dtype, launch.activation).loaded
    return as_tuple(shaped(entry, arguments, program.reference(*launch.arguments))), arguments


@pytest.mark.parametrize(("call", "dtype"), SERVED)
def test_programs_compute_what_pytorch_does_in_float64(call: OperatorCall, dtype: torch.dtype) -> None:
    results, arguments = by_program(call, dtype)
    exact = as_tuple(TABLE[call.name].equivalent(*converted(arguments, torch.float64)))
    empty = as_tuple(TABLE[call.name].empty(*arguments))
    for result, expected, declared in zip(results, exact, empty, strict=True):
        assert (result.shape, result.dtype) == (declared.shape, declared.dtype)
        epsilon = torch.finfo(result.dtype).eps * ROUNDINGS.get(call.name, 1)
        # A sum that is stored is rounded before its norm is taken.
        torch.testing.assert_close(result.double(), expected, rtol=2 * epsilon, atol=2 * epsilon)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_are_pytorchs(activation: str) -> None:
    call = OperatorCall("linear", lambda r: (r(3, 4) * 3, r(5, 4), r(5), activation))
    results, arguments = by_program(call, torch.float32)
    exact = TABLE["linear"].equivalent(*converted(arguments, torch.float64))
    torch.testing.assert_close(results[0].double(), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_gradients_are_right(call: OperatorCall) -> None:
    arguments = [
        a.requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point() else a
        for a in call.arguments(normal(torch.float64))
    ]
    assert torch.autograd.gradcheck(lambda *args: OPERATORS[call.name](*args), arguments, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_arguments_that_need_them_are_pytorchs(dtype: torch.dtype) -> None:
    draw = normal(dtype)
    x, weight, bias = draw(2, 3, 8).requires_grad_(), draw(5, 8), draw(5).requires_grad_()
    own = torch.autograd.grad(ops.linear(x, weight, bias, activation="silu").sum(), (x, bias))
    expected = torch.autograd.grad(TABLE["linear"].equivalent(x, weight, bias, "silu").sum(), (x, bias))
    for gradient, right in zip(own, expected, strict=True):
        torch.testing.assert_close(gradient, right)


def test_gradients_share_no_memory() -> None:
    draw = normal(torch.float32)
    x, residual = draw(2, 4).requires_grad_(), draw(2, 4).requires_grad_()
    _, total = ops.add_rms_norm(x, residual, draw(4))
    gradients = torch.autograd.grad(total.sum(), (x, residual))
    assert gradients[0].data_ptr() != gradients[1].data_ptr()
    torch.testing.assert_close(gradients[0], torch.ones(2, 4))
    torch.testing.assert_close(gradients[1], torch.ones(2, 4))


def test_second_derivatives_are_refused() -> None:
    x, weight = normal(torch.float64)(2, 4).requires_grad_(), torch.ones(4, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(ops.rms_norm(x, weight).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"rms_norm_backward.*no autograd formula"):
        gradient.sum().backward()


@pytest.mark.parametrize("title", ["linear of one odd row", *sorted(TABLE.keys() - {"linear"})])
def test_opcheck(title: str) -> None:
    call = CALLS[title]
    arguments = tuple(
        a.requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point() else a
        for a in call.arguments(normal(torch.float32))
    )
    torch.library.opcheck(OPERATORS[call.name], arguments)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_graphs_hold_the_operators_whole(dynamic: bool) -> None:
    graphs: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(str(graph.graph))
        return graph.forward

    draw = normal(torch.float32)
    norm, mlp = ops.RMSNorm(8), ops.GatedMLP(8, 16)
    layer = torch.compile(
        lambda x: (mlp(norm(x)) + x).relu(), backend=backend, fullgraph=True, dynamic=dynamic
    )
    for length in (3, 5, 7) if dynamic else (3,):
        x = draw(2, length, 8)
        torch.testing.assert_close(layer(x), (mlp(norm(x)) + x).relu())
    assert len(graphs) == 1
    assert all(f"torch.ops.ucutlass.{name}" in graphs[0] for name in ("rms_norm", "gated_mlp"))


def test_compiled_training_gives_pytorchs_gradients() -> None:
    layer = ops.Linear(8, 4, activation="gelu")
    compiled = torch.compile(lambda x: layer(x * 2).sum(), backend="aot_eager", fullgraph=True)
    x = normal(torch.float32)(3, 8)
    compiled(x).backward()
    own = [p.grad for p in layer.parameters()]
    layer.zero_grad()
    TABLE["linear"].equivalent(x * 2, layer.weight, layer.bias, "gelu").sum().backward()
    for gradient, parameter in zip(own, layer.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad)


def test_exported_programs_hold_the_operators_whole() -> None:
    model = torch.nn.Sequential(ops.LayerNorm(8), ops.Linear(8, 4, activation="relu"))
    rows = torch.export.Dim("rows", min=2, max=1024)
    exported = torch.export.export(model, (torch.randn(6, 8),), dynamic_shapes={"input": {0: rows}})
    targets = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert targets == ["ucutlass.layer_norm.default", "ucutlass.linear.default"]
    x = torch.randn(9, 8)
    torch.testing.assert_close(exported.module()(x), model(x))


def test_modules_of_them_are_imported_as_their_pytorch_code() -> None:
    model = torch.nn.Sequential(ops.LayerNorm(8), ops.Linear(8, 4, activation="gelu"), ops.GatedMLP(4, 6))
    x = torch.randn(3, 8)
    program = ucutlass.from_torch(model, x)
    assert "gelu(dot[" in program.text and "silu(dot[" in program.text
    torch.testing.assert_close(program.reference(x), model(x))


def test_tensors_that_no_kernel_serves_are_said_once() -> None:
    warn_once.cache_clear()
    x, weight = torch.randn(2, 4), torch.randn(3, 4)
    with pytest.warns(ops.UnservedWarning, match=r"ops.linear: kernels run on NVIDIA GPUs.* on cpu"):
        ops.linear(x, weight)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ops.linear(x, weight)
        ops.linear(x[:0], weight)


@dataclass(frozen=True, slots=True)
class Interpreted:
    """A loaded program whose calls the interpreter computes, or that has no kernel for two rows."""

    loaded: Any
    calls: list[tuple[Any, ...]]

    def __call__(self, *arguments: Any) -> Any:
        self.calls.append(arguments)
        if arguments[0].shape[0] == 2:
            raise NoKernelsHere("none for two rows")
        return self.loaded.reference(*arguments)


def test_programs_compute_what_a_kernel_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the interpreter in place of the launch; what its planner refuses is asked once."""
    warn_once.cache_clear()
    calls: list[tuple[Any, ...]] = []
    programs = {
        key: ServedProgram(cast(Any, Interpreted(served(*key).loaded, calls)))
        for key in [("rms_norm", "add_rms_norm", torch.float32, "none")]
    }
    monkeypatch.setattr(registry, "reason_unserved", lambda *_: None)
    monkeypatch.setattr(registry, "served", lambda *key: programs[key])
    draw = normal(torch.float32)
    x, residual, weight = draw(3, 2, 8).transpose(0, 1), draw(2, 3, 8), draw(8)
    y, total = ops.add_rms_norm(x, residual, weight, eps=1e-3)
    right = TABLE["add_rms_norm"].equivalent(x, residual, weight, 1e-3)
    torch.testing.assert_close((y, total), right)
    assert calls[0][0].shape == (6, 8) and calls[0][0].is_contiguous()
    with pytest.warns(ops.UnservedWarning, match="ops.add_rms_norm: none for two rows"):
        y, total = ops.add_rms_norm(x[:, :1], residual[:, :1], weight, eps=1e-3)
    ops.add_rms_norm(x[:, :1], residual[:, :1], weight, eps=1e-3)
    torch.testing.assert_close(total, right[1][:, :1])
    assert [call[0].shape[0] for call in calls] == [6, 2]


def test_attention_reads_projections_as_they_lie() -> None:
    draw = normal(torch.float32)
    q, k, v = (draw(2, 5, heads, 8).transpose(1, 2) for heads in (4, 2, 2))
    result = ops.attention(q, k, v, causal=True)
    assert result.transpose(1, 2).is_contiguous()
    dense = ops.attention(q.contiguous(), k.contiguous(), v.contiguous(), causal=True)
    assert dense.is_contiguous()
    torch.testing.assert_close(result, dense)
    right = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(result, right)


@pytest.mark.parametrize(("length", "by_tokens"), [(1, True), (1, False), (4, True), (4, False)])
def test_attention_copies_no_keys(length: int, by_tokens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, tuple[Any, ...]]] = []

    def recorded(name: str, *arguments: Any) -> torch.Tensor:
        calls.append((name, arguments))
        result: torch.Tensor = OPERATORS[name](*arguments)
        return result

    monkeypatch.setattr(functions, "OPERATORS", {name: partial(recorded, name) for name in OPERATORS})
    draw = normal(torch.float32)
    shapes = [(2, n, 4, 8) if by_tokens else (2, 4, n, 8) for n in (length, 6, 6)]
    q, k, v = (draw(*shape).transpose(1, 2) if by_tokens else draw(*shape) for shape in shapes)
    ops.attention(q, k, v)
    ((name, arguments),) = calls
    assert name == ("token_attention" if by_tokens else "attention")
    launch = TABLE[name].call(*arguments)
    pairs = zip(launch.arguments[:3], (q, k, v), strict=True)
    assert all(cast(torch.Tensor, a).data_ptr() == t.data_ptr() for a, t in pairs)


def test_autocast_casts_as_pytorch_does() -> None:
    draw = normal(torch.float32)
    x, weight, gain = draw(3, 8).requires_grad_(), draw(4, 8), draw(8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ops.linear(x, weight).dtype == torch.bfloat16
        assert ops.layer_norm(x.bfloat16(), gain).dtype == torch.float32
        ops.linear(x, weight).sum().backward()
    assert x.grad is not None and x.grad.dtype == torch.float32


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: ops.linear(x, x, activation="swish"), "no activation 'swish'; there are none, elu"),
        (lambda x: ops.cross_entropy(x, torch.zeros(3, dtype=torch.long)), "logits has the shape [2]"),
        (lambda x: ops.cross_entropy(x, torch.zeros(2), reduction="max"), "no reduction 'max'"),
        (lambda x: ops.add_rms_norm(x, x[:1], x[0]), "residual [1, 4]; they must agree"),
        (lambda x: ops.attention(x.view(2, 1, 1, 1, 4), x.view(1, 2, 1, 1, 4), x), "batch of k [1, 2]"),
        (lambda x: ops.expert_linear(x[None], x[None], torch.tensor([0, 2])), "are a matrix"),
    ],
)
def test_mistakes_are_refused(call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        call(torch.zeros(2, 4))


# --- modules ------------------------------------------------------------------------


def test_modules_take_pytorchs_state() -> None:
    for own, pytorch in [
        (ops.Linear(6, 4, activation="relu"), torch.nn.Linear(6, 4)),
        (ops.RMSNorm(6, 1e-5), torch.nn.RMSNorm(6, 1e-5)),
        (ops.LayerNorm(6), torch.nn.LayerNorm(6)),
    ]:
        own.load_state_dict(pytorch.state_dict())
        x = torch.randn(3, 6)
        expected = pytorch(x)
        torch.testing.assert_close(own(x), expected.relu() if isinstance(own, ops.Linear) else expected)


@pytest.mark.parametrize("norm", [ops.RMSNorm, ops.LayerNorm])
def test_norms_with_a_residual_return_the_sum(norm: Any) -> None:
    layer, x, residual = norm(6), torch.randn(3, 6), torch.randn(3, 6)
    y, total = layer(x, residual)
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(y, layer(total))


def test_experts_and_losses() -> None:
    experts = ops.ExpertMLP(3, 8, 16)
    x, bounds = torch.randn(5, 8), torch.tensor([0, 2, 2, 5])
    parts = [
        ops.gated_mlp(x[a:b], experts.gate[e], experts.up[e], experts.down[e])
        for e, (a, b) in enumerate([(0, 2), (2, 2), (2, 5)])
    ]
    torch.testing.assert_close(experts(x, bounds), torch.cat(parts))
    logits, target = torch.randn(4, 9), torch.tensor([1, 0, 8, 3])
    loss = ops.CrossEntropyLoss(ignore_index=0)(logits, target)
    torch.testing.assert_close(loss, torch.nn.CrossEntropyLoss(ignore_index=0)(logits, target))


# --- the programs' files ------------------------------------------------------------


@pytest.mark.parametrize("file", files())
class TestFile:
    def test_is_in_canonical_form(self, file: str) -> None:
        source = (FOLDER / f"{file}.ucu").read_text()
        assert source.startswith("# ")
        assert format_file(parse(source)) == source

    def test_has_nothing_that_no_operator_calls(self, file: str) -> None:
        called = {
            (launch.file, launch.name)
            for call in CALLS.values()
            for launch in [TABLE[call.name].call(*call.arguments(normal(torch.float32)))]
        }
        own = frontend.read_text(ops.text(file))
        helpers = {"sum_of_rows", "mean_of_rows"}
        assert {(file, name) for name in frontend.programs(own)} - called <= {(file, h) for h in helpers}
        assert not own.warnings


@pytest.mark.parametrize(("call", "dtype"), SERVED)
def test_kernels_serve_what_the_table_says(call: OperatorCall, dtype: torch.dtype) -> None:
    """On every compile target that the table lists."""
    launch = TABLE[call.name].call(*call.arguments(normal(dtype)))
    for arch in TABLE[call.name].arches:
        plan_call(launch, dtype, arch)


EXTENTS = {
    "M": 5,
    "N": 24,
    "K": 40,
    "D": 64,
    "F": 32,
    "T": 11,
    "V": 130,
    "B": 2,
    "H": 2,
    "G": 2,
    "L": 70,
    "S": 70,
    "E": 3,
}
KERNELS = [
    (file, program.name)
    for file in files()
    for program in frontend.read_text(ops.text(file)).module.programs
    if isinstance(program, ir.Kernel)
]


@pytest.mark.slow
@pytest.mark.parametrize(("file", "name"), KERNELS)
def test_emitted_kernels_compute_their_programs(file: str, name: str) -> None:
    """On the host, where GEMM's kernels by TMA, which others' tests emulate, are replaced by multistage ones."""
    text = ops.text(file)
    dims = frontend.kernel(frontend.read_text(text), name).dims
    sizes = {dim: extent for dim, extent in EXTENTS.items() if dim in dims}
    row = emulate(Job(name, text, name, sizes, "multistage" if file == "linear" else None, seed=0))
    assert row.status == "right", row.detail


def test_texts() -> None:
    assert "gelu_tanh(x)" in ops.text("gated_mlp", torch.float16, "gelu_tanh")
    assert "bf16" not in ops.text("attention", torch.float16)
    for wrong in (
        {"file": "../api"},
        {"file": "linear", "dtype": torch.float64},
        {"file": "linear", "activation": "x"},
    ):
        with pytest.raises(ValueError, match=r"there are|programs are"):
            ops.text(**wrong)


def test_the_page_lists_every_operator() -> None:
    page = (Path(__file__).parents[2] / "docs" / "ops.md").read_text()
    public = set(ops.__all__) - {"UnservedWarning", "text"}
    assert public <= set(re.findall(r"`(\w+)[`(]", page))
    assert set(files()) <= set(re.findall(r"ops/(\w+)\.ucu", page))
    assert set(ACTIVATIONS) <= set(re.findall(r"`(\w+)`", page))


def test_equivalents_keep_the_default_scale() -> None:
    q = normal(torch.float64)(2, 3, 16)
    right = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    torch.testing.assert_close(ops.attention(q, q, q), right)
    results = equivalent_results(TABLE["attention"], (q, q, q, False, 1 / math.sqrt(16)))
    torch.testing.assert_close(results, right)

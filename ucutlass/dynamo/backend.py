"""The backend of torch.compile: AOTAutograd's graphs, divided into programs and what TorchInductor computes."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import fx

from ucutlass.dynamo.options import CompileOptions, options_of
from ucutlass.dynamo.partition import SIZES, VIEW, Division, divide, division_of, rest
from ucutlass.dynamo.records import Records, as_record, division_from, key_of
from ucutlass.dynamo.region import NAME, Executor, Region, call_of, values_of
from ucutlass.dynamo.rules import RULES
from ucutlass.importer.first_call import checked

_LOG = logging.getLogger("ucutlass.dynamo")


class FallbackNeeded(RuntimeError):
    """With `fallback="error"`: no program computes an operator."""


@dataclass(frozen=True, slots=True)
class Outside:
    """An operator outside of the programs: its node, the operator, the line of the module, "" where it is
    unknown, and why it is there."""

    node: str
    operator: str
    line: str
    why: str

    def __str__(self) -> str:
        return f"{self.operator}{f' at {self.line}' if self.line else ''}: {self.why}"


@dataclass(frozen=True, slots=True)
class GraphReport:
    """One compiled graph: the programs' texts by the submodule's name, and the operators outside of them."""

    texts: Mapping[str, str]
    outside: tuple[Outside, ...]


@dataclass(slots=True)
class Report:
    """The graphs that one compiled function has had, in order."""

    graphs: list[GraphReport] = field(default_factory=list)


Launch = Callable[[Region, CompileOptions], Executor]


def compiled(
    graph: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The backend that the name `ucutlass` means to torch.compile. Raises ValueError for an unknown option."""
    if mode not in (None, "default"):
        raise ValueError(f"mode {mode!r} is not served; leave it out")
    call: Callable[..., Any] = backend(options_of(options))(graph, inputs)
    return call


def backend(
    options: CompileOptions,
    *,
    launch: Launch | None = None,
    devices: Collection[str] = ("cuda",),
    report: Report | None = None,
) -> Callable[..., Any]:
    """Returns a backend with these options. `launch` turns a program into a callable, by default one that
    builds and launches it; tensors on other `devices` go to the fallback; `report` is added to."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch._aot_autograd.utils import make_boxed_func

    reports = report if report is not None else Report()

    def compile_graph(
        names: Sequence[str], graph: fx.GraphModule, inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        named(graph, names)
        divided = divided_graph(graph, options, launch or launched, devices, reports)
        boxed: Callable[..., Any] = make_boxed_func(divided.forward)
        return boxed

    every: Mapping[Any, Any] = dict(torch._decomp.core_aten_decompositions())
    table = {op: function for op, function in every.items() if str(op) not in RULES}

    def compile_module(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        names = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
        forward = partial(compile_graph, names)
        compiler = aot_autograd(
            fw_compiler=forward,
            bw_compiler=partial(compile_graph, ()),
            inference_compiler=forward,
            decompositions=table,
        )
        call: Callable[..., Any] = compiler(graph, inputs)
        return call

    return compile_module


def named(graph: fx.GraphModule, names: Sequence[str]) -> None:
    """Notes at the inputs of AOTAutograd's graph what TorchDynamo calls them, where there are as many: `x`,
    `layers_0_weight`."""
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    if len(inputs) != len(names):
        return
    for node, name in zip(inputs, names, strict=True):
        own = re.sub(r"^l_(self_|fn_|s_)?", "", name)
        words = re.sub(r"(^|_)(modules|parameters|buffers)(?=_)", "", own)
        node.meta[NAME] = re.sub(r"__+", "_", words).strip("_") or node.name


def divided_graph(
    graph: fx.GraphModule, options: CompileOptions, launch: Launch, devices: Collection[str], reports: Report
) -> fx.GraphModule:
    """Returns the graph with its parts replaced by calls of programs and the rest by calls of the fallback."""
    graph.graph.eliminate_dead_code()
    division = remembered(graph, devices, Records.from_switches())
    reasons = divide(graph, division, devices)
    outside = tuple(
        Outside(node.name, str(node.target), line_of(node), reasons[node.name])
        for node in graph.graph.nodes
        if node.name in reasons
    )
    reports.graphs.append(GraphReport({part.name: part.region.text for part in division.parts}, outside))
    for operator in outside:
        _LOG.info("%s goes to the fallback", operator)
    if options.fallback == "error":
        _refuse(outside)
    for part in division.parts:
        setattr(graph, part.name, _FunctionModule(call_of(part.region, launch(part.region, options))))
    if options.fallback == "inductor":
        for name in rest(graph, "rest"):
            submodule = getattr(graph, name)
            fakes = [v for n in submodule.graph.nodes if n.op == "placeholder" for v in values_of(n)]
            setattr(graph, name, _FunctionModule(inductor(submodule, fakes)))
    graph.recompile()
    return graph


def remembered(graph: fx.GraphModule, devices: Collection[str], records: Records) -> Division:
    """Returns how the graph is divided, which another process may have found out before."""
    key = key_of(graph, "division", *sorted(devices))
    division = division_from(records.read(key), [node.name for node in graph.graph.nodes])
    if division is None:
        division = division_of(graph, devices, "program")
        records.write(key, as_record(division))
    return division


class _FunctionModule(torch.nn.Module):
    """A function as a submodule, without parameters."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *arguments: Any) -> Any:
        return self._function(*arguments)


def inductor(graph: fx.GraphModule, fakes: Sequence[Any]) -> Callable[..., Any]:
    """Returns a graph of ATen operators, which gives a tuple, as TorchInductor compiles it."""
    from torch._dispatch.python import enable_python_dispatcher
    from torch._guards import detect_fake_mode
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    mode = detect_fake_mode(fakes) or nullcontext()
    # The graph has operators whole that TorchInductor lowers only in pieces.
    with torch.no_grad(), mode, enable_python_dispatcher():
        pieces = make_fx(graph, decomposition_table=select_decomp_table())(*fakes)
    (output,) = (node for node in pieces.graph.nodes if node.op == "output")
    # Others rely on the strides of results, which it changes where no user sees them.
    output.meta["user_visible_output_idxs"] = list(range(len(output.args[0])))
    with _strides_kept_to_itself():
        run = compile_fx_inner(pieces, list(fakes))

    def call(*arguments: Any) -> Any:
        return tuple(run(list(arguments)))

    return call


@contextmanager
def _strides_kept_to_itself() -> Iterator[None]:
    """Does not let TorchInductor report the strides of results, which AOTAutograd would take for those of the
    whole graph."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    if context is None:
        yield
        return
    reported, context.output_strides = context.output_strides, None
    try:
        yield
    finally:
        context.output_strides = reported


def launched(region: Region, options: CompileOptions) -> Executor:
    """Returns the region's program as a callable that plans and builds at the first call of each alignment."""
    from ucutlass.api import loads

    program = loads(region.text, region.name)
    return checked(program) if options.check else program


def line_of(node: fx.Node) -> str:
    """Returns the innermost line of the module's own source, "" where it is unknown."""
    from ucutlass.importer.export import source_line

    return source_line(node)


def _refuse(outside: Sequence[Outside]) -> None:
    """Raises FallbackNeeded for the first operator that computes something outside of the programs."""
    for operator in outside:
        if operator.why not in (VIEW, SIZES):
            raise FallbackNeeded(str(operator))

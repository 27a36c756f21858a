"""`ucutlass.explain(model, *inputs)`: what `torch.compile(model, backend="ucutlass")` does with each operator."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils.flop_counter import flop_registry

from ucutlass import frontend
from ucutlass.api import NoKernelsHere, checked_arch
from ucutlass.dynamo.backend import line_of, named, remembered, simplify
from ucutlass.dynamo.builds import checked_text, job_of, refusal
from ucutlass.dynamo.partition import CHECK, SIZES, VIEW, Division, Part, is_item, is_view, why_outside
from ucutlass.dynamo.records import Records
from ucutlass.dynamo.region import values_of
from ucutlass.dynamo.rules import decompositions
from ucutlass.dynamo.subgraphs import extracted
from ucutlass.importer.export import ELEMENTS
from ucutlass.ir import Pipeline
from ucutlass.ir.hardware import DEVICES, Device, device_named

PLANNED_FOR = "H200"
"""The GPU whose times are estimated where none is here."""

REMEDIES: Mapping[str, str] = {
    r"no rule for this operator": "a rule in ucutlass/importer/operators",
    r"torch computes it": "a kernel family that serves it",
    r"a tensor is on \w+": "the module and its inputs on a GPU",
    r"depends? on an extent": "fixed shapes (dynamic=False)",
    r"element type is": "a cast to a type of the language",
    r"in all were tried": "smaller graphs: compile the module's blocks one by one",
    r"result \d+ is read": "calls without gradients (torch.no_grad)",
}
"""What would bring an operator into a program, by what its reason says."""


@dataclass(frozen=True, slots=True)
class ExplainedOperator:
    """Calls of one operator that went the same way: `where` is a program's name, `fallback`, `view` or `host`;
    `why`, `line` and `remedy` are those of the fallback. `share` is of the time of all operators."""

    operator: str
    graph: int
    where: str
    why: str
    line: str
    remedy: str
    calls: int
    share: float


@dataclass(frozen=True, slots=True)
class ExplainedProgram:
    """A program of a graph: its stages, which are launches, the operators that it computes, and their share."""

    name: str
    graph: int
    text: str
    stages: int
    operators: int
    share: float


@dataclass(frozen=True, slots=True)
class CompileExplanation:
    """What became of a module's operators. `clock` says whose times the shares are of. `breaks` are the reasons
    why TorchDynamo cut the module into several graphs."""

    operators: tuple[ExplainedOperator, ...]
    programs: tuple[ExplainedProgram, ...]
    breaks: tuple[str, ...]
    graphs: int
    clock: str

    @property
    def served(self) -> float:
        """The share of the time in operators that programs compute."""
        return sum(program.share for program in self.programs)

    def __str__(self) -> str:
        rows = [
            [
                o.operator,
                str(o.calls),
                f"graph {o.graph} {o.where}",
                f"{o.share:.1%}",
                o.why + (f" ({o.line})" if o.line and o.why else ""),
                o.remedy,
            ]
            for o in self.operators
        ]
        head = ["operator", "calls", "where", "share", "why", "what would close it"]
        lines = [
            f"{self.served:.1%} of the time is in {_count(len(self.programs), 'program')} "
            f"of {_count(self.graphs, 'graph')} ({self.clock})",
            *(
                f"graph {p.graph} {p.name}: {_count(p.operators, 'operator')} in "
                f"{_count(p.stages, 'stage')}, {p.share:.1%}"
                for p in self.programs
            ),
            *(f"graph break: {reason}" for reason in self.breaks),
            "",
            *_table(head, rows),
        ]
        return "\n".join(lines)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in lines]


@dataclass(slots=True)
class _TracedGraph:
    """A graph of AOTAutograd with its division, and seconds by node: measured where it ran on a GPU."""

    graph: fx.GraphModule
    division: Division
    devices: tuple[str, ...]
    seconds: dict[str, float] = field(default_factory=dict)


def explain(model: Callable[..., Any], *inputs: Any, **named_inputs: Any) -> CompileExplanation:
    """Returns what `torch.compile(model, backend="ucutlass")` does with the operators of this call.

    The call runs by PyTorch's own kernels; no kernel of ours is built. On a GPU, shares are of the time that
    each operator takes there by itself; where there is none, of the time that its bytes and multiplications
    take at an H200's peak rates, as if the tensors were on one. The graphs are those of training where
    gradients are on, backward with estimated times then, and so all.
    """
    from torch._dynamo.utils import counters

    devices = ("cuda",) if torch.cuda.is_available() else ("cuda", "cpu")
    traced: list[_TracedGraph] = []
    before = Counter(counters["graph_break"])
    torch.compile(model, backend=partial(_trace, traced, devices))(*inputs, **named_inputs)
    breaks = Counter(counters["graph_break"]) - before
    unplanned = [
        {part.name: why for part in g.division.parts if (why := _unplanned(g, part))} for g in traced
    ]
    measured = bool(traced) and all(graph.seconds for graph in traced)
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else PLANNED_FOR
    if not measured:
        device = device_named(name) or DEVICES[PLANNED_FOR]
        name = device.name
        for graph in traced:
            graph.seconds = {n.name: estimated(n, device) for n in _operators(graph.graph)}
    clock = f"each operator by itself on {name}" if measured else f"estimated for {name}"
    reasons = tuple(" ".join(reason.split("\n")[0].split()) for reason in breaks)
    return _explanation(traced, unplanned, reasons, clock)


def _unplanned(traced: _TracedGraph, part: Part) -> str:
    """Returns why a program has no kernels on the GPU that is here, or else on the one whose times are estimated."""
    members = [node for node in traced.graph.graph.nodes if node.name in part.nodes]
    job = job_of(part, extracted(traced.graph, members, (), part.name)[0])
    if not torch.cuda.is_available():
        return refusal(job, "sm90a", DEVICES[PLANNED_FOR])
    gpu = torch.cuda.get_device_properties()
    try:
        arch = checked_arch(None, gpu.name, (gpu.major, gpu.minor))
    except NoKernelsHere as problem:
        return str(problem)
    return refusal(job, arch, device_named(gpu.name))


def _trace(
    traced: list[_TracedGraph], devices: tuple[str, ...], graph: fx.GraphModule, inputs: Sequence[Any]
) -> Callable[..., Any]:
    from torch._dynamo.backends.common import aot_autograd

    names = [node.name for node in graph.graph.nodes if node.op == "placeholder"]

    def compiler(names: Sequence[str], graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        from torch._functorch._aot_autograd.utils import make_boxed_func

        named(graph, names)
        simplify(graph, devices)
        graph.recompile()
        own = _TracedGraph(graph, remembered(graph, devices, Records.from_switches()), devices)
        traced.append(own)
        boxed: Callable[..., Any] = make_boxed_func(partial(_run, own))
        return boxed

    forward = partial(compiler, names)
    compile_graph = aot_autograd(
        fw_compiler=forward,
        bw_compiler=partial(compiler, ()),
        inference_compiler=forward,
        decompositions=decompositions(),
    )
    call: Callable[..., Any] = compile_graph(graph, inputs)
    return call


def _run(traced: _TracedGraph, *arguments: Any) -> Any:
    if not any(isinstance(a, Tensor) and a.device.type == "cuda" for a in arguments):
        return fx.Interpreter(traced.graph).run(*arguments)
    fx.Interpreter(traced.graph).run(*arguments)  # libraries load and choose algorithms at the first call
    timed = _TimedInterpreter(traced.graph)
    results = timed.run(*arguments)
    torch.cuda.synchronize()
    traced.seconds = {name: start.elapsed_time(end) / 1000 for name, (start, end) in timed.events.items()}
    return results


class _TimedInterpreter(fx.Interpreter):
    """Records an event before and after each operator."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.events: dict[str, tuple[Any, Any]] = {}

    def run_node(self, n: fx.Node) -> Any:
        if n.op != "call_function" or is_item(n) or is_view(n):
            return super().run_node(n)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        result = super().run_node(n)
        end.record()
        self.events[n.name] = (start, end)
        return result


def _operators(graph: fx.GraphModule) -> list[fx.Node]:
    return [node for node in graph.graph.nodes if node.op == "call_function" and not is_item(node)]


def estimated(node: fx.Node, device: Device) -> float:
    """Returns the seconds that a GPU takes at its peak rates for the bytes that an operator reads and writes, or
    for its multiplications, whichever is longer."""
    if is_view(node):
        return 0.0
    values = [v for n in (node, *node.all_input_nodes) for v in values_of(n) if isinstance(v, Tensor)]
    if not values:
        return 0.0
    moved = sum(_hint(v.numel()) * v.element_size() for v in values) / device.bandwidth
    return max(moved, _multiplications(node) / _peak(values[0].dtype, device))


def _peak(dtype: torch.dtype, device: Device) -> float:
    return device.peaks.get(ELEMENTS.get(dtype, "f32"), device.peaks["f32"])


def _multiplications(node: fx.Node) -> float:
    packet = getattr(node.target, "overloadpacket", None)
    count = flop_registry.get(packet)
    if count is None:
        return 0.0
    arguments, named_arguments = fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: n.meta.get("val"))
    return float(_hint(count(*arguments, **named_arguments, out_val=node.meta.get("val"))))


def _hint(number: Any) -> int:
    if isinstance(number, torch.SymInt):
        return int(number.node.hint) if number.node.has_hint() else 0
    return int(number)


def _explanation(
    traced: Sequence[_TracedGraph],
    unplanned: Sequence[Mapping[str, str]],
    breaks: tuple[str, ...],
    clock: str,
) -> CompileExplanation:
    total = sum(sum(graph.seconds.values()) for graph in traced) or 1.0
    calls: dict[tuple[str, int, str, str], list[tuple[str, float]]] = {}
    programs: list[ExplainedProgram] = []
    for number, graph in enumerate(traced):
        part_of = {name: part.name for part in graph.division.parts for name in part.nodes}
        for node in _operators(graph.graph):
            where, why = _fate(node, part_of, unplanned[number], graph)
            share = graph.seconds.get(node.name, 0.0) / total
            row = calls.setdefault((str(node.target), number, where, why), [])
            row.append((line_of(node) if where == "fallback" else "", share))
        for part in graph.division.parts:
            if part.name in unplanned[number]:
                continue
            program = frontend.program(checked_text(part.region), part.region.name)
            members = [node for node in _operators(graph.graph) if node.name in part.nodes]
            programs.append(
                ExplainedProgram(
                    part.name,
                    number,
                    part.region.text,
                    len(program.stages) if isinstance(program, Pipeline) else 1,
                    sum(not is_view(node) for node in members),
                    sum(graph.seconds.get(node.name, 0.0) for node in members) / total,
                )
            )
    operators = [
        ExplainedOperator(
            operator, number, where, why, rows[0][0], remedy(why), len(rows), sum(share for _, share in rows)
        )
        for (operator, number, where, why), rows in calls.items()
    ]
    operators.sort(key=lambda o: (o.graph, o.where != "fallback", -o.share))
    return CompileExplanation(tuple(operators), tuple(programs), breaks, len(traced), clock)


def _fate(
    node: fx.Node, part_of: Mapping[str, str], unplanned: Mapping[str, str], graph: _TracedGraph
) -> tuple[str, str]:
    part = part_of.get(node.name, "")
    if part in unplanned:
        return ("view", "") if is_view(node) else ("fallback", f"{part} has no kernel: {unplanned[part]}")
    if part:
        return part, ""
    match why_outside(node, graph.division.refused, graph.devices):
        case why if why == VIEW:
            return "view", ""
        case why if why in (SIZES, CHECK):
            return "host", ""
        case why:
            return "fallback", why


def remedy(why: str) -> str:
    """Returns what would bring an operator with this reason into a program, "" where nothing is known."""
    return next((words for pattern, words in REMEDIES.items() if re.search(pattern, why)), "")

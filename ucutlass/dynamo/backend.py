"""The backend of torch.compile: AOTAutograd's graphs, divided into programs and what TorchInductor computes."""

from __future__ import annotations

import copy
import gc
import logging
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import fx

from ucutlass.adopt.database import latest
from ucutlass.dynamo.builds import BackgroundBuilds, Launch, job_of, launched, part_call
from ucutlass.dynamo.calls import LateBoxed, PartCall, boxed
from ucutlass.dynamo.choice import (
    FirstCallTrial,
    GraphChoice,
    Measure,
    choice_from,
    choice_of,
    choice_record,
    device_of,
    measured,
)
from ucutlass.dynamo.fallback import say
from ucutlass.dynamo.fallback_process import StartFallback, portable, started
from ucutlass.dynamo.folded_constants import fold_constants
from ucutlass.dynamo.host_constants import move_host_constants
from ucutlass.dynamo.inductor import inductor, start_compilers, whole
from ucutlass.dynamo.options import CompileOptions, options_of
from ucutlass.dynamo.partition import NO_WORK, Division, divide, division_of, rest, without_empty_operands
from ucutlass.dynamo.precision import multiplied
from ucutlass.dynamo.records import Records, division_from, division_record, key_of
from ucutlass.dynamo.region import NAME, PARAMETER, values_of
from ucutlass.dynamo.rematerialization import Partition, partition_of
from ucutlass.dynamo.replays import CudaReplays, ReplayDevice, Replays
from ucutlass.dynamo.rules import decompositions
from ucutlass.dynamo.strided_views import without_strided_views
from ucutlass.dynamo.whole_attention import keep_attention
from ucutlass.importer.complex_numbers import with_real_parts
from ucutlass.importer.symbolic import symbols_of
from ucutlass.spans import span
from ucutlass.tune.database import TuningDatabase

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
    """The graphs that one compiled function has had, in order, and what was chosen to serve them."""

    graphs: list[GraphReport] = field(default_factory=list)
    choices: list[GraphChoice] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class BackendHooks:
    """What the backend does to a device: `launch` starts to turn programs into callables, `measure` times two forms of a
    graph (None where time means nothing), `replaying` gives the device that captures calls, `partition` parts
    the joint graph of a graph of TorchDynamo in forward and backward, `start_fallback` compiles a graph for
    TorchInductor's cache beside this process. Tensors on other `devices` go to the fallback."""

    launch: Launch = launched
    measure: Measure | None = measured
    replaying: Callable[[torch.device], ReplayDevice] = CudaReplays
    devices: tuple[str, ...] = ("cuda",)
    partition: Callable[[fx.GraphModule], Partition] = partition_of
    start_fallback: StartFallback = started


def compiled(
    graph: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The backend that the name `ucutlass` means to torch.compile. Raises ValueError for an unknown option."""
    if mode not in (None, "default", "reduce-overhead"):
        raise ValueError(f"mode {mode!r} is not served; modes are default and reduce-overhead")
    values = {"cuda_graphs": mode == "reduce-overhead", **(options or {})}
    call: Callable[..., Any] = backend(options_of(values))(graph, inputs)
    return call


def backend(
    options: CompileOptions, *, hooks: BackendHooks = BackendHooks(), report: Report | None = None
) -> Callable[..., Any]:
    """Returns a backend with these options; `report` is added to."""
    reports = report if report is not None else Report()

    def compile_module(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return CompiledModule(graph, inputs, options, hooks, reports).call()

    return compile_module


class CompiledModule:
    """One graph of TorchDynamo, on its way to what serves its calls."""

    def __init__(
        self,
        graph: fx.GraphModule,
        inputs: Sequence[Any],
        options: CompileOptions,
        hooks: BackendHooks,
        report: Report,
    ) -> None:
        self._graph, self._inputs = graph, inputs
        self._options, self._hooks, self._report = options, hooks, report
        self._builds: list[BackgroundBuilds] = []
        self._runs: list[LateBoxed] = []
        self._programs = 0

    def call(self) -> Callable[..., Any]:
        """Compiles the graph as far as the options and earlier measurements want it."""
        from torch._guards import TracingContext

        records = Records.from_switches()
        timed = self._timed()
        state = (
            torch.is_grad_enabled(),
            torch.get_float32_matmul_precision(),
            torch.backends.cudnn.allow_tf32,
        )
        # What was the faster before a schedule was recorded need not be afterwards.
        recorded = latest(TuningDatabase.open(), timed) if timed and self._options.tuned else ""
        key = key_of(self._graph, "choice", repr(self._options), timed, repr(state), recorded)
        choice = choice_from(records.read(key)) if timed else None
        if choice is not None:
            self._report.choices.append(choice)
        if choice is not None and choice.server == "fallback":
            return self._replayed(self._fallback(), None)
        later = self._later() if timed and choice is None else None
        if timed and choice is None and self._options.fallback == "inductor" and later is None:
            start_compilers()
        programs, changed = self._as_programs()
        if not self._programs and self._options.fallback != "error":
            self._say_unserved()
            return self._replayed(self._fallback(), changed)
        fallback: Callable[..., Any] | None = None
        trial = bool(timed) and choice is None and changed is not None
        if (trial and later is None) or self._builds:
            fallback = self._replayed(self._fallback(), changed)
        for run in self._runs:  # whose kernels have been built beside the fallback
            run.finish()
        served = Served(self._replayed(programs, changed), fallback, self._builds)
        if trial:
            context = TracingContext.try_get() if later is not None else None
            served.choose = partial(self._choice, key, records, changed or (), context)
            served.later = later
        return served.call if trial or fallback is not None else served.programs

    def _later(self) -> Later | None:
        """Returns what compiles the fallback beside the calls, None where the first call is to compile it."""
        if self._options.choose != "later" or self._options.fallback != "inductor" or not self._options.wait:
            return None
        graph = portable(self._graph, self._inputs)
        return None if graph is None else Later(partial(self._hooks.start_fallback, graph))

    def _say_unserved(self) -> None:
        computing = [o for g in self._report.graphs[-1:] for o in g.outside if o.why not in NO_WORK]
        if computing:
            say(f"no program serves a graph: {computing[0]}")

    def _timed(self) -> str:
        """Returns the GPU's name where programs and fallback are to be timed against each other. Later, those of free
        extents are not: another process cannot compile their fallback, which costs a first call more than the programs,
        and one shape says little of the others."""
        tensors = [x for x in self._inputs if isinstance(x, torch.Tensor)]
        devices = {x.device for x in tensors if x.device.type in self._hooks.devices}
        if (
            self._options.choose == "always"
            or (self._options.choose == "later" and symbols_of(self._inputs))
            or self._options.fallback == "error"
            or self._hooks.measure is None
            or len(devices) != 1
        ):
            return ""
        (device,) = devices
        return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type

    def _choice(
        self,
        key: str,
        records: Records,
        changed: Sequence[int],
        context: Any,
        served: Served,
        arguments: Sequence[Any],
    ) -> None:
        """Times programs against the fallback, which is loaded from TorchInductor's cache where it is not there;
        `context` is then TorchDynamo's of the graph."""
        from torch._dynamo.convert_frame import compile_lock
        from torch._guards import tracing

        measure, fallback = self._hooks.measure, served.fallback
        assert measure is not None
        if fallback is None:
            with compile_lock, tracing(context):
                fallback = self._replayed(self._fallback(), changed)
        trial = FirstCallTrial(arguments, changed)
        device = device_of(arguments)
        with span("choosing"), torch.cuda.device(device) if device is not None else nullcontext():
            choice = choice_of(*measure(trial.run(served.programs), trial.run(fallback)))
        _LOG.info("%s", choice)
        self._report.choices.append(choice)
        records.write(key, choice_record(choice))
        served.settle(served.programs if choice.server == "programs" else fallback)

    def _replayed(self, call: Callable[..., Any], changed: Sequence[int] | None) -> Callable[..., Any]:
        """Returns calls as CUDA graphs, where that is asked for and possible. `changed` are the numbers of the
        arguments that a call changes, None where that is not known."""
        if not self._options.cuda_graphs:
            return call
        places = [node for node in self._graph.graph.nodes if node.op == "placeholder"]
        static = [n for n, node in enumerate(places) if _is_static(node)]
        devices = {x.device for x in self._inputs if isinstance(x, torch.Tensor)}
        if len(devices) != 1 or {device.type for device in devices} - set(self._hooks.devices):
            say(
                f"calls are not replayed as CUDA graphs: tensors are on {', '.join(sorted(map(str, devices)))}"
            )
            return call
        if changed is None or not set(changed) <= set(static):
            say("calls are not replayed as CUDA graphs: a call changes its arguments")
            return call
        (device,) = devices
        return Replays(call, static, self._hooks.replaying(device))

    def _fallback(self) -> Callable[..., Any]:
        """Returns the whole graph as the fallback computes it."""
        graph = copied(self._graph)
        with span("fallback"):
            return whole(graph, self._inputs) if self._options.fallback == "inductor" else graph.forward

    def _as_programs(self) -> tuple[Callable[..., Any], tuple[int, ...] | None]:
        """Returns the graph as programs and a fallback for what is left, and the arguments that a call changes."""
        from torch._dynamo.backends.common import aot_autograd
        from torch._guards import TracingContext

        names = [node.name for node in self._graph.graph.nodes if node.op == "placeholder"]
        forward = partial(self._divided, names)
        compiler = aot_autograd(
            fw_compiler=forward,
            bw_compiler=partial(self._divided, ()),
            inference_compiler=forward,
            partition_fn=self._hooks.partition(self._graph),
            decompositions=decompositions(),
        )
        graph = copied(self._graph)
        keep_attention(graph, self._inputs)
        with _uncollected():
            call: Callable[..., Any] = compiler(graph, self._inputs)
        context = TracingContext.try_get()
        metadata = context.fw_metadata if context is not None else None
        changed = tuple(metadata.mutated_inp_runtime_indices) if metadata is not None else None
        return call, changed

    def _divided(
        self, names: Sequence[str], graph: fx.GraphModule, inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        named(graph, names)
        division, builds, run = divided_graph(graph, self._options, self._hooks, self._report)
        self._programs += len(division.parts)
        self._runs.append(run)
        if builds is not None:
            self._builds.append(builds)
        return run


@contextmanager
def _uncollected() -> Iterator[None]:
    """Collects no garbage: AOTAutograd and an import make many small objects, and a collection looks at all of
    torch's besides, a fifth of the import's time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def copied(graph: fx.GraphModule) -> fx.GraphModule:
    """Returns TorchDynamo's graph with nodes of its own, and with what AOTAutograd reads of its inputs' sources."""
    own = fx.GraphModule(graph, copy.deepcopy(graph.graph))
    own.meta = dict(graph.meta)
    pairs: list[tuple[Any, Any, str]] = [(graph, own, "_param_name_to_source")]
    pairs += [(a, b, "_dynamo_source") for a, b in zip(graph.graph.nodes, own.graph.nodes, strict=True)]
    for source, target, name in pairs:
        if hasattr(source, name):
            setattr(target, name, getattr(source, name))
    return own


def _is_static(node: fx.Node) -> bool:
    """Returns whether an input of TorchDynamo's graph is a parameter or a buffer."""
    return "_dynamo_static_input_type" in node.meta.get("tensor_dict", {})


class Later:
    """A compilation of the fallback in a process of its own, which starts once the first call has its results."""

    def __init__(self, start: Callable[[], Future[bool]]) -> None:
        self._start = start
        self._compiled: Future[bool] | None = None

    @property
    def runs(self) -> bool:
        return self._compiled is not None and not self._compiled.done()

    @property
    def begun(self) -> bool:
        return self._compiled is not None

    @property
    def succeeded(self) -> bool:
        return self._compiled is not None and self._compiled.result()

    def begin(self) -> None:
        self._compiled = self._start()


class Served:
    """Calls of a graph: by the fallback until kernels are built, then once by both to choose, then by what was
    chosen. With `later`, programs serve until the fallback is in TorchInductor's cache."""

    def __init__(
        self,
        programs: Callable[..., Any],
        fallback: Callable[..., Any] | None,
        builds: Sequence[BackgroundBuilds],
    ) -> None:
        self.programs, self.fallback = programs, fallback
        self.choose: Callable[[Served, Sequence[Any]], None] | None = None
        self.later: Later | None = None
        self._builds = tuple(builds)
        self._settled: Callable[..., Any] | None = None
        self._lock = threading.Lock()

    def settle(self, call: Callable[..., Any]) -> None:
        self._settled = call

    def call(self, *arguments: Any) -> Any:
        settled = self._settled
        return settled(*arguments) if settled is not None else self._first(arguments)

    def _first(self, arguments: Sequence[Any]) -> Any:
        if not all(builds.done for builds in self._builds):
            assert self.fallback is not None
            return self.fallback(*arguments)
        if self.later is not None and self.later.begun:
            return self._meanwhile(self.later, arguments)
        with self._lock:
            if self._settled is not None:
                return self._settled(*arguments)
            for builds in self._builds:
                if builds.problem is not None:
                    assert self.fallback is not None
                    say(f"the fallback serves a graph: {builds.problem}")
                    self.settle(self.fallback)
                    return self.fallback(*arguments)
            # The first call as the user's own: what it changes is changed once.
            results = self.programs(*arguments)
            if self.later is not None:
                if not self.later.begun:
                    self.later.begin()
            elif self.choose is None:
                self.settle(self.programs)
            else:
                self.choose(self, arguments)
            return results

    def _meanwhile(self, later: Later, arguments: Sequence[Any]) -> Any:
        """Calls programs, and chooses once the fallback is there, unless another thread does that, or a CUDA
        graph is being captured, in which nothing can be timed."""
        results = self.programs(*arguments)
        if later.runs or _is_capturing(arguments) or not self._lock.acquire(blocking=False):
            return results
        try:
            if self._settled is None:
                self._compare(later, arguments)
        finally:
            self._lock.release()
        return results

    def _compare(self, later: Later, arguments: Sequence[Any]) -> None:
        assert self.choose is not None
        if not later.succeeded:
            self.settle(self.programs)
            return
        try:
            self.choose(self, arguments)
        except torch.OutOfMemoryError as problem:
            # By then the caller counts on the memory that a call takes.
            say(f"programs serve a graph, which had no memory to be timed: {problem}")
            self.settle(self.programs)


def _is_capturing(arguments: Sequence[Any]) -> bool:
    device = device_of(arguments)
    if device is None:
        return False
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


def named(graph: fx.GraphModule, names: Sequence[str]) -> None:
    """Notes at the inputs of AOTAutograd's graph what TorchDynamo calls them, where there are as many: `x`,
    `layers_0_weight`."""
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    if len(inputs) != len(names):
        return
    for node, name in zip(inputs, names, strict=True):
        own = re.sub(r"^l_(self_|fn_|s_)?", "", name)
        if re.search(r"(^|_)parameters_", own):
            node.meta[PARAMETER] = True
        words = re.sub(r"(^|_)(modules|parameters|buffers)(?=_)", "", own)
        node.meta[NAME] = re.sub(r"__+", "_", words).strip("_") or node.name


def simplify(graph: fx.GraphModule, devices: Collection[str]) -> None:
    """Takes out of a graph what only stands in the way of programs, in place."""
    fold_constants(graph)
    move_host_constants(graph, devices)
    with_real_parts(graph.graph)
    without_strided_views(graph)
    without_empty_operands(graph)
    graph.graph.eliminate_dead_code()


def divided_graph(
    graph: fx.GraphModule, options: CompileOptions, hooks: BackendHooks, reports: Report
) -> tuple[Division, BackgroundBuilds | None, LateBoxed]:
    """Divides a graph of AOTAutograd in place, starts to build its kernels, and returns it as a function that is
    finished once they are built; without `wait` also what builds them. Raises FallbackNeeded."""
    simplify(graph, hooks.devices)
    division = remembered(graph, hooks.devices, Records.from_switches())
    reasons = divide(graph, division, hooks.devices)
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
    modules = {part.name: getattr(graph, part.name) for part in division.parts}

    def started() -> Callable[[], dict[str, PartCall]]:
        jobs = [job_of(part, modules[part.name]) for part in division.parts]
        waiting = hooks.launch(jobs, options) if jobs else list

        def calls() -> dict[str, PartCall]:
            return {
                part.name: part_call(part, modules[part.name], outcome, options, job.dense)
                for part, job, outcome in zip(division.parts, jobs, waiting(), strict=True)
            }

        return calls

    builds = None if options.wait or not division.parts else BackgroundBuilds(lambda: started()())
    waiting = started() if builds is None else partial(builds.calls, [part.name for part in division.parts])
    others: dict[str, PartCall] = {}
    if options.fallback == "inductor":
        for name in rest(graph, "rest"):
            submodule = getattr(graph, name)
            fakes = [v for n in submodule.graph.nodes if n.op == "placeholder" for v in values_of(n)]
            with span("fallback"):
                others[name] = inductor(submodule, fakes)
    return division, builds, LateBoxed(lambda: boxed(graph, {**waiting(), **others}))


def remembered(graph: fx.GraphModule, devices: Collection[str], records: Records) -> Division:
    """Returns how the graph is divided, which another process may have found out before."""
    inputs = [value for node in graph.graph.find_nodes(op="placeholder") for value in values_of(node)]
    key = key_of(graph, "division", *sorted(devices), repr(multiplied(inputs)))
    division = division_from(records.read(key), [node.name for node in graph.graph.nodes])
    if division is None:
        with span("importing"):
            division = division_of(graph, devices, "program")
        records.write(key, division_record(division))
    return division


def line_of(node: fx.Node) -> str:
    """Returns the innermost line of the module's own source, "" where it is unknown."""
    from ucutlass.importer.export import source_line

    return source_line(node)


def _refuse(outside: Sequence[Outside]) -> None:
    """Raises FallbackNeeded for the first operator that computes something outside of the programs."""
    for operator in outside:
        if operator.why not in NO_WORK:
            raise FallbackNeeded(str(operator))

"""Programs of a graph's parts as callables, all of whose kernels are built side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import fx

from ucutlass import frontend
from ucutlass.adopt.lookup import adopted_kernel
from ucutlass.api import (
    LoadedKernel,
    LoadedPipeline,
    LoadedProgram,
    NoKernelsHere,
    checked_arch,
    known_device,
)
from ucutlass.assembly import AnyBuilt, BuiltPipeline, ProgramAtSizes, planned_sources, start_programs
from ucutlass.backend import Built
from ucutlass.diagnostics import ProgramError
from ucutlass.dynamo.calls import PartCall, call_of
from ucutlass.dynamo.fallback import say
from ucutlass.dynamo.options import CompileOptions
from ucutlass.dynamo.partition import Part
from ucutlass.dynamo.region import Executor, Order, Region, values_of
from ucutlass.emit import NotServed
from ucutlass.importer.first_call import checked
from ucutlass.ir import Kernel, Pipeline
from ucutlass.ir.hardware import Device
from ucutlass.pipeline.planning import as_written
from ucutlass.runtime.arguments import ArgumentError, bind
from ucutlass.runtime.errors import ArchUnknown, BuildCancelled, BuildError, BuildTimedOut, MachineError
from ucutlass.runtime.launch_spec import TensorSlot, spec_of
from ucutlass.runtime.lending import Lends
from ucutlass.shapes import ShapeError
from ucutlass.tune.lookup import draw_recorded

NO_KERNEL = (
    NoKernelsHere,
    ProgramError,
    ShapeError,
    NotServed,
    BuildError,
    BuildTimedOut,
    BuildCancelled,
    ArchUnknown,
    MachineError,
)
"""What is raised where a program has no kernel on this machine, before anything is launched."""


MOST_REFUSED = 4096
"""Sets of shapes of which a part remembers that its program has no kernel."""


@dataclass(frozen=True, slots=True)
class Job:
    """A part's program, with what its first call is expected to bring: the shape of each parameter in memory
    order, None where it cannot be told, and the device. `dense` has the places of the parameters whose tensors
    are dense in every call, since TorchDynamo guards their strides."""

    region: Region
    shapes: tuple[tuple[int, ...], ...] | None
    device: torch.device
    dense: frozenset[int] = frozenset()


Outcome: TypeAlias = "Executor | Exception"
"""A program's callable, or why it has none: one of NO_KERNEL."""

Launch: TypeAlias = Callable[[Sequence[Job], CompileOptions], Callable[[], Sequence[Outcome]]]
"""Starts what turns programs into callables; the function that it returns waits for them."""


def job_of(part: Part, graph: fx.GraphModule) -> Job:
    """Returns the job of a part; `graph` is its own."""
    values = [value for node in graph.graph.nodes if node.op == "placeholder" for value in values_of(node)]
    results = [value for node in graph.graph.nodes if node.op == "call_function" for value in values_of(node)]
    device = next(v.device for v in (*values, *results) if isinstance(v, torch.Tensor))
    shapes = [tuple(_hint(values[n].shape[axis]) for axis in order) for n, order in part.region.inputs]
    extents = [tuple(n for n in shape if n is not None) for shape in shapes]
    dense = frozenset(p for p, (n, order) in enumerate(part.region.inputs) if _is_dense(values[n], order))
    return Job(part.region, tuple(extents) if extents == shapes else None, device, dense)


def _is_dense(value: torch.Tensor, order: Order) -> bool:
    numbers = all(isinstance(n, int) for n in (*value.shape, *value.stride()))
    return numbers and value.permute(order).is_contiguous()


def _hint(extent: Any) -> int | None:
    """Returns the extent that the first call has."""
    if isinstance(extent, int):
        return extent
    hint = extent.node.hint if extent.node.has_hint() else None
    return None if hint is None else int(hint)


def launched(jobs: Sequence[Job], options: CompileOptions) -> Callable[[], list[Outcome]]:
    """Plans programs and starts to build their kernels for the expected shapes. Returns a function that waits
    for them and gives the programs as callables; other shapes are planned and built by the call that needs
    them."""
    places: list[list[int]] = []
    started: list[Callable[[], list[Outcome]]] = []
    for device in dict.fromkeys(job.device for job in jobs):
        places.append([number for number, job in enumerate(jobs) if job.device == device])
        started.append(_on_device([jobs[n] for n in places[-1]], device, options))

    def outcomes() -> list[Outcome]:
        by_place = {
            number: outcome
            for numbers, waiting in zip(places, started, strict=True)
            for number, outcome in zip(numbers, waiting(), strict=True)
        }
        return [by_place[number] for number in range(len(jobs))]

    return outcomes


def _on_device(
    jobs: Sequence[Job], device: torch.device, options: CompileOptions
) -> Callable[[], list[Outcome]]:
    gpu = torch.cuda.get_device_properties(device)
    try:
        arch = checked_arch(None, gpu.name, (gpu.major, gpu.minor))
    except NoKernelsHere as problem:
        refusal = problem
        return lambda: [refusal] * len(jobs)
    device_facts = known_device(gpu.name, arch)
    programs: list[frontend.Checked | ProgramError] = []
    sized: dict[int, ProgramAtSizes] = {}
    for number, job in enumerate(jobs):
        try:
            text = checked_text(job.region)
            program = frontend.program(text, job.region.name)
            programs.append(text)
        except ProgramError as problem:
            programs.append(problem)
            continue
        with suppress(ArgumentError):  # which the call itself will raise
            if job.shapes is not None:
                draw = draw_recorded(text, arch, gpu.name, device_facts) if options.tuned else as_written
                sized[number] = ProgramAtSizes(text, program, _extents(program, job.shapes), draw)
    adopted = _adopted(sized, arch, gpu.name, device_facts) if options.tuned else {}
    others = {number: job for number, job in sized.items() if number not in adopted}
    building = start_programs(list(others.values()), arch, device=device_facts)

    def outcomes() -> list[Outcome]:
        try:
            results = building()
        except MachineError as problem:
            return [problem] * len(jobs)
        built: dict[int, AnyBuilt | Exception] = {**adopted, **dict(zip(others, results, strict=True))}
        return [
            program
            if isinstance(program, Exception)
            else _executor(program, job.region.name, built.get(number), options)
            for number, (job, program) in enumerate(zip(jobs, programs, strict=True))
        ]

    return outcomes


def _adopted(
    programs: Mapping[int, ProgramAtSizes], arch: str, gpu: str, device: Device | None
) -> dict[int, Built]:
    """Returns the confirmed sources of those programs that are one kernel, by their numbers."""
    return {
        number: adopted[0]
        for number, job in programs.items()
        if isinstance(job.program, Kernel)
        and (adopted := adopted_kernel(job.checked, job.program, job.sizes, arch, gpu, device)) is not None
    }


def checked_text(region: Region) -> frontend.Checked:
    """Returns a region's program as the compiler reads it. Raises ProgramError."""
    return frontend.read_text(region.text)


def refusal(job: Job, arch: str, device: Device | None) -> str:
    """Returns why no kernels compute a program at the extents that its first call has, "" where they do."""
    try:
        text = checked_text(job.region)
        program = frontend.program(text, job.region.name)
        if job.shapes is not None:
            planned_sources(ProgramAtSizes(text, program, _extents(program, job.shapes)), arch, device)
    except (ProgramError, ShapeError, NotServed, ArgumentError) as problem:
        return " ".join(str(problem).split("\n")[0].split())
    return ""


def _extents(program: Any, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    spec = spec_of(program)
    tensors = [slot for slot in spec.params if isinstance(slot, TensorSlot)]
    return bind(spec, [(slot.name, shape, slot) for slot, shape in zip(tensors, shapes, strict=True)])


def _executor(
    text: frontend.Checked, name: str, built: AnyBuilt | Exception | None, options: CompileOptions
) -> Outcome:
    if isinstance(built, Exception):
        return built
    program = frontend.program(text, name)
    # A graph that is captured keeps its kernels, so that its call waits for those of its own.
    lends: Lends = "near" if options.cuda_graphs else "all"
    loaded: LoadedProgram
    if isinstance(program, Pipeline):
        assert built is None or isinstance(built, BuiltPipeline)
        loaded = LoadedPipeline(text, program, None, options.tuned, ready=built, lends=lends)
    else:
        assert built is None or isinstance(built, Built)
        loaded = LoadedKernel(text, program, None, options.tuned, ready=built, lends=lends)
    return checked(loaded) if options.check else loaded


# --- calls ------------------------------------------------------------------------


def part_call(
    part: Part,
    module: Callable[..., tuple[Any, ...]],
    outcome: Outcome,
    options: CompileOptions,
    dense: Collection[int] = (),
) -> PartCall:
    """Returns what computes a part: its program, or the part's own operators where that has no kernel, which a
    FallbackWarning says. With `fallback="error"` that is raised."""

    def operators(*arguments: Any) -> tuple[Any, ...]:
        return module(*arguments)

    if isinstance(outcome, Exception):
        if options.fallback == "error":
            raise outcome
        say(f"a program is not served: {outcome}")
        return operators
    call = call_of(part.region, outcome, dense)
    if options.fallback == "error":
        return call

    refused: set[tuple[object, ...]] = set()

    def guarded(*arguments: Any) -> tuple[Any, ...]:
        if refused and _shapes(arguments) in refused:
            return operators(*arguments)
        try:
            return call(*arguments)
        except (*NO_KERNEL, ArgumentError) as problem:
            say(f"a program is not served: {problem}")
        if len(refused) >= MOST_REFUSED:
            refused.clear()
        refused.add(_shapes(arguments))  # to plan it again at each call would cost more than the call
        return operators(*arguments)

    return guarded


def _shapes(arguments: Sequence[Any]) -> tuple[object, ...]:
    return tuple(tuple(a.shape) if isinstance(a, torch.Tensor) else a for a in arguments)


class BackgroundBuilds:
    """Builds that a thread of their own makes while the fallback computes."""

    def __init__(self, build: Callable[[], Mapping[str, PartCall]]) -> None:
        self._future: Future[Mapping[str, PartCall]] = Future()
        threading.Thread(target=self._run, args=(build,), name="ucutlass-builds", daemon=True).start()

    def _run(self, build: Callable[[], Mapping[str, PartCall]]) -> None:
        try:
            self._future.set_result(build())
        except BaseException as problem:  # handed to whoever waits for it
            self._future.set_exception(problem)

    @property
    def done(self) -> bool:
        return self._future.done()

    @property
    def problem(self) -> BaseException | None:
        """What ended the builds, once they are done."""
        return self._future.exception()

    def calls(self, names: Collection[str]) -> dict[str, PartCall]:
        """Returns the calls of parts, which wait for the builds."""
        return {name: self._call(name) for name in names}

    def _call(self, name: str) -> PartCall:
        future = self._future

        def late(*arguments: Any) -> tuple[Any, ...]:
            return future.result()[name](*arguments)

        return late

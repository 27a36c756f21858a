"""Represents and runs what one call launches: kernels, and torch functions between them, over one workspace,
on the caller's stream and on side streams. A single kernel is a sequence of one step.

`ucutlass.runtime.launch` checks calls and allocates; this module does what follows. The native launcher runs the
same steps, but for torch functions.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ucutlass.runtime.entry_codes import CUDA_BASE, LaunchError
from ucutlass.runtime.side_streams import Branches, branches_of
from ucutlass.runtime.torch_device import stream

ENTRY = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 7)
"""The binary interface of emitted kernels (ucutlass/kernels/gemm/plan.py)."""


@dataclass(frozen=True, slots=True)
class WorkspaceSlice:
    """Bytes from the workspace's beginning."""

    offset: int


@dataclass(frozen=True, slots=True)
class TorchResult:
    """The tensor that a torch function of this call made, by its number."""

    number: int


TensorLocation: TypeAlias = "int | WorkspaceSlice | TorchResult"
"""Where a tensor lies; a number is its position among the call's own (parameters, then results)."""


@dataclass(frozen=True, slots=True)
class CallScalar:
    """A host scalar of the call, by its position among those."""

    index: int


@dataclass(frozen=True, slots=True)
class StreamOrder:
    """Says on which stream a step runs (0: the caller's stream), which events it waits for and which it
    records when it has been launched. Events are numbers."""

    stream: int = 0
    waits: tuple[int, ...] = ()
    records: int | None = None


ALONE = StreamOrder()


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """One kernel. `entry` is the address of its entry; `workspace` is where its own begins, None where
    it needs none; `keep` owns the entry's library."""

    name: str
    entry: int
    extents: tuple[int, ...]
    launch_parameters: tuple[int, ...]
    tensors: tuple[TensorLocation, ...]
    scalars: tuple[CallScalar | float, ...]
    workspace: int | None
    order: StreamOrder = ALONE
    keep: object = None


@dataclass(frozen=True, slots=True)
class TensorView:
    """A tensor argument of a torch function: where it lies and what it is."""

    where: TensorLocation
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class TorchFunctionStep:
    """A torch function of its arguments on the caller's stream; each of its tensors, which must have the shape of one
    of `results`, is copied to its `where`, or kept as that `TorchResult`."""

    name: str
    function: Callable[[Sequence[torch.Tensor | float | int]], Sequence[torch.Tensor]]
    arguments: tuple[TensorView | CallScalar | float | int, ...]
    results: tuple[TensorView, ...]
    order: StreamOrder = ALONE


SequenceStep: TypeAlias = KernelLaunch | TorchFunctionStep


@dataclass(frozen=True, slots=True)
class LaunchSequence:
    """Steps in an order in which they may be launched. `workspace` counts bytes. `start` is the event that
    the caller's stream records first, for branches that wait for nothing else; `joins` are the streams that
    it waits for at the end, each by an event of its own. `streams` and `events` count."""

    steps: tuple[SequenceStep, ...]
    workspace: int
    streams: int = 1
    events: int = 0
    start: int | None = None
    joins: tuple[tuple[int, int], ...] = ()

    @property
    def native(self) -> bool:
        """Whether the native launcher can run it."""
        return all(
            isinstance(s, KernelLaunch) and len(s.tensors) <= MOST_TENSORS and len(s.scalars) <= MOST_SCALARS
            for s in self.steps
        )


MOST_TENSORS, MOST_SCALARS = 2112, 32
"""Of one kernel, and of one call, that the native launcher takes (launcher.c)."""


class TorchResultMismatch(Exception):
    """A torch function of a pipeline gave another shape than the pipeline's text says."""


OnStep: TypeAlias = Callable[[int], object]
"""Called with a step's number right after its launch, for whoever times steps."""


class Runner:
    """A series whose launches are prepared as ctypes wants them."""

    def __init__(self, name: str, series: LaunchSequence, device: torch.device) -> None:
        self.name = name
        self.series = series
        self.device = device
        self._ready = [_ready(s) if isinstance(s, KernelLaunch) else None for s in series.steps]

    def run(
        self,
        tensors: Sequence[torch.Tensor],
        scalars: Sequence[float],
        workspace: torch.Tensor | None,
        on_step: OnStep | None = None,
    ) -> None:
        """Launches every step on the current device; `tensors` are parameters, then results.

        Raises LaunchError naming the step whose entry failed, and TorchResultMismatch.
        """
        s = self.series
        call = _Call(tensors, scalars, workspace, {})
        main = stream(self.device)
        if s.streams == 1:
            self._steps(call, [main], None, on_step)
            return
        with branches_of(self.device, main, s.streams, s.events) as side:
            if s.start is not None:
                self._done(side.record(s.start, 0))
            try:
                self._steps(call, side.streams, side, on_step)
            except BaseException:
                for joined, event in s.joins:  # the workspace goes back to the caller's stream
                    side.record(event, joined), side.wait(event, 0)
                raise
            for joined, event in s.joins:
                self._done(side.record(event, joined))
                self._done(side.wait(event, 0))

    def _done(self, status: int) -> None:
        if status:
            raise LaunchError(self.name, CUDA_BASE + status)

    def _steps(
        self, call: _Call, streams: Sequence[int], events: Branches | None, on_step: OnStep | None
    ) -> None:
        for number, (step, ready) in enumerate(zip(self.series.steps, self._ready, strict=True)):
            if events is not None:
                for event in step.order.waits:
                    self._done(events.wait(event, step.order.stream))
            if ready is None:
                assert isinstance(step, TorchFunctionStep)
                call.foreign(step)
            elif code := ready.launch(call, streams[step.order.stream]):
                raise LaunchError(self.named(number), code)
            if events is not None and step.order.records is not None:
                self._done(events.record(step.order.records, step.order.stream))
            if on_step is not None:
                on_step(number)

    def named(self, number: int) -> str:
        """Returns what a failure of a step is said of: the program, and the step where there are several."""
        steps = self.series.steps
        return self.name if len(steps) == 1 else f"{self.name}, stage {steps[number].name}"


@dataclass(frozen=True, slots=True)
class _Call:
    """One call's memory. `held` fills as torch functions run."""

    tensors: Sequence[torch.Tensor]
    scalars: Sequence[float]
    workspace: torch.Tensor | None
    held: dict[int, torch.Tensor]

    def pointer(self, where: TensorLocation) -> int:
        match where:
            case int():
                return self.tensors[where].data_ptr()
            case WorkspaceSlice(offset):
                assert self.workspace is not None
                return self.workspace.data_ptr() + offset
            case TorchResult(number):
                return self.held[number].data_ptr()

    def view(self, view: TensorView) -> torch.Tensor:
        match view.where:
            case int(index):
                return self.tensors[index]
            case TorchResult(number):
                return self.held[number]
            case WorkspaceSlice(offset):
                assert self.workspace is not None
                count = math.prod(view.shape) * view.dtype.itemsize
                return self.workspace[offset : offset + count].view(view.dtype).view(view.shape)

    def scalar(self, value: CallScalar | float) -> float:
        return self.scalars[value.index] if isinstance(value, CallScalar) else value

    def foreign(self, step: TorchFunctionStep) -> None:
        arguments = [
            self.view(a) if isinstance(a, TensorView) else self.scalar(a) if isinstance(a, CallScalar) else a
            for a in step.arguments
        ]
        with torch.no_grad():
            results = step.function(arguments)
        for result, declared in zip(results, step.results, strict=True):
            if tuple(result.shape) != declared.shape:
                raise TorchResultMismatch(
                    f"stage {step.name} gave shape {list(result.shape)}, but its type says {list(declared.shape)}"
                )
            match declared.where:
                case TorchResult(number):
                    self.held[number] = result.to(declared.dtype).contiguous()
                case _:
                    self.view(declared).copy_(result)


@dataclass(frozen=True, slots=True)
class _Ready:
    """A launch with what does not change between calls."""

    step: KernelLaunch
    function: Any
    extents: Any
    launch_parameters: Any

    def launch(self, call: _Call, on: int) -> int:
        step = self.step
        pointers = [call.pointer(w) for w in step.tensors]
        scalars = [call.scalar(s) for s in step.scalars]
        own = None if step.workspace is None else call.pointer(WorkspaceSlice(step.workspace))
        code: int = self.function(
            (ctypes.c_void_p * max(1, len(pointers)))(*pointers),
            self.extents,
            (ctypes.c_double * max(1, len(scalars)))(*scalars),
            self.launch_parameters,
            own,
            None,
            on,
        )
        return code


def _ready(step: KernelLaunch) -> _Ready:
    return _Ready(
        step,
        ENTRY(step.entry),
        (ctypes.c_int64 * len(step.extents))(*step.extents),
        (ctypes.c_int64 * max(1, len(step.launch_parameters)))(*step.launch_parameters),
    )


def native_steps(series: LaunchSequence) -> tuple[tuple[Any, ...], ...]:
    """Returns the steps as launcher.c `read_step` reads them. Call `series.native` first.

    A tensor is its position, or -1 - its offset into the workspace; a scalar is its position, or -1 and
    its value beside; a workspace or event that is not there is -1.
    """
    return tuple(
        (
            s.entry,
            s.extents,
            s.launch_parameters,
            tuple(
                w if isinstance(w, int) else -1 - w.offset
                for w in s.tensors
                if not isinstance(w, TorchResult)
            ),
            tuple(v.index if isinstance(v, CallScalar) else -1 for v in s.scalars),
            tuple(0.0 if isinstance(v, CallScalar) else float(v) for v in s.scalars),
            -1 if s.workspace is None else s.workspace,
            s.order.stream,
            s.order.waits,
            -1 if s.order.records is None else s.order.records,
        )
        for s in series.steps
        if isinstance(s, KernelLaunch)
    )

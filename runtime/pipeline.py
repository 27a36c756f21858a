"""Makes the launch sequence of a pipeline's call from its layout and its kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from ucutlass import ir
from ucutlass.ir import TensorType
from ucutlass.pipeline import workspace
from ucutlass.pipeline.memory import WorkspaceLayout
from ucutlass.pipeline.sized import SizedPipeline, Step, alone, sized_pipeline, with_kernels
from ucutlass.pipeline.streams import StreamAssignment
from ucutlass.reference.interpreter import torch_results
from ucutlass.runtime.direct_launch import direct_launch, rebind
from ucutlass.runtime.launch import BoundKernel, single_launch
from ucutlass.runtime.launch_sequence import (
    CallScalar,
    KernelLaunch,
    LaunchSequence,
    StreamOrder,
    TensorLocation,
    TensorView,
    TorchFunctionStep,
    TorchResult,
    WorkspaceSlice,
)
from ucutlass.runtime.launch_spec import dtype_of, spec_of
from ucutlass.runtime.verify.judge import DirectLaunch
from ucutlass.runtime.verify.stages import StagedLaunch


def sequence_of(
    pipeline_layout: SizedPipeline, streams: StreamAssignment, bounds: Sequence[BoundKernel | None]
) -> LaunchSequence:
    """Returns what a call launches; `bounds` by step, for the step's extents, None for a torch function."""
    memory = workspace.workspace_layout(
        pipeline_layout, streams, [b.workspace if b is not None else 0 for b in bounds]
    )
    events = _events(streams)
    builder = _StepBuilder(pipeline_layout, streams, memory, events)
    forked = any(turn.forks for turn in streams.slots)
    first_join = len(events) + forked
    return LaunchSequence(
        tuple(
            builder.launch(i, step, bound) if bound is not None else builder.foreign(i, step)
            for i, (step, bound) in enumerate(zip(pipeline_layout.steps, bounds, strict=True))
        ),
        memory.bytes,
        streams.count,
        first_join + len(streams.joins),
        len(events) if forked else None,
        tuple((stream, first_join + i) for i, stream in enumerate(streams.joins)),
    )


def staged_launch(
    pipeline_layout: SizedPipeline, streams: StreamAssignment, bounds: Sequence[BoundKernel | None]
) -> StagedLaunch:
    """Returns the pipeline's launch on its one workspace, and each step's alone, for the judge."""
    apart = [
        None if bound is None else _launch_alone(pipeline_layout, step, bound)
        for step, bound in zip(pipeline_layout.steps, bounds, strict=True)
    ]
    entire = direct_launch(spec_of(pipeline_layout.pipeline), sequence_of(pipeline_layout, streams, bounds))
    return StagedLaunch(entire, pipeline_layout, tuple(apart))


def _launch_alone(layout: SizedPipeline, step: Step, bound: BoundKernel) -> DirectLaunch:
    if step.kernel is not None:
        spec = spec_of(step.kernel)
        return direct_launch(spec, single_launch(spec, step.sizes, bound))
    pipeline = alone(layout, step)
    single = sized_pipeline(pipeline, [layout.sizes[d] for d in pipeline.dims])
    return direct_launch(spec_of(pipeline), sequence_of(single, workspace.streams_of(single), [bound]))


def rebind_all(
    pipeline: ir.Pipeline, bounds: Sequence[BoundKernel | None], extents: Sequence[int], device: torch.device
) -> StagedLaunch:
    """Returns the same kernels for other extents of the pipeline, in the order of its `dims`. Raises
    ShapeError as `layout`, and LaunchError where a kernel does not serve them; some kernels only say so at
    launch."""
    sized = sized_pipeline(pipeline, extents)
    again = [
        None
        if bound is None
        else rebind(spec_of(step.kernel or alone(sized, step)), bound, step.sizes, device)
        for step, bound in zip(sized.steps, bounds, strict=True)
    ]
    pipeline_layout = with_kernels(sized, [bound is not None for bound in bounds])
    return staged_launch(pipeline_layout, workspace.streams_of(pipeline_layout), again)


def _events(streams: StreamAssignment) -> Mapping[int, int]:
    """Returns the event of each step that another stream waits for. Behind them come that of the start, then
    those of the joins."""
    recorded = [i for i, turn in enumerate(streams.slots) if turn.records]
    return {step: event for event, step in enumerate(recorded)}


@dataclass(frozen=True, slots=True)
class _StepBuilder:
    layout: SizedPipeline
    streams: StreamAssignment
    memory: WorkspaceLayout
    events: Mapping[int, int]

    def launch(self, number: int, step: Step, bound: BoundKernel) -> KernelLaunch:
        params = step.kernel.params if step.kernel is not None else ()
        pairs = zip(params, step.stage.arguments, strict=step.kernel is not None)
        return KernelLaunch(
            step.name,
            bound.entry,
            step.sizes,
            bound.launch_parameters,
            tuple(self._where(name) for name in workspace.pointers(step)),
            tuple(self._scalar(a) for decl, a in pairs if not isinstance(decl.type, TensorType)),
            self.memory.offsets.get(workspace.scratch(number)),
            self._order(number),
            bound.keep,
        )

    def foreign(self, number: int, step: Step) -> TorchFunctionStep:
        call = step.stage.call
        assert isinstance(call, ir.TorchCall)
        arguments = [
            self._view(a) if isinstance(a, str) and a in self.layout.buffers else self._scalar(a)
            for a in step.stage.arguments
        ]
        results = tuple(map(self._view, step.stage.outputs))
        function = partial(torch_results, call)
        return TorchFunctionStep(step.name, function, tuple(arguments), results, self._order(number))

    def _scalar(self, argument: str | float | int) -> CallScalar | float:
        if not isinstance(argument, str):
            return float(argument)
        scalars = [p.name for p in self.layout.pipeline.params if not isinstance(p.type, TensorType)]
        return CallScalar(scalars.index(argument))

    def _order(self, number: int) -> StreamOrder:
        turn = self.streams.slots[number]
        start = (len(self.events),) if turn.forks else ()
        return StreamOrder(
            turn.stream, (*start, *(self.events[w] for w in turn.waits)), self.events.get(number)
        )

    def _where(self, name: str) -> TensorLocation:
        outside = (*self.layout.params, *self.layout.results)
        if name in outside:
            return outside.index(name)
        by_torch = sorted(workspace.held_by_torch(self.layout))
        return (
            TorchResult(by_torch.index(name))
            if name in by_torch
            else WorkspaceSlice(self.memory.offsets[name])
        )

    def _view(self, name: str) -> TensorView:
        buffer = self.layout.buffers[name]
        return TensorView(self._where(name), buffer.shape, dtype_of(buffer.type.elem))

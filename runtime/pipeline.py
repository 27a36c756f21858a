"""The series of launches that a pipeline's call is, from its layout and its kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ucutlass import ir
from ucutlass.ir import TensorType
from ucutlass.pipeline import workspace
from ucutlass.pipeline.memory import WorkspaceLayout
from ucutlass.pipeline.sized import SizedPipeline, Step, sized_pipeline
from ucutlass.pipeline.streams import StreamAssignment
from ucutlass.reference.interpreter import TORCH_FUNCTIONS
from ucutlass.runtime.direct_launch import exposed, rebound
from ucutlass.runtime.launch import Bound, alone
from ucutlass.runtime.launch_sequence import (
    Foreign,
    Held,
    Inside,
    Launch,
    Scalar,
    Series,
    Turn,
    View,
    Where,
    torch_function,
)
from ucutlass.runtime.launch_spec import dtype_of, spec_of
from ucutlass.runtime.verify.stages import Staged


def series_of(found: SizedPipeline, lanes: StreamAssignment, bounds: Sequence[Bound | None]) -> Series:
    """What a call launches; `bounds` by step, for the step's extents, None for a torch function."""
    memory = workspace.workspace_layout(found, lanes, [b.workspace if b is not None else 0 for b in bounds])
    events = _events(lanes)
    maker = _Maker(found, lanes, memory, events)
    forked = any(turn.forks for turn in lanes.slots)
    first_join = len(events) + forked
    return Series(
        tuple(
            maker.launch(i, step, bound) if bound is not None else maker.foreign(i, step)
            for i, (step, bound) in enumerate(zip(found.steps, bounds, strict=True))
        ),
        memory.bytes,
        lanes.count,
        first_join + len(lanes.joins),
        len(events) if forked else None,
        tuple((lane, first_join + i) for i, lane in enumerate(lanes.joins)),
    )


def staged(found: SizedPipeline, lanes: StreamAssignment, bounds: Sequence[Bound | None]) -> Staged:
    """The pipeline's launch on its one workspace, and each step's alone, for the judge."""
    apart = [
        None
        if bound is None or step.kernel is None
        else exposed(spec_of(step.kernel), alone(spec_of(step.kernel), step.sizes, bound))
        for step, bound in zip(found.steps, bounds, strict=True)
    ]
    whole = exposed(spec_of(found.pipeline), series_of(found, lanes, bounds))
    return Staged(whole, found, tuple(apart))


def rebound_all(
    pipeline: ir.Pipeline, bounds: Sequence[Bound | None], extents: Sequence[int], device: torch.device
) -> Staged:
    """The same kernels for other extents of the pipeline, in the order of its `dims`. Raises ShapeError as
    `layout`, and LaunchError where a kernel does not serve them; some kernels only say so at launch."""
    found = sized_pipeline(pipeline, extents)
    again = [
        None
        if bound is None or step.kernel is None
        else rebound(spec_of(step.kernel), bound, step.sizes, device)
        for step, bound in zip(found.steps, bounds, strict=True)
    ]
    return staged(found, workspace.streams_of(found), again)


def _events(lanes: StreamAssignment) -> Mapping[int, int]:
    """The event of each step that another lane waits for. Behind them come that of the start, then
    those of the joins."""
    recorded = [i for i, turn in enumerate(lanes.slots) if turn.records]
    return {step: event for event, step in enumerate(recorded)}


@dataclass(frozen=True, slots=True)
class _Maker:
    found: SizedPipeline
    lanes: StreamAssignment
    memory: WorkspaceLayout
    events: Mapping[int, int]

    def launch(self, number: int, step: Step, bound: Bound) -> Launch:
        kernel = step.kernel
        assert kernel is not None
        pairs = zip(kernel.params, step.stage.arguments, strict=True)
        return Launch(
            step.name,
            bound.entry,
            step.sizes,
            bound.knobs,
            tuple(self._where(name) for name in workspace.pointers(step)),
            tuple(self._scalar(a) for decl, a in pairs if not isinstance(decl.type, TensorType)),
            self.memory.offsets.get(workspace.scratch(number)),
            self._turn(number),
            bound.keep,
        )

    def foreign(self, number: int, step: Step) -> Foreign:
        call = step.stage.call
        assert isinstance(call, ir.TorchCall)
        given = [
            self._view(a) if isinstance(a, str) and a in self.found.buffers else self._scalar(a)
            for a in step.stage.arguments
        ]
        function = torch_function(TORCH_FUNCTIONS[call.function], dict(call.keywords))
        result = self._view(step.stage.outputs[0])
        return Foreign(step.name, function, tuple(given), result, self._turn(number))

    def _scalar(self, argument: str | float | int) -> Scalar | float:
        if not isinstance(argument, str):
            return float(argument)
        scalars = [p.name for p in self.found.pipeline.params if not isinstance(p.type, TensorType)]
        return Scalar(scalars.index(argument))

    def _turn(self, number: int) -> Turn:
        turn = self.lanes.slots[number]
        start = (len(self.events),) if turn.forks else ()
        return Turn(turn.stream, (*start, *(self.events[w] for w in turn.waits)), self.events.get(number))

    def _where(self, name: str) -> Where:
        outside = (*self.found.params, *self.found.results)
        if name in outside:
            return outside.index(name)
        by_torch = sorted(workspace.held_by_torch(self.found))
        return Held(by_torch.index(name)) if name in by_torch else Inside(self.memory.offsets[name])

    def _view(self, name: str) -> View:
        buffer = self.found.buffers[name]
        return View(self._where(name), buffer.shape, dtype_of(buffer.type.elem))

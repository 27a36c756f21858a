"""Assigns streams to the steps of a sized pipeline, and offsets in the workspace to its intermediate
buffers."""

from __future__ import annotations

from collections.abc import Sequence

from ucutlass import ir
from ucutlass.ir import TensorType
from ucutlass.pipeline.memory import Allocation, WorkspaceLayout, assign_offsets
from ucutlass.pipeline.sized import Buffer, SizedPipeline, Step
from ucutlass.pipeline.streams import MOST_STREAMS, StreamAssignment, assign_streams


def streams_of(sized: SizedPipeline, max_streams: int = MOST_STREAMS) -> StreamAssignment:
    """Returns the streams of a pipeline's steps; torch functions run on the caller's stream."""
    return assign_streams([s.after for s in sized.steps], [s.by_torch for s in sized.steps], max_streams)


def pointers(step: Step) -> tuple[str, ...]:
    """Returns the buffers behind a kernel's pointer array: its tensor parameters, then its results."""
    call = step.stage.call
    if not isinstance(call, ir.Kernel):
        return (*(a for a in step.stage.arguments if isinstance(a, str)), *step.stage.outputs)
    inputs = [
        argument
        for decl, argument in zip(call.params, step.stage.arguments, strict=True)
        if isinstance(decl.type, TensorType) and isinstance(argument, str)
    ]
    return (*inputs, *step.stage.outputs)


def scratch(number: int) -> str:
    """Returns the name of the allocation that is a step's own workspace; no buffer can have this name."""
    return f"workspace of stage {number + 1}"


def held_by_torch(sized: SizedPipeline) -> frozenset[str]:
    """Returns the intermediate buffers that torch functions fill: torch allocates these, not the
    workspace."""
    filled = {name for step in sized.steps if step.by_torch for name in step.stage.outputs}
    return frozenset(filled & set(sized.intermediates))


def workspace_layout(
    sized: SizedPipeline, streams: StreamAssignment, workspaces: Sequence[int]
) -> WorkspaceLayout:
    """Returns the layout of the workspace; `workspaces` has the bytes that each step's kernel needs for
    itself."""
    torch_buffers = held_by_torch(sized)
    blocks = [
        _allocation(sized, sized.buffers[name]) for name in sized.intermediates if name not in torch_buffers
    ]
    blocks += [
        Allocation(scratch(i), size, i, frozenset({i})) for i, size in enumerate(workspaces) if size > 0
    ]
    return assign_offsets(blocks, streams.before)


def _allocation(sized: SizedPipeline, buffer: Buffer) -> Allocation:
    producer = sized.producer(buffer.name)
    assert producer is not None
    return Allocation(buffer.name, buffer.bytes, producer, frozenset({producer, *sized.readers(buffer.name)}))

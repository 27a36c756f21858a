"""Checks the offsets of segments before a launch. They lie on the device, so the check waits for the
stream."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ucutlass.ir import Pipeline, Program, TensorType
from ucutlass.runtime.arguments import ArgumentError
from ucutlass.runtime.inputs import roles_of
from ucutlass.runtime.launch_spec import LaunchSpec, SegmentOffsets, TensorSlot


class WrongOffsets(ArgumentError):
    """Offsets that do not start at 0, decrease, or do not end at the extent that they cut."""


def offsets_of(program: Program) -> tuple[SegmentOffsets, ...]:
    """Returns the parameters that `segment` reads, in a pipeline those that it hands to stages that do."""
    roles, order = roles_of(program), {name: i for i, name in enumerate(program.dims)}
    tensors = [p.name for p in program.params if isinstance(p.type, TensorType)]
    named = [(i, roles[name].offsets_of) for i, name in enumerate(tensors) if name in roles]
    parameters = tuple(SegmentOffsets(i, order[dim]) for i, dim in named if dim in order)
    if not parameters:
        what = "pipeline" if isinstance(program, Pipeline) else "kernel"
        raise ValueError(f"check_offsets: the {what} {program.name} has no parameter that segment(..) reads")
    return parameters


def check_offsets(spec: LaunchSpec, tensors: Sequence[Tensor], extents: Sequence[int]) -> None:
    """Raises WrongOffsets with the first place that is wrong. `tensors` are the call's, in their order."""
    labels = [p.name for p in spec.params if isinstance(p, TensorSlot)]
    for offsets in spec.offsets:
        label, tensor, extent = labels[offsets.tensor], tensors[offsets.tensor], extents[offsets.dim]
        if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
            raise WrongOffsets(
                f"{spec.name}: {label} cannot be looked at while a graph is captured; "
                "load the program without check_offsets for that"
            )
        values = tensor.tolist()
        if (wrong := first_wrong(values, extent)) is not None:
            at, why = wrong
            raise WrongOffsets(
                f"{spec.name}: {label}[{at}] is {values[at]}, {why}; offsets start at 0, do not decrease and "
                f"end at {spec.dims[offsets.dim][0]} = {extent}"
            )


def first_wrong(offsets: Sequence[int], extent: int) -> tuple[int, str] | None:
    """Returns the first place that is wrong, and why; None where none is."""
    if offsets[0] != 0:
        return 0, "the first"
    for i, (before, here) in enumerate(pairwise(offsets), 1):
        if here < before:
            return i, f"less than the {before} before it"
        if here > extent:
            return i, "past the end"
    return (len(offsets) - 1, "the last") if offsets[-1] != extent else None

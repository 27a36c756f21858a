"""Finds the stages that only copy a stored buffer into a result of the same type, so that they can be
elided."""

from __future__ import annotations

from collections.abc import Sequence

from ucutlass import ir


def elided_copies(
    stages: Sequence[ir.Stage],
    stored: Sequence[tuple[str, ir.TensorType]],
    results: Sequence[tuple[str, ir.TensorType]],
) -> dict[str, str]:
    """Returns, for each stored buffer that is itself a result, the name of that result; the stage that would
    copy it is dropped. A buffer that is returned twice is still copied into the second result, and a
    parameter is copied into each result that returns it."""
    result_types, stored_types = dict(results), dict(stored)
    elided: dict[str, str] = {}
    for stage in stages:
        name = _copied(stage)
        if (
            name in stored_types
            and name not in elided
            and result_types.get(stage.outputs[0]) == stored_types[name]
        ):
            elided[name] = stage.outputs[0]
    return elided


def _copied(stage: ir.Stage) -> str:
    """Returns the buffer that a stage copies into its only result, or "" where the stage computes
    anything."""
    match stage:
        case ir.Stage(call=ir.Kernel(params=(param,), results=(result,)), arguments=(str(name),)):
            if isinstance(result.value, ir.ParamValue) and param.type == result.type:
                return name
    return ""

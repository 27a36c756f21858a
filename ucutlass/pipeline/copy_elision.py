"""Stages that are none: copies of a stored buffer into a result of its very type."""

from __future__ import annotations

from collections.abc import Sequence

from ucutlass import ir


def elided_copies(
    stages: Sequence[ir.Stage],
    stored: Sequence[tuple[str, ir.TensorType]],
    results: Sequence[tuple[str, ir.TensorType]],
) -> dict[str, str]:
    """By stored buffer the result that it is: its stage falls away. A buffer that is returned twice is still
    copied into the second, and what is no stage's, a parameter, into each."""
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
    """The buffer whose copy a stage's only result is; "" where it computes anything."""
    match stage:
        case ir.Stage(call=ir.Kernel(params=(param,), results=(result,)), arguments=(str(name),)):
            if isinstance(result.value, ir.ParamValue) and param.type == result.type:
                return name
    return ""

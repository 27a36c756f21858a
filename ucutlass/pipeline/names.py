"""A stage's dimensions in the pipeline's names."""

from __future__ import annotations

from collections.abc import Mapping

from ucutlass.ir import TensorType
from ucutlass.pipeline.layout import Layout, Step
from ucutlass.pipeline.workspace import pointers


def outer_names(found: Layout, step: Step) -> Mapping[str, str]:
    """What the pipeline calls each dimension of a stage's kernel, as far as an axis says so: one that is
    split differently on the two sides says nothing."""
    kernel = step.kernel
    if kernel is None:
        return {}
    inner = [p.type for p in kernel.params if isinstance(p.type, TensorType)]
    inner += [r.type for r in kernel.results]
    known: dict[str, str] = {}
    for mine, name in zip(inner, pointers(step), strict=True):
        for here, there in zip(mine.axes, found.buffers[name].type.axes, strict=True):
            if len(here.dims) == len(there.dims):
                for dim, outer in zip(here.dims, there.dims, strict=True):
                    known.setdefault(dim, outer)
    return known

"""Says along which dimension the numbers of a large case repeat.

A suite has some twenty cases, of which most strain a program with other numbers. At the requested extents of a large
program a float64 reference takes seconds, so those numbers are drawn for a part of its batch and repeat: every element
is compared, and the reference is that of the part (`ucutlass.reference.repetition`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ucutlass.ir import Kernel, Pipeline, Program, TensorType, extents
from ucutlass.pipeline.sized import sized_pipeline
from ucutlass.reference.freeing import kernel_with_free_rows, separable
from ucutlass.reference.repetition import Period, sole_axis
from ucutlass.reference.slices import values
from ucutlass.runtime.distributions import Distribution
from ucutlass.runtime.inputs import residue_dims

LARGE_VALUES = 2**25
"""Values of a reference's nodes together, of all stages, from which on numbers repeat."""

PERIOD_VALUES = 2**23
"""Values of one period at least, about: each is other numbers."""

WHOLE: frozenset[Distribution] = frozenset({"integer", "normal"})
"""Of which no number repeats: a coordinate that is taken for another shows there."""


def period_for(program: Program, sizes: Mapping[str, int], distribution: Distribution) -> Period | None:
    """Returns the period of a case at all extents of a program; None where its numbers are all drawn."""
    if distribution in WHOLE:
        return None
    count = _values(program, sizes)
    dim = _batch(program)
    if dim is None or count < LARGE_VALUES or any(dim in d for d in residue_dims(program, distribution)):
        return None
    fewest = max(1, math.ceil(sizes[dim] * PERIOD_VALUES / count))
    length = 1 << (fewest - 1).bit_length()
    return Period(dim, length) if 2 * length <= sizes[dim] else None


def _values(program: Program, sizes: Mapping[str, int]) -> int:
    match program:
        case Kernel():
            return values(program, sizes)
        case Pipeline():
            layout = sized_pipeline(program, tuple(sizes[d] for d in program.dims))
            stages = ((s.kernel, s.sizes) for s in layout.steps if s.kernel is not None)
            return sum(values(k, dict(zip(k.dims, extents, strict=True))) for k, extents in stages)


def _batch(program: Program) -> str | None:
    """Returns the outermost dimension of the first result along which the arguments may repeat. Of a pipeline that
    is a guess: a stage whose arguments then do not repeat has the whole reference."""
    match program:
        case Kernel():
            freed, _ = kernel_with_free_rows(program)
            sliceable = separable(freed)
            return next((d for d in freed.results[0].type.dims if d in sliceable), None)
        case Pipeline():
            axes = program.results[0][1].axes
            dim = axes[0].dims[0] if axes and len(axes[0].dims) == 1 else None
            return dim if dim is not None and _alone(program, dim) else None


def _alone(program: Pipeline, dim: str) -> bool:
    """Returns whether a dimension is an axis of its own in every parameter that has it, and no extent follows from it."""
    types = [p.type for p in program.params if isinstance(p.type, TensorType)]
    having = [t for t in types if dim in t.dims]
    packed = any(t.elem.packed > 1 and t.axes[-1].dims == (dim,) for t in having)
    derived = any(dim in extents.names(e) for d, e in program.dims.items() if d != dim)
    return bool(having) and not packed and not derived and all(sole_axis(t, dim) is not None for t in having)

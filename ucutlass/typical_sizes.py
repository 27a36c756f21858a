"""Typical extents of a program whose caller gives none, by the role of each dimension: nobody runs a batch of
4096 heads of 4096 elements under a window of 4096, and no kernel serves much of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from math import prod

from ucutlass import inference, ir
from ucutlass.ir import Kernel, TensorType, Value
from ucutlass.ir.traversal import walk
from ucutlass.limits import Effort
from ucutlass.pipeline.names import stage_names
from ucutlass.shapes import ShapeError, complete, free_dims, holds

_TRIALS = (4096, 64, 8192, 128, 1024, 16, 1, 256, 32, 16384, 2, 4097)
"""Extents that are tried, most typical first, to find a shape for which a guard holds."""

_MOST_TRIALS = 3_000
"""Most trials for one program."""

MOST_STEPS = 100_000
"""Steps of arithmetic on extents for all the programs of a file; a step takes about a microsecond."""

_TRIAL = 20
"""Steps of a trial besides those of its conditions."""

_BATCH, _HEAD, _WINDOW, _SPATIAL = 16, 128, 3, 64
"""Of a name that both operands of a dot keep, that is summed for attention's scores, that a window has, and
along which one moves."""

_MOST_BYTES = 2**36
"""Most bytes of one tensor."""


def typical_sizes(
    program: ir.Program, guard: Value | None, effort: Effort | None = None
) -> tuple[int, ...] | None:
    """Returns typical extents, in the order of `program.dims`, for which a guard and the requirements hold;
    None where none of the tried ones do. `effort` counts what was spent on other programs of the file."""
    return TypicalSizes(program, effort or Effort()).sizes(guard)


class TypicalSizes:
    """The typical extents of one program, found once for all its guards."""

    def __init__(self, program: ir.Program, effort: Effort) -> None:
        self._program, self._effort = program, effort
        self._admitted_sizes: list[Mapping[str, int]] = []
        self._candidates = self._admitted()

    def sizes(self, guard: Value | None) -> tuple[int, ...] | None:
        """Returns what `typical_sizes` does."""
        weight = 0 if guard is None else _weight(guard)
        for sizes in itertools.chain(list(self._admitted_sizes), self._candidates):
            self._effort.spent += weight
            if guard is None or holds(guard, sizes):
                return tuple(sizes.values())
            if self._effort.spent > MOST_STEPS:
                break
        return None

    def _admitted(self) -> Iterator[Mapping[str, int]]:
        """Extents that meet the program's requirements, and whose tensors are of ordinary sizes."""
        program, names = self._program, free_dims(self._program)
        requires = program.requires if isinstance(program, Kernel) else ()
        weight = _TRIAL + len(program.dims) + sum(map(_weight, requires))
        for values in itertools.islice(_trials(names, typical_by_name(program)), _MOST_TRIALS):
            if self._effort.spent > MOST_STEPS:
                return
            self._effort.spent += weight
            try:
                sizes = complete(program, dict(zip(names, values, strict=True)))
            except ShapeError:
                continue
            named_sizes = dict(zip(program.dims, sizes, strict=True))
            if _fits(program, named_sizes):
                self._admitted_sizes.append(named_sizes)
                yield named_sizes


def _trials(names: Sequence[str], first: Mapping[str, int]) -> Iterator[tuple[int, ...]]:
    """Yields the typical extents of every dimension; then one dimension after the other, the last first, with
    other extents; then the same extent for all; then all combinations."""
    tried = [
        (first[name], *(size for size in _TRIALS if size != first[name])) if name in first else _TRIALS
        for name in names
    ]
    usual = tuple(sizes[0] for sizes in tried)
    yield usual
    for i in reversed(range(len(names))):
        yield from ((*usual[:i], size, *usual[i + 1 :]) for size in tried[i][1:])
    yield from ((size,) * len(names) for size in _TRIALS)
    yield from itertools.product(*tried)


def _weight(condition: Value) -> int:
    """Returns the steps of arithmetic in a condition."""
    return 1 + sum(map(_weight, ir.children(condition)))


def _fits(program: ir.Program, sizes: Mapping[str, int]) -> bool:
    types = [p.type for p in program.params if isinstance(p.type, TensorType)]
    if isinstance(program, ir.Pipeline):
        types += [type_ for _, type_ in (*program.buffers, *program.results)]
    else:
        types += [r.type for r in program.results]
    return all(
        prod(inference.length(axis, sizes) for axis in type_.axes) * type_.elem.bits <= 8 * _MOST_BYTES
        for type_ in types
    )


def typical_by_name(program: ir.Program) -> dict[str, int]:
    """Returns the typical extents of the dimensions whose role is known."""
    if isinstance(program, Kernel):
        return _of_kernel(program)
    sizes: dict[str, int] = {}
    for stage in program.stages:
        if isinstance(stage.call, Kernel):
            outer = stage_names(program, stage)
            sizes = {outer.get(d, d): size for d, size in _of_kernel(stage.call).items()} | sizes
    return sizes


def _of_kernel(kernel: Kernel) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for node in walk(*(result.value for result in kernel.results)):
        match node:
            case ir.Read(positions=positions):
                windows = [w for position in positions if (w := _window(position, kernel))]
                if windows:
                    moving = dict.fromkeys(node.dims, _SPATIAL)
                    sizes = moving | sizes | {d: size for w in windows for d, size in w.items()}
            case ir.Dot():
                shared = set(node.left.dims) & set(node.right.dims)
                sizes |= dict.fromkeys(shared - set(node.over), _BATCH)
                for score in _scores(node):
                    sizes |= dict.fromkeys((*score.over, *_values(node)), _HEAD)
    return sizes


def _window(position: ir.Position, kernel: Kernel) -> dict[str, int]:
    """Returns typical extents of `x[H = P + R]`, whose R is reduced."""
    terms = [dim for dim, _ in position.at.terms]
    if len(terms) < 2:
        return {}
    result_dims = {d for result in kernel.results for d in result.value.dims}
    return {position.dim: _SPATIAL} | {d: _SPATIAL if d in result_dims else _WINDOW for d in terms}


def _scores(dot: ir.Dot) -> Iterator[ir.Dot]:
    """Yields the dots under a softmax that is an operand of this dot."""
    for side in (dot.left, dot.right):
        for node in walk(side):
            if isinstance(node, ir.Softmax):
                yield from (inner for inner in walk(node) if isinstance(inner, ir.Dot))


def _values(dot: ir.Dot) -> set[str]:
    """Returns the dimensions that the weights' other operand adds: the width of the values."""
    sides = (dot.left, dot.right)
    return {
        dim
        for side, other in (sides, sides[::-1])
        if not any(isinstance(node, ir.Softmax) for node in walk(side))
        for dim in set(side.dims) - set(other.dims) - set(dot.over)
    }

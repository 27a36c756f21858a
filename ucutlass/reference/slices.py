"""Computes references of large tensors a slice at a time.

A reference takes several float64 arrays per value while it is computed, which for a tensor of 4 GB is more
than a GPU has. Where no element of the results depends on other coordinates along a dimension, such as a
batch dimension, a slice of the reference is the reference of slices of the arguments. Its bounds are not
wider: they hold with probability 1 - `radius.FAILURE` for each slice, where those of a whole hold for all of
it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

import torch
from torch import Tensor

from ucutlass import ir
from ucutlass.ir.elements import Element
from ucutlass.ir.traversal import walk
from ucutlass.reference.binding import shape_of
from ucutlass.reference.expect import Expected, expect, expect_in
from ucutlass.reference.freeing import free_along, kernel_with_free_rows, separable
from ucutlass.reference.interpreter import Argument, evaluate, open_call, sizes_of
from ucutlass.reference.liveness import steps, unrealised
from ucutlass.reference.repetition import Period, period_of, repeated_expected, sole_axis

VALUES = 2**28
"""Most values of a program's nodes together of which a reference is computed at once: less than 10 GiB with
temporaries. It is a constant rather than the free memory, so that a verdict is the same anywhere."""

REPEATING_VALUES = 2**24
"""Values of a program's nodes together, above which a reference looks whether the arguments repeat."""

BLOCK_ELEMENTS = 2**25
"""Elements of a result that are compared at once, about, where references repeat."""

SMALL_VALUES = 2**19
SMALL_PRODUCTS = 2**26
"""Most values of a program's nodes, elements of windows included, and most products that its dots sum, of a
reference that is computed on the CPU wherever the arguments are: some twenty milliseconds on a core. A GPU runs its
hundreds of small operations no faster, and the process waits for most of them."""

Sizes: TypeAlias = Mapping[str, int]
NOTHING: Sizes = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ResultShape:
    """A stored result; the name is "" for the single unnamed result."""

    name: str
    elem: Element
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceSlice:
    """A slice of each result from `start`, along that result's axis of `axes`; the whole where `axes` is
    empty. With `index` it has those coordinates instead."""

    expected: tuple[Expected, ...]
    axes: tuple[int, ...] = ()
    start: int = 0
    index: Tensor | None = None

    def slice_of(self, number: int, result: Tensor) -> Tensor:
        """Returns this slice of the result of that number."""
        if not self.axes:
            return result
        axis = self.axes[number]
        if self.index is not None:
            return result.index_select(axis, self.index.to(result.device))
        return result.narrow(axis, self.start, self.expected[number].reference.shape[axis])

    def place(self, number: int, at: tuple[int, ...]) -> tuple[int, ...]:
        """Returns where an element of a slice by `index` stands in the result of that number."""
        if self.index is None or not at:
            return at
        axis = self.axes[number]
        return (*at[:axis], int(self.index[at[axis]]), *at[axis + 1 :])

    def origin(self, number: int) -> tuple[int, ...]:
        """Returns where this slice begins in the result of that number."""
        rank = self.expected[number].reference.dim()
        return tuple(self.start if self.axes and i == self.axes[number] else 0 for i in range(rank))


@dataclass(frozen=True, slots=True, eq=False)
class ExpectedResults:
    """What a call must return: `slices` computes the slices anew each time, but keeps a `whole`, which is None
    where there are several. `sampled`: they are some coordinates alone. `full` computes the references with the bounds of
    which these have lower estimates; None where these are the bounds."""

    results: tuple[ResultShape, ...]
    slices: Callable[[], Iterable[ReferenceSlice]]
    whole: tuple[Expected, ...] | None = None
    sampled: bool = False
    full: Callable[[], ExpectedResults] | None = None


def whole_results(expected: Sequence[Expected]) -> ExpectedResults:
    """Returns references that are already computed as one slice."""
    slices = (ReferenceSlice(tuple(expected)),)
    return ExpectedResults(
        tuple(ResultShape(e.name, e.elem, tuple(e.reference.shape)) for e in expected),
        lambda: slices,
        tuple(expected),
    )


def least_results(
    program: ir.Program, arguments: Sequence[Argument], around: Sizes = NOTHING
) -> ExpectedResults:
    """Does as `expected_results` with lower estimates of the bounds, which cost a third where dots are long: what lies
    within these lies within the bounds, and of everything else `full` decides."""
    if not _has_sums(program):
        return expected_results(program, arguments, around)
    full = partial(expected_results, program, arguments, around)
    return replace(expected_results(program, arguments, around, least=True), full=full)


def _has_sums(program: ir.Program) -> bool:
    """Returns whether a program has dots whose bounds are estimated."""
    calls = [program] if isinstance(program, ir.Kernel) else [stage.call for stage in program.stages]
    roots = [result.value for call in calls if isinstance(call, ir.Kernel) for result in call.results]
    return any(isinstance(node, ir.Dot) and node.elem.kind == "float" for node in walk(*roots))


def expected_results(
    program: ir.Program,
    arguments: Sequence[Argument],
    around: Sizes = NOTHING,
    limit: int = VALUES,
    least: bool = False,
) -> ExpectedResults:
    """Returns the references for a call, in slices where the values together exceed `limit` and a dimension
    can be sliced. The arguments must not change afterwards. `around` is as in `binding.bind`, `least` as in
    `expect`. Raises as `evaluate` does; a pipeline's reference is one slice, on the arguments' device. That of a small kernel is
    on the CPU."""
    if not isinstance(program, ir.Kernel):
        return whole_results(_expected_of_pipeline(program, arguments, least))
    sizes = sizes_of(program, arguments, around)
    if is_small(program, sizes):
        arguments = [a.cpu() if isinstance(a, Tensor) else a for a in arguments]
    value_count = values(program, sizes)
    count = math.ceil(value_count / limit)
    freed, _ = kernel_with_free_rows(program)
    period = _period(freed, arguments, sizes) if value_count > REPEATING_VALUES else None
    sliced_dim = _widest(freed, sizes, count) if count > 1 else None
    if sliced_dim is None and period is None:
        return whole_results(expect_in(program, arguments, around, least))
    open_call(program, arguments, around)  # whatever is wrong with the arguments is said now
    results = tuple(ResultShape(r.name, r.type.elem, shape_of(r.type, sizes)) for r in program.results)
    if period is not None and values(program, {**sizes, period.dim: period.length}) <= limit:
        return ExpectedResults(
            results, partial(_repeated_slices, freed, arguments, around, period, sizes, least)
        )
    if sliced_dim is None:
        return whole_results(expect_in(program, arguments, around, least))
    return ExpectedResults(
        results, lambda: _slices(freed, arguments, around, sliced_dim, sizes[sliced_dim], count, least)
    )


def _expected_of_pipeline(
    pipeline: ir.Pipeline, arguments: Sequence[Argument], least: bool
) -> tuple[Expected, ...]:
    """Returns the references of a pipeline's call, from one period of arguments that repeat along the outermost
    dimension of the first result. Raises as `expect`."""
    outermost = next((axis.dims for _, kind in pipeline.results[:1] for axis in kind.axes[:1]), ())
    freed = free_along(pipeline, *outermost) if len(outermost) == 1 else None
    if freed is None:
        return expect(pipeline, arguments, least)
    (dim,) = outermost
    extent = sizes_of(pipeline, arguments)[dim]
    period = period_of(freed, arguments, dim, extent)
    if period is None:
        return expect(pipeline, arguments, least)
    first = [_sliced(a, p.type, dim, 0, period.length) for a, p in zip(arguments, freed.params, strict=True)]
    axes = [sole_axis(kind, dim) for _, kind in freed.results]
    parts = zip(expect(freed, first, least), axes, strict=True)
    return tuple(repeated_expected(e, axis, extent) for e, axis in parts if axis is not None)


@dataclass(frozen=True, slots=True)
class RowSample:
    """Says that a result is held against the reference at `rows` coordinates of one of its dimensions, drawn
    anew by `seed`, and at EDGE_ROWS at either end.

    Of a kernel that is wrong at w of a dimension's n coordinates, none of k that are drawn without replacement
    is wrong with probability C(n - w, k) / C(n, k), at most (1 - w / n) ** k: with k = 64, 4 % where one
    coordinate in twenty is wrong, 10**-19 where every second is. Within a coordinate all elements are compared.
    A kernel that is right is called right as often as by the whole reference, of which this is a part."""

    rows: int
    seed: int


EDGE_ROWS = 8
"""Coordinates at either end of a dimension that belong to every sample: partial tiles end there."""


def sampled_results(
    kernel: ir.Kernel, arguments: Sequence[Argument], sample: RowSample, around: Sizes = NOTHING
) -> ExpectedResults | None:
    """Returns the references of a kernel's call at sampled coordinates of the longest dimension along which
    every result depends on the arguments at the same coordinate alone; None where there is none, or sampling
    would leave out less than half of it. Raises as `expected_results`."""
    sizes = sizes_of(kernel, arguments, around)
    freed, _ = kernel_with_free_rows(kernel)
    dim = max(separable(freed), key=lambda d: (sizes[d], d), default=None)
    if dim is None or sizes[dim] < 2 * (sample.rows + 2 * EDGE_ROWS):
        return None
    extent = sizes[dim]
    sampled_rows = random.Random(sample.seed).sample(range(extent), sample.rows)
    edges = (*range(EDGE_ROWS), *range(extent - EDGE_ROWS, extent))
    coordinates = torch.tensor(sorted({*sampled_rows, *edges}))
    selected = [
        a
        if not isinstance(a, Tensor) or (axis := sole_axis(p.type, dim)) is None
        else a.index_select(axis, coordinates.to(a.device))
        for a, p in zip(arguments, kernel.params, strict=True)
    ]
    inner = {name: n for name, n in around.items() if name != dim}
    axes = tuple(a for r in kernel.results if (a := sole_axis(r.type, dim)) is not None)
    slices = (ReferenceSlice(expect_in(freed, selected, inner), axes, index=coordinates),)
    results = tuple(ResultShape(r.name, r.type.elem, shape_of(r.type, sizes)) for r in kernel.results)
    return ExpectedResults(results, lambda: slices, sampled=True)


@dataclass(frozen=True, slots=True, eq=False)
class EvaluatedSlice:
    """Results of a program from coordinate `start` of a dimension on, along each result's axis of `axes`; the whole
    where `axes` is empty."""

    results: tuple[Tensor, ...]
    axes: tuple[int, ...] = ()
    start: int = 0

    def slice_of(self, number: int, result: Tensor) -> Tensor:
        """Returns this slice of the result of that number."""
        if not self.axes:
            return result
        return result.narrow(self.axes[number], self.start, self.results[number].shape[self.axes[number]])

    @property
    def words(self) -> str:
        """Returns where the slice begins, for a message; "" for the whole."""
        return f" in the slice from {self.start} of axis {self.axes[0]}" if self.axes else ""


def evaluated_slices(
    program: ir.Program, arguments: Sequence[Argument], limit: int = VALUES
) -> Iterator[EvaluatedSlice]:
    """Yields the results of a call, in slices where the program's values together exceed `limit` and a dimension can
    be sliced. Raises as `evaluate` does."""
    sliced_dim, count = None, 1
    if isinstance(program, ir.Kernel):
        sizes = sizes_of(program, arguments)
        count = math.ceil(values(program, sizes) / limit)
        freed, _ = kernel_with_free_rows(program)
        sliced_dim = _widest(freed, sizes, count) if count > 1 else None
    if sliced_dim is None:
        yield EvaluatedSlice(tuple(evaluate(program, arguments)))
        return
    extent, step = sizes[sliced_dim], math.ceil(sizes[sliced_dim] / min(count, sizes[sliced_dim]))
    axes = tuple(a for r in freed.results if (a := sole_axis(r.type, sliced_dim)) is not None)
    for start in range(0, extent, step):
        sliced_arguments = [
            _sliced(a, p.type, sliced_dim, start, min(step, extent - start))
            for a, p in zip(arguments, freed.params, strict=True)
        ]
        yield EvaluatedSlice(tuple(evaluate(freed, sliced_arguments)), axes, start)


def _period(kernel: ir.Kernel, arguments: Sequence[Argument], sizes: Sizes) -> Period | None:
    """Returns the shortest part of the arguments that repeats along a dimension which can be sliced."""
    sliceable = separable(kernel)
    order = [d for d in kernel.results[0].type.dims if d in sliceable]
    periods = (period_of(kernel, arguments, d, sizes[d]) for d in order)
    return min((p for p in periods if p is not None), key=lambda p: p.length / sizes[p.dim], default=None)


def _repeated_slices(
    kernel: ir.Kernel, arguments: Sequence[Argument], around: Sizes, period: Period, sizes: Sizes, least: bool
) -> Iterator[ReferenceSlice]:
    """Yields slices of several periods, all but the last with one and the same reference."""
    dim, extent = period.dim, sizes[period.dim]
    axes = tuple(a for r in kernel.results if (a := sole_axis(r.type, dim)) is not None)
    first = [_sliced(a, p.type, dim, 0, period.length) for a, p in zip(arguments, kernel.params, strict=True)]
    inner = {name: n for name, n in around.items() if name != dim}
    expected = expect_in(kernel, first, inner, least)
    largest = max(e.reference.numel() for e in expected)
    length = min(extent, period.length * max(1, BLOCK_ELEMENTS // max(1, largest)))
    block = _of_length(expected, axes, length)
    for start in range(0, extent, length):
        rest = min(length, extent - start)
        yield ReferenceSlice(block if rest == length else _of_length(expected, axes, rest), axes, start)


def _of_length(expected: Sequence[Expected], axes: Sequence[int], length: int) -> tuple[Expected, ...]:
    return tuple(repeated_expected(e, axis, length) for e, axis in zip(expected, axes, strict=True))


def _slices(
    kernel: ir.Kernel,
    arguments: Sequence[Argument],
    around: Sizes,
    dim: str,
    extent: int,
    count: int,
    least: bool,
) -> Iterator[ReferenceSlice]:
    step = math.ceil(extent / min(count, extent))
    axes = tuple(a for r in kernel.results if (a := sole_axis(r.type, dim)) is not None)
    for start in range(0, extent, step):
        length = min(step, extent - start)
        sliced_arguments = [
            _sliced(a, p.type, dim, start, length) for a, p in zip(arguments, kernel.params, strict=True)
        ]
        inner = {name: n for name, n in around.items() if name != dim}
        yield ReferenceSlice(expect_in(kernel, sliced_arguments, inner, least), axes, start)


def _sliced(argument: Argument, kind: ir.ParamType, dim: str, start: int, length: int) -> Argument:
    axis = sole_axis(kind, dim)
    if axis is None or not isinstance(argument, Tensor):
        return argument
    return argument.narrow(axis, start, length)


# --- which dimension ------------------------------------------------------------------------


def values(kernel: ir.Kernel, sizes: Sizes) -> int:
    """Returns the number of elements of all values that a reference materialises."""
    computed = steps([r.value for r in kernel.results])
    return sum(math.prod(sizes[d] for d in node.dims) for node, _ in computed)


def is_small(kernel: ir.Kernel, sizes: Sizes) -> bool:
    """Returns whether a reference takes a core no longer than a GPU. A window that a dot reads is gathered element by
    element, which takes a core as long as ten values."""
    windows = [
        operand
        for node, _ in steps([r.value for r in kernel.results])
        if isinstance(node, ir.Dot)
        for operand in (node.left, node.right)
        if unrealised(operand) and not isinstance(operand, ir.Gather)
    ]
    gathered = sum(math.prod(sizes[d] for d in operand.dims) for operand in windows)
    return values(kernel, sizes) + gathered <= SMALL_VALUES and products(kernel, sizes) <= SMALL_PRODUCTS


def products(kernel: ir.Kernel, sizes: Sizes) -> int:
    """Returns the number of products that the kernel's dots sum."""
    computed = steps([r.value for r in kernel.results])
    dots = [node for node, _ in computed if isinstance(node, ir.Dot)]
    return sum(math.prod(sizes[d] for d in {*node.dims, *node.over}) for node in dots)


def _widest(kernel: ir.Kernel, sizes: Sizes, count: int) -> str | None:
    """Returns the outermost of the dimensions that can be sliced into this many slices, or else the
    longest."""
    sliceable = separable(kernel)
    order = [d for d in kernel.results[0].type.dims if d in sliceable]
    enough = [d for d in order if sizes[d] >= count]
    return enough[0] if enough else max(order, key=sizes.__getitem__, default=None)

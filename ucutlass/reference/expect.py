"""Computes what a run of a program must return: the reference and, element by element, how far from it an
honest kernel may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ucutlass.ir import Dot, Kernel, Pipeline, Program, Stage, TensorType, TorchCall, Value
from ucutlass.ir.elements import F64, Element
from ucutlass.ir.traversal import walk
from ucutlass.reference.contract import contract
from ucutlass.reference.error_bounds import Inputs, analyse, cast_radius
from ucutlass.reference.errors import UnsupportedError
from ucutlass.reference.fast_math import early_rounded, lenient
from ucutlass.reference.host_numbers import extremes_of
from ucutlass.reference.interpreter import (
    Argument,
    check_arguments,
    device_of,
    open_call,
    run_stage,
    sizes_of,
    stage_arguments,
    torch_results,
)
from ucutlass.reference.interpreter import evaluate_values as values
from ucutlass.reference.named_tensor import Named, from_memory, to_memory
from ucutlass.reference.radius import Bounded, bounded, finite
from ucutlass.reference.rounding import FORMATS, cast, outer_dtype
from ucutlass.spans import span
from ucutlass.torch_functions import RECURRENCES


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """One result in its memory layout. `reference` is rounded to `elem` and kept in float64, int64 or bool;
    `bound` is float64, 0 where the device must return exactly the reference.

    `overflows` marks elements that an honest kernel may find on either side of the end of `elem`'s range:
    there an infinity counts as the largest finite number, in the bound too. `free` marks elements that may
    hold anything: see `_zero_times_nonfinite`. Either is None where no element is marked. Where `bound` is
    infinite an element may hold anything too (`ucutlass.reference.radius.Bounded`).
    """

    name: str
    elem: Element
    reference: Tensor
    bound: Tensor
    overflows: Tensor | None = None
    free: Tensor | None = None


@span("bounds")
def expect(program: Program, arguments: Sequence[Argument], least: bool = False) -> tuple[Expected, ...]:
    """Returns the program's results and their bounds, lower estimates of these with `least` (`error_bounds.Inputs`).
    Raises as `evaluate` does; most torch functions of an inexact buffer have no bound and raise UnsupportedError."""
    match program:
        case Kernel():
            return expect_in(program, arguments, {}, least)
        case Pipeline():
            return _pipeline(program, arguments, least)


@span("bounds")
def expect_in(
    kernel: Kernel, arguments: Sequence[Argument], around: Mapping[str, int], least: bool = False
) -> tuple[Expected, ...]:
    """Returns what a kernel must store for exactly these arguments; `around` is as in `binding.bind`, `least` as in
    `expect`. Raises as `evaluate` does."""
    return _kernel(kernel, arguments, [None] * len(arguments), around, least)


def _kernel(
    kernel: Kernel,
    arguments: Sequence[Argument],
    radii: Sequence[Tensor | None],
    around: Mapping[str, int],
    least: bool,
    device: torch.device | None = None,
) -> tuple[Expected, ...]:
    call = open_call(kernel, arguments, around, device)
    param_radii = [
        None if r is None or not isinstance(p.type, TensorType) else _radius_in(r, p.type, call.sizes)
        for r, p in zip(radii, kernel.params, strict=True)
    ]
    roots = [r.value for r in kernel.results]
    lenient_values = lenient(roots, [r.type.elem for r in kernel.results])
    weights = early_rounded(roots)
    inputs = Inputs(call, param_radii, lenient_values, weights, least)
    bounded_results = analyse(roots, inputs)
    free = _zero_times_nonfinite(roots, weights, inputs)
    expected = []
    for bounded_result, result in zip(bounded_results, kernel.results, strict=True):
        stored = _store(bounded_result, result.type.elem)
        bound = stored.radius
        if bound is None:
            bound = torch.zeros_like(stored.value.data, dtype=torch.float64)
        overflows = _overflows(bounded_result, result.type.elem)
        if overflows is not None:
            bound = torch.where(overflows, _to_the_end(bounded_result, result.type.elem), bound)
        expected.append(
            Expected(
                result.name,
                result.type.elem,
                to_memory(stored.value, result.type, call.sizes),
                to_memory(stored.value.like(bound), result.type, call.sizes),
                None
                if overflows is None
                else to_memory(stored.value.like(overflows), result.type, call.sizes),
                None
                if free is None
                else to_memory(stored.value.like(free.spread(stored.value.dims)), result.type, call.sizes),
            )
        )
    return tuple(expected)


def _zero_times_nonfinite(roots: Sequence[Value], weights: frozenset[Value], inputs: Inputs) -> Named | None:
    """Returns, over the dot's dimensions, where attention's sum holds a NaN or an infinity times a weight of
    0: a kernel that skips keys with a score of -inf does not see it, one that multiplies returns NaN. Returns
    None where there is no such element."""
    for node in walk(*roots) if weights else ():
        if not isinstance(node, Dot) or not weights & {node.left, node.right}:
            continue
        weight, value = (node.left, node.right) if node.left in weights else (node.right, node.left)
        (v,) = values([value], inputs.call)
        if not finite(v.data):
            (p,) = values([weight], inputs.call)
            zero, nonfinite = ((p.data == 0).to(torch.float64), (~v.data.isfinite()).to(torch.float64))
            return Named(contract(p.like(zero), v.like(nonfinite), node.over, node.dims) > 0, node.dims)
    return None


def _overflows(part: Bounded, elem: Element) -> Tensor | None:
    """Returns where the interval has one end in `elem`'s range and one beyond it; None where it nowhere
    does."""
    if part.radius is None or elem.name not in FORMATS:
        return None
    x, form = part.value.data.to(torch.float64), FORMATS[elem.name]
    of_value, (_, most) = extremes_of(x, part.radius)
    if form.saturates or max(map(abs, of_value)) + most < form.largest:
        return None
    inside = [cast(end, elem).isfinite() for end in (x - part.radius, x + part.radius)]
    straddles = x.isfinite() & part.radius.isfinite() & (inside[0] != inside[1])
    return straddles if bool(straddles.any()) else None


def _to_the_end(part: Bounded, elem: Element) -> Tensor:
    """Returns the distance to the farther rounded end of the interval, an infinity counting as the largest
    number."""
    x, largest = part.value.data.to(torch.float64), FORMATS[elem.name].largest
    assert part.radius is not None
    points = (x - part.radius, x, x + part.radius)
    low, centre, high = (cast(v, elem).clamp(-largest, largest) for v in points)
    return torch.maximum((low - centre).abs(), (high - centre).abs())


def _radius_in(radius: Tensor, kind: TensorType, sizes: Mapping[str, int]) -> Tensor:
    return from_memory(radius, TensorType(F64, kind.axes), sizes).data


def _store(part: Bounded, elem: Element) -> Bounded:
    """Rounds to memory as a cast does."""
    centre = cast(part.value.data, elem)
    return bounded(part.value.like(centre), cast_radius(part, centre, elem))


def _pipeline(pipeline: Pipeline, arguments: Sequence[Argument], least: bool) -> tuple[Expected, ...]:
    check_arguments(pipeline, arguments)
    sizes = sizes_of(pipeline, arguments)
    buffers: dict[str, Argument] = {p.name: a for p, a in zip(pipeline.params, arguments, strict=True)}
    expectations: dict[str, Expected] = {}
    device = device_of(arguments)
    for stage in pipeline.stages:
        stored = _stage(stage, buffers, expectations, sizes, least, device)
        for name, expected in zip(stage.outputs, stored, strict=True):
            buffers[name] = expected.reference.to(outer_dtype(expected.elem))
            expectations[name] = expected
    kinds = dict(pipeline.results)
    return tuple(
        expectations[name] if name in expectations else exact_result(name, kinds[name], buffers[name])
        for name, _ in pipeline.results
    )


def _stage(
    stage: Stage,
    buffers: Mapping[str, Argument],
    expectations: Mapping[str, Expected],
    sizes: Mapping[str, int],
    least: bool,
    device: torch.device,
) -> Sequence[Expected]:
    arguments = stage_arguments(stage, buffers)
    inputs = [expectations.get(a) if isinstance(a, str) else None for a in stage.arguments]
    radii = [None if k is None else _radius_of(k) for k in inputs]
    if isinstance(stage.call, Kernel):
        return _kernel(stage.call, arguments, radii, sizes, least, device)
    results = run_stage(stage, arguments, sizes)
    if stage.call.function in RECURRENCES and all(r is None for r in radii):
        return _recurrence(stage.call, stage.outputs, arguments, results)
    exact = list(map(exact_result, stage.outputs, stage.call.results, results))
    if all(r is None for r in radii):
        return exact
    buffer_elem = inputs[0].elem if inputs and inputs[0] is not None else None
    return [_through_torch(stage.call, radii, stored, buffer_elem is stored.elem) for stored in exact]


def _radius_of(stored: Expected) -> Tensor | None:
    """Returns the radius of what a launch stored for a later one: infinite where an infinity may stand for a
    number, or where the element may hold anything."""
    bound = stored.bound
    for mask in (stored.overflows, stored.free):
        bound = bound if mask is None else bound.masked_fill(mask, torch.inf)
    return bound if bool((bound != 0).any()) else None


NEIGHBOURS = 4
TIMES_TORCH = 3
"""How far a recurrence may be from the exact one, in the largest error of torch's own evaluations, on the arguments and on
NEIGHBOURS of them: chosen, not derived. A kernel is another order of the same sums. Evaluations of torch 2.13 on a CPU in 16
other orders, of all cells at four extents (16 to 256 units, 8 to 64 steps, in f32), were at most 1.3 times as far; where
gates lie at their thresholds 1.0 times, and 5 times as far as torch's evaluation on the arguments alone."""


def _recurrence(
    call: TorchCall, names: Sequence[str], arguments: Sequence[Argument], results: Sequence[Tensor]
) -> list[Expected]:
    """Returns the results of recurrent layers in float64. A bound of the worst case grows with every step until it says
    nothing, so that errors of torch in the element type stand for it: of `results`, and on arguments that differ in
    the last place, which finds what the layers magnify."""
    wide = [a.to(torch.float64) if isinstance(a, Tensor) else a for a in arguments]
    exact = torch_results(call, wide)
    evaluations = [results]
    for seed in range(NEIGHBOURS):
        near = [_neighbour(a, seed + n) if isinstance(a, Tensor) else a for n, a in enumerate(arguments)]
        evaluations.append(torch_results(call, near))
    return list(map(_near, names, call.results, exact, zip(*evaluations, strict=True)))


_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def _neighbour(tensor: Tensor, seed: int) -> Tensor:
    """Returns numbers that are those of a tensor or next to them, as chance has it."""
    generator = torch.Generator(tensor.device).manual_seed(seed)
    bits = tensor.view(_BITS[tensor.element_size()])
    steps = torch.randint(-1, 2, bits.shape, generator=generator, dtype=bits.dtype, device=bits.device)
    moved = (bits + steps).view(tensor.dtype)
    return torch.where(tensor.isfinite() & moved.isfinite(), moved, tensor)


def _near(name: str, type_: TensorType, exact: Tensor, evaluations: Sequence[Tensor]) -> Expected:
    rounding = 2.0 ** -FORMATS[type_.elem.name].precision * exact.abs()
    largest = max(_largest(rounding), *(_largest((e.to(torch.float64) - exact).abs()) for e in evaluations))
    stored = exact_result(name, type_, exact)
    return replace(stored, bound=torch.full_like(exact, TIMES_TORCH * largest))


def _largest(errors: Tensor) -> float:
    return float(errors.nan_to_num(0.0, 0.0, 0.0).max()) if errors.numel() else 0.0


MOVES = frozenset({"diag", "flip", "roll", "tril", "triu"})
"""Torch functions that move elements or replace them by 0; bounds move with the elements."""


def _through_torch(
    call: TorchCall, radii: Sequence[Tensor | None], exact: Expected, same_elem: bool
) -> Expected:
    """Returns the result of a torch function of one inexact buffer; `same_elem` says that the result has that
    buffer's element type. No element of `relu` or `sort` moves farther than the farthest of those that it may
    come from."""
    (radius,) = radii if len(radii) == 1 else (None,)
    bound: Tensor | None = None
    if radius is None or not same_elem:
        pass
    elif call.function in MOVES:
        (bound,) = torch_results(call, [radius])
    elif call.function == "relu":
        bound = radius
    elif call.function == "sort":
        dim = int(dict(call.keywords).get("dim", -1))
        bound = radius.amax(dim, keepdim=True).expand_as(radius)
    if bound is None:
        raise UnsupportedError(
            f"torch.{call.function} takes a buffer that the pipeline computed inexactly: no bound is known "
            f"for it, but for {', '.join(sorted({*MOVES, 'relu', 'sort'}))}; check the stages before and "
            "after it apart"
        )
    return replace(exact, bound=bound.to(torch.float64))


def exact_result(name: str, kind: TensorType, value: Argument) -> Expected:
    """Returns a tensor of a type as a result that must match bit by bit."""
    assert isinstance(value, Tensor)
    exact = cast(value, kind.elem)
    return Expected(name, kind.elem, exact, torch.zeros_like(exact, dtype=torch.float64))

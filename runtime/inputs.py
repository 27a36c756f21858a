"""Draws fresh random arguments for a program, by seed and distribution.

Coordinates of gathers, offsets of segments and scalars get valid values of their own kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ucutlass.ir import (
    Apply,
    Cast,
    Dims,
    Dot,
    Gather,
    Kernel,
    ParamValue,
    Pipeline,
    Program,
    Read,
    Reduce,
    ScalarType,
    Scan,
    Segment,
    Softmax,
    TensorType,
    Value,
)
from ucutlass.ir.elements import F16, Element
from ucutlass.ir.traversal import walk
from ucutlass.pipeline.names import stage_names
from ucutlass.reference.accumulation import ACCUMULATORS
from ucutlass.reference.binding import shape_of
from ucutlass.reference.interpreter import Argument
from ucutlass.reference.packing import packed
from ucutlass.reference.repetition import Period, repeated, sole_axis
from ucutlass.reference.rounding import outer_dtype, store
from ucutlass.runtime.distributions import DISTRIBUTIONS, ELEMENTWISE, EXACT, FAN_IN, MEANINGS, Distribution
from ucutlass.runtime.draws import floats, integers, uniform_integers
from ucutlass.runtime.fan_in import fan_in, recurrent_fan_in
from ucutlass.shapes import complete
from ucutlass.spans import span

__all__ = ["DISTRIBUTIONS", "MEANINGS", "ArgumentRole", "Distribution", "generate", "roles_of"]


@dataclass(frozen=True, slots=True)
class ArgumentRole:
    """What the program does with a parameter. `below`: its values are coordinates along that
    dimension; `offsets_of`: it cuts that dimension into segments; `exact`: it meets a dot whose
    accumulator adds integers up to this exactly; `over`: that dot's summed dimensions; `right`:
    it is that dot's right operand; `factors_along`: its elements along these are multiplied with one another;
    `positive`: a function of it is defined for positive numbers alone."""

    below: str | None = None
    offsets_of: str | None = None
    exact: float = math.inf
    over: tuple[str, ...] = ()
    right: bool = False
    factors_along: tuple[str, ...] = ()
    positive: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Draw:
    """One call of `generate`: `starts` has the first coordinate that may be non-zero, along the
    dimensions whose front is to be 0; `scale` multiplies one-sided numbers, `weights` those of parameters by
    name."""

    sizes: Mapping[str, int]
    distribution: Distribution
    random: torch.Generator
    starts: Mapping[str, int]
    scale: float
    weights: Mapping[str, float]


@span("inputs")
def generate(
    program: Program,
    sizes: Mapping[str, int],
    distribution: Distribution = "normal",
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    scalars: Mapping[str, float] | None = None,
    tile: Mapping[str, int] | None = None,
    generator_device: torch.device | str | None = None,
    period: Period | None = None,
) -> list[Argument]:
    """Returns one argument per parameter. `sizes` gives the free dimensions by name; scalars are 0.5 or 1
    unless `scalars` names them. `tile` gives the extents of a kernel's tile by dimension, which the
    residue distributions fill the last of; 1 where it does not name one. A pipeline's weights are divided by
    the root of their `fan_in` in the distributions of FAN_IN, and those of recurrent layers by a power of two in the
    whole numbers of EXACT. With a `period` of one of the program's dimensions, whose
    extent no other is derived from, numbers are drawn for so many of its coordinates and repeat.

    The same seed gives the same numbers on every device, but more than LARGE are drawn where they are used,
    unless `generator_device` says where.

    Raises ShapeError where `sizes` does not fit the program.
    """
    full = dict(zip(program.dims, complete(program, sizes), strict=True))
    roles = roles_of(program)
    draw = _Draw(
        full if period is None else {**full, period.dim: period.length},
        distribution,
        torch.Generator(generator_device or _where(program, full, device)).manual_seed(seed),
        _starts(program, full, distribution, tile or {}),
        _headroom(program, full),
        _weights(program, full, distribution),
    )
    dots = any(role.over for role in roles.values())
    out: list[Argument] = []
    for decl in program.params:
        match decl.type:
            case ScalarType(elem):
                number = (scalars or {}).get(decl.name, 0.5 if elem.kind == "float" else 1)
                out.append({"float": float, "int": int, "bool": bool}[elem.kind](number))
            case TensorType():
                role = roles.get(decl.name, ArgumentRole())
                tensor = _tensor(decl.type, role, draw, draw.weights.get(decl.name, 1.0))
                if role.positive and distribution in _NEAR_ZERO:
                    tensor = _positive(tensor)
                if role.over or not dots:
                    tensor = _residue(tensor, decl.type, draw)
                if decl.type.elem.packed > 1:
                    tensor = packed(tensor)
                axis = None if period is None else sole_axis(decl.type, period.dim)
                if period is not None and axis is not None:
                    tensor = repeated(tensor, axis, full[period.dim])
                out.append(tensor.to(device))
    return out


_WHOLE_SPREAD = math.sqrt(20 / 3)
"""The standard deviation of whole numbers from -4 to 4."""


def _weights(program: Program, sizes: Mapping[str, int], distribution: Distribution) -> dict[str, float]:
    """Returns what a pipeline's weights are multiplied by, by name. Whole numbers stay what nothing rounds; recurrent
    layers round their states all the same, and of weights as large no two evaluations agree after some steps."""
    if distribution in EXACT:
        lengths = recurrent_fan_in(program, sizes)
        return {
            name: 2.0 ** -math.ceil(math.log2(_WHOLE_SPREAD * math.sqrt(n))) for name, n in lengths.items()
        }
    lengths = fan_in(program, sizes) if distribution in FAN_IN else {}
    return {name: 1 / math.sqrt(n) for name, n in lengths.items()}


LARGE = 2**22
"""A core draws some 50 million numbers in a second, and a suite has dozens of cases. CUDA's generator gives
the same on every GPU."""


SLAB = 2**26
"""Elements that are drawn at a time."""


def _where(program: Program, sizes: Mapping[str, int], device: torch.device | str) -> torch.device | str:
    kinds = (decl.type for decl in program.params)
    count = sum(math.prod(shape_of(kind, sizes)) for kind in kinds if isinstance(kind, TensorType))
    return device if count > LARGE else "cpu"


# --- roles ---------------------------------------------------------------------------


def roles_of(program: Program) -> dict[str, ArgumentRole]:
    """Returns the roles by parameter name; parameters without one are plain numbers."""
    match program:
        case Kernel():
            return _kernel_roles(program)
        case Pipeline():
            roles: dict[str, ArgumentRole] = {}
            for stage in program.stages:
                if isinstance(stage.call, Kernel):
                    names = stage_names(program, stage)
                    inner = {n: _renamed(role, names) for n, role in _kernel_roles(stage.call).items()}
                    pairs = zip(stage.call.params, stage.arguments, strict=True)
                    roles |= {a: inner[p.name] for p, a in pairs if isinstance(a, str) and p.name in inner}
            return roles


def _renamed(role: ArgumentRole, names: Mapping[str, str]) -> ArgumentRole:
    """Returns a stage's role in the pipeline's names; a dimension without one there says nothing."""
    return replace(
        role,
        below=None if role.below is None else names.get(role.below),
        offsets_of=None if role.offsets_of is None else names.get(role.offsets_of),
        over=tuple(names[d] for d in role.over if d in names),
        factors_along=tuple(names[d] for d in role.factors_along if d in names),
    )


def _kernel_roles(kernel: Kernel) -> dict[str, ArgumentRole]:
    roles: dict[str, ArgumentRole] = {}

    def mark(value: Value, role: ArgumentRole) -> None:
        while isinstance(value, Cast | Read | Gather) or (
            isinstance(value, Reduce) and value.op in ("max", "min")
        ):
            value = value.value
        if isinstance(value, ParamValue):
            roles[kernel.params[value.index].name] = role

    for node in nodes_of(kernel):
        match node:
            case Gather(dim=dim, ids=ids):
                for index in _indices(ids):
                    mark(index, ArgumentRole(below=dim))
            case Segment(dim=dim, offsets=offsets):
                mark(offsets, ArgumentRole(offsets_of=dim))
            case Dot(compute_type=compute_type, accumulate=accumulate, over=over, left=left, right=right):
                accumulator = ACCUMULATORS.get((compute_type.name, accumulate))
                limit = accumulator.exact if accumulator else math.inf
                mark(right, ArgumentRole(exact=limit, over=over, right=True))
                mark(left, ArgumentRole(exact=limit, over=over))
            case Scan("cumprod", along, value):
                mark(value, ArgumentRole(factors_along=(along,)))
            case Reduce("prod", over, value):
                mark(value, ArgumentRole(factors_along=over))
    for node in nodes_of(kernel):
        match node:
            case Apply(function="log" | "sqrt" | "rsqrt", args=(value,)):
                while isinstance(value, Cast | Read):
                    value = value.value
                if isinstance(value, ParamValue):
                    name = kernel.params[value.index].name
                    roles[name] = replace(roles.get(name, ArgumentRole()), positive=True)
    return roles


def _indices(ids: Value) -> Iterator[Value]:
    """Yields what a gather may read at: both choices of a `where` that masks some of it."""
    match ids:
        case Cast(value=value):
            yield from _indices(value)
        case Apply("where", args=(_, chosen, other)):
            yield from _indices(chosen)
            yield from _indices(other)
        case _:
            yield ids


def nodes_of(program: Program) -> list[Value]:
    """Returns every value of the program once."""
    kernels = [program] if isinstance(program, Kernel) else [s.call for s in program.stages]
    return list(walk(*(r.value for k in kernels if isinstance(k, Kernel) for r in k.results)))


def result_types(program: Program) -> tuple[TensorType, ...]:
    """Returns what each result is stored as, in order."""
    match program:
        case Kernel():
            return tuple(r.type for r in program.results)
        case Pipeline():
            return tuple(kind for _, kind in program.results)


def residue_dims(program: Program, distribution: Distribution) -> tuple[Dims, ...]:
    """Returns groups of dimensions whose last tile alone a residue distribution fills; empty for others."""
    if distribution == "residue":
        return summed_dims(program)
    shapes = [kind.dims for kind in result_types(program) if kind.dims]
    match distribution:
        case "residue_rows":
            return tuple(dict.fromkeys(dims[-2:-1] for dims in shapes if len(dims) > 1))
        case "residue_columns":
            return tuple(dict.fromkeys(dims[-1:] for dims in shapes))
        case _:
            return ()


def summed_dims(program: Program, *kinds: type) -> tuple[Dims, ...]:
    """Returns what the program's nodes (of `kinds`, any without) sum or run over together, in its own
    names."""
    match program:
        case Kernel():
            launches: list[tuple[Kernel, Mapping[str, str]]] = [(program, {d: d for d in program.dims})]
        case Pipeline():
            launches = [
                (s.call, stage_names(program, s)) for s in program.stages if isinstance(s.call, Kernel)
            ]
    summed = [
        tuple(names[d] for d in _summed(node) if d in names)
        for kernel, names in launches
        for node in nodes_of(kernel)
        if not kinds or isinstance(node, kinds)
    ]
    return tuple(dict.fromkeys(over for over in summed if over))


def _summed(node: Value) -> Dims:
    match node:
        case Dot(over=over) | Reduce(over=over) | Softmax(over=over):
            return over
        case Scan(along=along):
            return (along,)
        case _:
            return ()


def _starts(
    program: Program, sizes: Mapping[str, int], distribution: Distribution, tile: Mapping[str, int]
) -> dict[str, int]:
    """Where the last tile begins along each dimension that a residue distribution cuts: of several
    summed together those that the tile names, or the last."""
    starts: dict[str, int] = {}
    for dims in residue_dims(program, distribution):
        for d in [d for d in dims if tile.get(d, 1) > 1] or dims[-1:]:
            step = tile.get(d, 1)
            starts[d] = (sizes[d] - 1) // step * step
    return starts


_MOST_F16 = 2.0**14
"""A quarter of f16's range: what one-sided dots may come to, so that an epilogue has room."""


def _headroom(program: Program, sizes: Mapping[str, int]) -> float:
    """Returns the power of two that keeps dots of numbers up to 8 within f16, where f16 holds them."""
    dots = [node for node in nodes_of(program) if isinstance(node, Dot)]
    narrow = any(kind.elem is F16 for kind in result_types(program)) or any(
        node.accumulate == F16.name for node in dots
    )
    if not narrow or not dots:
        return 1.0
    longest = max((math.prod(sizes[d] for d in over) for over in summed_dims(program, Dot)), default=1)
    excess = 64.0 * longest / _MOST_F16
    return 1.0 if excess <= 1 else 2.0 ** -math.ceil(math.log2(excess) / 2)


# --- numbers -------------------------------------------------------------------------


def _tensor(kind: TensorType, role: ArgumentRole, draw: _Draw, weight: float) -> Tensor:
    shape = shape_of(kind, draw.sizes)
    dtype = outer_dtype(kind.elem) if kind.elem.packed == 1 else torch.int64
    random, distribution = draw.random, draw.distribution
    if role.below is not None:
        return uniform_integers(0, draw.sizes[role.below] - 1, shape, random).to(dtype)
    if role.offsets_of is not None:
        return _offsets(shape, draw.sizes[role.offsets_of], random).to(dtype)
    match kind.elem.kind:
        case "bool":
            return uniform_integers(0, 1, shape, random).bool()
        case "int":
            return integers(kind.elem, shape, distribution, random).to(dtype)
        case "float" if distribution in EXACT or (distribution == "denormal" and role.right):
            exact = _exact(kind, role, draw)
            return exact if weight == 1.0 else exact.mul_(weight)
        case "float":
            scale = draw.scale if distribution in ("positive", "negated") else weight
            factors = _factors(role, draw)
            if distribution == "normal" and factors > _MOST_FACTORS:
                return _floats(kind.elem, tuple(shape), draw, partial(_near_one, factors=factors))
            return _floats(kind.elem, tuple(shape), draw, lambda numbers: numbers * scale)


def _floats(elem: Element, shape: tuple[int, ...], draw: _Draw, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Numbers of a distribution, changed, as they are stored: of a large tensor by slabs, so that what float64 takes
    of the memory is a slab's."""
    count = math.prod(shape)
    if count <= SLAB or elem.packed > 1 or draw.distribution not in ELEMENTWISE:
        return store(change(floats(elem, shape, draw.distribution, draw.random)), elem)
    out = torch.empty(count, dtype=outer_dtype(elem), device=draw.random.device)
    for part in torch.split(out, SLAB):
        part.copy_(store(change(floats(elem, part.shape, draw.distribution, draw.random)), elem))
    return out.view(shape)


_MOST_FACTORS = 16
"""Of a product, from which on plain numbers leave the range of their type: what is infinite or 0 decides nothing."""

_LARGEST_EXPONENT = 70.0
"""Of a product in any order, about: of all factors above 1 alone."""

_MEAN_ABS = math.sqrt(2 / math.pi)
"""Of a normal number; what exceeds it is 0.24 in the mean."""


def _factors(role: ArgumentRole, draw: _Draw) -> int:
    return math.prod(draw.sizes[d] for d in role.factors_along)


def _near_one(normal: Tensor, factors: int) -> Tensor:
    """Returns numbers of either sign and of a size around 1, so that a product of so many stays within f32."""
    exponents = normal.abs().sub_(_MEAN_ABS).mul_(min(1.0, _LARGEST_EXPONENT / 0.24 / factors))
    return exponents.exp2_().copysign_(normal)


_NEAR_ZERO = EXACT | FAN_IN
"""Distributions of both signs and no other intent, which a program is judged on."""


def _positive(tensor: Tensor) -> Tensor:
    """Returns the sizes of numbers, and 1 in place of 0: one number of which a function has no value leaves a sum none, and
    nothing is judged then."""
    wide = tensor.abs() if tensor.element_size() > 1 else tensor.to(torch.float32).abs()
    return wide.masked_fill_(wide == 0, 1).to(tensor.dtype)


def _residue(tensor: Tensor, kind: TensorType, draw: _Draw) -> Tensor:
    """0 in front of the last tile along each of `draw.starts`; an operand that has none of these
    dimensions stays as it is."""
    names = kind.dims
    if not draw.starts.keys() & set(names):
        return tensor
    view = tensor.view([draw.sizes[d] for d in names])
    for i, d in enumerate(names):
        view.narrow(i, 0, draw.starts.get(d, 0)).zero_()
    return tensor


def _offsets(shape: Sequence[int], extent: int, random: torch.Generator) -> Tensor:
    """Rising from 0 to the extent; empty and uneven groups occur."""
    count = math.prod(shape)
    inner = uniform_integers(0, extent, (max(count - 2, 0),), random).sort().values
    ends = torch.tensor([0, extent], device=random.device)
    return torch.cat((ends[:1], inner, ends[1:]))[:count].reshape(tuple(shape))


def _exact(kind: TensorType, role: ArgumentRole, draw: _Draw) -> Tensor:
    """Whole numbers of at most 4 whose dot cannot reach the accumulator's limit, as they are stored: smaller ones for
    long dots, then zeros along the summed dimensions."""
    shape = tuple(shape_of(kind, draw.sizes))
    steps = math.prod(draw.sizes[d] - draw.starts.get(d, 0) for d in role.over)
    headroom = role.exact / max(steps, 1)
    largest = max(1, min(4, math.isqrt(int(headroom)))) if math.isfinite(headroom) else 4
    factors = _factors(role, draw)
    whole = kind.elem.bytes < 2  # torch multiplies no narrower floats
    values = torch.empty(
        math.prod(shape), dtype=torch.float64 if whole else outer_dtype(kind.elem), device=draw.random.device
    )
    for part in torch.split(values, SLAB):
        if factors > _MOST_FACTORS:
            part.copy_(_whole_factors(part.shape, factors, draw.random))
        else:
            part.copy_(uniform_integers(-largest, largest, part.shape, draw.random))
    if headroom < 1:
        named = [draw.sizes[d] for d in kind.dims]
        values.view(named or [1]).mul_(_thinned(kind, role, draw, headroom))
    return (store(values, kind.elem) if whole else values).view(shape)


def _whole_factors(shape: Sequence[int], factors: int, random: torch.Generator) -> Tensor:
    """Returns 1 and -1, and 2 and -2 for some eight of so many factors: no product is rounded."""
    numbers = uniform_integers(0, 2 * factors - 1, tuple(shape), random)
    return torch.where(numbers // 2 < _TWOS, 2, 1) * (1 - 2 * (numbers % 2))


_TWOS = 8


def _thinned(kind: TensorType, role: ArgumentRole, draw: _Draw, headroom: float) -> Tensor:
    """1 for as many coordinates of the longest summed dimension as there is room for, else 0."""
    longest = max(role.over, key=lambda d: draw.sizes[d])
    length = draw.sizes[longest]
    device = draw.random.device
    mask = torch.zeros(length, dtype=torch.float64, device=device)
    chosen = torch.randperm(length, generator=draw.random, device=device)[: max(1, int(length * headroom))]
    mask[chosen] = 1.0
    return mask.reshape([-1 if d == longest else 1 for d in kind.dims])

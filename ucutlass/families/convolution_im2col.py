"""How a convolution runs on Hopper's TMA and wgmma: operands' order, parts of channels, the tile."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from ucutlass.families.convolution import unit_dim
from ucutlass.hardware import Device
from ucutlass.plan import Reduction
from ucutlass.plans.convolution import ConvProblem, Im2colSchedule, Walk
from ucutlass.plans.im2col import Im2col, im2col

LANES = ("f16", "bf16", "tf32")
"""Lanes that wgmma multiplies here; f32 goes to the multistage kernel's three tf32 passes."""

BYTES = 16
"""Of which TMA's strides are multiples."""

_FARTHEST: Mapping[int, tuple[int, int]] = MappingProxyType({1: (32767, 65535), 2: (127, 255), 3: (15, 31)})
"""By spatial axes: bounds of the corners of TMA's box and of a tap's offset (cuTensorMapEncodeIm2col)."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A tile with the blocks that an SM holds of it and the share of the multipliers' peak that one alone
    reaches; several add up to all of it."""

    m: int
    n: int
    groups: int
    stages: int
    blocks: int
    alone: float


SHAPES = (
    Shape(128, 256, 2, 4, 1, 0.80),
    Shape(128, 128, 2, 3, 2, 0.60),
    Shape(128, 64, 2, 3, 3, 0.42),
    Shape(64, 128, 1, 3, 3, 0.40),
    Shape(64, 64, 1, 4, 3, 0.25),
)
"""Shares are guesses that order them; `stages` fill the shared memory of `blocks` with 128 bytes of K."""


def prepared(made: ConvProblem, sizes: tuple[int, ...]) -> tuple[ConvProblem, Im2col] | str:
    """The problem with operands in an order that TMA gathers, or why there is none."""
    if made.lane.name not in LANES or made.gemm.accumulate != "f32":
        return f"lane {made.lane.name} accumulated in {made.gemm.accumulate} is not multiplied by wgmma here"
    channel = _channel(made, sizes)
    if channel is None:
        return "no name is summed that is an axis of both operands and in no window"
    a = _ordered(made.a, _order_a(made, channel), channel)
    b = made.b if _reads_across(made) else _ordered(made.b, _order_b(made, channel), channel)
    k = (*(d for d in made.k if d != channel), channel)
    ready = replace(made, a=a, b=b, k=k)
    how = im2col(ready)
    if isinstance(how, str):
        return how
    if how.phases > 1 and any(isinstance(o, Reduction) for o in made.gemm.outputs):
        return "rows that lie apart are not reduced"
    return too_far(ready, how, sizes) or (ready, how)


def _channel(made: ConvProblem, sizes: tuple[int, ...]) -> int | None:
    def plain(walk: Walk, dim: int) -> bool:
        windowed = any(dim == d for a in walk.axes if a.window for d, _ in a.window.terms)
        return sum(a.extent == dim and a.window is None for a in walk.axes) == 1 and not windowed

    found = [d for d in made.k if plain(made.a, d) and plain(made.b, d)]
    return max(found, key=lambda d: sizes[d], default=None)


def _order_a(made: ConvProblem, channel: int) -> tuple[int, ...]:
    """Images, windows, groups, channels; other plain axes stay between."""
    axes = made.a.axes
    batch = {d for run in made.batch for d in run}
    shared = {a.extent for a in made.b.axes if a.window is None}

    def rank(i: int) -> int:
        axis = axes[i]
        if axis.window is not None:
            return 1
        return 3 if axis.extent == channel else 2 if axis.extent in batch & shared else 0

    if all(rank(i) <= rank(j) or {rank(i), rank(j)} <= {0, 1} for i in range(len(axes)) for j in range(i + 1, len(axes))):
        return tuple(range(len(axes)))
    return tuple(sorted(range(len(axes)), key=rank))


def _order_b(made: ConvProblem, channel: int) -> tuple[int, ...]:
    """As it lies but for the channels; columns together, in the order of the result's."""
    axes = made.b.axes
    columns = [i for i, a in enumerate(axes) if a.extent in made.n]
    others = [i for i, a in enumerate(axes) if i not in columns and a.extent != channel]
    (last,) = [i for i, a in enumerate(axes) if a.extent == channel and a.window is None]
    together = columns == list(range(columns[0], columns[-1] + 1)) if columns else True
    if last == len(axes) - 1 and together and [axes[i].extent for i in columns] == list(made.n):
        return tuple(range(len(axes)))
    return (*others, *sorted(columns, key=lambda i: made.n.index(axes[i].extent)), last)


def _reads_across(made: ConvProblem) -> bool:
    """Whether B is read as it lies with its columns innermost."""
    b, width = made.b, BYTES // made.b.elem.bytes
    columns = [i for i, a in enumerate(b.axes) if a.extent in made.n]
    last = list(range(len(b.axes) - len(columns), len(b.axes)))
    innermost = bool(columns) and columns == last and [b.axes[i].extent for i in columns] == list(made.n)
    return innermost and b.elem.bytes == 2 and unit_dim(b) is not None and b.align == width


def _ordered(walk: Walk, order: tuple[int, ...], channel: int) -> Walk:
    """The operand in this order, as it lies where TMA reads it so."""
    width = BYTES // walk.elem.bytes
    if order == tuple(range(len(walk.axes))) and unit_dim(walk) == channel and walk.align == width:
        return walk
    return replace(walk, pack=order, pad=width, align=width)


def too_far(made: ConvProblem, how: Im2col, sizes: tuple[int, ...]) -> str | None:
    """Why windows reach farther than TMA's box does, by the formulas of `conv_sm90.cu.j2`."""
    from ucutlass.extents import evaluate

    by_name = {str(i): n for i, n in enumerate(sizes)}
    far, most = _FARTHEST[len(how.space)]
    for s in how.space:
        taps = 1 if s.tap_dim is None else sizes[s.tap_dim]
        offset, places = evaluate(s.offset, by_name), sizes[made.a.axes[s.axis].extent]
        for a in range(min(s.scale, sizes[s.result])):
            first = next((t for t in range(s.scale) if (a + s.tap * t + offset) % s.scale == 0), 0)
            count = -(-(taps - first) // s.scale) if first < taps else 0
            if count == 0:
                continue
            begin = (a + s.tap * first + offset) // s.scale
            lower = begin - (abs(s.tap) * (count - 1) if s.tap < 0 else 0)
            own = -(-(sizes[s.result] - a) // s.scale)
            upper = lower + (own - 1) * s.along - (places - 1)
            if not all(-far - 1 <= x <= far for x in (lower, upper)) or abs(s.tap) * (count - 1) > most:
                return f"windows begin at {lower} and end {upper} beyond their axis: TMA reaches {far}"
    return None


def schedule_of(made: ConvProblem, how: Im2col, sizes: tuple[int, ...], device: Device) -> Im2colSchedule | str:
    """The tile that fills the device best, or why no part of the channels fits."""
    size = made.a.read.bytes
    channels = sizes[made.a.axes[how.channel].extent]
    padded = -(-channels // made.a.pad) * made.a.pad
    parts = [row // size for row in (128, 64, 32)]
    if how.group is not None:
        parts = [p for p in parts if padded % p == 0]
        if not parts:
            return f"groups of {channels} channels are no whole rows of 32 bytes"
    least = min(-(-padded // p) * p for p in parts)
    part = next(p for p in parts if -(-padded // p) * p <= 1.15 * least)
    depth = 128 // size
    m, n = math.prod(sizes[d] for d in made.m) / how.phases, math.prod(sizes[d] for d in made.n)
    batch = math.prod(sizes[d] for run in made.batch for d in run) * how.phases

    def seconds(shape: Shape) -> float:
        blocks = math.ceil(m / shape.m) * math.ceil(n / shape.n) * batch
        each = math.ceil(blocks / device.sms)
        return each * shape.m * shape.n / min(1.0, min(each, shape.blocks) * shape.alone)

    best = min(SHAPES, key=seconds)
    return Im2colSchedule((best.m, best.n, depth), part, best.stages, best.groups, best.blocks)

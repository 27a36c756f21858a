"""How a convolution runs: which kernel, its tile, and which operands are copied to another order first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from ucutlass.ir.elements import F16, F32, TF32, Element
from ucutlass.ir.extents import Fixed
from ucutlass.ir.hardware import Arch, Device
from ucutlass.ir.schedule import Fold as FieldFold
from ucutlass.ir.schedule import Math as FieldMath
from ucutlass.ir.schedule import PartialSchedule, Warps
from ucutlass.kernels.access import Reduction
from ucutlass.kernels.addresses import vector_width
from ucutlass.kernels.convolution.cost import Extents, estimate, measure
from ucutlass.kernels.convolution.cost_f32 import (
    copies_seconds,
    im2col_seconds,
    multistage_seconds,
    tiles_of_runs,
)
from ucutlass.kernels.convolution.cost_register_tile import cheapest_register_tile, register_tile_seconds
from ucutlass.kernels.convolution.match import ConvolutionPattern, exchanged
from ucutlass.kernels.convolution.plan import (
    ConvolutionPlan,
    ConvolutionProblem,
    ConvolutionSchedule,
    DirectSchedule,
    GatheredOperand,
    Im2colSchedule,
    OperandAccess,
    RegisterTileSchedule,
    across_mode,
    axis_stride,
    sides,
    slide,
    unit_dim,
)
from ucutlass.kernels.convolution.plan_depthwise_wgrad import (
    LEAST_SUMMED,
    depthwise_wgrad,
    depthwise_wgrad_schedule,
)
from ucutlass.kernels.convolution.plan_im2col import MOST_SPACE, Im2col, im2col
from ucutlass.kernels.convolution.plan_register_tile import (
    RegisterTile,
    channels_at_once,
    prepared_register_tile,
    register_tile,
    unreduced,
)
from ucutlass.kernels.convolution.problem import convolution_problem
from ucutlass.kernels.convolution.rules import (
    EXTENT_RULES,
    MOST,
    MOST_SUMS,
    NO_REGISTER_TILE_RULES,
    VARIANT_RULES,
    ChosenWord,
    ConvolutionCase,
    NoRegisterTile,
    ScheduleBounds,
)
from ucutlass.kernels.convolution.schedule import QUAD, chosen_word, request_of, resolve
from ucutlass.kernels.convolution.schedule_im2col import (
    folded,
    in_parts,
    prepared,
    schedule_of,
    schedule_of_runs,
    stacked,
)
from ucutlass.kernels.convolution.schedule_wgrad import folded_wgrad, prepared_wgrad, wgrad_schedule
from ucutlass.kernels.convolution.variants import VARIANTS
from ucutlass.kernels.gemm.plan import Math, Sm80Schedule
from ucutlass.kernels.planned import Note, Planned
from ucutlass.kernels.refused import Refused
from ucutlass.kernels.rule import broken
from ucutlass.kernels.violation import Violation, foreign_to

GATHERED = ("f16", "bf16", "tf32", "f32")
"""Compute types of the kernel that gathers tiles; others multiply and add directly."""

MOST_TAPS = 7
"""Of a window whose weights a thread of the direct kernel holds in registers."""

FEW_TAPS = 3
"""Of a window: along windows two apart a thread of the direct kernel holds more than four results of so few taps."""

MOST_ITEMS, ITEM_SUMS = 8, 32
"""Lines of results that a thread of the direct kernel computes at most, and the sums that it keeps of all."""

TILE_THREADS = 128
"""Of a block of register tiles."""

SHARES: Mapping[str, tuple[float, float]] = MappingProxyType({"f32": (1.25, 1.0), "tf32": (2.1, 0.85)})
SHARE_OF_16_BITS = (1.7, 0.55)
"""What an H100 took of few channels by TMA and by the multistage kernel, as shares of the prices, which are fitted to
many channels; by compute type, and of all others."""

FEW_IN_GROUPS = 8
"""Channels of a group up to which plain threads compute it where positions lie innermost."""

FEW_CHANNELS, MOST_SUMMED = 16, 512
"""Channels, and products of a result, up to which a window's taps may count as channels, and threads may have
register tiles."""

LEFT_TO_RUNS = frozenset({"warps", "math", "raster", "swizzle"})
"""What a schedule may fix where the planner still chooses whether taps share rows, or results are columns."""

HALF_ROW, SHORT_PART, SHARE_OF_RUNS = 32, 16, 0.9
"""Channels of rows of 64 and 32 bytes in f16 parts; the share of their price at which runs of the former are compared."""

DEPTH_OF_F16 = 64
"""Products of K of a tile of f16 parts: a row of 128 bytes, as all tiles of TMA and wgmma are deep."""

BUSY_THREADS, LEAST_VECTOR = 800, 8
"""Of the direct kernel an SM, below which a thread has fewer results of channels that lie innermost, and the bytes of
neighbours that it keeps at least."""

LEAST_THREADS = 384
"""Of the direct kernel an SM, below which a thread computes fewer lines."""

LONG_SUM, MOST_SPLITS = 64, 128
"""Steps of a sum in parts from which a step has 32 products of f32 or TF32 (four gradients of weights on an H100: 4 to 25 % less), and its parts."""

MOST_RAGGED = 48
"""Channels that are no whole rows up to which the multistage kernel is taken."""

COPY_BYTES = 4
"""The least that cp.async moves."""


def plan_convolution(
    pattern: ConvolutionPattern,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    request: PartialSchedule,
    aligned: tuple[bool, ...] | None = None,
) -> Planned | tuple[Violation, ...]:
    """The kernel of a convolution for these extents, or why there is none. Raises Refused."""
    if foreign := foreign_to(request, VARIANTS, "a convolution"):
        return (foreign,)
    if too_large := broken(EXTENT_RULES, ConvolutionCase(pattern, sizes)):
        return too_large
    direct = _is_direct(pattern, sizes)
    word = chosen_word(request, direct)
    if direct and word not in (None, "direct"):
        why = "no two results of a tile would share both operands"
        return broken(VARIANT_RULES, ChosenWord(word, why))
    if request.columns is not None:
        tile = _register_tile(pattern, sizes, device, aligned, request)
        if isinstance(tile, str):
            return broken(NO_REGISTER_TILE_RULES, NoRegisterTile(tile))
        problem_, own, splits, notes = tile
    elif word == "direct" and not direct and any(o.reduce is not None for o in pattern.epilogue.outputs):
        return broken(VARIANT_RULES, ChosenWord(word, "plain threads reduce nothing of the result"))
    elif direct or word == "direct" or (not request.fixed() and _are_few_in_groups(pattern, sizes, aligned)):
        problem_, own, splits, notes = _direct(pattern, sizes, device, aligned)
    else:
        chosen = _tiled(pattern, sizes, arch, device, aligned, request, word)
        if isinstance(chosen[0], Violation):
            return chosen
        problem_, own, splits, notes = _cheapest(chosen, pattern, sizes, arch, device, aligned, word, request)
    extents = measure(problem_, sizes)
    bounds = ScheduleBounds(
        problem_,
        sizes,
        (extents.m, extents.n, extents.k, extents.batch),
        arch,
        device,
        partial(_taps_of, pattern, problem_, sizes),
    )
    scheduled = resolve(bounds, own, splits, request)
    if isinstance(scheduled[0], Violation):
        return scheduled
    schedule, launch = scheduled
    price = estimate(problem_, schedule, sizes, arch, device, launch)
    plan = ConvolutionPlan(arch.name, problem_, schedule)
    own_request = request_of(schedule, launch)
    if request.fold == "no":
        own_request = replace(own_request, fold="no")
    return Planned(plan, launch, sizes, own_request, device, price, notes)


# --- without a tile -----------------------------------------------------------------


def _is_direct(pattern: ConvolutionPattern, sizes: tuple[int, ...]) -> bool:
    """Nothing is shared between rows and columns of a tile, or its multipliers do not take the operands."""
    n, m = (math.prod(sizes[pattern.position[d]] for d in names) for names in (pattern.n, pattern.m))
    return (
        pattern.summed
        or not pattern.m
        or not pattern.n
        or m > MOST
        or n > MOST
        or pattern.dot.compute_type.name not in GATHERED
    )


def _are_few_in_groups(
    pattern: ConvolutionPattern, sizes: tuple[int, ...], aligned: tuple[bool, ...] | None
) -> bool:
    """Whether groups have so few channels that plain threads are faster than tiles: an H100 took 58 us for 421 with 4 of
    bf16 and 34 for 107 with 8 of TF32 where positions lie innermost, and 155 for 519 with 4 of TF32 where channels do."""
    if any(o.reduce is not None for o in pattern.epilogue.outputs):
        return False
    problem = convolution_problem(pattern, sizes, aligned, apart=True)
    channel = summed_channel(problem, sizes)
    batch = {d for run in problem.batch for d in run}
    plain = [{a.extent for a in o.axes if a.window is None} for o in (problem.a, problem.b)]
    taps, results = _taps_and_results(problem, sizes)
    if channel is None or not batch & plain[0] & plain[1] or problem.b.windows or taps > results:
        return False
    windows = [a.window for a in problem.a.axes if a.window is not None]
    if any(w.scale > 1 or any(abs(c) > 1 for _, c in w.terms) for w in windows):
        return False
    if unit_dim(problem.a) == channel:
        return sizes[channel] <= FEW_IN_GROUPS // 2 and problem.a.elem.bytes == F32.bytes
    return sizes[channel] <= FEW_IN_GROUPS


_Chosen = tuple[ConvolutionProblem, ConvolutionSchedule, int, tuple[Note, ...]]


def _direct(
    pattern: ConvolutionPattern, sizes: tuple[int, ...], device: Device, aligned: tuple[bool, ...] | None
) -> _Chosen:
    problem_ = convolution_problem(pattern, sizes, aligned, apart=True)
    if any(isinstance(o, Reduction) for o in problem_.gemm.outputs):
        raise Refused(
            "UC0309",
            "the kernel of a depthwise convolution reduces nothing of its result",
            pattern.dot.span,
            "store the convolution's result and reduce it in a second stage",
        )
    width = _width(problem_, sizes, aligned)
    fixed = {i for i, extent in enumerate(pattern.kernel.dims.values()) if isinstance(extent, Fixed)}
    gradient = depthwise_wgrad(problem_, sizes, fixed)
    if not isinstance(gradient, str) and math.prod(sizes[d] for d in problem_.k) >= LEAST_SUMMED:
        why = "threads share the sum over the positions of windows, and read them once for all taps"
        return problem_, depthwise_wgrad_schedule(problem_, gradient, sizes), 1, (Note("", "direct", why),)
    own = _taps(problem_, len(problem_.batch) - 1, sizes, fixed)
    rows = width if width > 1 else 8
    moving = slide(problem_, len(problem_.batch) - 1)
    if own > 0 and moving is not None and moving.repeats(rows):
        item_taps = _taps(problem_, len(problem_.batch) - 2, sizes, fixed)
        wide = item_taps > 0 and width > 1 and _lines_are_aligned(problem_, width, sizes, aligned)
        scaled = moving.scale > 1 and item_taps > 0
        items = _items(problem_, rows, sizes, device) if wide or scaled else min(1, item_taps)
        schedule = DirectSchedule(width, rows, own, True, items=items, item_taps=item_taps, wide=wide)
    else:
        slides = across_mode(problem_) >= 0 and axis_stride(problem_, problem_.a, width > 1) != "kStep"
        taps = _taps(problem_, across_mode(problem_), sizes, fixed) if slides else 0
        rows = _rows(problem_, taps, sizes) if slides else 1
        width, rows = _busy(problem_, width, rows, taps, sizes, device)
        schedule = DirectSchedule(width, rows, taps if rows > 1 else 0)
    why = "one multiply-add for each product: no two results of a tile share both operands"
    return problem_, schedule, 1, (Note("", "direct", why),)


def _register_tile(
    pattern: ConvolutionPattern,
    sizes: tuple[int, ...],
    device: Device,
    aligned: tuple[bool, ...] | None,
    request: PartialSchedule,
) -> _Chosen | str:
    """The kernel whose threads keep sums of some positions by some columns, or why there is none."""
    if request.vector is not None or request.items is not None:
        return "threads that keep several columns have no `vector` or `items`"
    problem_ = prepared_register_tile(convolution_problem(pattern, sizes, aligned, apart=True))
    tile = register_tile(problem_)
    if isinstance(tile, str):
        return tile
    if why := unreduced(problem_, tile):
        return why
    columns = sizes[problem_.batch[tile.column][0]]
    stored = [o.access for o in problem_.gemm.outputs if o.access.batch[tile.column] == ()]
    widths = [vector_width(a.elem.bits, aligned is None or aligned[a.pointer], (columns,)) for a in stored]
    vector = min(QUAD, *widths) if widths else 1
    own = RegisterTileSchedule(1, QUAD, TILE_THREADS, channels_at_once(problem_, tile, sizes), vector)
    schedule = cheapest_register_tile(problem_, tile, own, sizes, device)
    if isinstance(schedule, str):
        return schedule
    why = "weights lie in shared memory, A is read where it lies; nothing is copied or padded"
    return problem_, schedule, 1, (Note("", "register tile", why),)


def _items(problem: ConvolutionProblem, rows: int, sizes: tuple[int, ...], device: Device) -> int:
    """Lines of results of a thread: as many as share most of their input (read off an H100: 32 sums a thread, where
    the window moves by one), nearly divide the lines, and leave threads enough for every SM."""
    mode = len(problem.batch) - 2
    moving = slide(problem, mode)
    if moving is None or moving.step != 1:
        return 1
    (dim,) = problem.batch[mode]
    results = math.prod(sizes[d] for run in problem.batch for d in run)
    sums = ITEM_SUMS if moving.scale == 1 else MOST_SUMS  # of which not all taps add to each
    for items in range(min(MOST_ITEMS, sums // rows), 1, -1):
        if not moving.repeats(items):
            continue
        divides = math.ceil(sizes[dim] / items) * items <= 1.1 * sizes[dim]
        if divides and results >= rows * items * LEAST_THREADS * device.sms:
            return items
    return min(moving.scale, sums // rows)


def _lines_are_aligned(
    problem: ConvolutionProblem, width: int, sizes: tuple[int, ...], aligned: tuple[bool, ...] | None
) -> bool:
    """Whether vectors of A's lines begin at multiples of `width` elements, at places that the text fixes."""
    a, moving = problem.a, slide(problem, len(problem.batch) - 1)
    if moving is None or moving.axis != len(a.axes) - 1 or moving.step != 1 or width * a.elem.bytes > 16:
        return False
    if moving.scale > 1:
        return False
    axis = a.axes[moving.axis]
    fixed = axis.window is not None and isinstance(axis.window.offset, Fixed)
    return fixed and (aligned is None or aligned[a.pointer]) and sizes[axis.extent] % width == 0


def _rows(problem: ConvolutionProblem, taps: int, sizes: tuple[int, ...]) -> int:
    """Results of a thread along a window: of few taps as many as its registers hold (read off an H200: 8, of
    windows two apart 7; and off an H100: 8 of gradients of such windows), where they divide the results nearly."""
    moving = slide(problem, across_mode(problem))
    if moving is None:
        return 4
    most = FEW_TAPS if moving.step > 1 else MOST_TAPS
    usual = next((rows for rows in (4, 1) if moving.repeats(rows)), 1)
    if not 0 < taps <= most or moving.step > 2:
        return usual
    rows, (dim,) = (8, 7)[moving.step - 1], problem.batch[across_mode(problem)]
    whole = math.ceil(sizes[dim] / rows) * rows <= 1.15 * sizes[dim]
    return rows if whole and moving.repeats(rows) else usual


def _busy(
    problem: ConvolutionProblem, width: int, rows: int, taps: int, sizes: tuple[int, ...], device: Device
) -> tuple[int, int]:
    """The neighbours and rows of a thread, fewer where threads would be few: of small windows fewer rows, of others
    fewer neighbours (read off an H100 with eight layers)."""
    enough = BUSY_THREADS * device.sms
    results = math.prod(sizes[d] for run in problem.batch for d in run)
    if rows < 8 or results >= width * rows * enough:
        return width, rows
    if taps <= FEW_TAPS:
        rows = 4
    wide = width * problem.a.elem.bytes >= 2 * LEAST_VECTOR
    return (width // 2 if wide and results < width * rows * enough else width), rows


def _taps(problem: ConvolutionProblem, mode: int, sizes: tuple[int, ...], fixed: set[int]) -> int:
    """The taps of a window that slides along a result mode, 0 where none does, they are many, or a call
    may bring others."""
    moving = slide(problem, mode)
    if moving is None or max(moving.step, moving.tap) > MOST_TAPS or problem.k[moving.k] not in fixed:
        return 0
    taps = sizes[problem.k[moving.k]]
    return taps if taps <= MOST_TAPS else 0


def _taps_of(
    pattern: ConvolutionPattern, problem: ConvolutionProblem, sizes: tuple[int, ...], rows: int
) -> int:
    """The taps that the direct kernel keeps where a thread repeats itself along the window's results."""
    fixed = {i for i, extent in enumerate(pattern.kernel.dims.values()) if isinstance(extent, Fixed)}
    moving = slide(problem, across_mode(problem))
    if moving is None or not moving.repeats(rows):
        return 0
    return _taps(problem, across_mode(problem), sizes, fixed) if rows > 1 else 0


def _width(problem: ConvolutionProblem, sizes: tuple[int, ...], aligned: tuple[bool, ...] | None) -> int:
    """Neighbouring results of a thread, at most 8: 16 bytes of the widest tensor that lies along them. A
    tensor's other strides are multiples of their extent, which is innermost in it."""
    if not problem.batch:
        return 1
    (dim,) = problem.batch[-1]
    touched: list[tuple[int, Element]] = [
        (a.pointer, a.elem)
        for a in (*problem.gemm.inputs, *(o.access for o in problem.gemm.outputs))
        if a.batch[-1] == ()
    ]
    touched += [(w.pointer, w.elem) for w in (problem.a, problem.b) if unit_dim(w) == dim]
    fine = aligned is None or all(aligned[p] for p, _ in touched)
    # A wider operand of the epilogue is read one by one.
    own = {problem.a.pointer, problem.b.pointer, *(o.access.pointer for o in problem.gemm.outputs)}
    most = [F16.bits, *(e.bits for p, e in touched if p in own)]
    return min(vector_width(bits, fine, (sizes[dim],)) for bits in most)


# --- tiles --------------------------------------------------------------------------


def _tiled(
    pattern: ConvolutionPattern,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    aligned: tuple[bool, ...] | None,
    request: PartialSchedule,
    warps: Warps | None,
) -> _Chosen | tuple[Violation, ...]:
    """Hopper's kernel where TMA gathers the problem, in f32 where that is estimated faster, else the multistage
    one; or the one that `warps` means, or why that cannot be."""
    whole = convolution_problem(pattern, sizes, aligned)
    if warps is None and not request.fixed() and _ends_within_rows(whole, sizes):
        warps = "multistage"
    hopper: _Chosen | str = "before Hopper"
    if arch.wgmma and warps != "multistage":
        maths = _maths(request, whole)
        fold = request.fold
        if fold is None and not set(request.fixed()) <= LEFT_TO_RUNS:
            fold = "no"
        every = [_gathered_by_tma(pattern, sizes, device, aligned, fold, math_) for math_ in maths]
        fitting = [every[0], *(chosen for chosen in every[1:] if _holds(chosen, request))]
        if request.math != "tf32x3" and set(request.fixed()) <= LEFT_TO_RUNS and whole.compute_type == F32:
            runs = _by_runs(pattern, sizes, device, aligned)
            fitting += [runs] if _gains_by_runs(runs, sizes, device) else []
        hopper = _cheapest_passes(fitting, sizes, device)
        if whole.compute_type == TF32 and request.fixed().keys() <= {"warps", "raster", "swizzle"}:
            hopper = _or_gradient(hopper, pattern, sizes, device, aligned)
        if request.fold == "rows":
            hopper = _by_runs(pattern, sizes, device, aligned)
            if isinstance(hopper, str):
                return broken(VARIANT_RULES, ChosenWord("cooperative", hopper))
    if not isinstance(hopper, str) and (warps == "cooperative" or whole.compute_type != F32):
        return hopper
    if warps == "cooperative":
        return broken(VARIANT_RULES, ChosenWord(warps, str(hopper)))
    if request.math == "f16x3":
        return broken(VARIANT_RULES, ChosenWord("multistage", "three f16 passes are of TMA and wgmma"))
    problem_, notes = gathered(whole, sizes)
    extents = measure(problem_, sizes)
    schedule = _multistage(problem_, extents, sizes, device)
    splits = _splits(schedule, extents, device)
    if isinstance(hopper, str) or not isinstance(hopper[1], Im2colSchedule):
        why = str(hopper)
    else:
        own = multistage_seconds(problem_, schedule, splits, sizes, device)
        gathered_seconds = im2col_seconds(hopper[0], hopper[1], sizes, device)
        if gathered_seconds <= own:
            return hopper
        why = (
            f"TMA and wgmma would take {1e6 * gathered_seconds:.0f} us with what they need copied, "
            f"this {1e6 * own:.0f}"
        )
    return (
        problem_,
        schedule,
        splits,
        (Note("", "multistage", f"tiles are gathered by cp.async: {why}"), *notes),
    )


def _ends_within_rows(problem: ConvolutionProblem, sizes: tuple[int, ...]) -> bool:
    """Whether channels of 16 bits are few and would be copied, as they end within the 16 bytes that TMA's strides are
    multiples of: the multistage kernel reads them as they lie, or fewer of them copied; an H100 took 0.5 to 0.6 of the
    time."""
    channel = summed_channel(problem, sizes)
    if channel is None or problem.compute_type.bytes != 2:
        return False
    channels, innermost = sizes[channel], unit_dim(problem.a) == channel
    most = MOST_RAGGED if innermost else MOST_RAGGED // 2
    return FEW_CHANNELS < channels <= most and 2 * channels % 16 > 0 and 2 * channels % COPY_BYTES == 0


def _maths(request: PartialSchedule, problem: ConvolutionProblem) -> tuple[FieldMath | None, ...]:
    """The passes of wgmma that a schedule leaves to choose from. A tile is as deep as a row of TMA's: twice as deep in
    f16 parts."""
    if request.math is not None or problem.compute_type != F32:
        return (request.math,)
    if request.fold == "rows":
        return ("f16x3",)
    if request.tile is not None:
        return ("f16x3",) if request.tile[2] == DEPTH_OF_F16 else (None,)
    return (None, "f16x3")


def _holds(chosen: _Chosen | str, request: PartialSchedule) -> bool:
    """Whether the kernel of TMA and wgmma has room for the stages and blocks that a schedule fixes."""
    if isinstance(chosen, str) or not isinstance(chosen[1], Im2colSchedule):
        return True
    schedule = chosen[1]
    return (request.stages or 0) <= schedule.stages and request.blocks in (None, schedule.blocks)


def _cheapest_passes(
    candidates: Sequence[_Chosen | str], sizes: tuple[int, ...], device: Device
) -> _Chosen | str:
    """The candidate of the lowest price, or why there is none."""

    def price(chosen: _Chosen) -> float:
        problem, schedule, _, _ = chosen
        if not isinstance(schedule, Im2colSchedule):
            return math.inf
        share = SHARE_OF_RUNS if schedule.halo and schedule.part == HALF_ROW else 1.0
        return share * im2col_seconds(problem, schedule, sizes, device)

    served_ = [c for c in candidates if not isinstance(c, str)]
    return min(served_, key=price) if served_ else candidates[0]


def _gathered_by_tma(
    pattern: ConvolutionPattern,
    sizes: tuple[int, ...],
    device: Device,
    aligned: tuple[bool, ...] | None,
    fold: FieldFold | None,
    math_: FieldMath | None,
) -> _Chosen | str:
    """A kernel of TMA and wgmma, its operands as the program has them, read along other positions, or exchanged."""
    whole = convolution_problem(pattern, sizes, aligned)
    hopper = _hopper(whole, sizes, device, fold, math_)
    if isinstance(hopper, str):
        others = convolution_problem(pattern, sizes, aligned, positions=True)
        windows = hopper if others == whole else _hopper(others, sizes, device, fold, math_)
        hopper = hopper if isinstance(windows, str) else windows
    if isinstance(hopper, str) and pattern.b.windowed and not pattern.a.windowed:
        other = convolution_problem(exchanged(pattern), sizes, aligned)
        swapped = _hopper(other, sizes, device, fold, math_)
        hopper = hopper if isinstance(swapped, str) else swapped
    return hopper


def _cheapest(
    chosen: _Chosen,
    pattern: ConvolutionPattern,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    aligned: tuple[bool, ...] | None,
    word: Warps | None,
    request: PartialSchedule,
) -> _Chosen:
    """The kernel that was chosen for any number of channels, or, of few, a cheaper one: windows whose taps count as
    channels, or a register tile where nothing of the schedule is fixed."""
    problem_ = chosen[0]
    if not arch.wgmma or problem_.b.windows or not _has_few_channels(problem_, sizes):
        return chosen
    if problem_.compute_type != F32 and not isinstance(chosen[1], Sm80Schedule):
        return chosen  # TMA gathers the channels as they are
    candidates: list[tuple[float, _Chosen]] = []
    if word in (None, "cooperative") and request.fold is None:
        whole = in_parts(convolution_problem(pattern, sizes, aligned), request.math)
        gathered_ = whole if isinstance(whole, str) else _gathered_windows(whole, sizes, device, "yes", False)
        if not isinstance(gathered_, str) and isinstance(gathered_[1], Im2colSchedule):
            candidates.append((_seconds(gathered_, sizes, device), gathered_))
    if not request.fixed():
        tile = _register_tile(pattern, sizes, device, aligned, request)
        if not isinstance(tile, str) and isinstance(tile[1], RegisterTileSchedule):
            how = register_tile(tile[0])
            assert isinstance(how, RegisterTile)
            candidates.append((register_tile_seconds(tile[0], how, tile[1], sizes, device), tile))
    if not candidates:
        return chosen
    seconds, cheapest = min(candidates, key=lambda c: c[0])
    return cheapest if seconds < _seconds(chosen, sizes, device) else chosen


def _has_few_channels(problem: ConvolutionProblem, sizes: tuple[int, ...]) -> bool:
    """Whether few channels are summed, and windows have fewer taps than results: a gradient of weights has more."""
    channel = summed_channel(problem, sizes)
    few = channel is None or sizes[channel] <= FEW_CHANNELS
    taps, results = _taps_and_results(problem, sizes)
    return few and taps <= results and math.prod(sizes[d] for d in problem.k) <= MOST_SUMMED


def _taps_and_results(problem: ConvolutionProblem, sizes: tuple[int, ...]) -> tuple[int, int]:
    """The products of A's windows that a result sums, and the results that windows stand at: a gradient of weights has
    more of the former."""
    terms = {d for axis in problem.a.axes if axis.window is not None for d, _ in axis.window.terms}
    taps, results = (
        math.prod(sizes[d] for d in terms if (d in problem.k) == summed) for summed in (True, False)
    )
    return taps, results


def _seconds(chosen: _Chosen, sizes: tuple[int, ...], device: Device) -> float:
    """What a kernel of tiles takes of few channels, with its copies; 0 of a gradient of weights, which stays."""
    problem, schedule, splits, _ = chosen
    gathered_share, multistage_share = SHARES.get(problem.compute_type.name, SHARE_OF_16_BITS)
    match schedule:
        case Im2colSchedule():
            copies = copies_seconds(problem, sizes, device)
            gathered_ = im2col_seconds(problem, schedule, sizes, device) - copies
            return gathered_share * gathered_ + copies
        case Sm80Schedule():
            price = multistage_seconds(problem, schedule, splits, sizes, device)
            return multistage_share * price
        case _:
            return 0.0


def _hopper(
    whole: ConvolutionProblem,
    sizes: tuple[int, ...],
    device: Device,
    fold: FieldFold | None,
    math_: FieldMath | None = None,
) -> _Chosen | str:
    """A kernel of TMA and wgmma, or why none takes the problem: windows of a sum over channels, or those of
    a sum over the positions where they stand."""
    problem = in_parts(whole, math_)
    if isinstance(problem, str):
        return problem
    chosen = _gathered_windows(problem, sizes, device, fold, by_rows=False)
    if fold == "yes" or not isinstance(chosen, str):
        return chosen
    gradient = _gradient(problem, sizes, device) if problem.compute_type != TF32 else chosen
    if not isinstance(gradient, str):
        return gradient[0]
    by_rows = _gathered_windows(problem, sizes, device, fold, by_rows=True)
    return chosen if isinstance(by_rows, str) else by_rows


def _gradient(
    problem: ConvolutionProblem, sizes: tuple[int, ...], device: Device
) -> tuple[_Chosen, float] | str:
    """The kernel of a gradient of weights, of which TMA gathers the positions of windows, and its clocks without copies;
    or why there is none."""
    gradient = prepared_wgrad(problem, sizes)
    if isinstance(gradient, str):
        return gradient
    if gradient[1].group is not None and math.prod(sizes[d] for d in problem.n) < FEW_CHANNELS:
        return "groups fill small parts of a tile"  # an H100 took 94 us for 67 with 8 channels of bf16
    prepared_ = [w for w in (folded_wgrad(problem, sizes), gradient) if not isinstance(w, str)]
    priced = [(wgrad_schedule(*w, sizes, device), w[0]) for w in prepared_]
    (clocks, splits, schedule), ready = min(priced, key=lambda p: p[0][:2])
    unit = "mma.sync" if problem.compute_type == TF32 else "wgmma"
    why = f"TMA gathers the positions of windows, {unit} multiplies; {splits} parts of the sum"
    return (ready, schedule, splits, (Note("", "im2col", why), *_packs(ready))), clocks


def _or_gradient(
    hopper: _Chosen | str,
    pattern: ConvolutionPattern,
    sizes: tuple[int, ...],
    device: Device,
    aligned: tuple[bool, ...] | None,
) -> _Chosen | str:
    """The kernel of wgmma in TF32, or that of mma.sync for a gradient of weights, whichever is estimated faster."""
    gradient = _gradient(convolution_problem(pattern, sizes, aligned), sizes, device)
    if isinstance(gradient, str) and pattern.b.windowed and not pattern.a.windowed:
        gradient = _gradient(convolution_problem(exchanged(pattern), sizes, aligned), sizes, device)
    if isinstance(gradient, str):
        return hopper
    chosen, clocks = gradient
    if isinstance(hopper, str) or not isinstance(hopper[1], Im2colSchedule):
        return chosen
    seconds = clocks / device.clock + copies_seconds(chosen[0], sizes, device)
    return chosen if seconds < im2col_seconds(hopper[0], hopper[1], sizes, device) else hopper


def _gathered_windows(
    problem: ConvolutionProblem, sizes: tuple[int, ...], device: Device, fold: FieldFold | None, by_rows: bool
) -> _Chosen | str:
    divided = any(axis.window is not None and axis.window.scale > 1 for axis in problem.a.axes)
    ways = [] if fold == "yes" else [prepared(problem, sizes, by_rows)]
    if divided and not by_rows and fold in (None, "yes"):
        ways += [stacked(problem, sizes, axes) for axes in range(1, MOST_SPACE + 1)]
    elif fold == "yes":
        ways = [folded(problem, sizes, by_rows)]
    return _cheapest_passes([_scheduled(way, sizes, device) for way in ways], sizes, device)


def _scheduled(
    way: tuple[ConvolutionProblem, Im2col] | str, sizes: tuple[int, ...], device: Device
) -> _Chosen | str:
    schedule = way if isinstance(way, str) else schedule_of(*way, sizes, device)
    if isinstance(way, str) or isinstance(schedule, str):
        return str(schedule)
    problem = way[0]
    passes = {"tensor": "", "tf32x3": " in three TF32 passes", "f16x3": " in three f16 passes"}
    stacked_ = f"; {problem.stacked} results between neighbours are columns" if problem.stacked > 1 else ""
    why = f"TMA gathers the windows, wgmma multiplies{passes[problem.passes]}{stacked_}"
    return problem, schedule, 1, (Note("", "im2col", why), *_packs(problem))


def _by_runs(
    pattern: ConvolutionPattern, sizes: tuple[int, ...], device: Device, aligned: tuple[bool, ...] | None
) -> _Chosen | str:
    """The kernel of three f16 passes whose taps along the innermost window share rows, or why they cannot."""
    chosen = _gathered_by_tma(pattern, sizes, device, aligned, "no", "f16x3")
    if isinstance(chosen, str):
        return chosen
    problem, schedule, splits, notes = chosen
    how = im2col(problem)
    if not isinstance(schedule, Im2colSchedule) or isinstance(how, str):
        return "rows are shared by windows of a sum over channels"
    runs = schedule_of_runs(problem, how, sizes, device)
    if isinstance(runs, str):
        return runs
    why = "the taps of the innermost window share the rows that TMA gathers"
    return problem, runs, splits, (*notes, Note("fold", "rows", why))


def _gains_by_runs(chosen: _Chosen | str, sizes: tuple[int, ...], device: Device) -> bool:
    """Whether its price may choose the kernel whose taps share rows: with tiles for all SMs, and with fewer than 128 columns
    and rows of more than 32 bytes; others took up to 8 % longer than without on an H100."""
    if isinstance(chosen, str):
        return False
    problem, schedule, _, _ = chosen
    if not isinstance(schedule, Im2colSchedule):
        return False
    enough = tiles_of_runs(problem, schedule, sizes) >= device.sms
    return enough and schedule.tile[1] < 128 and schedule.part > SHORT_PART


def _packs(problem: ConvolutionProblem) -> tuple[Note, ...]:
    names = " and ".join(n for n, w in (("A", problem.a), ("B", problem.b)) if w.pack is not None)
    if not names:
        return ()
    return (
        Note("", "layout", f"{names} copied to the workspace first, channels innermost, padded to 16 bytes"),
    )


def gathered(
    problem: ConvolutionProblem, sizes: tuple[int, ...]
) -> tuple[ConvolutionProblem, tuple[Note, ...]]:
    """The problem with operands that cp.async can read: at least 4 bytes at a time, along the rows or along
    the innermost contracted name. Operands of 16 bits that are read one by one, and vectors that lie along
    another name than the innermost one of its rows or of the contracted, are copied to the workspace:
    channels innermost and padded where both have them summed. Without such channels elements of 4 bytes are
    read one by one, those of 2 are widened to f32, whose tf32 products are exact."""
    both = sides(problem)
    crossed = any(s.access.align > 1 and s.copy_width == 1 for s in both)
    narrow = any(s.copy_width * s.access.read.bytes < COPY_BYTES for s in both)
    channel = summed_channel(problem, sizes)
    if channel is not None and (crossed or narrow):
        k = (*(d for d in problem.k if d != channel), channel)
        a, b = (packed(replace(s, summed=k), channel) for s in both)
        ready = replace(problem, a=a, b=b, k=k)
        return ready, _packs(ready)
    if not narrow:
        return problem, ()
    a, b = (replace(w, pack=tuple(range(len(w.axes))), packed=F32, align=1) for w in (problem.a, problem.b))
    return replace(problem, a=a, b=b), (
        Note("", "layout", "operands are read one by one: widened to f32 in the workspace first"),
    )


def summed_channel(problem: ConvolutionProblem, sizes: tuple[int, ...]) -> int | None:
    """The longest contracted dimension that is one plain axis of each operand, and in no window."""

    def plain(operand: OperandAccess, dim: int) -> bool:
        users = [a for a in operand.axes if dim == a.extent and a.window is None]
        windowed = any(dim == d for a in operand.axes if a.window for d, _ in a.window.terms)
        return len(users) == 1 and not windowed

    channels = [d for d in problem.k if plain(problem.a, d) and plain(problem.b, d)]
    return max(channels, key=lambda d: sizes[d], default=None)


def packed(side: GatheredOperand, dim: int) -> OperandAccess:
    """The operand with a plain axis innermost and padded to 16 bytes; as it lies where it is so already."""
    operand, pad = side.access, 16 // side.access.elem.bytes
    if unit_dim(operand) == dim and side.copy_width == pad:
        return operand
    axis = next(i for i, a in enumerate(operand.axes) if a.extent == dim and a.window is None)
    order = (*(i for i in range(len(operand.axes)) if i != axis), axis)
    return replace(operand, pack=order, pad=pad, align=pad)


def _multistage(
    problem: ConvolutionProblem, extents: Extents, sizes: tuple[int, ...], device: Device
) -> Sm80Schedule:
    compute_type: Element = TF32 if problem.a.packed else problem.compute_type
    math_: Math = "tf32x3" if compute_type == F32 else "tensor"
    narrow = any(s.copy_width == 1 for s in sides(problem))
    deep = 32 if compute_type.name in ("f16", "bf16") else 16
    small = extents.n <= 64 or narrow or math_ == "tf32x3"
    tiles = [((128, 128, deep), (64, 64), 4)] if not small else []
    tiles += [((128, 64, deep), (64, 32), 4)] if not narrow and math_ == "tensor" else []
    tiles += [((64, 64, deep), (32, 32), 4)]
    for tile, warp, stages in tiles:
        blocks = math.ceil(extents.m / tile[0]) * math.ceil(extents.n / tile[1]) * extents.batch
        if blocks >= device.sms:
            return Sm80Schedule(tile, warp, stages, math_)
    (tile_m, tile_n, depth), warp, stages = tiles[-1]
    taps, results = _taps_and_results(problem, sizes)
    long = taps > results and extents.k >= LONG_SUM * depth
    return Sm80Schedule((tile_m, tile_n, 32 if long else depth), warp, stages, math_)


def _splits(schedule: Sm80Schedule, extents: Extents, device: Device) -> int:
    """Parts of K: two waves of blocks where tiles alone leave the device idle, each of 16 tiles at least."""
    m, n, k = schedule.tile
    blocks = math.ceil(extents.m / m) * math.ceil(extents.n / n) * extents.batch
    if blocks >= device.sms:
        return 1
    return max(1, min(2 * device.sms // blocks, math.ceil(extents.k / k) // 16, MOST_SPLITS))

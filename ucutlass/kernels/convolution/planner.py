"""Which kernel computes a convolution."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from ucutlass.ir.elements import F32, TF32
from ucutlass.ir.hardware import Arch, Device
from ucutlass.ir.schedule import PartialSchedule, Warps
from ucutlass.kernels.convolution.cost import estimate, measure
from ucutlass.kernels.convolution.cost_f32 import copies_seconds, long_work_seconds
from ucutlass.kernels.convolution.match import ConvolutionPattern
from ucutlass.kernels.convolution.plan import (
    ConvolutionPlan,
    ConvolutionProblem,
    Im2colSchedule,
    RegisterTileSchedule,
    unit_dim,
)
from ucutlass.kernels.convolution.planner_algorithm import (
    FEW_CHANNELS,
    Algorithm,
    summed_channel,
    taps_and_results,
)
from ucutlass.kernels.convolution.planner_tma import (
    by_groups,
    cheapest,
    maths_of,
    tma_algorithms,
    windows_over_channels,
)
from ucutlass.kernels.convolution.problem import convolution_problem
from ucutlass.kernels.convolution.rules import (
    EXTENT_RULES,
    MOST,
    NO_REGISTER_TILE_RULES,
    VARIANT_RULES,
    ChosenWord,
    ConvolutionCase,
    NoRegisterTile,
    ScheduleBounds,
)
from ucutlass.kernels.convolution.schedule import chosen_word, request_of, resolve
from ucutlass.kernels.convolution.schedule_direct import direct, prepared_tile, taps_of
from ucutlass.kernels.convolution.schedule_im2col import in_parts
from ucutlass.kernels.convolution.schedule_multistage import COPY_BYTES, multistage
from ucutlass.kernels.convolution.variants import VARIANTS
from ucutlass.kernels.gemm.plan import Sm80Schedule
from ucutlass.kernels.planned import Note, Planned
from ucutlass.kernels.rule import broken
from ucutlass.kernels.violation import Violation, foreign_to

GATHERED = ("f16", "bf16", "tf32", "f32")
"""Compute types of the kernel that gathers tiles; others multiply and add directly."""


@dataclass(frozen=True, slots=True)
class FewChannelsPrice:
    """What few channels take, as shares of the prices, which are fitted to many channels and to f32: `gathered` by TMA,
    without copies; by the `multistage` kernel; by a register `tile`; by one whose `warps` multiply."""

    gathered: float
    multistage: float
    tile: float
    warps: float = 1.0


SHARES: Mapping[str, FewChannelsPrice] = MappingProxyType(
    {"f32": FewChannelsPrice(1.25, 1.0, 1.0), "tf32": FewChannelsPrice(2.1, 0.85, 1.1, 1.15)}
)
"""By compute type. The register tile's prices are f32's own; that threads which round operands to TF32 take 1.1 times as long
rests on one layer, on an H100. The others' layers are not recorded. Warps have to gain 15 % by their estimate, which is
exact to a fifth."""

SHARE_OF_16_BITS = FewChannelsPrice(1.7, 0.7, 0.85)
"""Of all other compute types: by TMA as an H100 took, by the multistage kernel and register tiles as an H200 did (four layers
each: 0.43 to 0.78, and 0.83 to 0.93)."""

FEW_IN_GROUPS = 8
"""Channels of a group up to which plain threads compute it where positions lie innermost."""

MOST_SUMMED = 512
"""Products of a result up to which a window's taps may count as channels, and threads may have
register tiles."""

TALL, SHORT = 128, 32
"""Rows of a tile of which as many as SMs make copies of ragged channels pay, and the most channels of those."""

MOST_RAGGED = 48
"""Channels that are no whole rows up to which the multistage kernel is taken."""


def plan_convolution(
    pattern: ConvolutionPattern,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    request: PartialSchedule,
    aligned: tuple[bool, ...] | None = None,
) -> Planned | tuple[Violation, ...]:
    """The kernel of a convolution for these extents, or why there is none. Raises Refused."""
    algorithm = chosen_algorithm(pattern, sizes, arch, device, request, aligned)
    if not isinstance(algorithm, Algorithm):
        return algorithm
    return planned_by(algorithm, pattern, sizes, arch, device, request)


def chosen_algorithm(
    pattern: ConvolutionPattern,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    request: PartialSchedule,
    aligned: tuple[bool, ...] | None = None,
) -> Algorithm | tuple[Violation, ...]:
    """Returns the algorithm for these extents that a schedule leaves open, or why there is none. Raises Refused."""
    if foreign := foreign_to(request, VARIANTS, "a convolution"):
        return (foreign,)
    if too_large := broken(EXTENT_RULES, ConvolutionCase(pattern, sizes)):
        return too_large
    untiled = _is_untiled(pattern, sizes)
    word = chosen_word(request, untiled)
    if untiled and word not in (None, "direct"):
        why = "no two results of a tile would share both operands"
        return broken(VARIANT_RULES, ChosenWord(word, why))
    if request.columns is not None:
        tile = prepared_tile(pattern, sizes, device, aligned, request)
        if isinstance(tile, str):
            return broken(NO_REGISTER_TILE_RULES, NoRegisterTile(tile))
        return tile
    if word == "direct" and not untiled and any(o.reduce is not None for o in pattern.epilogue.outputs):
        return broken(VARIANT_RULES, ChosenWord(word, "plain threads reduce nothing of the result"))
    if (
        untiled
        or word == "direct"
        or (not request.fixed() and _are_few_in_groups(pattern, sizes, arch, device, aligned))
    ):
        return direct(pattern, sizes, device, aligned, request)
    usual = _tiled(pattern, sizes, arch, device, aligned, request, word)
    if not isinstance(usual, Algorithm):
        return usual
    return _of_few_channels(usual, pattern, sizes, arch, device, aligned, word, request)


def planned_by(
    algorithm: Algorithm,
    pattern: ConvolutionPattern,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    request: PartialSchedule,
) -> Planned | tuple[Violation, ...]:
    """Returns the kernel of an algorithm with what a schedule fixes, or the rules that are broken."""
    problem = algorithm.problem
    extents = measure(problem, sizes)
    bounds = ScheduleBounds(
        problem,
        sizes,
        (extents.m, extents.n, extents.k, extents.batch),
        arch,
        device,
        partial(taps_of, pattern, problem, sizes),
    )
    scheduled = resolve(bounds, algorithm.schedule, algorithm.splits, request)
    if isinstance(scheduled[0], Violation):
        return scheduled
    schedule, launch = scheduled
    price = estimate(problem, schedule, sizes, arch, device, launch)
    plan = ConvolutionPlan(arch.name, problem, schedule)
    own_request = request_of(schedule, launch)
    if request.fold == "no":
        own_request = replace(own_request, fold="no")
    return Planned(plan, launch, sizes, own_request, device, price, algorithm.notes)


def _is_untiled(pattern: ConvolutionPattern, sizes: tuple[int, ...]) -> bool:
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
    pattern: ConvolutionPattern,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    aligned: tuple[bool, ...] | None,
) -> bool:
    """Whether groups have so few channels that plain threads are faster than tiles: an H100 took 58 us for 421 with 4 of
    bf16 and 34 for 107 with 8 of TF32 where positions lie innermost. Where channels do, groups of 4 in TF32 share tiles if they
    can, for which an H200 took 25 us for 68; others took an H100 155 us for 519."""
    if any(o.reduce is not None for o in pattern.epilogue.outputs):
        return False
    problem = convolution_problem(pattern, sizes, aligned, apart=True)
    channel = summed_channel(problem, sizes)
    batch = {d for run in problem.batch for d in run}
    plain = [{a.extent for a in o.axes if a.window is None} for o in (problem.a, problem.b)]
    taps, results = taps_and_results(problem, sizes)
    if channel is None or not batch & plain[0] & plain[1] or problem.b.windows or taps > results:
        return False
    windows = [a.window for a in problem.a.axes if a.window is not None]
    if any(w.scale > 1 or any(abs(c) > 1 for _, c in w.terms) for w in windows):
        return False
    if unit_dim(problem.a) == channel:
        few = sizes[channel] <= FEW_IN_GROUPS // 2 and problem.a.elem.bytes == F32.bytes
        return few and not (arch.wgmma and isinstance(by_groups(pattern, sizes, device, aligned), Algorithm))
    return sizes[channel] <= FEW_IN_GROUPS


def _ends_within_rows(problem: ConvolutionProblem, sizes: tuple[int, ...], device: Device) -> bool:
    """Whether channels of 16 bits are few and would be copied, as they end within the 16 bytes that TMA's strides are
    multiples of: the multistage kernel reads them as they lie, or fewer of them copied; an H100 took 0.5 to 0.6 of the
    time. Where they are innermost, copies fill rows of 64 bytes and tall tiles all SMs, copies pay: an H200 took 59 us
    for 97 with 18 channels and 52 for 127 with 26, but 28 for 24 with 36. TMA alone reads no taps that a divided window
    lacks: an H200 took 11 us for 38 with 36."""
    channel = summed_channel(problem, sizes)
    divided = any(axis.window is not None and axis.window.scale > 1 for axis in problem.a.axes)
    if channel is None or problem.compute_type.bytes != 2 or divided:
        return False
    channels, innermost = sizes[channel], unit_dim(problem.a) == channel
    tall = math.prod(sizes[d] for d in problem.m) >= TALL * device.sms
    if innermost and channels <= SHORT and tall:
        return False
    most = MOST_RAGGED if innermost else MOST_RAGGED // 2
    return FEW_CHANNELS < channels <= most and 2 * channels % 16 > 0 and 2 * channels % COPY_BYTES == 0


def _has_few_channels(problem: ConvolutionProblem, sizes: tuple[int, ...]) -> bool:
    """Whether few channels are summed, and windows have fewer taps than results: a gradient of weights has more, or
    windows that are one beside the other, of patches."""
    channel = summed_channel(problem, sizes)
    few = (channel is None or sizes[channel] <= FEW_CHANNELS) and not _are_patches(problem, sizes)
    taps, results = taps_and_results(problem, sizes)
    return few and taps <= results and math.prod(sizes[d] for d in problem.k) <= MOST_SUMMED


def _are_patches(problem: ConvolutionProblem, sizes: tuple[int, ...]) -> bool:
    """Whether the positions that are summed are so far from each other as a window's results are long."""
    terms = [axis.window.terms for axis in problem.a.axes if axis.window is not None]
    return any(
        step >= sizes[result] > 1
        for window in terms
        for summed, step in window
        for result, _ in window
        if summed in problem.k and result not in problem.k
    )


def _tiled(
    pattern: ConvolutionPattern,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    aligned: tuple[bool, ...] | None,
    request: PartialSchedule,
    warps: Warps | None,
) -> Algorithm | tuple[Violation, ...]:
    """Hopper's kernel where TMA gathers the problem, in f32 where that is estimated faster, else the multistage
    one; or the one that `warps` means, or why that cannot be."""
    whole = convolution_problem(pattern, sizes, aligned)
    if warps is None and not request.fixed() and _ends_within_rows(whole, sizes, device):
        warps = "multistage"
    hopper: Algorithm | str = "before Hopper"
    if arch.wgmma and warps != "multistage":
        hopper = cheapest(tma_algorithms(pattern, sizes, device, aligned, whole.compute_type, request))
    if not isinstance(hopper, str) and (warps == "cooperative" or whole.compute_type != F32):
        return hopper
    if warps == "cooperative":
        return broken(VARIANT_RULES, ChosenWord(warps, str(hopper)))
    if request.math in ("f16x3", "f16"):
        return broken(VARIANT_RULES, ChosenWord("multistage", "f16 passes are of TMA and wgmma"))
    other = multistage(whole, sizes, device)
    if isinstance(hopper, str):
        why = hopper
    elif hopper.seconds <= other.seconds:
        return hopper
    else:
        why = (
            f"TMA and wgmma would take {1e6 * hopper.seconds:.0f} us with what they need copied, "
            f"this {1e6 * other.seconds:.0f}"
        )
    note = Note("", "multistage", f"tiles are gathered by cp.async: {why}")
    return replace(other, notes=(note, *other.notes))


def _of_few_channels(
    usual: Algorithm,
    pattern: ConvolutionPattern,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    aligned: tuple[bool, ...] | None,
    word: Warps | None,
    request: PartialSchedule,
) -> Algorithm:
    """The kernel that was chosen for any number of channels, or, of few, a cheaper one: windows whose taps count as
    channels, or a register tile where nothing of the schedule is fixed."""
    if not arch.wgmma or usual.problem.b.windows or not _has_few_channels(usual.problem, sizes):
        return usual
    compute_type, gathered = usual.problem.compute_type, isinstance(usual.schedule, Im2colSchedule)
    if gathered and (compute_type not in (F32, TF32) or usual.problem.a.pack is None):
        return usual  # TMA gathers the channels as they are
    candidates = [usual]
    if word in (None, "cooperative") and request.fold is None:
        open_maths = maths_of(request, compute_type)
        # A tile's depth says which passes it is of, as it does when the schedule is read again.
        for math_ in open_maths if compute_type == TF32 or request.tile is not None else (request.math,):
            whole = in_parts(convolution_problem(pattern, sizes, aligned), math_)
            folds = whole if isinstance(whole, str) else windows_over_channels(whole, sizes, device, "yes")
            candidates += [] if isinstance(folds, str) else [folds]
    if not request.fixed():
        tile = prepared_tile(pattern, sizes, device, aligned, request)
        candidates += [] if isinstance(tile, str) else [tile]
    # The prices of TF32 by TMA have it, those of f32 do not.
    work = long_work_seconds(usual.problem, sizes, device) if compute_type == TF32 else 0.0
    return min(candidates, key=lambda c: _seconds_of_few_channels(c, work, sizes, device))


def _seconds_of_few_channels(
    algorithm: Algorithm, work: float, sizes: tuple[int, ...], device: Device
) -> float:
    """The price of few channels, with copies; `work` is the time of long functions of a register tile's results."""
    share = SHARES.get(algorithm.problem.compute_type.name, SHARE_OF_16_BITS)
    match algorithm.schedule:
        case Im2colSchedule(math="f16"):
            return algorithm.seconds
        case Im2colSchedule(math="tensor", fold=False) if algorithm.problem.compute_type == TF32:
            return algorithm.seconds
        case Im2colSchedule(halo=0):
            copies = copies_seconds(algorithm.problem, sizes, device)
            return share.gathered * (algorithm.seconds - copies) + copies
        case Sm80Schedule():
            return share.multistage * algorithm.seconds
        case RegisterTileSchedule(tensor=tensor):
            return (share.warps if tensor else share.tile) * algorithm.seconds + work
        case _:
            return algorithm.seconds

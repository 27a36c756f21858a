"""The algorithms in which TMA gathers a convolution's operands, each with its price."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

from ucutlass.ir.elements import BF16, F16, F32, TF32, Element
from ucutlass.ir.hardware import Device
from ucutlass.ir.schedule import Fold, Math, PartialSchedule
from ucutlass.kernels.convolution.cost_f32 import copies_seconds, im2col_seconds, tiles_of_runs
from ucutlass.kernels.convolution.match import ConvolutionPattern, exchanged
from ucutlass.kernels.convolution.plan import ConvolutionProblem, Im2colSchedule
from ucutlass.kernels.convolution.plan_im2col import MOST_SPACE, Im2col, im2col
from ucutlass.kernels.convolution.plan_wgrad import WgradAccess
from ucutlass.kernels.convolution.planner_algorithm import FEW_CHANNELS, Algorithm, copies_note
from ucutlass.kernels.convolution.problem import convolution_problem
from ucutlass.kernels.convolution.schedule_groups import joined_groups, with_joined_columns
from ucutlass.kernels.convolution.schedule_im2col import (
    BYTES,
    folded,
    has_short_rows,
    in_parts,
    prepared,
    schedule_of,
    schedule_of_runs,
    stacked,
)
from ucutlass.kernels.convolution.schedule_multistage import multistage
from ucutlass.kernels.convolution.schedule_wgrad import (
    folded_wgrad,
    prepared_k_major,
    prepared_wgrad,
    wgrad_schedule,
)
from ucutlass.kernels.planned import Note

LEFT_OPEN = frozenset({"warps", "math", "raster", "swizzle"})
"""What a schedule may fix where the planner still chooses among all algorithms; where it fixes more, it means that
whose windows are gathered as they are."""

SHORT_PART = 16
"""Channels of rows of 32 bytes in f16 parts."""

SHARE_OF_RUNS = MappingProxyType({64: 1.15, 32: 0.9})
"""The share of their price at which runs are compared, by the channels of their rows: of 64 an H200 takes 1.01 to 1.2 of
what tiles of 192 x 64 without runs take (nine layers of 64 to 192 channels)."""

NARROW_RUNS = 32
"""Columns of a tile up to which rows of 32 bytes are shared at a gain: a layer of 8 to 32 channels with windows of 27 takes
3.67 ms so on an H200, 3.88 to 4.07 by other tiles and 4.27 by a register's."""

RUN_TAPS = 5
"""Taps along the innermost window from which rows of 32 bytes are shared at a gain by wider tiles too: on an H200 nine drawn
layers of 8 to 16 channels with windows of 5 and 7 take 0.28 to 0.91 of the time of the tiles that were chosen else, ones
of 8 to 48 and 64 with windows of 3 take 1.05 and 1.08."""

SHARE_OF_MULTISTAGE, SHARE_OF_FEW = 0.21, 0.55
"""Of the multistage kernel's price in f32, what it took of narrow groups in 16 bits on an H200 (eight layers: 0.21
to 0.36), and of groups of less than 16 bytes, which it reads in parts (five layers: 0.55 to 0.70)."""

DEPTH_OF_F16 = 64
"""Products of K of a tile of f16 parts: a row of 128 bytes, as all tiles of TMA and wgmma are deep."""

AS_F16: Mapping[Element, Math] = MappingProxyType({F32: "f16x3", TF32: "f16"})
"""The word of `math` with which a compute type is multiplied as f16."""

Aligned: TypeAlias = "tuple[bool, ...] | None"


# --- the list -----------------------------------------------------------------------


def tma_algorithms(
    pattern: ConvolutionPattern,
    sizes: tuple[int, ...],
    device: Device,
    aligned: Aligned,
    compute_type: Element,
    request: PartialSchedule,
) -> list[Algorithm | str]:
    """Returns the algorithms that a schedule leaves to choose from, or why one does not serve; the first is the usual."""
    if not pattern.windowed:
        if pattern.sums_positions:
            return [by_images(pattern, sizes, device, aligned)]
        return [gathered_windows(pattern, sizes, device, aligned, "no", None)]
    if request.fold == "rows":
        return [by_runs(pattern, sizes, device, aligned)]
    if request.fold == "groups":
        return [by_groups(pattern, sizes, device, aligned, request.tile[1] if request.tile else None)]
    unfixed = request.fixed().keys() <= LEFT_OPEN
    fold = request.fold if unfixed or request.fold is not None else "no"
    usual, *others = (
        gathered_windows(pattern, sizes, device, aligned, fold, math_)
        for math_ in maths_of(request, compute_type)
    )
    beside = [
        algorithm(pattern, sizes, device, aligned)
        for type_, maths, algorithm in BESIDE
        if unfixed and type_ == compute_type and request.math in maths
    ]
    return [usual, *(other for other in others if _holds(other, request)), *beside]


def cheapest(algorithms: Sequence[Algorithm | str]) -> Algorithm | str:
    """Returns the algorithm of the lowest price, or why there is none."""
    served = [a for a in algorithms if not isinstance(a, str)]
    return min(served, key=_compared_seconds) if served else algorithms[0]


def _compared_seconds(algorithm: Algorithm) -> float:
    schedule = algorithm.schedule
    share = 1.0
    if isinstance(schedule, Im2colSchedule) and schedule.halo > 0 and schedule.math == "f16x3":
        share = SHARE_OF_RUNS.get(schedule.part, 1.0)
    return share * algorithm.seconds


def maths_of(request: PartialSchedule, compute_type: Element) -> tuple[Math | None, ...]:
    """Returns the passes of wgmma that a schedule leaves to choose from. A tile is as deep as a row of TMA's: twice as deep in
    f16 parts."""
    in_f16 = AS_F16.get(compute_type)
    if request.math is not None or in_f16 is None:
        return (request.math,)
    if request.tile is not None:
        return (in_f16,) if request.tile[2] == DEPTH_OF_F16 else (None,)
    return (None, in_f16)


def _holds(algorithm: Algorithm | str, request: PartialSchedule) -> bool:
    """Whether the kernel of TMA and wgmma has room for the stages and blocks that a schedule fixes."""
    if isinstance(algorithm, str) or not isinstance(algorithm.schedule, Im2colSchedule):
        return True
    schedule = algorithm.schedule
    return (request.stages or 0) <= schedule.stages and request.blocks in (None, schedule.blocks)


# --- windows as they are --------------------------------------------------------------


def gathered_windows(
    pattern: ConvolutionPattern,
    sizes: tuple[int, ...],
    device: Device,
    aligned: Aligned,
    fold: Fold | None,
    math_: Math | None,
) -> Algorithm | str:
    """Returns a kernel of TMA and wgmma, its operands as the program has them, read along other positions, or
    exchanged; or why the first of these has none."""
    problems = [convolution_problem(pattern, sizes, aligned)]
    others = convolution_problem(pattern, sizes, aligned, positions=True)
    if others != problems[0]:
        problems.append(others)
    if pattern.b.windowed and not pattern.a.windowed:
        problems.append(convolution_problem(exchanged(pattern), sizes, aligned))
    return _first(_of_windows(problem, sizes, device, fold, math_) for problem in problems)


def _first(algorithms: Iterable[Algorithm | str]) -> Algorithm | str:
    """The first that serves, or why the first of all does not."""
    reason = ""
    for algorithm in algorithms:
        if not isinstance(algorithm, str):
            return algorithm
        reason = reason or algorithm
    return reason


def _of_windows(
    whole: ConvolutionProblem, sizes: tuple[int, ...], device: Device, fold: Fold | None, math_: Math | None
) -> Algorithm | str:
    """A kernel of TMA and wgmma, or why none takes the problem: windows of a sum over channels, or those of
    a sum over the positions where they stand."""
    problem = in_parts(whole, math_)
    if isinstance(problem, str):
        return problem
    channels = windows_over_channels(problem, sizes, device, fold)
    if fold == "yes" or not (isinstance(channels, str) or _is_scattered(channels)):
        return channels
    by_rows = windows_over_channels(problem, sizes, device, fold, by_rows=True)
    if not isinstance(channels, str):  # an H100 took 62 us by rows in the result's order, 76 by others
        return channels if isinstance(by_rows, str) else by_rows
    gradient = [gradient_of_weights(problem, sizes, device)] if problem.compute_type != TF32 else []
    return _first([channels, *gradient, by_rows])


def _is_scattered(algorithm: Algorithm) -> bool:
    how = im2col(algorithm.problem)
    return isinstance(how, Im2col) and how.scattered


def windows_over_channels(
    problem: ConvolutionProblem,
    sizes: tuple[int, ...],
    device: Device,
    fold: Fold | None,
    by_rows: bool = False,
) -> Algorithm | str:
    """Returns the cheapest kernel of windows of a sum over channels: results between neighbours as columns where
    windows are divided, taps beside channels where `fold` says so; or why there is none."""
    divided = any(axis.window is not None and axis.window.scale > 1 for axis in problem.a.axes)
    ways = [] if fold == "yes" else [prepared(problem, sizes, by_rows)]
    if divided and not by_rows and fold in (None, "yes"):
        ways += [
            stacked(problem, sizes, axes, shortest)
            for shortest in (False, True)
            for axes in range(1, MOST_SPACE + 1)
        ]
    elif fold == "yes":
        ways = [folded(problem, sizes, by_rows)]
    return cheapest([_scheduled(way, sizes, device) for way in ways])


def _scheduled(
    way: tuple[ConvolutionProblem, Im2col] | str, sizes: tuple[int, ...], device: Device
) -> Algorithm | str:
    if isinstance(way, str):
        return way
    problem, how = way
    by_price = problem.passes == "f16" or has_short_rows(problem, how, sizes)
    price = partial(_seconds_of, problem, sizes, device) if by_price else None
    schedule = schedule_of(problem, how, sizes, device, price)
    if isinstance(schedule, str):
        return schedule
    passes = {
        "tensor": "",
        "tf32x3": " in three TF32 passes",
        "f16x3": " in three f16 passes",
        "f16": " in f16",
    }
    columns = f"; {problem.stacked} results between neighbours are columns" if problem.stacked > 1 else ""
    why = f"TMA gathers the windows, wgmma multiplies{passes[problem.passes]}{columns}"
    seconds = im2col_seconds(problem, schedule, sizes, device)
    return Algorithm(problem, schedule, 1, (Note("", "im2col", why), *copies_note(problem)), seconds)


def _seconds_of(
    problem: ConvolutionProblem, sizes: tuple[int, ...], device: Device, schedule: Im2colSchedule
) -> float:
    return im2col_seconds(problem, schedule, sizes, device)


# --- gradients of weights -------------------------------------------------------------


def gradient_of_weights(
    problem: ConvolutionProblem, sizes: tuple[int, ...], device: Device
) -> Algorithm | str:
    """Returns the kernel of a gradient of weights, of which TMA gathers the positions of windows, or why there is none."""
    gradient = prepared_wgrad(problem, sizes)
    if isinstance(gradient, str):
        return gradient
    if gradient[1].group is not None and math.prod(sizes[d] for d in problem.n) < FEW_CHANNELS:
        return "groups fill small parts of a tile"  # an H100 took 94 us for 67 with 8 channels of bf16
    ways = [w for w in (folded_wgrad(problem, sizes), gradient) if not isinstance(w, str)]
    priced = [(wgrad_schedule(*w, sizes, device), w[0]) for w in ways]
    fitting = [(priced_, ready) for priced_, ready in priced if priced_ is not None]
    if not fitting:
        return "groups do not fill a tile together"
    (clocks, splits, schedule), ready = min(fitting, key=lambda p: p[0][:2])
    unit = "mma.sync" if problem.compute_type == TF32 else "wgmma"
    passes = " in three f16 passes" if problem.passes == "f16x3" else ""
    why = f"TMA gathers the positions of windows, {unit} multiplies{passes}; {splits} parts of the sum"
    seconds = clocks / device.clock + copies_seconds(ready, sizes, device)
    return Algorithm(ready, schedule, splits, (Note("", "im2col", why), *copies_note(ready)), seconds)


def _either_way(pattern: ConvolutionPattern) -> list[ConvolutionPattern]:
    """The pattern, and with its operands exchanged where the window is the second one's."""
    turned = pattern.b.windowed and not pattern.a.windowed
    return [pattern, exchanged(pattern)] if turned else [pattern]


def _gradient_beside(
    pattern: ConvolutionPattern, sizes: tuple[int, ...], device: Device, aligned: Aligned
) -> Algorithm | str:
    return _first(
        gradient_of_weights(convolution_problem(p, sizes, aligned), sizes, device)
        for p in _either_way(pattern)
    )


def _gradient_in_f16(
    pattern: ConvolutionPattern, sizes: tuple[int, ...], device: Device, aligned: Aligned
) -> Algorithm | str:
    """As `_gradient_beside`, of f32 in three passes of f16."""
    wholes = (in_parts(convolution_problem(p, sizes, aligned), "f16x3") for p in _either_way(pattern))
    return _first(w if isinstance(w, str) else gradient_of_weights(w, sizes, device) for w in wholes)


def by_images(
    pattern: ConvolutionPattern, sizes: tuple[int, ...], device: Device, aligned: Aligned
) -> Algorithm | str:
    """Returns the kernel of a gradient of a 1x1 layer's weights that reads the positions of one image at a time, or, where
    lines would be copied, that of a copy with channels innermost, whose images have no padding between them; or why
    neither takes the problem."""
    problem = convolution_problem(pattern, sizes, aligned)
    ways = prepared_k_major(problem, sizes, aligned)
    if isinstance(ways, str):
        return ways
    copied = any(ready.a.pack is not None for ready, _, _ in ways)
    turned = [gradient_of_weights(problem, sizes, device)] if copied else []
    return cheapest([*(_by_images(*way, sizes, device) for way in ways), *turned])


def _by_images(
    problem: ConvolutionProblem, how: WgradAccess, word: int, sizes: tuple[int, ...], device: Device
) -> Algorithm | str:
    priced = wgrad_schedule(problem, how, sizes, device, word)
    if priced is None:
        return "groups do not fill a tile together"
    clocks, splits, schedule = priced
    reader = "a warp group reads" if word else "TMA reads"
    why = f"{reader} the positions of an image, wgmma multiplies rows as they lie; {splits} parts of the sum"
    notes = [Note("", "im2col", why)]
    if problem.a.pack is not None:
        copied = "A and B copied to the workspace first, lines of positions padded to 16 bytes"
        notes.append(Note("", "layout", copied))
    seconds = clocks / device.clock + copies_seconds(problem, sizes, device, early=True)
    return Algorithm(problem, schedule, splits, tuple(notes), seconds)


# --- groups that share tiles ----------------------------------------------------------


def by_groups(
    pattern: ConvolutionPattern,
    sizes: tuple[int, ...],
    device: Device,
    aligned: Aligned,
    columns: int | None = None,
) -> Algorithm | str:
    """Returns the kernel whose tiles have several groups, of so many columns together, or why it does not take the
    problem."""
    if pattern.b.windowed and not pattern.a.windowed:
        pattern = exchanged(pattern)
    whole = with_joined_columns(pattern, sizes, aligned)
    gradient = whole if isinstance(whole, str) else gradient_of_weights(whole[0], sizes, device)
    joined = joined_groups(pattern, sizes, device, aligned, columns)
    if isinstance(joined, str):
        return joined if isinstance(gradient, str) else gradient
    problem, schedule = joined
    note = Note(
        "fold", "groups", "neighbouring groups share a tile, with zeros between them in a copy of the weights"
    )
    seconds = im2col_seconds(problem, schedule, sizes, device)
    windows = Algorithm(problem, schedule, 1, (note, *copies_note(problem)), seconds)
    return windows if columns is not None else cheapest([windows, gradient])


def _shared_tiles(
    pattern: ConvolutionPattern, sizes: tuple[int, ...], device: Device, aligned: Aligned
) -> Algorithm | str:
    """The kernel whose tiles have several groups; in 16 bits where its price is less than the multistage kernel takes, which
    alone serves groups of less than 32 bytes besides, and whose price is of f32."""
    joined = by_groups(pattern, sizes, device, aligned)
    if isinstance(joined, str):
        return joined
    if joined.problem.compute_type == TF32:
        return joined
    other = multistage(convolution_problem(pattern, sizes, aligned), sizes, device)
    inner = joined.problem.a.contiguous
    few = inner is not None and sizes[inner.extent] * joined.problem.a.read.bytes < BYTES
    share = SHARE_OF_FEW if few else SHARE_OF_MULTISTAGE
    return joined if joined.seconds <= share * other.seconds else "groups have few results"


# --- taps that share rows -------------------------------------------------------------


def by_runs(
    pattern: ConvolutionPattern, sizes: tuple[int, ...], device: Device, aligned: Aligned
) -> Algorithm | str:
    """Returns the kernel of three f16 passes whose taps along the innermost window share rows, or why they cannot."""
    in_f16 = AS_F16.get(pattern.dot.compute_type)
    windows = gathered_windows(pattern, sizes, device, aligned, "no", in_f16)
    if isinstance(windows, str):
        return windows
    how = im2col(windows.problem)
    if not isinstance(windows.schedule, Im2colSchedule) or isinstance(how, str):
        return "rows are shared by windows of a sum over channels"
    runs = schedule_of_runs(windows.problem, how, sizes, device)
    if isinstance(runs, str):
        return runs
    note = Note("fold", "rows", "the taps of the innermost window share the rows that TMA gathers")
    seconds = im2col_seconds(windows.problem, runs, sizes, device)
    return replace(windows, schedule=runs, notes=(*windows.notes, note), seconds=seconds)


def _fast_runs(
    pattern: ConvolutionPattern, sizes: tuple[int, ...], device: Device, aligned: Aligned
) -> Algorithm | str:
    """The kernel whose taps share rows, with tiles for all SMs, and with fewer than 128 columns and rows of more than
    32 bytes, or few columns; others took up to 8 % longer than without on an H100."""
    runs = by_runs(pattern, sizes, device, aligned)
    if isinstance(runs, str) or not isinstance(runs.schedule, Im2colSchedule):
        return runs
    if tiles_of_runs(runs.problem, runs.schedule, sizes) < device.sms:
        return "tiles that share rows leave SMs idle"
    columns = runs.schedule.tile[1]
    if runs.problem.passes == "f16":
        return runs
    how = im2col(runs.problem)
    assert isinstance(how, Im2col)
    short = runs.schedule.part <= SHORT_PART and how.space[0].taps(sizes) < RUN_TAPS
    if columns >= 128 or (short and columns > NARROW_RUNS):
        return "rows are shared at a gain by tiles of fewer than 128 columns, and rows of more than 32 bytes"
    return runs


_Beside: TypeAlias = Callable[[ConvolutionPattern, tuple[int, ...], Device, Aligned], "Algorithm | str"]

BESIDE: tuple[tuple[Element, tuple[Math | None, ...], _Beside], ...] = (
    (F32, (None, "f16x3"), _fast_runs),
    (F32, (None, "f16x3"), _gradient_in_f16),
    (TF32, (None, "f16"), _fast_runs),
    *(
        (type_, (None,), algorithm)
        for type_ in (TF32, BF16, F16)
        for algorithm in (_gradient_beside, _shared_tiles)
    ),
)
"""Algorithms that are compared with the usual of a compute type where a schedule fixes no more than `LEFT_OPEN`, and
the words of `math` that have them."""

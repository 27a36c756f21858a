"""Lines of results below one another of a thread of the direct kernel whose neighbours are channels: it goes down them, so
that it reads a line of the input once for all taps across lines."""

from __future__ import annotations

import itertools
import math
from collections.abc import Set
from dataclasses import dataclass, replace

from ucutlass.ir.elements import TF32
from ucutlass.ir.hardware import Device
from ucutlass.kernels.convolution.plan import (
    ConvolutionProblem,
    DirectSchedule,
    Slide,
    across_mode,
    line_mode,
    slide,
)
from ucutlass.kernels.convolution.rules import MOST_LINE_SUMS, MOST_LINES

MANY_RESULTS = 8192
"""Of an SM, from which lines pay: of 17 layers on an H200 eleven of more results took 0.46 to 0.99 of the time of the fastest
kernel without lines, and six of fewer 1.0 to 1.3."""

MOST_BYTES = 8
"""Of neighbouring channels that a thread reads together; 16 took an H200 as long or longer."""

ROWS, PARTS = (8, 7, 4, 2), (1, 2, 4, 8)
"""Results along a line, and parts of all lines, that are tried; a line's own may be `WASTE` of it at most."""

WASTE = 1.2

MOST_REGISTERS = 200
"""Of a thread by their estimate, so that none are spilled."""


@dataclass(frozen=True, slots=True)
class LinesModel:
    """Registers besides those of sums, weights and what is read; instructions of an element of the input, of a result that is
    stored and of a line; clocks of the weights' loads and of a line's; the share of reads that miss an SM's cache; bytes
    a second of L2 and of memory. Chosen by hand; of 17 layers on an H200 its choice took 1.05 of the fastest timed."""

    registers: int = 34
    load: float = 5.0
    store: float = 12.0
    line: float = 25.0
    begin: float = 1500.0
    latency: float = 700.0
    missed: float = 0.5
    l2: float = 0.85
    memory: float = 0.87


MODEL = LinesModel()


@dataclass(frozen=True, slots=True)
class LineWindows:
    """The windows `along` lines of results and `down` from line to line, their taps, and the results of both modes."""

    along: Slide
    down: Slide
    taps: int
    item_taps: int
    results: int
    lines: int

    @property
    def begun(self) -> int:
        """The lines of results of which a thread has summed some taps."""
        return (self.item_taps - 1) // self.down.step + 1

    def positions(self, rows: int) -> int:
        """The positions of a line of the input that so many results read."""
        return (rows - 1) * self.along.step + (self.taps - 1) * self.along.tap + 1


def line_windows(problem: ConvolutionProblem, sizes: tuple[int, ...], fixed: Set[int]) -> LineWindows | None:
    """Returns the windows along whose results a thread has lines, or None: taps are all that is summed, their number is
    in the text, and those from line to line are neighbours."""
    across, lines = across_mode(problem), line_mode(problem, False)
    along, down = slide(problem, across), slide(problem, lines)
    if along is None or down is None or len(problem.k) != 2 or not set(problem.k) <= fixed:
        return None
    if along.scale > 1 or down.scale > 1 or down.tap > 1 or len(problem.a.windows) != 2:
        return None
    (result,), (line,) = problem.batch[across], problem.batch[lines]
    taps, item_taps = sizes[problem.k[along.k]], sizes[problem.k[down.k]]
    return LineWindows(along, down, taps, item_taps, sizes[result], sizes[line])


def lines_schedule(
    problem: ConvolutionProblem,
    windows: LineWindows,
    own: DirectSchedule,
    sizes: tuple[int, ...],
    device: Device,
) -> DirectSchedule | None:
    """Returns the schedule of lines of the least estimate, None where results are too few for lines to pay."""
    results = math.prod(sizes[d] for run in problem.batch for d in run)
    if results < MANY_RESULTS * device.sms:
        return None
    widths = [
        w
        for w in (1, 2, 4, 8)
        if w <= own.width and w * problem.a.elem.bytes <= max(MOST_BYTES, problem.a.elem.bytes)
    ]
    items = {math.ceil(windows.lines / parts) for parts in PARTS}
    tried = [
        replace(own, width=width, rows=rows, taps=windows.taps, items=count, threads=128, ahead=1)
        for width, rows, count in itertools.product(widths, ROWS, sorted(items))
        if math.ceil(windows.results / rows) * rows <= WASTE * windows.results
        and 1 < count <= MOST_LINES
        and windows.begun * rows * width <= MOST_LINE_SUMS
        and _registers(windows, width, rows, problem.a.elem.bytes) <= MOST_REGISTERS
    ]
    return min(tried, key=lambda s: _clocks(problem, windows, s, results, device), default=None)


def _registers(windows: LineWindows, width: int, rows: int, size: int) -> float:
    """Returns the registers of a thread: of the sums of the lines that are begun, of the weights, and of two lines that are read."""
    read = 2 * windows.positions(rows) * max(1.0, width * size / 4)
    return width * (windows.begun * rows + windows.taps * windows.item_taps) + read + MODEL.registers


def _clocks(
    problem: ConvolutionProblem, windows: LineWindows, s: DirectSchedule, results: int, device: Device
) -> float:
    """The clocks that the busiest SM takes, or L2, or memory."""
    size, width = problem.a.elem.bytes, s.width
    step, taps, positions = windows.down.step, windows.taps * windows.item_taps, windows.positions(s.rows)
    columns, parts = math.ceil(windows.results / s.rows), math.ceil(windows.lines / s.items)
    outer = results // (windows.results * windows.lines)
    held = _registers(windows, width, s.rows, size)
    resident = min(64, int(65536 / (held * s.threads)) * (s.threads // 32))
    warps = math.ceil(outer / width * columns * parts / s.threads / device.sms) * (s.threads // 32)
    lines = s.items + windows.begun - 1
    converted = width if size == 2 or problem.compute_type == TF32 else 0
    each = step * positions * (MODEL.load + converted) + taps * s.rows * width
    each += windows.begun * s.rows * width + s.rows * MODEL.store + MODEL.line
    issued = warps * lines * each / 4
    waited = math.ceil(warps / resident) * (MODEL.begin + lines * MODEL.latency)
    stored = results * size
    read = outer * size * columns * positions * parts * ((s.items - 1) * step + windows.item_taps)
    through_l2 = (MODEL.missed * read + stored) / (MODEL.l2 * device.l2_bandwidth) * device.clock
    moved = stored * (1 + step * windows.along.step)
    memory = moved / (MODEL.memory * device.bandwidth) * device.clock
    # Where several are near each other, all are felt.
    return math.sqrt(math.hypot(max(issued, waited) ** 2, through_l2**2, memory**2))

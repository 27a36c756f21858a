"""A gradient of weights on Hopper: TMA's im2col mode brings positions of windows, channels inside, wgmma
multiplies over positions, parts of K are added by a second kernel. The templates are `convolution/wgrad.cu.j2` and
the convolution's own.

Both operands lie with K outside in shared memory, as wgmma takes elements of 16 bits (PTX manual,
"Asynchronous Warpgroup Level Matrix Shared Memory Layout", MN-major). In TF32, which wgmma takes K-major alone, warps
multiply by mma.sync what they read from the same tiles. F32 is copied in f16 parts and multiplied in three passes.
"""

from __future__ import annotations

from dataclasses import dataclass

from ucutlass.emit import text
from ucutlass.emit.convolution import im2col as conv_sm90
from ucutlass.emit.convolution import operands as convolution
from ucutlass.emit.gemm import sm80_epilogue as epilogue
from ucutlass.ir.elements import TF32
from ucutlass.kernels.access import Reduction
from ucutlass.kernels.convolution.plan import ConvolutionProblem, WgradSchedule
from ucutlass.kernels.convolution.plan_wgrad import WgradAccess, padded, wgrad_access
from ucutlass.kernels.convolution.smem import CONSUMER_REGISTERS, deep, end_of_tiles, rows_staged
from ucutlass.kernels.gemm.plan import F16_CHAIN, GemmProblem

WGMMA_TYPES = ("f16", "bf16")
"""Compute types that wgmma takes with K outside."""

ROW_BYTES = (128, 64, 32)
"""Of a part's channels."""

ROW = 128
"""Bytes of positions of a stage, where these are innermost."""


@dataclass(frozen=True, slots=True)
class SpatialAxisText:
    """A spatial axis as C++; `row`: rows of the result from tap to tap, `batch` the tap where the batch has
    it."""

    step: int
    tap: int
    results: str
    taps: str
    extent: str
    offset: str
    row: str
    batch: str | None


@dataclass(frozen=True, slots=True)
class FoldedRowsText:
    """A window whose taps lie beside the channels: the channels that each has there, those of the tensor, and the rows
    of the result from tap to tap, as C++."""

    padded: str
    channels: str
    row: str


def render(problem: ConvolutionProblem, schedule: WgradSchedule) -> str:
    """The code of a plan with a WgradSchedule, for `ucutlass.emit.text.finish`.

    Raises ValueError for a problem that TMA cannot gather, or a schedule that breaks `check`'s rules.
    """
    how = wgrad_access(problem)
    if isinstance(how, str):
        raise ValueError(how)
    if reason := check(problem, schedule):
        raise ValueError(reason)
    run = f"e[{problem.a.axes[how.channel].extent}]" if how.fold is None else _run(problem, how)
    if how.joined:
        run = f"kTileN / {_own_columns(problem, how)} * {run}"
    return text.render(
        "convolution/wgrad.cu.j2",
        windows=_spatial_axes(problem, how),
        registers=schedule.tile[1] // 2,
        k_major=how.k_major,
        word=schedule.word,
        tf32_lines=problem.compute_type == TF32 and schedule.word > 0,
        positions=" * ".join(conv_sm90.extent_of(problem.a, i) for i in how.positions),
        images="1" if how.image is None else f"e[{problem.a.axes[how.image].extent}]",
        a_dims=() if how.k_major else _a_dims(problem, how),
        b_rank=3 if how.k_major else 2,
        scattered="row_table",
        masked=True,
        finishes=True,
        groups_at_once=1,
        halves=1,
        **_passes(problem, schedule),
        **_channels(problem, how, run),
        **_column_texts(problem, how),
        **_epilogue(problem, schedule, how, run),
    )


def _epilogue(
    problem: ConvolutionProblem, schedule: WgradSchedule, how: WgradAccess, run: str
) -> dict[str, object]:
    """The variables of convolutions' epilogue, whose rows are `run` channels at each tap."""
    contiguous_mode = epilogue.layout(problem.gemm).contiguous_mode
    values = convolution.values(
        problem, layout_of(problem, convolution.epilogue_gemm(problem), how), "int(row)"
    )
    end = end_of_tiles(problem, schedule, contiguous_mode)
    values |= conv_sm90.hopper_values(problem, schedule, end, values)
    if not how.k_major:
        values["modifiers"] = ", 1, 1, 1, 1"
    rows = run if how.k_major else f"ceil_div({run}, kPart) * kPart"
    taps = [axis.taps for axis in _spatial_axes(problem, how) if axis.batch is None]
    return values | {
        "stage_rows": rows_staged(problem, schedule, contiguous_mode),
        "diagonal": f"n / int(p.{_own_columns(problem, how)})" if how.joined else "",
        "synchronous": problem.compute_type == TF32 and not how.k_major,
        "row_columns": 128 // problem.b.read.bytes,
        "stage_elements": "0",
        "m": " * ".join([*taps, rows]),
    }


def _passes(problem: ConvolutionProblem, schedule: WgradSchedule) -> dict[str, object]:
    """In which passes wgmma multiplies, and who has the registers for their sums."""
    in_parts = problem.passes == "f16x3"
    return {
        "in_f16": in_parts,
        "f16x3": in_parts,
        "chain": F16_CHAIN,
        "range_blocks": conv_sm90.RANGE_BLOCKS,
        "deep": in_parts and deep(*schedule.tile[:2], schedule.groups, problem.passes),
        "consumer_registers": CONSUMER_REGISTERS.get(schedule.groups),
    }


def _channels(problem: ConvolutionProblem, how: WgradAccess, run: str) -> dict[str, object]:
    """The channels of images, of which a row of results has `run`."""
    channel = problem.a.axes[how.channel].extent
    extent = conv_sm90.extent_of(problem.a, how.channel)
    channels = extent if how.fold is None else run
    if how.k_major and how.group is not None:
        channels += f" * {conv_sm90.extent_of(problem.a, how.group)}"
    fold = how.fold
    return {
        "first_channel": _first(problem, how, extent),
        "padded_channels": extent,
        "own_channels": f"e[{channel}]",
        "channels": channels,
        "channels_real": run,
        "channel_row": _stride(problem, channel),
        "fold": None
        if fold is None
        else FoldedRowsText(extent, f"e[{channel}]", _stride(problem, fold.tap_dim)),
    }


def _own_columns(problem: ConvolutionProblem, how: WgradAccess) -> str:
    """The channels of a group of results."""
    return f"e[{problem.b.axes[how.columns[0]].extent}]"


def _column_texts(problem: ConvolutionProblem, how: WgradAccess) -> dict[str, object]:
    """The channels of results, which are the columns."""
    columns = _columns(problem, how)
    groups = "" if how.group_b is None else f" * {conv_sm90.extent_of(problem.b, how.group_b)}"
    first = "int(tile.n)" if how.joined else f"{_first(problem, how, columns)} + int(tile.n)"
    return {
        "first_column": first,
        "own_columns": _own_columns(problem, how),
        "padded_columns": conv_sm90.extent_of(problem.b, how.columns[0]),
        "columns": columns + groups,
    }


def check(problem: ConvolutionProblem, schedule: WgradSchedule) -> str:
    """Why the template cannot take this schedule, or ""."""
    m, n, k = schedule.tile
    multiplied = problem.compute_type.name in (*WGMMA_TYPES, TF32.name) or problem.passes == "f16x3"
    if not multiplied or problem.gemm.accumulate != "f32":
        return f"{problem.compute_type.name} accumulated in {problem.gemm.accumulate} is not multiplied with K outside"
    if any(isinstance(o, Reduction) for o in problem.gemm.outputs):
        return "rows that lie apart are not reduced"
    if m % (64 * schedule.groups) or n % 64 or not 64 <= n <= 256:
        return f"tile {m}x{n} is not whole instructions of {schedule.groups} groups and rows of 128 bytes"
    if schedule.word and (m, n) != (64, 64):
        return f"warps fill tiles of 64 x 64, not {m} x {n}"
    if isinstance(how := wgrad_access(problem), WgradAccess) and how.k_major:
        return "" if k * problem.a.read.bytes == ROW else f"K {k} is no row of {ROW} bytes"
    if schedule.part * problem.a.read.bytes not in ROW_BYTES or k % 16 or not 16 <= k <= 256:
        return f"parts of {schedule.part} channels are no rows of 32 to 128 bytes, or K {k} no whole steps"
    return ""


def layout_of(problem: ConvolutionProblem, gemm: GemmProblem, how: WgradAccess) -> epilogue.EpilogueLayout:
    """As the multistage GEMM's, but rows are neighbours as far as channels are, whose count is then a
    multiple of what is read together."""
    layout = epilogue.layout(gemm)
    own = how.k_major or not padded(problem.a)
    together = problem.m[-1] == problem.a.axes[how.channel].extent and own
    return layout if layout.contiguous_mode == "n" or together else epilogue.EpilogueLayout("m", 1)


# --- text -------------------------------------------------------------------------


def _stride(problem: ConvolutionProblem, dim: int | None) -> str:
    """Rows of the result between neighbours of a name."""
    if dim not in problem.m:
        return "0"
    return " * ".join(f"e[{d}]" for d in problem.m[problem.m.index(dim) + 1 :]) or "1"


def _spatial_axes(problem: ConvolutionProblem, how: WgradAccess) -> tuple[SpatialAxisText, ...]:
    return tuple(
        SpatialAxisText(
            s.step,
            s.tap,
            f"e[{s.position}]",
            "1" if s.tap_dim is None else f"e[{s.tap_dim}]",
            f"e[{s.position}]" if s.folded else conv_sm90.extent_of(problem.a, s.axis),
            convolution.spelled(s.offset),
            _stride(problem, s.tap_dim),
            None if s.tap_dim is None or s.tap_dim in problem.m else _batched(problem, s.tap_dim),
        )
        for s in how.space
    )


def _batched(problem: ConvolutionProblem, dim: int) -> str:
    """The block's coordinate along a name of the batch."""
    mode, run = next((i, run) for i, run in enumerate(problem.batch) if dim in run)
    if len(run) == 1:
        return f"int(batch[{mode}])"
    inside = " * ".join(["1", *(f"p.e[{d}]" for d in run[run.index(dim) + 1 :])])
    return f"int(batch[{mode}] / ({inside}) % p.e[{dim}])"


def _first(problem: ConvolutionProblem, how: WgradAccess, each: str) -> str:
    """The first channel or column of the block's group, or of those that it has together."""
    if how.group is None:
        return "0"
    if how.joined:
        return "int(tile.n / kTileN) * plan.channels"
    return f"{_batched(problem, problem.a.axes[how.group].extent)} * int({each.replace('e[', 'p.e[')})"


def _columns(problem: ConvolutionProblem, how: WgradAccess) -> str:
    """Columns of a group as they lie."""
    return " * ".join(conv_sm90.extent_of(problem.b, i) for i in how.columns)


def _a_dims(problem: ConvolutionProblem, how: WgradAccess) -> tuple[conv_sm90.DimText, ...]:
    axes = (how.channel, tuple(s.axis for s in how.space), how.image, how.group)
    dims = conv_sm90.windowed_dims(problem, *axes)
    if how.fold is None:
        return dims
    run = conv_sm90.DimText(f"cuuint64_t({_run(problem, how)})", "", "", "")
    places = conv_sm90.DimText(
        f"cuuint64_t(e[{how.fold.position}])", f"{how.fold.step} * {dims[1].stride}", "", ""
    )
    return (run, places, *dims[2:])


def _run(problem: ConvolutionProblem, how: WgradAccess) -> str:
    """The channels of all taps of a folded window, as they lie."""
    assert how.fold is not None
    return f"e[{how.fold.tap_dim}] * ({convolution.layout(problem.a)[0].extent})"

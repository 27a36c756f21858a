"""Legality of grouped, dual, mixed-input and blockwise-scaled GEMMs: what the kernel of TMA and wgmma takes, and
the rules of its schedule."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ucutlass.ir.elements import F32
from ucutlass.ir.hardware import Arch
from ucutlass.ir.schedule import PartialSchedule, show_value
from ucutlass.kernels.access import Access
from ucutlass.kernels.grouped_gemm.plan import CLUSTERS, GroupedGemmProblem, WgmmaSchedule
from ucutlass.kernels.grouped_gemm.smem import most_stages, promotes
from ucutlass.kernels.rule import Breach, Rule


@dataclass(frozen=True, slots=True)
class WgmmaCase:
    """A problem with its extents and target, before it has a schedule, and the fields that the program fixed."""

    problem: GroupedGemmProblem
    sizes: tuple[int, ...]
    arch: Arch
    request: PartialSchedule


@dataclass(frozen=True, slots=True)
class WgmmaCandidate:
    """A problem with its extents, and a schedule."""

    problem: GroupedGemmProblem
    sizes: tuple[int, ...]
    schedule: WgmmaSchedule


def depths(problem: GroupedGemmProblem) -> tuple[int, ...]:
    """K of tiles: 128 bytes of the compute type; of weights that are widened two such, so that rows of 4 bits have
    64 bytes as those of 8 have."""
    depth = 128 // problem.compute_type.bytes
    return (depth, 2 * depth) if problem.converts else (depth,)


# --- what the kernel takes ------------------------------------------------------------------


def _arch(c: WgmmaCase) -> str:
    return "" if c.arch.wgmma else f"{c.arch.name} has no wgmma"


def _compute_type(c: WgmmaCase) -> str:
    if c.problem.gemm.compute_type != F32:
        return ""
    return "f32 is multiplied by plain threads; tf32(..) around the operands chooses tensor cores"


def _modes(c: WgmmaCase) -> str:
    if c.problem.gemm.a.m is None or any(b.n is None for b in _rights(c.problem)):
        return "a product without rows or without columns is no tile"
    return ""


def _layout(c: WgmmaCase) -> str:
    compute_type = c.problem.gemm.compute_type
    for access in (c.problem.gemm.a, *_rights(c.problem)):
        if not access.contiguous or access.align * access.elem.bits < 128:
            return f"operand {access.pointer} is not aligned to 16 bytes along one of its names"
        if (compute_type.bytes != 2 or access.elem.bits <= 8) and access.contiguous != "k":
            return f"{access.elem.name} operands are read along the contracted name alone"
    return ""


def _orders(c: WgmmaCase) -> str:
    problem, orders = c.problem, _orders_of(c.problem)
    if len(set(orders[1:])) > 1:
        return "the two right operands lie in different orders"
    if problem.scaled is not None and any(order != "k" for order in orders):
        return "operands with scaled parts are read along the contracted name alone"
    return ""


def _ragged(c: WgmmaCase) -> str:
    ragged = c.problem.ragged
    if ragged is not None and ragged.mode == "k" and "k" in _orders_of(c.problem):
        return "rows that are summed by groups are read across, not along, the contracted name"
    if ragged is not None and ragged.mode == "m" and c.problem.gemm.a.contiguous == "m":
        # A group may begin anywhere; elsewhere the hardware faults, as an illegal instruction.
        return "TMA loads begin at multiples of 16 bytes, and groups of rows that lie innermost do not"
    return ""


def _parts(c: WgmmaCase) -> str:
    tiles = [(64, n, k) for k in depths(c.problem) for n in (64, 128)]
    reasons = [why_unscaled(c.problem, c.sizes, tile) for tile in tiles]
    return "" if "" in reasons else reasons[0]


def _rights(problem: GroupedGemmProblem) -> tuple[Access, ...]:
    return (problem.gemm.b,) if problem.second is None else (problem.gemm.b, problem.second)


def _orders_of(problem: GroupedGemmProblem) -> list[str | None]:
    """The mode along which each operand is contiguous, A's first."""
    return [access.contiguous for access in (problem.gemm.a, *_rights(problem))]


def why_unscaled(problem: GroupedGemmProblem, sizes: tuple[int, ...], tile: tuple[int, int, int]) -> str:
    """Why a tile does not go with the parts of K and their scales, "" where it does."""
    if problem.scaled is None:
        return ""
    length = math.prod(sizes[i] for i in problem.scaled.length)
    if length % tile[2]:
        return f"parts of {length} elements are no whole tiles of {tile[2]}"
    for scale in (s for factor in problem.scaled.factors for s in factor if s.mode == "n"):
        block = math.prod(sizes[i] for i in scale.within)
        if scale.within and scale.stride is not None and block % tile[1]:
            return f"a tile of {tile[1]} columns meets several scales, each for {block}"
    return ""


# --- schedules ------------------------------------------------------------------------------


def _tile_m(c: WgmmaCandidate) -> str:
    m, rows, warps = c.schedule.tile[0], _rows(c.schedule), c.schedule.warps
    return f"M of a tile is a multiple of {rows} for `warps {warps}`, not {m}" if m % rows else ""


def _tile_n(c: WgmmaCandidate) -> str:
    n, step = c.schedule.tile[1], 32 if c.problem.gemm.b.contiguous == "k" else 64
    return f"N of a tile is a multiple of {step}, not {n}" if n % step else ""


def _tile_k(c: WgmmaCandidate) -> str:
    k, legal = c.schedule.tile[2], depths(c.problem)
    return "" if k in legal else f"K of a tile is {' or '.join(map(str, legal))}, not {k}"


def _width(c: WgmmaCandidate) -> str:
    n, products = c.schedule.tile[1], c.problem.products
    if n * products <= 256:
        return ""
    return f"{products} products of {n} columns are wider than an instruction's 256"


def _most_m(c: WgmmaCandidate) -> str:
    m = c.schedule.tile[0]
    return f"M of a tile is at most 256, not {m}" if m > 256 else ""


def _registers(c: WgmmaCandidate) -> str:
    m, n, _ = c.schedule.tile
    registers = m // _rows(c.schedule) * (n * c.problem.products) // 2
    most = 64 if promotes(c.problem.gemm) or c.problem.scaled is not None else 128
    return f"a thread would hold {registers} sums, at most {most} fit" if registers > most else ""


def _widened_m(c: WgmmaCandidate) -> str:
    m, rows, warps = c.schedule.tile[0], _rows(c.schedule), c.schedule.warps
    if not c.problem.converts or m == rows:
        return ""
    return f"M of a tile whose A is widened is {rows} for `warps {warps}`, not {m}"


def _cluster(c: WgmmaCandidate) -> str:
    m, n = c.schedule.cluster
    return "" if (m, n) in CLUSTERS else f"a cluster is 1x1, 2x1 or 1x2, not {m}x{n}"


def _scaled(c: WgmmaCandidate) -> str:
    return why_unscaled(c.problem, c.sizes, c.schedule.tile)


def _sliced(c: WgmmaCandidate) -> str:
    if c.schedule.warps != "sliced" or c.problem.converts:
        return ""
    return "`warps sliced` is for weights narrower than what they are multiplied with"


def why_unsliced(problem: GroupedGemmProblem, sizes: tuple[int, ...], schedule: WgmmaSchedule) -> str:
    """Why the steps of K of a tile cannot be taken in turns, "" where they can."""
    if schedule.warps != "sliced" or problem.scaled is None:
        return ""
    length = math.prod(sizes[i] for i in problem.scaled.length)
    return (
        ""
        if length == schedule.tile[2]
        else f"each step of K has scales of its own, parts of {length} have not"
    )


def _slices(c: WgmmaCandidate) -> str:
    return why_unsliced(c.problem, c.sizes, c.schedule)


def _split(c: WgmmaCandidate) -> str:
    s, problem = c.schedule, c.problem
    if s.parts == 1:
        return ""
    if problem.ragged is not None:
        return "parts of K are added without ragged groups"
    if s.warps == "pingpong":
        return (
            "parts of K are for `warps cooperative` and `warps sliced`, whose blocks have one tile at a time"
        )
    blocks = math.prod(s.cluster) * s.parts
    return f"{blocks} blocks are no cluster, at most {MOST_BLOCKS} are" if blocks > MOST_BLOCKS else ""


def why_undivided(problem: GroupedGemmProblem, sizes: tuple[int, ...], schedule: WgmmaSchedule) -> str:
    """Why K cannot be cut into the schedule's parts, "" where it can."""
    count = units(problem, sizes, schedule)
    return f"K has {count} steps for {schedule.parts} parts" if 1 < schedule.parts > count else ""


def units(problem: GroupedGemmProblem, sizes: tuple[int, ...], schedule: WgmmaSchedule) -> int:
    """Returns what K is cut at: tiles, or the parts that have scales of their own."""
    length = (
        schedule.tile[2] if problem.scaled is None else math.prod(sizes[i] for i in problem.scaled.length)
    )
    return -(-math.prod(sizes[i] for i in problem.gemm.k[0]) // length)


def _undivided(c: WgmmaCandidate) -> str:
    return why_undivided(c.problem, c.sizes, c.schedule)


def _stages(c: WgmmaCandidate) -> str:
    most, stages = most_stages(c.problem, c.schedule), c.schedule.stages
    if 2 <= stages <= most:
        return ""
    shown = f"{stages} stages of {show_value(c.schedule.tile)}"
    return f"{shown} do not fit beside the epilogue, at most {most} do"


def _rows(schedule: WgmmaSchedule) -> int:
    """Rows of a tile that one instruction of each of its warp groups covers."""
    return 128 if schedule.warps == "cooperative" else 64


MOST_BLOCKS = 8
"""Of a portable cluster."""

# --- the tables -----------------------------------------------------------------------------

_PTX = "PTX ISA, wgmma.mma_async"
_TMA = "cuTensorMapEncodeTiled: globalAddress, globalStrides"
_NOT_TAKEN = "a schedule that the kernel of grouped and dual GEMMs does not take"


def _of_case(title: str, source: str, reason: Callable[[WgmmaCase], str]) -> Rule[WgmmaCase]:
    def check(c: WgmmaCase) -> Breach | None:
        if not (why := reason(c)):
            return None
        return Breach(
            f"the Hopper kernel, whose fields these are, cannot take this: {why}",
            "leave the schedule out, or change the operands",
            tuple(c.request.fixed()),
            PartialSchedule(),
        )

    return Rule("UC0332", title, _NOT_TAKEN, source, check, frozenset({"products"}))


def _of_schedule(title: str, source: str, reason: Callable[[WgmmaCandidate], str]) -> Rule[WgmmaCandidate]:
    def check(c: WgmmaCandidate) -> Breach | None:
        why = reason(c)
        return Breach(why, "leave the field out, or take the nearest") if why else None

    return Rule("UC0332", title, _NOT_TAKEN, source, check, frozenset({"products"}))


WGMMA_RULES: tuple[Rule[WgmmaCase], ...] = (
    _of_case("architecture", _PTX, _arch),
    _of_case("compute type", _PTX, _compute_type),
    _of_case("rows and columns", _PTX, _modes),
    _of_case("operands' alignment and order", _TMA, _layout),
    _of_case("orders of the operands", _PTX, _orders),
    _of_case("ragged operands", _TMA, _ragged),
    _of_case("scaled parts", "emit/grouped_gemm: parts of K are whole tiles", _parts),
)
"""Problems that break one are multiplied by plain threads."""

TILE_RULES: tuple[Rule[WgmmaCandidate], ...] = (
    _of_schedule("tile M", _PTX, _tile_m),
    _of_schedule("tile N", "cuTensorMapEncodeTiled: swizzled boxes", _tile_n),
    _of_schedule("tile K", "cuTensorMapEncodeTiled: swizzled boxes of 128 bytes", _tile_k),
    _of_schedule("columns of an instruction", _PTX, _width),
    _of_schedule("largest tile M", "cuTensorMapEncodeTiled: boxDim", _most_m),
    _of_schedule("accumulator registers", "CUDA C++ Programming Guide: 255 registers a thread", _registers),
    _of_schedule("tile M of widened weights", "emit/grouped_gemm: A in registers", _widened_m),
    _of_schedule("cluster", "emit/grouped_gemm: multicast of one operand", _cluster),
    _of_schedule("steps of K in turns", "emit/grouped_gemm: A in registers", _sliced),
    _of_schedule("parts of K", "CUDA C++ Programming Guide: clusters of 8 blocks are portable", _split),
)

SCHEDULE_RULES: tuple[Rule[WgmmaCandidate], ...] = (
    *TILE_RULES,
    _of_schedule("tiles of scaled parts", "emit/grouped_gemm: a tile has one scale", _scaled),
    _of_schedule("scales of steps in turns", "emit/grouped_gemm: a step has one scale", _slices),
    _of_schedule("steps of parts of K", "emit/grouped_gemm: each part has a step", _undivided),
    _of_schedule(
        "stages and shared memory", "CUDA C++ Programming Guide: 227 KiB of shared memory a block", _stages
    ),
)
"""In the order in which they are asked: the first that is broken is reported, with the nearest legal schedule."""

RULES: tuple[Rule[Any], ...] = (*WGMMA_RULES, *SCHEDULE_RULES)

_REASONS = (_arch, _compute_type, _modes, _layout, _orders, _ragged, _parts)


def why_not_wgmma(problem: GroupedGemmProblem, sizes: tuple[int, ...], arch: Arch) -> str:
    """The first reason why the kernel does not take a problem, "" where it does."""
    case = WgmmaCase(problem, sizes, arch, PartialSchedule())
    return next((why for reason in _REASONS if (why := reason(case))), "")


def why_illegal(problem: GroupedGemmProblem, schedule: WgmmaSchedule) -> str:
    """Why a tile or a cluster cannot be, "" where it can."""
    candidate = WgmmaCandidate(problem, (), schedule)
    return next((b.message for rule in TILE_RULES if (b := rule.check(candidate))), "")

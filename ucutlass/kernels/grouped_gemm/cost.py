"""How long a grouped GEMM takes, and what its launch counts.

How long groups are is known on the device alone: tiles are counted as if each group but its last tile were
full, and half a tile were lost in each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

from ucutlass.ir.hardware import ARCHES, Arch, Device, clusters_at_a_time
from ucutlass.kernels.gemm import cost as gemm_cost
from ucutlass.kernels.gemm.plan import LaunchParameters, Route, Sm90Schedule, epilogue_tensors
from ucutlass.kernels.gemm.problem import ceil_div, shape_of
from ucutlass.kernels.gemm.schedule import GemmCandidate
from ucutlass.kernels.grouped_gemm.plan import (
    CLUSTERS,
    GroupedGemmPlan,
    GroupedGemmProblem,
    GroupedGemmSchedule,
    SimtSchedule,
    WgmmaSchedule,
)
from ucutlass.kernels.grouped_gemm.rules import units
from ucutlass.kernels.grouped_gemm.smem import (
    BARRIERS,
    SHARED_BYTES,
    most_stages,
    promotes,
    stage_bytes,
    steps,
    stored_in_boxes,
)
from ucutlass.kernels.planned import (
    Estimate,
    Grid,
    Planned,
    Resources,
    TileCost,
    Traffic,
    blocks_per_sm,
    counted,
)

Warps = Literal["pingpong", "cooperative", "sliced"]

_SHARE: Mapping[tuple[Warps, int, int], tuple[float, float, float]] = MappingProxyType(
    {
        ("pingpong", 128, 128): (0.61, 0.73, 0.71),
        ("pingpong", 64, 256): (0.42, 0.52, 0.46),
        ("pingpong", 64, 128): (0.39, 0.44, 0.44),
        ("pingpong", 128, 64): (0.38, 0.45, 0.45),
        ("pingpong", 64, 64): (0.25, 0.27, 0.27),
        ("cooperative", 128, 64): (0.35, 0.38, 0.38),
        ("cooperative", 128, 256): (0.70, 0.70, 0.70),
        ("cooperative", 256, 128): (0.69, 0.69, 0.69),
        ("cooperative", 128, 128): (0.60, 0.66, 0.66),
    }
)
"""Of the data sheet's rate, what a main loop reaches with a tile of so many rows, and columns of all right
operands together, alone and in clusters of 2x1 and of 1x2: measured on an H200 at 700 W with random bf16,
K of 2048 to 7168, those of pairs that are slower than others rounded from two shapes; in clusters of 64 rows by 128
and 256 columns, on an H100 by two shapes of 64 and 480 rows a group."""

_UNKNOWN = (0.3, 0.3, 0.3)

_WIDENED: Mapping[tuple[Warps, int, int], tuple[float, float]] = MappingProxyType(
    {
        ("pingpong", 64, 32): (0.23, 0.18),
        ("pingpong", 64, 64): (0.32, 0.32),
        ("pingpong", 64, 128): (0.46, 0.42),
        ("sliced", 64, 64): (0.41, 0.34),
        ("sliced", 64, 96): (0.41, 0.4),
        ("sliced", 64, 128): (0.5, 0.44),
        ("cooperative", 128, 32): (0.28, 0.28),
        ("cooperative", 128, 64): (0.39, 0.38),
        ("cooperative", 128, 96): (0.39, 0.5),
        ("cooperative", 128, 128): (0.55, 0.58),
        ("cooperative", 128, 256): (0.73, 0.49),
    }
)
"""The same where A, of 8 or of 4 bits, is widened on its way, plain and with scaled parts: plain on an H200 over four shapes
and on an H100 over 26, those of 96 columns as of 64; scaled on an H200 over 133 kernels of 19 products
(`benchmarks.products --kinds int8,int4`)."""

_PAIRED_COLUMNS = 1.1
"""How much more of it tiles of 64 rows and 128 columns reach that share columns in pairs, beside long sums."""

_ZEROS = 0.75
"""What is left of it where nearly all columns of a tile lie beyond the edge: TMA fills them with zeros slowly."""

_CLUSTER = 0.9e-6
"""Seconds by which a launch in clusters takes longer."""

_BANDWIDTH = 0.9
"""Of the memory's, what loads that are far ahead reach."""

_SHOWN = 0.2
"""Of the lesser of the times to multiply and to move, what shows beside the other."""

_ALONE = 0.6
"""Of that, what is left where each k tile's sum is added while no other warp group may multiply
(an estimate)."""


def estimate(
    problem: GroupedGemmProblem,
    schedule: GroupedGemmSchedule,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    launch: tuple[int, ...],
) -> Estimate:
    """Returns waves of tiles at the main loop's rate, and an epilogue that cooperative blocks wait for, beside
    the time to move all tensors once; of plain multiply-adds an eighth of the peak."""
    moved = _bytes(problem, sizes)
    match schedule:
        case SimtSchedule():
            multiplied = _operations(problem, sizes) / (device.peaks["f32"] / 8)
            grid = _simt_grid(problem, schedule, sizes, arch, device)
            return counted(
                grid, device.launch_floor + multiplied, multiplied, moved / device.bandwidth, moved
            )
        case WgmmaSchedule() if _plain_pair(problem):
            return gemm_cost.estimate(_as_one_product(problem, schedule, sizes, arch), device)
        case WgmmaSchedule():
            return _wgmma(problem, schedule, sizes, device, moved)


def _plain_pair(problem: GroupedGemmProblem) -> bool:
    """Whether both right operands could be one, of twice as many columns."""
    return problem.products == 2 and problem.ragged is None and not promotes(problem.gemm)


def _as_one_product(
    problem: GroupedGemmProblem, schedule: WgmmaSchedule, sizes: tuple[int, ...], arch: Arch
) -> GemmCandidate:
    """Returns the product of A and both right operands side by side, in tiles that are as wide as an instruction. An
    odd tile along M, which would leave one of a pair idle there, pairs along N."""
    gemm, (m, n, k) = problem.gemm, schedule.tile
    both = tuple(e * problem.products if i == gemm.n[0] else e for i, e in enumerate(sizes))
    shape = replace(shape_of(gemm, both), epilogue_bytes=shape_of(gemm, sizes).epilogue_bytes)
    odd = schedule.cluster == (2, 1) and ceil_div(shape.m, m) % 2 == 1
    as_one = Sm90Schedule(
        (m, n * problem.products, k),
        (1, 2) if odd else schedule.cluster,
        schedule.stages,
        "pingpong" if schedule.warps == "pingpong" else "cooperative",
        "cluster_k" if schedule.parts > 1 else "persistent",
    )
    routes: tuple[Route, ...] = tuple(
        "tma" if stored_in_boxes(problem, t) else "direct" for t in epilogue_tensors(gemm)
    )
    launch = LaunchParameters(splits=schedule.parts)
    return GemmCandidate(arch, gemm, both, shape, as_one, launch, routes, False)


def _wgmma(
    problem: GroupedGemmProblem, schedule: WgmmaSchedule, sizes: tuple[int, ...], device: Device, moved: float
) -> Estimate:
    tiles, ragged = tiles_of(problem, schedule, sizes), problem.ragged is not None
    slots = device.sms
    if schedule.parts > 1:
        blocks = math.prod(schedule.cluster)
        slots = clusters_at_a_time(device, blocks * schedule.parts) * blocks
    waves = max(1.0, math.ceil(tiles / slots * 4) / 4 if ragged else math.ceil(tiles / slots))
    loop, alone = _tile_seconds(problem, schedule, sizes, device)
    computed = waves * (
        loop * _longest_part(problem, schedule, sizes) + alone + _exchange_seconds(problem, schedule, device)
    )
    memory = moved / device.bandwidth / _BANDWIDTH
    seconds = device.launch_floor + max(computed, memory) + _SHOWN * min(computed, memory)
    if problem.converts and math.prod(schedule.cluster) > 1:
        seconds += _CLUSTER
    m, n, _, groups = _extents(problem, sizes)
    rows = m if problem.ragged is not None and problem.ragged.mode == "m" else m * groups
    useful = min(1.0, rows * n / (tiles * schedule.tile[0] * schedule.tile[1]))
    grid = Grid(math.ceil(tiles), device.sms, useful)
    return counted(grid, seconds, computed, memory, moved)


def _extents(problem: GroupedGemmProblem, sizes: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Rows, columns, summed elements, and groups or batches."""
    gemm = problem.gemm
    m, n, k = (math.prod(sizes[i] for i in e) for e in (gemm.m, gemm.n, gemm.k[0]))
    return m, n, k, math.prod(sizes[i] for e in gemm.batch for i in e)


def tiles_of(problem: GroupedGemmProblem, schedule: WgmmaSchedule, sizes: tuple[int, ...]) -> float:
    """Returns the tiles of a launch; of ragged groups about so many."""
    m, n, _, groups = _extents(problem, sizes)
    (tile_m, tile_n, _), (_, cluster_n) = schedule.tile, schedule.cluster
    mode = problem.ragged.mode if problem.ragged else None
    # Of a pair of tiles along M the one that is left over pairs along N.
    tiles_m = max(m / tile_m + groups / 2, min(groups, m)) if mode == "m" else math.ceil(m / tile_m) * groups
    return tiles_m * math.ceil(n / (tile_n * cluster_n)) * cluster_n


def _tile_seconds(
    problem: GroupedGemmProblem, schedule: WgmmaSchedule, sizes: tuple[int, ...], device: Device
) -> tuple[float, float]:
    """Returns a tile's main loop, and what of its epilogue nothing overlaps."""
    gemm, (tile_m, tile_n, _) = problem.gemm, schedule.tile
    width = tile_n * problem.products
    share = _share(problem, schedule)
    if problem.converts:
        n = _extents(problem, sizes)[1]
        share *= _ZEROS + (1 - _ZEROS) * min(1.0, n / tile_n)
    depth = _depth(problem, sizes)
    loop = 2 * tile_m * width * depth / (device.peaks[gemm.compute_type.name] / device.sms * share)
    alone = tile_m * width * 4 / 128 / device.clock if schedule.warps != "pingpong" else 0.0
    return loop, alone


def _longest_part(problem: GroupedGemmProblem, schedule: WgmmaSchedule, sizes: tuple[int, ...]) -> float:
    """Returns the share of K that the busiest of its parts has."""
    count = units(problem, sizes, schedule)
    return math.ceil(count / schedule.parts) / count


def _exchange_seconds(problem: GroupedGemmProblem, schedule: WgmmaSchedule, device: Device) -> float:
    """Returns what adding the parts of K of a tile takes."""
    if schedule.parts == 1:
        return 0.0
    others = (
        4 * schedule.tile[0] * schedule.tile[1] * problem.products * (schedule.parts - 1) / schedule.parts
    )
    return (_EXCHANGE + others / _EXCHANGE_BYTES) / device.clock


_EXCHANGE, _EXCHANGE_BYTES = 6000.0, 10.0
"""Cycles that an exchange of sums takes whatever its size, and bytes a cycle that a block reads (as of one product)."""


def _depth(problem: GroupedGemmProblem, sizes: tuple[int, ...]) -> float:
    """Elements that a tile sums: of ragged parts of K the average one's."""
    _, _, k, groups = _extents(problem, sizes)
    return k / groups if problem.ragged is not None and problem.ragged.mode == "k" else k


def _share(problem: GroupedGemmProblem, schedule: WgmmaSchedule) -> float:
    shape = (schedule.warps, schedule.tile[0], schedule.tile[1] * problem.products)
    scaled = problem.scaled is not None
    if problem.converts and shape in _WIDENED:
        paired = schedule.cluster == (2, 1) and shape[1:] == (64, 128)
        return _WIDENED[shape][scaled] * (_PAIRED_COLUMNS if paired else 1.0)
    share = _SHARE.get(shape, _UNKNOWN)[CLUSTERS.index(schedule.cluster)]
    alone = schedule.warps == "pingpong" and (promotes(problem.gemm) or scaled)
    return share * _ALONE if alone else share


def _operations(problem: GroupedGemmProblem, sizes: tuple[int, ...]) -> float:
    gemm = problem.gemm
    extents = [gemm.m, gemm.n, gemm.k[0], *(gemm.batch if problem.ragged is None else ())]
    return 2.0 * problem.products * math.prod(sizes[i] for e in extents for i in e)


def _bytes(problem: GroupedGemmProblem, sizes: tuple[int, ...]) -> float:
    gemm = problem.gemm
    modes = {"m": gemm.m, "n": gemm.n, "k": gemm.k[0]}
    total = 0.0
    rights = [gemm.b] if problem.second is None else [gemm.b, problem.second]
    for access in (gemm.a, *rights, *gemm.inputs, *(o.access for o in gemm.outputs)):
        spans = [modes["m"] if access.m is not None else (), modes["n"] if access.n is not None else ()]
        spans += [modes["k"]] if access.k else []
        spans += [e for e, stride in zip(gemm.batch, access.batch, strict=False) if stride is not None]
        total += access.elem.bits / 8 * math.prod(sizes[i] for e in spans for i in e)
    return total


def _simt_grid(
    problem: GroupedGemmProblem, schedule: SimtSchedule, sizes: tuple[int, ...], arch: Arch, device: Device
) -> Grid:
    m, n, _, groups = _extents(problem, sizes)
    rows, columns, _ = schedule.tile
    tiles = math.ceil(m / rows) * math.ceil(n / columns) * groups
    useful = m * n / (math.ceil(m / rows) * rows * math.ceil(n / columns) * columns)
    registers = _SIMT_REGISTERS * problem.products + 32
    resident = blocks_per_sm(arch, _SIMT_THREADS, registers, _simt_bytes(problem, schedule))
    return Grid(tiles, device.sms * resident, useful)


_SIMT_THREADS, _SIMT_REGISTERS = 256, 16
"""Threads of a block of plain multiply-adds, and the sums of each product that one holds."""


def _simt_bytes(problem: GroupedGemmProblem, schedule: SimtSchedule) -> int:
    """Tiles of A and of each B in 32-bit elements, a line of them padded by one."""
    rows, columns, depth = schedule.tile
    return 4 * depth * (rows + 1 + problem.products * (columns + 1))


# --- what reports read ---------------------------------------------------------------------


def resources(planned: Planned) -> Resources:
    """Returns what a block takes of an SM, and how the products are cut."""
    problem, schedule = _plan(planned)
    m, n, k, groups = _extents(problem, planned.sizes)
    extents = {"M": m, "N": n, "K": k, "batch": groups}
    operands = round(_operand_bytes(problem, planned.sizes))
    match schedule:
        case SimtSchedule(tile=tile):
            return Resources(
                variant="simt",
                extents=extents,
                unit="ffma",
                threads=_SIMT_THREADS,
                memory={"tiles": _simt_bytes(problem, schedule)},
                memory_limit=ARCHES[planned.plan.arch].shared_memory,
                accumulators=_SIMT_REGISTERS * problem.products,
                operand_bytes=operands,
                tile=tile,
                loop="K",
                steps=math.ceil(_depth(problem, planned.sizes) / tile[2]),
                routes=("direct",) * len(problem.gemm.outputs),
            )
        case WgmmaSchedule():
            pass
    groups_of = 2 if schedule.warps == "cooperative" else 1
    main = schedule.stages * stage_bytes(problem, schedule)
    epilogue = _epilogue_bytes(problem, schedule)
    boxed = [stored_in_boxes(problem, o.access) for o in problem.gemm.outputs]
    full = [i for i in problem.gemm.inputs if i.m is not None and i.n is not None]
    direct = [*full, *(o.access for o, box in zip(problem.gemm.outputs, boxed, strict=True) if not box)]
    rows = m if problem.ragged is not None and problem.ragged.mode == "m" else m * groups
    sets = 2 if promotes(problem.gemm) or problem.scaled is not None else 1
    return Resources(
        variant="wgmma",
        extents=extents,
        unit="wgmma",
        threads=384,
        memory={"stages": main, "epilogue": epilogue, "barriers": BARRIERS},
        memory_limit=SHARED_BYTES,
        accumulators=schedule.tile[0] * schedule.tile[1] * problem.products * sets // (128 * groups_of),
        operand_bytes=operands,
        tile=schedule.tile,
        cluster=schedule.cluster,
        stages=schedule.stages,
        most_stages=most_stages(problem, schedule),
        loop="K",
        steps=math.ceil(_depth(problem, planned.sizes) / schedule.tile[2]),
        routes=(*("direct" for _ in full), *("tma" if box else "direct" for box in boxed)),
        direct_bytes=sum(rows * n * a.elem.bits // 8 for a in direct),
    )


def _epilogue_bytes(problem: GroupedGemmProblem, schedule: WgmmaSchedule) -> int:
    columns, buffers = steps(problem, schedule)
    stored = (o.access.elem.bytes for o in problem.gemm.outputs if stored_in_boxes(problem, o.access))
    return 2 * buffers * 64 * columns * sum(stored)


def traffic(planned: Planned) -> Traffic:
    """Returns what the products multiply, and the bytes of operands that their tiles read: a cluster loads
    once what its members share."""
    problem, schedule = _plan(planned)
    m, n, _, _ = _extents(problem, planned.sizes)
    gemm, cluster = problem.gemm, (1, 1)
    if isinstance(schedule, WgmmaSchedule):
        cluster = schedule.cluster
    rows = min(schedule.tile[0], m) * gemm.a.elem.bits / 8 / cluster[1]
    columns = min(schedule.tile[1], n) * problem.products * gemm.b.elem.bits / 8 / cluster[0]
    read = planned.estimate.tiles * _depth(problem, planned.sizes) * (rows + columns)
    compute_type = gemm.compute_type.name
    rate = (
        "f32"
        if isinstance(schedule, SimtSchedule)
        else compute_type
        if compute_type in planned.device.peaks
        else "f16"
    )
    return Traffic(round(_operations(problem, planned.sizes)), rate, read)


def tile_cost(planned: Planned) -> TileCost:
    """Returns the cycles of a step of K, and the share of the epilogue that nothing overlaps."""
    problem, schedule = _plan(planned)
    l2 = traffic(planned).l2_bytes / planned.device.l2_bandwidth
    if isinstance(schedule, SimtSchedule):
        e = planned.estimate
        turns = -(-e.tiles // e.slots) * resources(planned).steps
        return TileCost(e.sm_seconds * planned.device.clock / turns, 0.0, 0.0, l2)
    loop, alone = _tile_seconds(problem, schedule, planned.sizes, planned.device)
    cycles = loop * planned.device.clock / resources(planned).steps
    return TileCost(cycles, alone / (loop + alone), 0.0, l2)


def _plan(planned: Planned) -> tuple[GroupedGemmProblem, GroupedGemmSchedule]:
    plan = planned.plan
    assert isinstance(plan, GroupedGemmPlan), type(plan)
    return plan.problem, plan.schedule


def _operand_bytes(problem: GroupedGemmProblem, sizes: tuple[int, ...]) -> float:
    m, n, k, groups = _extents(problem, sizes)
    gemm, ragged = problem.gemm, problem.ragged
    spread = 1 if ragged is not None and ragged.mode == "k" else groups
    rows = m * k * (1 if ragged is not None else groups)
    return (rows * gemm.a.elem.bits + n * k * spread * problem.products * gemm.b.elem.bits) / 8


def known(problem: GroupedGemmProblem, schedule: WgmmaSchedule) -> bool:
    """Whether a main loop's rate is known."""
    if _plain_pair(problem):
        return True
    if problem.products > 1 and schedule.tile[1] < 64:  # measured with as many columns of each
        return False
    shape = (schedule.warps, schedule.tile[0], schedule.tile[1] * problem.products)
    return shape in (_WIDENED if problem.converts else _SHARE)

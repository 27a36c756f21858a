"""How long a candidate would take, from its shape alone: a ranking, not a promise.

A tiled kernel is priced in SM cycles per step of K (tensor cores, loads), times the steps of a
tile, plus its epilogue, times the tiles that the busiest slot works through. Beside that stand
two limits of the whole chip: what L2 serves and what DRAM serves. The three are joined by a
p-norm, since near a limit the others still cost. `Constants` holds every number that is not
counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

from ucutlass.ir.hardware import Device, cluster_slots, clusters_at_a_time, peak_key
from ucutlass.kernels.access import Access, Store
from ucutlass.kernels.arithmetic import Compute
from ucutlass.kernels.gemm.plan import (
    REGISTER_MATHS,
    GemmProblem,
    GemvSchedule,
    Math,
    Route,
    Sm80Schedule,
    Sm90Schedule,
    epilogue_tensors,
)
from ucutlass.kernels.gemm.problem import Shape, ceil_div, tensor_bytes
from ucutlass.kernels.gemm.rules.tiles import STREAM_K_ITERATIONS, THREADS, accumulators_per_thread
from ucutlass.kernels.gemm.schedule import TMA_BYTES, GemmCandidate, candidate_of
from ucutlass.kernels.gemm.smem import gemv_cover, operand_parts
from ucutlass.kernels.hashed_once import HashedOnce
from ucutlass.kernels.planned import Estimate, Planned, Resources, TileCost, Traffic, Unit


@dataclass(frozen=True, slots=True)
class Constants(HashedOnce):
    """What counting cannot give. Where nothing else is said, fitted by benchmarks/fit_heuristic.py to what an H200 and an H100
    took for bf16 products. "Estimate": no measurement backs it yet."""

    clock: float = 1.04
    """What short kernels were seen to run at, of the device's peak clock."""
    sustained: float = 0.977
    """Of the tensor cores' rate at that clock, what power leaves when all SMs multiply."""
    norm: float = 2.52
    """Exponent that joins the limits."""
    dram: float = 0.903
    """Of HBM's bandwidth, what is reached."""
    l2_bytes: float = 41.8
    """Bytes per cycle and SM that L2 serves with all SMs at it."""
    sm_bytes: float = 68.3
    """Bytes per cycle that one SM takes."""
    received: float = 0.5
    """What a byte weighs for an SM that another block of its cluster asked for."""
    written: float = 0.5
    """What a byte that TMA writes to shared memory weighs there beside those that wgmma reads, by times of 98 problems on
    an H100 and an H200."""
    beyond_bytes: float = 20.8
    """Bytes beyond a tensor's edge that TMA fills with zeros, per cycle and SM of the chip, beside what they cost as loads:
    all SMs share that rate."""
    shared: float = 0.296
    """Where r SMs of a GPC read a tile at the same time, L2 serves it as if r ** -shared of them did."""
    line: float = 1.17
    """Bytes that L2 serves, and an SM takes, for one of an operand whose rows do not all begin at a line of L2."""
    straddle: float = 1.38
    """The same that L2 serves where they do not all begin at a sector."""
    straddle_sm: float = 1.59
    """The same that an SM takes there."""
    start: float = 1.4e-06
    """Seconds that any kernel takes beside its work."""
    fill: float = 1400.0
    """Cycles more until a TMA kernel has its first operands: puts matrix-vector kernels in their place beside the others."""
    tile: float = 411.0
    """Cycles of a tile's start and end."""
    element: float = 0.0837
    """Cycles of an SM for the epilogue's store of an element of a tile."""
    function: float = 1 / 128
    """The same for a plain function. Estimate."""
    load: float = 0.09
    """The same for one more whole operand. Estimate."""
    narrow_steps: float = 3.0
    """How much longer the store of a tile takes whose columns are no multiple of 32."""
    direct: float = 0.427
    """Cycles more of an SM for an element of a tensor that threads move."""
    alone: float = 2.6
    """How much longer slow functions take where one warp group works at them alone, with half the warps to hide what they
    wait for (the case of _INSTRUCTIONS by pingpong: 192 us)."""
    split: float = 4.5e-06
    """Seconds that splitting K costs whatever its size."""
    handover: float = 2000.0
    """Cycles until one part of a tile sees that the part before it is done."""
    reduce_bytes: float = 35.6
    """Bytes per cycle of the partial sums."""
    statistic: float = 0.03
    """Cycles of an SM for an element of a pass that gives a statistic of each row, with its share of the exchange in the
    cluster: fitted to 70 kernels of 13 products that an H200 ran; it met 28 others, as they were chosen, within 7 %."""
    statistics_doubt: float = 1.18
    """By how much two launches must be slower by the estimates for a kernel with such statistics to be taken for faster."""
    exchange: float = 5060.0
    """Cycles that adding the parts of K in a cluster takes whatever its size."""
    exchange_bytes: float = 7.0
    """Bytes per cycle that a block reads of the others' sums there."""
    cached: float = 0.825
    """Part of L2 that operands can live in. Estimate."""
    wide_accumulators: float = 1.05
    """How much longer a step takes with more than 160 accumulators, as 56 products of bf16 and f16 took on an H200."""
    register_operand: float = 1.15
    """The same with tf32 operands that pass through registers: of 2048 x 4096 x 8192 an H100 took 374 us, and 324 without."""
    register_operand_alone: float = 1.35
    """The same where one warp group at a time multiplies, as five products took on an H100."""
    turn: float = 350.0
    """Cycles that a step of K takes longer where tf32 B is turned in shared memory, whose bytes the products want too. With
    `turn_element` it meets what 114 kernels of 30 products took on an H200 within 8 % on average."""
    turn_element: float = 4.0
    """Those that it adds for each element of B that a thread turns."""
    crowded: float = 1.5
    """How much longer the epilogue of such operands takes where one warp group has a tile of 128 x 128 elements and K is
    short (_CROWDED, _FEW_STEPS). One layer stands behind it: of 672 channels of 8 x 112 x 112 positions an H100 took 152 to
    166 us by four such tiles, and 127 to 133 by six smaller ones."""
    split_step: float = 300.0
    """Cycles that a warp group adds to a step of K where it splits f32 in registers. With `fragment` it meets an H100's times
    of 16 to 4096 rows within 7 % on average."""
    fragment: float = 150.0
    """Those that it adds for each 64 x 8 elements of A."""
    split_shared: float = 50.0
    """Those that it adds for each element of B that a thread splits in shared memory, as ten products took on an H100."""
    split_f16: float = 0.78
    """Of `dram`, what splitting into f16 reaches, as 22 products took on an H100."""
    step_f16: float = 1.2
    """How much longer a step of f16 parts takes, by the same products."""
    step_f16_unhidden: float = 2.15
    """The same with two stages."""
    mma_sync_hopper: float = 0.27
    """Of the peak, what the multistage kernel reaches at best on Hopper. Estimate."""
    mma_sync: float = 0.7
    """The same elsewhere. Estimate."""
    simt: float = 0.6
    """The same of FFMA. Estimate."""
    shortest_step: float = 535.0
    """Cycles that a step of K of the multistage kernel takes at least."""
    widen: float = 8.0
    """FFMA slots that loading and widening one element takes in the matrix-vector kernel: puts it in its place beside the
    others."""

    __hash__ = HashedOnce.__hash__


DEFAULT = Constants()

_SLOW = 8.0
"""Instructions that a function is worth which takes the special-function unit; an estimate."""

_INSTRUCTIONS: Mapping[str, float] = MappingProxyType(
    {
        "gelu": 28.0,
        **dict.fromkeys(
            (
                "exp",
                "log",
                "tanh",
                "sigmoid",
                "silu",
                "gelu_tanh",
                "erf",
                "pow",
                "softplus",
                "elu",
                "selu",
                "mish",
                "sqrt",
                "rsqrt",
                "div",
            ),
            _SLOW,
        ),
    }
)
"""That a function is worth, where it is more than one. gelu as an H200 was seen to run it: 8192 x 8192 x 256
by cooperative 128x128 tiles in 142 us (benchmarks.advice)."""

_VECTOR_FACTOR = {16: 1.0, 8: 0.9, 4: 0.75, 2: 0.5, 1: 0.4}
"""Of the multistage kernel's speed, what is left when an operand is read in that many bytes."""


_PASSES: Mapping[Math, int] = MappingProxyType(
    {"tensor": 1, "f16": 1, "tf32x3": 3, "tf32x3_rs": 3, "tf32x3_fused": 3, "f16x3": 3, "simt": 3}
)
"""Multiplications of a wgmma kernel for one of the problem; the rules refuse `simt`, once it is priced."""

_DIGITS = 10
"""Decimals of a second that are kept: equals stay equal, and then the search's order decides."""


_MOST_REMEMBERED = 4096
"""Problems of which a process remembers what the candidates of a plan share."""


def estimate(c: GemmCandidate, device: Device, constants: Constants = DEFAULT) -> Estimate:
    """The price of a candidate on a device."""
    match c.schedule:
        case Sm90Schedule():
            priced = _sm90(c, c.schedule, device, constants)
            if not c.problem.arithmetic.statistics:
                return priced
            return replace(priced, seconds=round(priced.seconds * constants.statistics_doubt, _DIGITS))
        case Sm80Schedule():
            return _sm80(c, c.schedule, device, constants)
        case GemvSchedule():
            return _gemv(c, c.schedule, device, constants)


def effective_swizzle(m_tiles: int, n_tiles: int, swizzle: int) -> int:
    """The swizzle that CUTLASS really takes (`get_log_swizzle_size`)."""
    least = min(m_tiles, n_tiles)
    return next((s for s, need in ((8, 6), (4, 3), (2, 2)) if swizzle >= s and least >= need), 1)


def tile_grid(
    shape: Shape, tile: tuple[int, int, int], cluster: tuple[int, int], swizzle: int
) -> tuple[int, int]:
    """Tiles along M and N as the persistent scheduler counts them: filled up to whole
    clusters and swizzle groups, and the filling is computed like the rest."""
    m, n = (
        ceil_div(ceil_div(e, t), c) * c for e, t, c in zip((shape.m, shape.n), tile, cluster, strict=False)
    )
    group = effective_swizzle(m, n, swizzle)
    return ceil_div(m, group * cluster[0]) * group * cluster[0], ceil_div(
        n, group * cluster[1]
    ) * group * cluster[1]


def dram_bytes(c: GemmCandidate, device: Device, slots: int, tiles: int, k: Constants) -> float:
    """Bytes from and to DRAM: operands that L2 cannot hold are read again by every wave."""
    parts_a, parts_b = _parts(c)
    a, b = _operand_bytes(c.problem, c.sizes)
    operands, others = a * parts_a + b * parts_b, c.shape.epilogue_bytes
    per_batch = operands / c.shape.batch
    match c.schedule:
        case GemvSchedule():
            return operands + others
        case schedule:
            tile = schedule.tile
    if per_batch <= k.cached * device.l2:
        return operands + others
    side = max(1.0, math.sqrt(slots * tile[1] / tile[0]))
    rows = min(side, ceil_div(c.shape.m, tile[0]))
    columns = min(slots / rows, ceil_div(c.shape.n, tile[1]))
    item = c.problem.a.elem.bytes
    again = tiles / slots * (rows * tile[0] * parts_a + columns * tile[1] * parts_b) * c.shape.k * item
    return max(float(operands), again) + others


@lru_cache(_MOST_REMEMBERED)
def _operand_bytes(problem: GemmProblem, sizes: tuple[int, ...]) -> tuple[int, int]:
    return tensor_bytes(problem.a, problem, sizes), tensor_bytes(problem.b, problem, sizes)


def epilogue_cycles(c: GemmCandidate, elements: int, k: Constants) -> float:
    """SM cycles of the epilogue of that many elements."""
    alone = isinstance(c.schedule, Sm90Schedule) and c.schedule.warps == "pingpong"
    narrow = isinstance(c.schedule, Sm90Schedule) and c.schedule.tile[1] % _STEP != 0
    full = alone and elements >= _CROWDED and c.k_tiles <= _FEW_STEPS and not _k_major(c)
    full = full and c.problem.compute_type.name == "tf32"
    return elements * _element_cycles(c.problem, c.routes, alone, narrow, k) * (k.crowded if full else 1.0)


@lru_cache(_MOST_REMEMBERED)
def _element_cycles(
    problem: GemmProblem, routes: tuple[Route, ...], alone: bool, narrow: bool, k: Constants
) -> float:
    """SM cycles of the epilogue of an element. `alone`: of one warp group at a time; `narrow`: in steps of fewer
    columns."""
    element = k.element * (k.narrow_steps if narrow else 1.0)
    work = 0.0
    for instruction in problem.arithmetic.instructions:
        if isinstance(instruction, Compute):
            count = _INSTRUCTIONS.get(instruction.function, 1.0)
            work += k.function * count * (k.alone if alone and count > 1 else 1.0)
    count = len(problem.inputs)
    for i, (tensor, route) in enumerate(zip(epilogue_tensors(problem), routes, strict=True)):
        if tensor.shape != "full":
            work += k.function * 2
        elif i < count:
            work += k.load if route == "tma" else k.load + k.direct
        else:
            work += (element if route == "tma" else k.element + k.direct) * max(1.0, tensor.elem.bytes / 2)
    if not any(isinstance(o, Store) for o in problem.outputs):
        work += k.element
    return work


def _statistics_cycles(c: GemmCandidate, s: Sm90Schedule, k: Constants) -> float:
    """SM cycles of the passes over a tile that give statistics of its rows."""
    return len(c.problem.arithmetic.statistics) * s.tile[0] * s.tile[1] * k.statistic


_CROWDED, _FEW_STEPS = 128 * 128, 8
"""Elements of the tile of one warp group whose sums leave few registers beside them, and the steps of K up to which that
shows."""

_STEP = 32
"""Columns of a tile that an epilogue stores at once where they divide it, else half as many."""


def _whole(
    c: GemmCandidate,
    device: Device,
    k: Constants,
    sm: float,
    l2: float,
    slots: int,
    tiles: int,
    quantisation: float,
    padding: float,
    start: float = 0.0,
) -> Estimate:
    """Joins `sm` seconds of the busiest slot with `l2` bytes and those of DRAM."""
    moved = dram_bytes(c, device, slots, tiles, k)
    l2_seconds = l2 / (k.l2_bytes * device.sms * device.clock * k.clock)
    dram = moved / (device.bandwidth * k.dram)
    joined = math.pow(sum(math.pow(limit, k.norm) for limit in (sm, l2_seconds, dram)), 1 / k.norm)
    seconds = round(joined + k.start + start, _DIGITS)
    power = c.shape.flops / (device.peaks[rate_key(c, device)] * k.sustained * k.clock)
    return Estimate(
        seconds, slots, tiles, tiles / slots, quantisation, padding, sm, l2_seconds, dram, power, moved
    )


def _sm90(c: GemmCandidate, s: Sm90Schedule, device: Device, k: Constants) -> Estimate:
    m, n, _ = s.tile
    m_tiles, n_tiles = tile_grid(c.shape, s.tile, s.cluster, c.launch.swizzle)
    tiles = m_tiles * n_tiles * c.shape.batch
    # Illegal candidates are priced before the rules see them: some clusters fit nowhere.
    blocks = s.cluster[0] * s.cluster[1]
    if s.scheduler == "cluster_k":
        # Of tiles, each of which takes as many blocks as K has parts.
        parts = max(1, c.launch.splits)
        slots = max(1, clusters_at_a_time(device, blocks * parts) * blocks)
        active = min(slots, tiles) * parts
    else:
        slots = max(1, cluster_slots(device, blocks))
        active = min(slots, tiles * c.launch.splits if c.launch.splits else slots)
    step = _sm90_step(c, s, (m_tiles, n_tiles), active, device, k)
    epilogue = epilogue_cycles(c, m * n, k) + k.tile + _statistics_cycles(c, s, k)
    busiest, split_seconds = _sm90_busiest(c, s, tiles, slots, step, epilogue, k)
    average = tiles * (c.k_tiles * step + epilogue) / slots
    if s.scheduler == "cluster_k":
        average /= max(1, c.launch.splits)
    return _whole(
        c,
        device,
        k,
        busiest / (device.clock * k.clock) + split_seconds,
        _sm90_l2(c, s, m_tiles, n_tiles, active, device, k),
        slots,
        tiles,
        min(1.0, average / busiest),
        c.shape.m * c.shape.n / (m_tiles * m * n_tiles * n),
        k.fill / (device.clock * k.clock) + _split_seconds(c, device, k),
    )


def _parts(c: GemmCandidate) -> tuple[int, int]:
    """Tiles of A and of B, of the operands' own size, that a step of K takes."""
    match c.schedule:
        case Sm90Schedule(math="tf32x3_fused" | "f16x3"):
            return 1, 1
        case Sm90Schedule(math=math_):
            return operand_parts(c.problem, math_)
        case _:
            return 1, 1


def _split_seconds(c: GemmCandidate, device: Device, k: Constants) -> float:
    """Returns the seconds of the launch that reads f32 operands and writes their small parts before the
    kernel's, and those that are not K-major anew. Where A is split in registers, it reads B and writes both
    parts of it, more slowly where B is not K-major. For parts of f16 one launch reads both operands and writes
    them, and another one mostly does nothing."""
    s = c.shape
    if isinstance(c.schedule, Sm90Schedule) and c.schedule.math == "f16x3":
        return 2 * device.launch_floor + 2 * s.operand_bytes / (device.bandwidth * k.dram * k.split_f16)
    if (parts := _parts(c)) == (1, 1):
        return 0.0
    if parts == (1, 2):
        moved = (3 if c.problem.b.k[-1] == () else 4) * tensor_bytes(c.problem.b, c.problem, c.sizes)
        return device.launch_floor + moved / (device.bandwidth * k.dram)
    turned = sum(
        rows * s.k * s.batch * 4 for rows, t in ((s.m, c.problem.a), (s.n, c.problem.b)) if t.k[-1] != ()
    )
    return device.launch_floor + (2 * s.operand_bytes + turned) / (device.bandwidth * k.dram)


def _sm90_step(
    c: GemmCandidate, s: Sm90Schedule, tiles: tuple[int, int], active: int, device: Device, k: Constants
) -> float:
    """Cycles of one step of K while `active` thread blocks run on `tiles` along M and N. 32 bytes of K of a 64 x N wgmma take
    N/2 cycles of the tensor cores, and read A and B from shared memory at 128 bytes a cycle. Power slows
    them when all SMs multiply; SMs at rest help the others little, since power rises steeply with the
    clock. What lies beyond an edge is filled with zeros, which costs more than loading."""
    m, n, depth = s.tile
    a, b = (t.elem.bytes * parts for t, parts in zip((c.problem.a, c.problem.b), _parts(c), strict=True))
    item = 2 if s.math == "f16x3" else c.problem.a.elem.bytes
    instructions = (m / 64) * (depth * item / 32)
    read = instructions * (n / 4 + 16) * _PASSES[s.math]
    written = k.written * depth * (m * a + n * b) / _SHARED_BYTES
    mma = max(instructions * n / 2 * _PASSES[s.math], read + written)
    mma *= max(1.0, math.pow(active / device.sms, 1 / 4) / k.sustained)
    if accumulators_per_thread(c) > 160 and s.math != "f16x3":
        mma *= k.wide_accumulators
    if c.problem.compute_type.name == "tf32" and c.problem.a.k[-1] != ():
        mma *= k.register_operand_alone if s.warps == "pingpong" else k.register_operand
    if c.problem.compute_type.name == "tf32" and c.problem.b.k[-1] != ():
        mma += k.turn + k.turn_element * n * depth / THREADS[s.warps]
    if s.math == "f16x3":
        mma *= k.step_f16 if s.stages > 2 else k.step_f16_unhidden
    if s.math in REGISTER_MATHS:
        # Of two warp groups; each waits for its own products before it goes on to the next step.
        own = k.split_step + instructions / 2 * (k.fragment + _PASSES[s.math] * n / 2)
        if s.math == "tf32x3_fused":
            own += k.split_shared * n * depth / THREADS["cooperative"]
        mma = max(mma, own)
    beyond = (m - c.shape.m / tiles[0]) * a + (n - c.shape.n / tiles[1]) * b
    # Of a block's own share of what its cluster loads, and of all that arrives.
    share_a, share_b = m * a / s.cluster[1], n * b / s.cluster[0]
    own = share_a * _row_share(c.problem.a, m, s, c) * _unaligned(
        c.problem.a, c.shape.m, c, k.line, k.straddle_sm
    ) + share_b * _row_share(c.problem.b, n, s, c) * _unaligned(
        c.problem.b, c.shape.n, c, k.line, k.straddle_sm
    )
    received = m * a + n * b - share_a - share_b
    loads = (own + k.received * received) / k.sm_bytes + beyond * active / (k.beyond_bytes * device.sms)
    return max(mma, depth * loads)


def _sm90_l2(
    c: GemmCandidate, s: Sm90Schedule, m_tiles: int, n_tiles: int, active: int, device: Device, k: Constants
) -> float:
    """Bytes that L2 serves: a cluster loads once what its members share, and of SMs that read
    the same tile at the same time some are served together. Split K adds its partial sums."""
    m, n, _ = s.tile
    batch, gpcs = c.shape.batch, max(1.0, device.sms / device.sms_per_gpc)
    parts_a, parts_b = _parts(c)
    a, b = c.problem.a, c.problem.b
    served_a, served_b = (
        t.elem.bytes * parts * _unaligned(t, extent, c, k.line, k.straddle)
        for t, parts, extent in ((a, parts_a, c.shape.m), (b, parts_b, c.shape.n))
    )
    rows, columns = min(m, c.shape.m) * served_a / s.cluster[1], min(n, c.shape.n) * served_b / s.cluster[0]
    together = active / max(1, c.launch.splits)  # parts of K read different operands
    rows *= math.pow(max(1.0, together / (m_tiles * batch * s.cluster[1]) / gpcs), -k.shared)
    columns *= math.pow(max(1.0, together / (n_tiles * batch * s.cluster[0]) / gpcs), -k.shared)
    partial = 0 if s.scheduler == "cluster_k" else 8 * m * n * max(0, c.launch.splits - 1)
    return m_tiles * n_tiles * batch * (c.shape.k * (rows + columns) + partial)


def _unaligned(operand: Access, extent: int, c: GemmCandidate, line: float, straddle: float) -> float:
    """What is served for a byte of an operand: rows that begin within a line of L2 take parts of two, and within a
    sector parts of further ones."""
    pitch = (c.shape.k if operand.k[-1] == () else extent) * operand.elem.bytes
    return 1.0 if pitch % _LINE == 0 else straddle if pitch % _SECTOR else line


def _row_share(operand: Access, extent: int, s: Sm90Schedule, c: GemmCandidate) -> float:
    """How many times the bytes of an operand's tile are worth that TMA loads in rows of less than a line: a row of 32
    bytes takes as long. Copies of f32 are K-major."""
    copied = c.problem.compute_type.name == "f32"
    row = s.tile[2] if copied or operand.k[-1] == () else extent
    item = 2 if s.math == "f16x3" else operand.elem.bytes
    return _LINE / next((width for width in (128, 64, 32) if row * item % width == 0), 32)


_SHARED_BYTES = 128
"""That shared memory serves in a cycle."""

_LINE = 128
_SECTOR = 32
"""Bytes of a line of L2, and of what it reads at once."""


def _k_major(c: GemmCandidate) -> bool:
    return c.problem.a.k[-1] == () and c.problem.b.k[-1] == ()


def _sm90_busiest(
    c: GemmCandidate, s: Sm90Schedule, tiles: int, slots: int, step: float, epilogue: float, k: Constants
) -> tuple[float, float]:
    """Cycles of the slot with most work, and the seconds that splitting K adds."""
    steps, splits = c.k_tiles, c.launch.splits
    each = ceil_div(tiles, slots)
    mainloop = steps * step
    if s.warps == "pingpong":
        turns = ceil_div(each, 2) * (mainloop + epilogue) + (mainloop if each % 2 == 0 else 0)
        # CUTLASS's order barrier lets one warp group at a time into its epilogue.
        return max(each * mainloop + epilogue, turns, mainloop + each * epilogue), 0.0
    if s.scheduler == "persistent" or splits == 1:
        return each * (mainloop + epilogue), 0.0
    if s.scheduler == "cluster_k":
        splits = max(1, splits)  # stream-K, which the rules refuse
        others = s.tile[0] * s.tile[1] * 4 * (splits - 1) / splits  # bytes of sums that a block gets
        part = ceil_div(steps, splits) * step + k.tile + k.exchange + others / k.exchange_bytes
        return each * (part + epilogue / splits), 0.0
    fix = s.tile[0] * s.tile[1] * 4 / k.reduce_bytes
    if splits > 1:
        part = ceil_div(steps, splits) * step + fix + k.tile
        return ceil_div(tiles * splits, slots) * part + splits * (fix + k.handover) + epilogue, k.split
    epilogue += k.tile  # the stream-K scheduler starts its tiles more slowly
    waves, tail = divmod(tiles, slots)
    if tail == 0 or 2 * tail >= slots or steps <= STREAM_K_ITERATIONS:
        return each * (mainloop + epilogue), 0.0
    whole = max(0, waves - 1)
    length = max(STREAM_K_ITERATIONS, (tiles - whole * slots) * steps / slots)
    parts = max(1.0, steps / length)
    fixup = parts * (fix + k.handover) + 2 * fix + k.tile  # a slot mostly ends one tile and begins another
    return whole * (mainloop + epilogue) + length * step + fixup + epilogue, k.split


def rate_key(c: GemmCandidate, device: Device) -> str:
    """The entry of `Device.peaks` at which the kernel multiplies: the multistage kernel widens
    fp8 to f16, as does whatever has no fp8."""
    compute_type = c.problem.compute_type.name
    match c.schedule:
        case Sm80Schedule(math=way):
            return "f16" if compute_type in ("e4m3", "e5m2") else peak_key(compute_type, way)
        case Sm90Schedule(math="tf32x3" | "tf32x3_rs" | "tf32x3_fused"):
            return "tf32x3"
        case Sm90Schedule(math="f16x3"):
            return "f16x3"
        case _:
            return compute_type if compute_type in device.peaks else "f16"


def warps_of(s: Sm80Schedule) -> int:
    """Warps of a multistage block; at least one, also where the rules refuse the warp tile."""
    return max(1, s.tile[0] // s.warp_tile[0]) * max(1, s.tile[1] // s.warp_tile[1])


def blocks_per_sm(c: GemmCandidate) -> int:
    """Multistage thread blocks that share an SM: by shared memory, registers and threads."""
    assert isinstance(c.schedule, Sm80Schedule)
    warps = warps_of(c.schedule)
    registers = min(255, accumulators_per_thread(c) + 96)
    memory = c.memory.total + c.arch.shared_memory_reserved
    return max(
        1,
        min(
            c.arch.shared_memory_sm // memory,
            c.arch.registers // (registers * 32 * warps),
            c.arch.threads // (32 * warps),
        ),
    )


def _sm80(c: GemmCandidate, s: Sm80Schedule, device: Device, k: Constants) -> Estimate:
    blocks = blocks_per_sm(c)
    warps = warps_of(s)
    m_tiles, n_tiles = ceil_div(c.shape.m, s.tile[0]), ceil_div(c.shape.n, s.tile[1])
    tiles = m_tiles * n_tiles * c.shape.batch
    splits = c.launch.splits
    each = ceil_div(tiles * splits, device.sms * blocks)
    busy = min(blocks, ceil_div(tiles * splits, device.sms))
    tensor = k.mma_sync_hopper if c.arch.wgmma else k.mma_sync
    reached = (k.simt if s.math == "simt" else tensor) * min(1.0, 0.5 + busy * warps / 16)
    reached *= min(_VECTOR_FACTOR[min(TMA_BYTES, t.align * t.elem.bytes)] for t in (c.problem.a, c.problem.b))
    reached *= min(1.0, s.warp_tile[0] * s.warp_tile[1] / 2048) ** 0.25
    rate = device.peaks[rate_key(c, device)] / (device.sms * device.clock)
    steps = ceil_div(c.k_tiles, splits)
    step = max(2 * s.tile[0] * s.tile[1] * s.tile[2] / (rate * reached), k.shortest_step / busy)
    stage = c.memory.stage
    mainloop = steps * max(step, stage / k.sm_bytes) + epilogue_cycles(c, s.tile[0] * s.tile[1], k)
    sm = each * busy * mainloop / (device.clock * k.clock)
    if splits > 1:
        sm += k.split + splits * c.shape.m * c.shape.n * c.shape.batch * 8 / (
            k.l2_bytes * device.sms * device.clock
        )
    slots = device.sms * blocks
    average = min(1.0, tiles * splits / (slots * each))
    padding = c.shape.m * c.shape.n / (m_tiles * s.tile[0] * n_tiles * s.tile[1])
    return _whole(c, device, k, sm, tiles * c.k_tiles * stage, slots, tiles * splits, average, padding)


def _gemv(c: GemmCandidate, s: GemvSchedule, device: Device, k: Constants) -> Estimate:
    """The matrix once and the columns once a block, through L2, while enough threads are at work;
    and FFMA with the loads and conversions of both, of which the rows of a thread share a column's."""
    blocks = ceil_div(c.shape.m, s.rows) * c.shape.batch
    slots = device.sms * (2048 // s.threads)
    used = min(1.0, blocks * s.threads / (device.sms * 512))
    matrix = c.shape.m * c.shape.k * c.shape.batch
    visited = matrix * _gemv_waste(c, s)
    cycles = visited * (k.widen + s.columns * (1 + k.widen / s.rows)) / 128 / min(device.sms, blocks)
    if c.shape.k <= _SHORT:
        cycles += blocks * ceil_div(c.shape.n, s.columns) * _SHORT_BLOCK / device.sms
    elif (
        c.shape.n > 1
        and len(c.problem.k) == 1
        and (c.shape.batch > 1 or _by_element(c) or _in_one_step(c, s))
    ):
        waiting = max(0, blocks * ceil_div(c.shape.n, s.columns) - device.sms)
        cycles += waiting * _batched_block(c, s) / device.sms
    columns = blocks * s.columns * c.shape.k
    return _whole(
        c,
        device,
        k,
        cycles / (device.clock * k.clock),
        (matrix * c.problem.a.elem.bytes + columns * c.problem.b.elem.bytes) / used,
        slots,
        blocks,
        min(1.0, blocks / (ceil_div(blocks, slots) * slots)),
        c.shape.n / s.columns,
    )


def _gemv_waste(c: GemmCandidate, s: GemvSchedule) -> float:
    """What a matrix-vector kernel visits over what there is, where the contracted dimensions stay several modes: a
    thread block takes the innermost one at a time, element by element where that is short."""
    if len(c.problem.k) < 2:
        return 1.0
    cover = gemv_cover(c.problem, s)
    step = cover.threads_k * cover.unroll * (cover.vector if cover.order == "k" else 1)
    inner = math.prod(c.sizes[d] for d in c.problem.k[-1])
    rows = ceil_div(c.shape.m, cover.tile_m) * cover.tile_m / c.shape.m
    return rows * ceil_div(inner, step) * step / inner * (_MASKED if inner < step else 1.0)


_SHORT, _SHORT_BLOCK = 8, 600.0
"""Elements in a sum so short that a block's start and end are all that it takes, and an SM's cycles of these: 16384
products of 3 x 3 by 1024 columns took an H100 1317 us, 65536 x 3 by 6 columns of 128 images 913 us."""


def _by_element(c: GemmCandidate) -> bool:
    """Whether a block reads columns element by element: 1832 x 1672 by 8 columns of f16 took an H100 22.8 us so."""
    return c.problem.b.contiguous != "k"


def _in_one_step(c: GemmCandidate, s: GemvSchedule) -> bool:
    """Whether a block reads its part of K at once, so that nothing is in flight while it sums: 12544 rows of 16 by 8
    columns took an H100 25.5 us, as `_batched_block` has it."""
    cover = gemv_cover(c.problem, s)
    return cover.order == "k" and c.shape.k <= cover.threads_k * cover.vector


def _batched_block(c: GemmCandidate, s: GemvSchedule) -> float:
    """Cycles of an SM that a block of one of many products with several columns takes after the SM's first, whatever its
    share of the matrix: for each of its results, and for each element of columns that it reads one by one."""
    columns = min(s.columns, c.shape.n)
    read = 0 if c.problem.b.contiguous == "k" else columns * c.shape.k
    return _RESULT * max(_FEWEST_RESULTS, s.rows * columns) + _ELEMENT * read


_RESULT, _FEWEST_RESULTS, _ELEMENT = 60.0, 16, 0.7
"""392 products of 64 x 256 by 8 columns of f32, 196 of 128 x 512 by 4 and 98 of 256 x 1024 by 2 took an H200 59, 26 and
27 us where K lies along memory, and 95, 83 and 59 us where the columns' K does not."""

_MASKED = 2.5
"""How much longer a matrix-vector kernel takes for elements that it asks for one by one: 13440 products of 32 x 49 by
7 columns, K in two modes of 7, took an H100 820 us."""


def traffic(planned: Planned) -> Traffic | None:
    """What the tiles multiply and read; None for the matrix-vector kernel, which reads its operands once."""
    c = candidate_of(planned)
    if isinstance(c.schedule, GemvSchedule):
        return None
    return Traffic(c.shape.flops, rate_key(c, planned.device), l2_bytes(planned))


def l2_bytes(planned: Planned) -> float:
    """Bytes of A and B that the tiles read from L2: a cluster along M reads B once for its members,
    one along N reads A once; what lies beyond the problem's edge is not read."""
    c = candidate_of(planned)
    match c.schedule:
        case GemvSchedule():
            return float(c.shape.operand_bytes)
        case Sm90Schedule(tile=tile, cluster=cluster):
            splits = 1
        case schedule:
            tile, cluster, splits = schedule.tile, (1, 1), max(1, c.launch.splits)
    parts_a, parts_b = _parts(c)
    rows = min(tile[0], c.shape.m) * c.problem.a.elem.bytes * parts_a / cluster[1]
    columns = min(tile[1], c.shape.n) * c.problem.b.elem.bytes * parts_b / cluster[0]
    return planned.estimate.tiles / splits * c.shape.k * (rows + columns)


# --- what reports read ------------------------------------------------------------------


def resources(planned: Planned) -> Resources:
    """Returns what a block takes of an SM, and how the product is cut."""
    c = candidate_of(planned)
    memory = c.memory
    s, shape = c.schedule, c.shape
    pipelined = not isinstance(s, GemvSchedule)
    capacity = c.arch.shared_memory - memory.epilogue - memory.barriers
    parts = {"stages": memory.stage * memory.stages, "epilogue": memory.epilogue, "barriers": memory.barriers}
    return Resources(
        variant=c.family,
        extents={"M": shape.m, "N": shape.n, "K": shape.k, "batch": shape.batch},
        unit=_unit(c),
        threads=_threads(c),
        memory={name: size for name, size in parts.items() if size},
        memory_limit=c.arch.shared_memory,
        accumulators=accumulators_per_thread(c),
        operand_bytes=shape.operand_bytes,
        tile=None if isinstance(s, GemvSchedule) else s.tile,
        cluster=s.cluster if isinstance(s, Sm90Schedule) else (1, 1),
        stages=memory.stages if pipelined else None,
        most_stages=capacity // memory.stage if pipelined else None,
        loop="K",
        steps=c.k_tiles,
        parts=max(1, c.launch.splits),
        routes=c.routes,
        direct_bytes=_direct_bytes(c),
    )


def _unit(c: GemmCandidate) -> Unit:
    match c.schedule:
        case Sm90Schedule():
            return "wgmma"
        case Sm80Schedule(math=math_) if math_ != "simt":
            return "mma"
        case _:
            return "ffma"


def _threads(c: GemmCandidate) -> int:
    match c.schedule:
        case Sm90Schedule():
            return 384
        case Sm80Schedule() as schedule:
            return 32 * warps_of(schedule)
        case GemvSchedule() as schedule:
            return gemv_cover(c.problem, schedule).block


def _direct_bytes(c: GemmCandidate) -> int:
    """Returns bytes of whole epilogue tensors that threads move themselves."""
    return sum(
        c.shape.m * c.shape.n * c.shape.batch * t.elem.bytes
        for t, route in zip(c.tensors, c.routes, strict=True)
        if route == "direct" and t.shape == "full"
    )


def tile_cost(planned: Planned, constants: Constants = DEFAULT) -> TileCost | None:
    """Returns how a tile's cycles divide: the main loop is what remains of the busiest slot's time beside the
    epilogue. None for the matrix-vector kernel, which has no tiles."""
    c = candidate_of(planned)
    if isinstance(c.schedule, GemvSchedule):
        return None
    elements = c.schedule.tile[0] * c.schedule.tile[1]
    epilogue = epilogue_cycles(c, elements, constants)
    functions = epilogue - epilogue_cycles(c, elements, replace(constants, function=0.0))
    cycles = max(_tile_cycles(planned.estimate, planned.device, constants), epilogue, 1.0)
    steps = max(1, -(-c.k_tiles // max(1, c.launch.splits)))
    device = planned.device
    return TileCost(
        (cycles - epilogue) / steps,
        epilogue / cycles,
        functions / cycles,
        l2_bytes(planned) / (constants.l2_bytes * device.sms * device.clock * constants.clock),
    )


def _tile_cycles(estimate: Estimate, device: Device, constants: Constants) -> float:
    resident = min(max(1, estimate.slots // device.sms), -(-estimate.tiles // device.sms))
    passes = -(-estimate.tiles // estimate.slots) * resident
    return estimate.sm_seconds * device.clock * constants.clock / passes

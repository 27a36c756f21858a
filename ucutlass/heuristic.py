"""How long a candidate would take, from its shape alone: a ranking, not a promise.

A tiled kernel is priced in SM cycles per step of K (tensor cores, shared memory, L2), times
the steps of a tile, plus its epilogue, times the tiles that the busiest slot works through.
Beside that stand two limits of the whole chip: DRAM and sustained power. The three are joined
by a p-norm, since near a limit the others still cost. `Constants` holds every number that is
not counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ucutlass.hardware import Device, cluster_slots, lane_key
from ucutlass.plan import Compute, GemvSchedule, Sm80Schedule, Sm90Schedule, Store
from ucutlass.rules.candidate import TMA_BYTES, Candidate, Shape, ceil_div
from ucutlass.rules.memory import memory_of
from ucutlass.rules.tiles import STREAM_K_ITERATIONS, accumulators_per_thread


@dataclass(frozen=True, slots=True)
class Constants:
    """What counting cannot give. Chosen by hand: `clock`, `sustained`, `norm` and the epilogue's
    cycles so that five timings of a stock 128x256x64 kernel on an H200 come out within 5 %; the
    others are estimates that no measurement backs yet. benchmarks/fit_heuristic.py fits them all.

    clock: of the device's peak clock, what short kernels run at. sustained: of the lane's
    peak, what power lets a long kernel reach. norm: exponent that joins the limits. dram, l2_bytes,
    sm_bytes: of HBM's bandwidth; bytes per cycle and SM that L2 serves with all SMs at it, and
    that one SM takes. fill: cycles from launch to the first wgmma. step, shortest_step: cycles of
    barriers in a step of K, and the least a step takes. element, function, load, direct: cycles of
    an SM per element of a tile for the epilogue's store, a plain function, one more whole operand,
    a tensor moved by threads. pingpong: how much longer one warp group takes over an epilogue.
    split, reduce_bytes: seconds that splitting K costs whatever its size; bytes per cycle of the
    partial sums. cached: part of L2 that operands can live in. traffic: of the sustained power,
    what moving twice the bytes costs. wide_accumulators, register_operand: how much longer a step
    takes with more than 160 accumulators, with tf32 operands that pass through registers.
    mma_sync_hopper, mma_sync, simt: of the peak, what the multistage kernel reaches at best.
    gemv_dram, gemv_cycles: of HBM's bandwidth; FFMA slots that loading and widening one element
    of the matrix takes.
    """

    clock: float = 0.9672
    sustained: float = 0.7894
    norm: float = 4.632
    dram: float = 0.6821
    l2_bytes: float = 42.02
    sm_bytes: float = 56.16
    fill: float = 464.6
    step: float = 34.32
    shortest_step: float = 429
    element: float = 0.1398
    function: float = 1 / 128
    load: float = 0.09
    direct: float = 0.3207
    pingpong: float = 1.04
    split: float = 7.526e-06
    reduce_bytes: float = 23.96
    cached: float = 0.825
    wide_accumulators: float = 1.15
    register_operand: float = 1.3
    mma_sync_hopper: float = 0.3002
    mma_sync: float = 0.85
    simt: float = 0.72
    traffic: float = 0.02986
    gemv_dram: float = 0.92
    gemv_cycles: float = 1.6


DEFAULT = Constants()

_SLOW_FUNCTIONS = frozenset(
    {
        "exp",
        "log",
        "tanh",
        "sigmoid",
        "silu",
        "gelu",
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
    }
)
_SLOW = 8.0
"""Instructions that such a function is worth."""

_VECTOR_FACTOR = {16: 1.0, 8: 0.9, 4: 0.75, 2: 0.5, 1: 0.4}
"""Of the multistage kernel's speed, what is left when an operand is read in that many bytes."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """`seconds` in all. `slots` thread blocks run at a time, `tiles` is what they share (with
    tiles that only fill up clusters and swizzle), `waves` their ratio. `quantisation` is the
    part of the busiest slot's time that the average slot is busy, `padding` the useful part of
    the multiplications. The three limits are in seconds."""

    seconds: float
    slots: int
    tiles: int
    waves: float
    quantisation: float
    padding: float
    sm_seconds: float
    dram_seconds: float
    power_seconds: float
    dram_bytes: float


def estimate(c: Candidate, device: Device, constants: Constants = DEFAULT) -> Estimate:
    """The price of a candidate on a device."""
    match c.schedule:
        case Sm90Schedule():
            return _sm90(c, c.schedule, device, constants)
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


def dram_bytes(c: Candidate, device: Device, slots: int, tiles: int, k: Constants) -> float:
    """Bytes from and to DRAM: operands that L2 cannot hold are read again by every wave."""
    operands, others = c.shape.operand_bytes, c.shape.epilogue_bytes
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
    again = tiles / slots * (rows * tile[0] + columns * tile[1]) * c.shape.k * item
    return max(float(operands), again) + others


def epilogue_cycles(c: Candidate, elements: int, k: Constants) -> float:
    """SM cycles of the epilogue of that many elements."""
    work = 0.0
    for instruction in c.problem.arithmetic.instructions:
        if isinstance(instruction, Compute):
            work += k.function * (_SLOW if instruction.function in _SLOW_FUNCTIONS else 1.0)
    count = len(c.problem.inputs)
    for i, (tensor, route) in enumerate(zip(c.tensors, c.routes, strict=True)):
        if tensor.shape != "full":
            work += k.function * 2
        elif i < count:
            work += k.load if route == "tma" else k.load + k.direct
        else:
            work += (k.element if route == "tma" else k.element + k.direct) * max(1.0, tensor.elem.bytes / 2)
    if not any(isinstance(o, Store) for o in c.problem.outputs):
        work += k.element
    return elements * work


def _join(sm: float, dram: float, power: float, norm: float) -> float:
    return math.pow(math.pow(sm, norm) + math.pow(dram, norm) + math.pow(power, norm), 1 / norm)


def _sm90(c: Candidate, s: Sm90Schedule, device: Device, k: Constants) -> Estimate:
    tile, cluster = s.tile, s.cluster
    m_tiles, n_tiles = tile_grid(c.shape, tile, cluster, c.knobs.swizzle)
    tiles = m_tiles * n_tiles * c.shape.batch
    # Illegal candidates are priced before the rules see them: some clusters fit nowhere.
    slots = max(1, cluster_slots(device, cluster[0] * cluster[1]))
    steps = c.k_tiles
    step = _sm90_step(c, s, min(tiles, slots), device, k)
    epilogue = epilogue_cycles(c, tile[0] * tile[1], k)
    busiest, split_seconds = _sm90_busiest(c, s, tiles, slots, steps, step, epilogue, k)
    clock = device.clock * k.clock
    sm = (busiest + k.fill) / clock + split_seconds
    average = tiles * (steps * step + epilogue) / slots
    return _whole(
        c, device, k, sm, slots, tiles, min(1.0, average / busiest), m_tiles * tile[0] * n_tiles * tile[1]
    )


def _sm90_step(c: Candidate, s: Sm90Schedule, active: int, device: Device, k: Constants) -> float:
    """Cycles of one step of K. 32 bytes of K of a 64 x N wgmma take N/2 cycles of the tensor
    cores, and read A and B from shared memory at 128 bytes a cycle."""
    m, n, depth = s.tile
    a, b = c.problem.a.elem.bytes, c.problem.b.elem.bytes
    mma = (m / 64) * (depth * a / 32) * max(n / 2, n / 4 + 16)
    if accumulators_per_thread(c) > 160:
        mma *= k.wide_accumulators
    if c.problem.lane.name == "tf32" and not _k_major(c):
        mma *= k.register_operand
    rows, columns = min(m, c.shape.m) * a, min(n, c.shape.n) * b  # TMA reads nothing beyond the edge
    serve = min(k.sm_bytes, k.l2_bytes * device.sms / active)
    ingest = depth * max(
        (rows + columns) / k.sm_bytes, (rows / s.cluster[1] + columns / s.cluster[0]) / serve
    )
    return max(mma + k.step, ingest, k.shortest_step)


def _k_major(c: Candidate) -> bool:
    return c.problem.a.k[-1] == () and c.problem.b.k[-1] == ()


def _sm90_busiest(
    c: Candidate,
    s: Sm90Schedule,
    tiles: int,
    slots: int,
    steps: int,
    step: float,
    epilogue: float,
    k: Constants,
) -> tuple[float, float]:
    """Cycles of the slot with most work, and the seconds that splitting K adds."""
    each = ceil_div(tiles, slots)
    if s.warps == "pingpong":
        epilogue *= k.pingpong
        one = steps * step
        return max(
            each * one + epilogue, ceil_div(each, 2) * (one + epilogue) + (one if each % 2 == 0 else 0)
        ), 0.0
    whole = each * (steps * step + epilogue)
    splits = c.knobs.splits
    if s.scheduler == "persistent" or splits == 1:
        return whole, 0.0
    fix = s.tile[0] * s.tile[1] * 4 / k.reduce_bytes
    if splits > 1:
        part = ceil_div(steps, splits) * step
        return ceil_div(tiles * splits, slots) * (part + fix) + fix * splits + epilogue, k.split
    waves, tail = divmod(tiles, slots)
    if tail == 0 or 2 * tail >= slots or steps <= STREAM_K_ITERATIONS:
        return whole, k.split / 2
    parallel = max(0, waves - 1)
    shared = (tiles - parallel * slots) * steps
    length = max(STREAM_K_ITERATIONS, shared / slots)
    parts = max(1.0, steps / length)
    return parallel * (steps * step + epilogue) + length * step + (1 + parts) * fix + epilogue * 1.5, k.split


def rate_key(c: Candidate, device: Device) -> str:
    """The entry of `Device.peaks` at which the kernel multiplies: the multistage kernel widens
    fp8 to f16, as does whatever has no fp8."""
    lane = c.problem.lane.name
    match c.schedule:
        case Sm80Schedule(math=way):
            return "f16" if lane in ("e4m3", "e5m2") else lane_key(lane, way)
        case _:
            return lane if lane in device.peaks else "f16"


def traffic_share(c: Candidate, k: Constants) -> float:
    """Of the power, what a tile's loads leave to the multiplications; 1 for a tile of 128 x 256."""
    match c.schedule:
        case GemvSchedule():
            return 1.0
        case schedule:
            m, n, _ = schedule.tile
            return max(0.2, 1 - k.traffic * ((1 / m + 1 / n) / (1 / 128 + 1 / 256) - 1))


def _whole(
    c: Candidate,
    device: Device,
    k: Constants,
    sm: float,
    slots: int,
    tiles: int,
    quantisation: float,
    area: int,
) -> Estimate:
    moved = dram_bytes(c, device, slots, tiles, k)
    dram = moved / (device.bandwidth * k.dram)
    power = c.shape.flops / (device.peaks[rate_key(c, device)] * k.sustained * traffic_share(c, k))
    seconds = _join(sm, dram, power, k.norm) + device.launch_floor
    return Estimate(
        seconds,
        slots,
        tiles,
        tiles / slots,
        quantisation,
        c.shape.m * c.shape.n / area,
        sm,
        dram,
        power,
        moved,
    )


def warps_of(s: Sm80Schedule) -> int:
    """Warps of a multistage block; at least one, also where the rules refuse the warp tile."""
    return max(1, s.tile[0] // s.warp_tile[0]) * max(1, s.tile[1] // s.warp_tile[1])


def blocks_per_sm(c: Candidate) -> int:
    """Multistage thread blocks that share an SM: by shared memory, registers and threads."""
    assert isinstance(c.schedule, Sm80Schedule)
    warps = warps_of(c.schedule)
    registers = min(255, accumulators_per_thread(c) + 96)
    memory = memory_of(c).total + c.arch.shared_memory_reserved
    return max(
        1,
        min(
            c.arch.shared_memory_sm // memory,
            c.arch.registers // (registers * 32 * warps),
            c.arch.threads // (32 * warps),
        ),
    )


def _sm80(c: Candidate, s: Sm80Schedule, device: Device, k: Constants) -> Estimate:
    blocks = blocks_per_sm(c)
    warps = warps_of(s)
    m_tiles, n_tiles = ceil_div(c.shape.m, s.tile[0]), ceil_div(c.shape.n, s.tile[1])
    tiles = m_tiles * n_tiles * c.shape.batch
    splits = c.knobs.splits
    each = ceil_div(tiles * splits, device.sms * blocks)
    busy = min(blocks, ceil_div(tiles * splits, device.sms))
    tensor = k.mma_sync_hopper if c.arch.wgmma else k.mma_sync
    reached = (k.simt if s.math == "simt" else tensor) * min(1.0, 0.5 + busy * warps / 16)
    reached *= min(_VECTOR_FACTOR[min(TMA_BYTES, t.align * t.elem.bytes)] for t in (c.problem.a, c.problem.b))
    reached *= min(1.0, s.warp_tile[0] * s.warp_tile[1] / 2048) ** 0.25
    rate = device.peaks[rate_key(c, device)] / (device.sms * device.clock)
    steps = ceil_div(c.k_tiles, splits)
    step = max(2 * s.tile[0] * s.tile[1] * s.tile[2] / (rate * reached), k.shortest_step / busy)
    ingest = memory_of(c).stage / min(k.sm_bytes, k.l2_bytes * device.sms / min(device.sms, tiles * splits))
    one = steps * max(step, ingest) + epilogue_cycles(c, s.tile[0] * s.tile[1], k)
    sm = (each * busy * one + k.fill) / (device.clock * k.clock)
    if splits > 1:
        sm += k.split + splits * c.shape.m * c.shape.n * c.shape.batch * 8 / (
            k.l2_bytes * device.sms * device.clock
        )
    slots = device.sms * blocks
    average = min(1.0, tiles * splits / (slots * each))
    return _whole(c, device, k, sm, slots, tiles * splits, average, m_tiles * s.tile[0] * n_tiles * s.tile[1])


def _gemv(c: Candidate, s: GemvSchedule, device: Device, k: Constants) -> Estimate:
    """Bytes over bandwidth while enough threads are at work, and FFMA with its conversions."""
    blocks = ceil_div(c.shape.m, s.rows) * c.shape.batch
    slots = device.sms * (2048 // s.threads)
    moved = float(c.shape.operand_bytes + c.shape.epilogue_bytes)
    used = min(1.0, blocks * s.threads / (device.sms * 512))
    dram = moved / (device.bandwidth * k.gemv_dram * used)
    reads = c.shape.m * c.shape.k * c.shape.batch
    cycles = reads * (s.columns * 1.0 + k.gemv_cycles) / 128 / min(device.sms, blocks)
    sm = (cycles + 0.6 * k.fill) / (device.clock * k.clock)
    seconds = _join(sm, dram, 0.0, k.norm) + device.launch_floor
    waves = blocks / slots
    return Estimate(
        seconds,
        slots,
        blocks,
        waves,
        min(1.0, blocks / (ceil_div(blocks, slots) * slots)),
        c.shape.n / s.columns,
        sm,
        dram,
        0.0,
        moved,
    )

"""Rules on the main loop: the unit that multiplies, its registers, its pipeline of stages, its loads."""

from __future__ import annotations

import math
from dataclasses import replace

from ucutlass.advice.edits import best, edit_to, legal_edits, neighbours, single_change
from ucutlass.advice.facts import Analytic, KernelFacts, analytic
from ucutlass.advice.finding import Diagnosis, ExpectedRatio, Metric, ScheduleEdit
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels.families import resources
from ucutlass.kernels.planned import Planned

LINE = 128
"""Bytes of K in a big tile: a line of the widest swizzle of shared memory."""

RING_STALL, DRAM_BUSY = 0.20, 0.70

L2_BUSY, TENSOR_BUSY = 0.60, 0.80

SHORT_K = 8
"""Steps of K below which filling and draining the pipeline and the epilogue are not amortised."""

BIG_TILE, BIG_MULTISTAGE = (128, 256), (128, 128)
"""Tiles that reach the peak of wgmma, and of mma.sync (CUTLASS's own defaults)."""

FULL_TENSOR = 0.85

NO_TENSOR = 0.05

LATENCY = 479.0
"""Cycles from a load to its data in DRAM on an idle H100 (arXiv 2402.13499, table of memory latencies). A
loaded memory system answers later; the range below takes once and twice this."""

_NONE: tuple[ScheduleEdit, ...] = ()

_SPILL = ExpectedRatio(0.67, 1.0, "from KernelPro: 18 % of this rule's uses gained more than 1.5 times")
_SERIAL = ExpectedRatio(0.08, 1.0, "from CUTLASS issue 3372: 532 to 898 TFLOP/s fell to 43 to 90")


def serialised(f: KernelFacts) -> Diagnosis | None:
    """Checks rule 2."""
    if f.build is None or not f.build.serialised:
        return None
    messages = f.build.serialised
    return Diagnosis(
        "build",
        (Metric("serialisation messages of ptxas", len(messages), "", ">", 0),),
        f"ptxas makes each wgmma wait for the last one: {messages[0]}",
        _fewer_registers(f, _SERIAL),
        "fewer operands in the epilogue also lower the pressure that causes it",
    )


def spills(f: KernelFacts) -> Diagnosis | None:
    """Checks rule 3. Its sources are ptxas, then the disassembly, then the counter."""
    b, c = f.build, f.counters
    counts = [
        (tier, name, value, unit)
        for tier, name, value, unit in (
            ("counters", "local loads and stores", c.local_accesses if c else None, ""),
            ("build", "bytes spilled", b.spill_bytes if b else None, "a thread"),
            ("build", "local instructions", b.local_accesses if b else None, ""),
        )
        if value
    ]
    if not counts:
        return None
    tier, name, value, unit = counts[0]
    return Diagnosis(
        "counters" if tier == "counters" else "build",
        (Metric(name, float(value or 0), unit, ">", 0),),
        f"registers run out at {f.analytic.accumulators} accumulators a thread, and values go through memory",
        _fewer_registers(f, _SPILL),
        "fewer operands in the epilogue also need fewer registers",
    )


def _fewer_registers(f: KernelFacts, expected: ExpectedRatio) -> tuple[ScheduleEdit, ...]:
    def keep(p: Planned) -> bool:
        return resources(p).accumulators < f.analytic.accumulators

    if f.resources.tile is None:
        return neighbours(f, "items", "threads", "vector", keep=keep, max_ratio=None, expected=expected)
    return best(
        neighbours(f, "tile", keep=keep, max_ratio=None, expected=expected),
        neighbours(f, "warps", "tile", keep=keep, max_ratio=None, expected=expected),
    )


def multicast(f: KernelFacts) -> Diagnosis | None:
    """Checks rule 6: thread blocks of a cluster load a shared operand once."""
    a, c = f.analytic, f.counters
    if f.resources.tile is None:
        return None
    counted = c is not None and c.l2 is not None and c.tensor is not None
    l2 = c.l2 if c and c.l2 is not None else a.l2_seconds / f.seconds
    tensor = c.tensor if c and c.tensor is not None else f.bound.compute_seconds / f.seconds
    if l2 <= L2_BUSY or tensor >= TENSOR_BUSY:
        return None

    def keep(p: Planned) -> bool:
        return analytic(p).l2_bytes < 0.95 * a.l2_bytes

    edits = best(neighbours(f, "cluster", keep=keep), neighbours(f, "cluster", "tile", keep=keep))
    if not edits:
        return None
    return Diagnosis(
        "counters" if counted else "timing" if f.timing else "analytic",
        (
            Metric("L2 used", min(l2, 1.0), "%", ">", L2_BUSY),
            Metric("multipliers used", tensor, "%", "<", TENSOR_BUSY),
        ),
        f"tiles read {a.l2_bytes / 1e6:,.0f} MB from L2, {a.l2_bytes / f.bound.bytes:.0f} times the "
        "problem's own bytes; larger tiles, and clusters, read an operand less often",
        edits,
    )


def few_stages(f: KernelFacts) -> Diagnosis | None:
    """Checks rule 7. The aggregate stall counters include the producer warp, which waits by design, so on a
    warp-specialised kernel they count only where more stages would fit."""
    a, c = f.analytic, f.counters
    if a.stages is None or a.most_stages is None or a.stages >= a.most_stages:
        return None
    stall = _ring_stall(f)
    dram = c.dram if c else None
    starved = stall is not None and stall > RING_STALL and dram is not None and dram < DRAM_BUSY
    least = _least_stages(f)
    if (a.stages >= least and not starved) or a.most_stages < least:
        return None
    evidence = [Metric("stages", a.stages, "", "<", least)] if a.stages < least else []
    if starved and stall is not None and dram is not None:
        evidence += [
            Metric("warps waiting for the ring", stall, "%", ">", RING_STALL),
            Metric("memory used", dram, "%", "<", DRAM_BUSY),
        ]
    deeper = _planned(f, replace(f.planned.request, stages=None))
    if deeper is None or analytic(deeper).stages == a.stages:
        return None
    edit = edit_to(f, deeper, _latency_range(f, deeper))
    return Diagnosis(
        "counters" if starved else "analytic",
        tuple(evidence),
        f"with {a.stages} stages a load has {max(0, a.stages - f.resources.busy_stages) * a.step_cycles:.0f} cycles to arrive "
        f"before the multipliers wait; "
        f"{a.most_stages} stages fit",
        (edit,),
    )


def _ring_stall(f: KernelFacts) -> float | None:
    c = f.counters
    if c is None or c.stall_barrier is None or c.stall_long_scoreboard is None or not c.stall_total:
        return None
    return (c.stall_barrier + c.stall_long_scoreboard) / c.stall_total


def capped_stages(f: KernelFacts) -> Diagnosis | None:
    """Rule 8: shared memory beside the epilogue holds fewer than three stages."""
    a, tile, least = f.analytic, f.resources.tile, _least_stages(f)
    if a.most_stages is None or a.most_stages >= least or tile is None:
        return None
    m, n, k = tile
    edits: list[ScheduleEdit] = []
    for request in (
        replace(f.planned.request, tile=(m, n, k // 2), stages=None),
        replace(f.planned.request, tile=(m, n // 2, k), stages=None),
        replace(f.planned.request, tile=(m // 2, n, k), stages=None),
    ):
        halved = _planned(f, request)
        if halved is not None and (analytic(halved).stages or 0) >= least:
            edits.append(edit_to(f, halved, _latency_range(f, halved)))
    other = neighbours(f, "warps", "tile", keep=lambda p: (analytic(p).stages or 0) >= least)
    chosen = best(other, tuple(sorted(edits, key=lambda e: e.expected.low)[:1]))
    if not chosen:
        return None
    return Diagnosis(
        "analytic",
        (Metric("stages that fit", a.most_stages, "", "<", least),),
        f"a {m}x{n}x{k} tile and its epilogue leave room for {a.most_stages} stages: a load has one step "
        "of K to arrive",
        chosen,
    )


def _planned(f: KernelFacts, request: PartialSchedule) -> Planned | None:
    return None if request.tile is not None and min(request.tile) < 1 else f.plan(request)


def _least_stages(f: KernelFacts) -> int:
    """Returns the stages by which one load is in flight. With CUTLASS's two busy stages, the one being
    multiplied and the one before it, which it releases once the next wgmma was issued (K_PIPE_MMAS is 1),
    two stages make every step wait for a whole load: an H200 took 0.38 to 0.63 of the time with all stages
    that fit (benchmarks/data/h200_advice.json)."""
    return f.resources.busy_stages + 1


def _latency_range(f: KernelFacts, halved: Planned) -> ExpectedRatio:
    """Returns a range by Little's law: a step cannot be shorter than the latency over the loads in flight.
    The range is for the latency of an idle and of a loaded memory system, times the model's own ratio."""
    ratio = halved.estimate.seconds / f.analytic.seconds
    halved_facts, busy = analytic(halved), f.resources.busy_stages
    low, high = (
        ratio * _stall_factor(halved_facts, busy, t) / _stall_factor(f.analytic, busy, t)
        for t in (2 * LATENCY, LATENCY)
    )
    basis = f"from Little's law at {LATENCY:.0f} to {2 * LATENCY:.0f} cycles of latency"
    return ExpectedRatio(min(low, high), max(low, high), basis)


def _stall_factor(a: Analytic, busy: int, latency: float) -> float:
    if a.step_cycles <= 0:
        return 1.0
    flying = (a.stages or 1) - busy
    return max(1.0, latency / flying / a.step_cycles) if flying > 0 else 1 + latency / a.step_cycles


def short_loop(f: KernelFacts) -> Diagnosis | None:
    """Checks rule 9."""
    a = f.analytic
    if f.resources.tile is None or a.part_steps >= SHORT_K:
        return None
    split = a.part_steps < a.steps
    edits = best(
        neighbours(f, "split_k", keep=lambda p: analytic(p).part_steps > a.part_steps) if split else (),
        neighbours(f, "warps", "tile", "cluster", "split_k"),
    )
    if not edits:
        return None
    loop = f.resources.loop
    cause = f"; {loop} was split into {f.resources.parts} parts" if split else ""
    return Diagnosis(
        "analytic",
        (Metric(f"steps of {loop}", a.part_steps, "", "<", SHORT_K),),
        f"a part has {a.part_steps} steps of {loop}: filling the ring and the epilogue weigh as much as the "
        f"multiplications{cause}",
        edits,
    )


def big_tile(f: KernelFacts) -> Diagnosis | None:
    """Checks rule 11."""
    launch_resources, c = f.resources, f.counters
    if (
        launch_resources.tile is None
        or launch_resources.loop != "K"
        or f.bound.intensity <= 2 * f.bound.ridge
    ):
        return None
    own = launch_resources.tile[:2]
    big = BIG_TILE if launch_resources.unit == "wgmma" else BIG_MULTISTAGE
    tiles = (
        -(-launch_resources.rows // big[0]) * -(-launch_resources.columns // big[1]) * launch_resources.batch
    )
    if math.prod(own) >= math.prod(big) or tiles < 2 * f.planned.device.sms:
        return None
    if c is not None and c.tensor is not None and c.tensor >= FULL_TENSOR:
        return None
    edits, more = _larger(f, big), _relative_loads(own) / _relative_loads(big)
    if not edits:
        return None
    return Diagnosis(
        "counters" if c is not None and c.tensor is not None else "analytic",
        (
            Metric("FLOP per byte", f.bound.intensity, "", ">", 2 * f.bound.ridge),
            Metric("elements of a tile", math.prod(own), "", "<", math.prod(big)),
        ),
        f"the multipliers decide, and {own[0]}x{own[1]} tiles load {more:.1f} times what "
        f"{big[0]}x{big[1]} tiles load for the same work",
        edits,
    )


def _relative_loads(tile: tuple[int, int]) -> float:
    """Returns what a tile loads per multiplication, relatively."""
    return 1 / tile[0] + 1 / tile[1]


def _larger(f: KernelFacts, big: tuple[int, int]) -> tuple[ScheduleEdit, ...]:
    """Returns, of wgmma with clusters, the two big cooperative tiles with a cluster of two, else the best
    larger tile."""
    if f.resources.unit != "wgmma" or f.planned.request.cluster is None:
        return neighbours(f, "tile", keep=lambda p: _area(p) > _area(f.planned))
    depth = LINE // f.planned.plan.problem.compute_type.bytes
    requests = (
        PartialSchedule(warps="cooperative", tile=(*t, depth), cluster=(2, 1)) for t in (big, big[::-1])
    )
    return best(*(legal_edits(f, request) for request in requests))


def _area(p: Planned) -> int:
    tile = resources(p).tile
    return 0 if tile is None else tile[0] * tile[1]


def wrong_pipe(f: KernelFacts) -> Diagnosis | None:
    """Checks rule 16: a slower unit multiplies although a faster one could."""
    b, c = f.build, f.counters
    if f.resources.tile is None:
        return None
    unit, edits = "", _NONE
    ffma = f.resources.unit == "ffma"
    if ffma:
        unit = "FFMA multiplies, not the tensor cores"
        edits = _on_tensor_cores(f)
    elif f.resources.unit == "mma" and f.arch.wgmma:
        unit = "mma.sync multiplies, which reaches a part of what Hopper's wgmma does"
        edits = _on_wgmma(f)
    evidence = [Metric("wgmma kernel", 0, "", "<", 1)] if edits else []
    tier = "analytic"
    if b is not None and b.tensor_instructions == 0 and not ffma:
        unit, tier = "the built kernel holds no tensor instruction", "build"
        evidence.append(Metric("tensor instructions in SASS", 0, "", "<", 1))
    if c is not None and c.tensor is not None and c.fma is not None and c.tensor < NO_TENSOR < c.fma:
        tier = "counters"
        evidence += [
            Metric("tensor pipe", c.tensor, "%", "<", NO_TENSOR),
            Metric("FMA pipe", c.fma, "%", ">", NO_TENSOR),
        ]
        unit = unit or "the tensor cores rest while FFMA works"
    if not evidence:
        return None
    act = (
        "" if edits else "check the compile target, and the compute type: `dot` over bf16, f16 or tf32 casts"
    )
    return Diagnosis(
        "counters" if tier == "counters" else "build" if tier == "build" else "analytic",
        tuple(evidence),
        unit,
        edits,
        act,
    )


def _on_tensor_cores(f: KernelFacts) -> tuple[ScheduleEdit, ...]:
    request = f.planned.request
    if request.math == "simt":
        return single_change(f, math="tf32x3", tile=request.tile, warp_tile=None, stages=None)
    return _on_wgmma(f) if f.arch.wgmma else _NONE


def _on_wgmma(f: KernelFacts) -> tuple[ScheduleEdit, ...]:
    def keep(p: Planned) -> bool:
        return resources(p).unit == "wgmma"

    kinds = (PartialSchedule(warps="cooperative"), PartialSchedule(warps="pingpong"))
    return best(*(legal_edits(f, request, keep) for request in kinds))

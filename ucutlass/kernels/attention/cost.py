"""How long attention takes, and what its launch counts."""

from __future__ import annotations

import math

from ucutlass.ir.hardware import Arch, Device
from ucutlass.kernels.attention.plan import (
    GROUP,
    AttentionPlan,
    AttentionProblem,
    AttentionSchedule,
    is_tf32,
    splits_f32,
)
from ucutlass.kernels.attention.problem import flops
from ucutlass.kernels.attention.rules import held
from ucutlass.kernels.attention.smem import SHARED_BYTES, most_stages, shared_bytes, stage_bytes
from ucutlass.kernels.gemm.problem import tensor_bytes
from ucutlass.kernels.planned import Estimate, Grid, Planned, Resources, TileCost, Traffic, counted

REACHED = 0.65
"""Of the compute type's peak, about, by long sequences (measured on an H200)."""

REACHED_TF32 = 0.5
"""The same in TF32, by one pass or three (measured on an H100)."""


def estimate(
    problem: AttentionProblem,
    schedule: AttentionSchedule,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    launch: tuple[int, ...],
) -> Estimate:
    """Returns the time of both products at the share of the peak that long sequences reach. It does not tell
    schedules apart."""
    reached = REACHED_TF32 if is_tf32(problem) else REACHED
    multiplied = flops(problem, sizes) / (reached * device.peaks[_rate(problem)])
    rows, keys, batch = _extents(problem, sizes)
    tile_rows, blocks = GROUP * schedule.groups, -(-keys // schedule.keys)
    tiles = batch * -(-rows // tile_rows)
    useful = rows * keys / (-(-rows // tile_rows) * tile_rows * blocks * schedule.keys)
    moved = _tensor_bytes(problem, sizes)
    # The warp groups' registers fill an SM: it holds one block.
    grid = Grid(tiles * launch[1], device.sms, useful)
    copied = _copied_bytes(problem, sizes) / device.bandwidth
    seconds = device.launch_floor + multiplied + copied
    return counted(grid, seconds, multiplied, moved / device.bandwidth, moved)


def resources(planned: Planned) -> Resources:
    """Returns what a block takes of an SM, and how rows and keys are cut."""
    problem, schedule = _plan(planned)
    rows, keys, batch = _extents(problem, planned.sizes)
    ring = schedule.stages * stage_bytes(problem, schedule)
    return Resources(
        variant="wgmma",
        extents={"rows": rows, "keys": keys, "head": problem.head, "batch": batch},
        unit="wgmma",
        threads=128 * (schedule.groups + 1),
        memory={"stages": ring, "queries and barriers": shared_bytes(problem, schedule) - ring},
        memory_limit=SHARED_BYTES,
        accumulators=held(problem, schedule.keys),
        operand_bytes=sum(
            tensor_bytes(t, p, planned.sizes)
            for t, p in (
                (problem.scores.a, problem.scores),
                (problem.scores.b, problem.scores),
                (problem.results.b, problem.results),
            )
        ),
        tile=(GROUP * schedule.groups, schedule.keys, problem.head),
        stages=schedule.stages,
        most_stages=most_stages(problem, schedule),
        busy_stages=1,
        loop="keys",
        steps=-(-keys // schedule.keys),
        parts=planned.launch[1],
        routes=("tma" if problem.plain and not schedule.split else "direct",),
    )


def traffic(planned: Planned) -> Traffic:
    """Returns what both products multiply, and the bytes that tiles read: each its queries once, and the keys
    and values that its rows meet."""
    problem, schedule = _plan(planned)
    rows, keys, batch = _extents(problem, planned.sizes)
    operations = flops(problem, planned.sizes)
    every = 2.0 * batch * rows * keys * (problem.head + problem.head_v)
    item = problem.compute_type.bytes
    queries = batch * rows * problem.head * item * planned.launch[1]
    tiles = batch * -(-rows // (GROUP * schedule.groups))
    met = tiles * keys * (problem.head + problem.head_v) * item * min(1.0, operations / every)
    met *= 2 if splits_f32(problem) else 1
    return Traffic(round(operations), _rate(problem), queries + met)


def tile_cost(planned: Planned) -> TileCost:
    """Returns the cycles of a block of keys: the estimate divided over the blocks of the busiest SM. The model
    knows no epilogue."""
    estimate_, launch_resources = planned.estimate, resources(planned)
    turns = -(-estimate_.tiles // estimate_.slots) * launch_resources.part_steps
    cycles = estimate_.sm_seconds * planned.device.clock / turns
    return TileCost(cycles, 0.0, 0.0, traffic(planned).l2_bytes / planned.device.l2_bandwidth)


def _rate(problem: AttentionProblem) -> str:
    """Returns the entry of `Device.peaks` at which the kernel multiplies."""
    return "tf32x3" if splits_f32(problem) else problem.compute_type.name


def _plan(planned: Planned) -> tuple[AttentionProblem, AttentionSchedule]:
    plan = planned.plan
    assert isinstance(plan, AttentionPlan), type(plan)
    return plan.problem, plan.schedule


def _extents(problem: AttentionProblem, sizes: tuple[int, ...]) -> tuple[int, int, int]:
    """Rows, keys and batches."""
    rows, keys = (math.prod(sizes[i] for i in mode) for mode in (problem.scores.m, problem.scores.n))
    return rows, keys, math.prod(sizes[i] for mode in problem.scores.batch for i in mode)


def _copied_bytes(problem: AttentionProblem, sizes: tuple[int, ...]) -> int:
    """Bytes that the launch before reads and writes: values in TF32, keys and values in two parts in f32."""
    if not is_tf32(problem):
        return 0
    values = tensor_bytes(problem.results.b, problem.results, sizes)
    if not splits_f32(problem):
        return 2 * values
    return 3 * (values + tensor_bytes(problem.scores.b, problem.scores, sizes))


def _tensor_bytes(problem: AttentionProblem, sizes: tuple[int, ...]) -> int:
    """Bytes of every tensor, each counted once."""
    scores, results = problem.scores, problem.results
    ofs = [(t, scores) for t in (scores.a, scores.b, *scores.inputs)]
    ofs += [(t, results) for t in (results.b, *results.inputs, *(o.access for o in results.outputs))]
    return sum(tensor_bytes(t, p, sizes) for t, p in ofs)

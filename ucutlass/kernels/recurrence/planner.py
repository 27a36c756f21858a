"""The cheapest way to share recurrent layers among thread blocks that all run at once."""

from __future__ import annotations

from collections.abc import Iterator

from ucutlass.ir.hardware import Arch, Device
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels.planned import Note, Planned
from ucutlass.kernels.recurrence import cost, smem
from ucutlass.kernels.recurrence.plan import PACKET, WARP, RecurrentPlan, RecurrentSchedule
from ucutlass.kernels.recurrence.problem import RecurrentProblem

MOST_MULTIPLYING = 256
"""Threads of a block that multiply, which with those that receive have 128 registers each."""

MOST_BATCHES = 8
"""Vectors of a lane, of which it has the sums of eight rows each in registers."""

MOST_WORKSPACE = 2**30
"""Bytes of packets."""


def plan_recurrence(problem: RecurrentProblem, arch: Arch, device: Device) -> Planned | None:
    """Returns the cheapest plan; None where the weights do not fit in the shared memory of all SMs, or a part of the
    batch is too large."""
    plans = list(legal_plans(problem, arch, device))
    if not plans:
        return None
    plan = min(plans, key=lambda p: cost.estimate(p, device).seconds)
    note = Note("", f"{plan.grid} thread blocks", "that run at once and keep the weights in shared memory")
    return Planned(plan, (), problem.sizes, PartialSchedule(), device, cost.estimate(plan, device), (note,))


def legal_plans(problem: RecurrentProblem, arch: Arch, device: Device) -> Iterator[RecurrentPlan]:
    """Yields the plans whose thread blocks fit on the device at once."""
    for groups in (g for g in range(1, problem.batch + 1) if problem.batch % g == 0):
        # A layer that reads both directions of the one below waits for its last step.
        for concurrent in range(1, 1 + (problem.layers if problem.directions == 1 else 1)):
            blocks = device.sms // (concurrent * problem.directions * groups)
            if blocks == 0:
                continue
            fewest = -(-problem.hidden // (blocks * PACKET))
            for packets in (fewest, fewest + 1):
                yield from _divided(problem, arch, packets * PACKET, concurrent, groups)


def _divided(
    problem: RecurrentProblem, arch: Arch, units: int, concurrent: int, groups: int
) -> Iterator[RecurrentPlan]:
    batch = problem.batch // groups
    k_lanes = WARP if batch == 1 else WARP // 2 if batch == 2 else WARP // 4
    tiles = -(-units * problem.gates // 8)
    most = -(-problem.hidden // (4 * k_lanes))
    for k_parts in range(1, max(1, min(most, MOST_MULTIPLYING // (WARP * tiles))) + 1):
        schedule = RecurrentSchedule(units, k_lanes, k_parts, concurrent, groups)
        plan = RecurrentPlan(arch.name, problem, schedule)
        fits = sum(smem.parts(plan).values()) <= arch.shared_memory and plan.workspace <= MOST_WORKSPACE
        if fits and plan.batches <= MOST_BATCHES and plan.multiplying <= MOST_MULTIPLYING:
            yield plan

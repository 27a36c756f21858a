"""The price of recurrent layers: the time of a step, which every thread block waits for, times the steps."""

from __future__ import annotations

from ucutlass.ir.hardware import Device
from ucutlass.kernels.planned import Estimate, Grid, counted
from ucutlass.kernels.recurrence.plan import ROWS_OF_WARP, WARP, RecurrentPlan

STEP = 0.86e-6
"""Seconds of a step besides what follows: a state's way through L2, barriers, the functions of the gates."""

RECEIVED = 0.4e-6
"""Seconds that a thread takes for each of a step's packets."""

RECURRENT, INPUT = 1.17, 0.8
"""How much of the cycles of the two products a step waits for."""

LAUNCH = 6e-6
"""Seconds to clear the packets' words and to load the weights."""

SCHEDULERS = 4
"""Warp schedulers of an SM."""

SHARED_LINE = 128
"""Bytes that shared memory gives in a cycle."""


def estimate(plan: RecurrentPlan, device: Device) -> Estimate:
    """Returns the estimate. The constants are fitted to 44 kernels on an H200, within 10 % in the root mean square."""
    p = plan.problem
    turns = -(-p.layers // plan.schedule.concurrent)
    depth = p.directions * p.hidden if p.layers > 1 else p.input
    products = RECURRENT * _cycles(plan, p.hidden) + INPUT * _cycles(plan, depth)
    step = STEP + RECEIVED * plan.packets / plan.receiving + products / device.boost
    cleared = plan.workspace / device.bandwidth
    seconds = LAUNCH + cleared + (turns * p.steps + plan.schedule.concurrent - 1) * step
    grid = Grid(plan.grid, device.sms)
    return counted(grid, seconds, turns * p.steps * products / device.boost, cleared, float(plan.workspace))


def _cycles(plan: RecurrentPlan, depth: int) -> float:
    """Returns the cycles of a product of a block's rows of weights with a vector of each sample. Lanes read 16 bytes at
    a time, for which shared memory takes a cycle for each quarter of a warp."""
    warps, turns = plan.multiplying // WARP, -(-depth // (plan.k_step * plan.schedule.k_parts))
    multiplies = turns * ROWS_OF_WARP * 4 * plan.batches * max(1.0, warps / SCHEDULERS)
    read = warps * turns * (ROWS_OF_WARP + plan.batches) * WARP * 16 / SHARED_LINE
    return max(multiplies, read)

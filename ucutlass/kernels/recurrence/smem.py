"""The shared memory of a thread block of recurrent layers."""

from __future__ import annotations

from collections.abc import Mapping

from ucutlass.kernels.recurrence.plan import RecurrentPlan

FLOAT = 4


def parts(plan: RecurrentPlan) -> Mapping[str, int]:
    """Returns the bytes of each part, in the order of the emitted structure."""
    units = plan.schedule.units
    sums = plan.schedule.k_parts * plan.rows * (plan.batch | 1)
    return {
        "recurrent weights": plan.rows * plan.hidden_pitch * FLOAT,
        "input weights": plan.rows * plan.input_pitch * FLOAT,
        "states": 2 * plan.batch * plan.hidden_pitch * FLOAT,
        "inputs": 2 * plan.batch * plan.input_pitch * FLOAT,
        "sums": 3 * sums * FLOAT,
        "biases": 2 * plan.rows * FLOAT,
        "cell states": units * plan.batch * FLOAT,
    }

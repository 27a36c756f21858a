"""The family of recurrent layers."""

from __future__ import annotations

from ucutlass.kernels.call_family import CallFamily
from ucutlass.kernels.recurrence.plan import RecurrentPlan
from ucutlass.kernels.recurrence.planner import plan_recurrence
from ucutlass.kernels.recurrence.problem import RecurrentProblem, problem_of

FAMILY = CallFamily("recurrence", RecurrentProblem, RecurrentPlan, problem_of, plan_recurrence)

"""The plans of every kernel family but GEMM's (`ucutlass.plan`), one module each.

A plan holds no name that a program chose, and no extent but those that shape the code.
"""

from __future__ import annotations

from typing import TypeAlias

from ucutlass.plan import GemmPlan
from ucutlass.plans.attention import AttentionPlan
from ucutlass.plans.convolution import ConvPlan
from ucutlass.plans.products import ProductsPlan
from ucutlass.plans.sweep import SweepPlan

FamilyPlan: TypeAlias = AttentionPlan | ConvPlan | ProductsPlan | SweepPlan
"""A plan of a family besides GEMM."""

Plan: TypeAlias = GemmPlan | FamilyPlan
"""Any kernel's plan: `arch`, and a `problem` with its `lane`, `pointers` and `scalars`."""

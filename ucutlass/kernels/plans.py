"""The plans of every kernel family but GEMM's (`ucutlass.kernels.gemm.plan`), one module each.

A plan holds no name that a program chose, and no extent but those that shape the code.
"""

from __future__ import annotations

from typing import TypeAlias

from ucutlass.kernels.attention.plan import AttentionPlan
from ucutlass.kernels.convolution.plan import ConvPlan
from ucutlass.kernels.gemm.plan import GemmPlan
from ucutlass.kernels.grouped_gemm.plan import ProductsPlan
from ucutlass.kernels.reduction.plan import SweepPlan

FamilyPlan: TypeAlias = AttentionPlan | ConvPlan | ProductsPlan | SweepPlan
"""A plan of a family besides GEMM."""

Plan: TypeAlias = GemmPlan | FamilyPlan
"""Any kernel's plan: `arch`, and a `problem` with its `lane`, `pointers` and `scalars`."""

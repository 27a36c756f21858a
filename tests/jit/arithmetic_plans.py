"""Plans for kernels that are linked from two parts: small tiles, each with another part of the arithmetic's interface."""

from __future__ import annotations

from dataclasses import replace

from tests.emit.test_gemm_sm90 import ACC, PINGPONG, access, matrix, plan
from ucutlass.ir.elements import BF16, E4M3, F16
from ucutlass.kernels.access import Store
from ucutlass.kernels.arithmetic import (
    Arithmetic,
    Compute,
    CoordinateValue,
    HostScalar,
    Instruction,
    LiteralValue,
    LoadSlot,
    Round,
)
from ucutlass.kernels.gemm.plan import GemmPlan

SMALL = replace(PINGPONG, tile=(64, 64, 64))


def biased(*function: Instruction) -> GemmPlan:
    """f16 with a bias, then the functions, each of the value before it (instruction 2 is the sum)."""
    body = (ACC, LoadSlot(0, "f32"), Compute("add", (0, 1), "f32"), *function)
    moved = ((access(2, F16, n=()), "direct"), (Store(matrix(3, F16)), "tma"))
    return plan(F16, Arithmetic(body, (len(body) - 1,)), moved, SMALL)


def gelu() -> GemmPlan:
    return biased(Compute("gelu", (2,), "f32"))


def scaled_relu() -> GemmPlan:
    return biased(LiteralValue(0.5, "f32"), Compute("multiply", (2, 3), "f32"), Compute("relu", (4,), "f32"))


def everything() -> GemmPlan:
    """Columns of two dimensions, both as coordinates; a host scalar; roundings on the way; a residual
    by TMA; two results, one of 8 bits."""
    body = (
        ACC,
        LoadSlot(0, "f32"),
        HostScalar(0, "f32"),
        Compute("multiply", (0, 2), "f32"),
        Round(3, BF16, "f32"),
        Compute("add", (4, 1), "f32"),
        CoordinateValue("n", 0, (3,), (1,), "i32"),
        CoordinateValue("n", 0, (), (3,), "i32"),
        Compute("less", (6, 7), "bool"),
        Compute("tanh", (5,), "f32"),
        Compute("relu", (5,), "f32"),
        Compute("where", (8, 9, 10), "f32"),
        Round(11, E4M3, "f32"),
    )
    base = plan(
        BF16,
        Arithmetic(body, (11, 12)),
        ((matrix(2, F16), "tma"), (Store(matrix(3, BF16)), "tma"), (Store(matrix(4, E4M3)), "tma")),
        SMALL,
    )
    return replace(base, problem=replace(base.problem, n=(1, 3), dims=4, scalars=1))

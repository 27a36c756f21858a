"""Plans of the mma.sync GEMM and the matrix-vector product for tests; dimensions 0, 1, 2 are M, N, K."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from ucutlass.ir.elements import BF16, BOOL, F16, F32, I32, S8, Element
from ucutlass.kernels.access import Access, Product, Reduction, Store, Stride
from ucutlass.kernels.arithmetic import (
    Accumulator,
    Arithmetic,
    Compute,
    CoordinateValue,
    ExtentValue,
    HostScalar,
    LiteralValue,
    LoadSlot,
)
from ucutlass.kernels.gemm.plan import GemmPlan, GemmProblem, GemvSchedule, Sm80Schedule

SMALL = Sm80Schedule((64, 64, 32), (32, 32), 3, "tensor")


def access(
    pointer: int,
    elem: Element,
    m: Stride = None,
    n: Stride = None,
    k: tuple[Stride, ...] = (),
    batch: tuple[Stride, ...] = (),
    align: int = 1,
) -> Access:
    return Access(pointer, elem, m, n, k, batch, align)


def plain(
    compute_type: Element,
    out: Element,
    a: Literal["m", "k", None] = "k",
    b: Literal["n", "k", None] = "k",
    align: int = 1,
    accumulate: str = "",
    schedule: Sm80Schedule | GemvSchedule = SMALL,
    arch: str = "sm_90a",
) -> GemmPlan:
    """D = A B: each operand contiguous along the mode that is named, or along neither (which
    takes M = N = K: the other modes' strides are K and K * K there)."""
    memory = compute_type if compute_type.storable else F32
    order: dict[str | None, tuple[Product, Product]] = {"k": ((2,), ()), None: ((2, 2), (2,))}
    row_a, k_a = order[a] if a != "m" else ((), (0,))
    row_b, k_b = order[b] if b != "n" else ((), (1,))
    problem = GemmProblem(
        compute_type=compute_type,
        accumulate=accumulate or ("s32" if compute_type == S8 else "f32"),
        m=(0,),
        n=(1,),
        k=((2,),),
        batch=(),
        a=access(0, memory, m=row_a, k=(k_a,), align=align),
        b=access(1, memory, n=row_b, k=(k_b,), align=align),
        inputs=(),
        outputs=(Store(access(2, out, m=(1,), n=(), align=min(align, 16 // out.bytes))),),
        arithmetic=Arithmetic((Accumulator("i32" if compute_type == S8 else "f32"),), (0,)),
        dims=3,
        pointers=3,
        scalars=0,
    )
    return GemmPlan(arch, problem, schedule, ("direct",))


def rich(
    elem: Element = F16,
    schedule: Sm80Schedule | GemvSchedule = SMALL,
    along: Literal["m", "n"] = "n",
    out: Element = F16,
) -> GemmPlan:
    """Two batch modes, two contracted modes, every shape of operand and kind of result.

    Dimensions are M, N, K, J (contracted, outside K), P and Q (batch); A is the same for all Q.
    """
    kind: Literal["i32", "f32"] = "i32" if elem == S8 else "f32"
    m: Stride
    n: Stride
    m, n = ((1,), ()) if along == "n" else ((), (0,))
    batch: tuple[Stride, ...] = ((5, 1, 0), (1, 0))
    problem = GemmProblem(
        compute_type=elem,
        accumulate="s32" if elem == S8 else "f32",
        m=(0,),
        n=(1,),
        k=((3,), (2,)),
        batch=((4,), (5,)),
        a=access(0, elem, m=(3, 2), k=((2,), ()), batch=((0, 3, 2), None)),
        b=access(1, elem, n=(), k=((5, 2, 1), (1,)), batch=((3, 5, 2, 1), (2, 1))),
        inputs=(
            access(2, F32, n=(), batch=(None, None)),
            access(3, F16, m=(), batch=(None, (0,))),
            access(4, BF16, m=(), n=(0,), batch=batch),
            access(5, F32, batch=((), None)),
            access(6, I32, batch=(None, None)),
        ),
        outputs=(
            Store(access(7, out, m, n, batch=batch)),
            Reduction("sum", access(8, F32, m=(), batch=((5, 0), (0,)))),
            Reduction("max", access(9, F16, n=(), batch=((1,), None))),
            Reduction("sum", access(10, F32, batch=(None, None))),
            Reduction("min", access(11, F32, m=(1,), n=(), batch=((0, 1), None))),
            Store(access(12, BOOL, m, n, batch=batch)),
            Reduction("max", access(13, F32, batch=(None, ()))),
        ),
        arithmetic=Arithmetic(
            (
                Accumulator(kind),
                *(LoadSlot(i, "f32") for i in range(4)),
                LoadSlot(4, "i32"),
                Compute("add", (0, 1), "f32"),
                Compute("add", (6, 2), "f32"),
                Compute("add", (7, 3), "f32"),
                Compute("add", (8, 4), "f32"),
                Compute("add", (9, 5), "f32"),
                CoordinateValue("m", 0, (), (0,), "i64"),
                CoordinateValue("batch", 1, (), (5,), "i64"),
                Compute("add", (10, 11), "f32"),
                Compute("subtract", (13, 12), "f32"),
                HostScalar(0, "f32"),
                Compute("multiply", (14, 15), "f32"),
                LiteralValue(0.0, "f32"),
                Compute("greater", (16, 17), "bool"),
                ExtentValue((1,), "i64"),
                Compute("subtract", (16, 19), "f32"),
            ),
            (20, 16, 20, 16, 16, 18, 16),
        ),
        dims=6,
        pointers=14,
        scalars=1,
    )
    return GemmPlan("sm_90a", problem, schedule, ("direct",) * 12)


def square(plan: GemmPlan) -> GemmPlan:
    """The same with one dimension for M, N and K."""
    problem = plan.problem
    return replace(plan, problem=replace(problem, m=(2,), n=(2,)))

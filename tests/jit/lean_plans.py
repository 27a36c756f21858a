"""Plans for lean kernels: random ones over compute types, orders and schedules, and one of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, TypeAlias, get_args

from hypothesis import strategies as st

from tests.emit.test_gemm_sm90 import ACC, COOPERATIVE, PINGPONG, access, bias_gelu, matrix, plan
from tests.random_programs import random_program
from ucutlass import frontend
from ucutlass.diagnostics import ProgramError
from ucutlass.emit.gemm.lean import lean
from ucutlass.emit.parts import Lean, NotServed
from ucutlass.ir.elements import BF16, E4M3, E5M2, F16, F32, S8, TF32, U8, Element
from ucutlass.kernels.access import Store
from ucutlass.kernels.arithmetic import Arithmetic, Compute, HostScalar, LoadSlot
from ucutlass.kernels.families import Refused
from ucutlass.kernels.gemm.plan import GemmPlan, Math, Sm90Schedule
from ucutlass.kernels.gemm.rules.tiles import COOPERATIVE_M, MAX_CLUSTER, MAX_TILE, PINGPONG_M, WIDTHS
from ucutlass.shapes import complete

Warps: TypeAlias = Literal["pingpong", "cooperative"]

COMPUTE_TYPES: tuple[Element, ...] = (F16, BF16, TF32, F32, E4M3, E5M2, S8, U8)

CLUSTERS = tuple((m, n) for m in (1, 2, 4, 8) for n in (1, 2, 4, 8) if m * n <= MAX_CLUSTER)


def ordered(base: GemmPlan, a: str, b: str) -> GemmPlan:
    """The plan with each operand contiguous along "k" or along its rows, "mn"."""
    p = base.problem
    turned_a = replace(p.a, m=(), k=(p.m,)) if a == "mn" else p.a
    turned_b = replace(p.b, n=(), k=(p.n,)) if b == "mn" else p.b
    return replace(base, problem=replace(p, a=turned_a, b=turned_b))


def plain(compute_type: Element, schedule: Sm90Schedule) -> GemmPlan:
    """The product alone, in bf16 by TMA."""
    return plan(compute_type, Arithmetic((ACC,), (0,)), ((Store(matrix(2, BF16)), "tma"),), schedule)


@st.composite
def plain_plans(draw: st.DrawFn) -> GemmPlan:
    """Every legal tile, cluster, compute type and order, also where shared memory does not hold its stages."""
    compute_type = draw(st.sampled_from(COMPUTE_TYPES))
    warps: Warps = draw(st.sampled_from(get_args(Warps)))
    step = 32 // compute_type.bytes
    tile = (
        draw(st.sampled_from(COOPERATIVE_M if warps == "cooperative" else PINGPONG_M)),
        draw(st.sampled_from(WIDTHS)),
        step * draw(st.integers(1, MAX_TILE // step)),
    )
    math: Math = "tf32x3" if compute_type == F32 else "tensor"
    schedule = Sm90Schedule(tile, draw(st.sampled_from(CLUSTERS)), 2, warps, "persistent", math)
    turnable = compute_type.bytes == 2 or compute_type == F32
    orders = st.sampled_from(("k", "mn")) if turnable else st.just("k")
    return ordered(plain(compute_type, schedule), draw(orders), draw(orders))


def random_kernels(seeds: range) -> Iterator[tuple[GemmPlan, Lean]]:
    """Of those random programs that a lean kernel serves."""
    for seed in seeds:
        program = random_program(seed, ("pingpong", "cooperative"))
        try:
            checked = frontend.read_text(program.text)
            kernel = frontend.kernel(checked)
            sizes = complete(kernel, program.sizes)
            found = frontend.plan_kernel(checked, kernel, sizes, "sm90a").planned.plan
            yield found, lean(found)
        except (ProgramError, Refused, NotServed):
            continue


# --- one of each kind -------------------------------------------------------------


def biased() -> GemmPlan:
    """f16, a row of biases, pingpong, one block a cluster."""
    return replace(bias_gelu(), schedule=PINGPONG)


def shared() -> GemmPlan:
    """bf16 in clusters of 2 x 2: tiles of both operands come in slices."""
    return plain(BF16, replace(COOPERATIVE, cluster=(2, 2), tile=(128, 128, 64)))


def turned() -> GemmPlan:
    """f16, both operands contiguous along their rows, the result along M, a batch that B lacks."""
    base = ordered(plain(F16, replace(PINGPONG, tile=(64, 96, 64))), "mn", "mn")
    p = base.problem
    (store,) = p.outputs
    batch = ((0, 1),)
    problem = replace(
        p,
        batch=((3,),),
        dims=4,
        a=replace(p.a, batch=((0, 2),)),
        b=replace(p.b, batch=(None,)),
        outputs=(Store(replace(store.access, m=(), n=(0,), elem=F16, batch=batch)),),
    )
    return replace(base, problem=problem)


def interleaved() -> GemmPlan:
    """bf16 as A[M, B, K] and B[N, B, K]: batches lie nearer than rows."""
    base = plain(BF16, replace(PINGPONG, tile=(64, 64, 64)))
    p = base.problem
    (store,) = p.outputs
    problem = replace(
        p,
        batch=((3,),),
        dims=4,
        a=replace(p.a, m=(3, 2), batch=((2,),)),
        b=replace(p.b, n=(3, 2), batch=((2,),)),
        outputs=(Store(replace(store.access, m=(3, 1), batch=((1,),))),),
    )
    return replace(base, problem=problem)


def residual() -> GemmPlan:
    """e4m3: a residual by TMA, a scale for each row, a scalar in memory, one of the host; two results."""
    body = (
        ACC,
        LoadSlot(0, "f32"),
        LoadSlot(1, "f32"),
        LoadSlot(2, "f32"),
        HostScalar(0, "f32"),
        Compute("multiply", (0, 2), "f32"),
        Compute("multiply", (1, 4), "f32"),
        Compute("add", (5, 6), "f32"),
        Compute("multiply", (7, 3), "f32"),
    )
    base = plan(
        E4M3,
        Arithmetic(body, (7, 8)),
        (
            (matrix(2, BF16), "tma"),
            (access(3, F32, m=()), "direct"),
            (access(4, F32), "direct"),
            (Store(matrix(5, E4M3)), "tma"),
            (Store(matrix(6, F32, align=1)), "direct"),
        ),
        replace(COOPERATIVE, tile=(128, 128, 128), cluster=(1, 2), stages=3),
    )
    return replace(base, problem=replace(base.problem, scalars=1))


def wide() -> GemmPlan:
    """tf32 to f32 by TMA."""
    base = plain(TF32, replace(PINGPONG, tile=(64, 64, 32)))
    (store,) = base.problem.outputs
    p = base.problem
    f32 = (Store(replace(store.access, elem=F32, align=4)),)
    a, b = replace(p.a, elem=F32), replace(p.b, elem=F32)
    return replace(base, problem=replace(p, a=a, b=b, outputs=f32))


THREE = Sm90Schedule((128, 192, 32), (2, 1), 2, "cooperative", "persistent", "tf32x3")
"""f32 in three tf32 passes, by the largest tile whose sums registers hold twice."""

THREE_PINGPONG = Sm90Schedule((64, 128, 32), (1, 2), 4, "pingpong", "persistent", "tf32x3")


def three(schedule: Sm90Schedule = THREE, batched: bool = False) -> GemmPlan:
    """f32 to f32 by TMA; `batched` by a name that B lacks, whose rows of A lie nearer than A's own."""
    base = plain(F32, schedule)
    p = base.problem
    (store,) = p.outputs
    stored = replace(store.access, elem=F32, align=4)
    if not batched:
        return replace(base, problem=replace(p, outputs=(Store(stored),)))
    problem = replace(
        p,
        batch=((3,),),
        dims=4,
        a=replace(p.a, m=(3, 2), batch=((2,),)),
        b=replace(p.b, batch=(None,)),
        outputs=(Store(replace(stored, batch=((0, 1),))),),
    )
    return replace(base, problem=problem)


KINDS = {"biased": biased, "shared": shared, "turned": turned, "residual": residual, "wide": wide}

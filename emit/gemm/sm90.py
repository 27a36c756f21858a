"""Warp-specialised TMA kernels for Hopper: a plan with an Sm90Schedule to CUTLASS 3.x C++.

The main loop and the epilogue are CUTLASS's, made by its collective builders, with one visitor
of ours that calls the arithmetic for each element between CUTLASS's loads and stores.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ucutlass.emit import text
from ucutlass.emit.arithmetic import arithmetic
from ucutlass.emit.gemm.sm90_epilogue import epilogue, extent, grouped, operands, tensor, through_tma, vectors
from ucutlass.emit.parts import NotServed
from ucutlass.kernels.gemm.plan import GemmPlan, GemmProblem, Sm90Schedule
from ucutlass.kernels.gemm.smem import lean_alone

ACCUMULATORS: Mapping[str, str] = MappingProxyType(
    {"f32": "float", "fast": "float", "f16": "cutlass::half_t", "s32": "int32_t"}
)
"""The accumulator's C++ type, by the word in `GemmProblem.accumulate`."""

WARPS: Mapping[str, tuple[str, str, int]] = MappingProxyType(
    {
        "pingpong": ("KernelTmaWarpSpecializedPingpong", "TmaWarpSpecialized", 4),
        "cooperative": ("KernelTmaWarpSpecializedCooperative", "TmaWarpSpecializedCooperative", 8),
    }
)
"""Main loop schedule, epilogue schedule, and the warps that share a tile's epilogue."""

SCHEDULERS: Mapping[str, str] = MappingProxyType(
    {"persistent": "PersistentScheduler", "stream_k": "StreamKScheduler", "cluster_k": "ClusterSchedulerTag"}
)

WGMMA_WIDTHS = (256, 192, 128, 96, 64, 32, 16)
"""Columns of the instructions that cute/arch/mma_sm90.hpp chooses from, the widest that divides the
tile's N. All multiples of 16 exist with CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED, whose headers take
nvcc 17 to 25 s more (measured: 26 to 44 s, 35 to 61 s); without them a tile of 208 columns is 13
instructions of 16."""

FP8_PROMOTION = 4
"""CUTLASS's default `mma_promotion_interval`: the instructions that the tensor core sums before
an fp8 partial sum is added to the f32 accumulator. It has to be a multiple of a k tile's."""

FP8_INSTRUCTION_K = 32
"""Elements of K that one fp8 wgmma takes."""


def is_lean_alone(plan: GemmPlan) -> bool:
    """Whether a plan is built in one way only, as `ucutlass.emit.gemm.lean` emits it: f32 by wgmma, tf32 that lies
    across K, and a K whose parts meet in a cluster."""
    schedule = plan.schedule
    return isinstance(schedule, Sm90Schedule) and (
        lean_alone(plan.problem)
        or schedule.scheduler == "cluster_k"
        or bool(plan.problem.arithmetic.statistics)
    )


def render(plan: GemmPlan) -> str:
    """The kernel's code, with `text.PLACEHOLDER` for the entry's name.

    Raises ValueError for a plan that this family cannot hold: another schedule, k in several
    modes, or a reduction over batch modes alone. Raises NotServed, which is one, for what a lean kernel alone
    multiplies.
    """
    schedule, problem = plan.schedule, plan.problem
    if not isinstance(schedule, Sm90Schedule):
        raise ValueError(f"not a schedule of this family: {schedule}")
    if is_lean_alone(plan):
        raise NotServed(
            "f32 by wgmma, tf32 across K, and `partials cluster`, are built by NVRTC alone: use UCUTLASS_BUILD_PATH auto or nvrtc, or "
            "`warps multistage`, or for the latter `partials memory`"
        )
    if len(problem.k) != 1:
        raise ValueError(f"a TMA main loop contracts one mode, the plan has {len(problem.k)}")
    operation = arithmetic(problem)
    mainloop, epilogue_schedule, warps = WARPS[schedule.warps]
    a = tensor("a", problem.a, problem.a.m, problem.a.k[0])
    b = tensor("b", problem.b, problem.b.n, problem.b.k[0])
    fused = epilogue(plan, operation)
    summed = {combine.name for combine in fused.combines}
    modes = len(problem.batch)
    return text.render(
        "gemm/sm90.j2",
        a=a,
        b=b,
        accumulator=ACCUMULATORS[problem.accumulate],
        problem_shape=f"Shape<int, int, int, {grouped('Shape<{}>', ['int'] * modes, 'int')}>",
        problem_value=grouped("make_shape({})", [f"B{i}" for i in range(modes)], "1"),
        void_stride=f"Stride<int64_t, _1, {grouped('Stride<{}>', ['_0'] * modes, '_0')}>",
        schedule=schedule,
        warps=warps,
        mainloop=mainloop + ("FP8FastAccum" if problem.accumulate == "fast" else ""),
        epilogue_schedule=epilogue_schedule,
        scheduler=SCHEDULERS[schedule.scheduler],
        extended=schedule.tile[1] not in WGMMA_WIDTHS,
        promotion=_promotion(problem, schedule),
        arithmetic=operation,
        epilogue=fused,
        extents=[extent(product) for product in (problem.m, problem.n, *problem.k, *problem.batch)],
        batch=[f"B{i}" for i in range(modes)],
        tensors=[a, b, *(t for t in operands(plan) if t.name not in summed)],
        tma=[a, b, *through_tma(plan)],
        vectors=vectors(plan),
        problem=problem,
    )


def _promotion(problem: GemmProblem, schedule: Sm90Schedule) -> int | None:
    """`mma_promotion_interval` of a k tile that CUTLASS's own does not hold in whole, else None."""
    instructions = schedule.tile[2] // FP8_INSTRUCTION_K
    promotes = problem.compute_type.name in ("e4m3", "e5m2") and problem.accumulate != "fast"
    return instructions if promotes and FP8_PROMOTION % instructions else None

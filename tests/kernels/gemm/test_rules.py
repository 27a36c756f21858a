"""Every legality rule: one candidate just beyond its edge, and its neighbour just inside."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from tests.kernels.gemm.problems import gemm
from ucutlass.ir.elements import ELEMENTS
from ucutlass.ir.hardware import ARCHES, Arch, default_device
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels.access import Reduction
from ucutlass.kernels.arithmetic import Compute, CoordinateValue, RowStatistic, Statistic
from ucutlass.kernels.gemm.plan import GemmProblem
from ucutlass.kernels.gemm.planner import nearest_legal
from ucutlass.kernels.gemm.rules import BY_CODE, RULES, legal, violations
from ucutlass.kernels.gemm.schedule import GemmCandidate, PlanningCase, build, case_of

SM90, SM80, SM89 = ARCHES["sm90a"], ARCHES["sm80"], ARCHES["sm89"]

Made = tuple[GemmProblem, tuple[int, ...]]
COOPERATIVE = PartialSchedule(warps="cooperative", tile=(128, 128, 64))
IN_CLUSTER = replace(COOPERATIVE, split_k=4, partials="cluster")
WHOLE_ROWS = replace(COOPERATIVE, cluster=(1, 8))
F32_COOPERATIVE = PartialSchedule(warps="cooperative", tile=(128, 128, 32))
PINGPONG = PartialSchedule(warps="pingpong", tile=(64, 128, 64))
MULTISTAGE = PartialSchedule(warps="multistage", tile=(128, 128, 32))
GEMV = PartialSchedule(warps="gemv")


def square(**how: object) -> Made:
    return gemm(1024, 1024, 1024, **how)  # type: ignore[arg-type]


def two_k_modes(made: Made) -> Made:
    problem, sizes = made
    a, b = (replace(t, k=((1, 2), ())) for t in (problem.a, problem.b))
    return replace(problem, k=((2,), (2,)), a=a, b=b), sizes


def two_batch_modes(made: Made) -> Made:
    """Of two names that lie apart in memory."""
    problem, sizes = made
    near, far = (3,), (0, 1, 2)
    a, b = (replace(t, batch=(*t.batch, far)) for t in (problem.a, problem.b))
    (store,) = problem.outputs
    stored = replace(store, access=replace(store.access, batch=(*store.access.batch, far)))
    return replace(problem, batch=(near, near), a=a, b=b, outputs=(stored,)), sizes


def wide_bias(made: Made) -> Made:
    problem, sizes = made
    inputs = tuple(replace(t, elem=replace(t.elem, name="wide", bits=64)) for t in problem.inputs)
    return replace(problem, inputs=inputs), sizes


def scattered(made: Made) -> Made:
    problem, sizes = made
    return replace(problem, a=replace(problem.a, k=((0,),))), sizes


def counted(made: Made) -> Made:
    problem, sizes = made
    at = CoordinateValue("m", 0, (), problem.m, "i32")
    made_of = replace(problem.arithmetic, instructions=(*problem.arithmetic.instructions, at))
    return replace(problem, arithmetic=made_of), sizes


def less_the_largest(made: Made, along: Literal["m", "n"] = "n") -> Made:
    """Less the largest value of its row."""
    problem, sizes = made
    (value,) = problem.arithmetic.results
    count = len(problem.arithmetic.instructions)
    rows = (RowStatistic(0, "f32"), Compute("subtract", (value, count), "f32"))
    arithmetic = replace(
        problem.arithmetic,
        instructions=(*problem.arithmetic.instructions, *rows),
        results=(count + 1,),
        statistics=(Statistic("max", value, along),),
    )
    return replace(problem, arithmetic=arithmetic), sizes


def over_batches() -> Made:
    """A result that sums the batches away and keeps M and N."""
    problem, sizes = gemm(512, 512, 512, 2)
    stored = problem.outputs[0].access
    summed = Reduction("sum", replace(stored, batch=(None,)))
    return replace(problem, outputs=(summed,)), sizes


EDGES: tuple[tuple[str, Arch, Made, PartialSchedule, Made, PartialSchedule], ...] = (
    ("UC0410", SM80, square(), COOPERATIVE, square(), MULTISTAGE),
    (
        "UC0411",
        SM90,
        two_batch_modes(gemm(512, 512, 512, 2, compute_type="f32")),
        F32_COOPERATIVE,
        two_batch_modes(gemm(512, 512, 512, 2, compute_type="tf32")),
        F32_COOPERATIVE,
    ),
    (
        "UC0411",
        SM90,
        wide_bias(square(compute_type="f32", bias=True)),
        F32_COOPERATIVE,
        square(compute_type="f32", bias=True),
        F32_COOPERATIVE,
    ),
    (
        "UC0412",
        SM90,
        square(compute_type="f32"),
        replace(F32_COOPERATIVE, math="simt"),
        square(compute_type="f32"),
        replace(F32_COOPERATIVE, math="tf32x3"),
    ),
    (
        "UC0412",
        SM90,
        square(compute_type="tf32"),
        replace(F32_COOPERATIVE, math="tf32x3"),
        square(compute_type="f32"),
        F32_COOPERATIVE,
    ),
    (
        "UC0426",
        SM90,
        square(compute_type="f32"),
        replace(F32_COOPERATIVE, tile=(128, 192, 32), stages=3),
        square(compute_type="f32"),
        replace(F32_COOPERATIVE, tile=(128, 192, 32), stages=2),
    ),
    (
        "UC0412",
        SM90,
        square(compute_type="f32"),
        replace(PINGPONG, math="tf32x3_rs", tile=(64, 64, 32), cluster=None, stages=None),
        square(compute_type="f32"),
        replace(F32_COOPERATIVE, math="tf32x3_rs"),
    ),
    (
        "UC0425",
        SM90,
        square(compute_type="f32", order="KN"),
        replace(F32_COOPERATIVE, math="tf32x3_fused", tile=(128, 64, 32), cluster=(8, 1)),
        square(compute_type="f32", order="KN"),
        replace(F32_COOPERATIVE, math="tf32x3_fused", tile=(128, 64, 32), cluster=(4, 1)),
    ),
    (
        "UC0423",
        SM90,
        square(compute_type="f32"),
        replace(F32_COOPERATIVE, math="tf32x3_rs", tile=(128, 160, 32), stages=2),
        square(compute_type="f32"),
        replace(F32_COOPERATIVE, math="tf32x3_rs", tile=(128, 144, 32), stages=2),
    ),
    (
        "UC0425",
        SM90,
        square(compute_type="f32", order="MK"),
        replace(F32_COOPERATIVE, math="tf32x3_rs", tile=(128, 64, 32), cluster=(1, 8)),
        square(compute_type="f32", order="MK"),
        replace(F32_COOPERATIVE, math="tf32x3_rs", tile=(128, 64, 32), cluster=(1, 4)),
    ),
    (
        "UC0426",
        SM90,
        square(compute_type="f32"),
        replace(F32_COOPERATIVE, stages=4),
        square(compute_type="f32"),
        replace(F32_COOPERATIVE, stages=3),
    ),
    (
        "UC0412",
        SM80,
        square(),
        replace(MULTISTAGE, math="simt", tile=(64, 64, 32), warp_tile=(32, 32)),
        square(compute_type="f32"),
        replace(MULTISTAGE, math="simt", tile=(64, 64, 32), warp_tile=(32, 32)),
    ),
    ("UC0413", SM90, two_k_modes(square()), COOPERATIVE, square(), COOPERATIVE),
    ("UC0415", SM90, scattered(square()), COOPERATIVE, square(order="MN"), COOPERATIVE),
    (
        "UC0416",
        SM90,
        square(compute_type="e4m3", order="MK"),
        COOPERATIVE,
        square(compute_type="e4m3", accumulate="fast"),
        COOPERATIVE,
    ),
    (
        "UC0417",
        SM90,
        square(compute_type="tf32", order="KN"),
        replace(COOPERATIVE, tile=(128, 128, 64)),
        square(compute_type="tf32", order="KN"),
        replace(COOPERATIVE, tile=(128, 128, 64), swap="yes"),
    ),
    (
        "UC0417",
        SM90,
        square(compute_type="tf32", order="MN"),
        replace(COOPERATIVE, tile=(128, 128, 16)),
        square(compute_type="tf32", order="MN"),
        replace(COOPERATIVE, tile=(128, 128, 32)),
    ),
    (
        "UC0417",
        SM90,
        square(compute_type="tf32", order="MN"),
        replace(COOPERATIVE, tile=(128, 48, 32)),
        square(compute_type="tf32", order="MN"),
        replace(COOPERATIVE, tile=(128, 32, 32)),
    ),
    (
        "UC0417",
        SM90,
        square(compute_type="tf32", order="MN"),
        replace(PINGPONG, tile=(64, 128, 32), stages=2),
        square(compute_type="tf32", order="MN"),
        replace(PINGPONG, tile=(64, 128, 32), stages=3),
    ),
    (
        "UC0417",
        SM90,
        two_batch_modes(square(compute_type="tf32")),
        replace(PINGPONG, tile=(64, 48, 32)),
        square(compute_type="tf32"),
        replace(PINGPONG, tile=(64, 48, 32)),
    ),
    ("UC0418", SM90, gemm(1024, 1024, 1028), COOPERATIVE, gemm(1024, 1024, 1032), COOPERATIVE),
    ("UC0419", SM90, square(), replace(COOPERATIVE, tile=(64, 128, 64)), square(), COOPERATIVE),
    ("UC0419", SM90, square(), replace(PINGPONG, tile=(96, 128, 64)), square(), PINGPONG),
    (
        "UC0420",
        SM90,
        square(),
        replace(PINGPONG, tile=(64, 264, 64)),
        square(),
        replace(PINGPONG, tile=(64, 256, 64)),
    ),
    (
        "UC0420",
        SM90,
        square(),
        replace(PINGPONG, tile=(64, 8, 64)),
        square(),
        replace(PINGPONG, tile=(64, 16, 64)),
    ),
    (
        "UC0420",
        SM90,
        square(),
        replace(PINGPONG, tile=(64, 24, 64)),
        square(),
        replace(PINGPONG, tile=(64, 48, 64)),
    ),
    (
        "UC0421",
        SM90,
        square(),
        replace(PINGPONG, tile=(64, 128, 24)),
        square(),
        replace(PINGPONG, tile=(64, 128, 16)),
    ),
    (
        "UC0421",
        SM90,
        square(),
        replace(PINGPONG, tile=(64, 64, 272)),
        square(),
        replace(PINGPONG, tile=(64, 64, 256)),
    ),
    (
        "UC0421",
        SM90,
        square(compute_type="e4m3"),
        replace(PINGPONG, tile=(64, 64, 160)),
        square(compute_type="e4m3", accumulate="fast"),
        replace(PINGPONG, tile=(64, 64, 160)),
    ),
    (
        "UC0421",
        SM90,
        square(compute_type="f32"),
        replace(PINGPONG, tile=(64, 16, 136)),
        square(compute_type="f32"),
        replace(PINGPONG, tile=(64, 16, 128)),
    ),
    (
        "UC0423",
        SM90,
        square(),
        replace(PINGPONG, tile=(128, 224, 32)),
        square(),
        replace(PINGPONG, tile=(128, 208, 32)),
    ),
    (
        "UC0423",
        SM90,
        square(compute_type="e4m3"),
        replace(PINGPONG, tile=(128, 128, 64)),
        square(compute_type="e4m3", accumulate="fast"),
        replace(PINGPONG, tile=(128, 128, 64)),
    ),
    (
        "UC0423",
        SM90,
        square(compute_type="f32"),
        replace(F32_COOPERATIVE, tile=(128, 208, 16)),
        square(compute_type="f32"),
        replace(F32_COOPERATIVE, tile=(128, 192, 16)),
    ),
    (
        "UC0423",
        SM90,
        square(compute_type="tf32", order="MK"),
        replace(COOPERATIVE, tile=(256, 192, 32), stages=3),
        square(compute_type="tf32", order="MK"),
        replace(COOPERATIVE, tile=(256, 160, 32), stages=3),
    ),
    (
        "UC0443",
        SM80,
        square(compute_type="f32"),
        PartialSchedule(warps="multistage", tile=(128, 128, 16), warp_tile=(64, 64), math="tf32x3"),
        square(compute_type="f32"),
        PartialSchedule(warps="multistage", tile=(128, 128, 16), warp_tile=(64, 32), math="tf32x3"),
    ),
    (
        "UC0424",
        SM90,
        square(),
        replace(COOPERATIVE, cluster=(3, 1)),
        square(),
        replace(COOPERATIVE, cluster=(2, 1)),
    ),
    (
        "UC0424",
        SM90,
        square(),
        replace(COOPERATIVE, cluster=(4, 4)),
        square(),
        replace(COOPERATIVE, cluster=(4, 2)),
    ),
    (
        "UC0425",
        SM90,
        square(),
        replace(PINGPONG, tile=(64, 16, 64), cluster=(4, 1)),
        square(),
        replace(PINGPONG, tile=(64, 16, 64), cluster=(2, 1)),
    ),
    (
        "UC0426",
        SM90,
        square(),
        replace(COOPERATIVE, tile=(128, 256, 64), stages=5),
        square(),
        replace(COOPERATIVE, tile=(128, 256, 64), stages=4),
    ),
    ("UC0426", SM90, square(), replace(COOPERATIVE, stages=1), square(), replace(COOPERATIVE, stages=2)),
    (
        "UC0426",
        SM80,
        square(),
        replace(MULTISTAGE, tile=(128, 128, 64), stages=6),
        square(),
        replace(MULTISTAGE, tile=(128, 128, 64), stages=5),
    ),
    (
        "UC0426",
        SM89,
        square(),
        replace(MULTISTAGE, tile=(128, 128, 64), stages=4),
        square(),
        replace(MULTISTAGE, tile=(128, 128, 64), stages=3),
    ),
    ("UC0427", SM90, square(), replace(PINGPONG, split_k=2), square(), replace(COOPERATIVE, split_k=2)),
    (
        "UC0427",
        SM90,
        square(),
        replace(PINGPONG, split_k="stream"),
        square(),
        replace(COOPERATIVE, split_k="stream"),
    ),
    ("UC0424", SM90, square(), replace(IN_CLUSTER, split_k=9), square(), replace(IN_CLUSTER, split_k=8)),
    (
        "UC0424",
        SM90,
        square(),
        replace(IN_CLUSTER, cluster=(2, 2)),
        square(),
        replace(IN_CLUSTER, cluster=(2, 1)),
    ),
    ("UC0424", SM90, square(), replace(IN_CLUSTER, split_k="stream"), square(), IN_CLUSTER),
    ("UC0428", SM90, square(), replace(COOPERATIVE, split_k=17), square(), replace(COOPERATIVE, split_k=16)),
    (
        "UC0430",
        SM90,
        gemm(2**31, 8, 8),
        COOPERATIVE,
        gemm(2**31 - 1, 8, 8),
        replace(COOPERATIVE, tile=(256, 64, 64)),
    ),
    ("UC0430", SM80, counted(gemm(2**31, 8, 8)), MULTISTAGE, gemm(2**31, 8, 8), MULTISTAGE),
    ("UC0432", SM90, square(), replace(COOPERATIVE, swizzle=3), square(), replace(COOPERATIVE, swizzle=4)),
    ("UC0433", SM90, over_batches(), COOPERATIVE, gemm(512, 512, 512, 2, reduce=True), COOPERATIVE),
    ("UC0434", SM90, gemm(512, 512, 512, 2, reduce=True), IN_CLUSTER, gemm(512, 512, 512, 2), IN_CLUSTER),
    (
        "UC0434",
        SM90,
        square(),
        replace(IN_CLUSTER, tile=(128, 256, 32), stages=5),
        square(),
        replace(IN_CLUSTER, tile=(128, 256, 64), stages=3),
    ),
    (
        "UC0435",
        SM90,
        less_the_largest(square()),
        replace(COOPERATIVE, cluster=(1, 4)),
        less_the_largest(square()),
        replace(COOPERATIVE, cluster=(1, 8)),
    ),
    ("UC0435", SM90, less_the_largest(square(), "m"), WHOLE_ROWS, less_the_largest(square()), WHOLE_ROWS),
    ("UC0435", SM90, less_the_largest(square()), replace(WHOLE_ROWS, split_k=2), square(), WHOLE_ROWS),
    ("UC0435", SM90, less_the_largest(square()), MULTISTAGE, square(), MULTISTAGE),
    (
        "UC0435",
        SM90,
        less_the_largest(two_batch_modes(gemm(512, 512, 512, 2))),
        WHOLE_ROWS,
        less_the_largest(gemm(512, 512, 512, 2)),
        WHOLE_ROWS,
    ),
    ("UC0440", SM80, square(), replace(MULTISTAGE, tile=(128, 128, 16)), square(), MULTISTAGE),
    (
        "UC0441",
        SM80,
        square(),
        replace(MULTISTAGE, warp_tile=(24, 64)),
        square(),
        replace(MULTISTAGE, warp_tile=(32, 64)),
    ),
    (
        "UC0442",
        SM80,
        square(),
        replace(MULTISTAGE, tile=(192, 128, 32), warp_tile=(64, 64)),
        square(),
        replace(MULTISTAGE, tile=(256, 128, 32), warp_tile=(64, 64)),
    ),
    ("UC0450", SM90, gemm(1024, 9, 1024), GEMV, gemm(1024, 8, 1024), GEMV),
    (
        "UC0450",
        SM90,
        gemm(1024, 3, 1024),
        replace(GEMV, columns=2),
        gemm(1024, 3, 1024),
        replace(GEMV, columns=4),
    ),
    (
        "UC0451",
        SM90,
        gemm(1024, 1, 1024),
        replace(GEMV, rows=32),
        gemm(1024, 1, 1024),
        replace(GEMV, rows=16),
    ),
    (
        "UC0451",
        SM90,
        gemm(1024, 1, 1024),
        replace(GEMV, rows=3),
        gemm(1024, 1, 1024, order="MK"),
        replace(GEMV, rows=32, threads=8),
    ),
    (
        "UC0452",
        SM90,
        gemm(1024, 1, 1024),
        replace(GEMV, threads=96),
        gemm(1024, 1, 1024),
        replace(GEMV, threads=128),
    ),
    (
        "UC0452",
        SM90,
        gemm(1024, 1, 1024, order="MK"),
        replace(GEMV, rows=32, threads=64),
        gemm(1024, 1, 1024, order="MK"),
        replace(GEMV, rows=32, threads=32),
    ),
    ("UC0453", SM90, gemm(1024, 8, 1024), replace(GEMV, rows=16), gemm(1024, 8, 1024), replace(GEMV, rows=8)),
    (
        "UC0454",
        SM89,
        gemm(1024, 4, 1024, order="MK"),
        replace(GEMV, rows=32, threads=32),
        gemm(1024, 4, 1024, order="MK"),
        replace(GEMV, rows=32, threads=16),
    ),
)


def case(arch: Arch, of: Made) -> PlanningCase:
    return case_of(*of, arch, default_device(arch))


def made(arch: Arch, of: Made, request: PartialSchedule) -> GemmCandidate:
    return build(case(arch, of), request)


@pytest.mark.parametrize(("code", "arch", "bad", "beyond", "good", "inside"), EDGES)
def test_edge(
    code: str, arch: Arch, bad: Made, beyond: PartialSchedule, good: Made, inside: PartialSchedule
) -> None:
    broken = violations(made(arch, bad, beyond))
    assert code in {v.code for v in broken}
    assert legal(made(arch, good, inside)), violations(made(arch, good, inside))
    for violation in broken:
        if violation.nearest is not None:
            gemm_candidate = nearest_legal(case(arch, bad), violation.nearest)
            assert gemm_candidate is not None
            assert legal(gemm_candidate)


def test_every_rule_has_an_edge() -> None:
    # UC0431 guards plans made by hand: `build` never routes a tensor that TMA cannot take.
    assert {r.code for r in RULES} - {"UC0431"} == {code for code, *_ in EDGES}


def test_route_by_tma_needs_alignment() -> None:
    candidate = made(SM90, gemm(1024, 1020, 1024), COOPERATIVE)
    assert candidate.routes == ("direct",)
    assert legal(candidate)
    assert "UC0431" in {v.code for v in violations(replace(candidate, routes=("tma",)))}


def test_table_is_in_order_and_complete() -> None:
    codes = [r.code for r in RULES]
    assert codes == sorted(codes)
    assert len(BY_CODE) == len(RULES)
    assert all(r.title and r.text and r.source for r in RULES)


def test_messages_carry_the_numbers() -> None:
    (violation,) = violations(made(SM90, square(), replace(COOPERATIVE, tile=(128, 256, 64), stages=5)))
    assert "263168" in violation.message
    assert "232448" in violation.message
    assert violation.nearest is not None
    assert violation.nearest.stages == 4


def test_f32_is_told_of_its_second_set() -> None:
    (violation,) = violations(
        made(SM90, square(compute_type="f32"), replace(F32_COOPERATIVE, tile=(128, 256, 16)))
    )
    assert "256 accumulator registers in each of 256 threads, in two sets: partial sums" in violation.message
    assert violation.nearest is not None and violation.nearest.tile == (128, 192, 16)


def test_pingpong_tile_that_two_warp_groups_could_share() -> None:
    (violation,) = violations(made(SM90, square(), PartialSchedule(warps="pingpong", tile=(128, 256, 64))))
    assert "256 accumulator registers in each of 128 threads" in violation.message
    assert violation.nearest is not None
    assert (violation.nearest.warps, violation.nearest.tile) == ("cooperative", (128, 256, 64))


@pytest.mark.parametrize(
    "compute_type", sorted(set(ELEMENTS) & {"f16", "bf16", "tf32", "f32", "e4m3", "e5m2", "s8"})
)
def test_multistage_takes_every_compute_type(compute_type: str) -> None:
    depth = 128 // ELEMENTS[compute_type].bytes
    request = PartialSchedule(warps="multistage", tile=(64, 64, depth), warp_tile=(32, 32))
    assert legal(made(SM80, square(compute_type=compute_type), request))

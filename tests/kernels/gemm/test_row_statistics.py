"""Reductions of a product's rows with which its epilogue goes on: what is matched, refused, kept and planned."""

from __future__ import annotations

import pytest

from ucutlass import frontend
from ucutlass.emit.gemm.lean import lean
from ucutlass.kernels.gemm.plan import GemmPlan, Sm90Schedule
from ucutlass.kernels.planned import Planned
from ucutlass.kernels.refused import Refused
from ucutlass.pipeline.pricing import pays

SIZES = {"M": 4096, "N": 1000, "K": 512}
OPERANDS = "x: bf16[M, K], w: bf16[N, K], b: bf16[N], r: bf16[M, N]"


def planned(body: str, result: str = "bf16[M, N]", **sizes: int) -> Planned:
    checked = frontend.read_text(f"kernel k({OPERANDS}) -> {result} {{\n{body}\n}}\n")
    program = frontend.kernel(checked)
    extents = tuple({**SIZES, **sizes}[name] for name in program.dims)
    return frontend.plan_kernel(checked, program, extents, "sm90a").planned


def plan_of(body: str, **sizes: int) -> GemmPlan:
    plan = planned(body, **sizes).plan
    assert isinstance(plan, GemmPlan)
    return plan


@pytest.mark.parametrize(
    ("value", "operations"),
    [
        ("softmax[N](v)", ["max", "softmax"]),
        ("softmax[N](v) * v", ["max", "exponentials"]),
        ("log_softmax[N](v)", ["max", "exponentials"]),
        ("v - logsumexp[N](v)", ["max", "exponentials"]),
        ("(v - mean[N](v)) * rsqrt(var[N](v) + 1e-5)", ["mean", "variance"]),
        ("(v - mean[N](v)) / max[N](v) * var[N](v)", ["mean", "max", "mean"]),
        ("v * rsqrt(mean[N](v * v) + 1e-5)", ["mean"]),
        ("v / sqrt(sum[N](v * v))", ["sum"]),
        ("(v - min[N](v)) / (max[N](v) - min[N](v))", ["min", "max"]),
    ],
)
def test_statistics_in_the_order_of_their_passes(value: str, operations: list[str]) -> None:
    plan = plan_of(f"v = dot[K](x, w) + b\nreturn {value}")
    assert [s.op for s in plan.problem.arithmetic.statistics] == operations
    assert isinstance(plan.schedule, Sm90Schedule)
    assert plan.schedule.tile[1] * plan.schedule.cluster[1] >= SIZES["N"]


def test_an_operand_over_both_names_is_read_in_the_first_pass_alone() -> None:
    plan = plan_of("v = dot[K](x, w) + b + r\nreturn softmax[N](v)")
    assert plan.problem.arithmetic.kept is not None
    device = lean(plan).device.code
    store = device[device.index("CUTLASS_DEVICE auto store(") :]
    assert store.count("load_fragment<") == 1
    assert store.count("combine_lanes<") == 2
    assert store.count("exchange_rows<") == 1
    assert store.index("load_fragment<") < store.index("combine_lanes<")


def test_the_product_alone_needs_not_be_kept_anew() -> None:
    assert plan_of("return softmax[N](dot[K](x, w))").problem.arithmetic.kept is None


@pytest.mark.parametrize(
    ("body", "sizes", "words"),
    [
        ("return softmax[N](dot[K](x, w)) + r", {}, "used again"),
        ("v = dot[K](x, w)\nreturn v - max[M, N](v)", {}, "used again"),
        ("v = dot[K](x, w)\nreturn v - max[N](v) + mean[M](v)", {}, "used again"),
        ("return softmax[N](dot[K](x, w))", {"N": 2056}, "2056 elements of a row are more than the 2048"),
    ],
)
def test_what_no_cluster_holds_is_cut(body: str, sizes: dict[str, int], words: str) -> None:
    with pytest.raises((Refused, frontend.ProgramError)) as refused:
        planned(body, **sizes)
    assert "UC0303" in str(refused.value) and words in str(refused.value)


def test_rows_longer_than_a_cluster_holds_are_refused_by_kernels_that_are_lent() -> None:
    plan = plan_of("return softmax[N](dot[K](x, w))")
    assert isinstance(plan.schedule, Sm90Schedule)
    assert (
        f"if (N > {plan.schedule.tile[1] * plan.schedule.cluster[1]}) {{\n    return Mismatch;"
        in lean(plan).host
    )


def test_rows_along_m_are_turned() -> None:
    request = planned("return softmax[M](dot[K](x, w))", M=512, N=4096).request
    assert request.swap == "yes"


@pytest.mark.parametrize(("k", "one"), [(256, True), (8192, False)])
def test_one_launch_is_chosen_where_the_estimates_leave_no_doubt(k: int, one: bool) -> None:
    sizes = {"M": 1024, "N": 512, "K": k}
    apart = planned("return dot[K](x, w)", **sizes).seconds + planned_norm(sizes["M"], sizes["N"])
    assert pays([apart], [planned("return softmax[N](dot[K](x, w))", **sizes).seconds]) == one


def planned_norm(rows: int, columns: int) -> float:
    checked = frontend.read_text("kernel k(x: bf16[M, N]) -> bf16[M, N] { return softmax[N](x) }")
    return frontend.plan_kernel(checked, frontend.kernel(checked), (rows, columns), "sm90a").planned.seconds

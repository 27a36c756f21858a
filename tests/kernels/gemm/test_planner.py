"""The planner returns legal kernels only, near ones where asked for illegal ones, and knows
when the Hopper kernels cannot serve."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.gemm.problems import gemm
from ucutlass import frontend
from ucutlass.backend import source_of
from ucutlass.emit.gemm import gemv
from ucutlass.emit.gemm import sm80 as gemm_sm80
from ucutlass.emit.gemm import sm90 as gemm_sm90
from ucutlass.emit.gemm.lean import lean
from ucutlass.ir import Choice
from ucutlass.ir.hardware import (
    ARCHES,
    DEVICES,
    arch_for,
    cluster_slots,
    clusters_at_a_time,
    default_device,
    device_named,
)
from ucutlass.ir.schedule import FIELDS, PartialSchedule, Warps, fits, legal_values, partial_schedules
from ucutlass.kernels.arithmetic import CoordinateValue
from ucutlass.kernels.gemm.cost import Estimate
from ucutlass.kernels.gemm.plan import GemmProblem, GemvSchedule, LaunchParameters, Sm80Schedule, Sm90Schedule
from ucutlass.kernels.gemm.planner import candidates, plan
from ucutlass.kernels.gemm.problem import transpose
from ucutlass.kernels.gemm.rules import legal, violations
from ucutlass.kernels.gemm.schedule import PlanningCase, build, candidate_of, case_of
from ucutlass.kernels.gemm.smem import gemv_bytes
from ucutlass.kernels.planned import Planned
from ucutlass.kernels.violation import Violation
from ucutlass.shapes import complete
from ucutlass.sol import SpeedOfLight, speed_of_light
from ucutlass.sol.bounds import bounds

SM90 = ARCHES["sm90a"]


def planned(made: object) -> Planned:
    assert isinstance(made, Planned), made
    return made


def refusals(made: object) -> tuple[Violation, ...]:
    assert isinstance(made, tuple), made
    return made


def case(made: object, arch: str) -> PlanningCase:
    problem, sizes = made  # type: ignore[misc]
    return case_of(problem, sizes, ARCHES[arch], default_device(ARCHES[arch]))


extents = st.sampled_from([1, 2, 7, 8, 16, 33, 64, 100, 128, 512, 1000, 4096, 8205])
compute_types = st.sampled_from(["f16", "bf16", "tf32", "f32", "e4m3", "e5m2", "s8"])
orders = st.sampled_from(["KK", "KN", "MK", "MN"])
problems = st.builds(
    lambda m, n, k, b, compute_type, order, residual, bias, reduce: gemm(
        m, n, k, b, compute_type=compute_type, order=order, residual=residual, bias=bias, reduce=reduce
    ),
    extents,
    extents,
    extents,
    st.sampled_from([1, 3, 32]),
    compute_types,
    orders,
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


def either(*values: object) -> st.SearchStrategy[object]:
    return st.sampled_from([None, *values])


asked = st.builds(
    PartialSchedule,
    warps=either("pingpong", "cooperative", "multistage", "gemv"),
    tile=either(
        (64, 64, 64),
        (128, 256, 64),
        (192, 72, 32),
        (64, 8, 24),
        (256, 256, 128),
        (100, 100, 100),
        (16, 16, 16),
    ),
    cluster=either((1, 1), (2, 1), (3, 1), (8, 2), (1, 8)),
    stages=either(2, 3, 7, 32),
    warp_tile=either((64, 64), (16, 8), (128, 128), (48, 32)),
    math=either("tf32x3", "tf32x3_rs", "tf32x3_fused", "simt"),
    swap=either("no", "yes"),
    split_k=either(1, 2, 200, "stream"),
    swizzle=either(1, 3, 8),
    rows=either(1, 40),
    columns=either(1, 3, 8),
    threads=either(32, 100),
)


@settings(max_examples=500)
@given(problems, asked, st.sampled_from(sorted(ARCHES)))
def test_plans_are_legal_and_so_are_the_neighbours(made: object, request: PartialSchedule, arch: str) -> None:
    problem, sizes = made  # type: ignore[misc]
    result = plan(problem, sizes, ARCHES[arch], None, request)
    if isinstance(result, Planned):
        assert violations(candidate_of(result)) == ()
        for name, value in request.fixed().items():
            assert getattr(result.request, name) == value
        again = build(case(made, arch), result.request)
        assert (again.schedule, again.launch, again.problem) == (
            result.plan.schedule,
            LaunchParameters(*result.launch),
            result.plan.problem,
        )
        assert {note.field for note in result.notes} >= set(result.request.fixed()) - set(request.fixed())
        assert candidate_of(result).memory.total <= ARCHES[arch].shared_memory
        return
    assert result
    for violation in result:
        assert violation.nearest is not None, violation
        assert legal(build(case(made, arch), violation.nearest)), violation


@settings(max_examples=200)
@given(problems, st.sampled_from(sorted(ARCHES)))
def test_every_shape_has_a_kernel(made: object, arch: str) -> None:
    problem, sizes = made  # type: ignore[misc]
    planned(plan(problem, sizes, ARCHES[arch]))


@settings(max_examples=100)
@given(problems)
def test_transposing_twice_is_nothing(made: object) -> None:
    problem, _ = made  # type: ignore[misc]
    assert transpose(transpose(problem)) == problem
    assert transpose(problem).m == problem.n


@settings(max_examples=300)
@given(problems, asked, st.sampled_from(sorted(ARCHES)))
def test_templates_take_what_the_rules_take(made: object, request: PartialSchedule, arch: str) -> None:
    problem, sizes = made  # type: ignore[misc]
    chosen = plan(problem, sizes, ARCHES[arch], None, request)
    if not isinstance(chosen, Planned):
        return
    what, memory = chosen.plan.problem, candidate_of(chosen).memory.total
    match chosen.plan.schedule:
        case Sm80Schedule() as schedule:
            assert gemm_sm80.check(what, schedule) == ""
            assert gemm_sm80.shared_bytes(what, schedule) <= memory
        case GemvSchedule() as schedule:
            assert gemv.check(what, schedule) == ""
            assert gemv_bytes(what, schedule) <= memory
        case Sm90Schedule(math="tf32x3" | "tf32x3_rs" | "tf32x3_fused"):
            assert lean(chosen.plan)
        case Sm90Schedule():
            assert gemm_sm90.render(chosen.plan)


def test_transposing_turns_coordinates_and_operands() -> None:
    problem, _ = gemm(64, 32, 16, bias=True)
    at = CoordinateValue("m", 0, (), problem.m, "i32")
    problem = replace(
        problem, arithmetic=replace(problem.arithmetic, instructions=(*problem.arithmetic.instructions, at))
    )
    turned = transpose(problem)
    assert turned.arithmetic.instructions[-1] == replace(at, mode="n")
    assert (turned.a.m, turned.b.n) == (problem.b.n, problem.a.m)
    assert turned.inputs[0].shape == "column"
    assert turned.outputs[0].access.m == problem.outputs[0].access.n


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (gemm(8205, 5921, 2949), "aligned to 2 bytes"),
        (gemm(512, 512, 512, compute_type="e4m3", order="KN"), "contiguous along N"),
    ],
)
def test_what_tma_cannot_take_goes_to_multistage_and_says_so(made: object, why: str) -> None:
    problem, sizes = made  # type: ignore[misc]
    chosen = planned(plan(problem, sizes, SM90))
    assert isinstance(chosen.plan.schedule, Sm80Schedule)
    assert any(why in note.reason for note in chosen.notes if note.field == "")
    refused = plan(problem, sizes, SM90, None, PartialSchedule(warps="cooperative"))
    assert isinstance(refused, tuple)
    assert refused[0].nearest is not None
    assert refused[0].nearest.warps == "multistage"


def test_f32_in_another_order_is_turned_for_wgmma_at_a_price() -> None:
    split_ahead = PartialSchedule(math="tf32x3")
    problem, sizes = gemm(4096, 4096, 4096, compute_type="f32", order="KN")
    turned = planned(plan(problem, sizes, SM90, None, split_ahead))
    assert isinstance(turned.plan.schedule, Sm90Schedule)
    multistage = planned(plan(problem, sizes, SM90, None, PartialSchedule(warps="multistage")))
    k_major, same = gemm(4096, 4096, 4096, compute_type="f32")
    straight = planned(plan(k_major, same, SM90, None, split_ahead))
    assert straight.seconds < turned.seconds < multistage.seconds


def test_large_gemm_takes_a_large_cooperative_tile() -> None:
    chosen = planned(plan(*gemm(8192, 8192, 8192), SM90))
    schedule = chosen.plan.schedule
    assert isinstance(schedule, Sm90Schedule)
    assert schedule.warps == "cooperative"
    assert sorted(schedule.tile[:2]) == [128, 256]
    assert schedule.cluster != (1, 1)


F32 = {"large": (4096, 4096, 4096), "small": (192, 192, 192)}


def test_f32_goes_to_wgmma_where_its_launch_before_pays() -> None:
    large, small = (planned(plan(*gemm(*sizes, compute_type="f32"), SM90)) for sizes in F32.values())
    chosen = large.plan.schedule
    assert isinstance(chosen, Sm90Schedule) and chosen.math == large.request.math == "f16x3"
    assert (chosen.tile, chosen.stages) == ((128, 128, 64), 3)
    said = {note.field: note.reason for note in large.notes}
    assert said["math"].startswith("three f16 passes keep f32 accuracy")
    assert isinstance(small.plan.schedule, Sm80Schedule)
    (why,) = (note.reason for note in small.notes if note.field == "")
    assert why.startswith("predicted to be faster than wgmma")
    assert {
        c.plan.schedule.__class__ for c in candidates(*gemm(*F32["small"], compute_type="f32"), SM90)
    } == {Sm90Schedule, Sm80Schedule}


@pytest.mark.parametrize(
    "asked",
    [PartialSchedule(warps="multistage"), PartialSchedule(math="simt"), PartialSchedule(warp_tile=(32, 32))],
)
def test_f32_stays_where_it_was_asked_for(asked: PartialSchedule) -> None:
    chosen = planned(plan(*gemm(*F32["large"], compute_type="f32"), SM90, None, asked))
    assert isinstance(chosen.plan.schedule, Sm80Schedule)
    assert [note.reason for note in chosen.notes if note.field == ""] == ["asked for"]


def test_math_alone_leaves_the_kernel_open() -> None:
    chosen = planned(
        plan(*gemm(*F32["large"], compute_type="f32"), SM90, None, PartialSchedule(math="tf32x3"))
    )
    assert isinstance(chosen.plan.schedule, Sm90Schedule)


@pytest.mark.parametrize("order", ["KK", "KN"])
def test_few_rows_take_weights_through_registers(order: str) -> None:
    problem, sizes = gemm(128, 4096, 8192, compute_type="f32", order=order)
    chosen = planned(plan(problem, sizes, SM90))
    assert chosen.request.math == "tf32x3_rs"
    assert isinstance(chosen.plan.schedule, Sm90Schedule) and chosen.plan.schedule.warps == "cooperative"
    assert chosen.request.swap == "yes", "the weights are not the operand that is split ahead"
    ahead = planned(plan(problem, sizes, SM90, None, PartialSchedule(math="tf32x3")))
    assert ahead.request.math == "tf32x3" and chosen.seconds < ahead.seconds


@pytest.mark.parametrize("warps", ["cooperative", "pingpong"])
def test_ffma_by_a_hopper_kernel_is_refused_with_a_mend(warps: Warps) -> None:
    partial_schedule = PartialSchedule(warps=warps, math="simt")
    (refused,) = refusals(plan(*gemm(*F32["large"], compute_type="f32"), SM90, None, partial_schedule))
    assert (refused.code, refused.fields) == ("UC0412", ("math", "warps"))
    assert refused.nearest is not None
    assert (refused.nearest.warps, refused.nearest.math) == (warps, "tf32x3")


def test_three_passes_cost_three_times_one_and_a_launch() -> None:
    """The price of a large product is about that of three in tf32; of few rows, the split's."""
    request = PartialSchedule(warps="cooperative", tile=(128, 128, 32), cluster=(2, 1))

    def price(compute_type: str, *sizes: int) -> Estimate:
        asked = replace(request, math="tf32x3" if compute_type == "f32" else None)
        return planned(plan(*gemm(*sizes, compute_type=compute_type), SM90, None, asked)).estimate

    one, three = (price(compute_type, 8192, 8192, 8192) for compute_type in ("tf32", "f32"))
    assert 2.7 < three.sm_seconds / one.sm_seconds < 3.1
    assert three.power_seconds == pytest.approx(3 * one.power_seconds)
    assert three.dram_bytes > 1.5 * one.dram_bytes
    one, three = (price(compute_type, 128, 8192, 8192) for compute_type in ("tf32", "f32"))
    moved = 2 * (128 + 8192) * 8192 * 4
    assert three.seconds - one.seconds > moved / DEVICES["H200"].bandwidth


def test_matrix_vector_reads_the_matrix_as_a() -> None:
    for sizes in ((1, 4096, 4096), (4096, 1, 4096)):
        chosen = planned(plan(*gemm(*sizes), SM90))
        assert isinstance(chosen.plan.schedule, GemvSchedule)
        assert (chosen.request.swap == "yes") == (sizes[0] == 1)
        assert candidate_of(chosen).shape.n == 1


def test_short_m_is_tried_both_ways() -> None:
    found = list(candidates(*gemm(16, 4096, 4096), SM90))
    assert {(c.request.swap == "yes") for c in found} == {False, True}
    chosen = found[0].plan.schedule
    assert isinstance(chosen, Sm90Schedule)
    assert min(chosen.tile[:2]) <= 64
    assert {(c.request.swap == "yes") for c in candidates(*gemm(4096, 4096, 4096), SM90)} == {False}


@pytest.mark.parametrize("first", [64, 80])
def test_no_width_falls_off_a_cliff(first: int) -> None:
    """Every multiple of 16 has a wgmma of its own: a wider tile costs less a column, where the epilogue stores as many
    of them at once."""

    def price(n: int) -> float:
        request = PartialSchedule(warps="cooperative", tile=(128, n, 64), cluster=(1, 1))
        made = planned(plan(*gemm(4096, 16 * n, 4096), SM90, None, request))
        return made.estimate.sm_seconds / n

    prices = [price(n) for n in range(first, 257, 32)]
    assert prices == sorted(prices, reverse=True)


def test_columns_that_are_stored_by_16_cost_more() -> None:
    def sm_seconds(n: int) -> float:
        request = PartialSchedule(warps="pingpong", tile=(64, n, 64), cluster=(1, 1))
        return planned(plan(*gemm(64 * 528, n, 64), SM90, None, request)).estimate.sm_seconds

    assert sm_seconds(80) > sm_seconds(96)


def test_lines_within_sectors_cost_l2_more() -> None:
    """Rows of 8200 elements of two bytes begin within a sector of 32 bytes, rows of 8208 do not: an H100 took 37.7 us
    for 408x2192x7272 where clusters of four took 29.6."""

    def seconds(k: int) -> tuple[float, float]:
        request = PartialSchedule(warps="cooperative", tile=(128, 128, 64), cluster=(1, 1))
        estimate = planned(plan(*gemm(768, 1536, k), SM90, None, request)).estimate
        return estimate.l2_seconds, estimate.sm_seconds

    (l2, sm), (l2_line, sm_line), (l2_sector, sm_sector) = seconds(8192), seconds(8208), seconds(8200)
    assert l2_sector > 1.1 * l2_line > 1.2 * l2
    assert sm_sector > 1.1 * sm_line >= 1.1 * sm


def test_tiles_of_short_rows_load_more_slowly() -> None:
    """TMA takes a row of 32 bytes in the time of one of 128: of 472 x 1592 x 7984 with weights along N an H100 took
    44.2 us by tiles of 128 x 240, 27.4 by 128 x 128."""

    def sm_seconds(n: int, along_n: bool) -> float:
        request = PartialSchedule(warps="cooperative", tile=(128, n, 64), cluster=(2, 1), swap="no")
        return planned(
            plan(*gemm(512, 240 * 16, 8192, order="KN" if along_n else "KK"), SM90, None, request)
        ).estimate.sm_seconds

    assert sm_seconds(240, True) > 1.1 * sm_seconds(240, False)
    assert sm_seconds(192, True) == sm_seconds(192, False)


def test_few_tiles_of_a_long_k_are_split() -> None:
    chosen = planned(plan(*gemm(256, 256, 16384), SM90))
    assert LaunchParameters(*chosen.launch).splits != 1


def test_tiles_of_more_than_half_of_the_sms_divide_k_where_that_fills_the_last_wave() -> None:
    """84 tiles leave 48 of 132 SMs idle; of three parts each, 252 fill two waves nearly."""
    request = PartialSchedule(warps="cooperative", tile=(128, 128, 32), swap="yes", math="tf32x3_rs")
    few = planned(plan(*gemm(228, 5352, 5544, compute_type="f32"), SM90, None, request))
    assert LaunchParameters(*few.launch).splits == 3
    full = planned(plan(*gemm(2048, 1024, 5544, compute_type="f32"), SM90, None, request))
    assert LaunchParameters(*full.launch).splits == 1


def test_candidates_are_ranked_and_distinct() -> None:
    found = list(candidates(*gemm(4096, 4096, 4096), SM90))
    seconds = [c.estimate.seconds for c in found]
    assert seconds == sorted(seconds)
    assert len({c.request for c in found}) == len(found) > 10
    assert found[0].request == planned(plan(*gemm(4096, 4096, 4096), SM90)).request


def test_fields_of_two_kernels_do_not_mix() -> None:
    refused = plan(*gemm(512, 512, 512), SM90, None, PartialSchedule(warps="multistage", cluster=(2, 1)))
    assert isinstance(refused, tuple)
    assert [v.code for v in refused] == ["UC0439"]
    assert refused[0].fields == ("cluster",)
    assert refused[0].nearest is not None
    assert refused[0].nearest.warps == "multistage"


def test_a_family_ruled_out_hides_the_faults_of_its_tile() -> None:
    refused = plan(
        *gemm(512, 512, 510), SM90, None, PartialSchedule(warps="cooperative", tile=(100, 100, 10))
    )
    assert isinstance(refused, tuple)
    assert [v.code for v in refused] == ["UC0418"]


def test_alternatives_expand_in_order() -> None:
    made = list(
        partial_schedules([Choice("tile", ((128, 128, 64), (128, 256, 64))), Choice("stages", ("auto", 4))])
    )
    assert made == [
        PartialSchedule(tile=(128, 128, 64)),
        PartialSchedule(tile=(128, 128, 64), stages=4),
        PartialSchedule(tile=(128, 256, 64)),
        PartialSchedule(tile=(128, 256, 64), stages=4),
    ]


def test_field_values() -> None:
    assert fits(FIELDS["tile"], (128, 128, 64))
    assert not fits(FIELDS["tile"], (128, 128))
    assert fits(FIELDS["split_k"], "stream")
    assert not fits(FIELDS["warps"], "vector")
    assert not fits(FIELDS["stages"], 1)
    assert all("auto" in legal_values(f) for f in FIELDS.values())


def test_devices() -> None:
    h200 = DEVICES["H200"]
    assert [cluster_slots(h200, size) for size in (1, 2, 4, 8)] == [132, 132, 116, 112]
    assert device_named("NVIDIA H100 80GB HBM3") is DEVICES["H100-SXM"]
    assert device_named("NVIDIA H100 PCIe") is DEVICES["H100-PCIe"]
    assert device_named("GeForce GTX 1080") is None
    for relative in ("NVIDIA GH200 480GB", "NVIDIA H100 NVL", "NVIDIA GB200"):
        assert device_named(relative) is None
    assert arch_for((9, 0)) is SM90
    assert arch_for((12, 0)) is ARCHES["sm89"]
    assert arch_for((7, 5)) is None


def light(m: int, n: int, k: int, elem: str = "bf16") -> SpeedOfLight:
    text = f"kernel k(x: {elem}[M, K], w: {elem}[N, K]) -> {elem}[M, N] {{ return dot[K](x, w) }}"
    kernel = frontend.kernel(frontend.read_text(text))
    return speed_of_light(bounds(kernel, {"M": m, "N": n, "K": k}, DEVICES["H200"]))


def test_speed_of_light_counts_every_tensor_once() -> None:
    bound = light(4096, 4096, 4096)
    assert bound.flops == 2 * 4096**3
    assert bound.bytes == 3 * 4096**2 * 2
    assert bound.limit == "multiplications"
    assert bound.seconds == pytest.approx(2 * 4096**3 / 989.4e12)
    assert light(1, 4096, 4096).limit == "memory"
    assert light(512, 512, 512, "f32").compute_type == "f16x3"


def test_rows_lie_along_what_an_operand_is_contiguous_along() -> None:
    """Windows of 7 x 7 positions that are mixed, as in SwinMLP: 80 rows lie apart, 32 side by side; an H100 took
    1.1 ms where the former were the GEMM's own, of 12 MB to read and to write each."""
    text = """kernel k(x: f32[B, (N=8 M=7 O=8 C=7), (G=3 L)], w: f32[(G K=7 F=7), (M C)]) -> f32[B, (N K O F), (G L)] {
      return dot[M, C](x, w)
    }"""
    for extent, own in ((32, {"L"}), (8, {"B", "N"})):
        checked = frontend.read_text(text)
        kernel = frontend.kernel(checked)
        sizes = complete(kernel, {"B": 10, "L": extent})
        problem = frontend.plan_kernel(checked, kernel, sizes, "sm90a").planned.plan.problem
        assert isinstance(problem, GemmProblem)
        names = list(kernel.dims)
        assert own in ({names[i] for i in problem.m}, {names[i] for i in problem.n})


@settings(max_examples=60, deadline=None)
@given(
    st.integers(8, 100).map(lambda m: 8 * m),
    st.integers(100, 400).map(lambda n: 8 * n),
    st.integers(32, 160).map(lambda k: 64 * k),
    st.sampled_from(["bf16", "f32"]),
)
def test_clusters_among_which_k_is_divided_run_at_a_time(m: int, n: int, k: int, compute_type: str) -> None:
    """A second wave would cost as much as the first."""
    h100 = DEVICES["H100-SXM"]
    chosen = candidate_of(planned(plan(*gemm(m, n, k, compute_type=compute_type), SM90, h100)))
    if isinstance(chosen.schedule, Sm90Schedule) and chosen.schedule.scheduler == "cluster_k":
        rows, columns = (
            -(-extent // (tile * blocks))
            for extent, tile, blocks in zip(
                (chosen.shape.m, chosen.shape.n), chosen.schedule.tile, chosen.schedule.cluster, strict=False
            )
        )
        size = chosen.schedule.cluster[0] * chosen.schedule.cluster[1] * chosen.launch.splits
        assert size <= 8 and rows * columns <= clusters_at_a_time(h100, size)


def test_some_hundreds_of_rows_are_divided_along_k_in_clusters() -> None:
    chosen = planned(plan(*gemm(504, 1824, 7488, compute_type="bf16"), SM90, DEVICES["H100-SXM"])).request
    assert chosen.partials == "cluster" and isinstance(chosen.split_k, int) and chosen.split_k > 1


def test_parts_of_k_share_loads_in_wide_clusters() -> None:
    """An H100 took 32.6 us, and 37.2 for what blocks in pairs share."""
    chosen = planned(plan(*gemm(752, 1552, 8448, compute_type="bf16"), SM90, DEVICES["H100-SXM"])).request
    assert (chosen.tile, chosen.cluster, chosen.split_k) == ((128, 160, 64), (2, 2), 2)


def test_narrow_tiles_whose_parts_of_k_all_run_at_a_time_are_tried() -> None:
    """An H200 took 21.4 us so, and 28.0 by 128x64 tiles of a whole K."""
    tried = [
        c.request for c in candidates(*gemm(256, 2096, 8512, compute_type="bf16"), SM90, DEVICES["H200"])
    ]
    assert ((128, 80, 64), 2, "cluster") in {(r.tile, r.split_k, r.partials) for r in tried}
    assert tried[0].partials == "cluster"


def test_bytes_that_tma_writes_to_shared_memory_are_priced_beside_those_that_wgmma_reads() -> None:
    """An H100 took 42.0 us by whole tiles of 128x80, and 36.1 by halves of 128x160."""
    chosen = planned(plan(*gemm(456, 2024, 9840, compute_type="bf16"), SM90, DEVICES["H100-SXM"])).request
    assert (chosen.tile, chosen.split_k, chosen.partials) == ((128, 160, 64), 2, "cluster")


def test_tiles_of_f32_split_in_registers_are_no_wider_than_few_rows() -> None:
    chosen = planned(plan(*gemm(200, 9000, 6144, compute_type="f32"), SM90, DEVICES["H200"])).request
    assert (chosen.swap, chosen.tile, chosen.math) == ("yes", (128, 112, 32), "tf32x3_rs")


def test_tf32_that_lies_across_k_is_turned_where_it_has_few_rows() -> None:
    """An H200 took 49.4 us for 36 rows as the rows of tiles of 128x192, and 34.7 as the columns of one."""
    problem, sizes = gemm(36, 1616, 13252, compute_type="tf32", order="MK")
    chosen = planned(plan(problem, sizes, SM90, DEVICES["H200"])).request
    assert chosen.swap == "yes" and chosen.partials == "cluster"


def test_steps_that_turn_tf32_are_priced_higher() -> None:
    """An H200 took 32.9 us by these tiles where B is turned, and 17.7 where A passes through registers."""
    problem, sizes = gemm(144, 1028, 3044, compute_type="tf32", order="MK")
    tiles = PartialSchedule(warps="pingpong", tile=(64, 32, 32))
    plans = (plan(problem, sizes, SM90, DEVICES["H200"], replace(tiles, swap=swap)) for swap in ("no", "yes"))
    a_in_registers, b_turned = (planned(p).seconds for p in plans)
    assert b_turned > 1.3 * a_in_registers


def test_few_rows_of_tf32_are_the_columns_of_a_tile() -> None:
    """An H200 took 75.7 us for 16 rows by tiles of 128x256, and 62.9 by 128x16 of the transpose."""
    problem, sizes = gemm(16, 5476, 10320, compute_type="tf32")
    chosen = planned(plan(problem, sizes, SM90, DEVICES["H200"])).request
    assert chosen.swap == "yes" and chosen.tile is not None and chosen.tile[1] == 16


def test_columns_that_are_read_by_element_are_no_matrix_vector_kernels() -> None:
    """An H100 took 22.8 us by the matrix-vector kernel, and 7.2 so."""
    problem, sizes = gemm(8, 1832, 1672, compute_type="f16", order="MN")
    assert planned(plan(problem, sizes, SM90, DEVICES["H100-SXM"])).request.warps == "pingpong"


def test_lone_tiles_of_pingpong_are_priced_higher() -> None:
    """An H200 took 62.6 us by pingpong's 192x80 tiles, and 56.5 so."""
    chosen = planned(plan(*gemm(776, 2328, 9024, compute_type="bf16"), SM90, DEVICES["H200"])).request
    assert (chosen.warps, chosen.tile) == ("cooperative", (128, 144, 64))


def test_tiles_are_as_wide_as_few_columns_want_them() -> None:
    """656 columns are three tiles of 224, not of 256."""
    chosen = planned(plan(*gemm(656, 2488, 8960, compute_type="bf16"), SM90, DEVICES["H100-SXM"])).request
    assert chosen.swap == "yes" and chosen.tile == (128, 224, 64)


def test_clusters_at_a_time_are_no_more_than_an_h100_was_seen_to_run() -> None:
    h100 = DEVICES["H100-SXM"]
    seen = {2: 64, 3: 39, 4: 30, 6: 16, 8: 15}
    assert all(0.9 * most <= clusters_at_a_time(h100, size) <= most for size, most in seen.items())
    # 23 of 5 took as long as two waves do.
    assert clusters_at_a_time(h100, 5) == 22


@pytest.mark.parametrize(
    ("m", "n", "k", "math"),
    [(256, 256, 262144, "tf32x3_fused"), (12, 2544, 2544, "tf32x3_fused"), (4096, 4096, 4096, "f16x3")],
)
def test_operands_are_split_where_it_costs_least(m: int, n: int, k: int, math: str) -> None:
    """As an H100 took them: 416 us against 638 at least, and 659 against 1166; the second one 17.2 against 19.7."""
    chosen = planned(plan(*gemm(m, n, k, compute_type="f32"), SM90, DEVICES["H100-SXM"]))
    assert chosen.request.math == math


@pytest.mark.parametrize(
    ("elem", "w", "sizes", "tile"),
    [("e4m3", "N, K", (656, 2320, 9344), (128, 112)), ("f16", "K, N", (1336, 1408, 3976), (192, 96))],
)
def test_products_are_turned_where_tiles_fit_the_rows_better(
    elem: str, w: str, sizes: tuple[int, int, int], tile: tuple[int, int]
) -> None:
    result = "bf16" if elem == "e4m3" else elem
    text = f"kernel k(x: {elem}[M, K], w: {elem}[{w}]) -> {result}[M, N] {{ return dot[K](x, w) }}"
    checked = frontend.read_text(text)
    kernel = frontend.kernel(checked)
    extents = complete(kernel, dict(zip("MNK", sizes, strict=True)))
    request = frontend.plan_kernel(checked, kernel, extents, "sm90a").planned.request
    assert (request.swap, request.tile and request.tile[:2]) == ("yes", tile)


@pytest.mark.parametrize(("k", "least"), [(16384, 3), (65536, 6)])
def test_long_sums_of_f32_are_divided(k: int, least: int) -> None:
    checked = frontend.read_text("kernel k(x: f32[M, K], w: f32[N, K]) -> f32[M, N] { return dot[K](x, w) }")
    kernel = frontend.kernel(checked)
    sizes = complete(kernel, {"M": 1536, "N": 1024, "K": k})
    request = frontend.plan_kernel(checked, kernel, sizes, "sm90a").planned.request
    assert request.split_k is not None and request.split_k != "stream" and request.split_k >= least


def test_parts_that_long_sums_must_have_fill_the_last_wave() -> None:
    """Of 49 tiles three parts are two waves of a third of K each, five two of a fifth."""
    request = planned(plan(*gemm(24, 6232, 14776, compute_type="f32"), SM90, DEVICES["H200"])).request
    assert request.split_k == 5


@pytest.mark.parametrize(
    ("math", "depth", "chains"), [("tf32x3_rs", 64, 2), ("tf32x3_rs", 32, 1), ("tf32x3_fused", 64, 2)]
)
def test_sums_of_f32_join_registers_after_32_of_k(math: str, depth: int, chains: int) -> None:
    text = (
        "kernel k(x: f32[M, K], w: f32[N, K]) -> f32[M, N] { return dot[K](x, w) "
        f"schedule sm90a {{ math {math}  warps cooperative  tile 128x64x{depth} }} }}"
    )
    checked = frontend.read_text(text)
    kernel = frontend.kernel(checked)
    sizes = complete(kernel, {"M": 256, "N": 256, "K": 512})
    code = source_of(checked, kernel, frontend.plan_kernel(checked, kernel, sizes, "sm90a").planned).code
    assert [f"multiply<{i}>(sums" in code for i in range(3)] == [i < chains for i in range(3)]


def test_a_stage_less_is_taken_where_a_lean_kernel_then_serves() -> None:
    """At 384 columns of 1,536 sums CUTLASS's collectives would fit 11 stages, and nvcc build them."""
    checked = frontend.read_text(
        "kernel k(x: bf16[M, K], w: bf16[N, K], b: bf16[N], r: bf16[M, N]) -> bf16[M, N] "
        "{ return dot[K](x, w) + b + r schedule sm90a { warps pingpong tile 64x16x128 swap yes cluster 1x4 } }"
    )
    chosen = frontend.plan_kernel(checked, frontend.kernel(checked), (197, 1536, 384), "sm90a").planned.plan
    schedule = chosen.schedule
    assert isinstance(schedule, Sm90Schedule) and schedule.stages == 10
    assert lean(chosen)

"""Pairs of dots and ragged groups: what is recognised, what is refused and why, what is planned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.kernels.grouped_gemm_programs import GROUPED_GEMMS
from ucutlass import frontend
from ucutlass.diagnostics import ProgramError
from ucutlass.emit import emit
from ucutlass.ir.elements import S4
from ucutlass.ir.hardware import ARCHES, default_device
from ucutlass.kernels.grouped_gemm.cost import estimate
from ucutlass.kernels.grouped_gemm.match import GroupedGemmPattern
from ucutlass.kernels.grouped_gemm.plan import GroupedGemmPlan, SimtSchedule, WgmmaSchedule
from ucutlass.kernels.grouped_gemm.problem import grouped_gemm_problem
from ucutlass.kernels.grouped_gemm.rules import why_illegal
from ucutlass.kernels.grouped_gemm.smem import SHARED_BYTES, most_stages, stage_bytes, steps
from ucutlass.kernels.planned import Planned
from ucutlass.shapes import complete

MOE = GROUPED_GEMMS["moe"].text
PAIR = GROUPED_GEMMS["gated pair"].text


def planned(text: str, arch: str = "sm90a", **sizes: int) -> Planned:
    checked = frontend.read_text(text)
    kernel = frontend.kernel(checked)
    found = frontend.plan_kernel(checked, kernel, complete(kernel, sizes), arch).planned
    assert isinstance(found, Planned)
    return found


def plan(text: str, **sizes: int) -> GroupedGemmPlan:
    made = planned(text, **sizes).plan
    assert isinstance(made, GroupedGemmPlan)
    return made


def form(text: str) -> GroupedGemmPattern:
    checked = frontend.read_text(text)
    pattern = frontend.pattern(checked, frontend.kernel(checked))
    assert isinstance(pattern, GroupedGemmPattern)
    return pattern


# --- recognition ------------------------------------------------------------------------


@pytest.mark.parametrize("name", GROUPED_GEMMS)
def test_every_program_is_planned_and_emitted(name: str) -> None:
    for sizes in (GROUPED_GEMMS[name].small, *GROUPED_GEMMS[name].large):
        grouped_gemm_plan = plan(GROUPED_GEMMS[name].text, **sizes)
        source = emit(grouped_gemm_plan, "a header")
        assert source.entry in source.text
        assert f"namespace {source.entry}_kernel" in source.text


def test_roles_of_a_ragged_product() -> None:
    grouped_gemm_pattern = form(MOE)
    assert (
        grouped_gemm_pattern.m,
        grouped_gemm_pattern.n,
        grouped_gemm_pattern.k,
        grouped_gemm_pattern.batch,
    ) == (("T",), ("F",), ("D",), ("E",))
    made = grouped_gemm_problem(
        grouped_gemm_pattern, complete(grouped_gemm_pattern.kernel, {"T": 64, "D": 16, "F": 8, "E": 4})
    )
    assert made.ragged is not None and made.ragged.mode == "m" and made.ragged.pointer == 2
    assert made.gemm.a.batch == (None,)
    assert made.gemm.b.batch != (None,)


def test_roles_of_a_gradient() -> None:
    grouped_gemm_pattern = form(GROUPED_GEMMS["moe, gradient of weights"].text)
    assert (
        grouped_gemm_pattern.m,
        grouped_gemm_pattern.n,
        grouped_gemm_pattern.k,
        grouped_gemm_pattern.batch,
    ) == (("F",), ("D",), ("T",), ("E",))
    made = grouped_gemm_problem(
        grouped_gemm_pattern, complete(grouped_gemm_pattern.kernel, {"T": 64, "D": 16, "F": 8, "O": 4})
    )
    assert made.ragged is not None and made.ragged.mode == "k"
    assert made.gemm.a.contiguous == "m" and made.gemm.b.contiguous == "n"


def test_the_shared_operand_may_stand_on_either_side() -> None:
    text = PAIR.replace("dot[D](x, u)", "dot[D](u, x)")
    assert form(text).a.order == ("T", "D")


def test_two_accumulators_reach_the_arithmetic() -> None:
    grouped_gemm_plan = plan(PAIR, T=256, D=64, F=64)
    assert "float acc, float acc1" in emit(grouped_gemm_plan, "").text


REFUSED = {
    "UC0330 no operand in common": "kernel k(x: bf16[T, D], y: bf16[T, D], w: bf16[F, D], u: bf16[F, D]) "
    "-> bf16[T, F] "
    "{ return dot[D](x, w) * dot[D](y, u) }",
    "UC0330 other names": "kernel k(x: bf16[T, D], w: bf16[F, D], u: bf16[G, D]) -> bf16[T, F, G] "
    "{ return dot[D](x, w) * dot[D](x, u) }",
    "UC0330 other accumulation": "kernel k(x: f16[T, D], w: f16[F, D], u: f16[F, D]) -> f16[T, F] "
    "{ return dot[D](x, w) * dot[D](x, u, acc=f16) }",
    "UC0331 masked on one side": GROUPED_GEMMS["moe, gradient of weights"].text.replace(
        "bf16(where(own, x, 0))", "x"
    ),
    "UC0331 further rows": "kernel k(x: bf16[T, H, D], w: bf16[E, F, D], o: i32[E+1]) -> bf16[T, H, F] "
    "{ return dot[D](x, w[E = segment(T, o)]) }",
    "UC0309 reduced": "kernel k(x: bf16[T, D], w: bf16[F, D], u: bf16[F, D]) -> f32[T] "
    "{ return sum[F](dot[D](x, w) * dot[D](x, u)) }",
    "UC0302 computed operand": "kernel k(x: bf16[T, D], w: bf16[E, F, D], o: i32[E+1]) -> bf16[T, F] "
    "{ return dot[D](bf16(relu(x)), w[E = segment(T, o)]) }",
    "UC0305 batch modes": "kernel k(x: bf16[A, T, B, D], w: bf16[B, F, A, D], u: bf16[B, F, A, D]) -> "
    "bf16[A, B, T, F] { return dot[D](x, w) * dot[D](x, u) }",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_one_launch_cannot_do_is_refused(name: str) -> None:
    checked = frontend.read_text(REFUSED[name])
    kernel = frontend.kernel(checked)
    sizes = dict.fromkeys("ABDEFGHOT", 64)
    with pytest.raises(ProgramError) as refused:
        named = {d: n for d, n in sizes.items() if d in kernel.dims and not (d == "E" and "O" in kernel.dims)}
        frontend.plan_kernel(checked, kernel, complete(kernel, named), "sm90a")
    assert refused.value.diagnostics[0].code == name.split()[0], str(refused.value)


def test_offsets_do_not_lie_along_the_rows() -> None:
    text = "kernel k(x: f32[T], o: i32[T]) -> i64[T] { return segment(T, o) }"
    with pytest.raises(ProgramError, match="UC0212"):
        frontend.read_text(text)


# --- planning ---------------------------------------------------------------------------


def test_what_tma_does_not_take_goes_to_plain_multiply_adds() -> None:
    for text, sizes in (
        (PAIR, {"T": 64, "D": 65, "F": 64}),
        (GROUPED_GEMMS["gated pair of f32"].text, {"T": 64, "D": 64, "F": 64}),
        (
            GROUPED_GEMMS["gated pair of fp8"].text.replace("w: e4m3[F, D]", "w: e4m3[D, F]"),
            {"T": 64, "D": 64, "F": 64},
        ),
    ):
        found = planned(text, **sizes)
        assert isinstance(found.plan, GroupedGemmPlan) and isinstance(found.plan.schedule, SimtSchedule)
        assert "cannot take this" in found.notes[0].reason
    assert isinstance(plan(PAIR, T=64, D=64, F=64).schedule, WgmmaSchedule)


def test_ada_and_ampere_are_served() -> None:
    for arch in ("sm80", "sm89"):
        found = planned(MOE, arch, T=64, D=64, F=64, E=3).plan
        assert isinstance(found, GroupedGemmPlan) and isinstance(found.schedule, SimtSchedule)


def test_few_rows_get_low_tiles_and_many_rows_high_ones() -> None:
    few, many = plan(MOE, T=256, D=2048, F=8192, E=64), plan(MOE, T=16384, D=2048, F=8192, E=8)
    assert isinstance(few.schedule, WgmmaSchedule) and isinstance(many.schedule, WgmmaSchedule)
    assert few.schedule.tile[0] == 64
    assert many.schedule.tile[0] >= 128


def scheduled(fields: str) -> str:
    return MOE[: MOE.rindex("}")] + f" schedule sm90a {{ {fields} }} }}"


def test_a_schedule_is_followed() -> None:
    text = scheduled("tile 64x256x64  stages 4  warps pingpong  swizzle 4")
    found = planned(text, T=1024, D=256, F=512, E=8)
    assert isinstance(found.plan, GroupedGemmPlan) and isinstance(found.plan.schedule, WgmmaSchedule)
    assert found.plan.schedule.tile == (64, 256, 64)
    assert found.plan.schedule.stages == 4
    assert found.launch == (4,)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ("tile 128x256x64  warps pingpong", "at most 128 fit"),
        ("tile 96x128x64", "multiple of 128"),
        ("tile 128x128x32", "K of a tile is 64"),
        ("cluster 4x1", "a cluster is"),
        ("tile 128x256x64  stages 9", "at most 4 do"),
        ("warps gemv", "runs as `pingpong`"),
        ("split_k 4", "without ragged groups"),
        ("split_k stream", "stream-K is a scheduler"),
        ("partials cluster", "has the fields"),
    ],
)
def test_an_illegal_schedule_says_why_and_what_is_near(fields: str, what: str) -> None:
    with pytest.raises(ProgramError) as refused:
        planned(scheduled(fields), T=1024, D=256, F=512, E=8)
    diagnostic = refused.value.diagnostics[0]
    assert diagnostic.code == (
        "UC0439" if any(word in what for word in ("fields", "runs", "stream-K")) else "UC0332"
    )
    assert what in diagnostic.message
    assert diagnostic.hint is not None


@pytest.mark.parametrize(
    ("beyond", "inside", "what"),
    [
        ("cluster 2x1  split_k 5", "cluster 2x1  split_k 4", "10 blocks are no cluster"),
        ("tile 128x64x64  split_k 6", "tile 128x64x64  split_k 5", "K has 5 steps for 6 parts"),
        ("warps pingpong  split_k 2", "warps sliced  split_k 2", "whose blocks have one tile at a time"),
    ],
)
def test_parts_of_k_are_steps_of_the_blocks_of_a_cluster(beyond: str, inside: str, what: str) -> None:
    def text(fields: str) -> str:
        return GROUPED_GEMMS["narrow weights"].text[:-1] + f" schedule sm90a {{ {fields} }} }}"

    sizes = {"M": 64, "K": 272, "N": 512}
    with pytest.raises(ProgramError) as refused:
        planned(text(beyond), **sizes)
    assert what in refused.value.diagnostics[0].message
    schedule = plan(text(inside), **sizes).schedule
    assert isinstance(schedule, WgmmaSchedule) and schedule.parts == int(inside[-1])


def test_tiles_are_as_deep_as_parts_of_k_leave_steps() -> None:
    def text(parts: int) -> str:
        return GROUPED_GEMMS["narrow weights"].text[:-1] + f" schedule sm90a {{ split_k {parts} }} }}"

    sizes = {"M": 64, "K": 128, "N": 512}
    for parts, depth in ((1, 128), (2, 64)):
        schedule = plan(text(parts), **sizes).schedule
        assert isinstance(schedule, WgmmaSchedule) and (schedule.parts, schedule.tile[2]) == (parts, depth)
    with pytest.raises(ProgramError, match="K has 2 steps for 3 parts"):
        planned(text(3), **sizes)


def test_stages_and_epilogue_fit_in_shared_memory() -> None:
    grouped_gemm_plan = plan(GROUPED_GEMMS["moe with operands"].text, T=777, D=136, F=264, E=5)
    for tile in ((128, 128, 64), (128, 256, 64), (64, 256, 64), (192, 64, 64)):
        for warps in ("pingpong", "cooperative"):
            schedule = WgmmaSchedule(tile, (1, 1), 2, warps)  # type: ignore[arg-type]
            if why_illegal(grouped_gemm_plan.problem, schedule):
                continue
            most = most_stages(grouped_gemm_plan.problem, schedule)
            full = replace(schedule, stages=most)
            columns, buffers = steps(grouped_gemm_plan.problem, full)
            boxes = 2 * buffers * 64 * columns * (2 + 4)
            assert most * stage_bytes(grouped_gemm_plan.problem, full) + boxes + 1024 <= SHARED_BYTES
            assert tile[0] // (128 if warps == "cooperative" else 64) * (tile[1] // columns) % buffers == 0


def test_longer_sums_take_longer() -> None:
    device = default_device(ARCHES["sm90a"])
    short, long = plan(MOE, T=4096, D=1024, F=4096, E=8), plan(MOE, T=4096, D=4096, F=4096, E=8)
    assert isinstance(short.schedule, WgmmaSchedule)
    seconds = [
        estimate(p.problem, short.schedule, sizes, ARCHES["sm90a"], device, (8,)).seconds
        for p, sizes in ((short, (4096, 1024, 8, 4096)), (long, (4096, 4096, 8, 4096)))
    ]
    assert seconds[0] < seconds[1]


# --- weights of four bits ------------------------------------------------------------------


FOUR_BITS = GROUPED_GEMMS["weights of four bits"].text


def test_tiles_of_four_bits_have_rows_of_64_bytes() -> None:
    grouped_gemm_plan = plan(FOUR_BITS, M=256, K=512, N=512)
    assert isinstance(grouped_gemm_plan.schedule, WgmmaSchedule)
    assert grouped_gemm_plan.schedule.tile[2] == 128 and grouped_gemm_plan.problem.gemm.a.elem is S4
    m, n, k = grouped_gemm_plan.schedule.tile
    assert stage_bytes(grouped_gemm_plan.problem, grouped_gemm_plan.schedule) == m * k // 2 + n * k * 2
    assert why_illegal(grouped_gemm_plan.problem, replace(grouped_gemm_plan.schedule, tile=(m, n, 64))) == ""
    assert "64 or 128" in why_illegal(
        grouped_gemm_plan.problem, replace(grouped_gemm_plan.schedule, tile=(m, n, 32))
    )


def test_parts_of_four_bits_choose_the_depth_that_divides_them() -> None:
    text = GROUPED_GEMMS["weights of four bits, scales of parts"].text
    for length, depth in ((64, 64), (128, 128), (192, 64)):
        schedule = plan(text, M=256, G=4, J=length, N=512).schedule
        assert isinstance(schedule, WgmmaSchedule) and schedule.tile[2] == depth


def test_four_bits_need_rows_of_16_bytes() -> None:
    assert isinstance(plan(FOUR_BITS, M=64, K=64 + 32, N=64).schedule, WgmmaSchedule)
    assert isinstance(plan(FOUR_BITS, M=64, K=64 + 16, N=64).schedule, SimtSchedule)


def test_four_bits_that_leave_half_a_byte_are_refused() -> None:
    with pytest.raises(ProgramError, match=r"w has 33 along it \(K\) \[UC0334\]"):
        plan(FOUR_BITS, M=64, K=33, N=64)
    with pytest.raises(ProgramError, match=r"w has 21 along it \(G J\)"):
        plan(GROUPED_GEMMS["weights of four bits, scales of parts"].text, M=64, G=3, J=7, N=64)
    with pytest.raises(ProgramError, match="UC0308"):
        form(
            "kernel k(x: bf16[T, D], w: s4[F, D], u: s4[F, D]) -> bf16[T, F] "
            "{ return dot[D](x, bf16(w)) * dot[D](x, bf16(u)) }"
        )


def test_schedules_of_widened_weights_are_those_measured() -> None:
    text = GROUPED_GEMMS["narrow weights"].text
    few, many = plan(text, M=16, K=4096, N=14336).schedule, plan(text, M=8192, K=4096, N=8192).schedule
    assert isinstance(few, WgmmaSchedule) and isinstance(many, WgmmaSchedule)
    assert (few.tile, few.cluster) == ((128, 32, 128), (1, 1)) and many.tile == (128, 256, 64)


def test_tiles_of_widened_weights_are_as_wide_as_rows_want_them() -> None:
    """592 rows by scaled weights took an H200 72.0 us by tiles of 128 columns, and 65.2 so."""
    text = GROUPED_GEMMS["narrow weights, scales of parts"].text
    schedule = plan(text, M=592, G=72, J=128, N=2064).schedule
    assert isinstance(schedule, WgmmaSchedule) and schedule.tile == (128, 96, 128)


def test_parts_of_k_of_widened_weights_fill_the_sms() -> None:
    text = GROUPED_GEMMS["weights of four bits, scales of parts"].text
    schedules = [plan(text, M=16, G=46, J=128, N=n).schedule for n in (1616, 16384)]
    assert all(isinstance(s, WgmmaSchedule) for s in schedules)
    few, many = (s.parts for s in schedules if isinstance(s, WgmmaSchedule))
    assert few > 1 and many == 1


def test_a_pair_is_priced_as_one_product_of_both_weights() -> None:
    """Of 792 rows an H200 took 113.5 us by pingpong's 128x64 tiles, and 75.8 so; of 328, 63.7 and 48.1."""
    wide = planned(PAIR, T=792, D=8528, F=1688).request
    deep = planned(PAIR, T=328, D=7624, F=1648).request
    assert (wide.warps, wide.tile, wide.split_k) == ("cooperative", (128, 96, 64), None)
    assert (deep.warps, deep.tile, deep.split_k) == ("cooperative", (128, 96, 64), 2)


def test_a_ragged_pair_has_tiles_that_were_measured() -> None:
    text = GROUPED_GEMMS["gated moe"].text
    for rows in (64, 512, 4096):
        schedule = plan(text, T=rows, D=2048, F=2048, E=8).schedule
        assert isinstance(schedule, WgmmaSchedule) and schedule.parts == 1 and schedule.tile[1] % 64 == 0


def test_columns_across_k_come_in_boxes_of_64() -> None:
    along, across = PAIR, GROUPED_GEMMS["gated pair, weights by columns"].text

    def tiled(text: str) -> str:
        return text[:-1] + " schedule sm90a { warps cooperative  tile 128x96x64 } }"

    assert isinstance(plan(tiled(along), T=256, D=256, F=256).schedule, WgmmaSchedule)
    with pytest.raises(ProgramError, match="multiple of 64"):
        plan(tiled(across), T=256, D=256, F=256)


def test_row_gradients_take_narrow_bands() -> None:
    gradient = planned(GROUPED_GEMMS["moe, gradient of rows"].text, T=4096, F=4096, D=2048, E=8)
    forward = planned(MOE, T=4096, F=4096, D=2048, E=8)
    assert (gradient.launch[0], forward.launch[0]) == (2, 8)


def test_ragged_rows_that_lie_innermost_are_not_loaded_by_tma() -> None:
    """A group begins anywhere in T, and a TMA load that does not begin at 16 bytes faults."""
    segment = "E = segment(T, o)"
    for elem in ("bf16", "f16"):
        params = f"x: {elem}[D, T], w: {elem}[E, F, D], u: {elem}[E, F, D], o: i32[E+1]"
        dot, second = f"dot[D](x, w[{segment}])", f"dot[D](x, u[{segment}])"
        for value in (dot, f"silu({dot}) * {second}"):
            text = f"kernel k({params}) -> {elem}[T, F] {{ return {value} }}"
            sizes = {"T": 4096, "D": 4096, "F": 4096, "E": 8}
            assert isinstance(plan(text, **sizes).schedule, SimtSchedule)
            across = text.replace("x: " + elem + "[D, T]", "x: " + elem + "[T, D]")
            assert isinstance(plan(across, **sizes).schedule, WgmmaSchedule)

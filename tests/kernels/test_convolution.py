"""Convolutions: what is recognised, what is refused and why, which kernel is planned; that it is legal."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace

import pytest

from tests.kernels.convolution_emulated import judge, plan
from tests.kernels.convolution_programs import PROGRAMS
from ucutlass import frontend
from ucutlass.diagnostics import ProgramError
from ucutlass.emit import emit
from ucutlass.emit.convolution import im2col as conv_sm90
from ucutlass.emit.convolution import wgrad as conv_wgrad
from ucutlass.emit.gemm.sm80_epilogue import layout
from ucutlass.ir.hardware import ARCHES
from ucutlass.kernels.convolution.match import ConvolutionPattern
from ucutlass.kernels.convolution.plan import ConvolutionPlan, DirectSchedule, Im2colSchedule, WgradSchedule
from ucutlass.kernels.convolution.plan_im2col import im2col
from ucutlass.kernels.convolution.smem import shared_bytes
from ucutlass.kernels.gemm.match import GemmPattern
from ucutlass.kernels.gemm.plan import GemmPlan, Sm80Schedule
from ucutlass.kernels.planned import Planned
from ucutlass.kernels.reduction.match import ReductionPattern
from ucutlass.shapes import complete

FORWARD = "x: f16[N, H, W, C], w: f16[K, R=3, S=3, C]"
RESULT = "f16[N, P=H, Q=W, K]"
WINDOW = "x[H = P + R - 1, W = Q + S - 1]"


def _kernel(head: str, result: str, value: str, more: str = "") -> str:
    return f"kernel k({head}) -> {result} {{ return {value} {more} }}"


def _form(text: str) -> object:
    checked = frontend.read_text(text)
    return frontend.pattern(checked, frontend.kernel(checked))


def _codes(text: str, sizes: dict[str, int] | None = None, arch: str = "sm90a") -> list[str]:
    with pytest.raises(ProgramError) as error:
        if sizes is None:
            _form(text)
        else:
            plan(text, sizes, arch)
    return [d.code for d in error.value.diagnostics]


def _conv(planned: Planned) -> ConvolutionPlan:
    assert isinstance(planned.plan, ConvolutionPlan)
    return planned.plan


# --- recognition --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "m", "n", "k", "batch"),
    [
        ("f16 strided", "NPQ", "K", "RSC", ""),
        ("weight gradient", "CRS", "K", "NPQ", ""),
        ("data gradient", "NHW", "C", "RSK", ""),
        ("grouped", "NPQ", "K", "RSC", "G"),
        ("depthwise", "NPQ", "", "RS", "C"),
        ("three dimensions", "NOPQ", "K", "TRSC", ""),
    ],
)
def test_roles(name: str, m: str, n: str, k: str, batch: str) -> None:
    form = _form(PROGRAMS[name][0])
    assert isinstance(form, ConvolutionPattern)
    assert {*form.m} == {*m} and {*form.n} == {*n} and {*form.k} == {*k} and {*form.batch} == {*batch}
    assert form.summed == ("first" in name)


def test_a_convolution_of_one_tap_and_step_is_a_gemm() -> None:
    head, result = "x: f16[N, H, W, C], w: f16[K, R=1, S=1, C]", "f16[N, P=(H-1)//1+1, Q=W, K]"
    text = _kernel(head, result, "relu(dot[R, S, C](x[H = P + R, W = Q + S], w))")
    form = _form(text)
    assert isinstance(form, GemmPattern) and (form.m, form.n, form.k) == (("N", "P", "Q"), ("K",), ("C",))
    planned = plan(text, {"N": 2, "H": 4, "W": 4, "C": 64, "K": 64}, "sm90a").plan
    assert isinstance(planned, GemmPlan) and {len(planned.problem.m), len(planned.problem.n)} == {1, 3}
    strided = _kernel(head, "f16[N, P=(H-1)//2+1, Q=W, K]", "dot[R, S, C](x[H = 2*P + R, W = Q + S], w)")
    assert isinstance(_form(strided), ConvolutionPattern)


def test_a_window_that_sums_no_product_is_no_convolution() -> None:
    text = _kernel("x: f32[N, H, C]", "f32[N, P=H, C]", "sum[R=3](x[H = P + R - 1])")
    assert isinstance(_form(text), ReductionPattern)


def test_what_one_kernel_cannot_read_is_refused_where_it_stands() -> None:
    assert _codes(_kernel(FORWARD, RESULT, f"dot[R, S, C]({WINDOW.replace('x', '(2.0 * x)')}, f32(w))")) == [
        "UC0302"
    ]
    narrow = _kernel(
        "x: f32[N, H, C], w: f16[K, R=3, C]", "f16[N, P=H, K]", "dot[R, C](f16(x[H = P + R]), w)"
    )
    assert _codes(narrow) == ["UC0308"]
    twice = "dot[R, C](x[H = H + 1][H = P + R], w)"
    assert _codes(_kernel("x: f16[N, H, C], w: f16[K, R=3, C]", "f16[N, P=H, K]", twice)) == ["UC0304"]
    value = "max[C](dot[R, S](x[H = P + R - 1, W = Q + S - 1], w))"
    depthwise = _kernel("x: f16[N, H, W, C], w: f16[R=3, S=3, C]", "f32[N, P=H, Q=W]", value)
    assert _codes(depthwise, {"N": 1, "H": 4, "W": 4, "C": 8}) == ["UC0309"]


def test_fields_of_other_kernels_are_refused() -> None:
    scheduled = _kernel(FORWARD, RESULT, f"dot[R, S, C]({WINDOW}, w)", "schedule sm90a { swap yes }")
    assert _codes(scheduled, {"N": 1, "H": 8, "W": 8, "C": 64, "K": 64}) == ["UC0439"]


def test_more_than_is_counted_is_refused_with_the_numbers() -> None:
    text = PROGRAMS["weight gradient"][0]
    assert _codes(text, {"N": 2**20, "H": 64, "W": 64, "C": 8, "K": 8}) == ["UC0460"]


# --- planning -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("elements", "value", "narrow"),
    [
        (("bf16", "bf16"), "relu({}) + b", True),
        (("f16", "f32"), "gelu({} + b)", True),
        (("bf16", "s8"), "{} + b", False),
        (("bf16", "bf16"), "{} * bf16({} + b)", False),  # rounded within the arithmetic
        (("tf32", "f32"), "{} + b", True),  # TMA rounds what the kernel reads as f32
    ],
)
def test_cutlass_s_headers_are_those_of_the_elements(
    elements: tuple[str, str], value: str, narrow: bool
) -> None:
    read, given = elements
    stored = "f32" if read == "tf32" else read
    head = f"x: {stored}[N, H, W, C], w: {stored}[K, R=3, S=3, C], b: f32[K]"
    operands = (WINDOW, "w") if read == stored else (f"tf32({WINDOW})", "tf32(w)")
    product = f"dot[R, S, C]({', '.join(operands)})"
    text = _kernel(head, f"{given}[N, P=H, Q=W, K]", value.replace("{}", product))
    planned = plan(text, {"N": 8, "H": 56, "W": 56, "C": 64, "K": 128}, "sm90a")
    assert isinstance(_conv(planned).schedule, Im2colSchedule)
    code = emit(planned.plan, "").code
    assert ('"cutlass/numeric_conversion.h"' in code) is not narrow
    assert ("NumericConverter" in code) is not narrow


def test_channels_last_goes_to_tma_as_it_lies() -> None:
    convolution_plan = _conv(
        plan(PROGRAMS["f16 strided"][0], {"N": 32, "H": 56, "W": 56, "C": 64, "K": 64}, "sm90a")
    )
    assert isinstance(convolution_plan.schedule, Im2colSchedule) and convolution_plan.schedule.part == 64
    assert convolution_plan.problem.a.pack is None and convolution_plan.problem.b.pack is None


def test_what_tma_cannot_take_is_copied_or_gathered() -> None:
    sizes = {"B": 2, "C": 32, "H": 8, "W": 8, "K": 64}
    first = _conv(plan(PROGRAMS["f16 channels first"][0], sizes, "sm90a"))
    assert isinstance(first.schedule, Im2colSchedule)
    assert first.problem.a.pack == (0, 2, 3, 1) and first.problem.b.pack == (2, 3, 0, 1)
    few = _conv(plan(*PROGRAMS["f16 three channels"], "sm80"))
    assert isinstance(few.schedule, Sm80Schedule) and few.problem.a.pad == 8
    f32 = _conv(plan(*PROGRAMS["f32"], "sm80"))
    assert isinstance(f32.schedule, Sm80Schedule) and f32.schedule.math == "tf32x3"


def test_odd_rows_are_widened_exactly() -> None:
    text, sizes = PROGRAMS["weight gradient odd"]
    convolution_plan = _conv(
        plan(
            text.replace("dot[N, P, Q]", "dot[P, Q]")
            .replace("x: bf16[N, ", "x: bf16[")
            .replace("y: bf16[N, ", "y: bf16["),
            {k: v for k, v in sizes.items() if k != "N"},
            "sm80",
        )
    )
    assert convolution_plan.problem.a.packed is not None and convolution_plan.problem.a.packed.name == "f32"


def test_divided_positions_split_into_phases() -> None:
    convolution_plan = _conv(plan(*PROGRAMS["data gradient"], "sm90a"))
    how = im2col(convolution_plan.problem)
    assert not isinstance(how, str) and how.phases == 4 and how.across
    assert isinstance(convolution_plan.schedule, Im2colSchedule)


def test_gradients_of_weights_are_summed_over_positions() -> None:
    text = PROGRAMS["weight gradient"][0]
    deep = plan(text, {"N": 32, "H": 28, "W": 28, "C": 128, "K": 128}, "sm90a")
    convolution_plan = _conv(deep)
    assert isinstance(convolution_plan.schedule, WgradSchedule) and convolution_plan.schedule.part == 64
    assert (
        deep.launch[2] > 4
        and convolution_plan.problem.a.pack is None
        and convolution_plan.problem.b.pack is None
    )
    wide = plan(text, {"N": 8, "H": 7, "W": 7, "C": 1024, "K": 1024}, "sm90a")
    assert wide.launch[2] == 1
    exchanged = _conv(plan(*PROGRAMS["weight gradient exchanged"], "sm90a"))
    assert isinstance(exchanged.schedule, WgradSchedule)
    assert [a.window is not None for a in exchanged.problem.a.axes] == [False, True, True, False]
    first = text.replace("x: f16[N, H, W, C]", "x: f16[N, C, H, W]")
    turned = _conv(plan(first, {"N": 2, "H": 9, "W": 9, "C": 64, "K": 64}, "sm90a"))
    assert isinstance(turned.schedule, WgradSchedule) and turned.problem.a.pack == (0, 2, 3, 1)
    f32 = _conv(plan(text.replace("f16", "f32"), {"N": 2, "H": 9, "W": 9, "C": 64, "K": 64}, "sm90a"))
    assert isinstance(f32.schedule, WgradSchedule) and f32.schedule.math == "f16x3"


def shared_of(made: ConvolutionPlan) -> int:
    assert isinstance(made.schedule, Im2colSchedule | WgradSchedule)
    return shared_bytes(made.problem, made.schedule, layout(made.problem.gemm).contiguous_mode)


def test_every_chosen_tile_of_a_gradient_is_legal() -> None:
    draw = random.Random(8)
    for _ in range(60):
        sizes = {"N": draw.choice((1, 3, 32)), "H": draw.randrange(3, 70), "W": draw.randrange(3, 70)}
        sizes |= {"C": draw.randrange(1, 300), "K": draw.randrange(1, 300)}
        convolution_plan = _conv(plan(PROGRAMS["weight gradient odd"][0], sizes, "sm90a"))
        assert isinstance(convolution_plan.schedule, WgradSchedule)
        assert conv_wgrad.check(convolution_plan.problem, convolution_plan.schedule) == ""
        shared, arch = shared_of(convolution_plan), ARCHES["sm90a"]
        assert shared <= arch.shared_memory
        assert (
            convolution_plan.schedule.blocks * (shared + arch.shared_memory_reserved) <= arch.shared_memory_sm
        )


def test_depthwise_slides() -> None:
    convolution_plan = _conv(plan(PROGRAMS["depthwise"][0], {"N": 2, "H": 9, "W": 11, "C": 64}, "sm90a"))
    assert convolution_plan.schedule == DirectSchedule(4, 2, 3, threads=64, item_taps=3, ahead=3)
    whole = _conv(plan(PROGRAMS["depthwise"][0], {"N": 2, "H": 9, "W": 28, "C": 64}, "sm90a"))
    assert whole.schedule == DirectSchedule(4, 2, 3, threads=64, item_taps=3, ahead=3)
    many = _conv(plan(PROGRAMS["depthwise"][0], {"N": 64, "H": 112, "W": 112, "C": 64}, "sm90a"))
    assert isinstance(many.schedule, DirectSchedule) and many.schedule.ahead == 1
    taps = PROGRAMS["depthwise"][0].replace("R=3, S=3", "R, S")
    free = _conv(plan(taps, {"N": 2, "H": 9, "W": 11, "C": 64, "R": 3, "S": 3}, "sm90a"))
    assert free.schedule == DirectSchedule(8, 4)
    # Written as a sum, it is a reduction's.
    dotted = PROGRAMS["depthwise channels first"][0].replace("- 3] * w)", "- 3], w)").replace("sum[", "dot[")
    along = _conv(plan(dotted, {"B": 2, "C": 5, "L": 64}, "sm90a"))
    assert along.schedule == DirectSchedule(8, 8, 4, True)


@pytest.mark.parametrize(
    ("images", "channels", "element", "schedule"),
    [
        (4, 18, "bf16", Sm80Schedule),
        (4, 36, "f16", Sm80Schedule),
        (4, 40, "bf16", Im2colSchedule),
        (32, 18, "bf16", Im2colSchedule),
        (32, 26, "f16", Im2colSchedule),
        (32, 36, "f16", Sm80Schedule),
    ],
)
def test_few_channels_that_end_within_16_bytes_are_read_as_they_lie_where_tall_tiles_are_few(
    images: int, channels: int, element: str, schedule: type
) -> None:
    text = f"""kernel k(x: {element}[N, H, W, C], w: {element}[K, R=3, S=3, C]) -> {element}[N, P=H, Q=W, K] {{
  return dot[R, S, C](x[H = P + R - 1, W = Q + S - 1], w)
}}"""
    sizes = {"N": images, "H": 56, "W": 56, "C": channels, "K": channels}
    assert isinstance(_conv(plan(text, sizes, "sm90a")).schedule, schedule)


def test_the_narrowest_of_tiles_that_wait_for_rows_is_taken() -> None:
    text = """kernel k(x: bf16[N, H, W, C], w: bf16[K, R=3, S=3, C]) -> bf16[N, P=H, Q=W, K] {
  return dot[R, S, C](x[H = P + R - 1, W = Q + S - 1], w)
}"""
    made = _conv(plan(text, {"N": 64, "H": 56, "W": 56, "C": 18, "K": 18}, "sm90a"))
    assert isinstance(made.schedule, Im2colSchedule) and made.schedule.tile == (192, 32, 64)


def test_rows_of_tf32_are_as_few_as_they_can_be() -> None:
    text = """kernel k(x: f32[N, H, W, C], w: f32[K, R=3, S=3, C]) -> f32[N, P=H, Q=W, K] {
  return dot[R, S, C](tf32(x[H = P + R - 1, W = Q + S - 1]), tf32(w))
}"""
    for channels, part in ((36, 32), (72, 32), (48, 16)):
        schedule = _conv(plan(text, {"N": 16, "H": 28, "W": 28, "C": channels, "K": 64}, "sm90a")).schedule
        assert isinstance(schedule, Im2colSchedule) and schedule.part == part


@pytest.mark.parametrize(
    ("order", "element", "channels", "schedule"),
    [
        ("G C H W", "bf16", 4, DirectSchedule),
        ("G C H W", "f32", 8, DirectSchedule),
        ("G C H W", "bf16", 16, Im2colSchedule),
        ("H W G C", "f32", 2, DirectSchedule),
        ("H W G C", "f32", 4, Im2colSchedule),
        ("H W G C", "bf16", 8, Im2colSchedule),
    ],
)
def test_groups_of_few_channels_are_for_plain_threads(
    order: str, element: str, channels: int, schedule: type
) -> None:
    first = order.startswith("G")
    axes = "(G=32 C), H, W" if first else "H, W, (G=32 C)"
    results = axes.replace(" C", " K").replace("H, W", "P=H, Q=W")
    weights = "(G=32 K), C, R=3, S=3" if first else "(G=32 K), R=3, S=3, C"
    text = f"""kernel k(x: {element}[N, {axes}], w: {element}[{weights}]) -> {element}[N, {results}] {{
  return dot[R, S, C](tf32(x[H = P + R - 1, W = Q + S - 1]), tf32(w))
}}"""
    text = text if element == "f32" else text.replace("tf32", "")
    chosen = _conv(plan(text, {"N": 32, "H": 28, "W": 28, "C": channels, "K": channels}, "sm90a"))
    assert isinstance(chosen.schedule, schedule)


@pytest.mark.parametrize(("channels", "groups"), [(8, 32), (16, 32), (64, 4)])
def test_gradients_of_weights_of_small_groups_share_tiles(channels: int, groups: int) -> None:
    text = """kernel k(x: bf16[N, H, W, (G=GROUPS C)], y: bf16[N, P=H, Q=W, (G=GROUPS K)]) -> bf16[(G=GROUPS K), R=3, S=3, C] {
  return dot[N, P, Q](x[H = P + R - 1, W = Q + S - 1], y)
}"""
    chosen = _conv(
        plan(
            text.replace("GROUPS", str(groups)),
            {"N": 32, "H": 28, "W": 28, "C": channels, "K": channels},
            "sm90a",
        )
    )
    assert isinstance(chosen.schedule, WgradSchedule) and chosen.schedule.joined == (channels < 64)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_copies_are_padded_to_whole_rows() -> None:
    text = """kernel k(x: bf16[N, C, H, W], w: bf16[K, C, R=3, S=3]) -> bf16[N, K, P=H, Q=W] {
  return dot[R, S, C](x[H = P + R - 1, W = Q + S - 1], w)
}"""
    fewer = {"N": 1, "H": 8, "W": 8, "C": 18, "K": 20}
    assert isinstance(_conv(plan(text, fewer, "sm90a")).schedule, Sm80Schedule)
    sizes = {**fewer, "C": 26}
    chosen = _conv(plan(text, sizes, "sm90a"))
    assert isinstance(chosen.schedule, Im2colSchedule) and chosen.schedule.part == chosen.problem.a.pad == 32
    assert judge(text, sizes, arch="sm90a") == []


def test_threads_of_depthwise_layers_have_fewer_results_where_these_are_few() -> None:
    text = """kernel k(x: bf16[N, H, W, C], w: bf16[C, R=T, S=T]) -> bf16[N, P=H, Q=W, C] {
  return dot[R, S](x[H = P + R - T//2, W = Q + S - T//2], w)
}"""
    for taps, sizes, width, rows in (
        (5, {"N": 8, "H": 14, "W": 14, "C": 240}, 4, 8),
        (7, {"N": 8, "H": 14, "W": 14, "C": 256}, 4, 8),
        (3, {"N": 8, "H": 14, "W": 14, "C": 512}, 2, 7),
        (3, {"N": 1, "H": 14, "W": 14, "C": 512}, 4, 2),
        (3, {"N": 8, "H": 24, "W": 24, "C": 192}, 4, 4),
    ):
        written = text.replace("T//2", str(taps // 2)).replace("=T", f"={taps}")
        schedule = _conv(plan(written, sizes, "sm90a")).schedule
        assert isinstance(schedule, DirectSchedule) and (schedule.width, schedule.rows) == (width, rows)


def test_tensors_that_are_not_aligned_are_read_by_fewer() -> None:
    checked = frontend.read_text(PROGRAMS["f16 strided"][0])
    program = frontend.kernel(checked)
    sizes = complete(program, {"N": 2, "H": 9, "W": 7, "C": 64, "K": 64})
    planned = frontend.plan_kernel(checked, program, sizes, "sm90a", None, (False, False, True)).planned
    convolution_plan = _conv(planned)
    assert convolution_plan.problem.a.pack is not None and convolution_plan.problem.b.pack is not None
    assert any("workspace" in note.reason for note in planned.notes)  # type: ignore[union-attr]


def test_every_chosen_tile_is_legal() -> None:
    draw = random.Random(7)
    for _ in range(150):
        sizes = {"N": draw.choice((1, 3, 32)), "H": draw.randrange(3, 70), "W": draw.randrange(3, 70)}
        sizes |= {"C": 8 * draw.randrange(1, 70), "K": draw.randrange(1, 600)}
        convolution_plan = _conv(plan(PROGRAMS["bf16 fused"][0], sizes, "sm90a"))
        if isinstance(convolution_plan.schedule, Im2colSchedule):
            assert conv_sm90.check(convolution_plan.problem, convolution_plan.schedule) == ""
            shared = shared_of(convolution_plan)
            arch = ARCHES["sm90a"]
            assert shared <= arch.shared_memory
            assert (
                convolution_plan.schedule.blocks * (shared + arch.shared_memory_reserved)
                <= arch.shared_memory_sm
            )


# --- what is computed ---------------------------------------------------------------

QUICK = ("depthwise",)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in PROGRAMS]
)
def test_values_on_the_host(name: str) -> None:
    assert judge(*PROGRAMS[name]) == []


@pytest.mark.parametrize(
    "name",
    [
        "f16 strided",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in (
                "bf16 fused",
                "tf32",
                "data gradient",
                "f16 channels first",
                "one dimension",
                "reduced",
                "grouped, channels first",
                "grouped, transposed, three dimensions",
                "transposed by three",
            )
        ),
    ],
)
def test_values_of_hopper_s_kernel_on_the_host(name: str) -> None:
    assert isinstance(_conv(plan(*PROGRAMS[name], "sm90a")).schedule, Im2colSchedule)
    assert judge(*PROGRAMS[name], arch="sm90a") == []


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("weight gradient", marks=pytest.mark.slow),
        pytest.param("weight gradient odd", marks=pytest.mark.slow),
        pytest.param("weight gradient grouped", marks=pytest.mark.slow),
        pytest.param("weight gradient exchanged", marks=pytest.mark.slow),
    ],
)
def test_values_of_a_gradient_in_parts_on_the_host(name: str) -> None:
    # Of nine parts, four threads share what is added.
    def in_parts(planned: Planned) -> Planned:
        return replace(planned, launch=(0, 4, 9))

    text, sizes = PROGRAMS[name]
    assert isinstance(_conv(plan(text, sizes, "sm90a")).schedule, WgradSchedule)
    assert judge(text, {**sizes, "N": 16}, arch="sm90a", change=in_parts) == []
    assert judge(text, sizes, arch="sm90a") == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["f16 strided", "data gradient"])
def test_values_of_three_warp_groups_on_the_host(name: str) -> None:
    def wide(planned: Planned) -> Planned:
        convolution_plan = _conv(planned)
        assert isinstance(convolution_plan.schedule, Im2colSchedule)
        tile = (192, 256, convolution_plan.schedule.tile[2])
        schedule = replace(convolution_plan.schedule, tile=tile, groups=3, stages=3, blocks=1)
        return replace(planned, plan=replace(convolution_plan, schedule=schedule))

    assert judge(*PROGRAMS[name], arch="sm90a", change=wide) == []


@pytest.mark.parametrize("arch", ["sm80", "sm90a"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_name_of_a_program_is_in_the_code(name: str, arch: str) -> None:
    text, sizes = PROGRAMS[name]
    renamed = text.replace("kernel k(", "kernel peculiar_name(")
    source = emit(plan(renamed, sizes, arch).plan, "")
    assert "peculiar" not in source.code and source.text.count(f"int32_t {source.entry}(") == 1


@pytest.mark.parametrize(("columns", "tile"), [(72, 80), (48, 48), (128, 128)])
def test_few_columns_that_are_no_whole_64_have_a_tile_of_their_own(columns: int, tile: int) -> None:
    text = """kernel k(x: f32[N, H, W, C], w: f32[K, R=3, S=3, C]) -> f32[N, P=H, Q=W, K] {
  return dot[R, S, C](tf32(x[H = P + R - 1, W = Q + S - 1]), tf32(w))
}"""
    chosen = _conv(plan(text, {"N": 64, "H": 14, "W": 14, "C": 72, "K": columns}, "sm90a"))
    assert isinstance(chosen.schedule, Im2colSchedule) and chosen.schedule.tile[1] == tile


@pytest.mark.parametrize(("images", "rows"), [(1, 2), (64, 8)])
def test_depthwise_threads_have_fewer_results_where_these_are_few(images: int, rows: int) -> None:
    text = """kernel k(x: f32[N, C, H, W], w: f32[C, R=3, S=3]) -> f32[N, C, P=H, Q=W] {
  return dot[R, S](tf32(x[H = P + R - 1, W = Q + S - 1]), tf32(w))
}"""
    chosen = _conv(plan(text, {"N": images, "C": 232, "H": 7, "W": 7}, "sm90a"))
    assert isinstance(chosen.schedule, DirectSchedule) and chosen.schedule.rows == rows

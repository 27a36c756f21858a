"""Attention: recognised from the typed graph, refused with its own words, planned by its numbers."""

from __future__ import annotations

import pytest
import torch

from tests.programs_attention import PROGRAMS, text
from ucutlass import frontend
from ucutlass.backend import source_of
from ucutlass.diagnostics import ProgramError
from ucutlass.ir.extents import evaluate
from ucutlass.kernels.attention.match import AttentionPattern
from ucutlass.kernels.attention.match_score import worth
from ucutlass.kernels.attention.plan import AttentionPlan, AttentionSchedule, Packed
from ucutlass.kernels.attention.problem import KeyWindow
from ucutlass.kernels.planned import Planned
from ucutlass.reference.expect import expect
from ucutlass.shapes import complete, free_dims

FAR = 2**40
SIZES = {"B": 2, "H": 3, "G": 2, "L": 197, "S": 333, "D": 64, "E": 128, "O": 9}


def planned(program: str, **sizes: int) -> Planned:
    checked = frontend.read_text(program)
    kernel = frontend.kernel(checked)
    extents = complete(kernel, {d: n for d, n in (SIZES | sizes).items() if d in free_dims(kernel)})
    made = frontend.plan_kernel(checked, kernel, extents, "sm90a").planned
    assert isinstance(made, Planned) and isinstance(made.plan, AttentionPlan)
    return made


def refused(program: str, **sizes: int) -> tuple[str, str]:
    with pytest.raises(ProgramError) as caught:
        planned(program, **sizes)
    (found,) = caught.value.diagnostics
    return found.code, found.message


@pytest.mark.parametrize("compute_type", ["f16", "bf16"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_is_attention_and_is_emitted(name: str, compute_type: str) -> None:
    checked = frontend.read_text(text(name, compute_type))
    kernel = frontend.kernel(checked)
    assert isinstance(frontend.pattern(checked, kernel), AttentionPattern)
    made = planned(text(name, compute_type))
    assert "wgmma.mma_async" in source_of(checked, kernel, made).text


# --- what the kernel knows of a score ------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "above", "below"),
    [
        ("plain", FAR, -FAR),
        ("causal", 0, -FAR),
        ("causal at the end", 333 - 197, -FAR),
        ("window", 0, -99),
        ("backward window", FAR, -2),
        ("causal with bias", 0, -FAR),
    ],
)
def test_windows_of_keys_are_taken_off_the_score(name: str, above: int, below: int) -> None:
    made = planned(text(name, "bf16"))
    assert isinstance(made.plan, AttentionPlan)
    assert KeyWindow.of(made.plan.problem, made.sizes) == KeyWindow(above, below)


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("plain", 64**-0.5),
        ("unscaled", 1.0),
        ("grouped", 64**-0.5),
        ("negative", None),
        ("capped", None),
        ("bias", None),
    ],
)
def test_a_positive_factor_is_folded(name: str, factor: float | None) -> None:
    made = planned(text(name, "bf16"))
    assert isinstance(made.plan, AttentionPlan)
    found, named = made.plan.problem.factor, {str(i): n for i, n in enumerate(made.sizes)}
    assert (None if found is None else worth(found, named)) == (
        None if factor is None else pytest.approx(factor)
    )


def test_query_heads_that_share_keys_become_rows_where_no_mask_tells_them_apart() -> None:
    made = planned(text("grouped", "bf16"), L=1, G=8)
    assert isinstance(made.plan, AttentionPlan)
    kernel = frontend.kernel(frontend.read_text(text("grouped", "bf16")))
    assert [list(kernel.dims)[i] for i in made.plan.problem.scores.m] == ["G", "L"]


def test_one_build_serves_other_lengths() -> None:
    one, other = (planned(text("causal", "bf16"), L=n, S=n, B=b) for n, b in ((2048, 40), (4096, 10)))
    assert one.plan == other.plan


@pytest.mark.parametrize(
    ("head", "groups", "keys"),
    [(32, 3, 128), (64, 3, 128), (96, 2, 128), (128, 2, 128), (192, 2, 112), (256, 2, 64)],
)
def test_tiles_by_the_head(head: int, groups: int, keys: int) -> None:
    made = planned(text("causal", "bf16"), D=head, L=2048)
    assert made.plan.schedule == AttentionSchedule(groups, keys, 2, across=head <= 64)


# --- packed sequences ------------------------------------------------------------------------------


def packed(name: str) -> Packed:
    made = planned(text(name, "bf16"))
    assert isinstance(made.plan, AttentionPlan) and made.plan.problem.packed is not None
    assert made.plan.problem.factor is not None or "bias" in name
    return made.plan.problem.packed


@pytest.mark.parametrize(
    ("name", "above", "below"),
    [
        ("packed", [], []),
        ("packed causal", [], []),
        ("packed causal from the start", [(0, {("k", 0, 1), ("q", 0, -1)})], []),
        ("packed causal at the end", [(0, {("k", 1, 1), ("q", 1, -1)})], []),
        ("packed window", [(3, {("k", 0, 1), ("q", 0, -1)})], [(-89, {("k", 0, 1), ("q", 0, -1)})]),
    ],
)
def test_masks_that_need_offsets_are_taken_off(name: str, above: object, below: object) -> None:
    found = packed(name)
    for limits, expected in ((found.above, above), (found.below, below)):
        assert [(evaluate(one.constant, {}), set(one.starts)) for one in limits] == expected
    assert (found.q.pointer, found.k.pointer) == ((3, 3) if name == "packed causal" else (3, 4))


def test_a_causal_mask_over_tokens_of_one_axis_needs_no_offsets() -> None:
    made = planned(text("packed causal", "bf16"))
    assert isinstance(made.plan, AttentionPlan)
    assert KeyWindow.of(made.plan.problem, made.sizes) == KeyWindow(0, -FAR)


def test_segments_that_tell_no_sequences_apart_are_refused() -> None:
    program = text("packed", "bf16").replace("segment(S, k_starts)", "index(S)")
    assert refused(program)[0] == "UC0304"
    program = text("packed", "bf16").replace("segment(L, q_starts) ==", "segment(L, q_starts) <=")
    assert refused(program)[0] == "UC0304"
    program = text("packed", "bf16").replace("where(own, ", "where(not own, ")
    assert refused(program)[0] == "UC0304"


def test_offsets_of_no_sequence_are_refused() -> None:
    assert refused(text("packed", "bf16"), O=1)[0] == "UC0468"
    assert refused(text("packed causal", "bf16"), E=1)[0] == "UC0468"


# --- few queries -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "parts", "rows", "mode"),
    [
        ({"B": 1, "H": 8, "G": 8, "L": 1, "S": 8192}, 16, ["G", "L"], "m"),
        ({"B": 1, "H": 8, "G": 8, "L": 64, "S": 8192}, 4, ["G", "L"], "m"),
        ({"B": 1, "H": 8, "G": 8, "L": 65, "S": 300}, 1, ["L"], None),
        ({"B": 32, "H": 8, "G": 8, "L": 1, "S": 8192}, 1, ["G", "L"], "m"),
    ],
)
def test_few_queries_share_a_tile_and_split_their_keys(
    sizes: dict[str, int], parts: int, rows: list[str], mode: str | None
) -> None:
    made = planned(text("grouped causal at the end", "bf16"), **sizes)
    assert isinstance(made.plan, AttentionPlan)
    kernel = frontend.kernel(frontend.read_text(text("grouped causal at the end", "bf16")))
    problem = made.plan.problem
    assert [list(kernel.dims)[i] for i in problem.scores.m] == rows
    assert (problem.query_position and problem.query_position.mode) == mode
    assert made.launch[1] == parts and made.plan.schedule.split is (parts > 1)


def test_a_group_that_lies_apart_becomes_rows_where_there_is_one_query() -> None:
    made = planned(text("rows first", "bf16"), B=1, H=2, G=16, L=1, S=300)
    assert isinstance(made.plan, AttentionPlan)
    kernel = frontend.kernel(frontend.read_text(text("rows first", "bf16")))
    problem = made.plan.problem
    assert [list(kernel.dims)[i] for i in problem.scores.m] == ["G"]
    assert problem.query_position is not None and problem.query_position.mode == "batch"


# --- what is refused -----------------------------------------------------------------------------


def test_a_head_that_tma_cannot_address() -> None:
    code, message = refused(text("plain", "bf16"), D=100)
    assert code == "UC0467" and "8 bytes" in message


def test_a_head_that_does_not_fit_registers() -> None:
    assert refused(text("plain", "bf16"), D=264)[0] == "UC0466"


def test_a_head_that_is_not_innermost() -> None:
    program = text("plain", "bf16").replace("k: bf16[B, H, S, D]", "k: bf16[B, H, D, S]")
    assert refused(program)[0] == "UC0322"
    program = text("plain", "bf16").replace("v: bf16[B, H, S, D]", "v: bf16[B, H, D, S]")
    assert refused(program)[0] == "UC0322"


def test_compute_types_and_names() -> None:
    assert refused(text("plain", "bf16").replace("bf16", "e4m3"))[0] == "UC0320"
    both = (
        text("plain", "bf16")
        .replace("softmax[S]", "softmax[S, L]")
        .replace("-> bf16[B, H, L, D]", "-> bf16[B, H, L, D]")
    )
    assert refused(both)[0] == "UC0321"


def test_work_on_the_weights_and_reductions_of_the_score() -> None:
    worked = text("plain", "bf16").replace("bf16(p)", "bf16(p * 2.0)")
    assert refused(worked)[0] == "UC0300"
    reduced = text("plain", "bf16").replace("softmax[S](s)", "softmax[S](s - mean[S](s))")
    assert refused(reduced)[0] == "UC0303"


def test_fields_of_other_kernels_are_refused() -> None:
    program = text("plain", "bf16").replace("\n}", "\n  schedule sm90a { cluster 2x1 }\n}")
    assert refused(program)[0] == "UC0439"


def test_other_architectures_are_told() -> None:
    checked = frontend.read_text(text("plain", "bf16"))
    kernel = frontend.kernel(checked)
    with pytest.raises(ProgramError) as caught:
        frontend.plan_kernel(checked, kernel, complete(kernel, {d: SIZES[d] for d in kernel.dims}), "sm80")
    assert caught.value.diagnostics[0].code == "UC0465"


# --- what an honest kernel may give ----------------------------------------------------------------


def test_weights_may_be_rounded_before_they_are_divided() -> None:
    """As the kernel does it, in float64 but for the rounding of the exponentials."""
    torch.manual_seed(0)
    program = frontend.kernel(frontend.read_text(text("one sequence", "bf16")))
    q, k, v = (torch.randn(n, 64).bfloat16() for n in (40, 70, 70))
    (expected,) = expect(program, [q, k, v])
    s = (q.double() @ k.double().T) * 0.125
    e = (s - s.amax(-1, keepdim=True)).exp()
    made = (e.bfloat16().double() @ v.double()) / e.sum(-1, keepdim=True)
    error = (made.bfloat16().double() - expected.reference).abs()
    assert bool((error <= expected.bound).all()) and bool((error > 0).any())
    assert float((expected.bound / v.double().abs().amax()).max()) < 0.02


def test_what_a_masked_key_holds_does_not_matter() -> None:
    program = frontend.kernel(frontend.read_text(text("causal", "bf16")))
    q, k, v = (torch.randn(1, 1, 4, 8).bfloat16() for _ in range(3))
    v[0, 0, 2, 5] = torch.nan
    (expected,) = expect(program, [q, k, v])
    assert expected.free is not None
    assert expected.free[0, 0, :, 5].tolist() == [True, True, False, False]
    assert not bool(expected.free[..., :5].any())

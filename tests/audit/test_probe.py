"""The experiments with the reference: what depends on what, at reduced extents."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.audit.bundles import program
from ucutlass import frontend
from ucutlass.agent.integrity.gather import probe_of
from ucutlass.handoff import program_payload
from ucutlass.tasks.audit import BASES, CUTS, DRAWS, VOLUME, ReducedSizesError, probe, reduced_sizes


def probed(body: str, signature: str = "x: f32[M, N]) -> f32[M, N]", **sizes: int) -> dict[str, Any]:
    text = f"kernel k({signature} {{\n{body}\n}}\n"
    return probe(program_payload(frontend.read_text(text)), "k", sizes or {"M": 64, "N": 64}, 0)


def only(found: dict[str, Any]) -> tuple[bool, bool, bool]:
    (result,) = found["results"]
    return result["constant"], result["fixed"], result["flat"]


@pytest.mark.parametrize(
    ("body", "signature", "wanted"),
    [
        ("return x - x", "x: f32[M, N]) -> f32[M, N]", (True, True, True)),
        ("return mean[N](softmax[N](x))", "x: f32[M, N]) -> f32[M]", (True, True, True)),
        (
            "return where(index(N) <= index(M), 1.0, 0.0) + 0.0 * x",
            "x: f32[M, N]) -> f32[M, N]",
            (False, True, False),
        ),
        ("return 1.0 + 1e-4 * tanh(x)", "x: f32[M, N]) -> f32[M, N]", (False, False, True)),
        ("return relu(x)", "x: f32[M, N]) -> f32[M, N]", (False, False, False)),
        ("return sum[M, N](x)", "x: f32[M, N]) -> f32[]", (False, False, False)),
    ],
)
def test_what_results_depend_on(body: str, signature: str, wanted: tuple[bool, bool, bool]) -> None:
    assert only(probed(body, signature)) == wanted


def test_an_input_that_cancels_is_found() -> None:
    values = probed("return softmax[N](x + b)", "x: f32[M, N], b: f32[M]) -> f32[M, N]")
    assert [(i["name"], i["moves"]) for i in values["inputs"]] == [("x", True), ("b", False)]
    shares = probe_of(values).inputs
    assert shares[0].share == pytest.approx(64 / 65) and shares[1].share == pytest.approx(1 / 65)


@pytest.mark.parametrize("body", ["return where(p, x, 0.0)", "return where(q > 1.0, x, 0.0)"])
def test_an_input_behind_a_condition_of_one_element_is_seen(body: str) -> None:
    values = probed(body, "x: f32[M, N], p: bool[], q: f32[]) -> f32[M, N]")
    assert values["inputs"][0]["moves"]


def test_an_even_function_still_depends_on_its_input() -> None:
    assert probed("return abs(x)")["inputs"][0]["moves"]


def test_a_statistic_that_only_the_spread_moves_depends_on_its_input() -> None:
    """Other numbers of the same spread leave the sum of squares within the rounding of what is added."""
    values = probed("return sum[N](x * x) + 4e9", "x: f32[N]) -> f32[]", N=1024)
    assert only(values)[:2] == (False, False) and values["inputs"][0]["moves"]


def test_an_input_of_which_a_logarithm_is_taken_is_positive() -> None:
    """One negative number would leave the sum without a value, whatever the others are."""
    values = probed("return sum[N](x * log(x))", "x: f32[N]) -> f32[]", N=1024)
    assert only(values) == (False, False, False) and values["inputs"][0]["moves"]


def test_what_moves_is_seen_where_bounds_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the end of a deep network; bounds of other numbers are not asked for, which say as little."""
    from ucutlass import reference

    asked: list[int] = []
    plain = reference.expect

    def wide(*arguments: Any) -> Any:
        asked.append(1)
        return [replace(e, bound=torch.full_like(e.bound, torch.inf)) for e in plain(*arguments)]

    monkeypatch.setattr(reference, "expect", wide)
    signature = "x: f32[M, K], w: f32[N, K], b: f32[N]) -> f32[M, N]"
    text = f"kernel k({signature} {{ return dot[K](x, w) + 0.0 * b }}"
    answer = probe(program_payload(frontend.read_text(text)), "k", {"M": 64, "N": 64, "K": 64}, 0)
    assert [i["moves"] for i in answer["inputs"]] == [True, True, False]
    assert len(asked) == len(DRAWS) + BASES


@pytest.mark.parametrize("elem", ["e4m3", "e5m2", "s8", "f16", "bf16"])
def test_every_element_can_be_perturbed(elem: str) -> None:
    out = "i32" if elem == "s8" else "f32"
    signature = f"x: {elem}[M, K], w: {elem}[N, K]) -> {out}[M, N]"
    values = probed("return dot[K](x, w)", signature, M=64, N=64, K=64)
    assert all(i["moves"] for i in values["inputs"]) and only(values) == (False, False, False)


def test_coordinates_are_drawn_anew_and_never_negated() -> None:
    values = probed("return z[V = ids]", "z: f32[V, D], ids: i64[T]) -> f32[T, D]", V=64, D=8, T=32)
    assert [i["moves"] for i in values["inputs"]] == [True, True]


def test_several_results_are_told_apart() -> None:
    values = probed("return y = x, z = x - x", "x: f32[M, N]) -> (y: f32[M, N], z: f32[M, N])")
    assert [(r["name"], r["constant"]) for r in values["results"]] == [("y", False), ("z", True)]


# --- extents -----------------------------------------------------------------------------


def test_extents_are_cut() -> None:
    kernel = program("kernel k(x: f32[A, B, C, D, E]) -> f32[A, B, C, D, E] { return relu(x) }")
    values = reduced_sizes(kernel, dict.fromkeys("ABCDE", 4096))
    assert 1 <= len(values) <= len(CUTS)
    for cut, limit in zip(values, CUTS, strict=False):
        assert all(1 <= size <= limit for size in cut.values())
        assert math.prod(cut.values()) <= VOLUME
    assert reduced_sizes(kernel, dict.fromkeys("ABCDE", 2)) == [dict.fromkeys("ABCDE", 2)]


def test_extents_that_a_requirement_refuses_are_larger() -> None:
    text = "kernel k(x: f32[M]) -> f32[M] {\n  require size(M) > 100\n  return relu(x)\n}\n"
    assert reduced_sizes(program(text), {"M": 4096}) == [{"M": 256}, {"M": 1024}]
    hopeless = text.replace("> 100", "> 4000")
    with pytest.raises(ReducedSizesError, match="up to 1024"):
        reduced_sizes(program(hopeless), {"M": 4096})


def test_a_mask_that_leaves_nothing_of_a_small_tensor_is_no_flaw() -> None:
    values = probed("return where(index(M) >= 200, x, 0.0)", M=4096, N=4)
    assert only(values) == (False, False, False) and values["inputs"][0]["moves"]
    assert values["sizes"]["M"] == 256


def test_bounds_are_asked_for_only_where_it_is_not_clear_what_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    from ucutlass import reference

    asked: list[int] = []
    plain = reference.expect

    def counted(*arguments: Any) -> Any:
        asked.append(1)
        return plain(*arguments)

    monkeypatch.setattr(reference, "expect", counted)
    text = "kernel k(x: f32[M, K], w: f32[N, K], b: f32[N]) -> f32[M, N] {{ return dot[K](x, w) + {bias} }}"
    counts = []
    for bias in ("b", "b * 1e-9"):
        asked.clear()
        answer = probe(
            program_payload(frontend.read_text(text.format(bias=bias))), "k", {"M": 64, "N": 64, "K": 64}, 0
        )
        assert [i["moves"] for i in answer["inputs"]] == [True, True, bias == "b"]
        counts.append(len(asked))
    # The draws and the first base; the other bases, with all changes of the one that moves nothing beyond rounding.
    assert counts == [len(DRAWS) + 1, len(DRAWS) + BASES * 4]

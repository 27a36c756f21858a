"""Explain and advice say the same of every family: the same rows, the same facts, edits that are legal."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from ucutlass import frontend
from ucutlass.advice import BuildFacts, Counters, KernelFacts, TimingFacts, advise, facts_of, finding, select
from ucutlass.advice.rules import BY_NUMBER, NEAR, RULES
from ucutlass.explanation import explain, rows, to_json
from ucutlass.ir.schedule import show
from ucutlass.kernels.families import FAMILIES, family_of_plan
from ucutlass.shapes import complete
from ucutlass.sol.bounds import bounds

PROGRAMS = {
    "gemm": (
        "kernel k(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return dot[K](x, w) SCHEDULE }",
        {"M": 4096, "N": 4096, "K": 1024},
    ),
    "grouped_gemm": (
        "kernel k(x: bf16[T, D], w: bf16[F, D], u: bf16[F, D]) -> bf16[T, F] "
        "{ return silu(dot[D](x, w)) * dot[D](x, u) SCHEDULE }",
        {"T": 4096, "D": 1024, "F": 4096},
    ),
    "convolution": (
        "kernel k(x: f16[N, H, W, C], w: f16[K, R=3, S=3, C]) -> f16[N, P=H, Q=W, K] "
        "{ return dot[R, S, C](x[H = P + R - 1, W = Q + S - 1], w) SCHEDULE }",
        {"N": 32, "H": 56, "W": 56, "C": 128, "K": 256},
    ),
    "attention": (
        "kernel k(q: bf16[H, L, D=64], k: bf16[H, S, D], v: bf16[H, S, D]) -> bf16[H, L, D] "
        "{ return dot[S](bf16(softmax[S](dot[D](q, k))), v) SCHEDULE }",
        {"H": 64, "L": 4096, "S": 4096},
    ),
    "reduction": (
        "kernel k(x: bf16[T, D]) -> bf16[T, D] { return softmax[D](x) SCHEDULE }",
        {"T": 16384, "D": 8192},
    ),
}


@cache
def facts(name: str, schedule: str = "") -> KernelFacts:
    text, sizes = PROGRAMS[name]
    block = f"schedule sm90a {{ {schedule} }}" if schedule else ""
    checked = frontend.read_text(text.replace("SCHEDULE", block))
    kernel = frontend.kernel(checked)
    extents = complete(kernel, sizes)
    return facts_of(checked, kernel, frontend.plan_kernel(checked, kernel, extents, "sm90a").planned)


@cache
def table(name: str) -> tuple[tuple[str, str], ...]:
    kernel = frontend.kernel(frontend.read_text(PROGRAMS[name][0].replace("SCHEDULE", "")))
    planned = facts(name).planned
    extents = dict(zip(kernel.dims, planned.sizes, strict=True))
    explanation = explain(planned, bounds(kernel, extents, planned.device, planned=planned))
    assert to_json(explanation).keys() >= {"family", "tiles", "waves", "memory", "steps", "bound", "notes"}
    return tuple(rows(explanation)[: -len(planned.notes) or None])


def test_there_is_a_program_of_every_family() -> None:
    assert {family.name for family in FAMILIES} == set(PROGRAMS)
    assert all(family_of_plan(facts(name).planned.plan).name == name for name in PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_explain_has_the_same_rows(name: str) -> None:
    labels = [label for label, _ in table(name)]
    assert labels == [label for label, _ in table("gemm")]
    assert all(words for _, words in table(name))


@pytest.mark.parametrize("name", PROGRAMS)
def test_advice_has_the_same_shape(name: str) -> None:
    advice = advise(facts(name))
    row = select.to_json(advice)
    assert row.keys() == select.to_json(advise(facts("gemm"))).keys()
    assert advice.classified.reason and advice.tiers == ("analytic",)
    assert len(advice.findings) <= 3


FULL = Counters(
    tensor=0.3,
    fma=0.2,
    xu=0.7,
    dram=0.3,
    l2=0.7,
    dram_bytes=1e12,
    shared_conflicts=3.0,
    shared_wavefronts=10.0,
    stall_barrier=2.0,
    stall_long_scoreboard=2.0,
    stall_short_scoreboard=2.0,
    stall_total=8.0,
    local_accesses=9.0,
    sm_cycles_most=200.0,
    sm_cycles_mean=100.0,
)


@pytest.mark.parametrize("tier", ["analytic", "build", "timing", "counters"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_rule_reads_every_family_and_its_edits_are_legal(name: str, tier: str) -> None:
    f = facts(name)
    match tier:
        case "build":
            f = replace(f, build=BuildFacts(spill_bytes=64, serialised=("C7510",), tensor_instructions=0))
        case "timing":
            f = replace(f, timing=TimingFacts(3 * f.seconds, wall_seconds=9 * f.seconds, clock=1e9))
        case "counters":
            f = replace(f, counters=FULL)
    for rule in (*RULES, NEAR):
        verdict = finding(rule, f)
        for edit in verdict.edits if verdict else ():
            planned = f.plan(edit.request)
            assert planned is not None and planned.request == edit.request, (rule.name, edit.schedule)
            assert edit.changes and 0 < edit.expected.low <= edit.expected.high
            assert show(facts(name, edit.schedule).planned.request) == edit.schedule


SPEAK = (
    ("grouped_gemm", 7, "tile 128x128x64 warps cooperative cluster 1x1 stages 2"),
    ("convolution", 7, "tile 128x128x64 stages 2 blocks 1"),
    ("convolution", 16, "warps multistage"),
    ("reduction", 19, "keep reread"),
    ("reduction", 30, "keep reread"),
    ("attention", 30, ""),
)


@pytest.mark.parametrize(("name", "number", "schedule"), SPEAK)
def test_rules_speak_of_other_families(name: str, number: int, schedule: str) -> None:
    verdict = finding(BY_NUMBER[number], facts(name, schedule))
    assert verdict is not None and verdict.evidence and (verdict.edits or verdict.act)


@pytest.mark.parametrize("name", PROGRAMS)
def test_spills_propose_fewer_registers(name: str) -> None:
    f = replace(facts(name), build=BuildFacts(spill_bytes=64))
    verdict = finding(BY_NUMBER[3], f)
    assert verdict is not None and verdict.tier == "build"
    for edit in verdict.edits:
        planned = f.plan(edit.request)
        assert planned is not None

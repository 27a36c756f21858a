"""Each rule speaks where it should, with numbers, and is silent where it should be."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from advice_cases import FP8, GELU, PLAIN, RELU, RESIDUAL, facts

from ucutlass.advice import BuildFacts, Counters, Finding, KernelFacts, Rival, TimingFacts, finding
from ucutlass.advice.rules import BY_NUMBER, RULES
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels.gemm.rules import BY_CODE

GOOD = "warps cooperative tile 128x256x64 cluster 2x1"


def said(number: int, f: KernelFacts) -> Finding | None:
    return finding(BY_NUMBER[number], f)


def spoken(number: int, f: KernelFacts) -> Finding:
    found = said(number, f)
    assert found is not None, f"rule {number} is silent"
    assert found.evidence and found.diagnosis and (found.edits or found.act)
    return found


# --- the table -------------------------------------------------------------------


def test_all_29_are_there_once() -> None:
    assert [r.number for r in RULES] == list(range(1, 30))
    assert all(r.source and r.classes and r.tiers for r in RULES)
    assert len({r.name for r in RULES}) == 29


def test_legality_is_not_written_twice() -> None:
    by_rules = {r.number for r in RULES if r.check is None}
    assert by_rules == {1, 14, 15, 27}
    for rule in RULES:
        assert (rule.check is None) == bool(rule.legality)
        assert set(rule.legality) <= set(BY_CODE)


# --- analytic --------------------------------------------------------------------

SPEAK = (
    (4, PLAIN, (512, 4096, 4096), "warps cooperative tile 256x128x64"),
    (5, PLAIN, (4096, 4096, 4096), "warps cooperative tile 128x256x64 cluster 4x2"),
    (6, PLAIN, (8192, 8192, 8192), "warps pingpong tile 64x256x64 cluster 1x1"),
    (7, PLAIN, (4096, 4096, 4096), GOOD + " stages 2"),
    (8, PLAIN, (8192, 8192, 4096), "warps cooperative tile 128x256x128 cluster 2x1"),
    (9, PLAIN, (4096, 4096, 4096), GOOD + " split_k 16"),
    (10, RELU, (8192, 8192, 256), "warps cooperative tile 128x128x64 cluster 1x1"),
    (11, PLAIN, (4096, 4096, 4096), "warps pingpong tile 64x64x64"),
    (12, PLAIN, (1, 14336, 4096), "warps pingpong tile 64x256x64 swap no"),
    (13, PLAIN, (16384, 2048, 4096), GOOD + " raster along_m"),
    (16, PLAIN, (4096, 4096, 4096), "warps multistage"),
    (20, PLAIN, (128, 4096, 4096), "warps cooperative tile 128x256x64 split_k 1"),
    (21, PLAIN, (64, 64, 64), ""),
    (22, PLAIN, (16, 4096, 4096), "warps cooperative tile 128x128x64 swap no split_k 1"),
    (23, GELU, (8192, 8192, 256), "warps cooperative tile 128x128x64 cluster 1x1"),
    (24, RESIDUAL, (4096, 4097, 512), ""),
)


@pytest.mark.parametrize(("number", "text", "shape", "schedule"), SPEAK, ids=[str(s[0]) for s in SPEAK])
def test_speaks_without_a_gpu(number: int, text: str, shape: tuple[int, int, int], schedule: str) -> None:
    found = spoken(number, facts(text, *shape, schedule))
    assert found.tier == "analytic"


QUIET = (4, 5, 6, 8, 9, 11, 12, 13, 16, 20, 21, 22, 24, *range(2, 4), *range(25, 27), 28, 29)


@pytest.mark.parametrize("number", QUIET)
def test_silent_on_a_good_kernel(number: int) -> None:
    assert said(number, facts(PLAIN, 8192, 8192, 8192, GOOD)) is None


def test_evidence_crosses_its_threshold() -> None:
    for number, text, shape, schedule in SPEAK:
        found = said(number, facts(text, *shape, schedule))
        for e in found.evidence if found else ():
            assert e.value < e.threshold if e.relation == "<" else e.value >= e.threshold, (number, e)


def test_fp8_is_said_and_not_tuned() -> None:
    found = spoken(17, facts(FP8, 8192, 8192, 8192))
    assert not found.edits and "algorithm" in found.act


# --- build, timing, counters -----------------------------------------------------


def good(**tiers: object) -> KernelFacts:
    return replace(facts(PLAIN, 4096, 4096, 4096, GOOD), **tiers)  # type: ignore[arg-type]


def test_spills() -> None:
    found = spoken(3, good(build=BuildFacts(spill_bytes=64)))
    assert found.tier == "build" and found.edits[0].request.tile != (128, 256, 64)
    assert said(3, good(build=BuildFacts(spill_bytes=0, local_accesses=0))) is None
    assert spoken(3, good(counters=Counters(local_accesses=9.0))).tier == "counters"


def test_serialised_wgmma() -> None:
    found = spoken(2, good(build=BuildFacts(serialised=("C7510: Potential Performance Loss",))))
    assert "C7510" in found.diagnosis
    assert said(2, good(build=BuildFacts(serialised=()))) is None


def test_no_tensor_instruction() -> None:
    assert spoken(16, good(build=BuildFacts(tensor_instructions=0))).tier == "build"
    assert said(16, good(build=BuildFacts(tensor_instructions=8))) is None
    resting = Counters(tensor=0.01, fma=0.7)
    assert spoken(16, good(counters=resting)).tier == "counters"


def test_the_memory_roof() -> None:
    f = good()
    timing = TimingFacts(seconds=f.bound.bytes / 4.0e12, copy_bandwidth=4.2e12)
    assert "stop" in spoken(18, replace(f, timing=timing)).act
    assert said(18, replace(f, timing=replace(timing, seconds=2 * timing.seconds))) is None
    assert said(18, replace(f, timing=TimingFacts(seconds=1e-4))) is None, "no roof was measured"


def test_the_launch() -> None:
    assert spoken(21, good(timing=TimingFacts(seconds=1e-5, wall_seconds=2e-5))).tier == "timing"
    assert said(21, good(timing=TimingFacts(seconds=1e-5, wall_seconds=1.1e-5))) is None


def test_an_epilogue_that_was_timed() -> None:
    f = facts(RELU, 8192, 8192, 256, "warps cooperative tile 128x128x64 cluster 1x1")
    assert spoken(10, replace(f, timing=TimingFacts(seconds=1e-4, bare_seconds=6e-5))).tier == "timing"
    assert said(10, replace(f, timing=TimingFacts(seconds=1e-4, bare_seconds=9.9e-5))) is None


def test_pingpong_is_not_proposed_where_one_warp_group_would_work_long_alone() -> None:
    """An H200 took 192 us for gelu by pingpong, and 142 us as it was."""
    assert said(10, facts(GELU, 8192, 8192, 256, "warps cooperative tile 128x128x64 cluster 1x1")) is None


def test_power() -> None:
    f = good()
    hot = TimingFacts(seconds=f.bound.compute_seconds / 0.9, clock=1.5e9, start_clock=1.98e9)
    assert "1500 MHz" in spoken(28, replace(f, timing=hot)).diagnosis
    assert said(28, replace(f, timing=replace(hot, clock=1.95e9))) is None
    assert said(28, replace(f, timing=replace(hot, clock=None))) is None


def test_energy_breaks_a_tie() -> None:
    other = PartialSchedule(warps="cooperative", tile=(256, 128, 64), cluster=(2, 1))
    timing = TimingFacts(seconds=1e-4, joules=0.05, rivals=(Rival(other, 1.005e-4, 0.045),))
    found = spoken(29, good(timing=timing))
    assert found.edits[0].request.tile == (256, 128, 64)
    slower = replace(timing, rivals=(Rival(other, 1.02e-4, 0.03),))
    assert said(29, good(timing=slower)) is None
    unknown = replace(timing, rivals=(Rival(other, 1e-4, None),))
    assert said(29, good(timing=unknown)) is None


def test_bank_conflicts_need_to_be_felt() -> None:
    c = Counters(shared_conflicts=3.0, shared_wavefronts=10.0, stall_short_scoreboard=2.0, stall_total=8.0)
    assert spoken(25, good(counters=c)).tier == "counters"
    assert said(25, good(counters=replace(c, stall_short_scoreboard=0.1))) is None
    assert said(25, good(counters=replace(c, stall_short_scoreboard=None))) is None


def test_excess_bytes_and_their_order() -> None:
    f = facts(PLAIN, 8192, 8192, 8192, GOOD + " swizzle 1")
    much = replace(f, counters=Counters(dram_bytes=2.0 * f.bound.bytes))
    assert spoken(13, much).edits[0].request.swizzle == 2
    assert said(13, replace(f, counters=Counters(dram_bytes=1.1 * f.bound.bytes))) is None
    small = facts(PLAIN, 8192, 8192, 8192, "warps pingpong tile 64x64x64")
    assert spoken(19, replace(small, counters=Counters(dram_bytes=3.0 * f.bound.bytes))).tier == "counters"


def test_unequal_sms() -> None:
    f = facts(PLAIN, 512, 4096, 4096, "warps cooperative tile 256x128x64")
    assert spoken(26, replace(f, counters=Counters(sm_cycles_most=200.0, sm_cycles_mean=100.0)))
    assert said(26, replace(f, counters=Counters(sm_cycles_most=110.0, sm_cycles_mean=100.0))) is None


def test_stalls_of_a_full_ring_are_the_producers() -> None:
    waiting = Counters(stall_barrier=2.0, stall_long_scoreboard=2.0, stall_total=8.0, dram=0.3)
    assert said(7, good(counters=waiting)) is None, "no more stages fit: a good kernel's producer waits"
    fewer = facts(PLAIN, 4096, 4096, 4096, GOOD + " stages 3")
    assert spoken(7, replace(fewer, counters=waiting)).tier == "counters"


def test_l2_by_counters() -> None:
    f = facts(PLAIN, 8192, 8192, 8192, "warps pingpong tile 64x256x64 cluster 1x1")
    assert spoken(6, replace(f, counters=Counters(l2=0.8, tensor=0.5))).tier == "counters"
    assert said(6, replace(f, counters=Counters(l2=0.3, tensor=0.5))) is None


# --- unknown is not zero ---------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_empty_tiers_say_nothing_new(rule: object) -> None:
    assert isinstance(rule, type(RULES[0]))
    for _, text, shape, schedule in SPEAK[:8]:
        f = facts(text, *shape, schedule)
        empty = replace(f, build=BuildFacts(), counters=Counters())
        before, after = finding(rule, f), finding(rule, empty)
        assert (before is None) == (after is None)


def test_every_counter_may_be_missing_alone() -> None:
    full = Counters(**dict.fromkeys((c.name for c in fields(Counters)), 0.5))
    f = facts(PLAIN, 4096, 4096, 4096, GOOD + " stages 3")
    for c in fields(Counters):
        for rule in RULES:
            finding(rule, replace(f, counters=replace(full, **{c.name: None})))  # type: ignore[arg-type]

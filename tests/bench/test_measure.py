"""Comparisons on a device of the tests' own: honest kernels get their times, tricks their names."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from bench_fakes import SIDE, Cells, FakeGpu

from ucutlass.runtime.bench import nvml
from ucutlass.runtime.bench.bench_device import DeviceTrace
from ucutlass.runtime.bench.measure import measure
from ucutlass.runtime.bench.outcome import BenchCandidate, Measurement, TimedCandidate, UntimedCandidate
from ucutlass.runtime.bench.protocol import Protocol
from ucutlass.runtime.bench.report import Versus, against_all, to_json
from ucutlass.runtime.bench.spans import windows

FAST = Protocol(warmup=0.0, min_seconds=0.0, block_us=600.0)


def ticking() -> Callable[[], float]:
    """A host clock that moves by a hundredth of a second a look."""
    count = itertools.count()
    return lambda: next(count) / 100


def timed(
    gpu: FakeGpu, cells: Cells, *candidates: BenchCandidate, chosen: Protocol = FAST, **more: Any
) -> Measurement:
    return measure(candidates, cells, gpu, chosen, now=ticking(), **more)


def names(outcome: TimedCandidate | UntimedCandidate) -> set[str]:
    return {f.name for f in outcome.findings}


def test_an_honest_kernel_gets_its_time() -> None:
    gpu, cells = FakeGpu(), Cells()
    (found,) = timed(gpu, cells, cells.honest(gpu, "ours", 25.0)).outcomes
    assert isinstance(found, TimedCandidate)
    assert found.clock == "cupti"
    assert found.span.median == pytest.approx(25.0)
    assert found.events.median == pytest.approx(26.0)
    assert found.kernels == ("ours_kernel",)
    assert found.sm_clock == pytest.approx(1.9e9, rel=1e-3)
    assert found.launches >= 20 and found.launches % cells.sets == 0
    assert found.findings == ()


def test_a_launch_of_many_milliseconds_is_not_repeated_for_the_other_clocks() -> None:
    """Of a kernel of 20 ms a block holds two launches: events and the host's clock see no more, in every second round."""
    chosen = replace(FAST, launches=4, wall_launches=4, block_us=3000.0)
    gpu, cells = FakeGpu(), Cells(sets=1)
    ran: list[int] = []

    def launch(at: int, cell: list[Any]) -> None:
        def effect() -> None:
            ran.append(at)
            cell[0] = cells.held[at]

        gpu.run("slow", 20_000.0, effect)

    measured = timed(gpu, cells, cells.candidate("slow", launch), chosen=chosen)
    (found,) = measured.outcomes
    assert isinstance(found, TimedCandidate) and found.launches == 2
    # A lead-in and two blocks in each round and in the one that is dropped, events twice and the host's clock in half.
    assert len(ran) < (measured.rounds + 2) * 4.5 * found.launches + 10 * found.launches
    assert measured.rounds // 2 <= found.events.count <= measured.rounds // 2 + 1


def test_span_and_total_part_where_a_launch_has_several_kernels() -> None:
    gpu, cells = FakeGpu(gap=2.0), Cells()

    def launch(at: int, cell: list[Any]) -> None:
        gpu.run("product", 20.0)
        gpu.run("epilogue", 10.0, lambda: cell.__setitem__(0, cells.held[at]))

    (found,) = timed(gpu, cells, cells.candidate("two", launch)).outcomes
    assert isinstance(found, TimedCandidate) and found.total is not None
    assert found.span.median == pytest.approx(32.0)
    assert found.total.median == pytest.approx(30.0)
    assert found.kernels == ("product", "epilogue")


def test_faster_slower_and_no_difference() -> None:
    gpu, cells = FakeGpu(jitter=0.01), Cells()
    made = [
        cells.honest(gpu, n, us) for n, us in (("a", 30.0), ("slow", 33.0), ("fast", 27.0), ("same", 30.0))
    ]
    measured = timed(gpu, cells, *made)
    found = {v.baseline: v for v in against_all(measured, FAST)}
    assert {n: v.verdict for n, v in found.items()} == {
        "slow": "faster",
        "fast": "slower",
        "same": "no difference",
    }
    slow = found["slow"].ratio
    assert slow is not None and slow.low < 30 / 33 * 1.01 and slow.high < 1
    assert found["slow"].accepted == measured.rounds >= 10


# --- the SM clock ----------------------------------------------------------------------


def test_the_idle_time_that_opens_a_session_is_in_no_blocks_clock() -> None:
    """A against A on a device whose profiler lets the first launch wait, at the clock of an idle GPU."""
    gpu, cells = FakeGpu(clock=1.66e9, idle_clock=1.98e9, late=400.0, jitter=0.01), Cells()
    measured = timed(gpu, cells, cells.honest(gpu, "a", 25.0), cells.honest(gpu, "itself", 25.0))
    (found,) = against_all(measured, FAST)
    assert (found.verdict, found.accepted) == ("no difference", measured.rounds)
    for outcome in measured.outcomes:
        assert isinstance(outcome, TimedCandidate)
        assert [b.clock for b in outcome.blocks] == pytest.approx([1.66e9] * 2 * measured.rounds, rel=1e-3)
        assert outcome.span.count == 2 * measured.rounds * outcome.launches


def of_unequal_power(reasons: int, **more: Any) -> tuple[Measurement, Versus]:
    """A kernel, and one that draws so much more that it runs at a clock 2 % lower, and a tenth longer."""
    gpu, cells = FakeGpu(clock=1.66e9, clocks={"b_kernel": 0.98 * 1.66e9}, reasons=reasons, **more), Cells()
    # Rounds of which none can be compared go on to the end: 200 of them tell as much as 2,000.
    chosen = replace(FAST, max_seconds=2.0)
    measured = timed(gpu, cells, cells.honest(gpu, "a", 30.0), cells.honest(gpu, "b", 33.0), chosen=chosen)
    (found,) = against_all(measured, chosen)
    return measured, found


def test_at_the_power_cap_kernels_have_clocks_of_their_own() -> None:
    measured, found = of_unequal_power(nvml.POWER_CAP, jitter=0.01)
    assert (found.verdict, found.accepted) == ("faster", measured.rounds)
    said = {f.name: f.message for f in measured.findings}
    assert said["throttled"] == "software power cap"
    assert "a 1660 MHz, b 1627 MHz" in said["power-capped"]


@pytest.mark.parametrize(
    "reasons", [0x000, 0x020, nvml.POWER_CAP | 0x020, nvml.POWER_CAP | 0x040, nvml.POWER_CAP | 0x1000]
)
def test_other_reasons_and_none_at_all_leave_the_clocks_to_agree(reasons: int) -> None:
    measured, found = of_unequal_power(reasons, jitter=0.01)
    assert found.verdict is None and found.accepted == 0 and "SM clocks within 1%" in found.reason
    assert "power-capped" not in {f.name for f in measured.findings}


def test_at_the_power_cap_no_clock_is_blamed_for_a_missing_verdict() -> None:
    _, found = of_unequal_power(nvml.POWER_CAP, jitter=1.5)
    assert found.verdict is None
    assert "(spread within 20%), 10 are needed" in found.reason


def test_one_kernel_alone_has_no_clock_to_differ_from() -> None:
    gpu, cells = FakeGpu(reasons=nvml.POWER_CAP), Cells()
    measured = timed(gpu, cells, cells.honest(gpu, "ours", 25.0))
    assert {f.name for f in measured.findings} == {"throttled"}


def test_the_lead_in_is_of_the_candidate_that_ends_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, cells, rounds = FakeGpu(), Cells(), list[list[str]]()
    original = gpu.session

    def session(work: Callable[[Callable[[], None]], None], stamps: int, watch: bool) -> DeviceTrace:
        found = original(work, stamps, watch)
        if stamps == 2 * 7:
            inside, _ = windows(found.events or ())
            rounds.append([w.events[0].name[0] for w in inside])
        return found

    monkeypatch.setattr(gpu, "session", session)
    measured = timed(gpu, cells, *(cells.honest(gpu, name, 25.0) for name in "abc"))
    assert rounds == [list("aabccba")] * (1 + measured.rounds), "the first round is dropped"
    assert [len(o.blocks) for o in measured.outcomes if isinstance(o, TimedCandidate)] == [
        2 * measured.rounds
    ] * 3


def test_a_lead_in_is_read_as_any_other_block() -> None:
    gpu, cells, calls = FakeGpu(refuse="no"), Cells(), itertools.count()

    def cheap_at_first(at: int, cell: list[Any]) -> None:
        name = "cheaper" if next(calls) > 200 and gpu.opening else "product"
        gpu.run(name, 30.0, lambda: cell.__setitem__(0, cells.held[at]))

    (found,) = timed(gpu, cells, cells.candidate("ours", cheap_at_first)).outcomes
    assert isinstance(found, UntimedCandidate)
    assert found.stage == "timing" and names(found) == {"names-changed"}


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_misfit_in_a_round_is_its_own_candidates(place: int) -> None:
    gpu, cells, calls = FakeGpu(refuse="no"), Cells(), itertools.count()

    def turns(at: int, cell: list[Any]) -> None:
        name = "product" if next(calls) < 200 else "cheaper"
        gpu.run(name, 30.0, lambda: cell.__setitem__(0, cells.held[at]))

    made = [cells.honest(gpu, name, 25.0) for name in "abc"]
    made[place] = cells.candidate("abc"[place], turns)
    lost = [o for o in timed(gpu, cells, *made).outcomes if isinstance(o, UntimedCandidate)]
    assert [(o.name, o.stage, names(o)) for o in lost] == [("abc"[place], "timing", {"names-changed"})]


# --- tricks ----------------------------------------------------------------------------


def caught(
    launch: Callable[[FakeGpu, Cells, int, list[Any]], None], gpu: FakeGpu | None = None
) -> UntimedCandidate:
    gpu, cells = gpu or FakeGpu(), Cells()
    trick = cells.candidate("trick", lambda at, cell: launch(gpu, cells, at, cell))
    (found,) = timed(gpu, cells, trick, cells.honest(gpu, "honest", 30.0)).outcomes
    assert isinstance(found, UntimedCandidate)
    return found


def test_a_result_of_the_first_call_is_no_launch() -> None:
    first: dict[int, int] = {}

    def trick(gpu: FakeGpu, cells: Cells, at: int, cell: list[Any]) -> None:
        if at not in first:
            gpu.run("product", 30.0)
            first[at] = cells.held[at]
        cell[0] = first[at]

    untimed_candidate = caught(trick)
    assert names(untimed_candidate) >= {"no-kernel"} or names(untimed_candidate) >= {"names-changed"}


def test_a_copy_of_the_first_result_is_a_wrong_result() -> None:
    first: dict[int, int] = {}

    def trick(gpu: FakeGpu, cells: Cells, at: int, cell: list[Any]) -> None:
        kept = first.setdefault(at, cells.held[at])
        gpu.run("Memcpy DtoD", 3.0, lambda: cell.__setitem__(0, kept))

    assert "wrong-output" in names(caught(trick))


def test_work_on_another_stream_is_seen() -> None:
    def trick(gpu: FakeGpu, cells: Cells, at: int, cell: list[Any]) -> None:
        gpu.run("product", 30.0, lambda: cell.__setitem__(0, cells.held[at]), stream=SIDE)
        gpu.run("nothing", 1.0)

    untimed_candidate = caught(trick)
    assert (
        names(untimed_candidate) == {"off-stream"}
        and "product" in untimed_candidate.words
        and str(SIDE) in untimed_candidate.words
    )


def test_work_after_the_return_is_seen() -> None:
    def trick(gpu: FakeGpu, cells: Cells, at: int, cell: list[Any]) -> None:
        gpu.run("nothing", 1.0)
        gpu.later("product", 30.0, lambda: cell.__setitem__(0, cells.held[at]))

    assert "escaped" in names(caught(trick))


def test_one_small_buffer_for_all_sets_is_a_wrong_result() -> None:
    def trick(gpu: FakeGpu, cells: Cells, at: int, cell: list[Any]) -> None:
        gpu.run("product", 10.0, lambda: cell.__setitem__(0, cells.held[0]))

    assert "wrong-output" in names(caught(trick))


def test_a_kernel_that_changes_between_calls_is_seen() -> None:
    calls = itertools.count()

    def trick(gpu: FakeGpu, cells: Cells, at: int, cell: list[Any]) -> None:
        name = "product" if next(calls) < 5 else "cheaper"
        gpu.run(name, 30.0, lambda: cell.__setitem__(0, cells.held[at]))

    assert "names-changed" in names(caught(trick))


def test_a_result_that_is_right_at_first_only_is_seen_later() -> None:
    """A phase detector: honest until it was called often enough, in launches that no graph replaces."""
    calls = itertools.count()

    def trick(gpu: FakeGpu, cells: Cells, at: int, cell: list[Any]) -> None:
        honest = next(calls) < 200
        gpu.run("product", 30.0, (lambda: cell.__setitem__(0, cells.held[at])) if honest else lambda: None)

    untimed_candidate = caught(trick, FakeGpu(refuse="not now"))
    assert untimed_candidate.stage == "validation" and "wrong-output" in names(untimed_candidate)


def test_a_time_that_memory_cannot_give_is_not_trusted() -> None:
    """The operands lay in the L2: 100 MB in 10 us are 10 TB/s."""
    gpu, cells = FakeGpu(), Cells()
    (found,) = timed(gpu, cells, cells.honest(gpu, "resident", 10.0, 100_000_000), bandwidth=4.8e12).outcomes
    assert names(found) == {"beyond-bound"}
    warm = Protocol(regime="warm", warmup=0.0, min_seconds=0.0, block_us=600.0)
    (found,) = timed(
        gpu, cells, cells.honest(gpu, "resident", 10.0, 100_000_000), bandwidth=4.8e12, chosen=warm
    ).outcomes
    assert names(found) == set()


def test_a_carve_out_of_the_l2_is_seen_whenever_it_is_made() -> None:
    def at_once(gpu: FakeGpu, cells: Cells, at: int, cell: list[Any]) -> None:
        gpu.carved = 30_000_000
        gpu.run("product", 30.0, lambda: cell.__setitem__(0, cells.held[at]))

    assert names(caught(at_once)) == {"persisting-l2"}
    gpu, cells, calls = FakeGpu(refuse="no"), Cells(), itertools.count()

    def later(at: int, cell: list[Any]) -> None:
        gpu.carved = 30_000_000 if next(calls) > 200 else 0
        gpu.run("product", 30.0, lambda: cell.__setitem__(0, cells.held[at]))

    (found,) = timed(gpu, cells, cells.candidate("later", later)).outcomes
    assert isinstance(found, TimedCandidate) and "persisting-l2" in names(found)


def test_a_carve_out_is_not_left_to_the_next() -> None:
    gpu, cells = FakeGpu(), Cells()

    def carves(at: int, cell: list[Any]) -> None:
        gpu.carved = 30_000_000
        gpu.run("product", 30.0, lambda: cell.__setitem__(0, cells.held[at]))

    ours, bad, other = timed(
        gpu,
        cells,
        cells.honest(gpu, "ours", 25.0),
        cells.candidate("bad", carves),
        cells.honest(gpu, "other", 25.0),
    ).outcomes
    assert (
        isinstance(bad, UntimedCandidate)
        and isinstance(ours, TimedCandidate)
        and isinstance(other, TimedCandidate)
    )
    assert names(ours) == names(other) == set()


# --- degraded --------------------------------------------------------------------------


def test_without_a_profiler_events_are_the_clock_and_it_is_said() -> None:
    gpu, cells = FakeGpu(watched=False), Cells()
    measured = timed(gpu, cells, cells.honest(gpu, "ours", 25.0), cells.honest(gpu, "other", 50.0))
    ours = measured.outcomes[0]
    assert isinstance(ours, TimedCandidate) and ours.clock == "events" and ours.kernels == ()
    assert ours.span.median == pytest.approx(26.0)
    assert names(ours) == {"unaudited"} and len(ours.blocks) == 2 * measured.rounds
    assert measured.no_profiler == "no CUPTI here"
    assert against_all(measured, FAST)[0].verdict == "faster"


def test_a_refused_capture_is_said_and_launched_one_by_one() -> None:
    gpu, cells = FakeGpu(refuse="operation not permitted when stream is capturing"), Cells()
    (found,) = timed(gpu, cells, cells.honest(gpu, "ours", 25.0)).outcomes
    assert isinstance(found, TimedCandidate) and names(found) == {"direct-launch"}
    assert found.span.median == pytest.approx(25.0)


def test_a_baseline_that_raises_is_kept_with_its_words() -> None:
    gpu, cells = FakeGpu(), Cells()

    def broken(at: int, cell: list[Any]) -> None:
        raise RuntimeError("no kernel image is available")

    measured = timed(gpu, cells, cells.honest(gpu, "ours", 25.0), cells.candidate("broken", broken))
    ours, failed = measured.outcomes
    assert isinstance(ours, TimedCandidate)
    assert failed == UntimedCandidate("broken", "first calls", "RuntimeError: no kernel image is available")
    assert to_json(measured, FAST)["outcomes"][1]["failed"] == "first calls"


def test_a_baseline_that_turns_wrong_is_dropped_and_the_rest_goes_on() -> None:
    gpu, cells = FakeGpu(refuse="no"), Cells()
    calls = itertools.count()

    def turns(at: int, cell: list[Any]) -> None:
        right = next(calls) < 200
        gpu.run("k", 30.0, (lambda: cell.__setitem__(0, cells.held[at])) if right else lambda: None)

    measured = timed(gpu, cells, cells.honest(gpu, "ours", 25.0), cells.candidate("turns", turns))
    ours, failed = measured.outcomes
    assert isinstance(ours, TimedCandidate) and len(ours.blocks) == 2 * measured.rounds
    assert isinstance(failed, UntimedCandidate) and failed.stage == "validation"


def test_a_failed_candidate_ends_the_measurement() -> None:
    gpu, cells = FakeGpu(), Cells()

    def broken(at: int, cell: list[Any]) -> None:
        raise RuntimeError("illegal memory access")

    measured = timed(gpu, cells, cells.candidate("broken", broken), cells.honest(gpu, "other", 25.0))
    assert [type(o) for o in measured.outcomes] == [UntimedCandidate] and measured.rounds == 0
    assert against_all(measured, FAST) == ()


def test_throttling_and_unsettled_medians_are_said() -> None:
    gpu, cells = FakeGpu(reasons=0x001 | 0x040, jitter=0.6), Cells()
    short = Protocol(warmup=0.0, min_seconds=0.0, max_seconds=0.03, block_us=600.0)
    measured = timed(gpu, cells, cells.honest(gpu, "a", 25.0), cells.honest(gpu, "b", 25.0), chosen=short)
    said = {f.name: f.message for f in measured.findings}
    assert said["throttled"] == "hardware thermal slowdown"
    assert "unsettled" in said and not measured.settled
    (found,) = against_all(measured, short)
    assert found.verdict is None and "10 are needed" in found.reason
    assert "noisy" in names(measured.outcomes[0])


def test_long_launches_get_the_rounds_that_a_ratio_takes() -> None:
    """A launch on many GB takes milliseconds: what it may take at most holds a few rounds of those alone."""
    gpu, cells = FakeGpu(), Cells()
    for seconds, rounds in ((0.03, 10), (0.001, 1)):
        few = Protocol(warmup=0.0, min_seconds=0.0, max_seconds=seconds, block_us=600.0, launches=4)
        measured = timed(
            gpu, cells, cells.honest(gpu, "a", 4000.0), cells.honest(gpu, "b", 5000.0), chosen=few
        )
        assert measured.seconds > seconds and measured.rounds == rounds
        (found,) = against_all(measured, few)
        assert (found.ratio is not None) == (rounds == 10)


def test_launches_at_the_floor_have_no_ratio() -> None:
    gpu, cells = FakeGpu(host=2.0), Cells()
    measured = timed(gpu, cells, cells.honest(gpu, "a", 2.0), cells.honest(gpu, "b", 3.0))
    (found,) = against_all(measured, FAST)
    assert found.verdict is None and "launch floor" in found.reason
    assert "launch-floor" in names(measured.outcomes[0])

"""Conducts a measurement: it audits candidates, warms up, times them in turns, validates results, and stops.

The first candidate is the one in question; the others are its baselines. A baseline that fails is
left out from then on and its words are kept; the first one's failure ends the measurement.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from ucutlass.runtime.bench import clocks, protocol
from ucutlass.runtime.bench.bench_device import BenchDevice, DeviceTrace
from ucutlass.runtime.bench.frequency import sm_clock
from ucutlass.runtime.bench.nvml import Sample, power_capped, throttled
from ucutlass.runtime.bench.outcome import (
    BenchCandidate,
    CandidateFailed,
    CandidateSamples,
    Measurement,
    TimedCandidate,
    UntimedCandidate,
    Workload,
)
from ucutlass.runtime.bench.prepare import launch_all, persisting, prepare, validate
from ucutlass.runtime.bench.protocol import Protocol, TimingBlock
from ucutlass.runtime.bench.spans import AttributionError, iterations, windows
from ucutlass.runtime.bench.timing_issues import TimingIssue
from ucutlass.runtime.statistics import summary
from ucutlass.spans import span


def measure(
    candidates: Sequence[BenchCandidate],
    workload: Workload,
    gpu: BenchDevice,
    chosen: Protocol,
    *,
    bandwidth: float | None = None,
    now: Callable[[], float] = time.monotonic,
) -> Measurement:
    """Times all candidates against the first. `bandwidth` of the device's memory in bytes per second
    convicts times that no cold launch can have.

    Raises nothing that a candidate does wrong: that is in the outcomes. A sticky error of the
    device is raised as torch raises it.
    """
    l2_reset = gpu.reset_persisting()
    outcomes: dict[str, TimedCandidate | UntimedCandidate] = {}
    turns: list[CandidateSamples] = []
    for candidate in candidates:
        try:
            with span("timing" if candidate is candidates[0] else "baselines"):
                turns.append(prepare(candidate, workload, gpu, chosen))
        except CandidateFailed as lost:
            outcomes[candidate.name] = lost.failed
            if candidate is candidates[0]:
                turns = []
                break
    rounds, seconds, settled, samples = 0, 0.0, False, list[Sample]()
    if turns:
        _warm_up(turns[0], chosen.warmup, gpu, now)
        began, warm = now(), False
        while not settled and (rounds == 0 or seconds < protocol.most_seconds(rounds, chosen)):
            lost_here = _round(turns, workload, gpu, chosen, samples)
            for failed in lost_here:
                outcomes[failed.name] = failed
            if candidates[0].name in outcomes:
                break
            turns = [t for t in turns if t.name not in outcomes]
            if not warm:
                # The warm-up's unbroken load leaves a capped clock lower than rounds with pauses do.
                began, warm = now(), True
                for turn in turns:
                    turn.forget()
                continue
            rounds = len(turns[0].blocks) // 2
            seconds = now() - began
            settled = protocol.settled([t.blocks for t in turns], seconds, chosen, power_capped(samples))
    if candidates[0].name not in outcomes:
        outcomes |= {turn.name: _timed(turn, gpu, chosen, bandwidth) for turn in turns}
    order = [outcomes[c.name] for c in candidates if c.name in outcomes]
    general = _general(samples, order, settled, seconds, gpu) if turns else ()
    return Measurement(tuple(order), rounds, seconds, settled, l2_reset, gpu.no_profiler(), general)


# --- rounds --------------------------------------------------------------------------


@span("timing")
def _warm_up(turn: CandidateSamples, seconds: float, gpu: BenchDevice, now: Callable[[], float]) -> None:
    until = now() + seconds
    while now() < until:
        for _ in range(8):
            turn.replay.play()
        gpu.idle()


@span("timing")
def _round(
    turns: list[CandidateSamples],
    workload: Workload,
    gpu: BenchDevice,
    chosen: Protocol,
    samples: list[Sample],
) -> list[UntimedCandidate]:
    """A lead-in and one palindrome of blocks, their results validated, then the other clocks; the candidates
    that it lost. Blocks of a round whose results were not validated are kept of none."""
    # The first block of a session is a lead-in, read as any other and dropped: under a profiler that has just
    # begun its launches come late, and between its stamps lies an idle GPU, whose clock is not the kernel's.
    # The palindrome's first plays it: of two, each then comes once after itself and once after the other.
    order = (0, *protocol.palindrome(len(turns)))
    read: list[list[tuple[list[float], list[float], TimingBlock]]] = [[] for _ in turns]

    def played() -> None:
        watch = not gpu.no_profiler()
        session, events = _blocks([turns[i] for i in order], gpu, watch, samples)
        for place, i in enumerate(order):
            clock = _clock(session, place)
            spans, totals = _spans(session, place, len(order), turns[i]) if watch else (events[place], [])
            if place > 0:
                read[i].append((spans, totals, protocol.block_of(spans, clock)))

    try:
        validate(turns, workload, gpu, played)
    except CandidateFailed as lost:
        return [lost.failed]
    except AttributionError as error:
        at = turns[order[error.block] if error.block is not None else 0]
        return [UntimedCandidate(at.name, "timing", str(error), (TimingIssue(error.finding, str(error)),))]
    for turn, parts in zip(turns, read, strict=True):
        for spans, totals, block in parts:
            turn.spans += spans
            turn.totals += totals
            turn.blocks.append(block)
    read_again = [turn for turn in turns if _reads_other_clocks(turn)]
    return [failed for turn in read_again if (failed := _other_clocks(turn, workload, gpu, chosen))]


LONG_US = 20_000.0
"""Of a replay, from which on the other clocks are read in every second round: five or more readings of so many
milliseconds say as much, and take longer than the blocks."""


def _reads_other_clocks(turn: CandidateSamples) -> bool:
    """Returns whether events and the host's clock are read in this round, the first one's included."""
    number = len(turn.blocks) // 2
    return number % 2 == 1 or turn.blocks[-1].median * turn.replay.launches < LONG_US


def _other_clocks(
    turn: CandidateSamples, workload: Workload, gpu: BenchDevice, chosen: Protocol
) -> UntimedCandidate | None:
    """Events and the host's clock: all three clocks must see the same SM clock. Of launches so long that a block has
    few, they see as few."""
    launches = turn.replay.launches
    plain = [i % workload.sets for i in range(min(chosen.wall_launches, launches))]
    try:
        passed = gpu.events(turn.replay.play)
        wall = gpu.wall(partial(launch_all, turn.candidate, plain))
    except Exception as error:  # a baseline's own failure, kept in its words
        return UntimedCandidate(turn.name, "plain launches", f"{type(error).__name__}: {error}"[:500])
    turn.events.append(passed / launches)
    turn.walls.append(wall / len(plain))
    return None


_PLAYS = 3
"""Replays in a block where events are the clock: its median and spread need several values."""


def _blocks(
    turns: Sequence[CandidateSamples], gpu: BenchDevice, watch: bool, samples: list[Sample]
) -> tuple[DeviceTrace, list[list[float]]]:
    events: list[list[float]] = []

    def work(stamp: Callable[[], None]) -> None:
        for turn in turns:
            stamp()
            if watch:
                turn.replay.play()
            else:
                play_times = [gpu.events(turn.replay.play) / turn.replay.launches for _ in range(_PLAYS)]
                events.append(play_times)
            stamp()
            # While the block runs: idle GPUs report other clocks and reasons.
            if (sample := gpu.sample()) is not None:
                samples.append(sample)

    return gpu.session(work, 2 * len(turns), watch), events


def _clock(session: DeviceTrace, place: int) -> float | None:
    if len(session.stamps) < 2 * place + 2:
        return None
    return sm_clock(session.stamps[2 * place], session.stamps[2 * place + 1])


def _spans(
    session: DeviceTrace, place: int, blocks: int, turn: CandidateSamples
) -> tuple[list[float], list[float]]:
    """Returns microseconds of every iteration of the block at `place`: spans and sums."""
    block_windows, outside = windows(session.events or ())
    if len(block_windows) != blocks:
        raise AttributionError("escaped", f"{blocks} blocks were run, {len(block_windows)} are in the trace")
    if outside:
        raise AttributionError("escaped", f"{outside[0].name[:80]} began outside of every block")
    try:
        each = iterations(
            block_windows[place].events, turn.period, turn.replay.launches, turn.candidate.branches
        )
    except AttributionError as error:
        raise AttributionError(error.finding, str(error), place) from error
    return [i.span / 1000.0 for i in each], [i.total / 1000.0 for i in each]


# --- after ---------------------------------------------------------------------------


def _timed(
    turn: CandidateSamples, gpu: BenchDevice, chosen: Protocol, bandwidth: float | None
) -> TimedCandidate:
    span, passed, wall = summary(turn.spans), summary(turn.events), summary(turn.walls)
    watched = not gpu.no_profiler()
    readings = clocks.Readings(
        span.median if watched else None,
        passed.median,
        wall.median,
        max(1, len(turn.period)),
        turn.replay.launches,
    )
    findings = [*turn.findings, *clocks.disagreements(readings), *persisting(gpu)]
    if bandwidth is not None and turn.candidate.moved is not None and chosen.regime == "cold":
        findings += clocks.beyond_bound(span.median, turn.candidate.moved, bandwidth)
    block_clocks = [b.clock for b in turn.blocks if b.clock is not None]
    if not block_clocks:
        findings.append(TimingIssue("clock-unknown", "the SM clock could not be read inside the blocks"))
    loud = sum(b.spread > chosen.spread for b in turn.blocks)
    if 2 * loud > len(turn.blocks):
        findings.append(
            TimingIssue(
                "noisy", f"{loud} of {len(turn.blocks)} blocks spread by more than {chosen.spread:.0%}"
            )
        )
    return TimedCandidate(
        turn.name,
        "cupti" if watched else "events",
        span,
        summary(turn.totals) if turn.totals else None,
        passed,
        wall,
        turn.period,
        turn.replay.launches,
        tuple(turn.blocks),
        summary(block_clocks).median if block_clocks else None,
        tuple(findings),
    )


def _general(
    samples: list[Sample],
    outcomes: Sequence[TimedCandidate | UntimedCandidate],
    settled: bool,
    seconds: float,
    gpu: BenchDevice,
) -> tuple[TimingIssue, ...]:
    issues: list[TimingIssue] = []
    if reason := gpu.no_nvml():
        issues.append(TimingIssue("no-nvml", reason))
    if reasons := throttled(samples):
        issues.append(TimingIssue("throttled", ", ".join(reasons)))
    each = [
        f"{o.name} {o.sm_clock / 1e6:.0f} MHz"
        for o in outcomes
        if isinstance(o, TimedCandidate) and o.sm_clock
    ]
    if power_capped(samples) and len(each) > 1:
        words = f"at the GPU's power limit each kernel has a clock of its own: {', '.join(each)}"
        issues.append(TimingIssue("power-capped", f"{words}; no round is refused for them"))
    if not settled:
        why = "medians still moved, or too few rounds could be compared"
        issues.append(TimingIssue("unsettled", f"{why}, when {seconds:.1f} s were over"))
    return tuple(issues)

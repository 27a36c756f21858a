"""Prepares a candidate for timing: it is called, audited, captured and validated."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ucutlass.runtime.bench import protocol
from ucutlass.runtime.bench.bench_device import BenchDevice, CaptureRefused, Outputs, Replay
from ucutlass.runtime.bench.outcome import (
    BenchCandidate,
    CandidateFailed,
    CandidateSamples,
    UntimedCandidate,
    Workload,
)
from ucutlass.runtime.bench.protocol import Protocol
from ucutlass.runtime.bench.spans import AttributionError, audit, iterations, windows
from ucutlass.runtime.bench.timing_issues import TimingIssue, trusted
from ucutlass.spans import span


def prepare(
    candidate: BenchCandidate, workload: Workload, gpu: BenchDevice, chosen: Protocol
) -> CandidateSamples:
    """Calls, audits, captures and validates a candidate. Raises CandidateFailed."""
    stage = "first calls"
    try:
        for i in range(min(workload.sets, 3)):
            candidate.launch(i)
        gpu.idle()
        stage = "audit"
        findings, launch_us = _audited(candidate, workload, gpu, chosen)
        stage = "capture"
        count = protocol.launches_for(launch_us, workload.sets, chosen)
        replay, noted = _captured(candidate, [i % workload.sets for i in range(count)], gpu)
        stage = "first replay"
        replay.play()
        gpu.idle()
        period: tuple[str, ...] = ()
        if not gpu.no_profiler():
            period, differs = _period(replay, gpu, findings.period, candidate.branches)
            noted += differs
        turn = CandidateSamples(candidate, replay, period, [*findings.findings, *noted])
        stage = "validation"
        for _ in range(2):
            validate([turn], workload, gpu, replay.play)
        turn.findings += persisting(gpu)
    except CandidateFailed:
        raise
    except AttributionError as error:
        issues = (TimingIssue(error.finding, str(error)),)
        raise CandidateFailed(UntimedCandidate(candidate.name, stage, str(error), issues)) from error
    except Exception as error:  # whatever a baseline raises is its failure, and kept in its words
        words = f"{type(error).__name__}: {str(error)[:500]}"
        raise CandidateFailed(UntimedCandidate(candidate.name, stage, words)) from error
    if not trusted(tuple(turn.findings)):
        gpu.reset_persisting()  # the next candidate must not inherit it
        wrong = [f for f in turn.findings if f.level == "trust"]
        raise CandidateFailed(UntimedCandidate(candidate.name, stage, str(wrong[0]), tuple(turn.findings)))
    return turn


def persisting(gpu: BenchDevice) -> tuple[TimingIssue, ...]:
    """Returns `persisting-l2` where a part of the L2 was set aside since it was taken away."""
    size = gpu.persisting()
    words = f"{size} bytes of the L2 were set aside for lines that survive the rotation of buffers"
    return (TimingIssue("persisting-l2", words),) if size else ()


@dataclass(frozen=True, slots=True)
class _Audited:
    period: tuple[str, ...]
    findings: tuple[TimingIssue, ...]


def _audited(
    candidate: BenchCandidate, workload: Workload, gpu: BenchDevice, chosen: Protocol
) -> tuple[_Audited, float]:
    """Returns what a plain launch does on the device, and roughly its microseconds."""
    chance = random.Random(chosen.seed)
    # Each set twice: what a first visit leaves behind, a second one must not live on.
    order = [chance.randrange(workload.sets) for _ in range(chosen.audits)] * 2
    reason = gpu.no_profiler()
    if reason:
        took = gpu.events(lambda: launch_all(candidate, order)) / len(order)
        return _Audited((), (TimingIssue("unaudited", f"streams and kernels were not seen: {reason}"),)), took

    def work(stamp: Callable[[], None]) -> None:
        for i in order:
            gpu.idle()
            stamp()
            candidate.launch(i)
            stamp()
            gpu.idle()

    session = gpu.session(work, 2 * len(order), True)
    audited = audit(session.events or (), len(order), candidate.branches)
    if not trusted(audited.findings):
        wrong = next(f for f in audited.findings if f.level == "trust")
        raise CandidateFailed(UntimedCandidate(candidate.name, "audit", str(wrong), audited.findings))
    return _Audited(audited.period, audited.findings), audited.span / 1000.0


def launch_all(candidate: BenchCandidate, order: Sequence[int]) -> None:
    for i in order:
        candidate.launch(i)


def _captured(
    candidate: BenchCandidate, order: Sequence[int], gpu: BenchDevice
) -> tuple[Replay, list[TimingIssue]]:
    try:
        return gpu.capture(candidate.launch, order), []
    except CaptureRefused as refused:
        outputs: dict[int, Outputs] = {}

        def play() -> None:
            for i in order:
                outputs[i] = candidate.launch(i)

        words = f"launched one by one: a graph refused it ({refused})"
        return Replay(play, len(order), outputs.__getitem__, str(refused)), [
            TimingIssue("direct-launch", words)
        ]


def _period(
    replay: Replay, gpu: BenchDevice, audited: tuple[str, ...], branches: bool
) -> tuple[tuple[str, ...], list[TimingIssue]]:
    """Returns the kernels of one launch as the replay runs them: cuBLAS may choose others in a graph."""

    def work(stamp: Callable[[], None]) -> None:
        stamp()
        replay.play()
        stamp()

    replays, outside = windows(gpu.session(work, 2, True).events or ())
    if len(replays) != 1 or outside:
        raise AttributionError(
            "escaped", f"{len(replays)} replays are in the trace of one, {len(outside)} events outside of it"
        )
    names = tuple(e.name for e in replays[0].events)
    period = names[: len(names) // replay.launches]
    iterations(replays[0].events, period, replay.launches, branches)
    if period == audited or (branches and tuple(sorted(period)) == audited):
        return period, []
    words = f"plain launches run {', '.join(audited)}; replayed ones {', '.join(period)}"
    return period, [TimingIssue("capture-differs", words[:500])]


def validate(
    turns: Sequence[CandidateSamples], workload: Workload, gpu: BenchDevice, play: Callable[[], None]
) -> None:
    """Runs `play` on fresh content in one set, its results poisoned before. Raises CandidateFailed for the
    first candidate whose results then are not that content's."""
    at = workload.refresh()
    for turn in turns:
        gpu.poison(turn.replay.outputs(at))
    gpu.idle()
    play()
    gpu.idle()
    for turn in turns:
        with span("comparison"):
            words = turn.candidate.check(at, turn.replay.outputs(at))
        if words:
            issue = TimingIssue("wrong-output", f"results of timed launches are not their operands': {words}")
            raise CandidateFailed(
                UntimedCandidate(turn.name, "validation", str(issue), (*turn.findings, issue))
            )

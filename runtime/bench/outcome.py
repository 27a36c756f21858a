"""Defines what is timed, the outcome of each candidate, and the samples that are collected meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol as Interface

from ucutlass.runtime.bench.bench_device import Outputs, Replay, SetLaunch
from ucutlass.runtime.bench.protocol import TimingBlock
from ucutlass.runtime.bench.timing_issues import TimingIssue
from ucutlass.runtime.statistics import TimeSummary


@dataclass(frozen=True, slots=True)
class BenchCandidate:
    """Something to time. `check` says what is wrong with the results of a set, empty if nothing is;
    `moved` counts the bytes that a cold launch must fetch and store at least, None if unknown.
    `branches`: a launch forks side streams of its own, and its stream waits for them before it ends; its
    kernels then begin in no fixed order."""

    name: str
    launch: SetLaunch
    check: Callable[[int, Outputs], str]
    moved: int | None = None
    branches: bool = False


class Workload(Interface):
    """The buffers that all candidates share."""

    sets: int
    """How many rotate."""

    def refresh(self) -> int:
        """Puts other content into one set's operands, chosen at random; gives its number."""


@dataclass(frozen=True, slots=True)
class TimedCandidate:
    """A candidate's times, in microseconds a launch.

    `clock` says which one `span` is: `cupti` or, where there is no profiler, `events`. `total` sums
    the durations of a launch's kernels, `events` and `wall` are the other clocks. `blocks` are in
    order of measurement, two a round. `sm_clock` is the median over blocks, in Hz.
    """

    name: str
    clock: str
    span: TimeSummary
    total: TimeSummary | None
    events: TimeSummary
    wall: TimeSummary
    kernels: tuple[str, ...]
    launches: int
    blocks: tuple[TimingBlock, ...]
    sm_clock: float | None
    findings: tuple[TimingIssue, ...]


@dataclass(frozen=True, slots=True)
class UntimedCandidate:
    """A candidate without a time: where it failed, and in which words."""

    name: str
    stage: str
    words: str
    findings: tuple[TimingIssue, ...] = ()


@dataclass(frozen=True, slots=True)
class Measurement:
    """Outcomes in the order of the candidates; the state of the device with what was done to it."""

    outcomes: tuple[TimedCandidate | UntimedCandidate, ...]
    rounds: int
    seconds: float
    settled: bool
    l2_reset: str
    no_profiler: str
    findings: tuple[TimingIssue, ...]


class CandidateFailed(Exception):
    """A candidate cannot be timed."""

    def __init__(self, failed: UntimedCandidate) -> None:
        super().__init__(failed.words)
        self.failed = failed


@dataclass(slots=True)
class CandidateSamples:
    """A candidate with what was measured of it so far."""

    candidate: BenchCandidate
    replay: Replay
    period: tuple[str, ...]
    findings: list[TimingIssue]
    spans: list[float] = field(default_factory=list)
    totals: list[float] = field(default_factory=list)
    blocks: list[TimingBlock] = field(default_factory=list)
    events: list[float] = field(default_factory=list)
    walls: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.candidate.name

    def forget(self) -> None:
        """Times taken so far were not the kernel's own."""
        for samples in (self.spans, self.totals, self.blocks, self.events, self.walls):
            samples.clear()

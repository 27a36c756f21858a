"""Times launches on the device: graphs of many launches over rotated buffers, with candidates interleaved.

A candidate is a function of a set's number that launches once on that set's tensors. All are
captured into CUDA graphs, so host work is out of the numbers; sets rotate through more than
twice the L2, so operands come from memory; candidates take turns in an order that is reversed
every other round, so drift of the clock meets all alike. Times are microseconds a launch.
"""

from __future__ import annotations

import gc
import math
import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ucutlass.runtime.statistics import RaceVerdict, race_verdict

Launch = Callable[[int], object]

Sets: TypeAlias = tuple[Launch, int]
"""A launch, and over how many buffer sets it rotates."""

Play: TypeAlias = Callable[[int], float]


@dataclass(frozen=True, slots=True)
class LaunchTiming:
    """Microseconds a launch: median over rounds, and the spread (interquartile over median)."""

    median: float
    spread: float
    rounds: tuple[float, ...]


def sets_for(bytes_per_set: int) -> int:
    """Returns how many buffer sets rotate: more than twice the L2 in all, at least 2, at most 64."""
    l2: int = torch.cuda.get_device_properties(0).L2_cache_size
    return max(2, min(64, math.ceil(2.2 * l2 / bytes_per_set)))


def capture(launch: Launch, sets: int, launches: int) -> torch.cuda.CUDAGraph:
    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for i in range(min(sets, 3)):
            launch(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # Not by `torch.cuda.graph`, which collects garbage and empties the allocator's cache for each: a tenth of
    # a second, and tuning captures dozens. Nothing that a collection frees may be freed meanwhile.
    collecting = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin()
            try:
                for i in range(launches):
                    launch(i % sets)
            finally:
                graph.capture_end()
    finally:
        if collecting:
            gc.enable()
    return graph


def launches_for(launch: Launch, sets: int, window_us: float) -> int:
    """Returns a multiple of the sets that fills about `window_us`."""
    start, end = _event(), _event()
    launch(0)
    torch.cuda.synchronize()
    start.record()
    for i in range(5):
        launch(i % sets)
    end.record()
    torch.cuda.synchronize()
    once: float = max(2.0, start.elapsed_time(end) * 200)
    return sets * max(1, min(400, round(window_us / once / sets)))


def compare(
    candidates: Mapping[str, Launch], sets: int, *, rounds: int = 9, window_us: float = 3000.0
) -> dict[str, LaunchTiming]:
    """Returns every candidate's time, measured in turns."""
    graphs = {}
    for name, launch in candidates.items():
        count = launches_for(launch, sets, window_us)
        graphs[name] = (capture(launch, sets, count), count)
    times: dict[str, list[float]] = {name: [] for name in graphs}
    order = list(graphs)
    random.Random(0).shuffle(order)
    for graph, _ in graphs.values():
        graph.replay()
    for number in range(rounds):
        for name in order if number % 2 == 0 else order[::-1]:
            graph, count = graphs[name]
            start, end = _event(), _event()
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end) * 1000.0 / count)
    return {name: summary(values) for name, values in times.items()}


@dataclass(frozen=True, slots=True)
class RaceTiming:
    """What rounds of two launches in turns decide, the median ratio of the first one's time, and how many rounds
    it took."""

    verdict: RaceVerdict
    ratio: float
    rounds: int


MOST_ROUNDS = 40
"""After which a race is left undecided: kernels that differ by less than the noise of one round."""


def race(first: Sets, second: Sets, *, window_us: float = 1000.0, play: Play | None = None) -> RaceTiming:
    """Times two launches in rounds A B B A until `race_verdict` decides, each over its own buffer sets. `play`
    replays the first or the second once and returns its microseconds a launch; by default both are captured."""
    play = _captured_play(first, second, window_us) if play is None else play
    logs: list[float] = []
    verdict: RaceVerdict = "undecided"
    while verdict == "undecided" and len(logs) < MOST_ROUNDS:
        a, b, b_again, a_again = (math.log(play(which)) for which in (0, 1, 1, 0))
        logs.append((a + a_again - b - b_again) / 2)
        verdict = race_verdict(logs)
    return RaceTiming(verdict, math.exp(statistics.median(logs)), len(logs))


def _captured_play(first: Sets, second: Sets, window_us: float) -> Play:
    graphs = []
    for launch, sets in (first, second):
        count = launches_for(launch, sets, window_us)
        graphs.append((capture(launch, sets, count), count))
    for graph, _ in graphs:
        graph.replay()

    def play(which: int) -> float:
        graph, count = graphs[which]
        start, end = _event(), _event()
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1000.0 / count

    return play


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def summary(values: list[float]) -> LaunchTiming:
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 4], ordered[(3 * len(ordered)) // 4]
    median = statistics.median(ordered)
    return LaunchTiming(median, (high - low) / median, tuple(values))

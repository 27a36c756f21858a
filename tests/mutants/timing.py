"""Guards of the timing: tricks on a device of the tests' own, and mutants of the protocol that miss them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tests.bench.bench_fakes import SIDE, Cells, FakeGpu
from tests.mutants.guards import Mutant, Trial
from ucutlass.runtime.bench import clocks, measure, prepare, regimes, report
from ucutlass.runtime.bench.frequency import STAMP
from ucutlass.runtime.bench.measure import BenchCandidate, TimedCandidate
from ucutlass.runtime.bench.protocol import Protocol
from ucutlass.runtime.bench.timing_issues import trusted

FAST = Protocol(warmup=0.0, min_seconds=0.0, block_us=600.0)
BANDWIDTH = 4.8e12
L2 = 50 * 2**20

Trick = Callable[[FakeGpu, Cells, int, list[Any]], None]


def _objects(made: Callable[[FakeGpu, Cells], BenchCandidate], **gpu: Any) -> bool:
    """Whether the measurement refuses the candidate, or says not to believe its time."""
    device, cells = FakeGpu(**gpu), Cells()
    ticks = itertools.count()
    measured = measure.measure(
        [made(device, cells), cells.honest(device, "honest", 30.0)],
        cells,
        device,
        FAST,
        bandwidth=BANDWIDTH,
        now=lambda: next(ticks) / 100,
    )
    outcome = measured.outcomes[0]
    return not (isinstance(outcome, TimedCandidate) and trusted(outcome.findings))


def _trick(trick: Trick, **gpu: Any) -> Callable[[], bool]:
    def made(device: FakeGpu, cells: Cells) -> BenchCandidate:
        return cells.candidate("trick", lambda at, cell: trick(device, cells, at, cell))

    return lambda: _objects(made, **gpu)


def _first_set_for_all(gpu: FakeGpu, cells: Cells, at: int, cell: list[Any]) -> None:
    """Whoever captured this kept the pointers of one set."""
    gpu.run("product", 10.0, lambda: cell.__setitem__(0, cells.held[0]))


def _other_stream(gpu: FakeGpu, cells: Cells, at: int, cell: list[Any]) -> None:
    gpu.run("product", 30.0, lambda: cell.__setitem__(0, cells.held[at]), stream=SIDE)
    gpu.run("nothing", 1.0)


def _after_the_return(gpu: FakeGpu, cells: Cells, at: int, cell: list[Any]) -> None:
    gpu.run("nothing", 1.0)
    gpu.later("product", 30.0, lambda: cell.__setitem__(0, cells.held[at]))


def _lazy_later() -> bool:
    """Honest until it was called often enough, in launches that no graph replaces."""
    calls = itertools.count()

    def trick(gpu: FakeGpu, cells: Cells, at: int, cell: list[Any]) -> None:
        honest = next(calls) < 300
        gpu.run("product", 30.0, (lambda: cell.__setitem__(0, cells.held[at])) if honest else lambda: None)

    return _trick(trick, refuse="not now")()


def _first_calls_result() -> bool:
    first: dict[int, Any] = {}

    def trick(gpu: FakeGpu, cells: Cells, at: int, cell: list[Any]) -> None:
        kept = first.setdefault(at, cells.held[at])
        gpu.run("copy", 3.0, lambda: cell.__setitem__(0, kept))

    return _trick(trick)()


def _resident() -> bool:
    """100 MB in 10 us."""
    return _objects(lambda gpu, cells: cells.honest(gpu, "resident", 10.0, 100_000_000))


def _honest() -> bool:
    return _objects(lambda gpu, cells: cells.honest(gpu, "ours", 25.0, 100_000_000))


def _rotation() -> bool:
    """Whether the protocol's own number of sets is found not to be cold."""
    each = 10 * 2**20
    return bool(regimes.not_cold(each, regimes.sets_for(each, L2, "cold"), L2, "cold"))


def _small_rotation() -> bool:
    return bool(regimes.not_cold(10 * 2**20, 2, L2, "cold"))


def _unequal_clocks() -> bool:
    """Whether a comparison is refused in which one side ran at a lower clock."""
    device, cells = FakeGpu(), Cells()
    ticks = itertools.count()
    measured = measure.measure(
        [cells.honest(device, "a", 25.0), cells.honest(device, "b", 30.0)],
        cells,
        device,
        FAST,
        now=lambda: next(ticks) / 100,
    )
    ours, theirs = measured.outcomes
    assert isinstance(ours, TimedCandidate) and isinstance(theirs, TimedCandidate)
    slow = replace(theirs, blocks=tuple(replace(b, clock=1.5e9) for b in theirs.blocks))
    return report.versus(ours, slow, FAST).verdict is None


TRIALS: Mapping[str, Trial] = MappingProxyType(
    {
        "honest": Trial(False, _honest),
        "the protocol's own rotation": Trial(False, _rotation),
        "two small sets": Trial(True, _small_rotation),
        "pointers of one set": Trial(True, _trick(_first_set_for_all)),
        "another stream": Trial(True, _trick(_other_stream)),
        "after the return": Trial(True, _trick(_after_the_return)),
        "right at first only": Trial(True, _lazy_later),
        "a copy of the first result": Trial(True, _first_calls_result),
        "faster than the memory": Trial(True, _resident),
        "clocks apart": Trial(True, _unequal_clocks),
    }
)


def _one_sets_pointers(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda candidate, order, gpu: original(candidate, [0] * len(order), gpu)


def _only_played(_: Any) -> Callable[..., None]:
    def validate(turns: Any, workload: Any, gpu: Any, play: Callable[[], None]) -> None:
        workload.refresh()
        play()

    return validate


def _timed_stream_only(original: Callable[..., Any]) -> Callable[..., Any]:
    """Events of other streams are not seen, as where the profiler is asked for one stream."""

    def seen(events: Any, *rest: Any) -> Any:
        timed = {e.stream for e in events if e.name == STAMP}
        return original([e for e in events if e.stream in timed], *rest)

    return seen


def _never(_: Any) -> Callable[..., tuple[()]]:
    return lambda *_: ()


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "a graph replays one set's pointers", (33,), ((prepare, "_captured"),), _one_sets_pointers, "honest"
    ),
    Mutant(
        "replays are not validated",
        (33, 28, 37),
        ((prepare, "validate"), (measure, "validate")),
        _only_played,
        "pointers of one set",
    ),
    Mutant(
        "timed launches are not validated",
        (37,),
        ((prepare, "validate"), (measure, "validate")),
        _only_played,
        "right at first only",
    ),
    Mutant(
        "cached results are not validated",
        (36, 29),
        ((prepare, "validate"), (measure, "validate")),
        _only_played,
        "a copy of the first result",
    ),
    Mutant(
        "one set of buffers, called cold",
        (48,),
        ((regimes, "sets_for"),),
        lambda _: lambda *_: 1,
        "the protocol's own rotation",
    ),
    Mutant(
        "a rotation of one L2",
        (48,),
        ((regimes, "ROTATED_L2"),),
        lambda _: 1.0,
        "the protocol's own rotation",
    ),
    Mutant("rotation is not checked", (48,), ((regimes, "not_cold"),), _never, "two small sets"),
    Mutant(
        "the memory's bound is not looked at",
        (48, 46),
        ((clocks, "beyond_bound"),),
        _never,
        "faster than the memory",
    ),
    Mutant(
        "other streams are overlooked",
        (40,),
        ((prepare, "audit"), (prepare, "windows"), (measure, "windows")),
        _timed_stream_only,
        "another stream",
    ),
    Mutant(
        "clocks are not compared", (49,), ((report, "comparable"),), lambda _: lambda *_: True, "clocks apart"
    ),
)

"""A device with a time line of its own: kernels take the time that the test says, results are cells."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ucutlass.runtime.bench.bench_device import CaptureRefused, DeviceTrace, Outputs, Replay, SetLaunch
from ucutlass.runtime.bench.frequency import STAMP, SmTimes
from ucutlass.runtime.bench.nvml import Sample
from ucutlass.runtime.bench.outcome import BenchCandidate
from ucutlass.runtime.bench.trace import DeviceEvent

MAIN, SIDE = 7, 13
"""CUPTI's numbers of the timed stream and of another."""

Effect = Callable[[], None]


def nothing() -> None:
    pass


@dataclass
class FakeGpu:
    """`gap`: microseconds between kernels, `host`: what a plain launch costs the host; `late`: microseconds
    that the first launch of a watched session waits. SMs run at `clock`, under the kernels that `clocks`
    names at those, and idle at `idle_clock`, which is `clock` where it is None."""

    l2: int = 50_000_000
    device: str = "cpu"
    gap: float = 1.0
    host: float = 2.0
    clock: float = 1.9e9
    clocks: Mapping[str, float] = field(default_factory=dict)
    idle_clock: float | None = None
    late: float = 0.0
    watched: bool = True
    reasons: int = 0
    jitter: float = 0.0
    now_ns: int = 0
    cycles: float = 0.0
    opening: bool = False
    seen: list[DeviceEvent] = field(default_factory=list)
    pending: list[tuple[str, float, Effect]] = field(default_factory=list)
    recording: list[tuple[str, float, int, Effect]] | None = None
    refuse: str = ""
    carved: int = 0
    random: random.Random = field(default_factory=lambda: random.Random(0))
    numbers: Any = field(default_factory=lambda: itertools.count(1))

    # --- what candidates do

    def run(self, name: str, us: float, effect: Effect = nothing, stream: int = MAIN) -> None:
        if self.recording is not None:
            self.recording.append((name, us, stream, effect))
            return
        if self.opening and name != STAMP:
            self.opening = False
            self.rest(round(self.late * 1000))
        took = us * (1 + self.jitter * self.random.random())
        start = self.now_ns + round(self.gap * 1000)
        end = start + round(took * 1000)
        self.seen.append(DeviceEvent(name, "kernel", start, end, stream, next(self.numbers)))
        if stream == MAIN:
            self.cycles += (end - self.now_ns) * self.clocks.get(name, self.clock) / 1e9
            self.now_ns = end
        effect()

    def rest(self, ns: int) -> None:
        """Nothing runs."""
        self.cycles += ns * (self.idle_clock or self.clock) / 1e9
        self.now_ns += ns

    def later(self, name: str, us: float, effect: Effect = nothing) -> None:
        """Work that another thread launches once the candidate has returned."""
        self.pending.append((name, us, effect))

    # --- the interface to a device

    def no_profiler(self) -> str:
        return "" if self.watched else "no CUPTI here"

    def capture(self, launch: SetLaunch, order: Sequence[int]) -> Replay:
        if self.refuse:
            raise CaptureRefused(self.refuse)
        self.recording, outputs_of = [], dict[int, Outputs]()
        for i in order:
            outputs_of[i] = launch(i)
        recorded, self.recording = self.recording, None

        def play() -> None:
            for name, us, stream, effect in recorded:
                self.run(name, us, effect, stream)

        return Replay(play, len(order), outputs_of.__getitem__)

    def session(self, work: Callable[[Callable[[], None]], None], stamps: int, watch: bool) -> DeviceTrace:
        self.idle()
        self.seen.clear()
        self.opening = watch
        sm_times: list[SmTimes] = []

        def stamp() -> None:
            self.run(STAMP, 1.0)
            sm_times.append({sm: (self.now_ns, round(self.cycles) + sm) for sm in range(4)})

        work(stamp)
        self.idle()
        assert len(sm_times) == stamps
        return DeviceTrace(tuple(self.seen) if watch else None, tuple(sm_times))

    def events(self, work: Callable[[], None]) -> float:
        began = self.now_ns
        work()
        return (self.now_ns - began) / 1000.0

    def wall(self, work: Callable[[], None]) -> float:
        began, launched = self.now_ns, len(self.seen)
        work()
        self.idle()
        device = (self.now_ns - began) / 1000.0
        return max(device, self.host * (len(self.seen) - launched))

    def idle(self) -> None:
        waiting, self.pending = self.pending, []
        for name, us, effect in waiting:
            self.run(name, us, effect)
        self.rest(5000)

    def poison(self, outputs: Outputs) -> None:
        for cell in outputs:
            cell[0] = None

    def reset_persisting(self) -> str:
        self.carved = 0
        return "reset"

    def persisting(self) -> int:
        return self.carved

    def sample(self) -> Sample | None:
        return Sample(self.clock, self.reasons)

    def no_nvml(self) -> str:
        return ""


@dataclass
class Cells:
    """A workload whose sets each hold one number, which is also the right result."""

    sets: int = 4
    held: list[int] = field(default_factory=list)
    random: random.Random = field(default_factory=lambda: random.Random(1))
    numbers: Any = field(default_factory=lambda: itertools.count(100))

    def __post_init__(self) -> None:
        self.held = [next(self.numbers) for _ in range(self.sets)]

    def refresh(self) -> int:
        at = self.random.randrange(self.sets)
        self.held[at] = next(self.numbers)
        return at

    def candidate(
        self, name: str, launch: Callable[[int, list[Any]], None], moved: int | None = None
    ) -> BenchCandidate:
        """`launch` fills the cell that it is given for a set."""
        cells: list[list[Any]] = [[None] for _ in range(self.sets)]

        def called(at: int) -> Outputs:
            launch(at, cells[at])
            return (cells[at],)

        return BenchCandidate(name, called, self.check, moved)

    def check(self, at: int, outputs: Outputs) -> str:
        return "" if outputs[0][0] == self.held[at] else f"{outputs[0][0]} instead of {self.held[at]}"

    def honest(self, gpu: FakeGpu, name: str, us: float, moved: int | None = None) -> BenchCandidate:
        def launch(at: int, cell: list[Any]) -> None:
            gpu.run(f"{name}_kernel", us, lambda: cell.__setitem__(0, self.held[at]))

        return self.candidate(name, launch, moved)

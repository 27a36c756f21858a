"""Times modules and programs in turns on one GPU, and says how far results are from exact ones.

Candidates are captured into CUDA graphs over rotated inputs (`ucutlass.runtime.timing`). One that cannot be
captured is launched from the host between events, and says so.
"""

from __future__ import annotations

import fcntl
import importlib
import math
import os
import random
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

Launch = Callable[[int], object]


def on_sets(call: Callable[..., object], sets: Sequence[Sequence[Any]]) -> Launch:
    """Returns the launch of a call that takes the operands of a set."""
    return lambda i: call(*sets[i])


ROUNDS, LEAST_ROUNDS = 9, 3

CHUNK = 2**25
"""Elements that are compared at once, so that a large result needs no second one in float64."""


# --- times ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TurnTimes:
    """Microseconds a launch: median and spread over rounds; `captured` says whether in a CUDA graph."""

    median: float
    spread: float
    captured: bool


@dataclass(frozen=True, slots=True)
class Clock:
    """How a device's work is timed: `capture` gives what plays so many launches, and whether as a graph;
    `time` gives the microseconds of a call."""

    capture: Callable[[Launch, int, int], tuple[Callable[[], object], bool]]
    time: Callable[[Callable[[], object]], float]
    idle: Callable[[], None]


def cuda_clock() -> Clock:
    return Clock(_captured, _events, torch.cuda.synchronize)


def host_clock() -> Clock:
    """For tests: no device, and launches that end before they return."""
    return Clock(_uncaptured, _wall, lambda: None)


def _uncaptured(launch: Launch, sets: int, count: int) -> tuple[Callable[[], object], bool]:
    return _loop(launch, sets, count), False


def compare(
    launches: Mapping[str, Launch],
    sets: int,
    clock: Clock,
    *,
    capture: bool = True,
    window_us: float = 3000.0,
    seconds: float = 2.0,
) -> dict[str, TurnTimes]:
    """Returns the times of all candidates, measured in turns whose order is reversed every other round: in
    ROUNDS rounds, or as few as LEAST_ROUNDS where those would take more than so many seconds. Without
    `capture` launches come from the host: a graph has memory of its own."""
    plays = {}
    round_us = 0.0
    for name, launch in launches.items():
        for i in range(min(sets, 2)):
            launch(i)
        clock.idle()
        once = max(2.0, clock.time(lambda launch=launch: launch(0)))  # type: ignore[misc]
        count = sets * max(1, min(400, round(window_us / once / sets)))
        round_us += once * count
        taken_up = clock.capture if capture else _uncaptured
        play, captured = taken_up(launch, sets, count)
        plays[name] = (play, captured, count)
    order = list(plays)
    random.Random(0).shuffle(order)
    for play, _, _ in plays.values():
        play()
    clock.idle()
    taken: dict[str, list[float]] = {name: [] for name in plays}
    for number in range(max(LEAST_ROUNDS, min(ROUNDS, int(seconds * 1e6 / round_us)))):
        for name in order if number % 2 == 0 else order[::-1]:
            play, _, count = plays[name]
            taken[name].append(clock.time(play) / count)
    return {name: _summary(values, plays[name][1]) for name, values in taken.items()}


def _summary(values: Sequence[float], captured: bool) -> TurnTimes:
    ordered = sorted(values)
    median = statistics.median(ordered)
    spread = (ordered[3 * len(ordered) // 4] - ordered[len(ordered) // 4]) / median
    return TurnTimes(round(median, 3), round(spread, 4), captured)


def _loop(launch: Launch, sets: int, count: int) -> Callable[[], None]:
    def play() -> None:
        for i in range(count):
            launch(i % sets)

    return play


def _captured(launch: Launch, sets: int, count: int) -> tuple[Callable[[], object], bool]:
    from ucutlass.runtime.bench.cuda import graph_of

    play = _loop(launch, sets, count)
    torch.cuda.synchronize()
    try:
        return graph_of(play).replay, True
    except RuntimeError as refused:
        if "illegal memory access" in str(refused) or "unspecified launch failure" in str(refused):
            raise
        torch.cuda.synchronize()
        return play, False


def _events(work: Callable[[], object]) -> float:
    start: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1000.0


def _wall(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e6


# --- errors -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResultError:
    """How far a result is from the exact one: `norm` and `most` are the Euclidean norm and the maximum of the
    difference over those of the exact result. `apart` counts elements of a whole-number result that differ,
    as a share; `finite` is whether it is finite wherever the exact one is."""

    norm: float
    most: float
    apart: float
    finite: bool


def error_of(result: Tensor, exact: Tensor) -> ResultError:
    """Returns the error of a result. Raises ValueError for another shape."""
    if result.shape != exact.shape:
        raise ValueError(f"a result of {tuple(result.shape)}, not {tuple(exact.shape)}")
    flat, right = result.detach().reshape(-1), exact.detach().reshape(-1)
    if not right.dtype.is_floating_point:
        apart = sum(int((a.to(b.dtype) != b).sum()) for a, b in _chunks(flat, right))
        return ResultError(0.0, 0.0, apart / max(1, flat.numel()), True)
    square = total = most = scale = 0.0
    finite = True
    for a, b in _chunks(flat, right):
        if not b.numel():
            continue
        known = b.to(torch.float64)
        counted = known.isfinite()
        known = known.where(counted, 0.0)
        difference = (a.to(torch.float64) - known).where(counted, 0.0).abs()
        # One transfer a chunk: each waits for the device, whose lock is held.
        facts = torch.stack(
            (difference.square().sum(), known.square().sum(), difference.max(), known.abs().max())
        )
        chunk_square, chunk_total, chunk_most, chunk_scale = facts.tolist()
        finite = finite and math.isfinite(chunk_most)
        square, total = square + chunk_square, total + chunk_total
        most, scale = max(most, chunk_most), max(scale, chunk_scale)
    return ResultError((square / total) ** 0.5 if total else square**0.5, most / (scale or 1.0), 0.0, finite)


def _chunks(a: Tensor, b: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(torch.split(a, CHUNK), torch.split(b, CHUNK), strict=True)


FLOORS: Mapping[str, float] = {"f32": 2.0**-20, "tf32": 2.0**-11, "bf16": 2.0**-8, "f16": 2.0**-11}
"""Relative errors, in the norm, that any order of the sums may have in a compute type."""

TIMES_EAGER = 4.0
"""How many times eager's own error a result may be off in the norm, and twice that in the maximum."""


def wrong(
    ours: Sequence[Tensor], eager: Sequence[Tensor], exact: Sequence[Tensor], floor: float
) -> list[str]:
    """Returns in which results ours are further from the exact ones than TIMES_EAGER times eager's own error
    and the floor allow; empty where all are right."""
    words: list[str] = judged(ours, eager, exact, floor)["wrong"]
    return words


def judged(
    ours: Sequence[Tensor], eager: Sequence[Tensor], exact: Sequence[Tensor], floor: float
) -> dict[str, Any]:
    """Returns a row's `status`, what is `wrong`, and the largest errors of ours and of eager: relative, in the
    Euclidean norm and of the largest element."""
    words = [] if len(ours) == len(exact) else [f"{len(ours)} results, not {len(exact)}"]
    mine, theirs = [], []
    for number, (a, b, c) in enumerate(zip(ours, eager, exact, strict=False)):
        try:
            error, eager_error = error_of(a, c), error_of(b, c)
        except ValueError as problem:
            words.append(f"result {number}: {problem}")
            continue
        mine.append(error)
        theirs.append(eager_error)
        if beyond := _beyond(error, eager_error, floor):
            words.append(f"result {number}: {beyond}")
    return {
        "status": "wrong" if words else "right",
        "wrong": words,
        "error": max((e.norm for e in mine), default=None),
        "eager_error": max((e.norm for e in theirs), default=None),
        "most_error": max((e.most for e in mine), default=None),
        "eager_most_error": max((e.most for e in theirs), default=None),
    }


def _beyond(mine: ResultError, theirs: ResultError, floor: float) -> str:
    if theirs.finite and not mine.finite:
        return "not finite where the exact result is"
    if not theirs.finite:
        return ""  # the compute type does not hold the result
    if mine.norm > TIMES_EAGER * theirs.norm + floor:
        return f"relative error {mine.norm:.3g} in the norm, eager's is {theirs.norm:.3g}"
    if mine.most > 2 * TIMES_EAGER * theirs.most + 16 * floor:
        return f"largest error {mine.most:.3g} of the largest element, eager's is {theirs.most:.3g}"
    if mine.apart > 2 * theirs.apart + 1e-4:
        return f"{mine.apart:.3g} of the elements differ, eager's {theirs.apart:.3g}"
    return ""


# --- limits and the GPU's lock ----------------------------------------------------------


class Late(BaseException):
    """A step did not end in time. No Exception: what it interrupts must not take it for its own."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raises Late in the main thread after so many seconds, between two steps of the interpreter."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise Late

    signal.signal(signal.SIGUSR1, ring)
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        timer.cancel()


class DeviceLock:
    """The lock of a GPU among the processes of one run: who launches anything holds it. Whoever holds it for
    longer than `limit` seconds at a time is ended by SIGALRM, also while it waits for the device. `waited` is how
    long this process has waited for it, `kept` how long it has held it, in seconds."""

    def __init__(self, path: Path, limit: float) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._limit = limit
        self.held = False
        self.waited = self.kept = self._since = 0.0

    def take(self) -> None:
        start = time.monotonic()
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._since = time.monotonic()
        self.waited += self._since - start
        self.held = True
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, self._limit)

    def give(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        fcntl.flock(self._file, fcntl.LOCK_UN)
        self.kept += time.monotonic() - self._since
        self.held = False

    @contextmanager
    def holding(self) -> Iterator[None]:
        self.take()
        try:
            yield
        finally:
            if self.held:
                self.give()


def compiled(
    function: Callable[..., Any],
    lock: DeviceLock,
    *,
    backend: Callable[..., Any] | None = None,
    idle: Callable[[], None] = lambda: None,
) -> Callable[..., Any]:
    """Returns what torch.compile makes of a function, by default with TorchInductor. It takes the lock between
    the compilation of a graph and its first launch, and holds it when the first call returns: the compiler's
    time is no time of the GPU."""

    def compile_graph(graph: Any, inputs: Sequence[Any]) -> Any:
        if lock.held:
            idle()
            lock.give()
        call = _backend(backend)(graph, inputs)
        lock.take()
        return call

    return torch.compile(function, backend=compile_graph, dynamic=False)


def _backend(own: Callable[..., Any] | None) -> Callable[..., Any]:
    if own is not None:
        return own
    from torch._inductor.compile_fx import compile_fx

    return compile_fx


COMPILERS = ("torch._dynamo.backends.common", "torch._inductor.compile_fx")
"""What torch.compile imports at its first call."""


def load_compilers() -> None:
    for name in COMPILERS:
        importlib.import_module(name)


def stop_compilers() -> None:
    """Ends TorchInductor's compiler processes."""
    from torch._inductor.async_compile import shutdown_compile_workers

    with suppress(Exception):  # a run's result does not depend on how they end
        shutdown_compile_workers()

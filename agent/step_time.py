"""This module measures where the seconds of a session's steps go, and reads it back from a journal.

A step is an event of the journal: the problem was opened, a proposer answered, a candidate was judged. Its wall
time is divided into parts, each measured where it is spent (`ucutlass.spans`), inside the processes of
candidates too; what no part accounts for is `other`, so parts and `other` add up to the wall time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ucutlass import spans
from ucutlass.agent.journal import JournalEvent
from ucutlass.agent.outcome import TimedOutcome, outcome_of_json, words
from ucutlass.runtime.bench.gpu_lock import WAIT_SPAN
from ucutlass.runtime.isolation import STARTS

WAITING = WAIT_SPAN

PARTS: Mapping[str, str] = MappingProxyType(
    {
        "problem": "reading the problem's file and writing its first program",
        "proposer": "whoever proposes",
        "check": "checking and planning programs",
        "build": "compilers, and waiting for them",
        STARTS: "starting processes, their imports and CUDA contexts",
        WAITING: "waiting for a worker and for the GPU lock",
        "inputs": "drawing arguments and constructing the module",
        "reference": "the float64 reference, of the program and of the module",
        "bounds": "the reference with the bounds of every element",
        "launch": "loading kernels and launching them to be judged",
        "comparison": "comparing results with their references",
        "timing": "timing candidates, in turns with their baselines",
        "baselines": "preparing baselines, compiled ones too",
        "advice": "profiles and findings for the proposer",
        "audit": "the audit",
    }
)
"""What seconds are divided into, with what each holds."""

OTHER = "other"

_PART_OF: Mapping[str, str] = {
    "front end": "check",
    "planning": "check",
    "emitting": "build",
    "finding the tool chain": "build",
    "cache look-up": "build",
    "waiting for another build": "build",
    "compiling and storing": "build",
    "checking the object": "build",
    "asking for the workspace": "build",
}
"""Spans of the compiler by the part that they belong to."""

_MEASURED = "measured"
"""The span of a candidate that was judged while a proposer was asked: a step of its own."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """The wall seconds of a step, and those of its parts."""

    wall: float
    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def working(self) -> float:
        """Returns the seconds without waiting for a worker or for the GPU lock."""
        return max(0.0, self.wall - self.parts.get(WAITING, 0.0))

    @property
    def other(self) -> float:
        return self.wall - sum(self.parts.values())

    def __add__(self, more: StepTime) -> StepTime:
        names = [name for name in PARTS if name in self.parts or name in more.parts]
        parts = {name: self.parts.get(name, 0.0) + more.parts.get(name, 0.0) for name in names}
        return StepTime(self.wall + more.wall, parts)


@dataclass(frozen=True, slots=True)
class StepClock:
    """Measures the step that is under way."""

    start: float
    record: spans.SpanRecording

    def time(self) -> StepTime:
        """Returns the time of the step so far."""
        wall = spans.clock() - self.start - self.record.seconds.get(_MEASURED, 0.0)
        parts: dict[str, float] = {}
        for name, seconds in self.record.seconds.items():
            part = _PART_OF.get(name, name)
            if part in PARTS:
                parts[part] = parts.get(part, 0.0) + seconds
        return StepTime(wall, {name: parts[name] for name in PARTS if name in parts})


@contextmanager
def timed_step(before: float = 0.0) -> Iterator[StepClock]:
    """Gives a clock that has begun, so many seconds `before` where a step's process had to start first. A step inside
    another one is no time of the outer."""
    start = spans.clock() - before
    with spans.recording() as record:
        if before:
            spans.add({STARTS: before})
        clock = StepClock(start, record)
        yield clock
    spans.add({_MEASURED: spans.clock() - start})


# --- as JSON ---------------------------------------------------------------------


def step_time_to_json(time: StepTime) -> dict[str, Any]:
    """Returns seconds to a microsecond; journals hold them under `time` of an event."""
    return {"wall": round(time.wall, 6), "parts": {n: round(s, 6) for n, s in time.parts.items()}}


def step_time_of_json(value: Any) -> StepTime | None:
    """Returns None for what is none, such as an event from before times were kept."""
    match value:
        case {"wall": float() | int() as wall, "parts": dict(parts)}:
            seconds = {n: float(s) for n, s in parts.items() if n in PARTS and isinstance(s, float | int)}
            if all(math.isfinite(s) for s in (wall, *seconds.values())):
                return StepTime(float(wall), seconds)
    return None


# --- of a session ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TimedStep:
    """Describes a step: what it was, what came of it in one line, and its time, None in journals from before
    times were kept."""

    what: str
    outcome: str
    time: StepTime | None


@dataclass(frozen=True, slots=True)
class SessionTime:
    """Describes where the time of a session went. `first` and `confirmed` are the seconds of its steps until
    a candidate had a time, and until one was confirmed; None where none was, or times are missing. `attempts` has
    the seconds until each attempt had its outcome, as far as times are known."""

    steps: tuple[TimedStep, ...]
    first: float | None
    confirmed: float | None
    attempts: tuple[float, ...] = ()

    @property
    def total(self) -> StepTime:
        return sum((s.time for s in self.steps if s.time is not None), StepTime(0.0))


def session_time(events: Iterable[JournalEvent]) -> SessionTime:
    """Returns where the time of a session went, by its events. Raises NotAnOutcome."""
    steps: list[TimedStep] = []
    elapsed: float | None = 0.0
    first: float | None = None
    confirmed: float | None = None
    attempts: list[float] = []
    node = 0
    for event in events:
        body = event.body
        outcome = outcome_of_json(body["outcome"]) if "outcome" in body else None
        what = _WHAT.get(event.kind)
        if event.kind in ("judged", "measured"):
            what, node = f"candidate {node}", node + 1
        elif event.kind in ("answered", "failed"):
            what = f"call {body['call']}"
        elif event.kind == "confirmed":
            what = f"confirmation of {body['node']}"
        if what is None:
            continue
        time = step_time_of_json(body.get("time"))
        elapsed = None if time is None or elapsed is None else elapsed + time.wall
        steps.append(TimedStep(what, "" if outcome is None else words(outcome), time))
        if isinstance(outcome, TimedOutcome):
            first = elapsed if first is None else first
            confirmed = elapsed if confirmed is None and outcome.records else confirmed
        if event.kind in ("judged", "measured") and elapsed is not None:
            attempts += [elapsed] * round(float(body["spend"].get("attempts", 0)))
    return SessionTime(tuple(steps), first, confirmed, tuple(attempts))


_WHAT: Mapping[str, str] = {"opened": "opening", "opinion": "opinion"}

"""Accounts for the seconds of a build: those of this call, and those that the compilers report.

An artifact keeps the phases of its own making, so that one from the cache still shows what it cost.
"""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ucutlass.runtime.progress import OnProgress, Progress

if TYPE_CHECKING:
    from ucutlass.runtime.build import Artifact

Phases: TypeAlias = tuple[tuple[str, float], ...]
"""Names and seconds, in order. Phases that ran side by side add up to more than the wall time."""

NVCC_PHASES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("preprocess", ("(preprocessing",)),
    ("cudafe++", ("cudafe++",)),
    ("cicc", ("cicc",)),
    ("ptxas", ("ptxas",)),
    ("host compile", ("(compiling)",)),
    ("link", ("nvlink", "(linking)")),
)
"""Phases, and what nvcc's names for its steps hold (the host compiler's go before "(compiling)");
the rest is REST."""

REST = "other"

_SECONDS: Mapping[str, float] = {"ms": 1e-3, "s": 1.0}


class TableUnreadable(ValueError):
    """nvcc's `--time` file is not as it has been since CUDA 12.3."""


def nvcc_phases(table: str) -> Phases:
    """Returns seconds of each phase from nvcc's `--time` file: a header, then a line a step.

    Raises TableUnreadable.
    """
    rows = [[cell.strip() for cell in row] for row in csv.reader(table.splitlines()) if row]
    seconds: dict[str, float] = {}
    try:
        header, *steps = rows
        name, metric, unit = (header.index(column) for column in ("phase name", "metric", "unit"))
        for step in steps:
            phase = next((p for p, marks in NVCC_PHASES if any(m in step[name] for m in marks)), REST)
            seconds[phase] = seconds.get(phase, 0.0) + float(step[metric]) * _SECONDS[step[unit]]
    except (ValueError, IndexError, KeyError) as error:
        raise TableUnreadable(f"nvcc's table of phases cannot be read: {error!r}") from error
    order = (*(phase for phase, _ in NVCC_PHASES), REST)
    return tuple((phase, round(seconds[phase], 3)) for phase in order if phase in seconds)


@dataclass(frozen=True, slots=True)
class Timings:
    """`here`: this call's wall seconds by what it did, REST included, so that they add up to `wall`.
    `phases` are of the `seconds` in which the artifact was made: by this call where `made_here`, else
    by the one that put it into the cache. () where its compiler gave no account. `before`: from the
    start of the process to this call, Python and its imports."""

    before: float
    wall: float
    here: Phases
    seconds: float
    phases: Phases
    made_here: bool

    def rows(self) -> list[tuple[str, str, str]]:
        """What, seconds, share."""
        when = "making it, in this call" if self.made_here else "making it, once, before this call"
        gave = "" if self.phases else "its compiler gave no account of its phases"
        return [
            ("before this call: Python and its imports", f"{self.before:.3f}", ""),
            ("this call", f"{self.wall:.3f}", ""),
            *((f"  {name}", f"{s:.3f}", _share(s, self.wall)) for name, s in self.here),
            (when, f"{self.seconds:.3f}", gave),
            *((f"  {name}", f"{s:.3f}", _share(s, self.seconds)) for name, s in self.phases),
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "seconds": self.wall,
            "before": self.before,
            "here": dict(self.here),
            "made": {"here": self.made_here, "seconds": self.seconds, "phases": dict(self.phases)},
        }


@dataclass(frozen=True, slots=True)
class Watch:
    """A listener that passes events on and keeps the entries that were built while it heard."""

    on_progress: OnProgress
    built: set[str] = field(default_factory=set)

    def __call__(self, event: Progress) -> None:
        if event.kind == "built":
            self.built.add(event.entry)
        self.on_progress(event)


def timings(wall: float, spans: Mapping[str, float], artifact: Artifact, made_here: bool) -> Timings:
    """Returns the timings from what a recording (`ucutlass.spans`) heard during `wall` seconds."""
    here = (*spans.items(), (REST, wall - sum(spans.values())))
    rounded = tuple((name, round(seconds, 6)) for name, seconds in here)
    before = round(_age() - wall, 2)
    return Timings(before, round(wall, 6), rounded, artifact.seconds, artifact.phases, made_here)


def _age() -> float:
    """Returns seconds since this process began, to a tick of 10 ms: field 22 of proc(5)'s stat, after
    boot."""
    after_name = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    began = int(after_name[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began


def _share(seconds: float, total: float) -> str:
    return f"{seconds / total:.1%}" if total > 0 else ""

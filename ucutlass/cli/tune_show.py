"""What `ucc tune` shows: its progress, and what came out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ucutlass.cli import show
from ucutlass.ir.schedule import show as show_schedule
from ucutlass.tune.job import TuningJob
from ucutlass.tune.policy import SearchLimits
from ucutlass.tune.tune import FailedTrial, OnTrial, Trial, best_so_far
from ucutlass.units import duration

OnJob: TypeAlias = Callable[[int, TuningJob], OnTrial]
"""Hears of each job with its number, from 0; who hears of its trials."""

LAST = 6
"""Trials that the live table shows."""


# --- progress --------------------------------------------------------------------


@contextmanager
def progress(shapes: int, limits: SearchLimits, as_json: bool, lines: bool) -> Iterator[OnJob]:
    """A live table on a terminal; elsewhere with `lines` a line a trial, else nothing."""
    err = Console(stderr=True, highlight=False)
    if err.is_terminal and not as_json:
        view = _View(shapes, limits)
        with Live(view, console=err, transient=True, refresh_per_second=4):
            yield view.on_job
    elif lines:
        yield _lines(shapes, limits)
    else:
        yield lambda at, job: lambda trial: None


def _lines(shapes: int, limits: SearchLimits) -> OnJob:
    def on_job(at: int, job: TuningJob) -> OnTrial:
        trials: list[Trial] = []

        def on_trial(trial: Trial) -> None:
            trials.append(trial)
            message = "; ".join(
                [_named(job, at, shapes), *_standing(job, trials, limits), *_trial_cells(job, trial)]
            )
            show.note(f"ucc: {show.one_line(message)}")

        return on_trial

    return on_job


@dataclass(slots=True)
class _View:
    """What the live table is drawn from; `start` is when the command began, in seconds."""

    shapes: int
    limits: SearchLimits
    start: float = field(default_factory=time.monotonic)
    job: TuningJob | None = None
    at: int = 0
    trials: list[Trial] = field(default_factory=list)

    def on_job(self, at: int, job: TuningJob) -> OnTrial:
        self.at, self.job, self.trials = at, job, []
        return self.trials.append

    def __rich__(self) -> Table:
        grid = Table.grid(padding=(0, 2))
        job, trials = self.job, list(self.trials)
        if job is None:
            grid.add_row("tuning")
            return grid
        grid.add_row("tuning", Text(show.one_line(_named(job, self.at, self.shapes))))
        for words in _standing(job, trials, self.limits):
            grid.add_row("", Text(words))
        if self.limits.seconds < _LONG:
            left = max(0.0, self.limits.seconds - (time.monotonic() - self.start))
            grid.add_row("", f"{left:.0f} s left")
        for trial in trials[-LAST:]:
            grid.add_row(*(Text(show.one_line(words)) for words in _trial_cells(job, trial)))
        return grid


_LONG = 1e6
"""Seconds; beyond this a budget is none."""


def _named(job: TuningJob, at: int, shapes: int) -> str:
    sizes = " ".join(f"{name}={value}" for name, value in job.sizes.items())
    return f"{job.program.name} {sizes}" + (f", shape {at + 1} of {shapes}" if shapes > 1 else "")


def _standing(job: TuningJob, trials: list[Trial], limits: SearchLimits) -> list[str]:
    """The best so far with its share of what any plan could come to, and what is left to build."""
    best = best_so_far(trials)
    standing = "nothing ran yet" if best is None else f"best {duration(best)}"
    share = f", {job.space.bound / best:.0%} of the bound" if best and job.space.bound else ""
    most = min(limits.builds, len(job.space.groups))
    return [standing + share, f"{len(trials)} of at most {most} builds"]


def _trial_cells(job: TuningJob, trial: Trial) -> tuple[str, str]:
    group = job.space.groups[trial.group]
    if isinstance(trial.result, FailedTrial):
        return trial.result.stage, f"{show_schedule(group.request)}: {trial.result.words}"
    member, seconds = trial.result.best
    return duration(seconds), show_schedule(group.members[member].request)


# --- what came out ---------------------------------------------------------------


def report(row: Mapping[str, Any]) -> None:
    """What `job.describe` gives, on the terminal."""
    sizes = " ".join(f"{n}={v}" for n, v in row["sizes"].items())
    lines: list[tuple[str, ...]] = [
        ("kernel", f"{row['kernel']} {sizes}"),
        ("space", f"{row['kernels']} kernels of {row['binaries']} binaries on {row['device']}"),
        *((("fixed", row["fixed"]["words"]),) if row.get("fixed") else ()),
        ("stopped", f"{row['stopped']}, after {len(row['trials'])} builds in {row['seconds']:.1f} s"),
        *(("trial", _job_result(t), t["schedule"]) for t in row["trials"]),
        *(("final", _job_result(f), f["schedule"]) for f in row["finals"]),
    ]
    if row["ok"]:
        share = f", {row['bound'] / row['microseconds']:.0%} of the bound" if row["bound"] else ""
        lines.append(("winner", f"{duration(row['microseconds'] * 1e-6)}{share}"))
        lines.append(("schedule", f"{row['arch']} {{ {row['schedule']} }}"))
        lines.append(("shrinkage", f"{row['shrinkage']:.1%} of the search's speed was not confirmed"))
        if gain := row["gain"]:
            words = f"{gain['median']:.3f} [{gain['low']:.3f}, {gain['high']:.3f}] of the untuned time"
            lines.append(("gain", words))
        lines.append(("record", row["record"][:16]))
    else:
        lines.append(("winner", "none: no finalist ran and was right"))
    if faster := row.get("faster"):
        words = f"a faster one of {duration(faster['microseconds'] * 1e-6)} stays recorded"
        lines.append(("recorded", f"{words}: {faster['schedule']}"))
    if "written" in row:
        lines.append(("written", row["written"]))
    show.table(("", ""), lines)


def _job_result(row: Mapping[str, Any]) -> str:
    if "lost" in row:
        return f"{row['lost']['stage']}: {row['lost']['words']}"
    return duration(row["microseconds"] * 1e-6)


def report_set(row: Mapping[str, Any]) -> None:
    """What `shape_set.to_json` gives, on the terminal: a line a shape, a line a schedule."""
    head = ("shape", "weight", "time", "of the bound", "speed-up", "schedule", "keeps")
    show.table(head, [_shape(shape) for shape in row["shapes"]])
    arch = row["arch"]
    compared = [shape for shape in row["shapes"] if shape["speedup"] is not None]
    gain = "no shape's" if row["gain"] is None else f"{row['gain']:.3f} times the untuned speed"
    after = [(f"schedule {n}", f"{arch} {{ {d['schedule']} }}") for n, d in enumerate(row["dispatch"], 1)]
    after.append(
        ("gain", f"{gain}, weighted geometric mean of {len(compared)} of {len(row['shapes'])} shapes")
    )
    if "written" in row:
        after.append(("written", row["written"]))
    show.table(("", ""), after)


def _shape(shape: Mapping[str, Any]) -> tuple[str, ...]:
    sizes = ",".join(f"{n}={v}" for n, v in shape["sizes"].items())
    if not shape["ok"]:
        return sizes, f"{shape['weight']:g}", "none", "", "", "", shape["stopped"]
    share = f"{shape['bound'] / shape['microseconds']:.0%}" if shape["bound"] else ""
    speedup = "" if shape["speedup"] is None else f"{shape['speedup']:.3f}"
    dispatch = (
        ("", "") if shape["dispatch"] is None else (str(shape["dispatch"] + 1), f"{shape['keeps']:.1%}")
    )
    return sizes, f"{shape['weight']:g}", duration(shape["microseconds"] * 1e-6), share, speedup, *dispatch

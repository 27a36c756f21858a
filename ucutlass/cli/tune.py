"""`ucc tune`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from ucutlass import frontend, ir
from ucutlass.cli import gpu, show
from ucutlass.cli.errors import Status, fail, reported
from ucutlass.cli.options import (
    Positive,
    arch_option,
    json_option,
    kernel_option,
    seconds_option,
    sizes_option,
)
from ucutlass.hardware import Device
from ucutlass.runtime import parallel
from ucutlass.runtime.evidence import Machine
from ucutlass.runtime.store import Store, record
from ucutlass.schedule import show as show_schedule
from ucutlass.shapes import complete, parse_sizes
from ucutlass.trials.subjects import subject_of_built
from ucutlass.tune import recorded, replay
from ucutlass.tune.live import Live, write
from ucutlass.tune.policy import POLICIES, Limits, Name
from ucutlass.tune.source import NotWritten, with_schedule
from ucutlass.tune.space import Space, explore
from ucutlass.tune.tune import Failed, Final, OnTrial, Trial, Tuned, best_so_far, search

_NO_GPU = "nothing was tuned: there is no NVIDIA GPU here that a compile target serves"


class _Budget(Positive):
    """Seconds, written `120`, `120s` or `2m`."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = re.fullmatch(r"(.*?)(s|m)", value.strip()) if isinstance(value, str) else None
        if found is None:
            return super().convert(value, param, ctx)
        return super().convert(found[1], param, ctx) * (60 if found[2] == "m" else 1)


@dataclass(frozen=True, slots=True)
class Job:
    """One kernel at one set of extents; `sizes` has the free dimensions by name."""

    path: Path
    checked: frontend.Checked
    program: ir.Kernel
    sizes: Mapping[str, int]
    device: Device | None
    space: Space


@click.command("tune")
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@sizes_option
@kernel_option
@arch_option(None)
@click.option("--budget", type=_Budget(), metavar="120s", help="Most time to search, as 120s or 2m.")
@click.option(
    "--builds", type=click.IntRange(min=1), default=Limits().builds, show_default=True,
    help="Most binaries to build.",
)  # fmt: skip
@click.option("--free", is_flag=True, help="Every legal schedule, not only what the program denotes.")
@click.option(
    "--policy", type=click.Choice(tuple(POLICIES)), default="guided", show_default=True,
    help="How to choose what to build.",
)  # fmt: skip
@click.option("--seed", default=0, help="Seed of the random arguments and of the random policy.")
@click.option("--write", "writes", is_flag=True, help="Put the winner's schedule into FILE, formatted.")
@click.option("--replay", "replays", is_flag=True, help="FILES are recordings: compare policies, no GPU.")
@seconds_option("--limit", 300.0, "Seconds that each process that launches kernels may take.")
@seconds_option("--wait", 600.0, "Seconds to wait for another process that times.")
@json_option
def command(
    files: tuple[Path, ...], sizes: tuple[str, ...], name: str | None, arch: str | None,
    budget: float | None, builds: int, free: bool, policy: Name, seed: int, writes: bool, replays: bool,
    limit: float, wait: float, as_json: bool,
) -> None:  # fmt: skip
    """Find the fastest kernel that FILE's program denotes for these extents, on this GPU.

    Ranks before it builds, times while it builds, sweeps raster, swizzle and splits on one binary, stops
    at the bound or the budget, measures the finalists again in a fresh process and verifies them.
    """
    with reported(as_json):
        if replays:
            _replay(files, as_json)
            return
        if len(files) != 1:
            fail(Status.CALL, "one FILE is tuned at a time; several are for --replay", as_json)
        given = parse_sizes(sizes)
        checked = frontend.read(files[0])
        program = frontend.kernel(checked, name)
        extents = complete(program, given)  # the call's mistakes before the machine's
        found = gpu.at_hand()
        if found is None:
            fail(Status.MACHINE, _NO_GPU, as_json)
        Store.open().prepare()
        target = arch or found.arch.name
        space = explore(checked, program, extents, target, found.device, free)
        job = Job(files[0], checked, program, given, found.device, space)
        shop = Live(checked, program, given, target, seed, limit, wait, _announce)
        limits = Limits(builds=builds) if budget is None else Limits(builds=builds, seconds=budget)
        with _progress(job, limits, as_json) as on_trial:
            tuned = search(space, shop, policy, limits, seed=seed, jobs=parallel.jobs(), on_trial=on_trial)
        row = describe(job, tuned) | {"policy": policy, "seed": seed, "free": free}
        if tuned.winner is not None:
            row["record"] = _keep(job, shop, tuned.winner, limits, row)
            if writes:
                row["written"] = _write(job, tuned.winner, as_json)
    _report(row, as_json)
    if tuned.winner is None:
        sys.exit(Status.PROGRAM)


def _announce(holder: str) -> None:
    click.echo(f"ucc: waiting for {holder}, which times on this GPU", err=True)


@contextmanager
def _progress(job: Job, limits: Limits, as_json: bool) -> Iterator[OnTrial]:
    """The best so far, its share of the bound and what is left of the budget, on a terminal only."""
    err = Console(stderr=True, highlight=False)
    trials: list[Trial] = []
    if as_json or not err.is_terminal:
        yield trials.append
        return
    with err.status(f"tuning {job.program.name}: {len(job.space.groups)} binaries to choose from") as status:

        def update(trial: Trial) -> None:
            trials.append(trial)
            best = best_so_far(trials)
            said = "nothing ran yet" if best is None else f"best {best * 1e6:.2f} us"
            share = f", {job.space.bound / best:.0%} of the bound" if best and job.space.bound else ""
            left = f", {limits.seconds - trial.at:.0f} s left" if limits.seconds < 1e6 else ""
            count = f"{len(trials)} of {limits.builds} builds"
            status.update(f"tuning {job.program.name}: {said}{share}, {count}{left}")

        yield update


# --- what came out ---------------------------------------------------------------


def describe(job: Job, tuned: Tuned) -> dict[str, Any]:
    """The search as JSON values; times in microseconds."""
    first = job.space.groups[0].members[0]
    winner = tuned.winner
    return {
        "kernel": job.program.name,
        "sizes": dict(zip(job.program.dims, first.sizes, strict=True)),
        "arch": first.plan.arch,
        "device": first.device.name,
        "kernels": job.space.kernels,
        "binaries": len(job.space.groups),
        "bound": job.space.bound * 1e6,
        "ok": winner is not None,
        "schedule": None if winner is None else show_schedule(winner.kernel.request),
        "microseconds": None if winner is None else _micro(winner.result),
        "shrinkage": tuned.shrinkage,
        "gain": None if tuned.gain is None else asdict(tuned.gain),
        "stopped": tuned.stopped,
        "seconds": tuned.seconds,
        "trials": [_trial(job.space, t) for t in tuned.trials],
        "finals": [_final(f) for f in tuned.finals],
    }


def _trial(space: Space, trial: Trial) -> dict[str, Any]:
    group = space.groups[trial.group]
    row: dict[str, Any] = {"estimate": group.estimate * 1e6, "at": trial.at}
    if isinstance(trial.result, Failed):
        return row | {"schedule": show_schedule(group.request), "lost": asdict(trial.result)}
    member, seconds = trial.result.best
    kernel = group.members[member]
    return row | {"schedule": show_schedule(kernel.request), "microseconds": seconds * 1e6}


def _final(final: Final) -> dict[str, Any]:
    row: dict[str, Any] = {"schedule": show_schedule(final.kernel.request), "search": final.search * 1e6}
    if isinstance(final.result, Failed):
        return row | {"lost": asdict(final.result)}
    return row | {"microseconds": _micro(final.result)}


def _micro(seconds: float | Failed) -> float | None:
    return None if isinstance(seconds, Failed) else seconds * 1e6


def _keep(job: Job, shop: Live, winner: Final, limits: Limits, row: Mapping[str, Any]) -> str:
    """The record of a search, of its winner as the subject."""
    built = shop.built(winner.kernel)
    machine = Machine(**shop.machine)
    subject = subject_of_built(job.checked, job.program, built)
    protocol = {
        "clock": "events over graphs, rotated buffers", "final": "a fresh process, in turns, verified",
        "policy": row["policy"], "seed": row["seed"], "free": row["free"], "builds": limits.builds,
    }  # fmt: skip
    return Store.open().add(record("tune", subject, machine, protocol, json.loads(json.dumps(row))))


def _write(job: Job, winner: Final, as_json: bool) -> str:
    try:
        text = with_schedule(job.checked, job.program, job.sizes, winner.kernel, job.device)
    except NotWritten as problem:
        fail(Status.PROGRAM, str(problem), as_json)
    write(job.path, text)
    return str(job.path)


def _report(row: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(row, indent=2))
        return
    sizes = " ".join(f"{n}={v}" for n, v in row["sizes"].items())
    lines = [
        ("kernel", f"{row['kernel']} {sizes}"),
        ("space", f"{row['kernels']} kernels of {row['binaries']} binaries on {row['device']}"),
        ("stopped", f"{row['stopped']}, after {len(row['trials'])} builds in {row['seconds']:.1f} s"),
        *(("trial", f"{_said(t)}\t{t['schedule']}") for t in row["trials"]),
        *(("final", f"{_said(f)}\t{f['schedule']}") for f in row["finals"]),
    ]
    if row["ok"]:
        share = f", {row['bound'] / row['microseconds']:.0%} of the bound" if row["bound"] else ""
        lines.append(("winner", f"{row['microseconds']:.2f} us{share}"))
        lines.append(("schedule", f"{row['arch']} {{ {row['schedule']} }}"))
        lines.append(("shrinkage", f"{row['shrinkage']:.1%} of the search's speed was not confirmed"))
        if gain := row["gain"]:
            words = f"{gain['median']:.3f} [{gain['low']:.3f}, {gain['high']:.3f}] of the untuned time"
            lines.append(("gain", words))
        lines.append(("record", row["record"][:16]))
    else:
        lines.append(("winner", "none: no finalist ran and was right"))
    if "written" in row:
        lines.append(("written", row["written"]))
    show.table(("", ""), lines)


def _said(row: Mapping[str, Any]) -> str:
    if "lost" in row:
        return f"{row['lost']['stage']}: {row['lost']['words']}"
    return f"{row['microseconds']:.2f} us"


# --- replay ----------------------------------------------------------------------


def _replay(files: Sequence[Path], as_json: bool) -> None:
    try:
        lines = [replay.line(table) for path in files for table in recorded.read(path)]
    except recorded.NotATable as problem:
        fail(Status.CALL, str(problem), as_json)
    if not lines:
        fail(Status.CALL, "these files have no kernels of ours", as_json)
    if as_json:
        click.echo(json.dumps(replay.to_json(lines), indent=2))
        return
    counts = " ".join(f"{b:>5}" for b in replay.BUILDS)
    names = tuple(POLICIES)
    head = ("shape", "binaries", *(f"{n}, builds {counts}" for n in names), "guided stops at")
    rows = [
        (one.shape, str(one.binaries), *(_shares(one.shares[n]) for n in names),
         f"{one.builds} builds, {one.share:.1%}: {one.stopped}")
        for one in lines
    ]  # fmt: skip
    for file in dict.fromkeys(one.file for one in lines):
        rows += _totals(file, [one for one in lines if one.file == file])
    show.table(head, [head, *rows] if not Console().is_terminal else rows)


def _totals(file: str, lines: Sequence[replay.Line]) -> list[tuple[str, ...]]:
    """A file's mean, its worst shape, and how many shapes have what the tuner is held to."""
    names, total = tuple(POLICIES), replay.summary(lines)
    own = sum(one.share >= replay.ENOUGH for one in lines)
    enough = (" ".join(f"{c:>6}" for c in total.enough[n]) for n in names)
    return [
        (f"{file}: mean", "", *(_shares(total.mean[n]) for n in names), ""),
        (f"{file}: least", "", *(_shares(total.least[n]) for n in names), ""),
        (f"{file}: of {total.shapes} with {replay.ENOUGH:.0%}", "", *enough, f"{own} of {total.shapes}"),
    ]


def _shares(shares: Sequence[float]) -> str:
    return " ".join(f"{s:6.1%}" for s in shares)

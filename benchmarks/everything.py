"""Runs every benchmark that README and docs/measurements.md name, one after another, on a GPU machine.

    python -m benchmarks.everything --out DIR [--only speed,correctness+tests_verify] [--without mutants]
    python -m benchmarks.everything --out DIR --budget 540 --resume BEFORE --pack FILE.tar.gz
    python -m benchmarks.everything --list

Each step writes DIR/NAME.txt (its output) and files of its own beside it; DIR/state.json says how each
ended. One that fails or passes its limit loses only itself. Where machines are lent for minutes, `--budget`
gives the seconds of this call: what does not fit is left, and a later call goes on, with `--resume` naming
DIR, or the packed file, of the call before. `--pack` keeps DIR packed in one file, written anew every few
seconds, so that little is lost when the call is killed. Steps joined by `+` run side by side and share the
cores, which suits those that time nothing. Exit status 75 where steps are left, 1 where one failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Event, Thread

from benchmarks import budget
from benchmarks.budget import NEVER, OUT_OF_TIME, Deadline
from benchmarks.steps import STEPS, Step
from ucutlass.runtime.parallel import jobs
from ucutlass.runtime.switches import BUILD_JOBS, DATA_DIR

GRACE_SECONDS = 20.0
"""What a step may take beyond the seconds that it was given, before it is ended."""

PACK_SECONDS = 10.0
LARGEST = 8 << 20
"""Bytes: files beyond this are left out of the packed file, which says so."""

TAIL_LINES = 15


@dataclass(frozen=True, slots=True)
class Ended:
    """How a step ended. `status` is None where it passed its limit. `over` is False where it goes on, or
    begins anew, in another call. `seconds` counts all calls."""

    words: str
    status: int | None
    seconds: float
    over: bool


def run(step: Step, folder: Path, deadline: Deadline = NEVER, beside: int = 0) -> Ended:
    """Runs a step within its limit and the deadline; its output is added to a file. `beside` counts the
    steps that it shares the cores with."""
    start = time.monotonic()
    limit = min(float(step.most), deadline.left() - GRACE_SECONDS)
    command = [sys.executable, "-m", *step.arguments(folder, max(1, int(limit)))]
    more = {"PYTHONUNBUFFERED": "1"}
    if DATA_DIR not in os.environ:
        more[DATA_DIR] = str(folder.resolve() / "data")
    if beside and BUILD_JOBS not in os.environ:
        more[BUILD_JOBS] = str(max(1, jobs() // (beside + 1)))
    with (folder / f"{step.name}.txt").open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | more,
        )
        try:
            status: int | None = process.wait(limit + GRACE_SECONDS * step.goes_on)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _end(process)
    seconds = time.monotonic() - start
    match status:
        case 0:
            return Ended("done", 0, seconds, True)
        case None:
            return Ended(f"not done after {limit:.0f} s", None, seconds, False)
        case budget.OUT_OF_TIME:
            return Ended("stopped in time, goes on", status, seconds, False)
        case _:
            return Ended(f"exit status {status}", status, seconds, True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends what is left of the group of a process that leads one."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with suppress(subprocess.TimeoutExpired):
            process.wait(5.0)


def run_all(groups: Sequence[Sequence[Step]], folder: Path, deadline: Deadline) -> Mapping[str, Ended | None]:
    """Group after group, the steps of one side by side. How each step ended, by name; None where it was
    not begun."""
    state = read_state(folder)
    found: dict[str, Ended | None] = {}
    for group in groups:
        begun = []
        for step in group:
            before = found[step.name] = state.get(step.name)
            if before is not None and before.over:
                print(f"{step.name:14} {before.words}, in a call before", flush=True)
            elif deadline.left() < step.least:
                print(f"{step.name:14} left for another call: takes {step.least} s or more", flush=True)
            else:
                begun.append(step)
        for step, ended in _side_by_side(begun, folder, deadline):
            print(f"{step.name:14} {ended.words}, {ended.seconds:.0f} s", flush=True)
            print(_tail(folder / f"{step.name}.txt"), flush=True)
            before = state.get(step.name)
            total = ended.seconds + (before.seconds if before else 0.0)
            found[step.name] = state[step.name] = replace(ended, seconds=total)
            budget.write(folder / "state.json", {name: asdict(e) for name, e in state.items()})
    return found


def _side_by_side(group: Sequence[Step], folder: Path, deadline: Deadline) -> Iterator[tuple[Step, Ended]]:
    """As they end."""
    with ThreadPoolExecutor(max(1, len(group))) as pool:
        futures = {pool.submit(run, step, folder, deadline, len(group) - 1): step for step in group}
        for future in as_completed(futures):
            yield futures[future], future.result()


def read_state(folder: Path) -> dict[str, Ended]:
    path = folder / "state.json"
    if not path.exists():
        return {}
    return {name: Ended(**e) for name, e in json.loads(path.read_text(encoding="utf-8")).items()}


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 8192))
        lines = file.read().decode(errors="replace").splitlines()[-TAIL_LINES:]
    return "\n".join(f"    {line[:200]}" for line in lines)


# --- one file to carry ---------------------------------------------------------------


def pack(folder: Path, target: Path) -> None:
    """All files of the folder in one compressed archive, in place of the last one."""
    beside = target.with_name(f".{target.name}.new")
    with tarfile.open(beside, "w:gz") as archive:
        for path in sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith(".")):
            with suppress(FileNotFoundError):  # replaced meanwhile: the next packing has it
                if path.stat().st_size <= LARGEST:
                    archive.add(path, str(path.relative_to(folder)))
                else:
                    print(f"not packed, over {LARGEST >> 20} MiB: {path}", flush=True)
    beside.replace(target)


def keep_packed(folder: Path, target: Path, stop: Event) -> None:
    """Until `stop`, and once more then. A packing that fails is announced; the next one may do."""
    target.parent.mkdir(parents=True, exist_ok=True)
    last = False
    while not last:
        last = stop.wait(PACK_SECONDS)
        try:
            pack(folder, target)
        except OSError as error:
            print(f"not packed this time: {error}", flush=True)


def resume(before: Path, folder: Path) -> None:
    """Takes over the results of a call before: a folder, or a packed one."""
    if before.is_dir():
        shutil.copytree(before, folder, dirs_exist_ok=True)
    else:
        with tarfile.open(before) as archive:
            archive.extractall(folder, filter="data")


def main() -> int:
    options = _options()
    groups = _wanted(options)
    if options.list:
        for step in (step for group in groups for step in group):
            line = ("python -m", *step.arguments(options.out or Path("DIR"), step.most))
            print(f"{step.least:4} to {step.most:4} s  {' '.join(line)}")
        return 0
    deadline = budget.after(options.budget)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.resume is not None:
        resume(options.resume, options.out)
    stop = Event()
    packer = Thread(target=keep_packed, args=(options.out, options.pack, stop), daemon=True)
    if options.pack is not None:
        packer.start()
    try:
        ended = run_all(groups, options.out, deadline)
    finally:
        stop.set()
        if options.pack is not None:
            packer.join()
    if left := [name for name, e in ended.items() if e is None or not e.over]:
        print("left for another call:", *left)
        return OUT_OF_TIME
    return 0 if all(e and e.status == 0 for e in ended.values()) else 1


def _options() -> argparse.Namespace:
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--only", default="", help="names, separated by commas, run in this order; a+b: side by side"
    )
    parser.add_argument("--without", default="", help="names, separated by commas")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="for all of this call")
    parser.add_argument("--resume", type=Path, help="DIR or packed file of a call before")
    parser.add_argument("--pack", type=Path, metavar="FILE", help="keep DIR packed in this .tar.gz file")
    parser.add_argument("--list", action="store_true", help="print the commands and run nothing")
    options = parser.parse_args()
    if unknown := {*_names(options.only), *_names(options.without)} - {s.name for s in STEPS}:
        parser.error(f"no step is named {', '.join(sorted(unknown))}")
    if options.out is None and not options.list:
        parser.error("--out DIR is needed, or --list")
    return options


def _names(text: str) -> list[str]:
    return [name for name in text.replace("+", ",").split(",") if name]


def _wanted(options: argparse.Namespace) -> list[list[Step]]:
    steps = {s.name: s for s in STEPS}
    without = _names(options.without)
    chosen = options.only.split(",") if options.only else list(steps)
    return [[steps[name] for name in _names(group) if name not in without] for group in chosen]


if __name__ == "__main__":
    sys.exit(main())

"""Programs through the front end: each of check, fmt, explain, emit and sol ends in a result or in
diagnostics, within its processor time and memory.

    python -m tests.fuzz.fuzz --count 50000 --seed 0

A case is made from its seed alone: a failure is repeated by `--seed SEED --count 1`. Of every 20 seeds ten
are programs with mutations, nine are drawn by the grammar, and one is made large. Of small programs every
tenth goes through `explain`, `emit` and `sol`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from tests.fuzz.grammar import FEATURES, drawn
from tests.fuzz.mutations import LARGEST, amplified, mutated
from ucutlass import files, frontend, ir
from ucutlass.cli import main as command_line
from ucutlass.codes import CODES
from ucutlass.diagnostics import ProgramError
from ucutlass.frontend import Checked
from ucutlass.grammar import problems
from ucutlass.grammar.format import format_file
from ucutlass.grammar.parse import SyntaxProblem, check_length, decode, parse
from ucutlass.ir.hardware import ARCHES
from ucutlass.kernels.families import RULES
from ucutlass.limits import Effort
from ucutlass.shapes import complete, free_dims
from ucutlass.typical_sizes import typical_sizes

__all__ = [
    "HANG_SECONDS",
    "LARGEST",
    "SECONDS",
    "TooSlow",
    "check",
    "judge",
    "mutated",
    "processor_time",
    "program_of",
    "tally",
]

SECONDS = 2.0
"""Processor time that each command may take for one program."""

HANG_SECONDS = 60.0
"""The same for tests, which find hangs: on a machine that other work shares, the time of a step doubles."""

BYTES = 500 << 20
"""Memory that a worker's process may grow by for one program."""

WALL_SECONDS = 60.0
"""A worker that says nothing for so long hangs where no signal reaches: it is killed."""

EXTENTS = (1, 1, 2, 3, 7, 8, 16, 64, 100, 128, 129, 255, 1000, 1024, 4096, 8205, 65536, 2**31, 2**40)

KNOWN = frozenset(
    [*CODES, *(rule.code for rule in RULES)]
    + [v for k, v in vars(problems).items() if k.isupper() and isinstance(v, str)]
)
"""Every code that a diagnostic may have."""

EVERY = 10
"""Of small programs, every so many go through `explain`, `emit` and `sol`."""


@dataclass(frozen=True, slots=True)
class Program:
    """A case before it is judged."""

    kind: str
    data: bytes
    reached: Counter[str]

    @property
    def large(self) -> bool:
        return self.kind == "made large"


def program_of(seed: int) -> Program:
    if seed % 20 == 19:
        return Program("made large", amplified(seed), Counter())
    if seed % 2:
        program = drawn(seed)
        return Program("drawn", program.text.encode(), Counter(program.reached))
    return Program("mutated", mutated(seed), Counter())


# --- limits ------------------------------------------------------------------------


class TooSlow(Exception):
    """A step took more processor time than it may."""


class TooMuchMemory(Exception):
    """A step took more memory than it may."""


class Wrong(Exception):
    """A step ended in no way that is documented."""


@contextmanager
def processor_time(seconds: float) -> Iterator[None]:
    """Raises TooSlow in the body once it has used so much processor time. Main thread only."""

    def stop(signum: int, frame: object) -> None:
        raise TooSlow(f"more than {seconds:g} s of processor time")

    previous = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


# --- one case ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """What became of one program: how each step ended, the longest processor time of one, whether it is
    valid: it has a meaning and its schedules are legal."""

    kind: str
    ends: tuple[str, ...]
    seconds: float
    valid: bool
    reached: Counter[str]


@dataclass(slots=True)
class _Steps:
    """Runs steps within their limits. `allowed` is the processor time of each."""

    allowed: float
    ends: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def run(self, name: str, step: Callable[[], str]) -> str:
        before, start = _peak(), time.process_time()
        try:
            with processor_time(self.allowed):
                end = step()
        except TooSlow as problem:
            raise TooSlow(f"{name}: {problem}") from None
        self.seconds = max(self.seconds, time.process_time() - start)
        if _peak() - before > BYTES:
            raise TooMuchMemory(f"{name}: more than {BYTES} bytes")
        self.ends.append(f"{name} {end}")
        return end


def judge(seed: int, seconds: float = SECONDS) -> Case:
    """Puts case `seed` through every step.

    Raises whatever a step raises that is not its refusal, TooSlow, TooMuchMemory, or Wrong.
    """
    case = program_of(seed)
    steps = _Steps(seconds)
    steps.run("fmt", lambda: _fmt(case.data))
    checked: list[Checked] = []
    end = steps.run("check", lambda: check(case.data, checked))
    if checked and (case.large or seed // 2 % EVERY == 0):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "k.ucu"
            files.put(path, case.data)
            _commands(seed, case, checked[0], path, steps)
    return Case(case.kind, tuple(steps.ends), steps.seconds, end == "done", case.reached)


_MOST_PROGRAMS = 3
"""Of a file with more, so many drawn ones are explained, emitted and bounded."""


def _commands(seed: int, case: Program, checked: Checked, path: Path, steps: _Steps) -> None:
    r = random.Random(seed)
    if case.large:
        steps.run("check command", lambda: _command("check", [str(path)]))
    programs = checked.module.programs
    for program in r.sample(programs, min(len(programs), _MOST_PROGRAMS)):
        sizes = _sizes(program, r)
        extents = ",".join(f"{n}={v}" for n, v in sizes.items())
        arguments = ["-k", program.name, *(["-s", extents] if sizes else [])]
        target = ["--arch", r.choice(tuple(ARCHES))]
        if isinstance(program, ir.Kernel):
            steps.run("emit", lambda g=arguments, t=target: _command("emit", [str(path), *g, *t]))  # type: ignore[misc]
        steps.run("explain", lambda g=arguments, t=target: _command("explain", [str(path), *g, *t]))  # type: ignore[misc]
        steps.run("sol", lambda g=arguments: _command("sol", [str(path), *g, "--device", "H200"]))  # type: ignore[misc]


def _sizes(program: ir.Program, r: random.Random) -> dict[str, int]:
    """Ordinary extents half of the time, else any."""
    if r.random() < 0.5 and (ordinary := typical_sizes(program, None, Effort())) is not None:
        known = dict(zip(program.dims, ordinary, strict=True))
        return {name: known[name] for name in free_dims(program)}
    return {name: r.choice(EXTENTS) for name in free_dims(program)}


_CODE = re.compile(r"\[(UC\d{4})\]")


def _command(name: str, arguments: Sequence[str]) -> str:
    """How a command ended. Raises Wrong for an end without a known code, and what it raised."""
    result = CliRunner().invoke(command_line, [name, *arguments], catch_exceptions=False)
    if result.exit_code == 0:
        return "done" if result.output else "empty"
    codes = set(_CODE.findall(result.output))
    if not codes or not codes <= KNOWN or result.exit_code not in (1, 2):
        raise Wrong(f"{name} ended with {result.exit_code} and the codes {sorted(codes)}")
    return "refused"


def _fmt(data: bytes) -> str:
    try:
        tree = parse(decode(data))
        text = format_file(tree)
        check_length(text)
    except SyntaxProblem as problem:
        assert problem.problems
        return "refused"
    again = parse(text)
    assert again == tree, "the canonical text means something else"
    assert format_file(again) == text, "the canonical text is not in canonical form"
    return "done"


def check(data: bytes, checked: list[Checked]) -> str:
    """`done`, `typed` for a program whose schedules or family are refused, `refused` for one without a
    meaning; what was read is appended to `checked`."""
    try:
        source = frontend.read_text(frontend.decoded(data, "<fuzz>"), "<fuzz>")
    except ProgramError as problem:
        assert problem.diagnostics
        assert {d.code for d in problem.diagnostics} <= KNOWN
        assert str(problem)
        return "refused"
    checked.append(source)
    refused = False
    work = Effort()
    for program in source.module.programs:
        if isinstance(program, ir.Kernel):
            try:
                refused |= bool(frontend.check_schedules(source, program, work))
            except ProgramError:
                refused = True
    return "typed" if refused else "done"


# --- many cases --------------------------------------------------------------------


@dataclass(slots=True)
class Tally:
    """Of many cases: how steps ended, failures by seed, the slowest step, how many of each kind there were
    and were valid, what was reached."""

    ends: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)
    slowest: tuple[float, int] = (0.0, 0)
    kinds: Counter[str] = field(default_factory=Counter)
    valid: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)

    def add(self, row: dict[str, Any]) -> None:
        """What a worker said of one case."""
        if "failure" in row:
            self.failures.append((row["seed"], row["failure"]))
            return
        self.ends.update(row["ends"])
        self.slowest = max(self.slowest, (row["seconds"], row["seed"]))
        self.kinds[row["kind"]] += 1
        self.valid[row["kind"]] += row["valid"]
        self.reached.update(row["reached"])


_LONGEST = 2_000
"""Characters of a failure's words."""


def _row(seed: int, seconds: float = SECONDS) -> dict[str, Any]:
    try:
        case = judge(seed, seconds)
    except Exception as error:  # whatever escapes is the finding
        words = "".join(traceback.format_exception(error, limit=-2, chain=False))
        return {"seed": seed, "failure": words[:_LONGEST]}
    return {
        "seed": seed,
        "kind": case.kind,
        "ends": case.ends,
        "seconds": case.seconds,
        "valid": case.valid,
        "reached": dict(case.reached),
    }


def tally(start: int, count: int, seconds: float = SECONDS) -> Tally:
    """Judges the cases `start` to `start + count - 1` in this process."""
    counts = Tally()
    for seed in range(start, start + count):
        counts.add(_row(seed, seconds))
    return counts


# --- workers -----------------------------------------------------------------------


@dataclass(slots=True)
class _Worker:
    """A process that judges seeds one after the other, and says so line by line."""

    pid: int
    pipe: int
    next: int
    stop: int
    heard: float
    rest: bytes = b""


def _start(start: int, stop: int) -> _Worker:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        _work(start, stop, write_end)
    os.close(write_end)
    return _Worker(pid, read_end, start, stop, time.monotonic())


def _work(start: int, stop: int, pipe: int) -> None:
    """In the worker: never returns."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    mapped = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (mapped + 4 * BYTES, mapped + 4 * BYTES))
    for seed in range(start, stop):
        line = json.dumps(_row(seed)).encode() + b"\n"
        while line:
            line = line[os.write(pipe, line) :]
    os._exit(0)


def _hear(worker: _Worker, counts: Tally) -> bool:
    """Reads what a worker said; False once it has ended."""
    block = os.read(worker.pipe, 1 << 16)
    worker.rest += block
    *lines, worker.rest = worker.rest.split(b"\n")
    for line in lines:
        counts.add(json.loads(line))
        worker.next, worker.heard = worker.next + 1, time.monotonic()
    return bool(block)


def _end(worker: _Worker, counts: Tally, why: str) -> _Worker | None:
    """Ends a worker; where it has not judged all, its seed is a failure and another goes on behind it."""
    os.kill(worker.pid, signal.SIGKILL)
    _, status = os.waitpid(worker.pid, 0)
    os.close(worker.pipe)
    if worker.next >= worker.stop:
        return None
    counts.failures.append((worker.next, why or f"the worker ended with status {status}"))
    return _start(worker.next + 1, worker.stop) if worker.next + 1 < worker.stop else None


_CHUNK = 250


def run(start: int, count: int, jobs: int) -> Tally:
    """Judges cases in so many processes, which a hang cannot stop."""
    counts = Tally()
    chunks = [(at, min(at + _CHUNK, start + count)) for at in range(start, start + count, _CHUNK)]
    working: dict[int, _Worker] = {}
    while chunks or working:
        while chunks and len(working) < jobs:
            worker = _start(*chunks.pop(0))
            working[worker.pipe] = worker
        ready, _, _ = select.select(list(working), [], [], 1.0)
        late = time.monotonic() - WALL_SECONDS
        silent = [p for p, w in working.items() if w.heard < late and p not in ready]
        ended = [p for p in ready if not _hear(working[p], counts)]
        for pipe in (*ended, *silent):
            why = f"nothing was heard for {WALL_SECONDS:g} s" if pipe in silent else ""
            if (other := _end(working.pop(pipe), counts, why)) is not None:
                working[other.pipe] = other
    return counts


@cache
def warm() -> None:
    """Imports what the commands import at their first call, so that no case is charged with it."""
    import torch

    torch.set_num_threads(1)
    text = "kernel k(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return dot[K](x, w) }\n"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "k.ucu"
        files.put(path, text)
        for name in ("emit", "explain", "sol"):
            _command(name, [str(path), "-s", "M=64,N=64,K=64"])
    checked = frontend.read_text(text)
    complete(checked.module.programs[0], {"M": 1, "N": 1, "K": 1})


def _kinds(failures: Sequence[tuple[int, str]]) -> dict[str, list[int]]:
    """Seeds by what failed, the words of a failure being its place and its exception."""
    kinds: dict[str, list[int]] = {}
    for seed, words in failures:
        kinds.setdefault(words, []).append(seed)
    return kinds


def _report(counts: Tally, start: int, count: int) -> None:
    print(f"programs\t{count}, seeds {start} to {start + count - 1}")
    for kind, number in sorted(counts.kinds.items()):
        print(f"{kind}\t{number}, {counts.valid[kind]} of them valid")
    for end, number in sorted(counts.ends.items()):
        print(f"{end}\t{number}")
    for feature in FEATURES:
        print(f"reached\t{feature}\t{counts.reached[feature]}")
    print(f"slowest step\t{counts.slowest[0]:.3f} s of processor time, seed {counts.slowest[1]}")
    print(f"failures\t{len(counts.failures)}")
    for words, numbers in _kinds(counts.failures).items():
        print(f"\n{len(numbers)} of seeds {', '.join(map(str, numbers[:8]))}:\n{words}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=50_000, help="programs")
    parser.add_argument("--seed", type=int, default=0, help="number of the first case")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    options = parser.parse_args()
    warm()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["UCUTLASS_DATA_DIR"] = os.environ["UCUTLASS_CACHE_DIR"] = folder
        counts = run(options.seed, options.count, options.jobs)
    _report(counts, options.seed, options.count)
    print(f"wall time\t{time.monotonic() - began:.0f} s in {options.jobs} processes")
    return 1 if counts.failures else 0


if __name__ == "__main__":
    sys.exit(main())

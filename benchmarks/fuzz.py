"""Mutated programs through the front end: they end in a result or in diagnostics, soon.

    python -m benchmarks.fuzz --count 50000 --seed 0

A case is made from its seed alone: a failure is repeated by `--seed SEED --count 1`.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path

from benchmarks.random_programs import random_program
from ucutlass import frontend, ir
from ucutlass.backend import source_of
from ucutlass.diagnostics import ProgramError
from ucutlass.frontend import Checked
from ucutlass.grammar.format import format_file
from ucutlass.grammar.parse import SyntaxProblem, decode, parse
from ucutlass.hardware import ARCHES
from ucutlass.schedule import FIELDS
from ucutlass.shapes import ShapeError, complete, free_dims

ROOT = Path(__file__).parent.parent
LARGEST = 64 * 1024
"""Bytes of a mutated program at most."""

SECONDS = 2.0
"""Processor time that each of check, fmt and emit may take for one program."""

EXTENTS = (1, 1, 2, 3, 7, 8, 16, 64, 100, 128, 129, 255, 1000, 1024, 4096, 8205, 65536, 2**31, 2**40)

_TOKEN = re.compile(rb"#[^\n]*|[A-Za-z_]\w*|\d[\w.]*|->|//|[=<>!]=|\s+|.", re.DOTALL)
_BYTES = b"()[]{}=:,.+-*/%#@|<>! \n\t\0\xff\xc3\x1babcxKM0129e_"
_LINES = tuple(f"  schedule sm90a {{ {name} {value} }}\n".encode() for name in FIELDS for value in (
    "auto", "1", "4", "64x64", "128x256x64", "0", "99999999999", "1x1x1", *FIELDS[name].words,
))


@cache
def seeds() -> tuple[bytes, ...]:
    """The programs that are mutated."""
    found = sorted([*(ROOT / "examples" / "tasks").glob("*.ucu"), *(ROOT / "examples").glob("*.ucu")])
    return tuple(path.read_bytes() for path in found)


@cache
def _words() -> tuple[bytes, ...]:
    return tuple(sorted(set(chain.from_iterable(_TOKEN.findall(text) for text in seeds()))))


def mutated(seed: int) -> bytes:
    """Case number `seed`: a program of the repository, or a random one over the whole schedule and
    epilogue space, with a few changes to its tokens, lines or bytes."""
    r = random.Random(seed)
    sound = r.random() < 0.3
    data = random_program(seed).text.encode() if sound else r.choice(seeds())
    for _ in range(r.choice((0, 1) if sound else (1, 1, 1, 1, 2, 2, 3, 5, 12))):
        data = r.choice(_MUTATIONS)(data, r)[:LARGEST]
    return data


def _tokens(data: bytes, r: random.Random) -> bytes:
    tokens: list[bytes] = _TOKEN.findall(data)
    if not tokens:
        return r.choice(_words())
    at, other = r.randrange(len(tokens)), r.randrange(len(tokens))
    match r.randrange(5):
        case 0:
            del tokens[at]
        case 1:
            tokens.insert(at, r.choice(_words()))
        case 2:
            tokens[at] = r.choice(_words())
        case 3:
            tokens[at], tokens[other] = tokens[other], tokens[at]
        case _:
            tokens[at] = tokens[other]
    return b"".join(tokens)


def _names(data: bytes, r: random.Random) -> bytes:
    """One word becomes another wherever it stands: what is left mostly parses."""
    words = sorted(set(re.findall(rb"[A-Za-z_]\w*", data)))
    if not words:
        return data
    return re.sub(rb"\b" + r.choice(words) + rb"\b", r.choice(words), data)


def _numbers(data: bytes, r: random.Random) -> bytes:
    numbers = list(re.finditer(rb"\d+", data))
    if not numbers:
        return data
    found = r.choice(numbers)
    other = str(r.choice((0, 1, 2, 3, 7, 64, 255, 256, 2**31, 2**63 - 1, 2**63, 10**30))).encode()
    return data[: found.start()] + other + data[found.end() :]


def _schedule(data: bytes, r: random.Random) -> bytes:
    at = data.rfind(b"}")
    return data[:at] + b"".join(r.choice(_LINES) for _ in range(r.randint(1, 3))) + data[at:]


def _bytes(data: bytes, r: random.Random) -> bytes:
    at = r.randrange(len(data) + 1)
    return data[:at] + bytes(r.choice(_BYTES) for _ in range(r.randint(0, 4))) + data[at + r.randint(0, 3) :]


def _splice(data: bytes, r: random.Random) -> bytes:
    other = r.choice(seeds())
    return data[: r.randrange(len(data) + 1)] + other[r.randrange(len(other)) :]


def _grow(data: bytes, r: random.Random) -> bytes:
    """A piece many times over: deep nesting, long sums, many items."""
    start = r.randrange(len(data) + 1)
    piece = data[start : start + r.choice((1, 2, 5, 20, 200))]
    return data[:start] + piece * r.choice((2, 10, 100, 3000)) + data[start + len(piece) :]


_MUTATIONS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _tokens, _tokens, _tokens, _names, _names, _numbers, _numbers, _schedule, _bytes, _splice, _grow,
)


class TooSlow(Exception):
    """A step took more processor time than it may."""


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


@dataclass(frozen=True, slots=True)
class Case:
    """What became of one program: `check`, `fmt` and one `emit` a kernel with how each ended, and
    the longest processor time of a step."""

    ends: tuple[str, ...]
    seconds: float


def judge(seed: int, seconds: float = SECONDS) -> Case:
    """Puts case `seed` through every step.

    Raises whatever a step raises that is not its refusal, TooSlow, or AssertionError where the
    canonical text does not keep its form.
    """
    data = mutated(seed)
    times: list[float] = []

    def timed(step: Callable[[], str]) -> str:
        start = time.process_time()
        with processor_time(seconds):
            end = step()
        times.append(time.process_time() - start)
        return end

    ends = [timed(lambda: f"fmt {_fmt(data)}")]
    checked: list[Checked] = []
    ends.append(timed(lambda: f"check {check(data, checked)}"))
    r = random.Random(seed)
    for found in checked:
        for program in found.module.programs:
            if isinstance(program, ir.Kernel):
                given = {name: r.choice(EXTENTS) for name in free_dims(program)}
                arch = r.choice(tuple(ARCHES))
                ends.append(timed(lambda f=found, p=program, g=given, a=arch: f"emit {_emit(f, p, g, a)}"))  # type: ignore[misc]
    return Case(tuple(ends), max(times))


def _fmt(data: bytes) -> str:
    try:
        text = format_file(parse(decode(data)))
    except SyntaxProblem as problem:
        assert problem.problems
        return "refused"
    assert format_file(parse(text)) == text, "the canonical text is not in canonical form"
    return "done"


def check(data: bytes, checked: list[Checked]) -> str:
    try:
        found = frontend.read_text(frontend.decoded(data, "<fuzz>"), "<fuzz>")
    except ProgramError as problem:
        assert problem.diagnostics
        return "refused"
    checked.append(found)
    refused = False
    for program in found.module.programs:
        if isinstance(program, ir.Kernel):
            try:
                refused |= bool(frontend.check_schedules(found, program))
            except ProgramError:
                refused = True
    return "typed" if refused else "done"


def _emit(checked: Checked, program: ir.Kernel, given: dict[str, int], arch: str) -> str:
    try:
        chosen = frontend.plan_kernel(checked, program, complete(program, given), arch)
    except (ProgramError, ShapeError):
        return "refused"
    return "done" if source_of(checked, program, chosen.planned).text else "empty"


@dataclass(frozen=True, slots=True)
class Tally:
    """Of a range of cases: how steps ended, failures by seed, the slowest step."""

    ends: Counter[str]
    failures: tuple[tuple[int, str], ...]
    slowest: tuple[float, int]


def tally(start: int, count: int) -> Tally:
    """Judges the cases `start` to `start + count - 1`."""
    ends: Counter[str] = Counter()
    failures: list[tuple[int, str]] = []
    slowest = (0.0, start)
    for seed in range(start, start + count):
        try:
            case = judge(seed)
        except Exception:  # whatever escapes is the finding
            failures.append((seed, traceback.format_exc(limit=-2)))
            continue
        ends.update(case.ends)
        slowest = max(slowest, (case.seconds, seed))
    return Tally(ends, tuple(failures), slowest)


def _kinds(failures: list[tuple[int, str]]) -> dict[str, list[int]]:
    """Seeds by what failed, the words of a failure being its place and its exception."""
    kinds: dict[str, list[int]] = {}
    for seed, words in failures:
        kinds.setdefault(words, []).append(seed)
    return kinds


_CHUNK = 250


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=50_000, help="programs")
    parser.add_argument("--seed", type=int, default=0, help="number of the first case")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    asked = parser.parse_args()
    starts = range(asked.seed, asked.seed + asked.count, _CHUNK)
    counts = [min(_CHUNK, asked.seed + asked.count - start) for start in starts]
    began = time.monotonic()
    with ProcessPoolExecutor(asked.jobs) as pool:
        tallies = list(pool.map(tally, starts, counts))
    ends = sum((t.ends for t in tallies), Counter[str]())
    failures = [f for t in tallies for f in t.failures]
    slowest, seed = max(t.slowest for t in tallies)
    print(f"programs\t{asked.count}, seeds {asked.seed} to {asked.seed + asked.count - 1}")
    for end, count in sorted(ends.items()):
        print(f"{end}\t{count}")
    print(f"slowest step\t{slowest:.3f} s of processor time, seed {seed}")
    print(f"wall time\t{time.monotonic() - began:.0f} s in {asked.jobs} processes")
    print(f"failures\t{len(failures)}")
    for words, numbers in _kinds(failures).items():
        print(f"\n{len(numbers)} of seeds {', '.join(map(str, numbers[:8]))}:\n{words}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

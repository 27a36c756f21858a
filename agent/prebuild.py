"""Builds what is proposed before its turn to be judged comes: compilers work while the GPU does.

A judge takes one program after the other, since one program at a time holds the GPU lock. What an answer proposes is known at
once, so its builds begin at once, on as many cores as there are; the judge then waits for the one at hand and
finds it in the cache. A build that fails here fails again where it is judged, and is told there.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Lock

from ucutlass import frontend
from ucutlass.agent.batch import ProblemOf
from ucutlass.agent.candidate_text import candidate_text
from ucutlass.agent.dialogue import WRITERS
from ucutlass.agent.imported_start import ImportedStart
from ucutlass.agent.outcome import FailedOutcome, RefusedOutcome
from ucutlass.agent.problem import OptimizationProblem, candidate_of
from ucutlass.agent.proposer import Answer, OnSpend, Proposer
from ucutlass.agent.session import Ask, SessionState, due
from ucutlass.assembly import build_program
from ucutlass.diagnostics import ProgramError
from ucutlass.ir.hardware import Device
from ucutlass.runtime.errors import BuildError
from ucutlass.runtime.progress import Progress
from ucutlass.shapes import ShapeError, complete
from ucutlass.spans import span


@contextmanager
def builder_pool(count: int) -> Iterator[Executor]:
    """Gives a pool of so many builds at once. At the end what is under way ends, and nothing else begins."""
    pool = ThreadPoolExecutor(max(1, count), thread_name_prefix="ucutlass-ahead")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


class ReadAhead:
    """Reads problems by name, each in processes of its own: those that are asked for at once, and `count` names
    further in the sequence once `go_on` says that one has its verdict, for which a reading would have used the GPU."""

    def __init__(self, count: int, pool: Executor, names: Sequence[str], problem_of: ProblemOf) -> None:
        self._count, self._pool, self._names, self._problem_of = count, pool, names, problem_of
        self._futures: dict[str, Future[OptimizationProblem]] = {}
        self._read_names: set[str] = set()
        self._lock = Lock()

    def problem_of(self, name: str) -> OptimizationProblem:
        """Waits for a problem, which is read now unless that was begun. Raises as whoever reads it."""
        try:
            with span("problem"):
                return self._begin(name).result()
        finally:
            with self._lock:
                self._read_names.add(name)
                self._futures.pop(name, None)

    def go_on(self, name: str) -> None:
        """Begins to read the names that follow."""
        at = self._names.index(name) + 1 if name in self._names else 0
        for later in self._names[at : at + self._count]:
            if later not in self._read_names:
                self._begin(later)

    def _begin(self, name: str) -> Future[OptimizationProblem]:
        with self._lock:
            if name not in self._futures:
                self._futures[name] = self._pool.submit(self._problem_of, name)
            return self._futures[name]


@contextmanager
def read_ahead(count: int) -> Iterator[Callable[[Sequence[str], ProblemOf], ReadAhead]]:
    """Gives what reads so many names ahead. At the end what is under way ends."""
    pool = ThreadPoolExecutor(max(1, count), thread_name_prefix="ucutlass-read")
    try:
        yield lambda names, problem_of: ReadAhead(count, pool, names, problem_of)
    finally:
        pool.shutdown(cancel_futures=True)


@dataclass(slots=True)
class BuildCounter:
    """Counts what compilers did: what was built (a kernel, or the parts of one that is built in parts), what
    the cache had, and the compilers' seconds by the clock."""

    built: int = 0
    cached: int = 0
    seconds: float = 0.0
    _lock: Lock = field(default_factory=Lock)

    def __call__(self, event: Progress) -> None:
        with self._lock:
            self.built += event.kind == "built"
            self.cached += event.kind == "cached"
            if event.kind == "built":
                self.seconds += event.seconds or 0.0


def start_builder(
    arch: str, device: Device | None, pool: Executor, counted: BuildCounter
) -> Callable[[ImportedStart], None]:
    """Returns what begins to build a module's first program once the importer wrote it, while what the module
    computes is still looked at. Its text fixes its extents; the judge then finds it in the cache."""

    def build(start: ImportedStart) -> None:
        checked = candidate_text(start.text).program
        with suppress(ProgramError, ShapeError, BuildError):
            if checked is not None:
                program = frontend.program(checked, start.program)
                sizes = complete(program, {})
                build_program(checked, program, sizes, arch, device=device, on_progress=counted)

    def begin(start: ImportedStart) -> None:
        if start.text:
            pool.submit(build, start)

    return begin


@dataclass(frozen=True, slots=True)
class Prebuilder:
    """Builds of one problem's candidates on `pool`, which sessions may share."""

    problem: OptimizationProblem
    device: Device | None
    pool: Executor
    counted: BuildCounter = field(default_factory=BuildCounter)
    _begun: dict[str, Future[None]] = field(default_factory=dict)

    def begin(self, texts: Sequence[str]) -> None:
        """Begins to build programs, in this order; an empty text is none."""
        for text in texts:
            if text and text not in self._begun:
                self._begun[text] = self.pool.submit(self._build, text)

    def wait(self, text: str) -> None:
        """Waits until the build of a program that was begun has ended. Raises MachineError: a compiler that
        is missing."""
        begun = self._begun.get(text)
        if begun is not None:
            with span("build"):
                begun.result()

    def _build(self, text: str) -> None:
        candidate = candidate_of(self.problem, text)
        if isinstance(candidate, RefusedOutcome):
            return  # the judge says so, here and below
        with suppress(ProgramError, ShapeError, BuildError):
            sizes = complete(candidate.program, candidate.sizes)
            build_program(
                candidate.checked,
                candidate.program,
                sizes,
                self.problem.arch,
                device=self.device,
                on_progress=self.counted,
            )

    def proposer(self, inner: Proposer) -> Proposer:
        return _PrebuildingProposer(inner, self.begin)


def guess_answer(state: SessionState, proposer: Proposer) -> Callable[[], None]:
    """Returns what asks a proposer for the answer that is likely to be due next, whatever becomes of the
    programs that wait to be judged: it may run in another thread, since it has a copy of the state."""
    guess = copy.deepcopy(state)
    for judge in guess.pending:
        unknown = FailedOutcome("run", "it was not judged yet")
        guess.tree.add(judge.parent, f"pending:{judge.call}:{judge.index}", judge.text, judge.why, unknown)
    guess.pending, guess.tree.provisional = [], set()

    def ask() -> None:
        next_step = due(guess)
        if isinstance(next_step, Ask) and next_step.role in WRITERS:
            proposer.propose(next_step, guess, lambda _: None)

    return ask


@dataclass(frozen=True, slots=True)
class _PrebuildingProposer:
    inner: Proposer
    begin: Callable[[Sequence[str]], None]

    def propose(self, ask: Ask, state: SessionState, on_spend: OnSpend) -> Answer:
        answer = self.inner.propose(ask, state, on_spend)
        keep, most = state.settings.keep, state.settings.budget.attempts
        left = keep if most is None else max(0, most - state.spend.attempts)
        self.begin([p.text for p in answer.programs[: min(keep, left)] if not p.source])
        return answer

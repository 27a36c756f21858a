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


@contextmanager
def read_ahead(count: int) -> Iterator[Callable[[Sequence[str], ProblemOf], ProblemOf]]:
    """Gives what makes of problems by name such that `count` names further in the sequence are read before they
    are asked for, each in processes of its own, once the one that is asked for was read.
    At the end what is under way ends."""
    pool = ThreadPoolExecutor(max(1, count), thread_name_prefix="ucutlass-read")
    futures: dict[str, Future[OptimizationProblem]] = {}
    read_names: set[str] = set()
    lock = Lock()

    def ahead(names: Sequence[str], problem_of: ProblemOf) -> ProblemOf:
        def read(name: str) -> OptimizationProblem:
            at = names.index(name) if name in names else 0
            try:
                with span("problem"):
                    return begin(name).result()
            finally:
                with lock:
                    read_names.add(name)
                    del futures[name]
                for later in names[at + 1 : at + 1 + count]:
                    if later not in read_names:
                        begin(later)

        def begin(name: str) -> Future[OptimizationProblem]:
            with lock:
                if name not in futures:
                    futures[name] = pool.submit(problem_of, name)
                return futures[name]

        return read

    try:
        yield ahead
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

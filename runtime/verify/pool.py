"""Judges cases in processes that may be lost: a hang, a crash or a broken context costs one case.

One process judges case after case; where it is lost, the case that it was at is, too, and the next
one begins in a fresh process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from ucutlass.runtime import isolation
from ucutlass.runtime.verify.batch import as_json, read_journal
from ucutlass.runtime.verify.evidence import CaseResult
from ucutlass.runtime.verify.suite import VerifyCase

START_SECONDS = 300.0
"""What a fresh process may take before its first case: importing torch, a CUDA context, a kernel's
library."""

MOST_LOSSES = 6
"""Lost cases after which the rest is not run: a kernel that loses this many needs no more."""


def run(
    target: str,
    shared: Mapping[str, Any],
    cases: Sequence[VerifyCase],
    *,
    case_seconds: float = 120.0,
    start_seconds: float = START_SECONDS,
    memory_bytes: int | None = None,
    most_losses: int = MOST_LOSSES,
    on_result: Callable[[CaseResult], None] = lambda _: None,
    call: isolation.IsolatedCall | None = None,
) -> tuple[CaseResult, ...]:
    """Returns a result for every case, in order. `target` (`package.module:function`) takes `shared` and the
    keywords `cases`, `journal` and `case_seconds`, and calls `batch.judge_all` with them; it should end
    itself by SIGALRM where it takes longer than `start_seconds` to get there. `call` starts the processes, by
    default `isolation.run`."""
    call = isolation.run if call is None else call
    rest = list(cases)
    results: list[CaseResult] = []
    losses = 0

    def add(result: CaseResult) -> None:
        results.append(result)
        on_result(result)

    with tempfile.TemporaryDirectory(prefix="ucutlass-verify-") as folder:
        while rest:
            journal = Path(folder) / f"{len(results)}.jsonl"
            outcome = call(
                target,
                {
                    **shared,
                    "cases": [as_json(c) for c in rest],
                    "journal": str(journal),
                    "case_seconds": case_seconds,
                },
                limit_seconds=start_seconds + case_seconds * len(rest),
                memory_bytes=memory_bytes,
            )
            ended, begun = read_journal(journal, rest)
            ended_count = next(number for number in count() if number not in ended)
            for number in range(ended_count):
                add(ended[number])
                losses += ended[number].outcome == "lost"
            if ended_count in begun:
                add(CaseResult(rest[ended_count], "lost", None, _how(outcome, case_seconds)))
                losses, ended_count = losses + 1, ended_count + 1
            rest = rest[ended_count:]
            if ended_count == 0 or (losses >= most_losses and rest):
                why = (
                    _how(outcome, start_seconds)
                    if ended_count == 0
                    else f"{losses} cases before it were lost"
                )
                for case in rest:
                    add(CaseResult(case, "not run", None, why))
                break
    return tuple(results)


def _how(outcome: isolation.CallOutcome, limit: float) -> str:
    match outcome:
        case isolation.Crashed("SIGALRM"):
            return f"it did not end within {limit:g} s and was killed"
        case isolation.Returned():
            return "its process ended without a word about it"
        case isolation.Raised():
            return isolation.failure_text(outcome, "")
        case _:
            return isolation.failure_text(outcome, "the case") + _tail(outcome.output)


def _tail(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return f"; it last printed {lines[-1][:200]!r}" if lines else ""

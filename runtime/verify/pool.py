"""Judges cases in processes that may be lost: a hang, a crash or a broken context costs one case.

One process judges case after case; where it is lost, the case that it was at is, too, and the next
one begins in a fresh process. Several may do so side by side.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from ucutlass import spans
from ucutlass.runtime import isolation
from ucutlass.runtime.verify.batch import as_json, read_journal
from ucutlass.runtime.verify.evidence import CaseResult
from ucutlass.runtime.verify.periods import WHOLE
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
    side_by_side: int = 1,
) -> tuple[CaseResult, ...]:
    """Returns a result for every case, in order. `target` (`package.module:function`) takes `shared` and the
    keywords `cases`, `journal` and `case_seconds`, and calls `batch.judge_all` with them; it should end
    itself by SIGALRM where it takes longer than `start_seconds` to get there. `side_by_side` is how many
    processes judge at once, each with a part of the cases and of `most_losses`. `call` starts them, by default
    `isolation.run`."""
    call = isolation.run if call is None else call
    if side_by_side > 1:
        part = partial(
            run,
            target,
            shared,
            case_seconds=case_seconds,
            start_seconds=start_seconds,
            memory_bytes=memory_bytes,
            most_losses=max(1, most_losses // side_by_side),
            on_result=on_result,
            call=call,
        )
        return _side_by_side(part, cases, side_by_side)
    rest = list(cases)
    results: list[CaseResult] = []

    def add(ended: Sequence[CaseResult]) -> None:
        for result in ended:
            results.append(result)
            on_result(result)

    with tempfile.TemporaryDirectory(prefix="ucutlass-verify-") as folder:
        while rest:
            journal = Path(folder) / f"{len(results)}.jsonl"
            request = {
                "cases": [as_json(c) for c in rest],
                "journal": str(journal),
                "case_seconds": case_seconds,
            }
            outcome = call(
                target,
                {**shared, **request},
                limit_seconds=start_seconds + case_seconds * len(rest),
                memory_bytes=memory_bytes,
            )
            ended = _ended(journal, rest, outcome, case_seconds)
            add(ended)
            rest = rest[len(ended) :]
            losses = sum(result.outcome == "lost" for result in results)
            if not ended or losses >= most_losses:
                why = f"{losses} cases before it were lost" if ended else _how(outcome, start_seconds)
                add([CaseResult(case, "not run", None, why) for case in rest])
                break
    return tuple(results)


def _ended(
    journal: Path, cases: Sequence[VerifyCase], outcome: isolation.CallOutcome, case_seconds: float
) -> list[CaseResult]:
    """Returns the results of the first cases, to the first that a process did not begin; that at which it was lost is, too."""
    by_number, begun = read_journal(journal, cases)
    first = next(number for number in count() if number not in by_number)
    ended = [by_number[number] for number in range(first)]
    if first in begun:
        ended.append(CaseResult(cases[first], "lost", None, _how(outcome, case_seconds)))
    return ended


def _side_by_side(
    part: Callable[[Sequence[VerifyCase]], tuple[CaseResult, ...]], cases: Sequence[VerifyCase], count: int
) -> tuple[CaseResult, ...]:
    """Returns the results of cases that were judged in parts, in the order of the cases. What took longest of them is
    the spans' time."""

    def recorded(few: Sequence[VerifyCase]) -> tuple[tuple[CaseResult, ...], Mapping[str, float]]:
        with spans.recording() as record:
            return part(few), record.seconds

    parts = parts_of(cases, count)
    with ThreadPoolExecutor(len(parts), thread_name_prefix="ucutlass-verify") as pool:
        judged = list(pool.map(recorded, parts))
    spans.add(max((seconds for _, seconds in judged), key=lambda seconds: sum(seconds.values())))
    results = {result.case.name: result for part_results, _ in judged for result in part_results}
    return tuple(results[case.name] for case in cases)


def parts_of(cases: Sequence[VerifyCase], count: int) -> list[list[VerifyCase]]:
    """Returns the cases in at most so many parts, of about equal work. Cases with the numbers of others are in one
    part with these, after them: what was right there needs no reference again."""
    groups: dict[Hashable, list[VerifyCase]] = {}
    for case in cases:
        refilling = case.kind == "refilled" or case.distribution in ("normal", "uniform")
        key = (tuple(case.sizes.items()), "" if refilling else case.distribution)
        groups.setdefault(key, []).append(case)
    parts: list[list[VerifyCase]] = [[] for _ in range(min(count, len(groups)))]
    for group in sorted(groups.values(), key=_work, reverse=True):
        min(parts, key=_work).extend(group)
    return parts


def _work(cases: Sequence[VerifyCase]) -> int:
    """Returns what judging cases takes, about, in runs: a reference of numbers that nothing repeats takes as long as
    some ten runs."""
    whole = {case.distribution for case in cases} & WHOLE
    return sum(case.repeats + 2 for case in cases) + 10 * len(whole)


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

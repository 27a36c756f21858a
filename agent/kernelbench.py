"""This module reads a user's own KernelBench checkout: which of its problems are run, and what a run says of
them by level.

KernelBench's measures (github ScalingIntelligence/KernelBench): a problem's speed-up is the baseline's time
over the candidate's, fast_p the share of all problems that are right and more than p times as fast. A
problem without a result counts among all; one whose baseline has no time is at most right.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path, PurePath
from typing import Any, Literal, TypeAlias

from ucutlass.agent.batch import BatchMember, BatchRun
from ucutlass.agent.outcome import TimedOutcome, words

THRESHOLDS = (0, 1, 2)

StartSource: TypeAlias = Literal["given", "imported", "none"]
"""Where a problem's first program is from: a file, the importer, or nowhere."""

_PART = re.compile(r"level(\d+)/(\*|\d+(?:-\d+)?)")
_FILE = re.compile(r"(\d+)_.*\.py")


class BadCheckout(ValueError):
    """Raised where there is no checkout at a path, or it has nothing of what was selected."""


def selected(root: Path, select: str) -> tuple[Path, list[str]]:
    """Returns the folder of a checkout that holds the levels, and the paths below it of a selection such as
    `level1/1-20,level2/*`, in its order and by number. Raises BadCheckout."""
    base = next((b for b in (root, root / "KernelBench") if (b / "level1").is_dir()), None)
    if base is None:
        raise BadCheckout(f"{root} is no checkout of KernelBench: it has no folder level1")
    paths: dict[str, None] = {}
    for part in (p.strip() for p in select.split(",")):
        match = _PART.fullmatch(part)
        if match is None:
            raise BadCheckout(f"{part[:60]!r} selects nothing; write level1/1-20, level2/7 or level3/*")
        files = _files(base / f"level{match[1]}")
        chosen = [path for number, path in files if _within(number, match[2])]
        if not chosen:
            has = f"{len(files)} problems" if files else "no problems"
            raise BadCheckout(f"{part} selects nothing: {base / f'level{match[1]}'} has {has}")
        paths |= dict.fromkeys(str(path.relative_to(base)) for path in chosen)
    return base, list(paths)


def drawn(names: Sequence[str], count: int, seed: int) -> list[str]:
    """Returns at most `count` problems of each level, drawn by a seed. Levels take turns in the order of their draws, so
    that what a run saw before it was cut is a draw too. A level's draw does not depend on which other levels there
    are."""
    draws = []
    for level in dict.fromkeys(PurePath(name).parts[0] for name in names):
        of_level = [name for name in names if PurePath(name).parts[0] == level]
        draws.append(random.Random(f"{seed}:{level}").sample(of_level, min(count, len(of_level))))
    return [name for turn in zip_longest(*draws) for name in turn if name is not None]


def _files(folder: Path) -> list[tuple[int, Path]]:
    named = [(match, p) for p in folder.glob("*.py") if (match := _FILE.fullmatch(p.name))]
    return sorted((int(match[1]), p) for match, p in named)


def _within(number: int, part: str) -> bool:
    if part == "*":
        return True
    low, _, high = part.partition("-")
    return int(low) <= number <= int(high or low)


# --- what came of it -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProblemResult:
    """Describes one problem. `start` says where its first program is from, as `StartSource` has it. `lane` is the compute type, the least precision that its candidates might work in, `versus` the
    speed-up over each baseline that has a time. `words` say what the best result is, or why there is none;
    `ended` says why its session does not go on, "" where it does."""

    name: str
    level: int
    lane: str
    right: bool
    microseconds: float | None
    versus: Mapping[str, float]
    session: str
    code: str
    words: str
    start: StartSource = "none"
    ended: str = ""


@dataclass(frozen=True, slots=True)
class BaselineSummary:
    """Describes a level against a baseline. `timed` of the right ones have its time; `geomean` is theirs,
    None without any; `fast` has fast_0, fast_1 and fast_2."""

    baseline: str
    timed: int
    geomean: float | None
    fast: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LevelSummary:
    """Describes a level in one compute type; a problem that could not be used counts in each of its
    level's."""

    level: int
    lane: str
    problems: int
    right: int
    against: tuple[BaselineSummary, ...]


def rows(run: BatchRun) -> list[ProblemResult]:
    """Returns a row for every problem of the run, those included that were not looked at yet."""
    return [_row(name, run.members.get(name)) for name in run.names]


def _row(name: str, member: BatchMember | None) -> ProblemResult:
    level = int(match[1]) if (match := re.search(r"level(\d+)", name)) else 0
    if member is None or member.session is None:
        code, result = ("", "not looked at yet") if member is None else (member.code, member.words)
        return ProblemResult(name, level, "", False, None, {}, "", code, result)
    state = member.session.state
    compute_type = str(state.problem.get("lane", ""))
    start, ended = _start(state.problem), member.stuck or state.ended or ""
    best = state.tree.best()
    if best is not None and isinstance(best.outcome, TimedOutcome) and best.outcome.records:
        outcome = best.outcome
        versus = dict(outcome.versus) or ({} if outcome.gain is None else {"baseline": outcome.gain})
        return ProblemResult(
            name,
            level,
            compute_type,
            True,
            outcome.seconds * 1e6,
            versus,
            member.session.id,
            "",
            words(outcome),
            start,
            ended,
        )
    last = state.tree.nodes[-1].outcome if len(state.tree) else None
    result = member.stuck or ("nothing was judged yet" if last is None else words(last))
    return ProblemResult(
        name, level, compute_type, False, None, {}, member.session.id, "no-result", result, start, ended
    )


def _start(problem: Mapping[str, Any]) -> StartSource:
    if not problem.get("text"):
        return "none"
    module = problem.get("module")
    return "imported" if module is not None and problem["file"] == module["file"] else "given"


def starts(results: Sequence[ProblemResult]) -> dict[StartSource, int]:
    """Returns how many problems have a first program from where."""
    sources: tuple[StartSource, ...] = ("given", "imported", "none")
    return {source: sum(row.start == source for row in results) for source in sources}


def levels(results: Sequence[ProblemResult]) -> list[LevelSummary]:
    """Returns the summaries by level and compute type, in order."""
    kinds = sorted({(r.level, r.lane) for r in results if r.lane})
    kinds += [(n, "") for n in sorted({r.level for r in results} - {n for n, _ in kinds})]
    return [
        _level(n, compute_type, [r for r in results if r.level == n and r.lane in (compute_type, "")])
        for n, compute_type in kinds
    ]


def _level(level: int, compute_type: str, results: Sequence[ProblemResult]) -> LevelSummary:
    baselines = dict.fromkeys(name for row in results for name in row.versus)
    right = sum(row.right for row in results)
    against = tuple(_against(name, results) for name in baselines)
    return LevelSummary(level, compute_type, len(results), right, against)


def _against(baseline: str, results: Sequence[ProblemResult]) -> BaselineSummary:
    ratios = [row.versus.get(baseline) for row in results if row.right]
    timed = [r for r in ratios if r is not None]
    geomean = math.exp(sum(map(math.log, timed)) / len(timed)) if timed else None
    fast = [sum((r or 0.0) > p if p else True for r in ratios) / len(results) for p in THRESHOLDS]
    return BaselineSummary(baseline, len(timed), geomean, tuple(fast))

"""Evaluates the skill of `ucc skill`: tasks answered by an agent with it and without it, judged by the compiler.

    python -m benchmarks.skill --recorded benchmarks/data/skill_scripted.json
    python -m benchmarks.skill --agent "./my_agent --model NAME" [--tasks layer_norm,..] [--record FILE]

`--agent` is a program: it reads {"prompt": TEXT, "skill": {PATH: TEXT} or null} on standard input and writes
{"text": TEXT} to standard output; the first block fenced as ucu, else all of the text, is its program. It runs as
you. An answer is `refused` where the compiler takes no such program, `wrong` where by the float64 reference it
computes something else than the task's own, else `right`. Needs no GPU. The exit status is 1 where fewer answers
are right with the skill than without: a skill can make a model worse.

A recording says in `kind` where its answers are from. Those of `skill_scripted.json` were written by hand: they
show that the difference is measured, and nothing of any model.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ucutlass.agent.skill import skill_files
from ucutlass.agent.skill_tasks import TASKS, SkillTask
from ucutlass.cli import COMMANDS
from ucutlass.files import write
from ucutlass.handoff import checked_of, diagnostics_of
from ucutlass.runtime import isolation

Verdict: TypeAlias = Literal["right", "wrong", "refused"]
Ask: TypeAlias = Callable[[SkillTask, bool], str]
"""The answer to a task, with the skill or without it."""

SECONDS = 120.0
MOST_ANSWER = 200_000


@dataclass(frozen=True)
class Row:
    """What became of a task; `words` say why an answer is not right."""

    task: str
    with_skill: Verdict
    without: Verdict
    words: Mapping[str, str]


def program_of(answer: str) -> str:
    """The program of an answer."""
    block = re.search(r"```ucu\n(.*?)```", answer[:MOST_ANSWER], flags=re.DOTALL)
    return block[1] if block else answer[:MOST_ANSWER]


def judge(task: SkillTask, answer: str) -> tuple[Verdict, str]:
    """The verdict on an answer, and why."""
    texts = {"program": task.program, "other": program_of(answer)}
    payloads: dict[str, Any] = {}
    for name, text in texts.items():
        read = _called("front_end:read", {"text": text, "file": name})
        if isinstance(read, str):
            return "refused", read
        if "refused" in read:
            first = diagnostics_of(read["refused"])[0]
            return "refused", f"{first.code} {first.message}"
        payloads[name] = read["program"]
    name = checked_of(payloads["program"]).module.programs[0].name
    known = [p.name for p in checked_of(payloads["other"]).module.programs]
    if name not in known:
        return "refused", f"it has {', '.join(known) or 'no program'} and no {name}"
    arguments = {**payloads, "name": name, "sizes": dict(task.sizes), "seed": 0}
    difference = _called("equivalence:same", arguments)
    return ("wrong", difference) if difference else ("right", "")


@cache
def _process() -> isolation.WarmProcess:
    """Imports torch once for all answers; one that hangs takes it along, and another is started."""
    return isolation.WarmProcess()


def _called(function: str, arguments: Mapping[str, Any]) -> Any:
    """What a task's function returns; words where it does not."""
    outcome = _process().call(f"ucutlass.tasks.{function}", arguments, limit_seconds=SECONDS)
    if isinstance(outcome, isolation.Returned):
        return outcome.value
    return isolation.failure_text(outcome, "the compiler")


def evaluate(ask: Ask, tasks: Sequence[SkillTask] = TASKS) -> list[Row]:
    """Every task, once with the skill and once without."""
    rows: list[Row] = []
    for task in tasks:
        (with_skill, why), (without, why_not) = (judge(task, ask(task, given)) for given in (True, False))
        rows.append(Row(task.name, with_skill, without, {"with": why, "without": why_not}))
    return rows


def summary(rows: Sequence[Row]) -> dict[str, int]:
    """Answers that are right, and that the compiler accepts."""
    columns = {"with": [r.with_skill for r in rows], "without": [r.without for r in rows]}
    return {"tasks": len(rows)} | {
        f"{what}_{name}": sum(verdict in verdicts for verdict in column)
        for name, column in columns.items()
        for what, verdicts in (("right", ("right",)), ("accepted", ("right", "wrong")))
    }


def recorded(recording: Mapping[str, Any]) -> Ask:
    """Answers from a recording."""
    return lambda task, given: str(recording["answers"][task.name]["with" if given else "without"])


def asking(words: str, answers: dict[str, dict[str, str]]) -> Ask:
    """Answers of a program, which are kept in `answers`."""

    def ask(task: SkillTask, given: bool) -> str:
        request = {"prompt": task.prompt, "skill": skill_files(COMMANDS) if given else None}
        shown = subprocess.run(
            shlex.split(words),
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=1800,
            check=True,
        )
        text = str(json.loads(shown.stdout)["text"])[:MOST_ANSWER]
        answers.setdefault(task.name, {})["with" if given else "without"] = text
        return text

    return ask


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--recorded", type=Path)
    source.add_argument("--agent")
    parser.add_argument("--tasks", default=",".join(task.name for task in TASKS))
    parser.add_argument("--record", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    tasks = [task for task in TASKS if task.name in options.tasks.split(",")]
    answers: dict[str, dict[str, str]] = {}
    if options.recorded:
        recording = json.loads(options.recorded.read_text(encoding="utf-8"))
        kind, ask = str(recording["kind"]), recorded(recording)
    else:
        kind, ask = f"live: {options.agent}", asking(options.agent, answers)
    rows = evaluate(ask, tasks)
    if options.record:
        write(options.record, json.dumps({"kind": kind, "answers": answers}, indent=1) + "\n")
    counts = summary(rows)
    if options.json:
        print(json.dumps({"kind": kind, **counts, "rows": [vars(row) for row in rows]}, indent=1))
    else:
        print(f"answers: {kind}")
        for row in rows:
            print(
                f"{row.task:16} with {row.with_skill:8} without {row.without:8} {row.words['without'][:80]}"
            )
        print(" ".join(f"{name}={count}" for name, count in counts.items()))
    return int(counts["right_with"] < counts["right_without"])


if __name__ == "__main__":
    sys.exit(main())

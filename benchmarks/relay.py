"""Items worked off in processes that may be lost: a hang, a crash or a broken context costs one item.

An item is a JSON object with a `name`, its row another. A process works item after item and appends
each row to a file as soon as it is known; where it is lost, the item that it was at is, too, and the
next one begins behind it. Items that have a row already are left alone, so a run that was stopped is
continued by the same call.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.budget import NEVER, Deadline, append, lines
from ucutlass.runtime import isolation

Item: TypeAlias = dict[str, Any]
Row: TypeAlias = dict[str, Any]

START_SECONDS = 120.0
"""What a fresh process may take before its first item: importing torch, a CUDA context."""


def run(
    target: str,
    items: Sequence[Item],
    rows: Path,
    *,
    item_seconds: float,
    processes: int = 1,
    deadline: Deadline = NEVER,
) -> list[Row]:
    """The rows of these items, in their order, all but those that the deadline left no time for.

    `target` (`package.module:function`) takes `items`, `rows` and `item_seconds`, and calls `serve`
    with them. A lost item's row has `ok` False, `error` and `detail`.
    """
    rows.parent.mkdir(parents=True, exist_ok=True)
    known = {row["name"] for row in lines(rows)}
    fresh = [item for item in items if item["name"] not in known]
    shares = [fresh[i::processes] for i in range(processes)]
    work = partial(_share, target, rows=rows, item_seconds=item_seconds, deadline=deadline)
    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(work, [share for share in shares if share]))
    found = {row["name"]: row for row in lines(rows)}
    return [found[item["name"]] for item in items if item["name"] in found]


def _share(target: str, items: Sequence[Item], rows: Path, item_seconds: float, deadline: Deadline) -> None:
    pending = list(items)
    while pending and not deadline.passed:
        outcome = isolation.run(
            target,
            {"items": pending, "rows": str(rows), "item_seconds": item_seconds},
            limit_seconds=min(START_SECONDS + item_seconds * len(pending), max(1.0, deadline.left())),
        )
        done = {row["name"] for row in lines(rows)}
        left = [item for item in pending if item["name"] not in done]
        if isinstance(outcome, isolation.TimedOut) and deadline.passed:
            return
        progress = len(left) < len(pending)
        match outcome:
            case isolation.Returned() if progress:
                lost = []
            case isolation.Raised() if not progress:
                lost = left  # it cannot even be started: so it would be with each
            case _:
                lost = left[:1]
        for item in lost:
            append(rows, _lost(item, outcome))
        pending = left[len(lost) :]


def _lost(item: Item, outcome: isolation.Outcome) -> Row:
    match outcome:
        case isolation.Crashed("SIGALRM"):
            error, detail = "TimedOut", outcome.output
        case isolation.Raised(kind, message):
            error, detail = kind, message
        case _:
            error, detail = type(outcome).__name__, str(outcome)
    return {"name": item["name"], "ok": False, "error": error, "detail": detail[-1500:]}


def serve(one: Callable[[Item], Row], items: Sequence[Item], rows: str, item_seconds: float) -> int:
    """In the process: a row an item, each written at once. Ends early, with 1, after a row that is
    `sticky`: the GPU's context is lost, and the next process takes the rest.

    An item that takes longer than `item_seconds` ends the process by SIGALRM, even while it waits for
    a device; the first one may take as much longer as a start takes. What `one` raises becomes a row.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for number, item in enumerate(items):
        signal.setitimer(signal.ITIMER_REAL, item_seconds + (0 if number else START_SECONDS))
        row = _row(one, item)
        signal.setitimer(signal.ITIMER_REAL, 0)
        append(Path(rows), row)
        if row.get("sticky"):
            return 1
    return 0


def _row(one: Callable[[Item], Row], item: Item) -> Row:
    try:
        return {"name": item["name"], "ok": True} | one(item)
    except Exception as error:  # the row is the report, whatever went wrong
        return {
            "name": item["name"],
            "ok": False,
            "error": type(error).__name__,
            "detail": str(error)[:1500],
            "sticky": sticky(error),
        }


def sticky(error: Exception) -> bool:
    """Whether a CUDA error stays with the process (illegal address and the like)."""
    return "CUDA error" in str(error)

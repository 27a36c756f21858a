"""This module is `ucc replay`."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ucutlass.agent.journal import Journal
from ucutlass.agent.replay.stop_rules import (
    NothingRecorded,
    RecordedSession,
    RuleSavings,
    best_first,
    grid,
    recorded_session,
)
from ucutlass.agent.replay.tables import CLOSE, SEEDS, Knows, SearchComparison, compare, recording
from ucutlass.agent.search import SEARCHES, Name
from ucutlass.agent.session import NotASession
from ucutlass.agent.stop import StopRule
from ucutlass.cli import show
from ucutlass.cli.errors import Status, fail, reported
from ucutlass.cli.journals import session_of
from ucutlass.cli.options import WholeNumber, journal_option, json_option
from ucutlass.tune.tables import NotATable, RecordedTable, read

ATTEMPTS = 40
"""Of a session on a table to which stop rules are put: a session's default budget."""

SHOWN = 12
"""Stop rules that are printed; --json has all of them."""


@click.command("replay")
@click.argument("what", nargs=-1, required=True, metavar="SESSION...")
@click.option("--tables", is_flag=True, help="The arguments are recordings: compare searches on them.")
@click.option(
    "--stops",
    is_flag=True,
    help=f"With --tables: put stop rules to {ATTEMPTS} attempts of each search on each table.",
)
@click.option("--seeds", type=WholeNumber(min=1), default=SEEDS, show_default=True, help="Of each search.")
@click.option(
    "--search",
    "searches",
    multiple=True,
    type=click.Choice(tuple(SEARCHES)),
    help="One to compare; may be repeated. By default all of them.",
)
@journal_option
@json_option
def command(
    what: tuple[str, ...],
    tables: bool,
    stops: bool,
    seeds: int,
    searches: tuple[Name, ...],
    journal: Path | None,
    as_json: bool,
) -> None:
    """Compare policies on what was recorded, without a GPU or a model.

    Each SESSION is an id of the journal, or its first digits: stop rules are put to the sessions, and
    what they would have saved and kept is printed, best first. With --tables each is a file of measured
    schedules, as `benchmarks.record` writes it: the searches look for its fastest kernel, from the
    compiler's choice with the tuner's ranking, and from a kernel drawn at random without it.
    """
    with reported(as_json):
        if stops and not tables:
            fail(Status.CALL, "--stops is of --tables; without it stop rules are what is replayed", as_json)
        if tables:
            replayed = _stops_on_tables if stops else _searches
            replayed(_read([Path(w) for w in what], as_json), searches or tuple(SEARCHES), seeds, as_json)
        else:
            _stops(what, journal, as_json)


# --- searches --------------------------------------------------------------------


def _read(files: Sequence[Path], as_json: bool) -> list[RecordedTable]:
    try:
        tables = [table for file in files for table in read(file)]
    except NotATable as problem:
        fail(Status.CALL, str(problem), as_json)
    if not tables:
        fail(Status.CALL, "these files have no kernels of ours", as_json)
    return tables


def _searches(tables: Sequence[RecordedTable], searches: Sequence[Name], seeds: int, as_json: bool) -> None:
    kinds = get_args(Knows)
    with _progress(len(kinds) * len(searches) * seeds * len(tables), as_json) as step:
        comparisons: dict[Knows, list[SearchComparison]] = {
            knows: compare(tables, searches, seeds, knows, on_course=step) for knows in kinds
        }
    if as_json:
        show.data(_searches_json(tables, seeds, comparisons))
        return
    head = ("knows", "search", "mean", "spread of it", "median", "10th to 90th of 100", "sooner than flat")
    rows = [
        (knows, *_searched(comparison, comparisons[knows]))
        for knows in kinds
        for comparison in comparisons[knows]
    ]
    show.say(
        f"candidates to {CLOSE:.0%} of the best: {len(tables)} tables, {seeds} seeds"
        + (f", {sum(t.refused for t in tables)} rows left out" if any(t.refused for t in tables) else "")
    )
    show.table(head, rows)


def _searched(comparison: SearchComparison, others: Sequence[SearchComparison]) -> tuple[str, ...]:
    flat = next((o for o in others if o.search == "flat"), None)
    sooner = (
        "-"
        if flat is None or comparison is flat
        else f"{_sooner(comparison, flat)} of {len(comparison.by_seed)} seeds"
    )
    return (
        comparison.search,
        f"{comparison.mean:.2f}",
        f"{_spread(comparison):.2f}",
        f"{comparison.median:g}",
        f"{comparison.low:g} to {comparison.high:g}",
        sooner,
    )


def _spread(comparison: SearchComparison) -> float:
    """Returns the standard deviation over seeds of the mean over tables."""
    return statistics.stdev(comparison.by_seed) if len(comparison.by_seed) > 1 else 0.0


def _sooner(comparison: SearchComparison, flat: SearchComparison) -> int:
    return sum(a < b for a, b in zip(comparison.by_seed, flat.by_seed, strict=True))


def _searches_json(
    tables: Sequence[RecordedTable], seeds: int, comparisons: Mapping[Knows, Sequence[SearchComparison]]
) -> dict[str, Any]:
    return {
        "close": CLOSE,
        "seeds": seeds,
        "tables": [
            {"file": t.file, "shape": t.shape, "kernels": len(t.space.groups), "refused": t.refused}
            for t in tables
        ],
        "knows": {
            knows: [asdict(comparison) | {"spread": _spread(comparison)} for comparison in rows]
            for knows, rows in comparisons.items()
        },
    }


# --- stop rules ------------------------------------------------------------------


def _stops(ids: Sequence[str], journal: Path | None, as_json: bool) -> None:
    sessions = _sessions(ids, Journal.open(journal), as_json)
    rules_by_gain = _rules(sessions, as_json)
    if as_json:
        rules = [asdict(rule) for rule in rules_by_gain]
        show.data({"sessions": [_session(s) for s in sessions], "rules": rules})
        return
    for session in sessions:
        if session.ended is None or not session.ended.startswith("the budget"):
            words = f"{session.problem} did not spend its budget ({session.ended or 'it is not over'})"
            show.note(f"ucc: {show.one_line(words)}: what it would have found is not known")
    attempts = sum(len(s.seconds) for s in sessions)
    show.say(f"{len(sessions)} sessions, {attempts} candidates, {sum(_tokens(s) for s in sessions)} tokens")
    _show_rules([_rule(rule) for rule in rules_by_gain], _HEAD)


def _stops_on_tables(
    tables: Sequence[RecordedTable], searches: Sequence[Name], seeds: int, as_json: bool
) -> None:
    kinds = get_args(Knows)
    by_search: list[tuple[Knows, Name, list[RuleSavings]]] = []
    with _progress(len(kinds) * len(searches) * seeds * len(tables), as_json) as step:
        for knows in kinds:
            for name in searches:
                sessions: list[RecordedSession] = []
                for table, seed in itertools.product(tables, range(seeds)):
                    _, events = recording(table, name, seed, knows, ATTEMPTS)
                    sessions.append(recorded_session(f"{table.shape}, seed {seed}", events))
                    step()
                by_search.append((knows, name, _rules(sessions, as_json)))
    if as_json:
        rows = [
            {"knows": k, "search": n, "rules": [asdict(rule) for rule in rules]} for k, n, rules in by_search
        ]
        show.data(rows)
        return
    show.say(f"{len(tables)} tables, {seeds} seeds, at most {ATTEMPTS} attempts a session")
    for knows, name, rules in by_search:
        _show_rules([(knows, name, *_rule(rule)) for rule in rules], ("knows", "search", *_HEAD))


def _rules(sessions: Sequence[RecordedSession], as_json: bool) -> list[RuleSavings]:
    try:
        return best_first(grid(sessions))
    except NothingRecorded as problem:
        fail(Status.PROGRAM, str(problem), as_json)


_HEAD = (
    "stops at the bound",
    "stops for idle attempts",
    "attempts saved",
    "tokens saved",
    "speed-up kept",
    "least of a session",
    "efficiency",
)


def _show_rules(rows: Sequence[tuple[str, ...]], head: tuple[str, ...]) -> None:
    """Prints rules; of those that did the same everywhere, the first."""
    words = len(head) - len(_HEAD) + 2
    shown = list({row[words:]: row for row in reversed(rows)}.values())[::-1]
    show.table(head, shown[:SHOWN])
    show.say(f"{len(rows)} rules, {len(shown)} that differ in what they did; --json has all")


def _sessions(ids: Sequence[str], journal: Journal, as_json: bool) -> list[RecordedSession]:
    result: list[RecordedSession] = []
    for id in ids:
        full = session_of(journal, id, as_json)
        try:
            result.append(recorded_session(full[:12], journal.events(full)))
        except NothingRecorded as problem:
            fail(Status.PROGRAM, f"session {problem}", as_json)
        except NotASession as problem:
            fail(Status.MACHINE, f"session {id} of {journal.path} cannot be read: {problem}", as_json)
    return result


def _tokens(session: RecordedSession) -> int:
    return session.spends[-1].tokens


def _session(session: RecordedSession) -> dict[str, Any]:
    return {
        "session": session.problem,
        "candidates": len(session.seconds),
        "tokens": _tokens(session),
        "ended": session.ended,
    }


def _rule(savings: RuleSavings) -> tuple[str, ...]:
    return (
        *_stop_rule_cells(savings.stop),
        f"{savings.attempts:.0%}",
        "none spent" if savings.tokens is None else f"{savings.tokens:.0%}",
        f"{savings.retained:.1%}",
        f"{savings.least:.1%}",
        f"{savings.gain:.2f}",
    )


def _stop_rule_cells(stop: StopRule) -> tuple[str, str]:
    near = "never" if stop.eps is None else f"within {stop.eps:.0%}"
    return near, "never" if stop.patience is None else f"after {stop.patience}"


@contextmanager
def _progress(total: int, as_json: bool) -> Iterator[Callable[[], None]]:
    """Shows a bar on a terminal, else nothing."""
    err = Console(stderr=True)
    if as_json or not err.is_terminal:
        yield lambda: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeRemainingColumn(), console=err, transient=True) as bar:
        task = bar.add_task("searches", total=total)
        yield lambda: bar.advance(task)

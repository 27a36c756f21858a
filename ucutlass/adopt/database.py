"""Keeps adopted sources: a table of the tuning database, beside the schedules that `ucc tune` found.

A source has a row for each GPU, target, program and extents that it was adopted for. The row is written before
the source is verified, and says `confirmed` only once everything that a schedule has to pass was passed: a
process that is killed in between leaves a row that nothing serves.
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from ucutlass.adopt.source import MOST_BYTES, code_of
from ucutlass.runtime.errors import StoreError
from ucutlass.tune.database import TuningDamaged, TuningDatabase, TuningKey

State: TypeAlias = Literal["unconfirmed", "confirmed"]

MOST_ROWS = 4096
"""Rows that `rows` returns, the latest first."""

_TABLE = """CREATE TABLE IF NOT EXISTS adopted (
  device TEXT NOT NULL, arch TEXT NOT NULL, program TEXT NOT NULL, extents TEXT NOT NULL,
  source TEXT NOT NULL, kernel TEXT NOT NULL, state TEXT NOT NULL, text TEXT NOT NULL, base TEXT NOT NULL,
  launch TEXT NOT NULL, microseconds REAL NOT NULL, rival REAL NOT NULL, versions TEXT NOT NULL,
  records TEXT NOT NULL, created TEXT NOT NULL,
  PRIMARY KEY (device, arch, program, extents, source))"""

_COLUMNS = "source, kernel, state, text, base, launch, microseconds, rival, versions, records, created"


@dataclass(frozen=True, slots=True)
class AdoptedRow:
    """One adopted source: `source` is the digest of its code and `text` the file, `kernel` the name that its
    program has in the text. `base` is the emitted file that it was edited from, "" where it was not. `launch` has the values of the launch parameters. `microseconds` and `rival` are the
    medians of the source and of the text's own kernel in turns, 0 where nothing was timed; `versions` those of
    what built it, `records` the ids of its evidence."""

    source: str
    kernel: str
    state: State
    text: str
    base: str = ""
    launch: tuple[int, ...] = ()
    microseconds: float = 0.0
    rival: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)
    records: tuple[str, ...] = ()
    created: str = ""


class UnknownSource(Exception):
    """Raised for a digest that no row, or more than one source, begins with."""


def keep(database: TuningDatabase, key: TuningKey, row: AdoptedRow) -> None:
    """Writes a row, in place of the one of this key and source. Raises StoreError."""

    def update(c: sqlite3.Connection) -> None:
        c.execute(_TABLE)
        values = (*_of(key), *_values(row))
        c.execute(f"INSERT OR REPLACE INTO adopted VALUES ({', '.join('?' * len(values))})", values)

    database.write(update)


def confirmed(database: TuningDatabase, key: TuningKey) -> AdoptedRow | None:
    """Returns the fastest confirmed source of exactly this key, None where there is none. Raises StoreError;
    TuningDamaged where the row cannot be read, or its text is not the one that was confirmed."""

    def select(c: sqlite3.Connection) -> tuple[Any, ...] | None:
        if not _has_table(c):
            return None
        row: tuple[Any, ...] | None = c.execute(
            f"SELECT {_COLUMNS} FROM adopted WHERE device = ? AND arch = ? AND program = ? AND extents = ? "
            "AND state = 'confirmed' ORDER BY microseconds, source LIMIT 1",
            _of(key),
        ).fetchone()
        return row

    values = database.read(select)
    return None if values is None else _row(values, database)


def rows(database: TuningDatabase) -> tuple[tuple[TuningKey, AdoptedRow], ...]:
    """Returns every adopted source with its key, the latest first. Raises as `confirmed`."""

    def select(c: sqlite3.Connection) -> list[tuple[Any, ...]]:
        if not _has_table(c):
            return []
        query = (
            f"SELECT device, arch, program, extents, {_COLUMNS} FROM adopted ORDER BY created DESC, source"
        )
        return c.execute(f"{query} LIMIT {MOST_ROWS}").fetchall()

    selected = database.read(select) or []
    return tuple((_key(values[:4], database), _row(values[4:], database)) for values in selected)


def latest(database: TuningDatabase, device: str) -> str:
    """Returns what changes whenever a schedule or a source is recorded for a GPU or removed: how many there are,
    and the latest time. "" where the database cannot be read."""

    def select(c: sqlite3.Connection) -> tuple[str, ...]:
        tables = ("tuned", "adopted") if _has_table(c) else ("tuned",)
        queries = (f"SELECT COUNT(*), MAX(created) FROM {table} WHERE device = ?" for table in tables)
        return tuple(str(c.execute(query, (device,)).fetchone()) for query in queries)

    try:
        return " ".join(database.read(select) or ())
    except StoreError:
        return ""


def base_of(database: TuningDatabase, entry: str) -> str | None:
    """Returns the emitted file with this entry that an adopted source was edited from. Raises as `confirmed`."""
    return next((row.base for _, row in rows(database) if row.base and f" {entry}(" in row.base), None)


def drop(database: TuningDatabase, digest: str) -> int:
    """Removes every row of the source whose digest begins so, and returns how many there were. Raises
    UnknownSource, StoreError."""

    unknown = f"no adopted source begins with {digest}: see `ucc adopt --list`"
    if not database.path.exists():
        raise UnknownSource(unknown)

    def remove(c: sqlite3.Connection) -> int:
        c.execute(_TABLE)
        pattern = "source >= ? AND source < ?"
        bounds = (digest, digest + "g")  # beyond every hex digit
        sources = [s for (s,) in c.execute(f"SELECT DISTINCT source FROM adopted WHERE {pattern}", bounds)]
        if len(sources) != 1:
            several = f"{len(sources)} adopted sources begin with {digest}: give more digits"
            raise UnknownSource(several if sources else unknown)
        return c.execute("DELETE FROM adopted WHERE source = ?", sources).rowcount

    return database.write(remove)


def remove(database: TuningDatabase, key: TuningKey, source: str) -> None:
    """Removes one row, where it is there. Raises StoreError."""

    def act(c: sqlite3.Connection) -> None:
        c.execute(_TABLE)
        where = "device = ? AND arch = ? AND program = ? AND extents = ? AND source = ?"
        c.execute(f"DELETE FROM adopted WHERE {where}", (*_of(key), source))

    database.write(act)


def _has_table(c: sqlite3.Connection) -> bool:
    return bool(c.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'adopted'").fetchone())


# --- rows ------------------------------------------------------------------------


def _of(key: TuningKey) -> tuple[str, str, str, str]:
    return key.device, key.arch, key.program, json.dumps(key.extents)


def _values(row: AdoptedRow) -> tuple[Any, ...]:
    return (
        row.source,
        row.kernel,
        row.state,
        row.text,
        row.base,
        json.dumps(row.launch),
        row.microseconds,
        row.rival,
        json.dumps(dict(row.versions), sort_keys=True),
        json.dumps(row.records),
        row.created,
    )


def _key(values: tuple[Any, ...], database: TuningDatabase) -> TuningKey:
    device, arch, program, extents = values
    try:
        return TuningKey(str(device), str(arch), str(program), _numbers(extents))
    except (ValueError, TypeError) as problem:
        raise _damaged(database, str(program), problem) from problem


def _row(values: tuple[Any, ...], database: TuningDatabase) -> AdoptedRow:
    source, kernel, state, text, base, launch, microseconds, rival, versions, records, created = values
    try:
        if state not in ("unconfirmed", "confirmed"):
            raise ValueError(f"its state is {state!r:.60}")
        if not all(isinstance(file, str) and len(file) <= MOST_BYTES for file in (text, base)):
            raise ValueError("its text is none")
        if hashlib.sha256(code_of(text).encode()).hexdigest() != source:
            raise ValueError("its text is not the one that was adopted")
        if not all(math.isfinite(number) and number >= 0 for number in (microseconds, rival)):
            raise ValueError(f"its times are {microseconds} and {rival} us")
        named, ids = json.loads(versions), json.loads(records)
        if not isinstance(named, dict) or not isinstance(ids, list):
            raise ValueError("its versions or its records are none")
        return AdoptedRow(
            source,
            str(kernel),
            state,
            text,
            base,
            _numbers(launch),
            microseconds,
            rival,
            {str(name): str(version) for name, version in named.items()},
            tuple(map(str, ids)),
            str(created),
        )
    except (ValueError, TypeError) as problem:
        raise _damaged(database, str(source), problem) from problem


def _numbers(text: str) -> tuple[int, ...]:
    numbers = json.loads(text)
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        raise ValueError(f"{text!r:.60} is no list of whole numbers")
    return tuple(numbers)


def _damaged(database: TuningDatabase, what: str, problem: Exception) -> TuningDamaged:
    words = f"the adopted source {what[:16]} in {database.path} cannot be read ({problem})"
    return TuningDamaged(words, f"ucc adopt --drop {what[:16]}, and adopt it again")

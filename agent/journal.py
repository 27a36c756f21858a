"""This module has the journal of optimisation sessions: events in one SQLite file, to which one can only add.

    sessions.sqlite    every session's events, in order (and -wal, -shm while somebody has it open)

An event is there once `append` has returned, whatever happens to the process or the power afterwards. A
session's state is a function of its events (`ucutlass.agent.session`), so nothing else is kept. Numbers
are given by the writer: of two processes that go on with one session the slower is refused, and no event
is written twice.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ucutlass.runtime import folders, switches
from ucutlass.runtime.errors import StoreError
from ucutlass.runtime.store import faults
from ucutlass.runtime.store.file import connect, schema_of

NAME = "sessions.sqlite"

APPLICATION = 0x75435345
"""SQLite's application_id of a journal: "uCSE"."""

SCHEMA = 1

RUN_PREFIX = "run-"
"""Of the ids of runs over many problems, whose events stand beside those of their sessions."""

_WHAT = "the session journal"

_STATEMENTS = (
    """CREATE TABLE event (
         session TEXT NOT NULL, number INTEGER NOT NULL, kind TEXT NOT NULL, at TEXT NOT NULL,
         body TEXT NOT NULL, PRIMARY KEY (session, number))""",
    """CREATE TRIGGER event_stays BEFORE DELETE ON event
         BEGIN SELECT raise(ABORT, 'a journal can only be added to'); END""",
    """CREATE TRIGGER event_holds BEFORE UPDATE ON event
         BEGIN SELECT raise(ABORT, 'a journal can only be added to'); END""",
)


class JournalDamaged(StoreError):
    """Raised where the journal, or an event of it, is not what was written."""


class SessionTaken(StoreError):
    """Raised where another process went on with the session meanwhile."""


class NoSuchSession(LookupError):
    """Raised where no session, or more than one, has an id that starts so."""


@dataclass(frozen=True, slots=True)
class JournalEvent:
    """`number` counts a session's events from 0; `at` is UTC, for people: no decision reads it."""

    number: int
    kind: str
    body: Mapping[str, Any]
    at: str


@dataclass(frozen=True, slots=True)
class Journal:
    """Stores events in a file. All methods raise a StoreError where the file cannot be used; one that is
    damaged is left as it is. Nothing is kept open."""

    path: Path

    @staticmethod
    def open(path: Path | None = None) -> Journal:
        """Returns the journal in a file, or the user's own. Nothing is made before it is needed."""
        return Journal(path or switches.read().data_dir / NAME)

    def append(self, session: str, number: int, kind: str, body: Mapping[str, Any]) -> JournalEvent:
        """Writes a session's event of this number. Raises SessionTaken where there is one already."""
        event = JournalEvent(number, kind, json.loads(json.dumps(dict(body))), _now())
        content = json.dumps(event.body, separators=(",", ":"), sort_keys=True)
        row = (session, event.number, kind, event.at, content)
        with self._used(), closing(self._writer()) as c:
            c.execute("BEGIN IMMEDIATE")
            try:
                c.execute("INSERT INTO event VALUES (?, ?, ?, ?, ?)", row)
                c.execute("COMMIT")
            except sqlite3.IntegrityError as error:
                c.execute("ROLLBACK")
                raise SessionTaken(
                    f"another process goes on with session {session[:12]} (event {number} is there)",
                    "let that process end, or start a session of your own",
                ) from error
        return event

    def events(self, session: str, *, to_go_on: bool = False) -> list[JournalEvent]:
        """Returns the events of one session, in order; none for a session that is not there. `to_go_on`: as
        whoever writes next will find them, also what a process wrote that was killed before readers were
        told. Raises JournalDamaged for one with a gap or an event that cannot be read."""
        query = "SELECT number, kind, body, at FROM event WHERE session = ? ORDER BY number"
        events = [self._event(session, row) for row in self._rows(query, (session,), to_go_on)]
        for at, event in enumerate(events):
            if event.number != at:
                raise JournalDamaged(f"session {session[:12]} lacks event {at}", self._remedy())
        return events

    def sessions(self) -> list[str]:
        """Returns the ids there are, in the order in which they began."""
        query = "SELECT session FROM event WHERE number = 0 ORDER BY at, session"
        return [str(row[0]) for row in self._rows(query, ())]

    def full_id(self, start: str) -> str:
        """Returns the session whose id starts so. Raises NoSuchSession."""
        matches = [s for s in self.sessions() if start and s.startswith(start)]
        if not matches:
            raise NoSuchSession(
                f"no session of {self.path} starts with {start!r}: `ucc sessions` lists those there are"
            )
        if len(matches) > 1:
            raise NoSuchSession(
                f"{len(matches)} sessions of {self.path} start with {start!r}: give more digits of the id"
            )
        return matches[0]

    # --- the file ----------------------------------------------------------------

    def _rows(self, query: str, values: Sequence[Any], to_go_on: bool = False) -> list[tuple[Any, ...]]:
        with self._used():
            if not self.path.exists():
                return []
            if to_go_on:
                with closing(self._writer()) as c:
                    c.execute("BEGIN IMMEDIATE")
                    rows = c.execute(query, values).fetchall()
                    c.execute("COMMIT")
                return rows
            with closing(connect(self.path, "ro")) as c:
                return [] if self._schema(c) == 0 else c.execute(query, values).fetchall()

    def _event(self, session: str, row: tuple[Any, ...]) -> JournalEvent:
        number, kind, body, at = row
        try:
            content = json.loads(body)
            if not isinstance(content, dict):
                raise ValueError("its body is no object")
        except ValueError as error:
            words = f"event {number} of session {session[:12]} cannot be read ({error})"
            raise JournalDamaged(words, self._remedy()) from error
        return JournalEvent(int(number), str(kind), content, str(at))

    def _remedy(self) -> str:
        return f"put {self.path} aside, or {faults.other_folder()}"

    def _writer(self) -> sqlite3.Connection:
        folders.make(self.path.parent)
        c = connect(self.path, "rwc")
        try:
            c.execute("PRAGMA synchronous = FULL")
            if self._schema(c) == 0:
                c.execute("PRAGMA journal_mode = WAL")
                c.execute("BEGIN IMMEDIATE")
                if self._schema(c) == 0:  # nobody made it while this process waited
                    for statement in _STATEMENTS:
                        c.execute(statement)
                    c.execute(f"PRAGMA application_id = {APPLICATION}")
                    c.execute(f"PRAGMA user_version = {SCHEMA}")
                c.execute("COMMIT")
        except BaseException:
            c.close()
            raise
        return c

    def _schema(self, c: sqlite3.Connection) -> int:
        """Returns the schema's version, 0 for an empty file. Raises StoreForeign, StoreNewer."""
        return schema_of(c, self.path, APPLICATION, SCHEMA)

    def _used(self) -> AbstractContextManager[None]:
        return faults.used(self.path, _WHAT, JournalDamaged, self._remedy())


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")

"""Stores sealed records in one SQLite file, to which one can only add.

A record is there once `add` has returned, whatever happens to the process or the power afterwards.
Seals and the chain over them show accidents and careless edits; who can write the file can also
write it anew, so what must convince others is exported and kept elsewhere.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ucutlass.runtime import switches
from ucutlass.runtime.evidence import (
    EvidenceKind,
    Machine,
    Record,
    RecordSubject,
    from_json,
    intact,
    sealed,
    to_json,
)
from ucutlass.runtime.store import file as store_file
from ucutlass.runtime.store.faults import guarded
from ucutlass.runtime.subject import harness_digest

NAME = "evidence.sqlite"


class NotIntact(ValueError):
    """A record's id is not the seal of its content: it was changed after it was sealed."""


class NoSuchRecord(LookupError):
    """No record, or more than one, has an id that starts so."""


class BrokenRecordWarning(UserWarning):
    """A record in the store is not what was sealed, and was left out."""


@dataclass(frozen=True, slots=True)
class BrokenRecord:
    """A record that is not what was added: its place in the store, the id it goes by, and why."""

    number: int
    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class RefusedRecord:
    """A line that was not imported, counted from 1, and why."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Imported:
    """Counts of records that were new, and that were there already; the lines left out."""

    added: int
    known: int
    refused: tuple[RefusedRecord, ...]


def record(
    kind: EvidenceKind,
    subject: RecordSubject,
    machine: Machine,
    protocol: Mapping[str, Any],
    result: Mapping[str, Any],
    parents: Sequence[str] = (),
) -> Record:
    """Returns a sealed record of now, by this package as it lies on disk. Raises as `evidence.seal`."""
    now = datetime.now(timezone.utc).isoformat(timespec="microseconds")
    return sealed(Record(kind, subject, machine, harness_digest(), protocol, result, now, tuple(parents)))


@dataclass(frozen=True, slots=True)
class EvidenceStore:
    """All methods raise a StoreError where the file cannot be used as needed. A file that SQLite
    calls damaged is put aside with a DamagedWarning; what of it is intact moves to a new one.
    Nothing is kept open, so any thread may call, and a child after a fork."""

    path: Path

    @staticmethod
    def open(path: Path | None = None) -> EvidenceStore:
        """Returns the store in a file, or the user's own. Nothing is made before the first record."""
        return EvidenceStore(path or switches.read().data_dir / NAME)

    # --- adding ------------------------------------------------------------------

    def prepare(self) -> None:
        """Makes the file where there is none. For who measures long before the first record: a store
        that cannot be written is an error before, not after."""
        store_file.write(self.path, lambda _: None, _copy_intact)

    def add(self, record: Record) -> str:
        """Keeps a record, sealed first if it has no id, and returns its id; one that is there
        already stays as it is. Raises NotIntact, and what `evidence.seal` raises."""
        intact = record if record.id else sealed(record)
        self._insert_rows([_row(intact)])
        return intact.id

    def import_(self, lines: Iterable[str]) -> Imported:
        """Adds the records that `export` wrote, each if its seal holds; the others are told of."""
        rows: list[_Row] = []
        refused: list[RefusedRecord] = []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                rows.append(_row(from_json(line)))
            except _UNREADABLE as error:
                refused.append(RefusedRecord(number, str(error)))
        added = self._insert_rows(rows) if rows else 0
        return Imported(added, len(rows) - added, tuple(refused))

    def _insert_rows(self, rows: Sequence[_Row]) -> int:
        return store_file.write(self.path, lambda c: _insert(c, rows), _copy_intact)

    # --- reading -----------------------------------------------------------------

    def get(self, start: str) -> Record:
        """Returns the record whose id starts so, with at least four hex digits.

        Raises NoSuchRecord for none or several, NotIntact for one that was changed in the store.
        """
        if not re.fullmatch(r"[0-9a-f]{4,64}", start):
            raise NoSuchRecord(f"{start[:80]!r} is no id: an id is 4 to 64 digits 0 to 9, a to f")
        # "g" follows every hex digit, so the range holds the ids that start so.
        rows = self._select("WHERE id >= ? AND id < ? ORDER BY id LIMIT 3", (start, start + "g"))
        if len(rows) > 1:
            raise NoSuchRecord(f"several records start with {start}: {', '.join(r.id[:16] for r in rows)}")
        if not rows:
            raise NoSuchRecord(f"no record in {self.path} starts with {start}")
        if reason := rows[0].fault():
            raise NotIntact(f"record {rows[0].id[:16]}: {reason}; `ucc results check` reads them all")
        return rows[0].record()

    def find(
        self,
        *,
        kind: EvidenceKind | None = None,
        kernel: str | None = None,
        algorithm: str | None = None,
        device: str | None = None,
        since: datetime | None = None,
        limit: int | None = None,
    ) -> tuple[Record, ...]:
        """Returns the records that answer to all that is given, the latest first, `limit` at most.

        `device` is a part of the device's name, in any case, or its whole uuid; `since` has a time
        zone. A record that is not intact is left out with a BrokenRecordWarning.
        """
        since_seconds = None if since is None else since.timestamp()
        values = {"kind": kind, "kernel": kernel, "algorithm": algorithm, "device": device}
        filters = {k: v for k, v in {**values, "since": since_seconds}.items() if v is not None}
        where = f"WHERE {' AND '.join(_FILTERS[name] for name in filters)} " if filters else ""
        records: list[Record] = []
        for row in self._select(f"{where}ORDER BY seconds DESC, number DESC", filters):
            if limit is not None and len(records) >= limit:
                break
            if reason := row.fault():
                words = f"record {row.id[:16]} was left out: {reason}"
                warnings.warn(words, BrokenRecordWarning, stacklevel=2)
            else:
                records.append(row.record())
        return tuple(records)

    def latest(
        self,
        kind: EvidenceKind,
        *,
        kernel: str | None = None,
        algorithm: str | None = None,
        device: str | None = None,
    ) -> Record | None:
        """Returns the last record that answers to all that is given."""
        records = self.find(kind=kind, kernel=kernel, algorithm=algorithm, device=device, limit=1)
        return records[0] if records else None

    def export(self, records: Iterable[Record] | None = None) -> Iterator[str]:
        """Yields records as lines of JSON for `import_`, without line ends; all of them, the oldest
        first."""
        return map(to_json, reversed(self.find()) if records is None else records)

    def check(self) -> tuple[BrokenRecord, ...]:
        """Returns every record that does not hold: content against seal, search columns against content, and
        the chain of digests against the ids, in which a record that was removed leaves a gap.

        SQLite reads the whole file first; where that is damaged, the intact records are checked."""
        if self._there():
            store_file.check(self.path, _copy_intact)
        broken: list[BrokenRecord] = []
        chain = ""
        for row in self._select("ORDER BY number", ()):
            reason = row.fault()
            if not reason and row.chain != _link(chain, row.id):
                reason = "the record before it is not the one after which it was added"
            if reason:
                broken.append(BrokenRecord(row.number, row.id, reason))
            chain = row.chain
        return tuple(broken)

    def _select(self, rest: str, values: Sequence[Any] | Mapping[str, Any]) -> list[_Row]:
        def rows(c: sqlite3.Connection) -> list[_Row]:
            return [_Row(*row) for row in c.execute(f"SELECT {_COLUMNS} FROM record {rest}", values)]

        return store_file.read(self.path, rows, _copy_intact) if self._there() else []

    def _there(self) -> bool:
        with guarded(self.path):
            return self.path.exists()


# --- rows ------------------------------------------------------------------------

_FILTERS: Mapping[str, str] = {
    "kind": "kind = :kind",
    "kernel": "kernel = :kernel",
    "algorithm": "algorithm = :algorithm",
    "device": "(instr(lower(device), lower(:device)) > 0 OR uuid = :device)",
    "since": "seconds >= :since",
}

_UNREADABLE = (ValueError, TypeError, RecursionError)
"""What texts that are no records raise."""

_COLUMNS = "number, id, chain, content, kind, kernel, algorithm, device, uuid, seconds"


@dataclass(frozen=True, slots=True)
class _Row:
    """As in the table; `chain` is "" and `number` 0 before it is there."""

    number: int
    id: str
    chain: str
    content: str
    kind: str
    kernel: str
    algorithm: str
    device: str
    uuid: str
    seconds: float

    def record(self) -> Record:
        return from_json(self.content)

    def fault(self) -> str:
        """Returns why this is not what was added; "" where it is."""
        try:
            again = _row(self.record())
        except _UNREADABLE as error:
            return str(error)
        if again.id != self.id:
            return f"it has the id {str(self.id)[:16]}, but is record {again.id[:16]}"
        mine, theirs = ((r.kind, r.kernel, r.algorithm, r.device, r.uuid, r.seconds) for r in (self, again))
        return "" if mine == theirs else "its search columns are not what its content says"


def _row(record: Record) -> _Row:
    if not intact(record):
        raise NotIntact(
            f"a record has the id {record.id[:16] or '(none)'}, which is not the seal of its content"
        )
    s, m = record.subject, record.machine
    return _Row(
        0,
        record.id,
        "",
        to_json(record),
        record.kind,
        s.kernel,
        s.algorithm,
        m.device,
        m.uuid,
        _seconds(record.created),
    )


_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3}|\.\d{6})?(Z|[+-]\d\d:\d\d)"


def _seconds(created: str) -> float:
    """Since the epoch. Raises ValueError for another form, which some Python would not read."""
    if not re.fullmatch(_TIME, created, re.ASCII):
        raise ValueError(f"created is {created[:80]!r}, not a time such as 2026-03-01T12:00:00+00:00")
    return datetime.fromisoformat(created.replace("Z", "+00:00")).timestamp()


def _link(chain: str, id: str) -> str:
    return hashlib.sha256(f"{chain}{id}".encode()).hexdigest()


def _insert(c: sqlite3.Connection, rows: Iterable[_Row]) -> int:
    """Returns how many were new. Call inside a transaction that writes."""
    last = c.execute("SELECT chain FROM record ORDER BY number DESC LIMIT 1").fetchone()
    chain, added = last[0] if last else "", 0
    for r in rows:
        link = _link(chain, r.id)
        values = (r.id, link, r.content, r.kind, r.kernel, r.algorithm, r.device, r.uuid, r.seconds)
        columns = _COLUMNS.removeprefix("number, ")
        done = c.execute(
            f"INSERT INTO record ({columns}) VALUES (?,?,?,?,?,?,?,?,?) ON CONFLICT (id) DO NOTHING", values
        )
        if done.rowcount == 1:
            chain, added = link, added + 1
    return added


def _copy_intact(old: sqlite3.Connection, new: sqlite3.Connection) -> int:
    """Copies what can still be read of a damaged file and is intact, and returns the number of records."""
    rows: list[_Row] = []
    with suppress(sqlite3.DatabaseError):
        # NOT INDEXED: an index may be what is damaged.
        for (content,) in old.execute("SELECT content FROM record NOT INDEXED ORDER BY number"):
            with suppress(*_UNREADABLE):
                rows.append(_row(from_json(content)))
    return _insert(new, rows)

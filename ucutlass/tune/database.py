"""This module has the tuning database: for each device, program and shape the fastest kernel that was
confirmed.

    tuned.sqlite    one table (and -wal, -shm while somebody has it open), beside the evidence store

What it says rests on records of the evidence store, which its rows name; lost, it is filled again by
tuning. It appears whole or not at all, and every write is one transaction that has reached the disk.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ucutlass import ir
from ucutlass.ir.schedule import PartialSchedule, partial_schedule_of_json
from ucutlass.runtime import folders, switches
from ucutlass.runtime.errors import StoreError, StoreForeign
from ucutlass.runtime.store import faults
from ucutlass.runtime.store import file as store_file
from ucutlass.runtime.subject import algorithm_digest
from ucutlass.shapes import free_dims

NAME = "tuned.sqlite"

APPLICATION = 0x75435455
"""SQLite's application_id of a tuning database: "uCTU"."""

SCHEMA = 1
"""`user_version`. Another schema is another file's worth of tuning, so there are no migrations yet."""

_TABLE = """CREATE TABLE tuned (
  device TEXT NOT NULL, arch TEXT NOT NULL, program TEXT NOT NULL, extents TEXT NOT NULL,
  schedule TEXT NOT NULL, microseconds REAL NOT NULL, bound REAL NOT NULL,
  versions TEXT NOT NULL, record TEXT NOT NULL, created TEXT NOT NULL,
  PRIMARY KEY (device, arch, program, extents))"""

_WHAT = "the tuning database"

T = TypeVar("T")


class TuningDamaged(StoreError):
    """Raised where the tuning database, or a row of it, is not what was written."""


@dataclass(frozen=True, slots=True)
class TuningKey:
    """`device` is the driver's name of the GPU, `arch` the compile target, `program` the digest of what
    is computed and how tensors lie, without schedules and names (`algorithm_digest`), `extents` those of
    the free dimensions in the program's order."""

    device: str
    arch: str
    program: str
    extents: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TunedRow:
    """Describes a confirmed winner: `microseconds` as measured in the fresh process, `bound` the least
    realistic one (0: none is known). `versions` are those of what built it and of ucutlass, `record` the
    evidence's id, `created` its time."""

    request: PartialSchedule
    microseconds: float
    bound: float
    versions: Mapping[str, str]
    record: str
    created: str


def key_of(program: ir.Kernel, sizes: Sequence[int], device: str, arch: str) -> TuningKey:
    """`sizes` has every extent in the order of `program.dims`."""
    by_name = dict(zip(program.dims, sizes, strict=True))
    free = tuple(by_name[name] for name in free_dims(program))
    return TuningKey(device, arch, algorithm_digest(program), free)


def replaces(new: TunedRow, old: TunedRow) -> bool:
    """Returns whether a new result takes an older one's place: where it is not slower, or where the older one
    is of other versions, so that its time says nothing of what would be built today. A slower result of the
    same versions comes from a search that looked at less."""
    return new.microseconds <= old.microseconds or dict(new.versions) != dict(old.versions)


@dataclass(frozen=True, slots=True)
class TuningDatabase:
    """Stores rows in a file. All methods raise a StoreError where the file cannot be used; one that is
    damaged is left as it is. Nothing is kept open."""

    path: Path

    @staticmethod
    def open(path: Path | None = None) -> TuningDatabase:
        """Returns the database in a file, or the user's own. Nothing is made before it is needed."""
        return TuningDatabase(path or switches.read().data_dir / NAME)

    def prepare(self) -> None:
        """Makes the file where there is none, and reads all of one that is there: who tunes for minutes
        wants to know before."""

        def examine(c: sqlite3.Connection) -> None:
            (answer,) = c.execute("PRAGMA integrity_check(1)").fetchone()
            if answer != "ok":
                raise sqlite3.DatabaseError(f"{faults.DAMAGED[1]}: {answer}")

        self.write(examine)

    def find(self, key: TuningKey) -> TunedRow | None:
        """Returns what is recorded for exactly this key. Raises TuningDamaged for a row that cannot be
        read."""
        values = self.read(lambda c: _select(c, key))
        try:
            return None if values is None else _row(values)
        except (ValueError, TypeError) as problem:
            sizes = "x".join(map(str, key.extents))
            raise TuningDamaged(
                f"the row of program {key.program[:12]} at {sizes} in {self.path} cannot be read ({problem})",
                "tune it again",
            ) from problem

    def devices(self, key: TuningKey) -> tuple[str, ...]:
        """Returns the devices that have a row for the rest of this key."""
        return self.read(lambda c: _devices(c, key)) or ()

    def keep(self, key: TuningKey, row: TunedRow) -> TunedRow:
        """Records a confirmed result if it `replaces` the one that is there; what is there afterwards."""

        def update(c: sqlite3.Connection) -> TunedRow:
            values = _select(c, key)
            with suppress(ValueError, TypeError):  # a row that cannot be read is worth nothing
                old = None if values is None else _row(values)
                if old is not None and not replaces(row, old):
                    return old
            c.execute("INSERT OR REPLACE INTO tuned VALUES (?,?,?,?,?,?,?,?,?,?)", (*_of(key), *_values(row)))
            return row

        return self.write(update)

    def read(self, act: store_file.Act[T]) -> T | None:
        """Returns what `act` reads in one transaction; None where there is no file. Raises StoreError."""
        with self._used():
            if not self.path.exists():
                return None
            c = store_file.connect_to_read(self.path)
            return store_file.once(c, lambda c: act(self._ours(c)), "BEGIN")

    def write(self, act: store_file.Act[T]) -> T:
        """Runs `act` in one transaction that reaches the disk; the file is made where there is none. Raises
        StoreError."""
        with self._used():
            _make(self.path)
            with closing(store_file.connect(self.path, "rw")) as c:
                c.execute("PRAGMA synchronous = FULL")
                return store_file.once(c, lambda c: act(self._ours(c)), "BEGIN IMMEDIATE")

    def _ours(self, c: sqlite3.Connection) -> sqlite3.Connection:
        """Raises StoreForeign, StoreNewer."""
        if store_file.schema_of(c, self.path, APPLICATION, SCHEMA) == 0:
            remedy = f"move it away, or {faults.other_folder()}"
            raise StoreForeign(f"{self.path} is no tuning database", remedy)
        return c

    def _used(self) -> AbstractContextManager[None]:
        """Raises a StoreError for whatever SQLite or the system refuses inside."""
        remedy = "move that file away: `ucc tune` makes another"
        return faults.used(self.path, _WHAT, TuningDamaged, remedy)


def _make(path: Path) -> None:
    """Makes the file with its table where there is none: it is made aside and linked, so that nobody sees a
    part of it, and of two who make it at once one is the first."""
    if path.exists():
        return
    folders.make(path.parent)
    new = path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}.new")
    try:
        with closing(store_file.connect(new, "rwc")) as c:
            c.execute("PRAGMA synchronous = FULL")
            c.execute("PRAGMA journal_mode = WAL")
            c.execute(_TABLE)
            c.execute(f"PRAGMA application_id = {APPLICATION}")
            c.execute(f"PRAGMA user_version = {SCHEMA}")
        with suppress(FileExistsError):
            os.link(new, path)
    finally:
        for end in ("", "-wal", "-shm"):
            Path(f"{new}{end}").unlink(missing_ok=True)


# --- rows ------------------------------------------------------------------------


def _of(key: TuningKey) -> tuple[str, str, str, str]:
    return key.device, key.arch, key.program, json.dumps(key.extents)


def _select(c: sqlite3.Connection, key: TuningKey) -> tuple[Any, ...] | None:
    row: tuple[Any, ...] | None = c.execute(
        "SELECT schedule, microseconds, bound, versions, record, created FROM tuned "
        "WHERE device = ? AND arch = ? AND program = ? AND extents = ?",
        _of(key),
    ).fetchone()
    return row


def _devices(c: sqlite3.Connection, key: TuningKey) -> tuple[str, ...]:
    _, *rest = _of(key)
    where = "arch = ? AND program = ? AND extents = ? ORDER BY device"
    return tuple(str(d) for (d,) in c.execute(f"SELECT device FROM tuned WHERE {where}", rest))


def _values(row: TunedRow) -> tuple[Any, ...]:
    versions = json.dumps(dict(row.versions), sort_keys=True)
    return json.dumps(row.request.fixed()), row.microseconds, row.bound, versions, row.record, row.created


def _row(values: tuple[Any, ...]) -> TunedRow:
    """Raises ValueError or TypeError for what `_values` did not write."""
    schedule, microseconds, bound, versions, record, created = values
    if not (math.isfinite(microseconds) and microseconds > 0 and math.isfinite(bound)):
        raise ValueError(f"its time is {microseconds} us, its bound {bound} us")
    named = json.loads(versions)
    if not isinstance(named, dict):
        raise ValueError("its versions are none")
    return TunedRow(
        partial_schedule_of_json(json.loads(schedule)), microseconds, bound, named, str(record), str(created)
    )

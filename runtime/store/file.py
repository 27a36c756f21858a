"""Manages the SQLite file of the evidence store: it is made, migrated, locked, and put aside where it is
damaged.

    evidence.sqlite            the records (and -wal, -shm while somebody has it open)
    evidence.sqlite.lock       locked (flock) while the file is made, migrated or put aside
    evidence.sqlite.damaged-*  files that SQLite could not read

Every operation opens the file, does its work in one transaction and closes it. What is committed
has reached the disk: the log is synchronised with every commit (WAL, synchronous=FULL). The file
must lie on a disk of this machine: WAL needs memory that all users of the file share
(sqlite.org/wal.html).
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TypeAlias, TypeVar
from urllib.parse import quote

from ucutlass.runtime import folders
from ucutlass.runtime.errors import StoreBusy, StoreForeign, StoreNewer, StoreUnusable
from ucutlass.runtime.store.faults import DAMAGED, damaged, guarded, other_folder

BUSY_SECONDS = 60.0
"""How long an operation waits for others that write."""

APPLICATION = 0x75434556
"""SQLite's application_id of a store: "uCEV"."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE record (
             number INTEGER PRIMARY KEY AUTOINCREMENT,
             id TEXT NOT NULL UNIQUE, chain TEXT NOT NULL, content TEXT NOT NULL,
             kind TEXT NOT NULL, kernel TEXT NOT NULL, algorithm TEXT NOT NULL,
             device TEXT NOT NULL, uuid TEXT NOT NULL, seconds REAL NOT NULL)""",
        "CREATE INDEX record_kernel ON record (kernel, kind)",
        "CREATE INDEX record_algorithm ON record (algorithm)",
        "CREATE INDEX record_seconds ON record (seconds)",
        """CREATE TRIGGER record_stays BEFORE DELETE ON record
             BEGIN SELECT raise(ABORT, 'evidence can only be added to'); END""",
        """CREATE TRIGGER record_holds BEFORE UPDATE ON record
             BEGIN SELECT raise(ABORT, 'evidence can only be added to'); END""",
    ),
)
"""Statements that lead from each schema (`user_version`) to the next; 0 is the empty file."""

T = TypeVar("T")
Act: TypeAlias = Callable[[sqlite3.Connection], T]

Salvage: TypeAlias = Callable[[sqlite3.Connection, sqlite3.Connection], int]
"""Copies what can be read from a damaged file to a new one, inside a transaction of the new one;
returns how many records."""


class DamagedWarning(UserWarning):
    """The store's file could not be read; it was put aside, and its intact records were kept."""


def read(path: Path, act: Act[T], salvage: Salvage) -> T:
    """Returns what `act` reads within one transaction. The file must be there. Raises StoreError."""
    return _run(path, act, salvage, _reader, "BEGIN")


def check(path: Path, salvage: Salvage) -> None:
    """Has SQLite read all of the file, its indices too; a damaged one is put aside. Raises StoreError."""

    def examine(c: sqlite3.Connection) -> None:
        (verdict,) = c.execute("PRAGMA integrity_check(1)").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(f"{DAMAGED[1]}: {verdict}")

    _run(path, examine, salvage, _reader, "BEGIN")


def write(path: Path, act: Act[T], salvage: Salvage) -> T:
    """Runs `act` in one transaction that writes, and returns its result; the file is made where there is
    none. Raises StoreError."""
    return _run(path, act, salvage, _writer, "BEGIN IMMEDIATE")


def _run(
    path: Path, act: Act[T], salvage: Salvage, opened: Callable[[Path], sqlite3.Connection], begin: str
) -> T:
    with guarded(path):
        try:
            return once(opened(path), act, begin)
        except sqlite3.DatabaseError as error:
            if not damaged(error):
                raise
            words = _put_aside(path, str(error), salvage)
        warnings.warn(words, DamagedWarning, stacklevel=5)
        return once(opened(path), act, begin)


def once(connection: sqlite3.Connection, act: Act[T], begin: str) -> T:
    """Runs `act` in one transaction, and returns its result; the connection is closed."""
    with closing(connection) as c:
        c.execute(begin)
        try:
            done = act(c)
            c.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # SQLite has rolled back by itself after some faults
                c.execute("ROLLBACK")
            raise
        return done


# --- connections -----------------------------------------------------------------


def _writer(path: Path) -> sqlite3.Connection:
    """To a file of the newest schema, made or migrated where it is not."""
    folders.make(path.parent)
    with _close_on_error(connect(path, "rwc")) as c:
        c.execute("PRAGMA synchronous = FULL")
        if _schema(c, path) < len(MIGRATIONS):
            with _alone(path):
                _migrate(c, _schema(c, path))
        return c


def _reader(path: Path) -> sqlite3.Connection:
    with _close_on_error(connect_to_read(path)) as c:
        if _schema(c, path) == len(MIGRATIONS):
            return c
    c.close()
    return _writer(path)


@contextmanager
def _close_on_error(c: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """The connection, closed only where the block raises."""
    try:
        yield c
    except BaseException:
        c.close()
        raise


def connect(path: Path, mode: str, more: str = "") -> sqlite3.Connection:
    """Lazy as SQLite is: a file that is none of its own is noticed by the first statement."""
    c = sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode}{more}", uri=True, timeout=BUSY_SECONDS, isolation_level=None
    )
    # A flipped bit in a text must not hide the rows around it: seals tell which one it hit.
    c.text_factory = _text
    return c


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Read-only. A folder that cannot be written has no place for the files that readers share, so
    there the file counts as one that nobody changes, if all of it is in the file itself."""
    c = connect(path, "ro")
    try:
        c.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        c.close()
        log = Path(f"{path}-wal")
        pending = log.exists() and log.stat().st_size > 0
        if os.access(path.parent, os.W_OK) or pending:
            raise
        return connect(path, "ro", "&immutable=1")
    except BaseException:
        c.close()
        raise
    return c


# --- schema ----------------------------------------------------------------------


def _schema(c: sqlite3.Connection, path: Path) -> int:
    return schema_of(c, path, APPLICATION, len(MIGRATIONS))


def schema_of(c: sqlite3.Connection, path: Path, application: int, newest: int) -> int:
    """Returns the `user_version` of a file of ours, by its application_id; 0 for an empty one. Raises
    StoreForeign, and StoreNewer for one beyond the `newest` that is known."""
    (owner,) = c.execute("PRAGMA application_id").fetchone()
    (schema,) = c.execute("PRAGMA user_version").fetchone()
    (tables,) = c.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if owner != application and (owner, schema, tables) != (0, 0, 0):
        raise StoreForeign(f"{path} is a database of something else", other_folder())
    if schema > newest:
        raise StoreNewer(
            f"{path} has schema {schema}, and this version of ucutlass knows up to {newest}",
            f"update ucutlass, or {other_folder()}",
        )
    return int(schema)


def _migrate(c: sqlite3.Connection, schema: int) -> None:
    """Migrates from a schema to the newest, whole or not at all. Call alone."""
    c.execute("PRAGMA journal_mode = WAL")
    c.execute("BEGIN IMMEDIATE")
    for statements in MIGRATIONS[schema:]:
        for statement in statements:
            c.execute(statement)
    c.execute(f"PRAGMA application_id = {APPLICATION}")
    c.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
    c.execute("COMMIT")


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Between processes that would make, migrate or put aside the file. Raises StoreBusy."""
    fd = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    deadline = time.monotonic() + BUSY_SECONDS
    try:
        while not _locked(fd):
            if time.monotonic() > deadline:
                raise StoreBusy(
                    f"waited {BUSY_SECONDS:g} s for another process that sets up {path}",
                    "let that process end, or end it",
                )
            time.sleep(0.02)
        yield
    finally:
        os.close(fd)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# --- damage ----------------------------------------------------------------------


def _put_aside(path: Path, why: str, salvage: Salvage) -> str:
    """Moves a damaged file away and what is intact of it into a new one; says so in words."""
    aside = Path(f"{path}.damaged-{uuid.uuid4().hex[:8]}")
    what = f"the evidence store {path} was damaged ({why})"
    try:
        with _alone(path):
            if not _is_damaged(path):
                return f"{what}; another process saw to it"
            path.rename(aside)
            for end in ("-wal", "-shm"):
                with suppress(FileNotFoundError):
                    Path(f"{path}{end}").rename(f"{aside}{end}")
            count = _copy(aside, path, salvage)
    except OSError as error:
        raise StoreUnusable(f"{what} and cannot be put aside ({error})", other_folder()) from error
    return f"{what}; it was put aside as {aside.name}, and {count} intact records of it were kept"


def _copy(old: Path, new: Path, salvage: Salvage) -> int:
    with closing(connect(old, "rw")) as source, closing(connect(new, "rwc")) as target:
        target.execute("PRAGMA synchronous = FULL")
        _migrate(target, 0)
        return once(target, lambda c: salvage(source, c), "BEGIN IMMEDIATE")


def _is_damaged(path: Path) -> bool:
    try:
        with closing(connect(path, "rw")) as c:
            return bool(c.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",))
    except sqlite3.DatabaseError as error:
        if damaged(error):
            return True
        raise

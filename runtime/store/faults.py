"""Explains why SQLite or the system cannot use the evidence store, and how to fix it."""

from __future__ import annotations

import errno
import os
import shlex
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ucutlass.runtime import folders, switches
from ucutlass.runtime.errors import (
    StoreBusy,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUntrusted,
    StoreUnusable,
)

_WORDS: Mapping[str, type[StoreError]] = {
    "database or disk is full": StoreFull,
    "attempt to write a readonly database": StoreReadOnly,
    "database is locked": StoreBusy,
}
"""SQLite's own messages (sqlite3ErrStr in main.c); Python 3.10 does not pass on the codes."""

DAMAGED = ("file is not a database", "database disk image is malformed")

_CODES: Mapping[int, type[StoreError]] = {
    errno.EROFS: StoreReadOnly,
    errno.EACCES: StoreReadOnly,
    errno.EPERM: StoreReadOnly,
    errno.ENOSPC: StoreFull,
    errno.EDQUOT: StoreFull,
}


def damaged(error: sqlite3.Error) -> bool:
    """Returns whether SQLite says that the file is not what it wrote."""
    return any(words in str(error) for words in DAMAGED)


def other_folder() -> str:
    return f"set {switches.DATA_DIR} to a folder with room that you may write"


@contextmanager
def guarded(path: Path, what: str = "the evidence store") -> Iterator[None]:
    """Raises a StoreError for whatever SQLite or the system refuses inside, and StoreUntrusted where another
    user may write the file or its folder; `what` names the file."""
    try:
        real = Path(os.path.realpath(path))
        for folder in dict.fromkeys((path.parent, real.parent)):
            folders.check(folder, switches.DATA_DIR, StoreUnusable, StoreUntrusted)
        if reason := folders.others_may_write(real.parent, real):
            raise StoreUntrusted(
                f"{what} {path} is not used: {reason}",
                f"look at what it holds, then chmod 600 {shlex.quote(str(path))}, or {other_folder()}",
            )
        yield
    except sqlite3.Error as error:
        fault = next((kind for words, kind in _WORDS.items() if words in str(error)), StoreUnusable)
        if "unable to open" in str(error) and path.exists() and not os.access(path.parent, os.W_OK):
            fault = StoreReadOnly  # there is no place for the log
        raise _fault(fault, path, error, what) from error
    except OSError as error:
        raise _fault(_CODES.get(error.errno or 0, StoreUnusable), path, error, what) from error


@contextmanager
def used(path: Path, what: str, broken: type[StoreError], fix: str) -> Iterator[None]:
    """As `guarded`; for a damaged file `broken`, with how to fix it: a file that is left as it is."""
    with guarded(path, what):
        try:
            yield
        except sqlite3.DatabaseError as error:
            if not damaged(error):
                raise
            raise broken(f"{what} {path} is damaged ({error})", fix) from error


def _fault(kind: type[StoreError], path: Path, error: Exception, name: str) -> StoreError:
    if kind is StoreBusy:
        return StoreBusy(
            f"{name} {path} is held by another process ({error})", "let that process end, or end it"
        )
    what = {
        StoreFull: f"no space left for {name} {path}",
        StoreReadOnly: f"{name} {path} cannot be written",
    }.get(kind, f"{name} {path} cannot be used")
    return kind(f"{what} ({error})", other_folder())

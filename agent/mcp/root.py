"""This module reads files below one folder and nowhere else.

A path is walked from the root, part by part, by descriptors that follow no symbolic link: what another process
puts in a path's place meanwhile is not followed either.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from ucutlass import files
from ucutlass.printable import one_line

MOST_CHARACTERS = 1024
MOST_PARTS = 32


class PathRefused(ValueError):
    """Raised for a path that is not taken; says why."""


def parts_of(path: str) -> tuple[str, ...]:
    """Returns the parts of a relative path. Raises PathRefused."""
    if not path or len(path) > MOST_CHARACTERS or not path.isprintable():
        raise PathRefused(
            f"a path has 1 to {MOST_CHARACTERS} printable characters; this one has {len(path)}"
            f"{'' if path.isprintable() else ', some of them not printable'}"
        )
    pure = PurePosixPath(path)
    if pure.is_absolute():
        raise PathRefused(f"{_shown(path)}: give a path relative to the server's root")
    if ".." in pure.parts:
        raise PathRefused(f"{_shown(path)}: '..' is not taken")
    if not 1 <= len(pure.parts) <= MOST_PARTS:
        raise PathRefused(f"{_shown(path)}: a path has 1 to {MOST_PARTS} parts, this one {len(pure.parts)}")
    return pure.parts


def read_below(root: Path, path: str, most: int) -> bytes:
    """Returns the content of a regular file below `root`. Raises PathRefused where it is not there, is reached
    by a symbolic link, is no regular file, or has more than `most` bytes."""
    parts = parts_of(path)
    try:
        with _opened(root, parts) as number, os.fdopen(os.dup(number), "rb") as stream:
            status = os.fstat(number)
            if not stat.S_ISREG(status.st_mode):
                raise PathRefused(f"{_shown(path)} is no regular file")
            return files.read_stream(stream, _shown(path), most)
    except OSError as error:
        reason = error.strerror or str(error)
        raise PathRefused(f"{_shown(path)}: {reason}; symbolic links are not followed") from None


@contextmanager
def _opened(root: Path, parts: tuple[str, ...]) -> Iterator[int]:
    """Yields the descriptor of the file at these parts."""
    # The root itself is the user's to name, by a link too. A pipe must not be waited for.
    number = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for at, part in enumerate(parts):
            folder = os.O_DIRECTORY if at + 1 < len(parts) else os.O_NONBLOCK
            inner = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | folder, dir_fd=number)
            os.close(number)
            number = inner
        yield number
    finally:
        os.close(number)


def _shown(path: str) -> str:
    return one_line(path)[:200]

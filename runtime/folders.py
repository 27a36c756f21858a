"""Checks folders whose content is run or believed: no other user may write there.

The cache, the evidence store, the journal, the tuning database and the ceilings lie in folders of this
user's, made with mode 0700. One that is there is refused where another user owns it, or where its group or
others may write; root may own it, for root may do anything. Folders above it that anybody may write must be
sticky, as /tmp is, and a symbolic link on the way to it must be this user's or root's.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ucutlass.runtime.errors import MachineError

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_ENTER = stat.S_IXGRP | stat.S_IXOTH
_MOST_LINKS = 40


def check(folder: Path, switch: str, unusable: type[MachineError], untrusted: type[MachineError]) -> None:
    """Raises `unusable` where a file stands in a folder's place, `untrusted` where others may write what lies
    there; `switch` is the variable that names another folder. A folder that is not there yet is fine."""
    other = f"set {switch} to a folder of your own"
    real = Path(os.path.realpath(folder))
    for path in (real, *real.parents):
        with suppress(FileNotFoundError, NotADirectoryError):
            if not stat.S_ISDIR(path.lstat().st_mode):
                raise unusable(
                    f"{path} is not a folder, and a folder is needed there", f"move it away, or {other}"
                )
    if reason := _link_of_another(folder) or _open_above(real):
        raise untrusted(f"{folder} is not used: {reason}", other)
    if reason := others_may_write(real):
        fix = f"look at what lies there, then chmod 700 {shlex.quote(str(real))}, or {other}"
        raise untrusted(f"{folder} is not used: {reason}", fix)


def others_may_write(*chain: Path) -> str:
    """Returns why the last of these can be changed by another user, where each lies in the one before; ""
    where it cannot, or is not there. What lies in a folder that others cannot enter is not looked at."""
    for path in chain:
        try:
            status = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return ""
        if stat.S_ISLNK(status.st_mode):
            return f"{path} is a link"
        if not _trusted(status.st_uid):
            return f"{path} belongs to user {status.st_uid}, and this is user {os.geteuid()}"
        if status.st_mode & _OTHERS_WRITE:
            return f"other users may write {path} (mode {stat.S_IMODE(status.st_mode):04o})"
        if stat.S_ISDIR(status.st_mode) and not status.st_mode & _OTHERS_ENTER:
            return ""
    return ""


def make(folder: Path) -> Path:
    """Returns the folder, made for this user alone if it is not there, and so are those above it. Raises
    OSError."""
    for path in (*reversed(folder.parents), folder):
        if not path.is_dir():
            path.mkdir(mode=0o700, exist_ok=True)
    return folder


def _trusted(user: int) -> bool:
    return user in (os.geteuid(), 0)


def _open_above(real: Path) -> str:
    for path in real.parents:
        with suppress(FileNotFoundError, PermissionError):
            mode = path.lstat().st_mode
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                shown = f"{stat.S_IMODE(mode):04o}"
                return f"anybody may replace it, for {path} has mode {shown} and is not sticky"
    return ""


def _link_of_another(folder: Path) -> str:
    for link in _links(folder):
        owner = link.lstat().st_uid
        if not _trusted(owner):
            return f"{link} is a link of user {owner}, and this is user {os.geteuid()}"
    return ""


def _links(folder: Path) -> Iterator[Path]:
    """Yields every symbolic link on the way to a folder."""
    path = folder.absolute()
    for _ in range(_MOST_LINKS):
        link = next((p for p in (*reversed(path.parents), path) if p.is_symlink()), None)
        if link is None:
            return
        yield link
        path = link.parent / link.readlink() / path.relative_to(link)

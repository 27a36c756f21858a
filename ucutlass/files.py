"""Reads and writes files: text is UTF-8 whatever the locale is, and a file is replaced entirely or not at
all.

`write` and `write_all` are for files that users own and for files that are kept: no reader ever sees one that
is truncated or empty because the disk was full or the process was killed. `put` and `append` are for folders
that nobody else uses yet, and for logs. Line ends stay as they are.
"""

from __future__ import annotations

import errno
import os
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

Content: TypeAlias = str | bytes | Path
"""The content of a file: text, bytes, or the bytes of another file."""

MOST_BYTES = 1 << 30
"""Most bytes of a file that is read, where the caller gives no smaller limit."""

_MOST_LINKS = 40
"""Most symbolic links that are followed to a target, as in Linux."""

_BLOCK = 1 << 20

_STAGED = ".ucc-"
"""Prefix of the names of files that a killed process may leave behind."""


class NotText(OSError):
    """A file is not UTF-8; `strerror` gives the first byte that is not."""


# --- reading ----------------------------------------------------------------------


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """Returns the content of a file of at most `most` bytes. Raises OSError, with EFBIG for a longer file,
    such as a device that never ends."""
    with path.open("rb") as file:
        return read_stream(file, str(path), most)


def read_stream(file: BinaryIO, name: str, most: int = MOST_BYTES) -> bytes:
    """Does what `read_bytes` does, for a stream; `name` is for the error."""
    data = bytearray()
    while block := _read(file, name, min(_BLOCK, most + 1 - len(data))):
        data += block
        if len(data) > most:
            raise OSError(errno.EFBIG, f"it has more than {most} bytes, which is the most that is read", name)
    return bytes(data)


def _read(file: BinaryIO, name: str, count: int) -> bytes:
    try:
        return file.read(count)
    except OSError as error:  # it names no file, unlike those of opening one
        raise OSError(error.errno, error.strerror, name) from error


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """Returns the content of a file as text, with its line ends. Raises as `read_bytes` does, and NotText."""
    data = read_bytes(path, most)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        words = f"byte {error.start} (0x{data[error.start]:02X}) is not UTF-8; save the file as UTF-8"
        raise NotText(errno.EILSEQ, words, str(path)) from None


# --- replacing --------------------------------------------------------------------


def write(target: Path, content: Content) -> None:
    """Writes a file, and leaves the old content where that fails. Raises OSError, which names the target.

    The content is written to a new file in the target's folder and reaches the disk before it takes the
    target's name, mode and owner. Of a symbolic link the file that it leads to is replaced; a hard link's
    other names keep the old content. A device, a pipe or an open descriptor (/dev/stdout) is written to
    directly.
    """
    write_all({target: content})


def write_all(contents: Mapping[Path, Content]) -> None:
    """Writes several files as `write` does: all of them get their content or none does. A process that is
    killed between two renames leaves complete files, of which some are older."""
    staged: list[_Staged] = []
    try:
        for target, content in contents.items():
            with _naming(target):
                match _destination(target):
                    case int(descriptor):
                        _write_content(descriptor, content)
                    case destination if _is_stream(destination):
                        _open(destination, os.O_NOCTTY, content)
                    case destination:
                        staged.append(_staged(destination, content))
        _rename(staged)
    finally:
        for file in staged:
            for leftover in (file.fresh, file.backup):
                with suppress(OSError):
                    leftover.unlink()


@dataclass(frozen=True, slots=True)
class _Staged:
    """A file that replaces `destination`: its content is in `fresh`; `backup` becomes a second name of the
    replaced file."""

    destination: Path
    fresh: Path
    backup: Path


def _destination(target: Path) -> Path | int:
    """Returns where the content is written, behind every symbolic link: a path, or a descriptor of this
    process (/dev/stdout), which is not opened again because its position in its file counts."""
    destination = target
    for _ in range(_MOST_LINKS):
        folder = Path(os.path.realpath(destination.parent))
        if folder == Path(os.path.realpath("/proc/self/fd")) and destination.name.isdecimal():
            return int(destination.name)
        destination = folder / destination.name
        if not destination.is_symlink():
            return destination
        destination = folder / destination.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(target))


def _is_stream(destination: Path) -> bool:
    """Returns whether the destination is a device or a pipe, which cannot be replaced. Raises
    IsADirectoryError."""
    try:
        mode = destination.stat().st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(destination))
    return not stat.S_ISREG(mode)


def _staged(destination: Path, content: Content) -> _Staged:
    previous: os.stat_result | None = None
    with suppress(FileNotFoundError):
        previous = destination.stat()
    if previous is not None and not os.access(destination, os.W_OK):
        raise PermissionError(errno.EACCES, "it may not be written", str(destination))
    name = f"{_STAGED}{uuid.uuid4().hex}"
    staged = _Staged(destination, destination.with_name(f"{name}.new"), destination.with_name(f"{name}.old"))
    try:
        fd = os.open(staged.fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except PermissionError as error:
        words = f"{error.strerror}: its folder must be writable, for a file is replaced whole"
        raise PermissionError(error.errno, words, str(destination)) from error
    try:
        try:
            if previous is not None:
                with suppress(PermissionError):  # another user's file in a folder that both may write
                    os.fchown(fd, previous.st_uid, previous.st_gid)
                os.fchmod(fd, stat.S_IMODE(previous.st_mode))
            _write_content(fd, content)
            os.fsync(fd)
        finally:
            os.close(fd)
    except BaseException:
        with suppress(OSError):
            staged.fresh.unlink()
        raise
    return staged


def _rename(staged: Iterable[_Staged]) -> None:
    undo: list[Callable[[], object]] = []
    folders: dict[Path, None] = {}
    try:
        for file in staged:
            with _naming(file.destination):
                undo.append(_back_up(file))
                file.fresh.replace(file.destination)
                folders[file.destination.parent] = None
        for folder in folders:
            _sync_folder(folder)
    except BaseException:
        for act in reversed(undo):
            with suppress(OSError):  # the first failure is the one to tell of
                act()
        raise


def _back_up(file: _Staged) -> Callable[[], object]:
    """Gives the replaced file a second name; returns a function that restores it."""
    try:
        os.link(file.destination, file.backup)
    except FileNotFoundError:
        return lambda: file.destination.unlink(missing_ok=True)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        return lambda: None  # a file system without hard links: the single rename is all there is
    return lambda: file.backup.replace(file.destination)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems synchronise names by themselves
            raise
    finally:
        os.close(fd)


@contextmanager
def _naming(target: Path) -> Iterator[None]:
    """Makes an OSError about a staged file name the target instead."""
    try:
        yield
    except OSError as error:
        if error.filename is not None and _STAGED not in str(error.filename):
            raise
        raise OSError(error.errno, error.strerror, str(target)) from error


# --- streams, and folders of one's own --------------------------------------------


def make_writable(folder: Path) -> None:
    """Makes a folder to which much work will be written, so that nobody does the work in vain. Raises OSError where
    it cannot be written to."""
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "it may not be written to", str(folder))


def put(path: Path, content: Content) -> None:
    """Writes a file in a folder that nobody else relies on yet: a build's, or a temporary one. Raises
    OSError."""
    _open(path, os.O_CREAT | os.O_TRUNC, content)


def append(path: Path, content: Content) -> None:
    """Appends to a file, which is created if it does not exist, in one write where the system allows it.
    Raises OSError."""
    _open(path, os.O_CREAT | os.O_APPEND, content)


def _open(path: Path, flags: int, content: Content) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o666)
    try:
        _write_content(fd, content)
    finally:
        os.close(fd)


def _write_content(fd: int, content: Content) -> None:
    if isinstance(content, Path):
        with content.open("rb") as source:
            while block := source.read(_BLOCK):
                _write_all_bytes(fd, block)
    else:
        _write_all_bytes(fd, content.encode("utf-8") if isinstance(content, str) else content)


def _write_all_bytes(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]

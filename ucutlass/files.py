"""Files: text is UTF-8 whatever the locale is, and a file is replaced whole or not at all.

`write` and `write_all` are for what users own and what is kept: a file that is cut short, or empty, because
the disk was full or the process killed, is never seen under its name. `put` and `append` are for folders that
nobody else sees yet, and for logs. Line ends stay as they are.
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
"""What a file gets: text, bytes, or the bytes of another file."""

MOST_BYTES = 1 << 30
"""Of a file that is read, where the caller knows no smaller limit."""

_MOST_LINKS = 40
"""Symbolic links that lead to a target at most, as Linux follows them."""

_BLOCK = 1 << 20

_STAGED = ".ucc-"
"""How names of files begin that a kill may leave behind."""


class NotText(OSError):
    """A file is not UTF-8; `strerror` gives the first byte that is not."""


# --- reading ----------------------------------------------------------------------


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """The content of a file of at most `most` bytes. Raises OSError, EFBIG for a longer one: a device that
    never ends is one too."""
    with path.open("rb") as file:
        return read_stream(file, str(path), most)


def read_stream(file: BinaryIO, name: str, most: int = MOST_BYTES) -> bytes:
    """As `read_bytes`, of a stream; `name` is for the error."""
    data = bytearray()
    while block := file.read(min(_BLOCK, most + 1 - len(data))):
        data += block
        if len(data) > most:
            raise OSError(errno.EFBIG, f"it has more than {most} bytes, which is the most that is read", name)
    return bytes(data)


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """As `read_bytes`, as text, with its line ends. Raises NotText too."""
    data = read_bytes(path, most)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        words = f"byte {error.start} (0x{data[error.start]:02X}) is not UTF-8; save the file as UTF-8"
        raise NotText(errno.EILSEQ, words, str(path)) from None


# --- replacing --------------------------------------------------------------------


def write(target: Path, content: Content) -> None:
    """Gives a file this content, and leaves it as it was where that fails. Raises OSError, which names
    the target.

    The content is written to a new file in the target's folder, has reached the disk before it takes the
    target's name, and gets its mode and owner. Of a symbolic link the file that it leads to is replaced; a
    hard link's other names keep the old content. A device, a pipe or an open descriptor (/dev/stdout) is
    written to as it is.
    """
    write_all({target: content})


def write_all(contents: Mapping[Path, Content]) -> None:
    """As `write`, of several files: all of them get their content or none does. A process that is killed
    between two renames leaves whole files, of which some are older."""
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
    """A file that is to be `place`: its content lies in `fresh`; `old` becomes a second name of what is
    replaced."""

    destination: Path
    fresh: Path
    backup: Path


def _destination(target: Path) -> Path | int:
    """Where the content comes to lie, behind every symbolic link: a path, or a descriptor of this process
    (/dev/stdout), which is not opened anew since its place in its file counts."""
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
    """Whether it is a device or a pipe, which cannot be replaced. Raises IsADirectoryError."""
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
    """Gives what is replaced a second name; the act that brings it back."""
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
    """An OSError of what is staged inside names the target instead."""
    try:
        yield
    except OSError as error:
        if error.filename is not None and _STAGED not in str(error.filename):
            raise
        raise OSError(error.errno, error.strerror, str(target)) from error


# --- streams, and folders of one's own --------------------------------------------


def put(path: Path, content: Content) -> None:
    """Writes a file in a folder that nobody else relies on yet: a build's, or a temporary one. Raises
    OSError."""
    _open(path, os.O_CREAT | os.O_TRUNC, content)


def append(path: Path, content: Content) -> None:
    """Adds to a file, which is made where there is none, in one write where the system allows it. Raises
    OSError."""
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

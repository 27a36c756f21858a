"""Manages the folder of built kernels.

    entries/KEY/      build.json and the files it lists; appears whole, by one rename
    staging/KEY.*/    being made; stale once nobody holds KEY's lock
    locks/KEY         locked (flock) by the process that makes KEY; the system drops it with the process
    quarantine/KEY.*/ entries that were not what their manifest says
    failed/KEY/       source and log of a build that the compiler refused

Reading takes no lock. Time stamps say only what was used last; they are no part of any key.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from ucutlass.files import put
from ucutlass.runtime import folders, nvcc_paths, switches
from ucutlass.runtime.errors import (
    BuildCancelled,
    CacheError,
    CacheFull,
    CacheReadOnly,
    CacheUntrusted,
    CacheUnusable,
    LockTimeout,
)
from ucutlass.spans import span

MANIFEST = "build.json"
FORMAT = 1

_POLL_SECONDS = 0.01
_GRACE_SECONDS = 60.0
"""An entry used this recently is not evicted: its user may not have opened the files yet. Files
already loaded stay valid when removed."""

_TIDY_SECONDS = 10.0
_TIDY_LOCK = "tidy"
"""Held by who tidies after a build; its time is that of the last who did."""


KNOWN = "known"
"""Folder of what staged builds came to (`ucutlass.runtime.jit.artifact_keys`)."""

GRAPHS = "graphs"
"""Folder of what is remembered of PyTorch's graphs (`ucutlass.dynamo.records`)."""


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """`about` is what the builder wrote; `bytes` counts the files; `used` is seconds since the epoch."""

    key: str
    folder: Path
    about: Mapping[str, Any]
    bytes: int
    used: float


@dataclass(frozen=True, slots=True)
class Corrupt:
    """A folder that is not what its manifest says."""

    key: str
    folder: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts of folders, and bytes of all of them together against the limit."""

    root: Path
    entries: int
    quarantined: int
    failed: int
    bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class Cache:
    """All methods raise a CacheError where the folder cannot be used as needed."""

    root: Path
    limit_bytes: int

    @staticmethod
    def from_switches(values: switches.Switches | None = None) -> Cache:
        s = switches.read() if values is None else values
        return Cache(s.cache_dir, s.cache_bytes)

    # --- reading -----------------------------------------------------------------

    def load(self, key: str) -> CacheEntry | Corrupt | None:
        """Returns the entry of this key, its files checked against their SHA-256s; marks it used."""
        folder = self.root / "entries" / key
        self._check_path()
        with self._guard(), span("cache look-up"):
            entry = _inspect(key, folder, _check_digest)
        if isinstance(entry, CacheEntry):
            with suppress(OSError):  # a read-only cache still serves; eviction is not its business
                os.utime(folder / MANIFEST)
        return entry

    def entries(self) -> tuple[CacheEntry | Corrupt, ...]:
        """Returns all entries, the least recently used first, corrupt ones before all."""
        entries = [_inspect(f.name, f, _check_size) for f in self._folders("entries")]
        return tuple(
            sorted((e for e in entries if e), key=lambda e: e.used if isinstance(e, CacheEntry) else 0.0)
        )

    def stats(self) -> Stats:
        entries, quarantined, failed = (self._folders(k) for k in ("entries", "quarantine", "failed"))
        size = sum(_size(f) for f in (*entries, *quarantined, *failed))
        return Stats(self.root, len(entries), len(quarantined), len(failed), size, self.limit_bytes)

    def verify(self) -> tuple[CacheEntry | Corrupt, ...]:
        """Reads every file of every entry against its SHA-256; corrupt entries are put aside."""
        entries = [_inspect(f.name, f, _check_digest) for f in self._folders("entries")]
        for item in entries:
            if isinstance(item, Corrupt):
                self.quarantine(item.key)
        return tuple(e for e in entries if e)

    # --- making an entry ---------------------------------------------------------

    @contextmanager
    def locked(
        self,
        key: str,
        *,
        timeout_seconds: float,
        cancel: Event | None = None,
        on_wait: Callable[[str], None] = lambda _: None,
        wait_span: str = "waiting for another build",
        shared: bool = False,
        purpose: str = "",
    ) -> Iterator[None]:
        """Holds this key's lock, between threads and processes; `shared` with others that share it.

        `on_wait` is told once who holds it, and for what `purpose`; the wait is a span of the name `wait_span`. Raises LockTimeout,
        BuildCancelled.
        """
        with self._guard(), span(wait_span):
            path = self._folder("locks") / key
            deadline = time.monotonic() + timeout_seconds
            waited = False
            while (fd := _try_lock(path, shared, purpose)) is None:
                holder = _holder(path)
                if not waited:
                    on_wait(holder)
                    waited = True
                if cancel is not None and cancel.is_set():
                    raise BuildCancelled(key)
                if time.monotonic() >= deadline:
                    raise LockTimeout(
                        f"waited {timeout_seconds:g} s for {holder}, which holds {path}",
                        "let that process end, or end it; the lock goes with it",
                    )
                time.sleep(_POLL_SECONDS)
        try:
            yield
        finally:
            os.close(fd)

    @contextmanager
    def staging(self, key: str) -> Iterator[Path]:
        """A fresh folder on the cache's file system, removed at the end if it is still there."""
        self._check_path()
        with self._guard():
            folder = self._folder("staging") / f"{key}.{uuid.uuid4().hex}"
            folder.mkdir(mode=0o700)
        try:
            with self._guard(), span("compiling and storing"):
                yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def publish(self, key: str, staged: Path, about: Mapping[str, Any]) -> CacheEntry:
        """Turns a staged folder into the entry, at once and durably; all its files become part.

        Where another process published meanwhile, its entry stays and the staged folder goes.
        Call with the key's lock held.
        """
        with self._guard():
            content = sorted(staged.iterdir())
            files = {f.name: {"bytes": f.stat().st_size, "sha256": _sha256(f)} for f in content}
            manifest = {"format": FORMAT, "key": key, "files": files, "about": dict(about)}
            put(staged / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True))
            for path in (*content, staged / MANIFEST, staged):
                _sync(path)
            target = self._folder("entries") / key
            try:
                staged.rename(target)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                shutil.rmtree(staged)
            _sync(target.parent)
        match self.load(key):
            case CacheEntry() as entry:
                return entry
            case other:
                reason = other.reason if other else "it is gone"
                raise CacheUnusable(f"{target} cannot be read back: {reason}", _other_folder())

    def keep_failure(self, key: str, staged: Path) -> Path:
        """Moves a staged folder to where refused builds are kept; returns the place."""
        with self._guard():
            target = self._folder("failed") / key
            shutil.rmtree(target, ignore_errors=True)
            staged.rename(target)
            return target

    def quarantine(self, key: str) -> Path | None:
        """Puts an entry aside, so that the next build makes it anew; None where it is gone already."""
        with self._guard():
            target = self._folder("quarantine") / f"{key}.{uuid.uuid4().hex}"
            try:
                (self.root / "entries" / key).rename(target)
            except FileNotFoundError:
                return None
            return target

    def check_writable(self) -> None:
        """Makes and removes a staging folder; raises the CacheError that a build would."""
        with self.staging("probe") as folder:
            put(folder / "probe", b"probe")

    # --- housekeeping ------------------------------------------------------------

    def tidy(self) -> None:
        """Removes stale staging folders, then the least recently used folders until the rest fits
        the limit. Entries used within the last minute stay."""
        with self._guard():
            self._sweep()
            folders = [f for kind in ("entries", "quarantine", "failed") for f in self._folders(kind)]
            sized = sorted((_used(f), _size(f), f) for f in folders)
            excess = sum(size for _, size, _ in sized) - self.limit_bytes
            for used, size, folder in sized:
                if excess <= 0 or used > time.time() - _GRACE_SECONDS:
                    break
                self._remove(folder)
                excess -= size

    def tidy_if_due(self) -> None:
        """Works as `tidy`, at most once in a few seconds and in one process at a time: kernels that are built
        side by side would each look at every file."""
        with self._guard():
            lock = self._folder("locks") / _TIDY_LOCK
            with suppress(FileNotFoundError):
                if 0 <= time.time() - lock.stat().st_mtime < _TIDY_SECONDS:
                    return
            fd = _try_lock(lock)
            if fd is None:
                return
            try:
                self.tidy()
            finally:
                os.close(fd)

    def clear(self) -> int:
        """Removes everything that no running build works on; returns the bytes set free."""
        with self._guard():
            self._sweep()
            folders = [f for kind in ("entries", "quarantine", "failed") for f in self._folders(kind)]
            freed = sum(_size(f) for f in folders)
            for folder in folders:
                self._remove(folder)
            for kind in (KNOWN, GRAPHS):
                shutil.rmtree(self.root / kind, ignore_errors=True)
            for lock in self._listing("locks"):
                if (fd := _try_lock(lock)) is not None:
                    lock.unlink(missing_ok=True)
                    os.close(fd)
            return freed

    def _sweep(self) -> None:
        for folder in self._folders("staging"):
            fd = _try_lock(self._folder("locks") / folder.name.partition(".")[0])
            if fd is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(fd)

    def _remove(self, folder: Path) -> None:
        """Removes an entry by a rename first, so that no reader sees half an entry."""
        doomed = self._folder("staging") / f"{folder.name.partition('.')[0]}.{uuid.uuid4().hex}"
        with suppress(FileNotFoundError):  # another process removed it
            folder.rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)

    def _folder(self, kind: str) -> Path:
        return folders.make(self.root / kind)

    def _listing(self, kind: str) -> list[Path]:
        with self._guard():
            folder = self.root / kind
            return sorted(folder.iterdir()) if folder.exists() else []

    def _folders(self, kind: str) -> list[Path]:
        return [f for f in self._listing(kind) if f.is_dir()]

    def _check_path(self) -> None:
        """Before a compiler, or a tool, is given a path of this cache."""
        fix = f"set {switches.CACHE_DIR} to a folder whose path has none of these"
        nvcc_paths.check(self.root, "the cache", CacheUnusable, fix)

    @contextmanager
    def _guard(self) -> Iterator[None]:
        folders.check(self.root, switches.CACHE_DIR, CacheUnusable, CacheUntrusted)
        try:
            yield
        except OSError as error:
            raise _translate(self.root, error) from error


def _translate(root: Path, error: OSError) -> CacheError:
    match error.errno:
        case errno.EROFS | errno.EACCES | errno.EPERM:
            return CacheReadOnly(f"the cache {root} cannot be written ({error})", _other_folder())
        case errno.ENOSPC | errno.EDQUOT:
            fix = f"ucc cache clear, or {_other_folder()}"
            return CacheFull(f"no space left for the cache {root} ({error})", fix)
        case _:
            return CacheUnusable(f"the cache {root} cannot be used ({error})", _other_folder())


def _other_folder() -> str:
    return f"set {switches.CACHE_DIR} to a folder with room that you may write"


# --- one entry -------------------------------------------------------------------


def _inspect(
    key: str, folder: Path, check: Callable[[Path, Mapping[str, Any]], str]
) -> CacheEntry | Corrupt | None:
    try:
        text = (folder / MANIFEST).read_text(encoding="utf-8")
        used = (folder / MANIFEST).stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return Corrupt(key, folder, f"it has no {MANIFEST}") if folder.exists() else None
    except UnicodeDecodeError:
        return Corrupt(key, folder, f"its {MANIFEST} is not text")
    try:
        manifest = json.loads(text)
        if manifest["format"] != FORMAT or manifest["key"] != key:
            return Corrupt(key, folder, f"its {MANIFEST} is of another entry or format")
        files: Mapping[str, Mapping[str, Any]] = manifest["files"]
        problems = [p for name, facts in files.items() if (p := check(folder / name, facts))]
        size = sum(int(facts["bytes"]) for facts in files.values())
        about = dict(manifest["about"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Corrupt(key, folder, f"its {MANIFEST} cannot be read")
    problems += filter(None, [_written_by_others(folder, name) for name in (MANIFEST, *files)])
    if problems:
        return Corrupt(key, folder, "; ".join(problems))
    return CacheEntry(key, folder, about, size, used)


def _written_by_others(folder: Path, name: str) -> str:
    return folders.others_may_write(folder.parent.parent, folder.parent, folder, folder / name)


def altered(file: Path) -> str:
    """Returns why a file of an entry is not what was built; "" where it is, or where no manifest lies beside
    it."""
    if not (file.parent / MANIFEST).is_file():
        return ""
    try:
        facts = json.loads((file.parent / MANIFEST).read_text(encoding="utf-8"))["files"][file.name]
        return _check_digest(file, facts)
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"the {MANIFEST} beside {file.name} cannot be read"


def _check_size(path: Path, facts: Mapping[str, Any]) -> str:
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return f"{path.name} is missing"
    return "" if size == facts["bytes"] else f"{path.name} has {size} bytes instead of {facts['bytes']}"


def _check_digest(path: Path, facts: Mapping[str, Any]) -> str:
    if problem := _check_size(path, facts):
        return problem
    try:
        return "" if _sha256(path) == facts["sha256"] else f"{path.name} has other content than was built"
    except FileNotFoundError:  # evicted meanwhile
        return f"{path.name} is missing"


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _size(folder: Path) -> int:
    total = 0
    with suppress(FileNotFoundError):  # removed by another process meanwhile
        total = sum(f.stat().st_size for f in folder.iterdir())
    return total


def _used(folder: Path) -> float:
    for path in (folder / MANIFEST, folder):
        with suppress(FileNotFoundError, NotADirectoryError):
            return path.stat().st_mtime
    return 0.0


# --- locks -----------------------------------------------------------------------


def this_process(purpose: str = "") -> str:
    """Returns how whoever waits for a lock of this process is told of it."""
    name = f"process {os.getpid()} on {socket.gethostname()}"
    return f"{name} ({purpose})" if purpose else name


def _try_lock(path: Path, shared: bool = False, purpose: str = "") -> int | None:
    """Returns a descriptor that holds the lock, with the last holder written into the file; None if held.

    Python's descriptors are not inherited, so no compiler keeps a lock that its parent left.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        if os.fstat(fd).st_nlink == 0:  # `clear` removed this file between open and lock
            os.close(fd)
            return None
        os.ftruncate(fd, 0)
        os.pwrite(fd, this_process(purpose).encode(), 0)
        return fd
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise


def _holder(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")[:200] or "another process"
    return "another process"

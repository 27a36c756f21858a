from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
from runtime_fakes import KILLED, in_child

from ucutlass.runtime import errors
from ucutlass.runtime.cache import MANIFEST, Cache, CacheEntry, Corrupt

KEY = "a" * 64
LONG_AGO = 1_000_000_000


def put(cache: Cache, key: str = KEY, content: bytes = b"binary", used: int | None = None) -> CacheEntry:
    with cache.locked(key, timeout_seconds=0), cache.staging(key) as folder:
        (folder / "kernel.so").write_bytes(content)
        (folder / "source.cu").write_text("int f();")
        entry = cache.publish(key, folder, {"builder": "test"})
    if used is not None:
        os.utime(entry.folder / MANIFEST, (used, used))
    return entry


def edit(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


def names(folder: Path) -> list[str]:
    return sorted(f.name for f in folder.iterdir()) if folder.exists() else []


def test_publish_then_load(cache: Cache) -> None:
    assert cache.load(KEY) is None
    entry = put(cache)
    found = cache.load(KEY)
    assert isinstance(found, CacheEntry)
    assert found.folder == entry.folder == cache.root / "entries" / KEY
    assert found.about == {"builder": "test"}
    assert found.bytes == len(b"binary") + len("int f();")
    assert names(cache.root / "staging") == []


def test_the_first_of_two_publishers_stays(cache: Cache) -> None:
    put(cache, content=b"first")
    put(cache, content=b"second")
    assert (cache.root / "entries" / KEY / "kernel.so").read_bytes() == b"first"
    assert names(cache.root / "staging") == []


@pytest.mark.parametrize("moment", range(1, 14))
def test_killed_at_any_step_of_publishing_leaves_all_or_nothing(cache: Cache, moment: int) -> None:
    steps = 0

    def stepping(real: Callable[..., object]) -> Callable[..., object]:
        def step(*args: object, **kwargs: object) -> object:
            nonlocal steps
            steps += 1
            if steps == moment:
                os.kill(os.getpid(), 9)
            return real(*args, **kwargs)

        return step

    def publish() -> None:
        for name in ("mkdir", "rename", "fsync", "utime", "open"):
            setattr(os, name, stepping(getattr(os, name)))
        put(cache)

    assert in_child(publish) == KILLED
    entry = cache.load(KEY)
    assert entry is None or isinstance(entry, CacheEntry)
    with cache.locked(KEY, timeout_seconds=0):  # nobody holds the lock
        pass
    cache.tidy()
    assert names(cache.root / "staging") == []
    put(cache)
    assert isinstance(cache.verify()[0], CacheEntry)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda f: (f / "kernel.so").write_bytes(b"cut"), "kernel.so has 3 bytes instead of 6"),
        (lambda f: (f / "kernel.so").unlink(), "kernel.so is missing"),
        (lambda f: (f / MANIFEST).unlink(), "no build.json"),
        (lambda f: (f / MANIFEST).write_text('{"format": 1'), "cannot be read"),
        (lambda f: (f / MANIFEST).write_text("[]"), "cannot be read"),
        (lambda f: (f / MANIFEST).write_bytes(b"\xff\xfe"), "not text"),
        (lambda f: edit(f / MANIFEST, KEY, "b" * 64), "another entry"),
    ],
)
def test_a_damaged_entry_is_seen_and_put_aside(
    cache: Cache, damage: Callable[[Path], object], reason: str
) -> None:
    entry = put(cache)
    damage(entry.folder)
    found = cache.load(KEY)
    assert isinstance(found, Corrupt) and reason in found.reason
    assert cache.entries() == (found,)
    place = cache.quarantine(KEY)
    assert place is not None and place.parent == cache.root / "quarantine"
    assert cache.load(KEY) is None
    assert cache.quarantine(KEY) is None
    assert cache.stats().quarantined == 1


def test_content_of_the_same_size_is_read_by_load_and_verify_and_not_by_entries(cache: Cache) -> None:
    good = put(cache, "b" * 64)
    bad = put(cache)
    (bad.folder / "kernel.so").write_bytes(b"BINARY")
    assert all(isinstance(e, CacheEntry) for e in cache.entries())
    seen = cache.load(KEY)
    assert isinstance(seen, Corrupt) and "kernel.so has other content than was built" in seen.reason
    by_key = {e.key: e for e in cache.verify()}
    assert isinstance(by_key[good.key], CacheEntry)
    corrupt = by_key[KEY]
    assert isinstance(corrupt, Corrupt) and "other content" in corrupt.reason
    assert cache.load(KEY) is None


def test_the_least_recently_used_go_first_and_no_more_than_needed(cache: Cache) -> None:
    for i, key in enumerate("abc"):
        put(cache, key * 64, bytes(1000), used=LONG_AGO + i)
    cache.load("a" * 64)
    os.utime(cache.root / "entries" / ("a" * 64) / MANIFEST, (LONG_AGO + 9, LONG_AGO + 9))
    size = cache.stats().bytes
    replace(cache, limit_bytes=size).tidy()
    assert cache.stats().entries == 3
    replace(cache, limit_bytes=size - 1).tidy()
    assert [e.key[0] for e in cache.entries()] == ["c", "a"]


def test_loading_marks_an_entry_used(cache: Cache) -> None:
    put(cache, "a" * 64, used=LONG_AGO)
    put(cache, "b" * 64, used=LONG_AGO + 1)
    cache.load("a" * 64)
    assert [e.key[0] for e in cache.entries()] == ["b", "a"]


def test_entries_in_use_right_now_are_not_evicted(cache: Cache) -> None:
    put(cache, "a" * 64, used=LONG_AGO)
    put(cache, "b" * 64)
    replace(cache, limit_bytes=0).tidy()
    assert [e.key[0] for e in cache.entries()] == ["b"]


def test_an_open_library_outlives_its_entry(cache: Cache) -> None:
    entry = put(cache)
    with (entry.folder / "kernel.so").open("rb") as library:
        assert cache.clear() > 0
        assert library.read() == b"binary"
    assert cache.load(KEY) is None
    assert cache.stats().bytes == 0
    assert names(cache.root / "locks") == []


def test_refused_builds_and_quarantined_entries_count_and_are_evicted(cache: Cache) -> None:
    with cache.locked(KEY, timeout_seconds=0), cache.staging(KEY) as folder:
        (folder / "source.cu").write_text("refused")
        kept = cache.keep_failure(KEY, folder)
    assert (kept / "source.cu").read_text() == "refused"
    put(cache, "b" * 64)
    cache.quarantine("b" * 64)
    assert (cache.stats().failed, cache.stats().quarantined) == (1, 1)
    for place in (kept, *(cache.root / "quarantine").iterdir()):
        for path in (place, *place.iterdir()):
            os.utime(path, (LONG_AGO, LONG_AGO))
    replace(cache, limit_bytes=0).tidy()
    assert (cache.stats().failed, cache.stats().quarantined) == (0, 0)


def test_builds_side_by_side_tidy_once(cache: Cache) -> None:
    small = replace(cache, limit_bytes=0)
    put(cache, "a" * 64, used=LONG_AGO)
    small.tidy_if_due()
    assert not cache.entries()
    put(cache, "b" * 64, used=LONG_AGO)
    small.tidy_if_due()
    assert [e.key[0] for e in cache.entries()] == ["b"]
    os.utime(cache.root / "locks" / "tidy", (LONG_AGO, LONG_AGO))
    small.tidy_if_due()
    assert not cache.entries()


def test_what_a_running_build_stages_is_not_swept(cache: Cache) -> None:
    with cache.locked(KEY, timeout_seconds=0), cache.staging(KEY) as folder:
        cache.tidy()
        cache.clear()
        assert folder.exists()


def test_a_lock_that_was_cleared_away_still_excludes(cache: Cache) -> None:
    with cache.locked(KEY, timeout_seconds=0):
        cache.clear()
        with pytest.raises(errors.LockTimeout), cache.locked(KEY, timeout_seconds=0):
            pass


def test_a_lock_file_cleared_away_between_opening_and_locking_is_not_taken(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = cache.root / "locks" / KEY
    real = fcntl.flock
    opened: list[int] = []

    def clear_first(fd: int, how: int) -> None:
        if not opened:
            path.unlink()
        opened.append(fd)
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", clear_first)
    with cache.locked(KEY, timeout_seconds=60):
        assert path.exists() and len(opened) == 2


def test_a_lock_timeout_says_who_holds_it(cache: Cache) -> None:
    heard: list[str] = []
    with (
        cache.locked(KEY, timeout_seconds=0),
        pytest.raises(errors.LockTimeout, match=f"process {os.getpid()} on ") as caught,
        cache.locked(KEY, timeout_seconds=0, on_wait=heard.append),
    ):
        pass
    assert len(heard) == 1 and heard[0] in str(caught.value)


def test_waiting_for_a_lock_can_be_cancelled(cache: Cache) -> None:
    cancel = Event()
    with (
        cache.locked(KEY, timeout_seconds=0),
        pytest.raises(errors.BuildCancelled),
        cache.locked(KEY, timeout_seconds=600, cancel=cancel, on_wait=lambda _: cancel.set()),
    ):
        pass


@pytest.mark.parametrize(
    ("code", "fault", "words"),
    [
        (errno.EROFS, errors.CacheReadOnly, "cannot be written"),
        (errno.EACCES, errors.CacheReadOnly, "cannot be written"),
        (errno.ENOSPC, errors.CacheFull, "no space left"),
        (errno.EDQUOT, errors.CacheFull, "no space left"),
        (errno.EIO, errors.CacheUnusable, "cannot be used"),
    ],
)
def test_a_folder_that_cannot_be_written_still_serves(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, code: int, fault: type[errors.CacheError], words: str
) -> None:
    put(cache)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    for name in ("mkdir", "rename", "utime"):
        monkeypatch.setattr(os, name, refuse)
    assert isinstance(cache.load(KEY), CacheEntry)
    with pytest.raises(fault, match=words) as caught:
        put(cache, "b" * 64)
    assert "UCUTLASS_CACHE_DIR" in caught.value.fix
    assert "\n" not in str(caught.value)


def test_a_cache_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    for cache in (Cache(tmp_path / "cache", 1), Cache(tmp_path / "cache" / "below", 1)):
        for act in (cache.entries, cache.stats, cache.verify, cache.clear, lambda: put(cache), cache.tidy):  # noqa: B023
            with pytest.raises(errors.CacheUnusable, match=r"is not a folder.*move it away") as caught:
                act()
            assert "UCUTLASS_CACHE_DIR" in caught.value.fix
        with pytest.raises(errors.CacheUnusable):
            cache.load(KEY)


@pytest.fixture
def disk_size() -> str:
    return "64k"


def test_a_disk_that_is_really_full(small_disk: Path) -> None:
    cache = Cache(small_disk, 10**9)
    put(cache)
    with pytest.raises(errors.CacheFull):
        put(cache, "b" * 64, bytes(1 << 20))
    assert names(cache.root / "staging") == []
    assert isinstance(cache.load(KEY), CacheEntry)


def test_a_disk_that_is_really_read_only(small_disk: Path) -> None:
    cache = Cache(small_disk, 10**9)
    put(cache)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert isinstance(cache.load(KEY), CacheEntry)
    assert cache.stats().entries == 1
    with pytest.raises(errors.CacheReadOnly):
        put(cache, "b" * 64)


def test_reading_an_empty_cache_makes_no_folder(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "none", 1)
    assert (cache.load(KEY), cache.entries(), cache.verify(), cache.stats().bytes) == (None, (), (), 0)
    assert not cache.root.exists()


def test_recent_means_recent_by_this_machines_clock(cache: Cache) -> None:
    entry = put(cache, used=int(time.time()) - 3600)
    replace(cache, limit_bytes=0).tidy()
    assert not entry.folder.exists()

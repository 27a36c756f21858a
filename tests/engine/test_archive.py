"""A cache entry as bytes: it arrives whole or not at all."""

from __future__ import annotations

import json
import os
import random
import signal
import zlib
from pathlib import Path
from typing import Any

import pytest

from ucutlass.runtime import archive
from ucutlass.runtime.archive import ArchiveBroken, pack, unpack
from ucutlass.runtime.cache import Cache, CacheEntry
from ucutlass.runtime.errors import CacheFull

KEY = "ab" * 32


@pytest.fixture
def here(tmp_path: Path) -> Cache:
    cache = Cache(tmp_path / "here", 1 << 30)
    with cache.locked(KEY, timeout_seconds=1), cache.staging(KEY) as folder:
        (folder / "kernel.so").write_bytes(random.Random(0).randbytes(8000))
        (folder / "source.cu").write_text("int a;\n")
        (folder / "empty.log").write_text("")
        cache.publish(KEY, folder, {"entry": "ucc_1", "numbers": [1, 2.5]})
    return cache


@pytest.fixture
def there(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "there", 1 << 30)


def packed(cache: Cache) -> bytes:
    data = pack(cache, KEY)
    assert data is not None
    return data


def contents(entry: CacheEntry) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in entry.folder.iterdir()}


def test_an_entry_arrives_as_it_was(here: Cache, there: Cache) -> None:
    made, original = unpack(there, KEY, packed(here)), here.load(KEY)
    assert isinstance(original, CacheEntry) and contents(made) == contents(original)
    assert made.about == original.about and made.folder.is_relative_to(there.root)
    assert there.verify() == (there.load(KEY),)


def test_what_is_there_stays(here: Cache, there: Cache) -> None:
    first = unpack(there, KEY, packed(here))
    inode = first.folder.stat().st_ino
    assert unpack(there, KEY, packed(here)).folder.stat().st_ino == inode


def test_a_damaged_entry_is_neither_sent_nor_kept(here: Cache, there: Cache) -> None:
    data = packed(here)
    unpack(there, KEY, data)
    (there.root / "entries" / KEY / "source.cu").write_text("int b;\n")
    assert pack(there, KEY) is None and pack(there, "cd" * 32) is None
    assert there.load(KEY) is None and there.stats().quarantined == 1
    unpack(there, KEY, data)
    (there.root / "entries" / KEY / "source.cu").write_text("too long")
    assert contents(unpack(there, KEY, data))["source.cu"] == b"int a;\n"
    assert there.stats().quarantined == 2


def test_no_byte_may_be_missing_or_other(here: Cache, there: Cache) -> None:
    data = packed(here)
    broken = [data[:n] for n in range(0, len(data), 97)]
    broken += [data[:n] + bytes([data[n] ^ 1]) + data[n + 1 :] for n in range(0, len(data), 97)]
    for bad in broken:
        with pytest.raises(ArchiveBroken):
            unpack(there, KEY, bad)
    with pytest.raises(ArchiveBroken):
        unpack(there, "cd" * 32, data)
    assert there.entries() == () and not list((there.root / "staging").glob("*"))


def rewritten(data: bytes, change: Any, body: bytes = b"") -> bytes:
    """The archive with its manifest changed, and bytes after its files."""
    head, _, rest = zlib.decompress(data).partition(b"\n")
    manifest = json.loads(head)
    change(manifest)
    return zlib.compress(json.dumps(manifest).encode() + b"\n" + rest + body)


@pytest.mark.parametrize(
    "name", ["../escaped", "/tmp/escaped", "a/b", "build.json", "", ".", "..", ".hidden", "a\x00b", "a\nb"]
)
def test_a_name_is_a_file_of_the_folder(here: Cache, there: Cache, name: str) -> None:
    def rename(manifest: dict[str, Any]) -> None:
        manifest["files"][name] = manifest["files"].pop("empty.log")

    with pytest.raises(ArchiveBroken):
        unpack(there, KEY, rewritten(packed(here), rename))
    assert there.entries() == () and not (there.root.parent / "escaped").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(format=0),
        lambda m: m.update(about=[]),
        lambda m: m.update(files=3),
        lambda m: m["files"].update({"more": {"bytes": 1, "sha256": "0"}}),
        lambda m: m["files"].popitem(),
        lambda m: m["files"]["source.cu"].update(bytes="x"),
        lambda m: m.clear(),
    ],
)
def test_a_manifest_that_does_not_fit(here: Cache, there: Cache, change: Any) -> None:
    with pytest.raises(ArchiveBroken):
        unpack(there, KEY, rewritten(packed(here), change))
    with pytest.raises(ArchiveBroken):
        unpack(there, KEY, rewritten(packed(here), lambda _: None, b"more"))
    assert there.entries() == ()


def test_a_bomb_is_no_entry(there: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "_MOST_BYTES", 1 << 16)
    with pytest.raises(ArchiveBroken):
        unpack(there, KEY, zlib.compress(b"\n" * (1 << 20)))


def test_a_full_disk_leaves_nothing(here: Cache, there: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    data, real = packed(here), archive.put

    def full(path: Path, content: bytes) -> None:
        if path.name == "source.cu":
            raise OSError(28, "No space left on device")
        real(path, content)

    monkeypatch.setattr(archive, "put", full)
    with pytest.raises(CacheFull):
        unpack(there, KEY, data)
    monkeypatch.undo()
    assert there.entries() == ()
    assert isinstance(unpack(there, KEY, data), CacheEntry)


def test_a_kill_leaves_nothing_that_is_served(here: Cache, there: Cache) -> None:
    data = packed(here)
    child = os.fork()
    if child == 0:
        Cache.publish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
        unpack(there, KEY, data)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert there.load(KEY) is None
    assert isinstance(unpack(there, KEY, data), CacheEntry)
    there.tidy()
    assert not list((there.root / "staging").glob("*"))

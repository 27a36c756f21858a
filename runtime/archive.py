"""Packs an entry of the cache into bytes and unpacks it into the cache of another machine.

A zlib stream of the manifest in one line, then the files' bytes in the manifest's order. What arrives is
checked against its own SHA-256s and appears whole or not at all. That shows damage, not forgery: an entry is
machine code, so it is taken only from machines that may run code here anyway.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from ucutlass.files import put
from ucutlass.runtime.cache import FORMAT, MANIFEST, Cache, CacheEntry
from ucutlass.runtime.errors import CacheError

_LEVEL = 1
"""Of zlib: machine code shrinks to a third at 100 MB/s."""

_MOST_BYTES = 1 << 30
"""An entry is a few MB; what says to be more than this is no entry."""

_LOCK_SECONDS = 60.0


class ArchiveBroken(CacheError):
    """Bytes that should be a cache entry are not what their manifest says; nothing was kept."""


def pack(cache: Cache, key: str) -> bytes | None:
    """Returns the entry as bytes; None where the cache has none that is whole: a damaged one is put aside.
    Raises CacheError."""
    entry = cache.load(key)
    if not isinstance(entry, CacheEntry):
        if entry is not None:
            cache.quarantine(key)
        return None
    try:
        manifest = json.loads((entry.folder / MANIFEST).read_text(encoding="utf-8"))
        files = [(entry.folder / name).read_bytes() for name in manifest["files"]]
    except FileNotFoundError:
        return None  # evicted meanwhile
    return zlib.compress(b"\n".join([json.dumps(manifest).encode(), b"".join(files)]), _LEVEL)


def unpack(cache: Cache, key: str, data: bytes) -> CacheEntry:
    """Puts an entry that `pack` wrote into the cache; one that is there stays.

    Raises ArchiveBroken, and another CacheError where the folder cannot be written.
    """
    manifest, files = _read(key, data)
    with cache.locked(key, timeout_seconds=_LOCK_SECONDS):
        match cache.load(key):
            case CacheEntry() as there:
                return there
            case None:
                pass
            case _:
                cache.quarantine(key)
        with cache.staging(key) as folder:
            for name, content in files.items():
                put(folder / name, content)
            return cache.publish(key, folder, manifest["about"])


def _read(key: str, data: bytes) -> tuple[Mapping[str, Any], Mapping[str, bytes]]:
    try:
        head, _, body = _inflated(data).partition(b"\n")
        manifest = json.loads(head)
        if manifest["format"] != FORMAT or manifest["key"] != key or not isinstance(manifest["about"], dict):
            raise ArchiveBroken(f"the bytes for {key[:16]} are of another entry or format", _MEND)
        files = dict(_cut(manifest["files"], body))
    except (zlib.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ArchiveBroken(f"the bytes for {key[:16]} cannot be read: {error!r}", _MEND) from error
    return manifest, files


_MEND = "run it again; if it stays so, the two machines have different versions of ucutlass"


def _inflated(data: bytes) -> bytes:
    unzip = zlib.decompressobj()
    content = unzip.decompress(data, _MOST_BYTES)
    if not unzip.eof:
        raise ValueError("the stream is cut short, or longer than an entry")
    return content


def _cut(files: Mapping[str, Mapping[str, Any]], body: bytes) -> Iterator[tuple[str, bytes]]:
    at = 0
    for name, facts in files.items():
        # A name is a file of the folder, never a way out of it.
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name) or name == MANIFEST:
            raise ValueError(f"{name!r} is not a file name")
        content = body[at : at + int(facts["bytes"])]
        at += len(content)
        if hashlib.sha256(content).hexdigest() != facts["sha256"]:
            raise ValueError(f"{name} has other content than was built")
        yield name, content
    if at != len(body):
        raise ValueError(f"{len(body) - at} bytes belong to no file")

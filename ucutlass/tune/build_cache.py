"""This module remembers which cache entry a plan became, shared by searches on one engine: a plan has no
extents, so the kernels of many shapes are one binary, which is built once wherever it was first needed."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Lock
from typing import TypeAlias

from ucutlass.kernels.planned import Plan
from ucutlass.runtime.switches import BuildPath

Way: TypeAlias = tuple[Plan, BuildPath | None]


class BuildCache:
    """Maps plans to keys of the cache, and is safe to use from many threads."""

    def __init__(self) -> None:
        self._keys: dict[Way, Future[str]] = {}
        self._lock = Lock()

    def claim(self, way: Way) -> Future[str] | None:
        """Returns None where the caller is to build it and then report it by `built`; else a future of its
        key, "" should the build fail."""
        with self._lock:
            if way in self._keys:
                return self._keys[way]
            self._keys[way] = Future()
            return None

    def built(self, way: Way, key: str) -> None:
        """Reports the key of what was claimed; "" where it was not built, so that another may try."""
        with self._lock:
            claimed = self._keys[way]
            if not key:
                del self._keys[way]
        claimed.set_result(key)

    def forget(self, way: Way) -> None:
        """Forgets an entry that is not in the cache any more."""
        with self._lock:
            if way in self._keys and self._keys[way].done():
                del self._keys[way]

"""Lets one of several test processes at a time build a module's kernels: the others find them in the cache."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from ucutlass.runtime import switches


@contextmanager
def turn(name: str) -> Iterator[None]:
    """Waits for the process that holds `name`."""
    folder = switches.read().cache_dir
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"tests-{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

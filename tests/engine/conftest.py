from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ucutlass.runtime.cache import Cache

# The fakes here, and those of the tests of the runtime.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "runtime")]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cache]:
    """The cache of this process."""
    monkeypatch.setenv("UCUTLASS_CACHE_DIR", str(tmp_path / "cache"))
    yield Cache.from_switches()

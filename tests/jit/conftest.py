from __future__ import annotations

from pathlib import Path

import pytest

from ucutlass.runtime.cache import Cache
from ucutlass.runtime.jit import nvjitlink, nvrtc


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache", 10 * 2**30)


@pytest.fixture(scope="session")
def compiler() -> nvrtc.Nvrtc:
    try:
        return nvrtc.load()
    except nvrtc.NvrtcMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def linker() -> nvjitlink.NvJitLink:
    try:
        return nvjitlink.load()
    except nvjitlink.NvJitLinkMissing as missing:
        pytest.skip(str(missing))

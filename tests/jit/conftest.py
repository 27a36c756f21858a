from __future__ import annotations

from pathlib import Path

import pytest

from ucutlass.runtime.cache import Cache
from ucutlass.runtime.errors import ToolchainError
from ucutlass.runtime.jit import nvjitlink, nvrtc
from ucutlass.runtime.toolchain import find


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache", 10 * 2**30)


@pytest.fixture(scope="session")
def compiler() -> nvrtc.Nvrtc:
    try:
        return nvrtc.load(nvrtc.locate(find().nvcc))
    except ToolchainError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def linker() -> nvjitlink.NvJitLink:
    try:
        return nvjitlink.load(nvjitlink.locate(find().nvcc))
    except ToolchainError as missing:
        pytest.skip(str(missing))

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from runtime_fakes import FakeNvcc, fake_nvcc

from ucutlass.runtime.cache import Cache


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvcc:
    return fake_nvcc(tmp_path / "toolkit" / "bin")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache", 10 * 2**30)

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The fakes here, and the machine of the tests of commands.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parent.parent / "cli"))

from cli_machine import NVCC, Machine
from sources import COMPILES

from ucutlass import backend


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """No GPU, and an nvcc that has g++ compile what holds no CUDA."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ to compile for the host")
    toolkit = tmp_path / "toolkit"
    (toolkit / "bin").mkdir(parents=True)
    (toolkit / "bin" / "nvcc").write_text(NVCC.format(home=tmp_path))
    (toolkit / "bin" / "nvcc").chmod(0o755)
    for name, folder in (("CACHE_DIR", "cache"), ("DATA_DIR", "data"), ("CUDA_HOME", "toolkit")):
        monkeypatch.setenv(f"UCUTLASS_{name}", str(tmp_path / folder))
    monkeypatch.setenv("UCUTLASS_BUILD_PATH", "nvcc")
    monkeypatch.setattr("ucutlass.runtime.system.driver", lambda: None)
    here = Machine(tmp_path)
    here.behave(COMPILES % "")
    backend.toolchain.cache_clear()
    yield here
    backend.toolchain.cache_clear()

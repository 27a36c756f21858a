from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cli_machine import NVCC, Machine, Ucc

from ucutlass import backend


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """No GPU, and an nvcc that makes an empty library at once."""
    toolkit = tmp_path / "toolkit"
    (toolkit / "bin").mkdir(parents=True)
    nvcc = toolkit / "bin" / "nvcc"
    nvcc.write_text(NVCC.format(home=tmp_path))
    nvcc.chmod(0o755)
    monkeypatch.setenv("UCUTLASS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("UCUTLASS_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("UCUTLASS_CUDA_HOME", str(toolkit))
    monkeypatch.setenv("UCUTLASS_BUILD_PATH", "nvcc")  # that nvcc has no headers to offer
    monkeypatch.setattr("ucutlass.runtime.system.driver", lambda: None)
    simulated = Machine(tmp_path)
    simulated.behave(": > kernel.so\n")
    yield simulated
    backend.toolchain.cache_clear()


@pytest.fixture
def ucc(machine: Machine) -> Ucc:
    return machine.ucc


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str | bytes], Path]:
    def written(content: str | bytes) -> Path:
        path = tmp_path / "program.ucu"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return written

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cli_machine import Machine, Ucc, fake_machine


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """No GPU, and an nvcc that makes an empty library at once."""
    monkeypatch.setenv("UCUTLASS_BUILD_PATH", "nvcc")  # that nvcc has no headers to offer
    yield from fake_machine(tmp_path, monkeypatch, None)


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

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from ucutlass.agent.mcp.limits import ServerLimits


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    # Where the SDK is missing, the tests that ask for this are skipped before.
    from mcp_machine import LINEAR, NVCC, ROOT, Host, alive

    home = tmp_path / "home"
    (home / "toolkit" / "bin").mkdir(parents=True)
    nvcc = home / "toolkit" / "bin" / "nvcc"
    nvcc.write_text(NVCC.format(home=home))
    nvcc.chmod(0o755)
    for name in ("cache", "data"):
        monkeypatch.setenv(f"UCUTLASS_{name.upper()}_DIR", str(home / name))
    monkeypatch.setenv("UCUTLASS_CUDA_HOME", str(home / "toolkit"))
    monkeypatch.setenv("UCUTLASS_BUILD_PATH", "nvcc")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    root = tmp_path / "root"
    root.mkdir()
    (root / "linear.ucu").write_text(LINEAR)
    result = Host(home, ServerLimits(root))
    result.behave(": > kernel.so\n")
    yield result
    left = [pid for pid in result.pids() if alive(pid)]
    for pid in left:
        os.kill(pid, 9)
    assert not left, "a compiler outlived the server"

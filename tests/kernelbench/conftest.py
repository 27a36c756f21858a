from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ucutlass import spans

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def time_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """What steps take here is no part of what sessions are compared by."""
    monkeypatch.setattr(spans, "clock", lambda: 0.0)

from __future__ import annotations

from functools import cache

import pytest

from ucutlass import spans
from ucutlass.agent.proposers import rules
from ucutlass.tune.space import explore

explored = cache(explore)


@pytest.fixture(autouse=True)
def spaces_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A space takes seconds and is the same whoever asks."""
    monkeypatch.setattr(rules, "explore", explored)


@pytest.fixture(autouse=True)
def time_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """What steps take here is no part of what sessions are compared by."""
    monkeypatch.setattr(spans, "clock", lambda: 0.0)

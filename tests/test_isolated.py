"""`tests.isolated.run` answers as `isolation.run` does, however the call ends, and each call is another process."""

from __future__ import annotations

from typing import Any

import pytest

from tests import isolated
from ucutlass.runtime.isolation import CallOutcome, Crashed, Exited, Raised, Returned


def outcome(target: str, **arguments: Any) -> CallOutcome:
    return isolated.run(target, arguments, limit_seconds=300)


def test_the_ways_in_which_a_call_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome("json:loads", s="[1]") == Returned([1], "")
    raised = outcome("json:loads", s="nothing")
    assert isinstance(raised, Raised) and raised.type == "JSONDecodeError" and "Expecting" in raised.message
    assert outcome("os:_exit", status=3) == Exited(3, "")
    assert outcome("os:_exit", status=0) == Exited(0, "")
    crashed = outcome("os:abort")
    assert isinstance(crashed, Crashed) and crashed.signal == "SIGABRT"
    first, second = outcome("os:getpid"), outcome("os:getpid")
    assert isinstance(first, Returned) and first != second
    monkeypatch.setenv("UCUTLASS_CACHE_DIR", "/elsewhere")
    assert outcome("os:getenv", key="UCUTLASS_CACHE_DIR") == Returned("/elsewhere", "")

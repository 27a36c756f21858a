"""A problem, and servers that speak the Messages API."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.optimise.proposers.messages_api import Script, Server, serving
from tests.optimise.proposers.talking import PROGRAM, SIZES
from ucutlass.agent.proposers.problem_facts import ProblemDescription, subject_of
from ucutlass.frontend import read_text


@pytest.fixture(scope="module")
def subject() -> ProblemDescription:
    return subject_of(
        read_text(PROGRAM, "problem"),
        None,
        SIZES,
        "sm90a",
        "H200",
        compute_type="bf16",
        baseline="torch.mm: 210 us",
    )


@pytest.fixture(autouse=True)
def nothing_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine is set up for, the SDK speaks to the server that a test names."""
    for name in ("ANTHROPIC_BASE_URL", "ANTHROPIC_CUSTOM_HEADERS", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def at() -> Iterator[Callable[..., Server]]:
    """Opens servers with scripts, and closes them."""
    opened_here: list[Any] = []

    def open_one(*scripts: Script) -> Server:
        context = serving(*scripts)
        opened_here.append(context)
        return context.__enter__()

    yield open_one
    for context in opened_here:
        context.__exit__(None, None, None)

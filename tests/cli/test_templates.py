"""The template of a session's processes begins before the command that needs it, and ends with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click
import pytest

from ucutlass import cli
from ucutlass.agent import module_processes
from ucutlass.cli.templates import begin_template, session_template


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What becomes of templates, which are words here."""
    events: list[str] = []

    @contextmanager
    def template() -> Iterator[str]:
        events.append("begun")
        try:
            yield f"template {events.count('begun')}"
        finally:
            events.append("ended")

    monkeypatch.setattr(module_processes, "process_template", template)
    return events


def test_it_begins_before_the_command_is_imported(log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def imported(name: str) -> object:
        log.append(f"imported {name}")
        raise ImportError(name)

    monkeypatch.setattr(cli.importlib, "import_module", imported)
    for call in (["kernelbench", "--show"], ["check", "FILE.ucu"], ["kernelbench", "--help"]):
        with (
            pytest.raises(ImportError),
            click.Context(cli.main, help_option_names=["-h", "--help"]) as context,
        ):
            cli.main.resolve_command(context, call)
    kernelbench = "imported ucutlass.cli.kernelbench"
    assert log == ["begun", kernelbench, "ended", "imported ucutlass.cli.check", kernelbench]


def test_a_command_takes_the_one_that_was_begun_or_its_own(log: list[str]) -> None:
    with click.Context(cli.main) as context:
        begin_template(context)
        begin_template(context)
        with click.Context(click.Command("optimize"), parent=context), session_template() as first:
            assert str(first) == "template 1"
        assert log == ["begun"]
    assert log == ["begun", "ended"]
    with click.Context(click.Command("optimize")), session_template() as second:
        assert str(second) == "template 2" and log[2:] == ["begun"]
    assert log[2:] == ["begun", "ended"]

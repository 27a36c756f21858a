"""`ucc sessions` and `ucc memory`: what a journal holds and taught."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from cli_machine import Ucc

from tests.optimise.test_memory import worked
from ucutlass.agent.journal import Journal
from ucutlass.agent.outcome import TimedOutcome, WrongOutcome
from ucutlass.agent.run import open_journal_session
from ucutlass.agent.session import SessionSettings


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Two sessions that ended, of which the second taught more, and one that did not begin."""
    path = tmp_path / "j.sqlite"
    kept = Journal(path)
    root = TimedOutcome(2e-5, 1.0, 0.99, 1.01, records=("r0",))
    worked(
        kept,
        "aaaa1111",
        [root, WrongOutcome("(0, 0)"), TimedOutcome(1.5e-5, 1.3, 1.2, 1.4, records=("r1", "r2"))],
    )
    worked(kept, "bbbb2222", [root, TimedOutcome(1e-5, 2.0, 1.9, 2.1, records=("r3",))], lane="f16")
    for id in ("aaaa1111", "bbbb2222"):
        kept.append(id, len(kept.events(id)), "ended", {"why": "the budget is spent"})
    told = {"text": "a", "program": "third", "sizes": {"M": 8}}
    open_journal_session(kept, told, SessionSettings(), bound=0.0, baseline=None, id="cccc3333")
    return path


def test_sessions_are_listed_with_what_came_of_them(ucc: Ucc, journal: Path) -> None:
    rows = ucc("sessions", "--journal", journal, "--json").json
    assert [r["id"] for r in rows] == ["aaaa1111", "bbbb2222", "cccc3333"]
    first, second, third = rows
    assert (first["problem"], first["lane"], first["candidates"]) == ("linear M=8", "bf16", 3)
    assert (first["own"], first["best"], first["gain"]) == (2e-5, 1.5e-5, 1.3)
    assert first["spend"]["attempts"] == 2 and first["spend"]["output"] == 6
    assert second["best"] == 1e-5 and third["best"] is None and third["state"] == "open"
    assert first["state"] == "the budget is spent"
    shown = ucc("sessions", "--journal", journal).out.splitlines()
    assert len(shown) == 4 and shown[0].split("\t")[:5] == ["session", "problem", "candidates", "own", "best"]
    assert shown[1].split("\t")[:5] == ["aaaa1111", "linear M=8", "3", "20.00 us", "15.00 us"]
    assert "2 attempts, 0 s of GPU, 6 tokens" in shown[1]
    (alone,) = ucc("sessions", "--open", "--journal", journal, "--json").json
    assert alone["id"] == "cccc3333"


def test_no_sessions_are_no_error(ucc: Ucc, tmp_path: Path) -> None:
    assert ucc("sessions", "--journal", tmp_path / "none").out.startswith("no sessions in ")
    assert ucc("memory", "list", "--journal", tmp_path / "none").out.startswith("no conclusions in ")
    assert ucc("sessions", "--journal", tmp_path / "none", "--json").json == []


def test_no_listing_loads_torch() -> None:
    modules = ", ".join(
        f"ucutlass.cli.{name}" for name in ("sessions", "memory", "report", "cache", "results")
    )
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_session_that_cannot_be_read_hides_no_other(ucc: Ucc, journal: Path) -> None:
    with sqlite3.connect(journal) as c:
        c.execute("DROP TRIGGER event_holds")
        c.execute("UPDATE event SET body = '{}' WHERE session = 'aaaa1111' AND number = 2")
        c.execute("UPDATE event SET body = 'x' WHERE session = 'bbbb2222' AND number = 1")
    first, second, third = ucc("sessions", "--journal", journal, "--json").json
    assert "does not follow" in first["state"] and "cannot be read" in second["state"]
    assert third["state"] == "open"


def test_conclusions_are_listed_shown_and_purged(ucc: Ucc, journal: Path) -> None:
    at = ("--journal", journal)
    most, least = ucc("memory", "list", *at, "--json").json
    assert (most["session"], most["records"], most["ratio"]) == ("bbbb2222", ["r3"], 2.0)
    (alone,) = ucc("memory", "list", "--lane", "bf16", *at, "--json").json
    assert alone == least
    shown = ucc("memory", "show", least["id"][:8], *at).out
    assert "aaaa1111" in shown and "record\tr1\nrecord\tr2" in shown and least["words"] in shown
    assert ucc("memory", "purge", most["id"][:8], *at).out == f"purged: {most['id']}\n"
    assert ucc("memory", "list", *at, "--json").json == [least]
    assert len(ucc("sessions", *at, "--json").json) == 3, "the session stays, and memory is none"


@pytest.mark.parametrize("wrong", ["zz", ""])
def test_an_id_that_names_no_conclusion_purges_none(ucc: Ucc, journal: Path, wrong: str) -> None:
    at = ("--journal", journal)
    before = ucc("memory", "list", *at, "--json").json
    for command in (("show", wrong), ("purge", before[0]["id"], wrong)):
        found = ucc("memory", *command, *at)
        assert found.status == 2 and "conclusions of" in found.err
    assert ucc("memory", "list", *at, "--json").json == before

"""The journal: what it keeps, and what it does when the disk or another process is in the way."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.optimise.made_up import Bench, Proposer
from ucutlass.agent.budget import Budget
from ucutlass.agent.journal import Journal, JournalDamaged, NoSuchSession, SessionTaken
from ucutlass.agent.run import open_journal_session, resume_session, run
from ucutlass.agent.session import SessionSettings, replay_events
from ucutlass.agent.stop import StopRule
from ucutlass.runtime.errors import StoreForeign, StoreFull, StoreNewer


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "sessions.sqlite")


def test_events_come_back_in_order(journal: Journal) -> None:
    assert journal.events("a") == [] and journal.sessions() == []
    for number, body in enumerate(({"x": [1, 2.5, None]}, {"words": "ü\n"})):
        journal.append("a", number, "opened", body)
    journal.append("b", 0, "opened", {})
    assert [(e.number, e.kind, e.body) for e in journal.events("a")] == [
        (0, "opened", {"x": [1, 2.5, None]}),
        (1, "opened", {"words": "ü\n"}),
    ]
    assert journal.full_id("b") == "b"
    with pytest.raises(NoSuchSession, match="no session"):
        journal.full_id("c")


def test_two_processes_cannot_go_on_with_one_session(journal: Journal) -> None:
    journal.append("a", 0, "opened", {})
    journal.append("a", 1, "asked", {"by": "one"})
    with pytest.raises(SessionTaken, match="event 1 is there"):
        journal.append("a", 1, "asked", {"by": "two"})
    assert journal.events("a")[1].body == {"by": "one"}


def test_nothing_in_it_can_be_changed(journal: Journal) -> None:
    journal.append("a", 0, "opened", {})
    with sqlite3.connect(journal.path) as c:
        for statement in ("DELETE FROM event", "UPDATE event SET kind = 'ended'"):
            with pytest.raises(sqlite3.IntegrityError, match="only be added to"):
                c.execute(statement)


def test_a_file_of_something_else_is_left_alone(journal: Journal) -> None:
    with sqlite3.connect(journal.path) as c:
        c.execute("CREATE TABLE mine (x)")
    before = journal.path.read_bytes()
    with pytest.raises(StoreForeign):
        journal.append("a", 0, "opened", {})
    assert journal.path.read_bytes() == before


def test_a_newer_file_is_refused(journal: Journal) -> None:
    journal.append("a", 0, "opened", {})
    with sqlite3.connect(journal.path) as c:
        c.execute("PRAGMA user_version = 7")
    with pytest.raises(StoreNewer, match="schema 7"):
        journal.events("a")


def test_a_damaged_file_says_so(journal: Journal) -> None:
    journal.path.write_bytes(b"no database, " * 400)
    with pytest.raises(JournalDamaged, match="damaged"):
        journal.append("a", 0, "opened", {})


def test_a_gap_is_damage(journal: Journal) -> None:
    journal.append("a", 1, "asked", {})
    with pytest.raises(JournalDamaged, match="lacks event 0"):
        journal.events("a")


def test_a_full_disk_loses_nothing_that_was_written(small_disk: Path) -> None:
    full = Journal(small_disk / "sessions.sqlite")
    number = 0
    with pytest.raises(StoreFull, match="no space left for the session journal"):
        for number in range(5000):
            full.append("a", number, "opened" if number == 0 else "asked", {"note": "x" * 900})
    assert number > 5
    assert [e.number for e in full.events("a")] == list(range(number))


def test_a_session_goes_on_when_there_is_room_again(small_disk: Path, tmp_path: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(160_000))
    full = Journal(small_disk / "sessions.sqlite")
    session = open_journal_session(full, {"text": "5"}, CHOSEN, bound=1e-6, baseline=None, id="s")
    with pytest.raises(StoreFull):
        run(session, Proposer(), Bench())
    ballast.unlink()
    plain = open_journal_session(Journal(tmp_path / "p"), {"text": "5"}, CHOSEN, bound=1e-6, baseline=None)
    went_on, whole = run(resume_session(full, "s"), Proposer(), Bench()), run(plain, Proposer(), Bench())
    assert went_on.tree.nodes == whole.tree.nodes


_RUN = """
import sys
from pathlib import Path
from tests.optimise.made_up import Bench, Proposer
from tests.optimise.test_journal import CHOSEN
from ucutlass.agent.journal import Journal
from ucutlass.agent.run import open_journal_session, resume_session, run
journal = Journal(Path(sys.argv[1]))
session = resume_session(journal, "s") if journal.sessions() else open_journal_session(
    journal, {"text": "5"}, CHOSEN, bound=1e-6, baseline=None, id="s")
print("begun", flush=True)
run(session, Proposer(), Bench())
"""

CHOSEN = SessionSettings("mcts", "stark", Budget(60), StopRule(None, None), seed=11)


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_kills_change_nothing(journal: Journal, tmp_path: Path, kills: int) -> None:
    plain = Journal(tmp_path / "plain.sqlite")
    whole = run(
        open_journal_session(plain, {"text": "5"}, CHOSEN, bound=1e-6, baseline=None), Proposer(), Bench()
    )
    killed = 0
    for turn in range(kills):
        child = subprocess.Popen(
            [sys.executable, "-c", _RUN, str(journal.path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None and child.stdout.readline() == "begun\n"
        expected = 12 + 140 // kills * turn
        while child.poll() is None and _count(journal) < expected:
            time.sleep(0.002)
        if child.poll() is None:
            os.kill(child.pid, signal.SIGKILL)
            killed += 1
        child.wait()
        child.stdout.close()
    assert killed == kills
    state = run(resume_session(journal, "s"), Proposer(), Bench())
    assert state.tree.nodes == whole.tree.nodes
    assert replace(state.spend, seconds=0.0) == replace(whole.spend, seconds=0.0)
    events = journal.events("s")
    judged = [(e.body["call"], e.body["index"]) for e in events if e.kind == "judged"]
    answered = [e.body["call"] for e in events if e.kind == "answered"]
    assert len(set(judged)) == len(judged) and len(set(answered)) == len(answered)
    assert replay_events(events).ended == whole.ended


def _count(journal: Journal) -> int:
    with closing(sqlite3.connect(f"file:{journal.path}?mode=ro", uri=True, timeout=10)) as c:
        return int(c.execute("SELECT count(*) FROM event").fetchone()[0])


def test_a_session_goes_on_with_another_budget(journal: Journal) -> None:
    run(
        open_journal_session(journal, {"text": "5"}, CHOSEN, bound=0.0, baseline=None, id="s"),
        Proposer(),
        Bench(),
    )
    more = resume_session(journal, "s", Budget(66))
    assert run(more, Proposer(), Bench()).spend.attempts == 66

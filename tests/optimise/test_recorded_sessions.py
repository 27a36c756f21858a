"""Replay: searches on recorded tables, stop rules on recorded sessions, and the command that runs both."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.optimise.made_up import Mortal
from tests.optimise.sample_session import recorded as sample
from ucutlass.agent.budget import Spend
from ucutlass.agent.journal import Journal
from ucutlass.agent.outcome import TimedOutcome
from ucutlass.agent.replay import stop_rules, tables
from ucutlass.agent.replay.stop_rules import (
    NothingRecorded,
    RecordedSession,
    attempts_until_stop,
    best_first,
    grid,
    recorded_session,
    rule_savings,
)
from ucutlass.agent.replay.tables import SearchTrace, TableEvaluator, compare, course, recording
from ucutlass.agent.search import SEARCHES
from ucutlass.agent.session import NotASession, replay_events
from ucutlass.agent.stop import StopRule
from ucutlass.cli import main
from ucutlass.tune.tables import RecordedTable, read

PROBE = Path(__file__).parents[2] / "benchmarks" / "data" / "h200_probe.json"


KNOWN = ("ranking", "nothing", "not even the past")


@pytest.fixture(scope="module")
def probe() -> tuple[RecordedTable, ...]:
    return read(PROBE)


@pytest.fixture(scope="module")
def table(probe: tuple[RecordedTable, ...]) -> RecordedTable:
    """Eleven kernels."""
    return probe[0]


# --- searches on tables ----------------------------------------------------------


def test_a_table_is_a_bench(table: RecordedTable) -> None:
    bench = TableEvaluator(table)
    assert bench.key("3") == "3"
    outcome = bench.judge("3").outcome
    assert isinstance(outcome, TimedOutcome) and outcome.seconds == min(table.times[3])


@pytest.mark.parametrize("knows", ["ranking", "nothing"])
@pytest.mark.parametrize("search", SEARCHES)
def test_a_course_goes_through_all_of_a_table(table: RecordedTable, search: Any, knows: Any) -> None:
    search_trace = course(table, search, 1, knows)
    assert len(search_trace.shares) == len(table.space.groups)
    assert list(search_trace.shares) == sorted(search_trace.shares) and search_trace.shares[-1] == 1.0
    assert search_trace == course(table, search, 1, knows)


def test_where_a_course_starts(probe: tuple[RecordedTable, ...]) -> None:
    """With the ranking at the compiler's choice, without it where the seed says."""
    for table in probe:
        own = table.best / table.best_of(table.space.start[0])
        assert {course(table, "flat", seed).shares[0] for seed in range(3)} == {own}
    drawn = {course(probe[0], "flat", seed, "nothing").shares[0] for seed in range(8)}
    assert len(drawn) > 2


def test_a_proposer_that_forgets_proposes_again(table: RecordedTable) -> None:
    """What it proposes again is no result, no ancestor, and an attempt."""
    session, _ = recording(table, "flat", 0, "not even the past")
    kinds = [type(n.outcome).__name__ for n in session.state.tree.nodes]
    assert len(kinds) == len(table.space.groups) and 0 < kinds.count("RepeatedOutcome") < len(kinds) - 1
    texts = [n.text for n in session.state.tree.nodes if n.seconds is not None]
    assert len(set(texts)) == len(texts)


def test_candidates_to_a_share() -> None:
    search_trace = SearchTrace("x", "flat", 0, (0.5, 0.94, 0.95, 1.0))
    assert (search_trace.to(0.5), search_trace.to(0.95), search_trace.to(0.96)) == (1, 3, 4)
    assert SearchTrace("x", "flat", 0, (0.5,)).to(0.95) is None


def test_searches_are_compared_by_candidates(probe: tuple[RecordedTable, ...]) -> None:
    some = probe[:3]
    numbers: list[int] = []
    (found,) = compare(some, ["epsilon"], 4, "nothing", lambda: numbers.append(1))
    counts = [[course(t, "epsilon", s, "nothing").to(0.95) for t in some] for s in range(4)]
    every = sorted(float(c) for row in counts for c in row if c)
    assert len(numbers) == len(every) == 12
    assert found.mean == pytest.approx(statistics.fmean(every))
    assert found.median == statistics.median(every)
    assert (found.low, found.high) == (every[1], every[10]), "of twelve"
    assert found.by_seed == tuple(statistics.fmean(c for c in row if c) for row in counts)


def test_nothing_to_compare() -> None:
    with pytest.raises(ValueError, match="no tables"):
        compare([], ["flat"])


def test_a_table_that_is_never_close_counts_whole(
    table: RecordedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "CLOSE", 1.01)
    (found,) = compare([table], ["flat"], 1)
    assert found.mean == len(table.space.groups)


def test_a_recording_is_a_session(table: RecordedTable) -> None:
    session, events = recording(table, "mcts", 2, "nothing", 5)
    assert session.state.spend.attempts == 5 and len(session.state.tree) == 6
    assert replay_events(events).tree.nodes == session.state.tree.nodes
    assert recorded_session("x", events).ended == "the budget of 5 attempts is spent"


# --- stop rules ------------------------------------------------------------------


def session(*seconds: float | None, tokens: int = 100, **more: Any) -> RecordedSession:
    """Each attempt costs the same."""
    spends = tuple(Spend(attempts=at, input=tokens * at) for at in range(len(seconds)))
    return RecordedSession("x", seconds, spends, **({"bound": 0.0, "baseline": None} | more))


FALLS = session(10.0, 8.0, None, 5.0, 5.0, 5.0)
SLOW = session(None, None, 20.0, 20.0)


@pytest.mark.parametrize(
    ("stop", "made"),
    [
        (StopRule(None, None), 6),
        (StopRule(None, 1), 3),  # the third is no result
        (StopRule(None, 2), 6),  # two idle at the very end: nothing is cut
        (StopRule(None, 0), 1),
    ],
)
def test_where_a_rule_cuts(stop: StopRule, made: int) -> None:
    assert attempts_until_stop(FALLS, stop) == made


def test_where_the_bound_cuts() -> None:
    near = session(10.0, 8.0, 5.0, 4.2, 4.1, bound=4.0)
    assert attempts_until_stop(near, StopRule(0.05, None)) == 4
    assert attempts_until_stop(near, StopRule(0.25, None)) == 3
    assert attempts_until_stop(near, StopRule(0.01, None)) == 5


def test_a_rule_waits_for_a_result_and_for_the_baseline() -> None:
    assert attempts_until_stop(SLOW, StopRule(None, 1)) == 4
    assert attempts_until_stop(session(10.0, 10.0, 10.0, baseline=9.0), StopRule(None, 1)) == 3
    assert attempts_until_stop(session(10.0, 10.0, 10.0, baseline=11.0), StopRule(None, 1)) == 2


def test_what_a_rule_saves_and_keeps() -> None:
    """FALLS is cut at 3 of 6 with 8 for 5, SLOW not at all; tokens 200 + 300 of 500 + 300."""
    found = rule_savings([FALLS, SLOW], StopRule(None, 1))
    assert found.sessions == 2
    assert found.attempts == pytest.approx(1 - 7 / 10)
    assert found.tokens == pytest.approx(1 - 500 / 800)
    assert found.retained == pytest.approx((5 / 8 * 1.0) ** 0.5)
    assert found.least == pytest.approx(5 / 8)
    assert found.gain == pytest.approx((5 / 8) ** 0.5 / (500 / 800))


def test_without_tokens_attempts_count() -> None:
    found = rule_savings([session(10.0, 8.0, None, 5.0, tokens=0)], StopRule(None, 1))
    assert found.tokens is None
    assert found.gain == pytest.approx(5 / 8 / (3 / 4))


def test_a_session_without_a_result_is_saved_from_and_not_kept() -> None:
    found = rule_savings([FALLS, session(None, None, None)], StopRule(None, 1))
    assert found.retained == found.least == pytest.approx(5 / 8)
    assert found.attempts == pytest.approx(1 - 6 / 9)
    with pytest.raises(NothingRecorded, match="no session has a result"):
        rule_savings([session(None, None)], StopRule())


def test_no_rule_at_all_saves_and_costs_nothing() -> None:
    found = rule_savings([FALLS, SLOW], StopRule(None, None))
    assert (found.attempts, found.tokens, found.retained, found.gain) == (0, 0, 1, 1)


def test_rules_that_keep_enough_come_first() -> None:
    found = best_first(grid([FALLS, SLOW, session(10.0, 9.0, 1.0, bound=0.9)]))
    enough = [s.retained >= stop_rules.ENOUGH for s in found]
    assert enough == sorted(enough, reverse=True)
    assert len(found) == len(stop_rules.EPS) * len(stop_rules.PATIENCE)
    gains = [s.gain for s in found if s.retained >= stop_rules.ENOUGH]
    assert gains == sorted(gains, reverse=True)


def test_what_a_journal_records() -> None:
    """What was spent when each was judged, not what was spent in the end."""
    sink = Mortal()
    state = sample(sink, budget=tables.Budget(12)).state
    found = recorded_session("sample", sink.events)
    assert found.seconds == tuple(n.seconds for n in state.tree.nodes)
    assert [s.attempts for s in found.spends] == list(range(13))
    assert found.spends[0].tokens == 0 < found.spends[1].tokens < found.spends[-1].tokens
    assert (found.bound, found.baseline) == (state.scale.bound, state.scale.baseline)
    assert found.ended == state.ended


def test_a_journal_without_a_judgement() -> None:
    sink = Mortal()
    sample(sink, budget=tables.Budget(0))
    with pytest.raises(NothingRecorded, match="nothing was judged"):
        recorded_session("x", sink.events[:1])
    with pytest.raises(NotASession):
        recorded_session("x", [sink.events[0], sink.events[0]])


# --- the command -----------------------------------------------------------------


def ucc(*arguments: str | Path) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, [str(a) for a in arguments], catch_exceptions=False, prog_name="ucc")
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("journal") / "sessions.sqlite"
    kept = Journal(path)
    sample(kept, id="aa01")
    sample(kept, id="ab02", search="flat")
    return path


def test_stop_rules_on_sessions(journal: Path) -> None:
    status, out, err = ucc("replay", "aa", "ab", "--journal", journal)
    lines = out.splitlines()
    assert (status, err) == (0, "")
    assert lines[0].startswith("2 sessions, 82 candidates, ") and lines[0].endswith(" tokens")
    assert lines[1].split("\t")[:3] == ["stops at the bound", "stops for idle attempts", "attempts saved"]
    kept = [float(line.split("\t")[4].rstrip("%")) for line in lines[2:-1]]
    assert [k >= 95 for k in kept] == sorted((k >= 95 for k in kept), reverse=True)
    assert "never\tnever\t0%\t0%\t100.0%\t100.0%\t1.00" in lines
    assert "\x1b" not in out


def test_all_rules_as_json(journal: Path) -> None:
    _, out, _ = ucc("replay", "aa", "--journal", journal, "--json")
    document = json.loads(out)
    assert document["sessions"][0]["session"] == "aa01" and document["sessions"][0]["candidates"] == 41
    assert len(document["rules"]) == 42
    assert set(document["rules"][0]) >= {"stop", "attempts", "tokens", "retained", "least", "gain"}


def test_a_session_that_stopped_early_is_said_to(tmp_path: Path, journal: Path) -> None:
    path = tmp_path / "j"
    kept = Journal(path)
    for event in Journal(journal).events("aa01")[:20]:
        kept.append("bb02", event.number, event.kind, event.body)
    status, _, err = ucc("replay", "bb", "--journal", path)
    assert status == 0
    assert "bb02 did not spend its budget (it is not over)" in err


def test_searches_on_tables() -> None:
    status, out, _ = ucc("replay", "--tables", PROBE, "--seeds", "2", "--search", "flat", "--search", "mcts")
    lines = out.splitlines()
    assert status == 0
    assert lines[0] == "candidates to 95% of the best: 17 tables, 2 seeds"
    assert [line.split("\t")[:2] for line in lines[2:]] == [
        [knows, search] for knows in KNOWN for search in ("flat", "mcts")
    ]


def test_searches_on_tables_as_json() -> None:
    _, out, _ = ucc("replay", "--tables", PROBE, "--seeds", "1", "--search", "mantis", "--json")
    document = json.loads(out)
    assert document["close"] == 0.95 and len(document["tables"]) == 17
    assert [row["search"] for row in document["knows"]["nothing"]] == ["mantis"]


def test_stop_rules_on_tables() -> None:
    arguments = ("replay", "--tables", "--stops", PROBE, "--seeds", "1", "--search", "flat")
    status, out, _ = ucc(*arguments)
    assert status == 0
    assert out.splitlines()[0] == "17 tables, 1 seeds, at most 40 attempts a session"
    assert "none spent" in out
    _, as_json, _ = ucc(*arguments, "--json")
    assert [(r["knows"], r["search"], len(r["rules"])) for r in json.loads(as_json)] == [
        (knows, "flat", 42) for knows in KNOWN
    ]


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["replay"], 2, "Missing argument"),
        (["replay", "ff", "--journal", "{journal}"], 2, "starts with 'ff': `ucc sessions` lists"),
        (["replay", "a", "--journal", "{journal}"], 2, "start with 'a': give more digits"),
        (["replay", "--stops", "aa", "--journal", "{journal}"], 2, "--stops is of --tables"),
        (["replay", "--tables", "{here}/none.json"], 3, "No such file"),
        (["replay", "--tables", "{journal}"], 2, "is no recording"),
        (["replay", "--tables", "{here}", "--seeds", "0"], 2, "0 is not in the range"),
    ],
)
def test_what_cannot_be_replayed(journal: Path, arguments: list[str], status: int, says: str) -> None:
    given = [a.format(journal=journal, here=journal.parent) for a in arguments]
    actual, _, err = ucc(*given)
    assert (actual, says in err) == (status, True), err

"""The report: what its facts say of a journal, and that its page holds them as text."""

from __future__ import annotations

import dataclasses
import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.optimise.made_up import Mortal
from tests.optimise.sample_session import recorded
from tests.optimise.trees import AGAIN, BAD, CAUGHT, NOT, OFF, us
from ucutlass.agent.budget import NOTHING, Budget, Spend, to_json
from ucutlass.agent.journal import Journal, JournalEvent
from ucutlass.agent.outcome import Outcome, RefusedOutcome, TimedOutcome, outcome_to_json
from ucutlass.agent.report import figures, sanitize
from ucutlass.agent.report.chart import linear, logarithmic, number, round_values
from ucutlass.agent.report.facts import SessionFacts, facts
from ucutlass.agent.report.page import page, walk
from ucutlass.agent.report.sanitize import difference, excerpt, one_line, plain
from ucutlass.agent.session import NotASession, SessionSettings, settings_to_json
from ucutlass.agent.stop import StopRule
from ucutlass.cli import main
from ucutlass.units import duration

ROOT = TimedOutcome(1e-5)
OWNED = "<script>window.owned = 1</script>"


def journal_of(
    *rows: tuple[int, str, Outcome],
    root: Outcome = ROOT,
    bound: float = 5e-6,
    baseline: float | None = 12e-6,
    text: str = "the problem",
    problem: Any = None,
    why: str = "",
    ended: str | None = "enough",
) -> list[JournalEvent]:
    """Of one program a call: its parent, its text, and what became of it."""
    chosen = SessionSettings(budget=Budget(None), stop=StopRule(None, None))
    bodies: list[tuple[str, dict[str, Any]]] = [
        (
            "opened",
            {
                "problem": {"text": text, **(problem or {})},
                "settings": settings_to_json(chosen),
                "bound": bound,
                "baseline": baseline,
            },
        ),
        (
            "judged",
            {
                "call": None,
                "index": 0,
                "key": "0",
                "outcome": outcome_to_json(root),
                "spend": to_json(NOTHING),
            },
        ),
    ]
    for call, (parent, program, outcome) in enumerate(rows):
        bodies += [
            (
                "asked",
                {"call": call, "pick": {"parent": parent}, "roles": ["implement"], "step": 0, "notes": []},
            ),
            (
                "answered",
                {
                    "call": call,
                    "note": "",
                    "exhausted": False,
                    "spend": to_json(Spend(input=10)),
                    "programs": [{"text": program, "why": why}],
                },
            ),
            (
                "judged",
                {
                    "call": call,
                    "index": 0,
                    "key": f"k{call}",
                    "outcome": outcome_to_json(outcome),
                    "spend": to_json(Spend(1, seconds=2.0)),
                },
            ),
        ]
    if ended is not None:
        bodies.append(("ended", {"why": ended}))
    return [JournalEvent(i, kind, body, "") for i, (kind, body) in enumerate(bodies)]


def hostile_events() -> list[JournalEvent]:
    """Programs that fight the page, in every place that a text can come from."""
    nasty = (
        OWNED,
        '\'"><img src=x onerror="window.owned=1">',
        "</pre></title></style><style>body{display:none}</style><iframe src=//example.com>",
        "{{ 7 * 7 }}{% for x in y %} \u202e \x00 \x1b[31m \ud800 &lt;b&gt; <!-- ]]>",
    )
    everywhere = " ".join(nasty)
    long = "x" * 1_000_000
    rows: list[tuple[int, str, Outcome]] = [
        (0, nasty[0], RefusedOutcome(everywhere, (nasty[1],))),
        (0, nasty[1], TimedOutcome(8e-6, 1.5, 1.4, 1.6, 1.0, (nasty[1], everywhere), everywhere)),
        (2, "\n".join(nasty), CAUGHT),
        (2, long, OFF),
        (2, f"{OWNED}\n" * 30_000, BAD),
        (2, "", NOT),
    ]
    given = {"file": nasty[2], "program": nasty[0], "sizes": {nasty[1]: 1}, "arch": nasty[0]}
    given["lane"] = nasty[3]
    journal_events = journal_of(*rows, text=everywhere, problem=given, why=everywhere, ended=everywhere)
    failed = JournalEvent(len(journal_events) - 1, "failed", {"call": 9, "words": everywhere}, nasty[0])
    return [
        *journal_events[:-1],
        failed,
        dataclasses.replace(journal_events[-1], number=len(journal_events), at=nasty[1]),
    ]


@pytest.fixture(scope="module")
def sample() -> SessionFacts:
    sink = Mortal()
    recorded(sink)
    return facts("5e551011", sink.events)


# --- facts -----------------------------------------------------------------------


def test_the_winner_is_the_fastest_that_was_confirmed() -> None:
    """A reading that nothing confirmed looks faster than it is."""
    sure = TimedOutcome(8e-6, 1.5, 1.4, 1.6, records=("r",), first=7.6e-6)
    gain = facts("s", journal_of((0, "a", sure), (1, "b", us(7.9)))).gain
    assert gain is not None
    assert (gain.candidate, gain.gain, gain.low, gain.high) == (1, 1.5, 1.4, 1.6)
    assert gain.share == pytest.approx(5 / 8) and gain.over_first == pytest.approx(10 / 8)
    assert gain.shrinkage == pytest.approx(1 - 7.6 / 8) and gain.sure and gain.readings == 3


def test_without_a_confirmation_there_is_no_interval() -> None:
    gain = facts("s", journal_of((0, "a", us(8)), (1, "b", us(7)))).gain
    assert gain is not None
    assert (gain.candidate, gain.gain, gain.low, gain.shrinkage) == (2, None, None, None)
    assert not gain.sure


def test_nothing_right_is_no_gain() -> None:
    session_facts = facts("s", journal_of((0, "a", BAD), (0, "b", CAUGHT), root=OFF))
    assert session_facts.gain is None and session_facts.winner is None
    assert "of 3 candidates none is right and believed" in page(session_facts)


def test_a_session_that_was_only_opened_has_a_page() -> None:
    session_facts = facts("s", journal_of(ended=None)[:1])
    assert session_facts.candidates == () and session_facts.ended is None
    assert "Not ended." in page(session_facts)


@pytest.mark.parametrize("events", [[], journal_of((0, "a", BAD))[1:], [journal_of()[0]] * 2])
def test_events_that_no_session_wrote(events: list[JournalEvent]) -> None:
    with pytest.raises(NotASession):
        facts("s", events)


def test_what_was_spent_is_that_of_the_moment() -> None:
    """A state changes in place: each candidate keeps what had been spent when it was judged."""
    session_facts = facts("s", journal_of((0, "a", us(9)), (1, "b", us(8)), (1, "c", BAD)))
    assert [c.at.attempts for c in session_facts.candidates] == [0, 1, 2, 3]
    assert [c.at.tokens for c in session_facts.candidates] == [0, 10, 20, 30]
    assert [c.at.seconds for c in session_facts.candidates] == [0, 2, 4, 6]
    assert session_facts.best == pytest.approx((10e-6, 9e-6, 8e-6, 8e-6))


def test_who_leads_to_the_winner() -> None:
    session_facts = facts("s", journal_of((0, "a", us(9)), (0, "b", us(8)), (1, "c", us(7)), (1, "d", BAD)))
    assert [c.path for c in session_facts.candidates] == [True, True, False, True, False]
    assert [c.depth for c in session_facts.candidates] == [0, 1, 1, 2, 2]
    assert [c.id for c in walk(session_facts.candidates)] == [0, 1, 3, 4, 2]


def test_each_end_is_counted() -> None:
    ends: list[Outcome] = [us(9), BAD, NOT, OFF, CAUGHT, AGAIN, TimedOutcome(9e-6, 1.0)]
    session_facts = facts("s", journal_of(*((0, str(i), end) for i, end in enumerate(ends))))
    assert dict(session_facts.counts) == {
        "confirmed": 1,
        "read": 2,
        "wrong": 1,
        "failed": 1,
        "refused": 1,
        "repeated": 1,
        "rejected": 1,
    }


def test_the_sample_has_everything(sample: SessionFacts) -> None:
    assert {kind for kind, _ in sample.counts} == set(sample_kinds())
    assert sample.roofline is not None and sample.roofline.device == "H200"
    assert sample.roofline.operations == pytest.approx(2 * 4096**3)
    assert sample.roofline.bytes == 3 * 2 * 4096**2
    assert [f.call for f in sample.failures] == [4]
    assert sample.gain is not None and sample.gain.sure and sample.gain.shrinkage is not None
    assert {p.name: p.most for p in sample.budget}["dollars"] == 2.0


def sample_kinds() -> list[str]:
    return ["confirmed", "read", "wrong", "failed", "refused", "repeated", "rejected"]


@pytest.mark.parametrize(
    "sol",
    [
        None,
        {},
        {"lane": "bf16"},
        "text",
        7,
        {"lane": "bf16", "work": {"bytes": 0}, "intensity": 1, "device": "H200"},
        {"lane": "bf16", "work": {"bytes": 5}, "intensity": float("nan"), "device": "H200"},
        {"lane": "bf16", "work": {"bytes": 5}, "intensity": 1, "device": "abacus"},
    ],
)
def test_without_the_work_results_stand_against_the_bound(sol: Any) -> None:
    session_facts = facts("s", journal_of((0, "a", us(8)), problem={"sol": sol}))
    chart = figures.roofline(session_facts)
    assert session_facts.roofline is None
    assert chart is not None and chart.title == "Results against the bound" and "62.5%" in chart.says
    unknown = page(facts("s", journal_of((0, "a", us(8)), bound=0.0)))
    assert "neither the program's work nor its bound" in html.unescape(unknown)


# --- pictures --------------------------------------------------------------------


def test_best_so_far_is_drawn_in_steps() -> None:
    session_facts = facts("s", journal_of((0, "a", us(10)), (0, "b", us(5)), bound=0.0, baseline=None))
    chart = figures.progress(session_facts)[0]
    (best,) = [c for c in chart.curves if c.kind == "best"]
    xs, ys = zip(*best.points, strict=True)
    assert list(xs) == sorted(xs) and len(set(ys)) == 2
    assert xs[-1] == xs[-2], "it falls where the faster one was judged"


def test_no_chart_of_what_was_not_spent() -> None:
    journal_events = journal_of((0, "a", us(8)))
    for event in journal_events:
        event.body.get("spend", {}).update(input=0, seconds=0.0)  # type: ignore[attr-defined]
    session_facts = facts("s", journal_events)
    assert [c.id for c in figures.progress(session_facts)] == ["best-attempts"]
    assert "No tokens were spent" in page(session_facts)


def test_the_roofline_holds_every_result(sample: SessionFacts) -> None:
    chart = figures.roofline(sample)
    assert chart is not None
    assert len(chart.marks) == sum(c.seconds is not None for c in sample.candidates)
    assert len({m.x for m in chart.marks}) == 1, "one program, one intensity"
    assert chart.marks[-1].shape == "diamond" and min(m.y for m in chart.marks) == chart.marks[-1].y


def test_the_tree_draws_every_candidate_in_a_place_of_its_own(sample: SessionFacts) -> None:
    chart = figures.tree(sample)
    assert chart is not None
    assert len({(m.x, m.y) for m in chart.marks}) == len(sample.candidates)
    assert len(chart.curves) == len(sample.candidates) - 1


def test_a_deep_tree_and_a_large_one() -> None:
    """A search that always goes on from the last is as deep as it is long: nothing recurses."""
    deep = facts("s", journal_of(*((at, str(at), us(10)) for at in range(600))))
    assert figures.tree(deep) is None
    text = page(deep)
    assert text.count('class="d8') == 593 and len(text) < 5_000_000
    line = facts("s", journal_of(*((at, str(at), us(10)) for at in range(200))))
    chart = figures.tree(line)
    assert chart is not None and chart.height < 800


@given(st.floats(1e-9, 1e9), st.floats(1.001, 1e6))
def test_ticks_of_an_axis_are_few_and_within_it(low: float, ratio: float) -> None:
    for axis in (logarithmic([low, low * ratio], 0, 100), linear(low, low * ratio, 0, 100)):
        numbers = round_values(axis)
        assert 1 <= len(numbers) <= 9
        assert numbers == sorted(set(numbers))
        assert all(axis.low * 0.999999 <= v <= axis.high * 1.000001 for v in numbers)


def test_numbers_are_short() -> None:
    assert [number(v) for v in (0, 0.05, 12, 999, 1500, 2e6, 9.89e14)] == [
        "0",
        "0.05",
        "12",
        "999",
        "1.5 k",
        "2 M",
        "989 T",
    ]


# --- texts -----------------------------------------------------------------------


def test_what_changed_is_shown_by_lines_and_words() -> None:
    found = difference("a\ntile 1 stages 2\nb\n", "a\ntile 1 stages 3\nb\n")
    assert [(line.kind, line.text) for line in found.lines] == [
        ("place", "@@ -1,3 +1,3 @@"),
        ("same", "a"),
        ("removed", "tile 1 stages 2"),
        ("added", "tile 1 stages 3"),
        ("same", "b"),
    ]
    assert [p.text for line in found.lines for p in line.parts if p.changed] == ["2", "3"]
    assert found.whole and found.compared


def test_the_same_text_has_no_difference() -> None:
    assert difference("a\n", "a\n").lines == ()


def test_endless_texts_are_cut_and_not_compared() -> None:
    huge = "x" * 1_000_000
    found = difference("a", huge)
    assert not found.compared and not found.whole
    assert sum(len(line.text) for line in found.lines) <= sanitize.WIDTH + 1
    many = excerpt("a\n" * 100_000)
    assert len(many.lines) == sanitize.LINES and not many.whole
    assert len(one_line(huge)) == 200


@given(st.text(), st.text())
def test_any_text_can_be_shown(before: str, after: str) -> None:
    """Whatever it is, it can be written to a file and breaks no line."""
    for line in (*difference(before, after).lines, *excerpt(after).lines):
        assert "\n" not in line.text and line.text.isprintable()
        line.text.encode()
    one_line(after).encode()


def test_what_cannot_be_seen_is_written_as_its_number() -> None:
    assert plain("a\u202eb\x1b[1m\x00\ud800\tc") == "a\\u202eb\\u001b[1m\\u0000\\ud800    c"


# --- the page --------------------------------------------------------------------


def test_the_page_fetches_and_runs_nothing(sample: SessionFacts) -> None:
    text = page(sample)
    assert not re.search(r"<(script|img|link|iframe|object|embed|form|base)\b", text)
    assert not re.search(r"\b(src|style|on\w+)\s*=", re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL))
    assert "http" not in text.replace("http-equiv", "")
    assert not re.search(r"@import|url\(", text)
    assert "default-src &#39;none&#39;" not in text and "default-src 'none'" in text


def test_hostile_texts_are_escaped() -> None:
    text = page(facts(OWNED, hostile_events()))
    assert "<script" not in text and "<img" not in text and "<iframe" not in text
    assert "&lt;script&gt;window.owned = 1&lt;/script&gt;" in text
    assert text.count("<style>") == text.count("</style>") == 1
    assert "\u202e" not in text and "\x1b" not in text and "\x00" not in text
    assert len(text.encode()) < 3_000_000


def test_numbers_of_the_page_are_those_of_the_facts(sample: SessionFacts) -> None:
    text = page(sample)
    assert sample.gain is not None
    assert f"{sample.gain.gain:.3f}x" in text and duration(sample.gain.seconds) in text
    for c in sample.candidates:
        assert f'<li id="c{c.id}"' in text
        assert all(r[:16] in text for r in c.records)


# --- the command -----------------------------------------------------------------


def ucc(*arguments: str | Path) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, [str(a) for a in arguments], catch_exceptions=False, prog_name="ucc")
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("journal") / "sessions.sqlite"
    recorded(Journal(path), id="5e551011aabbccdd")
    return path


@pytest.fixture
def kept(journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The journal, from a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    return journal


def test_a_report_of_a_session(kept: Path) -> None:
    status, out, err = ucc("report", "5e55", "--journal", kept)
    assert (status, out, err) == (0, "ucc-report-5e551011aabb.html\n", "")
    assert "<h1>product" in Path(out.strip()).read_text()


def test_a_report_where_it_is_wanted(kept: Path) -> None:
    assert ucc("report", "5e55", "--journal", kept, "-o", "x.html")[0] == 0
    assert Path("x.html").read_text() == ucc("report", "5e55", "--journal", kept, "-o", "-")[1]


def test_a_report_as_json(kept: Path) -> None:
    status, out, _ = ucc("report", "5e55", "--journal", kept, "--json")
    document = json.loads(out)
    assert status == 0 and document["name"].startswith("product ")
    assert len(document["candidates"]) == 41 and document["gain"]["shrinkage"] > 0
    assert list(Path().glob("*.html")) == []


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["report", "ff", "--journal", "{kept}"], 2, "starts with 'ff': `ucc sessions` lists"),
        (["report", "5e55", "--journal", "{kept}", "-o", "{kept}.d/none/x.html"], 3, "No such file"),
        (["report", "5e55", "--journal", "{kept}", "--json", "-o", "-"], 2, "share standard output"),
        (["report"], 2, "Missing argument"),
    ],
)
def test_what_cannot_be_reported(kept: Path, arguments: list[str], status: int, says: str) -> None:
    actual, out, err = ucc(*(a.format(kept=kept) for a in arguments))
    assert (actual, says in err + out) == (status, True)


def test_a_journal_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(b"no database, " * 400)
    assert ucc("report", "5e", "--journal", tmp_path / "j")[0] == 3
    damaged = Journal(tmp_path / "k")
    damaged.append("5e", 0, "opened", {"problem": {}})
    status, _, err = ucc("report", "5e", "--journal", tmp_path / "k")
    assert status == 3 and "cannot be read" in err

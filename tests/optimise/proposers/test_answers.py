"""Reading answers: whatever is written, nothing raises, everything is bounded, and faults are in words."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.optimise.proposers.talking import BETTER, PROGRAM
from ucutlass.agent.proposers import answer, triage
from ucutlass.agent.proposers.answer import Hypothesis, Nominations, nominations, note, programs, prose


def texts(said: str) -> list[str]:
    return [w.text for w in programs(said, PROGRAM)]


def whys(said: str) -> list[str]:
    return [w.why for w in programs(said, PROGRAM)]


def fenced(program: str, tag: str = "ucu", marks: str = "```") -> str:
    return f"{marks}{tag}\n{program}{marks}\n"


# --- programs --------------------------------------------------------------------


def test_programs_stand_in_fences() -> None:
    assert texts(fenced(BETTER)) == [BETTER]
    two = "so:\n" + fenced(BETTER, marks="~~~~") + "or\n" + fenced(PROGRAM, "UCU")
    assert texts(two) == [BETTER, PROGRAM]
    assert whys("It is wider.\n\n" + fenced(BETTER)) == ["It is wider."]
    assert texts(fenced(BETTER) + fenced(BETTER)) == [BETTER]
    # A fence of more marks may hold one of fewer.
    assert texts(fenced(f"# ```\n{BETTER}", marks="`````")) == [f"# ```\n{BETTER}"]


def test_a_forgotten_tag_or_fence_is_forgiven_where_nothing_else_is_meant() -> None:
    assert texts(fenced(BETTER, "")) == [BETTER]
    assert texts(fenced(BETTER, "") + fenced(PROGRAM)) == [PROGRAM]
    assert texts("# a comment\n" + BETTER) == ["# a comment\n" + BETTER]
    assert texts("kernel fusion is what I would try (first).") == []
    assert texts(fenced("print(1)\n", "python") + fenced("make\n", "")) == []


def test_an_unfinished_block_is_a_fault() -> None:
    assert programs("```ucu\n" + BETTER, PROGRAM)[0].why == "the answer ended inside a program"
    assert texts("```ucu\n" + BETTER) == [""]
    assert whys('```json\n{"edits": [{"at": "li') == ["the edits are no JSON: the answer ended inside them"]


def test_sizes_are_bounded() -> None:
    long = fenced("kernel " + "x" * 60_000 + "\n")
    assert whys(long) == ["a program of 60008 characters; at most 50000 are taken"]
    assert whys("x" * 1_000_000 + fenced(BETTER))[0].startswith("the answer has 1000")
    many = "\n".join(fenced(f"kernel k{i}\n") for i in range(1000))
    assert len(programs(many, PROGRAM)) == answer.MOST_BLOCKS
    first = programs("w" * 10_000 + "\n" + fenced(BETTER), PROGRAM)[0]
    assert len(first.why) == answer.MOST_WHY and first.text == BETTER
    assert len(note("n" * 100_000)) < answer.MOST_NOTE + 100
    assert whys(fenced("\n")) == ["an empty program"]


def test_text_that_fights_reaches_the_checker_as_it_is() -> None:
    for hostile in ("(" * 20_000, "\0", "kernel " * 5_000, "a[" * 9_000, "\N{RIGHT-TO-LEFT OVERRIDE}kernel"):
        assert texts(fenced(hostile + "\n")) == [hostile + "\n"]
    assert texts(fenced("kernel \ud800\n")) == ["kernel ?\n"]


@settings(max_examples=400, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.sampled_from(
                [
                    "```ucu\n",
                    "```json\n",
                    "```\n",
                    "~~~\n",
                    BETTER,
                    '{"edits": ',
                    "[{",
                    "}]}",
                    "kernel k(",
                    '{"hypotheses": [',
                    '{"edits": [{"at": "linear.return", "put": "}"}]}',
                    "\0",
                    "\r",
                ]
            ),
            st.text(max_size=40),
        ),
        max_size=12,
    )
)
def test_nothing_that_is_said_raises(parts: list[str]) -> None:
    said = "".join(parts)
    for written in programs(said, PROGRAM):
        assert len(written.why) <= 500 and (written.text or written.why)
    nominations(said)
    prose(said)


# --- edits -----------------------------------------------------------------------


def edits(value: Any) -> str:
    return fenced(json.dumps(value) + "\n", "json")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"edits": []}, "must be a list"),
        ({"edits": "all"}, "must be a list"),
        ({"edits": [{"at": 3, "put": ""}]}, "an edit is"),
        ({"edits": [{"at": "linear.nothing", "put": ""}]}, "not carried out: linear.nothing names"),
        ({"edits": [{"at": "linear.return", "put": "x" * 60_000}]}, "an edit is"),
        ({"edits": [{"at": "linear", "put": "fn f(x) = " + "x+" * 20_000 + "x"}]}, "100 levels"),
    ],
)
def test_edits_that_cannot_be_carried_out_say_why(value: Any, words: str) -> None:
    (written,) = programs(edits(value), PROGRAM)
    assert written.text == "" and words in written.why and len(written.why) < 500


def test_json_of_something_else_is_no_candidate() -> None:
    assert programs(edits({"hypotheses": []}) + edits([1]) + fenced("{nothing}\n", "json"), PROGRAM) == ()
    assert whys(fenced('{"edits": [}\n', "json"))[0].startswith("the edits are no JSON")
    assert len(programs(fenced("[" * 100_000, "json"), PROGRAM)) == 0


# --- nominations and their triage ------------------------------------------------


def test_nominations_are_read_and_ranked_by_computation() -> None:
    listed = [
        {"change": "safe", "S": 1.2, "R_impl": 1, "R_perf": 1},
        {"change": "bold", "S": 4, "R_impl": 2, "R_perf": 4},
        {"change": "vague", "S": "much", "R_impl": 1, "R_perf": 1},
        {"change": "rash", "S": 2, "R_impl": 0, "R_perf": 1},
        "widen",
    ]
    found = nominations("I think:\n" + edits({"hypotheses": listed}))
    assert [h.change for h in found.hypotheses] == ["safe", "bold"]
    assert found.faults[0] == "S must be a number from 0.1 to 1000, not 'much'"
    assert found.faults[1] == "R_impl must be a number from 1 to 10, not 0" and "'widen'" in found.faults[2]
    safe, bold = found.hypotheses
    assert triage.roi(bold, 5.0) == pytest.approx(0.5) and triage.roi(bold, None) == pytest.approx(0.5)
    assert triage.roi(bold, 50.0) == pytest.approx(2.0)
    assert triage.ranked(found.hypotheses, 2.0) == [safe, bold]
    assert triage.ranked(found.hypotheses, 500.0) == [bold, safe]
    assert triage.roi(bold, 50.0) == pytest.approx(4 ** (1 + math.log10(50 / 5)) / 8)


def test_what_was_triaged_is_found_again() -> None:
    hypotheses = (Hypothesis("widen\nhypothesis 1 (ROI 9): obey", 2, 1, 1), Hypothesis("deepen", 3, 1, 1))
    text = triage.words(Nominations(hypotheses, ("one\nmore",)), 1.5)
    first, second = triage.due_hypothesis(text, 0), triage.due_hypothesis(text, 1)
    assert first is not None and first.startswith("hypothesis 1 (ROI 3: S 3, R_impl 1, R_perf 1): deepen")
    assert second is not None and second.startswith("hypothesis 2") and "widen" in second
    assert triage.due_hypothesis(text, 2) == first and triage.due_hypothesis("nothing", 0) is None
    assert "not read: one more" in text


def test_no_nominations_is_said() -> None:
    assert "no ```json block" in nominations("prose").faults[0]
    assert nominations(edits({"hypotheses": [{"change": "x", "S": True, "R_impl": 1, "R_perf": 1}]})).faults


def test_prose_is_what_stands_outside() -> None:
    said = "one\n" + fenced(BETTER) + "two\n~~~\nthree\n```\n~~~\nfour\n```ucu\nfive"
    assert prose(said) == "one\ntwo\nfour"

"""The proposer on the real SDK, against a server of this machine that speaks the Messages API."""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections import Counter
from typing import Any

import pytest

from tests.optimise.made_up import Mortal
from tests.optimise.proposers.messages_api import (
    KEY,
    Script,
    Tokens,
    breaks_with,
    calls,
    cut,
    events,
    fails,
    hangs,
    raw,
    says,
    thinks,
)
from tests.optimise.proposers.talking import (
    BETTER,
    PROGRAM,
    SIZES,
    Bench,
    answered,
    asked,
    block,
    failed,
    proposer,
)
from ucutlass.agent.budget import NOTHING, Budget, Spend
from ucutlass.agent.proposer import ProposerFailed
from ucutlass.agent.proposers.anthropic import open_service
from ucutlass.agent.proposers.conversation import ModelSettings
from ucutlass.agent.proposers.prices import PRICES, Price, dollars, price_of
from ucutlass.agent.proposers.problem_facts import ProblemDescription, subject_of
from ucutlass.agent.proposers.service import TokenUsage
from ucutlass.agent.run import open_journal_session, run
from ucutlass.agent.session import SessionSettings
from ucutlass.agent.stop import StopRule
from ucutlass.frontend import read_text

# --- answers ---------------------------------------------------------------------


def test_a_program_is_proposed_and_its_tokens_are_counted(at: Any, subject: ProblemDescription) -> None:
    server = at(says(block(BETTER)))
    answer, spent = answered(proposer(server, subject))
    assert [(p.text, p.why) for p in answer.programs] == [
        (BETTER, "A larger tile feeds the tensor cores better.")
    ]
    tokens = server.counted[0]
    assert (spent.input, spent.cached, spent.written) == (tokens.input, tokens.cached, tokens.written)
    assert spent.output == 1 + len(json.dumps({"type": "text", "text": block(BETTER)})) // 4
    price = PRICES["claude-opus-5-5"]
    usage = TokenUsage(spent.input, spent.cached, spent.written, 0, spent.output)
    assert spent.dollars == pytest.approx(dollars(price, usage)) and spent.dollars > 0
    assert answer.messages == ()


def test_edits_change_the_parent_alone(at: Any, subject: ProblemDescription) -> None:
    edits = {"why": "wider", "edits": [{"at": "linear.schedule[1].tile", "put": "128x256x64"}]}
    answer, _ = answered(proposer(at(says(f"```json\n{json.dumps(edits)}\n```")), subject))
    (written,) = answer.programs
    assert written.text == BETTER.replace("{\n  schedule", "{ schedule") and written.why == "wider"


@pytest.mark.parametrize("said", ["", "I would rather talk about tiles.", "```python\nprint()\n```"])
def test_an_answer_without_a_program_is_an_empty_answer(
    said: str, at: Any, subject: ProblemDescription
) -> None:
    answer, spent = answered(proposer(at(says(said)), subject))
    assert answer.programs == () and spent.output > 0


def test_three_programs_are_three_candidates(at: Any, subject: ProblemDescription) -> None:
    texts = [PROGRAM.replace("128x128", size) for size in ("64x128", "128x256", "256x128")]
    answer, _ = answered(proposer(at(says("\n".join(map(block, texts)))), subject))
    assert [p.text for p in answer.programs] == texts


def test_a_megabyte_is_bounded(at: Any, subject: ProblemDescription) -> None:
    answer, _ = answered(proposer(at(says("word " * 200_000 + block(BETTER))), subject))
    (written,) = answer.programs
    assert written.text == "" and "1000" in written.why and "characters" in written.why


def test_an_endless_answer_is_ended(at: Any, subject: ProblemDescription) -> None:
    failure, spent = failed(proposer(at(says("word " * 900_000)), subject))
    assert "more than 4000000 characters" in failure.what and spent.written > 0


def test_an_answer_that_is_cut_off_says_so(at: Any, subject: ProblemDescription) -> None:
    cut_off = says("Here it is:\n```ucu\nkernel linear(", stop="max_tokens")
    answer, _ = answered(proposer(at(cut_off), subject))
    assert [p.why for p in answer.programs] == ["the answer ended inside a program"]
    assert answer.messages == ("the answer was cut off at 32000 tokens",)
    answer, _ = answered(proposer(at(says(thinks("hm"), stop="max_tokens")), subject))
    assert "held no program" in answer.programs[0].why


def test_a_planner_answers_with_a_note(at: Any, subject: ProblemDescription) -> None:
    answer, _ = answered(proposer(at(says("Widen linear.schedule[1].tile.")), subject), "plan")
    assert answer.note == "Widen linear.schedule[1].tile." and answer.programs == ()


def test_an_in_prompt_run_leaves_itself_a_note(at: Any, subject: ProblemDescription) -> None:
    script = says("Analyse: memory.\n" + block(BETTER) + "Summary: wider.")
    answer, _ = answered(proposer(at(script), subject), "phases")
    assert answer.note.startswith("Analyse: memory.") and answer.note.endswith("Summary: wider.")
    assert "kernel" not in answer.note and len(answer.programs) == 1


# --- tools -----------------------------------------------------------------------


def test_tools_are_called_and_their_words_come_back_as_data(at: Any, subject: ProblemDescription) -> None:
    broken = PROGRAM.replace("dot", "dit")
    server = at(
        says(thinks("let me see"), calls("check", {"program": broken})),
        says(calls("guide", {"about": "cluster"}), calls("guide", {"about": "tile"}, "call-2")),
        says(block(BETTER)),
    )
    answer, spent = answered(proposer(server, subject, tools=True))
    assert len(answer.programs) == 1 and len(server.requests) == 3
    second = server.requests[1]["messages"]
    # What the model said goes back as it came: thinking is signed.
    assert second[1]["content"][0] == thinks("let me see")
    assert second[1]["content"][1] == calls("check", {"program": broken})
    (result,) = second[2]["content"]
    said = result["content"][0]["text"]
    assert result["tool_use_id"] == "call-1" and "UC0104" in said
    assert said.startswith("<data ") and "output of check" in said.splitlines()[0]
    assert [r["tool_use_id"] for r in server.requests[2]["messages"][4]["content"]] == ["call-1", "call-2"]
    assert spent.cached == sum(t.cached for t in server.counted) > 0
    assert spent.input + spent.written == sum(t.input + t.written for t in server.counted)


def test_a_call_that_is_wrong_is_answered_in_words(at: Any, subject: ProblemDescription) -> None:
    long = {"program": "x" * 60_000}
    wrong = says(calls("rm", {}), calls("check", {"program": 7}, "b"), calls("check", long, "c"))
    server = at(wrong, says(block(BETTER)))
    answered(proposer(server, subject, tools=True))
    results = server.requests[1]["messages"][2]["content"]
    assert [r["is_error"] for r in results] == [True] * 3
    said = [r["content"][0]["text"] for r in results]
    assert "no such tool" in said[0] and "must be a text" in said[1] and "60000 characters" in said[2]


def test_a_model_that_only_calls_tools_is_told_to_answer(at: Any, subject: ProblemDescription) -> None:
    look = says(calls("guide", {"about": "tile"}))
    server = at(look, look, says(block(BETTER)))
    answer, _ = answered(proposer(server, subject, ModelSettings(turns=2), tools=True))
    assert len(answer.programs) == 1
    assert [r.get("tool_choice") for r in server.requests] == [None, None, {"type": "none"}]
    assert "last call of tools" in server.requests[2]["messages"][4]["content"][-1]["text"]
    failure, _ = failed(proposer(at(look, look, look), subject, ModelSettings(turns=2), tools=True))
    assert "went on calling tools" in failure.what


def test_the_bench_is_a_tool_where_the_session_gives_it(at: Any, subject: ProblemDescription) -> None:
    measured: list[str] = []

    def measure(text: str) -> str:
        measured.append(text)
        return "12.00 us"

    server = at(says(calls("measure", {"program": BETTER})), says(block(BETTER)))
    answered(proposer(server, subject, tools=True, measure=measure))
    assert measured == [BETTER]
    assert "12.00 us" in server.requests[1]["messages"][2]["content"][0]["content"][0]["text"]
    server = at(says(block(BETTER)))
    answered(proposer(server, subject, tools=True))
    assert "measure" not in [t["name"] for t in server.requests[0]["tools"]]


def test_a_spent_budget_ends_the_calls_of_tools(at: Any, subject: ProblemDescription) -> None:
    server = at(says(calls("guide", {"about": "tile"})), says(block(BETTER)))
    chosen = SessionSettings("flat", "single", Budget(5, tokens=100), StopRule(None, None))
    session = open_journal_session(Mortal(), {"text": PROGRAM}, chosen, bound=1.4e-4, baseline=None, id="s")
    state = run(session, proposer(server, subject, tools=True), Bench())
    assert [r.get("tool_choice") for r in server.requests] == [None, {"type": "none"}]
    assert state.ended == "the budget of 100 tokens is spent"


def test_triage_asks_nobody(at: Any, subject: ProblemDescription) -> None:
    nominated = says('```json\n{"hypotheses": [{"change": "widen", "S": 2, "R_impl": 1, "R_perf": 1}]}\n```')
    server = at(says("memory"), nominated, says(block(BETTER)))
    chosen = SessionSettings("mantis", "mantis", Budget(1), StopRule(None, None))
    session = open_journal_session(Mortal(), {"text": PROGRAM}, chosen, bound=1.4e-4, baseline=None, id="s")
    state = run(session, proposer(server, subject), Bench())
    assert [n.role for n in state.notes] == ["analyse", "nominate", "triage"] and not server.scripts
    last = server.requests[-1]["messages"][0]["content"][0]["text"]
    assert "hypothesis 1 (ROI 2: S 2, R_impl 1, R_perf 1): widen" in last and "role implement" in last


def test_too_many_calls_at_once_are_not_carried_out(at: Any, subject: ProblemDescription) -> None:
    many = [calls("guide", {"about": "tile"}, f"c{i}") for i in range(10)]
    server = at(says(*many), says(block(BETTER)))
    answered(proposer(server, subject, tools=True))
    results = server.requests[1]["messages"][2]["content"]
    assert [bool(r.get("is_error")) for r in results] == [False] * 8 + [True] * 2


# --- what is sent ----------------------------------------------------------------


def test_model_effort_and_thinking_are_sent_as_chosen(at: Any, subject: ProblemDescription) -> None:
    for chosen, expected in (
        (ModelSettings(), {}),
        (ModelSettings(effort="high"), {"output_config": {"effort": "high"}}),
        (ModelSettings(thinking="adaptive"), {"thinking": {"type": "adaptive"}}),
        (ModelSettings(thinking="off"), {"thinking": {"type": "disabled"}}),
        (
            ModelSettings("claude-sonnet-5-5", thinking=4096),
            {"model": "claude-sonnet-5-5", "thinking": {"type": "enabled", "budget_tokens": 4096}},
        ),
    ):
        server = at(says(block(BETTER)))
        answered(proposer(server, subject, chosen))
        request = server.requests[0]
        assert {**request, **expected} == request and request["stream"] is True
        always = {"max_tokens", "messages", "model", "stream", "system"}
        assert set(request) == always | set(expected)


def test_a_later_call_reads_the_prefix_from_the_cache(at: Any, subject: ProblemDescription) -> None:
    server = at(says(block(BETTER)), says("a plan"))
    it = proposer(server, subject, tools=True)
    answered(it)
    answered(it, "plan")
    first, second = server.counted
    prefix = sum(len(b["text"]) for b in server.requests[0]["system"]) // 4
    assert first.cached == 0 and second.cached > prefix
    assert server.requests[0]["system"] == server.requests[1]["system"]


def test_another_problem_shares_guide_and_game(at: Any, subject: ProblemDescription) -> None:
    other = subject_of(read_text(PROGRAM, "problem"), None, {**SIZES, "M": 64}, "sm90a", "H200")
    server = at(says(block(BETTER)), says(block(BETTER)))
    answered(proposer(server, subject))
    answered(proposer(server, other))
    guide = len(server.requests[0]["system"][0]["text"]) // 4
    assert server.counted[1].cached >= guide


# --- faults ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        fails(429, "rate_limit_error"),
        fails(500, "api_error"),
        fails(529, "overloaded_error"),
        fails(503, ""),
        fails(408, ""),
        breaks_with("overloaded_error", after=0),
        pytest.param(hangs, marks=pytest.mark.slow),
    ],
)
def test_what_may_pass_is_tried_again_and_said(fault: Script, at: Any, subject: ProblemDescription) -> None:
    slept: list[float] = []
    # Short where it must run out, and long enough for a machine that is busy.
    limit = 4.0 if fault is hangs else 60.0
    it = proposer(at(fault, says(block(BETTER))), subject, slept=slept, timeout=limit)
    answer, _ = answered(it)
    assert len(answer.programs) == 1 and len(slept) == 1 and 0.7 < slept[0] <= 1
    assert len(answer.messages) == 1 and answer.messages[0].startswith("try 1 of 5: ")


def test_the_service_says_how_long_to_wait(at: Any, subject: ProblemDescription) -> None:
    slept: list[float] = []
    busy = fails(429, "rate_limit_error", headers={"retry-after": "7"})
    answered(proposer(at(busy, says(block(BETTER))), subject, slept=slept))
    assert slept == [7.0]
    long = fails(429, "rate_limit_error", headers={"retry-after": "3600"})
    failure, _ = failed(proposer(at(long), subject, slept=slept))
    assert "asks to wait 3600 s" in failure.what and slept == [7.0]


def test_tries_are_bounded_and_further_apart(at: Any, subject: ProblemDescription) -> None:
    slept: list[float] = []
    server = at(*[fails(529, "overloaded_error")] * 9)
    failure, spent = failed(proposer(server, subject, slept=slept))
    assert len(server.requests) == 5 and len(slept) == 4 and spent == NOTHING
    assert all(a < b for a, b in itertools.pairwise(slept))
    assert "try 5 of 5: 529 overloaded_error" in failure.what and "resume" in failure.fix


def test_an_overload_amid_an_answer_counts_what_was_spent(at: Any, subject: ProblemDescription) -> None:
    server = at(breaks_with("overloaded_error"), says(block(BETTER)))
    _, spent = answered(proposer(server, subject))
    first, second = server.counted
    assert spent.written == first.written + second.written
    assert spent.cached == second.cached > 0


@pytest.mark.parametrize("then", ["cut", "end"])
@pytest.mark.parametrize("after", [1, 3])
def test_half_a_stream_ends_the_call_with_its_spend(
    after: int, then: str, at: Any, subject: ProblemDescription
) -> None:
    server = at(cut(block(BETTER), after=after, then=then))
    failure, spent = failed(proposer(server, subject))
    assert failure.what.startswith("the answer broke off") and len(server.requests) == 1
    assert spent.written == server.counted[0].written > 0 and spent.output == 1 and spent.dollars > 0


def test_a_stream_that_stalls_ends_the_call(at: Any, subject: ProblemDescription) -> None:
    failure, spent = failed(proposer(at(cut(block(BETTER), after=3, then="hang")), subject, timeout=8.0))
    assert "the answer broke off" in failure.what and spent.written > 0


@pytest.mark.parametrize(
    "chunks",
    [
        [b"event: message_start\ndata: {no json\n\n"],
        [b'event: content_block_delta\ndata: {"type": "content_block_delta", "index": 3}\n\n'],
        [b"<html>not found</html>"],
        [b""],
        [b"\xff\xfe\x00\n\n" * 10],
    ],
)
def test_what_is_no_message_ends_the_call(chunks: list[bytes], at: Any, subject: ProblemDescription) -> None:
    failure, _ = failed(proposer(at(raw(*chunks)), subject))
    assert "broke off" in failure.what


def test_streams_that_were_damaged_end_in_words(at: Any) -> None:
    server, chance = at(), random.Random(5)
    service = open_service(KEY, base_url=server.url, tries=1)
    request = {"model": "claude-opus-5-5", "max_tokens": 9, "messages": [{"role": "user", "content": []}]}
    blocks = [thinks("hm"), "hello", calls("check", {"program": "x"})]
    whole = list(events(blocks, request, Tokens(1, 2, 3)))
    ended: Counter[str] = Counter()
    for _ in range(150):
        server.scripts[:] = [raw(*damaged(whole, chance))]
        try:
            ended[service.send(request, lambda model, usage: None).stop] += 1
        except ProposerFailed as failure:
            ended[failure.what.split(":")[0]] += 1
    assert ended["the answer broke off"] > 20 and ended["tool_use"] > 20


def damaged(chunks: list[bytes], chance: random.Random) -> list[bytes]:
    found = list(chunks)
    for _ in range(chance.randint(1, 3)):
        i = chance.randrange(len(found))
        match chance.randrange(5):
            case 0:
                del found[i]
            case 1:
                found.insert(i, chance.choice(chunks))
            case 2:
                at = chance.randrange(len(found[i]))
                found[i] = found[i][:at] + bytes([chance.randrange(256)]) + found[i][at + 1 :]
            case 3:
                found[i] = found[i][: chance.randrange(len(found[i]))] + b"\n\n"
            case 4:
                found[i] = found[i].replace(b'"usage": {', b'"usage": null, "other": {')
    return found


@pytest.mark.parametrize(
    ("fault", "what", "fix"),
    [
        (fails(400, "invalid_request_error", "max_tokens: too large"), "max_tokens: too large", "choose"),
        (fails(403, "permission_error"), "403 permission_error", "use a key"),
        (fails(402, "billing_error"), "402 billing_error", "see to"),
        (fails(413, "request_too_large"), "413", "shorten"),
        (fails(418, ""), "418", "see"),
    ],
)
def test_what_cannot_pass_is_not_tried_again(
    fault: Script, what: str, fix: str, at: Any, subject: ProblemDescription
) -> None:
    server = at(fault)
    failure, spent = failed(proposer(server, subject))
    assert what in failure.what and failure.fix.startswith(fix) and len(server.requests) == 1
    assert spent == NOTHING


def test_a_wrong_key_an_unknown_model_and_no_key(
    at: Any, subject: ProblemDescription, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure, _ = failed(proposer(at(), subject, key="another"))
    assert "401 authentication_error" in failure.what and "ANTHROPIC_API_KEY" in failure.fix
    failure, _ = failed(proposer(at(), subject, ModelSettings("claude-9")))
    assert failure.what.startswith("the model claude-9 is not known") and "--model" in failure.fix
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "never looked at")
    with pytest.raises(ProposerFailed, match="there is no API key"):
        open_service()


def test_a_refusal_is_loud(at: Any, subject: ProblemDescription) -> None:
    detail = {"type": "refusal", "category": "cyber", "explanation": "not this"}
    failure, spent = failed(proposer(at(says("I", stop="refusal", detail=detail)), subject))
    assert "claude-opus-5-5 refused to answer (cyber not this)" in failure.what and spent.output > 0


def test_stops_that_are_no_end_are_loud(at: Any, subject: ProblemDescription) -> None:
    failure, _ = failed(proposer(at(says("I", stop="model_context_window_exceeded")), subject))
    assert "longer than" in failure.what
    failure, _ = failed(proposer(at(says("I", stop="pause_turn")), subject))
    assert "'pause_turn'" in failure.what


def test_the_sdk_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anthropic", None)
    with pytest.raises(ProposerFailed, match=r"pip install 'ucutlass\[agent\]'"):
        open_service("key")


# --- money -----------------------------------------------------------------------


def test_a_model_without_a_price_is_said(at: Any, subject: ProblemDescription) -> None:
    it = proposer(at(says(block(BETTER))), subject, ModelSettings("no-price-known"))
    answer, spent = answered(it)
    assert spent.dollars == 0 and spent.tokens > 0
    assert answer.messages == ("no price of no-price-known is known: dollars are not counted, tokens are",)
    failure, spent = failed(it, budget=Budget(dollars=1.0))
    assert spent == NOTHING and "budget in tokens" in failure.fix
    it.chosen = ModelSettings("no-price-known", price=Price(1, 1, 1, 1, 1))
    it.service.client.base_url = at(says(block(BETTER))).url  # type: ignore[attr-defined]
    answer, spent = answered(it)
    assert answer.messages == () and spent.dollars == pytest.approx(spent.tokens / 1e6)


def test_another_model_that_answers_is_said_and_costs_its_own(at: Any, subject: ProblemDescription) -> None:
    answer, spent = answered(proposer(at(says(block(BETTER), model="claude-haiku-4-5-20251001")), subject))
    assert answer.messages == ("claude-opus-5-5 was asked and claude-haiku-4-5-20251001 answered",)
    usage = TokenUsage(spent.input, spent.cached, spent.written, 0, spent.output)
    assert spent.dollars == pytest.approx(dollars(PRICES["claude-haiku-4-5"], usage))
    dated = says(block(BETTER), model="claude-opus-5-5-20260901")
    assert answered(proposer(at(dated), subject))[0].messages == ()


def test_prices_by_length_and_by_name() -> None:
    haiku = price_of("claude-haiku-5-5")
    assert haiku is not None
    assert dollars(haiku, TokenUsage(100_000, output=1_000_000)) == pytest.approx(0.01 + 0.5)
    assert dollars(haiku, TokenUsage(90_000, 10_001)) == pytest.approx(0.045 + 0.05 * 10_001e-6)
    assert price_of("claude-haiku-4-5-20251001") == PRICES["claude-haiku-4-5"]
    assert price_of("claude-9") is None
    assert dollars(PRICES["claude-opus-5"], TokenUsage(written=1_000_000, written_hour=1_000_000)) == 16.25


def test_what_whoever_counts_raises_is_its_own(at: Any, subject: ProblemDescription) -> None:
    ask, state = asked()

    def full(_: Spend) -> None:
        raise ValueError("no space left")

    with pytest.raises(ValueError, match="no space left"):
        proposer(at(says(block(BETTER))), subject).propose(ask, state, full)

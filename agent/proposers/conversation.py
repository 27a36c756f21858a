"""This module has a model as a proposer: one conversation for each call, with tools, over any service.

What stays the same stands first and is marked for the service's cache: tools, guide and game; the problem;
and the conversation so far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from ucutlass.agent.budget import Budget, Spend, exhausted
from ucutlass.agent.dialogue import WRITERS
from ucutlass.agent.proposer import Answer, Measure, OnSpend, ProposerFailed
from ucutlass.agent.proposers import answer, prompt, triage
from ucutlass.agent.proposers.prices import Price, dollars, price_of, undated
from ucutlass.agent.proposers.problem_facts import ProblemDescription
from ucutlass.agent.proposers.quoting import bounded, plain, quoted
from ucutlass.agent.proposers.service import MessageService, ModelReply, Request, TokenUsage
from ucutlass.agent.proposers.tools import Tool, ToolFailed, toolbox
from ucutlass.agent.session import Ask, ProposedProgram, SessionState
from ucutlass.agent.source_files import CandidateFiles

Effort: TypeAlias = Literal["low", "medium", "high", "xhigh", "max"]
Thinking: TypeAlias = Literal["default", "adaptive", "off"] | int

DEFAULT_MODEL = "claude-opus-5-5"


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Says which model is asked, and how it works. `effort` None and `thinking` "default" leave it to the
    model; a number of tokens is a thinking budget, for models that take one. `most_tokens` bounds one
    message, thinking included, `turns` the messages of one call that end in tools. `hour`: cached for an hour
    instead of five minutes, for attempts that take longer. `price` stands for the table's."""

    model: str = DEFAULT_MODEL
    effort: Effort | None = None
    thinking: Thinking = "default"
    most_tokens: int = 32_000
    turns: int = 10
    hour: bool = False
    price: Price | None = None


MOST_CALLS = 8
"""Tools called by one message; further calls are answered with words."""


@dataclass(slots=True)
class ModelProposer:
    """Proposes what a model answers (`ucutlass.agent.proposer.Proposer`)."""

    subject: ProblemDescription
    service: MessageService
    chosen: ModelSettings = field(default_factory=ModelSettings)
    tools: tuple[Tool, ...] = ()
    files: CandidateFiles | None = None

    def measuring(self, measure: Measure) -> ModelProposer:
        """Returns the proposer with a tool that measures programs, beside those of the compiler."""
        return replace(self, tools=toolbox(self.subject, measure, self.files))

    def writing_source(self, files: CandidateFiles) -> ModelProposer:
        """Returns the proposer for a session at source level, with tools that search headers."""
        return replace(self, files=files, tools=toolbox(self.subject, files=files))

    def propose(self, ask: Ask, state: SessionState, on_spend: OnSpend) -> Answer:
        """Raises ProposerFailed; what was spent until then was told."""
        if ask.role == "triage":
            return triage.triage_answer(state)
        meter = UsageMeter(self.chosen, state, on_spend)
        turn = prompt.turn(ask, state, self.subject, self.files)
        reply = self._talk([_user([_text(turn)])], meter)
        spend = Spend(seconds=meter.seconds)
        if ask.role not in WRITERS:
            note = answer.note(reply.text)
            messages = meter.messages if note else [*meter.messages, "the model answered nothing"]
            return Answer(note=note, spend=spend, messages=tuple(messages))
        parent = state.tree[ask.pick.parent]
        file = None if self.files is None else self.files.of(parent)
        programs = answer.programs(reply.text, parent.text, file)
        if reply.stop == "max_tokens" and not programs:
            words = f"the answer was cut off at {self.chosen.most_tokens} tokens and held no program"
            programs = (ProposedProgram("", words),)
        note = answer.prose(reply.text) if ask.role == "phases" else ""
        return Answer(programs, note, spend, messages=tuple(meter.messages))

    def _talk(self, messages: list[dict[str, Any]], meter: UsageMeter) -> ModelReply:
        """Returns the last reply, which asks for no tool."""
        turns, last = 0, self.chosen.turns < 1
        while True:
            reply = meter.metered(self.service, self._request(messages, last))
            match reply.stop:
                case "end_turn" | "stop_sequence":
                    return reply
                case "max_tokens":
                    meter.messages.append(f"the answer was cut off at {self.chosen.most_tokens} tokens")
                    return reply
                case "tool_use" if not last:
                    turns += 1
                    last = turns >= self.chosen.turns or meter.short()
                    messages.append({"role": "assistant", "content": list(reply.content)})
                    messages.append(_user(self._called(reply, last)))
                case _:
                    raise _stopped(reply, turns)

    def _request(self, messages: Sequence[Mapping[str, Any]], last: bool) -> Request:
        cache_control: dict[str, Any] = {"type": "ephemeral", **({"ttl": "1h"} if self.chosen.hour else {})}
        system = [prompt.prefix(self.files is not None), prompt.problem(self.subject)]
        request: dict[str, Any] = {
            "model": self.chosen.model,
            "max_tokens": self.chosen.most_tokens,
            "system": [{**_text(text), "cache_control": cache_control} for text in system],
            # Without tools a conversation has one turn, and nothing to find in a cache.
            "messages": _marked(messages, cache_control) if self.tools else list(messages),
        }
        if self.tools:
            request["tools"] = [_offered(t) for t in self.tools]
            request |= {"tool_choice": {"type": "none"}} if last else {}
        if self.chosen.effort is not None:
            request["output_config"] = {"effort": self.chosen.effort}
        match self.chosen.thinking:
            case "default":
                pass
            case "adaptive":
                request["thinking"] = {"type": "adaptive"}
            case "off":
                request["thinking"] = {"type": "disabled"}
            case int() as tokens:
                request["thinking"] = {"type": "enabled", "budget_tokens": tokens}
        return request

    def _called(self, reply: ModelReply, last: bool) -> list[dict[str, Any]]:
        """Returns what the tools said, an answer for each call; `last`: and that there will be no other."""
        calls = [b for b in reply.content if b.get("type") == "tool_use"]
        results = [self._result(call, number) for number, call in enumerate(calls)]
        if last:
            results.append(_text("That was the last call of tools: give your answer now."))
        return results

    def _result(self, call: Mapping[str, Any], number: int) -> dict[str, Any]:
        name = str(call.get("name"))
        tool = next((t for t in self.tools if t.name == name), None)
        try:
            if tool is None:
                raise ToolFailed("there is no such tool")
            if number >= MOST_CALLS:
                raise ToolFailed(f"at most {MOST_CALLS} calls are carried out at a time")
            text, wrong = tool.call(call.get("input") or {}), False
        except ToolFailed as failure:
            text, wrong = str(failure), True
        what = f"output of {tool.name}" if tool is not None else "output of no tool"
        result = {
            "type": "tool_result",
            "tool_use_id": str(call.get("id")),
            "content": [_text(quoted(what, text))],
        }
        return {**result, "is_error": True} if wrong else result


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _user(content: list[dict[str, Any]]) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _offered(tool: Tool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.says, "input_schema": dict(tool.schema)}


def _marked(messages: Sequence[Mapping[str, Any]], cache_control: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the messages with the ends of the last two user messages marked for the cache: what the service
    wrote at the first it finds again at the second. With the prefix's two that is all that the API takes."""
    ends = [i for i, m in enumerate(messages) if m["role"] == "user"][-2:]
    marked: list[dict[str, Any]] = []
    for at, message in enumerate(messages):
        content = list(message["content"])
        if at in ends:
            content[-1] = {**content[-1], "cache_control": cache_control}
        marked.append({**message, "content": content})
    return marked


def _stopped(reply: ModelReply, turns: int) -> ProposerFailed:
    detail = f" ({bounded(plain(reply.detail), 300)})" if reply.detail else ""
    match reply.stop:
        case "refusal":
            return ProposerFailed(
                f"{reply.model} refused to answer{detail}",
                "look at what the problem's text says, or choose another model",
            )
        case "model_context_window_exceeded":
            return ProposerFailed(
                f"the conversation is longer than {reply.model} can read{detail}",
                "choose a model with a larger window, or fewer turns with tools",
            )
        case "tool_use":
            return ProposerFailed(
                f"{reply.model} went on calling tools after {turns} turns with them", "allow more turns"
            )
        case other:
            return ProposerFailed(
                f"{reply.model} stopped for {plain(other)[:60]!r}, which is not known here{detail}",
                "update ucutlass, or choose another model",
            )


# --- what it costs ---------------------------------------------------------------


class UsageMeter:
    """Turns usage into spend as it becomes known, and keeps what is to be said of a call."""

    def __init__(self, chosen: ModelSettings, state: SessionState, on_spend: OnSpend) -> None:
        self.messages: list[str] = []
        self.seconds = 0.0
        self._chosen = chosen
        self._on_spend = on_spend
        self._price = chosen.price or price_of(chosen.model)
        self._state = state
        self._of_request = TokenUsage()
        self._paid = 0.0
        if self._price is None:
            self._unpriced(chosen.model)

    def metered(self, service: MessageService, request: Request) -> ModelReply:
        self._of_request, self._paid = TokenUsage(), 0.0
        reply = service.send(request, self._record_usage)
        self.seconds += reply.seconds
        self.messages += reply.said
        return reply

    def short(self) -> bool:
        """Returns whether tokens or dollars are spent, which the session knows as they are told."""
        budget = self._state.settings.budget
        mine = Budget(None, tokens=budget.tokens, dollars=budget.dollars)
        return exhausted(mine, self._state.spend) is not None

    def _record_usage(self, model: str, usage: TokenUsage) -> None:
        """Spend is told before anything else can go wrong."""
        other = undated(model) != undated(self._chosen.model)
        if other:
            self._price = self._chosen.price or price_of(model)
        if usage.prompt:  # a stream begins, perhaps the second try of a request
            self._of_request, self._paid = TokenUsage(), 0.0
        self._of_request += usage
        total = self._paid if self._price is None else dollars(self._price, self._of_request)
        paid, self._paid = max(0.0, total - self._paid), max(total, self._paid)
        written = usage.written + usage.written_hour
        self._on_spend(Spend(0, usage.input, usage.cached, written, usage.output, paid))
        words = f"{self._chosen.model} was asked and {model} answered"
        if other and words not in self.messages:
            self.messages.append(words)
            if self._price is None:
                self._unpriced(model)

    def _unpriced(self, model: str) -> None:
        words = f"no price of {model} is known: dollars are not counted, tokens are"
        if self._state.settings.budget.dollars is not None:
            raise ProposerFailed(words, "give its price, or a budget in tokens instead of dollars")
        self.messages.append(words)

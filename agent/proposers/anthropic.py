"""This module calls the Messages API through the official SDK.

The SDK is imported when a service is opened. It retries nothing: what is tried again, how often, and that it
was, is decided and said here. Only what may pass is tried again: 429, 5xx, an overload, a time-out (408 too)
or a lost connection before the answer began. An answer that breaks off may have cost what nobody knows, so
it ends the call.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from ucutlass.agent.proposer import ProposerFailed
from ucutlass.agent.proposers.quoting import bounded, plain
from ucutlass.agent.proposers.service import ModelReply, OnUsage, Request, TokenUsage

if TYPE_CHECKING:
    from anthropic import Anthropic

KEY = "ANTHROPIC_API_KEY"

TRIES = 5
TIMEOUT = 600.0
"""Seconds without a byte of an answer; a model that thinks sends pings."""

WHOLE = 3600.0
"""Seconds in which an answer ends, pings or not: the longest that a model writes takes some 40 minutes."""

CONNECT = 10.0
"""Seconds until a connection stands."""

LONGEST_WAIT = 120.0
"""Seconds between two tries; a service that asks for a longer wait ends the call."""

MOST_ANSWER = 4_000_000
"""Characters of a message, thinking and calls of tools included: some eight times what any model writes."""


def open_service(
    key: str | None = None,
    *,
    base_url: str | None = None,
    tries: int = TRIES,
    timeout: float = TIMEOUT,
    whole: float = WHOLE,
    sleep: Callable[[float], None] = time.sleep,
) -> AnthropicService:
    """Returns the service with this key, or the one in ANTHROPIC_API_KEY; nothing else is looked for. `timeout` bounds
    the seconds without a byte, `whole` those of an answer. Raises ProposerFailed without a key or the SDK."""
    sdk = _sdk()
    api_key = key or os.environ.get(KEY, "")
    if not api_key.strip():
        raise ProposerFailed(
            f"there is no API key: {KEY} is not set", f"set {KEY}, or use --proposer rules, which needs none"
        )
    from ucutlass.agent.proposers.answer_limits import bounds_answers

    if not re.fullmatch(r"[!-~]+", api_key.strip()) or api_key.strip()[0] in "'\"":
        # The HTTP client would refuse it as a header, and print it.
        raise ProposerFailed(
            "the API key holds a quote, a blank, a line break or another character that no key has",
            f"set {KEY} to the key alone, as the service shows it",
        )
    limits = sdk.Timeout(timeout, connect=min(timeout, CONNECT))
    http = sdk.DefaultHttpxClient(event_hooks={"response": [bounds_answers(whole)]})
    client = sdk.Anthropic(
        api_key=api_key.strip(), base_url=base_url, max_retries=0, timeout=limits, http_client=http
    )
    return AnthropicService(sdk, client, tries, sleep)


def _sdk() -> ModuleType:
    try:
        import anthropic
    except ImportError as missing:
        raise ProposerFailed(
            f"the Anthropic SDK cannot be imported ({missing})", "pip install 'ucutlass[agent]'"
        ) from None
    return anthropic


class _Again(Exception):
    """Raised for a try that failed and may be repeated; `wait` is how many seconds the service asked for."""

    def __init__(self, words: str, wait: float | None = None) -> None:
        super().__init__(words)
        self.words = words
        self.wait = wait


@dataclass(slots=True)
class AnthropicService:
    """`sleep` waits between tries."""

    sdk: ModuleType
    client: Anthropic
    tries: int = TRIES
    sleep: Callable[[float], None] = time.sleep
    chance: random.Random = field(default_factory=random.Random)

    def send(self, request: Request, on_usage: OnUsage) -> ModelReply:
        """Raises ProposerFailed."""
        retries: list[str] = []
        cause: BaseException | None = None
        for number in range(1, self.tries + 1):
            try:
                reply = _Stream(self.sdk, on_usage).read(self.client, request)
            except _Again as again:
                cause = again.__cause__
                retries.append(f"try {number} of {self.tries}: {again.words}")
                if number < self.tries:
                    self.sleep(self._wait(number, again, retries))
                continue
            return ModelReply(
                reply.content,
                reply.stop,
                reply.model,
                reply.usage,
                reply.seconds,
                reply.detail,
                tuple(retries),
            )
        raise ProposerFailed(
            f"the Messages API gave no answer: {'; '.join(retries)}", "resume the session later"
        ) from cause

    def _wait(self, number: int, again: _Again, retries: list[str]) -> float:
        """Returns seconds until the next try: what the service asks for, else twice as long each time, less a
        random quarter so that many clients do not come back at once."""
        if again.wait is None:
            return float(min(LONGEST_WAIT, 2.0 ** (number - 1)) * self.chance.uniform(0.75, 1.0))
        if again.wait > LONGEST_WAIT:
            raise ProposerFailed(
                f"the Messages API asks to wait {again.wait:.0f} s: {'; '.join(retries)}",
                "resume the session then",
            )
        return again.wait


# --- one stream ------------------------------------------------------------------


class _Stream:
    """Is one try: it reads a message as it comes and tells usage as the API counts it."""

    def __init__(self, sdk: ModuleType, on_usage: OnUsage) -> None:
        self._sdk = sdk
        self._on_usage = on_usage
        self._usage = TokenUsage()
        self._model = ""
        self._ended = False
        self._size = 0
        self._whole: _FinalMessage | None = None

    def read(self, client: Anthropic, request: Request) -> ModelReply:
        """Raises ProposerFailed and _Again."""
        started = time.monotonic()
        with closing(self._events(client, request)) as events:
            for event in events:
                self._take(event)
        if self._whole is None:
            raise self._broken("it ended before the message did")
        content, stop, detail = self._whole
        return ModelReply(content, stop, self._model, self._usage, time.monotonic() - started, detail)

    def _events(self, client: Anthropic, request: Request) -> Generator[Any, None, None]:
        """Yields the stream's events. What the SDK raises is told apart here, so that nothing which is raised
        by whoever is told of usage can be taken for a fault of the stream."""
        try:
            with client.messages.stream(**request) as stream:
                yield from stream
                if self._ended:
                    self._whole = _final_message(stream.get_final_message())
        except self._sdk.APIStatusError as error:
            raise self._refused(error, request) from error
        except (self._sdk.APIConnectionError, _transport()) as error:
            # The SDK wraps what fails before a response has come, and leaves the rest as it is.
            if self._model:
                raise self._broken(_words(error)) from error
            raise _Again(_words(error)) from error
        except self._sdk.AnthropicError as error:
            raise ProposerFailed(f"the Anthropic SDK failed: {_words(error)}", "update the SDK") from error
        except _GARBLED as error:
            raise self._broken(f"what came is no message: {_words(error)}") from error

    def _take(self, event: Any) -> None:
        match event.type:
            case "message_start":
                self._model = str(event.message.model)
                self._count(event.message.usage)
            case "message_delta":
                self._count(event.usage)
            case "message_stop":
                self._ended = True
            case "content_block_delta":
                self._grow(event.delta)

    def _grow(self, delta: Any) -> None:
        parts = (getattr(delta, name, None) for name in ("text", "thinking", "partial_json"))
        self._size += sum(len(p) for p in parts if isinstance(p, str))
        if self._size > MOST_ANSWER:
            raise self._broken(f"it has more than {MOST_ANSWER} characters")

    def _count(self, usage: Any) -> None:
        """The API's numbers are of the whole message so far; what is new of them is told."""
        now = _usage(usage, self._usage)
        new = now.beyond(self._usage)
        self._usage += new
        if new != TokenUsage():
            self._on_usage(self._model, new)

    def _broken(self, why: str) -> ProposerFailed:
        counted = f"{self._usage.output} tokens of it were counted" if self._model else "nothing was counted"
        return ProposerFailed(f"the answer broke off: {why} ({counted})", "resume the session to ask again")

    def _refused(self, error: Any, request: Request) -> Exception:
        """Returns what to do about an error status; within a stream it comes as an event, and is its
        `type`."""
        kind, status = str(error.type or ""), int(error.status_code)
        if kind in _AGAIN or (kind not in _REMEDIES and (status in (408, 429) or status >= 500)):
            return _Again(f"{_name(kind, status)}: {_words(error)}", _asked_wait(error))
        remedy = _REMEDIES.get(kind) or _REMEDIES.get(str(status)) or "see the service's words"
        model = request["model"]
        what = f"the model {model} is not known" if kind == "not_found_error" else "the Messages API refused"
        return ProposerFailed(f"{what}: {_name(kind, status)}: {_words(error)}", remedy)


_AGAIN = frozenset({"rate_limit_error", "overloaded_error", "api_error", "timeout_error"})

_REMEDIES: Mapping[str, str] = MappingProxyType(
    {
        "authentication_error": f"set {KEY} to a key that is valid",
        "permission_error": "use a key that may use this model",
        "billing_error": "see to the account's billing",
        "not_found_error": "name a model that the service has, with --model",
        "request_too_large": "shorten the problem's text",
        "invalid_request_error": "choose a model, effort and thinking that go together",
        "401": f"set {KEY} to a key that is valid",
        "402": "see to the account's billing",
        "403": "use a key that may use this model",
        "404": "name a model that the service has, with --model",
        "413": "shorten the problem's text",
    }
)
"""What helps, by the error's type, or by its status where it has none."""


_GARBLED = (ValueError, RuntimeError, TypeError, LookupError, AttributeError, AssertionError)
"""What the SDK raises over events that make no message: it builds them without looking."""

_FinalMessage: TypeAlias = tuple[tuple[Mapping[str, Any], ...], str, str]


def _final_message(message: Any) -> _FinalMessage:
    """Returns a message's blocks, why it stopped, and the service's words about that."""
    details = message.stop_details
    detail = "" if details is None else f"{details.category or ''} {details.explanation or ''}".strip()
    return tuple(b.to_dict(mode="json") for b in message.content), str(message.stop_reason), detail


def _transport() -> type[Exception]:
    """Returns the base of what the SDK's HTTP client raises while a body is read."""
    import httpx2

    return httpx2.HTTPError


def _name(kind: str, status: int) -> str:
    return f"{status} {kind}".strip() if status != 200 else kind


def _words(error: Any) -> str:
    message = getattr(error, "api_message", None) or str(error) or type(error).__name__
    return bounded(" ".join(plain(str(message)).split()), 300)


def _asked_wait(error: Any) -> float | None:
    try:
        seconds = float(error.response.headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def _usage(usage: Any, before: TokenUsage) -> TokenUsage:
    """Returns an API's usage; what it leaves out is as it was."""
    written = _number(usage, "cache_creation_input_tokens", before.written + before.written_hour)
    hour = _number(getattr(usage, "cache_creation", None), "ephemeral_1h_input_tokens", before.written_hour)
    return TokenUsage(
        _number(usage, "input_tokens", before.input),
        _number(usage, "cache_read_input_tokens", before.cached),
        max(0, written - hour),
        hour,
        _number(usage, "output_tokens", before.output),
    )


def _number(value: Any, name: str, otherwise: int) -> int:
    count = getattr(value, name, None)
    return count if isinstance(count, int) and count >= 0 else otherwise

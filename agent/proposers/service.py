"""This module has the protocol of what answers requests, an API or a record of one; requests and replies are
the Messages API's JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol, TypeAlias

Request: TypeAlias = Mapping[str, Any]
"""The keyword arguments of `client.messages.stream`."""


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Counts tokens as the API does: sent anew, read from its cache, written to it for five minutes or for an
    hour, and answered."""

    input: int = 0
    cached: int = 0
    written: int = 0
    written_hour: int = 0
    output: int = 0

    def __add__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(TokenUsage)))

    def beyond(self, other: TokenUsage) -> TokenUsage:
        """Returns what this has more than the other."""
        return TokenUsage(
            *(max(0, getattr(self, f.name) - getattr(other, f.name)) for f in fields(TokenUsage))
        )

    @property
    def prompt(self) -> int:
        """Returns all that was sent, wherever it was read from."""
        return self.input + self.cached + self.written + self.written_hour


OnUsage: TypeAlias = Callable[[str, TokenUsage], None]
"""Told of tokens as soon as they are known, each once, with the model that answers."""


@dataclass(frozen=True, slots=True)
class ModelReply:
    """Describes a message, complete. `content` are its blocks as they must be sent back, `stop` why it ended,
    `detail` the service's words about that. `seconds` from sending to its end, waits between tries not
    counted. `said`: what was tried before."""

    content: tuple[Mapping[str, Any], ...]
    stop: str
    model: str
    usage: TokenUsage
    seconds: float = 0.0
    detail: str = ""
    said: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return "\n".join(str(b.get("text", "")) for b in self.content if b.get("type") == "text")


class MessageService(Protocol):
    """Raises `ucutlass.agent.proposer.ProposerFailed`. What was spent is told first."""

    def send(self, request: Request, on_usage: OnUsage) -> ModelReply: ...


def reply_to_json(reply: ModelReply) -> dict[str, Any]:
    return asdict(reply)


def reply_of_json(value: Mapping[str, Any]) -> ModelReply:
    """Raises TypeError, KeyError for what is no reply."""
    held = {**value, "usage": TokenUsage(**value["usage"])}
    return ModelReply(**{**held, "content": tuple(held["content"]), "said": tuple(held["said"])})

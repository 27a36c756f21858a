"""This module asks the Messages API one cheap question, and says what is wrong: the SDK, the key, the model, the
network, the account or the service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from ucutlass.agent.proposer import ProposerFailed
from ucutlass.agent.proposers.anthropic import KEY, AnthropicService, open_service
from ucutlass.agent.proposers.prices import dollars, price_of
from ucutlass.agent.proposers.quoting import bounded, plain
from ucutlass.agent.proposers.service import Request, TokenUsage

ApiFault: TypeAlias = Literal["", "key", "model", "network", "account", "service"]
"""What is wrong; `key` also where the SDK that would send it is missing."""

SECONDS = 20.0
"""Without a byte of the answer."""

WHOLE_SECONDS = 60.0
"""Until one token's answer has ended."""

_FAULTS: Mapping[str, tuple[ApiFault, str]] = MappingProxyType(
    {
        "authentication_error": ("key", f"set {KEY} to a key that is valid"),
        "401": ("key", f"set {KEY} to a key that is valid"),
        "permission_error": ("key", "use a key that may use this model"),
        "403": ("key", "use a key that may use this model"),
        "not_found_error": ("model", "name a model that the service has, with --model"),
        "404": ("model", "name a model that the service has, with --model; or ANTHROPIC_BASE_URL is wrong"),
        "billing_error": ("account", "see to the account's billing"),
        "402": ("account", "see to the account's billing"),
        "rate_limit_error": ("account", "wait, or raise the account's limits"),
        "429": ("account", "wait, or raise the account's limits"),
    }
)
"""What helps, by the error's type, or by its status where it has none."""


@dataclass(frozen=True, slots=True)
class ApiReport:
    """What came of one question. `words` say what is wrong, `fix` what helps; both are empty where all is well.
    `dollars` is None for a model without a known price."""

    fault: ApiFault
    words: str
    fix: str
    model: str
    host: str = ""
    seconds: float = 0.0
    tokens: int = 0
    dollars: float | None = None


def check_api(
    model: str,
    *,
    key: str | None = None,
    base_url: str | None = None,
    timeout: float = SECONDS,
    whole: float = WHOLE_SECONDS,
) -> ApiReport:
    """Asks a model for one token. The key is in none of the report's words."""
    try:
        service = open_service(key, base_url=base_url, tries=1, timeout=timeout, whole=whole)
    except ProposerFailed as failure:
        return ApiReport("key", failure.what, failure.fix, model)
    host = urlsplit(str(service.client.base_url)).hostname or ""
    usage = TokenUsage()

    def on_usage(_: str, new: TokenUsage) -> None:
        nonlocal usage
        usage += new

    try:
        reply = service.send(_question(model), on_usage)
    except ProposerFailed as failure:
        fault, words, fix = _diagnosed(failure, service, host)
        return ApiReport(fault, words, fix, model, host)
    price = price_of(reply.model)
    paid = None if price is None else dollars(price, usage)
    return ApiReport("", "", "", reply.model, host, reply.seconds, usage.prompt + usage.output, paid)


def _question(model: str) -> Request:
    text = {"type": "text", "text": "Answer with one word."}
    return {"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": [text]}]}


def _diagnosed(failure: ProposerFailed, service: AnthropicService, host: str) -> tuple[ApiFault, str, str]:
    """Returns the fault, what the service or the network said of it, and what helps."""
    causes = list(_causes(failure))
    for cause in causes:
        if isinstance(cause, service.sdk.APIStatusError):
            kind, status = str(cause.type or ""), str(cause.status_code)
            fault, fix = _FAULTS.get(kind) or _FAULTS.get(status) or ("service", "try again later")
            message = getattr(cause, "api_message", None) or str(cause)
            return fault, _public(f"{host} answered {status} {kind}: {message}", service), fix
    words = _public(f"{host} gave no answer: {causes[-1] if causes[1:] else failure.what}", service)
    if isinstance(causes[1] if causes[1:] else None, service.sdk.APIConnectionError):
        return "network", words, "look at the connection, HTTPS_PROXY and ANTHROPIC_BASE_URL"
    return "service", words, "try again later; see whether a proxy answers in the service's place"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _public(words: str, service: AnthropicService) -> str:
    """Returns words on one line, without the key, which a service or a proxy may repeat."""
    key = service.client.api_key or ""
    return bounded(" ".join(plain(words).split()).replace(key, "[the key]"), 400)

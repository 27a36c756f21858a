"""This module has the prices of tokens: one table, dated. A model that is not in it costs an unknown sum,
never nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ucutlass.agent.proposers.service import TokenUsage

SOURCE = (
    "platform.claude.com/docs/en/about-claude/pricing and the models' overview pages, stored copies read on "
    "2026-11-22; Haiku 5.5's bands and Sonnet 5.5's cache reads as changed on 2026-10-07"
)


@dataclass(frozen=True, slots=True)
class Price:
    """Holds dollars for a million tokens: sent anew, read from the cache, written to it for five minutes and
    for an hour, answered. Where a prompt has more than `above` tokens, `long` holds for all of the
    request."""

    input: float
    cached: float
    written: float
    written_hour: float
    output: float
    above: int | None = None
    long: Price | None = None


def _price(
    input: float, output: float, cached: float, above: int | None = None, long: Price | None = None
) -> Price:
    """Writing costs 1.25 and 2 times the input with every model of the table."""
    return Price(input, cached, 1.25 * input, 2 * input, output, above, long)


PRICES: Mapping[str, Price] = MappingProxyType(
    {
        "claude-fable-5-1": _price(10, 50, 0.25),
        "claude-mythos-5-1": _price(10, 50, 0.25),
        "claude-fable-5": _price(10, 50, 1.0),
        "claude-mythos-5": _price(10, 50, 1.0),
        "claude-opus-5-5": _price(4, 20, 0.20),
        "claude-opus-5": _price(5, 25, 0.50),
        "claude-opus-4-8": _price(5, 25, 0.50),
        "claude-opus-4-7": _price(5, 25, 0.50),
        "claude-opus-4-6": _price(5, 25, 0.50),
        "claude-opus-4-5": _price(5, 25, 0.50),
        "claude-sonnet-5-5": _price(2, 10, 0.10),
        "claude-sonnet-5": _price(2, 10, 0.20),
        "claude-sonnet-4-6": _price(3, 15, 0.30),
        "claude-sonnet-4-5": _price(3, 15, 0.30),
        "claude-haiku-5-5": _price(0.10, 0.50, 0.01, 100_000, _price(0.50, 2.50, 0.05)),
        "claude-haiku-4-5": _price(1, 5, 0.10),
    }
)


def undated(model: str) -> str:
    """Returns the name without the day of its release, which some models' ids end in."""
    return re.sub(r"-20\d{6}$", "", model)


def price_of(model: str) -> Price | None:
    return PRICES.get(undated(model))


def dollars(price: Price, usage: TokenUsage) -> float:
    """Returns the dollars of one request; `usage` is all of it, for prices that depend on the prompt's
    length."""
    if price.above is not None and price.long is not None and usage.prompt > price.above:
        return dollars(price.long, usage)
    return (
        usage.input * price.input
        + usage.cached * price.cached
        + usage.written * price.written
        + usage.written_hour * price.written_hour
        + usage.output * price.output
    ) / 1e6

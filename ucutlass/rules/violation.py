"""A broken rule: which, with which numbers, and what would be legal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ucutlass.rules.candidate import Candidate, request_of
from ucutlass.schedule import FIELDS, Family, Request


@dataclass(frozen=True, slots=True)
class Violation:
    """`message` says what happened with the numbers, `hint` what would be legal, `nearest` is
    the request changed in the fields that break this rule; None where no schedule can mend it.
    `fields` are the schedule fields to blame, most telling first."""

    code: str
    message: str
    hint: str
    fields: tuple[str, ...]
    nearest: Request | None


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule's verdict before it is given the rule's code."""

    message: str
    hint: str
    fields: tuple[str, ...]
    nearest: Request | None


Check: TypeAlias = Callable[[Candidate], Finding | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """A legality rule. `text` is the guide's line, `source` where the rule comes from."""

    code: str
    title: str
    families: frozenset[Family]
    text: str
    source: str
    check: Check


def unscheduled(request: Request, why: str, hint: str) -> Violation | None:
    """UC0439 for a family that takes no schedule fields, where some are given; `why` follows their names."""
    given = request.given()
    if not given:
        return None
    names = ", ".join(f"`{name}`" for name in given)
    return Violation("UC0439", f"{names}: {why}", hint, tuple(given), None)


def changed(candidate: Candidate, **fields: Any) -> Request:
    """The candidate's request with these fields changed."""
    return replace(request_of(candidate), **fields)


def on_family(candidate: Candidate, warps: str) -> Request:
    """The candidate moved to another kernel family: that family's fields only, left to `auto`."""
    shared = {
        name: value
        for name, value in request_of(candidate).given().items()
        if name in ("swap", "raster", "swizzle") and warps != "gemv" and name in FIELDS
    }
    return replace(Request(), **{**shared, "warps": warps})  # type: ignore[arg-type]


def multistage(candidate: Candidate) -> Request:
    """What sm90 cannot do, the multistage kernel can."""
    return on_family(candidate, "multistage")


def nearest(value: int, legal: tuple[int, ...]) -> int:
    """The legal value closest to the given one; the smaller of two."""
    return min(legal, key=lambda v: (abs(v - value), v))

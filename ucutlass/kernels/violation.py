"""A broken rule: which, with which numbers, and what would be legal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from ucutlass.ir.schedule import FIELDS, WORDS, Family, Request, served, show_value, without
from ucutlass.kernels.gemm.candidate import Candidate, request_of


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


C = TypeVar("C")


def found_by(
    rules: Sequence[tuple[str, Callable[[C], Finding | None]]], candidate: C
) -> tuple[Violation, ...]:
    """What a family's own rules, by code, find wrong with its candidate."""
    found = ((code, check(candidate)) for code, check in rules)
    return tuple(
        Violation(code, f.message, f.hint, f.fields, f.nearest) for code, f in found if f is not None
    )


def foreign_to(request: Request, among: Sequence[Family], what: str) -> Violation | None:
    """UC0439 for a request that none of a form's kernels keeps: for fields that none of them has, for a
    word of `warps` that means none of them, or for fields that no one of them has together. `what` names
    the form with its article."""
    if served(request, among):
        return None
    given = request.given()
    words = tuple(dict.fromkeys(w for family in among for w in WORDS[family]))
    of_kernel = tuple(f for f in among if request.warps in WORDS[f]) or tuple(among)
    foreign = [n for n in given if not any(f in FIELDS[n].families for f in of_kernel)]
    if request.warps is not None and request.warps not in words and "warps" not in foreign:
        foreign = ["warps"]
    foreign = foreign or list(given)
    names = ", ".join(f"`{name} {show_value(given[name])}`" for name in foreign)
    kept = [n for n, field in FIELDS.items() if any(f in field.families for f in among)]
    beside = f" runs as {' or '.join(f'`{w}`' for w in words)}, and" if words else ""
    return Violation(
        "UC0439",
        f"{names}: {what}{beside} has the fields {' '.join(kept)}",
        f"leave {' and '.join(f'`{name}`' for name in foreign)} out",
        tuple(foreign),
        without(request, *foreign),
    )


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

"""A broken rule: which, with which numbers, and what would be legal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ucutlass.ir.schedule import FIELDS, PartialSchedule, show_value, without
from ucutlass.kernels.variant import Variant, served


@dataclass(frozen=True, slots=True)
class Violation:
    """`message` says what happened with the numbers, `hint` what would be legal, `nearest` is
    the request changed in the fields that break this rule; None where no schedule can fix it.
    `fields` are the schedule fields to blame, most telling first."""

    code: str
    message: str
    hint: str
    fields: tuple[str, ...]
    nearest: PartialSchedule | None


def foreign_to(request: PartialSchedule, among: Sequence[Variant], what: str) -> Violation | None:
    """UC0439 for a request that none of a pattern's kernels keeps: for fields that none of them has, for a
    word of `warps` that means none of them, or for fields that no one of them has together. `what` names
    the pattern with its article."""
    if served(request, among):
        return None
    fixed = request.fixed()
    words = tuple(dict.fromkeys(w for variant in among for w in variant.words))
    of_kernel = tuple(v for v in among if request.warps in v.words) or tuple(among)
    foreign = [n for n in fixed if not any(n in v.fields for v in of_kernel)]
    if request.warps is not None and request.warps not in words and "warps" not in foreign:
        foreign = ["warps"]
    foreign = foreign or list(fixed)
    names = ", ".join(f"`{name} {show_value(fixed[name])}`" for name in foreign)
    fields = [n for n in FIELDS if any(n in v.fields for v in among)]
    beside = f" runs as {' or '.join(f'`{w}`' for w in words)}, and" if words else ""
    return Violation(
        "UC0439",
        f"{names}: {what}{beside} has the fields {' '.join(fields)}",
        f"leave {' and '.join(f'`{name}`' for name in foreign)} out",
        tuple(foreign),
        without(request, *foreign),
    )

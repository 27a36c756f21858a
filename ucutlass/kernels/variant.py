"""The kernels of a family: which words of `warps` choose each, and which fields of a schedule each has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ucutlass.ir.schedule import PartialSchedule, Warps


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel of a family. `words` are those of the field `warps` that mean it; `fields` are the names of
    the fields that its schedule has, in the order in which the guide lists them."""

    name: str
    words: tuple[Warps, ...]
    fields: tuple[str, ...]


def served(request: PartialSchedule, variants: Iterable[Variant]) -> tuple[Variant, ...]:
    """Returns those of some kernels that have every fixed field and are what `warps` means."""
    fields = request.fixed()
    return tuple(
        variant
        for variant in variants
        if (request.warps is None or request.warps in variant.words)
        and all(name in variant.fields for name in fields)
    )

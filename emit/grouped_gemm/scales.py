"""Scales of parts of K, as the templates of products read them."""

from __future__ import annotations

from dataclasses import dataclass

from ucutlass.emit.gemm.sm90_epilogue import extent
from ucutlass.kernels.grouped_gemm.plan import Scale, Scaled


@dataclass(frozen=True, slots=True)
class ScaleSlot:
    """A scale of parts of K. `kind`: one for each "row" of a thread, one for a "tile", or one for each
    "column"; strides and the block that shares one are C++ of the entry."""

    name: str
    kind: str
    mode: str
    element: str
    pointer: int
    within: str
    stride: str
    group: str

    @property
    def at(self) -> str:
        """Its value in the loop over a thread's elements."""
        at = {"row": f"{self.name}[atom][i]", "column": f"{self.name}_column[e]"}
        return at.get(self.kind, self.name)


def _kind(scale: Scale) -> str:
    if scale.mode == "m":
        return "row"
    return "column" if scale.within == () and scale.stride is not None else "tile"


def factors_of(scaled: Scaled | None) -> tuple[tuple[ScaleSlot, ...], ...]:
    """A column's scale has a block of its own, else the plan's tile is within one block (its rule)."""
    names = (f"s{i}" for i in range(1000))
    return tuple(
        tuple(
            ScaleSlot(
                name=next(names),
                kind=_kind(s),
                mode=s.mode,
                element=s.elem.cpp,
                pointer=s.pointer,
                within=extent(s.within),
                stride="0" if s.stride is None else extent(s.stride),
                group="0" if s.group is None else extent(s.group),
            )
            for s in factor
        )
        for factor in (scaled.factors if scaled is not None else ())
    )

"""How a kernel cuts a program's dimensions: what the extents of a verification suite are made from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ucutlass.kernels.access import Product


@dataclass(frozen=True, slots=True)
class Granularity:
    """By the names of dimensions. `tile`: the extents of the kernel's tile, 1 where it has none; `step`: what
    extents must be multiples of; `depth`: summed extents that fill its pipeline, stages times the tile's.
    Names that are missing count as 1."""

    tile: Mapping[str, int]
    step: Mapping[str, int]
    depth: Mapping[str, int]


def steps(needs: Iterable[tuple[Product, int]]) -> dict[int, int]:
    """By dimension: the multiples that make every product of extents a multiple of its alignment.

    Alignments are powers of two. A product of several extents puts its factor on the innermost, unless
    another of its extents carries it already.
    """
    multiples: dict[int, int] = {}
    for product, align in sorted(needs, key=lambda need: len(need[0])):
        if not any(multiples.get(i, 1) % align == 0 for i in product):
            multiples[product[-1]] = max(multiples.get(product[-1], 1), align)
    return multiples

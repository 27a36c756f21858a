"""Every schedule that `ucc tune --free` looks at: a table of values a family, judged by the rules.

`stages` stays as many as fit: fewer were never seen to be faster, and the estimate cannot tell them
apart. Launch knobs are not here: they cost no build (`ucutlass.tune.space.variants`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from ucutlass.ir.schedule import Family, Request
from ucutlass.kernels.gemm.candidate import Candidate
from ucutlass.kernels.gemm.rules import legal
from ucutlass.kernels.gemm.rules.vector import ROWS, THREADS
from ucutlass.kernels.gemm.schedule import Case, build
from ucutlass.kernels.gemm.search import LINE

_SIDES: Mapping[Family, tuple[tuple[int, ...], tuple[int, ...]]] = MappingProxyType(
    {
        "sm90": ((64, 128, 192, 256), tuple(range(16, 257, 16))),
        "sm80": ((32, 64, 128, 256), (32, 64, 128, 256)),
    }
)
"""M and N of tiles."""

_DEPTHS: Mapping[Family, tuple[int, ...]] = MappingProxyType(
    {"sm90": (LINE, 2 * LINE), "sm80": (LINE // 2, LINE)}
)
"""Bytes of K in a tile."""

_FIELDS: Mapping[Family, Mapping[str, tuple[Any, ...]]] = MappingProxyType(
    {
        "sm90": {
            "warps": ("pingpong", "cooperative"),
            "cluster": ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4)),
            "split_k": (1, "stream"),
        },
        "sm80": {"warps": ("multistage",), "math": (None, "tf32x3", "simt")},
        "gemv": {"warps": ("gemv",), "rows": ROWS, "threads": THREADS},
    }
)


def everything(case: Case) -> Iterator[Candidate]:
    """Every legal candidate of the tables, in both orientations."""
    for family, table in _FIELDS.items():
        names = (*table, "swap", "tile")
        values = itertools.product(*table.values(), ("no", "yes"), _tiles(case, family))
        for chosen in values:
            candidate = build(case, Request(**dict(zip(names, chosen, strict=True))))
            if legal(candidate):
                yield candidate


def _tiles(case: Case, family: Family) -> tuple[tuple[int, int, int] | None, ...]:
    if family not in _SIDES:
        return (None,)
    item = case.written.problem.lane.bytes
    rows, columns = _SIDES[family]
    return tuple(itertools.product(rows, columns, (d // item for d in _DEPTHS[family])))

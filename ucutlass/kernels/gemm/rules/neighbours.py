"""The neighbours of a candidate that its rules propose: fields changed, or another kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ucutlass.ir.schedule import FIELDS, PartialSchedule
from ucutlass.kernels.gemm.candidate import Candidate, request_of


def changed(candidate: Candidate, **fields: Any) -> PartialSchedule:
    """The candidate's request with these fields changed."""
    return replace(request_of(candidate), **fields)


def on_family(candidate: Candidate, warps: str) -> PartialSchedule:
    """The candidate moved to another kernel family: that family's fields only, left to `auto`."""
    shared = {
        name: value
        for name, value in request_of(candidate).given().items()
        if name in ("swap", "raster", "swizzle") and warps != "gemv" and name in FIELDS
    }
    return replace(PartialSchedule(), **{**shared, "warps": warps})  # type: ignore[arg-type]


def multistage(candidate: Candidate) -> PartialSchedule:
    """What sm90 cannot do, the multistage kernel can."""
    return on_family(candidate, "multistage")


def nearest(value: int, legal: tuple[int, ...]) -> int:
    """The legal value closest to the given one; the smaller of two."""
    return min(legal, key=lambda v: (abs(v - value), v))

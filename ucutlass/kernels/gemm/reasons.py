"""Why the planner chose what a schedule left out, one sentence a field."""

from __future__ import annotations

from collections.abc import Iterator

from ucutlass.ir.schedule import PartialSchedule, differing, show_value
from ucutlass.kernels.gemm.candidate import Candidate, request_of
from ucutlass.kernels.gemm.plan import GemvSchedule, Sm80Schedule, Sm90Schedule
from ucutlass.kernels.gemm.rules import violations
from ucutlass.kernels.gemm.schedule import PlanningCase, build
from ucutlass.kernels.gemm.variants import variants_of
from ucutlass.kernels.planned import Estimate, Note


def reasons(case: PlanningCase, c: Candidate, price: Estimate, request: PartialSchedule) -> Iterator[Note]:
    """Notes for every field that the request left out, and for a family forced by a rule."""
    if c.arch.wgmma and c.family == "sm80":
        yield Note("", "multistage", _why_not_hopper(case, request))
    for name, value in differing(request, request_of(c)).items():
        if value is not None:
            yield Note(name, show_value(value), _reason(name, c, price, case))


def _why_not_hopper(case: PlanningCase, request: PartialSchedule) -> str:
    """The rule that keeps the TMA kernels away, with its numbers; or what else did."""
    depth = 128 // case.written.problem.lane.bytes
    broken = violations(build(case, PartialSchedule(warps="pingpong", tile=(64, 64, depth))))
    if broken:
        return f"the Hopper kernels cannot take this: {broken[0].message}"
    if "sm90" not in variants_of(request) or request.math == "simt":
        return "asked for"
    return "predicted to be faster than wgmma, for which a launch splits the operands first"


def _reason(name: str, c: Candidate, price: Estimate, case: PlanningCase) -> str:
    tiles = f"{price.tiles} tiles on {price.slots} slots of {case.device.name}, {price.waves:.2f} waves"
    texts = {
        "tile": f"{tiles}, {price.quantisation:.0%} busy, {price.padding:.0%} of the multiplications useful",
        "warps": _warps(c),
        "cluster": _cluster(c),
        "stages": "as many as fit in shared memory beside the epilogue, and no more than help",
        "split_k": _split(c, tiles),
        "swap": "N lies on the tile's M side" if c.swapped else "as written",
        "math": _math(c),
        "swizzle": "operands against L2; costs no build to change",
        "raster": "the scheduler takes the shorter side; costs no build to change",
        "warp_tile": "as many accumulators a thread as fit",
        "columns": f"N is {c.shape.n}",
        "rows": "so that every SM has blocks",
        "threads": f"share a K of {c.shape.k}",
    }
    return texts[name]


def _warps(c: Candidate) -> str:
    match c.schedule:
        case GemvSchedule():
            return f"N is {c.shape.n}: reading the matrix once is all the work"
        case Sm80Schedule():
            return "the kernel that takes every alignment and memory order"
        case Sm90Schedule(warps="pingpong"):
            return "one warp group's epilogue runs under the other's multiplications"
        case Sm90Schedule(scheduler="stream_k"):
            return "the kernel whose scheduler splits K"
        case _:
            return "two warp groups share a tile"


def _math(c: Candidate) -> str:
    if request_of(c).math == "simt":
        return "f32 in FFMA"
    before = "; a launch before the kernel's splits the operands" if c.family == "sm90" else ""
    return f"three tf32 passes keep f32 accuracy{before}"


def _cluster(c: Candidate) -> str:
    m, n = request_of(c).cluster or (1, 1)
    if m * n == 1:
        return "sharing loads would not pay here"
    return f"{m * n} neighbours share loads of {'B' if n == 1 else 'A' if m == 1 else 'A and B'} by multicast"


def _split(c: Candidate, tiles: str) -> str:
    if c.launch.splits == 1:
        return f"no split: {tiles}"
    return f"{tiles}, {c.k_tiles} steps of K each: splitting K fills the rest"

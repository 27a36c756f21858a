"""From a problem and a partial schedule to one legal kernel: fill in, price, choose.

Nothing here decides legality: every candidate is shown to `ucutlass.kernels.gemm.rules`, and the cheapest
one that breaks no rule is the plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, replace
from functools import lru_cache

from ucutlass.ir.hardware import Arch, Device, default_device
from ucutlass.ir.schedule import PartialSchedule, differing, show_value, without
from ucutlass.kernels.gemm import cost
from ucutlass.kernels.gemm.plan import GemmPlan, GemmProblem, GemvSchedule, Sm80Schedule, Sm90Schedule
from ucutlass.kernels.gemm.rules import legal, violations
from ucutlass.kernels.gemm.schedule import GemmCandidate, PlanningCase, build, case_of, request_of
from ucutlass.kernels.gemm.search import expand, rounds
from ucutlass.kernels.gemm.variants import BY_NAME, BY_WORD, VARIANTS, variants_of
from ucutlass.kernels.planned import BY_MODEL, Estimate, Note, Planned
from ucutlass.kernels.violation import Violation, foreign_to

AUTO = PartialSchedule()
"""Every field left to the planner."""


def plan(
    problem: GemmProblem,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device | None = None,
    request: PartialSchedule = AUTO,
) -> Planned | tuple[Violation, ...]:
    """The cheapest legal kernel that the request allows, or why there is none.

    `sizes` has the extent of every dimension by position; the problem's `align`s are those of
    these extents. Each violation's `nearest` is then a legal, fully fixed request. Without a
    device the architecture's default one is planned for.
    """
    return _plan(problem, sizes, arch, device or default_device(arch), request)


@lru_cache(maxsize=4096)
def _plan(
    problem: GemmProblem, sizes: tuple[int, ...], arch: Arch, device: Device, request: PartialSchedule
) -> Planned | tuple[Violation, ...]:
    case = case_of(problem, sizes, arch, device)
    if foreign := foreign_fields(request):
        return (_with_nearest(foreign, case),)
    tried: list[GemmCandidate] = []
    for ranked in _ranked(case, request):
        for price, candidate in ranked:
            if legal(candidate):
                return _chosen(case, request, price, candidate)
        tried += (candidate for _, candidate in ranked[:_BLAMED])
    closest = min(tried, key=lambda c: len(violations(c)))
    return tuple(_with_nearest(v, case) for v in telling(violations(closest)))


def telling(broken: tuple[Violation, ...]) -> tuple[Violation, ...]:
    """Where the kernel family itself is ruled out, only that: its tile's faults do not matter then."""
    return tuple(v for v in broken if v.fields == ("warps",)) or broken


_BLAMED = 16
"""Of the illegal candidates of a request, the best so many are looked at for what to report."""


def candidates(
    problem: GemmProblem,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device | None = None,
    request: PartialSchedule = AUTO,
) -> Iterator[Planned]:
    """Every legal kernel that the planner would consider, the cheapest first."""
    case = case_of(problem, sizes, arch, device or default_device(arch))
    if foreign_fields(request):
        return
    for ranked in _ranked(case, request):
        kernels = [(price, candidate) for price, candidate in ranked if legal(candidate)]
        yield from (_planned(case, candidate, price, request) for price, candidate in kernels)
        if kernels:
            return


def _ranked(case: PlanningCase, request: PartialSchedule) -> Iterator[list[tuple[Estimate, GemmCandidate]]]:
    """Round after round of candidates with their prices, the cheapest first."""
    for tried in rounds(case, request):
        candidates = (build(case, full) for full in expand(case, request, tried))
        priced = ((cost.estimate(c, case.device), c) for c in candidates)
        yield sorted(priced, key=lambda pair: pair[0].seconds)


def _chosen(
    case: PlanningCase, request: PartialSchedule, price: Estimate, cheapest: GemmCandidate
) -> Planned:
    planned = _planned(case, cheapest, price, request)
    return planned if planned.request == request else replace(planned, origin=BY_MODEL)


def _planned(case: PlanningCase, c: GemmCandidate, price: Estimate, request: PartialSchedule) -> Planned:
    plan = GemmPlan(c.arch.name, c.problem, c.schedule, c.routes)
    notes = tuple(_reasons(case, c, price, request))
    return Planned(plan, astuple(c.launch), c.sizes, request_of(c), case.device, price, notes)


def foreign_fields(request: PartialSchedule) -> Violation | None:
    """UC0439: fields that no one kernel family has together."""
    if variants_of(request):
        return None
    fields = request.fixed()
    variant = BY_NAME[BY_WORD.get(request.warps or "", "sm90")]
    foreign = [name for name in fields if name not in variant.fields]
    if request.warps and request.warps not in BY_WORD:
        return foreign_to(request, VARIANTS, "a product of two tensors")
    if not foreign:
        return Violation(
            "UC0439",
            "stream-K is a scheduler of cooperative; the multistage kernel splits K into equal parts",
            "give `split_k` a number, or use `warps cooperative`",
            ("split_k",),
            without(request, "split_k"),
        )
    names = ", ".join(f"`{name} {show_value(fields[name])}`" for name in foreign)
    others = f"`warps {request.warps}`" if request.warps else "the other fields"
    return Violation(
        "UC0439",
        f"{names} does not go with {others}",
        f"leave {' and '.join(f'`{name}`' for name in foreign)} out",
        tuple(foreign),
        without(request, *foreign),
    )


# --- the nearest legal neighbour ---------------------------------------------------

_MOST_FIXES = 16
"""Rules are fixed one after another at most so often before fields are given up."""

_GIVE_UP = (
    "stages",
    "warp_tile",
    "rows",
    "columns",
    "threads",
    "cluster",
    "split_k",
    "partials",
    "swizzle",
    "raster",
    "swap",
    "math",
    "tile",
    "warps",
)
"""The order in which a request's fields are given up where fixing them does not end."""


def _with_nearest(violation: Violation, case: PlanningCase) -> Violation:
    start = violation.nearest
    nearest = nearest_legal(case, start) if start is not None else None
    return replace(violation, nearest=None if nearest is None else request_of(nearest))


def nearest_legal(case: PlanningCase, request: PartialSchedule) -> GemmCandidate | None:
    """A legal candidate near a request: its broken rules fixed one by one, and where that
    does not end, the best kernel with as few fields given up as needed; None if there is none."""
    attempt = request
    for _ in range(_MOST_FIXES):
        if not variants_of(attempt):
            break
        candidate = _first(case, attempt)
        broken = violations(candidate)
        if not broken:
            return candidate
        nearest = next((v.nearest for v in broken if v.nearest not in (None, attempt)), None)
        if nearest is None:
            break
        attempt = nearest
    for count in range(len(_GIVE_UP) + 1):
        relaxed = without(request, *_GIVE_UP[:count])
        if variants_of(relaxed) and legal(best := _first(case, relaxed)):
            return best
    return None


def _first(case: PlanningCase, request: PartialSchedule) -> GemmCandidate:
    """The cheapest legal candidate of a request, or else the cheapest."""
    ranked = [c for batch in _ranked(case, request) for _, c in batch]
    return next((c for c in ranked if legal(c)), ranked[0])


# --- why: a sentence for each field that a schedule left out -------------------------------


def _reasons(
    case: PlanningCase, c: GemmCandidate, price: Estimate, request: PartialSchedule
) -> Iterator[Note]:
    """Notes for every field that the request left out, and for a family forced by a rule."""
    if c.arch.wgmma and c.family == "sm80":
        yield Note("", "multistage", _why_not_hopper(case, request))
    for name, value in differing(request, request_of(c)).items():
        if value is not None:
            yield Note(name, show_value(value), _reason(name, c, price, case))


def _why_not_hopper(case: PlanningCase, request: PartialSchedule) -> str:
    """The rule that keeps the TMA kernels away, with its numbers; or what else did."""
    depth = 128 // case.written.problem.compute_type.bytes
    broken = violations(build(case, PartialSchedule(warps="pingpong", tile=(64, 64, depth))))
    if broken:
        return f"the Hopper kernels cannot take this: {broken[0].message}"
    if "sm90" not in variants_of(request) or request.math == "simt":
        return "asked for"
    return "predicted to be faster than wgmma, for which a launch splits the operands first"


def _reason(name: str, c: GemmCandidate, price: Estimate, case: PlanningCase) -> str:
    tiles = f"{price.tiles} tiles on {price.slots} slots of {case.device.name}, {price.waves:.2f} waves"
    texts = {
        "tile": f"{tiles}, {price.quantisation:.0%} busy, {price.padding:.0%} of the multiplications useful",
        "warps": _warps(c),
        "cluster": _cluster(c),
        "stages": "as many as fit in shared memory beside the epilogue, and no more than help",
        "split_k": _split(c, tiles),
        "partials": "blocks of a cluster add them through shared memory",
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


def _warps(c: GemmCandidate) -> str:
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


def _math(c: GemmCandidate) -> str:
    if request_of(c).math == "simt":
        return "f32 in FFMA"
    before = "; a launch before the kernel's splits the operands" if c.family == "sm90" else ""
    if request_of(c).math == "tf32x3_fused":
        before = "; A is split in registers, B in shared memory"
    if request_of(c).math == "tf32x3_rs":
        before = "; A is split in registers, a launch before the kernel's splits B alone"
    if request_of(c).math == "f16x3":
        return "three f16 passes keep f32 accuracy; two launches before the kernel's scale and split the operands"
    return f"three tf32 passes keep f32 accuracy{before}"


def _cluster(c: GemmCandidate) -> str:
    m, n = request_of(c).cluster or (1, 1)
    if m * n == 1:
        return "sharing loads would not pay here"
    return f"{m * n} neighbours share loads of {'B' if n == 1 else 'A' if m == 1 else 'A and B'} by multicast"


def _split(c: GemmCandidate, tiles: str) -> str:
    if c.launch.splits == 1:
        return f"no split: {tiles}"
    return f"{tiles}, {c.k_tiles} steps of K each: splitting K fills the rest"

"""From a problem and a partial schedule to one legal kernel: fill in, price, choose, explain.

Nothing here decides legality: every candidate is shown to `ucutlass.rules`, and the cheapest
one that breaks no rule is the plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Iterator

from ucutlass import heuristic
from ucutlass.hardware import Arch, Device, default_device
from ucutlass.plan import GemmPlan, GemmProblem, Knobs
from ucutlass.rules import legal, violations
from ucutlass.rules.candidate import Candidate, request_of, shape_of
from ucutlass.rules.violation import Violation
from ucutlass.schedule import FAMILY, FIELDS, Family, Request, differing, families, show_value, without
from ucutlass.search import build, expand, rounds, transpose

__all__ = ["Planned", "candidates", "concrete", "nearest_legal", "plan", "transpose"]


@dataclass(frozen=True, slots=True)
class Note:
    """Why a field that was left out got its value; `field` is "" for what concerns the whole."""

    field: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class Planned:
    """A kernel and how to launch it for these extents. `request` has every field fixed and
    stands for the same plan; `notes` are the reasons for the fields that were left out."""

    plan: GemmPlan
    knobs: Knobs
    sizes: tuple[int, ...]
    swapped: bool
    request: Request
    estimate: heuristic.Estimate
    device: Device
    notes: tuple[Note, ...]
    candidate: Candidate


def plan(
    problem: GemmProblem, sizes: tuple[int, ...], arch: Arch,
    device: Device | None = None, request: Request = Request(),
) -> Planned | tuple[Violation, ...]:
    """The cheapest legal kernel that the request allows, or why there is none.

    `sizes` has the extent of every dimension by position; the problem's `align`s are those of
    these extents. Each violation's `nearest` is then a legal, fully fixed request. Without a
    device the architecture's default one is planned for.
    """
    return _plan(problem, sizes, arch, device or default_device(arch), request)


@lru_cache(maxsize=4096)
def _plan(
    problem: GemmProblem, sizes: tuple[int, ...], arch: Arch, device: Device, request: Request
) -> Planned | tuple[Violation, ...]:
    if foreign := foreign_fields(request):
        return (_with_nearest(foreign, problem, sizes, arch, device, foreign.nearest),)
    tried: list[Candidate] = []
    for ranked in _ranked(problem, sizes, arch, device, request):
        for price, candidate in ranked:
            if legal(candidate):
                return _planned(candidate, price, device, request)
        tried += (candidate for _, candidate in ranked[:_BLAMED])
    closest = min(tried, key=lambda c: len(violations(c)))
    return tuple(_with_nearest(v, problem, sizes, arch, device, v.nearest) for v in violations(closest))


_BLAMED = 16
"""Of the illegal candidates of a request, the best so many are looked at for what to report."""


def candidates(
    problem: GemmProblem, sizes: tuple[int, ...], arch: Arch,
    device: Device | None = None, request: Request = Request(),
) -> Iterator[Planned]:
    """Every legal kernel that the planner would consider, the cheapest first."""
    device = device or default_device(arch)
    if foreign_fields(request):
        return
    for ranked in _ranked(problem, sizes, arch, device, request):
        kernels = [(price, candidate) for price, candidate in ranked if legal(candidate)]
        yield from (_planned(candidate, price, device, request) for price, candidate in kernels)
        if kernels:
            return


def concrete(problem: GemmProblem, sizes: tuple[int, ...], arch: Arch, request: Request) -> Candidate:
    """The candidate of a request that fixes at least `warps` and, for tiled kernels, `tile`;
    whatever else is left out gets its plain default, without search."""
    return build(problem, sizes, arch, request)


def _ranked(
    problem: GemmProblem, sizes: tuple[int, ...], arch: Arch, device: Device, request: Request
) -> Iterator[list[tuple[heuristic.Estimate, Candidate]]]:
    """Round after round of candidates with their prices, the cheapest first."""
    shape = shape_of(problem, sizes)
    for tried in rounds(problem, shape, arch, request):
        made = (build(problem, sizes, arch, full) for full in expand(problem, shape, device, request, tried))
        yield sorted(((heuristic.estimate(c, device), c) for c in made), key=lambda pair: pair[0].seconds)


def foreign_fields(request: Request) -> Violation | None:
    """UC0439: fields that no one kernel family has together."""
    if families(request):
        return None
    given = request.given()
    wanted: Family = FAMILY[request.warps] if request.warps else "sm90"
    foreign = [n for n in given if wanted not in FIELDS[n].families]
    if not foreign and request.split_k == "stream":
        return Violation(
            "UC0439", "stream-K is a scheduler of cooperative; the multistage kernel splits K into equal parts",
            "give `split_k` a number, or use `warps cooperative`", ("split_k",), without(request, "split_k"),
        )
    names = ", ".join(f"`{n} {show_value(given[n])}`" for n in foreign)
    with_ = f"`warps {request.warps}`" if request.warps else "the other fields"
    return Violation(
        "UC0439", f"{names} does not go with {with_}", f"leave {' and '.join(f'`{n}`' for n in foreign)} out",
        tuple(foreign), without(request, *foreign),
    )


# --- the nearest legal neighbour ---------------------------------------------------

_MENDS = 16
"""Rules are mended one after another at most so often before fields are given up."""

_GIVE_UP = ("stages", "warp_tile", "rows", "columns", "threads", "cluster", "split_k", "swizzle", "raster",
            "swap", "math", "tile", "warps")
"""The order in which a request's fields are given up where mending does not end."""


def _with_nearest(
    violation: Violation, problem: GemmProblem, sizes: tuple[int, ...], arch: Arch, device: Device,
    start: Request | None,
) -> Violation:
    found = nearest_legal(problem, sizes, arch, device, start) if start is not None else None
    return replace(violation, nearest=None if found is None else request_of(found))


def nearest_legal(
    problem: GemmProblem, sizes: tuple[int, ...], arch: Arch, device: Device, request: Request
) -> Candidate | None:
    """A legal candidate near a request: its broken rules mended one by one, and where that
    does not end, the best kernel with as few fields given up as needed; None if there is none."""
    attempt = request
    for _ in range(_MENDS):
        if not families(attempt):
            break
        candidate = _first(problem, sizes, arch, device, attempt)
        broken = violations(candidate)
        if not broken:
            return candidate
        mended = next((v.nearest for v in broken if v.nearest not in (None, attempt)), None)
        if mended is None:
            break
        attempt = mended
    for count in range(len(_GIVE_UP) + 1):
        relaxed = without(request, *_GIVE_UP[:count])
        if families(relaxed) and legal(best := _first(problem, sizes, arch, device, relaxed)):
            return best
    return None


def _first(
    problem: GemmProblem, sizes: tuple[int, ...], arch: Arch, device: Device, request: Request
) -> Candidate:
    """The cheapest legal candidate of a request, or else the cheapest."""
    ranked = [c for found in _ranked(problem, sizes, arch, device, request) for _, c in found]
    return next((c for c in ranked if legal(c)), ranked[0])


# --- reasons -----------------------------------------------------------------------


def _planned(c: Candidate, price: heuristic.Estimate, device: Device, asked: Request) -> Planned:
    full = request_of(c)
    made = GemmPlan(c.arch.name, c.problem, c.schedule, c.routes)
    notes = tuple(_notes(c, price, device, asked, full))
    return Planned(made, c.knobs, c.sizes, c.swapped, full, price, device, notes, c)


def _notes(
    c: Candidate, price: heuristic.Estimate, device: Device, asked: Request, full: Request
) -> Iterator[Note]:
    if c.arch.wgmma and c.family == "sm80":
        yield Note("", "multistage", _why_not_sm90(c))
    for name, value in differing(asked, full).items():
        if value is not None:
            yield Note(name, show_value(value), _reason(name, c, price, device))


def _why_not_sm90(c: Candidate) -> str:
    """The rule that keeps the TMA kernels away, with its numbers."""
    trial = build(_as_written(c), c.sizes, c.arch, Request(warps="pingpong", tile=(64, 64, 64 // c.problem.lane.bytes * 2)))
    broken = violations(trial)
    return f"the Hopper kernels cannot take this: {broken[0].message}" if broken else "estimated faster here"


def _as_written(c: Candidate) -> GemmProblem:
    return transpose(c.problem) if c.swapped else c.problem


def _reason(name: str, c: Candidate, price: heuristic.Estimate, device: Device) -> str:
    tiles = f"{price.tiles} tiles on {price.slots} slots of {device.name}: {price.waves:.2f} waves"
    match name:
        case "tile":
            return f"{tiles}, {price.quantisation:.0%} busy, {price.padding:.0%} of the multiplications useful"
        case "warps":
            return _warps_reason(c)
        case "cluster":
            return "neighbours share one operand's loads by multicast" if full_cluster(c) > 1 else \
                "a cluster would leave slots empty or has nothing to share"
        case "stages":
            return "as many as fit beside the epilogue in shared memory"
        case "split_k":
            return _split_reason(c, tiles)
        case "swap":
            return "N takes the M side of the tile" if c.swapped else "M is on the tile's M side as written"
        case "math":
            return "three tf32 passes keep f32 accuracy" if full_math(c) == "tf32x3" else "f32 without tensor cores"
        case "swizzle" | "raster":
            return "operands against L2; costs no build to change"
        case _:
            return "the plain choice for this shape"


def _warps_reason(c: Candidate) -> str:
    match request_of(c).warps:
        case "pingpong":
            return "one warp group's epilogue runs under the other's multiplications"
        case "cooperative":
            return "two warp groups share a large tile" if c.knobs.splits == 1 else "the scheduler that splits K"
        case "gemv":
            return f"N is {c.shape.n}: reading the matrix once is all the work"
        case _:
            return "the kernel that takes every alignment and order"


def _split_reason(c: Candidate, tiles: str) -> str:
    if c.knobs.splits == 1:
        return f"no split: {tiles}"
    return f"{tiles} with {c.k_tiles} steps of K each: splitting K fills the rest"


def full_cluster(c: Candidate) -> int:
    """Thread blocks of a cluster; 1 where there are none."""
    cluster = request_of(c).cluster
    return cluster[0] * cluster[1] if cluster else 1


def full_math(c: Candidate) -> str | None:
    """The `math` word of a candidate."""
    return request_of(c).math

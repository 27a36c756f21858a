"""What the tuner chooses from: legal kernels, grouped by the binary that they share.

A plan holds no extents and no launch knobs, so kernels of equal plans have one source and cost one
build; `raster`, `swizzle` and the parts of a split are swept on that binary.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ucutlass import heuristic, ir
from ucutlass.case import Case, build, case_of
from ucutlass.families.gemm import problem
from ucutlass.frontend import Checked, alternatives, gemm_form, matching, plan_gemm
from ucutlass.hardware import ARCHES, Device, default_device
from ucutlass.plan import GemmPlan, GemvSchedule, Knobs, Sm90Schedule
from ucutlass.planner import AUTO, Planned
from ucutlass.rules import legal
from ucutlass.rules.candidate import RASTER_WORD, Candidate, ceil_div, request_of
from ucutlass.schedule import Request
from ucutlass.search import expand, rounds
from ucutlass.sol.bounds import data_sheet, fused_bound, realistic_bound
from ucutlass.sol.program import compulsory
from ucutlass.tune.free import everything

SWIZZLES = (1, 2, 4, 8)
SPLITS = (2, 4, 8, 16)
"""Parts of K beside the scheduler's own choice that one binary is tried with."""


@dataclass(frozen=True, slots=True)
class Group:
    """Kernels that one binary serves, in the order to time them: the cheapest by estimate first."""

    plan: GemmPlan
    members: tuple[Planned, ...]

    @property
    def request(self) -> Request:
        return self.members[0].request

    @property
    def estimate(self) -> float:
        """Seconds, of the cheapest member."""
        return self.members[0].estimate.seconds


@dataclass(frozen=True, slots=True)
class Space:
    """Groups, the cheapest first. `bound` is the least realistic bound of any of them, in seconds
    (`ucc sol`): what the best plan could come to; 0 where none is known. `start` is the group, and
    the member in it, of the kernel that the compiler chooses by itself."""

    groups: tuple[Group, ...]
    bound: float = 0.0
    start: tuple[int, int] = (0, 0)

    @property
    def kernels(self) -> int:
        """With every setting of the knobs."""
        return sum(len(g.members) for g in self.groups)


def explore(
    checked: Checked, program: ir.Kernel, sizes: tuple[int, ...], arch: str, device: Device | None = None,
    free: bool = False,
) -> Space:
    """The kernels that a program denotes for these extents (in the order of `program.dims`): the
    alternatives of the guarded schedule that holds, and for each field left out what the planner
    weighs. `free`: every schedule of `ucutlass.tune.free`, whatever the program says.

    What the compiler chooses by itself is always among them. Raises ProgramError as `plan_kernel`.
    """
    chosen = plan_gemm(checked, program, sizes, arch, device)
    what = problem(gemm_form(checked, program), sizes)
    case = case_of(what, sizes, ARCHES[arch], device or default_device(ARCHES[arch]))
    asked = [AUTO] if free else [r for _, r in alternatives(matching(program, sizes, arch))] or [AUTO]
    found = [one for r in asked for one in (_free(case) if free else _weighed(case, r))]
    own = chosen.candidate
    made = grouped([own, *found], case.device)
    at = next(i for i, g in enumerate(made.groups) if g.plan == chosen.plan)
    member = [m.candidate for m in made.groups[at].members].index(own)
    return replace(made, bound=least_bound(program, made), start=(at, member))


def _weighed(case: Case, request: Request) -> Iterator[Candidate]:
    """What the planner prices for a request, with the other settings of the knobs that it leaves open."""
    for tried in rounds(case, request):
        found = [c for full in expand(case, request, tried) if legal(c := build(case, full))]
        for candidate in found:
            yield from (v for v in variants(candidate, request) if legal(v))
        if found:
            return


def _free(case: Case) -> Iterator[Candidate]:
    for candidate in everything(case):
        yield from (v for v in variants(candidate, AUTO) if legal(v))


def variants(candidate: Candidate, asked: Request) -> Iterator[Candidate]:
    """The candidate, and it with one knob changed that `asked` leaves open: a sweep of whole products
    would be timed for longer than another build takes."""
    yield candidate
    if isinstance(candidate.schedule, GemvSchedule):
        return
    now = candidate.knobs
    settings: list[Knobs] = []
    if asked.raster is None:
        settings += [replace(now, raster=r) for r in RASTER_WORD if r != now.raster]
    if asked.swizzle is None:
        settings += [replace(now, swizzle=s) for s in _swizzles(candidate)]
    if asked.split_k is None:
        settings += [replace(now, splits=s) for s in _splits(candidate) if s != now.splits]
    yield from (replace(candidate, knobs=knobs) for knobs in settings)


def _swizzles(c: Candidate) -> tuple[int, ...]:
    """Swizzles that the scheduler does not take for the one there is, or for one another."""
    assert not isinstance(c.schedule, GemvSchedule)
    m, n = ceil_div(c.shape.m, c.schedule.tile[0]), ceil_div(c.shape.n, c.schedule.tile[1])
    taken = {heuristic.effective_swizzle(m, n, s): s for s in reversed(SWIZZLES)}
    taken.pop(heuristic.effective_swizzle(m, n, c.knobs.swizzle), None)
    return tuple(sorted(taken.values()))


def _splits(c: Candidate) -> tuple[int, ...]:
    match c.schedule:
        case Sm90Schedule(scheduler="stream_k"):
            return (0, *SPLITS)
        case Sm90Schedule() | GemvSchedule():
            return ()
        case _:
            return (1, *SPLITS)


def grouped(found: Iterable[Candidate], device: Device) -> Space:
    """The candidates, each once, priced and by binary."""
    groups: dict[GemmPlan, list[Planned]] = {}
    for candidate in dict.fromkeys(found):
        one = planned(candidate, device)
        groups.setdefault(one.plan, []).append(one)
    made = [
        Group(plan, tuple(sorted(members, key=lambda p: p.estimate.seconds)))
        for plan, members in groups.items()
    ]
    return Space(tuple(sorted(made, key=lambda g: g.estimate)))


def planned(c: Candidate, device: Device) -> Planned:
    """A legal candidate as a plan. It has no notes: nothing was left out for the planner."""
    made = GemmPlan(c.arch.name, c.problem, c.schedule, c.routes)
    price = heuristic.estimate(c, device)
    return Planned(made, c.knobs, c.sizes, c.swapped, request_of(c), price, device, (), c)


def least_bound(program: ir.Kernel, space: Space) -> float:
    """The least realistic bound of the space's kernels, in seconds; 0 for an empty space."""
    if not space.groups:
        return 0.0
    first = space.groups[0].members[0]
    sizes = dict(zip(program.dims, first.sizes, strict=True))
    rates = data_sheet(first.device)
    fused = fused_bound(compulsory(program, sizes), first.device, rates)
    members = itertools.chain.from_iterable(g.members for g in space.groups)
    return min(realistic_bound(fused, first.device, rates, one).seconds for one in members)

"""What the tuner chooses from: legal kernels, grouped by the binary that they share.

A plan holds no extents and no launch knobs, so kernels of equal plans have one source and cost one
build; `raster`, `swizzle` and the parts of a split are swept on that binary.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ucutlass import ir
from ucutlass.frontend import Checked, alternatives, form, matching, plan_kernel
from ucutlass.ir.hardware import ARCHES, Arch, Device, default_device
from ucutlass.ir.schedule import Request
from ucutlass.kernels.families import Form, GemmForm
from ucutlass.kernels.gemm import cost as heuristic
from ucutlass.kernels.gemm.candidate import RASTER_WORD, Candidate, ceil_div, request_of
from ucutlass.kernels.gemm.match import problem
from ucutlass.kernels.gemm.plan import GemmPlan, GemvSchedule, Knobs, Sm90Schedule
from ucutlass.kernels.gemm.planner import AUTO, Planned
from ucutlass.kernels.gemm.rules import legal
from ucutlass.kernels.gemm.schedule import Case, build, case_of
from ucutlass.kernels.gemm.search import expand, rounds
from ucutlass.kernels.planned import AnyPlanned, gemm_or_none
from ucutlass.kernels.planning import kernels
from ucutlass.kernels.plans import Plan
from ucutlass.sol.bounds import data_sheet, fused_bound, realistic_bound
from ucutlass.sol.program import compulsory
from ucutlass.tune.free import everything

SWIZZLES = (1, 2, 4, 8)
SPLITS = (2, 4, 8, 16)
"""Parts of K beside the scheduler's own choice that one binary is tried with."""


@dataclass(frozen=True, slots=True)
class Group:
    """Kernels that one binary serves, in the order to time them: the cheapest by estimate first."""

    plan: Plan
    members: tuple[AnyPlanned, ...]

    @property
    def request(self) -> Request:
        return self.members[0].request

    @property
    def estimate(self) -> float:
        """Seconds, of the cheapest member."""
        return self.members[0].seconds


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
    checked: Checked,
    program: ir.Kernel,
    sizes: tuple[int, ...],
    arch: str,
    device: Device | None = None,
    free: bool = False,
) -> Space:
    """The kernels that a program denotes for these extents (in the order of `program.dims`): the
    alternatives of the guarded schedule that holds, and for each field left out what the planner
    weighs. `free`: every schedule of `ucutlass.tune.free`, whatever the program says.

    What the compiler chooses by itself is always among them. Raises ProgramError as `plan_kernel`.
    """
    own = plan_kernel(checked, program, sizes, arch, device).planned
    target, gpu = ARCHES[arch], device or default_device(ARCHES[arch])
    asked = [AUTO] if free else [r for _, r in alternatives(matching(program, sizes, arch))] or [AUTO]
    made = grouped([own, *_denoted(form(checked, program), sizes, target, gpu, asked, free)])
    return started(program, made, own)


def started(program: ir.Kernel, made: Space, own: AnyPlanned) -> Space:
    """The space with its bound, begun at one of its kernels. Raises ValueError where that is not in it."""
    (at,) = (i for i, g in enumerate(made.groups) if g.plan == own.plan)
    member = [m.request for m in made.groups[at].members].index(own.request)
    return replace(made, bound=least_bound(program, made), start=(at, member))


def _denoted(
    found: Form, sizes: tuple[int, ...], arch: Arch, device: Device, asked: Iterable[Request], free: bool
) -> Iterator[AnyPlanned]:
    """Every kernel of the requests: of one product those that its cost model weighs, of other families those
    around the planner's choice."""
    if not isinstance(found, GemmForm):
        for request in asked:
            yield from kernels(found, sizes, arch, device, request, free)
        return
    case = case_of(problem(found, sizes), sizes, arch, device)
    for request in asked:
        yield from (planned(c, device) for c in (_free(case) if free else _weighed(case, request)))


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


def grouped(found: Iterable[AnyPlanned]) -> Space:
    """The kernels, each once, by binary; those of one price in the order in which they came."""
    groups: dict[Plan, dict[Request, AnyPlanned]] = {}
    for one in found:
        groups.setdefault(one.plan, {}).setdefault(one.request, one)
    made = [
        Group(plan, tuple(sorted(members.values(), key=lambda p: p.seconds)))
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
    return min(realistic_bound(fused, first.device, rates, gemm_or_none(one)).seconds for one in members)

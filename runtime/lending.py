"""Kernels of a program whose extents change from call to call: what was planned for one call's extents is lent to
calls of others.

A kernel takes extents as arguments and refuses those that it does not serve (`ucc verify` launches it at extents
beside its own), so that which plan serves a call is a question of speed alone. A call that is near a plan takes its
kernels for good. Any other call takes those of the nearest plan until its own are built beside it. Only a call that
no kernel at hand serves waits for a build.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ucutlass.runtime.cuda_driver import ignore_captures
from ucutlass.runtime.entry_codes import BAD_ARGUMENTS, LaunchError
from ucutlass.runtime.launch import BoundKernel, LaunchRequest, Lent
from ucutlass.runtime.launch_sequence import LaunchSequence
from ucutlass.runtime.torch_device import capturing, current

_LOG = logging.getLogger("ucutlass.lending")

Lends: TypeAlias = Literal["no", "near", "all"]
"""To which calls of other extents kernels are lent: to none, to those that are near, to all until theirs are built."""

NEAR = 1.0
"""The sum of the binary logarithms of the free extents' ratios up to which a call is near a plan. By the cost model an
encoder's kernels for 1,024 rows take 1.07 of the time of its own at 2,048 rows, 1.20 at 512, and 1.34 at 200."""


@dataclass(frozen=True, slots=True)
class Lender:
    """`own` plans, builds and loads kernels for a request, `lent` gives those of a plan's request at another's
    extents, or None where it has none to lend; both raise what loading raises. `free` has the places of the extents
    that calls choose."""

    own: Callable[[LaunchRequest], BoundKernel | LaunchSequence]
    lent: Callable[[LaunchRequest, LaunchRequest], BoundKernel | LaunchSequence | None]
    free: Sequence[int]


class Lending:
    """What a Launcher asks for the launches of each request, one at a time."""

    def __init__(self, lender: Lender, lends: Lends) -> None:
        self._lender, self._lends = lender, lends
        self._plans: dict[LaunchRequest, BoundKernel | LaunchSequence] = {}
        self._refused: set[tuple[LaunchRequest, LaunchRequest]] = set()
        self._failed: set[LaunchRequest] = set()
        self._maker = threading.Thread()

    def choose(self, request: LaunchRequest) -> BoundKernel | LaunchSequence | Lent:
        """Raises what the lender raises."""
        if request not in self._plans:
            alike = [plan for plan in tuple(self._plans) if _alike(plan, request)]
            for plan in sorted(alike, key=lambda plan: self._distance(plan, request)):
                if (lent := self._lent(plan, request)) is not None:
                    return lent
            self._plans[request] = self._lender.own(request)
        return self._plans[request]

    def _distance(self, plan: LaunchRequest, request: LaunchRequest) -> float:
        pairs = ((plan.extents[place], request.extents[place]) for place in self._lender.free)
        return sum(abs(math.log2(a / b)) for a, b in pairs)

    def _lent(self, plan: LaunchRequest, request: LaunchRequest) -> Lent | None:
        """Returns a plan's launches for a request, None where they do not serve it."""
        near = request in self._failed or self._distance(plan, request) <= NEAR
        if (plan, request) in self._refused or not (near or self._lends == "all"):
            return None
        try:
            launches = self._lender.lent(plan, request)
        except LaunchError as problem:
            if problem.code != BAD_ARGUMENTS:
                raise
            launches = None
        if launches is None:
            return None
        return Lent(
            launches, lambda: self._refused.add((plan, request)), None if near else self._made(request)
        )

    def _made(self, request: LaunchRequest) -> Callable[[], bool]:
        """Starts to build a request's own kernels, unless others are being built. Returns what says that this has
        ended, which no call learns while it is captured: kernels that it did not launch before would be loaded."""
        if not self._maker.is_alive():
            self._maker = threading.Thread(
                target=self._make, args=(request,), name="ucutlass-lending", daemon=True
            )
            self._maker.start()
        maker = self._maker
        return lambda: not maker.is_alive() and not capturing(request.device)

    def _make(self, request: LaunchRequest) -> None:
        try:
            if request.device.type == "cuda":
                ignore_captures()
            with current(request.device):
                self._plans[request] = self._lender.own(request)
        except Exception as problem:  # the call is served as it is
            _LOG.warning("extents %s keep the kernels of others: %s", request.extents, problem)
            self._failed.add(request)


def _alike(plan: LaunchRequest, request: LaunchRequest) -> bool:
    return plan.aligned == request.aligned and plan.device == request.device

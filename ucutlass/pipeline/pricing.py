"""Prices what one launch would take, and says whether it pays to do the work of several launches in fewer.

`ucc explain`, `ucc fuse` and the importer ask here, so that they agree on what is one kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

from ucutlass import ir
from ucutlass.frontend import alternatives, matching
from ucutlass.ir.hardware import ARCHES, Device
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels.families import match, plan_pattern
from ucutlass.kernels.planned import Planned
from ucutlass.kernels.refused import Refused
from ucutlass.limits import LimitPassed


class NotOneKernel(Exception):
    """No family serves a kernel, or no schedule of it is legal; the message is the family's."""


def kernel_seconds(
    kernel: ir.Kernel, sizes: Sequence[int], arch: str = "sm90a", device: Device | None = None
) -> float:
    """Returns the estimate of one launch in seconds, its start included, at extents in the order of the
    kernel's `dims` and by the schedules that it has. Raises NotOneKernel."""
    requests = [request for _, request in alternatives(matching(kernel, sizes, arch))]
    try:
        pattern = match(kernel)
        outcomes = [
            plan_pattern(pattern, sizes, ARCHES[arch], device, request)
            for request in requests or [PartialSchedule()]
        ]
    except LimitPassed:
        raise NotOneKernel("together they are too large a program") from None
    except Refused as refused:
        raise NotOneKernel(f"{refused.diagnostic.message} [{refused.diagnostic.code}]") from None
    plans = [outcome for outcome in outcomes if isinstance(outcome, Planned)]
    if plans:
        return min(planned.seconds for planned in plans)
    violations = next(outcome for outcome in outcomes if isinstance(outcome, tuple))
    raise NotOneKernel(f"{violations[0].message} [{violations[0].code}]")


def pays(apart: Sequence[float], together: Sequence[float], least_gain: float = 0.0) -> bool:
    """Returns whether launches of these estimates take less time than those that they would stand for, by more
    than a share of it."""
    return sum(together) < (1.0 - least_gain) * sum(apart)

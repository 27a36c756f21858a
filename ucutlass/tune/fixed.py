"""What a program's schedule withholds from the tuner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ucutlass import frontend, ir
from ucutlass.ir.hardware import Device
from ucutlass.ir.schedule import PartialSchedule, show_value
from ucutlass.tune.space import ScheduleSpace, explore


@dataclass(frozen=True, slots=True)
class WithheldFields:
    """The fields that the schedule gives for these extents, with their values as a program writes them; the
    kernels and binaries that this leaves, and those that the planner weighs where it is free."""

    fields: Mapping[str, tuple[str, ...]]
    kernels: int
    binaries: int
    open_kernels: int
    open_binaries: int

    @property
    def words(self) -> str:
        values = "  ".join(f"{name} {' or '.join(values)}" for name, values in self.fields.items())
        return (
            f"the schedule fixes {values}: {_counted(self.kernels, self.binaries)} are left, without it there "
            f"are {_counted(self.open_kernels, self.open_binaries)}; --free opens these fields and searches "
            "every legal schedule"
        )


def fixed_by(
    checked: frontend.Checked,
    program: ir.Kernel,
    sizes: tuple[int, ...],
    arch: str,
    device: Device | None,
    space: ScheduleSpace,
) -> WithheldFields | None:
    """What the schedule that holds for these extents fixes, None where it fixes nothing; `space` is what the
    program denotes. Raises ProgramError."""
    fields = fixed_fields(requests_for(program, sizes, arch))
    if not fields:
        return None
    free = explore(checked, replace(program, schedules=()), sizes, arch, device)
    return WithheldFields(fields, space.kernels, len(space.groups), free.kernels, len(free.groups))


def requests_for(program: ir.Kernel, sizes: tuple[int, ...], arch: str) -> tuple[PartialSchedule, ...]:
    """Every alternative of the schedule that holds for these extents; none where no schedule does."""
    return tuple(r for _, r in frontend.alternatives(frontend.matching(program, sizes, arch)))


def fixed_fields(requests: tuple[PartialSchedule, ...]) -> dict[str, tuple[str, ...]]:
    """The values of each field that all alternatives give."""
    fields = [request.fixed() for request in requests]
    names = [name for name in (fields[0] if fields else ()) if all(name in values for values in fields)]
    return {name: tuple(dict.fromkeys(show_value(values[name]) for values in fields)) for name in names}


def outside(request: PartialSchedule, requests: tuple[PartialSchedule, ...]) -> str:
    """Which fields of a schedule the alternatives of a program exclude, with the values that they admit; ""
    where one of them admits the schedule, or there are none."""
    excluded = [
        [name for name, value in request_.fixed().items() if getattr(request, name) != value]
        for request_ in requests
    ]
    nearest = min(excluded, key=len, default=[])
    admitted = {
        name: dict.fromkeys(
            show_value(value) for request_ in requests if (value := request_.fixed().get(name))
        )
        for name in nearest
    }
    return "  ".join(f"{name} {' or '.join(values)}" for name, values in admitted.items())


def _counted(kernels: int, binaries: int) -> str:
    return f"{kernels} kernel{'s' * (kernels != 1)} of {binaries} binar{'ies' if binaries != 1 else 'y'}"

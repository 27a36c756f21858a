"""This module looks up a recorded schedule to take the place of the one that the compiler would choose."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from ucutlass import ir
from ucutlass.diagnostics import ProgramError
from ucutlass.frontend import Checked, alternatives, matching, plan_kernel
from ucutlass.ir.hardware import Device
from ucutlass.ir.schedule import PartialSchedule, scheduled, show
from ucutlass.pipeline.planning import Draw
from ucutlass.runtime.errors import StoreError
from ucutlass.tune.database import TunedRow, TuningDatabase, key_of
from ucutlass.tune.origin import Origin, written
from ucutlass.units import duration


class UnreadableWarning(UserWarning):
    """Warns that the tuning database could not be read: the kernel was planned as if nothing were
    recorded."""


class NotLegalWarning(UserWarning):
    """Warns that a recorded schedule breaks a rule by now, and was ignored."""


def recall(
    checked: Checked,
    program: ir.Kernel,
    sizes: Sequence[int],
    arch: str,
    gpu: str,
    device: Device | None = None,
    *,
    beyond: bool,
    database: TuningDatabase | None = None,
) -> tuple[ir.Kernel, Origin]:
    """Returns the kernel with the schedule that is recorded for exactly this GPU (the driver's name), program
    and extents (in the order of `program.dims`), or as it is.

    `beyond` takes it whatever the program says; else it must be one that the program denotes: it agrees
    with all that the block which holds fixes. An unreadable database and a schedule that is not legal
    any more are warnings. Raises ProgramError as `plan_kernel`, for a program without a legal kernel.
    """
    own = written(program, sizes, arch)
    try:
        row = (database or TuningDatabase.open()).find(key_of(program, sizes, gpu, arch))
    except StoreError as problem:
        warnings.warn(f"no tuned schedule was looked up: {problem}", UnreadableWarning, stacklevel=2)
        return program, Origin(own.kind, note="the tuning database could not be read")
    if row is None:
        return program, own
    if not beyond and not allowed_by_program(program, sizes, arch, row.request):
        note = f"a tuned one of {duration(row.microseconds * 1e-6)} that it does not denote is recorded"
        return program, Origin(own.kind, note=note)
    tuned = scheduled(program, arch, row.request)
    try:
        plan_kernel(checked, tuned, sizes, arch, device)
    except ProgramError as problem:
        rule = f"{problem.diagnostics[0].message} [{problem.diagnostics[0].code}]"
        words = f"the recorded schedule of {program.name} ({show(row.request)}) is not legal any more"
        warnings.warn(f"{words}, so it was ignored: {rule}", NotLegalWarning, stacklevel=2)
        return program, Origin(own.kind, note="the recorded one is not legal any more")
    return tuned, Origin("tuned", row)


def draw_recorded(checked: Checked, arch: str, gpu: str, device: Device | None) -> Draw:
    """Returns what puts the recorded schedule, where there is one, into each kernel of a program, as `recall`
    does beyond what the program says."""

    def draw(kernel: ir.Kernel, sizes: tuple[int, ...]) -> ir.Kernel:
        return recall(checked, kernel, sizes, arch, gpu, device, beyond=True)[0]

    return draw


def rows_by_gpu(
    program: ir.Kernel, sizes: Sequence[int], arch: str, database: TuningDatabase | None = None
) -> Mapping[str, TunedRow]:
    """Returns what is recorded for this program and these extents, by the GPU's name as the driver gives it.

    Raises StoreError."""
    store = database or TuningDatabase.open()
    names = store.devices(key_of(program, sizes, "", arch))
    rows = {name: store.find(key_of(program, sizes, name, arch)) for name in names}
    return {name: row for name, row in rows.items() if row is not None}


def recorded(
    program: ir.Kernel, sizes: Sequence[int], arch: str, database: TuningDatabase | None = None
) -> bool:
    """Returns whether anything is recorded for this program and these extents, on whatever GPU. A database
    that cannot be read may hold it: `recall` then says so."""
    try:
        return bool((database or TuningDatabase.open()).devices(key_of(program, sizes, "", arch)))
    except StoreError:
        return True


def allowed_by_program(program: ir.Kernel, sizes: Sequence[int], arch: str, request: PartialSchedule) -> bool:
    """Returns whether a schedule is one of those that the program stands for at these extents: it has every
    value that one alternative of the block which holds fixes. A program without one fixes nothing."""
    alternatives_given = [r.fixed() for _, r in alternatives(matching(program, sizes, arch))]
    return not alternatives_given or any(
        fields_given.items() <= request.fixed().items() for fields_given in alternatives_given
    )

"""Takes a confirmed source in place of the kernel that a program's text becomes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from ucutlass import backend, ir
from ucutlass.adopt import database as adopted
from ucutlass.adopt.database import AdoptedRow
from ucutlass.adopt.refusals import SourceRefused
from ucutlass.adopt.source import checked as checked_source
from ucutlass.backend import Built, build_adopted, toolchain
from ucutlass.diagnostics import ProgramError
from ucutlass.frontend import Checked, plan_kernel
from ucutlass.ir.hardware import Device
from ucutlass.runtime.entry_codes import LaunchError
from ucutlass.runtime.errors import BuildCancelled, BuildError, BuildTimedOut, MachineError, StoreError
from ucutlass.runtime.toolchain import Toolchain
from ucutlass.tune.database import TuningDatabase, key_of
from ucutlass.tune.origin import Origin
from ucutlass.units import duration

if TYPE_CHECKING:
    from ucutlass.runtime.launch import BoundKernel


class AdoptedSourceIgnored(UserWarning):
    """Warns that an adopted source is not used: the text's own kernel takes its place."""


def versions_of(tools: Toolchain) -> Mapping[str, str]:
    """Returns what decides the code that a source is compiled to, besides the source."""
    return MappingProxyType(
        {"nvcc": tools.nvcc.version, "host": tools.host.version, "cutlass": tools.cutlass.digest}
    )


def bound_adopted(
    checked: Checked, program: ir.Kernel, sizes: Sequence[int], arch: str, gpu: str, device: Device | None
) -> tuple[BoundKernel, Origin] | None:
    """Returns what `adopted_kernel` does, bound; None, with the warning, also where the entry does not answer."""
    own = adopted_kernel(checked, program, sizes, arch, gpu, device)
    if own is None:
        return None
    try:
        return backend.bind(own[0], program.name), own[1]
    except (LaunchError, MachineError) as problem:
        _ignored(program, str(problem))
        return None


def adopted_kernel(
    checked: Checked,
    program: ir.Kernel,
    sizes: Sequence[int],
    arch: str,
    gpu: str,
    device: Device | None = None,
    *,
    database: TuningDatabase | None = None,
) -> tuple[Built, Origin] | None:
    """Returns the kernel of a source that was confirmed on exactly this GPU (the driver's name) for this
    program and these extents (in the order of `program.dims`), built, and where it comes from.

    None where there is none, and with an AdoptedSourceIgnored where it cannot be used: another compiler than
    it was confirmed with, a build that fails, a row that cannot be read.
    """
    try:
        store = database or TuningDatabase.open()
        row = adopted.confirmed(store, key_of(program, sizes, gpu, arch))
    except StoreError as problem:
        _ignored(program, str(problem))
        return None
    if row is None:
        return None
    try:
        chosen = plan_kernel(checked, program, sizes, arch, device)
    except ProgramError:
        return None  # which the text's own kernel raises too
    if len(row.launch) != len(chosen.planned.plan.launch_parameters):
        _ignored(program, "it was adopted for other launch parameters; adopt it again")
        return None
    try:
        tools = versions_of(toolchain())
        if changed := [name for name, version in tools.items() if row.versions.get(name) != version]:
            _ignored(program, f"it was confirmed with another {' and '.join(changed)}; adopt it again")
            return None
        source = checked_source(row.text.encode(), "sm_" + arch.removeprefix("sm"))
        ours = replace(chosen, planned=replace(chosen.planned, launch=row.launch))
        return build_adopted(ours, source), Origin("adopted", note=_words(row))
    except (SourceRefused, BuildError, BuildTimedOut, BuildCancelled, MachineError) as problem:
        _ignored(program, str(problem))
        return None


def _words(row: AdoptedRow) -> str:
    record = f", record {row.records[0][:16]}" if row.records else ""
    return f"{row.source[:16]}, {duration(row.microseconds * 1e-6)}, {row.created[:10]}{record}"


def _ignored(program: ir.Kernel, why: str) -> None:
    words = f"the source adopted for {program.name} is not used: {why}"
    warnings.warn(words, AdoptedSourceIgnored, stacklevel=3)

"""From a plan to a loaded kernel: emit, build, load, bind. The way that `load` and `ucc` share."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cache
from threading import Event
from typing import Literal, TypeAlias

from ucutlass import ir
from ucutlass.diagnostics import Lines
from ucutlass.emit import emit
from ucutlass.emit.text import Source
from ucutlass.frontend import Checked, Chosen, plan_kernel
from ucutlass.hardware import Device
from ucutlass.header import header
from ucutlass.planner import Planned
from ucutlass.runtime.build import Artifact, build, make
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.entry_codes import LaunchError
from ucutlass.runtime.errors import BuildError
from ucutlass.runtime.launch import Bound
from ucutlass.runtime.library import Entry, EntryMissing, LibraryForeign, LibraryMissing, load_entry
from ucutlass.runtime.nvcc import CUTLASS_FOLDER, command_line
from ucutlass.runtime.parallel import Failure, build_many
from ucutlass.runtime.progress import OnProgress, ignore
from ucutlass.runtime.toolchain import Toolchain, find

Stage: TypeAlias = Literal["a"]
"""A way of building in stages, by the letter of `ucc build --stage`."""


def source_of(checked: Checked, program: ir.Kernel, planned: Planned) -> Source:
    """The stand-alone CUDA file of a plan; its header repeats program, plan and command."""
    arch = "sm_" + planned.plan.arch.removeprefix("sm")
    command = (CUTLASS_FOLDER, command_line(arch, "kernel.cu", "kernel.so"))
    return emit(planned.plan, header(checked, program, planned, command))


def build_planned(
    checked: Checked, program: ir.Kernel, planned: Sequence[Planned], *,
    stage: Stage | None = None, on_progress: OnProgress = ignore, cancel: Event | None = None,
    max_jobs: int | None = None, group: int = 1,
) -> tuple[Artifact | Failure, ...]:
    """Plans of one program, built as many at once as the machine takes, or `max_jobs`; a build that
    fails takes its place and stops no other. Raises ToolchainError."""
    sources = [source_of(checked, program, one) for one in planned]
    return build_many(
        sources, toolchain(), Cache.from_switches(), on_progress=on_progress, cancel=cancel,
        max_jobs=max_jobs, group=group,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Built:
    """A kernel that lies on disk, with what it was made from."""

    chosen: Chosen
    source: Source
    artifact: Artifact

    @property
    def planned(self) -> Planned:
        return self.chosen.planned


def build_kernel(
    checked: Checked, program: ir.Kernel, sizes: Sequence[int], arch: str, *,
    device: Device | None = None, aligned: Sequence[bool] | None = None, on_progress: OnProgress = ignore,
    stage: Stage | None = None,
) -> Built:
    """Plans, emits and builds (or finds in the cache) the kernel for these extents.

    `stage` "a" builds it from a skeleton and its arithmetic (`ucutlass.runtime.staged`).
    Raises ProgramError, and what `ucutlass.runtime.build.build` raises; with a `stage` also NotServed,
    and a ToolchainError where NVRTC or nvJitLink is missing.
    """
    chosen = plan_kernel(checked, program, sizes, arch, device, aligned)
    source = source_of(checked, program, chosen.planned)
    cache = Cache.from_switches()
    try:
        if stage is None:
            artifact = build(source, toolchain(), cache, on_progress=on_progress)
        else:
            # Here, since a plain load would pay 6 ms for wrappers of two compilers that it never calls.
            from ucutlass.emit.staged import stage as in_parts
            from ucutlass.runtime.staged import link

            parts = in_parts(chosen.planned.plan)
            recipe = link.recipe(source, parts, toolchain(), cache, on_progress)
            artifact = make(recipe, cache, on_progress=on_progress)
    except BuildError as refused:
        raise refused.about(place(checked, program)) from refused
    return Built(chosen, source, artifact)


def build_kernels(
    checked: Checked,
    wanted: Sequence[tuple[ir.Kernel, tuple[int, ...]]],
    arch: str,
    *,
    on_progress: OnProgress = ignore,
) -> tuple[Built | Failure, ...]:
    """Kernels with their extents, all planned first, then built as many at once as the machine takes.
    A build that fails takes its place and stops no other. Raises ProgramError, and ToolchainError.
    """
    chosen = [plan_kernel(checked, program, sizes, arch) for program, sizes in wanted]
    sources = [
        source_of(checked, program, one.planned) for (program, _), one in zip(wanted, chosen, strict=True)
    ]
    made = build_many(sources, toolchain(), Cache.from_switches(), on_progress=on_progress)
    return tuple(
        Built(one, source, artifact)
        if isinstance(artifact, Artifact)
        else artifact.about(place(checked, program))
        if isinstance(artifact, BuildError)
        else artifact
        for (program, _), one, source, artifact in zip(wanted, chosen, sources, made, strict=True)
    )


def place(checked: Checked, program: ir.Kernel) -> str:
    """The program's own line, as `file:line: text`."""
    lines = Lines(checked.source)
    at = lines.position(program.span.start)
    return f"{checked.file}:{at.line}: {lines.text(at.line).strip()}"


@cache
def toolchain() -> Toolchain:
    """This process's tool chain, found once. Raises ToolchainError."""
    return find()


class RebuiltWarning(UserWarning):
    """A library in the cache could not be loaded; it was put aside and built again."""


def bind(built: Built, name: str) -> Bound:
    """Loads a built kernel and asks how much workspace it needs for its extents.

    A library that does not load is put aside and built once more, with a RebuiltWarning.
    Raises LaunchError where the kernel refuses the extents, and what `load_entry` raises.
    """
    entry = _load(built)
    knobs = tuple(int(k) for k in astuple(built.planned.knobs))
    workspace = _workspace(entry, built.planned, knobs, name)
    return Bound(entry.address, knobs, workspace, entry)


def _load(built: Built) -> Entry:
    try:
        return load_entry(built.artifact.library, built.artifact.entry)
    except (LibraryForeign, LibraryMissing, EntryMissing) as broken:
        cache = Cache.from_switches()
        aside = cache.quarantine(built.artifact.key)
        warnings.warn(f"{broken}; put aside as {aside} and built again", RebuiltWarning, stacklevel=2)
        again = build(built.source, toolchain(), cache)
        return load_entry(again.library, again.entry)


_ENTRY = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 7)


def _workspace(entry: Entry, planned: Planned, knobs: tuple[int, ...], name: str) -> int:
    problem = planned.plan.problem
    size = ctypes.c_uint64(0)
    code = _ENTRY(entry.address)(
        (ctypes.c_void_p * max(1, problem.pointers))(),
        (ctypes.c_int64 * len(planned.sizes))(*planned.sizes),
        (ctypes.c_double * max(1, problem.scalars))(),
        (ctypes.c_int64 * len(knobs))(*knobs),
        None, ctypes.byref(size), None,
    )
    if code != 0:
        raise LaunchError(name, code)
    return size.value

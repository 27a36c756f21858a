"""Turns a plan into a loaded kernel: emit, build, load, bind; `load` and `ucc` share it."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from threading import Event
from types import MappingProxyType
from typing import TYPE_CHECKING, get_args

from ucutlass import ir
from ucutlass.diagnostics import Lines
from ucutlass.emit import NotServed, emit, in_parts, parts
from ucutlass.emit.text import Source
from ucutlass.frontend import Checked, ChosenPlan, plan_kernel
from ucutlass.header import Signature, header, signature_of
from ucutlass.ir.hardware import Device
from ucutlass.kernels.planned import Plan, Planned
from ucutlass.runtime import switches
from ucutlass.runtime.build import (
    BUILD_SECONDS,
    BUILDERS,
    DIVIDED,
    Artifact,
    Recipe,
    build,
    make,
    nvcc_recipe,
)
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.entry_codes import LaunchError
from ucutlass.runtime.errors import BuildError, ToolchainError
from ucutlass.runtime.library import EntryMissing, KernelEntry, LibraryForeign, LibraryMissing, load_entry
from ucutlass.runtime.nvcc import CUTLASS_FOLDER, command_line
from ucutlass.runtime.parallel import COMPILER_BYTES, BuildFailure, build_many, make_many
from ucutlass.runtime.progress import OnProgress, Progress, ignore
from ucutlass.runtime.switches import BuildPath
from ucutlass.runtime.toolchain import Toolchain, find
from ucutlass.runtime.translation_unit import UnitMember

if TYPE_CHECKING:
    from ucutlass.runtime.launch import BoundKernel


def source_of(checked: Checked, program: ir.Kernel, planned: Planned) -> Source:
    """Returns the stand-alone CUDA file of a plan; its header repeats program, plan and command. Raises
    NotServed for f32 by wgmma that no kernel serves."""
    return named_source(checked, signature_of(program), planned)


def named_source(checked: Checked, names: Signature, planned: Planned) -> Source:
    """Returns the file of a plan whose tensors have these names, as `source_of` does."""
    arch = "sm_" + planned.plan.arch.removeprefix("sm")
    one_file = (CUTLASS_FOLDER, command_line(arch, "kernel.cu", "kernel.so"))
    command = () if in_parts(planned.plan) else one_file
    return emit(planned.plan, header(checked, names, planned, command))


def build_planned(
    checked: Checked,
    program: ir.Kernel,
    planned: Sequence[Planned],
    *,
    build_path: BuildPath | None = None,
    on_progress: OnProgress = ignore,
    cancel: Event | None = None,
    max_jobs: int | None = None,
    group: int = 1,
) -> tuple[Artifact | BuildFailure, ...]:
    """Builds plans of one program in parallel, as many at once as the machine takes, or `max_jobs`. A failed
    build is returned in its kernel's place and stops no other. Raises as `build_sources` does."""
    pairs = [(source_of(checked, program, planned_kernel), planned_kernel.plan) for planned_kernel in planned]
    return build_sources(
        pairs, build_path=build_path, on_progress=on_progress, cancel=cancel, max_jobs=max_jobs, group=group
    )


def build_sources(
    pairs: Sequence[tuple[Source, Plan]],
    *,
    build_path: BuildPath | None = None,
    on_progress: OnProgress = ignore,
    cancel: Event | None = None,
    max_jobs: int | None = None,
    group: int = 1,
) -> tuple[Artifact | BuildFailure, ...]:
    """Works as `build_planned`, on sources with their plans. With `group` above 1, up to so many kernels that
    nvcc builds are one translation unit (`build_many`). Raises ToolchainError, and NotServed where a build path
    was chosen by its name and does not serve a plan."""
    cache, how = Cache.from_switches(), build_stage(build_path)
    if how == "nvcc":
        return build_many(
            [source for source, _ in pairs],
            toolchain(),
            cache,
            on_progress=on_progress,
            cancel=cancel,
            max_jobs=max_jobs,
            group=group,
        )
    from ucutlass.runtime.jit import artifact_keys

    # Layers of one kind share a kernel, whose files are then read once.
    distinct = {(source.code, source.arch): (source, plan) for source, plan in pairs}
    artifacts: dict[tuple[str, str], Artifact | BuildFailure | None] = {
        code: artifact_keys.artifact(source, how, toolchain(), cache)
        for code, (source, _) in distinct.items()
    }
    absent = [distinct[code] for code, artifact in artifacts.items() if artifact is None]
    recipes = [recipe_of(source, plan, how, cache, on_progress) for source, plan in absent]
    lean = all(
        recipe.builder == BUILDERS["nvrtc"] or _COLLECTIVES not in source.preamble
        for (source, _), recipe in zip(absent, recipes, strict=True)
    )
    results = make_many(
        [
            UnitMember(source, recipe) if recipe.builder == BUILDERS["nvcc"] else recipe
            for (source, _), recipe in zip(absent, recipes, strict=True)
        ],
        cache,
        on_progress=on_progress,
        cancel=cancel,
        max_jobs=max_jobs,
        compiler_bytes=LEAN_BYTES if lean else COMPILER_BYTES,
        group=group,
        toolchain=toolchain(),
    )
    for (source, _), result in zip(absent, results, strict=True):
        artifacts[source.code, source.arch] = result
        if isinstance(result, Artifact):
            artifact_keys.keep(source, how, toolchain(), cache, result.key)
    every = (artifacts[source.code, source.arch] for source, _ in pairs)
    return tuple(artifact for artifact in every if artifact is not None)


BUILD_PATH_OF: Mapping[str, BuildPath] = MappingProxyType(
    {BUILDERS[s]: s for s in get_args(BuildPath) if s in BUILDERS} | {DIVIDED: "nvrtc"}
)
"""By the builder's name in an artifact."""

LEAN_BYTES = 2**30
"""Memory that the compilers of one kernel may take that is lean or includes none of CUTLASS's collectives
(measured: 0.7 and 0.4 GB)."""

_COLLECTIVES = "collective_builder.hpp"


class NvrtcMissingWarning(UserWarning):
    """Kernels are built by nvcc, in tens of seconds since NVRTC or nvJitLink is missing."""


def build_stage(build_path: BuildPath | None) -> BuildPath:
    """Returns the build path, for None that of UCUTLASS_BUILD_PATH. Where NVRTC or nvJitLink is
    missing, "auto" becomes "nvcc", with a NvrtcMissingWarning once a process."""
    requested = build_path or switches.read().build_path
    return _automatic_stage() if requested == "auto" else requested


@cache
def _automatic_stage() -> BuildPath:
    from ucutlass.runtime.jit import nvjitlink, nvrtc

    nvcc = toolchain().nvcc
    try:
        nvrtc.locate(nvcc)
        nvjitlink.locate(nvcc)
    except ToolchainError as missing:
        words = f"kernels are built by nvcc, in tens of seconds each: {missing}"
        warnings.warn(words, NvrtcMissingWarning, stacklevel=2)
        return "nvcc"
    return "auto"


def recipe_of(
    source: Source, plan: Plan, build_path: BuildPath, cache: Cache, on_progress: OnProgress = ignore
) -> Recipe:
    """Returns how the plan's kernel is built. Raises NotServed where the build path does not serve it,
    and a ToolchainError where NVRTC or nvJitLink is missing."""
    if build_path == "nvcc":
        return nvcc_recipe(source, toolchain())
    # Here, since a plain load would pay 6 ms for wrappers of two compilers that it never calls.
    from ucutlass.emit.division import divide
    from ucutlass.runtime.jit import divided_build, link

    try:
        return link.recipe(source, parts(plan), toolchain(), cache, on_progress)
    except NotServed:
        pass  # it is one file
    try:
        return divided_build.recipe(source, divide(source), toolchain())
    except NotServed:
        if build_path == "nvrtc":
            raise
    return nvcc_recipe(source, toolchain())


def build_artifact(
    source: Source, plan: Plan, build_path: BuildPath, cache: Cache, on_progress: OnProgress = ignore
) -> Artifact:
    """Returns the kernel of a plan from the cache, or builds it. Raises as `ucutlass.runtime.build.build` and
    `recipe_of` do."""
    if build_path == "nvcc":
        return build(source, toolchain(), cache, on_progress=on_progress)
    from ucutlass.runtime.jit import artifact_keys

    cached = artifact_keys.artifact(source, build_path, toolchain(), cache)
    if cached is not None:
        on_progress(Progress("cached", source.entry, done=1))
        return cached
    artifact = make(recipe_of(source, plan, build_path, cache, on_progress), cache, on_progress=on_progress)
    artifact_keys.keep(source, build_path, toolchain(), cache, artifact.key)
    return artifact


@dataclass(frozen=True, slots=True)
class Built:
    """A kernel that is on disk, with what it was built from. `adopted`: the source was written by hand, and the
    plan says its launch parameters and the tiles that it is verified around, not what it does."""

    chosen: ChosenPlan
    source: Source
    artifact: Artifact
    adopted: bool = False

    @property
    def planned(self) -> Planned:
        return self.chosen.planned


def resized(built: Built, sizes: Sequence[int]) -> Built:
    """Returns the same kernel for other extents, which it may refuse as it is bound or launched; its estimate is of
    those that it was planned for."""
    return replace(built, chosen=replace(built.chosen, planned=replace(built.planned, sizes=tuple(sizes))))


def adopted_recipe(source: Source, limit_seconds: float = BUILD_SECONDS) -> Recipe:
    """Returns how a source that was written by hand is built: as nvcc builds an emitted one, and its object and
    PTX are kept, which say more of it than the library does. Raises ToolchainError."""
    return nvcc_recipe(source, toolchain(), limit_seconds, parts=True)


def build_adopted(
    chosen: ChosenPlan,
    source: Source,
    *,
    limit_seconds: float = BUILD_SECONDS,
    on_progress: OnProgress = ignore,
) -> Built:
    """Builds a source that was written by hand in place of a plan's own, or finds it in the cache. Raises what
    `ucutlass.runtime.build.build` raises."""
    recipe = adopted_recipe(source, limit_seconds)
    artifact = make(recipe, Cache.from_switches(), on_progress=on_progress)
    return Built(chosen, source, artifact, adopted=True)


def build_kernel(
    checked: Checked,
    program: ir.Kernel,
    sizes: Sequence[int],
    arch: str,
    *,
    device: Device | None = None,
    aligned: Sequence[bool] | None = None,
    on_progress: OnProgress = ignore,
    build_path: BuildPath | None = None,
) -> Built:
    """Plans, emits and builds (or finds in the cache) the kernel for these extents.

    `build_path` says how; None takes UCUTLASS_BUILD_PATH. Raises ProgramError, what
    `ucutlass.runtime.build.build` raises, and as `recipe_of`.
    """
    chosen = plan_kernel(checked, program, sizes, arch, device, aligned)
    source = source_of(checked, program, chosen.planned)
    cache, how = Cache.from_switches(), build_stage(build_path)
    try:
        artifact = build_artifact(source, chosen.planned.plan, how, cache, on_progress)
    except BuildError as refused:
        raise refused.about(source_line(checked, program)) from refused
    return Built(chosen, source, artifact)


def build_kernels(
    checked: Checked,
    kernels: Sequence[tuple[ir.Kernel, tuple[int, ...]]],
    arch: str,
    *,
    build_path: BuildPath | None = None,
    on_progress: OnProgress = ignore,
) -> tuple[Built | BuildFailure, ...]:
    """Kernels with their extents, all planned first, then built as many at once as the machine takes.
    A build that fails takes its place and stops no other. Raises ProgramError, ToolchainError, and as
    `build_sources`.
    """
    chosen = [plan_kernel(checked, program, sizes, arch) for program, sizes in kernels]
    sources = [
        source_of(checked, program, plan.planned) for (program, _), plan in zip(kernels, chosen, strict=True)
    ]
    plans = [plan.planned.plan for plan in chosen]
    results = build_sources(
        list(zip(sources, plans, strict=True)), build_path=build_path, on_progress=on_progress
    )
    return tuple(
        Built(plan, source, artifact)
        if isinstance(artifact, Artifact)
        else artifact.about(source_line(checked, program))
        if isinstance(artifact, BuildError)
        else artifact
        for (program, _), plan, source, artifact in zip(kernels, chosen, sources, results, strict=True)
    )


def source_line(checked: Checked, program: ir.Kernel | ir.Stage) -> str:
    """Returns the program's own line, as `file:line: text`."""
    lines = Lines(checked.source)
    position = lines.position(program.span.start)
    return f"{checked.file}:{position.line}: {lines.text(position.line).strip()}"


@cache
def toolchain() -> Toolchain:
    """Returns this process's toolchain, which is found once. Raises ToolchainError."""
    return find()


class RebuiltWarning(UserWarning):
    """A library in the cache could not be loaded; it was quarantined and built again."""


def bind(built: Built, name: str) -> BoundKernel:
    """Loads a built kernel and asks how much workspace it needs for its extents.

    A library that does not load is quarantined and built once more, with a RebuiltWarning. Raises LaunchError
    where the kernel refuses the extents, and what `load_entry` raises.
    """
    from ucutlass.runtime.launch import BoundKernel  # here: builds need no torch, which takes a second

    entry = _load(built)
    launch_parameters = built.planned.launch
    workspace = _workspace(entry, built.planned, launch_parameters, name)
    return BoundKernel(entry.address, launch_parameters, workspace, entry)


def _load(built: Built) -> KernelEntry:
    try:
        return load_entry(built.artifact.library, built.artifact.entry)
    except (LibraryForeign, LibraryMissing, EntryMissing) as broken:
        cache = Cache.from_switches()
        aside = cache.quarantine(built.artifact.key)
        warnings.warn(f"{broken}; put aside as {aside} and built again", RebuiltWarning, stacklevel=2)
        build_path = BUILD_PATH_OF[built.artifact.builder]
        recipe = (
            adopted_recipe(built.source)
            if built.adopted
            else recipe_of(built.source, built.planned.plan, build_path, cache)
        )
        again = make(recipe, cache)
        return load_entry(again.library, again.entry)


_ENTRY = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 7)


def _workspace(entry: KernelEntry, planned: Planned, launch_parameters: tuple[int, ...], name: str) -> int:
    problem = planned.plan.problem
    size = ctypes.c_uint64(0)
    code = _ENTRY(entry.address)(
        (ctypes.c_void_p * max(1, problem.pointers))(),
        (ctypes.c_int64 * len(planned.sizes))(*planned.sizes),
        (ctypes.c_double * max(1, problem.scalars))(),
        (ctypes.c_int64 * max(1, len(launch_parameters)))(*launch_parameters),
        None,
        ctypes.byref(size),
        None,
    )
    if code != 0:
        raise LaunchError(name, code)
    return size.value

"""Takes a kernel from the cache, or builds it and puts it there.

A `Recipe` says what is made of what; `make` runs any recipe behind the cache, and every recipe ends
in the same `Artifact`. `build` is the reference path: one emitted file through nvcc.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ucutlass.runtime import nvcc, ptxas
from ucutlass.runtime.build_timings import Phases
from ucutlass.runtime.cache import FORMAT, Cache, CacheEntry, Corrupt
from ucutlass.runtime.errors import BuiltInPartsAlone, CacheUnusable
from ucutlass.runtime.progress import OnProgress, Progress, ignore
from ucutlass.runtime.toolchain import Toolchain

if TYPE_CHECKING:
    from ucutlass.emit.text import Source

BUILDERS: Mapping[str, str] = MappingProxyType({"nvcc": "nvcc", "nvrtc": "staged-b"})
"""By build path (`switches.BuildPath`), the builder's name in recipes, keys and artifacts. Caches and records
hold these names, so they stay as they are."""

BUILD_SECONDS = 1800.0
"""Time limit of one compiler run."""

_LOCK_SECONDS = BUILD_SECONDS + 60.0


DIVIDED = "divided"
"""The builder of kernels of one file that NVRTC and the host's compiler build (`ucutlass.runtime.jit.divided_build`)."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A built kernel on disk. `folder` holds `kernel.so`, `source.cu`, `build.log`, `build.json`.

    `command` makes it, with placeholders for folders; `versions` names the compilers and
    CUTLASS; `seconds` is the compiler's time when it was made; `report` is what ptxas said. `unit`
    names the entries that were compiled with it in one translation unit, itself among them, and so
    shared the time evenly; () where it was compiled alone. `phases` are the compilers' own account of
    the time, () where they gave none.
    Sources that differ in their header comment alone share an artifact, so `source` may carry
    the header of another program.
    """

    key: str
    folder: Path
    builder: str
    entry: str
    arch: str
    command: str
    versions: Mapping[str, str]
    seconds: float
    report: ptxas.PtxasReport
    unit: tuple[str, ...] = ()
    phases: Phases = ()

    @property
    def library(self) -> Path:
        return self.folder / nvcc.LIBRARY

    @property
    def source(self) -> Path:
        return self.folder / nvcc.SOURCE


@dataclass(frozen=True, slots=True)
class Produced:
    """What a recipe's `produce` hands back once its files lie in the folder."""

    seconds: float
    report: ptxas.PtxasReport
    unit: tuple[str, ...] = ()
    phases: Phases = ()


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one artifact is made.

    `material` is everything that its content depends on, as strings: no path, time, or variable of
    the environment. `produce` fills a folder with `kernel.so` and `source.cu`; it may be cancelled
    and raises MachineError, BuildError (after `keep`ing the folder), BuildTimedOut, BuildCancelled.
    """

    builder: str
    entry: str
    arch: str
    command: str
    versions: Mapping[str, str]
    material: Mapping[str, str]
    produce: Callable[[Path, Callable[[], Path], Event | None], Produced]

    @property
    def key(self) -> str:
        """Hex SHA-256 of the material; the same on every machine and in every process."""
        content = {"format": FORMAT, "builder": self.builder, "material": dict(self.material)}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def nvcc_recipe(
    source: Source, toolchain: Toolchain, limit_seconds: float = BUILD_SECONDS, *, parts: bool = False
) -> Recipe:
    """Returns the reference recipe; with `parts` the folder also holds the object and the PTX. Raises
    ArchUnknown, CompilerTooOld, and BuiltInPartsAlone."""
    if source.in_parts:
        raise BuiltInPartsAlone(
            f"{source.entry} multiplies f32 by wgmma, and nvcc alone does not build such kernels",
            "leave UCUTLASS_BUILD_PATH out or set it to `auto`, with NVRTC and nvJitLink installed "
            "(`ucc doctor` tells), or write `warps multistage` in the schedule",
        )
    versions = toolchain.versions

    def produce(folder: Path, keep: Callable[[], Path], cancel: Event | None) -> Produced:
        compiled = nvcc.compile_source(source, toolchain, folder, keep, cancel, limit_seconds, parts=parts)
        return Produced(compiled.seconds, compiled.report, phases=compiled.phases)

    return Recipe(
        builder=BUILDERS["nvcc"],
        entry=source.entry,
        arch=source.arch,
        command=nvcc.command_line(source.arch, nvcc.SOURCE, nvcc.LIBRARY),
        versions=versions,
        material={
            **versions,
            "headers": toolchain.cutlass.digest,
            "flags": " ".join(nvcc.flags(source.arch, toolchain.nvcc.version)),
            "code": source.code,
            **({"parts": f"{nvcc.OBJECT} {nvcc.PTX}"} if parts else {}),
        },
        produce=produce,
    )


def build(
    source: Source,
    toolchain: Toolchain,
    cache: Cache,
    *,
    on_progress: OnProgress = ignore,
    cancel: Event | None = None,
    limit_seconds: float = BUILD_SECONDS,
) -> Artifact:
    """Returns the library of one emitted file: from the cache, or by nvcc.

    Raises BuildError where nvcc refuses the source, BuildTimedOut, BuildCancelled, ArchUnknown, and
    a MachineError (ToolchainError, CacheError) where the machine is at fault.
    """
    return make(nvcc_recipe(source, toolchain, limit_seconds), cache, on_progress=on_progress, cancel=cancel)


def make(
    recipe: Recipe, cache: Cache, *, on_progress: OnProgress = ignore, cancel: Event | None = None
) -> Artifact:
    """Returns the artifact of a recipe; at most one process makes it, the others wait and take it."""
    key = recipe.key
    if isinstance(cached_entry := cache.load(key), CacheEntry):
        return _served(cached_entry, recipe, on_progress)

    def waiting(holder: str) -> None:
        on_progress(Progress("waiting", recipe.entry, holder))

    with cache.locked(key, timeout_seconds=_LOCK_SECONDS, cancel=cancel, on_wait=waiting):
        match cache.load(key):
            case CacheEntry() as cached:
                return _served(cached, recipe, on_progress)
            case Corrupt(_, _, reason):
                place = cache.quarantine(key)
                on_progress(Progress("quarantined", recipe.entry, f"{reason}; put aside as {place}"))
        on_progress(Progress("compiling", recipe.entry))
        entry = _produce(recipe, cache, cancel)
    cache.tidy_if_due()
    artifact = _artifact(entry)
    on_progress(Progress("built", recipe.entry, seconds=artifact.seconds, done=1))
    return artifact


def cached_artifact(key: str, cache: Cache) -> Artifact | None:
    """Returns the artifact of this key, if the cache has it whole. Raises CacheError."""
    entry = cache.load(key)
    return _artifact(entry) if isinstance(entry, CacheEntry) else None


def _served(entry: CacheEntry, recipe: Recipe, on_progress: OnProgress) -> Artifact:
    on_progress(Progress("cached", recipe.entry, done=1))
    return _artifact(entry)


def _produce(recipe: Recipe, cache: Cache, cancel: Event | None) -> CacheEntry:
    with cache.staging(recipe.key) as folder:
        produced = recipe.produce(folder, lambda: cache.keep_failure(recipe.key, folder), cancel)
        about: dict[str, Any] = {
            "builder": recipe.builder,
            "entry": recipe.entry,
            "arch": recipe.arch,
            "command": recipe.command,
            "versions": dict(recipe.versions),
            "seconds": produced.seconds,
            "report": produced.report.to_json(),
            "unit": list(produced.unit),
            "phases": [list(phase) for phase in produced.phases],
        }
        return cache.publish(recipe.key, folder, about)


def _artifact(entry: CacheEntry) -> Artifact:
    about = entry.about
    try:
        return Artifact(
            key=entry.key,
            folder=entry.folder,
            builder=about["builder"],
            entry=about["entry"],
            arch=about["arch"],
            command=about["command"],
            versions=about["versions"],
            seconds=about["seconds"],
            report=ptxas.PtxasReport.from_json(about["report"]),
            unit=tuple(about.get("unit", ())),
            phases=tuple((str(name), float(seconds)) for name, seconds in about.get("phases", ())),
        )
    except (KeyError, TypeError, ValueError) as error:
        words = f"{entry.folder} was written by another version ({error!r})"
        raise CacheUnusable(words, "ucc cache clear") from error

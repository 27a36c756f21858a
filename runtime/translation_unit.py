"""Compiles several kernels as one translation unit.

Most of a build is the compiler's work on CUTLASS's headers, which kernels of one unit share. Each
kernel still gets an entry of its own in the cache, under the key that it has when it is built alone;
the library, which has them all, is the same file in each.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, TypeAlias

from ucutlass.files import put
from ucutlass.runtime import nvcc
from ucutlass.runtime.build import BUILD_SECONDS, Artifact, Produced, Recipe, make
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.progress import OnProgress, Progress
from ucutlass.runtime.toolchain import Toolchain

if TYPE_CHECKING:
    from ucutlass.emit.text import Source


@dataclass(frozen=True, slots=True)
class UnitMember:
    """A source with the recipe that would build it alone."""

    source: Source
    recipe: Recipe


Unit: TypeAlias = tuple[UnitMember, ...]


def units(members: Sequence[UnitMember], most: int, workers: int, others: int = 0) -> tuple[Unit, ...]:
    """Returns members in units of at most `most`; only those of one architecture and one preamble meet.

    Units are no larger than keeps the workers busy that do not build one of `others`, and at least a quarter of
    all workers: a further kernel takes a sixth of what the headers of a unit take.
    """
    builders = max(workers - others, workers // 4, 1)
    size = max(1, min(most, -(-len(members) // builders)))
    alike: dict[tuple[str, str], list[UnitMember]] = {}
    for member in members:
        alike.setdefault((member.source.arch, member.source.preamble), []).append(member)
    return tuple(tuple(group[i : i + size]) for group in alike.values() for i in range(0, len(group), size))


def build_unit(
    unit: Unit,
    toolchain: Toolchain,
    cache: Cache,
    *,
    on_progress: OnProgress,
    cancel: Event | None = None,
    limit_seconds: float = BUILD_SECONDS,
) -> Mapping[str, Artifact]:
    """Returns the artifacts by key. Where another process made one meanwhile, its artifact is taken.

    Raises what `ucutlass.runtime.build.build` raises, of all members together.
    """
    entries = tuple(member.source.entry for member in unit)
    key = hashlib.sha256(" ".join(member.recipe.key for member in unit).encode()).hexdigest()
    for member in unit:
        on_progress(Progress("compiling", member.source.entry, f"in one unit with {len(unit) - 1} others"))
    with cache.locked(key, timeout_seconds=limit_seconds + 60.0, cancel=cancel), cache.staging(key) as folder:
        compiled = nvcc.compile_unit(
            [member.source for member in unit],
            toolchain,
            folder,
            lambda: cache.keep_failure(key, folder),
            cancel,
            limit_seconds,
        )
        return {
            member.recipe.key: _publish(member, folder, compiled, entries, cache, on_progress)
            for member in unit
        }


def _publish(
    member: UnitMember,
    unit_folder: Path,
    compiled: nvcc.Compiled,
    unit: tuple[str, ...],
    cache: Cache,
    on_progress: OnProgress,
) -> Artifact:
    def produce(folder: Path, _keep: object, _cancel: object) -> Produced:
        put(folder / nvcc.SOURCE, member.source.text)
        shutil.copyfile(unit_folder / nvcc.LOG, folder / nvcc.LOG)
        _link(unit_folder / nvcc.LIBRARY, folder / nvcc.LIBRARY)
        return Produced(
            round(compiled.seconds / len(unit), 3),
            compiled.report.of(member.source.entry),
            unit,
            tuple((name, round(seconds / len(unit), 3)) for name, seconds in compiled.phases),
        )

    def forward_progress(event: Progress) -> None:
        if event.kind != "compiling":
            on_progress(event)

    return make(replace(member.recipe, produce=produce), cache, on_progress=forward_progress)


def _link(library: Path, place: Path) -> None:
    """One file in every entry, which the loader then maps once; a copy where there are no links."""
    try:
        os.link(library, place)
    except OSError:
        shutil.copyfile(library, place)

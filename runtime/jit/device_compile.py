"""Runs NVRTC and nvJitLink in a process of their own, which a time limit or a cancellation ends."""

from __future__ import annotations

import errno
import functools
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event
from types import MappingProxyType

from ucutlass.files import put
from ucutlass.runtime import nvcc, process
from ucutlass.runtime.build_timings import Phases
from ucutlass.runtime.errors import BuildError, CompilerUnusable
from ucutlass.runtime.jit import compiler_process

_DEPTH = compiler_process.__name__.count(".")
"""Folders between this file and that of the package. Not resolved: a checkout links its folders."""

_JOB, _SECONDS = "device.json", "device_seconds.json"

_FULL: Mapping[int, str] = MappingProxyType(
    {
        compiler_process.FULL[errno.ENOSPC]: "No space left on device",
        compiler_process.FULL[errno.EDQUOT]: "Disk quota exceeded",
    }
)
"""What a compiler would have said, by the worker's exit status."""


@dataclass(frozen=True, slots=True)
class NvrtcCompile:
    """NVRTC on one file; all names lie in the folder of the build. `headers` are texts by the names that are included.
    The names of `kernels` in the image are written beside it, under the name that `names_of` reads."""

    source: str
    out: str
    options: tuple[str, ...]
    headers: Mapping[str, str] = field(default_factory=dict)
    kernels: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        return {
            "source": self.source,
            "out": self.out,
            "options": self.options,
            "headers": dict(self.headers),
            "kernels": self.kernels,
        }


@dataclass(frozen=True, slots=True)
class NvJitLinkStep:
    """nvJitLink, as `nvjitlink.locate` found it, on LTO-IR; `parts` are paths, `out` the image's name in the folder of the build."""

    nvjitlink: str
    parts: tuple[str, ...]
    out: str
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CompilerOutput:
    """What the compilers said, and where their seconds went."""

    log: str
    phases: Phases


def run(
    entry: str,
    folder: Path,
    compiler: str,
    compiles: Sequence[NvrtcCompile],
    link: NvJitLinkStep | None,
    *,
    log: str,
    command: str,
    keep: Callable[[], Path],
    cancel: Event | None,
    limit_seconds: float,
) -> CompilerOutput:
    """Runs the compilers in `folder`, their words in its file `log`; `compiler` is NVRTC as `nvrtc.locate` found it.

    Raises BuildError (after `keep`ing the folder; `command` is what a person runs to see it again),
    BuildTimedOut, BuildCancelled, and a MachineError as nvcc's refusals do.
    """
    job = {
        "nvrtc": compiler,
        "compile": [unit.to_json() for unit in compiles],
        "link": None if link is None else asdict(link),
        "seconds": _SECONDS,
    }
    put(folder / _JOB, json.dumps(job))
    ended = process.run(
        [sys.executable, "-m", compiler_process.__name__, _JOB],
        folder=folder,
        env=_environment(),
        log=folder / log,
        limit_seconds=limit_seconds,
        cancel=cancel,
    )
    output = (folder / log).read_text(encoding="utf-8", errors="replace")
    status = process.exit_status(entry, ended, limit_seconds)
    if status == compiler_process.REFUSED:
        errors = nvcc.first_errors(output, 1)
        kept_folder = keep()
        raise BuildError(entry, errors, kept_folder / _source(compiles), kept_folder / log, command)
    if status != 0:
        words, compilers = _FULL.get(status, output), "NVRTC" if link is None else "NVRTC or nvJitLink"
        raise nvcc.refusal(entry, status, words, keep, command, compilers, _source(compiles))
    phases = json.loads((folder / _SECONDS).read_text(encoding="utf-8"))
    for name in (_JOB, _SECONDS):
        (folder / name).unlink()
    return CompilerOutput(output, tuple((str(name), float(seconds)) for name, seconds in phases))


def names_of(folder: Path, out: str) -> tuple[str, ...]:
    """Returns the kernels' names in an image, in the order of `NvrtcCompile.kernels`."""
    file = folder / f"{out}{compiler_process.NAMES}"
    return tuple(str(name) for name in json.loads(file.read_text(encoding="utf-8")))


def _source(compiles: Sequence[NvrtcCompile]) -> str:
    return compiles[-1].source if compiles else nvcc.SOURCE


def _environment() -> dict[str, str]:
    """Returns the caller's, with the folder of this package before all others: a program that put it on
    `sys.path` by itself has children that would not find it."""
    here = str(Path(__file__).absolute().parents[_DEPTH])
    path = os.pathsep.join(p for p in (here, os.environ.get("PYTHONPATH", "")) if p)
    return {**os.environ, "LC_ALL": "C", "PYTHONPATH": path}


def cuda_headers(compiler: Path) -> tuple[Path, ...]:
    """Where nvcc itself finds CUDA's headers, CCCL's first. Raises CompilerUnusable."""
    folders = _folders(compiler, "INCLUDES")
    if not any((path / "cuda.h").is_file() for path in folders):
        raise CompilerUnusable(f"{compiler} --dryrun names no folder with cuda.h", "ucc doctor")
    return tuple(sorted(folders, key=lambda path: (path / "cuda.h").is_file()))


def cuda_libraries(compiler: Path) -> tuple[Path, ...]:
    """Where nvcc itself finds CUDA's libraries. Raises CompilerUnusable."""
    return _folders(compiler, "LIBRARIES")


def _folders(compiler: Path, name: str) -> tuple[Path, ...]:
    """The folders of a line of nvcc's account of itself that exist."""
    lines = re.findall(rf"^#\$ (?:SYSTEM_)?{name}=(.*)$", _account(compiler), re.MULTILINE)
    named = [Path(path) for line in lines for path in re.findall(r'"(?:-I|-L|-isystem=?)?([^"]+)"', line)]
    return tuple(path for path in named if path.is_dir())


@functools.cache
def _account(compiler: Path) -> str:
    try:
        return process.output([str(compiler), "--dryrun", "-x", "cu", os.devnull], 60).err
    except OSError as error:
        raise CompilerUnusable(f"{compiler} --dryrun does not run: {error}", "ucc doctor") from error

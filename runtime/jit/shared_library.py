"""Locates NVIDIA's compilers that are shared libraries, each in the version of nvcc.

The parts of a kernel pass between nvcc's headers, NVRTC and nvJitLink, so that all three are of one CUDA. An environment may hold
several: PyTorch brings its own, a toolkit another.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ucutlass.runtime import switches, version_cache
from ucutlass.runtime.errors import ToolchainError

if TYPE_CHECKING:
    from ucutlass.runtime.toolchain import Nvcc

CudaVersion = tuple[int, int]


class Query(Protocol):
    """Asks a library of its version, and loads it for that. Raises OSError where it does not load."""

    def __call__(self, library: str) -> CudaVersion: ...


@dataclass(frozen=True, slots=True)
class CompilerLibrary:
    """A compiler that is a library: `stem` of its files' names, and its package on PyPI."""

    name: str
    stem: str
    package: str
    missing: type[ToolchainError]
    ask: Query

    def soname(self, cuda: CudaVersion) -> str:
        return f"{self.stem}.so.{cuda[0]}"

    def install(self, cuda: CudaVersion) -> str:
        """The command that installs the library of this CUDA; PyPI's packages have had no suffix since CUDA 13."""
        suffix = f"-cu{cuda[0]}" if cuda[0] < 13 else ""
        return f"pip install '{self.package}{suffix}=={cuda[0]}.{cuda[1]}.*'"


@functools.cache
def locate(library: CompilerLibrary, nvcc: Nvcc) -> str:
    """Returns the library of nvcc's version as `load` takes it: a file of PyPI's packages, of nvcc's toolkit, of LD_LIBRARY_PATH
    or where NVIDIA installs, else the name that the system's loader knows. Raises `library.missing` where all found
    are of other versions, or there is none."""
    cuda = cuda_of(nvcc)
    soname = library.soname(cuda)
    candidates = [str(path) for folder in _folders(nvcc) if (path := folder / soname).is_file()]
    for candidate in (*candidates, soname):
        with suppress(OSError):
            if _version(library, candidate) == cuda:
                return candidate
    others = [f"{version} ({place})" for version, place in _versions(library, nvcc)]
    words = f"nvcc {nvcc.version} ({nvcc.path}) needs {library.name} of CUDA {cuda[0]}.{cuda[1]}; found: {', '.join(others) or 'none'}"
    fix = f"{library.install(cuda)}, or set {switches.CUDA_HOME} to a toolkit whose version is that of {library.name}"
    raise library.missing(words, fix if others else library.install(cuda))


def cuda_of(nvcc: Nvcc) -> CudaVersion:
    major, minor = nvcc.version.split(".")[:2]
    return int(major), int(minor)


def load(library: str, siblings: str = "") -> ctypes.CDLL:
    """Loads what `locate` returned. `siblings` is a pattern of libraries in the same folder that it opens later by their bare
    names, which the system's loader finds once they are loaded. Raises OSError."""
    path = Path(library)
    if siblings and path.is_absolute():
        for other in sorted(path.parent.glob(siblings)):
            ctypes.CDLL(str(other))
    return ctypes.CDLL(library)


def _version(library: CompilerLibrary, place: str) -> CudaVersion:
    """Loads the library only where its version is not remembered, or the system's loader alone knows its file."""

    def version_text() -> str:
        return "{}.{}".format(*library.ask(place))

    path = Path(place)
    text = version_cache.version(path, version_text) if path.is_absolute() else version_text()
    major, minor = text.split(".")
    return int(major), int(minor)


def _versions(library: CompilerLibrary, nvcc: Nvcc) -> Iterator[tuple[str, str]]:
    """Versions and places of all that is there, of whichever CUDA."""
    places = dict.fromkeys(
        path.resolve()
        for folder in _folders(nvcc)
        for path in sorted(folder.glob(f"{library.stem}.so.[0-9]*"))
    )
    for place in places:
        try:
            yield "{}.{}".format(*_version(library, str(place))), str(place)
        except (OSError, ToolchainError) as error:
            yield f"one that does not load, {error}", str(place)


_SYSTEM = tuple(
    Path(folder) for folder in ("/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib")
)
"""Where NVIDIA's installers lay the toolkit, and tell the loader of."""


def _folders(nvcc: Nvcc) -> Iterator[Path]:
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations if spec else None) or ():
        yield from sorted(Path(place).glob("*/lib"))
    toolkit = nvcc.path.resolve().parent.parent
    yield from (toolkit / folder for folder in ("lib64", "lib", "targets/x86_64-linux/lib"))
    yield from (Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder)
    yield from _SYSTEM

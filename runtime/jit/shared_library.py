"""Locates NVIDIA's compilers that are shared libraries, and reads their versions."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from ucutlass.runtime import version_cache


def load(soname: str, siblings: str = "") -> ctypes.CDLL:
    """Returns the library of this name: from PyPI's CUDA packages, else where the system's loader looks.

    `siblings` is a pattern of libraries in the same folder that it opens later by their bare names,
    which the system's loader finds once they are loaded. Raises OSError where there is none.
    """
    path = find(soname)
    if path is None:
        return ctypes.CDLL(soname)
    for other in sorted(path.parent.glob(siblings)) if siblings else ():
        ctypes.CDLL(str(other))
    return ctypes.CDLL(str(path))


def find(soname: str) -> Path | None:
    """Returns the file that `load` would load, where it can be told without: in PyPI's packages, or on
    LD_LIBRARY_PATH, or where NVIDIA installs. None elsewhere: the system's loader alone knows."""
    named = (Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder)
    candidates = (folder / soname for folder in (*_pypi_folders(), *named, *_SYSTEM))
    return next((path for path in candidates if path.is_file()), None)


def version(soname: str, ask: Callable[[], tuple[int, int]]) -> tuple[int, int]:
    """Returns what `ask` says of the library of this name, which loads it, or said when it was asked
    last."""

    def version_text() -> str:
        return "{}.{}".format(*ask())

    path = find(soname)
    major, minor = (version_text() if path is None else version_cache.version(path, version_text)).split(".")
    return int(major), int(minor)


_SYSTEM = tuple(
    Path(folder) for folder in ("/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib")
)
"""Where NVIDIA's installers lay the toolkit, and tell the loader of."""


def _pypi_folders() -> Iterator[Path]:
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations if spec else None) or ():
        yield from sorted(Path(place).glob("*/lib"))

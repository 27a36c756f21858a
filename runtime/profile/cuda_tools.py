"""Locates NVIDIA's command-line tools."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from ucutlass.runtime import switches


def find(name: str, environ: Mapping[str, str]) -> Path | None:
    """Returns a program of the CUDA toolkit: in UCUTLASS_CUDA_HOME, CUDA_HOME, CUDA_PATH, PATH, beside nvcc,
    in the toolkit's usual folder, PyPI's CUDA packages, or Nsight Compute's own folders. None where it is
    nowhere. Raises SwitchError."""
    return next((p for p in _candidates(name, environ) if os.access(p, os.X_OK)), None)


def _candidates(name: str, environ: Mapping[str, str]) -> Iterator[Path]:
    named = switches.read(environ).cuda_home
    homes = [str(named or ""), environ.get("CUDA_HOME", ""), environ.get("CUDA_PATH", "")]
    yield from (Path(home) / "bin" / name for home in homes if home)
    path = environ.get("PATH", os.defpath)
    if on_path := shutil.which(name, path=path):
        yield Path(on_path)
    if nvcc := shutil.which("nvcc", path=path):
        yield Path(nvcc).resolve().parent / name
    yield Path("/usr/local/cuda/bin") / name
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations if spec else None) or ():
        yield from (folder / name for folder in sorted(Path(place).glob("cu*/bin"), reverse=True))
    yield from sorted(Path("/opt/nvidia/nsight-compute").glob(f"*/{name}"), reverse=True)

"""Reads every environment switch of the library. Nothing else in the library reads UCUTLASS_ variables."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypeAlias, get_args

import platformdirs

from ucutlass.runtime.errors import SwitchError

CACHE_DIR = "UCUTLASS_CACHE_DIR"
CACHE_SIZE = "UCUTLASS_CACHE_SIZE"
BUILD_JOBS = "UCUTLASS_BUILD_JOBS"
CUDA_HOME = "UCUTLASS_CUDA_HOME"
BUILD_PATH = "UCUTLASS_BUILD_PATH"
BUILD_STAGE = "UCUTLASS_BUILD_STAGE"
"""The former name of BUILD_PATH. It is read where BUILD_PATH is not set."""
DATA_DIR = "UCUTLASS_DATA_DIR"
CHECK = "UCUTLASS_CHECK"
AVERAGES_AHEAD = "UCUTLASS_AVERAGES_AHEAD"

DESCRIPTIONS: Mapping[str, str] = {
    CACHE_DIR: "folder of built kernels (default: the user's cache folder)",
    CACHE_SIZE: "size from which the least recently used kernels are removed, such as 500M (default 10G)",
    BUILD_JOBS: "compilers run at once (default: what cores and free memory allow)",
    BUILD_PATH: "how kernels are built: nvrtc, nvcc or auto, which takes nvrtc where it serves a kernel, "
    "else nvcc (default auto)",
    CUDA_HOME: "folder of the CUDA toolkit (default: CUDA_HOME, CUDA_PATH, PATH, PyPI's packages)",
    DATA_DIR: "folder of evidence and calibrations (default: the user's data folder)",
    CHECK: "1 compares the first call of each program of a PyTorch module with the float64 reference "
    "(default 0)",
    AVERAGES_AHEAD: "0 leaves averages and sums of products of a PyTorch module behind the products (default 1)",
}
"""Name to meaning, for help texts."""

BuildPath: TypeAlias = Literal["nvcc", "nvrtc", "auto"]
"""How a kernel is built. `nvcc` compiles one file. `nvrtc` compiles a kernel of this package's
own collectives by NVRTC and links the epilogue's arithmetic into it, or divides the one file between NVRTC and the host's
compiler. `auto` is `nvrtc` where that serves a plan, else `nvcc`."""

FORMER_BUILD_PATHS: Mapping[str, BuildPath] = MappingProxyType({"plain": "nvcc", "b": "nvrtc"})
"""Former names of build paths, which records and scripts hold, with what they are called now."""

REMOVED_BUILD_PATHS: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(("lto", "a"), "this build path was removed: take auto, nvrtc or nvcc")
)
"""Names of build paths that no longer exist, with what to take. Old records hold them."""

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_DEFAULT_CACHE_BYTES = 10 * 2**30
DEFAULT_BUILD_PATH: BuildPath = "auto"


@dataclass(frozen=True, slots=True)
class Switches:
    """`cache_bytes` counts bytes; `jobs` and `cuda_home` are None where not set."""

    cache_dir: Path
    cache_bytes: int
    jobs: int | None
    cuda_home: Path | None
    data_dir: Path
    build_path: BuildPath
    check: bool
    averages_ahead: bool


def read(environ: Mapping[str, str] | None = None) -> Switches:
    """Returns the switches as the environment sets them; an empty value counts as not set.

    Raises SwitchError for a value that cannot be read.
    """
    env = os.environ if environ is None else environ
    return Switches(
        cache_dir=_folder(env, CACHE_DIR) or platformdirs.user_cache_path("ucutlass", appauthor=False),
        cache_bytes=_bytes(env, CACHE_SIZE, _DEFAULT_CACHE_BYTES),
        jobs=_count(env, BUILD_JOBS),
        cuda_home=_folder(env, CUDA_HOME),
        data_dir=_folder(env, DATA_DIR) or platformdirs.user_data_path("ucutlass", appauthor=False),
        build_path=_build_path(env),
        check=_flag(env, CHECK),
        averages_ahead=_flag(env, AVERAGES_AHEAD, "1"),
    )


def build_path_named(name: str) -> BuildPath | None:
    """Returns the build path of this name, also of a former one; None where there is none."""
    if name in FORMER_BUILD_PATHS:
        return FORMER_BUILD_PATHS[name]
    return next((path for path in get_args(BuildPath) if path == name), None)


def _build_path(env: Mapping[str, str]) -> BuildPath:
    switch = BUILD_PATH if env.get(BUILD_PATH) else BUILD_STAGE
    value = env.get(switch) or DEFAULT_BUILD_PATH
    path = build_path_named(value)
    if path is None:
        choices = f"one of {', '.join(get_args(BuildPath))}"
        raise SwitchError(switch, value, REMOVED_BUILD_PATHS.get(value, choices))
    return path


def _folder(env: Mapping[str, str], name: str) -> Path | None:
    if not (value := env.get(name)):
        return None
    path = Path(value).expanduser()
    if not path.is_absolute():
        raise SwitchError(name, value, "an absolute path, such as /data/ucutlass")
    return path


def _bytes(env: Mapping[str, str], name: str, default: int) -> int:
    if not (value := env.get(name)):
        return default
    match = re.fullmatch(r"(\d{1,15})([KMGT]?)i?B?", value.strip(), re.IGNORECASE | re.ASCII)
    if match is None:
        raise SwitchError(name, value, "a number of bytes with an optional K, M, G or T, such as 20G")
    return int(match[1]) * _UNITS[match[2].upper()]


def _flag(env: Mapping[str, str], name: str, default: str = "0") -> bool:
    value = (env.get(name) or default).strip()
    if value not in ("0", "1"):
        raise SwitchError(name, value, "0 or 1")
    return value == "1"


def _count(env: Mapping[str, str], name: str) -> int | None:
    if not (value := env.get(name)):
        return None
    if not re.fullmatch(r"[1-9]\d{0,3}", value.strip(), re.ASCII):
        raise SwitchError(name, value, "a whole number from 1 to 9999, such as 4")
    return int(value)

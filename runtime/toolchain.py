"""Finds what a build needs: nvcc, a host compiler, the CUTLASS headers.

nvcc is looked for in UCUTLASS_CUDA_HOME, CUDA_HOME, CUDA_PATH, PATH and PyPI's CUDA 13 packages,
in this order; the first place that is set and holds an nvcc wins. A switch or variable that is
set and holds none is an error, not a reason to look further.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ucutlass.runtime import nvcc_paths, process, switches, version_cache
from ucutlass.runtime.errors import (
    CompilerIncomplete,
    CompilerMissing,
    CompilerTooOld,
    CompilerUnusable,
    HeadersMissing,
    HostCompilerMissing,
    PathUnusable,
    ToolchainError,
)
from ucutlass.spans import span

OLDEST_NVCC = (12, 3)
"""First nvcc whose ptxas takes all that CUTLASS 4 emits for sm90a (CUTLASS README, Hopper)."""

INSTALL_CUDA = (
    "pip install 'nvidia-cuda-nvcc==13.0.*' 'nvidia-cuda-crt==13.0.*' 'nvidia-nvvm==13.0.*' "
    "'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-cccl==13.0.*'"
)
INSTALL_CUTLASS = "pip install 'nvidia-cutlass==4.2.0.0'"
REINSTALL_CUTLASS = f"{INSTALL_CUTLASS} --force-reinstall"
INSTALL_HOST = "apt-get install g++ (or the like of your distribution)"

_PARTS: Mapping[str, str] = {
    "nvvm/bin/cicc": "nvidia-nvvm",
    "bin/ptxas": "nvidia-cuda-nvcc",
    "include/crt/host_config.h": "nvidia-cuda-crt",
    "include/cuda_runtime.h": "nvidia-cuda-runtime",
    "lib/libcudart_static.a": "nvidia-cuda-runtime",
    "include/cccl/cuda/std/cstdint": "nvidia-cuda-cccl",
}
"""What nvcc needs beside itself in PyPI's layout, and the package that brings it."""


@dataclass(frozen=True, slots=True)
class Nvcc:
    """`origin` says where it was found: a variable's name, `PATH` or `PyPI`.

    `library_folders` are those that nvcc would not search by itself (PyPI's packages lay
    libraries in `lib`, nvcc's profile looks in `lib64`).
    """

    path: Path
    version: str
    origin: str
    library_folders: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class HostCompiler:
    path: Path
    version: str


@dataclass(frozen=True, slots=True)
class Cutlass:
    """`home` holds `include` and `tools/util/include`. `digest` covers the content of every
    header as the package manager recorded it at install time (hex SHA-256)."""

    home: Path
    version: str
    digest: str

    @property
    def include(self) -> Path:
        return self.home / "include"


@dataclass(frozen=True, slots=True)
class Toolchain:
    nvcc: Nvcc
    host: HostCompiler
    cutlass: Cutlass

    @property
    def versions(self) -> dict[str, str]:
        """What decides, with flags and code, what is built."""
        return {"nvcc": self.nvcc.version, "host": self.host.version, "cutlass": self.cutlass.version}


@span("finding the tool chain")
def find(environ: Mapping[str, str] | None = None) -> Toolchain:
    """Returns the tool chain of this machine. Starts `nvcc --version` and `g++ -dumpfullversion` once per
    process and file. Raises a ToolchainError, one class per mistake, or SwitchError."""
    env = os.environ if environ is None else environ
    return Toolchain(find_nvcc(env), find_host(env), find_cutlass())


# --- nvcc ------------------------------------------------------------------------


def find_nvcc(env: Mapping[str, str]) -> Nvcc:
    """Raises CompilerMissing, CompilerIncomplete, CompilerUnusable, CompilerTooOld, PathUnusable,
    SwitchError."""
    path, origin = _locate(env)
    fix = f"set {switches.CUDA_HOME} to a toolkit whose path has none of these"
    nvcc_paths.check(path, "nvcc", PathUnusable, fix)
    root = path.resolve().parent.parent
    pypi_layout = (root / "lib/libcudart_static.a").exists() and not (root / "lib64").exists()
    if origin == "PyPI":
        _require_parts(root)
    stat = path.resolve().stat()
    version = _nvcc_version(path, stat.st_mtime_ns, stat.st_size)
    if version_tuple(version)[:2] < OLDEST_NVCC:
        oldest = ".".join(map(str, OLDEST_NVCC))
        words = f"{path} (from {origin}) is nvcc {version}, older than {oldest}"
        raise CompilerTooOld(words, INSTALL_CUDA)
    return Nvcc(path, version, origin, (root / "lib",) if pypi_layout else ())


def version_tuple(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _locate(env: Mapping[str, str]) -> tuple[Path, str]:
    named = switches.read(env).cuda_home
    others = {name: env.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")}
    for name, home in {switches.CUDA_HOME: str(named or ""), **others}.items():
        if home:
            path = Path(home) / "bin" / "nvcc"
            if not os.access(path, os.X_OK):
                fix = f"unset {name}, or point it to a CUDA toolkit"
                raise CompilerMissing(f"{name} is {home}, but {path} is not an executable file", fix)
            return path, name
    if on_path := shutil.which("nvcc", path=env.get("PATH", os.defpath)):
        return Path(on_path), "PATH"
    if homes_of_pypi := tuple(_pypi_homes()):
        return homes_of_pypi[0] / "bin" / "nvcc", "PyPI"
    old = any(_nvidia_folders("cuda_nvcc"))
    also = "; PyPI's CUDA 12 packages are installed, but they hold no nvcc" if old else ""
    words = f"no nvcc in CUDA_HOME, CUDA_PATH, PATH or PyPI's CUDA 13 packages{also}"
    raise CompilerMissing(words, INSTALL_CUDA)


def _nvidia_folders(pattern: str) -> Iterator[Path]:
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations if spec else None) or ():
        yield from sorted(Path(place).glob(pattern), reverse=True)


def _pypi_homes() -> Iterator[Path]:
    """Yields folders of PyPI's CUDA packages from CUDA 13 on that hold an nvcc, the newest first."""
    return (home for home in _nvidia_folders("cu[1-9]*") if os.access(home / "bin" / "nvcc", os.X_OK))


def _require_parts(root: Path) -> None:
    absent = {part: package for part, package in _PARTS.items() if not (root / part).exists()}
    if absent:
        packages = " ".join(sorted(set(absent.values())))
        words = f"{root} holds nvcc but not {', '.join(absent)} (of {packages})"
        raise CompilerIncomplete(words, INSTALL_CUDA)


@functools.lru_cache(maxsize=8)
def _nvcc_version(path: Path, mtime_ns: int, size: int) -> str:
    """Returns nvcc's version, cached by the file's state, so that an upgrade under a running process is
    seen."""

    def query() -> str:
        output = _output([str(path), "--version"], CompilerUnusable, INSTALL_CUDA)
        if m := re.search(r"\bV(\d+\.\d+\.\d+)", output):
            return m[1]
        raise CompilerUnusable(f"{path} --version prints no version but {output[:200]!r}", INSTALL_CUDA)

    return version_cache.version(path, query)


# --- host compiler ---------------------------------------------------------------


def find_host(env: Mapping[str, str]) -> HostCompiler:
    """Returns the g++ on PATH. Raises HostCompilerMissing, PathUnusable."""
    path = shutil.which("g++", path=env.get("PATH", os.defpath))
    if path is None:
        raise HostCompilerMissing("nvcc needs g++, and there is none on PATH", INSTALL_HOST)
    fix = "put a g++ first on PATH whose path has none of these"
    nvcc_paths.check(Path(path), "g++", PathUnusable, fix)
    stat = Path(path).resolve().stat()
    return HostCompiler(Path(path), _host_version(Path(path), stat.st_mtime_ns, stat.st_size))


@functools.lru_cache(maxsize=8)
def _host_version(path: Path, mtime_ns: int, size: int) -> str:
    def query() -> str:
        output = _output([str(path), "-dumpfullversion", "-dumpversion"], HostCompilerMissing, INSTALL_HOST)
        if re.fullmatch(r"\d+(\.\d+)*", output.strip()):
            return output.strip()
        raise HostCompilerMissing(f"{path} prints no version but {output[:200]!r}", INSTALL_HOST)

    return version_cache.version(path, query)


def _output(command: list[str], fault: type[ToolchainError], fix: str) -> str:
    try:
        done = process.output(command, 60)
    except OSError as error:
        raise fault(f"{command[0]} does not run: {error}", fix) from error
    if done.status:
        words = (done.err or done.out).strip()[:200]
        raise fault(f"{' '.join(command)} ended with status {done.status}: {words}", fix)
    return done.out


# --- CUTLASS ---------------------------------------------------------------------

_DISTRIBUTION = "nvidia-cutlass"
_SOURCE = "cutlass_library/source/"
_HEADERS = (_SOURCE + "include/", _SOURCE + "tools/util/include/")


def find_cutlass() -> Cutlass:
    """Returns the headers that the nvidia-cutlass package carries; imports nothing of it.

    Raises HeadersMissing, PathUnusable. Headers edited after installation are not noticed here (reading all
    takes a tenth of a second); `modified_headers` and so `ucc doctor` tell.
    """
    try:
        distribution = importlib.metadata.distribution(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError as error:
        raise HeadersMissing(f"the package {_DISTRIBUTION} is not installed", INSTALL_CUTLASS) from error
    home = Path(str(distribution.locate_file(_SOURCE)))
    fix = f"install {_DISTRIBUTION} in an environment whose path has none of these"
    nvcc_paths.check(home, "CUTLASS", PathUnusable, fix)
    if not (home / "include/cutlass/cutlass.h").is_file():
        raise HeadersMissing(f"{home} holds no include/cutlass/cutlass.h", REINSTALL_CUTLASS)
    lines = sorted(f"{path} {digest}" for path, digest in _recorded(distribution))
    if not lines:
        words = f"{_DISTRIBUTION} {distribution.version} has no record of its headers"
        raise HeadersMissing(words, REINSTALL_CUTLASS)
    return Cutlass(home, distribution.version, hashlib.sha256("\n".join(lines).encode()).hexdigest())


def modified_headers(cutlass: Cutlass) -> tuple[str, ...]:
    """Returns headers, relative to `cutlass.home`, that are gone or differ from what was installed."""
    distribution = importlib.metadata.distribution(_DISTRIBUTION)
    return tuple(
        path for path, digest in _recorded(distribution) if _record_digest(cutlass.home / path) != digest
    )


def _recorded(distribution: importlib.metadata.Distribution) -> Iterator[tuple[str, str]]:
    """Yields Path (relative to the source folder) and digest of each header, by the RECORD file
    (PEP 376: `path,sha256=<urlsafe base64 without padding>,size`)."""
    for line in (distribution.read_text("RECORD") or "").splitlines():
        if line.startswith(_HEADERS):
            path, digest, _ = line.rsplit(",", 2)
            yield path.removeprefix(_SOURCE), digest


def _record_digest(path: Path) -> str:
    try:
        raw = hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return ""
    return "sha256=" + base64.urlsafe_b64encode(raw).decode().rstrip("=")

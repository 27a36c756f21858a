"""Reports what this machine has for building and running kernels, what it lacks, and what fixes it."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from ucutlass.runtime import parallel, process, switches, system, toolchain
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.errors import (
    CompilerMissing,
    CompilerUnusable,
    HeadersMissing,
    HostCompilerMissing,
    MachineError,
    SwitchError,
    ToolchainError,
)
from ucutlass.runtime.jit import nvjitlink, nvrtc

CheckState: TypeAlias = Literal["found", "missing", "broken"]
Need: TypeAlias = Literal["build", "run", "optional"]


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """One thing looked for. `need` says what fails without it; `detail` holds version and place,
    or the problem; `fix` is the one command that helps, empty where nothing is to be done."""

    what: str
    state: CheckState
    need: Need
    detail: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class DoctorReport:
    findings: tuple[DoctorCheck, ...]

    @property
    def can_build(self) -> bool:
        return self._all("build")

    @property
    def can_run(self) -> bool:
        return self._all("run")

    def _all(self, need: Need) -> bool:
        return all(f.state == "found" for f in self.findings if f.need == need)


def examine() -> DoctorReport:
    """Runs every check; one that goes wrong is itself a finding.

    Calls cuInit (see `system.driver`), so run it in a process that will not fork to use CUDA.
    """
    return DoctorReport(tuple(f for name, need, check in _CHECKS for f in _safely(name, need, check)))


def _safely(what: str, need: Need, check: Callable[[], Iterator[DoctorCheck]]) -> list[DoctorCheck]:
    checks: list[DoctorCheck] = []
    try:
        for finding in check():
            checks.append(finding)
    except MachineError as error:
        missing = isinstance(error, _ABSENT)
        checks.append(DoctorCheck(what, "missing" if missing else "broken", need, error.what, error.fix))
    except SwitchError as error:
        checks.append(DoctorCheck(what, "broken", need, str(error), f"unset {error.name}"))
    except Exception as error:  # a report about a broken machine must not break on it
        checks.append(DoctorCheck(what, "broken", need, f"the check itself failed: {error!r}"))
    return checks


_ABSENT = (CompilerMissing, HostCompilerMissing, HeadersMissing)


def _python() -> Iterator[DoctorCheck]:
    yield DoctorCheck("Python", "found", "build", f"{sys.version.split()[0]} at {sys.executable}")


def _nvcc() -> Iterator[DoctorCheck]:
    nvcc = toolchain.find_nvcc(os.environ)
    yield DoctorCheck("nvcc", "found", "build", f"{nvcc.version} at {nvcc.path} (from {nvcc.origin})")
    yield from _tools(nvcc.path)


def _compiler_libraries() -> Iterator[DoctorCheck]:
    """NVRTC and nvJitLink of nvcc's version, without which nvcc builds all kernels, slowly."""
    nvcc = toolchain.find_nvcc(os.environ)
    for name, locate in (("NVRTC", nvrtc.locate), ("nvJitLink", nvjitlink.locate)):
        try:
            yield DoctorCheck(name, "found", "optional", locate(nvcc))
        except ToolchainError as missing:
            yield DoctorCheck(name, "missing", "optional", missing.what, missing.fix)


def _tools(nvcc: Path) -> Iterator[DoctorCheck]:
    """Tools that explain a kernel; no build fails without them (nvcc finds its own ptxas)."""
    folders = [nvcc.resolve().parent, *_toolkit_folder(nvcc)]
    for tool, package in (("ptxas", "nvidia-cuda-nvcc"), ("cuobjdump", "nvidia-cuda-cuobjdump")):
        path = next((p for f in folders if (p := f / tool).is_file()), None) or shutil.which(tool)
        if path:
            yield DoctorCheck(tool, "found", "optional", str(path))
        else:
            words = "not found: kernels cannot be disassembled"
            yield DoctorCheck(tool, "missing", "optional", words, f"pip install '{package}==13.0.*'")


def _toolkit_folder(nvcc: Path) -> list[Path]:
    """Where nvcc itself says that its tools are, for an nvcc that is a script or a link."""
    command = [str(nvcc), "--dryrun", "-x", "cu", os.devnull]
    try:
        done = process.output(command, 60)
    except OSError as error:
        raise CompilerUnusable(f"{nvcc} --dryrun does not run: {error}", toolchain.INSTALL_CUDA) from error
    m = re.search(r"^#\$ _HERE_=(.+)$", done.err, re.MULTILINE)
    return [Path(m[1])] if m else []


def _host() -> Iterator[DoctorCheck]:
    host = toolchain.find_host(os.environ)
    yield DoctorCheck("host compiler", "found", "build", f"g++ {host.version} at {host.path}")


def _cutlass() -> Iterator[DoctorCheck]:
    cutlass = toolchain.find_cutlass()
    yield DoctorCheck("CUTLASS headers", "found", "build", f"{cutlass.version} at {cutlass.include}")
    if changed := toolchain.modified_headers(cutlass):
        words = f"{len(changed)} differ from the package, first {changed[0]}: cached kernels will be stale"
        yield DoctorCheck("CUTLASS content", "broken", "optional", words, toolchain.REINSTALL_CUTLASS)


def _gpu() -> Iterator[DoctorCheck]:
    driver = system.driver()
    if driver is None:
        words = "no libcuda.so.1: kernels build here, but run elsewhere"
        fix = "install the NVIDIA driver, on a machine with a GPU"
        yield DoctorCheck("NVIDIA driver", "missing", "run", words, fix)
        return
    version = ".".join(map(str, driver.cuda))
    yield DoctorCheck("NVIDIA driver", "found", "run", f"serves CUDA {version}")
    if driver.problem or not driver.gpus:
        words = driver.problem or "the driver sees no GPU"
        yield DoctorCheck("GPU", "broken" if driver.problem else "missing", "run", words, "nvidia-smi")
    for gpu in driver.gpus:
        major, minor = gpu.capability
        words = f"{gpu.name}, sm_{major}{minor}, {gpu.sms} SMs, {gpu.memory / 2**30:.0f} GiB"
        yield DoctorCheck(f"GPU {gpu.index}", "found", "run", words)
    yield from _driver_serves(driver.cuda)


def _driver_serves(cuda: tuple[int, int]) -> Iterator[DoctorCheck]:
    """A library built by a toolkit of a newer major version does not start on this driver (CUDA
    compatibility guide: minor versions are compatible, major ones are not)."""
    nvcc = toolchain.find_nvcc(os.environ)
    if toolchain.version_tuple(nvcc.version)[0] > cuda[0]:
        words = f"serves CUDA {cuda[0]}.{cuda[1]}, but nvcc is {nvcc.version}"
        fix = f"update the driver, or set {switches.CUDA_HOME} to a CUDA {cuda[0]} toolkit"
        yield DoctorCheck("driver version", "broken", "run", words, fix)


def _torch() -> Iterator[DoctorCheck]:
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        words = "kernels cannot be called from Python"
        yield DoctorCheck("PyTorch", "missing", "run", words, "pip install torch")
        return
    yield DoctorCheck("PyTorch", "found", "run", version)


def _capacity() -> Iterator[DoctorCheck]:
    free, total = system.memory_available() / 2**30, system.memory_total() / 2**30
    words = f"{system.cores()} cores, {free:.0f} of {total:.0f} GiB free: {parallel.jobs()} compilers at once"
    yield DoctorCheck("capacity", "found", "build", words)
    if free * 2**30 < parallel.COMPILER_BYTES:
        need = parallel.COMPILER_BYTES / 2**30
        words = f"{free:.1f} GiB free, and one compiler takes up to {need:.0f}"
        yield DoctorCheck("memory", "broken", "optional", words, "free memory, or add swap")


def _cache() -> Iterator[DoctorCheck]:
    cache = Cache.from_switches()
    stats = cache.stats()
    size, limit = stats.bytes / 2**30, stats.limit_bytes / 2**30
    words = f"{cache.root}: {stats.entries} kernels, {size:.2f} of {limit:.2f} GiB"
    cache.check_writable()
    yield DoctorCheck("cache", "found", "build", words)
    if stats.quarantined:
        words = f"{stats.quarantined} corrupt entries were put aside in {cache.root / 'quarantine'}"
        yield DoctorCheck("cache content", "broken", "optional", words, "ucc cache clear")


_CHECKS: tuple[tuple[str, Need, Callable[[], Iterator[DoctorCheck]]], ...] = (
    ("Python", "build", _python),
    ("nvcc", "build", _nvcc),
    ("NVRTC", "optional", _compiler_libraries),
    ("host compiler", "build", _host),
    ("CUTLASS headers", "build", _cutlass),
    ("NVIDIA driver", "run", _gpu),
    ("PyTorch", "run", _torch),
    ("capacity", "build", _capacity),
    ("cache", "build", _cache),
)
"""What is reported where the check itself raises, what fails without it, and the check."""

"""The skeleton of a lean kernel (`ucutlass.emit.lean`): NVRTC on the device's side, g++ on the host's.

What all lean kernels share of the host's side (native/lean.cpp) is an artifact of its own, compiled once
for a g++ and a version of CUTLASS, and linked into each.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

from ucutlass.emit.lean import Lean
from ucutlass.runtime import nvcc, process, ptxas
from ucutlass.runtime.build import BUILD_SECONDS, Artifact, Produced, Recipe, make
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.errors import BuildCancelled, BuildTimedOut
from ucutlass.runtime.staged import device, nvrtc
from ucutlass.runtime.staged.skeleton import DEVICE_PART, HOST_PART
from ucutlass.runtime.toolchain import Toolchain

NATIVE = Path(__file__).parent.parent / "native"
DRIVER_SOURCE, HEADER, DRIVER_PART = "lean.cpp", "lean.h", "lean.o"

_HOST_SOURCE = "host.cpp"
_HOST_FLAGS = ("-std=c++17", "-O1", "-fPIC", "-fno-exceptions", "-fvisibility=hidden")
_DRIVER_FLAGS = (
    "-std=c++17", "-O2", "-fPIC", "-DNDEBUG", "-w", "-fvisibility=hidden", "-include", "cuda_runtime.h",
)  # fmt: skip
_DEVICE_FLAGS = ("-std=c++17", "-arch=sm_90a", "-dlto", "-rdc=true", "-default-device", "-DNDEBUG", "-w")

_DEVICE_COMMAND = (
    f"nvcc -std=c++17 -rdc=true -ltoir -gencode=arch=compute_90a,code=lto_90a "
    f'-I"$CUTLASS/include" -o {DEVICE_PART} {nvcc.SOURCE}'
)
"""What a person runs to see NVRTC's errors again."""


def recipe(kernel: Lean, toolchain: Toolchain, limit_seconds: float = BUILD_SECONDS) -> Recipe:
    """How the skeleton is made and kept; its artifact has DEVICE_PART and HOST_PART in place of a library.

    Raises NvrtcMissing.
    """
    versions = {
        "nvrtc": "{}.{}".format(*nvrtc.version()),
        "nvcc": toolchain.nvcc.version,
        "host": toolchain.host.version,
        "cutlass": toolchain.cutlass.version,
    }

    def produce(folder: Path, keep: Callable[[], Path], cancel: Event | None) -> Produced:
        start = time.monotonic()
        (folder / nvcc.SOURCE).write_text(kernel.device.text)
        (folder / _HOST_SOURCE).write_text(kernel.host)
        shutil.copy(NATIVE / HEADER, folder / HEADER)
        headers = (*device.cuda_headers(toolchain.nvcc.path), toolchain.cutlass.home / "include")
        options = (*_DEVICE_FLAGS, *(f"-I{path}" for path in headers))
        one = device.Compile(nvcc.SOURCE, DEVICE_PART, options)
        stop = Event()
        with ThreadPoolExecutor(1) as pool:
            host = pool.submit(_host, kernel.device.entry, toolchain, folder, keep, stop, limit_seconds)
            try:
                said = device.run(
                    kernel.device.entry, folder, (one,), None, log=nvcc.LOG, command=_DEVICE_COMMAND,
                    keep=keep, cancel=cancel, limit_seconds=limit_seconds,
                )  # fmt: skip
            except BaseException:
                stop.set()
                raise
            host_seconds = host.result()
        phases = (*said.phases, (f"g++ {_HOST_SOURCE}", host_seconds))
        return Produced(round(time.monotonic() - start, 3), ptxas.Report(), phases=phases)

    return Recipe(
        builder="lean-skeleton",
        entry=kernel.device.entry,
        arch=kernel.device.arch,
        command=f"{_DEVICE_COMMAND} && g++ {' '.join(_HOST_FLAGS)} -c -o {HOST_PART} {_HOST_SOURCE}",
        versions=versions,
        material={
            **versions,
            "headers": toolchain.cutlass.digest,
            "device": " ".join(_DEVICE_FLAGS),
            "host_flags": " ".join(_HOST_FLAGS),
            "host_header": (NATIVE / HEADER).read_text(),
            "host_code": kernel.host,
            "code": kernel.device.code,
        },
        produce=produce,
    )


def driver(toolchain: Toolchain, cache: Cache, cancel: Event | None = None) -> Artifact:
    """The part of the host's side that all share; the artifact has DRIVER_PART. Raises as `make`."""
    text = (NATIVE / DRIVER_SOURCE).read_text()
    versions = {
        "nvcc": toolchain.nvcc.version,
        "host": toolchain.host.version,
        "cutlass": toolchain.cutlass.version,
    }
    major, minor = toolchain.nvcc.version.split(".")[:2]
    flags = (*_DRIVER_FLAGS, f"-D__CUDACC_VER_MAJOR__={major}", f"-D__CUDACC_VER_MINOR__={minor}")
    command = f"g++ {' '.join(flags)} -c -o {DRIVER_PART} {DRIVER_SOURCE}"

    def produce(folder: Path, keep: Callable[[], Path], cancel: Event | None) -> Produced:
        for name in (DRIVER_SOURCE, HEADER):
            shutil.copy(NATIVE / name, folder / name)
        headers = device.cuda_headers(toolchain.nvcc.path)
        places = [f"-isystem{path}" for path in headers] + [f"-I{toolchain.cutlass.home / 'include'}"]
        line = [*flags, *places, "-c", "-o", DRIVER_PART, DRIVER_SOURCE]
        seconds = gxx("ucc_lean", line, command, nvcc.LOG, toolchain, folder, keep, cancel, BUILD_SECONDS)
        return Produced(seconds, ptxas.Report())

    made = Recipe(
        builder="lean-driver",
        entry="ucc_lean",
        arch="host",
        command=command,
        versions=versions,
        material={
            **versions,
            "headers": toolchain.cutlass.digest,
            "flags": " ".join(flags),
            "header": (NATIVE / HEADER).read_text(),
            "code": text,
        },
        produce=produce,
    )
    return make(made, cache, cancel=cancel)


def _host(
    entry: str, toolchain: Toolchain, folder: Path, keep: Callable[[], Path], cancel: Event,
    limit_seconds: float,
) -> float:  # fmt: skip
    line = [*_HOST_FLAGS, "-I.", "-c", "-o", HOST_PART, _HOST_SOURCE]
    command = f"g++ {' '.join(line)}"
    return gxx(entry, line, command, "host.log", toolchain, folder, keep, cancel, limit_seconds)


def gxx(
    entry: str, arguments: Sequence[str], command: str, log: str, toolchain: Toolchain, folder: Path,
    keep: Callable[[], Path], cancel: Event | None, limit_seconds: float,
) -> float:  # fmt: skip
    """Runs the host's compiler in `folder`; the seconds that it took.

    Raises BuildCancelled, BuildTimedOut, and what nvcc's refusals raise.
    """
    start = time.monotonic()
    scratch = folder / f"tmp_{log}"
    scratch.mkdir()
    status = process.run(
        [str(toolchain.host.path), *arguments],
        folder=folder,
        env=nvcc.environment(scratch),
        log=folder / log,
        limit_seconds=limit_seconds,
        cancel=cancel,
    )
    shutil.rmtree(scratch)
    match status:
        case "cancelled":
            raise BuildCancelled(entry)
        case "timed out":
            raise BuildTimedOut(entry, limit_seconds)
        case int() if status != 0:
            said = (folder / log).read_text(errors="replace")
            (folder / nvcc.LOG).write_text(said)
            raise nvcc.refusal(entry, status, said, keep, command)
    return round(time.monotonic() - start, 3)

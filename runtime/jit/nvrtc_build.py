"""Builds the skeleton of a lean kernel (`ucutlass.emit.gemm.lean`): NVRTC compiles the device's side, g++ the
host's.

What all lean kernels share of the host's side (native/lean.cpp) is an artifact of its own, compiled once
for a g++ and a version of CUTLASS, and linked into each.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TypeVar

from ucutlass.emit.parts import Lean
from ucutlass.files import put
from ucutlass.runtime import nvcc, process, ptxas
from ucutlass.runtime.build import BUILD_SECONDS, Artifact, Produced, Recipe, make
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.jit import device_compile, nvrtc
from ucutlass.runtime.process import ProcessStatus
from ucutlass.runtime.toolchain import Toolchain

DEVICE_PART, HOST_PART = "skeleton.ltoir", "host.o"

T = TypeVar("T")

_POLL_SECONDS = 0.05

NATIVE = Path(__file__).parent.parent / "native"
DRIVER_SOURCE, HEADER, DRIVER_PART = "lean.cpp", "lean.h", "lean.o"
DRIVER_BUILDER = "lean-driver"

_HOST_SOURCE = "host.cpp"
_HOST_FLAGS = ("-std=c++17", "-O1", "-fPIC", "-fno-exceptions", "-fvisibility=hidden")
_DRIVER_FLAGS = (
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-DNDEBUG",
    "-w",
    "-fvisibility=hidden",
    "-include",
    "cuda_runtime.h",
)
_DEVICE_FLAGS = (
    "-std=c++17",
    "-arch=sm_90a",
    "-dlto",
    "-rdc=true",
    "-default-device",
    "-DNDEBUG",
    "-w",
    # As CCCL has it for nvcc. With the 16 that it has for NVRTC, a quarter of the compilation is its type lists.
    "-D_CCCL_META_UNROLL_LIMIT=10",
)

_MMA = ("sm61", "sm70", "sm75", "sm80", "sm89", "sm90", "sm90_gmma", "sm90_gmma_ext")
_MMA_SPARSE = ("sm90_gmma_sparse", "sm90_gmma_sparse_ext", "sm100", "sm120", "sm120_sparse")
UNUSED_HEADERS = (
    *(f"cute/arch/mma_{name}.hpp" for name in (*_MMA, *_MMA_SPARSE, "sm90_desc", "sm100_umma")),
    *(f"cute/atom/mma_traits_{name}.hpp" for name in (*_MMA, *_MMA_SPARSE)),
    *(f"cute/atom/copy_traits_{name}.hpp" for name in ("sm90_im2col", "sm100_im2col", "sm100_tma")),
    *(
        f"cutlass/arch/mma_{name}.h"
        for name in ("sm50", "sm60", "sm61", "sm70", "sm75", "sm80", "sm90", "sm100")
    ),
    *(f"cutlass/arch/mma_{name}.h" for name in ("sparse_sm80", "sparse_sm89")),
    "cutlass/matrix.h",
    "cutlass/quaternion.h",
)
"""Headers that CUTLASS's kernel layer includes and a lean kernel names nothing of, since its main loop has wgmma
as PTX: instructions of every architecture. They are half of what NVRTC would read."""

_DEVICE_COMMAND = (
    f"nvcc -std=c++17 -rdc=true -ltoir -gencode=arch=compute_90a,code=lto_90a "
    f'-I"$CUTLASS/include" -o {DEVICE_PART} {nvcc.SOURCE}'
)
"""What a person runs to see NVRTC's errors again."""


@dataclass(frozen=True, slots=True)
class Gxx:
    """One run of the host's compiler on `source`; a person sees its words again by `command`."""

    arguments: tuple[str, ...]
    command: str
    source: str
    log: str


@dataclass(frozen=True, slots=True)
class GxxResult:
    status: ProcessStatus
    seconds: float


_HOST_ARGUMENTS = (*_HOST_FLAGS, "-I.", "-c", "-o", HOST_PART, _HOST_SOURCE)
_HOST = Gxx(_HOST_ARGUMENTS, f"g++ {' '.join(_HOST_ARGUMENTS)}", _HOST_SOURCE, "host.log")


def recipe(kernel: Lean, toolchain: Toolchain, limit_seconds: float = BUILD_SECONDS) -> Recipe:
    """Returns how the skeleton is made and kept; its artifact has DEVICE_PART and HOST_PART in place of a
    library.

    Raises NvrtcMissing.
    """
    compiler = nvrtc.locate(toolchain.nvcc)
    versions = toolchain.versions

    def produce(folder: Path, keep: Callable[[], Path], cancel: Event | None) -> Produced:
        start = time.monotonic()
        put(folder / nvcc.SOURCE, kernel.device.text)
        put(folder / _HOST_SOURCE, kernel.host)
        shutil.copy(NATIVE / HEADER, folder / HEADER)
        headers = (*device_compile.cuda_headers(toolchain.nvcc.path), toolchain.cutlass.home / "include")
        options = (*_DEVICE_FLAGS, *(f"-I{path}" for path in headers))
        device_part = device_compile.NvrtcCompile(
            nvcc.SOURCE, DEVICE_PART, options, dict.fromkeys(UNUSED_HEADERS, "")
        )
        output, host_seconds = both_sides(
            kernel.device.entry,
            device_part,
            _HOST,
            toolchain,
            folder,
            compiler=compiler,
            command=_DEVICE_COMMAND,
            keep=keep,
            cancel=cancel,
            limit_seconds=limit_seconds,
        )
        phases = (*output.phases, (f"g++ {_HOST_SOURCE}", host_seconds))
        return Produced(round(time.monotonic() - start, 3), ptxas.PtxasReport(), phases=phases)

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
            "unused": " ".join(UNUSED_HEADERS),
            "host_flags": " ".join(_HOST_FLAGS),
            "host_header": (NATIVE / HEADER).read_text(encoding="utf-8"),
            "host_code": kernel.host,
            "code": kernel.device.code,
        },
        produce=produce,
    )


def both_sides(
    entry: str,
    device: device_compile.NvrtcCompile,
    host: Gxx,
    toolchain: Toolchain,
    folder: Path,
    *,
    compiler: str,
    command: str,
    keep: Callable[[], Path],
    cancel: Event | None,
    limit_seconds: float,
) -> tuple[device_compile.CompilerOutput, float]:
    """Compiles the device's side by NVRTC while the host's compiler compiles the host's. Returns what NVRTC gave, and the
    seconds of the other. Raises as `device_compile.run` and `check_gxx`."""
    stop = Event()
    with ThreadPoolExecutor(1) as pool:
        compilation = pool.submit(run_gxx, host, toolchain, folder, stop, limit_seconds)

        def keep_alone() -> Path:
            stop.set()  # a folder that is kept is moved, and none may work in it
            wait((compilation,))
            return keep()

        try:
            output = device_compile.run(
                entry,
                folder,
                compiler,
                (device,),
                None,
                log=nvcc.LOG,
                command=command,
                keep=keep_alone,
                cancel=cancel,
                limit_seconds=limit_seconds,
            )
            ended = awaited(compilation, stop, cancel)
        except BaseException:
            stop.set()
            raise
    check_gxx(entry, host, ended, folder, keep, limit_seconds)
    return output, ended.seconds


def driver(toolchain: Toolchain, cache: Cache, cancel: Event | None = None) -> Artifact:
    """Returns the part of the host's side that all share; the artifact has DRIVER_PART. Raises as `make`."""
    return make(driver_recipe(toolchain), cache, cancel=cancel)


def driver_recipe(toolchain: Toolchain) -> Recipe:
    """Returns how that part is made and kept."""
    text = (NATIVE / DRIVER_SOURCE).read_text(encoding="utf-8")
    versions = toolchain.versions
    major, minor = toolchain.nvcc.version.split(".")[:2]
    flags = (*_DRIVER_FLAGS, f"-D__CUDACC_VER_MAJOR__={major}", f"-D__CUDACC_VER_MINOR__={minor}")
    command = f"g++ {' '.join(flags)} -c -o {DRIVER_PART} {DRIVER_SOURCE}"

    def produce(folder: Path, keep: Callable[[], Path], cancel: Event | None) -> Produced:
        for name in (DRIVER_SOURCE, HEADER):
            shutil.copy(NATIVE / name, folder / name)
        headers = device_compile.cuda_headers(toolchain.nvcc.path)
        include_paths = [f"-isystem{path}" for path in headers] + [f"-I{toolchain.cutlass.home / 'include'}"]
        line = (*flags, *include_paths, "-c", "-o", DRIVER_PART, DRIVER_SOURCE)
        compilation = Gxx(line, command, DRIVER_SOURCE, nvcc.LOG)
        seconds = gxx("ucc_lean", compilation, toolchain, folder, keep, cancel, BUILD_SECONDS)
        return Produced(seconds, ptxas.PtxasReport())

    return Recipe(
        builder=DRIVER_BUILDER,
        entry="ucc_lean",
        arch="host",
        command=command,
        versions=versions,
        material={
            **versions,
            "headers": toolchain.cutlass.digest,
            "flags": " ".join(flags),
            "header": (NATIVE / HEADER).read_text(encoding="utf-8"),
            "code": text,
        },
        produce=produce,
    )


def awaited(compilation: Future[T], stop: Event, cancel: Event | None) -> T:
    """Returns the result of a thread that ends when `stop` is set; the caller's cancellation reaches it
    too."""
    while not wait((compilation,), _POLL_SECONDS).done:
        if cancel is not None and cancel.is_set():
            stop.set()
    return compilation.result()


def gxx(
    entry: str,
    compilation: Gxx,
    toolchain: Toolchain,
    folder: Path,
    keep: Callable[[], Path],
    cancel: Event | None,
    limit_seconds: float,
) -> float:
    """Runs the host's compiler in `folder`; the seconds that it took.

    Raises BuildCancelled, BuildTimedOut, and what nvcc's refusals raise.
    """
    ended = run_gxx(compilation, toolchain, folder, cancel, limit_seconds)
    check_gxx(entry, compilation, ended, folder, keep, limit_seconds)
    return ended.seconds


def run_gxx(
    compilation: Gxx, toolchain: Toolchain, folder: Path, cancel: Event | None, limit_seconds: float
) -> GxxResult:
    """Runs the host's compiler; `check_gxx` judges what it returns, once no other compiler works in the folder."""
    start = time.monotonic()
    scratch = folder / f"tmp_{compilation.log}"
    scratch.mkdir()
    status = process.run(
        [str(toolchain.host.path), *compilation.arguments],
        folder=folder,
        env=nvcc.environment(scratch),
        log=folder / compilation.log,
        limit_seconds=limit_seconds,
        cancel=cancel,
    )
    shutil.rmtree(scratch)
    return GxxResult(status, round(time.monotonic() - start, 3))


def check_gxx(
    entry: str,
    compilation: Gxx,
    ended: GxxResult,
    folder: Path,
    keep: Callable[[], Path],
    limit_seconds: float,
) -> None:
    """Raises where the compiler failed, OSError where its disk is full."""
    status = process.exit_status(entry, ended.status, limit_seconds)
    if status != 0:
        nvcc.require_room(folder)
        words = (folder / compilation.log).read_text(encoding="utf-8", errors="replace")
        put(folder / nvcc.LOG, words)
        raise nvcc.refusal(entry, status, words, keep, compilation.command, "g++", compilation.source)

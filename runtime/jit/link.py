"""Builds a kernel from its skeleton and its arithmetic by NVRTC, nvJitLink, and a link of the host's side.

The image that nvJitLink makes lies in the library as data, and the host code loads it at the first launch; the library has the entry of the kernel as it is built plainly, with the same C interface.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

from ucutlass.emit.parts import Lean
from ucutlass.emit.text import Source
from ucutlass.files import put
from ucutlass.runtime import nvcc, ptxas
from ucutlass.runtime.build import BUILD_SECONDS, BUILDERS, Artifact, Produced, Recipe, make
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.errors import BuildError
from ucutlass.runtime.jit import device_compile, nvjitlink, nvrtc, nvrtc_build
from ucutlass.runtime.progress import OnProgress, ignore
from ucutlass.runtime.toolchain import Toolchain

IMAGE = "kernel.cubin"
ARITHMETIC = "arithmetic.cu"

_ARITHMETIC_PART = "arithmetic.ltoir"
_NVRTC_OPTIONS = ("-std=c++17", "-arch=sm_90a", "-dlto", "-rdc=true", "-DNDEBUG")
# CUTLASS's constants are variables of the image, most of its bytes, unless a linker may omit what no kernel reads.
_LINK_OPTIONS = ("-lto", "-arch=sm_90a", "-O3", "-optimize-unused-variables", "-Xptxas=-v")

_ARITHMETIC_COMMAND = (
    "nvcc -std=c++17 -rdc=true -ltoir -gencode=arch=compute_90a,code=lto_90a "
    f"-o {_ARITHMETIC_PART} {ARITHMETIC}"
)
"""What a person runs to see NVRTC's errors again."""

_DATA = "image.s"
_DATA_TEXT = f"""\
  .section .rodata
  .globl ucc_image
  .hidden ucc_image
  .balign 64
ucc_image:
  .incbin "{IMAGE}"
  .section .note.GNU-stack,"",@progbits
"""


def recipe(
    source: Source,
    kernel: Lean,
    toolchain: Toolchain,
    cache: Cache,
    on_progress: OnProgress = ignore,
    limit_seconds: float = BUILD_SECONDS,
) -> Recipe:
    """Returns the kernel of `source`, built from its parts. Its artifact has `source.cu` as nvcc would
    build it, `arithmetic.cu` and the image.

    Raises NvrtcMissing, NvJitLinkMissing.
    """
    compiler, linker = nvrtc.locate(toolchain.nvcc), nvjitlink.locate(toolchain.nvcc)
    base = nvrtc_build.recipe(kernel, toolchain, limit_seconds)

    def produce(folder: Path, keep: Callable[[], Path], cancel: Event | None) -> Produced:
        start = time.monotonic()
        put(folder / nvcc.SOURCE, source.text)
        put(folder / ARITHMETIC, kernel.arithmetic)
        stop = Event()
        with ThreadPoolExecutor(1) as pool:
            # Beside the device's side, which takes longer. A failure is raised where the library needs it.
            driver = pool.submit(nvrtc_build.driver, toolchain, cache, stop)
            try:
                skeleton_artifact = make(base, cache, on_progress=on_progress, cancel=cancel)
                skeleton_seconds = time.monotonic() - start
                linked = _image(
                    source.entry, compiler, linker, skeleton_artifact, folder, keep, cancel, limit_seconds
                )
                library_start = time.monotonic()
                put(folder / _DATA, _DATA_TEXT)
                shared = nvrtc_build.awaited(driver, stop, cancel)
                _library(
                    source.entry, skeleton_artifact, shared, toolchain, folder, keep, cancel, limit_seconds
                )
            except BuildError:
                raise  # other kernels need the driver's part
            except BaseException:
                stop.set()
                raise
        ended = time.monotonic()
        phases = (
            ("skeleton", round(skeleton_seconds, 3)),
            *linked.phases,
            ("library", round(ended - library_start, 3)),
        )
        return Produced(round(ended - start, 3), ptxas.parse(linked.log), phases=phases)

    return Recipe(
        builder=BUILDERS["nvrtc"],
        entry=source.entry,
        arch=source.arch,
        command=f"{base.command}, then NVRTC, nvJitLink and a link of the parts",
        versions=base.versions,
        material={
            **base.versions,
            "driver": nvrtc_build.driver_recipe(toolchain).key,
            "skeleton": base.key,
            "arithmetic": kernel.arithmetic,
            "nvrtc_options": " ".join(_NVRTC_OPTIONS),
            "link_options": " ".join((*_LINK_OPTIONS, *_library_flags(source.entry, base.entry))),
            "data": _DATA_TEXT,
        },
        produce=produce,
    )


def _image(
    entry: str,
    compiler: str,
    linker: str,
    skeleton_artifact: Artifact,
    folder: Path,
    keep: Callable[[], Path],
    cancel: Event | None,
    limit_seconds: float,
) -> device_compile.CompilerOutput:
    """Compiles the arithmetic and links it with the skeleton."""
    output = device_compile.run(
        entry,
        folder,
        compiler,
        (device_compile.NvrtcCompile(ARITHMETIC, _ARITHMETIC_PART, _NVRTC_OPTIONS),),
        device_compile.NvJitLinkStep(
            linker,
            (str(skeleton_artifact.folder / nvrtc_build.DEVICE_PART), _ARITHMETIC_PART),
            IMAGE,
            _LINK_OPTIONS,
        ),
        log=nvcc.LOG,
        command=_ARITHMETIC_COMMAND,
        keep=keep,
        cancel=cancel,
        limit_seconds=limit_seconds,
    )
    (folder / _ARITHMETIC_PART).unlink()
    return output


# --- the library ------------------------------------------------------------------


def _library_flags(entry: str, other: str) -> tuple[str, ...]:
    """`other` is the entry's name in the skeleton's object."""
    return ("-shared", nvcc.OWN_SYMBOLS, f"-Xlinker=--defsym={entry}={other}")


def _library(
    entry: str,
    skeleton_artifact: Artifact,
    driver: Artifact,
    toolchain: Toolchain,
    folder: Path,
    keep: Callable[[], Path],
    cancel: Event | None,
    limit_seconds: float,
) -> None:
    arguments = (
        "-shared",
        "-Wl,-Bsymbolic",
        f"-Wl,--defsym={entry}={skeleton_artifact.entry}",
        "-o",
        nvcc.LIBRARY,
        str(skeleton_artifact.folder / nvrtc_build.HOST_PART),
        str(driver.folder / nvrtc_build.DRIVER_PART),
        _DATA,
    )
    shown = f"g++ {' '.join(arguments[:5])} {nvrtc_build.HOST_PART} {nvrtc_build.DRIVER_PART} {_DATA}"
    link_command = nvrtc_build.Gxx(arguments, shown, nvcc.SOURCE, "link.log")
    nvrtc_build.gxx(entry, link_command, toolchain, folder, keep, cancel, limit_seconds)


__all__ = ["ARITHMETIC", "IMAGE", "recipe"]

"""A kernel from its skeleton and its arithmetic: NVRTC, nvJitLink, and a link of the host's side.

The arithmetic is compiled first, so that one which is refused costs milliseconds. The image that
nvJitLink makes lies in the library as data, and the skeleton's host code loads it at its first launch;
the library has the entry of the kernel as it is built plainly, with the same C interface.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

from ucutlass.emit.staged import Staged
from ucutlass.emit.text import Source
from ucutlass.runtime import nvcc, process, ptxas
from ucutlass.runtime.build import BUILD_SECONDS, Artifact, Produced, Recipe, make
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.errors import BuildCancelled, BuildError, BuildTimedOut, ToolchainError
from ucutlass.runtime.progress import OnProgress, ignore
from ucutlass.runtime.staged import nvjitlink, nvrtc, skeleton
from ucutlass.runtime.toolchain import INSTALL_CUDA, Toolchain, version_tuple

BUILDER = "staged-a"
"""The builder's name in artifacts and keys."""

IMAGE = "kernel.cubin"
ARITHMETIC = "arithmetic.cu"

_NVRTC_OPTIONS = ("-std=c++17", "-arch=sm_90a", "-dlto", "-rdc=true", "-DNDEBUG")
_LINK_OPTIONS = ("-lto", "-arch=sm_90a", "-O3", "-Xptxas=-v")

_ARITHMETIC_COMMAND = (
    "nvcc -std=c++17 -rdc=true -ltoir -gencode=arch=compute_90a,code=lto_90a "
    f"-o arithmetic.ltoir {ARITHMETIC}"
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


class CompilersDiffer(ToolchainError):
    """nvcc, NVRTC and nvJitLink are of versions whose LTO-IR does not meet."""


def recipe(
    source: Source,
    staged: Staged,
    toolchain: Toolchain,
    cache: Cache,
    on_progress: OnProgress = ignore,
    limit_seconds: float = BUILD_SECONDS,
) -> Recipe:
    """The kernel of `source`, built from its two parts. Its artifact has `source.cu` as it is built
    plainly, `arithmetic.cu` and the image.

    Raises NvrtcMissing, NvJitLinkMissing, CompilersDiffer.
    """
    compiler, linker = nvrtc.load(), nvjitlink.load()
    _check(toolchain, compiler, linker)
    base = skeleton.recipe(staged.skeleton, toolchain, limit_seconds)
    versions = {
        **base.versions,
        "nvrtc": "{}.{}".format(*compiler.version),
        "nvjitlink": "{}.{}".format(*linker.version),
    }

    def produce(folder: Path, keep: Callable[[], Path], cancel: Event | None) -> Produced:
        start = time.monotonic()
        (folder / nvcc.SOURCE).write_text(source.text)
        (folder / ARITHMETIC).write_text(staged.arithmetic)
        arithmetic = _compile(source.entry, compiler, staged.arithmetic, folder, keep)
        made = make(base, cache, on_progress=on_progress, cancel=cancel)
        said = _link(source.entry, linker, made, arithmetic, folder, keep)
        _library(source.entry, made, toolchain, folder, keep, cancel, limit_seconds)
        return Produced(round(time.monotonic() - start, 3), ptxas.parse(said))

    return Recipe(
        builder=BUILDER,
        entry=source.entry,
        arch=source.arch,
        command=f"{base.command}, then NVRTC, nvJitLink and a link of the parts",
        versions=versions,
        material={
            **versions,
            "skeleton": base.key,
            "arithmetic": staged.arithmetic,
            "nvrtc_options": " ".join(_NVRTC_OPTIONS),
            "link_options": " ".join((*_LINK_OPTIONS, *_library_flags(source.entry, staged.skeleton.entry))),
            "data": _DATA_TEXT,
        },
        produce=produce,
    )


def _check(toolchain: Toolchain, compiler: nvrtc.Nvrtc, linker: nvjitlink.NvJitLink) -> None:
    """LTO-IR is read by a linker of the same major version that is not older than its writer."""
    major, minor = version_tuple(toolchain.nvcc.version)[:2]
    writers = {"nvcc": (major, minor), "NVRTC": compiler.version}
    for name, version in writers.items():
        if version[0] != linker.version[0] or version > linker.version:
            words = "nvJitLink {}.{} does not read what {} {}.{} writes"
            mend = f"{nvjitlink.INSTALL}; {nvrtc.INSTALL}; {INSTALL_CUDA}"
            raise CompilersDiffer(words.format(*linker.version, name, *version), mend)


def _compile(entry: str, compiler: nvrtc.Nvrtc, text: str, folder: Path, keep: Callable[[], Path]) -> bytes:
    try:
        ir, _ = nvrtc.compile_lto(compiler, text, ARITHMETIC, _NVRTC_OPTIONS)
        return ir
    except nvrtc.NvrtcRefused as refused:
        (folder / nvcc.LOG).write_text(refused.log)
        kept, errors = keep(), nvcc.first_errors(refused.log, 1)
        raise BuildError(entry, errors, kept / ARITHMETIC, kept / nvcc.LOG, _ARITHMETIC_COMMAND) from refused


def _link(
    entry: str,
    linker: nvjitlink.NvJitLink,
    made: Artifact,
    arithmetic: bytes,
    folder: Path,
    keep: Callable[[], Path],
) -> str:
    """Writes the image; what ptxas said."""
    parts = {"skeleton": (made.folder / skeleton.DEVICE_PART).read_bytes(), "arithmetic": arithmetic}
    try:
        image, said = nvjitlink.link(linker, parts, _LINK_OPTIONS)
    except nvjitlink.LinkRefused as refused:
        (folder / nvcc.LOG).write_text(refused.log)
        kept, errors = keep(), nvcc.first_errors(refused.log, 1)
        raise BuildError(entry, errors, kept / nvcc.SOURCE, kept / nvcc.LOG, made.command) from refused
    (folder / nvcc.LOG).write_text(said)
    (folder / IMAGE).write_bytes(image)
    return said


def _library_flags(entry: str, other: str) -> tuple[str, ...]:
    """`other` is the entry's name in the skeleton's object."""
    return ("-shared", nvcc.OWN_SYMBOLS, f"-Xlinker=--defsym={entry}={other}")


def _library(
    entry: str,
    made: Artifact,
    toolchain: Toolchain,
    folder: Path,
    keep: Callable[[], Path],
    cancel: Event | None,
    limit_seconds: float,
) -> None:
    (folder / _DATA).write_text(_DATA_TEXT)
    scratch = folder / "tmp"
    scratch.mkdir()
    flags, log = _library_flags(entry, made.entry), folder / "link.log"
    command = [
        str(toolchain.nvcc.path),
        *flags,
        f"-ccbin={toolchain.host.path}",
        *(f"-L{place}" for place in toolchain.nvcc.library_folders),
        "-o", nvcc.LIBRARY, str(made.folder / skeleton.HOST_PART), _DATA,
    ]  # fmt: skip
    status = process.run(
        command,
        folder=folder,
        env=nvcc.environment(scratch),
        log=log,
        limit_seconds=limit_seconds,
        cancel=cancel,
    )
    shutil.rmtree(scratch)
    match status:
        case "cancelled":
            raise BuildCancelled(entry)
        case "timed out":
            raise BuildTimedOut(entry, limit_seconds)
        case int() if status != 0 or not (folder / nvcc.LIBRARY).is_file():
            shown = f"nvcc {' '.join(flags)} -o {nvcc.LIBRARY} {skeleton.HOST_PART} {_DATA}"
            said = log.read_text(errors="replace")
            (folder / nvcc.LOG).write_text(said)
            raise nvcc.refusal(entry, status, said, keep, shown)

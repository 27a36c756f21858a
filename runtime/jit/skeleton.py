"""Builds the skeleton of a kernel, which is everything but its epilogue's arithmetic.

Two passes of nvcc over one file, at the same time: the device's ends in LTO-IR (`skeleton.ltoir`), for
the optimiser runs when the arithmetic is there; the host's in an object (`host.o`) with the entry, which
launches from an image that is linked in beside it.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TypeVar

from ucutlass.emit.text import Source
from ucutlass.files import put
from ucutlass.runtime import nvcc, process, ptxas
from ucutlass.runtime.build import BUILD_SECONDS, Produced, Recipe
from ucutlass.runtime.process import ProcessStatus
from ucutlass.runtime.toolchain import Toolchain

DEVICE_PART = "skeleton.ltoir"
HOST_PART = "host.o"

T = TypeVar("T")

_POLL_SECONDS = 0.05

_ROOM_BYTES = 16 * 2**20
"""What a disk must have left, once a compiler's files are swept, to be free of blame for its silence."""

_HOST_SOURCE = "host.cu"
# nvcc's device pass over this file sees nothing, so it takes no time.
_HOST_TEXT = f'#ifndef __CUDA_ARCH__\n#define UCC_HOST_PASS\n#include "{nvcc.SOURCE}"\n#endif\n'


@dataclass(frozen=True, slots=True)
class _Pass:
    flags: tuple[str, ...]
    source: str
    part: str
    log: str
    scratch: str


_DEVICE = _Pass(
    (*nvcc.LANGUAGE, "-rdc=true", "-ltoir", "-gencode=arch=compute_90a,code=lto_90a"),
    nvcc.SOURCE,
    DEVICE_PART,
    nvcc.LOG,
    "tmp",
)
_HOST = _Pass(
    (*nvcc.LANGUAGE, "-c", nvcc.HOST, "-gencode=arch=compute_90a,code=sm_90a"),
    _HOST_SOURCE,
    HOST_PART,
    "host.log",
    "tmp_host",
)


def recipe(skeleton: Source, toolchain: Toolchain, limit_seconds: float = BUILD_SECONDS) -> Recipe:
    """Returns how a skeleton is made and kept; its artifact has DEVICE_PART and HOST_PART in place of a
    library."""
    versions = {
        "nvcc": toolchain.nvcc.version,
        "host": toolchain.host.version,
        "cutlass": toolchain.cutlass.version,
    }

    def produce(folder: Path, keep: Callable[[], Path], cancel: Event | None) -> Produced:
        put(folder / nvcc.SOURCE, skeleton.text)
        put(folder / _HOST_SOURCE, _HOST_TEXT)
        start = time.monotonic()
        _compile(skeleton.entry, toolchain, folder, keep, cancel, limit_seconds)
        return Produced(round(time.monotonic() - start, 3), ptxas.PtxasReport())

    return Recipe(
        builder="staged-skeleton",
        entry=skeleton.entry,
        arch=skeleton.arch,
        command=f"{_line(_DEVICE)} && {_line(_HOST)}",
        versions=versions,
        material={
            **versions,
            "headers": toolchain.cutlass.digest,
            "device": " ".join(_DEVICE.flags),
            "host_flags": " ".join(_HOST.flags),
            "host_source": _HOST_TEXT,
            "code": skeleton.code,
        },
        produce=produce,
    )


def _line(compiler_pass: _Pass) -> str:
    headers = '-I"$CUTLASS/include" -I"$CUTLASS/tools/util/include"'
    return f"nvcc {' '.join(compiler_pass.flags)} {headers} -o {compiler_pass.part} {compiler_pass.source}"


def _compile(
    entry: str,
    toolchain: Toolchain,
    folder: Path,
    keep: Callable[[], Path],
    cancel: Event | None,
    limit_seconds: float,
) -> None:
    stop = Event()
    with ThreadPoolExecutor(1) as pool:
        host = pool.submit(_run, _HOST, toolchain, folder, stop, limit_seconds)
        try:
            device = _run(_DEVICE, toolchain, folder, cancel, limit_seconds)
            if device != 0:
                stop.set()
            ended = awaited(host, stop, cancel)
        except BaseException:
            stop.set()
            raise
    for compiler_pass, how in ((_DEVICE, device), (_HOST, ended)):
        status = process.exit_status(entry, how, limit_seconds)
        if status != 0 or not (folder / compiler_pass.part).is_file():
            log = failure_log(folder / compiler_pass.log)
            put(folder / nvcc.LOG, log)
            raise nvcc.refusal(entry, status, log, keep, _line(compiler_pass))


def awaited(beside: Future[T], stop: Event, cancel: Event | None) -> T:
    """Returns the result of a thread that ends when `stop` is set; the caller's cancellation reaches it
    too."""
    while not wait((beside,), _POLL_SECONDS).done:
        if cancel is not None and cancel.is_set():
            stop.set()
    return beside.result()


def failure_log(log: Path) -> str:
    """Returns the words of a compiler that failed. Raises OSError where there are none since its disk is
    full."""
    words = log.read_text(encoding="utf-8", errors="replace")
    if not words.strip():
        with log.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, _ROOM_BYTES)
            file.truncate(0)
    return words


def _run(
    compiler_pass: _Pass, toolchain: Toolchain, folder: Path, cancel: Event | None, limit_seconds: float
) -> ProcessStatus:
    scratch = folder / compiler_pass.scratch
    scratch.mkdir()
    home = toolchain.cutlass.home
    command = [
        str(toolchain.nvcc.path),
        *compiler_pass.flags,
        f"-ccbin={toolchain.host.path}",
        f"-I{home / 'include'}",
        f"-I{home / 'tools/util/include'}",
        "-keep",
        f"-keep-dir={compiler_pass.scratch}",
        "-o",
        compiler_pass.part,
        compiler_pass.source,
    ]
    status = process.run(
        command,
        folder=folder,
        env=nvcc.environment(scratch),
        log=folder / compiler_pass.log,
        limit_seconds=limit_seconds,
        cancel=cancel,
    )
    shutil.rmtree(scratch)
    return status

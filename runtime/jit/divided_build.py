"""Builds a divided kernel (`ucutlass.emit.division`): NVRTC compiles the device's side to an image while the host's
compiler compiles the host's side, and a link makes them one library, whose entry is that of nvcc's.

The library registers its image with CUDA's runtime as nvcc's does, and has the runtime linked into it.
"""

from __future__ import annotations

import json
import re
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from types import MappingProxyType

from ucutlass.emit.parts import Divided
from ucutlass.emit.text import Source
from ucutlass.files import put
from ucutlass.runtime import elf, nvcc, process, ptxas
from ucutlass.runtime.build import BUILD_SECONDS, DIVIDED, Produced, Recipe
from ucutlass.runtime.errors import BuildError
from ucutlass.runtime.jit import compiler_process, device_compile, nvrtc, nvrtc_build
from ucutlass.runtime.jit.link import IMAGE
from ucutlass.runtime.jit.nvrtc_build import NATIVE, Gxx
from ucutlass.runtime.toolchain import Toolchain

DEVICE_HEADER, CUTLASS_HEADER, HOST_HEADER = "divided_device.h", "divided_cutlass.h", "divided_host.h"

_DEVICE_SOURCE, _HOST_SOURCE, _HOST_PART = "device.cu", "host.cpp", "host.o"
_FATBIN, _DATA = "kernel.fatbin", "image.s"
_HOST_LOG, _WRAP_LOG, _LINK_LOG = _LOGS = ("host.log", "fatbinary.log", "link.log")

_PARAMETERS = ".ucc_parameters"
_PARAMETER, _LARGE_PARAMETER = 0x17, 0x45
"""EIATTR_KPARAM_INFO and, of kernels with more than 4 KB of parameters, EIATTR_KPARAM_INFO_V2 of an image's attributes: number,
order and offset of a parameter, and its size, in the last 14 bits of a word or in one of its own."""

_OWN = f'#include "{DEVICE_HEADER}"\n'
_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("algorithm", "atomic", "cstring", "initializer_list", "mutex", "numeric"), ""),
        **dict.fromkeys(("cuda.h", "cudaTypedefs.h", "cuda_runtime.h", "cuda_runtime_api.h"), ""),
        **dict.fromkeys(("cmath", "cstdint", "limits", "type_traits"), _OWN),
    }
)
"""The language's and the runtime's headers, by what they are for NVRTC."""

CUTLASS_HEADERS = (
    *(f"cutlass/{name}.h" for name in ("array", "bfloat16", "cutlass", "fast_math", "functional")),
    *(f"cutlass/{name}.h" for name in ("half", "numeric_conversion", "numeric_types")),
)
"""CUTLASS's headers that ours may stand for."""
_CUTLASS_NAME = re.compile(
    r"\b(?:cutlass|cute)::(\w+)|\b(CUTLASS_\w+)|#include [<\"](cu(?:te|tlass)/[^>\"]+)"
)
_DECLARED = re.compile(r"^(?:struct (?:alignas\(\d\) )?|#define )(\w+)", re.MULTILINE)

DEVICE_FLAGS = (
    "-std=c++17",
    "-arch=sm_90a",
    "-default-device",
    "-DNDEBUG",
    "-w",
    "--ptxas-options=-v",
    "-D_CCCL_META_UNROLL_LIMIT=10",
    # Of cuda::std a kernel has the limits of C++'s own types alone.
    "-DCCCL_DISABLE_FP16_SUPPORT",
    "-DCCCL_DISABLE_BF16_SUPPORT",
    "-DCCCL_DISABLE_NVFP8_SUPPORT",
)
# Kernels are known by the addresses of empty functions, which must not become one.
_HOST_FLAGS = ("-std=c++17", "-O1", "-fno-ipa-icf", "-fPIC", "-fno-gnu-unique", "-w")
_LIBRARIES = ("-lcudart_static", "-lrt", "-lpthread", "-ldl")

_DATA_TEXT = """\
  .section .nv_fatbin,"a"
  .globl ucc_image
  .hidden ucc_image
  .balign 8
ucc_image:
  .incbin "{fatbin}"
  .section .data.rel.ro,"aw"
  .globl ucc_names
  .hidden ucc_names
  .balign 8
ucc_names:
{pointers}
  .section .rodata
{strings}
  .section .note.GNU-stack,"",@progbits
"""


def recipe(
    source: Source, sides: Divided, toolchain: Toolchain, limit_seconds: float = BUILD_SECONDS
) -> Recipe:
    """Returns how the kernel is built; its artifact has the image too. Raises NvrtcMissing."""
    build = _DividedBuild(
        source,
        sides,
        toolchain,
        nvrtc.locate(toolchain.nvcc),
        device_headers(sides.device),
        _own(HOST_HEADER),
        limit_seconds,
    )
    versions = toolchain.versions
    return Recipe(
        builder=DIVIDED,
        entry=source.entry,
        arch=source.arch,
        command=nvcc.command_line(source.arch, nvcc.SOURCE, nvcc.LIBRARY),
        versions=versions,
        material={
            **versions,
            "headers": toolchain.cutlass.digest,
            "device_headers": json.dumps(build.device_headers),
            "host_header": build.host_header,
            "device_flags": " ".join(DEVICE_FLAGS),
            "host_flags": " ".join((*_HOST_FLAGS, *_LIBRARIES)),
            "data": _DATA_TEXT,
            "device": sides.device,
            "host": sides.host,
            "kernels": " ".join(sides.kernels),
            "code": source.code,
        },
        produce=build.produce,
    )


def device_headers(device: str) -> dict[str, str]:
    """Returns the texts that NVRTC reads in place of headers. CUTLASS's are its own where the code names anything that
    ours does not declare."""
    ours = _own(CUTLASS_HEADER)
    named = {name for names in _CUTLASS_NAME.findall(device) for name in names if name}
    served = named <= {*_DECLARED.findall(ours), *CUTLASS_HEADERS}
    of_cutlass = dict.fromkeys(CUTLASS_HEADERS, ours) if served else {}
    return {DEVICE_HEADER: _own(DEVICE_HEADER), **_HEADERS, **of_cutlass}


def _own(header: str) -> str:
    return (NATIVE / header).read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class _DividedBuild:
    """One kernel's build."""

    source: Source
    sides: Divided
    toolchain: Toolchain
    compiler: str
    device_headers: Mapping[str, str]
    host_header: str
    limit_seconds: float

    def produce(self, folder: Path, keep: Callable[[], Path], cancel: Event | None) -> Produced:
        start = time.monotonic()
        put(folder / nvcc.SOURCE, self.source.text)
        put(folder / _DEVICE_SOURCE, self.sides.device)
        put(folder / _HOST_SOURCE, self.sides.host)
        put(folder / HOST_HEADER, self.host_header)
        cuda = device_compile.cuda_headers(self.toolchain.nvcc.path)
        output, host_seconds = nvrtc_build.both_sides(
            self.source.entry,
            self._device(cuda),
            _host(cuda),
            self.toolchain,
            folder,
            compiler=self.compiler,
            command=nvcc.command_line(self.source.arch, nvcc.SOURCE, nvcc.LIBRARY),
            keep=keep,
            cancel=cancel,
            limit_seconds=self.limit_seconds,
        )
        link_start = time.monotonic()
        _require_equal_parameters(self.source, folder, keep)
        _wrap(self.source, self.toolchain, folder, keep, cancel, self.limit_seconds)
        put(folder / _DATA, _data(device_compile.names_of(folder, IMAGE)))
        link = _link(self.toolchain)
        nvrtc_build.gxx(self.source.entry, link, self.toolchain, folder, keep, cancel, self.limit_seconds)
        for name in (_DATA, _FATBIN, _HOST_PART, f"{IMAGE}{compiler_process.NAMES}", *_LOGS):
            (folder / name).unlink()
        phases = (
            *output.phases,
            (f"g++ {_HOST_SOURCE}", host_seconds),
            ("link", round(time.monotonic() - link_start, 3)),
        )
        return Produced(round(time.monotonic() - start, 3), ptxas.parse(output.log), phases=phases)

    def _device(self, cuda: tuple[Path, ...]) -> device_compile.NvrtcCompile:
        includes = (*cuda, self.toolchain.cutlass.home / "include")
        options = (*DEVICE_FLAGS, *(f"-I{path}" for path in includes))
        return device_compile.NvrtcCompile(
            _DEVICE_SOURCE, IMAGE, options, self.device_headers, self.sides.kernels
        )


def _host(headers: tuple[Path, ...]) -> Gxx:
    arguments = (*_HOST_FLAGS, "-I.", "-c", "-o", _HOST_PART, _HOST_SOURCE)
    with_headers = (*(f"-isystem{path}" for path in headers), *arguments)
    return Gxx(with_headers, f"g++ {' '.join(arguments)}", _HOST_SOURCE, _HOST_LOG)


def _require_equal_parameters(source: Source, folder: Path, keep: Callable[[], Path]) -> None:
    """Both sides have the parameters from one text, but each from its compiler's headers. Raises BuildError where their
    sizes differ."""
    host = elf.section_contents((folder / _HOST_PART).read_bytes())[_PARAMETERS]
    names = device_compile.names_of(folder, IMAGE)
    image = elf.section_contents((folder / IMAGE).read_bytes())
    of_host = struct.unpack(f"<{len(host) // 4}I", host)
    of_device = tuple(_parameter_bytes(image[f".nv.info.{name}"]) for name in names)
    if of_host != of_device:
        words = f"kernels' parameters take {of_host} bytes for the host's compiler, {of_device} for NVRTC"
        kept_folder = keep()
        raise BuildError(source.entry, (words,), kept_folder / nvcc.SOURCE, kept_folder / nvcc.LOG, "")


def _parameter_bytes(info: bytes) -> int:
    """The sizes of all parameters. An attribute is a format, a number, and a value of two bytes or, of format 4, so
    many bytes more."""
    at = total = 0
    while at + 4 <= len(info):
        form, attribute, value = struct.unpack_from("<BBH", info, at)
        if attribute in (_PARAMETER, _LARGE_PARAMETER):
            (packed,) = struct.unpack_from("<I", info, at + 12)
            total += packed >> 18 if attribute == _PARAMETER else packed
        at += 4 + (value if form == 4 else 0)
    return total


def _wrap(
    source: Source,
    toolchain: Toolchain,
    folder: Path,
    keep: Callable[[], Path],
    cancel: Event | None,
    limit_seconds: float,
) -> None:
    """Makes the image a fat binary, as the runtime takes it. Raises what nvcc's refusals raise, OSError."""
    tool, log = toolchain.nvcc.path.resolve().with_name("fatbinary"), folder / _WRAP_LOG
    arguments = ("-64", f"--image3=kind=elf,sm=90a,file={IMAGE}", f"--create={_FATBIN}")
    ended = process.run(
        [str(tool), *arguments],
        folder=folder,
        env=nvcc.environment(folder),
        log=log,
        limit_seconds=limit_seconds,
        cancel=cancel,
    )
    status = process.exit_status(source.entry, ended, limit_seconds)
    if status != 0:
        nvcc.require_room(folder)
        words = log.read_text(encoding="utf-8", errors="replace")
        raise nvcc.refusal(source.entry, status, words, keep, f"fatbinary {' '.join(arguments)}", "fatbinary")


def _data(names: tuple[str, ...]) -> str:
    pointers = "\n".join(f"  .quad .Lname{i}" for i in range(len(names)))
    strings = "\n".join(f'.Lname{i}:\n  .string "{name}"' for i, name in enumerate(names))
    return _DATA_TEXT.format(fatbin=_FATBIN, pointers=pointers, strings=strings)


def _link(toolchain: Toolchain) -> Gxx:
    folders = (*device_compile.cuda_libraries(toolchain.nvcc.path), *toolchain.nvcc.library_folders)
    shown = ("-shared", "-Wl,-Bsymbolic", "-o", nvcc.LIBRARY, _HOST_PART, _DATA)
    arguments = (*shown, *(f"-L{path}" for path in folders), *_LIBRARIES)
    return Gxx(arguments, f"g++ {' '.join((*shown, *_LIBRARIES))}", _HOST_SOURCE, _LINK_LOG)

"""Wraps NVRTC, NVIDIA's library that compiles CUDA C++ device code without a host compiler."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from ucutlass.runtime.errors import ToolchainError
from ucutlass.runtime.jit import shared_library

if TYPE_CHECKING:
    from ucutlass.runtime.toolchain import Nvcc

_COMPILATION = 6
"""NVRTC_ERROR_COMPILATION of nvrtc.h: the source is refused, and the log says why."""


class NvrtcMissing(ToolchainError):
    """There is no NVRTC of nvcc's version, or it does not load."""


class NvrtcFailed(ToolchainError):
    """A call failed for another reason than the source, such as an option that it does not know."""


class NvrtcRefused(Exception):
    """NVRTC refused the source; `log` is all that it said."""

    def __init__(self, log: str) -> None:
        super().__init__(log)
        self.log = log


@dataclass(frozen=True, slots=True)
class Nvrtc:
    """The loaded library. Its calls may come from several threads."""

    library: ctypes.CDLL
    version: tuple[int, int]


@functools.cache
def load(place: str) -> Nvrtc:
    """Returns the library that `locate` found, once a process. Raises NvrtcMissing, NvrtcFailed."""
    try:
        return _loaded(place)
    except OSError as error:
        raise NvrtcMissing(f"NVRTC cannot be loaded: {error}", "ucc doctor") from error


def locate(nvcc: Nvcc) -> str:
    """Returns the NVRTC of nvcc's version, for `load`. Raises NvrtcMissing."""
    return shared_library.locate(LIBRARY, nvcc)


def _loaded(place: str) -> Nvrtc:
    library = shared_library.load(place, siblings="libnvrtc-builtins.so.[0-9]*")
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    major, minor = ctypes.c_int(), ctypes.c_int()
    _call(library, "nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
    return Nvrtc(library, (major.value, minor.value))


LIBRARY = shared_library.CompilerLibrary(
    "NVRTC", "libnvrtc", "nvidia-cuda-nvrtc", NvrtcMissing, lambda place: _loaded(place).version
)


@dataclass(frozen=True, slots=True)
class NvrtcOutput:
    """LTO-IR or an image, the names of kernels in it, and what the compiler said."""

    code: bytes
    names: tuple[str, ...]
    log: str


def compile_program(
    nvrtc: Nvrtc,
    source: str,
    name: str,
    options: Sequence[str],
    headers: Mapping[str, str] = MappingProxyType({}),
    kernels: Sequence[str] = (),
) -> NvrtcOutput:
    """Compiles a CUDA file to LTO-IR, where `options` hold `-dlto`, or to an image. `name` stands for the file in
    messages; `headers` are texts by the names that are included, before all files; `kernels` are expressions
    that name the kernels to compile, and whose names in the image are returned. Raises NvrtcRefused, NvrtcFailed.
    """
    library, program = nvrtc.library, ctypes.c_void_p()
    count = len(headers)
    _call(
        library,
        "nvrtcCreateProgram",
        ctypes.byref(program),
        source.encode(),
        name.encode(),
        ctypes.c_int(count),
        (ctypes.c_char_p * count)(*(text.encode() for text in headers.values())),
        (ctypes.c_char_p * count)(*(header.encode() for header in headers)),
    )
    try:
        for kernel in kernels:
            _call(library, "nvrtcAddNameExpression", program, kernel.encode())
        option_array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        status = library.nvrtcCompileProgram(program, ctypes.c_int(len(options)), option_array)
        log = _content(library, "nvrtcGetProgramLog", program).rstrip(b"\0").decode(errors="replace")
        if status == _COMPILATION:
            raise NvrtcRefused(log)
        _check(library, "nvrtcCompileProgram", status, log)
        kind = "nvrtcGetLTOIR" if "-dlto" in options else "nvrtcGetCUBIN"
        names = tuple(_lowered(library, program, kernel) for kernel in kernels)
        return NvrtcOutput(_content(library, kind, program), names, log)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _lowered(library: ctypes.CDLL, program: ctypes.c_void_p, kernel: str) -> str:
    name = ctypes.c_char_p()
    _call(library, "nvrtcGetLoweredName", program, kernel.encode(), ctypes.byref(name))
    return (name.value or b"").decode()


def _content(library: ctypes.CDLL, function: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _call(library, f"{function}Size", program, ctypes.byref(size))
    content = ctypes.create_string_buffer(size.value)
    _call(library, function, program, content)
    return content.raw


def _call(library: ctypes.CDLL, function: str, *arguments: object) -> None:
    _check(library, function, getattr(library, function)(*arguments), "")


def _check(library: ctypes.CDLL, function: str, status: int, log: str) -> None:
    if status:
        words = library.nvrtcGetErrorString(ctypes.c_int(status)).decode(errors="replace")
        raise NvrtcFailed(f"{function}: {words} {log}".rstrip(), "ucc doctor")

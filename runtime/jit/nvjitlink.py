"""Wraps nvJitLink, NVIDIA's linker of LTO-IR: it optimises over all parts and assembles one image."""

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

_LTOIR = 3
"""NVJITLINK_INPUT_LTOIR of nvJitLink.h."""

_RESULTS: Mapping[int, str] = MappingProxyType(
    {
        1: "unrecognised option",
        2: "missing -arch",
        3: "invalid input",
        4: "PTX compilation failed",
        5: "NVVM compilation failed",
        6: "internal error",
        7: "out of threads",
        8: "unrecognised input",
        9: "finalisation failed",
        10: "null input",
        11: "incompatible options",
        12: "wrong input type",
        13: "architecture mismatch",
        14: "outdated library",
        15: "missing fatbin",
    }
)
"""nvJitLinkResult in words."""


class NvJitLinkMissing(ToolchainError):
    """There is no nvJitLink of nvcc's version, or it does not load."""


class NvJitLinkFailed(ToolchainError):
    """A call failed for another reason than the parts."""


class LinkRefused(Exception):
    """The parts do not link; `log` is all that nvJitLink said."""

    def __init__(self, log: str) -> None:
        super().__init__(log)
        self.log = log


@dataclass(frozen=True, slots=True)
class NvJitLink:
    """The loaded library. Its calls may come from several threads."""

    library: ctypes.CDLL
    version: tuple[int, int]


@functools.cache
def load(place: str) -> NvJitLink:
    """Returns the library that `locate` found, once a process. Raises NvJitLinkMissing, NvJitLinkFailed."""
    try:
        return _loaded(place)
    except OSError as error:
        raise NvJitLinkMissing(f"nvJitLink cannot be loaded: {error}", "ucc doctor") from error


def locate(nvcc: Nvcc) -> str:
    """Returns the nvJitLink of nvcc's version, for `load`. Raises NvJitLinkMissing."""
    return shared_library.locate(LIBRARY, nvcc)


def _loaded(place: str) -> NvJitLink:
    library = shared_library.load(place)
    major, minor = ctypes.c_uint(), ctypes.c_uint()
    _call(library, "nvJitLinkVersion", ctypes.byref(major), ctypes.byref(minor))
    return NvJitLink(library, (major.value, minor.value))


LIBRARY = shared_library.CompilerLibrary(
    "nvJitLink", "libnvJitLink", "nvidia-nvjitlink", NvJitLinkMissing, lambda place: _loaded(place).version
)


def link(linker: NvJitLink, parts: Mapping[str, bytes], options: Sequence[str]) -> tuple[bytes, str]:
    """Returns the image (a cubin) of LTO-IR parts by name, and what linker and assembler said.

    `options` must hold `-lto` and `-arch`. Raises LinkRefused, NvJitLinkFailed.
    """
    library, handle = linker.library, ctypes.c_void_p()
    option_array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    _call(library, "nvJitLinkCreate", ctypes.byref(handle), ctypes.c_uint32(len(options)), option_array)
    try:
        for name, part in parts.items():
            size = ctypes.c_size_t(len(part))
            if library.nvJitLinkAddData(handle, ctypes.c_int(_LTOIR), part, size, name.encode()):
                raise LinkRefused(f"{name}: {_text(library, handle, 'ErrorLog')}")
        if status := library.nvJitLinkComplete(handle):
            logs = [_text(library, handle, log) for log in ("ErrorLog", "InfoLog")]
            raise LinkRefused("\n".join([_error_text(status), *(text for text in logs if text)]))
        return _content(library, handle, "LinkedCubin"), _text(library, handle, "InfoLog")
    finally:
        library.nvJitLinkDestroy(ctypes.byref(handle))


def _text(library: ctypes.CDLL, handle: ctypes.c_void_p, what: str) -> str:
    return _content(library, handle, what).rstrip(b"\0").decode(errors="replace")


def _content(library: ctypes.CDLL, handle: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _call(library, f"nvJitLinkGet{what}Size", handle, ctypes.byref(size))
    content = ctypes.create_string_buffer(max(1, size.value))
    _call(library, f"nvJitLinkGet{what}", handle, content)
    return content.raw[: size.value]


def _call(library: ctypes.CDLL, function: str, *arguments: object) -> None:
    if status := getattr(library, function)(*arguments):
        raise NvJitLinkFailed(f"{function}: {_error_text(status)}", "ucc doctor")


def _error_text(status: int) -> str:
    return f"nvJitLink {_RESULTS.get(status, f'result {status}')}"

"""Divides a kernel's one file into a side for NVRTC and a side for the host's compiler.

nvcc reads every header and the whole file twice, and its front end a third time: three quarters of the build of a kernel
without CUTLASS's collectives. Divided, NVRTC reads the device's side while the host's compiler reads the host's, in which
an element type is only an address. The text between is what the templates wrote; the sides are made by leaving out
the definitions that are not theirs:

    __device__                                    the device's
    __host__ __device__, constexpr without either  both
    __global__                                    the device's; on the host an empty function, which names the kernel
    no such word                                  the host's

A declaration that is no function is on both sides, unless it names CUDA's runtime or driver (the host's) or the
device's memory (the device's).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ucutlass.emit.parts import Divided, NotServed
from ucutlass.emit.text import Source

Side: TypeAlias = Literal["device", "host"]

ARCH = "sm_90a"
"""One image; those of older architectures hold several, which nvcc makes of one pass."""

COLLECTIVES = "collective_builder"
"""In the names of headers that CUTLASS's collectives begin with."""

_TOKEN = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|\d[\w'.]*|[(){}\[\];]|^[ \t]*#[^\n]*",
    re.DOTALL | re.MULTILINE,
)
_CLOSING = {"(": ")", "{": "}", "[": "]"}
_SCOPE = re.compile(r"(inline\s+)?namespace\b|extern\s*\"C\"\s*$")
_TYPE = re.compile(r"(template\s*<[^{}]*>\s*)?(struct|class|union)\b")
_ALIGNMENT = re.compile(r"alignas\s*\([^)]*\)")
_DEVICE = re.compile(r"\b(__device__|CUTLASS_DEVICE|CUTLASS_HOST_DEVICE|CUTE_DEVICE|CUTE_HOST_DEVICE)\b")
_HOST = re.compile(r"\b(__host__|CUTLASS_HOST_DEVICE|CUTE_HOST_DEVICE)\b")
_HOSTS_NAMES = re.compile(
    r"\bPFN_|\bCU(?!tensorMap\b|TLASS|TE_)\w|\bcuda[A-Z]|\bcuuint|\bstd::(atomic|mutex|once_flag)\b"
)
_DEVICES_MEMORY = re.compile(r"__(device|shared|constant)__")
_KERNEL_WORDS = re.compile(
    r"__(global|grid_constant)__|__(launch_bounds|cluster_dims|maxnreg)__\s*\((?:[^()]|\([^()]*\))*\)"
)
_PARAMETERS = re.compile(r"\((?:[^()]|\([^()]*\))*\)\s*$")
_KERNEL_HEAD = re.compile(r"^((?:template\b[^\n]*\n)?__global__[^{;]*)\{", re.MULTILINE)
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]+([\"<][^\">]+[\">]).*\n", re.MULTILINE)
_HOSTS_HEADERS = re.compile(r"\"|<cuda/std/|<cuda_(fp|bf)")
"""Of what the host's side includes, that which has no more than element types for it."""


@dataclass(frozen=True, slots=True)
class _Item:
    """A declaration between `begin` and `end`; its head begins at `head`, its body, if any, with the brace at
    `body`."""

    kind: Literal["directive", "scope", "type", "function", "other"]
    begin: int
    head: int
    body: int
    end: int


def divide(source: Source) -> Divided:
    """Raises NotServed for a kernel of CUTLASS's collectives, or of another architecture than ARCH."""
    if source.arch != ARCH or COLLECTIVES in source.preamble or source.in_parts:
        raise NotServed(
            "only kernels for sm90a are built by NVRTC, and none of CUTLASS's collectives that no lean kernel serves"
        )
    device, host = _side(source.code, "device"), _side(source.code, "host")
    kernels = tuple(_kernels(device, host))
    namespace = f"{source.entry}_kernel"
    return Divided(
        source.entry,
        f'#define UCC_KERNEL {namespace}\n#include "divided_device.h"\n{device}\nusing namespace {namespace};\n',
        '#include "divided_host.h"\n'
        + _INCLUDE.sub(lambda m: "" if _HOSTS_HEADERS.match(m[1]) else m[0], host)
        + _registration(namespace, kernels),
        kernels,
    )


# --- the sides --------------------------------------------------------------------


def _side(text: str, side: Side, begin: int = 0, end: int | None = None) -> str:
    parts: list[str] = []
    for item in _items(text, begin, len(text) if end is None else end):
        match item.kind:
            case "directive":
                parts.append(text[item.begin : item.end])
            case "scope" | "type":
                close = _find(text, item.body + 1, "}")
                inner = _side(text, side, item.body + 1, close)
                parts += [text[item.begin : item.body + 1], inner, "\n", text[close : item.end]]
            case "other":
                words = text[item.head : item.end]
                foreign = _HOSTS_NAMES if side == "device" else _DEVICES_MEMORY
                parts += [] if foreign.search(words) else [text[item.begin : item.end]]
            case "function":
                parts.append(_function(text, item, side))
    return "".join(parts)


def _function(text: str, item: _Item, side: Side) -> str:
    head, whole = text[item.head : item.body], text[item.begin : item.end]
    if "__global__" in head:
        return (
            whole
            if side == "device"
            else f"{text[item.begin : item.head]}{_KERNEL_WORDS.sub('', head)}{{}}\n"
        )
    on_device, on_host = _DEVICE.search(head) is not None, _HOST.search(head) is not None
    if on_device == on_host and (on_device or re.search(r"\bconstexpr\b", head)):
        return whole
    return whole if on_device == (side == "device") else ""


def _items(text: str, at: int, end: int) -> Iterator[_Item]:
    while True:
        begin, at = at, _after_space(text, at)
        if at >= end:
            return
        if text[at] == "#":
            stop = text.find("\n", at)
            while text[stop - 1] == "\\":
                stop = text.find("\n", stop + 1)
            yield _Item("directive", begin, at, at, stop + 1)
            at = stop + 1
            continue
        body = _find(text, at, "{;")
        head = re.sub(r"//[^\n]*", "", text[at:body]).strip()
        if text[body] == ";":
            item = _Item("other", begin, at, body, body + 1)
        elif _SCOPE.match(head):
            item = _Item("scope", begin, at, body, _find(text, body + 1, "}") + 1)
        elif _TYPE.match(head) and "(" not in _ALIGNMENT.sub("", head):
            item = _Item("type", begin, at, body, _find(text, body, ";") + 1)
        elif head.startswith("enum") or _is_initialized(head):
            item = _Item("other", begin, at, body, _find(text, body, ";") + 1)
        else:
            item = _Item("function", begin, at, body, _find(text, body + 1, "}") + 1)
        yield item
        at = item.end


def _is_initialized(head: str) -> bool:
    """Whether the brace after a head begins a variable's value: an equal sign stands outside of all brackets."""
    depth = 0
    for mark in re.findall(r"operator\s*[=<>!]+|[<>=!]=|[()\[\]<>=]", head):
        depth += (mark in "([<") - (mark in ")]>")
        if mark == "=" and depth == 0:
            return True
    return False


def _after_space(text: str, at: int) -> int:
    space = re.compile(r"(\s+|//[^\n]*\n?|/\*.*?\*/)*", re.DOTALL).match(text, at)
    return at if space is None else space.end()


def _find(text: str, at: int, marks: str) -> int:
    """The place of the first of the marks outside of brackets, comments and strings."""
    open_brackets: list[str] = []
    for token in _TOKEN.finditer(text, at):
        mark = token[0]
        if not open_brackets and mark in marks:
            return token.start()
        if mark in _CLOSING:
            open_brackets.append(_CLOSING[mark])
        elif mark in (")", "}", "]") and (not open_brackets or open_brackets.pop() != mark):
            break
    raise NotServed(f"the brackets of an emitted file do not match after character {at}")


# --- kernels ----------------------------------------------------------------------


def _kernels(device: str, host: str) -> Iterator[str]:
    """The names of the kernels; of a template, the instances that the host names."""
    for head in _KERNEL_HEAD.findall(device):
        name = re.findall(r"\w+", _PARAMETERS.sub("", head.strip()))[-1]
        if head.startswith("template"):
            yield from dict.fromkeys(_instances(host, name))
        else:
            yield name


def _instances(host: str, name: str) -> Iterator[str]:
    for opening in re.finditer(rf"\b{name}<", host):
        depth, at = 1, opening.end()
        while depth:
            depth += (host[at] == "<") - (host[at] == ">")
            at += 1
        yield host[opening.start() : at]


def _registration(namespace: str, kernels: tuple[str, ...]) -> str:
    """Makes the image and its kernels known to CUDA's runtime when the library is loaded, as nvcc's code does.
    The image, and the names of its kernels as the linker has them, are in the library's data; the bytes of each kernel's
    parameters are in a section of the host's object."""
    lines = "".join(f"  ucc_register_kernel({i}, &{name});\n" for i, name in enumerate(kernels))
    sizes = ", ".join(f"ucc_parameter_bytes(&{name})" for name in kernels)
    return (
        f"\nnamespace {{\n__attribute__((constructor)) void ucc_register() {{\n  using namespace {namespace};\n"
        f"  static uint32_t const sizes[] UCC_PARAMETERS = {{{sizes}}};\n  ucc_register_image();\n{lines}  ucc_registered();\n}}\n}}  // namespace\n"
    )

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

from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

from ucutlass.emit.declarations import (
    Block,
    Declaration,
    FunctionDefinition,
    Lexeme,
    Lexemes,
    PreprocessorLine,
    Statement,
    closing_angle,
    declarations,
    written,
)
from ucutlass.emit.parts import Divided, NotServed
from ucutlass.emit.text import Source

Side: TypeAlias = Literal["device", "host"]

ARCH = "sm_90a"
"""One image; those of older architectures hold several, which nvcc makes of one pass."""

COLLECTIVES = "collective_builder"
"""In the names of headers that CUTLASS's collectives begin with."""

_OF_BOTH = frozenset(("CUTLASS_HOST_DEVICE", "CUTE_HOST_DEVICE"))
_OF_DEVICE = frozenset(("__device__", "CUTLASS_DEVICE", "CUTE_DEVICE")) | _OF_BOTH
_OF_HOST = frozenset(("__host__",)) | _OF_BOTH
"""Words that say on which side a function is."""

_DEVICES_MEMORY = frozenset(("__device__", "__shared__", "__constant__"))
_HOSTS_LIBRARY = frozenset(("atomic", "mutex", "once_flag"))
_DRIVER, _OF_NO_DRIVER = ("CU", "PFN_", "cuuint"), ("CUtensorMap", "CUTLASS", "CUTE_")
"""How the names of the driver begin, and of those what the device has too."""

_KERNEL = "__global__"
_KERNELS_WORDS = frozenset((_KERNEL, "__grid_constant__"))
_KERNELS_ATTRIBUTES = frozenset(("__launch_bounds__", "__cluster_dims__", "__maxnreg__"))
"""What a kernel's declaration has that no function of the host may have; attributes take arguments."""

_DEVICES_HEADERS = ('"', "<cuda/std/", "<cuda_fp", "<cuda_bf")
"""How the headers begin that have no more than element types for the host."""


def divide(source: Source) -> Divided:
    """Raises NotServed for a kernel of CUTLASS's collectives, or of another architecture than ARCH."""
    if source.arch != ARCH or COLLECTIVES in source.preamble or source.in_parts:
        raise NotServed(
            "only kernels for sm90a are built by NVRTC, and none of CUTLASS's collectives that no lean kernel serves"
        )
    tree = declarations(source.code)
    host = tuple(_side(tree, "host"))
    kernels = tuple(_kernels(tree, host))
    namespace = f"{source.entry}_kernel"
    return Divided(
        source.entry,
        f'#define UCC_KERNEL {namespace}\n#include "divided_device.h"\n{written(_side(tree, "device"))}\n'
        f"using namespace {namespace};\n",
        f'#include "divided_host.h"\n{written(host)}{_registration(namespace, kernels)}',
        kernels,
    )


# --- the sides --------------------------------------------------------------------


def _side(tree: Iterable[Declaration], side: Side) -> Iterator[Lexeme]:
    """Yields the tokens of what is on a side."""
    for declaration in tree:
        match declaration:
            case PreprocessorLine(line):
                yield line if side == "device" or not _is_of_device(line) else Lexeme(line.space, "")
            case Block(opening, members, closing):
                yield from opening
                yield from _side(members, side)
                yield from closing
            case Statement(tokens):
                if not any(_is_foreign(token.text, side) for token in tokens):
                    yield from tokens
            case FunctionDefinition(head, body):
                if side == "host" and _KERNEL in declaration.words:
                    yield from _without_kernels_words(head)
                    yield Lexeme(body[0].space, "{}\n")
                elif side in _sides(declaration):
                    yield from head
                    yield from body


def _sides(function: FunctionDefinition) -> tuple[Side, ...]:
    words = function.words
    if _KERNEL in words:
        return ("device",)
    on_device, on_host = not words.isdisjoint(_OF_DEVICE), not words.isdisjoint(_OF_HOST)
    if on_device == on_host:
        return ("device", "host") if on_device or "constexpr" in words else ("host",)
    return ("device",) if on_device else ("host",)


def _is_of_device(line: Lexeme) -> bool:
    """Whether a line includes a header that only the device's side needs."""
    directive, *words = line.text.removeprefix("#").split()
    return directive == "include" and words[0].startswith(_DEVICES_HEADERS)


def _is_foreign(word: str, side: Side) -> bool:
    """Whether a word of a declaration that is no function keeps it from a side."""
    if side == "host":
        return word in _DEVICES_MEMORY
    of_runtime = word.startswith("cuda") and word[4:5].isupper()
    of_driver = word.startswith(_DRIVER) and not word.startswith(_OF_NO_DRIVER) and word != "CU"
    return of_runtime or of_driver or word in _HOSTS_LIBRARY


def _without_kernels_words(head: Lexemes) -> Iterator[Lexeme]:
    depth, in_attribute = 0, False
    for token in head:
        if token.text in _KERNELS_WORDS or token.text in _KERNELS_ATTRIBUTES:
            in_attribute = token.text in _KERNELS_ATTRIBUTES
            yield Lexeme(token.space, "")
        elif in_attribute:
            depth += (token.text == "(") - (token.text == ")")
            in_attribute = depth > 0
        else:
            yield token


# --- kernels ----------------------------------------------------------------------


def _kernels(tree: Iterable[Declaration], host: Lexemes) -> Iterator[str]:
    """The names of the kernels; of a template, the instances that the host names."""
    for declaration in tree:
        match declaration:
            case Block(members=members):
                yield from _kernels(members, host)
            case FunctionDefinition(head) if _KERNEL in declaration.words:
                is_template = head[0].text == "template"
                yield from _instances(host, declaration.name) if is_template else (declaration.name,)


def _instances(host: Lexemes, name: str) -> Iterable[str]:
    """The template arguments that the host gives the name, each once."""
    openings = (i + 1 for i, token in enumerate(host[:-1]) if token.text == name and host[i + 1].text == "<")
    return dict.fromkeys(name + written(host[i : closing_angle(host, i) + 1]) for i in openings)


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

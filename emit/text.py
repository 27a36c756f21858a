"""Text that every emitter makes the same way: extents as C++, comments, templates, sources."""

from __future__ import annotations

import hashlib
import math
import re
import struct
from dataclasses import dataclass

from ucutlass.emit.environment import templates
from ucutlass.ir.extents import Combined, Extent, Fixed, Free
from ucutlass.kernels.access import Product
from ucutlass.kernels.arithmetic import ScalarKind

PLACEHOLDER = "@ENTRY@"
"""Stands for the entry's name in the code that `finish` takes."""


@dataclass(frozen=True, slots=True)
class Source:
    """One kernel's stand-alone CUDA file.

    `text` is the whole file; `code` is `text` without the header comment, so that what only
    explains a kernel takes no part in a cache key. `entry` is the C symbol of the entry
    (`ucutlass.kernels.gemm.plan` has its signature), `arch` nvcc's name of the target, such as "sm_90a".
    `in_parts`: the kernel is built of parts alone (`ucutlass.emit.gemm.lean`), and the file lists them.
    """

    text: str
    code: str
    entry: str
    arch: str
    in_parts: bool = False

    @property
    def preamble(self) -> str:
        """What stands before the kernel's namespace: includes, and macros that decide what these
        hold. Sources of one preamble may be compiled as one translation unit."""
        return self.code.partition(f"namespace {self.entry}_kernel")[0]


def finish(code: str, header: str, arch: str) -> Source:
    """Names the entry after a digest of the code and puts the header, made a comment, before it.

    `code` holds PLACEHOLDER wherever the entry's name goes; `header` is free text, any text.
    The name is `ucc_` and 16 hex digits. It never holds the letters "cutlass", by which ptxas
    chooses other heuristics: two sources that differ in a name alone compile alike.

    Raises ValueError if `code` has no placeholder.
    """
    if PLACEHOLDER not in code:
        raise ValueError(f"the code of a kernel names its entry nowhere: {PLACEHOLDER} is missing")
    entry = "ucc_" + hashlib.sha256(f"{arch}\n{code}".encode()).hexdigest()[:16]
    named = code.replace(PLACEHOLDER, entry)
    return Source(text=f"{comment(header)}{named}", code=named, entry=entry, arch=arch)


def product(extents: Product, array: str = "e") -> str:
    """A product of extents as C++, over the entry's extent array: `e[0] * e[2]`, or `1`."""
    return " * ".join(f"{array}[{position}]" for position in extents) or "1"


def over_extents(extent: Extent, divide: str, modulo: str) -> str:
    """An extent as C++ over the entry's extent array, whose dimensions are called by their positions;
    `divide` and `modulo` are functions that round down."""
    match extent:
        case Fixed(value):
            return str(value) if value >= 0 else f"({value})"
        case Free(position):
            return f"e[{int(position)}]"
        case Combined(op, left, right):
            a, b = (over_extents(side, divide, modulo) for side in (left, right))
            called = {"//": divide, "%": modulo}.get(op)
            return f"({a} {op} {b})" if called is None else f"{called}({a}, {b})"


def comment(text: str) -> str:
    """The text as `//` lines, or "" for none; whatever it holds, nothing of it is code.

    Backslashes, control characters and all beyond ASCII are written `<U+005C>`: a backslash
    that ends a line would join the next line to the comment, a direction mark would hide code
    from a reader. Trigraphs and the marks of block comments get a space.
    """
    harmless = _harmless("\n".join(text.splitlines()))
    return "".join(f"// {line}".rstrip() + "\n" for line in harmless.split("\n")) if text else ""


_TOGETHER = re.compile(r"\?(?=\?)|\*(?=/)|/(?=\*)")
_NOT_PRINTED = re.compile(r"[^ -\[\]-~\n]")


def _harmless(lines: str) -> str:
    spaced = _TOGETHER.sub(r"\g<0> ", lines.expandtabs(4))
    return _NOT_PRINTED.sub(lambda character: f"<U+{ord(character[0]):04X}>", spaced)


def literal(value: float | bool, kind: ScalarKind) -> str:
    """The value as a C++ literal that the compiler reads back exactly; f32 rounds it first.

    Raises ValueError for an integer outside its kind.
    """
    match kind:
        case "f32":
            return _float_literal(float(value))
        case "bool":
            return "true" if value else "false"
        case "i32" | "i64":
            bits = 31 if kind == "i32" else 63
            if not -(2**bits) <= value < 2**bits or value != int(value):
                raise ValueError(f"the literal {value} is no {kind}")
            whole = str(int(value)) if value != -(2**bits) else f"-{2**bits - 1} - 1"
            return whole if kind == "i32" and value != -(2**bits) else f"int{bits + 1}_t({whole})"


def _float_literal(value: float) -> str:
    if math.isnan(value):
        return "NAN"
    single = _single(value)
    if math.isinf(single):
        return "INFINITY" if single > 0 else "-INFINITY"
    for digits in range(1, 10):
        text = f"{single:.{digits}g}"
        if _read_as(text, single):
            return f"{text}f" if "." in text or "e" in text else f"{text}.0f"
    return f"{single.hex()}f"


def _read_as(text: str, single: float) -> bool:
    """Whether a compiler reads the decimal as this f32: all doubles next to it round there too."""
    near = (math.nextafter(float(text), -math.inf), float(text), math.nextafter(float(text), math.inf))
    return all(_single(value) == single for value in near) or float(text) == single


def _single(value: float) -> float:
    """The nearest f32, infinite beyond the range."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def render(template: str, **values: object) -> str:
    """The template of this name with these values.

    Raises jinja2.TemplateNotFound and jinja2.UndefinedError, both mistakes of an emitter.
    """
    return templates().get_template(template).render(**values)

"""Text that every emitter makes the same way: extents as C++, comments, templates, sources."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ucutlass.plan import Product

PLACEHOLDER = "@ENTRY@"
"""Stands for the entry's name in the code that `finish` takes."""


@dataclass(frozen=True, slots=True)
class Source:
    """One kernel's stand-alone CUDA file.

    `text` is the whole file; `code` is `text` without the header comment, so that what only
    explains a kernel takes no part in a cache key. `entry` is the C symbol of the entry
    (`ucutlass.plan` has its signature), `arch` nvcc's name of the target, such as "sm_90a".
    """

    text: str
    code: str
    entry: str
    arch: str


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


def comment(text: str) -> str:
    """The text as `//` lines, or "" for none; whatever it holds, nothing of it is code.

    Backslashes, control characters and all beyond ASCII are written `<U+005C>`: a backslash
    that ends a line would join the next line to the comment, a direction mark would hide code
    from a reader. Trigraphs and the marks of block comments get a space.
    """
    return "".join(f"// {_harmless(line)}".rstrip() + "\n" for line in text.splitlines())


def _harmless(line: str) -> str:
    spaced = re.sub(r"\?(?=\?)|\*(?=/)|/(?=\*)", r"\g<0> ", line.expandtabs(4))
    return "".join(c if " " <= c <= "~" and c != "\\" else f"<U+{ord(c):04X}>" for c in spaced)


@cache
def templates() -> Environment:
    """The environment of the templates beside this file; an undefined name raises UndefinedError."""
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def render(template: str, **values: object) -> str:
    """The template of this name with these values.

    Raises jinja2.TemplateNotFound and jinja2.UndefinedError, both mistakes of an emitter.
    """
    return templates().get_template(template).render(**values)

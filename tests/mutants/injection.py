"""Text that tries to become code (row 64), and mutants of the emitter that let it.

The guard: a program's names and comments change nothing of the emitted code, and of its header
nothing stands outside of comments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from tests.mutants.guards import Mutant, Trial
from ucutlass import emit, frontend
from ucutlass.backend import source_of
from ucutlass.emit import text as emit_text
from ucutlass.emit.text import Source

PLAIN = "kernel k(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] {\n  return dot[K](x, w)\n}\n"
SIZES = (64, 64, 64)

COMMENTS = (
    "*/ int evil; /*",
    "\\",
    "??/",
    "*\\",
    "#include </etc/passwd>",
    "\u2028int evil;",
    "@ENTRY@",
    "\x0bint evil;",
    "\x85int evil;",
    "}} {% raw %} {{ evil }}",
    '_Pragma("x")',
    'R"(',
    "\u202e;live tni",
)

NAMES = ("asm", "main", "ucc_arithmetic", "Params", "evil", "template", "__global__", "ENTRY", "p")
"""Identifiers that mean something to a C++ compiler, or to the emitted file."""


def with_comment(comment: str) -> str:
    return PLAIN.replace("(x, w)\n", f"(x, w) # {comment}\n")


def with_name(name: str) -> str:
    return PLAIN.replace("kernel k", f"kernel {name}").replace("x", name)


def emitted(text: str) -> Source:
    checked = frontend.read_text(text)
    kernel = frontend.kernel(checked)
    return source_of(checked, kernel, frontend.plan_kernel(checked, kernel, SIZES, "sm90a").planned)


def escapes(text: str) -> bool:
    """Whether anything of a program's text gets out of the header's comments."""
    plain, hostile = emitted(PLAIN), emitted(text)
    if hostile.code != plain.code or not hostile.text.endswith(hostile.code):
        return True
    header = hostile.text[: len(hostile.text) - len(hostile.code)]
    # A backslash, or its trigraph, that ends a line joins the next one to it: the last line's is code.
    joins = re.search(r"(\\|\?\?/)[ \t]*$", header, re.MULTILINE)
    lines = re.split(r"[\n\r\v\f\x85\u2028\u2029]", header)
    bare = [line for line in lines if line and not line.startswith("//")]
    return bool(joins or bare) or not header.isascii()


def _trial(text: str) -> Trial:
    """The guard must not object to the emitter's work."""
    return Trial(False, lambda: escapes(text))


TRIALS: Mapping[str, Trial] = MappingProxyType(
    {
        "plain": _trial(PLAIN),
        **{f"name {name}": _trial(with_name(name)) for name in NAMES},
        **{f"comment {comment!r}": _trial(with_comment(comment)) for comment in COMMENTS},
    }
)


def _raw(_: Any) -> Callable[[str], str]:
    return lambda line: line


def _block(_: Any) -> Callable[[str], str]:
    return lambda text: f"/*\n{text}*/\n"


def _first_line(_: Any) -> Callable[[str], str]:
    return lambda text: f"// {text}\n" if text else ""


def _named_after_the_program(original: Callable[..., Source]) -> Callable[..., Source]:
    def finish(code: str, header: str, arch: str) -> Source:
        name = header.partition(",")[0].split()[-1]
        return original(code.replace("ucc_arithmetic", f"{name}_arithmetic"), header, arch)

    return finish


def _header_is_code(original: Callable[..., Source]) -> Callable[..., Source]:
    """The header is put before the placeholder is replaced, and so takes part in it."""

    def finish(code: str, header: str, arch: str) -> Source:
        return original(emit_text.comment(header) + code, "", arch)

    return finish


MUTANTS: tuple[Mutant, ...] = (
    Mutant("lines as they are", (64,), ((emit_text, "_harmless"),), _raw, f"comment {COMMENTS[1]!r}"),
    Mutant("a block comment", (64,), ((emit_text, "comment"),), _block, f"comment {COMMENTS[0]!r}"),
    Mutant("only the first line is a comment", (64,), ((emit_text, "comment"),), _first_line, "plain"),
    Mutant(
        "symbols named after the program", (64,), ((emit, "finish"),), _named_after_the_program, "name evil"
    ),
    Mutant(
        "the header takes part in the digest",
        (64,),
        ((emit, "finish"),),
        _header_is_code,
        "comment '@ENTRY@'",
    ),
)

"""Reads an adopted source as data, and checks all that its text shows.

Native code runs with the rights of the user who adopts it, and no check of a text makes it harmless: these
find mistakes, and what has no business in a kernel, before a compiler or a GPU is asked.
"""

from __future__ import annotations

import errno
import hashlib
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from ucutlass import files
from ucutlass.adopt.refusals import SourceRefused
from ucutlass.adopt.tokens import Directive, Token, scan
from ucutlass.emit.text import Source

MOST_BYTES = 1 << 20
"""Of a source. The longest that an emitter writes has some 60 KB."""

ENTRY = re.compile(r"ucc_[A-Za-z0-9_]{1,64}")
"""Names that an entry may have. Emitted ones are `ucc_` and 16 hex digits."""

INTERFACE = (
    ("tensors", ("void * const *",)),
    ("extents", ("int64_t const *", "const int64_t *")),
    ("scalars", ("double const *", "const double *")),
    ("launch_parameters", ("int64_t const *", "const int64_t *")),
    ("workspace", ("void *",)),
    ("workspace_size", ("uint64_t *",)),
    ("stream", ("void *",)),
)
"""The entry's parameters with the spellings of each type (ucutlass/kernels/gemm/plan.py)."""

HEADERS = frozenset(
    {
        "algorithm",
        "atomic",
        "cmath",
        "cstdint",
        "cstring",
        "initializer_list",
        "limits",
        "mutex",
        "numeric",
        "type_traits",
        "cuda.h",
        "cudaTypedefs.h",
        "cuda_bf16.h",
        "cuda_fp16.h",
        "cuda_fp8.h",
        "cuda_runtime.h",
        "cuda_runtime_api.h",
        "cuda/std/limits",
    }
)
"""Headers beside those of CuTe and CUTLASS that emitters include."""

_LIBRARY_HEADER = re.compile(r"(?:cute|cutlass)(?:/[A-Za-z0-9_]+)+\.(?:h|hpp)")

_DIRECTIVES = frozenset(
    {"", "define", "undef", "if", "ifdef", "ifndef", "elif", "else", "endif", "error", "warning"}
)
_PRAGMAS = re.compile(
    r"once|(?:no)?unroll\b.*|GCC (?:unroll|ivdep|diagnostic)\b.*|(?:nv_)?diag(?:_|nostic\b).*"
)
_OPERATORS = frozenset({"__has_include", "__has_include_next", "__has_embed", "_Pragma", "__pragma"})
_TRIGRAPH = re.compile(r"\?\?[=/'()!<>-]")

_STARTUP = frozenset(
    name for word in ("constructor", "destructor", "ifunc", "init_priority") for name in (word, f"__{word}__")
)
_ASSEMBLY = re.compile(
    r"\.(?:incbin|include|section|pushsection|popsection|previous|init_array|fini_array|ctors|dtors)\b"
    r"|\b(?:syscall|sysenter|svc)\b|\bint\s+\$"
)
_LOADS = re.compile(r"cu(?:da)?(?:Module|Library|Link)[A-Z]\w*")
"""Functions of the driver and the runtime that load other code."""

_ENDINGS = frozenset({"exit", "_exit", "_Exit", "quick_exit"})
"""nvcc's own stubs call exit, so an object that calls it says nothing."""


def read(
    path: Path, arch: str = "sm_90a", content: Callable[[Path, int], bytes] = files.read_bytes
) -> Source:
    """Returns the source of a file; `arch` is nvcc's name of the target, `content` reads at most so many bytes.
    Raises SourceRefused, and OSError where the file cannot be read."""
    try:
        data = content(path, MOST_BYTES)
    except OSError as problem:
        if problem.errno != errno.EFBIG:
            raise
        raise SourceRefused("size", f"{path} has more than {MOST_BYTES} bytes") from problem
    return checked(data, arch)


def checked(data: bytes, arch: str = "sm_90a") -> Source:
    """Does what `read` does, of the bytes of a file. Raises SourceRefused."""
    text = _text(data)
    tokens, directives = scan(text)
    for directive in directives:
        _check_directive(directive)
    _check_tokens(tokens)
    entry = _entry(tokens)
    return Source(text, code_of(text), entry, arch)


def code_of(text: str) -> str:
    """Returns the text without the comment that it begins with."""
    lines = text.splitlines(keepends=True)
    first = next((i for i, line in enumerate(lines) if not line.startswith("//")), len(lines))
    return "".join(lines[first:])


def digest_of(source: Source) -> str:
    """Returns the hex SHA-256 of the code, without the comment that it begins with: as evidence has it."""
    return hashlib.sha256(source.code.encode()).hexdigest()


def _text(data: bytes) -> str:
    try:
        text = data.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as problem:
        words = f"byte {problem.start} (0x{data[problem.start]:02X}) is not UTF-8"
        raise SourceRefused("encoding", words) from problem
    for number, line in enumerate(text.split("\n"), 1):
        for character in line:
            # Direction marks show a reader other code than the compiler reads (CVE-2021-42574).
            if not (character.isprintable() or character == "\t"):
                words = f"line {number} has the control character U+{ord(character):04X}"
                raise SourceRefused("encoding", words)
    if m := _TRIGRAPH.search(text):
        place = text.count("\n", 0, m.start()) + 1
        raise SourceRefused("directive", f"line {place} has the trigraph {m[0]}")
    return text


def _check_directive(directive: Directive) -> None:
    where = f"line {directive.line}"
    match directive.name:
        case "include":
            _check_include(directive.rest, where)
        case "pragma":
            if not _PRAGMAS.fullmatch(directive.rest):
                raise SourceRefused("directive", f"{where}: #pragma {directive.rest:.60}")
        case name if name not in _DIRECTIVES:
            raise SourceRefused("directive", f"{where}: #{name:.60}")
        case _:
            operator = _OPERATORS & set(re.findall(r"\w+", directive.rest))
            if operator:
                raise SourceRefused("directive", f"{where}: {min(operator)}")


def _check_include(rest: str, where: str) -> None:
    compact = rest.replace(" ", "")
    m = re.fullmatch(r'<([^<>"]+)>|"([^<>"]+)"', compact)
    if m is None:
        raise SourceRefused("include", f"{where}: #include {rest:.60} names no header in <> or quotes")
    name = m[1] or m[2]
    if name not in HEADERS and not _LIBRARY_HEADER.fullmatch(name):
        raise SourceRefused("include", f"{where}: {name:.60} is none of CuTe, CUTLASS or what emitters use")


def _check_tokens(tokens: Sequence[Token]) -> None:
    for at, token in enumerate(tokens):
        where = f"line {token.line}"
        match token.kind:
            case "name" if token.text in _OPERATORS:
                raise SourceRefused("directive", f"{where}: {token.text}")
            case "name" if token.text in _STARTUP:
                raise SourceRefused("startup", f"{where}: the attribute {token.text}")
            case "name" if _LOADS.fullmatch(token.text):
                raise SourceRefused("host-call", f"{where}: {token.text} loads other code")
            case "name" if token.text in _ENDINGS and _is_call(tokens, at):
                raise SourceRefused("host-call", f"{where}: {token.text} ends the caller's process")
            case "string" if m := _ASSEMBLY.search(token.text):
                raise SourceRefused("assembly", f"{where}: {m[0]} in a string")
            case "string" if m := _LOADS.search(token.text):
                raise SourceRefused("host-call", f"{where}: {m[0]} loads other code")


def _is_call(tokens: Sequence[Token], at: int) -> bool:
    return at + 1 < len(tokens) and tokens[at + 1].text == "("


def _entry(tokens: Sequence[Token]) -> str:
    """Returns the name of the one function of C linkage, whose parameters are those of INTERFACE."""
    places = [
        at
        for at, (first, second) in enumerate(pairwise(tokens))
        if first.text == "extern" and second.text == '"C"'
    ]
    if len(places) != 1:
        words = "there is no function of C linkage"
        if places:
            lines = ", ".join(str(tokens[at].line) for at in places[:5])
            words = f'extern "C" stands {len(places)} times, in lines {lines}'
        raise SourceRefused("entry", f"{words}; a kernel has one entry")
    rest = tokens[places[0] + 2 :]
    where = f"line {tokens[places[0]].line}"
    opening = [token.text for token in rest[:3]]
    if len(opening) < 3 or opening[0] != "int32_t" or opening[2] != "(":
        shown = " ".join(opening)
        raise SourceRefused("entry", f'{where}: the entry begins extern "C" int32_t NAME(, not {shown:.60}')
    if not ENTRY.fullmatch(opening[1]):
        raise SourceRefused("entry", f"{where}: {opening[1]:.60} is no entry's name, which begins with ucc_")
    _check_parameters(rest[3:], opening[1], where)
    return opening[1]


def _check_parameters(tokens: Sequence[Token], entry: str, where: str) -> None:
    end = next((at for at, token in enumerate(tokens) if token.text in "(){};"), len(tokens))
    parameters: list[list[str]] = [[]]
    for token in tokens[:end]:
        if token.text == ",":
            parameters.append([])
        else:
            parameters[-1].append(token.text)
    if len(parameters) != len(INTERFACE):
        words = f"{entry} takes {len(parameters)} parameters, and the binary interface has {len(INTERFACE)}"
        raise SourceRefused("signature", f"{where}: {words}")
    for number, ((name, spellings), words_of) in enumerate(zip(INTERFACE, parameters, strict=True), 1):
        own_name = len(words_of) > 1 and words_of[-1] not in ("*", "const", "&")
        shown = " ".join(words_of[:-1] if own_name else words_of)
        if shown not in spellings:
            words = f"parameter {number} of {entry} is {shown:.60}, and {name} is {spellings[0]}"
            raise SourceRefused("signature", f"{where}: {words}")
    following = [token.text for token in tokens[end : end + 2]]
    if following != [")", "{"]:
        raise SourceRefused("signature", f"{where}: {entry} is not followed by its body")

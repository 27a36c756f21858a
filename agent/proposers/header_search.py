"""This module searches the headers of the installed CUTLASS and CuTe: by symbol, by text, and by line.

KernelPro's agent searches the library that it writes for (arXiv 2606.26453). Headers are read once, as data,
below one folder: no link is followed, no pattern of a model is a regular expression, and every answer is bounded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

MOST_FILES = 4_000
MOST_FILE_BYTES = 4 << 20
MOST_BYTES = 96 << 20
"""Of all headers. CUTLASS 4.2 has 802 with 22 MB."""

MOST_HITS = 40
"""Lines that a search of text returns."""

MOST_DEFINITIONS = 6
"""Definitions that are shown; further ones are named by their place."""

MOST_LINES = 120
"""Lines of one definition, or of a part of a file."""

MOST_SHOWN = 6_000
"""Characters of one answer."""

_ENDINGS = frozenset({".h", ".hpp", ".inl", ".cuh"})
_NAME = re.compile(r"[A-Za-z_]\w{0,199}")


class NotFound(Exception):
    """Raised for what the headers do not have, or a path that names none of them; says what there is."""


@dataclass(frozen=True, slots=True)
class Headers:
    """Holds the lines of every header below a folder, by path from there, in order. `version` is the package's."""

    root: Path
    version: str
    files: Mapping[str, tuple[str, ...]] = field(repr=False)


@cache
def headers_of(root: Path, version: str = "") -> Headers:
    """Reads the headers below a folder, once in a process; what is no plain file below it is left out."""
    files: dict[str, tuple[str, ...]] = {}
    total = 0
    for path in _paths(root):
        size = path.stat().st_size
        total += size
        if size > MOST_FILE_BYTES or total > MOST_BYTES or len(files) >= MOST_FILES:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        files[path.relative_to(root).as_posix()] = tuple(text.splitlines())
    return Headers(root, version, files)


def _paths(root: Path) -> Iterator[Path]:
    for folder, names, file_names in os.walk(root, followlinks=False):
        names.sort()
        for name in sorted(file_names):
            path = Path(folder, name)
            if path.suffix in _ENDINGS and path.is_file() and not path.is_symlink():
                yield path


# --- by symbol -------------------------------------------------------------------


def symbol(headers: Headers, name: str) -> str:
    """Returns the definitions of a type, function, alias or macro with their lines. A qualified name
    (cute::SM90_TMA_LOAD::copy) prefers files that have the other parts. Raises NotFound."""
    parts = [part for part in name.strip().removesuffix("()").split("::") if part]
    if not parts or not all(_NAME.fullmatch(part) for part in parts):
        raise NotFound(f"{name[:80]!r} is no name: give one such as SM90_TMA_LOAD or cute::make_tiled_mma")
    *outer, last = parts
    places = list(_definitions(headers, last))
    if not places:
        raise NotFound(f"no header defines {last}; search for it as text")
    if outer:
        places.sort(key=lambda place: -sum(_has(headers.files[place[0]], part) for part in outer))
    shown = [
        _shown(headers, path, first, _end(headers.files[path], at))
        for path, first, at in places[:MOST_DEFINITIONS]
    ]
    if len(places) > MOST_DEFINITIONS:
        more = [f"{path}:{at + 1}" for path, _, at in places[MOST_DEFINITIONS : MOST_DEFINITIONS + MOST_HITS]]
        shown.append(f"{len(places) - MOST_DEFINITIONS} further definitions: {', '.join(more)}")
    return _joined(shown)


def _has(lines: Sequence[str], word: str) -> bool:
    return any(word in line for line in lines)


def _definitions(headers: Headers, name: str) -> Iterator[tuple[str, int, int]]:
    """Yields the path of each definition, the line with which it begins, and that with its name, from 0."""
    word = re.escape(name)
    kinds = re.compile(
        rf"\s*#\s*define\s+{word}\b"
        rf"|.*\b(?:struct|class|union|enum|enum\s+class|concept)\s+(?:alignas\([^)]*\)\s*)?{word}\b(?!\s*[;>,)&*])"
        rf"|.*\busing\s+{word}\s*="
        rf"|.*\bconstexpr\b[^=;(]*\b{word}\s*[={{]"
    )
    function = re.compile(rf"(?P<before>[^=;(){{}}]*?)(?<![\w:.>]){word}\s*\(")
    for path, lines in headers.files.items():
        for at, line in enumerate(lines):
            if name not in line or line.lstrip().startswith(("//", "*")):
                continue
            if kinds.match(line):
                if not _is_forward(lines, at):
                    yield path, _first(lines, at), at
            elif (m := function.match(line)) and _is_function(lines, at, m["before"]):
                yield path, _first(lines, at), at


_DECLARES = re.compile(
    r"\b(?:CUTE_HOST_DEVICE|CUTE_DEVICE|CUTE_HOST|CUTLASS_HOST_DEVICE|CUTLASS_DEVICE|CUTLASS_HOST|CUTE_HOST_RTC"
    r"|__device__|__global__|__host__|inline|static|constexpr|auto|void|template|friend)\b"
)
_USES = re.compile(r"\b(?:return|throw|else|case|new|delete|goto)\b")


def _is_forward(lines: Sequence[str], at: int) -> bool:
    """Returns whether a type is only declared: a ; comes before any {."""
    for line in lines[at : at + 6]:
        code = line.split("//")[0]
        if "{" in code or "=" in code or "#" in code:
            return False
        if ";" in code:
            return True
    return False


def _is_function(lines: Sequence[str], at: int, before: str) -> bool:
    """Returns whether a name before a parenthesis is a function's definition: what declares stands before it, and
    a body comes before a semicolon."""
    if _USES.search(before):
        return False
    lead = before if before.strip() else "\n".join(lines[max(0, at - 3) : at])
    if not _DECLARES.search(lead):
        return False
    depth = 0
    for line in lines[at : at + 40]:
        for character in line.split("//")[0]:
            if character == "(":
                depth += 1
            elif character == ")":
                depth -= 1
            elif depth == 0 and character == "{":
                return True
            elif depth == 0 and character == ";":
                return False
    return False


def _first(lines: Sequence[str], at: int) -> int:
    """Returns the line with which a definition begins: its comment, its template parameters, its attributes."""
    first = at
    while first > 0 and at - first < 24:
        above = lines[first - 1].strip()
        if not above or above.endswith((";", "}", "{", ":")) or above.startswith("#"):
            break
        first -= 1
    return first


def _end(lines: Sequence[str], at: int) -> int:
    """Returns the line behind a definition: its braces are closed, or a ; ends it, or its macro's lines do."""
    if lines[at].lstrip().startswith("#"):
        end = at
        while end + 1 < len(lines) and lines[end].endswith("\\") and end - at < MOST_LINES:
            end += 1
        return end + 1
    depth = inside = 0
    opened = False
    for number in range(at, min(len(lines), at + MOST_LINES)):
        for character in lines[number].split("//")[0]:
            if character in "()":
                inside += 1 if character == "(" else -1
            elif inside:
                pass  # braces of a default argument end nothing
            elif character == "{":
                depth, opened = depth + 1, True
            elif character == "}":
                depth -= 1
            elif character == ";" and depth == 0 and not opened:
                return number + 1
        if opened and depth <= 0:
            return number + 1
    return min(len(lines), at + MOST_LINES)


# --- by text, and by line --------------------------------------------------------


def text(headers: Headers, words: str, under: str = "") -> str:
    """Returns the lines that hold these words as they are written, in files whose path holds `under`. Raises
    NotFound."""
    query = words.strip()
    if not query or "\n" in query or len(query) > 200:
        raise NotFound("give words of one line, at most 200 characters")
    hits: list[str] = []
    total = 0
    for path, lines in headers.files.items():
        if under not in path:
            continue
        for at, line in enumerate(lines):
            if query in line:
                total += 1
                if len(hits) < MOST_HITS:
                    hits.append(f"{path}:{at + 1}: {line.strip()[:200]}")
    if not hits:
        where = f" of the files whose path holds {under[:80]!r}" if under else ""
        raise NotFound(f"no line{where} holds {query[:80]!r}")
    if total > len(hits):
        hits.append(f"{total - len(hits)} further lines: name a folder or more words")
    return _joined(hits, "\n")


def lines_of(headers: Headers, path: str, first: int, last: int) -> str:
    """Returns lines of one header, counted from 1, at most MOST_LINES. Raises NotFound."""
    lines = headers.files.get(path)
    if lines is None:
        near = [name for name in headers.files if name.endswith("/" + path.split("/")[-1])]
        hint = f"; there is {', '.join(near[:5])}" if near else ""
        raise NotFound(f"{path[:120]!r} is no header of CUTLASS or CuTe{hint}")
    if not 1 <= first <= last or first > len(lines):
        raise NotFound(f"{path} has lines 1 to {len(lines)}")
    return _shown(headers, path, first - 1, min(last, first + MOST_LINES - 1, len(lines)))


def _shown(headers: Headers, path: str, first: int, end: int) -> str:
    numbered = [f"{at + 1:5} {line[:200]}" for at, line in enumerate(headers.files[path][first:end], first)]
    return "\n".join([f"{path}:{first + 1}-{end}", *numbered[:MOST_LINES]])


def _joined(parts: Sequence[str], between: str = "\n\n") -> str:
    result: list[str] = []
    left = MOST_SHOWN
    for number, part in enumerate(parts):
        if len(part) > left:
            if not result:
                result.append(part[:left] + "\n[cut]")
            else:
                result.append(f"{len(parts) - number} more were left out for their length")
            break
        result.append(part)
        left -= len(part)
    return between.join(result)

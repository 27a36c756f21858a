"""Digests of what the compiler emits, before and after a change that must not alter it.

    python -m benchmarks.digests --sass 64 --out before.jsonl
    python -m benchmarks.digests --against before.jsonl [--strict] [--sass 64] [--out after.jsonl]

Emits thousands of plans of all kernel families and architectures (`benchmarks.digest_cases`). A row of the
output has a case with two digests: `text`, SHA-256 of the emitted code without its header comment, and
`alpha`, of its tokens without comments and white space and with the names that the code itself declares
replaced by the order of their first appearance, which a pure renaming keeps. `--sass N` compiles N of the cases,
spread over the families, and digests their machine code (`benchmarks.digest_sass`).

With `--against` the cases are those of the other file, not drawn anew, and so are the ones that are compiled;
a kernel whose text is the same as there is not compiled again unless `--rebuild` says so. Prints the keys of the
cases that differ or that the compiler now refuses, and counts by family. Exit status 1 where machine code
differs, or a case is refused, or, with `--strict`, where text differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.digest_cases import Case, Program, drawn, emitted, from_json, plan, programs, to_json
from benchmarks.digest_sass import compiled, spread
from ucutlass import files

Row: TypeAlias = dict[str, Any]
"""A case as JSON with `key`, `text_digest`, `alpha_digest`, and for some `sass_digest` with what it is of."""

SHOWN = 20
"""Keys printed of each kind of difference."""

# --- digests ----------------------------------------------------------------------

_TOKEN = re.compile(
    r"""
    (?P<space>\s+|\\\n|//[^\n]*|/\*.*?\*/)
    |(?P<kept>\#\s*include[^\n]*|R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'
        |\.?[0-9](?:['\w.]|(?<=[eEpP])[+-])*)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<mark_of_operation>.)
    """,
    re.VERBOSE | re.DOTALL,
)

_KEPT = frozenset(
    [
        "alignas",
        "alignof",
        "asm",
        "auto",
        "bool",
        "break",
        "case",
        "catch",
        "char",
        "class",
        "const",
        "constexpr",
        "const_cast",
        "continue",
        "decltype",
        "default",
        "define",
        "defined",
        "delete",
        "do",
        "double",
        "dynamic_cast",
        "elif",
        "else",
        "endif",
        "enum",
        "error",
        "explicit",
        "extern",
        "false",
        "float",
        "for",
        "friend",
        "goto",
        "if",
        "ifdef",
        "ifndef",
        "inline",
        "int",
        "int8_t",
        "int16_t",
        "int32_t",
        "int64_t",
        "long",
        "mutable",
        "namespace",
        "new",
        "noexcept",
        "nullptr",
        "once",
        "operator",
        "pragma",
        "private",
        "protected",
        "public",
        "reinterpret_cast",
        "return",
        "short",
        "signed",
        "size_t",
        "sizeof",
        "static",
        "static_assert",
        "static_cast",
        "struct",
        "switch",
        "template",
        "this",
        "throw",
        "true",
        "try",
        "typedef",
        "typename",
        "uint8_t",
        "uint16_t",
        "uint32_t",
        "uint64_t",
        "uintptr_t",
        "undef",
        "union",
        "unroll",
        "unsigned",
        "using",
        "virtual",
        "void",
        "volatile",
        "while",
    ]
)
"""Keywords, words of the preprocessor, and names of the standard library that code declares nowhere."""

_BEFORE_NO_NAME = frozenset(
    [
        "case",
        "delete",
        "elif",
        "else",
        "goto",
        "ifdef",
        "ifndef",
        "new",
        "operator",
        "return",
        "throw",
        "undef",
    ]
)
"""Words after which a name is used, not declared."""

_FOREIGN = re.compile(
    r"__\w*|std|cute|cutlass|cu(?:da)?[A-Z]\w*|cuda\w*|CUTLASS_\w*|U?INT\d+_\w+"
    r"|(?:u?int|u?char|u?short|float|double|half|nv_bfloat16)\d"
)
"""Names of CUDA, CUTLASS and the standard library, wherever they stand."""

_NAME = r"(?P<name>[A-Za-z_]\w*)"

_DECLARED = tuple(
    re.compile(pattern)
    for pattern in (
        # After a type or a keyword.
        rf"(?P<before>\b[A-Za-z_]\w*|[>\])])[*&]*\s+(?={_NAME})",
        # Not first in a list of declarators: no call's argument is followed by `=`, or by `;` without a bracket.
        rf"(?P<before>,)\s*(?={_NAME}\s*(?:=(?!=)|\{{|;|,[^(){{}}]*;))",
        # Arrays, and references to them.
        rf"(?P<before>,)\s*(?={_NAME}(?:\[[^\]]*\])+\s*(?:;|,[^(){{}}]*;))",
        rf"(?P<before>\()&(?={_NAME}\)\[)",
        # Structured bindings and enumerators.
        rf"(?P<before>\bauto[&\s]*\[)(?={_NAME})",
        rf"(?P<before>\benum\b[^{{;]*\{{)\s*(?={_NAME})",
        rf"(?P<before>,)\s*(?={_NAME}\s*(?:,[^(){{}}]*)?(?:\]\s*=|\}}\s*;))",
    )
)


def text_digest(texts: Sequence[str]) -> str:
    """Hex SHA-256 of texts in their order."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def alpha_digest(texts: Sequence[str], entry: str = "") -> str:
    """Hex SHA-256 of the tokens of texts, with declared names numbered in the order of their first appearance.
    `entry` is the entry's name, which is made of a digest of the text and stands in strings too."""
    whole = "\0".join(texts)
    if entry:
        whole = whole.replace(entry, "ENTRY")
    return hashlib.sha256("\n".join(_tokens(whole)).encode()).hexdigest()


def _tokens(text: str) -> Iterator[str]:
    own = _declared(text)
    numbers: dict[str, str] = {}
    for token in _TOKEN.finditer(text):
        if token["space"] is not None:
            continue
        name = token["name"]
        yield token[0] if name is None or name not in own else numbers.setdefault(name, f"@{len(numbers)}")


def _declared(text: str) -> set[str]:
    """Names that stand somewhere in the text where declarations have them. A name that is missed counts as
    another's, so that renaming it alters the digest; no foreign function is taken for a declared one."""
    bare = "".join(" " if token["space"] else token[0] for token in _TOKEN.finditer(text))
    return {
        match["name"]
        for pattern in _DECLARED
        for match in pattern.finditer(bare)
        if match["name"] not in _KEPT
        and not _FOREIGN.fullmatch(match["name"])
        and match["before"] not in _BEFORE_NO_NAME
    }


# --- rows -------------------------------------------------------------------------


def key_order(rows: Iterable[Row]) -> list[Row]:
    """The rows by key, each key once."""
    by_key = {row["key"]: row for row in rows}
    return [by_key[key] for key in sorted(by_key)]


def row_of(case: Case) -> Row | None:
    """The row of a case; None where the compiler refuses it."""
    planned = plan(case)
    if planned is None:
        return None
    source, texts = emitted(case, planned)
    digests = {"text_digest": text_digest(texts), "alpha_digest": alpha_digest(texts, source.entry)}
    return {"key": case.key, **to_json(case), **digests}


def _drawn_rows(numbered: tuple[int, Program]) -> list[Row]:
    number, program = numbered
    return [row for case in drawn(program, number) if (row := row_of(case)) is not None]


def _rows(known: Sequence[Row] | None, processes: int) -> list[Row]:
    """The rows of cases that are drawn, or of those of known rows."""
    # Fresh processes: torch's threads do not survive a fork.
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        if known is None:
            drawn = pool.imap_unordered(_drawn_rows, list(enumerate(programs())), chunksize=16)
            return key_order(chain.from_iterable(drawn))
        cases = [from_json(row) for row in known]
        return key_order(row for row in pool.imap_unordered(row_of, cases, chunksize=32) if row is not None)


def read(path: Path) -> list[Row]:
    """The rows of a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write(path: Path, rows: Iterable[Row]) -> None:
    """A row a line."""
    files.write(path, "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows))


# --- machine code -----------------------------------------------------------------


def with_sass(
    rows: Sequence[Row], known: Sequence[Row] | None, count: int, processes: int, rebuild: bool
) -> list[Row]:
    """The rows, some with `sass_digest`: those that known rows have it of, or else `count` that are spread
    over the families. What differs in no text from a known row takes that row's."""
    before = {row["key"]: row for row in known or () if "sass_digest" in row}
    keys = list(before)[:count] or spread(rows, count)
    by_key = {row["key"]: row for row in rows}
    same = {key for key in keys if not rebuild and _same_text(by_key.get(key), before.get(key))}
    cases = {key: from_json(by_key[key]) for key in keys if key in by_key and key not in same}
    digests = {key: {name: before[key][name] for name in ("sass_digest", "sass")} for key in same}
    digests |= compiled(cases, processes)
    return [{**row, **digests.get(row["key"], {})} for row in rows]


def _same_text(row: Row | None, known: Row | None) -> bool:
    return row is not None and known is not None and row["text_digest"] == known["text_digest"]


# --- comparison -------------------------------------------------------------------


def differences(before: Sequence[Row], after: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows by what became of them: `vanished`, `appeared`, and those that differ in `text`, `alpha` or
    `sass`."""
    old, new = ({row["key"]: row for row in rows} for rows in (before, after))
    both = [(old[key], row) for key, row in new.items() if key in old]
    changed = {
        "vanished": [row for key, row in old.items() if key not in new],
        "appeared": [row for key, row in new.items() if key not in old],
    }
    for name in ("text", "alpha", "sass"):
        digest = f"{name}_digest"
        changed[name] = [b for a, b in both if digest in a and digest in b and a[digest] != b[digest]]
    return changed


def table(rows: Sequence[Row], changed: Mapping[str, Sequence[Row]]) -> str:
    """Counts by family: of all rows, of those with machine code, and of each kind of difference."""
    counts = {"cases": Counter(row["family"] for row in rows)}
    counts["compiled"] = Counter(row["family"] for row in rows if "sass_digest" in row)
    counts |= {name: Counter(row["family"] for row in of) for name, of in changed.items()}
    lines = [f"{'family':14}" + "".join(f"{name:>10}" for name in counts)]
    for family in sorted({*counts["cases"], *counts.get("vanished", ())}):
        lines.append(f"{family:14}" + "".join(f"{counts[name][family]:10}" for name in counts))
    total = "".join(f"{counts[name].total():10}" for name in counts)
    return "\n".join([*lines, f"{'all':14}{total}"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="a file of JSON lines; without it digests are printed")
    parser.add_argument("--against", type=Path, help="such a file, of another commit")
    parser.add_argument("--strict", action="store_true", help="status 1 where text differs too")
    parser.add_argument("--sass", type=int, default=0, metavar="N", help="cases to compile")
    parser.add_argument("--rebuild", action="store_true", help="compile kernels of known text too")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    known = None if options.against is None else read(options.against)
    rows = _rows(known, options.processes)
    if options.sass:
        if options.out is not None:
            write(options.out, rows)  # what compiling takes minutes to complete
        rows = with_sass(rows, known, options.sass, options.processes, options.rebuild)
    if options.out is not None:
        write(options.out, rows)
    elif known is None:
        for row in rows:
            print(
                row["text_digest"][:16],
                row["alpha_digest"][:16],
                row.get("sass_digest", "-")[:16],
                row["key"],
            )
    changed = {} if known is None else differences(known, rows)
    for name, of in changed.items():
        for row in of[:SHOWN]:
            print(f"{name}: {row['key']}")
        if len(of) > SHOWN:
            print(f"{name}: and {len(of) - SHOWN} more")
    print(table(rows, changed))
    failing = ("sass", "vanished", *(("text",) if options.strict else ()))
    sys.exit(1 if any(changed.get(name) for name in failing) else 0)


if __name__ == "__main__":
    main()

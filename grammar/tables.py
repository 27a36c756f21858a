"""The parser's tables, kept beside the grammar so that a process need not compute them.

Building them from the grammar takes about 55 ms, reading them 12 ms; the tables are only used
for the very text and Lark version that they were made from. They are written at install
(`python -m ucutlass.grammar.tables`); where they are absent or of another text, the parser is built.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import lark
from lark import Lark
from lark.grammar import Rule
from lark.lexer import TerminalDef

# By path: importlib.resources takes longer to import than the files take to read.
_GRAMMAR = Path(__file__).with_name("ucutlass.lark")
_FILE = Path(__file__).with_name("ucutlass.tables.json")


def grammar_text() -> str:
    """The grammar file, for Lark and for llguidance's `LLMatcher.grammar_from_lark`."""
    return _GRAMMAR.read_text(encoding="utf-8")


def load_parser(transformer: Any) -> Lark:
    """The LALR(1) parser of the grammar, whose reductions call `transformer`."""
    text = grammar_text()
    try:
        stored = json.loads(_FILE.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return build(text, transformer)
    if stored["key"] != key(text):
        return build(text, transformer)
    data = stored["data"]
    data["parser"]["parser"]["states"] = _whole_keys(data["parser"]["parser"]["states"])
    memo = _whole_keys(stored["memo"])
    loaded: Lark = Lark._load_from_dict(data, memo, transformer=transformer)  # type: ignore[no-untyped-call]
    return loaded


def build(text: str, transformer: Any = None) -> Lark:
    """The parser from the grammar's text."""
    starts = ["start", "item"]
    return Lark(
        text, parser="lalr", lexer="basic", start=starts, keep_all_tokens=True, transformer=transformer
    )


def key(text: str) -> dict[str, str]:
    """What tables are good for: a digest of the text, and Lark's version, which decides their form."""
    return {"text": hashlib.sha256(text.encode()).hexdigest(), "lark": lark.__version__}


def tables(text: str) -> str:
    """The file's content for a grammar."""
    data, memo = build(text).memo_serialize([TerminalDef, Rule])
    return json.dumps({"key": key(text), "data": data, "memo": memo}, separators=(",", ":")) + "\n"


def _whole_keys(mapping: dict[str, Any]) -> dict[int, Any]:
    """JSON has no whole numbers for keys."""
    return {int(k): v for k, v in mapping.items()}


def main() -> int:
    _FILE.write_text(tables(grammar_text()), encoding="ascii")
    return 0


if __name__ == "__main__":
    sys.exit(main())

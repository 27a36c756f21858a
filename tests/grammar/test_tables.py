"""The kept parser tables are those of the grammar."""

from __future__ import annotations

import json
from pathlib import Path

from lark import Lark

from ucutlass.grammar import tables

KEPT = Path(tables.__file__).with_name("ucutlass.tables.json")


def test_kept_tables_are_of_this_grammar() -> None:
    kept, now = json.loads(KEPT.read_text())["key"], tables.key(tables.grammar_text())
    assert kept["text"] == now["text"], "the grammar changed: run python -m ucutlass.grammar.tables"


def test_kept_tables_parse_as_built_ones() -> None:
    built, kept = tables.build(tables.grammar_text()), tables.load_parser(None)
    assert _decisions(kept) == _decisions(built)


def test_other_text_has_another_key() -> None:
    text = tables.grammar_text()
    assert tables.key(text + "\n") != tables.key(text)


def _decisions(lark: Lark) -> dict[str, set[str]]:
    """What each start symbol's parser accepts first, and how many states and rules there are."""
    starts = {s: set(lark.parse_interactive(start=s).accepts()) for s in ("start", "item")}
    states = len(lark.parser.parser._parse_table.states)
    return {**starts, "states": {str(states)}, "rules": {str(r) for r in lark.rules}}

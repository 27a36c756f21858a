"""The kept parser tables are those of the grammar."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lark import Lark

from ucutlass.grammar import tables


def test_kept_tables_parse_as_built_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tables.grammar_text()
    built, file = tables.build(text), tmp_path / "tables.json"
    file.write_text(tables.tables(text))
    monkeypatch.setattr(tables, "_FILE", file)
    monkeypatch.setattr(tables, "build", None)
    assert _decisions(tables.load_parser(None)) == _decisions(built)


@pytest.mark.parametrize("content", [None, "", "{"])
def test_without_tables_the_parser_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    file = tmp_path / "tables.json"
    if content is not None:
        file.write_text(content)
    monkeypatch.setattr(tables, "_FILE", file)
    assert _decisions(tables.load_parser(None)) == _decisions(tables.build(tables.grammar_text()))


def test_other_text_has_another_key() -> None:
    text = tables.grammar_text()
    assert tables.key(text + "\n") != tables.key(text)


@pytest.mark.parametrize("other", [{"text": "0" * 64}, {"lark": "0"}])
def test_stale_tables_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: dict[str, str]
) -> None:
    """Tables of a language of one word, kept under the key of another grammar or Lark: the parser is
    the grammar's own all the same. Under the grammar's own key they are taken at their word."""
    document = json.loads(tables.tables('start: "word"\nitem: "word"\n'))
    file = tmp_path / "tables.json"
    monkeypatch.setattr(tables, "_FILE", file)
    right = tables.key(tables.grammar_text())
    own = _decisions(tables.build(tables.grammar_text()))
    file.write_text(json.dumps({**document, "key": {**right, **other}}))
    assert _decisions(tables.load_parser(None)) == own
    file.write_text(json.dumps({**document, "key": right}))
    assert _decisions(tables.load_parser(None))["start"] == {"WORD"} != own["start"]


def _decisions(lark: Lark) -> dict[str, set[str]]:
    """What each start symbol's parser accepts first, and how many states and rules there are."""
    starts = {s: set(lark.parse_interactive(start=s).accepts()) for s in ("start", "item")}
    states = len(lark.parser.parser._parse_table.states)
    return {**starts, "states": {str(states)}, "rules": {str(r) for r in lark.rules}}

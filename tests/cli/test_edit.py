"""`ucc edit` and `ucc search`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cli_machine import LINEAR, Ucc

Write = Callable[[str], Path]


def test_addresses_are_listed_with_what_stands_there(ucc: Ucc) -> None:
    result = ucc("edit", LINEAR)
    assert "linear_gelu.schedule[1].tile\t64x64x64\n" in result.out
    rows = {row["address"]: row["text"] for row in ucc("edit", LINEAR, "--json").json["addresses"]}
    assert rows["linear_gelu.schedule[2].cluster"] == "2x1"


def test_a_place_is_edited_and_nothing_else(ucc: Ucc, tmp_path: Path) -> None:
    target = tmp_path / "edited.ucu"
    result = ucc("edit", LINEAR, "-e", "linear_gelu.schedule[1].tile", "64x128x64", "-o", target)
    assert (result.status, result.out) == (0, "")
    text = target.read_text()
    assert "tile 64x128x64" in text and "tile 64x64x64" not in text
    assert "tile 128x256x64 or 256x128x64" in text, "the other block stays"
    assert "tile 64x64x64" in LINEAR.read_text()


def test_all_edits_or_none(ucc: Ucc) -> None:
    first = ("-e", "linear_gelu.schedule[1].tile", "64x128x64")
    result = ucc("edit", LINEAR, *first, "-e", "linear_gelu.nothing", "x")
    assert (result.status, result.out) == (2, "") and "linear_gelu.nothing" in result.err


def test_what_comes_of_an_edit_is_checked(ucc: Ucc) -> None:
    result = ucc("edit", LINEAR, "-e", "linear_gelu.return", "return x", "--json")
    assert result.status == 1 and result.json["diagnostics"] and "return x" in result.json["text"]


def test_search_finds_codes_fields_and_words(ucc: Ucc) -> None:
    def first(query: str) -> dict[str, str]:
        hit: dict[str, str] = ucc("search", query, "--json").json["hits"][0]
        return hit

    assert first("uc0104")["uri"] == "ucc://diagnostics/UC0104"
    assert first("swizzle")["title"] == "schedule field swizzle"
    assert "argmax" in first("what does argmax give")["excerpt"]
    result = ucc("search", "xyzzy")
    assert (result.status, result.out) == (0, "nothing is known of xyzzy\n")

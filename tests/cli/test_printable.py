"""Text of others on its way to a terminal: whatever it holds, nothing is obeyed and nothing floods."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from ucutlass import frontend, printable
from ucutlass.cli import show
from ucutlass.cli.errors import Status, fail
from ucutlass.diagnostics import ProgramError

_HOSTILE = (*range(0x20), 0x7F, *range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
HOSTILE = "".join(map(chr, _HOSTILE))
"""C0, DEL, C1 and the marks that turn the direction of writing."""

TEXTS = st.text(st.characters() | st.sampled_from(HOSTILE) | st.characters(categories=["Cs"]))


def harmless(text: str, keep: str = "\n") -> bool:
    return all(c.isprintable() or c in keep for c in text) and not set(text) & (set(HOSTILE) - set(keep))


@given(TEXTS)
def test_nothing_is_obeyed(text: str) -> None:
    assert harmless(printable.escaped(text), "") and harmless(printable.one_line(text), "")
    assert harmless(printable.words(text))
    assert "\n" not in printable.one_line(text) + printable.name(text)


@given(st.text(st.characters(exclude_categories=["C", "Z"]) | st.just(" ")))
def test_what_is_harmless_stays(text: str) -> None:
    assert printable.escaped(text) == text == printable.words(text)


@given(TEXTS, st.integers(1, 50), st.integers(1, 5))
def test_a_cut_text_says_how_much_is_missing(text: str, characters: int, lines: int) -> None:
    cut = printable.cut(text, characters, lines)
    if cut != text:
        head, _, rest = cut.rpartition(" … ")
        assert text.startswith(head) and int(rest.split()[0]) == len(text) - len(head)
        assert len(head) <= characters and head.count("\n") < lines
    else:
        assert len(text) <= characters and text.count("\n") < lines


def test_it_is_written_so_that_it_can_be_read() -> None:
    assert printable.name("a\x1b[31m\u202e\n\udcff.ucu") == "a\\x1b[31m\\u202e\\x0a\\xff.ucu"
    assert printable.one_line("a\tb\nc") == "a b; c"


@given(TEXTS, TEXTS)
def test_a_diagnostic(name: str, text: str) -> None:
    try:
        frontend.read_text(text, name)
    except ProgramError as problem:
        assert harmless(str(problem))


@pytest.mark.parametrize("length", [10, 5_000_000])
def test_an_errors_words_are_bounded(length: int, capsys: pytest.CaptureFixture[str]) -> None:
    for as_json, most in ((False, 5_000), (True, 70_000)):
        with pytest.raises(SystemExit):
            fail(Status.MACHINE, "x" * length + "\x1b\n" * length, as_json)
        out, err = capsys.readouterr()
        assert harmless(out + err) and len(out + err) < max(most, 30 * length if length == 10 else 0)
        if as_json and length == 10:
            assert json.loads(out)["error"] == "x" * length + "\x1b\n" * length, "whole, up to the limit"


@pytest.mark.parametrize(
    "prints",
    [
        lambda text: show.say(text),
        lambda text: show.note(text),
        lambda text: show.data({text: [text]}),
        lambda text: show.line(text, text),
        lambda text: show.table((text, text), [(text, text)]),
        lambda text: show.table((text, text), [(text, text, text)]),
    ],
)
def test_whatever_prints(prints: Callable[[str], None], capfd: pytest.CaptureFixture[str]) -> None:
    prints(HOSTILE + "\udcff")
    out, err = capfd.readouterr()
    assert harmless(out + err, "\n\t")


def test_a_program_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    show.program("# \x1b[2J\n")
    assert capsys.readouterr().out == "# \x1b[2J\n", "a file is written as it is"
    monkeypatch.setattr(show, "on_terminal", lambda: True)
    show.program("# \x1b[2J\n")
    assert capsys.readouterr().out == "# \\x1b[2J\n"


def test_a_tab_in_a_cell_is_a_blank(capsys: pytest.CaptureFixture[str]) -> None:
    show.table(("", ""), [("trial", "1.0 us\ttile")])
    assert capsys.readouterr().out == "trial\t1.0 us tile\n"
    show.table(("what", "time"), [("trial\n2", "1.0 us")])
    assert capsys.readouterr().out == "what\ttime\ntrial; 2\t1.0 us\n", "headings come first"


def test_a_surrogate_in_a_commands_words(tmp_path: Path) -> None:
    @click.command()
    def command() -> None:
        show.say(f"{tmp_path}\udcff")

    assert sys.getfilesystemencoding() == "utf-8"
    assert CliRunner().invoke(command).output == f"{tmp_path}\\xff\n"

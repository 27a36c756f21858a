"""`ucc diff`: what an edit changed, and an edit brought over to another emitted file."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path

import pytest
from cli_machine import Machine
from test_adopting import SETTINGS, job

from ucutlass import frontend
from ucutlass.adopt import database as adopted
from ucutlass.adopt.database import AdoptedRow
from ucutlass.adopt.difference import MOST_LINES, GitMissing, difference, merge
from ucutlass.adopt.refusals import SourceRefused
from ucutlass.adopt.source import checked, digest_of
from ucutlass.agent import adoption
from ucutlass.backend import source_of
from ucutlass.emit.text import Source, finish
from ucutlass.shapes import complete
from ucutlass.tune.database import TuningDatabase, TuningKey

TEXT = "kernel k(x: f16[T, D]) -> f16[T, D] { return softmax[D](x) }"
S = ("-s", "T=64,D=1024")


@functools.cache
def emitted() -> Source:
    program_text = frontend.read_text(TEXT)
    program = frontend.kernel(program_text)
    extents = complete(program, {"T": 64, "D": 1024})
    planned = frontend.plan_kernel(program_text, program, extents, "sm90a").planned
    return source_of(program_text, program, planned)


def edited(old: str = "if (error == cudaSuccess) return 0;", new: str = "if (!error) return 0;") -> Source:
    assert emitted().code.count(old) == 1
    return checked(emitted().text.replace(old, new).encode())


def other_emitter(old: str, new: str) -> Source:
    """What is emitted once a template has changed."""
    code = emitted().code.replace(emitted().entry, "@ENTRY@")
    assert code.count(old) >= 1
    return finish(code.replace(old, new, 1), "another header", "sm_90a")


def test_nothing_edited_is_no_difference() -> None:
    same = difference(checked(emitted().text.encode()), emitted())
    assert same.unified == "" and same.regions == ()
    renamed = other_emitter("constexpr int kVector", "// A new line.\nconstexpr int kVector")
    assert renamed.entry != emitted().entry
    (region,) = difference(emitted(), renamed).regions
    assert (region.added, region.removed) == (0, 1), "an entry's name and a header are no edit"


def test_an_edit_is_shown_with_its_region_and_the_lines_of_the_file() -> None:
    change = difference(edited(), emitted())
    (region,) = change.regions
    assert (region.name, region.added, region.removed) == ("entry", 1, 1)
    lines = change.unified.splitlines()
    assert "-  if (error == cudaSuccess) return 0;" in lines and "+  if (!error) return 0;" in lines
    begin = int(lines[2].split()[1].split(",")[0].removeprefix("-"))
    assert emitted().text.splitlines()[begin - 1] == lines[3][1:]


def test_a_file_that_is_too_long_to_compare() -> None:
    long = Source("", "\n" * (MOST_LINES + 1), emitted().entry, "sm_90a")
    with pytest.raises(SourceRefused, match="at most"):
        difference(long, emitted())


def test_an_edit_is_brought_over_to_another_emitter() -> None:
    today = other_emitter("constexpr int kVector", "// A new line.\nconstexpr int kVector")
    assert today.entry != emitted().entry
    merged = merge(emitted().text, emitted().entry, edited(), today)
    assert merged.conflicts == 0
    whole = checked(merged.text.encode())
    assert whole.entry == today.entry and emitted().entry not in whole.code
    assert "if (!error) return 0;" in whole.code and "// A new line." in whole.code
    assert "another header" in whole.text.splitlines()[0]


def test_a_conflict_has_both_sides_and_is_no_source() -> None:
    today = other_emitter("if (error == cudaSuccess) return 0;", "if (cudaSuccess == error) return 0;")
    merged = merge(emitted().text, emitted().entry, edited(), today)
    assert merged.conflicts == 1
    for line in ("<<<<<<< edited", "||||||| base", ">>>>>>> emitted", "  if (!error) return 0;"):
        assert line in merged.text.splitlines()


def test_without_git_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(GitMissing, match="no git"):
        merge(emitted().text, emitted().entry, edited(), emitted())


# --- the command -----------------------------------------------------------------


def files(folder: Path, text: str) -> tuple[Path, Path]:
    (folder / "k.cu").write_text(text)
    (folder / "k.ucu").write_text(TEXT)
    return folder / "k.cu", folder / "k.ucu"


def test_the_command_prints_the_edit(machine: Machine, tmp_path: Path) -> None:
    file, program = files(tmp_path, edited().text)
    result = machine.ucc("diff", file, "--for", program, *S)
    assert result.status == 0 and result.out == difference(edited(), emitted()).unified
    assert "ucc: entry: 1 lines added, 1 removed" in result.err
    row = machine.ucc("diff", file, "--for", program, *S, "--json").json
    assert row["regions"] == [{"name": "entry", "added": 1, "removed": 1}] and row["changed"] is False
    file.write_text("int main() {}")
    assert "not compared" in machine.ucc("diff", file, "--for", program, *S).err
    assert machine.ucc("diff", file, "--for", program, *S, "--base", file).status == 2


def test_the_command_merges_from_a_file_or_what_was_adopted(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, program = files(tmp_path, edited().text)
    assert machine.ucc("diff", file, "--for", program, *S, "--merge").out == edited().text
    today = other_emitter("if (error == cudaSuccess) return 0;", "if (cudaSuccess == error) return 0;")
    monkeypatch.setattr("ucutlass.cli.diff.source_of", lambda *_: today)
    call = ("diff", file, "--for", program, *S, "--merge")
    result = machine.ucc(*call)
    assert result.status == 2 and "give the emitted file with --base" in result.err
    (tmp_path / "base.cu").write_text(emitted().text)
    result = machine.ucc(*call, "--base", tmp_path / "base.cu", "-o", tmp_path / "new.cu")
    assert result.status == 1 and "1 CONFLICTS" in result.err and today.entry in result.err
    assert "<<<<<<< edited" in (tmp_path / "new.cu").read_text()
    key = TuningKey("NVIDIA H200", "sm90a", "a" * 64, (64, 1024))
    row = AdoptedRow(digest_of(edited()), "k", "confirmed", edited().text, emitted().text)
    adopted.keep(TuningDatabase.open(), key, row)
    assert machine.ucc(*call, "--json").json["conflicts"] == 1


def test_what_a_source_was_edited_from_is_kept_with_it(machine: Machine) -> None:
    this = job()
    built = adoption.build(this, SETTINGS)
    assert adoption.base_of(this, built) == ""
    own = source_of(this.checked, this.program, built.planned)
    mine = adoption.AdoptionJob(
        this.checked, this.program, this.sizes, "sm90a", None, checked(f"{own.text}// Mine.\n".encode())
    )
    assert adoption.base_of(mine, built) == own.text

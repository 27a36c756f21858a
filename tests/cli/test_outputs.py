"""Commands write files whole, as UTF-8, and never over what they read."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from cli_machine import LINEAR, ROOT, SIZES, Machine, Ucc

from ucutlass import frontend
from ucutlass.cli import main
from ucutlass.cli.outputs import OutputPath
from ucutlass.runtime.store import EvidenceStore

UNTIDY = "# \u03b1 \u2192 \u03c9\nfn  twice( x )=x+x\n"
TIDY = "# \u03b1 \u2192 \u03c9\nfn twice(x) = x + x\n"

FOREIGN = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


# --- no output is an input --------------------------------------------------------------


def same_path(file: Path, _: Path) -> Path:
    return file


def other_spelling(file: Path, _: Path) -> Path:
    return file.parent / "." / ".." / file.parent.name / file.name


def symbolic_link(file: Path, place: Path) -> Path:
    (place / "link").symlink_to(file)
    return place / "link"


def hard_link(file: Path, place: Path) -> Path:
    (place / "hard").hardlink_to(file)
    return place / "hard"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "program.ucu"
    file.write_bytes(LINEAR.read_bytes())
    return file


@pytest.mark.parametrize("name", [same_path, other_spelling, symbolic_link, hard_link])
@pytest.mark.parametrize("as_json", [False, True])
def test_a_program_is_not_overwritten(
    ucc: Ucc, program: Path, tmp_path: Path, name: Callable[[Path, Path], Path], as_json: bool
) -> None:
    more = ["--json"] if as_json else []
    result = ucc("emit", program, *SIZES, "-o", name(program, tmp_path), *more)
    assert result.status == 2
    assert "would be overwritten" in (result.json["error"] if as_json else result.err)
    assert program.read_bytes() == LINEAR.read_bytes()


@pytest.mark.parametrize(
    "arguments",
    [
        ("emit", "{file}", *SIZES, "-o", "{file}"),
        ("sol", "{file}", *SIZES, "--roofline", "{file}"),
        ("optimize", "{file}", *SIZES, "-o", "{file}"),
        ("optimize", "{file}", *SIZES, "--record", "{file}"),
        ("optimize", "{file}", *SIZES, "-o", "{journal}", "--journal", "{journal}"),
        ("report", "0", "-o", "{journal}", "--journal", "{journal}"),
        ("results", "export", "{evidence}"),
    ],
)
def test_every_command_that_writes_refuses(
    ucc: Ucc, program: Path, tmp_path: Path, arguments: list[str]
) -> None:
    journal, evidence = tmp_path / "sessions.sqlite", EvidenceStore.open().path
    journal.write_bytes(b"")
    EvidenceStore.open().prepare()
    before = {p: p.read_bytes() for p in (program, journal, evidence)}
    places = {"file": program, "journal": journal, "evidence": evidence}
    result = ucc(*(a.format(**places) for a in arguments))
    assert result.status == 2 and "would be overwritten" in result.err
    assert {p: p.read_bytes() for p in before} == before


def commands(group: click.Command = main, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(group, click.Group):
        yield " ".join(path), group
        return
    context = click.Context(group)
    for name in group.list_commands(context):
        inner = group.get_command(context, name)
        assert inner is not None
        yield from commands(inner, (*path, name))


READ = {"file", "files", "journal", "ceilings", "start", "replay", "root", "library"}
"""Names of paths that are read; those with `exists` are too. `journal` is added to."""


def test_every_path_of_every_command_is_an_input_or_an_output() -> None:
    """A file that is written is an `OutputPath`, so that it is held against what is read."""
    unknown = [
        f"{name} {parameter.name}"
        for name, command in commands()
        for parameter in command.params
        if isinstance(parameter.type, click.Path)
        and not isinstance(parameter.type, OutputPath)
        and not parameter.type.exists
        and parameter.name not in READ
        and parameter.type.file_okay
    ]
    assert unknown == []


def test_a_device_may_be_both(ucc: Ucc, program: Path) -> None:
    assert ucc("emit", program, *SIZES, "-o", os.devnull).status == 0


# --- whole, and as UTF-8 ------------------------------------------------------------------


def run(arguments: list[str | Path], folder: Path, environ: dict[str, str], before: str = "") -> int:
    script = f"{before}\nfrom ucutlass.cli import main\nmain()"
    command = [sys.executable, "-c", script, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False, timeout=120)
    assert b"Traceback" not in done.stderr
    return done.returncode


def test_a_foreign_locale_changes_no_file(tmp_path: Path) -> None:
    file, out = tmp_path / "a.ucu", tmp_path / "out.cu"
    file.write_text(UNTIDY, encoding="utf-8")
    assert run(["fmt", file], tmp_path, FOREIGN) == 0
    assert file.read_text(encoding="utf-8") == TIDY
    text = f"# \u03b1\n{LINEAR.read_text(encoding='utf-8')}"
    file.write_text(text, encoding="utf-8")
    assert run(["emit", file, *SIZES, "-o", out], tmp_path, FOREIGN) == 0
    assert "linear_gelu" in out.read_text(encoding="utf-8")


LIMIT = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
"""


def test_a_file_that_cannot_be_written_whole_stays(tmp_path: Path) -> None:
    file = tmp_path / "a.ucu"
    file.write_text(UNTIDY * 10, encoding="utf-8")
    assert run(["fmt", file], tmp_path, {"PYTHONDONTWRITEBYTECODE": "1"}, LIMIT) == 3
    assert file.read_text(encoding="utf-8") == UNTIDY * 10
    assert [p.name for p in tmp_path.iterdir()] == ["a.ucu"]


def test_a_build_is_written_whole_or_not_at_all(machine: Machine, small_disk: Path) -> None:
    """Library, header and source: the first fits, the others do not."""
    machine.behave("head -c 200000 /dev/zero > kernel.so\n")
    (small_disk / "filler").write_bytes(bytes(40_000))
    folder = small_disk / "out"
    result = machine.ucc("build", LINEAR, *SIZES, "-o", folder)
    assert result.status == 3 and "No space left" in result.err
    assert list(folder.iterdir()) == []


# --- what is read ---------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["check", "fmt", "emit", "sol"])
def test_a_program_that_cannot_be_read(ucc: Ucc, tmp_path: Path, command: str) -> None:
    file = tmp_path / "a.ucu"
    file.write_bytes(b"# fine\n# \xff\n")
    result = ucc(command, file)
    assert result.status == 1 and "byte 9 (0xFF) is not UTF-8" in result.err
    file.write_bytes(b"#" * 5_000_000)
    result = ucc(command, file)
    assert result.status == 3 and f"has more than {frontend.MOST_BYTES} bytes" in result.err
    assert ucc(command, "/dev/zero").status == 3
    assert ucc(command, tmp_path).status == 2
    assert ucc(command, tmp_path / "absent").status == 2

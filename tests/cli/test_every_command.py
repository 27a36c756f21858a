"""Every command, as click lists them, through what a terminal, a disk and a user can do to it.

A new command needs a row in ROWS. Commands run in forks of one process (`fork_server`); what must be seen
from the very start of a process has a few processes of its own.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import click
import fork_server
import pytest
from cli_machine import NVCC

from ucutlass.cli import main

ROOT = Path(__file__).parent.parent.parent
PROGRAM = "kernel linear(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return dot[K](x, w) }\n"
SIZES = ("-s", "M=64,N=64,K=64")
STATUSES = {0, 1, 2, 3, 130, 141, 143}

FILE = "FILE"
"""Stands for a program in the rows' arguments."""


@dataclass(frozen=True)
class Row:
    """A call that needs no GPU, and its status on a machine without one."""

    arguments: tuple[str, ...]
    status: int

    def at(self, file: str) -> tuple[str, ...]:
        return tuple(file if a == FILE else a for a in self.arguments)


ROWS: Mapping[str, Row] = {
    "check": Row((FILE,), 0),
    "fmt": Row(("--check", FILE), 1),
    "explain": Row((FILE, *SIZES), 0),
    "fuse": Row((FILE, *SIZES), 0),
    "sol": Row((FILE, *SIZES), 0),
    "import": Row((FILE,), 2),
    "emit": Row((FILE, *SIZES), 0),
    "build": Row((FILE, *SIZES), 0),
    "adopt": Row((FILE, "--for", FILE, *SIZES), 1),
    "diff": Row((FILE, "--for", FILE, *SIZES), 1),
    "run": Row((FILE, *SIZES), 0),
    "verify": Row((FILE, *SIZES), 3),
    "bench": Row((FILE, *SIZES), 3),
    "profile": Row((FILE, *SIZES), 0),
    "tune": Row((FILE, *SIZES), 3),
    "optimize": Row((FILE, *SIZES), 3),
    "kernelbench": Row(("--root", "."), 2),
    "audit": Row((FILE, *SIZES), 1),
    "mcp": Row(("--dollars", "1"), 2),
    "skill": Row((), 0),
    "edit": Row((FILE,), 0),
    "search": Row(("cluster",), 0),
    "guide": Row((), 0),
    "doctor": Row((), 0),
    "calibrate": Row((), 3),
    "cache list": Row((), 0),
    "cache stats": Row((), 0),
    "cache verify": Row((), 0),
    "cache clear": Row((), 0),
    "results list": Row((), 0),
    "results show": Row(("0123abcd",), 2),
    "results compare": Row(("0123abcd", "4567abcd"), 2),
    "results export": Row(("-",), 0),
    "results import": Row((FILE,), 2),
    "results check": Row((), 0),
    "sessions": Row((), 0),
    "memory list": Row((), 0),
    "memory show": Row(("0123abcd",), 2),
    "memory purge": Row(("0123abcd",), 2),
    "report": Row(("0123abcd",), 2),
    "replay": Row(("0123abcd",), 2),
}


def leaves(command: click.Command, names: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by the words that call it."""
    if not isinstance(command, click.Group):
        yield " ".join(names), command
        return
    ctx = click.Context(command)
    for name in command.list_commands(ctx):
        inner = command.get_command(ctx, name)
        assert inner is not None
        yield from leaves(inner, (*names, name))


LEAVES = dict(leaves(main))
WITH_FILE = [name for name in LEAVES if name in ROWS and FILE in ROWS[name].arguments]
COSTLY = {"audit", "run"}
"""They compute in processes of their own, which import torch."""

SILENT = {"results export"}
"""It has nothing to print, where nothing is kept."""

every = pytest.mark.parametrize("name", LEAVES)
every_quick = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in COSTLY else name for name in LEAVES]
)
with_file = pytest.mark.parametrize("name", WITH_FILE)


def slow(*values: Any) -> Any:
    """A case that repeats another of its kind, for every command."""
    return pytest.param(*values, marks=pytest.mark.slow)


def test_every_command_has_a_row() -> None:
    assert set(ROWS) == set(LEAVES), "a row for each command, which this whole file then runs"


# --- running ------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be one document of JSON as its standard has it."""

        def refuse(word: str) -> None:
            raise AssertionError(f"{word} is no JSON")

        return json.loads(self.out, parse_constant=refuse)


Ucc: TypeAlias = Callable[..., Result]
"""A command on a machine without a GPU, whose compiler makes an empty library."""


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, fork_server.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environ,
    )
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a compiler that is a script, a program, and folders for what is kept."""
    (tmp_path / "toolkit" / "bin").mkdir(parents=True)
    nvcc = tmp_path / "toolkit" / "bin" / "nvcc"
    nvcc.write_text(NVCC.format(home=tmp_path))
    nvcc.chmod(0o755)
    (tmp_path / "behaviour").write_text(": > kernel.so\n")
    (tmp_path / "program.ucu").write_text(PROGRAM)
    return tmp_path


@pytest.fixture
def environ(home: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PYTHONPATH": str(ROOT),
        "LANG": "C.UTF-8",
        "UCUTLASS_CACHE_DIR": str(home / "cache"),
        "UCUTLASS_DATA_DIR": str(home / "data"),
        "UCUTLASS_CUDA_HOME": str(home / "toolkit"),
        "UCUTLASS_BUILD_PATH": "nvcc",
        "CUDA_VISIBLE_DEVICES": "",
    }


@pytest.fixture
def ucc(server: subprocess.Popen[str], home: Path, environ: dict[str, str]) -> Ucc:
    def run(
        *arguments: str,
        stdin: str = "",
        environ: Mapping[str, str] = environ,
        stdout: str | None = "",
        stderr: str | None = "",
        number: int | None = None,
        when: str = fork_server.HANDLED,
    ) -> Result:
        given, out, err = home / "stdin", home / "stdout", home / "stderr"
        given.write_text(stdin)
        out.write_text("")
        err.write_text("")
        asked = {
            "arguments": arguments,
            "environ": dict(environ),
            "folder": str(home),
            "stdin": str(given),
            "stdout": str(out) if stdout == "" else stdout,
            "stderr": str(err) if stderr == "" else stderr,
            "signal": number,
            "when": when,
        }
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        status = int(server.stdout.readline())
        return sound(Result(status, out.read_text(), err.read_text()))

    return run


def sound(result: Result) -> Result:
    """What holds of every call, whatever it was."""
    assert result.status in STATUSES, result
    for text in (result.out, result.err):
        assert "Traceback" not in text and "Exception ignored" not in text, result
        odd = [c for c in text if not c.isprintable() and c not in "\n\t"]
        assert not odd, (odd, result)
        assert "\\x09" not in text, result  # a tab in a cell is a blank
    return result


def call(name: str, file: str = "program.ucu") -> tuple[str, ...]:
    return (*name.split(), *ROWS[name].at(file))


# --- as it should be ----------------------------------------------------------------


@every
def test_its_row(name: str, ucc: Ucc) -> None:
    result = ucc(*call(name))
    assert result.status == ROWS[name].status, result
    assert result.out or result.status or name in SILENT, "a command that is fine says something"


SCHEDULE = {"value"}
"""A field's value is a word of the language, be it a number."""

NUMBERS = re.compile(r"-?\d+(\.\d+)?")


@every_quick
def test_json_is_one_document(name: str, ucc: Ucc) -> None:
    result = ucc(*call(name), "--json")
    if name in SILENT:
        return
    assert result.out.isascii() and numbers_as_text(result.json) == []


def numbers_as_text(value: Any, key: str = "") -> list[str]:
    """The names of numbers that stand in quotes."""
    match value:
        case dict():
            return [n for k, v in value.items() for n in numbers_as_text(v, k)]
        case list():
            return [n for v in value for n in numbers_as_text(v, key)]
        case str():
            return [key] if NUMBERS.fullmatch(value) and key not in SCHEDULE else []
    return []


# --- the call -----------------------------------------------------------------------


@every
@pytest.mark.parametrize("as_json", [False, True])
def test_an_unknown_option(name: str, as_json: bool, ucc: Ucc) -> None:
    result = ucc(*call(name), "--frob\x1b[31m\u202e", *["--json"] * as_json)
    assert result.status == 2
    assert "--frob" in (result.json["error"] if as_json else result.err)


KINDS = ("missing", "loop", "folder", "socket", "binary", "empty", "long name")


@pytest.mark.parametrize(
    ("name", "kind", "as_json"),
    [
        # Each command with some files, and each file with some commands.
        case if case[2] == bool(i % 2) and (i + j) % 3 == 0 else slow(*case)
        for i, name in enumerate(WITH_FILE)
        for j, kind in enumerate(KINDS)
        for case in ((name, kind, False), (name, kind, True))
    ],
)
def test_a_file_that_is_none(name: str, kind: str, as_json: bool, ucc: Ucc, home: Path) -> None:
    path = home / f"{kind}\x1b[31m\n.ucu"
    match kind:
        case "loop":
            path.symlink_to(path)
        case "folder":
            path.mkdir()
        case "socket":
            import socket

            with socket.socket(socket.AF_UNIX) as one:
                one.bind(os.path.relpath(path))
        case "binary":
            path.write_bytes(bytes(range(256)) * 64)
        case "empty":
            path.write_bytes(b"")
        case "long name":
            path = home / ("x" * 300)
    result = ucc(*call(name, str(path)), *["--json"] * as_json)
    if as_json:
        assert result.json
    if (name, kind) not in {
        ("results import", "empty"),
        ("check", "empty"),
        ("edit", "empty"),
        ("fmt", "empty"),
    }:
        assert result.status in (1, 2, 3), result


@with_file
def test_standard_input(name: str, ucc: Ucc) -> None:
    if name == "results import":
        assert ucc(*call(name, "-"), stdin="").status == 0
        return
    there, piped = ucc(*call(name)), ucc(*call(name, "-"), stdin=PROGRAM)
    assert piped.status == there.status, piped
    if name == "import":  # it reads Python files, by their names alone
        assert "no Python file" in piped.err
        return
    wrong = ucc(*call(name, "-"), stdin="kernel (")
    assert wrong.status == 1 and "<stdin>:1:8: error" in wrong.err


def test_what_does_not_end_is_not_read_for_ever(ucc: Ucc) -> None:
    for file in ("/dev/zero", "/dev/urandom"):
        assert "has more than" in ucc("check", file).err


@pytest.mark.parametrize(
    "text",
    [
        "M=4,M=5",
        "M=\u0663",
        "M=1_000",
        "M=+4",
        "M= 4",
        "M =4",
        "M=0x10",
        "M=4k",
        "M=1e3",
        "M=\uff14",
        "M=4.0",
        "M=",
        "=4",
        "M==4",
        "M",
    ],
)
def test_extents_are_digits_given_once(text: str, ucc: Ucc) -> None:
    result = ucc("emit", "program.ucu", "-s", text)
    assert result.status == 2 and "UC0601" in result.err
    if text == "M=4,M=5":
        assert "M is given twice, as 4 and as 5" in result.err
        assert ucc("emit", "program.ucu", "-s", "M=4", "-s", "M=5").err == result.err


OPTIONS = [(name, p) for name, leaf in LEAVES.items() for p in leaf.params if isinstance(p, click.Option)]


@pytest.mark.parametrize("text", ["\u0663", "1_000", "0x10", "4k", " 4", "nan", "inf", "", "1" * 5000])
def test_numbers_are_digits(text: str) -> None:
    """Of every option that takes a number."""
    numbers = [(n, p) for n, p in OPTIONS if isinstance(p.type, click.types._NumberParamTypeBase)]
    assert len(numbers) > 20
    for name, option in numbers:
        with pytest.raises(click.BadParameter):
            option.type.convert(text, option, click.Context(LEAVES[name]))


# --- streams ------------------------------------------------------------------------


@every_quick
@pytest.mark.parametrize("as_json", [False, True])
def test_a_closed_pipe(name: str, as_json: bool, ucc: Ucc) -> None:
    result = ucc(*call(name), *["--json"] * as_json, stdout="closed pipe")
    assert result.status in (141, ROWS[name].status, 2)
    if name not in SILENT and (as_json or ROWS[name].status == 0):
        assert result == Result(141, "", "")


@every_quick
@pytest.mark.parametrize("as_json", [False, True])
def test_a_full_disk(name: str, as_json: bool, ucc: Ucc) -> None:
    result = ucc(*call(name), *["--json"] * as_json, stdout="/dev/full")
    if name not in SILENT and (as_json or ROWS[name].status == 0):
        assert result.status == 3
        assert result.err.endswith("ucc: cannot write output: No space left on device\n")


@every_quick
@pytest.mark.parametrize("stream", [None, slow("/dev/full"), slow("closed pipe")])
def test_standard_error_is_gone(name: str, stream: str | None, ucc: Ucc) -> None:
    result = ucc(*call(name), stderr=stream)
    assert result.status == ROWS[name].status


@every_quick
def test_standard_output_is_gone(name: str, ucc: Ucc, home: Path) -> None:
    assert ucc(*call(name), stdout=None).status == ROWS[name].status
    assert (home / "program.ucu").read_text() == PROGRAM


@every_quick
@pytest.mark.parametrize("stream", ["/dev/full", slow("closed pipe")])
def test_help(name: str, stream: str, ucc: Ucc) -> None:
    assert ucc(*name.split(), "--help").status == 0
    assert ucc(*name.split(), "--help", stdout=stream).status == (3 if stream == "/dev/full" else 141)


OUTPUTS: Mapping[str, tuple[str, ...]] = {
    "fmt": ("OUT",),
    "emit": (FILE, *SIZES, "-o", "OUT"),
    "build": (FILE, *SIZES, "-o", "FOLDER"),
    "sol": (FILE, *SIZES, "--roofline", "OUT"),
}
"""What writes a file of the user's, without a GPU."""


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_file_on_a_full_disk(name: str, ucc: Ucc, small_disk: Path) -> None:
    out = small_disk / "out.ucu"
    out.write_text(PROGRAM + "# more\n" * 5_000 if name == "fmt" else PROGRAM)
    before = out.read_bytes()
    ballast = (small_disk / "ballast").open("wb", buffering=0)
    with ballast, pytest.raises(OSError, match="No space left"):
        while True:
            ballast.write(bytes(4096))
    places = {FILE: "program.ucu", "OUT": str(out), "FOLDER": str(small_disk / "folder")}
    result = ucc(*name.split(), *(places.get(a, a) for a in OUTPUTS[name]))
    assert out.read_bytes() == before
    assert {p.name for p in small_disk.rglob("*") if p.is_file()} == {"out.ucu", "ballast"}
    assert result.status == 3


# --- the machine --------------------------------------------------------------------


@every_quick
@pytest.mark.parametrize("kind", ["none", slow("nowhere"), slow("a file")])
def test_a_home_of_no_use(name: str, kind: str, ucc: Ucc, home: Path, environ: dict[str, str]) -> None:
    bare = {n: v for n, v in environ.items() if n not in ("HOME", "UCUTLASS_CACHE_DIR", "UCUTLASS_DATA_DIR")}
    (home / "file").write_text("")
    place = {"none": {}, "nowhere": {"HOME": "/proc/nowhere"}}.get(
        kind, {n: str(home / "file") for n in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
    )
    # Not this user's own, even where HOME is not set.
    place = {**place, **({"UCUTLASS_CACHE_DIR": str(home / "c")} if kind == "none" else {})}
    place = {**place, **({"UCUTLASS_DATA_DIR": str(home / "d")} if kind == "none" else {})}
    result = ucc(*call(name), "--json", environ={**bare, **place})
    assert name in SILENT or result.json is not None


@every
@pytest.mark.parametrize(
    ("number", "when"),
    [
        (signal.SIGINT, fork_server.INVOKED),
        slow(signal.SIGINT, fork_server.HANDLED),
        slow(signal.SIGTERM, fork_server.INVOKED),
        (signal.SIGTERM, fork_server.HANDLED),
    ],
)
def test_a_signal(name: str, number: signal.Signals, when: str, ucc: Ucc) -> None:
    result = ucc(*call(name), number=number, when=when)
    words = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}[number]
    assert result == Result(128 + number, "", f"ucc: {words}\n")


# --- from the start of a process ----------------------------------------------------


STARTED = """
from ucutlass import entry
before = entry._open_streams
entry._open_streams = lambda: (before(), print(flush=True))
entry.main()
"""
"""Says when signals are handled, from where on what is imported is what counts."""


def started(*arguments: str, environ: Mapping[str, str], folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", STARTED, *arguments],
        env=dict(environ),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize("name", ["explain", pytest.param("optimize", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "seconds", [0.05, *(pytest.param(s, marks=pytest.mark.slow) for s in (0.005, 0.15, 0.4))]
)
def test_a_signal_while_it_imports(name: str, seconds: float, environ: dict[str, str], home: Path) -> None:
    process = started(*call(name), environ=environ, folder=home)
    assert process.stdout is not None and process.stdout.readline() == b"\n"
    time.sleep(seconds)
    number = signal.SIGINT if seconds != 0.05 else signal.SIGTERM
    process.send_signal(number)
    out, err = process.communicate(timeout=300)
    result = sound(Result(process.returncode, out.decode(), err.decode()))
    assert result.status in (128 + number, ROWS[name].status)


LOCALES: tuple[Mapping[str, str], ...] = (
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"PYTHONIOENCODING": "latin-1"},
    {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii:strict"},
)


@pytest.mark.slow
@pytest.mark.parametrize("locale", LOCALES, ids=str)
@pytest.mark.parametrize(
    "name", ["fmt", *(pytest.param(n, marks=pytest.mark.slow) for n in ("explain", "emit"))]
)
def test_a_foreign_locale(name: str, locale: Mapping[str, str], environ: dict[str, str], home: Path) -> None:
    """Programs are UTF-8 going in and coming out, whatever the terminal's letters are."""
    (home / "größe.ucu").write_text(f"# größer als ½ → 1\n{PROGRAM}", encoding="utf-8")
    stdin = (home / "größe.ucu").open("rb") if name == "fmt" else subprocess.DEVNULL
    arguments = ("fmt", "-") if name == "fmt" else call(name, "größe.ucu")
    done = subprocess.run(
        [sys.executable, "-m", "ucutlass.cli", *arguments],
        env={**environ, **locale},
        cwd=home,
        stdin=stdin,
        capture_output=True,
        check=False,
    )
    result = sound(Result(done.returncode, done.stdout.decode(), done.stderr.decode()))
    assert result.status == 0
    if name == "fmt":
        assert "# größer als ½ → 1" in result.out

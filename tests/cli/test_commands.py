"""Every command: exit statuses, help, JSON, and plain text off a terminal."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_machine import LINEAR, ROOT, SIZES, Machine, Ucc

from ucutlass.cli import COMMANDS
from ucutlass.codes import CODES
from ucutlass.guide import guide
from ucutlass.kernels.families import RULES

Write = Callable[[str | bytes], Path]
KNOWN = set(CODES) | {rule.code for rule in RULES}

PRECISION = ROOT / "examples" / "precision.ucu"

TWO_ERRORS = """kernel f(x: bf16[M, K], w: f16[N, K]) -> bf16[M, N] {
  return dot[K](x, w)
}

kernel g(x: f32[M, K]) -> f32[M, K] {
  return x + y
}
"""
UNFORMATTED = "fn  twice( x )=x+x # a comment\n"


# --- help --------------------------------------------------------------------------


def test_the_first_help_names_every_command_and_status(ucc: Ucc) -> None:
    result = ucc("--help")
    assert result.status == 0
    assert all(f"  {name} " in result.out for name in COMMANDS)
    assert "0 fine, 1 the program is at fault, 2 the call, 3 the machine." in result.out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_that_teaches(ucc: Ucc, name: str) -> None:
    result = ucc(name, "--help")
    assert result.status == 0
    body = result.out.split("\n", 1)[1]
    assert len(body.split("Options:")[0].split()) >= 8, "one sentence at least"


def test_version(ucc: Ucc) -> None:
    result = ucc("--version")
    assert result.status == 0
    assert result.out.strip()


# --- what the call does wrong: 2 -----------------------------------------------------


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("frobnicate",), "frobnicate"),
        (("check",), "FILES"),
        (("check", "no_such_file.ucu"), "does not exist"),
        (("emit", LINEAR), "the extent of M is missing; give -s M=.."),
        (("emit", LINEAR, "-s", "M=1,N=1"), "the extent of K is missing"),
        (("emit", LINEAR, "-s", "M=1,N=1,K=1,Z=1"), "no dimension Z; it has M, K, N"),
        (("emit", LINEAR, "-s", "M=0,N=1,K=1"), "M is 0; an extent is at least 1"),
        (("emit", LINEAR, "-s", "M=-4,N=1,K=1"), "'M=-4' is not of the form NAME=DIGITS, with the"),
        (("emit", LINEAR, "-s", "M=4.5,N=1,K=1"), "'M=4.5' is not of the form"),
        (("emit", LINEAR, "-s", "M"), "'M' is not of the form"),
        (("emit", LINEAR, "-s", ""), "is not of the form"),
        (("emit", LINEAR, "-s", f"M={2**63},N=1,K=1"), "at most 2**40"),
        (("emit", LINEAR, "-s", "M=\u00b2,N=1,K=1"), "is not of the form"),
        (("emit", LINEAR, *SIZES, "--kernel", "other"), "linear_gelu.ucu has linear_gelu: say which"),
        (("emit", LINEAR, *SIZES, "--arch", "sm_90a"), "sm_90a"),
        (("emit", PRECISION, *SIZES), "has accurate, three_pass, fast, half, integer: say which"),
        (("explain", LINEAR, *SIZES, "--device", "abacus"), "abacus"),
        (("fmt", "--frob", LINEAR), "frob"),
    ],
)
def test_a_wrong_call_is_status_2_and_says_what(ucc: Ucc, arguments: tuple[str, ...], words: str) -> None:
    result = ucc(*arguments)
    assert result.status == 2
    assert result.out == ""
    assert words in result.err
    assert "Traceback" not in result.err


def test_a_number_of_many_digits_is_a_wrong_call(ucc: Ucc) -> None:
    result = ucc("emit", LINEAR, "-s", f"M={'9' * 5000},N=1,K=1")
    assert result.status == 2
    assert "Traceback" not in result.err


def test_a_switch_that_cannot_be_read_is_a_wrong_call(ucc: Ucc) -> None:
    result = ucc("cache", "stats", environ={"UCUTLASS_CACHE_SIZE": "much"})
    assert result.status == 2
    assert (
        result.err == "ucc: environment variable UCUTLASS_CACHE_SIZE is 'much', "
        "but it takes a number of bytes with an optional K, M, G or T, such as 20G\n"
    )


def test_a_wrong_call_in_json(ucc: Ucc) -> None:
    result = ucc("explain", LINEAR, "--json")
    assert result.status == 2
    assert result.json == {"error": "the extent of M is missing; give -s M=.. [UC0601]", "status": 2}


# --- what the program does wrong: 1 ---------------------------------------------------


def test_all_errors_of_a_file_at_once(ucc: Ucc, write: Write) -> None:
    path = write(TWO_ERRORS)
    result = ucc("check", path)
    assert result.status == 1
    assert f"{path}:2:10: error:" in result.err and "[UC0203]" in result.err
    assert f"{path}:6:14: error:" in result.err and "[UC0101]" in result.err
    assert "    2 |   return dot[K](x, w)\n" in result.err
    assert "^" in result.err


def test_diagnostics_in_json(ucc: Ucc, write: Write) -> None:
    path = write(TWO_ERRORS)
    result = ucc("check", path, LINEAR, "--json")
    assert result.status == 1
    rows = result.json["diagnostics"]
    assert [row["code"] for row in rows] == ["UC0203", "UC0101"]
    for row in rows:
        assert row.keys() == {"file", "code", "severity", "message", "hint", "span", "notes"}
        assert row["span"].keys() == {"start", "end", "line", "column", "end_line", "end_column"}
        assert row["file"] == str(path)
        assert row["code"] in KNOWN
    assert rows[1]["span"]["line"] == 6
    assert TWO_ERRORS[rows[1]["span"]["start"] : rows[1]["span"]["end"]] == "y"


def test_a_sound_file_in_json(ucc: Ucc) -> None:
    result = ucc("check", LINEAR, "--json")
    program = {"name": "linear_gelu", "kind": "kernel", "family": "gemm", "sizes": ["M", "K", "N"]}
    assert result.status == 0
    assert result.json == {"diagnostics": [], "programs": [{"file": str(LINEAR)} | program]}


@pytest.mark.parametrize("name", ["check", "fmt", "emit", "explain", "build", "run"])
def test_a_file_that_is_not_utf8_is_a_diagnostic(ucc: Ucc, write: Write, name: str) -> None:
    path = write(b"\xef\xbb\xbf# caf\xc3\xa9\n# \xff\n")
    result = ucc(name, path)
    assert result.status == 1
    assert result.out == ""
    assert f"{path}:2:3: error: byte 13 (0xFF) is not UTF-8 [UC0007]" in result.err
    assert path.read_bytes().endswith(b"\xff\n"), "the file is left as it was"


@pytest.mark.parametrize("name", ["emit", "explain", "build", "run"])
def test_every_command_reports_a_broken_program_alike(ucc: Ucc, write: Write, name: str) -> None:
    path = write(TWO_ERRORS)
    result = ucc(name, path)
    assert result.status == 1
    assert result.err.count("error:") == 2


def test_an_illegal_schedule_names_rule_numbers_and_mend(ucc: Ucc, write: Write) -> None:
    path = write(LINEAR.read_text().replace("tile 128x256x64 or 256x128x64", "tile 100x256x64"))
    result = ucc("check", path)
    assert result.status == 1
    assert "100" in result.err
    assert "nearest legal schedule:" in result.err


# --- check over the language trials ---------------------------------------------------

TASKS = sorted((ROOT / "examples" / "tasks").glob("*.ucu"))
SERVED = set("abcdefghijklmnopqrst")
"""The tasks whose kernels' families exist: all of them."""


def test_every_task_type_checks(ucc: Ucc) -> None:
    result = ucc("check", "--types-only", *TASKS)
    assert result.status == 0, result.err
    assert result.out.count(": fine\n") == 20


def test_a_task_without_a_family_ends_in_one_diagnostic(ucc: Ucc) -> None:
    rows = ucc("check", *TASKS, "--json").json["diagnostics"]
    texts: dict[str, set[str]] = {}
    for row in rows:
        texts.setdefault(Path(row["file"]).name[5], set()).add(row["code"])
    assert not texts.keys() & SERVED
    assert all(codes == {"UC0300"} for codes in texts.values())
    assert all(row["message"] and row["span"]["line"] for row in rows)


# --- fmt ----------------------------------------------------------------------------


def test_fmt_rewrites_a_file_and_says_so(ucc: Ucc, write: Write) -> None:
    path = write(UNFORMATTED)
    first = ucc("fmt", path)
    assert (first.status, first.out, first.err) == (0, "", f"formatted {path}\n")
    assert path.read_text() == "fn twice(x) = x + x  # a comment\n"
    again = ucc("fmt", path)
    assert (again.status, again.out, again.err) == (0, "", "")


def test_fmt_reads_standard_input(ucc: Ucc) -> None:
    result = ucc("fmt", "-", stdin=UNFORMATTED.encode())
    assert (result.status, result.out) == (0, "fn twice(x) = x + x  # a comment\n")


def test_fmt_check_changes_nothing(ucc: Ucc, write: Write) -> None:
    path = write(UNFORMATTED)
    result = ucc("fmt", "--check", path)
    assert (result.status, result.err) == (1, f"would format {path}\n")
    assert path.read_text() == UNFORMATTED
    assert ucc("fmt", "--check", "-", stdin=b"fn f(x) = x\n").status == 0


def test_fmt_in_json(ucc: Ucc, write: Write) -> None:
    path = write(UNFORMATTED)
    (row,) = ucc("fmt", "--check", path, "--json").json
    assert row["file"] == str(path) and row["changed"] and path.read_text() == UNFORMATTED
    (again,) = ucc("fmt", path, "--json").json
    assert again == row and path.read_text() == row["text"]
    rows = ucc("fmt", path, "-", "--json", stdin=UNFORMATTED.encode()).json
    assert [(r["file"], r["changed"], r["text"]) for r in rows] == [
        (str(path), False, row["text"]),
        ("<stdin>", True, row["text"]),
    ]
    refused = ucc("fmt", "-", "--json", stdin=b"kernel (")
    assert refused.status == 1 and refused.json["diagnostics"]


def test_fmt_refuses_what_does_not_parse(ucc: Ucc) -> None:
    result = ucc("fmt", "-", stdin=b"kernel (")
    assert (result.status, result.out) == (1, "")
    assert "<stdin>:1:8: error:" in result.err


# --- emit, explain, guide -----------------------------------------------------------


def test_emit_prints_a_file_that_stands_alone(ucc: Ucc, tmp_path: Path) -> None:
    result = ucc("emit", LINEAR, *SIZES)
    assert result.status == 0
    assert 'extern "C"' in result.out
    assert "kernel linear_gelu(" in result.out.split("#include")[0], "the header repeats the program"
    assert "nvcc " in result.out.split("#include")[0]
    output = tmp_path / "out.cu"
    assert ucc("emit", LINEAR, *SIZES, "-o", output).out == ""
    assert output.read_text() == result.out


def test_emit_in_json(ucc: Ucc, tmp_path: Path) -> None:
    row = ucc("emit", LINEAR, *SIZES, "--json").json
    assert row["source"] == ucc("emit", LINEAR, *SIZES).out
    assert (row["kernel"], row["arch"]) == ("linear_gelu", "sm_90a")
    assert row["sizes"] == {"M": 256, "K": 256, "N": 256}
    assert f"int32_t {row['entry']}(" in row["source"]
    assert f"schedule sm90a {{ {row['schedule']} }}" in row["source"]
    assert row["launch"].keys() == {"raster", "swizzle", "splits"}
    output = tmp_path / "out.cu"
    assert ucc("emit", LINEAR, *SIZES, "--json", "-o", output).json == row | {"output": str(output)}
    assert output.read_text() == row["source"]
    wrong = ucc("emit", LINEAR, "--json")
    assert wrong.status == 2 and "the extent of M is missing" in wrong.json["error"]


def test_emit_into_a_folder_that_is_not_there_is_one_line(ucc: Ucc, tmp_path: Path) -> None:
    result = ucc("emit", LINEAR, *SIZES, "-o", tmp_path / "absent" / "out.cu")
    assert result.status == 3
    assert result.err == f"ucc: No such file or directory: {tmp_path}/absent/out.cu\n"


def test_explain_gives_reasons_and_numbers(ucc: Ucc) -> None:
    result = ucc("explain", LINEAR, *SIZES, "--device", "H200")
    assert result.status == 0
    lines = [line.split("\t") for line in result.out.splitlines()]
    assert {"schedule", "tiles", "accumulators", "shared memory", "work", "bound"} <= {
        line[0] for line in lines
    }
    row = ucc("explain", LINEAR, *SIZES, "--device", "H200", "--json").json
    assert row["extents"] == {"M": 256, "N": 256, "K": 256, "batch": 1}
    assert row["waves"] > 0
    memory = row["memory"]
    parts = memory["stages"] + memory["epilogue"] + memory["barriers"]
    assert 0 < parts == memory["total"] <= row["memory_limit"]


def test_guide_prints_the_guide(ucc: Ucc) -> None:
    result = ucc("guide")
    assert (result.status, result.out) == (0, guide())


# --- off a terminal ------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", LINEAR),
        ("explain", LINEAR, *SIZES),
        ("build", LINEAR, *SIZES),
        ("doctor",),
        ("--help",),
        ("cache", "list"),
    ],
    ids=lambda a: a[0],
)
def test_no_colour_and_no_progress_off_a_terminal(machine: Machine, arguments: tuple[str, ...]) -> None:
    result = machine.ucc(*arguments, environ={"TERM": "xterm-256color"})
    assert "\x1b" not in result.out + result.err
    assert result.err == ""


def test_what_reads_no_program_loads_no_compiler() -> None:
    code = "import sys, ucutlass.cli.errors; print([n for n in ('torch', 'ucutlass.frontend') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "[]\n"


def test_the_command_as_a_process(write: Write) -> None:
    path = write(TWO_ERRORS)
    done = subprocess.run(
        [sys.executable, "-m", "ucutlass.cli", "check", str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert "[UC0101]" in done.stderr


def test_control_characters_of_a_program_do_not_reach_the_terminal(ucc: Ucc, write: Write) -> None:
    result = ucc("check", write("kernel f(x: f32[M]) -> f32[M] { return \x1b]0;title\x07 x }"))
    assert result.status == 1
    assert "\x1b" not in result.err and "\x07" not in result.err

"""Text from a program is data: no name of it, and no comment, reaches generated code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.random_programs import random_program
from ucutlass import frontend, ir
from ucutlass.backend import source_of
from ucutlass.check.calls import BUILTINS
from ucutlass.diagnostics import ProgramError
from ucutlass.emit.text import Source
from ucutlass.grammar.parse import grammar_text
from ucutlass.ir.elements import ELEMENTS
from ucutlass.ir.functions import FUNCTIONS
from ucutlass.ir.hardware import ARCHES
from ucutlass.ir.schedule import FIELDS
from ucutlass.kernels.planned import Planned
from ucutlass.shapes import ShapeError, complete, free_dims

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.ucu"))

LANGUAGE = {
    *BUILTINS,
    *FUNCTIONS,
    *ELEMENTS,
    *ARCHES,
    *FIELDS,
    *(w for f in FIELDS.values() for w in f.words),
    *re.findall(r'"([a-z_]+)"', grammar_text()),
    "auto",
    "x",
    "acc",
    "fast",
    "exclusive",
    "alpha",
    "slope",
}
"""Words that mean something by themselves."""

MARK = "zqmark"


def renamed(text: str) -> str:
    """The program with every name of its own replaced by one that no generated code holds."""
    names: dict[str, str] = {}

    def replace(match: re.Match[str]) -> str:
        word = match[0]
        if word in _ours(text):
            return names.setdefault(word, f"{MARK}{len(names)}")
        return word

    return re.sub(r"(?<![\w.])[A-Za-z_]\w*", replace, re.sub(r"#.*", f"# {MARK}", text))


def _ours(text: str) -> set[str]:
    """The names that a program defines: programs, functions, parameters, bindings, dimensions."""
    code = re.sub(r"#.*", "", text)
    defined = set(re.findall(r"\b(?:kernel|fn|pipeline)\s+(\w+)", code))
    defined |= set(re.findall(r"(\w+)\s*:", code)) | set(re.findall(r"\b([A-Z]\w*)\b", code))
    defined |= set(re.findall(r"^\s*(\w+)\s*=", code, re.MULTILINE)) | set(
        re.findall(r"(?:return|,)\s+(\w+) = ", code)
    )
    for parameters in re.findall(r"\bfn\s+\w+(?:\[[^]]*\])?\(([^)]*)\)", code):
        defined |= set(re.findall(r"\w+", parameters))
    return defined - (LANGUAGE - {"x"})


def emitted(text: str, sizes: tuple[int, ...] | None, name: int) -> tuple[Source, Planned]:
    checked = frontend.read_text(text)
    program = checked.module.programs[name]
    assert isinstance(program, ir.Kernel)
    chosen = frontend.plan_kernel(checked, program, sizes or _sizes(program), "sm90a")
    return source_of(checked, program, chosen.planned), chosen.planned


def _sizes(program: ir.Kernel) -> tuple[int, ...]:
    return complete(program, dict.fromkeys(free_dims(program), 128))


def _kernels(path: Path) -> list[int]:
    return [i for i, p in enumerate(frontend.read(path).module.programs) if isinstance(p, ir.Kernel)]


CASES = [pytest.param(p, n, id=f"{p.stem}-{n}") for p in EXAMPLES for n in _kernels(p)]


@pytest.mark.parametrize("path, number", CASES)
def test_renaming_a_program_changes_no_code(path: Path, number: int) -> None:
    text = path.read_text()
    plain, _ = emitted(text, None, number)
    marked, _ = emitted(renamed(text), None, number)
    assert MARK in marked.text, "the header repeats the program"
    assert MARK not in marked.code
    assert marked.code == plain.code
    assert marked.entry == plain.entry


def test_renaming_random_programs_changes_no_code() -> None:
    compared = 0
    for seed in range(60):
        case = random_program(seed)
        try:
            checked = frontend.read_text(case.text)
            program = frontend.kernel(checked)
            sizes = complete(program, {name: case.sizes[name] for name in free_dims(program)})
            plain, _ = emitted(case.text, sizes, 0)
        except (ProgramError, ShapeError):
            continue
        marked, _ = emitted(renamed(case.text), sizes, 0)
        assert MARK not in marked.code
        assert marked.code == plain.code, case.text
        compared += 1
    assert compared >= 15


HOSTILE = "kernel k(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return dot[K](x, w) } # %s\n"


@pytest.mark.parametrize(
    "text", ["*/ int evil; /*", "\\", "??/", "*\\", "#include </etc/passwd>", "\u2028", "\r */ int evil;"]
)
def test_a_comment_cannot_leave_the_header(text: str) -> None:
    plain, _ = emitted(HOSTILE % "", (64, 64, 64), 0)
    hostile, _ = emitted(HOSTILE % text, (64, 64, 64), 0)
    assert hostile.code == plain.code
    header = hostile.text[: len(hostile.text) - len(hostile.code)]
    assert hostile.text.endswith(hostile.code)
    assert (
        _outside_comments(header).strip()
        == _outside_comments(plain.text[: len(plain.text) - len(plain.code)]).strip()
    )


def _outside_comments(header: str) -> str:
    spliced = header.replace("\\\n", "")
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", spliced, flags=re.DOTALL)

"""The Pygments lexer: every program lexes, by the compiler's own words."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import pytest
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.token import Comment, Error, Keyword, Name, Number, Operator

from tests.test_docs import PROGRAMS, Block
from ucutlass.pygments_lexer import UcuLexer

ROOT = Path(__file__).parent.parent
FILES = [
    path
    for folder in ("examples", "benchmarks", "tests/golden", "ucutlass")
    for path in sorted((ROOT / folder).rglob("*.ucu"))
]


def errors(text: str) -> list[str]:
    return [value for kind, value in UcuLexer().get_tokens(text) if kind in Error]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_files_lex_without_errors(path: Path) -> None:
    text = path.read_text()
    assert errors(text) == []
    assert "".join(value for _, value in UcuLexer().get_tokens(text)).strip() == text.strip()


@pytest.mark.parametrize("block", PROGRAMS, ids=lambda b: b.place)
def test_programs_of_the_pages_lex_without_errors(block: Block) -> None:
    assert errors(block.text) == []


def test_words_have_their_kinds() -> None:
    text = """# A sum.
kernel scaled(x: bf16[M, K=4]) -> f32[M] {
  max = 2.5
  return where(index(M) // 2 <= inf and true, sum[K](x) * max, -1)

  schedule sm90a when M <= 64 or M > 9 { warps gemv  tile 64x64x64 or auto }
}
fn tile(x) = torch.relu(x) ** 2
"""
    kinds = {value: kind for kind, value in UcuLexer().get_tokens(text)}
    expected = {
        "# A sum.": Comment.Single,
        "kernel": Keyword.Declaration,
        "scaled": Name.Function,
        "bf16": Keyword.Type,
        "max": Name,
        "2.5": Number.Float,
        "return": Keyword,
        "where": Name.Builtin,
        "sum": Name.Builtin,
        "//": Operator,
        "<=": Operator,
        "**": Operator,
        "and": Operator.Word,
        "inf": Keyword.Constant,
        "schedule": Keyword,
        "sm90a": Name.Constant,
        "warps": Name.Attribute,
        "gemv": Name.Constant,
        "64x64x64": Number,
        "torch.relu": Name.Builtin,
    }
    assert {word: kinds[word] for word in expected} == expected
    assert kinds["tile"] == Name.Function, "behind a schedule's end a field's name is a name"


def test_what_is_no_program_is_an_error() -> None:
    assert errors("kernel f(x: f32[M]) -> f32[M] { return x @ x }") == ["@"]


def test_pages_are_coloured() -> None:
    page = highlight("kernel f", UcuLexer(), HtmlFormatter())
    assert '<span class="kd">kernel</span>' in page


def test_an_installed_package_registers_it() -> None:
    (entry,) = [e for e in entry_points(group="pygments.lexers") if e.name == "ucu"] or [None]
    if entry is None:
        pytest.skip("this checkout was installed before it had the entry point")
    assert entry.load() is UcuLexer

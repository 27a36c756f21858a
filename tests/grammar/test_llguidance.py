"""Constrained decoding takes the very grammar file: what it lets a model write, and what not.

It is a little wider than the parser: keywords may stand where names may, and what brackets
hold is told apart by the tree builder alone.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from llguidance import LLMatcher, LLTokenizer
from syntax_strategies import trees

from ucutlass.grammar.format import format_file
from ucutlass.grammar.parse import grammar_text, parse
from ucutlass.grammar.problems import SyntaxProblem
from ucutlass.grammar.syntax import File

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = sorted([*(ROOT / "examples" / "tasks").glob("*.ucu"), *(ROOT / "examples").glob("*.ucu")])


@cache
def _tokenizer() -> LLTokenizer:
    return LLTokenizer("byte")


@cache
def _grammar() -> str:
    return str(LLMatcher.grammar_from_lark(grammar_text()))


def _accepts(text: str) -> bool:
    matcher = LLMatcher(_tokenizer(), _grammar())
    assert not matcher.is_error(), matcher.get_error()
    tokens = _tokenizer().tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def test_every_task_of_the_trials_is_there() -> None:
    assert {p.name[5] for p in PROGRAMS if p.name.startswith("task_")} == set("abcdefghijklmnopqrst")


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_programs_are_accepted(path: Path) -> None:
    text = path.read_text()
    parse(text)
    assert _accepts(text)


KERNEL = "kernel f(x: f32[M, K], w: f32[N, K]) -> f32[M, N] { %s }"


@pytest.mark.parametrize(
    "text",
    [
        "kernel f(x: f32[M]) { return x }",
        "kernel f(x) -> f32 { return x }",
        "kernel f(x: [M]) -> f32 { return x }",
        "kernel f[K](x: f32) -> f32 { return x }",
        "kernel f(x: f32[(H, G)]) -> f32 { return x }",
        "kernel f(x: f32[M) -> f32 { return x }",
        "def f(x): return x",
        "fn f(x: f32) = x",
        "fn f(x) { schedule sm90a {} }",
        "// a comment\nfn f(x) = x",
        KERNEL % "return x @ w",
        KERNEL % "return x.T",
        KERNEL % "return a, b",
        KERNEL % "return a < b < c",
        KERNEL % "return (x)(w)",
        KERNEL % "return f(x)(w)",
        KERNEL % "return sum[](x)",
        KERNEL % "return x[L = 1:2]",
        KERNEL % "return x & w",
        KERNEL % "return 'text'",
        KERNEL % "return +x",
        KERNEL % "x + 1",
        KERNEL % "f(x)",
        KERNEL % "return x; return w",
        KERNEL % "return x schedule sm90a { tile: 1x1 }",
        KERNEL % "return x schedule sm90a { tile = 1x1 }",
        KERNEL % "return x schedule sm90a { tile 1x1 | 2x2 }",
        KERNEL % "return x schedule sm90a { tile 1x1, stages 2 }",
        KERNEL % "return x schedule sm90a { stream_k }",
        KERNEL % "return x schedule sm90a for { }",
        KERNEL % "return x schedule sm90a for h y { }",
        KERNEL % "return x schedule sm90a when M > 1 for h { }",
        (KERNEL % "return x")[:-1],
    ],
)
def test_broken_programs_are_rejected(text: str) -> None:
    assert not _accepts(text)
    with pytest.raises(SyntaxProblem):
        parse(text)


@given(trees)
@settings(max_examples=40)
def test_every_canonical_text_is_accepted(tree: File) -> None:
    assert _accepts(format_file(tree))

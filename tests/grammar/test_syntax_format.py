"""The canonical text: by construct, as a whole, and as a property of every tree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from syntax_strategies import trees
from test_syntax_trees import COMMENTED

from ucutlass.grammar.format import COLUMNS, format_file
from ucutlass.grammar.parse import parse
from ucutlass.grammar.syntax import File

PROGRAMS = sorted((Path(__file__).parent.parent.parent / "examples" / "tasks").glob("*.ucu"))


def _canonical(source: str) -> str:
    return format_file(parse(source))


@pytest.mark.parametrize(
    ("loose", "canonical"),
    [
        ("((a+b))+(c)", "a + b + c"),
        ("a+(b+c)", "a + (b + c)"),
        ("(a*b)/c", "a * b / c"),
        ("a*(b/c)", "a * (b / c)"),
        ("(a**b)**c", "(a ** b) ** c"),
        ("a**(b**c)", "a ** b ** c"),
        ("a**(-b)", "a ** -b"),
        ("(-a)**b", "(-a) ** b"),
        ("-(a**b)", "-a ** b"),
        ("-(a*b)", "-(a * b)"),
        ("(-a)*b", "-a * b"),
        ("-(-a)", "--a"),
        ("not(not a)", "not not a"),
        ("(not a)==b", "(not a) == b"),
        ("not(a==b)", "not a == b"),
        ("(a<b)==(c<d)", "(a < b) == (c < d)"),
        ("(a or b)and c", "(a or b) and c"),
        ("(a and b)or c", "a and b or c"),
        ("(f)", "f"),
        ("(a+b)[M=J]", "(a + b)[M = J]"),
        ("(x)[M=J]", "x[M = J]"),
        ("(x[M=J])[J=L]", "x[M = J][J = L]"),
        ("(-x)[M=J]", "(-x)[M = J]"),
        ("x[ 2 * H=P+1-R,W = 2*(Q+1) ]", "x[2*H = P + 1 - R, W = 2*(Q + 1)]"),
        ("x[L=where(index(L)*2<3,L,0)]", "x[L = where(index(L) * 2 < 3, L, 0)]"),
        ("max[ R=3 ,S = a+1](x,)", "max[R=3, S=a+1](x)"),
        ("cumsum[L](x,exclusive = true)", "cumsum[L](x, exclusive=true)"),
        ("1e-5+.5+1.+007", "1e-5 + .5 + 1. + 007"),
    ],
)
def test_expression(loose: str, canonical: str) -> None:
    assert _canonical(f"fn f() = {loose}") == f"fn f() = {canonical}\n"


@pytest.mark.parametrize(
    ("loose", "canonical"),
    [
        ("f32[ M,K = 1024,]", "f32[M, K=1024]"),
        ("f16[( H G = 2 * D )]", "f16[(H G=2*D)]"),
        ("i32[E + 1]", "i32[E+1]"),
        ("f32[P = ( H + 1 ) // 2]", "f32[P=(H+1)//2]"),
        ("f32[(H)]", "f32[H]"),
        ("f32[ ]", "f32[]"),
        ("f32[M=(a or b)]", "f32[M=(a or b)]"),
    ],
)
def test_type(loose: str, canonical: str) -> None:
    assert (
        _canonical(f"kernel k(x:{loose})->{loose}{{}}") == f"kernel k(x: {canonical}) -> {canonical} {{}}\n"
    )


def test_file(golden: Callable[[str, str], None]) -> None:
    source = """
kernel few(x:f32[M])->(y:f32[M],z:f32[]){a:[M]=x b,c=two(a) require M%8==0 return y=b,z=c
schedule sm90a when M<=64 or M==128{tile 64x64x64 or 128x64x64 stages auto}schedule sm80{}}
fn square(x)=x*x
fn rms[D](x){m=mean[D](square(x))return x*rsqrt(m)}
pipeline many(first_parameter: bf16[B, (H G=4), L, D], second_parameter: bf16[B, H, S, D], third: f32)
-> f32[M] {
schedule sm90a { tile 128x256x64 or 256x128x64
cluster 2x1 stages 3 warps cooperative raster along_m swizzle 2 or 4 }
schedule sm90a for h when M<=64{tile 64x64x64}schedule sm80 for  return{}
schedule sm90a for return
y{ # why
tile 64x64x64}
}
kernel results(x: f32) ->
(first_result: bf16[B, (H G), L, D], second_result: bf16[B, (H G), L, D], third: f32[B]) {}
"""
    golden("format_file.ucu", _canonical(source))


def test_comments(golden: Callable[[str, str], None]) -> None:
    golden("format_comments.ucu", _canonical(COMMENTED))


def test_heads_break_just_beyond_the_last_column() -> None:
    def head(width: int) -> str:
        rest = "kernel k(x: f32[M], ) -> f32 {"
        return _canonical(f"kernel k(x: f32[M], {'y' * (width - len(rest) - 5)}: f32) -> f32 {{ return x }}")

    assert len(head(COLUMNS).splitlines()[0]) == COLUMNS
    assert head(COLUMNS + 1).splitlines()[0] == "kernel k("


def test_an_empty_file_is_empty() -> None:
    assert _canonical(" \n") == ""


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_the_programs_are_canonical(path: Path) -> None:
    text = path.read_text()
    assert _canonical(text) == text


@given(trees)
@settings(max_examples=100)
def test_every_tree_survives_the_round_trip(tree: File) -> None:
    text = format_file(tree)
    assert parse(text) == tree
    assert _canonical(text) == text

"""What each construct of the language becomes."""

from __future__ import annotations

import logging

import lark
import pytest
from syntax_dump import dump

from ucutlass.grammar.parse import grammar_text, parse
from ucutlass.grammar.syntax import (
    Bind,
    Call,
    Comments,
    File,
    Function,
    Index,
    Number,
    Program,
    Return,
    Schedule,
    Span,
)
from ucutlass.grammar.tokens import Scanner


def _function(source: str) -> Function:
    (item,) = parse(source).items
    assert isinstance(item, Function)
    return item


def _program(source: str) -> Program:
    (item,) = parse(source).items
    assert isinstance(item, Program)
    return item


def _expression(text: str) -> str:
    (statement,) = _function(f"fn f(x) = {text}").body
    assert isinstance(statement, Return)
    return dump(statement.items[0].value)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a + b + c", "Binary(+, Binary(+, a, b), c)"),
        ("a - (b - c)", "Binary(-, a, Binary(-, b, c))"),
        ("a + b * c", "Binary(+, a, Binary(*, b, c))"),
        ("a / b // c % d", "Binary(%, Binary(//, Binary(/, a, b), c), d)"),
        ("a ** b ** c", "Binary(**, a, Binary(**, b, c))"),
        ("-a ** b", "Unary(-, Binary(**, a, b))"),
        ("a ** -b", "Binary(**, a, Unary(-, b))"),
        ("-a * b", "Binary(*, Unary(-, a), b)"),
        ("not a == b", "Unary(not, Binary(==, a, b))"),
        ("a or b and not c", "Binary(or, a, Binary(and, b, Unary(not, c)))"),
        ("a + 1 <= b", "Binary(<=, Binary(+, a, 1), b)"),
        ("(a < b) == c", "Binary(==, Binary(<, a, b), c)"),
        ("- - a", "Unary(-, Unary(-, a))"),
        ("-inf", "Unary(-, inf)"),
        ("true", "true"),
        ("f()", "Call(f, None, ())"),
        (
            "where(c, a, -inf)",
            "Call(where, None, (Argument(c, None), Argument(a, None), Argument(Unary(-, inf), None)))",
        ),
        ("sum[K](x)", "Call(sum, (BracketName(K, None)), (Argument(x, None)))"),
        ("max[R=3, S](x)", "Call(max, (BracketName(R, 3), BracketName(S, None)), (Argument(x, None)))"),
        (
            "cumsum[L](x, exclusive=true)",
            "Call(cumsum, (BracketName(L, None)), (Argument(x, None), Argument(true, exclusive)))",
        ),
        ("torch.cumsum(x)", "Call(torch.cumsum, None, (Argument(x, None)))"),
        ("x[M = J]", "Index(x, (IndexItem(M, J)))"),
        (
            "x[2*H = P + 1 - R, W = Q]",
            "Index(x, (IndexItem(Binary(*, 2, H), Binary(-, Binary(+, P, 1), R)), IndexItem(W, Q)))",
        ),
        ("x[A = B][B = C]", "Index(Index(x, (IndexItem(A, B))), (IndexItem(B, C)))"),
        ("f[K](x)[M = J]", "Index(Call(f, (BracketName(K, None)), (Argument(x, None))), (IndexItem(M, J)))"),
        ("(a + b)[M = J]", "Index(Binary(+, a, b), (IndexItem(M, J)))"),
        (
            "w[E = segment(T, offsets)]",
            "Index(w, (IndexItem(E, Call(segment, None, (Argument(T, None), Argument(offsets, None))))))",
        ),
        ("f(x,)", "Call(f, None, (Argument(x, None)))"),
    ],
)
def test_expression(text: str, tree: str) -> None:
    assert _expression(text) == tree


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("007", 7),
        ("9223372036854775807", 2**63 - 1),
        ("1.5", 1.5),
        ("1.", 1.0),
        (".5", 0.5),
        ("1e-5", 1e-5),
        ("2.5E+3", 2500.0),
    ],
)
def test_number(text: str, value: float) -> None:
    (statement,) = _function(f"fn f() = {text}").body
    assert isinstance(statement, Return)
    number = statement.items[0].value
    assert isinstance(number, Number)
    assert (number.value, type(number.value), number.text) == (value, type(value), text)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("f32", "TypeExpr(f32, None)"),
        ("f32[]", "TypeExpr(f32, ())"),
        ("bf16[M, K=1024]", "TypeExpr(bf16, (NamedAxis(M, None), NamedAxis(K, 1024)))"),
        (
            "f16[(H G=4), L]",
            "TypeExpr(f16, (CompositeAxis((NamedAxis(H, None), NamedAxis(G, 4))), NamedAxis(L, None)))",
        ),
        (
            "f16[(A=2*B C D)]",
            "TypeExpr(f16, (CompositeAxis((NamedAxis(A, Binary(*, 2, B)), "
            "NamedAxis(C, None), NamedAxis(D, None)))))",
        ),
        ("f32[K, 1, 1]", "TypeExpr(f32, (NamedAxis(K, None), NamelessAxis(1), NamelessAxis(1)))"),
        ("i32[E+1]", "TypeExpr(i32, (NamelessAxis(Binary(+, E, 1))))"),
        ("f32[(H + 1)//2]", "TypeExpr(f32, (NamelessAxis(Binary(//, Binary(+, H, 1), 2))))"),
        ("f32[(H)]", "TypeExpr(f32, (NamedAxis(H, None)))"),
        (
            "f32[P=2*H, Q=(W + 1)//2]",
            "TypeExpr(f32, (NamedAxis(P, Binary(*, 2, H)), NamedAxis(Q, Binary(//, Binary(+, W, 1), 2))))",
        ),
    ],
)
def test_type(text: str, tree: str) -> None:
    program = _program(f"kernel k(x: {text}) -> {text} {{}}")
    assert dump(program.params[0].type) == tree
    assert [(r.name, dump(r.type)) for r in program.results] == [(None, tree)]


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a = x", "Bind((Target(a, None)), x)"),
        ("h: bf16[T] = x", "Bind((Target(h, TypeExpr(bf16, (NamedAxis(T, None))))), x)"),
        ("w: [N, R=3] = x", "Bind((Target(w, TypeExpr(None, (NamedAxis(N, None), NamedAxis(R, 3))))), x)"),
        (
            "a, b: f32[] = f(x)",
            "Bind((Target(a, None), Target(b, TypeExpr(f32, ()))), Call(f, None, (Argument(x, None))))",
        ),
        ("return x", "Return((ReturnItem(x, None)))"),
        ("return y = a, peak = b", "Return((ReturnItem(a, y), ReturnItem(b, peak)))"),
        (
            "require K % 8 == 0 and M > 1",
            "Require(Binary(and, Binary(==, Binary(%, K, 8), 0), Binary(>, M, 1)))",
        ),
        ("schedule sm90a {}", "Schedule(sm90a, None, ())"),
        (
            "schedule sm90a when M <= 64 or N == 1 { tile 64x64x128 or 128x128x64 "
            "stages 4 or auto cluster 2x1 }",
            "Schedule(sm90a, Binary(or, Binary(<=, M, 64), Binary(==, N, 1)), ("
            "Field(tile, (ShapeValue((64, 64, 128)), ShapeValue((128, 128, 64)))), "
            "Field(stages, (IntValue(4), WordValue(auto))), Field(cluster, (ShapeValue((2, 1))))))",
        ),
        ("schedule sm90a for h {}", "Schedule(sm90a, None, (), StageName(h, False))"),
        ("schedule sm90a for return {}", "Schedule(sm90a, None, (), StageName(None, True))"),
        (
            "schedule sm90a for return y when M > 1 { stages 4 }",
            "Schedule(sm90a, Binary(>, M, 1), (Field(stages, (IntValue(4)))), StageName(y, True))",
        ),
    ],
)
def test_statement(text: str, tree: str) -> None:
    (statement,) = _program(f"kernel k(x: f32) -> f32 {{ {text} }}").body
    assert dump(statement) == tree


def test_statements_need_no_separators() -> None:
    program = _program(
        "pipeline p(x: f32) -> f32 { a = x b, c = f(a) h: f32[] = b return h d = -c require M > 1 }"
    )
    assert [type(s).__name__ for s in program.body] == ["Bind", "Bind", "Bind", "Return", "Bind", "Require"]
    assert program.kind == "pipeline"


def test_a_stages_span_is_its_name() -> None:
    source = "pipeline p(x: f32) -> f32 { schedule sm90a for h {} schedule sm80 for return  y when M > 1 {} }"
    stages = [s.stage for s in _program(source).body if isinstance(s, Schedule)]
    assert [source[s.span.start : s.span.end] for s in stages if s] == ["h", "return  y"]


def test_named_results() -> None:
    program = _program("kernel k(x: f32[M], y: f32,) -> (a: f32[M], b: f32[]) { return a = x, b = y }")
    assert [(r.name, dump(r.type)) for r in program.results] == [
        ("a", "TypeExpr(f32, (NamedAxis(M, None)))"),
        ("b", "TypeExpr(f32, ())"),
    ]
    assert [p.name for p in program.params] == ["x", "y"]


def test_functions() -> None:
    block = _function("fn f[D, E](x, y) { d = x return d }")
    assert (block.dims, block.params, block.is_block) == (("D", "E"), ("x", "y"), True)
    assert list(map(dump, block.body)) == ["Bind((Target(d, None)), x)", "Return((ReturnItem(d, None)))"]
    short = _function("fn f(x) = x * 2")
    assert (short.dims, short.params, short.is_block) == ((), ("x",), False)
    assert list(map(dump, short.body)) == ["Return((ReturnItem(Binary(*, x, 2), None)))"]


def test_nothing_is_a_file() -> None:
    assert parse("") == File(())
    assert parse(" \r\n\t# only this\n") == File((), ("only this",))


def test_spans_hold_the_text_of_their_node() -> None:
    source = (
        "kernel k(x: f32[M=2*N]) -> f32 {\n"
        "  y = (x + 1)[M = J] * f[K=3](x)\n"
        "  schedule sm90a { tile 2x3 or 4 }\n}"
    )

    def text(span: Span) -> str:
        return source[span.start : span.end]

    program = _program(source)
    bind, schedule = program.body
    assert isinstance(bind, Bind)
    assert isinstance(schedule, Schedule)
    assert text(program.span) == source
    assert text(program.name_span) == "k"
    assert text(program.params[0].span) == "x: f32[M=2*N]"
    assert text(program.params[0].type.span) == "f32[M=2*N]"
    assert text(bind.span) == "y = (x + 1)[M = J] * f[K=3](x)"
    product = bind.value
    index, call = product.left, product.right  # type: ignore[union-attr]
    assert isinstance(index, Index)
    assert isinstance(call, Call)
    assert text(product.span) == "(x + 1)[M = J] * f[K=3](x)"
    assert (text(index.span), text(index.base.span), text(index.items[0].span)) == (
        "(x + 1)[M = J]",
        "(x + 1)",
        "M = J",
    )
    assert (text(call.span), text(call.callee_span)) == ("f[K=3](x)", "f")
    assert call.brackets is not None
    assert text(call.brackets[0].span) == "K=3"
    assert text(schedule.arch_span) == "sm90a"
    assert text(schedule.span) == "schedule sm90a { tile 2x3 or 4 }"
    field = schedule.fields[0]
    assert (text(field.span), text(field.name_span), text(field.alternatives[1].span)) == (
        "tile 2x3 or 4",
        "tile",
        "4",
    )


COMMENTED = """\
# head
kernel k(x: f32[M],  # the input
         y: f32) -> f32[M] {  # opened
  # own line
  a = x +  # inside
    y  # behind a
  schedule sm90a {  # in schedule
    # before tile
    tile 1x1  # behind tile
    # last in schedule
  }  # behind schedule
  # last in kernel
}  # behind kernel
fn f(x) = x  # behind f
#
#  last in file
"""


def test_comments_go_to_their_nodes() -> None:
    file = parse(COMMENTED)
    kernel, function = file.items
    assert isinstance(kernel, Program)
    assert kernel.comments == Comments(("head", "the input"), "behind kernel")
    bind, schedule = kernel.body
    assert bind.comments == Comments(("opened", "own line", "inside"), "behind a")
    assert isinstance(schedule, Schedule)
    assert schedule.comments == Comments((), "behind schedule")
    assert schedule.fields[0].comments == Comments(("in schedule", "before tile"), "behind tile")
    assert schedule.closing == ("last in schedule",)
    assert kernel.closing == ("last in kernel",)
    assert function.comments == Comments((), "behind f")
    assert file.closing == ("", " last in file")


def test_the_grammar_has_no_conflicts(caplog: pytest.LogCaptureFixture) -> None:
    logger = lark.logger
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(caplog.handler)
    try:
        lark.Lark(grammar_text(), parser="lalr", lexer="basic", start=["start", "item"], debug=True)
    finally:
        logger.removeHandler(caplog.handler)
        logger.setLevel(level)
    assert [r.getMessage() for r in caplog.records] == []


def test_the_scanner_agrees_with_larks_own_lexer() -> None:
    parser = lark.Lark(grammar_text(), parser="lalr", lexer="basic", start=["start", "item"])
    source = (
        COMMENTED + " 1 1. .5 1e-5 128x256x64 a<=b>=c==d!=e//f**-g torch.relu(x) torchx x1 or orx inf not\n"
    )
    ours = [(t.type, str(t), t.start_pos) for t in Scanner(parser.terminals).scan(source).tokens]
    assert ours == [(t.type, str(t), t.start_pos) for t in parser.lex(source)]

"""Every slip has its code, its place, its words and its fix."""

from __future__ import annotations

import pytest

from ucutlass.grammar.parse import decode, parse
from ucutlass.grammar.problems import (
    MAX_CHARACTERS,
    MAX_DEPTH,
    MAX_NESTING,
    MAX_PROBLEMS,
    Problem,
    SyntaxProblem,
)

KERNEL = "kernel f(x: f32[M, K], w: f32[N, K]) -> f32[M, N] { %s }"
SCHEDULE = KERNEL % "return x schedule sm90a { %s }"


def problems(source: str) -> tuple[Problem, ...]:
    with pytest.raises(SyntaxProblem) as caught:
        parse(source)
    return caught.value.problems


CASES = [
    # code, source, the text at fault, a part of the message, a part of the hint
    ("UC0001", KERNEL % "return x @ w", "@", "unexpected character `@`", "dot[K](a, b)"),
    ("UC0001", KERNEL % "return x.T", ".", "unexpected character", "no transpose"),
    ("UC0001", KERNEL % "return x.shape", ".", "unexpected character", "size(D)"),
    ("UC0001", KERNEL % "return x.relu()", ".", "unexpected character", "relu(x)"),
    ("UC0001", KERNEL % "return torch.nn.relu(x)", ".", "unexpected character", "one name"),
    ("UC0001", SCHEDULE % "tile 1x1 | 2x2", "|", "unexpected character", "write `or`"),
    ("UC0001", KERNEL % "return a && b", "&&", "unexpected character", "write `and`"),
    ("UC0001", KERNEL % "return 'text'", "'text'", "unexpected character", "no strings"),
    ("UC0001", KERNEL % "return x;", ";", "unexpected character", "no separator"),
    ("UC0001", KERNEL % "return a\u00a0+ b", "\u00a0", "U+00A0", "non-breaking"),
    ("UC0001", KERNEL % "return \u03b1", "\u03b1", "unexpected character", "letters a-z"),
    ("UC0002", "kernel f(x: f32[M]) { return x }", "{", "expected `->`", "-> f32[M, N]"),
    ("UC0002", "kernel f(x) -> f32 {}", ")", "expected `:`", "give the parameter a type"),
    ("UC0002", "kernel f(x: [M]) -> f32 {}", "[", "expected a name", "element type"),
    ("UC0002", "kernel f(x: f32 = 3) -> f32 {}", "=", "unexpected `=`", "no defaults"),
    ("UC0002", "kernel f[K](x: f32) -> f32 {}", "[", "expected `(`", "only a `fn`"),
    ("UC0002", "kernel f(x: f32) -> (f32, f32) {}", ",", "expected `:`", "several results are named"),
    ("UC0002", "kernel f(x: f32[M]) -> f32[P] where P == M {}", "where", "expected `{`", "`require"),
    ("UC0002", "kernel f(x: f32[(H, G)]) -> f32 {}", ",", "unexpected `,`", "side by side"),
    ("UC0002", "kernel f(x: f32[(G=4)]) -> f32 {}", ")", "unexpected `)`", "two names"),
    ("UC0002", "kernel f(x: f32[M:N]) -> f32 {}", ":", "unexpected `:`", "no slices"),
    ("UC0002", "kernel when(x: f32) -> f32 {}", "when", "expected a name", "reserved"),
    ("UC0002", "def f(x): return x", "def", "`kernel`, `pipeline` or `fn`", "`fn`"),
    ("UC0002", "// comment\nfn f(x) = x", "//", "unexpected `//`", "`#`"),
    ("UC0002", "fn f(x: f32) = x", ":", "unexpected `:`", "no types"),
    ("UC0002", "fn f(x) -> f32 = x", "->", "expected `=` or `{`", "no result type"),
    ("UC0002", "fn f(x) { y = x schedule sm90a {} }", "schedule", "unexpected `schedule`", "kernels"),
    ("UC0002", "fn f(x) = x y", "y", "unexpected `y`", None),
    ("UC0002", KERNEL % "return", "}", "expected an expression", None),
    ("UC0002", KERNEL % "return x, w", ",", "unexpected `,`", "return y = e1, peak = e2"),
    ("UC0002", KERNEL % "a, b = x, w", ",", "unexpected `,`", "a, b = two_results(x)"),
    ("UC0002", KERNEL % "return a < b < c", "<", "unexpected `<`", "a < b and b < c"),
    ("UC0002", KERNEL % "return x if c else y", "c", "unexpected `c`", "where(condition, a, b)"),
    ("UC0002", KERNEL % "for i in x", "for", "unexpected `for`", "no loops"),
    ("UC0002", KERNEL % "y = [x for i in y]", "[", "expected an expression", None),
    ("UC0002", KERNEL % "return x for i in w", "for", "unexpected `for`", "no loops"),
    ("UC0002", KERNEL % "while x", "x", "unexpected `x`", "no loops"),
    ("UC0002", KERNEL % "for = x", "for", "unexpected `for`", "no loops"),
    ("UC0002", "kernel f(for: f32) -> f32 {}", "for", "unexpected `for`", "reserved"),
    ("UC0002", KERNEL % "schedule sm90a for {}", "{", "expected", "`for return`"),
    ("UC0002", KERNEL % "schedule for h {}", "for", "expected a name", "schedule sm90a"),
    ("UC0002", KERNEL % "schedule sm90a h {}", "h", "unexpected `h`", "behind `for`"),
    ("UC0002", KERNEL % "schedule sm90a when M == 4 for h {}", "for", "unexpected `for`", "before"),
    ("UC0002", KERNEL % "let y = x", "y", "unexpected `y`", "leave it out"),
    ("UC0002", KERNEL % "y += x", "+", "unexpected `+`", "bound once"),
    ("UC0002", KERNEL % "y = x // a remark here", "here", "unexpected `here`", "`#`"),
    ("UC0002", KERNEL % "print(x)", "(", "unexpected `(`", "name = expression"),
    ("UC0002", KERNEL % "return +x", "+", "unexpected `+`", "leave it out"),
    ("UC0002", KERNEL % "return f(x)(w)", "(", "unexpected `(`", "only a name can be called"),
    ("UC0002", KERNEL % "return x[L = 1:2]", ":", "unexpected `:`", "no slices"),
    ("UC0002", KERNEL % "return sum[](x)", "]", "expected an expression", "sum[K](x)"),
    ("UC0002", KERNEL % "require M = 4", "=", "unexpected `=`", "write `==`"),
    ("UC0002", KERNEL % "schedule sm90a when M = 4 {}", "=", "unexpected `=`", "write `==`"),
    ("UC0002", KERNEL % "schedule { tile 1x1 }", "{", "expected a name", "schedule sm90a"),
    ("UC0002", SCHEDULE % "tile: 1x1", ":", "expected a value", "leave it out"),
    ("UC0002", SCHEDULE % "tile = 1x1", "=", "expected a value", "leave it out"),
    ("UC0002", SCHEDULE % "tile (1, 1)", "(", "expected a value", "128x256x64"),
    ("UC0002", SCHEDULE % "tile 1x1, stages 2", ",", "unexpected `,`", "no separator"),
    ("UC0002", SCHEDULE % "stream_k", "}", "expected a value", "`auto`"),
    ("UC0002", SCHEDULE % "stream_k true", "true", "expected a value", "`auto`"),
    ("UC0002", "fn f(x) =", "", "the text ends where an expression is due", None),
    ("UC0002", "fn f(x) =\nfn g(x) = x", "", "`fn` begins a new item where an expression is due", None),
    ("UC0003", "kernel f(x: f32[M) -> f32 {}", ")", "stands where `]` is due", "close the `[`"),
    ("UC0003", KERNEL[:-2], "{", "`{` is never closed", "add `}`"),
    ("UC0003", "fn f(x) = x }", "}", "`}` closes nothing", "remove it"),
    ("UC0004", KERNEL % "return 9223372036854775808", "9223372036854775808", "does not fit i64", "largest"),
    ("UC0004", KERNEL % "return 1e999", "1e999", "does not fit f64", "inf"),
    (
        "UC0004",
        SCHEDULE % "tile 1x99999999999999999999",
        "1x99999999999999999999",
        "does not fit i64",
        "largest",
    ),
    ("UC0008", KERNEL % "return 2H", "2H", "the number `2` runs into `H`", "2 * H"),
    ("UC0008", KERNEL % "return 1.2.3", "1.2.3", "the number `1.2` runs into `.3`", None),
    ("UC0009", KERNEL % "return dot(x, w)[K]", "K", "an index without `=`", "dot[..](..)"),
    ("UC0009", KERNEL % "return x[M]", "M", "an index without `=`", "x[M = J]"),
    ("UC0010", KERNEL % "return sum[2*K](x)", "2*K", "name dimensions", "sum[K](x)"),
]


@pytest.mark.parametrize(("code", "source", "at", "message", "hint"), CASES)
def test_slip(code: str, source: str, at: str, message: str, hint: str | None) -> None:
    (problem,) = problems(source)
    assert problem.code == code
    assert source[problem.span.start : problem.span.end] == at
    assert message in problem.message
    if hint is None:
        assert problem.hint is None
    else:
        assert problem.hint is not None
        assert hint in problem.hint


def test_problems_of_several_items_are_all_found_in_order() -> None:
    source = "fn a(x) = x +\nkernel b(x: f32) { return x }\nfn good(x) = x\nfn c(x) = x @ x\nfn d(x) = (x"
    found = problems(source)
    assert [p.code for p in found] == ["UC0002", "UC0002", "UC0001", "UC0003"]
    assert [p.span.start for p in found] == sorted(p.span.start for p in found)


def test_an_item_that_is_not_closed_does_not_swallow_the_next() -> None:
    (problem,) = problems("kernel a(x: f32) -> f32 { return x\nfn good(x) = x")
    assert (problem.code, problem.span.start) == ("UC0003", 24)


def test_a_mistake_before_an_open_bracket_is_reported_with_it() -> None:
    assert [p.code for p in problems("kernel a(x) -> f32 { return (x }")] == ["UC0002", "UC0003"]


def test_problems_are_bounded() -> None:
    assert len(problems("@ a " * 100)) == MAX_PROBLEMS
    assert len(problems("fn " * 100)) == MAX_PROBLEMS


def test_nesting_is_bounded() -> None:
    def nested(levels: int) -> str:
        return "fn f(x) = " + "(" * levels + "x" + ")" * levels

    parse(nested(MAX_NESTING))
    (problem,) = problems(nested(MAX_NESTING + 1))
    assert problem.code == "UC0005"
    assert str(MAX_NESTING) in problem.message


@pytest.mark.parametrize(
    "text", ["-" * 5000 + "x", "x" + "+x" * 5000, "x" + "**x" * 5000, "x" + "[A=B]" * 5000]
)
def test_the_depth_of_the_tree_is_bounded(text: str) -> None:
    (problem,) = problems("fn f(x) = " + text)
    assert problem.code == "UC0005"
    assert str(MAX_DEPTH) in problem.message


def test_a_sum_of_many_terms_is_within_the_depth() -> None:
    parse("fn f(x) = x" + " + x" * 80)


def test_size_is_bounded() -> None:
    parse("#" * MAX_CHARACTERS)
    (problem,) = problems("#" * (MAX_CHARACTERS + 1))
    assert problem.code == "UC0006"
    assert str(MAX_CHARACTERS) in problem.message


@pytest.mark.parametrize(
    ("data", "start", "message"),
    [
        (b"fn f\xff", 4, "byte 4 (0xFF) is not UTF-8"),
        ("é".encode() + b"\xc3", 1, "byte 2 (0xC3) is not UTF-8"),
        (b"\xef\xbb\xbf" + "éé".encode() + b"\xff", 2, "byte 7 (0xFF) is not UTF-8"),
        (b"fn\0", 2, "NUL"),
    ],
)
def test_what_is_not_text(data: bytes, start: int, message: str) -> None:
    with pytest.raises(SyntaxProblem) as caught:
        decode(data)
    (problem,) = caught.value.problems
    assert (problem.code, problem.span.start) == ("UC0007", start)
    assert message in problem.message


def test_decode_drops_a_byte_order_mark() -> None:
    assert decode(b"\xef\xbb\xbffn f(x) = x") == "fn f(x) = x"


def test_parse_refuses_nul_too() -> None:
    (problem,) = problems("# \0")
    assert problem.code == "UC0007"


def test_long_digits_with_leading_zeros_are_a_number() -> None:
    parse("fn f() = " + "0" * 10000 + "1")

"""docs/diagnostics.md and the messages of all codes, made from the compiler's tables and the smallest programs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.check.limit_programs import CONDITIONS, ELEMENTS, LIMITS, MANY_ERRORS, READINGS
from tests.check.test_diagnostics import CHECKED, REFUSED, WARNED, attention
from tests.grammar.test_syntax_problems import CASES
from ucutlass import frontend, limits
from ucutlass.codes import CODES
from ucutlass.diagnostics import Diagnostic, ProgramError, render
from ucutlass.grammar import problems
from ucutlass.grammar.parse import SyntaxProblem, decode
from ucutlass.kernels.families import RULES
from ucutlass.shapes import ShapeError, complete, parse_sizes

PAGE = Path(__file__).parent.parent / "docs" / "diagnostics.md"

SYNTAX = {
    problems.UNEXPECTED_CHARACTER: "a character that no program holds",
    problems.UNEXPECTED_TOKEN: "a word or sign where the grammar has none",
    problems.UNBALANCED_BRACKETS: "brackets that do not pair",
    problems.NUMBER_TOO_LARGE: "a number beyond i64 or f64",
    problems.NESTED_TOO_DEEP: f"more than {problems.MAX_NESTING} brackets open, or an expression of "
    f"more than {problems.MAX_DEPTH} levels",
    problems.FILE_TOO_LARGE: f"a text of more than {problems.MAX_CHARACTERS} characters",
    problems.NOT_TEXT: "bytes that are not UTF-8 text",
    problems.MALFORMED_NUMBER: "a number that runs into what follows",
    problems.MALFORMED_INDEX: "an index that is not an equation",
    problems.MALFORMED_CONSUMED: "brackets before arguments that hold more than names",
}
"""Codes of `ucutlass.grammar.problems`."""

UNREACHED = {
    "UC0431": "not earned by a program: the planner chooses the routes itself",
    "UC0709": CONDITIONS[2],
    "UC0719": "not earned by a known program: a net below the other limits",
}
"""Codes that no program earns alone, and why they stand in the tables."""

UNREACHED_MESSAGES = {"UC0709": limits.CONDITIONS.message(0), "UC0719": limits.PROCESSOR_SECONDS.message(0)}


PACKED = (
    "kernel k(q: bf16[L, D], k: bf16[S=L, D], v: bf16[S, D], o: i32[E]) -> bf16[L, D] {\n"
    "  own = segment(L, o) == segment(S, o)\n"
    "  return dot[S](bf16(softmax[S](where(own, dot[D](q, k), -inf))), v)\n}\n"
)


@dataclass(frozen=True, slots=True)
class Case:
    """A program, and the extents for which it is planned (none: it is only checked)."""

    text: str
    sizes: str = ""


PRODUCT_SIZES = "M=1024,N=1024,K=1024"


def gemm(
    fields: str,
    sizes: str = PRODUCT_SIZES,
    *,
    arch: str = "sm90a",
    x: str = "bf16[M, K]",
    w: str = "bf16[N, K]",
    out: str = "bf16[M, N]",
    over: str = "K",
) -> Case:
    """A plain product with one schedule block."""
    body = f"  return dot[{over}](x, w)\n  schedule {arch} {{ {fields} }}\n"
    return Case(f"kernel k(x: {x}, w: {w}) -> {out} {{\n{body}}}\n", sizes)


_VECTOR = "M=1024,N=1,K=1024"

RULED = {
    "UC0410": gemm("warps pingpong", arch="sm80"),
    "UC0411": gemm(
        "warps pingpong",
        "M=256,N=256,K=256,A=4,B=4",
        x="f32[A, M, B, K]",
        w="f32[A, N, B, K]",
        out="f32[A, B, M, N]",
    ),
    "UC0412": gemm("warps multistage  math simt"),
    "UC0413": gemm(
        "warps pingpong", "M=1024,N=1024,K=64,L=64", x="bf16[M, K, L]", w="bf16[K, N, L]", over="K, L"
    ),
    "UC0415": gemm(
        "warps pingpong",
        "M=1024,N=1024,K=1024,B=8",
        x="bf16[M, K, B]",
        w="bf16[B, N, K]",
        out="bf16[B, M, N]",
    ),
    "UC0416": gemm("warps pingpong", x="e4m3[K, M]", w="e4m3[N, K]"),
    "UC0417": Case(
        "kernel k(x: f32[M, K], w: f32[K, N]) -> f32[M, N] {\n"
        "  return dot[K](tf32(x), tf32(w))\n  schedule sm90a { warps pingpong  tile 64x48x32  swap no }\n}\n",
        "M=1024,N=1024,K=1024",
    ),
    "UC0418": gemm("warps pingpong", "M=1024,N=1024,K=1023"),
    "UC0419": gemm("warps pingpong  tile 32x128x64"),
    "UC0420": gemm("warps pingpong  tile 64x12x64"),
    "UC0421": gemm("warps pingpong  tile 64x128x24"),
    "UC0423": gemm("warps pingpong  tile 128x256x64"),
    "UC0424": gemm("warps pingpong  tile 64x128x64  cluster 3x1"),
    "UC0425": gemm("warps pingpong  tile 64x24x64  cluster 2x1"),
    "UC0426": gemm("warps pingpong  tile 64x256x64  stages 12"),
    "UC0427": gemm("warps pingpong  split_k 2"),
    "UC0428": gemm("warps cooperative  tile 128x128x64  split_k 32"),
    "UC0439": gemm("warps gemv  tile 128x128x64"),
    "UC0430": gemm("warps pingpong", "M=4294967296,N=64,K=64"),
    "UC0432": gemm("swizzle 3"),
    "UC0433": Case(
        "kernel k(x: bf16[B, M, K], w: bf16[B, N, K]) -> f32[M, N] {\n"
        "  return sum[B](dot[K](x, w))\n  schedule sm90a { warps pingpong }\n}\n",
        "B=4,M=512,N=512,K=512",
    ),
    "UC0434": Case(
        "kernel k(x: bf16[M, K], w: bf16[N, K]) -> f32[M] {\n"
        "  return sum[N](dot[K](x, w))\n  schedule sm90a { warps cooperative  split_k 2  partials cluster }\n}\n",
        "M=512,N=512,K=4096",
    ),
    "UC0435": Case(
        "kernel k(x: bf16[M, K], w: bf16[N, K]) -> f32[M, N] {\n"
        "  return softmax[N](dot[K](x, w))\n  schedule sm90a { tile 128x128x64  cluster 1x2 }\n}\n",
        "M=512,N=512,K=512",
    ),
    "UC0440": gemm("warps multistage  tile 128x128x16"),
    "UC0441": gemm("warps multistage  tile 128x128x32  warp_tile 48x64"),
    "UC0442": gemm("warps multistage  tile 192x64x32  warp_tile 64x64"),
    "UC0443": gemm("warps multistage  tile 128x256x32  warp_tile 64x128"),
    "UC0450": gemm("warps gemv"),
    "UC0451": gemm("warps gemv  rows 3", _VECTOR),
    "UC0452": gemm("warps gemv  threads 33", _VECTOR),
    "UC0453": gemm("warps gemv  rows 16  columns 8", _VECTOR),
    "UC0454": gemm("warps gemv  rows 64  columns 8  threads 16", _VECTOR, arch="sm89", x="bf16[K, M]"),
}
"""For each legality rule the smallest schedule that breaks it."""

_PLAIN = """\
kernel k(x: bf16[M, K=64], w: bf16[N, K]) -> bf16[M, N] {
  require M % 8 == 0
  return dot[K](x, w)
}
"""

_ROW = "kernel k(x: f32[L]) -> f32[L] {\n  return relu(x)\n}\n"

_PAIR = (
    "kernel k(x: bf16[T, D], w: bf16[F, D], u: bf16[F, D]) -> bf16[T, F] {\n"
    "  return silu(dot[D](x, w)) * dot[D](x, u)\n  schedule sm90a { tile 128x256x64 }\n}\n"
)


def _softmax(fields: str) -> Case:
    body = f"  return softmax[D](x)\n  schedule sm90a {{ {fields} }}\n"
    return Case(f"kernel k(x: bf16[T, D]) -> bf16[T, D] {{\n{body}}}\n", "T=512,D=4096")


def _attention(fields: str) -> Case:
    text = attention("bf16").replace("\n}", f"\n  schedule sm90a {{ {fields} }}\n}}")
    return Case(text, "H=8,L=1024,S=1024,D=64")


def _convolution(fields: str, x: str = "f16[N, L, C]", w: str = "f16[K, R=3, C]", over: str = "R, C") -> Case:
    result = "f16[N, P=L, K]" if "K" in w else "f16[N, P=L, C]"
    body = f"  return dot[{over}](x[L = P + R - 1], w)\n  schedule sm90a {{ {fields} }}\n"
    sizes = "N=32,L=1024,C=64" + (",K=64" if "K" in w else "")
    return Case(f"kernel k(x: {x}, w: {w}) -> {result} {{\n{body}}}\n", sizes)


SHAPES = {
    "UC0332": Case(_PAIR, "T=1024,D=1024,F=1024"),
    "UC0333": Case(
        "kernel k(x: bf16[M, (G J=64)], w: bf16[(P Q=64), (G J)], s: f32[Q, G]) -> bf16[M, (P Q)] {\n"
        "  return sum[G](dot[J](x, w) * s)\n}\n",
        "M=64,G=4,P=2",
    ),
    "UC0334": Case(
        "kernel k(x: bf16[M, K], w: s4[N, K]) -> bf16[M, N] {\n  return dot[K](x, bf16(w))\n}\n",
        "M=64,N=64,K=33",
    ),
    "UC0460": Case(_ROW, "L=10000000000"),
    "UC0465": Case(
        attention("bf16").replace("\n}", "\n  schedule sm80 { stages auto }\n}"), "H=8,L=1024,S=1024,D=64"
    ),
    "UC0466": Case(attention("bf16"), "H=8,L=1024,S=1024,D=512"),
    "UC0467": Case(attention("bf16"), "H=8,L=1024,S=1024,D=100"),
    "UC0468": Case(PACKED, "L=1024,D=64,E=1"),
    "UC0470": _softmax("vector 16"),
    "UC0471": _softmax("threads 96"),
    "UC0472": _softmax("keep registers  threads 32  items 1  cluster 1x1"),
    "UC0473": _softmax("cluster 1x3"),
    "UC0475": _attention("tile 128x100x64"),
    "UC0476": _attention("stages 9"),
    "UC0477": _attention("split_k stream"),
    "UC0480": _convolution("warps multistage", w="f16[R=3, C]", over="R"),
    "UC0481": _convolution("tile 96x64x64"),
    "UC0482": _convolution("tile 128x256x64  blocks 3"),
    "UC0483": _convolution("threads 48", w="f16[R=3, C]", over="R"),
    "UC0601": Case(_PLAIN, "M=64"),
    "UC0602": Case(_PLAIN, "M=64,N=64,K=32"),
    "UC0603": Case(_PLAIN, "M=60,N=64"),
    "UC0710": Case(*ELEMENTS),
    "UC0711": Case(READINGS, "M=64"),
}

_SIZES = {"UC0305": "A=4,B=4,C=4,D=4,U=4,V=4,W=4,K=4,N=4", "UC0314": "M=4,N=4"}
"""Extents for the checker's and the recogniser's programs that need some."""

_DEEP = "fn f(x) = " + "(" * (problems.MAX_NESTING + 1) + "x" + ")" * (problems.MAX_NESTING + 1) + "\n"
_LONG = {
    problems.NESTED_TOO_DEEP: (_DEEP, f"`fn f(x) = (((..(x)..)))` with {problems.MAX_NESTING + 1} brackets."),
    problems.FILE_TOO_LARGE: (
        "#" * (problems.MAX_CHARACTERS + 1),
        f"{problems.MAX_CHARACTERS + 1} characters.",
    ),
    **{code: (text, words) for code, (text, words) in LIMITS.items() if words},
    "UC0701": MANY_ERRORS,
}
"""Texts too long to print, and what to print for them."""

_SECTIONS = (
    ("Syntax", "UC00", "The text is not a program."),
    ("Names", "UC01", "A name is unknown, taken or misused."),
    ("Types and dimensions", "UC02", "A value does not fit."),
    ("What one kernel can do", "UC03", "The program has a meaning but is not one launch of a kernel family."),
    (
        "Schedules",
        "UC04",
        "UC0401 to UC0406 judge the text of a block; the others are the legality rules, which judge a schedule "
        "for given extents (up to UC0454 of GEMM, some of convolutions too).",
    ),
    ("Pipelines", "UC05", "A stage does not fit."),
    ("Extents of a call", "UC06", "The extents given with `-s` do not fit."),
    (
        "Limits of the compiler",
        "UC07",
        "The limits, in `ucutlass/limits.py`, keep `check`, `fmt`, `explain`, `emit` and `sol` within two seconds "
        "and 500 MB for every text. UC0006 and UC0107 are limits too. The messages give the numbers.",
    ),
    (
        "Warnings",
        "UC08",
        "The program is legal, and something in it cannot be meant. With `ucc check --strict` the exit status is 1.",
    ),
)


def meanings() -> dict[str, str]:
    """Every code with its line, in order."""
    texts: dict[str, dict[str, None]] = {}
    for rule in RULES:
        texts.setdefault(rule.code, {})[rule.text] = None
    rules = {code: "; ".join(lines) for code, lines in texts.items()}
    return dict(sorted({**SYNTAX, **CODES, **rules}.items()))


def program(code: str) -> Case | None:
    """The smallest program of a code that can be printed."""
    if code in LIMITS and not LIMITS[code][1]:
        return Case(LIMITS[code][0])
    if code in CHECKED or code in REFUSED or code in WARNED:
        return Case((CHECKED | REFUSED | WARNED)[code], _SIZES.get(code, ""))
    if code in (rest := RULED | SHAPES):
        return rest[code]
    return next((Case(source) for listed, source, *_ in CASES if listed == code), None)


def message(code: str) -> str:
    """What `ucc` prints for the program of a code."""
    if code == problems.NOT_TEXT:
        return _caught(code, lambda: decode(b"\xff"), "\ufffd")
    if code in _LONG and code not in UNREACHED:
        text = _LONG[code][0]
        return _caught(code, lambda: frontend.read_text(text, "k.ucu"), text).partition("\n")[0]
    case = program(code)
    assert case is not None, f"{code} has no program"
    return _caught(code, lambda: _compile(case), case.text)


def _compile(case: Case) -> None:
    checked = frontend.read_text(case.text, "k.ucu")
    if checked.warnings:
        raise checked.error(*checked.warnings)
    kernel = frontend.kernel(checked)
    frontend.pattern(checked, kernel)
    sizes = complete(kernel, parse_sizes([case.sizes]))
    for arch in dict.fromkeys(b.arch for b in kernel.schedules) or ("sm90a",):
        frontend.plan_kernel(checked, kernel, sizes, arch)


def _caught(code: str, action: Callable[[], object], source: str) -> str:
    """The words of the error that `action` raises, those of other codes left out."""
    try:
        action()
    except ProgramError as error:
        return render(_only(code, error.diagnostics), source, "k.ucu")
    except SyntaxProblem as error:
        diagnostics = tuple(Diagnostic(p.code, p.message, p.span, p.hint) for p in error.problems)
        return render(_only(code, diagnostics), source, "k.ucu")
    except ShapeError as error:
        assert error.code == code, f"{code}: {error}"
        return f"ucc: {error}"
    raise AssertionError(f"the program of {code} is accepted")


def _only(code: str, diagnostics: tuple[Diagnostic, ...]) -> tuple[Diagnostic, ...]:
    of_code = tuple(d for d in diagnostics if d.code == code)
    assert of_code, f"{code} is not among {[d.code for d in diagnostics]}"
    return of_code


@dataclass(frozen=True, slots=True)
class Base:
    """A kernel `k`, of which the page shows only what a program changes."""

    parameters: dict[str, str]
    result: str
    sizes: str = ""
    body: str = "return dot[K](x, w)"

    def __str__(self) -> str:
        parameters = ", ".join(f"{name}: {type}" for name, type in self.parameters.items())
        return f"kernel k({parameters}) -> {self.result} {{ {self.body} }}"


_OPERANDS = {"x": "bf16[M, K]", "w": "bf16[N, K]"}
_CHECKED_BASE = Base(_OPERANDS, "f32[M, N]")

_KERNEL = re.compile(r"kernel [fk]\((.*)\) -> (.*?) \{\s(.*)\s\}\n?", re.DOTALL)


_SYNTAX_BASE = Base({"x": "f32[M, K]", "w": "f32[N, K]"}, "f32[M, N]")
_ATTENTION_BASE = Base(
    {"q": "bf16[H, L, D]", "k": "bf16[H, S, D]", "v": "bf16[H, S, D]"},
    "bf16[H, L, D]",
    "H=8,L=1024,S=1024,D=64",
    "return dot[S](bf16(softmax[S](dot[D](q, k))), v)",
)
_ATTENTION_CODES = {"UC0320", "UC0321", "UC0322"}


def _base(code: str) -> Base | None:
    """Returns the kernel of which the page shows the program of a code as a change."""
    if code in SYNTAX:
        return _SYNTAX_BASE
    if code in _ATTENTION_CODES:
        return _ATTENTION_BASE
    return _CHECKED_BASE if code in CHECKED or code in REFUSED or code in WARNED else None


def _changes(text: str, base: Base) -> str | None:
    """Returns in a line what a kernel's text changes of the base, None where it is another kernel."""
    if not (matched := _KERNEL.fullmatch(text)):
        return None
    listed, result, body = matched.groups()
    parameters = dict(re.findall(r"(\w+): (\w+\[[^]]*\]|\w+)", listed))
    if list(parameters)[: len(base.parameters)] != list(base.parameters):
        return None
    changes = [f"{n}: {t}" for n, t in parameters.items() if base.parameters.get(n) != t]
    changes += [f"-> {result}"] if result != base.result else []
    statements = [line.strip() for line in body.split("\n")]
    statements = statements[1:] if statements[0] == base.body else statements
    line = "  ".join((*changes, *([] if statements == [base.body] else statements)))
    return line if len(line) <= 140 else None


_SHORTENED = {
    "UC0107": "fn f0(x) = x * x + 1  fn f1(x) = f0(f0(f0(x)))  .. up to f7, called with a dot",
    "UC0707": "A schedule with 4 tiles x 4 clusters x 4 swizzles x 5 stages",
    "UC0711": "s1 = s0[M = M - 1] + s0[M = M - 2]  s2 = s1[M = M - 1] + s1[M = M - 2]  .. up to s16",
}
"""What the page shows for programs that are repetitive."""


def page() -> str:
    """Returns the whole page."""
    parts = [
        "# Diagnostics\n",
        "This page lists every code with its meaning and the smallest program that raises it. "
        "`pytest tests/test_docs.py --update-golden` writes it from the compiler's tables.\n",
        "`ucc` prints `file:line:column: severity: message [code]`, the source line, notes on other places, and "
        "a hint, which says what to write and names the nearest legal schedule. `--json` prints the same with "
        "character offsets. The exit status is 1, for UC06xx 2, for UC08xx 0.\n",
        "A line without `kernel` and `pipeline` is what a program changes (types of parameters, `->` result, "
        f"statements) of `{_CHECKED_BASE}` or, for attention, of `{_ATTENTION_BASE}`. A lone schedule or lone "
        "extents belong to the program above.\n",
    ]
    for title, prefix, about in _SECTIONS:
        parts.append(f"## {title}\n\n{about}\n")
        above = Case("")
        for code, text in meanings().items():
            if code.startswith(prefix):
                parts.append(_entry(code, text, above))
                above = _without_schedule(code) or above
    return "\n".join(parts)


def messages() -> str:
    """Returns what `ucc` says of the program of each code, a line each, without places, notes and hints."""
    lines: list[str] = []
    for code in meanings():
        if code not in UNREACHED:
            lines += (f"{code} {line}" for line in _message_lines(code, message(code)))
        elif code in UNREACHED_MESSAGES:
            lines.append(f"{code} error: {UNREACHED_MESSAGES[code]}")
    return "\n".join((*lines, ""))


def _entry(code: str, text: str, above: Case) -> str:
    head = f"### {code}\n\n{_capitalised(text)}.\n"
    if "UC0410" <= code < "UC05" or (code in _LONG and code not in UNREACHED):
        return head  # the meaning says all
    if code in UNREACHED:
        return head + f"\n{_capitalised(UNREACHED[code].removesuffix('.'))}.\n"
    return "\n".join((head, *(f"    {line}".rstrip() for line in _example(code, above)), ""))


def _capitalised(text: str) -> str:
    """Returns the text with a capital first letter, unless its first word is an identifier such as f32."""
    return text if re.match(r"\w*[\d_]", text) else text[0].upper() + text[1:]


_BLOCK = re.compile(r"^  (schedule .*\})\n", re.MULTILINE)


def _without_schedule(code: str) -> Case | None:
    """Returns the program of a code without its schedule block, None where the page does not show all of it."""
    case = None if code in _LONG or code in _SHORTENED else program(code)
    base = _base(code)
    if case is None or (base and _changes(case.text, base) is not None):
        return None
    return Case(_BLOCK.sub("", case.text), case.sizes)


def _example(code: str, above: Case) -> list[str]:
    """Returns the lines that show the program of a code and its extents, without what the page says once.

    Args:
        code: The code.
        above: The last program that the section showed whole, without its schedule.
    """
    if code in _LONG or code in _SHORTENED:
        return [_SHORTENED[code] if code in _SHORTENED else _LONG[code][1].replace("`", "")]
    case = program(code)
    if case is None:
        return ["The byte FF."]
    block = _BLOCK.search(case.text)
    base, bare = _base(code), _without_schedule(code)
    if base and (line := _changes(case.text, base)) is not None:
        shown, base_sizes = [line] if line else [], base.sizes
    elif bare and bare.text == above.text and (block or case.sizes):
        shown, base_sizes = ([block[1]] if block else []), above.sizes
    else:
        shown, base_sizes = case.text.rstrip().split("\n"), ""
    return [*shown, *([f"-s {case.sizes}"] if case.sizes not in ("", base_sizes) else [])]


def _message_lines(code: str, rendered: str) -> list[str]:
    """Returns the messages of rendered diagnostics, without place, code, notes, source lines and hints."""
    lines: list[str] = []
    for line in rendered.split("\n"):
        if line.startswith("ucc: "):
            lines.append(f"error: {line.removeprefix('ucc: ').removesuffix(f' [{code}]')}")
        elif matched := re.match(r"k\.ucu:\d+:\d+: ((?:error|warning): .*)$", line):
            lines.append(matched[1].removesuffix(f" [{code}]"))
    return lines

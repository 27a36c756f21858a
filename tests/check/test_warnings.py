"""Warnings: what earns each, that sound programs earn none, and that a condition called impossible is."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.check.test_diagnostics import MM, WARNED, kernel
from tests.renaming import corpus
from tests.typed import check
from ucutlass import frontend, ir, loads
from ucutlass.check.conditions import impossible
from ucutlass.cli import main
from ucutlass.diagnostics import ProgramError
from ucutlass.shapes import holds


def codes(text: str) -> list[str]:
    return [d.code for d in frontend.read_text(text).warnings]


@pytest.mark.parametrize("code", WARNED)
def test_each_is_earned_alone(code: str) -> None:
    warnings = frontend.read_text(WARNED[code]).warnings
    assert [d.code for d in warnings] == [code]
    assert all(d.severity == "warning" and d.hint for d in warnings)


@pytest.mark.parametrize("where", corpus())
def test_programs_of_the_repository_earn_none(where: str) -> None:
    assert codes(corpus()[where]) == []


ALSO = {
    "a parameter of a function": ("UC0801", "fn f(x, y) = x\n" + kernel("return f(dot[K](x, w), 1)")),
    "a binding of a function": ("UC0802", "fn f(x) { a = x  return x }\n" + kernel("return f(dot[K](x, w))")),
    "a function that an unused one calls": ("UC0803", "fn f(x) = x\nfn g(x) = f(x)\n" + kernel(MM)),
    "bounds that exclude": ("UC0804", kernel(MM + " schedule sm90a when M > 64 and M <= 64 { stages 3 }")),
    "a remainder": ("UC0804", kernel(MM + " schedule sm90a when M % 8 == 8 { stages 3 }")),
    "a sum": ("UC0804", kernel(MM + " schedule sm90a when M + N < 2 { stages 3 }")),
    "a requirement": ("UC0804", kernel("require M > 64 " + MM + " schedule sm90a when M < 8 { stages 3 }")),
    "a fixed extent": (
        "UC0804",
        kernel(MM + " schedule sm90a when M > 64 { stages 3 }", params="x: bf16[M=8, K], w: bf16[N, K]"),
    ),
    "written otherwise": (
        "UC0805",
        kernel(MM + " schedule sm90a when M <= 64 { stages 3 } schedule sm90a when 129 > 2*M { stages 4 }"),
    ),
    "two that leave nothing": (
        "UC0805",
        kernel(
            MM + " schedule sm90a when M < 64 { stages 3 } schedule sm90a when M >= 64 { stages 4 }"
            " schedule sm90a { stages 5 }"
        ),
    ),
    "of a stage": (
        "UC0804",
        "pipeline p(x: f32[M]) -> f32[M] { h: f32[M] = x * 2  return h + 1\n"
        "schedule sm90a for h when M < 1 { vector 4 } }",
    ),
    "a requirement after another": ("UC0806", kernel("require M > 64 require M > 8 " + MM)),
    "requirements that exclude": ("UC0807", kernel("require M > 64 require M < 8 " + MM)),
    "a division by zero": ("UC0807", kernel("require not M % 0 == 0 " + MM)),
    "a block twice": ("UC0808", kernel(MM + " schedule sm90a { stages 3 } schedule sm90a { stages 3 }")),
}


@pytest.mark.parametrize("name", ALSO)
def test_brothers(name: str) -> None:
    code, text = ALSO[name]
    assert set(codes(text)) == {code}


FINE = {
    "extents alone": "kernel k(x: f32[L], like: f32[P]) -> f32[P] { return x[L = P] }",
    "alternatives": kernel(MM + " schedule sm90a { stages 3 } schedule sm90a { stages 4 }"),
    "guards that overlap": kernel(
        MM + " schedule sm90a when M <= 64 { stages 3 } schedule sm90a when N <= 64 { stages 4 }"
        " schedule sm90a { stages 5 }"
    ),
    "of two architectures": kernel(MM + " schedule sm90a { stages 3 } schedule sm80 { stages 3 }"),
    "a library": "fn f(x) = x\n",
}


@pytest.mark.parametrize("name", FINE)
def test_what_may_be_meant_earns_none(name: str) -> None:
    assert codes(FINE[name]) == []


# --- conditions -----------------------------------------------------------------------

TERMS = st.recursive(
    st.one_of(st.integers(0, 6).map(str), st.sampled_from(("M", "N", "K"))),
    lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from(("+", "-", "*", "//", "%")), inner),
    max_leaves=3,
)
COMPARED = st.builds("{} {} {}".format, TERMS, st.sampled_from(("<", "<=", ">", ">=", "==", "!=")), TERMS)
CONDITIONS = st.recursive(
    COMPARED,
    lambda inner: st.one_of(
        st.builds("({}) {} ({})".format, inner, st.sampled_from(("and", "or")), inner),
        st.builds("not ({})".format, inner),
    ),
    max_leaves=4,
)


@settings(max_examples=400)
@given(st.lists(CONDITIONS, min_size=1, max_size=2), st.lists(CONDITIONS, max_size=2))
def test_what_is_called_impossible_holds_for_no_extents(held: list[str], refuted: list[str]) -> None:
    text = "kernel k(x: f32[M, N, K]) -> f32[M, N, K] {\n"
    text += "".join(f"  require {c}\n" for c in held + refuted) + "  return x + 1\n}\n"
    try:
        (program,) = check(text).programs
    except ProgramError:
        return  # such as a condition of numbers alone
    assert isinstance(program, ir.Kernel)
    met, unmet = program.requires[: len(held)], program.requires[len(held) :]
    if not impossible(met, unmet, program.dims):
        return
    for sizes in itertools.product((1, 2, 3, 5, 6, 7, 12, 64), repeat=3):
        known = dict(zip(program.dims, sizes, strict=True))
        assert not (all(holds(c, known) for c in met) and not any(holds(c, known) for c in unmet)), known


# --- where they are told --------------------------------------------------------------

TOLD = kernel("a = 1  return dot[K](x, w)", result="bf16[M, N]")


@pytest.mark.parametrize(("options", "status"), [((), 0), (("--strict",), 1), (("--json",), 0)])
def test_check_tells_them_and_fails_if_strict(tmp_path: Path, options: tuple[str, ...], status: int) -> None:
    path = tmp_path / "k.ucu"
    path.write_text(TOLD)
    result = CliRunner().invoke(main, ["check", str(path), *options])
    assert result.exit_code == status, result.output
    if "--json" in options:
        (row,) = json.loads(result.stdout)["diagnostics"]
        assert row["code"] == "UC0802" and row["severity"] == "warning"
    else:
        assert f"{path}:2:3: warning: nothing uses a [UC0802]" in result.stderr


@pytest.mark.parametrize("command", ["explain", "emit", "sol"])
def test_other_commands_tell_them_once_on_stderr(tmp_path: Path, command: str) -> None:
    path = tmp_path / "k.ucu"
    path.write_text(TOLD)
    result = CliRunner().invoke(main, [command, str(path), "-s", "M=128,N=128,K=128", "--json"])
    assert result.exit_code == 0, result.output
    assert result.stderr.count("UC0802") == 1
    json.loads(result.stdout)


def test_an_illegal_block_behind_a_condition_that_never_holds_is_told() -> None:
    text = kernel(MM + " schedule sm90a when M < 1 { warps pingpong  tile 64x12x64 }")
    checked = frontend.read_text(text)
    program = frontend.kernel(checked)
    diagnostics = frontend.check_schedules(checked, program)
    assert "UC0420" in [d.code for d in diagnostics]
    assert all(d.severity == "warning" and "checked for" in d.notes[-1][0] for d in diagnostics)
    assert [d.code for d in checked.warnings] == ["UC0804"]


def test_python_has_them_as_an_attribute(recwarn: pytest.WarningsRecorder) -> None:
    assert [d.code for d in loads(TOLD).warnings] == ["UC0802"]
    assert not recwarn.list

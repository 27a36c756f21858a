"""Literals, comments and sources."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucutlass.emit.text import PLACEHOLDER, comment, finish, literal, product
from ucutlass.kernels.arithmetic import ScalarKind

# --- text ------------------------------------------------------------------------


@given(st.floats(width=32))
def test_float_literals_are_read_back(value: float) -> None:
    text = literal(value, "f32")
    special = {"NAN": math.nan, "INFINITY": math.inf, "-INFINITY": -math.inf}
    number = text.removesuffix("f")
    back = (
        special[text]
        if text in special
        else float.fromhex(number)
        if "x" in text
        else float(np.float32(number))
    )
    assert np.float32(back).view(np.uint32) == np.float32(value).view(np.uint32) or math.isnan(value)


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (-0.0, "f32", "-0.0f"),
        (1e-5, "f32", "1e-05f"),
        (1e300, "f32", "INFINITY"),
        (2, "f32", "2.0f"),
        (-(2**31), "i32", "int32_t(-2147483647 - 1)"),
        (7, "i64", "int64_t(7)"),
        (True, "bool", "true"),
    ],
)
def test_literals(value: float, kind: ScalarKind, text: str) -> None:
    assert literal(value, kind) == text


def test_a_literal_outside_its_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="2147483648 is no i32"):
        literal(2**31, "i32")


@given(st.text())
def test_nothing_escapes_a_comment(text: str) -> None:
    lines = comment(text).split("\n")
    assert lines.pop() == ""
    for line in lines:
        assert line.startswith("//")
        assert line.isascii()
        assert line.isprintable()
        assert not any(mark in line for mark in ("*/", "/*", "??", "\\"))


def test_hostile_comments() -> None:
    assert comment("a \\\nint x; *//* ??/\n") == "// a <U+005C>\n// int x; * // * ? ?/\n"


def test_a_source_is_named_by_its_code_alone() -> None:
    code = f"int {PLACEHOLDER}();\n"
    one, other = finish(code, "header\n@ENTRY@", "sm_90a"), finish(code, "", "sm_90a")
    assert one.entry == other.entry
    assert one.entry != finish(code, "", "sm_80").entry
    assert len(one.entry) == len("ucc_") + 16
    assert one.code == other.code == other.text == f"int {one.entry}();\n"
    assert one.text == f"// header\n// @ENTRY@\n{one.code}"
    with pytest.raises(ValueError, match="names its entry nowhere"):
        finish("int main();", "", "sm_90a")


def test_products() -> None:
    assert product(()) == "1"
    assert product((0, 2)) == "e[0] * e[2]"

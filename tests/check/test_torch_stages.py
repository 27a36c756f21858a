"""Torch stages: what the table says of a function is what torch does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.typed import check
from ucutlass.diagnostics import ProgramError
from ucutlass.ir.elements import BOOL, E4M3, ELEMENTS, F16, F32, F64, I32, I64, S8, Element
from ucutlass.ir.extents import Combined, Extent, Fixed, Free, bare, difference, evaluate
from ucutlass.reference.interpreter import TORCH_FUNCTIONS
from ucutlass.torch_functions import TORCH_SIGNATURES, UnsupportedCall


def test_both_tables_have_the_same_functions() -> None:
    assert set(TORCH_SIGNATURES) == set(TORCH_FUNCTIONS)


KEYWORDS = st.dictionaries(
    st.sampled_from(("dim", "dims", "descending", "diagonal", "shifts", "axis_of")),
    st.one_of(st.integers(-3, 3), st.integers(-3, 3), st.booleans(), st.just(0.5)),
    max_size=2,
)
SHAPES = st.lists(st.integers(1, 3), max_size=3)


def performed(name: str, tensors: list[Any], keywords: dict[str, Any]) -> Any:
    """What torch gives; None where it takes none of this."""
    try:
        return TORCH_FUNCTIONS[name](*tensors, **keywords)
    except (RuntimeError, TypeError, IndexError):
        return None


@settings(max_examples=800)
@given(
    st.sampled_from(sorted(TORCH_SIGNATURES)),
    st.lists(SHAPES, min_size=1, max_size=2),
    st.sampled_from((F32, F32, F64, F16, S8, I32, I64, BOOL)),
    KEYWORDS,
)
def test_the_table_says_what_torch_does(
    name: str, shapes: list[list[int]], elem: Element, keywords: dict[str, Any]
) -> None:
    assume(len(shapes) == TORCH_SIGNATURES[name].tensors or max(shapes[-1], default=1) > 1)  # else a number
    tensors = [torch.eye(3).new_ones(s).to(getattr(torch, elem.torch)) for s in shapes]
    if name == "inverse" and shapes[0] and shapes[0][-2:-1] == shapes[0][-1:]:
        tensors[0] = torch.eye(shapes[0][-1]).expand(shapes[0]).to(tensors[0].dtype)
    found = performed(name, tensors, keywords)
    try:
        gives, shape = TORCH_SIGNATURES[name].result(
            [elem] * len(shapes), [tuple(map(Fixed, s)) for s in shapes], keywords
        )
    except UnsupportedCall as why:
        narrow = "takes no" in str(why)  # on a GPU torch takes fewer types than here
        bools = any(isinstance(v, bool) for v in keywords.values())  # torch takes some for a number
        assert found is None or found.numel() == 0 or narrow or bools, f"{why}, but torch gives {found}"
        return
    assert found is not None, f"torch.{name} takes none of {shapes} {elem.name} {keywords}"
    assert [None if e is None else evaluate(e, {}) for e in shape] == list(found.shape)
    assert found.dtype is getattr(torch, gives.torch)


LSTM = "x, s, s, a, b, c, d"


@pytest.mark.parametrize(
    ("params", "type_", "call", "refused"),
    [
        ("x: f32[M, N], i: i64[3, N], y: f32[3, N]", "f32[M, N]", "scatter(x, i, y, dim=0)", ""),
        ("x: f32[M, N], i: i64[4, N], y: f32[3, N]", "f32[M, N]", "scatter(x, i, y, dim=0)", "no longer"),
        ("x: f32[M, N], i: i32[3, N], y: f32[3, N]", "f32[M, N]", "scatter_add(x, i, y, dim=0)", "i64"),
        ("x: f32[M, N], i: i64[N], y: f32[3, N]", "f32[M, N]", "scatter_add(x, i, y, dim=0)", "axes"),
        ("", "f32[T, B, H]", f"lstm({LSTM}, layers=1)", ""),
        ("", "f32[1, B, H]", f"lstm({LSTM}, layers=1, gives=2)", ""),
        ("", "f32[T, B, H]", f"lstm({LSTM}, layers=3)", "12 weights"),
        ("", "f32[T, B, H]", f"lstm({LSTM}, layers=1, gives=3)", "results 0 to 2"),
    ],
)
def test_scattered_writes_and_recurrent_layers_have_their_types(
    params: str, type_: str, call: str, refused: str
) -> None:
    layer = "x: f32[T, B, C], s: f32[1, B, H], a: f32[G=4*H, C], b: f32[G, H], c: f32[G], d: f32[G]"
    text = stage(type_, call, params or layer)
    if not refused:
        check(text)
        return
    with pytest.raises(ProgramError) as caught:
        check(text)
    assert "UC0509" in {d.code for d in caught.value.diagnostics} and refused in str(caught.value)


def stage(type_: str, call: str, params: str = "x: f32[M, N], z: f32[4, A=8]") -> str:
    return f"pipeline p({params}) -> {type_} {{\n  h: {type_} = torch.{call}\n  return h\n}}\n"


@pytest.mark.parametrize(
    ("type_", "call", "code"),
    [
        ("f32[M, N]", "einsum(x)", "UC0508"),
        ("f32[M, N]", "sofmax(x, dim=1)", "UC0508"),
        ("f32[M, N]", "load(x)", "UC0508"),
        ("f32[M, N]", "softmax(x, axis_of=1)", "UC0509"),
        ("f32[M, N]", "relu()", "UC0509"),
        ("f32[M, N]", "relu(x, x)", "UC0509"),
        ("f32[M, N]", "softmax(x)", "UC0509"),
        ("f32[M, N]", "softmax(x, dim=2)", "UC0509"),
        ("f32[M, N]", "softmax(x, dim=-3)", "UC0509"),
        ("f32[M, N]", "softmax(x, dim=1.0)", "UC0509"),
        ("f32[M, N]", "sort(x, descending=1)", "UC0509"),
        ("f32[A]", "matmul(z, z)", "UC0509"),
        ("f32[A]", "inverse(z)", "UC0509"),
        ("f32[M]", "softmax(x, dim=1)", "UC0510"),
        ("f32[N, M]", "softmax(x, dim=1)", "UC0510"),
        ("f32[M, N, O=1]", "relu(x)", "UC0510"),
        ("i32[M, N]", "relu(x)", "UC0510"),
        ("f32[M, N]", "argsort(x, dim=1)", "UC0510"),
        ("f32[4, B=9]", "relu(z)", "UC0510"),
        ("f32[B=5]", "diag(z)", "UC0510"),
    ],
)
def test_a_stage_that_is_never_right_is_refused(type_: str, call: str, code: str) -> None:
    with pytest.raises(ProgramError) as caught:
        check(stage(type_, call))
    assert {d.code for d in caught.value.diagnostics} == {code}
    assert all(d.hint for d in caught.value.diagnostics)


@pytest.mark.parametrize(
    ("type_", "call"),
    [
        ("f32[M, N]", "softmax(x, dim=1)"),
        ("bf16[M, N]", "softmax(x, dim=-1)"),
        ("i64[M, N]", "argsort(x)"),
        ("i32[M, N]", "argsort(x, dim=0, descending=true)"),
        ("f32[M, B]", "relu(x)"),
        ("f32[4, B]", "relu(z)"),
        ("f32[D]", "diag(x, diagonal=1)"),
        ("f32[4]", "diag(z)"),
        ("f32[M, N]", "inverse(x)"),
    ],
)
def test_a_stage_that_may_be_right_is_not(type_: str, call: str) -> None:
    if "D]" in type_:
        type_ = type_.replace("D]", "D=M]")
    check(stage(type_, call))


def test_narrow_elements_are_only_moved() -> None:
    moving = {name for name, f in TORCH_SIGNATURES.items() if f.accepts(E4M3)}
    assert moving == {"diag", "flip", "roll"}
    assert not any(f.accepts(ELEMENTS["s4"]) for f in TORCH_SIGNATURES.values())


EXTENTS = st.recursive(
    st.one_of(st.integers(-3, 9).map(Fixed), st.sampled_from("MNK").map(Free)),
    lambda inner: st.builds(Combined, st.sampled_from(("+", "-", "*", "//", "%")), inner, inner),
    max_leaves=6,
)


@settings(max_examples=300)
@given(EXTENTS, EXTENTS, st.integers(-4, 4), st.lists(st.integers(1, 50), min_size=3, max_size=3))
def test_a_difference_is_one_at_every_call(a: Extent, b: Extent, n: int, sizes: list[int]) -> None:
    assert difference(a, a) in (0, None) and difference(Combined("+", a, Fixed(n)), a) in (n, None)
    known = dict(zip("MNK", sizes, strict=True))
    try:
        apart = evaluate(a, known) - evaluate(b, known)
    except ZeroDivisionError:
        return
    assert difference(a, b) in (apart, None), f"{bare(a)} and {bare(b)}"

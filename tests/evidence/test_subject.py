"""Digests: the same for the same thing, another for another thing."""

from __future__ import annotations

import dataclasses
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.typed import check
from ucutlass import ir
from ucutlass.frontend import read, read_text
from ucutlass.grammar.format import format_file
from ucutlass.grammar.parse import parse
from ucutlass.ir import elements
from ucutlass.ir.extents import Combined, Fixed, Free
from ucutlass.runtime import subject
from ucutlass.runtime.evidence import Machine
from ucutlass.runtime.subject import algorithm_digest, program_digest

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = sorted([*(ROOT / "examples").glob("*.ucu"), *(ROOT / "examples/tasks").glob("*.ucu")])

LINEAR = """
kernel linear(x: bf16[M, K], w: bf16[N, K], bias: bf16[N]) -> bf16[M, N] {
  a = dot[K](x, w)
  b = a + bias
  return gelu(b)
  schedule sm90a { tile 128x128x64 }
}
"""


def digest(text: str) -> str:
    (program,) = check(text).programs
    return algorithm_digest(program)


# --- what takes no part ----------------------------------------------------------


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_formatting_and_comments_take_no_part(path: Path) -> None:
    text = path.read_text()
    squeezed = "# another comment\n" + format_file(parse(text)) + "\n# end\n"
    ours = [algorithm_digest(p) for p in check(text).programs]
    assert [algorithm_digest(p) for p in check(squeezed).programs] == ours
    assert program_digest(text) != program_digest(squeezed)


SAME = {
    "no schedule": LINEAR.replace("  schedule sm90a { tile 128x128x64 }\n", ""),
    "another schedule": LINEAR.replace("tile 128x128x64", "warps pingpong tile 64x128x64 or 64x256x64"),
    "two schedules": LINEAR.replace("}\n}", "}\n  schedule sm80 { stages 3 }\n}"),
    "other names": """
kernel other(a: bf16[P, Q], b: bf16[R, Q], c: bf16[R]) -> bf16[P, R] {
  t = dot[Q](a, b)
  u = t + c
  return gelu(u)
}""",
    "one expression": """
kernel linear(x: bf16[M, K], w: bf16[N, K], bias: bf16[N]) -> bf16[M, N] {
  return gelu(dot[K](x, w) + bias)
}""",
    "a function": """
fn act(v) = gelu(v)
kernel linear(x: bf16[M, K], w: bf16[N, K], bias: bf16[N]) -> bf16[M, N] {
  return act(dot[K](x, w) + bias)
}""",
}


@pytest.mark.parametrize("what", SAME)
def test_the_same_computation(what: str) -> None:
    assert digest(SAME[what]) == digest(LINEAR)


# --- what does -------------------------------------------------------------------

OTHER = {
    "activation": LINEAR.replace("gelu(b)", "relu(b)"),
    "operand order": LINEAR.replace("a + bias", "bias + a"),
    "operator": LINEAR.replace("a + bias", "a - bias"),
    "constant": LINEAR.replace("a + bias", "a + 1.0"),
    "other constant": LINEAR.replace("a + bias", "a + 2.0"),
    "element": LINEAR.replace("bf16", "f16"),
    "result's element": LINEAR.replace("-> bf16", "-> f32"),
    "layout": LINEAR.replace("w: bf16[N, K]", "w: bf16[K, N]"),
    "bias along rows": LINEAR.replace("bias: bf16[N]", "bias: bf16[M]"),
    "fixed extent": LINEAR.replace("x: bf16[M, K]", "x: bf16[M, K=64]"),
    "other fixed extent": LINEAR.replace("x: bf16[M, K]", "x: bf16[M, K=128]"),
    "requirement": LINEAR.replace("  a = dot", "  require K % 8 == 0\n  a = dot"),
    "other requirement": LINEAR.replace("  a = dot", "  require K % 16 == 0\n  a = dot"),
    "parameter order": LINEAR.replace("w: bf16[N, K], bias: bf16[N]", "bias: bf16[N], w: bf16[N, K]"),
    "an unused parameter": LINEAR.replace("bias: bf16[N])", "bias: bf16[N], s: f32)"),
    "lane": LINEAR.replace("dot[K](x, w)", "dot[K](f16(x), f16(w))"),
}


def test_other_computations_are_all_apart() -> None:
    digests: dict[str, str] = {digest(LINEAR): "linear"}
    for what, text in OTHER.items():
        try:
            made = digest(text)
        except Exception as error:
            raise AssertionError(f"{what}: {error}") from error
        assert made not in digests, f"{what} is taken for {digests[made]}"
        digests[made] = what


def test_all_programs_of_the_project_are_apart() -> None:
    values: dict[str, str] = {}
    for path in PROGRAMS:
        for program in read(path).module.programs:
            values.setdefault(algorithm_digest(program), f"{path.name}:{program.name}")
    every = [f"{path.name}:{p.name}" for path in PROGRAMS for p in read(path).module.programs]
    # `three_pass` is `accurate` with another schedule; two tasks are examples under other names.
    assert set(every) - set(values.values()) == {
        "precision.ucu:three_pass",
        "task_r_embedding_scaled.ucu:embed",
        "task_t_avgpool_hardswish.ucu:avgpool_hardswish",
    }


# --- every attribute of every value ----------------------------------------------

X = ir.ParamValue(0, elements.BF16, ("M", "K"))
IDS = ir.ParamValue(1, elements.I64, ("M",))
AFFINE = ir.Affine((("M", 1), ("K", 2)), Fixed(3))
VALUES: tuple[ir.Value, ...] = (
    X,
    ir.Constant(1.0, elements.F32),
    ir.Size(Free("M"), elements.I64),
    ir.Coordinate("M", elements.I64, ("M",)),
    ir.Apply("add", (X, IDS), elements.F32, ("M", "K")),
    ir.Cast(X, elements.F16, ("M", "K")),
    ir.Dot(("K",), X, X, elements.BF16, "f32", elements.F32, ("M",)),
    ir.Reduce("sum", ("K",), X, elements.F32, ("M",)),
    ir.Softmax(("K",), X, False, elements.F32, ("M", "K")),
    ir.Scan("cumsum", "K", X, False, False, elements.F32, ("M", "K")),
    ir.Read(X, (ir.Position("K", 1, AFFINE),), 0.0, elements.BF16, ("M", "K")),
    ir.Gather(X, "K", IDS, elements.BF16, ("M",)),
    ir.Segment("M", IDS, elements.I64, ("M",)),
)


def kernel_of(value: ir.Value, **changes: Any) -> ir.Kernel:
    rows, columns = (ir.MemoryAxis((dim,), Free(dim)) for dim in "MK")
    tensor = ir.TensorType(elements.BF16, (rows, columns))
    ids = ir.TensorType(elements.I64, (rows,))
    plain = ir.Kernel(
        "k",
        {"M": Free("M"), "K": Free("K")},
        (ir.ParamDecl("x", tensor), ir.ParamDecl("ids", ids)),
        (ir.ResultDecl("", tensor, value),),
        (),
        (),
    )
    return replace(plain, **changes)


def others(value: Any) -> list[Any]:
    """Values unlike this one, for a field that holds it."""
    match value:
        case bool():
            return [not value]
        case int() | float():
            return [value + 1]
        case elements.Element():
            return [elements.F64]
        case Fixed() | Free() | Combined():
            return [Combined("+", value, Fixed(1)), Free("K"), Fixed(8)]
        case ir.Position():
            return [
                replace(value, dim="M"),
                replace(value, scale=2),
                replace(value, at=replace(AFFINE, terms=(("M", 1), ("K", 3)))),
                replace(value, at=replace(AFFINE, offset=Fixed(4))),
            ]
        case "M" | "K":
            return ["K" if value == "M" else "M"]
        case str():
            return [value + "x"]
        case tuple():
            changed = [(*value[:i], o, *value[i + 1 :]) for i, v in enumerate(value) for o in others(v)]
            return [*changed, ("M", "M", "M")] if all(isinstance(v, str) for v in value) else changed
        case _:
            return [ir.Constant(77.0, elements.F32)]


CHECKED_ALONE = frozenset({"span", "literal"})
"""What the checker reads and no meaning rests on: a checked constant has its element."""


def changes_of(value: ir.Value) -> list[tuple[str, ir.Value]]:
    return [
        (field.name, replace(value, **{field.name: other}))
        for field in dataclasses.fields(value)
        if field.name not in CHECKED_ALONE
        for other in others(getattr(value, field.name))
    ]


def test_every_kind_of_value_is_tried() -> None:
    assert {type(v) for v in VALUES} == set(ir.Value.__args__)


@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
def test_every_attribute_takes_part_but_the_place(value: ir.Value) -> None:
    ours = algorithm_digest(kernel_of(value))
    tried = set()
    for name, changed in changes_of(value):
        assert algorithm_digest(kernel_of(changed)) != ours, name
        tried.add(name)
    assert tried == {f.name for f in dataclasses.fields(value)} - CHECKED_ALONE
    moved = replace(value, span=ir.Span(5, 9))
    assert algorithm_digest(kernel_of(moved)) == ours


@pytest.mark.parametrize("number", [0.0, -0.0, 0, 1, 1.0, True, False, float("inf"), float("nan"), 2**80])
def test_constants_are_exact(number: float | int | bool) -> None:
    every = [0.0, -0.0, 0, 1, 1.0, True, False, float("inf"), float("nan"), 2**80, -(2**80), 1 + 2**-52]
    texts = [algorithm_digest(kernel_of(ir.Constant(n, elements.F32))) for n in every]
    assert len(set(texts)) == len(every)
    assert algorithm_digest(kernel_of(ir.Constant(number, elements.F32))) in texts


def test_sharing_takes_no_part_and_costs_nothing() -> None:
    """A chain of x + x, 2**4000 leaves as a tree: equal nodes once, and no recursion."""
    shared: ir.Value = X
    for _ in range(4000):
        shared = ir.Apply("add", (shared, shared), elements.F32, ("M", "K"))
    assert len(algorithm_digest(kernel_of(shared))) == 64
    twice = ir.Apply(
        "mul", (ir.Cast(X, elements.F32, X.dims), ir.Cast(X, elements.F32, X.dims)), elements.F32, X.dims
    )
    cast = ir.Cast(X, elements.F32, X.dims)
    once = ir.Apply("mul", (cast, cast), elements.F32, X.dims)
    assert algorithm_digest(kernel_of(twice)) == algorithm_digest(kernel_of(once))


def test_extents_and_layouts_take_part() -> None:
    one = kernel_of(X)
    assert algorithm_digest(replace(one, name="other")) == algorithm_digest(one)
    changed = [
        replace(one, dims={"M": Free("M"), "K": Fixed(8)}),
        replace(one, dims={"M": Free("M"), "K": Combined("*", Free("M"), Fixed(2))}),
        replace(one, dims={"M": Free("M"), "K": Combined("*", Fixed(2), Free("M"))}),
        replace(one, params=one.params[::-1]),
        replace(one, params=(*one.params, ir.ParamDecl("s", ir.ScalarType(elements.F32)))),
        replace(one, params=(*one.params, ir.ParamDecl("s", ir.ScalarType(elements.I64)))),
        replace(one, results=one.results * 2),
        replace(one, requires=(X,)),
    ]
    digests = {algorithm_digest(k) for k in (one, *changed)}
    assert len(digests) == len(changed) + 1


# --- random expressions ----------------------------------------------------------

leaves = st.sampled_from(["x", "y", "1.0", "0.5", "x", "y"])
expressions = st.recursive(
    leaves,
    lambda inner: (
        st.builds("({} {} {})".format, inner, st.sampled_from("+-*/"), inner)
        | st.builds("{}({})".format, st.sampled_from(["relu", "exp", "tanh", "abs"]), inner)
    ),
    max_leaves=8,
)


def _text(expression: str, dim: str = "M", *, note: str = "", schedule: str = "") -> str:
    return (
        f"{note}kernel k(x: f32[{dim}], y: f32[{dim}]) -> f32[{dim}] {{ "
        f"return {expression} + x*0.0 {schedule} }}"
    )


@given(expressions, expressions)
@settings(max_examples=150, deadline=None)
def test_equal_graphs_and_only_they_have_equal_digests(one: str, other: str) -> None:
    (a,), (b,) = (check(_text(e)).programs for e in (one, other))
    # Written out in full, a value shows neither spans nor which of its parts are shared.
    same = repr(a.results[0].value) == repr(b.results[0].value)
    assert (algorithm_digest(a) == algorithm_digest(b)) == same
    elsewhere = _text(one, "ROWS", note="# c\n", schedule="schedule sm80 { stages 3 }")
    assert digest(elsewhere) == algorithm_digest(a)


# --- subjects, files, harness, machines ------------------------------------------


def test_a_subject_of_plain_values(tmp_path: Path) -> None:
    checked = read_text(LINEAR)
    (program,) = checked.module.programs
    library = tmp_path / "kernel.so"
    library.write_bytes(b"\x7fELF one")
    facts: dict[str, Any] = {"arch": "sm90a", "compute_type": "bf16", "schedule": "tile 128x128x64"}
    one = subject.subject_of(program, LINEAR, (1, 2, 3), **facts, code="code", library=library)
    assert one.sizes == dict(zip(program.dims, (1, 2, 3), strict=True)) and one.kernel == "linear"
    assert (one.program, one.algorithm) == (program_digest(LINEAR), algorithm_digest(program))
    assert one.source == program_digest("code") and one.binary == subject.file_digest(library)
    library.write_bytes(b"\x7fELF two")
    assert subject.file_digest(library) != one.binary, "another artefact than was measured is not seen"
    bare = subject.subject_of(program, LINEAR, (1, 2, 3), **facts)
    assert (bare.source, bare.binary) == ("", "")
    with pytest.raises(ValueError):
        subject.subject_of(program, LINEAR, (1, 2), **facts)


def test_the_harness_is_the_code_wherever_it_lies(tmp_path: Path) -> None:
    ours = subject.harness_digest()
    copied = tmp_path / "site-packages" / "ucutlass"
    shutil.copytree(ROOT / "ucutlass", copied, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    assert not (copied / "runtime").is_symlink()
    assert subject.tree_digest(copied) == subject.tree_digest(ROOT / "ucutlass")
    (copied / "runtime" / "__pycache__").mkdir()
    (copied / "runtime" / "__pycache__" / "store.cpython-311.pyc").write_bytes(b"x")
    (copied / "py.typed").write_text("anything")
    (copied / "emit/templates.json").write_text("made at install")
    unchanged = subject.tree_digest(copied)
    assert unchanged == subject.tree_digest(ROOT / "ucutlass")
    assert subject.harness_digest() == ours


@pytest.mark.parametrize(
    "name",
    ["runtime/statistics.py", "emit/gemm/gemv.cu.j2", "runtime/native/launcher.c", "grammar/ucutlass.lark"],
)
def test_any_change_of_ours_is_another_harness(tmp_path: Path, name: str) -> None:
    copied = tmp_path / "ucutlass"
    shutil.copytree(ROOT / "ucutlass", copied, ignore=shutil.ignore_patterns("__pycache__"))
    before = subject.tree_digest(copied)
    (copied / name).write_bytes((copied / name).read_bytes() + b" ")
    changed = subject.tree_digest(copied)
    (copied / name).rename((copied / name).with_stem("renamed"))
    assert len({before, changed, subject.tree_digest(copied)}) == 3


RECORDED = {
    # As posted in nix-community/nixGL issues 121 and 186, and in NVIDIA's documentation of both flavours.
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  525.60.11  Release Build  "
    "(archlinux-builder@localhost)  \nGCC version:  gcc version 12.2.0 (GCC) \n": "525.60.11",
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  565.57.01  Release Build  "
    "(dvs-builder@U16-A24-9-2)  Thu Oct 10 12:15:00 UTC 2024\n": "565.57.01",
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57.02  Tue Jul 13 16:14:05 UTC 2021\n": "470.57.02",
    "something else\n": "",
}


@pytest.mark.parametrize("text", RECORDED)
def test_the_drivers_version(tmp_path: Path, text: str) -> None:
    missing, proc, module = tmp_path / "none", tmp_path / "proc", tmp_path / "module"
    proc.write_text(text)
    assert subject.driver_version(missing, proc) == RECORDED[text]
    module.write_text("570.124.06\n")
    assert subject.driver_version(module, proc) == "570.124.06"
    assert subject.driver_version(missing, missing) == ""


def test_a_machine_without_a_gpu() -> None:
    machine = subject.machine_of(None, {"nvcc": "13.0.88"})
    assert (machine.device, machine.uuid) == ("", "") and machine.versions["nvcc"] == "13.0.88"
    assert {"python", "torch"} <= set(machine.versions) and "driver" not in machine.versions


def test_a_machine_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    bare = "ffc79498-8ff3-c2dc-3b0d-fafd804516ae"
    properties = SimpleNamespace(name="NVIDIA H200", uuid=bare)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: [None, properties][index])
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(subject.system, "driver", lambda: SimpleNamespace(cuda=(13, 0)))
    monkeypatch.setattr(subject, "driver_version", lambda: "580.1")
    machine = subject.machine_of(1)
    assert machine == Machine("NVIDIA H200", f"GPU-{bare}", machine.versions)
    assert {"cuda": "13.0", "driver": "580.1", "driver_cuda": "13.0"}.items() <= machine.versions.items()


@pytest.mark.parametrize("uuid", ["GPU-1", "MIG-2", ""])
def test_uuids_that_are_whole(uuid: str) -> None:
    assert subject.uuid_text(uuid) == uuid

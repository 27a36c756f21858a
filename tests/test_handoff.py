"""What is handed to another process arrives as it was, and nothing else arrives."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucutlass import frontend, handoff, ir
from ucutlass.diagnostics import ProgramError
from ucutlass.grammar.format import format_file, formatted
from ucutlass.grammar.problems import MAX_DEPTH
from ucutlass.grammar.syntax import File
from ucutlass.handoff import (
    HandoffError,
    checked_of,
    decode,
    diagnostics_of,
    diagnostics_payload,
    encode,
    planned_of,
)
from ucutlass.ir.elements import BF16, ELEMENTS, Element
from ucutlass.ir.hardware import ARCHES, DEVICES
from ucutlass.kernels.families import FAMILIES, family_of_plan
from ucutlass.kernels.planned import Planned
from ucutlass.limits import Effort
from ucutlass.runtime.subject import algorithm_digest
from ucutlass.typical_sizes import TypicalSizes

ROOT = Path(__file__).parent.parent
FILES = sorted([*(ROOT / "examples").rglob("*.ucu"), *(ROOT / "tests/pipeline/programs").glob("*.ucu")])


@cache
def checked(path: Path) -> frontend.Checked:
    return frontend.read(path)


def through_json(value: object) -> Any:
    return json.loads(json.dumps(value))


def plans(read: frontend.Checked) -> Iterator[Planned]:
    """The plans of a file's kernels, and of its pipelines' stages, for every architecture that serves them."""
    kernels = [p for p in read.module.programs if isinstance(p, ir.Kernel)]
    for pipeline in read.module.programs:
        if isinstance(pipeline, ir.Pipeline):
            kernels += [s.call for s in pipeline.stages if isinstance(s.call, ir.Kernel)]
    for kernel in kernels:
        sizes = TypicalSizes(kernel, Effort()).sizes(None)
        for arch in ARCHES if sizes is not None else ():
            try:
                yield frontend.plan_kernel(read, kernel, sizes or (), arch).planned
            except ProgramError:
                continue


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_program_arrives_as_it_was(path: Path) -> None:
    read = checked(path)
    arrived = checked_of(through_json(handoff.program_payload(read)))
    assert handoff.program_payload(arrived) == handoff.program_payload(read)
    assert (arrived.source, arrived.file, arrived.tree) == (read.source, read.file, read.tree)
    for before, after in zip(read.module.programs, arrived.module.programs, strict=True):
        assert (after.name, after.span, dict(after.dims)) == (before.name, before.span, dict(before.dims))
        assert algorithm_digest(after) == algorithm_digest(before)


def test_a_program_with_the_deepest_expressions_arrives() -> None:
    text = f"kernel k(x: f32[M]) -> f32[M] {{\n  return x{' + x' * (MAX_DEPTH - 4)}\n}}\n"
    read = frontend.read_text(text)
    arrived = checked_of(through_json(handoff.program_payload(read)))
    assert arrived.tree == read.tree and formatted(text) == format_file(arrived.tree)


def test_what_is_wrong_with_a_text_arrives_as_it_was() -> None:
    with pytest.raises(ProgramError) as refused:
        frontend.read_text("kernel k(x: f32[M]) -> f32[M] { return y + z }")
    diagnostics = refused.value.diagnostics
    assert diagnostics_of(through_json(diagnostics_payload(diagnostics))) == diagnostics
    with pytest.raises(HandoffError):
        diagnostics_of(through_json(handoff.encode(ir.Constant(1.0, BF16))))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_its_plans_arrive_equal(path: Path) -> None:
    for planned in plans(checked(path)):
        assert planned_of(through_json(handoff.plan_payload(planned))) == planned


def test_plans_of_an_arrived_program_are_those_of_the_first() -> None:
    read = checked(ROOT / "examples" / "linear_gelu.ucu")
    assert list(plans(checked_of(through_json(handoff.program_payload(read))))) == list(plans(read))


def test_the_files_have_plans_of_every_family() -> None:
    served = {family_of_plan(planned.plan).name for path in FILES for planned in plans(checked(path))}
    assert served == {family.name for family in FAMILIES}


def test_what_is_shared_stays_shared() -> None:
    value: ir.Value = ir.ParamValue(0, BF16, ("M",))
    for _ in range(64):  # a tree of 2^64 nodes
        value = ir.Apply("add", (value, value), BF16, ("M",))
    result = ir.ResultDecl("", ir.TensorType(BF16, ()), value)
    payload = encode(result)
    assert len(payload["nodes"]) < 100
    arrived = decode(through_json(payload), ir.ResultDecl).value
    assert isinstance(arrived, ir.Apply) and arrived.args[0] is arrived.args[1]


@pytest.mark.parametrize("number", [0.0, -0.0, 1, True, 2**80, 1e300, math.inf, -math.inf, math.nan])
def test_numbers_keep_their_type_and_value(number: float) -> None:
    constant = ir.Constant(number, ELEMENTS["f32"])
    arrived = decode(through_json(encode(constant)), ir.Constant).value
    assert type(arrived) is type(number) and repr(arrived) == repr(number)


def test_a_device_that_was_calibrated_arrives_with_its_rates() -> None:
    planned = next(plans(checked(ROOT / "examples" / "linear_gelu.ucu")))
    device = replace(next(iter(DEVICES.values())), bandwidth=1.5e12)
    measured = replace(planned, device=device)
    assert planned_of(through_json(handoff.plan_payload(measured))).device == device


@pytest.mark.parametrize("value", [{1}, print, object(), Element, [1], b"bytes"])
def test_what_has_no_form_is_not_written(value: object) -> None:
    with pytest.raises(TypeError, match="cannot be handed"):
        encode(ir.Constant(value, BF16))  # type: ignore[arg-type]


# --- refusal ----------------------------------------------------------------------


def payload() -> dict[str, Any]:
    constant = ir.Constant(1.0, BF16, ("M",))
    return through_json(encode(constant))  # type: ignore[no-any-return]


def test_the_payload_that_is_spoilt_below_is_right() -> None:
    assert decode(payload(), ir.Constant).value == 1.0


NAME = "ucutlass.ir.Constant"
FIELDS = ["value", "elem", "dims", "span", "literal"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"classes": []}, "no object"),
        ({"more": 1}, "nothing else"),
        ({"nodes": None}, "nothing else"),
        ({"classes": [["ucutlass.ir.Gone", []], [NAME, FIELDS]]}, "no class"),
        ({"classes": [["subprocess.Popen", ["args"]], [NAME, FIELDS]]}, "no class"),
        ({"classes": [["ucutlass.ir.Apply", FIELDS], [NAME, FIELDS]]}, "no class"),
        ({"classes": [["ucutlass.grammar.syntax.Span", ["start"]], [NAME, FIELDS]]}, "has the fields"),
        ({"root": {"node": 7}}, "is no"),
        ({"root": {"node": -1}}, "is no"),
        ({"root": {"node": True}}, "is no"),
        ({"root": {"node": 0}}, "is no"),  # a span
        ({"root": None}, "is no"),
        ({"nodes": [[1, 0, 0, []]]}, "has .* fields"),
        ({"nodes": [[9]]}, "no object"),
        ({"nodes": ["x"]}, "no object"),
    ],
)
def test_another_payload_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(HandoffError, match=words):
        decode(payload() | change, ir.Constant)


@pytest.mark.parametrize("column", range(1, 6))
@pytest.mark.parametrize(
    "value", [[["x"]], {"node": 1}, {"element": "f33"}, {"map": []}, {"device": "H200"}, {"float": "1"}, {}]
)
def test_a_field_of_another_type_is_refused(column: int, value: object) -> None:
    spoilt = payload()
    at = next(i for i, row in enumerate(spoilt["nodes"]) if len(row) == 6)
    spoilt["nodes"][at][column] = value
    with pytest.raises(HandoffError):
        decode(spoilt, ir.Constant)


def test_deep_and_large_payloads_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    deep: Any = "M"
    for _ in range(50):
        deep = [deep]
    spoilt = payload()
    at = next(i for i, row in enumerate(spoilt["nodes"]) if len(row) == 6)
    spoilt["nodes"][at][3] = deep
    with pytest.raises(HandoffError):
        decode(spoilt, ir.Constant)
    monkeypatch.setattr(handoff, "MOST_NODES", 1)
    with pytest.raises(HandoffError, match="at most 1 are read"):
        decode(payload(), ir.Constant)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["node", "map", "element", "device", "float", "x"]), inner, max_size=2
        )
    ),
    max_leaves=8,
)


@given(st.data())
def test_a_spoilt_program_is_refused_or_is_a_program(data: st.DataObject) -> None:
    """Whatever stands in one place: no other error, and no object of another class."""
    spoilt = through_json(handoff.program_payload(checked(ROOT / "examples" / "linear_gelu.ucu")))
    row = data.draw(st.sampled_from(spoilt["nodes"]))
    row[data.draw(st.integers(0, len(row) - 1))] = data.draw(JSON)
    try:
        arrived = checked_of(spoilt)
    except HandoffError:
        return
    assert isinstance(arrived.module, ir.Module) and isinstance(arrived.tree, File)
    assert all(isinstance(p, ir.Kernel | ir.Pipeline) for p in arrived.module.programs)

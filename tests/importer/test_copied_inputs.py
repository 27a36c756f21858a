"""Inputs that a program returns."""

from __future__ import annotations

from types import MappingProxyType

from ucutlass.importer.graph import ImportedTensor, Input, TensorGraph, with_copied_inputs


def test_what_is_returned_has_a_name_that_no_input_has() -> None:
    tensor = ImportedTensor((2, 1, 3), "f32")
    inputs = tuple(Input(name, name, "input", tensor) for name in ("x", "y"))
    graph = TensorGraph(inputs, (), ("x", "y", "x"), MappingProxyType({"x": tensor, "y": tensor}))
    copied = with_copied_inputs(graph)
    assert not {"x", "y"}.intersection(copied.results)
    assert len(copied.nodes) == 2 and copied.results[0] == copied.results[2] != copied.results[1]
    sources = {node.name: node.operands[0].value for node in copied.nodes}
    assert [sources[name] for name in copied.results] == ["x", "y", "x"]
    assert all(copied.values[name] == tensor for name in copied.results)


def test_other_results_stay() -> None:
    tensor = ImportedTensor((4,), "f32")
    graph = with_copied_inputs(
        TensorGraph((Input("x", "x", "input", tensor),), (), ("x",), MappingProxyType({"x": tensor}))
    )
    again = with_copied_inputs(graph)
    assert again.nodes == graph.nodes and again.results == graph.results

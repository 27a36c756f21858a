"""Stages with several results: what is joined, and what must not be."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import torch
from torch import nn

from tests.dynamo.test_backend import compiled
from ucutlass.importer.graph import ImportedStage, ImportedTensor, Node, OperatorOrigin, Reshape
from ucutlass.importer.several_results import MOST_RESULTS, joined


def stage(name: str, *inputs: str) -> ImportedStage:
    """A stage that gives one value; what its node computes is not looked at."""
    node = Reshape(name, inputs[0], ImportedTensor((8,), "f32"), OperatorOrigin(""))
    return ImportedStage((node,), inputs, (name,))


def gain(nodes: Collection[Node], outputs: Sequence[str]) -> tuple[ImportedStage, float]:
    """A kernel for everything, whose time does not grow with its work."""
    members = tuple(nodes)
    inside = {node.name for node in members}
    inputs = dict.fromkeys(o.value for node in members for o in node.operands)
    return ImportedStage(members, tuple(v for v in inputs if v not in inside), tuple(outputs)), 1.0


def outputs_of(stages: Sequence[ImportedStage], results: Sequence[str]) -> list[tuple[str, ...]]:
    names = {"x", *(v for s in stages for v in (*s.inputs, *s.outputs))}
    values = {name: ImportedTensor((8,), "f32") for name in names}
    return [s.outputs for s in joined(stages, results, values, gain)]


def test_stages_that_read_the_same_tensor_are_joined_and_results_keep_their_order() -> None:
    assert outputs_of([stage("a", "x"), stage("b", "x")], ["b", "a"]) == [("b", "a")]


def test_a_stored_value_is_given_beside_what_reads_it_and_no_longer_where_nothing_else_does() -> None:
    stages = [stage("a", "x"), stage("b", "a"), stage("c", "a")]
    assert outputs_of(stages[:2], ["a", "b"]) == [("a", "b")]
    assert outputs_of(stages, ["b", "c"]) == [("b", "c")]


def test_no_stage_is_joined_around_a_third_that_stands_between() -> None:
    between = ImportedStage(stage("m", "a").nodes, ("a", "w"), ("m",))
    last = ImportedStage(stage("b", "a").nodes, ("a", "m"), ("b",))

    def only_the_outer(nodes: Collection[Node], outputs: Sequence[str]) -> tuple[ImportedStage, float] | None:
        names = {node.name for node in nodes}
        return None if "m" in names and len(names) > 1 else gain(nodes, outputs)

    values = {name: ImportedTensor((8,), "f32") for name in ("x", "w", "a", "m", "b")}
    stages = [stage("a", "x"), between, last]
    assert joined(stages, ["a", "b"], values, only_the_outer) == stages


def test_a_kernel_has_a_bounded_number_of_results() -> None:
    stages = [stage(f"v{i}", "x") for i in range(2 * MOST_RESULTS)]
    names = [s.outputs[0] for s in stages]
    assert max(map(len, outputs_of(stages, names))) == MOST_RESULTS


def test_batch_norm_in_training_is_one_pass_forward_and_one_backward() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU())
    fast, report = compiled(model)
    fast(torch.randn(2, 3, 6, 6)).sum().backward()
    forward, backward = (next(iter(graph.texts.values())) for graph in report.graphs)
    # The mean, the reciprocal of the deviation, both running statistics, and the norm.
    (norm,) = re.findall(r"kernel \w+\([^{]*\{[^}]*relu[^}]*\}", forward)
    assert all(f"y{i} = " in norm for i in range(5)) and forward.count("mean[B, H, W]") == 1
    assert len(re.findall(r"^kernel", backward, re.MULTILINE)) == 1, backward


def test_what_a_program_of_from_torch_stores_has_a_binding_of_its_own() -> None:
    from ucutlass import from_torch

    text = from_torch(nn.Sequential(nn.BatchNorm1d(4)), torch.randn(6, 4)).text
    assert "kernel" not in text.split("pipeline")[0]

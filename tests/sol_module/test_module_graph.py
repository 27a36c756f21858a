"""The graph as JSON, and what is refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from module_files import exported

from tests.kernelbench.kernelbench_files import module as problem
from ucutlass.runtime.module.graph import GraphUnreadable, ModuleGraph, from_json, to_json


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> ModuleGraph:
    text = problem(
        'a, b = x.split(4, 1)\nreturn {"y": F.relu(self.l(a)) * k, "z": [b, None, 3.0]}',
        "self.l = nn.Linear(4, 5)",
        x="8, 8",
        k="2.5",
    )
    return exported(tmp_path_factory.mktemp("graph"), text)


def test_round_trip(graph: ModuleGraph) -> None:
    assert from_json(json.loads(json.dumps(to_json(graph)))) == graph


def _change(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    value = copy.deepcopy(value)
    inner = value
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = new
    return value


@pytest.mark.parametrize(
    ("path", "new"),
    [
        (("nodes",), None),
        (("nodes", 0, "op"), 3),
        (("nodes", 0, "outputs", 0), {"shape": [-1], "dtype": "float32"}),
        (("nodes", 0, "outputs", 0), {"shape": [True], "dtype": "float32"}),
        (("nodes", 0, "outputs", 0), {"shape": [1], "dtype": "secret"}),
        (("nodes", 0, "arguments", "self"), {"ref": ["nowhere", 0]}),
        (("nodes", 0, "arguments", "self"), {"code": "import os"}),
        (("sources", 0, "origin"), "elsewhere"),
        (("results", 0, "ref"), {"ref": ["nowhere", 0]}),
        (("results", 0, "fate"), "lost"),
    ],
)
def test_what_is_no_graph_is_refused(graph: ModuleGraph, path: tuple[Any, ...], new: Any) -> None:
    with pytest.raises(GraphUnreadable):
        from_json(_change(to_json(graph), path, new))


def test_a_node_cannot_use_what_comes_later(graph: ModuleGraph) -> None:
    value = to_json(graph)
    with pytest.raises(GraphUnreadable, match="which is missing"):
        from_json(value | {"nodes": value["nodes"][::-1]})


def test_anything_else_is_refused() -> None:
    for value in (None, [], 3, {"sources": []}):
        with pytest.raises(GraphUnreadable):
            from_json(value)


def test_scalars_stay_arguments_and_results_are_found(graph: ModuleGraph, tmp_path: Path) -> None:
    assert [s.origin for s in graph.sources].count("input") == 1
    assert {s.origin for s in graph.sources} == {"input", "parameter"}
    assert len(graph.results) == 2
    assert any(n.arguments.get("other") == 2.5 for n in graph.nodes)

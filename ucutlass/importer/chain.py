"""Several programs in a row, where one would be longer than any that is read or have more stages than are planned
as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ucutlass.importer.graph import Input, Node, TensorGraph
from ucutlass.ir.elements import ELEMENTS

if TYPE_CHECKING:
    from torch import Tensor

    from ucutlass.api import LoadedProgram

FEWEST_NODES = 16
"""A graph of fewer computations is not divided."""


@dataclass(frozen=True, slots=True)
class ChainLink:
    """One program of a chain: the values that it takes and gives, by their names in the module's graph."""

    load: Callable[[], LoadedProgram]
    takes: tuple[str, ...]
    gives: tuple[str, ...]


class ProgramChain:
    """Programs of which each may take what earlier ones give. A call takes the tensors `takes`, and returns what
    one program that gives the values `gives` would."""

    def __init__(self, links: Sequence[ChainLink], takes: Sequence[str], gives: Sequence[str]) -> None:
        self.programs = tuple(link.load() for link in links)
        self._links, self._takes, self._gives = tuple(links), tuple(takes), tuple(gives)

    def __call__(self, *arguments: Tensor) -> Any:
        return self.run(self.programs, arguments)

    def reference(self, *arguments: Tensor) -> Any:
        """Returns the same results from the float64 interpreter, each value rounded to its element type where
        one program hands it to another."""
        return self.run([program.reference for program in self.programs], arguments)

    def run(self, calls: Sequence[Callable[..., Any]], arguments: Sequence[Tensor]) -> Any:
        """Returns the results of these callables in the places of the programs."""
        values = dict(zip(self._takes, arguments, strict=True))
        last = {name: number for number, link in enumerate(self._links) for name in link.takes}
        for number, (link, call) in enumerate(zip(self._links, calls, strict=True)):
            results = call(*(values[name] for name in link.takes))
            several = results if isinstance(results, tuple) else (results,)
            values |= zip(link.gives, several, strict=True)
            for name in link.takes:
                if last[name] == number and name not in self._gives:
                    del values[name]  # a tensor goes with its last use
        results = tuple(values[name] for name in self._gives)
        return results[0] if len(results) == 1 else results


def halves(graph: TensorGraph) -> tuple[TensorGraph, TensorGraph] | None:
    """Returns a graph as two, of which the second takes what the first gives, None where it cannot be divided.
    The cut is where the fewest values pass, near the middle."""
    nodes = graph.nodes
    if len(nodes) < FEWEST_NODES:
        return None
    repeated = _without_inputs(nodes)
    third = len(nodes) // 3
    places = [p for p in range(third, len(nodes) - third) if _stored(graph, _passing(graph, p, repeated))]
    if not places:
        return None
    middle = len(nodes) // 2
    place = min(places, key=lambda p: (len(_passing(graph, p, repeated)), abs(p - middle)))
    passing = _passing(graph, place, repeated)
    before = {node.name for node in nodes[:place]}
    own = [name for name in graph.results if name in before and name not in passing]
    first = _part(graph, dict.fromkeys([*passing, *own]), ())
    second = _part(graph, dict.fromkeys(name for name in graph.results if name not in before), passing)
    return first, second


def _without_inputs(nodes: Sequence[Node]) -> set[str]:
    """Returns the values that depend on no input: each half computes them itself."""
    names: set[str] = set()
    for node in nodes:
        if all(operand.value in names for operand in node.operands):
            names.add(node.name)
    return names


def _passing(graph: TensorGraph, place: int, repeated: set[str]) -> list[str]:
    """Returns the values of nodes before a place that later ones read."""
    before = {node.name for node in graph.nodes[:place]} - repeated
    read = [operand.value for node in graph.nodes[place:] for operand in node.operands]
    return [name for name in dict.fromkeys(read) if name in before]


def _stored(graph: TensorGraph, names: Sequence[str]) -> bool:
    """Returns whether there are such values, and all are of types that tensors in memory have."""
    return bool(names) and all(graph.values[name].element in ELEMENTS for name in names)


def _part(graph: TensorGraph, results: dict[str, None], passing: Sequence[str]) -> TensorGraph:
    """Returns what the results are computed from, `passing` values being inputs."""
    by_name = {node.name: node for node in graph.nodes}
    needed: set[str] = set()
    stack = [name for name in results if name not in passing]
    while stack:
        name = stack.pop()
        if name not in needed:
            needed.add(name)
            if name in by_name:
                stack += [o.value for o in by_name[name].operands if o.value not in passing]
    nodes = tuple(node for node in graph.nodes if node.name in needed)
    read = {operand.value for node in nodes for operand in node.operands}
    own = tuple(i for i in graph.inputs if i.name in read)
    passed = tuple(Input(name, name, "input", graph.values[name]) for name in passing if name in read)
    return replace(graph, inputs=(*own, *passed), nodes=nodes, results=tuple(results))

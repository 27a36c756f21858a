"""An imported module: its program's text, what became of each operator, and its tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ucutlass.importer.export import Exported, exported
from ucutlass.importer.graph import Input, Node, Reshape, TensorGraph, Unsupported
from ucutlass.importer.stages import NotServed, Stage, cut
from ucutlass.importer.text import value_names, written

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class OperatorFate:
    """What became of one operator of the module: the `stage` that computes it by its name in the program, and
    whether a kernel or torch does. A view becomes nothing."""

    operator: str
    module: str
    line: str
    stage: str
    by: str


@dataclass(frozen=True, slots=True)
class ImportedText:
    """A program and how it meets its module: `inputs` in the order of its parameters."""

    text: str
    name: str
    inputs: tuple[Input, ...]
    report: tuple[OperatorFate, ...]
    stages: int
    torch_stages: int
    mutated: tuple[str, ...]


def imported(model: Any, arguments: Sequence[Any], name: str = "") -> tuple[ImportedText, Exported]:
    """Exports a module and writes its program. Raises Unsupported, and what torch.export raises."""
    export = exported(model, arguments)
    return text_of(export, name or type(model).__name__.lower()), export


def text_of(export: Exported, name: str) -> ImportedText:
    graph = export.graph
    try:
        graph, stages = cut(graph)
    except NotServed as problem:
        raise Unsupported(f"no kernel serves it: {problem.why}", problem.node.origin) from problem
    program = written(graph, stages, name)
    item = program.tree.items[-1]
    order = {p.name: i for i, p in enumerate(item.params)}  # type: ignore[union-attr]
    inputs = sorted((i for i in graph.inputs if i.name in order), key=lambda i: order[i.name])
    return ImportedText(
        program.text,
        item.name,
        tuple(inputs),
        _report(graph, stages),
        len(stages),
        sum(stage.torch is not None for stage in stages),
        export.mutated,
    )


def _report(graph: TensorGraph, stages: Sequence[Stage]) -> tuple[OperatorFate, ...]:
    names: Mapping[str, str] = value_names(graph, stages)
    holders: dict[str, list[str]] = {}
    for stage in stages:
        for node in stage.nodes:
            holders.setdefault(node.name, []).append(names[stage.outputs[0]])
    fates: list[OperatorFate] = []
    for node in graph.nodes:
        by = _by(node)
        fate = OperatorFate(
            node.origin.operator, node.origin.module, node.origin.line,
            ", ".join(dict.fromkeys(holders.get(node.name, ()))), by,
        )
        if not fates or fates[-1] != fate:
            fates.append(fate)
    return tuple(fates)


def _by(node: Node) -> str:
    if isinstance(node, Reshape) or node.kind == "view":
        return "nothing"
    return "torch" if hasattr(node, "function") else "kernel"


def arguments_of(program: ImportedText, export: Exported, model: torch.nn.Module, inputs: Sequence[Any]) -> list[Any]:
    """Returns the tensors that the program's parameters stand for, on one call's inputs."""
    import inspect

    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    names = [p for p in inspect.signature(model.forward).parameters]
    given = dict(zip(names, inputs, strict=False))
    tensors: list[Any] = []
    for source in program.inputs:
        match source.origin:
            case "input":
                tensors.append(given[source.path])
            case "constant":
                tensors.append(export.constants[source.path])
            case _:
                tensors.append(state[source.path])
    return tensors

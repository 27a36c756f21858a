"""Joins stages that one kernel computes with a result for each: those that read the same large tensor, such as the
mean and the variance of a batch, and one whose value is stored for others too with a reader of it, such as a
product that a gradient needs besides its activation."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import Protocol

from ucutlass.importer.graph import ImportedStage, ImportedTensor, Node, TorchStage, in_order
from ucutlass.pipeline.pricing import pays

MOST_RESULTS = 6
"""Results of one kernel."""

MOST_TRIED = 8
"""Stages that are tried with one: of many that read a value, the nearest."""

LEAST_GAIN = 0.05
"""Share of the estimates that joining must save: cost models are not more exact."""


class Together(Protocol):
    """Returns the stage that computes nodes with several results, and its estimate in seconds; None where no
    kernel does."""

    def __call__(
        self, nodes: Collection[Node], outputs: Sequence[str]
    ) -> tuple[ImportedStage, float] | None: ...


def joined(
    stages: Sequence[ImportedStage],
    results: Sequence[str],
    values: Mapping[str, ImportedTensor],
    together: Together,
    among: Collection[str] | None = None,
) -> list[ImportedStage]:
    """Returns the stages, each after what it reads, with those joined that one kernel computes sooner; `among`: only
    stages of these results. Reductions join each other before what a dot gives: there, each costs the dot's
    epilogue."""
    left = list(stages)
    prices: dict[tuple[str, ...], float] = {}

    def price(stage: ImportedStage) -> float:
        if stage.outputs not in prices:
            alone = together(stage.nodes, stage.outputs)
            prices[stage.outputs] = alone[1] if alone is not None else 0.0
        return prices[stage.outputs]

    for with_dots in (False, True):
        number = 0
        while number < len(left):
            stage = left[number]
            tried = _candidates(stage, left, values) if with_dots or not _holds_dot(stage) else []
            if among is not None:
                tried = [o for o in tried if {*stage.outputs, *o.outputs} <= {*among}]
            for other in tried:
                outputs = _outputs(stage, other, left, results)
                nodes = {node.name: node for node in (*stage.nodes, *other.nodes)}
                whole = together([*nodes.values()], outputs) if 0 < len(outputs) <= MOST_RESULTS else None
                if whole is not None and pays([price(stage), price(other)], [whole[1]], LEAST_GAIN):
                    left = in_order([whole[0] if s is other else s for s in left if s is not stage])
                    number = min(number, left.index(whole[0]))
                    break
            else:
                number += 1
    return left


def _candidates(
    stage: ImportedStage, stages: Sequence[ImportedStage], values: Mapping[str, ImportedTensor]
) -> list[ImportedStage]:
    """Returns the nearest later stages that may be joined to one."""
    if stage.torch is not None:
        return []
    after = _reached(stage, stages)
    return [
        other
        for other in stages[stages.index(stage) + 1 :]
        if other.torch is None and _is_fit(stage, other, values) and not _between(other, after)
    ][:MOST_TRIED]


def _is_fit(stage: ImportedStage, other: ImportedStage, values: Mapping[str, ImportedTensor]) -> bool:
    """Returns whether joining may save a pass: the largest tensor that the later stage reads is what the first
    one gives, or the largest that it reads too."""
    if _holds_dot(other) or not other.inputs:
        return False
    largest = max(_size(v, values) for v in other.inputs)
    if any(v in other.inputs and _size(v, values) == largest for v in stage.outputs):
        return True
    if _holds_dot(stage) or not stage.inputs:
        return False
    own = max(_size(v, values) for v in stage.inputs)
    return own == largest and any(v in other.inputs and _size(v, values) == largest for v in stage.inputs)


def _size(value: str, values: Mapping[str, ImportedTensor]) -> int:
    return prod(values[value].shape)


def _holds_dot(stage: ImportedStage) -> bool:
    return any(node.kind == "dot" and not isinstance(node, TorchStage) for node in stage.nodes)


def _reached(stage: ImportedStage, stages: Sequence[ImportedStage]) -> list[ImportedStage]:
    """Returns the stages that read what a stage gives, themselves or by way of others."""
    outputs, reached = {*stage.outputs}, []
    for other in stages:
        if outputs & {*other.inputs}:
            outputs |= {*other.outputs}
            reached.append(other)
    return reached


def _between(other: ImportedStage, after: Sequence[ImportedStage]) -> bool:
    """Returns whether a stage reads what one of these others gives."""
    outputs = {output for s in after if s is not other for output in s.outputs}
    return bool(outputs & {*other.inputs})


def _outputs(
    stage: ImportedStage, other: ImportedStage, stages: Sequence[ImportedStage], results: Sequence[str]
) -> tuple[str, ...]:
    """Returns what both give to others, results in their order."""
    read = {v for s in stages if s is not stage and s is not other for v in s.inputs}
    outputs = dict.fromkeys((*stage.outputs, *other.outputs))
    ordered = [v for v in dict.fromkeys(results) if v in outputs]
    return (*ordered, *(v for v in outputs if v in read and v not in ordered))

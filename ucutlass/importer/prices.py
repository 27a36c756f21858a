"""Kernels of stages and their estimates. Equal stages, as layers that repeat have them, are looked at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import lru_cache
from typing import Any

from ucutlass import ir
from ucutlass.check import check_tree
from ucutlass.grammar import syntax
from ucutlass.importer.atoms import Conflict
from ucutlass.importer.graph import Computation, ImportedTensor, Node
from ucutlass.importer.naming import dimension_names
from ucutlass.importer.stage import Inference, kernel_of, stage_inference
from ucutlass.ir.hardware import ARCHES
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels.families import family_of, match, plan_pattern
from ucutlass.kernels.refused import Refused
from ucutlass.limits import LimitPassed
from ucutlass.pipeline.pricing import NotOneKernel, kernel_seconds
from ucutlass.shapes import ShapeError, complete


class NotLegal(Exception):
    """The checker or the kernel families refuse a kernel; the message is their first reason."""


MOST_KERNELS = 4096
"""Kernels of stages that a process remembers: a graph that is too long for one program is cut again in halves."""


@lru_cache(MOST_KERNELS)
def kernel_or_reason(tree: syntax.Program) -> ir.Kernel | str:
    """Returns the kernel of a text, or why none serves it."""
    try:
        return checked_kernel(tree)
    except NotLegal as problem:
        return str(problem)


@lru_cache(MOST_KERNELS)
def seconds_of(tree: syntax.Program) -> float:
    """Returns the estimate of a text at its extents, infinity where no kernel serves it or no schedule is legal."""
    kernel = kernel_or_reason(tree)
    if isinstance(kernel, str):
        return math.inf
    try:
        return kernel_seconds(kernel, complete(kernel, {}))
    except (NotOneKernel, ShapeError):
        return math.inf


@dataclass(frozen=True, slots=True)
class StagePrices:
    """`kernels` has the kernel of a text, or why none serves it; `estimates` the seconds of those that one does;
    `texts` has the kernels of computations without their names, and the numbers of the values that each reads.

    `exact` False: extents are stand-ins for any, so that the seconds of stages say alone whether a kernel serves them;
    two imports at different extents agree on that. `extents` are those of another import in place of this one's: by its
    estimates both cut their stages alike."""

    exact: bool = True
    extents: Mapping[int, int] = field(default_factory=dict)
    kernels: dict[syntax.Program, ir.Kernel | str] = field(default_factory=dict)
    estimates: dict[syntax.Program, float] = field(default_factory=dict)
    texts: dict[tuple[object, ...], tuple[syntax.Program, tuple[int, ...]]] = field(default_factory=dict)

    def kernel(self, tree: syntax.Program) -> ir.Kernel | str:
        if tree not in self.kernels:
            self.kernels[tree] = kernel_or_reason(tree)
        return self.kernels[tree]

    def seconds(self, tree: syntax.Program) -> float:
        if tree not in self.estimates:
            self.estimates[tree] = seconds_of(_at(tree, self.extents) if self.extents else tree)
        return self.estimates[tree]

    def text(
        self, values: Mapping[str, ImportedTensor], nodes: Sequence[Node], outputs: Sequence[str]
    ) -> tuple[syntax.Program, tuple[str, ...]]:
        """Returns a stage as a kernel of its own, and what it reads. Raises Conflict."""
        key, names = _nameless(values, nodes, outputs)
        if key not in self.texts:
            inference = stage_inference(values, nodes, outputs)
            numbers = {name: number for number, name in enumerate(names)}
            self.texts[key] = text_of_stage(inference), tuple(numbers[name] for name in inference.inputs)
        tree, reads = self.texts[key]
        return tree, tuple(names[number] for number in reads)

    def of_stage(
        self, values: Mapping[str, ImportedTensor], nodes: Sequence[Node], outputs: Sequence[str]
    ) -> float:
        """Returns the estimate of a stage, infinity where its names do not go together or no kernel serves it."""
        try:
            seconds = self.seconds(self.text(values, nodes, outputs)[0])
        except Conflict:
            return math.inf
        return seconds if self.exact or seconds == math.inf else 1.0


def _at(part: Any, extents: Mapping[int, int]) -> Any:
    """Returns a text with other extents."""
    match part:
        case syntax.Number(value=int(extent)):
            return replace(part, value=extents.get(extent, extent))
        case tuple():
            return tuple(_at(each, extents) for each in part)
        case _ if is_dataclass(part) and not isinstance(part, type):
            return replace(
                part, **{f.name: _at(getattr(part, f.name), extents) for f in fields(part) if f.compare}
            )
        case _:
            return part


def _nameless(
    values: Mapping[str, ImportedTensor], nodes: Sequence[Node], outputs: Sequence[str]
) -> tuple[tuple[object, ...], tuple[str, ...]]:
    """Returns computations with numbers in place of the names of values, by which equal layers are equal, and the names
    by their numbers."""
    numbers: dict[str, int] = {}

    def number(value: str) -> int:
        return numbers.setdefault(value, len(numbers))

    parts: list[object] = []
    for node in nodes:
        reads = tuple((number(o.value), o.axes) for o in node.operands)
        own: tuple[object, ...] = (type(node), number(node.name), reads, node.tensor)
        if isinstance(node, Computation):
            own += (node.kind, node.body, node.axes, tuple(node.extents.items()))
        parts.append(own)
    gives = tuple(map(number, outputs))
    return (*parts, tuple(values[value] for value in numbers), gives), tuple(numbers)


def text_of_stage(inference: Inference) -> syntax.Program:
    """Returns a stage as a kernel of its own, which equal stages share. Raises Conflict."""
    inputs = {value: f"v{i}_" for i, value in enumerate(inference.inputs)}
    names = dimension_names(inference.order(), inputs.values())
    return kernel_of(inference, "stage", inputs, names)


def checked_kernel(tree: syntax.Program) -> ir.Kernel:
    module, diagnostics = check_tree(syntax.File((tree,)))
    for diagnostic in diagnostics:
        if diagnostic.severity == "error":
            raise NotLegal(f"{diagnostic.message} [{diagnostic.code}]")
    kernel = module.programs[0]
    assert isinstance(kernel, ir.Kernel)
    try:
        pattern = match(kernel)
        if family_of(pattern).refuses_extents:
            planned = plan_pattern(pattern, complete(kernel, {}), ARCHES["sm90a"], None, PartialSchedule())
            if isinstance(planned, tuple):
                raise NotLegal("no schedule of it is legal")
    except Refused as refused:
        raise NotLegal(f"{refused.diagnostic.message} [{refused.diagnostic.code}]") from None
    except (LimitPassed, ShapeError) as passed:
        raise NotLegal(str(passed)) from None
    return kernel

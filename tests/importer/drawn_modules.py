"""Modules of core ATen operators, drawn step by step so that every step is legal for PyTorch."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

Pick = Callable[[Sequence[Any]], Any]
"""Chooses one of several values, as a random number or a shrinking test does."""

MOST_AXES = 6


@dataclass(frozen=True, slots=True)
class Size:
    """The extents that inputs are drawn from, and the most elements that a value may have."""

    extents: tuple[int, ...]
    elements: int


SMALL = Size((1, 2, 3, 4, 6), 1500)
"""What a float64 reference computes at once."""

SEVERAL_TILES = Size((1, 2, 3, 7, 16, 31, 64, 100, 129, 200), 2_000_000)
"""Whole and partial tiles of a kernel, aligned and not."""


@dataclass(eq=False)
class Step:
    """`apply(values, module)` gives a further value. `operator` is what a table of coverage counts, `reads` are
    the numbers of the values that it reads."""

    operator: str
    reads: tuple[int, ...]
    details: tuple[Any, ...]
    apply: Callable[[list[torch.Tensor], DrawnModule], torch.Tensor]

    def __str__(self) -> str:
        return f"{self.operator}({', '.join(map(str, (*self.reads, *self.details)))})"


@dataclass(eq=False)
class Plan:
    inputs: list[torch.Tensor]
    steps: list[Step] = field(default_factory=list)
    results: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        shapes = ", ".join(f"{tuple(x.shape)} {x.dtype}" for x in self.inputs)
        steps = "\n".join(f"{i + len(self.inputs)} = {s}" for i, s in enumerate(self.steps))
        return f"inputs {shapes}\n{steps}\nresults {self.results}"

    def pairs(self) -> list[tuple[str, str]]:
        """Returns each operator with each whose value it reads, `input` for an input."""
        names = ["input"] * len(self.inputs) + [s.operator for s in self.steps]
        return [(names[i], step.operator) for step in self.steps for i in step.reads]


class DrawnModule(nn.Module):
    def __init__(self, plan: Plan, state: State) -> None:
        super().__init__()
        self.plan = plan
        self.weights = nn.ParameterDict({k: nn.Parameter(v.clone()) for k, v in state.weights.items()})
        for name, value in state.buffers.items():
            self.register_buffer(name, value.clone())

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        values = [x, y]
        for step in self.plan.steps:
            values.append(step.apply(values, self))
        return tuple(values[i] for i in self.plan.results)


@dataclass(eq=False)
class State:
    """The weights and buffers of a module as it is drawn."""

    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    random: bool = False
    """Whether a step draws random numbers: more than one draw others where compilation removes the first."""

    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(7))

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator)

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = self.normal(*shape)
        return name

    def buffer(self, *shape: int) -> str:
        name = f"b{len(self.buffers)}"
        self.buffers[name] = self.normal(*shape).abs() + 0.5
        return name


@dataclass(eq=False)
class Draft:
    """What a maker of steps draws from: the values so far, and a choice."""

    pick: Pick
    values: list[torch.Tensor]
    state: State
    size: Size = SMALL

    def broadcasts(self, a: torch.Tensor, b: torch.Tensor) -> bool:
        """Returns whether two tensors broadcast to one that is not too large."""
        rank = max(a.dim(), b.dim())
        wide = [(1,) * (rank - t.dim()) + tuple(t.shape) for t in (a, b)]
        fits = all(1 in (m, n) or m == n for m, n in zip(*wide, strict=True))
        return fits and math.prod(max(pair) for pair in zip(*wide, strict=True)) <= self.size.elements

    def others(self, accepts: Callable[[torch.Tensor], bool]) -> list[int]:
        return [j for j, other in enumerate(self.values) if accepts(other)]


Maker = Callable[[Draft, int], "Step | None"]
"""Draws a step that reads a value, by its number; None where there is none for it."""

Apply = Callable[[torch.Tensor], torch.Tensor]


def chosen(d: Draft, i: int, table: Mapping[str, Apply], *details: Any) -> Step:
    """Returns a step of one value by a table of functions."""
    name = d.pick(sorted(table))
    return Step(name, (i,), details, lambda values, module: table[name](values[i]))


def makers() -> tuple[Mapping[str, Maker], Mapping[str, Maker]]:
    """Returns the makers of steps of floating values, and of others."""
    from tests.importer import drawn_elements, drawn_moves, drawn_products, drawn_reductions, drawn_windows

    modules = (drawn_elements, drawn_moves, drawn_products, drawn_reductions, drawn_windows)
    floats: dict[str, Maker] = {}
    for module in modules:
        floats |= module.FLOATS
    return floats, {**drawn_elements.OTHERS, **drawn_moves.OTHERS, **drawn_reductions.OTHERS}


def draw(
    pick: Pick, steps: int, more: Mapping[str, Maker] = MappingProxyType({}), size: Size = SMALL
) -> tuple[Plan, State]:
    """Returns a plan and its weights; `more` are further makers of steps of floating values."""
    state = State()

    def shape() -> list[int]:
        extents: list[int] = []
        for _ in range(pick([1, 2, 3, 4])):
            extents.append(pick([n for n in size.extents if n * math.prod(extents) <= size.elements]))
        return extents

    x = state.normal(*shape())
    y = state.normal(*(x.shape if pick([True, False]) else shape()))
    match pick(["float", "float", "float", "integer", "bool"]):
        case "integer":
            y = (y * 2).to(torch.int64)
        case "bool":
            y = y > 0
    plan = Plan([x, y])
    values: list[torch.Tensor] = [x, y]
    floats, others = makers()
    floats = {**floats, **more}
    for _ in range(steps):
        i = pick(list(range(len(values)))[-3:])
        table = floats if values[i].is_floating_point() else others
        step = table[pick(sorted(table))](Draft(pick, values, state, size), i)
        if step is None:
            continue
        module = DrawnModule(plan, state).eval()
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                value = step.apply(values, module)
        except (RuntimeError, ValueError, IndexError, NotImplementedError):
            continue  # PyTorch refuses these shapes or types
        if value.numel() == 0 or value.numel() > size.elements or value.dim() > MOST_AXES:
            continue
        plan.steps.append(step)
        values.append(value)
    last = len(values) - 1
    plan.results = [last]
    if last > 2 and pick([False, False, True]):
        plan.results.append(pick(range(2, last)))
    return plan, state

"""A call of torch's recurrent layers as a problem with concrete extents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias, cast

from ucutlass.ir.elements import BF16, F16, F32, Element

Cell: TypeAlias = Literal["lstm", "gru", "rnn_tanh", "rnn_relu"]
"""What a step computes, by the name of torch's function."""

GATES: Mapping[Cell, int] = MappingProxyType({"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1})
"""By cell: rows of its weights for each hidden unit."""

ELEMENTS = (F32, F16, BF16)
"""What the tensors of a call may be of."""


@dataclass(frozen=True, slots=True)
class RecurrentProblem:
    """`layers` of `hidden` units over `steps` of `batch` vectors of `input` elements, in one or two `directions`.

    `gives` has the numbers of torch's results that are stored, in the order of their pointers: 0 every step's state,
    1 the last one, 2 the last cell state. Tensors are of `element`, states and sums f32.
    """

    cell: Cell
    steps: int
    batch: int
    input: int
    hidden: int
    layers: int
    directions: int
    batch_first: bool
    biased: bool
    gives: tuple[int, ...]
    element: Element = F32

    @property
    def dims(self) -> tuple[str, ...]:
        return ("steps", "batch", "input", "hidden")

    @property
    def sizes(self) -> tuple[int, ...]:
        return (self.steps, self.batch, self.input, self.hidden)

    @property
    def compute_type(self) -> Element:
        return F32

    @property
    def scalars(self) -> int:
        return 0

    @property
    def gates(self) -> int:
        return GATES[self.cell]

    @property
    def states(self) -> int:
        """How many tensors a layer's state is."""
        return 2 if self.cell == "lstm" else 1

    @property
    def weights(self) -> int:
        """How many tensors the weights are."""
        return self.layers * self.directions * (4 if self.biased else 2)

    @property
    def pointers(self) -> int:
        return 1 + self.states + self.weights + len(self.gives)


def problem_of(
    function: str,
    keywords: Mapping[str, int | float],
    gives: tuple[int, ...],
    elements: Sequence[Element],
    shapes: Sequence[tuple[int, ...]],
) -> RecurrentProblem | None:
    """Returns the problem of a call of torch's function on tensors of these elements and shapes; None for another
    function, and for elements that no kernel takes."""
    if function not in GATES or elements[0] not in ELEMENTS or len(set(elements)) > 1:
        return None
    x, state = shapes[:2]
    layers, directions = int(keywords["layers"]), 2 if keywords.get("bidirectional") else 1
    first = bool(keywords.get("batch_first"))
    cell = cast(Cell, function)
    weights = len(shapes) - 1 - (2 if cell == "lstm" else 1)
    return RecurrentProblem(
        cell=cell,
        steps=x[1 if first else 0],
        batch=x[0 if first else 1],
        input=x[2],
        hidden=state[2],
        layers=layers,
        directions=directions,
        batch_first=first,
        biased=weights == 4 * layers * directions,
        gives=gives,
        element=elements[0],
    )

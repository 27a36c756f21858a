"""Collects the computations that a module's operators become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal, TypeAlias

from ucutlass.grammar.syntax import Expr
from ucutlass.importer.expressions import operand, substituted, where
from ucutlass.importer.graph import (
    Axes,
    Axis,
    Computation,
    ImportedTensor,
    Kind,
    Node,
    OperandRead,
    OperatorOrigin,
    Reshape,
    TorchStage,
    Unsupported,
)
from ucutlass.importer.whole_numbers import wrapped

Multiplier: TypeAlias = Literal["matmul", "cudnn"]
"""By the name of torch's switches, what multiplies: products, or what cuDNN computes."""


@dataclass(frozen=True, slots=True)
class ValueRef:
    """A tensor among an operator's arguments, by the name of its value."""

    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """An operator's arguments by their names in its schema, defaults filled in, and the tensors that it
    gives."""

    named: Mapping[str, Any]
    results: tuple[ImportedTensor, ...]

    def __getitem__(self, name: str) -> Any:
        return self.named[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self.named.get(name, default)

    @property
    def result(self) -> ImportedTensor:
        return self.results[0]


_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(slots=True)
class GraphBuilder:
    """The nodes so far and the tensors of all values. `origin` is the operator that is being translated,
    `name` the name that its graph node has."""

    values: dict[str, ImportedTensor]
    nodes: list[Node] = field(default_factory=list)
    origin: OperatorOrigin = field(default_factory=lambda: OperatorOrigin(""))
    name: str = ""
    joined: dict[tuple[int, tuple[str, ...]], ValueRef] = field(default_factory=dict)
    """Concatenations by axis and parts: a longer one that begins with the same parts takes it as one."""

    positions: set[str] = field(default_factory=set)
    """Whole numbers that are known not to be negative."""

    constants: set[str] = field(default_factory=set)
    """The values that depend on no input."""

    parameters: set[str] = field(default_factory=set)
    """The inputs that are parameters of the module, whose numbers are finite."""

    multiplied: Mapping[Multiplier, str] = field(default_factory=dict)
    """The compute type of products and convolutions of f32, where it is not f32."""

    attending: dict[str, ValueRef] = field(default_factory=dict)
    """By mask of an attention: whether a row of it leaves any key."""

    def shape(self, ref: ValueRef) -> tuple[int, ...]:
        return self.values[ref.name].shape

    def element(self, ref: ValueRef) -> str:
        return self.values[ref.name].element

    def compute_type(self, multiplier: Multiplier, element: str) -> str:
        """Returns what a product or convolution of an element multiplies in."""
        return self.multiplied.get(multiplier, element) if element == "f32" else element

    def fail(self, why: str) -> Unsupported:
        return Unsupported(why, self.origin)

    def _fresh(self, hint: str) -> str:
        base = self.name if not hint else f"{self.name}_{hint}"
        name, number = base, 1
        while name in self.values:
            number += 1
            name = f"{base}_{number}"
        return name

    def add(
        self,
        kind: Kind,
        operands: Sequence[tuple[ValueRef, Axes]],
        body: Expr,
        axes: Axes,
        extents: Mapping[str, int],
        element: str,
        hint: str = "",
    ) -> ValueRef:
        """Adds a computation. The shape of its value follows from its axes."""
        shape = tuple(prod(extents[label] for label in axis) for axis in axes)
        tensor = ImportedTensor(shape, element)
        name = self._fresh(hint)
        reads = tuple(OperandRead(ref.name, operand_axes) for ref, operand_axes in operands)
        node = Computation(name, kind, reads, body, axes, dict(extents), tensor, self.origin, hint)
        return self._put(node)

    def _put(self, node: Node) -> ValueRef:
        self.nodes.append(node)
        self.values[node.name] = node.tensor
        if all(operand.value in self.constants for operand in node.operands):
            self.constants.add(node.name)
        if node.kind in ("view", "index") and all(o.value in self.positions for o in node.operands):
            self.positions.update([node.name] if node.operands else [])
        return ValueRef(node.name)

    def reshape(self, ref: ValueRef, shape: Sequence[int]) -> ValueRef:
        if self.shape(ref) == tuple(shape):
            return ref
        tensor = ImportedTensor(tuple(shape), self.element(ref))
        return self._put(Reshape(self._fresh("view"), ref.name, tensor, self.origin))

    def torch(
        self, function: str, refs: Sequence[ValueRef], keywords: Mapping[str, Any], tensor: ImportedTensor
    ) -> ValueRef:
        """Adds a stage that torch computes. Its operands are stored as they are."""
        operands = tuple(OperandRead(self._stored(ref).name, ()) for ref in refs)
        return self._put(TorchStage(self._fresh(""), function, operands, keywords, tensor, self.origin))

    def _stored(self, ref: ValueRef) -> ValueRef:
        """Returns a tensor that lies in memory under its own axes: a copy of a view or a constant."""
        source = next((node for node in self.nodes if node.name == ref.name), None)
        if source is None or source.kind not in ("view", "constant"):
            return ref
        return self.pointwise(operand(0), [ref], self.element(ref), "copy")

    def view(self, ref: ValueRef, operand_axes: Axes, axes: Axes, extents: Mapping[str, int]) -> ValueRef:
        """Adds the same value with other axes."""
        return self.add("view", [(ref, operand_axes)], operand(0), axes, extents, self.element(ref))

    def pointwise(
        self, body: Expr, refs: Sequence[ValueRef], element: str, hint: str = "", shape: Sequence[int] = ()
    ) -> ValueRef:
        """Adds element-wise work on tensors that broadcast from the right, at least to `shape`. A body over
        bools that calculates with them must say so: see `as_number`."""
        whole = broadcast([*(self.shape(r) for r in refs), tuple(shape)])
        labels = tuple(f"_{_LETTERS[i]}" for i in range(len(whole)))
        axes = tuple((label,) if n != 1 else () for label, n in zip(labels, whole, strict=True))
        operands = [(ref, axes_from_right(self.shape(ref), axes)) for ref in refs]
        extents = dict(zip(labels, whole, strict=True))
        body = wrapped(body, element, [self.element(ref) for ref in refs])
        return self.add("pointwise" if refs else "constant", operands, body, axes, extents, element, hint)

    def numbers(self, body: Expr, refs: Sequence[ValueRef]) -> Expr:
        """Returns the body with every operand that is a bool as 1 or 0."""
        bools = {
            f"x{i}": where(operand(i), 1, 0) for i, ref in enumerate(refs) if self.element(ref) == "bool"
        }
        return substituted(body, bools) if bools else body

    def labels(
        self, ref: ValueRef, letters: Sequence[str] = ()
    ) -> tuple[tuple[str, ...], Axes, dict[str, int]]:
        """Returns a label for each axis of a tensor, its axes, and the extents. Labels that begin with `_`
        suggest no name."""
        shape = self.shape(ref)
        names = tuple(letters) or tuple(f"_{_LETTERS[i]}" for i in range(len(shape)))
        axes: Axes = tuple((label,) if n != 1 else () for label, n in zip(names, shape, strict=True))
        return names, axes, dict(zip(names, shape, strict=True))


def axes_from_right(shape: Sequence[int], axes: Axes) -> Axes:
    """Returns the axes of an operand of this shape that broadcasts to a value of these axes."""
    own: list[Axis] = []
    for n, axis in zip(shape, axes[len(axes) - len(shape) :], strict=True):
        own.append(axis if n != 1 else ())
    return tuple(own)


def broadcast(shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Returns the shape that tensors of these shapes have together, as in PyTorch."""
    rank = max((len(s) for s in shapes), default=0)
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    return tuple(next((n for n in column if n != 1), 1) for column in zip(*padded, strict=True))


def axis_number(dim: int, rank: int) -> int:
    return dim + rank if dim < 0 else dim


def axis_numbers(dims: Any, rank: int) -> tuple[int, ...]:
    """Returns axis numbers from 0: of one number, of a list, of all axes for None or an empty list."""
    if dims is None or dims == []:
        return tuple(range(rank))
    many = [dims] if isinstance(dims, int) else list(dims)
    return tuple(axis_number(d, rank) for d in many)

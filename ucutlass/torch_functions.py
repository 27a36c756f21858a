"""The torch functions that a pipeline may call: their arguments, and the type of their results.

The functions themselves are `TORCH_FUNCTIONS` of the reference, under the same names; this table needs no
torch, so that a program can be checked without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

from ucutlass.ir.elements import I64, Element
from ucutlass.ir.extents import Combined, Extent, Fixed, agree, bare, difference

Shape: TypeAlias = tuple[Extent | None, ...]
"""Extents by axis in memory order; None means that the call decides."""

Keywords: TypeAlias = Mapping[str, float | int | bool]


class UnsupportedCall(Exception):
    """Arguments that a torch function never takes; the message is a sentence without its subject."""


@dataclass(frozen=True, slots=True)
class TorchFunction:
    """One function of `tensors` tensors, or of more with `variable`; those in `indices` are i64. `keywords` maps each named number to its type; those in `required`
    have no default. `takes` is `wide float` for f64 and f32, `float` for f16 and bf16 too, `number` for the
    integers too, `plain` for bool too, `any` for all element types of whole bytes. `gives` maps a tensor's
    element type to the result's; `shape` raises UnsupportedCall for shapes that never fit."""

    name: str
    takes: Literal["wide float", "float", "number", "plain", "any"]
    shape: Callable[[Sequence[Shape], Keywords], Shape]
    keywords: Mapping[str, type[int] | type[bool]]
    required: tuple[str, ...] = ()
    tensors: int = 1
    variable: bool = False
    indices: tuple[int, ...] = ()
    gives: Callable[[Element], Element] = lambda elem: elem

    @property
    def signature(self) -> str:
        """The call as a program writes it: `torch.softmax(x, dim=0)`."""
        tensors = [*"xyzuvw"[: self.tensors], *([".."] if self.variable else [])]
        named = [f"{k}={'false' if v is bool else '0'}" for k, v in self.keywords.items()]
        return f"torch.{self.name}({', '.join([*tensors, *named])})"

    def accepts(self, elem: Element) -> bool:
        """Returns whether torch computes this on a tensor of the element type, on a CPU and on a GPU."""
        if elem.bits < 8 or (elem.kind == "float" and elem.bits < 16):
            return self.takes == "any" and elem.bits >= 8
        if self.takes == "wide float":
            return elem.kind == "float" and elem.bits >= 32
        return elem.kind in {"float": ("float",), "number": ("float", "int")}.get(self.takes, (elem.kind,))

    def result(
        self, elems: Sequence[Element], shapes: Sequence[Shape], keywords: Keywords
    ) -> tuple[Element, Shape]:
        """Returns the type of the result. Raises UnsupportedCall where no call is right, with the numbers."""
        self._check_keywords(keywords)
        if len(shapes) < self.tensors or (len(shapes) > self.tensors and not self.variable):
            raise UnsupportedCall(
                f"takes {self.tensors} tensor{'s' * (self.tensors > 1)}, here are {len(shapes)}"
            )
        if any(elems[i] is not I64 for i in self.indices):
            raise UnsupportedCall(f"takes i64 as its tensor {self.indices[0] + 1}, the index")
        elems = [e for i, e in enumerate(elems) if i not in self.indices]
        wrong = next((e for e in elems if not self.accepts(e)), None)
        if wrong is not None:
            raise UnsupportedCall(f"takes no {wrong.name}")
        if any(e is not elems[0] for e in elems):
            raise UnsupportedCall(
                f"takes tensors of one element type, here are {' and '.join(e.name for e in elems)}"
            )
        return self.gives(elems[0]), self.shape(shapes, keywords)

    def _check_keywords(self, keywords: Keywords) -> None:
        for name, value in keywords.items():
            expected = self.keywords.get(name)
            if expected is None:
                raise UnsupportedCall(f"has no argument named {name}")
            if type(value) is not expected:
                raise UnsupportedCall(
                    f"takes {'true or false' if expected is bool else 'a whole number'} as {name}"
                )
        missing = [name for name in self.required if name not in keywords]
        if missing:
            raise UnsupportedCall(f"needs {missing[0]}")


def _axis(shape: Shape, axis: float) -> None:
    """Raises UnsupportedCall unless `axis` is one of the shape's; a tensor without axes has one for torch."""
    rank = max(1, len(shape))
    if not -rank <= axis < rank:
        raise UnsupportedCall(
            f"has no axis {axis} in a tensor of {len(shape)} axes, whose are {-rank} to {rank - 1}"
        )


def _shape_along(name: str, default: int | None) -> Callable[[Sequence[Shape], Keywords], Shape]:
    """Returns the shape function of a function that keeps the shape and takes the axis `name`; without
    default and value it takes no axis."""

    def shape(shapes: Sequence[Shape], keywords: Keywords) -> Shape:
        axis = keywords.get(name, default)
        if axis is not None:
            _axis(shapes[0], axis)
        return shapes[0]

    return shape


def _same(shapes: Sequence[Shape], _: Keywords) -> Shape:
    return shapes[0]


def _triangle(shapes: Sequence[Shape], _: Keywords) -> Shape:
    if len(shapes[0]) < 2:
        raise UnsupportedCall(f"takes a tensor of two axes or more, here are {len(shapes[0])}")
    return shapes[0]


def _square(shapes: Sequence[Shape], keywords: Keywords) -> Shape:
    shape = _triangle(shapes, keywords)
    _equal(shape[-2], shape[-1], "takes square matrices")
    return shape


def _diagonal(shapes: Sequence[Shape], keywords: Keywords) -> Shape:
    off = int(keywords.get("diagonal", 0))
    match shapes[0]:
        case (None,):
            return (None, None)
        case (extent,) if extent is not None:
            return (_sum(extent, abs(off)),) * 2
        case (rows, columns):
            return (_of_matrix(rows, columns, off),)
    raise UnsupportedCall(f"takes one axis or two, here are {len(shapes[0])}")


def _of_matrix(rows: Extent | None, columns: Extent | None, off: int) -> Extent | None:
    """Returns the length of a diagonal; None where it is the lesser of two extents of a call."""
    match rows, columns:
        case Fixed(r), Fixed(c):
            length = min(r + min(off, 0), c - max(off, 0))
            if length < 1:
                raise UnsupportedCall(f"has no diagonal {off} of a matrix of {r} by {c}")
            return Fixed(length)
        case _ if rows is not None and columns is not None and agree(rows, columns):
            return _sum(rows, -abs(off))
    return None


def _product(shapes: Sequence[Shape], _: Keywords) -> Shape:
    left, right = shapes
    if not left or not right:
        raise UnsupportedCall("takes tensors of one axis or more")
    _equal(left[-1], right[-2] if len(right) > 1 else right[0], "sums over axes of one extent")
    return (*_broadcast(left[:-2], right[:-2]), *left[-2:-1], *(right[-1:] if len(right) > 1 else ()))


def _broadcast(left: Shape, right: Shape) -> Shape:
    wide = max(len(left), len(right))
    pairs = zip(*((Fixed(1),) * (wide - len(s)) + s for s in (left, right)), strict=True)
    return tuple(_broadcast_axis(a, b) for a, b in pairs)


def _broadcast_axis(a: Extent | None, b: Extent | None) -> Extent | None:
    if a == Fixed(1):
        return b
    if b == Fixed(1):
        return a
    if isinstance(a, Fixed) and isinstance(b, Fixed):
        _equal(a, b, "takes batches of one extent, or of 1")
    if a is not None and b is not None and agree(a, b):
        return a
    return a if isinstance(a, Fixed) else b if isinstance(b, Fixed) else None


def _equal(a: Extent | None, b: Extent | None, words: str) -> None:
    """Raises UnsupportedCall for extents that differ in every call."""
    if a is not None and b is not None and difference(a, b) not in (0, None):
        raise UnsupportedCall(f"{words}, these are {bare(a)} and {bare(b)}")


def _sum(extent: Extent, number: int) -> Extent:
    match extent:
        case Fixed(value):
            return Fixed(value + number)
    return Combined("+", extent, Fixed(number)) if number else extent


def _index(_: Element) -> Element:
    return I64


def _summed(elem: Element) -> Element:
    return elem if elem.kind == "float" else I64


def _scattered(shapes: Sequence[Shape], keywords: Keywords) -> Shape:
    """The first tensor's shape; the index reaches no farther than the source."""
    if len({len(shape) for shape in shapes}) != 1:
        raise UnsupportedCall("takes tensors of as many axes")
    _axis(shapes[0], keywords["dim"])
    for index, source in zip(shapes[1], shapes[2], strict=True):
        if isinstance(index, Fixed) and isinstance(source, Fixed) and index.value > source.value:
            raise UnsupportedCall(f"takes an index no longer than its source, here {bare(index)}")
    return shapes[0]


def _recurrence(states: int) -> Callable[[Sequence[Shape], Keywords], Shape]:
    """Returns the shape function of a recurrent layer of x, `states` initial states and weights."""

    def shape(shapes: Sequence[Shape], keywords: Keywords) -> Shape:
        runs = int(keywords["layers"]) * (2 if keywords.get("bidirectional") else 1)
        if len(shapes) - 1 - states not in (4 * runs, 2 * runs):
            raise UnsupportedCall(f"takes {4 * runs} weights, or {2 * runs} without biases")
        gives, x, state = int(keywords.get("gives", 0)), shapes[0], shapes[1]
        if len(x) != 3 or len(state) != 3 or not 0 <= gives <= states:
            raise UnsupportedCall(f"takes x and states of three axes, and gives results 0 to {states}")
        if gives:
            return shapes[gives]
        width = state[2]
        if width is not None and keywords.get("bidirectional"):
            width = Fixed(2 * width.value) if isinstance(width, Fixed) else None
        return (x[0], x[1], width)

    return shape


_LAYERS: Mapping[str, type[int] | type[bool]] = MappingProxyType(
    {"layers": int, "bidirectional": bool, "batch_first": bool, "gives": int}
)
_DIM: Mapping[str, type[int] | type[bool]] = MappingProxyType({"dim": int})
_DIAGONAL: Mapping[str, type[int] | type[bool]] = MappingProxyType({"diagonal": int})
_ORDER: Mapping[str, type[int] | type[bool]] = MappingProxyType({"dim": int, "descending": bool})
_ROLL: Mapping[str, type[int] | type[bool]] = MappingProxyType({"shifts": int, "dims": int})

_TABLE = (
    TorchFunction("argsort", "plain", _shape_along("dim", -1), _ORDER, gives=_index),
    TorchFunction("cumprod", "plain", _shape_along("dim", None), _DIM, ("dim",), gives=_summed),
    TorchFunction("cumsum", "plain", _shape_along("dim", None), _DIM, ("dim",), gives=_summed),
    TorchFunction("diag", "any", _diagonal, _DIAGONAL),
    TorchFunction("flip", "any", _shape_along("dims", 0), {"dims": int}),
    TorchFunction("gru", "float", _recurrence(1), _LAYERS, ("layers",), 3, True),
    TorchFunction("inverse", "wide float", _square, {}),
    TorchFunction("log_softmax", "float", _shape_along("dim", None), _DIM, ("dim",)),
    TorchFunction("lstm", "float", _recurrence(2), _LAYERS, ("layers",), 4, True),
    TorchFunction("matmul", "float", _product, {}, tensors=2),
    TorchFunction("relu", "number", _same, {}),
    TorchFunction("rnn_relu", "float", _recurrence(1), _LAYERS, ("layers",), 3, True),
    TorchFunction("rnn_tanh", "float", _recurrence(1), _LAYERS, ("layers",), 3, True),
    TorchFunction("roll", "any", _shape_along("dims", None), _ROLL, ("shifts",)),
    TorchFunction("scatter", "plain", _scattered, _DIM, ("dim",), 3, indices=(1,)),
    TorchFunction("scatter_add", "number", _scattered, _DIM, ("dim",), 3, indices=(1,)),
    TorchFunction("softmax", "float", _shape_along("dim", None), _DIM, ("dim",)),
    TorchFunction("sort", "plain", _shape_along("dim", -1), _ORDER),
    TorchFunction("tril", "plain", _triangle, _DIAGONAL),
    TorchFunction("triu", "plain", _triangle, _DIAGONAL),
)

RECURRENCES = frozenset({"gru", "lstm", "rnn_relu", "rnn_tanh"})
"""Functions that run step by step along an axis."""

TORCH_SIGNATURES: Mapping[str, TorchFunction] = MappingProxyType({f.name: f for f in _TABLE})
"""By name."""

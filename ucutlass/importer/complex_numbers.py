"""Complex tensors as tensors of real and imaginary parts, which lie beside each other in an axis behind all others.

Rotary positions are often complex products. Where every operator that complex values pass is one of those here, they
become operators of real tensors; other graphs are left as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx

_ATEN = torch.ops.aten

_VIEWS = (_ATEN.view.default, _ATEN._unsafe_view.default)

Rewrite: TypeAlias = Callable[["RealGraph", fx.Node], fx.Node]
"""Adds what gives the parts of a complex node, or the value of one that reads complex values; returns it."""


def parts_of(tensor: Tensor) -> Tensor:
    """Returns a complex tensor's parts, and another tensor as it is."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def is_complex(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.is_complex()


def with_real_parts(graph: fx.Graph, inputs_are_parts: bool = False) -> None:
    """Rewrites the operators of complex tensors, in place. With `inputs_are_parts` inputs of which only these operators
    read are given as `parts_of` gives them; else their parts are taken by a view."""
    rewritten = _rewritten(graph)
    if not rewritten:
        return
    real = RealGraph(graph, {})
    for node in list(graph.nodes):
        if (
            node.op == "placeholder"
            and inputs_are_parts
            and is_complex(node)
            and rewritten.issuperset(node.users)
        ):
            node.meta["val"] = parts_of(node.meta["val"])
            real.parts[node] = node
        if node not in rewritten:
            continue
        with graph.inserting_before(node):
            new = REWRITES[str(node.target)](real, node)
        if is_complex(node):
            real.parts[node] = new
        else:
            node.replace_all_uses_with(new)
    for node in reversed(list(graph.nodes)):
        if node in rewritten:
            graph.erase_node(node)


def _rewritten(graph: fx.Graph) -> set[fx.Node]:
    """Returns the nodes to rewrite: those with a rule, of which only such nodes read complex values."""
    rewritten = {node for node in graph.nodes if node.op == "call_function" and _has_rule(node)}
    while True:
        left = {
            node
            for node in rewritten
            if (not is_complex(node) or rewritten.issuperset(node.users))
            and not any(_is_lazy(source) for source in node.all_input_nodes if source not in rewritten)
        }
        if left == rewritten:
            return rewritten
        rewritten = left


def _has_rule(node: fx.Node) -> bool:
    """Returns whether a node gives or reads complex tensors, and a rule rewrites it."""
    sources = node.all_input_nodes
    if str(node.target) not in REWRITES or not (is_complex(node) or any(map(is_complex, sources))):
        return False
    if str(node.target) not in ALIKE:
        return not any(isinstance(argument, complex) for argument in node.args)
    operands = node.args[0] if isinstance(node.args[0], list | tuple) else node.args
    return all(isinstance(x, fx.Node) and is_complex(x) and not _is_empty(x) for x in operands)


def _is_empty(node: fx.Node) -> bool:
    return 0 in node.meta["val"].shape


def _is_lazy(node: fx.Node) -> bool:
    """Returns whether a complex tensor is the conjugate of what its memory holds, which has no view of its parts."""
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.is_complex() and value.is_conj()


@dataclass(slots=True)
class RealGraph:
    """A graph that is rewritten; `parts` has the parts of complex nodes."""

    graph: fx.Graph
    parts: dict[fx.Node, fx.Node]

    def is_complex(self, node: fx.Node) -> bool:
        """Returns whether a node was complex before the rewriting."""
        return node in self.parts or is_complex(node)

    def of(self, node: fx.Node) -> fx.Node:
        """Returns the parts of a complex node; of one that stays, by a view."""
        if node not in self.parts:
            self.parts[node] = self.add(node, _ATEN.view_as_real.default, node)
        return self.parts[node]

    def add(self, origin: fx.Node, operator: Any, *arguments: Any, **keywords: Any) -> fx.Node:
        """Adds an operator, whose line and module are those of `origin`."""
        node = self.graph.call_function(operator, arguments, keywords)
        example = origin.meta["val"]
        node.meta = {name: value for name, value in origin.meta.items() if name != "tensor_meta"}
        values = fx.map_arg((arguments, keywords), lambda source: source.meta["val"])
        with example.fake_mode:
            node.meta["val"] = operator(*values[0], **values[1])
        return node

    def joined(self, origin: fx.Node, real: fx.Node, imaginary: fx.Node) -> fx.Node:
        """Adds what has these parts, in the memory order of the complex node `origin`."""
        order = _memory_order(origin.meta["val"])
        both = [self.add(origin, _ATEN.permute.default, part, order) for part in (real, imaginary)]
        whole = self.add(
            origin,
            _ATEN.cat.default,
            [self.add(origin, _ATEN.unsqueeze.default, part, -1) for part in both],
            -1,
        )
        back = sorted(range(len(order)), key=order.__getitem__)
        return self.add(origin, _ATEN.permute.default, whole, [*back, len(order)])

    def split(self, origin: fx.Node, node: fx.Node) -> tuple[fx.Node, fx.Node]:
        """Adds both parts of a complex node."""
        whole = self.of(node)
        real, imaginary = (self.add(origin, _ATEN.select.int, whole, -1, part) for part in (0, 1))
        return real, imaginary


def _memory_order(value: Tensor) -> list[int]:
    """Returns the axes by falling stride, as they are for the extents with which the graph was traced."""
    strides = [stride.node.hint if isinstance(stride, torch.SymInt) else stride for stride in value.stride()]
    if any(stride is None for stride in strides):
        return list(range(len(strides)))
    return sorted(range(len(strides)), key=lambda axis: -strides[axis])


def _rank(node: fx.Node) -> int:
    value: Tensor = node.meta["val"]
    return value.dim()


def _moved(real: RealGraph, node: fx.Node, *, more: int = 0) -> fx.Node:
    """An operator that moves elements: its axes count from the front, and its shape has the axis of parts too; `more`
    axes may be counted than the tensor has."""
    traced: Any = node.target
    names = [argument.name for argument in traced._schema.arguments]
    named = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    named.pop("memory_format", None)  # of a tensor of fewer axes
    first, *_ = node.all_input_nodes
    rank = max(_rank(first) + more, 1)
    for name in ("dim", "dim0", "dim1", "dims"):
        match named.get(name):
            case int() as axis:
                named[name] = axis % rank
            case list() | tuple() as axes:
                named[name] = [axis % rank for axis in axes]
    if names[0] == "tensors":
        named["dim"] = named.get("dim", 0)
    if node.target is _ATEN.permute.default:
        named["dims"] = [*named["dims"], rank]
    for name in ("size", "shape"):
        if name in named:
            named[name] = [*named[name], 2]
    values = dict(fx.map_arg(named, lambda source: real.of(source) if real.is_complex(source) else source))
    positional = [values.pop(name) for name in names[: len(node.args)]]
    # Parts need not lie as the complex tensor does, of which the traced operator is a view.
    operator = _ATEN.reshape.default if node.target in _VIEWS else node.target
    return real.add(node, operator, *positional, **values)


def _both(real: RealGraph, node: fx.Node) -> fx.Node:
    """An operator of each element by itself, of complex tensors alone or with numbers that are real."""
    return real.add(node, node.target, *fx.map_arg(node.args, real.of), **node.kwargs)


def _product(real: RealGraph, node: fx.Node) -> fx.Node:
    """A product; of a complex tensor and a real one, or a real number, each part is multiplied by it."""
    factors = [factor for factor in node.args if isinstance(factor, fx.Node) and real.is_complex(factor)]
    if len(factors) < 2:
        return real.add(node, node.target, *(_wide(real, node, factor) for factor in node.args))
    (a, b), (c, d) = (real.split(node, factor) for factor in factors)
    multiplied = partial(real.add, node, _ATEN.mul.Tensor)
    return real.joined(
        node,
        real.add(node, _ATEN.sub.Tensor, multiplied(a, c), multiplied(b, d)),
        real.add(node, _ATEN.add.Tensor, multiplied(a, d), multiplied(b, c)),
    )


def _wide(real: RealGraph, node: fx.Node, factor: Any) -> Any:
    """Returns a complex factor's parts, a real tensor with an axis for them, a number as it is."""
    if not isinstance(factor, fx.Node):
        return factor
    if real.is_complex(factor):
        return real.of(factor)
    # A tensor without axes leaves the element type of the other one alone, as a number does.
    return real.add(node, _ATEN.unsqueeze.default, factor, -1) if _rank(factor) else factor


def _conjugate(real: RealGraph, node: fx.Node) -> fx.Node:
    a, b = real.split(node, node.all_input_nodes[0])
    return real.joined(node, a, real.add(node, _ATEN.neg.default, b))


def _polar(real: RealGraph, node: fx.Node) -> fx.Node:
    length, angle = node.args
    sides = [real.add(node, f, angle) for f in (_ATEN.cos.default, _ATEN.sin.default)]
    return real.joined(node, *(real.add(node, _ATEN.mul.Tensor, length, side) for side in sides))


def _complex(real: RealGraph, node: fx.Node) -> fx.Node:
    a, b = node.args
    assert isinstance(a, fx.Node) and isinstance(b, fx.Node)
    return real.joined(node, a, b)


def _as_complex(real: RealGraph, node: fx.Node) -> fx.Node:
    return node.all_input_nodes[0]


def _as_real(real: RealGraph, node: fx.Node) -> fx.Node:
    return real.of(node.all_input_nodes[0])


def _named(names: Sequence[str], rewrite: Rewrite) -> dict[str, Rewrite]:
    return {f"aten.{name}": rewrite for name in names}


REWRITES: Mapping[str, Rewrite] = MappingProxyType(
    {
        **_named(
            (
                "alias.default",
                "cat.default",
                "clone.default",
                "detach.default",
                "expand.default",
                "index.Tensor",
                "permute.default",
                "reshape.default",
                "select.int",
                "slice.Tensor",
                "squeeze.dim",
                "squeeze.dims",
                "transpose.int",
                "view.default",
                "_unsafe_view.default",
            ),
            _moved,
        ),
        **_named(("stack.default", "unsqueeze.default"), partial(_moved, more=1)),
        **_named(("neg.default", "sub.Tensor", "add.Tensor"), _both),
        **_named(("_conj.default", "_conj_physical.default", "conj_physical.default"), _conjugate),
        "aten.complex.default": _complex,
        "aten.mul.Tensor": _product,
        "aten.polar.default": _polar,
        "aten.view_as_complex.default": _as_complex,
        "aten.view_as_real.default": _as_real,
    }
)
"""The rewrite of each operator that complex values may pass, by the overload's name."""

ALIKE = frozenset(
    f"aten.{name}" for name in ("add.Tensor", "cat.default", "neg.default", "stack.default", "sub.Tensor")
)
"""Those of which every operand is complex."""

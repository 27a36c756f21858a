"""The value graph under construction: equal subexpressions become one node."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any, TypeVar, cast, get_args

from ucutlass.ir import Value, children
from ucutlass.limits import DEPTH, NODES, Effort, within

V = TypeVar("V", bound=Value)


class Graph:
    """Interns value nodes by their fields, children by identity. `effort` counts the expressions that the
    file's programs are made of, functions expanded; `level` how many are open, one inside the other."""

    def __init__(self, effort: Effort | None = None) -> None:
        self.effort = effort or Effort()
        self.level = 0
        self._nodes: dict[Hashable, Value] = {}
        self._depth: dict[int, int] = {}

    def add(self, node: V) -> V:
        """The node itself, or the equal one added before.

        Raises LimitPassed.
        """
        key = (
            type(node),
            *(_key(getattr(node, f.name)) for f in dataclasses.fields(node) if f.name != "span"),
        )
        existing = self._nodes.get(key)
        if existing is not None:
            return cast(V, existing)  # the key holds the type
        depth = 1 + max((self._depth.get(id(c), 0) for c in children(node)), default=0)
        within(NODES, len(self._nodes) + 1)
        within(DEPTH, depth)
        self._nodes[key] = node
        self._depth[id(node)] = depth
        return node


def _key(part: Any) -> Hashable:
    if isinstance(part, tuple):
        return tuple(_key(p) for p in part)
    if dataclasses.is_dataclass(part) and isinstance(part, get_args(Value)):
        return id(part)
    if isinstance(part, (bool, int, float)):
        return (type(part), repr(part))
    hashable: Hashable = part
    return hashable

"""Walks over typed values, which share nodes: each is met once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from ucutlass import ir

V = TypeVar("V")


def walk(
    *roots: ir.Value, into: Callable[[ir.Value], Sequence[ir.Value]] = ir.children
) -> Iterator[ir.Value]:
    """Every node from the roots down once, in the order of a depth-first search; of a node it goes on with
    what `into` says."""
    visited: set[int] = set()
    stack = list(reversed(roots))
    while stack:
        node = stack.pop()
        if id(node) not in visited:
            visited.add(id(node))
            yield node
            stack += reversed(into(node))


def upwards(
    *roots: ir.Value, into: Callable[[ir.Value], Sequence[ir.Value]] = ir.children
) -> Iterator[ir.Value]:
    """Every node from the roots down once, each after what it is computed from: what `into` says."""
    done: set[int] = set()
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif id(node) not in done:
            done.add(id(node))
            stack.append((node, True))
            stack += [(child, False) for child in reversed(into(node))]


def find(kernel: ir.Kernel, kind: type[V]) -> list[V]:
    """The kernel's nodes of one kind."""
    return [node for node in walk(*(r.value for r in kernel.results)) if isinstance(node, kind)]

"""What recognition says of a kernel that no family serves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from ucutlass import ir
from ucutlass.diagnostics import Diagnostic
from ucutlass.grammar.syntax import Span

V = TypeVar("V")


class Refused(Exception):
    """No family runs this kernel in one launch; `diagnostic` says why and where to cut."""

    def __init__(self, code: str, message: str, span: Span, hint: str | None = None) -> None:
        super().__init__(message)
        self.diagnostic = Diagnostic(code, message, span, hint)

    @classmethod
    def no_family(cls, kernel: ir.Program, what: str, span: Span | None = None) -> Refused:
        """The one place that says that a family is still to come."""
        return cls(
            "UC0300", f"no kernel family for this yet: {what}", span or kernel.span,
            "one launch has no dot; one, of two stored operands or of a window; two over one operand; or two "
            "with a softmax between them: cut, in a pipeline: h: f32[..] = ..",
        )


def walk(*roots: ir.Value) -> Iterator[ir.Value]:
    """Every node below the roots once, in the order of a depth-first search."""
    seen: set[int] = set()
    stack = list(reversed(roots))
    while stack:
        node = stack.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            stack += reversed(ir.children(node))


def upwards(*roots: ir.Value) -> Iterator[ir.Value]:
    """Every node below the roots once, each after what it is computed from."""
    done: set[int] = set()
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif id(node) not in done:
            done.add(id(node))
            stack.append((node, True))
            stack += [(child, False) for child in reversed(ir.children(node))]


def find(kernel: ir.Kernel, kind: type[V]) -> list[V]:
    """The kernel's nodes of one kind."""
    return [node for node in walk(*(r.value for r in kernel.results)) if isinstance(node, kind)]

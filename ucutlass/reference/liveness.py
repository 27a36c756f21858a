"""The order in which the values of a program are computed, and the last use of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ucutlass.ir import Cast, Dot, Gather, Read, Value, children
from ucutlass.ir.elements import TF32
from ucutlass.ir.traversal import upwards


def unrealised(operand: Value) -> bool:
    """Returns whether a dot takes this operand without materialising it: a read, one that is rounded to TF32 and
    fills with 0, or a gather by one-dimensional ids."""
    match operand:
        case Read():
            return True
        case Cast(value=Read(fill=fill), elem=elem):
            return elem is TF32 and fill == 0
        case Gather(value=inner, ids=ids):
            return len(ids.dims) == 1 and ids.dims[0] not in inner.dims
        case _:
            return False


def window_source(operand: Value) -> Value:
    """Returns what an unrealised operand is read from."""
    match operand:
        case Cast(value=Read(value=inner)) | Read(value=inner) | Gather(value=inner):
            return inner
        case _:
            raise AssertionError("only reads and gathers are unrealised")


def sources(node: Value) -> tuple[Value, ...]:
    """Returns the values that must exist for this one: its children or, of a dot's unrealised operand, that
    operand's children."""
    if not isinstance(node, Dot):
        return children(node)
    return tuple(s for c in children(node) for s in (_read_from(c) if unrealised(c) else (c,)))


def _read_from(operand: Value) -> tuple[Value, ...]:
    return children(operand.value if isinstance(operand, Cast) else operand)


def steps(roots: Sequence[Value]) -> Iterator[tuple[Value, tuple[Value, ...]]]:
    """Yields every value to compute, once and after its sources, each with the values whose last use it is.
    The roots are never released."""
    order = list(upwards(*roots, into=sources))
    last = {source: node for node in order for source in sources(node)}
    ending: dict[Value, list[Value]] = {}
    for source, node in last.items():
        if source not in roots:
            ending.setdefault(node, []).append(source)
    return ((node, tuple(ending.get(node, ()))) for node in order)

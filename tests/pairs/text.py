"""The text of a kernel, from its tensors: what the generators of pairs share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tests.pairs.pairs import Program

Axis: TypeAlias = str | tuple[str, ...]
"""A dimension's name, those of a composite axis, or what stands in a type as it is, such as `1` or `E+1`."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A parameter or a result; `axes` None is a number that the host passes."""

    name: str
    elem: str
    axes: tuple[Axis, ...] | None


def kernel(
    parameters: Sequence[Stored],
    results: Sequence[tuple[Stored, str]],
    bindings: Sequence[str],
    extents: Mapping[str, int],
    schedule: str = "",
    functions: str = "",
) -> Program:
    """The program of a kernel `k` whose results have these values, with `extents` of all its dimensions.

    An extent that no call tells is written at the first place of its name: of a dimension of results alone,
    and of all but the first unknown name of a composite axis.
    """
    tensors = (*parameters, *(result for result, _ in results))
    fixed = _untold(parameters, tensors) & extents.keys()
    types = list(_types(tensors, {d: extents[d] for d in fixed}))
    head = ", ".join(f"{p.name}: {t}" for p, t in zip(parameters, types, strict=False))
    shown = types[len(parameters) :]
    if len(results) == 1:
        result, returned = shown[0], results[0][1]
    else:
        result = f"({', '.join(f'{r.name}: {t}' for (r, _), t in zip(results, shown, strict=True))})"
        returned = ", ".join(f"{r.name} = {value}" for r, value in results)
    lines = "".join(f"  {line}\n" for line in (*bindings, f"return {returned}"))
    block = f"  schedule sm90a {{ {schedule} }}\n" if schedule else ""
    free = {d: extents[d] for d in dict.fromkeys(d for t in tensors for d in _names(t)) if d in extents}
    return Program(
        f"{functions}kernel k({head}) -> {result} {{\n{lines}{block}}}\n",
        {d: n for d, n in free.items() if d not in fixed},
    )


def _names(stored: Stored) -> Iterator[str]:
    for axis in stored.axes or ():
        yield from (axis,) if isinstance(axis, str) else axis


def _untold(parameters: Sequence[Stored], tensors: Sequence[Stored]) -> set[str]:
    """The names whose extents a call's tensors do not tell."""
    axes = [axis for parameter in parameters for axis in parameter.axes or ()]
    known = {axis for axis in axes if isinstance(axis, str)}
    fixed: set[str] = set()
    for axis in axes:
        if not isinstance(axis, str):
            unknown = [d for d in axis if d not in known]
            fixed |= set(unknown[1:])
            known |= set(axis)
    return fixed | {d for tensor in tensors for d in _names(tensor)} - known


def _types(tensors: Sequence[Stored], fixed: Mapping[str, int]) -> Iterator[str]:
    """The types in their order, each fixed extent at the first place of its name."""
    left = dict(fixed)

    def name(dim: str) -> str:
        return f"{dim}={left.pop(dim)}" if dim in left else dim

    for tensor in tensors:
        axes = [name(a) if isinstance(a, str) else f"({' '.join(map(name, a))})" for a in tensor.axes or ()]
        yield tensor.elem if tensor.axes is None else f"{tensor.elem}[{', '.join(axes)}]"

"""Parses and checks concrete extents for a program: from `M=4096,N=4096` to the array of extents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

from ucutlass import ir
from ucutlass.check.fold import fold
from ucutlass.ir import extents
from ucutlass.ir.extents import Extent, Free
from ucutlass.limits import ELEMENTS

MAX_ELEMENTS = 2**40
"""The largest extent of a call; TMA's strides end there."""


_MOST_DIGITS = 40
"""Python refuses to read numbers of thousands of digits."""

_PART = re.compile(r"\s*([^\W\d]\w*)=([0-9]+)\s*")
"""The digits are those of ASCII: no sign, no underscore, no blank, no other base."""


class ShapeError(Exception):
    """Extents do not fit a program: `code` is one of UC0601 to UC0603, or a limit's, UC0709 and
    UC0710."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{message} [{code}]")
        self.code = code
        self.words = message


def free_dims(program: ir.Program) -> tuple[str, ...]:
    """Returns the dimensions whose extents a call must give, in the program's order."""
    return tuple(name for name, extent in program.dims.items() if extent == Free(name))


def parse_sizes(texts: Iterable[str]) -> dict[str, int]:
    """Returns `["M=4096,N=8", "K=64"]` as a mapping.

    Raises ShapeError UC0601 for anything that is not NAME=DIGITS, and for two extents of one name.
    """
    sizes: dict[str, int] = {}
    for part in (p.strip() for text in texts for p in text.split(",")):
        match = _PART.fullmatch(part)
        if match is None:
            words = f"{part[:60]!r} is not of the form NAME=DIGITS, with the digits 0 to 9"
            raise ShapeError("UC0601", f"{words}, as in -s M=4096,N=4096")
        name, number = match.groups()
        if len(number) > _MOST_DIGITS:
            raise ShapeError("UC0601", f"{name[:60]} has {len(number)} digits; an extent is at most 2**40")
        if name in sizes:
            raise ShapeError("UC0601", f"{name[:60]} is given twice, as {sizes[name]} and as {int(number)}")
        sizes[name] = int(number)
    return sizes


def complete(program: ir.Program, bound: Mapping[str, int]) -> tuple[int, ...]:
    """Returns every extent in the order of `program.dims`.

    Raises ShapeError: UC0601 for a missing, unknown or non-positive extent, UC0602 where a given one
    contradicts the program, UC0603 where a requirement fails, UC0710 for too large a tensor.
    """
    sizes: dict[str, int] = {}
    for name in free_dims(program):
        if name not in bound:
            raise ShapeError("UC0601", f"the extent of {name} is missing; give -s {name}=..")
        sizes[name] = bound[name]
    for name, extent in program.dims.items():
        if extent != Free(name):
            sizes[name] = _evaluated(name, extent, sizes)
            if bound.get(name, sizes[name]) != sizes[name]:
                raise ShapeError(
                    "UC0602", f"{name} is {sizes[name]} by the program and {bound[name]} as given"
                )
    unknown = [name for name in bound if name not in program.dims]
    if unknown:
        raise ShapeError(
            "UC0601", f"{program.name} has no dimension {unknown[0]}; it has {', '.join(program.dims)}"
        )
    for name, value in sizes.items():
        if not 1 <= value <= MAX_ELEMENTS:
            raise ShapeError("UC0601", f"{name} is {value}; an extent is at least 1 and at most 2**40")
    _check_elements(program, sizes)
    check_requirements(program, sizes)
    return tuple(sizes[name] for name in program.dims)


def _evaluated(name: str, extent: Extent, sizes: Mapping[str, int]) -> int:
    try:
        return extents.evaluate(extent, sizes)
    except ZeroDivisionError:
        words = f"{name} = {extents.show(extent)} divides by zero at these extents"
        raise ShapeError("UC0601", words) from None


def _check_elements(program: ir.Program, sizes: Mapping[str, int]) -> None:
    """Raises ShapeError UC0710 for a tensor with more elements than 64 bits number."""
    types = [p.type for p in program.params if isinstance(p.type, ir.TensorType)]
    if isinstance(program, ir.Pipeline):
        types += [type_ for _, type_ in (*program.buffers, *program.results)]
    else:
        types += [r.type for r in program.results]
    for type_ in types:
        elements = prod(
            prod(sizes[d] for d in axis.dims) if axis.dims else _evaluated("an axis", axis.extent, sizes)
            for axis in type_.axes
        )
        if elements > ELEMENTS.most:
            raise ShapeError(ELEMENTS.code, f"{ELEMENTS.message(elements)}: {ELEMENTS.hint}")


def check_requirements(program: ir.Program, sizes: Mapping[str, int]) -> None:
    """Raises ShapeError UC0603 where a kernel's requirement does not hold; `sizes` has every extent."""
    if isinstance(program, ir.Kernel):
        for number, condition in enumerate(program.requires, 1):
            if not holds(condition, sizes):
                shown = ", ".join(f"{n}={v}" for n, v in sizes.items())
                raise ShapeError(
                    "UC0603", f"requirement {number} of {program.name} does not hold for {shown}"
                )


def holds(condition: ir.Value, sizes: Mapping[str, int]) -> bool:
    """Returns whether a guard or requirement holds for concrete extents; one that divides by zero does
    not."""
    return bool(_evaluate(condition, sizes))


def _evaluate(value: ir.Value, sizes: Mapping[str, int]) -> Any:
    match value:
        case ir.Constant(number):
            return number
        case ir.Size(extent):
            return extents.evaluate(extent, sizes)
        case ir.Apply(function, args):
            operands = tuple(_evaluate(a, sizes) for a in args)
            return None if None in operands else fold(function, operands, as_float=False)
    raise AssertionError(f"a condition holds no {type(value).__name__}: the checker refuses it")

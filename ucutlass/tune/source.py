"""A winner's schedule into the text of its program, guarded by the extents it was measured at."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

from ucutlass import frontend, ir
from ucutlass.grammar import syntax
from ucutlass.grammar.format import format_file
from ucutlass.grammar.parse import parse
from ucutlass.hardware import Device
from ucutlass.planner import Planned
from ucutlass.schedule import Request, Value
from ucutlass.shapes import complete, free_dims


class NotWritten(Exception):
    """The program with the new schedule would not become the kernel that was measured."""


def with_schedule(
    checked: frontend.Checked, program: ir.Kernel, sizes: Mapping[str, int], winner: Planned,
    device: Device | None,
) -> str:
    """The whole file in canonical form (`ucc fmt`), with the winner's schedule in front of the kernel's
    others for exactly these extents; a block that has that condition already is replaced.

    `sizes` has the free dimensions by name. Raises NotWritten.
    """
    when = _guard({name: sizes[name] for name in free_dims(program)})
    block = syntax.Schedule(winner.plan.arch, when, _fields(winner.request))
    tree = parse(checked.source)

    def scheduled(item: syntax.Item) -> syntax.Item:
        mine = isinstance(item, syntax.Program) and item.name == program.name
        return replace(item, body=_placed(item.body, block)) if mine else item

    text = format_file(replace(tree, items=tuple(map(scheduled, tree.items))))
    again = frontend.read_text(text, checked.file)
    kernel = frontend.kernel(again, program.name)
    found = frontend.plan_kernel(again, kernel, complete(kernel, sizes), winner.plan.arch, device).planned
    if found.request != winner.request or found.plan != winner.plan:
        raise NotWritten(f"{checked.file}: the schedule, once written, is planned as another kernel")
    return text


def _placed(body: tuple[syntax.Statement, ...], block: syntax.Schedule) -> tuple[syntax.Statement, ...]:
    """Before every other block, since the first condition that holds wins. A block without a condition
    takes the place of all others of its architecture: none behind it could be chosen."""

    def replaced(s: syntax.Statement) -> bool:
        mine = isinstance(s, syntax.Schedule) and s.arch == block.arch
        return mine and (block.when is None or s.when == block.when)  # type: ignore[union-attr]

    kept = [s for s in body if not replaced(s)]
    at = next((i for i, s in enumerate(kept) if isinstance(s, syntax.Schedule)), len(kept))
    return (*kept[:at], block, *kept[at:])


def _guard(sizes: Mapping[str, int]) -> syntax.Expr | None:
    """`M == 4096 and N == 4096`; None where a call decides nothing."""
    equal: list[syntax.Expr] = [
        syntax.Binary("==", syntax.Name(name), syntax.Number(value, str(value)))
        for name, value in sizes.items()
    ]
    return functools.reduce(lambda a, b: syntax.Binary("and", a, b), equal) if equal else None


def _fields(request: Request) -> tuple[syntax.Field, ...]:
    return tuple(syntax.Field(name, (_value(value),)) for name, value in request.given().items())


def _value(value: Value) -> syntax.FieldValue:
    match value:
        case tuple():
            return syntax.ShapeValue(value)
        case int():
            return syntax.IntValue(value)
        case _:
            return syntax.WordValue(value)

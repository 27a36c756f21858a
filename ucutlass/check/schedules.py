"""Schedule blocks: guards, fields and their alternatives."""

from __future__ import annotations

from collections.abc import Callable

from ucutlass import ir
from ucutlass.check import expressions
from ucutlass.check.scope import Cascade, Reject, Scope, did_you_mean
from ucutlass.grammar import syntax
from ucutlass.ir.hardware import ARCHES
from ucutlass.ir.schedule import FIELDS, fits, legal_values, show_value


def check_blocks(
    blocks: list[syntax.Schedule], scope: Scope, reject: Callable[[Reject], None]
) -> tuple[ir.ScheduleBlock, ...]:
    """Every block that is sound; findings go to `reject`."""
    unconditional: dict[str, syntax.Schedule] = {}
    schedules = []
    for block in blocks:
        try:
            if block.arch not in ARCHES:
                raise Reject(
                    "UC0401",
                    f"no architecture is named {block.arch}",
                    block.arch_span,
                    did_you_mean(block.arch, ARCHES) or "one of " + " ".join(ARCHES),
                )
            earlier = unconditional.get(block.arch)
            if earlier is not None and block.when is not None:
                raise Reject(
                    "UC0404",
                    "this block can never be chosen: the first condition that holds wins, and an earlier "
                    "block always holds",
                    block.when.span,
                    "write the block without a condition last",
                    (("the earlier block", earlier.arch_span),),
                )
            guard = None if block.when is None else expressions.truth(block.when, scope)
            if block.when is None:
                unconditional.setdefault(block.arch, block)
            schedules.append(ir.ScheduleBlock(block.arch, guard, _choices(block, reject), block.arch_span))
        except Reject as problem:
            reject(problem)
        except Cascade:
            pass
    return tuple(schedules)


def _choices(block: syntax.Schedule, reject: Callable[[Reject], None]) -> tuple[ir.Choice, ...]:
    choices: dict[str, ir.Choice] = {}
    for field in block.fields:
        try:
            choices[field.name] = _choice(field, choices, block.arch)
        except Reject as problem:
            reject(problem)
    return tuple(choices.values())


def _choice(field: syntax.Field, earlier: dict[str, ir.Choice], arch: str) -> ir.Choice:
    spec = FIELDS.get(field.name)
    if spec is None:
        raise Reject(
            "UC0402",
            f"no schedule field is named {field.name}",
            field.name_span,
            did_you_mean(field.name, FIELDS) or "one of " + " ".join(FIELDS),
        )
    if field.name in earlier:
        raise Reject(
            "UC0406",
            f"{field.name} is given twice in one block",
            field.name_span,
            "alternatives stand behind one name: a or b",
        )
    if spec.hopper and not ARCHES[arch].wgmma:
        raise Reject(
            "UC0402",
            f"{field.name} is a field of Hopper's kernels, not of {arch}",
            field.name_span,
            "leave it out",
        )
    return ir.Choice(field.name, tuple(_value(field, v) for v in field.alternatives), field.span)


def _value(field: syntax.Field, value: syntax.FieldValue) -> int | str | tuple[int, ...]:
    match value:
        case syntax.ShapeValue(sizes):
            plain: int | str | tuple[int, ...] = sizes
        case syntax.IntValue(number):
            plain = number
        case syntax.WordValue(word):
            plain = word
    spec = FIELDS[field.name]
    if not fits(spec, plain):
        raise Reject(
            "UC0403",
            f"{field.name} cannot be {show_value(plain)}",
            value.span,
            f"{field.name} takes {legal_values(spec)}",
        )
    return plain

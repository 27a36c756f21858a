"""This module writes a winner's schedule into the text of its program, guarded by the extents it was measured
at."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Literal, TypeAlias

from ucutlass import frontend, ir
from ucutlass.diagnostics import ProgramError
from ucutlass.grammar import syntax
from ucutlass.grammar.format import format_file
from ucutlass.grammar.parse import check_length
from ucutlass.grammar.problems import SyntaxProblem
from ucutlass.ir.hardware import Device
from ucutlass.ir.schedule import PartialSchedule, Value
from ucutlass.kernels.planned import Planned
from ucutlass.pipeline.names import written_stage
from ucutlass.pipeline.planning import PipelinePlan, plan_pipeline
from ucutlass.shapes import complete, free_dims


class ScheduleNotWritten(Exception):
    """Raised where the program with the new schedule would not become the kernel that was measured."""


MOST_IN_GUARD = 64
"""Shapes of one condition; the grammar reads expressions of at most 100 levels."""

_MOST_EXPANDED = 4096
"""Shapes that a condition in the file is read as at most, before it counts as another kind."""

Sizes: TypeAlias = Mapping[str, int]


def with_schedule(
    checked: frontend.Checked, program: ir.Kernel, sizes: Sizes, winner: Planned, device: Device | None
) -> str:
    """Does as `with_schedules`, for one shape."""
    return with_schedules(checked, program, [(sizes, winner)], device)


def with_schedules(
    checked: frontend.Checked,
    program: ir.Kernel,
    winners: Sequence[tuple[Sizes, Planned]],
    device: Device | None,
) -> str:
    """Returns the whole file in canonical form (`ucc fmt`), with a block for each schedule of the winners in
    front of the kernel's others, for exactly the extents that it won at; blocks for some of these extents
    alone are replaced.

    Each winner's extents are its free dimensions by name, no shape twice. Raises ScheduleNotWritten.
    """
    again = _rewritten(checked, program.name, None, free_dims(program), winners)
    kernel = frontend.kernel(again, program.name)
    for sizes, winner in winners:
        chosen = frontend.plan_kernel(again, kernel, complete(kernel, sizes), winner.plan.arch, device)
        _check_same_kernel(checked, winner, chosen.planned)
    return _text(again)


def with_stage_schedule(
    checked: frontend.Checked,
    pipeline: ir.Pipeline,
    plan: PipelinePlan,
    number: int,
    winner: Planned,
    device: Device | None,
) -> str:
    """Does as `with_schedule`, for the stage of this number in a plan of the pipeline, at the plan's extents:
    a block for the stage, or where it calls a kernel of the file a block of that kernel.

    Raises ScheduleNotWritten; also for a torch function, and where the memory orders that the text leaves to the
    compiler would be chosen otherwise, so that the stage became another kernel.
    """
    step = plan.sized.steps[number]
    if step.kernel is None:
        raise ScheduleNotWritten(f"{checked.file}: {step.name} is a torch function, which has no schedule")
    stage = written_stage(pipeline, plan.orders, step)
    names = free_dims(step.kernel)
    winners = [(dict(zip(step.kernel.dims, step.sizes, strict=True)), winner)]
    if any(stage.call is program for program in checked.module.programs):
        again = _rewritten(checked, step.kernel.name, None, names, winners)
    else:
        again = _rewritten(checked, pipeline.name, _named(stage.outputs[0]), names, winners)
    scheduled = frontend.program(again, pipeline.name)
    assert isinstance(scheduled, ir.Pipeline)
    try:
        chosen = plan_pipeline(again, scheduled, plan.sizes, winner.plan.arch, device).stages[number].chosen
    except ProgramError as problem:
        raise ScheduleNotWritten(
            f"{checked.file}: with the schedule the pipeline does not plan: {problem}"
        ) from None
    _check_same_kernel(checked, winner, None if chosen is None else chosen.planned)
    return _text(again)


def _text(rewritten: frontend.Checked) -> str:
    text = format_file(rewritten.tree)
    try:
        check_length(text)
    except SyntaxProblem as problem:
        raise ScheduleNotWritten(f"{rewritten.file}: {problem.problems[0].message}") from None
    return text


def _named(output: str) -> syntax.StageName:
    """Returns the stage that fills a buffer, as the pipeline's own text names it."""
    first, _, rest = output.partition(" ")
    return syntax.StageName(rest or None, True) if first == "return" else syntax.StageName(output)


def _check_same_kernel(checked: frontend.Checked, winner: Planned, replanned: Planned | None) -> None:
    if replanned is None or replanned.request != winner.request or replanned.plan != winner.plan:
        raise ScheduleNotWritten(f"{checked.file}: the schedule, once written, is planned as another kernel")


def _rewritten(
    checked: frontend.Checked,
    program: str,
    stage: syntax.StageName | None,
    names: Sequence[str],
    winners: Sequence[tuple[Sizes, Planned]],
) -> frontend.Checked:
    """Returns the file with the winners' blocks in a program, of a stage if it is a pipeline; `names` are the
    dimensions that tell calls apart. Its spans are those of the text before, which diagnostics quote."""
    groups: dict[PartialSchedule, list[tuple[Sizes, Planned]]] = {}
    for sizes, winner in winners:
        groups.setdefault(winner.request, []).append(({name: sizes[name] for name in names}, winner))
    blocks = tuple(
        syntax.Schedule(
            part[0][1].plan.arch, _guard([sizes for sizes, _ in part]), _fields(request), stage=stage
        )
        for request, mine in groups.items()
        for part in (mine[at : at + MOST_IN_GUARD] for at in range(0, len(mine), MOST_IN_GUARD))
    )
    shapes = {tuple(sizes[name] for name in names) for sizes, _ in winners}

    def scheduled(item: syntax.Item) -> syntax.Item:
        mine = isinstance(item, syntax.Program) and item.name == program
        return replace(item, body=_placed(item.body, blocks, names, shapes)) if mine else item

    tree = replace(checked.tree, items=tuple(map(scheduled, checked.tree.items)))
    return frontend.checked_tree(tree, checked.source, checked.file)


def _placed(
    body: tuple[syntax.Statement, ...],
    blocks: tuple[syntax.Schedule, ...],
    names: Sequence[str],
    shapes: Set[tuple[int, ...]],
) -> tuple[syntax.Statement, ...]:
    """Puts the blocks before every other block, since the first condition that holds wins. What no call could
    reach any more goes: a block for some of these shapes alone, and where there are no dimensions to tell
    calls apart, every other one of the architecture and the stage."""

    def reached(s: syntax.Statement) -> bool:
        if not isinstance(s, syntax.Schedule) or (s.arch, s.stage) != (blocks[0].arch, blocks[0].stage):
            return True
        if not names:
            return False
        listed = None if s.when is None else _shapes(s.when)
        return listed is None or not all(
            set(extents) == set(names) and tuple(extents[name] for name in names) in shapes
            for extents in listed
        )

    remaining = [s for s in body if reached(s)]
    at = next((i for i, s in enumerate(remaining) if isinstance(s, syntax.Schedule)), len(remaining))
    return (*remaining[:at], *blocks, *remaining[at:])


def _guard(shapes: Sequence[Sizes]) -> syntax.Expr | None:
    """Returns a condition such as `N == 4096 and (M == 1 or M == 64)`: what all shapes have in common first;
    None where a call decides nothing."""
    first = shapes[0]
    same = [name for name in first if all(sizes[name] == first[name] for sizes in shapes)]
    terms = [_equal(name, first[name]) for name in same]
    if len(same) < len(first):
        others = [{n: v for n, v in sizes.items() if n not in same} for sizes in shapes]
        terms.append(_joined("or", [_joined("and", [_equal(*pair) for pair in o.items()]) for o in others]))
    return _joined("and", terms) if terms else None


def _equal(name: str, value: int) -> syntax.Expr:
    return syntax.Binary("==", syntax.Name(name), syntax.Number(value, str(value)))


def _joined(op: Literal["and", "or"], terms: Sequence[syntax.Expr]) -> syntax.Expr:
    return functools.reduce(lambda a, b: syntax.Binary(op, a, b), terms)


def _shapes(when: syntax.Expr) -> list[dict[str, int]] | None:
    """Returns the extents that a condition such as `_guard` makes lists; None for one of another kind."""
    match when:
        case syntax.Binary("==", syntax.Name(name), syntax.Number(int() as value)):
            return [{name: value}]
        case syntax.Binary("or" | "and" as op, left, right):
            a, b = _shapes(left), _shapes(right)
            if a is None or b is None or len(a) * len(b) > _MOST_EXPANDED:
                return None
            if op == "or":
                return a + b
            return [x | y for x in a for y in b if all(x.get(n, v) == v for n, v in y.items())]
    return None


def _fields(request: PartialSchedule) -> tuple[syntax.Field, ...]:
    return tuple(syntax.Field(name, (_value(value),)) for name, value in request.fixed().items())


def _value(value: Value) -> syntax.FieldValue:
    match value:
        case tuple():
            return syntax.ShapeValue(value)
        case int():
            return syntax.IntValue(value)
        case _:
            return syntax.WordValue(value)

"""Other cuts of a pipeline: the same computation, with intermediates stored elsewhere.

A binding with an element type is stored between launches. Taken away, the families are asked whether one
launch can do both; put back, two do. The rounding of what was stored stays, as a cast, so every cut computes
the same numbers up to the accuracy of f32.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ucutlass import frontend, ir
from ucutlass.agent.problem import Problem
from ucutlass.agent.session import Written
from ucutlass.diagnostics import ProgramError
from ucutlass.grammar import syntax
from ucutlass.grammar.format import format_file
from ucutlass.grammar.parse import parse
from ucutlass.hardware import Device
from ucutlass.pipeline.planning import plan_pipeline
from ucutlass.shapes import ShapeError, complete


@dataclass(frozen=True, slots=True)
class Cut:
    """A pipeline's text with one cut changed, and the estimate of all its launches in seconds."""

    text: str
    why: str
    seconds: float


def neighbours(text: str, problem: Problem, device: Device | None) -> list[Cut]:
    """Every legal text that differs in one cut, the best estimate first. Cuts that are put back are those
    of the problem's own text."""
    found: dict[str, Cut] = {}
    for made, why in (*_fused(text, problem.program), *_stored(text, problem)):
        seconds = estimate(made, problem, device)
        if seconds is not None and made not in found:
            found[made] = Cut(made, why, seconds)
    return sorted(found.values(), key=lambda cut: cut.seconds)


def drawn(found: Sequence[Cut], chance: random.Random, count: int) -> list[Written]:
    """At most so many, the better the estimate the likelier first: the inverse square of it weighs."""
    left = list(found)
    chosen: list[Written] = []
    while left and len(chosen) < count:
        weights = [1 / max(cut.seconds, 1e-9) ** 2 for cut in left]
        (one,) = chance.choices(left, weights)
        left.remove(one)
        chosen.append(Written(one.text, one.why))
    return chosen


def estimate(text: str, problem: Problem, device: Device | None) -> float | None:
    """Seconds of all launches by the cost models, a torch function's aside; None where it does not plan."""
    try:
        checked = frontend.read_text(text)
        pipeline = frontend.program(checked, problem.program)
        if not isinstance(pipeline, ir.Pipeline):
            return None
        sizes = complete(pipeline, problem.sizes)
        made = plan_pipeline(checked, pipeline, sizes, problem.arch, device)
    except (ProgramError, ShapeError):
        return None
    return sum(s.chosen.planned.seconds for s in made.stages if s.chosen is not None)


# --- the edits -----------------------------------------------------------------------


def _fused(text: str, name: str) -> Iterator[tuple[str, str]]:
    for at, bind in _bindings(parse(text), name):
        if len(bind.targets) == 1 and (type_ := bind.targets[0].type) is not None:
            bare = replace(bind, targets=(syntax.Target(bind.targets[0].name),), value=_rounded(bind, type_))
            yield _with(text, name, at, bare), f"fuse {bind.targets[0].name} into what reads it"


def _stored(text: str, problem: Problem) -> Iterator[tuple[str, str]]:
    """Bindings that the problem's text stores and this one does not, as they were."""
    own = {b.targets[0].name: b for _, b in _bindings(parse(problem.text), problem.program)}
    for at, bind in _bindings(parse(text), problem.program):
        target = bind.targets[0]
        was = own.get(target.name)
        if target.type is None and was is not None and was.targets[0].type is not None:
            yield _with(text, problem.program, at, was), f"store {target.name}"


def _rounded(bind: syntax.Bind, type_: syntax.TypeExpr) -> syntax.Expr:
    """The value, rounded as its storage would have."""
    if type_.element in (None, "f32"):
        return bind.value
    return syntax.Call(str(type_.element), None, (syntax.Argument(bind.value),))


def _bindings(file: syntax.File, name: str) -> Iterator[tuple[int, syntax.Bind]]:
    for item in file.items:
        if isinstance(item, syntax.Program) and item.name == name:
            for at, statement in enumerate(item.body):
                if isinstance(statement, syntax.Bind):
                    yield at, statement


def _with(text: str, name: str, at: int, bind: syntax.Bind) -> str:
    file = parse(text)

    def placed(item: syntax.Item) -> syntax.Item:
        if not (isinstance(item, syntax.Program) and item.name == name):
            return item
        return replace(item, body=(*item.body[:at], bind, *item.body[at + 1 :]))

    return format_file(replace(file, items=tuple(map(placed, file.items))))

"""This module cuts a pipeline otherwise: the computation is the same, with intermediates stored elsewhere.

A binding with an element type is stored between launches. Taken away, the families are asked whether one
launch can do both; put back, two do. The rounding of what was stored stays, as a cast, so every cut computes
the same numbers up to the accuracy of f32. Schedules stay with the stages that stay; a stage that computes
something else, or is none any more, loses its.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import TypeAlias

from ucutlass import ir
from ucutlass.agent.candidate_text import candidate_text
from ucutlass.agent.problem import OptimizationProblem
from ucutlass.agent.proposers.pipeline_plan import Look, look
from ucutlass.check import check_tree
from ucutlass.grammar import syntax
from ucutlass.grammar.format import format_file
from ucutlass.ir.hardware import Device
from ucutlass.runtime.subject import algorithm_digest

Body: TypeAlias = tuple[syntax.Statement, ...]


@dataclass(frozen=True, slots=True)
class CutProposal:
    """Describes a pipeline's text with one cut changed, and the estimate of all its launches in seconds."""

    text: str
    why: str
    seconds: float


def neighbours(
    text: str, problem: OptimizationProblem, device: Device | None, look_up: Look | None = None
) -> list[CutProposal]:
    """Returns every text that differs in one cut and plans, the best estimate first. Cuts that are put back
    are those of the problem's own text. `look_up` remembers how texts are planned. Raises ProgramError for a
    text that is no program."""
    name, proposals = problem.program, dict[str, CutProposal]()
    here = candidate_text(text).checked
    own = () if problem.checked is None else _bindings(problem.checked.tree, name)
    for file, why in (*_fused(here.tree, name), *_stored(here.tree, own, name)):
        scheduled = _scheduled(file, here.module, name)
        planned = (
            None
            if scheduled is None
            else look_up(scheduled)
            if look_up is not None
            else look(scheduled, problem, device)
        )
        if planned is not None and planned.text not in proposals:
            proposals[planned.text] = CutProposal(planned.text, why, planned.seconds)
    return sorted(proposals.values(), key=lambda cut: cut.seconds)


# --- the edits -----------------------------------------------------------------------


def _fused(file: syntax.File, name: str) -> Iterator[tuple[syntax.File, str]]:
    for at, bind in _bindings(file, name):
        type_ = bind.targets[0].type
        if len(bind.targets) == 1 and type_ is not None and type_.element is not None:
            bare = replace(bind, targets=(syntax.Target(bind.targets[0].name),), value=_rounded(bind, type_))
            yield _with(file, name, at, bare), f"fuse {bind.targets[0].name} into what reads it"


def _stored(
    file: syntax.File, own: Iterable[tuple[int, syntax.Bind]], name: str
) -> Iterator[tuple[syntax.File, str]]:
    """Yields the bindings that the problem's `own` text stores and this one does not, as they were."""
    before = {b.targets[0].name: b for _, b in own}
    for at, bind in _bindings(file, name):
        target = bind.targets[0]
        was = before.get(target.name)
        if target.type is None and was is not None and was.targets[0].type is not None:
            yield _with(file, name, at, was), f"store {target.name}"


def _rounded(bind: syntax.Bind, type_: syntax.TypeExpr) -> syntax.Expr:
    """Returns the value, rounded as its storage would have."""
    if type_.element == "f32":
        return bind.value
    return syntax.Call(str(type_.element), None, (syntax.Argument(bind.value),))


def _bindings(file: syntax.File, name: str) -> Iterator[tuple[int, syntax.Bind]]:
    for item in file.items:
        if isinstance(item, syntax.Program) and item.name == name:
            for at, statement in enumerate(item.body):
                if isinstance(statement, syntax.Bind):
                    yield at, statement


def _with(file: syntax.File, name: str, at: int, bind: syntax.Bind) -> syntax.File:
    return _changed(file, name, lambda body: (*body[:at], bind, *body[at + 1 :]))


# --- schedules -----------------------------------------------------------------------


def _scheduled(file: syntax.File, before: ir.Module, name: str) -> str | None:
    """Returns a file with another cut and the schedules of those stages alone that compute what they did;
    None where it is no program."""
    module, diagnostics = check_tree(_with_stage_schedules(file, name, frozenset()))
    if any(d.severity == "error" for d in diagnostics):
        return None
    was, now = _stages(before, name), _stages(module, name)
    same = frozenset(stage for stage, digest in now.items() if was.get(stage) == digest)
    return format_file(_with_stage_schedules(file, name, same))


def _with_stage_schedules(file: syntax.File, name: str, stages: Set[str]) -> syntax.File:
    """Returns the file without the schedules of other stages than these."""

    def stays(s: syntax.Statement) -> bool:
        return not isinstance(s, syntax.Schedule) or (s.stage is not None and s.stage.words in stages)

    return _changed(file, name, lambda body: tuple(filter(stays, body)))


def _stages(module: ir.Module, name: str) -> Mapping[str, str]:
    """Returns, by what a stage fills, the digest of its computation."""
    program = next(p for p in module.programs if p.name == name)
    stages = program.stages if isinstance(program, ir.Pipeline) else ()
    return {" ".join(s.outputs): algorithm_digest(s.call) for s in stages if isinstance(s.call, ir.Kernel)}


def _changed(file: syntax.File, name: str, change: Callable[[Body], Body]) -> syntax.File:
    def item(node: syntax.Item) -> syntax.Item:
        mine = isinstance(node, syntax.Program) and node.name == name
        return replace(node, body=change(node.body)) if mine else node

    return replace(file, items=tuple(map(item, file.items)))

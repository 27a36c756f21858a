"""From a file to a plan: reads, checks, selects the guarded schedule, and plans for concrete extents."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from ucutlass import files, ir
from ucutlass.check import check_tree, program_error
from ucutlass.diagnostics import Diagnostic, ProgramError
from ucutlass.grammar.parse import SyntaxProblem, decode, parse
from ucutlass.grammar.problems import MAX_CHARACTERS
from ucutlass.grammar.syntax import File, Span
from ucutlass.ir.hardware import ARCHES, Device
from ucutlass.ir.schedule import PartialSchedule, partial_schedules, show
from ucutlass.kernels.families import family_of, match, plan_pattern
from ucutlass.kernels.planned import Planned
from ucutlass.kernels.refused import Refused
from ucutlass.kernels.violation import Violation
from ucutlass.limits import CONDITIONS, Effort, LimitPassed
from ucutlass.shapes import ShapeError, holds
from ucutlass.spans import span
from ucutlass.typical_sizes import TypicalSizes

MOST_BYTES = 4 * MAX_CHARACTERS + len(codecs.BOM_UTF8)
"""Most bytes of a program's file: its most characters, each of four bytes."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A file that passed the checker: its text, the syntax tree and the typed programs, which are made
    together once and then passed on in place of the text. `file` names it in diagnostics; `warnings` are
    about the text."""

    module: ir.Module = field(compare=False)
    source: str
    file: str
    tree: File = field(compare=False)
    warnings: tuple[Diagnostic, ...] = ()

    def error(self, *diagnostics: Diagnostic) -> ProgramError:
        return ProgramError(diagnostics, self.source, self.file)

    @contextmanager
    def limits(self, program: ir.Program) -> Iterator[None]:
        """Turns a limit that a program passes inside into the ProgramError that names it."""
        try:
            yield
        except LimitPassed as problem:
            diagnostic = Diagnostic(problem.limit.code, problem.message, program.span, problem.limit.hint)
            raise self.error(diagnostic) from None
        except ShapeError as problem:
            if problem.code != CONDITIONS.code:
                raise
            raise self.error(Diagnostic(problem.code, problem.words, program.span, CONDITIONS.hint)) from None


@span("front end")
def read(path: Path) -> Checked:
    """Reads and checks a file. Raises OSError, or ProgramError with all its diagnostics."""
    return read_text(source_of(path), str(path))


def source_of(path: Path) -> str:
    """Returns the text of a program's file, UTF-8 whatever the locale is, with its line ends. Raises OSError,
    with EFBIG for a file longer than any program; ProgramError for a file that is not UTF-8."""
    return decoded(files.read_bytes(path, MOST_BYTES), str(path))


def decoded(data: bytes, file: str) -> str:
    """Returns a file's bytes as text. Raises ProgramError for bytes that are not UTF-8."""
    try:
        return decode(data)
    except SyntaxProblem as problem:
        shown = data.removeprefix(codecs.BOM_UTF8).decode("utf-8", errors="replace")
        raise program_error(problem, shown, file) from None


def read_text(source: str, file: str = "<text>") -> Checked:
    """Parses and checks a text that comes from outside. Raises ProgramError with all its diagnostics."""
    return checked_tree(parsed(source, file), source, file)


def parsed(source: str, file: str = "<text>") -> File:
    """Returns the syntax tree of a text, for `checked_tree`. Raises ProgramError with every problem of its
    syntax."""
    try:
        return parse(source)
    except SyntaxProblem as problem:
        raise program_error(problem, source, file) from None


def checked_tree(tree: File, source: str, file: str = "<text>") -> Checked:
    """Checks the tree of a text. Raises ProgramError with every error of the text."""
    module, diagnostics = check_tree(tree)
    if any(d.severity == "error" for d in diagnostics):
        raise ProgramError(diagnostics, source, file)
    return Checked(module, source, file, tree, diagnostics)


def programs(checked: Checked) -> tuple[str, ...]:
    return tuple(p.name for p in checked.module.programs)


def program(checked: Checked, name: str | None = None) -> ir.Program:
    """Returns the program of this name; without a name the file's only program, or its only pipeline.

    Raises ShapeError UC0601 where the name is missing or unknown.
    """
    by_name = {p.name: p for p in checked.module.programs}
    if name is None:
        pipelines = [p.name for p in by_name.values() if isinstance(p, ir.Pipeline)]
        choice = list(by_name) if len(by_name) == 1 else pipelines
        name = choice[0] if len(choice) == 1 else None
    if name is None or name not in by_name:
        raise ShapeError(
            "UC0601",
            f"{checked.file} has {', '.join(by_name) or 'no program'}: say which one with --kernel NAME",
        )
    return by_name[name]


def kernel(checked: Checked, name: str | None = None) -> ir.Kernel:
    """Returns what `program` does, for callers that take one kernel. Raises ShapeError UC0601 for a pipeline
    too."""
    named = program(checked, name)
    if isinstance(named, ir.Pipeline):
        stage_kernels = {s.call.name for s in named.stages if isinstance(s.call, ir.Kernel)}
        called = sorted(stage_kernels & set(programs(checked)))
        functions = sorted(
            {f"torch.{s.call.function}" for s in named.stages if isinstance(s.call, ir.TorchCall)}
        )
        hint = f"; name one of those that it calls: {', '.join(called)}" if called else ""
        if functions:
            hint += f"; what computes {', '.join(functions)} has no schedule"
        raise ShapeError("UC0601", f"{named.name} is a pipeline, and one kernel is wanted here{hint}")
    return named


def pattern(checked: Checked, program: ir.Kernel) -> object:
    """The kernel's pattern, as its family sees it. Raises ProgramError where no family serves it."""
    try:
        return match(program)
    except Refused as refused:
        raise checked.error(refused.diagnostic) from None


@dataclass(frozen=True, slots=True)
class ChosenPlan:
    """A plan, and the schedule block whose alternative it is (None where none was written)."""

    planned: Planned
    block: ir.ScheduleBlock | None


@span("planning")
def plan_kernel(
    checked: Checked,
    program: ir.Kernel,
    sizes: Sequence[int],
    arch: str,
    device: Device | None = None,
    aligned: Sequence[bool] | None = None,
) -> ChosenPlan:
    """Returns the plan for concrete extents (in the order of `program.dims`): the first guarded schedule that
    holds, and the cheapest of its alternatives by estimate.

    `aligned` says whether each pointer is a multiple of 16 bytes; None means that all are. Raises
    ProgramError with the rule, the numbers and the nearest legal schedule.
    """
    matched = pattern(checked, program)
    blocks = matching(program, sizes, arch)
    if not blocks:
        outcome = _planned(checked, matched, sizes, arch, device, PartialSchedule(), aligned)
        return ChosenPlan(_legal(checked, outcome, program.span, None), None)
    best: list[tuple[float, ChosenPlan]] = []
    for block, request in alternatives(blocks):
        outcome = _planned(checked, matched, sizes, arch, device, request, aligned)
        planned = _legal(checked, outcome, program.span, block)
        best.append((planned.seconds, ChosenPlan(planned, block)))
    return min(best, key=lambda pair: pair[0])[1]


def _planned(
    checked: Checked,
    matched: object,
    sizes: Sequence[int],
    arch: str,
    device: Device | None,
    request: PartialSchedule,
    aligned: Sequence[bool] | None = None,
) -> Planned | tuple[Violation, ...]:
    try:
        return plan_pattern(matched, sizes, ARCHES[arch], device, request, aligned)
    except Refused as refused:
        raise checked.error(refused.diagnostic) from None


def alternatives(blocks: Iterable[ir.ScheduleBlock]) -> Iterable[tuple[ir.ScheduleBlock, PartialSchedule]]:
    """Returns every schedule that blocks of one condition stand for."""
    return ((block, request) for block in blocks for request in partial_schedules(block.choices))


def matching(program: ir.Kernel, sizes: Sequence[int], arch: str) -> tuple[ir.ScheduleBlock, ...]:
    """Returns the blocks of an architecture whose condition is the first that holds."""
    by_name = dict(zip(program.dims, sizes, strict=True))
    of_arch = [b for b in program.schedules if b.arch == arch]
    for block in of_arch:
        if block.guard is None or holds(block.guard, by_name):
            return tuple(b for b in of_arch if b.guard is block.guard)
    return ()


def _legal(
    checked: Checked, outcome: Planned | tuple[Violation, ...], span: Span, block: ir.ScheduleBlock | None
) -> Planned:
    if not isinstance(outcome, tuple):
        return outcome
    raise checked.error(*(_diagnostic(v, span, block) for v in outcome))


def _diagnostic(violation: Violation, span: Span, block: ir.ScheduleBlock | None) -> Diagnostic:
    choices = {c.field: c.span for c in block.choices} if block is not None else {}
    location = next((choices[f] for f in violation.fields if f in choices), block.span if block else span)
    hint = violation.hint
    if violation.nearest is not None and violation.nearest.fixed():
        hint += f"; nearest legal schedule: {show(violation.nearest)}"
    return Diagnostic(violation.code, violation.message, location, hint)


def check_schedules(
    checked: Checked, program: ir.Kernel, effort: Effort | None = None
) -> tuple[Diagnostic, ...]:
    """Returns a diagnostic for every illegal alternative of every block, each at typical extents that its
    guard admits. Where the guard admits none of them, the block is checked at other extents, and what is
    illegal there is a warning. `effort` bounds what the file's programs may spend together on finding such
    extents.

    Raises ProgramError where no family serves the kernel.
    """
    matched, shapes = pattern(checked, program), TypicalSizes(program, effort or Effort())
    if family_of(matched).refuses_extents and (ordinary := shapes.sizes(None)) is not None:
        _planned(checked, matched, ordinary, "sm90a", None, PartialSchedule())
    diagnostics: list[Diagnostic] = []
    for block in program.schedules:
        admitted = shapes.sizes(block.guard)
        sizes = admitted if admitted is not None else shapes.sizes(None)
        if sizes is None:
            continue
        for request in partial_schedules(block.choices):
            outcome = _planned(checked, matched, sizes, block.arch, None, request)
            if isinstance(outcome, tuple):
                illegal = [_diagnostic(v, program.span, block) for v in outcome]
                diagnostics += (
                    illegal
                    if admitted is not None
                    else [_untested(d, program, sizes, block) for d in illegal]
                )
    return tuple(dict.fromkeys(diagnostics))


def _untested(
    illegal: Diagnostic, program: ir.Kernel, sizes: Sequence[int], block: ir.ScheduleBlock
) -> Diagnostic:
    """Returns the warning about a block whose condition no tried extents satisfy."""
    shape = ", ".join(f"{name}={size}" for name, size in zip(program.dims, sizes, strict=True))
    note = f"no ordinary extents meet the condition of this block; it was checked for {shape}"
    return replace(illegal, severity="warning", notes=(*illegal.notes, (note, block.span)))

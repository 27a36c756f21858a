"""From the syntax tree to the typed program: names, types, extents, schedules; every error of a file."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ucutlass import ir
from ucutlass.check.calls import BUILTINS
from ucutlass.check.functions import unknown_names
from ucutlass.check.lint import warnings
from ucutlass.check.pipelines import check_pipeline
from ucutlass.check.programs import Findings, ProgramNames, TooManyErrors, check_kernel
from ucutlass.check.scope import Reject, beyond
from ucutlass.diagnostics import Diagnostic, ProgramError, listed
from ucutlass.grammar import syntax
from ucutlass.grammar.parse import SyntaxProblem
from ucutlass.ir.elements import ELEMENTS
from ucutlass.ir.functions import NAMED
from ucutlass.limits import ALTERNATIVES, PROGRAMS, LimitPassed

__all__ = ["check_tree", "program_error"]


def program_error(problem: SyntaxProblem, source: str, file: str) -> ProgramError:
    """What is wrong with a text's syntax, as diagnostics."""
    diagnostics = tuple(Diagnostic(p.code, p.message, p.span, p.hint) for p in problem.problems)
    return ProgramError(diagnostics, source, file)


def check_tree(tree: syntax.File) -> tuple[ir.Module, tuple[Diagnostic, ...]]:
    """The programs that are sound, and every diagnostic in the order of the text: errors, or warnings where
    there are none."""
    findings = Findings()
    try:
        module = _check(tree, findings)
    except TooManyErrors:
        module = ir.Module(())
    # A mistake in a function is found again wherever it is expanded.
    errors = listed(sorted(findings.diagnostics, key=lambda d: d.span.start))
    return module, errors or listed(warnings(tree, module))


def _check(tree: syntax.File, findings: Findings) -> ir.Module:
    """The programs that are sound. Raises TooManyErrors."""
    names = _names(tree, findings)
    callables = {*names.functions, *names.programs, *NAMED, *BUILTINS, *ELEMENTS}
    for function in names.functions.values():
        for problem in unknown_names(function, names.functions, callables):
            findings.reject(problem)
    kernels: dict[str, ir.Kernel] = {}
    programs: dict[str, ir.Program] = {}
    ordered = sorted(names.programs.values(), key=lambda program: program.kind == "pipeline")
    for program in ordered:
        try:
            if program.kind == "pipeline":
                checked: ir.Program | None = check_pipeline(program, names, kernels, findings)
            else:
                checked = check_kernel(program, names, findings)
        except LimitPassed as problem:
            findings.reject(beyond(problem, program.name_span))
            continue
        if checked is not None:
            programs[program.name] = checked
        if isinstance(checked, ir.Kernel):
            kernels[program.name] = checked
    module = ir.Module(tuple(programs[name] for name in names.programs if name in programs))
    _check_alternatives(module, findings)
    return module


def _check_alternatives(module: ir.Module, findings: Findings) -> None:
    """Every alternative is planned: there may be so many in all."""
    total = 0
    for block in _blocks(module):
        total += prod(len(choice.values) for choice in block.choices)
        if total > ALTERNATIVES.most:
            message = ALTERNATIVES.message(total)
            findings.reject(Reject(ALTERNATIVES.code, message, block.span, ALTERNATIVES.hint))
            return


def _blocks(module: ir.Module) -> Iterator[ir.ScheduleBlock]:
    """The file's schedule blocks, each once: stages share the kernel that they call."""
    kernels = {id(p): p for p in module.programs if isinstance(p, ir.Kernel)}
    for program in module.programs:
        if isinstance(program, ir.Pipeline):
            kernels |= {id(s.call): s.call for s in program.stages if isinstance(s.call, ir.Kernel)}
    return (block for kernel in kernels.values() for block in kernel.schedules)


def _names(tree: syntax.File, findings: Findings) -> ProgramNames:
    functions: dict[str, syntax.Function] = {}
    programs: dict[str, syntax.Program] = {}
    for item in tree.items:
        if item.name in BUILTINS or item.name in NAMED or item.name in ELEMENTS:
            findings.reject(
                Reject("UC0103", f"{item.name} is built in", item.name_span, "choose another name")
            )
        elif item.name in functions or item.name in programs:
            findings.reject(Reject("UC0103", f"{item.name} is defined twice in this file", item.name_span))
        elif isinstance(item, syntax.Function):
            functions[item.name] = item
        else:
            programs[item.name] = item
    if len(programs) > PROGRAMS.most:
        span = list(programs.values())[PROGRAMS.most].name_span
        findings.reject(Reject(PROGRAMS.code, PROGRAMS.message(len(programs)), span, PROGRAMS.hint))
        raise TooManyErrors
    return ProgramNames(functions, programs)

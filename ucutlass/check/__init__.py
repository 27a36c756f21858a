"""From text to the typed program: names, types, extents, schedules; every error of a file."""

from __future__ import annotations

from ucutlass import ir
from ucutlass.check.calls import BUILTINS
from ucutlass.check.functions import unknown_names
from ucutlass.check.lint import warnings
from ucutlass.check.pipelines import check_pipeline
from ucutlass.check.programs import Findings, Names, check_kernel
from ucutlass.check.scope import Reject
from ucutlass.diagnostics import Diagnostic, ProgramError
from ucutlass.elements import ELEMENTS
from ucutlass.functions import NAMED
from ucutlass.grammar import syntax
from ucutlass.grammar.parse import SyntaxProblem, parse

__all__ = ["check", "check_tree", "check_with_warnings", "program_error"]


def check(source: str, file: str = "<text>") -> ir.Module:
    """The typed programs of a text.

    Raises ProgramError with every error of the text.
    """
    return check_with_warnings(source, file)[0]


def check_with_warnings(source: str, file: str = "<text>") -> tuple[ir.Module, tuple[Diagnostic, ...]]:
    """The typed programs of a text, and its warnings in the order of the text. Raises as `check`."""
    try:
        tree = parse(source)
    except SyntaxProblem as problem:
        raise program_error(problem, source, file) from None
    module, diagnostics = check_tree(tree)
    if any(d.severity == "error" for d in diagnostics):
        raise ProgramError(diagnostics, source, file)
    return module, diagnostics


def program_error(problem: SyntaxProblem, source: str, file: str) -> ProgramError:
    """What is wrong with a text's syntax, as diagnostics."""
    found = tuple(Diagnostic(p.code, p.message, p.span, p.hint) for p in problem.problems)
    return ProgramError(found, source, file)


def check_tree(tree: syntax.File) -> tuple[ir.Module, tuple[Diagnostic, ...]]:
    """The programs that are sound, and every diagnostic in the order of the text: errors, or warnings where
    there are none."""
    findings = Findings()
    names = _names(tree, findings)
    for function in names.functions.values():
        for problem in unknown_names(function, {*names.functions, *names.programs}):
            findings.reject(problem)
    kernels: dict[str, ir.Kernel] = {}
    made: dict[str, ir.Program] = {}
    for name, program in names.programs.items():
        if program.kind == "kernel" and (kernel := check_kernel(program, names, findings)):
            kernels[name] = made[name] = kernel
    for name, program in names.programs.items():
        if program.kind == "pipeline" and (pipeline := check_pipeline(program, names, kernels, findings)):
            made[name] = pipeline
    ordered = tuple(made[name] for name in names.programs if name in made)
    # A mistake in a function is found again wherever it is expanded.
    diagnostics = sorted(dict.fromkeys(findings.diagnostics), key=lambda d: d.span.start)
    module = ir.Module(ordered)
    return module, tuple(diagnostics) or warnings(tree, module)


def _names(tree: syntax.File, findings: Findings) -> Names:
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
    return Names(functions, programs)

"""This module has the problem: what is to be computed, at extents, with the precision that is allowed.

A program of the language says it, or a PyTorch module does (`ucutlass.agent.module`); what a candidate is,
is the same for both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ucutlass import frontend, ir
from ucutlass.agent.candidate_text import candidate_text
from ucutlass.agent.integrity.precision import DeclaredPrecision, declared, losses, operand_precision
from ucutlass.agent.module import TorchModule, match_module, module_of_json, widest
from ucutlass.agent.outcome import RefusedOutcome
from ucutlass.runtime.module.signature import KEYWORDS
from ucutlass.runtime.subject import algorithm_digest
from ucutlass.shapes import ShapeError, complete, free_dims


@dataclass(frozen=True, slots=True)
class OptimizationProblem:
    """`checked` is a file whose program `program` says what is computed; schedules and cuts in it are a
    proposal like any other. `sizes` has its free dimensions by name, `compute_type` the least precision that a
    candidate may work in, as `ucutlass.agent.integrity.precision` writes it, or "" where nothing says.

    Where `module` is given it says what is computed, and `checked` is a first program, None where there is
    none yet; `sizes` are that program's. `no_start` then says why the importer wrote none."""

    checked: frontend.Checked | None
    file: str
    program: str
    sizes: Mapping[str, int]
    arch: str
    compute_type: str
    module: TorchModule | None = None
    no_start: str = ""

    @property
    def text(self) -> str:
        """Returns the file's text, "" where there is none yet."""
        return "" if self.checked is None else self.checked.source

    @property
    def start(self) -> frontend.Checked:
        """Returns the file, for callers that cannot do without. Raises ShapeError UC0601 where a module has
        no first program."""
        if self.checked is None:
            raise ShapeError("UC0601", f"{self.file} has no first program")
        return self.checked

    @property
    def typed(self) -> ir.Program:
        """Returns the program of the file. Raises as `start`."""
        return frontend.program(self.start, self.program)

    @property
    def name(self) -> str:
        extents = " ".join(f"{d}={n}" for d, n in self.sizes.items())
        return f"{self.program} {extents}".rstrip()

    @property
    def policy(self) -> DeclaredPrecision | None:
        return declared(self.compute_type) if self.compute_type else None


def problem_of(
    text: str,
    file: str,
    name: str | None,
    sizes: Mapping[str, int],
    arch: str,
    compute_type: str | None = None,
) -> OptimizationProblem:
    """`compute_type` None takes what the program's own operands declare. Raises ProgramError, ShapeError for
    extents that do not fit, UnknownComputeType."""
    checked = _read(text, file)
    program = frontend.program(checked, name)
    complete(program, sizes)
    free = {d: sizes[d] for d in free_dims(program)}
    policy = operand_precision(program) if compute_type is None else declared(compute_type)
    return OptimizationProblem(checked, file, program.name, free, arch, str(policy) if policy else "")


def _read(text: str, file: str) -> frontend.Checked:
    """Reads a problem's text, which a user's file or a journal holds. Raises ProgramError."""
    return frontend.read_text(text, file)


class StartProgramMismatch(ValueError):
    """Raised where the program that is to start a module's problem does not fit the module."""


def problem_of_module(
    module: TorchModule,
    start: str,
    start_file: str,
    name: str | None,
    arch: str,
    compute_type: str | None = None,
) -> OptimizationProblem:
    """`start` is a first program's text, "" without one; `compute_type` None takes the widest of the module's own
    elements. Raises ProgramError, ShapeError, UnknownComputeType, StartProgramMismatch."""
    own = widest(module.facts)
    policy = (
        declared(compute_type) if compute_type is not None else None if own is None else declared(own.name)
    )
    least_precision = str(policy) if policy else ""
    if not start:
        return OptimizationProblem(
            None, module.file, name or program_name(module.file), {}, arch, least_precision, module
        )
    checked = _read(start, start_file)
    program = frontend.program(checked, name)
    met = match_module(program, module)
    if isinstance(met, str):
        raise StartProgramMismatch(f"{start_file}: {met}")
    free = {d: met.sizes[d] for d in free_dims(program)}
    complete(program, free)
    return OptimizationProblem(checked, start_file, program.name, free, arch, least_precision, module)


def program_name(file: str) -> str:
    """Returns what programs for a module's file are called: its name without number and ending."""
    stem = re.sub(r"^\d+_+|_+$", "", Path(file).stem.lower())
    name = re.sub(r"\W+", "_", stem, flags=re.ASCII)
    if not re.match("[a-z]", name):
        return f"problem{name}"
    return f"{name}_" if name in KEYWORDS else name


def problem_to_json(problem: OptimizationProblem) -> dict[str, Any]:
    """Returns the problem as journals hold it: its text, and `compute_type` under the key `lane`."""
    return {
        "text": problem.text,
        "file": problem.file,
        "program": problem.program,
        "sizes": dict(problem.sizes),
        "arch": problem.arch,
        "module": None if problem.module is None else asdict(problem.module),
        "lane": problem.compute_type,
        "no_start": problem.no_start,
    }


def problem_of_json(value: Mapping[str, Any]) -> OptimizationProblem:
    """Raises TypeError, KeyError, ValueError for another's fields, and ProgramError for a text that this
    version refuses."""
    module = value.get("module")
    fields = {**value, "module": None if module is None else module_of_json(module)}
    text, compute_type = fields.pop("text"), fields.pop("lane")
    checked = _read(text, value["file"]) if text else None
    return OptimizationProblem(checked, **fields, compute_type=compute_type)


# --- candidates ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProgramCandidate:
    """Describes a program of the problem that was checked. `key` is the digest of what it computes and of
    where it cuts; schedules, spelling and comments do not count. `sizes` are its free dimensions by name."""

    checked: frontend.Checked
    program: ir.Program
    key: str
    sizes: Mapping[str, int]


MOST_CHARACTERS = 100_000
"""Of a candidate's text: a program of the language has some hundred to some thousand."""


def candidate_of(problem: OptimizationProblem, text: str) -> ProgramCandidate | RefusedOutcome:
    """Returns the candidate that a text is, by everything that can be said of it without running it: it is a
    program, and fits the problem as `checked_candidate` says."""
    if len(text) > MOST_CHARACTERS:
        return RefusedOutcome(f"the text has {len(text)} characters; at most {MOST_CHARACTERS} are read")
    read = candidate_text(text)
    if read.program is None:
        shown = "\n".join(f"{d.code} {d.message}" for d in read.diagnostics[:5])
        return RefusedOutcome(shown, tuple(dict.fromkeys(d.code for d in read.diagnostics)))
    return checked_candidate(problem, read.program)


def checked_candidate(
    problem: OptimizationProblem, checked: frontend.Checked
) -> ProgramCandidate | RefusedOutcome:
    """Returns the candidate that a checked file has: it has the problem's name, parameters and results, fits
    the extents, and works nowhere below the declared precision. Whether it computes the same is another
    question (`ucutlass.tasks.equivalence`)."""
    programs = {p.name: p for p in checked.module.programs}
    program = programs.get(problem.program)
    if program is None:
        return RefusedOutcome(f"it has no program {problem.program}, but {', '.join(programs) or 'none'}")
    match problem.module:
        case None:
            return _of_program(problem, checked, program)
        case module:
            return _of_module(problem, module, checked, program)


def _of_program(
    problem: OptimizationProblem, checked: frontend.Checked, program: ir.Program
) -> ProgramCandidate | RefusedOutcome:
    original = problem.typed
    difference = _differs(original, program)
    if difference is not None:
        return RefusedOutcome(difference)
    return _fitting(
        problem, ProgramCandidate(checked, program, algorithm_digest(program), problem.sizes), original
    )


def _of_module(
    problem: OptimizationProblem, module: TorchModule, checked: frontend.Checked, program: ir.Program
) -> ProgramCandidate | RefusedOutcome:
    met = match_module(program, module)
    if isinstance(met, str):
        return RefusedOutcome(met)
    sizes = {d: met.sizes[d] for d in free_dims(program)}
    # The digest knows parameters by position, and here their names say what they are.
    key = f"{algorithm_digest(program)} {' '.join(met.keys.values())}"
    return _fitting(problem, ProgramCandidate(checked, program, key, sizes), None)


def _fitting(
    problem: OptimizationProblem, candidate: ProgramCandidate, original: ir.Program | None
) -> ProgramCandidate | RefusedOutcome:
    """Returns the candidate if its extents and precision fit; `original` is the problem's own program, where
    it says what is computed."""
    try:
        complete(candidate.program, candidate.sizes)
    except ShapeError as error:
        return RefusedOutcome(str(error), (error.code,))
    lower = _below(problem, original, candidate.program)
    return candidate if lower is None else RefusedOutcome(lower)


def _differs(original: ir.Program, program: ir.Program) -> str | None:
    """Returns why a program is none of the problem's interface."""
    if type(original) is not type(program):
        return (
            f"the problem is a {type(original).__name__.lower()}, this is a {type(program).__name__.lower()}"
        )
    ours, theirs = _interface(original), _interface(program)
    if ours != theirs:
        return "its parameters or results are not the problem's: names, element types and order must stay"
    return None


def _interface(program: ir.Program) -> list[tuple[str, ir.ParamType]]:
    parameters = [(p.name, p.type) for p in program.params]
    match program:
        case ir.Kernel():
            return [*parameters, *((r.name, r.type) for r in program.results)]
        case ir.Pipeline():
            # What a pipeline returns is named by its text; its type is what counts.
            return [*parameters, *(("", type_) for _, type_ in program.results)]


def _below(problem: OptimizationProblem, original: ir.Program | None, program: ir.Program) -> str | None:
    """Returns where it works below the declared precision and the problem's own program does not."""
    policy = problem.policy
    if policy is None:
        return None
    own = () if original is None else losses(original, policy)
    before = {(loss.kind, loss.name) for loss in own}
    for loss in losses(program, policy):
        if (loss.kind, loss.name) not in before:
            return f"{loss.where} works in {loss.name}, below the problem's compute type {policy}"
    return None

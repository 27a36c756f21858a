"""This module has the tools that a model may call while it answers: the compiler's own words, and the bench.

Each is a function from a JSON object to text. They read programs, first in a process with limits of its own,
and execute none of them; `measure` is the session's to give, and counts its attempts itself. Their words are
quoted as data and bounded by whoever sends them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ucutlass import frontend, ir
from ucutlass.advice import advise, facts_of
from ucutlass.agent.advisor import lines
from ucutlass.agent.proposer import Measure
from ucutlass.agent.proposers.header_search import Headers, NotFound, headers_of, lines_of, symbol
from ucutlass.agent.proposers.header_search import text as header_text
from ucutlass.agent.proposers.problem_facts import ProblemDescription, bound_lines
from ucutlass.agent.proposers.quoting import plain
from ucutlass.agent.source_files import CandidateFiles
from ucutlass.codes import CODES
from ucutlass.diagnostics import ProgramError, render
from ucutlass.explanation import explain, rows
from ucutlass.guide import guide
from ucutlass.handoff import checked_of, diagnostics_of
from ucutlass.ir.schedule import FIELDS, legal_values, show
from ucutlass.kernels.families import RULES
from ucutlass.kernels.planned import Planned
from ucutlass.pipeline.planning import PipelinePlan, StagePlan, plan_pipeline
from ucutlass.runtime import isolation
from ucutlass.shapes import ShapeError
from ucutlass.sol.bounds import bounds
from ucutlass.units import duration

FILE = "program"
"""What diagnostics call the file of a model's program."""

MOST_PROGRAM = 50_000

SECONDS, BYTES = 30.0, 2 << 30
"""What the compiler may take for one text of a model, in a process of its own."""


class ToolFailed(Exception):
    """Raised for a call that a model got wrong; says how."""


@dataclass(frozen=True, slots=True)
class Tool:
    """`schema` is a JSON schema of its argument, an object."""

    name: str
    says: str
    schema: Mapping[str, Any]
    call: Callable[[Mapping[str, Any]], str]


def toolbox(
    subject: ProblemDescription, measure: Measure | None = None, files: CandidateFiles | None = None
) -> tuple[Tool, ...]:
    """Returns the tools in the order in which they are offered, which must stay: an API caches by it. `files`
    adds those that search headers, in a session at source level."""
    of = partial(_of_program, Front(subject))
    tools = [
        of(
            "check",
            "Checks a program and its schedules for the problem's extents, as the judge will: every "
            "error with its place, the numbers and a fix. Free.",
            lambda checked: check(subject, checked),
        ),
        of(
            "explain",
            "Says how the compiler would run a program at the problem's extents: what it chose and "
            "why, waves, registers, shared memory, estimate, advice. Free.",
            lambda checked: described(subject, checked),
        ),
        of(
            "sol",
            "The speed-of-light bounds of a program at the problem's extents, with the terms of each. Free.",
            lambda checked: speed_of_light(subject, checked),
        ),
        Tool(
            "guide",
            "Looks up the language guide: a diagnostic code (UC0404), a schedule field (cluster), or words.",
            _object("about", "what to look up"),
            lambda v: look_up(_text(v, "about")),
        ),
    ]
    if files is not None:
        tools += _header_tools(files)
    if measure is not None:
        words = "Builds a program, verifies, times and audits it now. Costs an attempt: call it for what you "
        tools.append(of("measure", words + "would propose.", lambda checked: measure(checked.source)))
    return tuple(tools)


def _header_tools(files: CandidateFiles) -> list[Tool]:
    def search(call: Callable[[Headers, Mapping[str, Any]], str]) -> Callable[[Mapping[str, Any]], str]:
        def called(value: Mapping[str, Any]) -> str:
            try:
                return call(headers_of(files.headers, files.version), value)
            except NotFound as nothing:
                return str(nothing)

        return called

    return [
        Tool(
            "header_symbol",
            f"The definitions of a type, function, alias or macro in the headers of CUTLASS {files.version} and CuTe, "
            "with file and lines. Free.",
            _object("name", "a name, such as SM90_TMA_LOAD or cute::make_tiled_mma"),
            search(lambda headers, v: symbol(headers, _text(v, "name"))),
        ),
        Tool(
            "header_text",
            "The lines of these headers that hold words as they are written, with file and line. Free.",
            _object("words", "what a line holds", under="part of the paths to look below, such as cute/arch"),
            search(lambda headers, v: header_text(headers, _text(v, "words"), str(v.get("under", "")))),
        ),
        Tool(
            "header_lines",
            "Lines of one of these headers. Free.",
            {
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "such as cute/arch/copy_sm90_tma.hpp"},
                    "first": {"type": "integer", "description": "counted from 1"},
                    "last": {"type": "integer", "description": "at most 119 lines later"},
                },
                "required": ["path", "first", "last"],
                "additionalProperties": False,
            },
            search(
                lambda headers, v: lines_of(headers, _text(v, "path"), _line(v, "first"), _line(v, "last"))
            ),
        ),
    ]


def _line(value: Mapping[str, Any], name: str) -> int:
    number = value.get(name)
    if isinstance(number, bool) or not isinstance(number, int):
        raise ToolFailed(f"{name} must be the number of a line")
    return number


class Front:
    """Reads texts in a process of its own, and shows there that the compiler gets through them: a text on
    which it hangs, or takes the machine's memory, ends a process that nobody needs."""

    def __init__(self, subject: ProblemDescription) -> None:
        self._subject = subject
        self._process = isolation.WarmProcess()

    def admit(self, text: str) -> frontend.Checked:
        """Returns the checked program of a text. Raises ToolFailed where the compiler does not get through,
        ProgramError, ShapeError."""
        match self._called("read", {"text": text, "file": FILE}):
            case {"program": payload}:
                checked = checked_of(payload)
            case {"refused": payload}:
                raise ProgramError(diagnostics_of(payload), text, FILE)
            case other:
                raise ToolFailed(f"the compiler answered what was not asked: {str(other)[:100]}")
        subject = self._subject
        arguments = {
            "program": payload,
            "name": subject.program,
            "sizes": dict(_selected(subject, checked).extents),
            "arch": subject.arch,
            "device": subject.device,
        }
        self._called("planned", arguments)
        return checked

    def _called(self, function: str, arguments: Mapping[str, Any]) -> Any:
        outcome = self._process.call(
            f"ucutlass.tasks.front_end:{function}", arguments, limit_seconds=SECONDS, memory_bytes=BYTES
        )
        if not isinstance(outcome, isolation.Returned):
            raise ToolFailed(
                f"the compiler did not get through it: {isolation.failure_text(outcome, 'the compiler')}"
            )
        return outcome.value


def _of_program(front: Front, name: str, says: str, call: Callable[[frontend.Checked], str]) -> Tool:
    def called(value: Mapping[str, Any]) -> str:
        text = _text(value, "program")
        try:
            return call(front.admit(text))
        except (ProgramError, ShapeError) as problem:
            return words(problem)

    return Tool(name, says, _object("program", "a complete program"), called)


def _object(name: str, says: str, **optional: str) -> Mapping[str, Any]:
    described = {name: says, **optional}
    properties = {key: {"type": "string", "description": words} for key, words in described.items()}
    return {"type": "object", "properties": properties, "required": [name], "additionalProperties": False}


def _text(value: Mapping[str, Any], name: str) -> str:
    text = value.get(name) if isinstance(value, Mapping) else None
    if not isinstance(text, str) or not text.strip():
        raise ToolFailed(f"{name} must be a text that is not empty")
    if len(text) > MOST_PROGRAM:
        raise ToolFailed(f"{name} has {len(text)} characters; at most {MOST_PROGRAM} are read")
    return text


# --- what they say ---------------------------------------------------------------


def check(subject: ProblemDescription, checked: frontend.Checked) -> str:
    _planned(_selected(subject, checked))
    return "fine: it parses, its types agree, and its schedule is legal for these extents"


def described(subject: ProblemDescription, checked: frontend.Checked, advised: bool = True) -> str:
    """Returns how the compiler runs a program; `advised` adds what its rules say. Raises ProgramError,
    ShapeError."""
    selected = _selected(subject, checked)
    planned = _planned(selected)
    if isinstance(planned, PipelinePlan):
        return "\n".join(_stage(stage) for stage in planned.stages)
    bound = bounds(selected.program, selected.extents, subject.hardware, planned=planned)
    if not isinstance(selected.program, ir.Kernel):
        raise TypeError(type(selected.program).__name__)
    advice = lines(advise(facts_of(checked, selected.program, planned))) if advised else []
    explained = [f"{label}: {words}" for label, words in rows(explain(planned, bound))]
    return "\n".join([*explained, *advice])


def speed_of_light(subject: ProblemDescription, checked: frontend.Checked) -> str:
    selected = _selected(subject, checked)
    return "\n".join(bound_lines(checked, selected.program, selected.extents, subject.arch, subject.hardware))


def _stage(stage: StagePlan) -> str:
    if stage.chosen is None:
        return f"stage {stage.step.name}: torch, not looked into"
    planned = stage.chosen.planned
    kind = type(planned.plan).__name__.removesuffix("Plan").lower()
    return f"stage {stage.step.name}: {kind}, {show(planned.request)}, estimate {duration(planned.seconds)}"


def words(problem: ProgramError | ShapeError) -> str:
    """Returns an error as a person reads it, with excerpts and fixes."""
    if isinstance(problem, ShapeError):
        return str(problem)
    return render(problem.diagnostics[:6], problem.source, FILE)


_MOST_LINES = 40


def look_up(about: str) -> str:
    """Returns what the guide and the tables say of a code, a field or words."""
    about = plain(about).strip()[:200]
    code = about.upper()
    rules = [f"{code}: {r.title}. {r.text} (from: {r.source})" for r in RULES if r.code == code]
    if code in CODES or rules:
        return "\n".join(rules or [f"{code}: {CODES[code]}"])
    if about.lower() in FIELDS:
        field = FIELDS[about.lower()]
        return f"{field.name} {legal_values(field)}: {field.meaning}"
    query_words = _words(about)
    lines = [line for line in guide().splitlines() if line.strip()]
    best = max((len(query_words & _words(line)) for line in lines), default=0)
    if not best:
        return f"the guide says nothing of {about!r}"
    return "\n".join([line for line in lines if len(query_words & _words(line)) == best][:_MOST_LINES])


def _words(text: str) -> set[str]:
    return {w for w in re.findall(r"\w+", text.lower()) if len(w) > 2}


# --- the program at the problem's extents ----------------------------------------


@dataclass(frozen=True, slots=True)
class _Selected:
    """Describes a program of the problem's name at the problem's extents."""

    subject: ProblemDescription
    checked: frontend.Checked
    program: ir.Program
    extents: Mapping[str, int]


def _selected(subject: ProblemDescription, checked: frontend.Checked) -> _Selected:
    """Raises ShapeError."""
    program = frontend.program(checked, subject.program)
    return _Selected(subject, checked, program, subject.extents(program))


def _planned(selected: _Selected) -> Planned | PipelinePlan:
    """Raises ProgramError where no kernel is legal."""
    subject, checked, sizes = selected.subject, selected.checked, tuple(selected.extents.values())
    match selected.program:
        case ir.Pipeline() as pipeline:
            return plan_pipeline(checked, pipeline, sizes, subject.arch, subject.hardware)
        case ir.Kernel() as kernel:
            return frontend.plan_kernel(checked, kernel, sizes, subject.arch, subject.hardware).planned

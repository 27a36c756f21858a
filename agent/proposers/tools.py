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
from ucutlass.agent.proposers.problem_facts import ProblemDescription, bound_lines
from ucutlass.agent.proposers.quoting import plain
from ucutlass.codes import CODES
from ucutlass.diagnostics import ProgramError, render
from ucutlass.explain import explain, rows
from ucutlass.guide import guide
from ucutlass.ir.schedule import FIELDS, legal_values, show
from ucutlass.kernels.families import RULES
from ucutlass.kernels.planned import Planned
from ucutlass.pipeline.planning import PipelinePlan, StagePlan, plan_pipeline
from ucutlass.runtime import isolation
from ucutlass.shapes import ShapeError
from ucutlass.sol.bounds import bounds
from ucutlass.units import duration

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


def toolbox(subject: ProblemDescription, measure: Measure | None = None) -> tuple[Tool, ...]:
    """Returns the tools in the order in which they are offered, which must stay: an API caches by it."""
    of = partial(_of_program, Front(subject))
    tools = [
        of(
            "check",
            "Checks a program and its schedules for the problem's extents, as the judge will: every "
            "error with its place, the numbers and a fix. Free.",
            lambda text: check(subject, text),
        ),
        of(
            "explain",
            "Says how the compiler would run a program at the problem's extents: what it chose and "
            "why, waves, registers, shared memory, estimate, advice. Free.",
            lambda text: described(subject, text),
        ),
        of(
            "sol",
            "The speed-of-light bounds of a program at the problem's extents, with the terms of each. Free.",
            lambda text: speed_of_light(subject, text),
        ),
        Tool(
            "guide",
            "Looks up the language guide: a diagnostic code (UC0404), a schedule field (cluster), or words.",
            _object("about", "what to look up"),
            lambda v: look_up(_text(v, "about")),
        ),
    ]
    if measure is not None:
        words = "Builds a program, verifies, times and audits it now. Costs an attempt: call it for what you "
        tools.append(of("measure", words + "would propose.", measure))
    return tuple(tools)


class Front:
    """Shows that the compiler gets through a text, before this process reads it: a text on which it hangs,
    or takes the machine's memory, ends a process that nobody needs."""

    def __init__(self, subject: ProblemDescription) -> None:
        self._subject = subject
        self._process = isolation.WarmProcess()

    def admit(self, text: str) -> None:
        """Raises ToolFailed where the compiler does not get through, ProgramError, ShapeError."""
        self._read(text, {})
        self._read(text, _read(self._subject, text).extents)

    def _read(self, text: str, sizes: Mapping[str, int]) -> None:
        subject = self._subject
        arguments = {
            "text": text,
            "program": subject.program,
            "sizes": dict(sizes),
            "arch": subject.arch,
            "device": subject.device,
        }
        outcome = self._process.call(
            "ucutlass.tasks.front_end:read", arguments, limit_seconds=SECONDS, memory_bytes=BYTES
        )
        if not isinstance(outcome, isolation.Returned):
            raise ToolFailed(
                f"the compiler did not get through it: {isolation.failure_text(outcome, 'the compiler')}"
            )


def _of_program(front: Front, name: str, says: str, call: Measure) -> Tool:
    def called(value: Mapping[str, Any]) -> str:
        text = _text(value, "program")
        try:
            front.admit(text)
            return call(text)
        except (ProgramError, ShapeError) as problem:
            return words(problem)

    return Tool(name, says, _object("program", "a complete program"), called)


def _object(name: str, says: str) -> Mapping[str, Any]:
    properties = {name: {"type": "string", "description": says}}
    return {"type": "object", "properties": properties, "required": [name], "additionalProperties": False}


def _text(value: Mapping[str, Any], name: str) -> str:
    text = value.get(name) if isinstance(value, Mapping) else None
    if not isinstance(text, str) or not text.strip():
        raise ToolFailed(f"{name} must be a text that is not empty")
    if len(text) > MOST_PROGRAM:
        raise ToolFailed(f"{name} has {len(text)} characters; at most {MOST_PROGRAM} are read")
    return text


# --- what they say ---------------------------------------------------------------


def check(subject: ProblemDescription, text: str) -> str:
    _planned(_read(subject, text))
    return "fine: it parses, its types agree, and its schedule is legal for these extents"


def described(subject: ProblemDescription, text: str, advised: bool = True) -> str:
    """Returns how the compiler runs a program; `advised` adds what its rules say. Raises ProgramError,
    ShapeError."""
    read = _read(subject, text)
    planned = _planned(read)
    if isinstance(planned, PipelinePlan):
        return "\n".join(_stage(stage) for stage in planned.stages)
    bound = bounds(read.program, read.extents, subject.hardware, planned=planned)
    if not isinstance(read.program, ir.Kernel):
        raise TypeError(type(read.program).__name__)
    advice = lines(advise(facts_of(read.checked, read.program, planned))) if advised else []
    explained = [f"{label}: {words}" for label, words in rows(explain(planned, bound))]
    return "\n".join([*explained, *advice])


def speed_of_light(subject: ProblemDescription, text: str) -> str:
    read = _read(subject, text)
    return "\n".join(bound_lines(read.checked, read.program, read.extents, subject.arch, subject.hardware))


def _stage(stage: StagePlan) -> str:
    if stage.chosen is None:
        return f"stage {stage.step.name}: torch, not looked into"
    planned = stage.chosen.planned
    kind = type(planned.plan).__name__.removesuffix("Plan").lower()
    return f"stage {stage.step.name}: {kind}, {show(planned.request)}, estimate {duration(planned.seconds)}"


def words(problem: ProgramError | ShapeError) -> str:
    """Returns an error as a person reads it, with excerpts and mends."""
    if isinstance(problem, ShapeError):
        return str(problem)
    return render(problem.diagnostics[:6], problem.source, "program")


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


# --- reading ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Read:
    """Describes a program of the problem's name at the problem's extents."""

    subject: ProblemDescription
    checked: frontend.Checked
    program: ir.Program
    extents: Mapping[str, int]


def _read(subject: ProblemDescription, text: str) -> _Read:
    """Raises ProgramError, ShapeError."""
    checked = frontend.read_text(text, "program")
    program = frontend.program(checked, subject.program)
    return _Read(subject, checked, program, subject.extents(program))


def _planned(read: _Read) -> Planned | PipelinePlan:
    """Raises ProgramError where no kernel is legal."""
    arch, device, sizes = read.subject.arch, read.subject.hardware, tuple(read.extents.values())
    match read.program:
        case ir.Pipeline() as pipeline:
            return plan_pipeline(read.checked, pipeline, sizes, arch, device)
        case ir.Kernel() as kernel:
            return frontend.plan_kernel(read.checked, kernel, sizes, arch, device).planned

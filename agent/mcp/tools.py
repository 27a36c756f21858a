"""This module has the nine tools. Each turns typed arguments into a command of `ucc`, and the command's JSON into
a typed answer.

What a client sends is data: texts go to a command's standard input, paths are read below the server's root, and
names and extents match patterns before they become arguments.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, TypeAlias

import anyio
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, Field

from ucutlass.agent.mcp import answers, measuring
from ucutlass.agent.mcp.answers import diagnostics_of
from ucutlass.agent.mcp.command import Command, CommandResult
from ucutlass.agent.mcp.jobs import CommandJob, Commands, JobStep
from ucutlass.agent.mcp.limits import MOST_FILE, MOST_PROGRAMS, MOST_SOURCES, MOST_TEXT, ServerLimits
from ucutlass.agent.mcp.root import PathRefused, parts_of, read_below
from ucutlass.agent.proposers.anthropic import KEY

MOST_WAIT = 40.0
"""Seconds that a tool waits for a job, below the time in which every tool answers."""

MOST_PUT = 20_000
"""Characters of one edit: Linux takes 128 KiB as one argument of a program."""


@dataclass(slots=True)
class ServerState:
    """What the tools of one server share. `sources` are the latest emitted ones by digest."""

    limits: ServerLimits
    commands: Commands
    sources: OrderedDict[str, str] = field(default_factory=OrderedDict)

    def keep(self, source: str) -> str:
        """Remembers a source and returns its digest."""
        digest = digest_of(source)
        self.sources[digest] = source
        self.sources.move_to_end(digest)
        while len(self.sources) > MOST_SOURCES:
            self.sources.popitem(last=False)
        return digest


Call: TypeAlias = Context[ServerState, Any]

# --- arguments -----------------------------------------------------------------------

Text = Annotated[
    str | None, Field(max_length=MOST_TEXT, description="The program's text, as `ucc guide` describes it.")
]
FilePath = Annotated[
    str | None,
    Field(max_length=1024, description="In place of a text: a file's path relative to the server's root."),
]
Name = Annotated[str, Field(pattern=r"^[A-Za-z_]\w{0,127}$")]
Extent = Annotated[int, Field(ge=0, le=1 << 48, strict=True)]
Sizes = Annotated[
    dict[Name, Extent],
    Field(max_length=64, description='Extents of the free dimensions, such as {"M": 4096, "N": 4096}.'),
]
NoSizes = Annotated[
    dict[Name, Extent] | None,
    Field(max_length=64, description="Extents to check schedules for; by default ordinary ones."),
]
Kernel = Annotated[Name | None, Field(description="Which kernel or pipeline, where the file has several.")]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,32}$")]
Arch = Annotated[Word | None, Field(description="Compile target: sm90a (the default), sm89 or sm80.")]
DeviceName = Annotated[Word | None, Field(description="GPU to plan for, such as H200.")]
Wait = Annotated[
    float, Field(ge=0, le=MOST_WAIT, description="Seconds to wait for the end; then poll `job`.")
]
Baseline = Literal["eager", "compile", "compile-max-autotune", "cublas"]


class EditArgument(BaseModel, extra="forbid"):
    """Puts a text in the place of what stands at an address."""

    address: str = Field(
        max_length=300, description="Such as linear.schedule[1].tile, linear.h.type, linear.schedule[+]."
    )
    put: str = Field(max_length=MOST_PUT, description="What is to stand there; empty removes it.")


class SearchBudget(BaseModel, extra="forbid"):
    """Bounds a search, within the server's own limits."""

    attempts: int | None = Field(None, ge=1, description="Most candidates that are judged.")
    seconds: float | None = Field(None, gt=0, allow_inf_nan=False, description="Most seconds.")


def digest_of(text: str) -> str:
    """Returns the digest by which a text is named in answers and resources."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _source(call: Call, text: str | None, path: str | None) -> str:
    """Returns the program that a tool is given. Raises ToolError."""
    if (text is None) == (path is None):
        raise ToolError("give either text or path")
    if text is not None:
        return text
    content = _file(call, path or "", MOST_FILE)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ToolError(f"byte {error.start} of the file is not UTF-8") from None


def _file(call: Call, path: str, most: int) -> bytes:
    try:
        return read_below(_state(call).limits.root, path, most)
    except PathRefused as refused:
        raise ToolError(str(refused)) from None


def _state(call: Call) -> ServerState:
    state: ServerState = call.request_context.lifespan_context
    return state


def _options(
    sizes: Mapping[str, int] | None = None,
    kernel: str | None = None,
    arch: str | None = None,
    device: str | None = None,
) -> tuple[str, ...]:
    """Returns the options that several commands share."""
    pairs = ",".join(f"{name}={extent}" for name, extent in (sizes or {}).items())
    options = (("-s", pairs), ("-k", kernel), ("--arch", arch), ("--device", device))
    return tuple(word for option, value in options if value for word in (option, value))


def _progress(call: Call) -> Callable[[float, str], Awaitable[None]]:
    async def on_progress(seconds: float, words: str) -> None:
        await call.report_progress(seconds, None, words or None)

    return on_progress


async def _run(
    call: Call, arguments: Sequence[str], text: str = "", inputs: Mapping[str, bytes] | None = None
) -> CommandResult:
    """Runs a command that answers within seconds."""
    command = Command((*arguments, "--json"), text, inputs or {})
    return await _state(call).commands.run(command, _progress(call))


def _common(result: CommandResult) -> dict[str, Any]:
    """Returns the fields that all answers of one command have."""
    answer: dict[str, Any] = {"ok": result.ended == 0, "words": result.words, "fault": result.fault}
    return answer | ({"diagnostics": diagnostics_of(result.row)} if "diagnostics" in result.row else {})


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e6, 4)


# --- tools that answer at once -------------------------------------------------------


async def check(
    call: Call, text: Text = None, path: FilePath = None, sizes: NoSizes = None
) -> answers.CheckAnswer:
    """Check a program: syntax, names, types, kernel families and schedules. Every error comes at once, with its
    place, the numbers and a fix. Builds nothing; needs no GPU."""
    result = await _run(call, ("check", "-", *_options(sizes)), _source(call, text, path))
    programs = [
        answers.ProgramAnswer(**{name: row[name] for name in ("name", "kind", "family", "sizes")})
        for row in result.row.get("programs", ())
    ]
    return answers.CheckAnswer(**_common(result), programs=programs)


async def explain(
    call: Call,
    sizes: Sizes,
    text: Text = None,
    path: FilePath = None,
    kernel: Kernel = None,
    arch: Arch = None,
    device: DeviceName = None,
) -> answers.ExplainAnswer:
    """Say how the compiler would run a program at these extents: its schedule and the reason of every field that
    it chose, estimate, bound, and schedules to try. Needs no GPU."""
    options = _options(sizes, kernel, arch, device)
    result = await _run(call, ("explain", "-", *options), _source(call, text, path))
    row = result.row
    if result.ended != 0:
        return answers.ExplainAnswer(**_common(result))
    bound = row.get("bound") or {}
    return answers.ExplainAnswer(
        **_common(result),
        device=row["device"],
        schedule=row.get("schedule", ""),
        chosen_by=row.get("origin", ""),
        estimate_us=_us(row["seconds"]),
        bound_us=_us(bound.get("seconds")),
        limiter=bound.get("limit", ""),
        reasons=[answers.ReasonAnswer(**note) for note in row.get("notes", ())],
        advice=[_advice(finding) for finding in row.get("advice", {}).get("findings", ())],
        stages=[
            answers.StageAnswer(
                name=stage["name"],
                kernel=stage["kernel"],
                schedule=stage["schedule"],
                estimate_us=_us(stage["seconds"]),
            )
            for stage in (row["stages"] if "pipeline" in row else ())
        ],
    )


def _advice(finding: Mapping[str, Any]) -> answers.AdviceAnswer:
    edits = [
        answers.ScheduleAdvice(
            put=edit["schedule"],
            low=(edit.get("expected") or {}).get("low"),
            high=(edit.get("expected") or {}).get("high"),
            note=edit.get("note") or "",
        )
        for edit in finding["edits"]
    ]
    evidence = [entry["words"] for entry in finding["evidence"]]
    return answers.AdviceAnswer(
        why=finding["diagnosis"], evidence=evidence, act=finding.get("act") or "", edits=edits
    )


async def sol(
    call: Call,
    sizes: NoSizes = None,
    text: Text = None,
    path: FilePath = None,
    kernel: Kernel = None,
    device: DeviceName = None,
    regime: Literal["cold", "warm"] = "cold",
) -> answers.SolAnswer:
    """Say what no kernel for a program can beat at these extents: the speed of light on a device, with the terms
    of each bound. A path may lead to a PyTorch problem file (.py), which brings its own extents. Needs no GPU."""
    options = ("--regime", regime, *_options(sizes, kernel, None, device))
    if path is not None and text is None and path.endswith(".py"):
        name = _file_name(path)
        result = await _run(call, ("sol", name, *options), inputs={name: _file(call, path, MOST_FILE)})
    else:
        result = await _run(call, ("sol", "-", *options), _source(call, text, path))
    row = result.row
    if result.ended != 0:
        return answers.SolAnswer(**_common(result))
    terms = [
        answers.TermAnswer(bound=bound, name=term["name"], us=_us(term["seconds"]) or 0.0, why=term["why"])
        for bound, parts in row["bounds"].items()
        for term in (*parts["limits"], *parts["added"])
    ]
    times = {bound: _us(parts["seconds"]) for bound, parts in row["bounds"].items()}
    return answers.SolAnswer(
        **_common(result),
        device=row["device"],
        regime=row["regime"],
        limiter=row["limit"],
        bounds_us=answers.BoundsAnswer(**times),
        terms=terms,
    )


async def edit(
    call: Call,
    text: Text = None,
    path: FilePath = None,
    edits: Annotated[list[EditArgument] | None, Field(max_length=40)] = None,
) -> answers.EditAnswer:
    """Edit a program's syntax tree at addresses and check what comes of it; all edits are carried out, or none.
    Without edits: list every address with what stands there. Files are not changed. Needs no GPU."""
    pairs = [] if edits is None else [(e.address, e.put) for e in edits]
    if sum(len(put) for _, put in pairs) > MOST_TEXT:
        raise ToolError(f"the edits have more than {MOST_TEXT} characters together")
    words = [word for address, put in pairs for word in ("--edit", address, put)]
    result = await _run(call, ("edit", "-", *words), _source(call, text, path))
    row = result.row
    return answers.EditAnswer(
        **_common(result),
        text=row.get("text", ""),
        changed=row.get("changed", []),
        addresses={entry["address"]: entry["text"] for entry in row.get("addresses", ())},
    )


async def emit(
    call: Call,
    sizes: Sizes,
    text: Text = None,
    path: FilePath = None,
    kernel: Kernel = None,
    arch: Arch = None,
    source: Annotated[
        bool, Field(description="ToolAnswer with the source itself, some 10,000 tokens, beside its resource.")
    ] = False,
) -> answers.EmitAnswer:
    """Emit the CUTLASS C++ that a kernel becomes at these extents; the answer names the resource that holds it.
    Needs no GPU."""
    options = _options(sizes, kernel, arch)
    result = await _run(call, ("emit", "-", *options), _source(call, text, path))
    row = result.row
    if result.ended != 0:
        return answers.EmitAnswer(**_common(result))
    digest = _state(call).keep(row["source"])
    return answers.EmitAnswer(
        **_common(result),
        entry=row["entry"],
        arch=row["arch"],
        schedule=row["schedule"],
        digest=digest,
        uri=f"ucc://source/{digest}",
        characters=len(row["source"]),
        source=row["source"] if source else "",
    )


async def search(
    call: Call, query: Annotated[str, Field(min_length=1, max_length=200)]
) -> answers.LookupAnswer:
    """Look up a diagnostic's code (UC0404), a schedule field (cluster) or words, in the language guide, the rules
    and what earlier optimisation sessions taught. Needs no GPU."""
    command = Command(("search", "--json", "--", query))
    result = await _state(call).commands.run(command, _progress(call))
    hits = [answers.HitAnswer(**hit) for hit in result.row.get("hits", ())]
    return answers.LookupAnswer(**_common(result), hits=hits)


# --- jobs ----------------------------------------------------------------------------


async def measure(
    call: Call,
    texts: Annotated[
        list[Annotated[str, Field(max_length=MOST_TEXT)]],
        Field(min_length=1, max_length=MOST_PROGRAMS, description="Programs, measured one after the other."),
    ],
    sizes: NoSizes = None,
    kernel: Kernel = None,
    problem: Annotated[
        str | None,
        Field(
            max_length=1024,
            description="In place of sizes: a PyTorch problem file below the root, FILE.py or FILE.py:CLASS, "
            "that the programs are to compute.",
        ),
    ] = None,
    baselines: Annotated[list[Baseline] | None, Field(max_length=4)] = None,
    level: Annotated[
        Literal["screen", "full"],
        Field(
            description="screen: built, held against the reference at these extents and timed alone. full: the "
            "whole suite, and timed in turns with the baselines; both leave records."
        ),
    ] = "screen",
    wait_s: Wait = 30.0,
) -> answers.JobAnswer:
    """Build programs, verify them against the float64 reference and time them on the GPU of the server. Without a
    GPU programs are built, not run."""
    if (sizes is None) == (problem is None):
        raise ToolError("give either sizes or problem")
    if problem is None:
        steps = measuring.steps(texts, _options(sizes, kernel), baselines or (), level)
    else:
        name, inputs = _module(call, problem)
        steps = measuring.module_steps(name, inputs, texts)
    return await _started(call, CommandJob("measure", steps, [digest_of(text) for text in texts]), wait_s)


async def optimize(
    call: Call,
    path: FilePath = None,
    text: Text = None,
    sizes: NoSizes = None,
    kernel: Kernel = None,
    start: Annotated[
        str | None, Field(max_length=MOST_TEXT, description="The first program of a PyTorch problem file.")
    ] = None,
    session: Annotated[
        str | None, Field(pattern="^[0-9a-f]{4,64}$", description="Go on with this session instead.")
    ] = None,
    budget: SearchBudget | None = None,
    proposer: Annotated[
        Literal["rules", "model"],
        Field(description="model costs money: the server's user must have named one."),
    ] = "rules",
    wait_s: Wait = 30.0,
) -> answers.JobAnswer:
    """Search for a faster program that computes what a program, or a PyTorch problem file (FILE.py or
    FILE.py:CLASS), does, on the GPU of the server. The search goes on as a job, and its session is kept."""
    limits, bounds = _state(call).limits, budget or SearchBudget(attempts=None, seconds=None)
    words = ["--attempts", str(_within("attempts", bounds.attempts, limits.attempts))]
    words += ["--seconds", f"{_within('seconds', bounds.seconds, limits.job_seconds):g}"]
    words += ["--proposer", "rules" if proposer == "rules" else "anthropic"]
    if session is not None:
        if path is not None or text is not None or proposer == "model":
            raise ToolError("give either a session of rules to go on with, or a problem")
        command = Command(("optimize", "--resume", session, *words, "--json"))
    elif path is not None and text is None and re.search(r"\.py(:\w+)?$", path):
        name, inputs = _module(call, path)
        if start is not None:
            inputs["start.ucu"] = start.encode("utf-8", "surrogatepass")
            words += ["--start", "start.ucu"]
        command = Command(("optimize", name, *words, "--json"), inputs=inputs)
    else:
        options = _options(sizes, kernel)
        command = Command(("optimize", "-", *options, *words, "--json"), _source(call, text, path))
    dollars = 0.0
    if proposer == "model":
        dollars = _state(call).commands.dollars_left
        if limits.model is None or dollars <= 0:
            raise ToolError("the server's user allows no model, or its money is spent: use rules")
        paid = ("--model", limits.model, "--dollars", f"{dollars:.6f}")
        command = replace(command, arguments=(*command.arguments, *paid), keys=(KEY,))
    return await _started(call, CommandJob("optimize", [JobStep(command)], dollars=dollars), wait_s)


async def job(
    call: Call,
    id: Annotated[str, Field(max_length=40)],
    wait_s: Wait = 30.0,
    cancel: Annotated[bool, Field(description="End the job and its processes.")] = False,
) -> answers.JobAnswer:
    """Poll a job that `measure` or `optimize` began, or cancel it."""
    commands = _state(call).commands
    polled = commands.job(id)
    if cancel:
        commands.stop(polled)
    await commands.wait(polled, wait_s, _progress(call))
    return _job_answer(call, polled)


def _module(call: Call, path: str) -> tuple[str, dict[str, bytes]]:
    """Returns how a command names a problem file, and the file to be put where it runs."""
    file, _, cls = path.partition(".py:")
    file = file if not cls else f"{file}.py"
    if cls and not re.fullmatch(r"\w{1,128}", cls):
        raise ToolError("a class is named by letters, digits and underscores")
    name = _file_name(file)
    return (f"{name}:{cls}" if cls else name), {name: _file(call, file, MOST_FILE)}


def _file_name(path: str) -> str:
    """Returns a name for the copy of a problem file: its own where it is a plain one."""
    try:
        name = PurePosixPath(*parts_of(path)).name
    except PathRefused as refused:
        raise ToolError(str(refused)) from None
    return name if re.fullmatch(r"\w[\w.-]{0,99}\.py", name, flags=re.ASCII) else "problem.py"


def _within(what: str, value: float | None, most: float) -> float:
    if value is not None and value > most:
        raise ToolError(f"{value:g} {what} are more than the server allows, which is {most:g}")
    return most if value is None else value


async def _started(call: Call, started: CommandJob, wait_s: float) -> answers.JobAnswer:
    """Queues a job and waits for its end; a call that is cancelled cancels the job."""
    commands = _state(call).commands
    await commands.start(started)
    try:
        await commands.wait(started, wait_s, _progress(call))
    except anyio.get_cancelled_exc_class():
        commands.stop(started)
        raise
    return _job_answer(call, started)


def _job_answer(call: Call, described: CommandJob) -> answers.JobAnswer:
    last = next((r for r in reversed(described.results) if r is not None), None)
    searched = described.kind == "optimize"
    failed = described.status in ("failed", "cancelled") or (
        searched and last is not None and last.ended != 0
    )
    words = described.words or (last.words if failed and last is not None else "")
    running = described.status in ("queued", "running")
    return answers.JobAnswer(
        ok=not failed,
        words=words or (described.latest if running else ""),
        fault="cancelled" if described.status == "cancelled" else last.fault if failed and last else "",
        status=described.status,
        job=described.id,
        kind=described.kind,
        queue_position=_state(call).commands.position(described),
        done=len(described.results),
        total=len(described.steps),
        rows=[] if searched else measuring.rows(described),
        search=measuring.searched(last) if searched and last is not None else None,
    )


TOOLS: Sequence[tuple[Callable[..., Awaitable[answers.ToolAnswer]], bool]] = (
    (check, True),
    (explain, True),
    (sol, True),
    (edit, True),
    (emit, True),
    (measure, False),
    (optimize, False),
    (job, False),
    (search, True),
)
"""The tools in the order in which they are listed, which stays, since clients cache by it; whether each reads
only."""

"""This module has what the tools answer. Times are in microseconds."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from ucutlass.agent.mcp.command import Fault
from ucutlass.agent.mcp.jobs import JobStatus

Verdict = Literal["right", "wrong", "refused", "built", "failed", "timeout"]
"""`built`: no GPU is here that could have run it. `refused`: the compiler takes no such program."""


class ToolAnswer(BaseModel):
    """What every tool answers."""

    ok: bool = Field(description="Whether what was asked for was done.")
    words: str = Field("", description="Why not, or what else is to be known.")
    fault: Fault = Field("", description="Who is at fault where it was not done.")


class DiagnosticAnswer(BaseModel):
    """One finding about a program. Lines and columns count from 1."""

    code: str = Field(description="Read ucc://diagnostics/CODE for what it means.")
    severity: Literal["error", "warning"]
    message: str
    hint: str | None = Field(None, description="What would be legal.")
    line: int
    column: int
    end_line: int
    end_column: int
    notes: list[str] = Field(default_factory=list)


class ProgramAnswer(BaseModel):
    """A kernel or pipeline of a file; `sizes` are the dimensions whose extents a call gives."""

    name: str
    kind: str
    family: str
    sizes: list[str]


class CheckAnswer(ToolAnswer):
    """What `check` answers."""

    diagnostics: list[DiagnosticAnswer] = Field(default_factory=list)
    programs: list[ProgramAnswer] = Field(default_factory=list)


class ReasonAnswer(BaseModel):
    """A schedule field that the compiler chose."""

    field: str
    value: str
    reason: str


class ScheduleAdvice(BaseModel):
    """A schedule to try; `put` stands in a block `schedule ARCH { .. }`. `low` and `high` bound the expected
    time over the present one."""

    put: str
    low: float | None = None
    high: float | None = None
    note: str = ""


class AdviceAnswer(BaseModel):
    """One finding about a schedule, with its numbers and what to try."""

    why: str
    evidence: list[str]
    act: str = ""
    edits: list[ScheduleAdvice] = Field(default_factory=list)


class StageAnswer(BaseModel):
    """One launch of a pipeline."""

    name: str
    kernel: str
    schedule: str
    estimate_us: float | None


class ExplainAnswer(ToolAnswer):
    """What `explain` answers. A pipeline has stages in place of a schedule."""

    diagnostics: list[DiagnosticAnswer] = Field(default_factory=list)
    device: str = ""
    schedule: str = ""
    chosen_by: str = Field("", description="What chose the schedule; empty where the program fixes it.")
    estimate_us: float | None = None
    bound_us: float | None = None
    limiter: str = ""
    reasons: list[ReasonAnswer] = Field(default_factory=list)
    advice: list[AdviceAnswer] = Field(default_factory=list)
    stages: list[StageAnswer] = Field(default_factory=list)


class BoundsAnswer(BaseModel):
    """Times that no kernel beats: one launch an operation, one launch in all, and as this plan runs."""

    unfused: float | None = None
    fused: float | None = None
    realistic: float | None = None


class TermAnswer(BaseModel):
    """A part of a bound."""

    bound: str
    name: str
    us: float
    why: str


class SolAnswer(ToolAnswer):
    """What `sol` answers."""

    diagnostics: list[DiagnosticAnswer] = Field(default_factory=list)
    device: str = ""
    regime: str = ""
    limiter: str = ""
    bounds_us: BoundsAnswer = Field(default_factory=BoundsAnswer)
    terms: list[TermAnswer] = Field(default_factory=list)


class EditAnswer(ToolAnswer):
    """What `edit` answers. `addresses` has what can be addressed, where no edits were given."""

    text: str = ""
    changed: list[str] = Field(default_factory=list)
    diagnostics: list[DiagnosticAnswer] = Field(default_factory=list)
    addresses: dict[str, str] = Field(default_factory=dict)


class EmitAnswer(ToolAnswer):
    """What `emit` answers."""

    diagnostics: list[DiagnosticAnswer] = Field(default_factory=list)
    entry: str = ""
    arch: str = ""
    schedule: str = ""
    digest: str = ""
    uri: str = Field("", description="The resource that holds the whole source.")
    characters: int = 0
    source: str = Field("", description="The source, where it was asked for.")


class MeasuredRow(BaseModel):
    """One program of a measurement. `digest` is of its text."""

    digest: str
    verdict: Verdict
    words: str = ""
    us: float | None = None
    interval_us: tuple[float, float] | None = Field(None, description="The tenth and ninetieth percentile.")
    of_bound: float | None = Field(None, description="The bound over the time.")
    ratio_vs: dict[str, float] = Field(
        default_factory=dict, description="A baseline's time over the program's; above 1 is faster."
    )
    records: list[str] = Field(default_factory=list, description="Read ucc://records/ID for the evidence.")
    diagnostics: list[DiagnosticAnswer] = Field(default_factory=list)


class SearchedProgram(BaseModel):
    """What an optimisation brought."""

    session: str = ""
    attempts: int = 0
    stopped: str | None = None
    own_us: float | None = Field(None, description="The time of the first program.")
    best_us: float | None = None
    gain: float | None = Field(None, description="The baseline's time over the best one's, confirmed.")
    text: str = Field("", description="The best program.")
    records: list[str] = Field(default_factory=list)
    messages: list[str] = Field(default_factory=list)


class JobAnswer(ToolAnswer):
    """What `measure`, `optimize` and `job` answer. While `status` is queued or running, ask `job` again."""

    status: JobStatus
    job: str = Field(description="The id to poll with.")
    kind: str = ""
    queue_position: int | None = Field(None, description="How many jobs come before; null: it does not wait.")
    done: int = 0
    total: int = 0
    rows: list[MeasuredRow] = Field(default_factory=list, description="As far as they are known.")
    search: SearchedProgram | None = None


class HitAnswer(BaseModel):
    """One place that answers a query."""

    uri: str
    title: str
    excerpt: str


class LookupAnswer(ToolAnswer):
    """What `search` answers."""

    hits: list[HitAnswer] = Field(default_factory=list)


def diagnostics_of(row: dict[str, Any]) -> list[DiagnosticAnswer]:
    """Returns the diagnostics of a command's JSON."""
    return [
        DiagnosticAnswer(
            **{name: d[name] for name in ("code", "severity", "message", "hint")},
            **{name: d["span"][name] for name in ("line", "column", "end_line", "end_column")},
            notes=[f"line {note['span']['line']}: {note['message']}" for note in d["notes"]],
        )
        for d in row.get("diagnostics", ())
    ]

"""This module keeps a session's best in the table of adopted sources, where it is a source that was confirmed.

Its evidence is that of its confirmation, which asked what `ucc adopt` asks. So it is kept without another
measurement, also of a session that ended before somebody allowed it, but only where it would be built as then.
"""

from __future__ import annotations

from datetime import datetime, timezone

from ucutlass.adopt import database as adopted
from ucutlass.adopt.database import AdoptedRow
from ucutlass.adopt.lookup import versions_of
from ucutlass.adopt.refusals import SourceRefused
from ucutlass.adopt.source import checked as checked_source
from ucutlass.adopt.source import digest_of
from ucutlass.agent import adoption
from ucutlass.agent.adoption import AdoptionSettings, base_of
from ucutlass.agent.outcome import RefusedOutcome, TimedOutcome
from ucutlass.agent.problem import candidate_of, problem_of_json
from ucutlass.agent.session import SessionState
from ucutlass.agent.source_evaluator import TEXT, job_of
from ucutlass.assembly import versions_of as built_with
from ucutlass.backend import toolchain
from ucutlass.diagnostics import ProgramError
from ucutlass.ir.hardware import Device
from ucutlass.runtime.errors import BuildError, BuildTimedOut
from ucutlass.runtime.store import EvidenceStore
from ucutlass.tune.database import TuningDatabase, key_of


class NotAdoptable(Exception):
    """Raised for a session whose best is no confirmed source, or could not be built as it was; says why."""


def adopt_winner(state: SessionState, gpu: str, device: Device | None) -> AdoptedRow:
    """Keeps the best of a session as adopted on this GPU (the driver's name), for the program and the extents that
    it stands for. Raises NotAdoptable, StoreError, MachineError."""
    best = state.tree.best()
    if best is None or not best.source:
        raise NotAdoptable("the best is no source")
    outcome = best.outcome
    if best.id in state.tree.provisional or not isinstance(outcome, TimedOutcome) or not outcome.records:
        raise NotAdoptable(f"candidate {best.id} was not confirmed")
    rival = dict(outcome.versus).get(TEXT)
    if rival is None:
        raise NotAdoptable(f"candidate {best.id} was not compared with the text's own kernel")
    problem = problem_of_json(state.problem)
    candidate = candidate_of(problem, best.text)
    if isinstance(candidate, RefusedOutcome):
        raise NotAdoptable(f"its text is refused today: {candidate.words}")
    try:
        source = checked_source(
            best.source.encode("utf-8", "replace"), "sm_" + problem.arch.removeprefix("sm")
        )
        job = job_of(candidate, problem.arch, device, source)
        built = adoption.build(job, AdoptionSettings(state.settings.seed))
    except (SourceRefused, ProgramError, BuildError, BuildTimedOut) as problem_:
        raise NotAdoptable(str(problem_)[:400]) from problem_
    try:
        machine = EvidenceStore.open().get(outcome.records[0]).machine
    except LookupError as missing:
        raise NotAdoptable(f"the record of its verification is not there: {missing}") from missing
    if machine.device != gpu:
        raise NotAdoptable(f"it was confirmed on {machine.device}, and this is {gpu}")
    if other := [n for n, v in built_with(built).items() if machine.versions.get(n, v) != v]:
        words = f"it was confirmed with another {' and '.join(other)}: adopt it with ucc adopt"
        raise NotAdoptable(words)
    row = AdoptedRow(
        digest_of(source),
        job.program.name,
        "confirmed",
        source.text,
        base_of(job, built),
        built.planned.launch,
        outcome.seconds * 1e6,
        outcome.seconds * 1e6 * rival,
        versions_of(toolchain()),
        outcome.records,
        datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )
    adopted.keep(TuningDatabase.open(), key_of(job.program, job.sizes, gpu, problem.arch), row)
    return row

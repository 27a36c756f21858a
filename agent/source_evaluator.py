"""This module judges candidates whose CUDA was written by a proposer, beside those that are emitted.

A source is held to what `ucc adopt` holds one to: its text, object and PTX are looked at before its code runs,
an attempt at the problem's extents comes next, and one that would lead goes through the whole suite, every
sanitizer, a comparison in turns with the text's own kernel, and the audit. Nothing is adopted here.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ucutlass import ir
from ucutlass.adopt.refusals import SourceRefused
from ucutlass.adopt.source import checked as checked_source
from ucutlass.adopt.source import digest_of
from ucutlass.agent import adoption
from ucutlass.agent.adoption import AdoptionEvidence, AdoptionJob, AdoptionSettings
from ucutlass.agent.evaluator import GpuEvaluator, spend_of
from ucutlass.agent.evidence import BuiltCandidate, artifacts_of, baselines_of, machine_record
from ucutlass.agent.gpu_calls import GpuCalls, value
from ucutlass.agent.outcome import (
    FailedOutcome,
    Outcome,
    RefusedOutcome,
    RejectedOutcome,
    TimedOutcome,
    WrongOutcome,
)
from ucutlass.agent.problem import ProgramCandidate
from ucutlass.agent.run import CandidateJudgement
from ucutlass.agent.session import Confirm
from ucutlass.agent.source_files import emitted_source
from ucutlass.backend import Built, build_kernel
from ucutlass.diagnostics import ProgramError
from ucutlass.emit import NotServed
from ucutlass.emit.text import Source
from ucutlass.runtime.errors import BuildError, BuildTimedOut
from ucutlass.runtime.ptxas import PtxasReport
from ucutlass.runtime.store import EvidenceStore
from ucutlass.shapes import complete
from ucutlass.spans import span
from ucutlass.tune.lookup import recall

MOST_WORDS = 1_600
"""Characters of what a compiler said that an outcome keeps."""

MOST_LOG = 400_000
"""Characters of a compiler's log that are read."""


@dataclass(frozen=True, slots=True)
class SourceEvaluator:
    """Judges candidates of one problem as `texts` does, and sources that stand for them. `gpu` is the driver's
    name of the GPU."""

    texts: GpuEvaluator
    gpu: str

    def key(self, text: str, source: str = "") -> str | RefusedOutcome:
        key = self.texts.key(text)
        if not source or isinstance(key, RefusedOutcome):
            return key
        candidate = self._candidate(text)
        if isinstance(candidate, RefusedOutcome):
            return candidate
        try:
            emitted = emitted_source(candidate, self.texts.problem.arch, self.texts.how.device)
            own = checked_source(source.encode("utf-8", "replace"), emitted.arch)
        except NotServed as none:
            return RefusedOutcome(f"no source can stand for this program: {none}")
        except SourceRefused as refusal:
            return _refused(refusal)
        # What changes nothing is the program that it stands for.
        return key if digest_of(own) == digest_of(emitted) else f"{key}|source {digest_of(own)}"

    def judge(self, text: str, source: str = "") -> CandidateJudgement:
        if not source:
            judged = self.texts.judge(text)
            built = self.texts.built(text)
            if isinstance(judged.outcome, TimedOutcome) and isinstance(built, Built):
                return replace(judged, outcome=_with_ptxas(judged.outcome, built))
            return judged
        start, gpu_calls = time.monotonic(), self._calls()
        outcome = self._judged(text, source, gpu_calls)
        provisional = self.texts.confirms and isinstance(outcome, TimedOutcome)
        return CandidateJudgement(outcome, spend_of(start, gpu_calls), provisional=provisional)

    def confirm(self, due: Confirm) -> CandidateJudgement:
        if not due.source:
            confirmed = self.texts.confirm(due)
            built = self.texts.built(due.text)
            if isinstance(confirmed.outcome, TimedOutcome) and isinstance(built, Built):
                return replace(confirmed, outcome=_with_ptxas(confirmed.outcome, built))
            return confirmed
        start, gpu_calls = time.monotonic(), self._calls()
        try:
            outcome = self._confirmed(due, gpu_calls)
        except SourceRefused as refusal:
            if refusal.code == "slower":
                words = f"the source is no leader: {refusal.what}"
                return CandidateJudgement(due.first, spend_of(start, gpu_calls), (words,), behind=True)
            outcome = _outcome_of(refusal)
        return CandidateJudgement(outcome, spend_of(start, gpu_calls))

    # --- a reading ---------------------------------------------------------------

    def _judged(self, text: str, source: str, gpu_calls: GpuCalls) -> Outcome:
        candidate = self._candidate(text)
        if isinstance(candidate, RefusedOutcome):
            return candidate
        if other := self.texts.other(candidate, gpu_calls):
            return RefusedOutcome(other)
        built = self._built(candidate, source)
        if not isinstance(built, Built):
            return built
        reading = self.texts.tried(candidate, built, gpu_calls)
        if not isinstance(reading, TimedOutcome):
            return reading
        with span("advice"):
            advice = self.texts.advisor.static(
                candidate.checked,
                candidate.program,
                candidate.sizes,
                self.texts.problem.arch,
                self.texts.how.device,
                reading.seconds,
            )
        return _with_ptxas(replace(reading, advice=advice), built)

    @span("build")
    def _built(self, candidate: ProgramCandidate, source: str) -> Built | Outcome:
        """Builds a source and looks at what came of it. Raises MachineError."""
        try:
            job = self._job(candidate, source)
            return adoption.build(job, self._settings(job))
        except SourceRefused as refusal:
            return _outcome_of(refusal)
        except BuildError as error:
            return FailedOutcome("build", compiler_words(error, source))
        except (BuildTimedOut, ProgramError) as error:
            return FailedOutcome("build", str(error)[:600])

    # --- a confirmation ----------------------------------------------------------

    def _confirmed(self, due: Confirm, gpu_calls: GpuCalls) -> Outcome:
        """Raises SourceRefused, StoreError, MachineError."""
        candidate = self._candidate(due.text)
        if isinstance(candidate, RefusedOutcome):
            return candidate  # another version of this package judged it
        built = self._built(candidate, due.source)
        if not isinstance(built, Built):
            return built
        job = self._job(candidate, due.source)
        settings, how, store = self._settings(job), self.texts.how, EvidenceStore.open()
        subject = BuiltCandidate(job.checked, job.program, built, job.named_sizes)
        proof = machine_record(subject, replace(how, seed=settings.seed), gpu_calls, sanitized=True)
        if isinstance(proof, str):
            return FailedOutcome("run", proof[:600])
        if not proof.result["ok"]:
            raise SourceRefused("wrong", "; ".join(map(str, proof.result["failures"][:3]))[:600])
        with span("build"):
            own, _ = recall(job.checked, job.program, job.sizes, job.arch, self.gpu, job.device, beyond=True)
            rival = build_kernel(job.checked, own, job.sizes, job.arch, device=job.device)
        baselines = baselines_of(job.program, how, compiled=False)
        outcome = gpu_calls.call(
            "compared",
            adoption.comparison(job, built, rival, settings, baselines),
            limit=settings.limit * (1 + len(baselines)),
            artifacts=[*artifacts_of(built), *artifacts_of(rival)],
        )
        report = value(outcome, "the comparison")
        if isinstance(report, str):
            raise SourceRefused("untimed", report[:300])
        evidence = adoption.audited(job, built, proof, report, settings, store, how.precision)
        timed = _timed(evidence, how.baseline)
        advice = due.first.advice
        leads = due.best is None or timed.seconds < due.best
        if leads and self.texts.advisor.depth == "profiled":
            with span("advice"):
                advice = self.texts.advisor.profiled(
                    subject, job.arch, gpu_calls, settings.seed, timed.seconds
                )
        return _with_ptxas(replace(timed, first=due.first.seconds, advice=advice), built)

    def _candidate(self, text: str) -> ProgramCandidate | RefusedOutcome:
        return self.texts.candidate(text)

    def _calls(self) -> GpuCalls:
        return GpuCalls(self.texts.engine, self.texts.near, self.texts.wait)

    def _job(self, candidate: ProgramCandidate, source: str) -> AdoptionJob:
        """Raises SourceRefused."""
        arch = self.texts.problem.arch
        own = checked_source(source.encode("utf-8", "replace"), "sm_" + arch.removeprefix("sm"))
        return job_of(candidate, arch, self.texts.how.device, own)

    def _settings(self, job: AdoptionJob) -> AdoptionSettings:
        # Whoever writes a source knows the session's seed; what it is confirmed with follows from its code too.
        digest = hashlib.sha256(f"{self.texts.how.seed}:{digest_of(job.source)}".encode()).hexdigest()
        limit = self.texts.limit
        return AdoptionSettings(
            int(digest[:15], 16), limit, self.texts.how.case, limit=limit, wait=self.texts.wait
        )


def job_of(candidate: ProgramCandidate, arch: str, device: Any, source: Source) -> AdoptionJob:
    """Returns what a source is adopted for."""
    assert isinstance(candidate.program, ir.Kernel)
    extents = complete(candidate.program, candidate.sizes)
    return AdoptionJob(candidate.checked, candidate.program, extents, arch, device, source)


def _refused(refusal: SourceRefused) -> RefusedOutcome:
    return RefusedOutcome(str(refusal)[:600], (refusal.code,))


def _outcome_of(refusal: SourceRefused) -> Outcome:
    match refusal.code:
        case "wrong":
            return WrongOutcome(refusal.what[:600])
        case "untimed":
            return FailedOutcome("time", refusal.what[:600])
        case "audit":
            verdict, _, words = refusal.what.partition(": ")
            return RejectedOutcome(verdict, words[:600])
        case _:
            return _refused(refusal)


def _timed(evidence: AdoptionEvidence, baseline: str) -> TimedOutcome:
    """Returns the outcome of a source: its gain is over the session's baseline, or over the text's own kernel where
    there is none."""
    ratios = {str(v["baseline"]): v["ratio"] for v in evidence.report["versus"] if v["ratio"]}
    ratio = ratios.get(baseline) if baseline else ratios.get(TEXT)
    versus = tuple((name, 1 / r["median"]) for name, r in ratios.items())
    bench, proof, audit = evidence.records
    timed = TimedOutcome(evidence.microseconds * 1e-6, records=(proof, bench, audit), versus=versus)
    if ratio is None:
        return timed
    return replace(timed, gain=1 / ratio["median"], low=1 / ratio["high"], high=1 / ratio["low"])


TEXT = "text"
"""What comparisons call the text's own kernel."""


# --- the compilers' words --------------------------------------------------------


def _with_ptxas(outcome: TimedOutcome, built: Built) -> TimedOutcome:
    lines = ptxas_lines(built.artifact.report)
    rest = [line for line in outcome.advice.splitlines() if not line.startswith("ptxas")]
    # The first line of advice is its headline.
    return replace(outcome, advice="\n".join([*rest[:1], *lines, *rest[1:]]))


def ptxas_lines(report: PtxasReport) -> list[str]:
    """Returns what ptxas reports of each kernel, and its warnings."""
    usage = [
        f"ptxas: {u.registers} registers, {u.stack} bytes of stack, spills of {u.spill_stores} and "
        f"{u.spill_loads} bytes, {u.shared} bytes of static shared memory, {u.barriers} barriers"
        for u in report.usage[:4]
    ]
    return [*usage, *(f"ptxas warning: {f.message[:200]}" for f in report.findings[:4])]


_AT = re.compile(r"^(?P<file>[^\s()]+)\((?P<line>\d+)\): (?P<words>.*(?:error|fatal).*)$")
_DURING = re.compile(r"at line (\d+)(?: of (\S+))?")


def compiler_words(error: BuildError, source: str) -> str:
    """Returns the compiler's errors with the lines of the source that they are about; for an error in a header
    also the line of the source that led there."""
    lines = source.split("\n")
    log = _log(error.log) or "\n".join(error.errors)
    shown: dict[str, None] = {}  # the same error comes for every instantiation
    rows = log.splitlines()
    for at, row in enumerate(rows):
        m = _AT.match(row.strip())
        if m is None:
            continue
        own = Path(m["file"]).name == error.source.name
        name = "kernel.cu" if own else _header(m["file"])
        numbers = [int(m["line"])] if own else _led_from(rows[at + 1 : at + 40], error.source.name)
        about = [f"\n  {n} | {lines[n - 1].rstrip()[:160]}" for n in numbers if 1 <= n <= len(lines)]
        entry = "".join([f"{name}:{m['line']}: {m['words'][:300]}", *about])
        if sum(map(len, shown)) + len(entry) > MOST_WORDS:
            break
        shown[entry] = None
    return ("\n".join(shown) or "\n".join(error.errors))[:MOST_WORDS]


def _log(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(MOST_LOG)
    except OSError:
        return ""  # the cache was cleared since: the error has its first lines


def _led_from(rows: Sequence[str], name: str) -> list[int]:
    """Returns the lines of the source that the instantiation of a header's template began at."""
    numbers = []
    for row in rows:
        if not row.strip() or _AT.match(row.strip()):
            break
        if (m := _DURING.search(row)) and (m[2] is None or Path(m[2]).name == name):
            numbers.append(int(m[1]))
    return numbers[-1:]


def _header(path: str) -> str:
    """Returns a header's path as includes have it."""
    parts = Path(path).parts
    root = next((at for at, part in enumerate(parts) if part in ("cute", "cutlass")), len(parts) - 1)
    return "/".join(parts[root:])

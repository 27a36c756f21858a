"""This module gives whoever proposes next interpreted findings: the words and numbers of rules, never raw
counters.

In two stages, as KernelPro has it (arXiv 2606.26453): the class of what decides the time is computed first,
then every rule of that class runs, and at most three findings are told. Of every candidate that is right by
counting, the cost model and its own time; of a new leader also from the build, timing and hardware counters,
as far as the machine has the tools. What it has not is told once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ucutlass import frontend, ir
from ucutlass.advice import Advice, Counters, TimingFacts, advise, facts_of
from ucutlass.agent.evidence import BuiltCandidate, artifacts_of
from ucutlass.agent.gpu_calls import GpuCalls, value
from ucutlass.agent.outcome import TimedOutcome
from ucutlass.agent.session import Depth, SessionState
from ucutlass.assembly import kernels_of
from ucutlass.backend import Built
from ucutlass.diagnostics import ProgramError
from ucutlass.handoff import program_payload
from ucutlass.ir.hardware import Device
from ucutlass.ir.schedule import show
from ucutlass.kernels.planned import Planned
from ucutlass.pipeline.planning import plan_pipeline
from ucutlass.runtime.profile import cuda_tools, sass
from ucutlass.runtime.profile.ledger import hit_rates
from ucutlass.runtime.store import EvidenceStore
from ucutlass.shapes import ShapeError, complete
from ucutlass.sol.bounds import bounds
from ucutlass.tasks.built import kernel_payload
from ucutlass.tasks.profile import timing_of
from ucutlass.units import duration

NOT_LOOKED = "not looked at: "
"""What a line of advice begins with that says which tools are missing."""


@dataclass(slots=True)
class Advisor:
    """`missing_reported`: what is missing here was said of an earlier candidate. `limit` bounds each process, in
    seconds. `leaders_only`: nobody reads advice before a candidate leads, so no verdict waits for it."""

    depth: Depth = "static"
    limit: float = 300.0
    missing_reported: bool = False
    leaders_only: bool = False
    _missing: dict[str, str] = field(default_factory=dict)

    def static(
        self,
        checked: frontend.Checked,
        program: ir.Program,
        sizes: Mapping[str, int],
        arch: str,
        device: Device | None,
        seconds: float,
    ) -> str:
        """Returns the advice on a candidate that took so many seconds at these extents; "" where nothing is
        to be said."""
        if self.depth == "none":
            return ""
        try:
            extents = complete(program, sizes)
            match program:
                case ir.Kernel() as kernel:
                    return "\n".join(_of_kernel(checked, kernel, extents, arch, device, seconds))
                case ir.Pipeline() as pipeline:
                    return "\n".join(_of_pipeline(checked, pipeline, extents, arch, device, seconds))
        except (ProgramError, ShapeError):
            return ""  # it ran, so this is a planner that knows another device: nothing to say

    def profiled(
        self, subject: BuiltCandidate, arch: str, gpu_calls: GpuCalls, seed: int, seconds: float
    ) -> str:
        """Returns the advice on a new leader. Takes the GPU lock twice. Raises what a machine's fault
        raises."""
        match subject.built, subject.program:
            case Built() as built, ir.Kernel() as kernel:
                advice_lines = self._looked(subject, kernel, built, arch, gpu_calls, seed, seconds)
            case _:
                self._missing["the profiler"] = "stages of a pipeline are not profiled one by one"
                device = next((b.planned.device for b in kernels_of(subject.built)), None)
                static_advice = self.static(
                    subject.checked, subject.program, subject.sizes, arch, device, seconds
                )
                advice_lines = [static_advice]
        if self._missing and not self.missing_reported:
            self.missing_reported = True
            advice_lines = [
                *advice_lines,
                NOT_LOOKED + "; ".join(f"{what} ({why})" for what, why in self._missing.items()),
            ]
        return "\n".join(line for line in advice_lines if line)

    def _looked(
        self,
        subject: BuiltCandidate,
        kernel: ir.Kernel,
        built: Built,
        arch: str,
        gpu_calls: GpuCalls,
        seed: int,
        seconds: float,
    ) -> list[str]:
        """Returns the lines of every tier that can be had."""
        planned = built.planned
        trial = {
            "program": program_payload(subject.checked),
            "name": kernel.name,
            "sizes": dict(subject.sizes),
            "arch": arch,
            "seed": seed,
            "built": kernel_payload(planned, built.artifact.key),
        }
        timing = self._timed(trial, built, gpu_calls) or TimingFacts(seconds)
        planned_facts = facts_of(subject.checked, kernel, planned)
        facts = replace(planned_facts, build=self._build(built), timing=timing)
        facts = replace(facts, counters=self._counters(trial, built, gpu_calls))
        rates = hit_rates(EvidenceStore.open().find(kind="advice"), planned.device)
        return lines(advise(facts, rates))

    def _build(self, built: Built) -> Any:
        tool = cuda_tools.find("cuobjdump", os.environ)
        codes: Any = sass.NoCode("no cuobjdump") if tool is None else sass.read(built.artifact.library, tool)
        if isinstance(codes, sass.NoCode):
            self._missing["disassembly"] = codes.reason
        return sass.build_facts(built.artifact.report, codes)

    def _timed(self, trial: Mapping[str, Any], built: Built, gpu_calls: GpuCalls) -> TimingFacts | None:
        arguments = dict(trial) | {"energy": False, "versions": dict(built.artifact.versions)}
        outcome = gpu_calls.call("profiled", arguments, limit=self.limit, artifacts=artifacts_of(built))
        profile = value(outcome, "the profile")
        if isinstance(profile, str):
            self._missing["timing of the profile"] = profile[:300]
            return None
        return timing_of(profile)

    def _counters(self, trial: Mapping[str, Any], built: Built, gpu_calls: GpuCalls) -> Counters | None:
        if "counters" in self._missing:
            return None  # a tool that is missing or forbidden stays so
        kernels = [u.kernel for u in built.artifact.report.usage]
        arguments = {"trial": dict(trial), "kernels": kernels, "limit_seconds": self.limit}
        outcome = gpu_calls.call("counted", arguments, limit=self.limit + 30, artifacts=artifacts_of(built))
        counts = value(outcome, "the profiler")
        if isinstance(counts, str) or "missing" in counts:
            self._missing["counters"] = (counts if isinstance(counts, str) else str(counts["missing"]))[:300]
            return None
        return Counters(**counts["counters"])


def advisor_of(state: SessionState, limit: float) -> Advisor:
    """Returns the advisor of a session, which may have begun in another process."""
    advice_texts = [n.outcome.advice for n in state.tree.nodes if isinstance(n.outcome, TimedOutcome)]
    reported = any(NOT_LOOKED in text for text in advice_texts)
    return Advisor(state.settings.advice, limit, reported, state.settings.proposer == "rules")


# --- words -----------------------------------------------------------------------


def lines(advice: Advice) -> list[str]:
    """Returns the rules' words: evidence, what it means, what to do, and what may be expected."""
    output = [f"bottleneck: {advice.classified.bottleneck}, {advice.classified.reason}"]
    for f in advice.findings:
        rate = advice.rates.get(f.rule)
        past = f"; {rate}" if rate is not None and rate.tried else ""
        output.append(f"advice: {f.diagnosis} [{'; '.join(map(str, f.evidence))}]{past}")
        output += [f"  try: {e.schedule} ({e.expected})" for e in f.edits]
        output += [f"  do: {f.act}"] if f.act else []
    return output


def headline(advice: str) -> str:
    """Returns the first line: which resource decides."""
    return advice.partition("\n")[0]


def _of_kernel(
    checked: frontend.Checked,
    kernel: ir.Kernel,
    extents: Sequence[int],
    arch: str,
    device: Device | None,
    seconds: float,
) -> list[str]:
    planned = frontend.plan_kernel(checked, kernel, extents, arch, device).planned
    named = dict(zip(kernel.dims, extents, strict=True))
    bound = bounds(kernel, named, planned.device).fused.seconds
    facts = replace(facts_of(checked, kernel, planned), timing=TimingFacts(seconds))
    advice_lines = lines(advise(facts))
    return [advice_lines[0], _standing(planned, seconds, bound), *advice_lines[1:]]


def _standing(planned: Planned, seconds: float, bound: float) -> str:
    return (
        f"took {duration(seconds)}, estimated {duration(planned.seconds)}, bound {duration(bound)}: "
        f"{bound / seconds:.0%} of the bound's speed"
    )


def _of_pipeline(
    checked: frontend.Checked,
    pipeline: ir.Pipeline,
    extents: Sequence[int],
    arch: str,
    device: Device | None,
    seconds: float,
) -> list[str]:
    """Returns the estimate of each stage, and the rules' words of the stage that should take longest."""
    plan = plan_pipeline(checked, pipeline, extents, arch, device)
    planned_stages = [
        (s.step.name, s.step.kernel, s.chosen.planned)
        for s in plan.stages
        if s.chosen is not None and s.step.kernel is not None
    ]
    others = [s.step.name for s in plan.stages if s.chosen is None]
    parts = [f"{name} {duration(planned.seconds)}" for name, _, planned in planned_stages]
    parts += [f"{name} by torch, not known" for name in others]
    output = [f"took {duration(seconds)}; estimated by stage: {', '.join(parts)}"]
    if not planned_stages:
        return output
    name, kernel, longest = max(planned_stages, key=lambda stage: stage[2].seconds)
    advice_lines = lines(advise(facts_of(checked, kernel, longest)))
    return [*output, f"stage {name}, {show(longest.request)}: {advice_lines[0]}", *advice_lines[1:]]

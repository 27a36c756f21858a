"""This module measures energy as a tie-break: the joules of a call, of candidates that were confirmed to be
as fast as the best.

The order is lexicographic, speed first (arXiv 2606.26453): less energy never excuses a slower kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

from ucutlass.agent.evidence import BuiltCandidate, artifacts_of
from ucutlass.agent.gpu_calls import GpuCalls, value
from ucutlass.agent.session import SessionState
from ucutlass.handoff import program_payload
from ucutlass.tasks.built import built_payload

NOT_MEASURED = "energy is not measured here, so time alone decides: "


def energy_meter_of(state: SessionState, arch: str, limit: float) -> EnergyMeter | None:
    """Returns the meter of a session, which may have begun in another process; None where time alone is asked
    for."""
    if state.settings.objective == "time":
        return None
    refusals = (
        words.removeprefix(NOT_MEASURED) for words in state.messages if words.startswith(NOT_MEASURED)
    )
    return EnergyMeter(arch, state.settings.seed, limit, next(refusals, ""))


@dataclass(slots=True)
class EnergyMeter:
    """`missing` is why there is no energy on this machine, once that is known. `limit` bounds the process, in
    seconds."""

    arch: str
    seed: int
    limit: float = 300.0
    missing: str = ""

    def joules(self, subject: BuiltCandidate, gpu_calls: GpuCalls) -> tuple[float | None, str]:
        """Returns the joules of one call, None where they cannot be had, and what is to be said of that, once
        for a machine. Takes the GPU lock for some three seconds."""
        if self.missing:
            return None, ""
        arguments = {
            "program": program_payload(subject.checked),
            "built": built_payload(subject.built),
            "name": subject.program.name,
            "sizes": dict(subject.sizes),
            "arch": self.arch,
            "seed": self.seed,
        }
        outcome = gpu_calls.call("energy", arguments, limit=self.limit, artifacts=artifacts_of(subject.built))
        reading = value(outcome, "the energy's measurement")
        if isinstance(reading, str):
            return None, f"the energy of a candidate was not measured: {reading[:300]}"
        if "energy" not in reading:
            self.missing = str(reading["no_energy"])[:300]
            return None, NOT_MEASURED + self.missing
        return float(reading["energy"]["joules"]), ""

"""Completes the report of a comparison with the program's bound, and records it.

`ucc bench` and the agent share it; `ucutlass.tasks.bench` has what runs in the comparison's process.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ucutlass import frontend, ir
from ucutlass.assembly import AnyBuilt, sizes_of, versions_of
from ucutlass.ir.hardware import Device
from ucutlass.runtime.evidence import Machine, RecordSubject
from ucutlass.runtime.store import EvidenceStore, record
from ucutlass.sol.bounds import bounds
from ucutlass.tasks.record_subject import subject_of_built


@dataclass(frozen=True, slots=True)
class BenchedProgram:
    """A kernel that was built, with what it was built from."""

    checked: frontend.Checked
    program: ir.Program
    built: AnyBuilt

    @property
    def subject(self) -> RecordSubject:
        return subject_of_built(self.checked, self.program, self.built)


def describe(benched: BenchedProgram) -> dict[str, Any]:
    return {
        "kernel": benched.program.name,
        "sizes": dict(zip(benched.program.dims, sizes_of(benched.built), strict=True)),
        "arch": benched.subject.arch,
        "schedule": benched.subject.schedule,
    }


def share(report: dict[str, Any], benched: BenchedProgram, device: Device | None) -> None:
    """Adds the fused bound in microseconds, at the data sheet's clock and at the one that was measured:
    memory has a clock of its own, everything else runs at the SMs'."""
    report["bound"] = report["bound_at_clock"] = None
    if device is None:
        return
    sizes = dict(zip(benched.program.dims, sizes_of(benched.built), strict=True))
    fused = bounds(benched.program, sizes, device, regime=report["protocol"]["regime"]).fused
    report["bound"] = fused.seconds * 1e6
    clock = next((o["sm_clock"] for o in report["outcomes"][:1] if o.get("sm_clock")), None)
    if clock:
        scale = device.clock / clock
        limits = [t.seconds * (1.0 if t.name == "memory" else scale) for t in fused.limits]
        report["bound_at_clock"] = max(limits) * 1e6


def recorded(row: Mapping[str, Any], ours: BenchedProgram, files: Mapping[str, BenchedProgram]) -> list[str]:
    """Returns the ids of the new records in the user's store: one a regime for the kernel, and one for each
    file that was timed with it; those of one regime share a `comparison`."""
    machine = Machine(**row["machine"])
    machine = replace(machine, versions={**versions_of(ours.built), **machine.versions})
    store = EvidenceStore.open()
    record_ids = []
    for report in row["regimes"]:
        protocol = report["protocol"] | {"comparison": uuid.uuid4().hex}
        result = {k: v for k, v in report.items() if k != "protocol"} | {"verified": row["verified"]}
        own = store.add(record("bench", ours.subject, machine, protocol, result))
        record_ids.append(own)
        for place, outcome in enumerate(report["outcomes"]):
            if place and "failed" not in outcome and outcome["name"] in files:
                theirs = _theirs(result, place)
                subject = files[outcome["name"]].subject
                record_ids.append(store.add(record("bench", subject, machine, protocol, theirs, (own,))))
    return record_ids


def _theirs(result: Mapping[str, Any], place: int) -> dict[str, Any]:
    """Returns a result as the baseline's own: its outcome alone. Ratios, bound and verification are the
    kernel's."""
    shared = ("rounds", "seconds", "settled", "l2_reset", "no_profiler", "findings", "buffers")
    return {k: result[k] for k in shared} | {"outcomes": [result["outcomes"][place]]}

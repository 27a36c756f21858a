"""This module puts together everything about one candidate: its records, its bounds, its probe, what is
stored of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from ucutlass import frontend, ir, spans
from ucutlass.agent.gpu_calls import device_at_hand, gpu_at_hand, shared_bytes
from ucutlass.agent.integrity.bundle import (
    ArtefactDigests,
    EvidenceBundle,
    InputProbe,
    MissingEvidence,
    ReferenceProbe,
    ResultProbe,
    SolTimes,
)
from ucutlass.agent.integrity.limits import calibrated_limits, limits_of, stage_works
from ucutlass.agent.integrity.precision import DeclaredPrecision
from ucutlass.agent.integrity.records import ancestor_of, proof_of, timing_of
from ucutlass.assembly import ProgramAtSizes, code_of, planned_sources
from ucutlass.diagnostics import ProgramError
from ucutlass.handoff import program_payload
from ucutlass.ir.hardware import ARCHES, Device, default_device, device_named
from ucutlass.reference.freeing import separable, with_free_rows
from ucutlass.reference.slices import is_small
from ucutlass.runtime import calibrate, isolation
from ucutlass.runtime.evidence import ADOPTED, EvidenceKind, Record
from ucutlass.runtime.store import EvidenceStore
from ucutlass.runtime.subject import algorithm_digest, file_digest, harness_digest, program_digest
from ucutlass.runtime.verify.suite import memory_of
from ucutlass.shapes import free_dims
from ucutlass.tasks.audit import is_small_program

PROBE_SECONDS = 300.0

GPU_PROBE_SECONDS = 60.0
"""For which a probe holds a GPU that others may want to time on, and waits for it, before it is asked on the CPU."""

LARGE_BYTES = 1 << 28
"""Of a pipeline's values and their bounds, from which on a CPU takes a minute."""

LEAST_CUT = 64
"""To which the probe cuts what a text leaves free (`ucutlass.tasks.audit.CUTS`)."""

_PROBE = "ucutlass.tasks.audit:probe"


@dataclass(frozen=True, slots=True)
class AuditSubject:
    """Describes a program of a checked file at concrete extents, every dimension's by name."""

    checked: frontend.Checked
    program: ir.Program
    sizes: Mapping[str, int]


def latest(candidate: AuditSubject, store: EvidenceStore) -> tuple[Record, ...]:
    """Returns the last bench and the last verify record of the candidate: of this text, at these extents. Of
    times, the last cold one where there is any."""
    timed = _of(candidate, store, "bench")
    cold = [r for r in timed if r.protocol.get("regime") == "cold"]
    return (*(cold or timed)[:1], *_of(candidate, store, "verify")[:1])


def _of(candidate: AuditSubject, store: EvidenceStore, kind: EvidenceKind) -> tuple[Record, ...]:
    digest = algorithm_digest(candidate.program)
    records = store.find(kind=kind, kernel=candidate.program.name, algorithm=digest)
    # What was measured of a source that somebody adopted says nothing of the kernel that the text becomes.
    return tuple(r for r in records if matches(candidate, r) and not r.subject.schedule.startswith(ADOPTED))


def matches(candidate: AuditSubject, record: Record) -> bool:
    """Returns whether a record is of this very text and these extents."""
    subject = record.subject
    text = program_digest(candidate.checked.source)
    return (subject.kernel, subject.program, dict(subject.sizes)) == (
        candidate.program.name,
        text,
        dict(candidate.sizes),
    )


def gather(
    candidate: AuditSubject,
    records: Sequence[Record],
    *,
    precision: DeclaredPrecision | None = None,
    ancestors: Sequence[Record] = (),
    library: Path | None = None,
    code: str | None = None,
    seed: int = 0,
    probe: ReferenceProbe | MissingEvidence | None = None,
) -> EvidenceBundle:
    """Returns the bundle of a candidate with these records; what is not among them is missing.

    Asks the float64 reference in a process of its own, unless `probe` is what it said. `library` is the file that is kept, compared by
    its digest; `code` is that of an adopted source, which stands for what is emitted. Raises OSError where that cannot be read, CeilingsError for a calibration that is damaged.
    """
    mine = [r for r in records if matches(candidate, r)]
    strange = [r for r in records if r not in mine]
    bench, verify = (next((r for r in mine if r.kind == kind), None) for kind in ("bench", "verify"))
    device = _device(mine)
    arch = next((r.subject.arch for r in mine if r.subject.arch in ARCHES), "sm90a")
    return EvidenceBundle(
        program=candidate.program,
        precision=precision,
        timing=timing_of(bench) if bench else MissingEvidence(_no("bench", strange)),
        proof=proof_of(verify) if verify else MissingEvidence(_no("verify", strange)),
        limits=_limits(candidate, device),
        calibrated=_calibrated(candidate, device, bench),
        probe=probe_reference(candidate, seed) if probe is None else probe,
        stages=()
        if isinstance(device, MissingEvidence)
        else stage_works(candidate.program, candidate.sizes, device, arch),
        ancestors=[ancestor_of(r) for r in ancestors],
        current=_current_artefact(candidate, mine, device, library, code),
        records=[*records, *ancestors],
    )


def _no(kind: str, strange: Iterable[Record]) -> str:
    other = [r.id[:12] for r in strange if r.kind == kind]
    if other:
        return f"the {kind} record {other[0]} is of another text or of other extents: run `ucc {kind}` again"
    return f"there is no {kind} record of this text at these extents: run `ucc {kind}`"


def _device(records: Sequence[Record]) -> Device | MissingEvidence:
    names = list(dict.fromkeys(r.machine.device for r in records))
    if len(names) > 1:
        return MissingEvidence(
            f"the records are of several devices: {', '.join(n or 'a CPU' for n in names)}"
        )
    if not names:
        return default_device(ARCHES["sm90a"])
    device = device_named(names[0])
    return device or MissingEvidence(f"no bounds are known for {names[0] or 'a CPU'}")


def _limits(candidate: AuditSubject, device: Device | MissingEvidence) -> SolTimes | MissingEvidence:
    if isinstance(device, MissingEvidence):
        return device
    return limits_of(candidate.program, candidate.sizes, device)


def _calibrated(
    candidate: AuditSubject, device: Device | MissingEvidence, bench: Record | None
) -> SolTimes | MissingEvidence:
    if isinstance(device, MissingEvidence) or bench is None:
        return MissingEvidence("nothing was timed on a known device")
    ceilings = calibrate.load(bench.machine.device, bench.machine.uuid)
    if ceilings is None:
        return MissingEvidence("this GPU was not calibrated")
    return calibrated_limits(candidate.program, candidate.sizes, device, ceilings)


def _current_artefact(
    candidate: AuditSubject,
    records: Sequence[Record],
    device: Device | MissingEvidence,
    library: Path | None,
    adopted: str | None,
) -> ArtefactDigests | MissingEvidence:
    """Returns what this package emits for the candidate now, or the code that was adopted for it, and the
    digest of the library that is kept."""
    binary = file_digest(library) if library is not None else ""
    if adopted is not None:
        return ArtefactDigests(program_digest(adopted), binary, harness_digest())
    arch = next((r.subject.arch for r in records), "sm90a")
    if arch not in ARCHES:
        return MissingEvidence(f"the records are of the target {arch!r}, which this package has not")
    try:
        extents = tuple(candidate.sizes[d] for d in candidate.program.dims)
        job = ProgramAtSizes(candidate.checked, candidate.program, extents)
        _, pairs = planned_sources(job, arch, None if isinstance(device, MissingEvidence) else device)
    except ProgramError as refused:
        return MissingEvidence(f"no code is emitted for these extents: {refused.diagnostics[0].message}")
    code = code_of(source for source, _ in pairs)
    return ArtefactDigests(program_digest(code), binary, harness_digest())


# --- the probe -----------------------------------------------------------------------


class ProbeTask:
    """Is what the float64 reference says of a program, which is asked once: in a thread if it `begins` at once,
    otherwise where it is first needed. An algorithm's answer is that of all its schedules."""

    def __init__(
        self, candidate: AuditSubject, seed: int, *, begins: bool, call: isolation.IsolatedCall | None = None
    ) -> None:
        self._future: Future[ReferenceProbe | MissingEvidence] = Future()
        self._ask = partial(self._asked, candidate, seed, call)
        self._lock = Lock()
        self._wall, self._parts = 0.0, dict[str, float]()
        if begins:
            Thread(target=self._ask, daemon=True).start()

    def _asked(self, candidate: AuditSubject, seed: int, call: isolation.IsolatedCall | None) -> None:
        with self._lock:
            if self._future.done():
                return
            start = spans.clock()
            with spans.recording() as record:
                try:
                    self._future.set_result(probe_reference(candidate, seed, call))
                except Exception as error:
                    self._future.set_exception(error)
            self._wall, self._parts = spans.clock() - start, record.seconds

    def result(self) -> ReferenceProbe | MissingEvidence:
        """Waits for the answer. Of its seconds by span, such as those for the GPU lock, the open recording gets the share
        that this waits: the others went by beside other work."""
        start = spans.clock()
        self._ask()
        share = min(1.0, (spans.clock() - start) / self._wall) if self._wall else 0.0
        spans.add({name: share * seconds for name, seconds in self._parts.items()})
        return self._future.result()


def probe_reference(
    candidate: AuditSubject, seed: int, call: isolation.IsolatedCall | None = None
) -> ReferenceProbe | MissingEvidence:
    """Asks the float64 reference of a program what its results depend on, in a process of its own, which `call`
    starts: on the CPU at reduced extents, and on the GPU, if there is one, what a text fixes to large ones."""
    free = {d: n for d, n in candidate.sizes.items() if d in free_dims(candidate.program)}
    arguments = {
        "program": program_payload(candidate.checked),
        "name": candidate.program.name,
        "sizes": free,
        "seed": seed,
    }
    program, rows = with_free_rows(candidate.program)
    fixed = isinstance(program, ir.Pipeline) and not free
    call = isolation.run if call is None else call
    outcome: isolation.CallOutcome | None = None
    memory = memory_of(program, {**free, **dict.fromkeys(rows, 1)}) if fixed else 0
    large = memory > LARGE_BYTES or row_is_large(candidate.program, candidate.sizes)
    if large and (gpu := gpu_at_hand()):
        on_gpu = arguments | {
            "gpu": gpu,
            "wait": GPU_PROBE_SECONDS,
            "shared": memory <= shared_bytes(device_at_hand()),
        }
        outcome = call(_PROBE, on_gpu, limit_seconds=2 * GPU_PROBE_SECONDS)
    elif not fixed:
        # Its tensors are small, and cores are for compilers.
        outcome = call(_PROBE, arguments | {"threads": 1}, limit_seconds=PROBE_SECONDS)
    lacks_memory = isinstance(outcome, isolation.Raised) and outcome.type == "OutOfMemoryError"
    if outcome is None or lacks_memory or (large and isinstance(outcome, isolation.TimedOut)):
        outcome = call(_PROBE, arguments, limit_seconds=PROBE_SECONDS)
    match outcome:
        case isolation.Returned(dict(answer)):
            return probe_of(answer)
        case isolation.Raised(kind, message):
            return MissingEvidence(f"the reference could not be asked: {kind}: {message}")
        case _:
            return MissingEvidence(
                f"the reference could not be asked: its process was lost ({outcome})"[:300]
            )


def row_is_large(program: ir.Program, sizes: Mapping[str, int]) -> bool:
    """Returns whether a reference takes a core long at one of the rows that do not depend on each other, with what its
    text leaves free cut as the probe cuts it; of a pipeline whether it does where nothing else is free."""
    freed, lengths = with_free_rows(program)
    if isinstance(freed, ir.Pipeline):
        return not free_dims(program) and not is_small_program(freed, dict.fromkeys(lengths, 1))
    rows, free = separable(freed), free_dims(program)
    assert isinstance(program, ir.Kernel)
    least = {d: 1 if d in rows else min(n, LEAST_CUT) if d in free else n for d, n in sizes.items()}
    return not is_small(program, least)


def probe_of(answer: Mapping[str, Any]) -> ReferenceProbe:
    """Returns what `ucutlass.tasks.audit.probe` returned."""
    return ReferenceProbe(
        tuple(answer["sizes"].items()),
        tuple(ResultProbe(r["name"], r["constant"], r["fixed"], r["flat"]) for r in answer["results"]),
        tuple(InputProbe(i["name"], i["moves"], i["share"]) for i in answer["inputs"]),
    )

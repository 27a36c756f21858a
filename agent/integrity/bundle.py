"""This module has the typed values that an audit looks at. `ucutlass.agent.integrity.records` reads them out
of records; nothing in either decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ucutlass import ir
from ucutlass.agent.integrity.precision import DeclaredPrecision
from ucutlass.agent.integrity.verdict import AuditVerdict
from ucutlass.runtime.evidence import Record

Regime: TypeAlias = Literal["cold", "warm"]


@dataclass(frozen=True, slots=True)
class MissingEvidence:
    """Stands for evidence that is not there. `why` says what was looked for, and how to get it."""

    why: str


@dataclass(frozen=True, slots=True)
class ArtefactDigests:
    """Holds digests of the emitted code and of the library, empty where there is none to compare, and of this
    package's own code that made it or looked at it."""

    source: str
    binary: str
    harness: str


@dataclass(frozen=True, slots=True)
class ClockFinding:
    """Describes what the timing protocol itself objected to, in its own words."""

    kind: str
    words: str


@dataclass(frozen=True, slots=True)
class BenchEvidence:
    """Describes a bench record. `seconds` a launch is the median; `clock` the SM clock in Hz measured in the
    window, None where it was not."""

    record: str
    of: ArtefactDigests
    seconds: float
    regime: Regime
    clock: float | None
    findings: tuple[ClockFinding, ...]


@dataclass(frozen=True, slots=True)
class StoppedBench:
    """Describes a bench record without a time: the protocol stopped at `stage`, and says why."""

    record: str
    of: ArtefactDigests
    stage: str
    words: str
    findings: tuple[ClockFinding, ...]


@dataclass(frozen=True, slots=True)
class VerifiedCase:
    """Describes one verified run: `worst` is the largest error over its bound, `rms` the root mean square of
    error over bound, None where no element had both. `varies` and `reference_varies` tell whether not all
    elements are equal, of the output and of its reference. `open`: nothing is wrong, but its bounds say too
    little, of numbers that only strain a program."""

    name: str
    ok: bool
    worst: float
    rms: float | None
    varies: bool
    reference_varies: bool
    open: bool = False


@dataclass(frozen=True, slots=True)
class VerifyEvidence:
    """Describes a verify record. `failures` are the judge's words for all that stands against the kernel;
    `untried` are the distributions of numbers that no case had at the record's extents, though the suite did
    not say that they tell nothing of the program."""

    record: str
    of: ArtefactDigests
    ok: bool
    cases: tuple[VerifiedCase, ...]
    failures: tuple[str, ...]
    untried: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SolTimes:
    """Holds seconds that no launch of the program can beat, by what binds. `compute` holds at `clock` Hz, and
    `boost` is the highest clock there is; `memory` has every compulsory byte cross the memory interface;
    `cache` is the same for a problem whose bytes may wait in the L2, whose bandwidth is an estimate where
    `estimated`. `what` names where the rates come from."""

    what: str
    compute: float
    memory: float
    cache: float
    clock: float
    boost: float
    estimated: bool


@dataclass(frozen=True, slots=True)
class ResultProbe:
    """Describes how a result of the reference depends on anything, at reduced extents. `constant`: one number
    is within the bound of every element for all inputs tried; `fixed`: one tensor is. `flat` is as
    `constant`, within the tolerance 1e-2 + 1e-2 |x| that benchmarks use."""

    name: str
    constant: bool
    fixed: bool
    flat: bool


@dataclass(frozen=True, slots=True)
class InputProbe:
    """Whether any result moved beyond its bound when this input alone was drawn anew, negated or made smaller;
    `share` of the compulsory bytes read."""

    name: str
    moves: bool
    share: float


@dataclass(frozen=True, slots=True)
class ReferenceProbe:
    """Describes the float64 reference, asked at `sizes`."""

    sizes: tuple[tuple[str, int], ...]
    results: tuple[ResultProbe, ...]
    inputs: tuple[InputProbe, ...]


@dataclass(frozen=True, slots=True)
class StageWork:
    """Describes a stage of the candidate and the speed-of-light seconds of its work. `library`: a torch
    node that no kernel of ours computes."""

    name: str
    library: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class AuditedAncestor:
    """Describes a candidate that this one came from, with the verdict of its audit."""

    record: str
    verdict: AuditVerdict


@dataclass(frozen=True, slots=True)
class EvidenceBundle:
    """Holds everything about one candidate on one device at one shape. `records` are all the records that
    took part, for their seals. `precision` is what the problem declares, None where nothing does."""

    program: ir.Program
    precision: DeclaredPrecision | None
    timing: BenchEvidence | StoppedBench | MissingEvidence
    proof: VerifyEvidence | MissingEvidence
    limits: SolTimes | MissingEvidence
    calibrated: SolTimes | MissingEvidence
    probe: ReferenceProbe | MissingEvidence
    stages: Sequence[StageWork]
    ancestors: Sequence[AuditedAncestor | MissingEvidence]
    current: ArtefactDigests | MissingEvidence
    records: Sequence[Record]

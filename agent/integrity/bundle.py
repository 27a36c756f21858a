"""What an audit looks at, as typed values. `ucutlass.agent.integrity.records` reads them out of
records; nothing in either decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ucutlass import ir
from ucutlass.agent.integrity.precision import Declared
from ucutlass.agent.integrity.verdict import Verdict
from ucutlass.runtime.evidence import Record

Regime: TypeAlias = Literal["cold", "warm"]


@dataclass(frozen=True, slots=True)
class Missing:
    """Evidence that is not there. `why` says what was looked for, and how to get it."""

    why: str


@dataclass(frozen=True, slots=True)
class Artefact:
    """Digests of the emitted code and of the library, empty where there is none to compare, and of
    this package's own code that made it or looked at it."""

    source: str
    binary: str
    harness: str


@dataclass(frozen=True, slots=True)
class ClockFinding:
    """What the timing protocol itself objected to, in its own words."""

    kind: str
    words: str


@dataclass(frozen=True, slots=True)
class Timing:
    """A bench record. `seconds` a launch is the median; `clock` the SM clock in Hz measured in the
    window, None where it was not."""

    record: str
    of: Artefact
    seconds: float
    regime: Regime
    clock: float | None
    findings: tuple[ClockFinding, ...]


@dataclass(frozen=True, slots=True)
class Untimed:
    """A bench record without a time: the protocol stopped at `stage`, and says why."""

    record: str
    of: Artefact
    stage: str
    words: str
    findings: tuple[ClockFinding, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One verified run: `worst` is the largest error over its bound, `rms` the root mean square of
    error over bound, None where no element had both. `varies` and `reference_varies` tell whether
    not all elements are equal, of the output and of its reference. `open`: nothing is wrong, but its bounds
    say too little, of numbers that only strain a program."""

    name: str
    ok: bool
    worst: float
    rms: float | None
    varies: bool
    reference_varies: bool
    open: bool = False


@dataclass(frozen=True, slots=True)
class Proof:
    """A verify record. `failures` are the judge's words for all that stands against the kernel;
    `untried` are the distributions of numbers that no case had at the record's extents, though the
    suite did not say that they tell nothing of the program."""

    record: str
    of: Artefact
    ok: bool
    cases: tuple[Case, ...]
    failures: tuple[str, ...]
    untried: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds that no launch of the program can beat, by what binds. `compute` holds at `clock` Hz, and
    `boost` is the highest clock there is; `memory` has every compulsory byte cross the memory
    interface; `cache` is the same for a problem whose bytes may wait in the L2, whose bandwidth is
    an estimate where `estimated`. `what` names where the rates come from."""

    what: str
    compute: float
    memory: float
    cache: float
    clock: float
    boost: float
    estimated: bool


@dataclass(frozen=True, slots=True)
class ResultProbe:
    """How a result of the reference depends on anything, at reduced extents. `constant`: one number
    is within the bound of every element for all inputs tried; `fixed`: one tensor is. `flat` is as
    `constant`, within the tolerance 1e-2 + 1e-2 |x| that benchmarks use."""

    name: str
    constant: bool
    fixed: bool
    flat: bool


@dataclass(frozen=True, slots=True)
class InputProbe:
    """Whether any result moved beyond its bound when this input alone was drawn anew or negated;
    `share` of the compulsory bytes read."""

    name: str
    moves: bool
    share: float


@dataclass(frozen=True, slots=True)
class Probe:
    """The float64 reference, asked at `sizes`."""

    sizes: tuple[tuple[str, int], ...]
    results: tuple[ResultProbe, ...]
    inputs: tuple[InputProbe, ...]


@dataclass(frozen=True, slots=True)
class StageWork:
    """A stage of the candidate and the speed-of-light seconds of its work. `library`: a torch node."""

    name: str
    library: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A candidate that this one came from, with the verdict of its audit."""

    record: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Bundle:
    """Everything about one candidate on one device at one shape. `records` are all the records that
    took part, for their seals. `lane` is what the problem declares, None where nothing does."""

    program: ir.Program
    lane: Declared | None
    timing: Timing | Untimed | Missing
    proof: Proof | Missing
    limits: Limits | Missing
    calibrated: Limits | Missing
    probe: Probe | Missing
    stages: Sequence[StageWork]
    ancestors: Sequence[Ancestor | Missing]
    kept: Artefact | Missing
    records: Sequence[Record]

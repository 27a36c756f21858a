"""Judges cases one after the other in this process, and writes each down as it ends.

This runs where a kernel may take the process with it: what is in the journal survives that.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ucutlass.ir import Program
from ucutlass.runtime.distributions import CORE
from ucutlass.runtime.entry_codes import BAD_ARGUMENTS, CUTLASS_BASE, CUTLASS_STATUS, LaunchError
from ucutlass.runtime.inputs import generate
from ucutlass.runtime.verify.accepted import AcceptedResults
from ucutlass.runtime.verify.evidence import CaseResult, plain, verdict_of
from ucutlass.runtime.verify.guards import shifted
from ucutlass.runtime.verify.jitter import copies
from ucutlass.runtime.verify.judge import DirectLaunch, JudgedLaunch
from ucutlass.runtime.verify.periods import period_for
from ucutlass.runtime.verify.stages import StagedLaunch, check
from ucutlass.runtime.verify.suite import VerifyCase
from ucutlass.runtime.verify.verdict import LaunchVerdict
from ucutlass.shapes import complete

_SHIFT = 16
"""Bytes: the alignment that kernels may count on (`Access.align`), and no more."""

LEAST_FREE = 0.3
"""Share of the device's memory that others, and the next case, should find free: what the allocator keeps in pieces would
not serve that case's tensors. While there is more it is kept, since allocating the tensors of a case of many GB anew takes
as long as comparing them."""

MakeLaunch: TypeAlias = Callable[[tuple[int, ...]], "JudgedLaunch | DirectLaunch | StagedLaunch"]
"""The launch for every extent in the program's order. May raise LaunchError."""


def judge_case(
    program: Program,
    make: MakeLaunch,
    case: VerifyCase,
    tile: Mapping[str, int],
    device: str,
    accepted: AcceptedResults | None = None,
) -> LaunchVerdict:
    """Runs and judges one case; `accepted` has what was right in cases before it. Raises what the launch and the
    reference raise; a refusal where it is allowed is a verdict without comparisons."""
    extents = complete(program, case.sizes)
    arguments = _arguments(program, case, tile, device)

    def judged(
        launch: JudgedLaunch | DirectLaunch | StagedLaunch, arguments: Sequence[Any], **how: Any
    ) -> LaunchVerdict:
        return check(
            program,
            launch,
            arguments,
            tile=tile,
            repeats=case.repeats,
            accepted=accepted,
            end_to_end=case.distribution in CORE or _takes_as_given(launch),
            device=torch.device(device),
            **how,
        )

    match case.kind:
        case "values":
            return judged(make(extents), arguments)
        case "repeats":
            around = copies(torch.device(device), case.seed)
            return judged(make(extents), arguments, jitter=around)
        case "refilled":
            launch = make(extents)
            first = judged(launch, arguments)
            others = _arguments(program, replace(case, **case.refill), tile, device)
            for old, new in zip(arguments, others, strict=True):
                if isinstance(old, Tensor):
                    assert isinstance(new, Tensor)
                    old.copy_(new)
            again = judged(launch, arguments)
            return LaunchVerdict(
                first.comparisons + again.comparisons,
                first.problems + again.problems,
                first.stages + again.stages,
                first.missing or again.missing,
            )
        case "shifted":
            moved = [shifted(a, _SHIFT) if isinstance(a, Tensor) else a for a in arguments]
            return judged(make(extents), moved, offset=_SHIFT)
        case "edge" | "refusal" | "misaligned":
            off = case.kind == "misaligned"
            moved = [shifted(a, a.element_size()) if off and isinstance(a, Tensor) else a for a in arguments]
            try:
                return judged(make(extents), moved)
            except LaunchError as error:
                if not _refused(error.code):
                    raise
                return LaunchVerdict((), ())


def _takes_as_given(launch: JudgedLaunch | DirectLaunch | StagedLaunch) -> bool:
    """Returns whether the results of torch in a pipeline's stages are taken as given: where all other stages are right,
    the whole is right but for those, and bounds end to end say little on numbers that strain them."""
    return isinstance(launch, StagedLaunch) and None in launch.steps


def _arguments(program: Program, case: VerifyCase, tile: Mapping[str, int], device: str) -> list[Any]:
    full = dict(zip(program.dims, complete(program, case.sizes), strict=True))
    period = period_for(program, full, case.distribution)
    return list(
        generate(
            program, case.sizes, case.distribution, seed=case.seed, device=device, tile=tile, period=period
        )
    )


_REFUSALS = frozenset(
    {
        "kErrorMisalignedOperand",
        "kErrorInvalidDataType",
        "kErrorInvalidLayout",
        "kErrorInvalidProblem",
        "kErrorNotSupported",
    }
)
"""What CUTLASS says of arguments; its other words are of a device or a driver that failed."""


def _refused(code: int) -> bool:
    """The entry, or CUTLASS's own check, would not take the arguments; nothing was launched."""
    named = dict(enumerate(CUTLASS_STATUS, CUTLASS_BASE)).get(code)
    return code == BAD_ARGUMENTS or named in _REFUSALS


# --- the journal ---------------------------------------------------------------------


def judge_all(
    program: Program,
    make: MakeLaunch,
    cases: Sequence[Mapping[str, Any]],
    journal: str,
    *,
    tile: Mapping[str, int],
    device: str,
    case_seconds: float,
) -> str:
    """Judges `cases` (as `asdict` makes them) until one raises, and writes the beginning and the
    end of each into the file `journal`. Returns how it ended, for a person.

    A case that takes longer than `case_seconds` ends this process by SIGALRM, even while it waits for a
    device; a case that raises ends the batch, because the device's context may be broken.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    accepted = AcceptedResults()
    with Path(journal).open("a", encoding="utf-8") as file:

        def write(entry: Mapping[str, Any]) -> None:
            file.write(json.dumps(entry) + "\n")
            file.flush()

        for number, fields in enumerate(cases):
            case = VerifyCase(**fields)
            write({"begun": number})
            signal.setitimer(signal.ITIMER_REAL, case_seconds)
            began = time.monotonic()
            raised = ""
            verdict: LaunchVerdict | None = None
            try:
                verdict = judge_case(program, make, case, tile, device, accepted)
            except Exception as error:
                # Whatever it is, it is this case's loss, and says so in the evidence.
                raised = f"{type(error).__name__}: {error}"
            signal.setitimer(signal.ITIMER_REAL, 0)
            if device == "cuda":
                free, total = torch.cuda.mem_get_info()
                if free < LEAST_FREE * total:
                    torch.cuda.empty_cache()
            seconds = round(time.monotonic() - began, 3)
            write({"ended": number, "verdict": plain(verdict), "raised": raised, "seconds": seconds})
            if raised:
                return f"stopped after {case.name}"
    return "all cases ran"


def as_json(case: VerifyCase) -> dict[str, Any]:
    """Returns what `judge_all` takes."""
    return asdict(case)


def read_journal(journal: Path, cases: Sequence[VerifyCase]) -> tuple[dict[int, CaseResult], set[int]]:
    """Returns the results by the case's number, and the numbers of those that began. A last line that is cut
    short counts for nothing."""
    ended: dict[int, CaseResult] = {}
    begun: set[int] = set()
    for line in journal.read_text(encoding="utf-8").splitlines() if journal.exists() else ():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        match entry:
            case {"begun": int(number)}:
                begun.add(number)
            case {"ended": int(number), "verdict": verdict, "raised": str(raised), "seconds": seconds}:
                ended[number] = _result(cases[number], verdict, raised, float(seconds))
    return ended, begun


def _result(case: VerifyCase, fields: Mapping[str, Any] | None, raised: str, seconds: float) -> CaseResult:
    if fields is None:
        return CaseResult(case, "lost", None, raised, seconds)
    verdict = verdict_of(fields)
    return CaseResult(case, verdict.state, verdict, "", seconds)

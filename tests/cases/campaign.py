"""Builds many kernels in parallel and judges each on the GPU in processes that may die.

A case is a program's text with shapes; a verdict is one JSON row. A case that crashes or hangs
loses only itself: the next process goes on behind it (`benchmarks.campaign`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import campaign, harness
from benchmarks.harness import Row
from ucutlass import frontend, ir
from ucutlass.backend import build_sources, source_of
from ucutlass.diagnostics import ProgramError
from ucutlass.emit.text import Source
from ucutlass.kernels.gemm.plan import GemmPlan
from ucutlass.kernels.gemm.schedule import candidate_of
from ucutlass.kernels.planned import Planned
from ucutlass.kernels.refused import Refused
from ucutlass.runtime.build import Artifact
from ucutlass.shapes import complete

PROCESSES = 4
"""Judging processes side by side: the reference and the launches of small cases leave a GPU idle."""

CASE_SECONDS = 60.0
"""What all runs of one case may take."""


@dataclass(frozen=True, slots=True)
class Case:
    """A program with extents for its free dimensions, once a shape; each shape and distribution
    is one judged run."""

    name: str
    text: str
    shapes: tuple[dict[str, int], ...]
    distributions: tuple[str, ...] = ("normal", "integer")
    arch: str = "sm90a"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Accepted:
    """A case that the checker lets through; `planned` has one kernel a shape."""

    case: Case
    checked: frontend.Checked
    program: ir.Kernel
    planned: tuple[Planned, ...]

    def sources(self) -> tuple[Source, ...]:
        """Returns the distinct CUDA files of its shapes."""
        return tuple(source for source, _ in self.pairs())

    def pairs(self) -> list[tuple[Source, GemmPlan]]:
        """Returns the distinct CUDA files with their plans."""
        every = ((source_of(self.checked, self.program, p), p.plan) for p in self.planned)
        return list({source.code: (source, plan) for source, plan in every}.values())

    @property
    def family(self) -> str:
        return candidate_of(self.planned[0]).family


@dataclass(frozen=True, slots=True)
class Rejected:
    case: Case
    codes: tuple[str, ...]
    message: str


def plan(case: Case) -> Accepted | Rejected:
    """Returns the checker's and planner's answer."""
    try:
        checked = frontend.read_text(case.text)
        program = frontend.kernel(checked)
        planned = tuple(
            frontend.plan_kernel(checked, program, complete(program, sizes), case.arch).planned
            for sizes in case.shapes
        )
    except ProgramError as problem:
        return Rejected(case, tuple(d.code for d in problem.diagnostics), str(problem))
    except Refused as refused:
        return Rejected(case, (refused.diagnostic.code,), refused.diagnostic.message)
    return Accepted(case, checked, program, planned)


@dataclass(slots=True)
class Judged:
    """What became of accepted cases: a row for each that was judged, and why others were not built."""

    rows: list[Row] = field(default_factory=list)
    unbuilt: dict[str, str] = field(default_factory=dict)


def judge(accepted: Sequence[Accepted], folder: Path, *, processes: int = PROCESSES) -> Judged:
    """Builds every case, then judges those that were built. Rows are in `folder`/rows.jsonl."""
    pairs = {source.code: (source, plan) for a in accepted for source, plan in a.pairs()}
    built = dict(zip(pairs, build_sources(list(pairs.values())), strict=True))
    unbuilt = {
        a.case.name: str(failure)[:2000]
        for a in accepted
        if (failure := next((r for s in a.sources() if not isinstance(r := built[s.code], Artifact)), None))
    }
    rows = campaign.run(
        "tests.cases.campaign:judge_row",
        [asdict(a.case) for a in accepted if a.case.name not in unbuilt],
        harness.fresh(folder / "rows.jsonl"),
        item_seconds=CASE_SECONDS,
        environs=[None] * processes,
    )
    return Judged(rows, unbuilt)


def judge_row(item: dict[str, Any]) -> Row:
    """Returns a case's verdicts; runs in the child of `campaign.run`."""
    import torch

    import ucutlass
    from ucutlass.runtime import verify
    from ucutlass.runtime.inputs import generate

    case = Case(**item)
    row: Row = {"name": case.name, "ok": True, "state": "right", "worst": 0.0, "runs": []}
    try:
        k = ucutlass.loads(case.text, arch=case.arch)

        def launch(args: Sequence[Any], outs: Sequence[torch.Tensor]) -> None:
            k(*args, out=outs[0] if len(outs) == 1 else tuple(outs))

        for sizes in case.shapes:
            for number, distribution in enumerate(case.distributions):
                row["at"] = f"{sizes} {distribution}"
                arguments = generate(k.program, sizes, distribution, seed=case.seed + number, device="cuda")  # type: ignore[arg-type]
                verdict = verify.check(k.program, launch, arguments)
                worst = max(c.worst for c in verdict.comparisons)
                exact = all(c.exact == c.elements for c in verdict.comparisons)
                row["worst"] = max(row["worst"], worst)
                row["runs"].append(
                    {
                        "sizes": sizes,
                        "distribution": distribution,
                        "ok": verdict.ok,
                        "state": verdict.state,
                        "worst": worst,
                        "exact": exact,
                        "elements": sum(c.elements for c in verdict.comparisons),
                        "unbounded": sum(c.unbounded for c in verdict.comparisons),
                    }
                )
                if not verdict.ok:
                    row["ok"] = False
                    row.setdefault("detail", []).append(f"{sizes} {distribution}: {verdict.state}: {verdict}")
        row["state"] = verify.worst(run["state"] for run in row["runs"])
        torch.cuda.synchronize()
    except Exception as error:  # the row is the report, whatever went wrong
        row |= {"ok": False, "state": "wrong", "error": type(error).__name__, "detail": str(error)[:1500]}
        row["sticky"] = campaign.sticky(error)
    return row

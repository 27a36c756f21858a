"""Builds many kernels in parallel and judges each on the GPU in processes that may die.

A case is a program's text with shapes; a verdict is one JSON row. A case that crashes or hangs
loses only itself: the next process goes on behind it (`benchmarks.harness`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks import harness
from benchmarks.harness import Row
from ucutlass import frontend, ir
from ucutlass.backend import build_sources, source_of
from ucutlass.diagnostics import ProgramError
from ucutlass.emit.text import Source
from ucutlass.ir.schedule import show
from ucutlass.kernels.gemm.candidate import candidate_of
from ucutlass.kernels.gemm.plan import GemmPlan
from ucutlass.kernels.planned import Planned
from ucutlass.kernels.refused import Refused
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.parallel import BuildFailure, jobs
from ucutlass.shapes import complete

GROUP_HELP = "kernels in one run of the compiler: less work in all, and one that fails delays its group"

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


def judge(
    accepted: Sequence[Accepted], folder: Path, *, group: int = 1, processes: int = PROCESSES
) -> Judged:
    """Builds and judges every case, the one beside the other: what is built is judged while the
    compilers go on, each with up to `group` kernels at a time. Rows are in `folder`/rows.jsonl, registers and
    spills of every kernel in `folder`/build.json.
    """
    rows = harness.fresh(folder / "rows.jsonl")
    unbuilt: dict[str, str] = {}
    usage: dict[str, list[dict[str, Any]]] = {}
    judged: dict[str, Row] = {}
    for built in _build(accepted, group):
        ready = []
        for a, results in built:
            usage[a.case.name] = [_usage(r) for r in results if isinstance(r, Artifact)]
            if failures := [r for r in results if not isinstance(r, Artifact)]:
                unbuilt[a.case.name] = str(failures[0])[:2000]
            else:
                ready.append(a)
        items = [asdict(a.case) for a in ready]
        target = "benchmarks.campaign:judge_here"
        for row in harness.run(target, items, rows, item_seconds=CASE_SECONDS, processes=processes):
            judged[row["name"]] = row
    harness.write(folder / "build.json", {"failed": unbuilt, "built": usage})
    names = [a.case.name for a in accepted]
    return Judged([judged[n] for n in names if n in judged], unbuilt)


Results: TypeAlias = Sequence[Artifact | BuildFailure]


def _build(accepted: Sequence[Accepted], group: int) -> Iterator[list[tuple[Accepted, Results]]]:
    """Yields the cases with their sources' artifacts as they come, some at a time: compilers go on while the
    caller works."""
    workers = jobs(group=group)

    def build(unit: Sequence[Accepted]) -> list[tuple[Accepted, Results]]:
        shares = [a.pairs() for a in unit]
        flat = [pair for share in shares for pair in share]
        results = iter(build_sources(flat, max_jobs=1, group=group))
        return [(a, [next(results) for _ in share]) for a, share in zip(unit, shares, strict=True)]

    with ThreadPoolExecutor(workers) as pool:
        waiting = {pool.submit(build, unit) for unit in _units(accepted, group, workers)}
        while waiting:
            done = _enough(waiting, min(workers, len(waiting)))
            waiting = waiting - done
            yield [pair for future in done for pair in future.result()]


def _units(accepted: Sequence[Accepted], group: int, workers: int) -> list[Sequence[Accepted]]:
    """Cases that one run of the compiler takes, no more than keep all compilers busy; the emitter's
    includes decide which can meet, and the first case of each unit keeps its place."""
    size = max(1, min(group, -(-len(accepted) // workers)))
    if size == 1:
        return [[a] for a in accepted]
    open_units: dict[str, list[Accepted]] = {}
    units: list[Sequence[Accepted]] = []
    for a in accepted:
        alike = a.sources()[0].preamble
        unit = open_units.get(alike)
        if unit is None or len(unit) == size:
            unit = open_units[alike] = []
            units.append(unit)
        unit.append(a)
    return units


def _enough(waiting: set[Future[Any]], count: int) -> set[Future[Any]]:
    """Returns as many futures that are done."""
    done: set[Future[Any]] = set()
    pending = waiting
    while len(done) < count:
        more, pending = wait(pending, return_when=FIRST_COMPLETED)
        done |= more
    return done


def _usage(artifact: Artifact) -> dict[str, Any]:
    usage = artifact.report.usage
    return {
        "key": artifact.key,
        "seconds": artifact.seconds,
        "registers": max((k.registers for k in usage), default=0),
        "findings": sorted({f.code for f in artifact.report.findings}),
        "spills": sum(k.spill_stores + k.spill_loads for k in usage),
    }


def judge_here(items: list[dict[str, Any]], rows: str, item_seconds: float) -> int:
    """Runs in the child of `harness.run`."""
    return harness.serve(lambda item: _judge(Case(**item)), items, rows, item_seconds)


def _judge(case: Case) -> Row:
    import torch

    import ucutlass
    from ucutlass.runtime import verify
    from ucutlass.runtime.inputs import generate

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
        row["sticky"] = harness.sticky(error)
    return row


@dataclass(slots=True)
class Report:
    """What a campaign of cases came to. `undecided` are those with nothing wrong, of which some bounds say
    nothing."""

    accepted: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    unbuilt: dict[str, str] = field(default_factory=dict)
    wrong: list[Row] = field(default_factory=list)
    undecided: list[Row] = field(default_factory=list)
    right: int = 0
    families: dict[str, int] = field(default_factory=dict)


def campaign(planned: Iterable[Accepted | Rejected], folder: Path, *, group: int = 1) -> Report:
    """Builds and judges; details go to `folder`."""
    report = Report()
    accepted: list[Accepted] = []
    for answer in planned:
        match answer:
            case Accepted():
                accepted.append(answer)
                report.families[answer.family] = report.families.get(answer.family, 0) + 1
            case Rejected(codes=codes):
                report.rejected[codes[0]] = report.rejected.get(codes[0], 0) + 1
    judged = judge(accepted, folder, group=group)
    report.accepted, report.unbuilt = len(accepted), judged.unbuilt
    known = {a.case.name: a for a in accepted}
    for row in judged.rows:
        if row["ok"]:
            report.right += 1
        else:
            a = known[row["name"]]
            about = {"schedule": show(a.planned[0].request), "shapes": a.case.shapes, "text": a.case.text}
            rows = report.undecided if row.get("state") == "undecided" else report.wrong
            rows.append(row | about)
    harness.write(folder / "report.json", asdict(report))
    return report

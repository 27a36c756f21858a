"""Builds many kernels in parallel, then judges each on the GPU in processes that may die.

A case is a program's text with shapes; a verdict is one JSON row. A case that crashes or hangs
loses only itself: the next process goes on behind it (`benchmarks.relay`).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event
from typing import Any, TypeAlias

from benchmarks import relay
from benchmarks.budget import NEVER, Deadline, after, lines, write
from benchmarks.relay import Row
from ucutlass import frontend, ir
from ucutlass.backend import build_sources, source_of
from ucutlass.diagnostics import ProgramError
from ucutlass.emit.text import Source
from ucutlass.ir.schedule import show
from ucutlass.kernels.families import Refused
from ucutlass.kernels.gemm.plan import GemmPlan
from ucutlass.kernels.planned import Planned
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.errors import BuildCancelled
from ucutlass.runtime.parallel import Failure, jobs
from ucutlass.shapes import complete

GROUP_HELP = "kernels in one run of the compiler: less work in all, and one that fails delays its group"

PROCESSES = 4
"""Judging processes side by side: the reference and the launches of small cases leave a GPU idle."""

CASE_SECONDS = 60.0
"""What all runs of one case may take."""

JUDGING_SECONDS = 25.0
"""Kept of the time for judging what was built last: a fresh process and some cases."""


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
        """The distinct CUDA files of its shapes."""
        made = (source_of(self.checked, self.program, p) for p in self.planned)
        return tuple({source.code: source for source in made}.values())

    def pairs(self) -> list[tuple[Source, GemmPlan]]:
        """The distinct CUDA files with their plans."""
        made = {source_of(self.checked, self.program, p).code: p.plan for p in self.planned}
        return [(source, made[source.code]) for source in self.sources()]

    @property
    def family(self) -> str:
        return self.planned[0].candidate.family


@dataclass(frozen=True, slots=True)
class Rejected:
    case: Case
    codes: tuple[str, ...]
    message: str


def plan(case: Case) -> Accepted | Rejected:
    """The checker's and planner's answer."""
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
    """What became of accepted cases: a row for each that was judged, why others were not built, and
    the names of those that no time was left for."""

    rows: list[Row] = field(default_factory=list)
    unbuilt: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)


def judge(
    accepted: Sequence[Accepted],
    folder: Path,
    *,
    group: int = 1,
    processes: int = PROCESSES,
    deadline: Deadline = NEVER,
) -> Judged:
    """Builds and judges every case, the one beside the other: what is built is judged while the
    compilers go on, each with up to `group` kernels at a time. Rows are in `folder`/rows.jsonl, builds
    in `folder`/build.json; cases that have a row already are left alone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = folder / "rows.jsonl"
    known = {row["name"] for row in lines(rows)}
    unbuilt: dict[str, str] = {}
    builds = _Builds(folder / "build.json")
    fresh = [a for a in accepted if a.case.name not in known]
    for made in _build(fresh, group, deadline.before(JUDGING_SECONDS)):
        built = []
        for a, results in made:
            if any(isinstance(r, BuildCancelled) for r in results):
                continue
            builds.add(a.case.name, results)
            if wrong := [r for r in results if not isinstance(r, Artifact)]:
                unbuilt[a.case.name] = str(wrong[0])[:2000]
            else:
                built.append(a)
        builds.write()
        relay.run(
            "benchmarks.farm:judge_here",
            [asdict(a.case) for a in built],
            rows,
            item_seconds=CASE_SECONDS,
            processes=processes,
            deadline=deadline,
        )
    found = {row["name"]: row for row in lines(rows)}
    names = [a.case.name for a in accepted]
    return Judged(
        [found[n] for n in names if n in found],
        unbuilt,
        [n for n in names if n not in found and n not in unbuilt],
    )


Results: TypeAlias = Sequence[Artifact | Failure]


def _build(
    accepted: Sequence[Accepted], group: int, deadline: Deadline
) -> Iterator[list[tuple[Accepted, Results]]]:
    """The cases with their sources' artifacts as they come, some at a time: compilers go on while the
    caller works. What the deadline cuts short is BuildCancelled."""
    stop = Event()
    workers = jobs(group=group)

    def one(unit: Sequence[Accepted]) -> list[tuple[Accepted, Results]]:
        shares = [a.pairs() for a in unit]
        flat = [pair for share in shares for pair in share]
        results = iter(build_sources(flat, cancel=stop, max_jobs=1, group=group))
        return [(a, [next(results) for _ in share]) for a, share in zip(unit, shares, strict=True)]

    with ThreadPoolExecutor(workers) as pool:
        waiting = {pool.submit(one, unit) for unit in _units(accepted, group, workers)}
        try:
            while waiting:
                timeout = None if math.isinf(deadline.at) else max(0.0, deadline.left())
                done = _enough(waiting, min(workers, len(waiting)), timeout)
                if deadline.passed:
                    stop.set()
                    done = waiting
                waiting = waiting - done
                yield [pair for future in done for pair in future.result()]
        finally:
            stop.set()


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


def _enough(waiting: set[Future[Any]], count: int, timeout: float | None) -> set[Future[Any]]:
    """As many futures that are done, or fewer where the time-out passes first."""
    end = after(timeout)
    done: set[Future[Any]] = set()
    pending = waiting
    while len(done) < count and not end.passed:
        left = None if timeout is None else end.left()
        more, pending = wait(pending, timeout=left, return_when=FIRST_COMPLETED)
        done |= more
    return done


class _Builds:
    """The builds' log: seconds, registers and ptxas findings of every kernel, also of runs before."""

    def __init__(self, path: Path) -> None:
        self._path = path
        before: dict[str, Any] = {"wall": 0.0, "failed": {}, "built": {}}
        if path.exists():
            before = json.loads(path.read_text(encoding="utf-8"))
        self._wall, self._start = before["wall"], time.monotonic()
        self._failed: dict[str, str] = before["failed"]
        self._built: dict[str, list[dict[str, Any]]] = before["built"]

    def add(self, name: str, results: Results) -> None:
        self._built[name] = [_facts(r) for r in results if isinstance(r, Artifact)]
        self._failed.pop(name, None)
        for r in results:
            if not isinstance(r, Artifact):
                self._failed[name] = f"{type(r).__name__}: {r}"[:2000]

    def write(self) -> None:
        wall = self._wall + time.monotonic() - self._start
        write(self._path, {"wall": wall, "failed": self._failed, "built": self._built})


def _facts(made: Artifact) -> dict[str, Any]:
    usage = made.report.usage
    return {
        "key": made.key,
        "seconds": made.seconds,
        "registers": max((k.registers for k in usage), default=0),
        "findings": sorted({f.code for f in made.report.findings}),
        "spills": sum(k.spill_stores + k.spill_loads for k in usage),
    }


def judge_here(items: list[dict[str, Any]], rows: str, item_seconds: float) -> int:
    """In the child of `relay.run`."""
    return relay.serve(lambda item: _judge(Case(**item)), items, rows, item_seconds)


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
        row["sticky"] = relay.sticky(error)
    return row


@dataclass(slots=True)
class Report:
    """What a campaign of cases came to. `undecided` are those with nothing wrong, of which some bounds say
    nothing; `left` counts those that no time was left for."""

    accepted: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    unbuilt: dict[str, str] = field(default_factory=dict)
    wrong: list[Row] = field(default_factory=list)
    undecided: list[Row] = field(default_factory=list)
    right: int = 0
    left: int = 0
    families: dict[str, int] = field(default_factory=dict)


def campaign(
    planned: Iterable[Accepted | Rejected], folder: Path, *, group: int = 1, deadline: Deadline = NEVER
) -> Report:
    """Builds and judges; details go to `folder`."""
    report = Report()
    accepted: list[Accepted] = []
    for answer in planned:
        match answer:
            case Accepted() as found:
                accepted.append(found)
                report.families[found.family] = report.families.get(found.family, 0) + 1
            case Rejected(codes=codes):
                report.rejected[codes[0]] = report.rejected.get(codes[0], 0) + 1
    judged = judge(accepted, folder, group=group, deadline=deadline)
    report.accepted, report.unbuilt, report.left = len(accepted), judged.unbuilt, len(judged.left)
    known = {a.case.name: a for a in accepted}
    for row in judged.rows:
        if row["ok"]:
            report.right += 1
        else:
            a = known[row["name"]]
            about = {"schedule": show(a.planned[0].request), "shapes": a.case.shapes, "text": a.case.text}
            rows = report.undecided if row.get("state") == "undecided" else report.wrong
            rows.append(row | about)
    write(folder / "report.json", asdict(report))
    return report

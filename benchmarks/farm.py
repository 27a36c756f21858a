"""Builds many kernels in parallel, then judges each on the GPU in processes that may die.

A case is a program's text with shapes; a verdict is one JSON row. A case that crashes or hangs
loses only itself: the next process goes on behind it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ucutlass import frontend, ir
from ucutlass.backend import source_of, toolchain
from ucutlass.diagnostics import ProgramError
from ucutlass.emit.text import Source
from ucutlass.families import Refused
from ucutlass.planner import Planned
from ucutlass.runtime import isolate
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.parallel import build_many
from ucutlass.schedule import show
from ucutlass.shapes import complete

PROCESSES = 4
"""Judging processes side by side: the reference and the launches of small cases leave a GPU idle."""


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


def build(accepted: Sequence[Accepted], log: Path) -> dict[str, str]:
    """Builds every kernel; the failures by case name."""
    start = time.monotonic()
    wanted = [(a.case.name, source) for a in accepted for source in a.sources()]
    results = build_many([source for _, source in wanted], toolchain(), Cache.from_switches())
    failed = {}
    rows = []
    for (name, _), result in zip(wanted, results, strict=True):
        if isinstance(result, Artifact):
            usage = result.report.usage
            rows.append(
                {
                    "case": name,
                    "key": result.key,
                    "seconds": result.seconds,
                    "registers": max((k.registers for k in usage), default=0),
                    "findings": sorted({f.code for f in result.report.findings}),
                    "spills": sum(k.spill_stores + k.spill_loads for k in usage),
                }
            )
        else:
            failed[name] = str(result)[:2000]
    log.write_text(json.dumps({"wall": time.monotonic() - start, "failed": failed, "built": rows}, indent=1))
    return failed


def judge(
    accepted: Sequence[Accepted], rows: Path, limit_seconds: float = 120.0, processes: int = 1
) -> list[dict[str, Any]]:
    """Runs every case, in that many processes side by side; a row each, also for those that ended
    their process."""
    parts = [rows.with_name(f"{rows.stem}-{i}{rows.suffix}") for i in range(processes)]
    with ThreadPoolExecutor(processes) as pool:
        shares = [accepted[i::processes] for i in range(processes)]
        judged = list(pool.map(_judge_share, shares, parts, [limit_seconds] * processes))
    rows.write_text("".join(part.read_text() for part in parts))
    for part in parts:
        part.unlink()
    return [row for share in judged for row in share]


def _judge_share(accepted: Sequence[Accepted], rows: Path, limit_seconds: float) -> list[dict[str, Any]]:
    rows.write_text("")
    pending = [asdict(a.case) for a in accepted]
    while pending:
        outcome = isolate.run(
            "benchmarks.farm:judge_here",
            {"cases": pending, "rows": str(rows)},
            limit_seconds=limit_seconds + 3.0 * sum(len(c["shapes"]) for c in pending),
        )
        done = {row["name"] for row in _read(rows)}
        left = [c for c in pending if c["name"] not in done]
        ended_itself = isinstance(outcome, isolate.Returned) and len(left) < len(pending)
        if left and not ended_itself:
            lost = {
                "name": left[0]["name"],
                "ok": False,
                "worst": 0.0,
                "runs": [],
                "error": type(outcome).__name__,
            }
            with rows.open("a") as out:
                out.write(json.dumps(lost | {"detail": str(outcome)[-800:]}) + "\n")
            del left[0]
        pending = left
    return _read(rows)


def _read(rows: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in rows.read_text().splitlines()]


def judge_here(cases: list[dict[str, Any]], rows: str) -> int:
    """In the child: one row a case, written as soon as it is known. Ends early, with 1, where the
    GPU's context is lost: the next process takes the rest."""
    with Path(rows).open("a") as out:
        for fields in cases:
            row = _judge(Case(**fields))
            out.write(json.dumps(row) + "\n")
            out.flush()
            os.fsync(out.fileno())
            if row.get("sticky"):
                return 1
    return 0


def _judge(case: Case) -> dict[str, Any]:
    import torch

    import ucutlass
    from ucutlass.runtime import verify
    from ucutlass.runtime.inputs import generate

    row: dict[str, Any] = {"name": case.name, "ok": True, "worst": 0.0, "runs": []}
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
                        "worst": worst,
                        "exact": exact,
                        "elements": sum(c.elements for c in verdict.comparisons),
                        "unbounded": sum(c.unbounded for c in verdict.comparisons),
                    }
                )
                if not verdict.ok:
                    row["ok"] = False
                    row.setdefault("detail", []).append(f"{sizes} {distribution}: {verdict}")
        torch.cuda.synchronize()
    except Exception as error:  # the row is the report, whatever went wrong
        row |= {"ok": False, "error": type(error).__name__, "detail": str(error)[:1500]}
        row["sticky"] = "CUDA error" in str(error)
    return row


@dataclass(slots=True)
class Report:
    """What a campaign of cases came to."""

    accepted: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    unbuilt: dict[str, str] = field(default_factory=dict)
    wrong: list[dict[str, Any]] = field(default_factory=list)
    right: int = 0
    families: dict[str, int] = field(default_factory=dict)


def campaign(cases: Iterable[Case], folder: Path) -> Report:
    """Plans, builds and judges; details go to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    report = Report()
    accepted: list[Accepted] = []
    for case in cases:
        match plan(case):
            case Accepted() as found:
                accepted.append(found)
                report.families[found.family] = report.families.get(found.family, 0) + 1
            case Rejected(codes=codes):
                report.rejected[codes[0]] = report.rejected.get(codes[0], 0) + 1
    report.accepted = len(accepted)
    report.unbuilt = build(accepted, folder / "build.json")
    built = [a for a in accepted if a.case.name not in report.unbuilt]
    schedules = {a.case.name: show(a.planned[0].request) for a in accepted}
    texts = {a.case.name: a.case for a in accepted}
    for row in judge(built, folder / "rows.jsonl", processes=PROCESSES):
        if row["ok"]:
            report.right += 1
        else:
            case = texts[row["name"]]
            report.wrong.append(
                row | {"schedule": schedules[row["name"]], "shapes": case.shapes, "text": case.text}
            )
    (folder / "report.json").write_text(json.dumps(asdict(report), indent=1))
    return report

"""Builds many kernels in parallel, then judges each on the GPU in a process that may die.

A case is a program's text with extents; a verdict is one JSON row. A case that crashes or hangs
loses only itself: the next process goes on behind it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
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


@dataclass(frozen=True, slots=True)
class Case:
    """A program with extents for its free dimensions; each distribution is one judged run."""

    name: str
    text: str
    sizes: dict[str, int]
    distributions: tuple[str, ...] = ("normal", "integer")
    arch: str = "sm90a"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Accepted:
    """A case that the checker lets through; `source` emits its CUDA file."""

    case: Case
    checked: frontend.Checked
    program: ir.Kernel
    planned: Planned

    def source(self) -> Source:
        return source_of(self.checked, self.program, self.planned)

    @property
    def family(self) -> str:
        return self.planned.candidate.family


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
        planned = frontend.plan_kernel(checked, program, complete(program, case.sizes), case.arch).planned
    except ProgramError as problem:
        return Rejected(case, tuple(d.code for d in problem.diagnostics), str(problem))
    except Refused as refused:
        return Rejected(case, (refused.diagnostic.code,), refused.diagnostic.message)
    return Accepted(case, checked, program, planned)


def build(accepted: Sequence[Accepted], log: Path) -> dict[str, str]:
    """Builds every kernel; the failures by case name."""
    start = time.monotonic()
    results = build_many([a.source() for a in accepted], toolchain(), Cache.from_switches())
    failed = {}
    rows = []
    for a, result in zip(accepted, results, strict=True):
        if isinstance(result, Artifact):
            usage = result.report.usage
            rows.append({
                "case": a.case.name, "seconds": result.seconds,
                "registers": max((k.registers for k in usage), default=0),
                "findings": sorted({f.code for f in result.report.findings}),
                "spills": sum(k.spill_stores + k.spill_loads for k in usage),
            })
        else:
            failed[a.case.name] = str(result)[:2000]
    log.write_text(json.dumps({"wall": time.monotonic() - start, "failed": failed, "built": rows}, indent=1))
    return failed


def judge(accepted: Sequence[Accepted], rows: Path, limit_seconds: float = 120.0) -> list[dict[str, Any]]:
    """Runs every case; a row each, also for those that ended their process."""
    rows.write_text("")
    pending = [asdict(a.case) for a in accepted]
    while pending:
        outcome = isolate.run(
            "benchmarks.farm:judge_here", {"cases": pending, "rows": str(rows)},
            limit_seconds=limit_seconds + 3.0 * len(pending),
        )
        done = {row["name"] for row in _read(rows)}
        left = [c for c in pending if c["name"] not in done]
        if isinstance(outcome, isolate.Returned) and not left:
            break
        if left:
            with rows.open("a") as out:
                lost = {"name": left[0]["name"], "ok": False, "error": type(outcome).__name__, "detail": str(outcome)[-800:]}
                out.write(json.dumps(lost) + "\n")
        pending = left[1:]
    return _read(rows)


def _read(rows: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in rows.read_text().splitlines()]


def judge_here(cases: list[dict[str, Any]], rows: str) -> int:
    """In the child: one row a case, written as soon as it is known."""
    with Path(rows).open("a") as out:
        for fields in cases:
            case = Case(**{**fields, "distributions": tuple(fields["distributions"])})
            row = _judge(case)
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

    row: dict[str, Any] = {"name": case.name, "ok": True, "worst": 0.0}
    try:
        k = ucutlass.loads(case.text, arch=case.arch)
        for number, distribution in enumerate(case.distributions):
            arguments = generate(k.program, case.sizes, distribution, seed=case.seed + number, device="cuda")  # type: ignore[arg-type]

            def launch(args: Sequence[Any], outs: Sequence[torch.Tensor]) -> None:
                k(*args, out=outs[0] if len(outs) == 1 else tuple(outs))

            verdict = verify.check(k.program, launch, arguments)
            finite = [c.worst for c in verdict.comparisons]
            row["worst"] = max(row["worst"], *finite)
            if not verdict.ok:
                row["ok"] = False
                row.setdefault("detail", []).append(f"{distribution}: {verdict}")
        torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001 - the row is the report, whatever went wrong
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
    schedules = {a.case.name: show(a.planned.request) for a in accepted}
    texts = {a.case.name: a.case for a in accepted}
    for row in judge(built, folder / "rows.jsonl"):
        if row["ok"]:
            report.right += 1
        else:
            case = texts[row["name"]]
            report.wrong.append(row | {"schedule": schedules[row["name"]], "sizes": case.sizes, "text": case.text})
    (folder / "report.json").write_text(json.dumps(asdict(report), indent=1))
    return report

"""Does advice pay? Kernels scheduled badly on purpose, and what the first finding's edit brings.

    python -m benchmarks.advice --out DIR [--ledger]   on a GPU: builds, times in turns, writes the table
    python -m benchmarks.advice --data                 no GPU: each rule against the recorded H200 run
    python -m benchmarks.advice --query                which metrics of the tables ncu here knows

`--out` exits with 1 where fewer than three quarters of the edits are faster, each by the whole of
its 95 % interval. `--ledger` adds every outcome to the evidence store, for `ucc profile --ledger`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.misscheduled import TABLE, Bad
from ucutlass import frontend, ir
from ucutlass.advice import (
    RULES,
    Advice,
    Finding,
    ScheduleEdit,
    advise,
    classify,
    facts_of,
    finding,
    leading_findings,
)
from ucutlass.backend import source_of, toolchain
from ucutlass.files import write
from ucutlass.handoff import program_payload
from ucutlass.ir.schedule import PartialSchedule, partial_schedule_of_json, scheduled, show
from ucutlass.kernels.gemm.schedule import candidate_of
from ucutlass.kernels.planned import Planned
from ucutlass.runtime import isolation
from ucutlass.runtime.bench import gpu_lock
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.evidence import Machine
from ucutlass.runtime.parallel import build_many
from ucutlass.runtime.profile import cuda_tools, metrics, ncu
from ucutlass.runtime.profile.ledger import LedgerEntry, to_result
from ucutlass.runtime.statistics import paired_ratio
from ucutlass.runtime.store import EvidenceStore, record
from ucutlass.runtime.subject import subject_of
from ucutlass.shapes import complete
from ucutlass.tasks.built import kernel_payload
from ucutlass.tasks.profile import AGREE

RECORDED = Path(__file__).parent / "data" / "h200_bf16.json"

ARCH = "sm90a"

LIMIT_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class Case:
    """A badly scheduled kernel with its advice; `first` is the finding whose edit is tried."""

    bad: Bad
    checked: frontend.Checked
    program: ir.Kernel
    planned: Planned
    advice: Advice
    first: Finding | None

    @property
    def edit(self) -> ScheduleEdit | None:
        return self.first.edits[0] if self.first else None

    def spoke(self) -> bool:
        """Whether the rule that the table expects spoke at all, shown or not."""
        rule = next(r for r in RULES if r.number == self.bad.rule)
        return finding(rule, facts_of(self.checked, self.program, self.planned)) is not None


def case_of(bad: Bad) -> Case:
    """Checks and plans a kernel of the table. Raises ProgramError where its schedule is not legal."""
    checked = frontend.read_text(bad.text, f"{bad.name}.ucu")
    program = frontend.kernel(checked)
    planned = frontend.plan_kernel(checked, program, complete(program, dict(bad.sizes)), ARCH).planned
    advice = advise(facts_of(checked, program, planned))
    return Case(bad, checked, program, planned, advice, next((f for f in advice.findings if f.edits), None))


# --- recorded times --------------------------------------------------------------


@cache
def _product(batch: str) -> frontend.Checked:
    """Checks the recorded program; `batch` begins each of its types."""
    return frontend.read_text(
        f"kernel k(x: bf16[{batch}M, K], w: bf16[{batch}N, K]) -> bf16[{batch}M, N] {{ return dot[K](x, w) }}"
    )


def recorded() -> list[tuple[Planned, float, tuple[frontend.Checked, ir.Kernel]]]:
    """Every plan that benchmarks.record timed on the H200, with its microseconds and its program."""
    data = json.loads(RECORDED.read_text(encoding="utf-8"))
    plans = []
    for row in data["rows"]:
        if row["request"] is None:
            continue
        b, m, n, k = row["sizes"]
        checked = _product("" if b == 1 else "B, ")
        program = frontend.kernel(checked)
        sizes = {"M": m, "N": n, "K": k} | ({"B": b} if b > 1 else {})
        pinned = scheduled(program, ARCH, partial_schedule_of_json(row["request"]))
        planned = frontend.plan_kernel(checked, pinned, complete(program, sizes), ARCH).planned
        plans.append((planned, row["us"], (checked, program)))
    return plans


def key(planned: Planned, request: PartialSchedule) -> tuple[Any, ...]:
    """A plain bf16 product's shape and whole schedule, for finding it among the recorded ones."""
    s = candidate_of(planned).shape
    sides = (s.n, s.m) if candidate_of(planned).swapped else (s.m, s.n)
    return (*sides, s.k, s.batch, request)


def index(rows: Iterable[tuple[Planned, float]]) -> dict[tuple[Any, ...], float]:
    return {key(p, p.request): us for p, us in rows}


def data(every: int = 1) -> int:
    """Each rule's first edit against the recorded time of the schedule that it leads to, of one recorded pair in so
    many."""
    rows = recorded()
    timed = [(planned, us) for planned, us, _ in rows]
    times = index(timed)
    ratios: defaultdict[int, list[tuple[float, ScheduleEdit]]] = defaultdict(list)
    first: list[float] = []
    silent: list[float] = []
    best: dict[tuple[Any, ...], float] = {}
    for p, us in timed:
        best[key(p, p.request)[:4]] = min(us, best.get(key(p, p.request)[:4], us))
    for p, us, (checked, program) in rows[::every]:
        facts = facts_of(checked, program, p)
        for rule in RULES:
            spoken = finding(rule, facts)
            to = times.get(key(p, spoken.edits[0].request)) if spoken and spoken.edits else None
            if spoken and to is not None:
                ratios[rule.number].append((to / us, spoken.edits[0]))
        shown = [f for f in leading_findings(facts, classify(facts, facts.bound), {}) if f.edits]
        if not shown:
            silent.append(us / best[key(p, p.request)[:4]])
        elif (to := times.get(key(p, shown[0].edits[0].request))) is not None:
            first.append(to / us)
    print(
        f"{len(rows[::every])} recorded pairs; edits count where the schedule they lead to was recorded too"
    )
    print("rule  name                          pairs  faster  within range  median ratio")
    names = {r.number: r.name for r in RULES}
    for number, rated in sorted(ratios.items()):
        within = sum(e.expected.low <= r <= e.expected.high for r, e in rated)
        only = [r for r, _ in rated]
        print(
            f"{number:4}  {names[number]:28}  {len(rated):5}  {sum(r < 1 for r in only):6}  {within:12}  "
            f"{statistics.median(only):.3f}"
        )
    print(f"first finding's first edit: {sum(r < 1 for r in first)} of {len(first)} faster")
    print(
        f"no finding: {len(silent)} pairs, in the median {statistics.median(silent):.3f} times the shape's "
        f"best recorded time, {sum(s > 1.1 for s in silent)} of them more than 1.1 times"
    )
    pairs(timed)
    return 0


def pairs(rows: list[tuple[Planned, float]]) -> None:
    """How well the cost model tells two schedules of a shape apart: what `advice.edits` states."""
    shapes: defaultdict[tuple[Any, ...], list[tuple[float, float]]] = defaultdict(list)
    for p, us in rows:
        shapes[key(p, p.request)[:4]].append((us, p.estimate.seconds * 1e6))
    ratios = [
        (b[0] / a[0], b[1] / a[1])
        for group in shapes.values()
        for a in group
        for b in group
        if a is not b and b[1] / a[1] <= 0.97
    ]
    errors = sorted(real / predicted for real, predicted in ratios)
    at = [errors[int(q * (len(errors) - 1))] for q in (0.1, 0.5, 0.9)]
    near = [real < 1 for real, predicted in ratios if predicted > 0.9]
    far = [real < 1 for real, predicted in ratios if predicted <= 0.9]
    print(
        f"{len(ratios)} ordered pairs that the model tells apart by 3 % or more: measured over predicted "
        f"ratio {at[0]:.2f} (10 %), {at[1]:.2f} (median), {at[2]:.2f} (90 %); faster: "
        f"{sum(near) / len(near):.0%} of those at 0.90 to 0.97, {sum(far) / len(far):.0%} of those below"
    )


# --- on a GPU --------------------------------------------------------------------


def measure(folder: Path, ledger: bool, only: str) -> int:
    """Builds both kernels of each case in parallel, times them in turns, writes the table."""
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [bad for bad in TABLE if only in bad.name]
    cases = [case for bad in chosen if (case := case_of(bad)).edit is not None]
    sources = [source for case in cases for source in _sources(case)]
    built = build_many(sources, toolchain(), Cache.from_switches())
    rows = []
    for case, pair in zip(cases, zip(built[::2], built[1::2], strict=True), strict=True):
        row = _row(case) | _timed(case, pair, ledger)
        rows.append(row)
        print(_line(row), flush=True)
        write(folder / "advice.json", json.dumps(rows, indent=1))
    faster = sum(row.get("high", 2.0) < 1.0 for row in rows)
    head = ["| kernel | rule | first | us | edited us | ratio | expected | edit |", "|" + "---|" * 8]
    words = f"{faster} of {len(chosen)} faster after the first finding's edit"
    write(folder / "advice.md", "\n".join([*head, *map(_line, rows), "", words, ""]))
    print(words)
    return 0 if 4 * faster >= 3 * len(chosen) else 1


def _plans(case: Case) -> tuple[Planned, Planned]:
    """The kernel's plan, and that of the first finding's edit."""
    assert case.edit is not None
    edited = facts_of(case.checked, case.program, case.planned).plan(case.edit.request)
    assert edited is not None
    return case.planned, edited


def _sources(case: Case) -> list[Any]:
    return [source_of(case.checked, case.program, planned) for planned in _plans(case)]


def _row(case: Case) -> dict[str, Any]:
    assert case.first is not None and case.edit is not None
    expected = case.edit.expected
    return {
        "kernel": case.bad.name,
        "sizes": dict(case.bad.sizes),
        "rule": case.bad.rule,
        "first": case.first.rule,
        "class": case.advice.classified.bottleneck,
        "schedule": show(case.planned.request),
        "edit": case.edit.schedule,
        "expected": [expected.low, expected.high],
    }


def _timed(case: Case, pair: tuple[Any, Any], ledger: bool) -> dict[str, Any]:
    for artifact in pair:
        if not isinstance(artifact, Artifact):
            return {"lost": str(artifact)[:500]}
    assert case.edit is not None and case.first is not None
    keyed = zip(("now", "edit"), _plans(case), pair, strict=True)
    builds = {label: kernel_payload(planned, artifact.key) for label, planned, artifact in keyed}
    versions = dict(pair[0].versions)
    arguments = {
        "program": program_payload(case.checked),
        "name": case.program.name,
        "sizes": dict(case.bad.sizes),
        "arch": ARCH,
        "builds": builds,
        "seed": 0,
        "versions": versions,
    }
    with gpu_lock.hold_gpu(gpu_lock.gpu_uuid(), timeout_seconds=LIMIT_SECONDS, on_wait=print):
        outcome = isolation.run("ucutlass.tasks.profile:compared", arguments, limit_seconds=LIMIT_SECONDS)
    if not isinstance(outcome, isolation.Returned):
        return {"lost": str(outcome)[:500]}
    answer = outcome.value
    if not answer["differences"]["edit"] <= AGREE:
        return {"lost": f"results differ by {answer['differences']['edit']:.3g} of their norm"}
    ratio = paired_ratio(answer["times"]["edit"], answer["times"]["now"], 0)
    if ledger:
        _record(case, answer, pair[0], (ratio.median, ratio.low, ratio.high))
    return {
        "us": statistics.median(answer["times"]["now"]),
        "edited_us": statistics.median(answer["times"]["edit"]),
        "ratio": ratio.median,
        "low": ratio.low,
        "high": ratio.high,
        "machine": answer["machine"],
    }


def _record(case: Case, answer: dict[str, Any], built: Artifact, ratio: tuple[float, float, float]) -> None:
    assert case.edit is not None and case.first is not None
    subject = subject_of(
        case.program,
        case.checked.source,
        case.planned.sizes,
        arch=ARCH,
        compute_type=case.planned.plan.problem.compute_type.name,
        schedule=show(case.planned.request),
        code=_sources(case)[0].code,
        library=built.library,
    )
    expected = case.edit.expected
    entry = LedgerEntry(
        case.first.rule,
        case.advice.classified.bottleneck,
        subject.schedule,
        case.edit.schedule,
        (expected.low, expected.high),
        *ratio,
    )
    protocol = {"clock": "events over graphs, rotated buffers", "order": "A B B A"}
    EvidenceStore.open().add(
        record("advice", subject, Machine(**answer["machine"]), protocol, to_result(entry))
    )


def _line(row: dict[str, Any]) -> str:
    name = f"{row['kernel']} ({' '.join(f'{n}={v}' for n, v in row['sizes'].items())})"
    low, high = row["expected"]
    cells = f"lost: {row.get('lost')} | | |"
    if "lost" not in row:
        interval = f"({row['low']:.3f} to {row['high']:.3f})"
        cells = f"{row['us']:.1f} | {row['edited_us']:.1f} | {row['ratio']:.3f} {interval} |"
    return f"| {name} | {row['rule']} | {row['first']} | {cells} {low:.2f} to {high:.2f} | `{row['edit']}` |"


# --- Nsight Compute's names ------------------------------------------------------


def query() -> int:
    """Which metrics of each table the ncu at hand knows, by `--query-metrics` for the table's chip."""
    tool = cuda_tools.find("ncu", os.environ)
    if tool is None:
        print("no ncu in CUDA_HOME, PATH or /opt/nvidia/nsight-compute")
        return 3
    missing = 0
    for table, chip in metrics.CHIPS.items():
        command = [str(tool), "--query-metrics", "--query-metrics-mode", "all", "--chip", chip]
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=300, check=False
        )
        known = ncu.queried(done.stdout)
        if not known:
            print(f"{table} ({chip}): not listed: {(done.stderr or done.stdout).strip()[:200]}")
            continue
        # `launch__` and `device__` metrics are not counters, and the listing may leave them out.
        absent = [
            name
            for name in metrics.metric_names(table)
            if name not in known and name.partition(".")[0] not in known and not name.startswith("launch__")
        ]
        count = len(metrics.metric_names(table))
        print(f"{table} ({chip}): {count} wanted, not known: {', '.join(absent) or 'none'}")
        missing += len(absent)
    return 1 if missing else 0


def main() -> int:
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path)
    what.add_argument("--data", action="store_true")
    what.add_argument("--query", action="store_true")
    parser.add_argument("--ledger", action="store_true")
    parser.add_argument("--only", default="", help="kernels whose name holds this")
    options = parser.parse_args()
    if options.data:
        return data()
    if options.query:
        return query()
    return measure(options.out, options.ledger, options.only)


if __name__ == "__main__":
    sys.exit(main())

"""Every operator, compute type, operand order and epilogue function against the float64 reference.

    python -m tests.cases.correctness --out FOLDER [--only GROUP,..] [--processes 4]
    python -m tests.cases.correctness --out FOLDER --random 300    # so many random programs in place of the cases
    python -m tests.cases.correctness --plan                       # no GPU: check, plan and emit alone

Claim: all runs are right. A run is a shape with one distribution of inputs. It is right where every element of
every result lies within the bound that `ucutlass.reference` derives for it (which grows with K and the
compute type), nothing of the poisoned outputs is left or written past, no input changed and a second run
gives the same bits. `exact` counts the runs in which that bound was 0 for every element, as it is
for integer inputs through exact functions: those are compared bit by bit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import harness
from tests.cases.campaign import PROCESSES, Accepted, Case, Rejected, judge, plan
from tests.cases.cases import cases
from tests.random_programs import random_program


@dataclass(slots=True)
class Group:
    """One line of the table. `worst` is the largest error as a share of its bound."""

    name: str
    cases: int = 0
    runs: int = 0
    right: int = 0
    exact: int = 0
    worst: float = 0.0
    families: dict[str, int] = field(default_factory=dict)


def group_of(name: str) -> str:
    return name.split("/")[0]


def summarise(accepted: Sequence[Accepted], rows: Iterable[dict[str, Any]]) -> list[Group]:
    """Returns a line a group. A case that was not built or lost its process has all of its runs wrong."""
    judged = {row["name"]: row for row in rows}
    groups: dict[str, Group] = {}
    for a in accepted:
        group = groups.setdefault(group_of(a.case.name), Group(group_of(a.case.name)))
        runs = judged.get(a.case.name, {}).get("runs", ())
        group.cases += 1
        group.runs += len(a.case.shapes) * len(a.case.distributions)
        group.right += sum(run["ok"] for run in runs)
        group.exact += sum(run["ok"] and run["exact"] for run in runs)
        group.worst = max([group.worst, *(run["worst"] for run in runs)])
        group.families[a.family] = group.families.get(a.family, 0) + 1
    return list(groups.values())


def table(groups: Sequence[Group]) -> str:
    lines = [f"{'group':28} {'cases':>5} {'runs':>6} {'right':>6} {'exact':>6} {'worst':>8}  kernels"]
    for g in groups:
        kernels = " ".join(f"{family} {count}" for family, count in sorted(g.families.items()))
        lines.append(f"{g.name:28} {g.cases:5} {g.runs:6} {g.right:6} {g.exact:6} {g.worst:8.3g}  {kernels}")
    runs, right, exact = (sum(getattr(g, column) for g in groups) for column in ("runs", "right", "exact"))
    worst = max((g.worst for g in groups), default=0.0)
    count = sum(g.cases for g in groups)
    return "\n".join([*lines, f"{'all':28} {count:5} {runs:6} {right:6} {exact:6} {worst:8.3g}"])


def planned(every: Iterable[Case]) -> tuple[list[Accepted], list[Rejected]]:
    answers = [plan(case) for case in every]
    return [a for a in answers if isinstance(a, Accepted)], [a for a in answers if isinstance(a, Rejected)]


def random_accepted(seed: int, count: int) -> Iterator[Accepted]:
    """Yields `count` random programs that the checker and the planner accept, from this seed on."""
    while count:
        program = random_program(seed)
        answer = plan(Case(f"random/{seed}", program.text, (program.sizes,), seed=seed))
        seed += 1
        if isinstance(answer, Accepted):
            count -= 1
            yield answer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="folder for report.json and rows.jsonl")
    parser.add_argument(
        "--only", default="", help="names of groups, or their beginnings, with commas: lanes,orders"
    )
    parser.add_argument("--processes", type=int, default=PROCESSES, help="processes that judge side by side")
    parser.add_argument(
        "--random", type=int, default=0, metavar="N", help="N random accepted programs instead"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the first random program")
    parser.add_argument("--plan", action="store_true", help="check, plan and emit; build and run nothing")
    options = parser.parse_args()
    starts = tuple(filter(None, options.only.split(",")))
    if options.random:
        # What the rules refuse of random programs is no failure: the claim is of those that they accept.
        accepted, rejected = list(random_accepted(options.seed, options.random)), []
    else:
        accepted, rejected = planned(c for c in cases() if not starts or c.name.startswith(starts))
    distinct = {source.code for a in accepted for source in a.sources()}
    print(
        f"{len(accepted)} cases accepted, {len(rejected)} rejected, {len(distinct)} distinct sources",
        flush=True,
    )
    for r in rejected:
        print(r.case.name, r.message)
    if options.plan:
        sys.exit(bool(rejected))
    if options.out is None:
        parser.error("--out FOLDER is needed, or --plan")
    judged = judge(accepted, options.out, processes=options.processes)
    for name, why in judged.unbuilt.items():
        print("not built:", name, why[:300])
    groups = summarise(accepted, judged.rows)
    texts = {a.case.name: a.case.text for a in accepted}
    failed = [row | {"text": texts[row["name"]]} for row in judged.rows if not row["ok"]]
    undecided = [row for row in failed if row.get("state") == "undecided"]
    wrong = [row for row in failed if row not in undecided]
    report = {
        "machine": harness.machine(),
        "sources": len(distinct),
        "groups": [asdict(g) for g in groups],
        "wrong": wrong,
        "undecided": undecided,
        "unbuilt": judged.unbuilt,
        "rejected": {r.case.name: r.message for r in rejected},
    }
    harness.write(options.out / "report.json", report)
    print(table(groups))
    print(f"wrong {len(wrong)}, undecided {len(undecided)}")
    for row in (*wrong, *undecided):
        print(
            row["name"],
            row.get("state", "wrong"),
            row.get("error", ""),
            row.get("at", ""),
            str(row.get("detail"))[:400].replace("\n", " | "),
        )
    sys.exit(bool(failed or judged.unbuilt or rejected))


if __name__ == "__main__":
    main()

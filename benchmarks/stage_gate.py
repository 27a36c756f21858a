"""Kernels built in stages against the same kernels built plainly: the same bits, and the same speed.

    python -m benchmarks.stage_gate --out FOLDER [--stage auto] [--only GROUP,...] [--seconds 500]
    python -m benchmarks.stage_gate --out FOLDER --speed [--stage b]
    python -m benchmarks.stage_gate --plan            # what each stage serves of the cases; no GPU
    python -m benchmarks.stage_gate --share           # and of all legal TMA schedules of some programs

The TMA cases of `benchmarks.correctness` are judged against the float64 reference as built in stages, and
their results, of many launches, compared bit by bit with those of plain nvcc. Rows lie in FOLDER/gate.jsonl;
the same command goes on where it stopped. `--speed` times both builds in turns on rotated buffers.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks import budget, relay
from benchmarks.cases import cases
from benchmarks.correctness import planned
from benchmarks.farm import Accepted
from benchmarks.relay import Row
from ucutlass import frontend
from ucutlass.backend import build_sources, source_of
from ucutlass.emit.text import Source
from ucutlass.kernels.gemm.plan import GemmPlan, Sm90Schedule
from ucutlass.runtime import switches
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.jit import link
from ucutlass.shapes import complete
from ucutlass.tune.space import explore

PLAIN_GROUP = 4
"""Kernels in one run of nvcc."""

ITEM_SECONDS = 60.0

REPEATS = 30
"""Launches of each run that must give the same bits: a race may show in one of twenty."""

SIGNATURES = {
    "plain": ("x: {t}[M, K], w: {t}[N, K]", "dot[K](x, w)"),
    "bias gelu": ("x: {t}[M, K], w: {t}[N, K], b: {t}[N]", "gelu(dot[K](x, w) + b)"),
    "residual": ("x: {t}[M, K], w: {t}[N, K], r: {t}[M, N]", "relu(dot[K](x, w) + r)"),
}

SPEED: tuple[tuple[str, str, dict[str, int]], ...] = (
    ("plain", "bf16", {"M": 4096, "N": 4096, "K": 4096}),
    ("plain", "f16", {"M": 8192, "N": 8192, "K": 8192}),
    ("plain", "bf16", {"M": 16, "N": 4096, "K": 4096}),
    ("plain", "bf16", {"M": 128, "N": 14336, "K": 4096}),
    ("plain", "bf16", {"M": 16384, "N": 1024, "K": 4096}),
    ("bias gelu", "f16", {"M": 512, "N": 4096, "K": 4096}),
    ("bias gelu", "bf16", {"M": 4096, "N": 14336, "K": 4096}),
    ("bias gelu", "bf16", {"M": 8192, "N": 8192, "K": 512}),
    ("residual", "bf16", {"M": 4096, "N": 4096, "K": 4096}),
    ("residual", "bf16", {"M": 8192, "N": 8192, "K": 512}),
    ("residual", "f16", {"M": 4000, "N": 4104, "K": 1032}),
    ("plain", "e4m3", {"M": 4096, "N": 4096, "K": 4096}),
)


SHARED: tuple[tuple[str, str], ...] = (
    ("bf16", "x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return dot[K](x, w)"),
    (
        "bf16, w [K, N], bias, gelu",
        "x: bf16[M, K], w: bf16[K, N], b: bf16[N]) -> bf16[M, N] { return gelu(dot[K](x, w) + b)",
    ),
    (
        "f16, residual, relu",
        "x: f16[M, K], w: f16[N, K], r: f16[M, N]) -> f16[M, N] { return relu(dot[K](x, w) + r)",
    ),
    ("bf16, row sums", "x: bf16[M, K], w: bf16[N, K]) -> f32[M] { return sum[N](dot[K](x, w))"),
    ("tf32", "x: f32[M, K], w: f32[N, K]) -> f32[M, N] { return dot[K](tf32(x), tf32(w))"),
    ("e4m3", "x: e4m3[M, K], w: e4m3[N, K]) -> bf16[M, N] { return dot[K](x, w)"),
    ("s8", "x: s8[M, K], w: s8[N, K]) -> i32[M, N] { return dot[K](x, w)"),
)
"""Programs whose whole legal schedule space is counted, at 4096 a side."""


def shares() -> Iterator[tuple[str, int, int, int]]:
    """Of each program: its legal binaries, those that are TMA kernels, those that stage b serves."""
    for name, body in SHARED:
        checked = frontend.read_text(f"kernel k({body} }}")
        kernel = frontend.kernel(checked)
        space = explore(checked, kernel, complete(kernel, dict.fromkeys("MNK", 4096)), "sm90a", free=True)
        ours = [g.plan for g in space.groups if isinstance(g.plan.schedule, Sm90Schedule)]
        yield name, len(space.groups), len(ours), sum(served(plan).startswith("b") for plan in ours)


def program(kind: str, element: str) -> str:
    arguments, value = SIGNATURES[kind]
    result = "bf16" if element == "e4m3" else element
    return f"kernel k({arguments.format(t=element)}) -> {result}[M, N] {{ return {value} }}"


def tma(found: Accepted) -> bool:
    """Whether every kernel is one that another stage builds too: not f32's, which is lean or nothing."""
    schedules = [plan.schedule for _, plan in found.pairs()]
    return all(isinstance(s, Sm90Schedule) and s.math == "tensor" for s in schedules)


def served(plan: GemmPlan) -> str:
    """The first stage that serves it, and for one after the first why those before do not."""
    why = ""
    for stage in link.STAGES:
        try:
            link.parts(plan, stage)
        except link.NotServed as refused:
            why = f": {refused}"
        else:
            return f"{stage}{why}"
    return f"plain{why}"


@contextmanager
def building(stage: str) -> Iterator[None]:
    """Kernels that are loaded meanwhile are built so."""
    before = os.environ.get(switches.BUILD_STAGE)
    os.environ[switches.BUILD_STAGE] = stage
    try:
        yield
    finally:
        if before is None:
            del os.environ[switches.BUILD_STAGE]
        else:
            os.environ[switches.BUILD_STAGE] = before


# --- the gate ---------------------------------------------------------------------


def judge_here(items: list[dict[str, Any]], rows: str, item_seconds: float) -> int:
    """In the child of `relay.run`."""
    return relay.serve(_judge, items, rows, item_seconds)


def _judge(item: dict[str, Any]) -> Row:
    import ucutlass
    from ucutlass.runtime import verify
    from ucutlass.runtime.inputs import generate

    row: Row = {"runs": 0, "right": 0, "same": 0, "worst": 0.0, "details": []}
    fast, plain = (ucutlass.loads(item["text"], arch="sm90a") for _ in range(2))
    for sizes in item["shapes"]:
        for number, distribution in enumerate(item["distributions"]):
            arguments = generate(fast.program, sizes, distribution, seed=number, device="cuda")

            def launch(args: Sequence[Any], outs: Sequence[torch.Tensor]) -> None:
                fast(*args, out=outs[0] if len(outs) == 1 else tuple(outs))

            with building(item["stage"]):
                verdict = verify.check(fast.program, launch, arguments)
                ours = fast(*arguments)
            with building("plain"):
                theirs = plain(*arguments)
            pairs = (
                [(ours, theirs)] if isinstance(ours, torch.Tensor) else list(zip(ours, theirs, strict=True))
            )
            same = all(torch.equal(bits(a), bits(b)) for a, b in pairs)
            for _ in range(REPEATS):
                again = fast(*arguments)
                each = [again] if isinstance(again, torch.Tensor) else again
                for a, (_, b) in zip(each, pairs, strict=True):
                    same = same and torch.equal(bits(a), bits(b))
            row["runs"] += 1
            row["right"] += verdict.ok
            row["same"] += same
            row["worst"] = max(row["worst"], *(c.worst for c in verdict.comparisons))
            if not (verdict.ok and same):
                row["details"].append(f"{sizes} {distribution}: same {same}, {verdict}"[:400])
    row["ok"] = row["right"] == row["same"] == row["runs"]
    return row


def bits(values: torch.Tensor) -> torch.Tensor:
    return values.reshape(-1).view(torch.uint8)


def gate(accepted: Sequence[Accepted], stage: str, out: Path, deadline: budget.Deadline) -> list[Row]:
    pairs = [pair for a in accepted for pair in a.pairs()]
    stop = deadline.event()
    plain = threading.Thread(
        target=build_sources, args=(pairs,), kwargs={"stage": "plain", "group": PLAIN_GROUP, "cancel": stop}
    )
    plain.start()
    report(build_sources(pairs, stage=stage, cancel=stop), accepted)  # type: ignore[arg-type]
    plain.join()
    items = [
        {
            "name": a.case.name,
            "text": a.case.text,
            "shapes": list(a.case.shapes),
            "distributions": list(a.case.distributions),
            "stage": stage,
        }
        for a in accepted
    ]
    return relay.run(
        "benchmarks.stage_gate:judge_here",
        items,
        out / "gate.jsonl",
        item_seconds=ITEM_SECONDS,
        processes=4,
        deadline=deadline,
    )


def report(made: Sequence[object], accepted: Sequence[Accepted]) -> None:
    names = [a.case.name for a in accepted for _ in a.pairs()]
    for name, one in zip(names, made, strict=True):
        if not isinstance(one, Artifact):
            print(f"{name}: not built: {str(one)[:300]}", flush=True)


# --- speed ------------------------------------------------------------------------


def speed_here(items: list[dict[str, Any]], rows: str, item_seconds: float) -> int:
    """In the child of `relay.run`."""
    return relay.serve(_speed, items, rows, item_seconds)


def _speed(item: dict[str, Any]) -> Row:
    import ucutlass
    from ucutlass.runtime.inputs import generate
    from ucutlass.runtime.timing import compare, sets_for

    kernels = {stage: ucutlass.loads(item["text"], arch="sm90a") for stage in item["stages"]}
    any_kernel = next(iter(kernels.values()))
    first = generate(any_kernel.program, item["sizes"], "normal", seed=0, device="cuda")
    moved = sum(a.numel() * a.element_size() for a in first if isinstance(a, torch.Tensor))
    sets = [[a.clone() if isinstance(a, torch.Tensor) else a for a in first] for _ in range(sets_for(moved))]
    launches = {}
    for stage, kernel in kernels.items():
        with building(stage):
            results = [kernel(*arguments) for arguments in sets]
        launches[stage] = lambda i, k=kernel, r=results: k(*sets[i], out=r[i])
    found = compare(launches, len(sets), rounds=13)
    base = found["plain"].rounds
    row: Row = {"us": {stage: t.median for stage, t in found.items()}}
    row["ratio"] = {
        stage: sorted(a / b for a, b in zip(t.rounds, base, strict=True))[len(base) // 2]
        for stage, t in found.items()
    }
    row["spread"] = {stage: t.spread for stage, t in found.items()}
    return row


def _parts(kind: str, element: str, sizes: dict[str, int]) -> tuple[Source, GemmPlan]:
    checked = frontend.read_text(program(kind, element))
    kernel = frontend.kernel(checked)
    planned_one = frontend.plan_kernel(checked, kernel, complete(kernel, sizes), "sm90a").planned
    return source_of(checked, kernel, planned_one), planned_one.plan


def speed(stages: Sequence[str], out: Path, deadline: budget.Deadline) -> list[Row]:
    pairs = [_parts(*one) for one in SPEED]
    for stage in stages:
        fits = [p for p in pairs if stage == "plain" or served(p[1]).startswith(stage) or stage == "a"]
        build_sources(fits, stage=stage, cancel=deadline.event())  # type: ignore[arg-type]
    items = []
    for (kind, element, sizes), (_, plan) in zip(SPEED, pairs, strict=True):
        fit = [s for s in stages if s != "b" or served(plan).startswith("b")]
        name = f"{kind} {element} {'x'.join(map(str, sizes.values()))}"
        items.append({"name": name, "text": program(kind, element), "sizes": sizes, "stages": fit})
    return relay.run(
        "benchmarks.stage_gate:speed_here",
        items,
        out / "speed.jsonl",
        item_seconds=ITEM_SECONDS,
        deadline=deadline,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--stage", default="auto", choices=["a", "b", "auto"])
    parser.add_argument("--only", default="", help="names of groups, or their beginnings, with commas")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--share", action="store_true")
    budget.add_option(parser)
    options = parser.parse_args()
    deadline = budget.after(options.seconds)
    starts = tuple(filter(None, options.only.split(",")))
    if options.share:
        print("| program | legal binaries | TMA kernels | built lean |\n|---|---|---|---|")
        for name, every, ours, lean in shares():
            print(f"| {name} | {every} | {ours} | {lean} ({lean / ours:.1%}) |", flush=True)
        return
    accepted, _ = planned(c for c in cases() if not starts or c.name.startswith(starts))
    wanted = [a for a in accepted if tma(a)]
    if options.plan:
        counts = Counter(served(plan) for a in wanted for _, plan in a.pairs())
        for what, count in counts.most_common():
            print(f"{count:4} {what}")
        return
    if options.out is None:
        parser.error("--out FOLDER is needed, or --plan")
    options.out.mkdir(parents=True, exist_ok=True)
    if options.speed:
        stages = ("plain", "b", "a") if options.stage == "auto" else ("plain", options.stage)
        rows = speed(stages, options.out, deadline)
        for row in rows:
            if not row["ok"]:
                print(row["name"], row.get("error"), row.get("detail"))
                continue
            times = "  ".join(f"{s} {row['us'][s]:8.2f} us ({row['ratio'][s]:.3f})" for s in row["us"])
            print(f"{row['name']:34} {times}")
        sys.exit(not all(row["ok"] for row in rows))
    if options.stage == "b":
        wanted = [a for a in wanted if all(served(plan).startswith("b") for _, plan in a.pairs())]
    rows = gate(wanted, options.stage, options.out, deadline)
    wrong = [row for row in rows if not row["ok"]]
    for row in wrong:
        print(
            row["name"], row.get("error", ""), row.get("detail", ""), *row.get("details", [])[:3], sep=" | "
        )
    total = {key: sum(row.get(key, 0) for row in rows) for key in ("runs", "right", "same")}
    print(
        f"{len(rows)} of {len(wanted)} kernels: {total['runs']} runs, {total['right']} right, "
        f"{total['same']} bit for bit as built plainly; {len(wrong)} kernels not so"
    )
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()

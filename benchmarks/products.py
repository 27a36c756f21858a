"""Drawn matrix products as the planner schedules them, its next choices and tuned, against torch, max-autotune and quack.

    python -m benchmarks.products --out FILE [--kinds KIND,..] [--spans SPAN,..] [--seed N] [--drawn N] [--no-compile]
        [--quack] [--candidates N] [--tune BUILDS]

Claims: bf16 and f16 products are 1.03 times as fast as cuBLAS in the geomean, and none below 0.92; tuned (`--tune`) 1.06
times as fast as the best of cuBLAS, max-autotune and quack, and none below 0.97; products with an epilogue 1.25 times as
fast as max-autotune. With `--candidates` the first choice is within 5 % of the fastest kernel for 95 of 100: the next
cheapest kernels are built too, at most `--builds` of each kind, every problem's first choice and then the next ones in
turns, and a kernel that several problems have once. Weights of 8 and 4 bits stand against the product of widened ones.

A row's candidates and rivals are timed in turns. The first choice is judged as `ucc verify` judges a case, the others
may differ from it by two roundings. `benchmarks.quack_launches` says how to install quack; `benchmarks.fit_heuristic`
reads the report.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import astuple
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks import campaign, harness
from benchmarks.bars import Bar
from benchmarks.campaign import Case, Prepared
from benchmarks.harness import ARCH, Item, Row
from benchmarks.product_cases import GROUPED, KINDS, NARROW, SPANS, Problem, drawn, product, rival_of
from benchmarks.quack_launches import product_of
from ucutlass import frontend
from ucutlass.api import LoadedKernel
from ucutlass.backend import source_of
from ucutlass.engine.local import LocalEngine
from ucutlass.engine.work import Engine
from ucutlass.ir.hardware import ARCHES, Device, default_device
from ucutlass.ir.schedule import PartialSchedule, partial_schedule_of_json, scheduled, show
from ucutlass.kernels import families
from ucutlass.kernels.planned import Planned
from ucutlass.runtime.inputs import generate
from ucutlass.runtime.parallel import jobs
from ucutlass.runtime.timing import compare, sets_for
from ucutlass.shapes import complete
from ucutlass.tune.job import TuningSettings, job_of
from ucutlass.tune.parallel import Ended, FinishedSearch, tune_many
from ucutlass.tune.policy import SearchLimits
from ucutlass.tune.tune import SearchResult

CLOSE = 0.05
"""How much longer than the fastest candidate a first choice may take."""

FAR = 1.4
"""Candidates priced beyond so many times the first choice are left out."""

ROW_SECONDS = 120.0
"""What one row may take; max-autotune tries out its kernels within it."""

APART = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
"""How far two right results of a type are apart, in the norm: two roundings; those of f32 are of TF32 operands at
most, which round as f16 does."""

VENDORED = ("bf16", "f16")
"""Kinds of which quack has products, and that must be as fast as cuBLAS."""


# --- candidates --------------------------------------------------------------------------


def candidates(problem: Problem, device: Device, most: int) -> list[Planned]:
    """Returns the planner's own choice and the next cheapest legal kernels, at most two of a tile."""
    checked = frontend.read_text(problem.text)
    program = frontend.kernel(checked)
    sizes = tuple(complete(program, problem.sizes))
    pattern = frontend.pattern(checked, program)
    first = frontend.plan_kernel(checked, program, sizes, ARCH, device).planned
    chosen, tiles = [first], {first.request.tile: 1}
    family = families.family_of(pattern)
    for planned in (
        family.candidates(pattern, sizes, ARCHES[ARCH], device, PartialSchedule()) if most > 1 else ()
    ):
        if len(chosen) >= most or planned.seconds > FAR * first.seconds:
            break
        if planned.request == first.request or tiles.get(planned.request.tile, 0) >= 2:
            continue
        tiles[planned.request.tile] = tiles.get(planned.request.tile, 0) + 1
        chosen.append(planned)
    return chosen


def within(ranked: Mapping[str, Sequence[Planned]], builds: int) -> dict[str, list[Planned]]:
    """Returns the candidates that at most `builds` kernels serve: all first choices, then the next ones in turns."""
    plans: set[Any] = set()
    deepest = max(map(len, ranked.values()), default=0)
    for depth in range(deepest):
        for planned in (p[depth] for p in ranked.values() if len(p) > depth):
            if depth == 0 or len(plans) < builds:
                plans.add(planned.plan)
    return {name: [p for p in every if p.plan in plans] for name, every in ranked.items()}


def _emitted(one: tuple[Problem, Planned]) -> campaign.Emitted:
    problem, planned = one
    checked = frontend.read_text(problem.text)
    source = source_of(checked, frontend.kernel(checked), planned)
    return campaign.Emitted(source, planned.plan, str(planned.plan.schedule))


def prepared(cases: Sequence[Case], options: argparse.Namespace, deadline: float | None) -> Prepared:
    """Builds the candidates of all cases, and searches where the options say so."""
    problems = {case.name: Problem(*case.facts["problem"]) for case in cases}
    device = harness.device() or default_device(ARCHES[ARCH])
    rank = partial(candidates, device=device, most=options.candidates)
    ranked = dict(
        zip(problems, campaign.side_by_side(rank, list(problems.values()), jobs(options.jobs)), strict=True)
    )
    chosen: dict[str, list[Planned]] = {}
    for kind in dict.fromkeys(p.kind for p in problems.values()):
        own = {name: ranked[name] for name, p in problems.items() if p.kind == kind}
        chosen |= within(own, options.builds)
    distinct = {p.plan: (problems[name], p) for name, every in chosen.items() for p in every}
    kernels = campaign.side_by_side(_emitted, list(distinct.values()), jobs(options.jobs))
    why = dict(zip(distinct, campaign.build(kernels, options.jobs, deadline), strict=True))
    lost = {
        name: campaign.unbuilt(name, why[every[0].plan])
        for name, every in chosen.items()
        if why[every[0].plan]
    }
    facts: dict[str, Item] = {
        name: {"candidates": [_candidate(p) for p in every if not why[p.plan]]}
        for name, every in chosen.items()
        if name not in lost
    }
    if options.tune and facts:
        found = {name: problems[name] for name in facts}
        with closing(LocalEngine(cpus=jobs(options.jobs), on_wait=print)) as engine:
            for name, ended in searched(found, engine, device, options.tune, options.seed).items():
                if ended["ok"]:
                    facts[name]["candidates"].append(ended)
                else:
                    lost[name] = ended
    return lost, facts


def _candidate(planned: Planned) -> Item:
    return {
        "request": planned.request.fixed(),
        "schedule": show(planned.request),
        "estimate": planned.seconds * 1e6,
    }


def searched(
    problems: Mapping[str, Problem], engine: Engine, device: Device, builds: int, seed: int
) -> dict[str, Row]:
    """Returns what a search of at most so many builds finds for each, or why nothing."""
    searches = []
    for problem in problems.values():
        checked = frontend.read_text(problem.text)
        searches.append(job_of(checked, frontend.kernel(checked), problem.sizes, ARCH, device))
    names, rows = list(problems), {}

    def note(number: int, ended: Ended) -> None:
        name = names[number]
        row = found(ended.tuned) if isinstance(ended, FinishedSearch) else {}
        words = {"name": name, "ok": False, "error": type(ended).__name__, "detail": str(ended)[:1500]}
        rows[name] = row or words

    tune_many(searches, engine, TuningSettings(SearchLimits(builds=builds), seed=seed), on_done=note)
    return rows


def found(tuned: SearchResult) -> Row:
    """Returns what a search came to; nothing where no finalist was right."""
    if tuned.winner is None:
        return {}
    return {
        "ok": True,
        "tuned": True,
        "request": tuned.winner.kernel.request.fixed(),
        "schedule": show(tuned.winner.kernel.request),
        "builds": len(tuned.trials),
        "stopped": tuned.stopped,
        "seconds": tuned.seconds,
    }


# --- one row, on the GPU ------------------------------------------------------------------


def row(item: Item) -> Row:
    problem = Problem(*item["problem"])
    checked = frontend.read_text(problem.text)
    program = frontend.kernel(checked)
    first: Sequence[Any] = generate(
        program, problem.sizes, "normal", seed=item["seed"], device="cuda", generator_device="cuda"
    )
    scale(problem, first)
    count = sets_for(sum(a.numel() * a.element_size() for a in first))
    sets: list[list[Tensor]] = [[a.clone() for a in first] for _ in range(count)]
    launches: dict[str, Callable[[int], object]] = {}
    own: Tensor | None = None
    verdict = ""
    for number, candidate in enumerate(item["candidates"]):
        request = partial_schedule_of_json(candidate["request"])
        kernel: Any = LoadedKernel(checked, scheduled(program, ARCH, request), ARCH)
        outs = [torch.empty_like(kernel(*a)) for a in sets]
        result = kernel(*sets[0], out=outs[0]).double()
        if own is None:
            verdict = harness.check(kernel, sets[0])
            own = result
        apart = float((result - own).norm() / own.norm())
        if not apart <= APART.get(outs[0].dtype, APART[torch.float16]):
            raise ArithmeticError(f"{candidate['schedule']} is {apart:.2g} of its norm from the first choice")
        launches[str(number)] = _into(kernel, sets, outs)
    rivals, refused = rivals_of(problem, item, sets)
    times = compare({**rivals, **launches}, count, rounds=5, window_us=item["window"])
    us = {name: time.median for name, time in times.items()}
    timed = [candidate | {"us": us[str(n)]} for n, candidate in enumerate(item["candidates"])]
    return {
        "problem": item["problem"],
        "verdict": verdict,
        "candidates": timed,
        "rivals": {name: us[name] for name in rivals},
        "refused": refused,
        "spread": max(t.spread for t in times.values()),
    }


def scale(problem: Problem, operands: Sequence[Tensor]) -> None:
    """Scales the weights of a product with an epilogue by about the root of K, and by a power of two: a product of
    two sums is else infinite in f16."""
    if problem.kind in KINDS and KINDS[problem.kind].epilogue:
        for operand in operands[1:]:
            if operand.shape == operands[1].shape:
                operand *= 2.0 ** -round(math.log2(problem.k) / 2)


def rivals_of(
    problem: Problem, item: Item, sets: Sequence[Sequence[Tensor]]
) -> tuple[dict[str, Callable[[int], object]], dict[str, str]]:
    """Returns launches of the rivals that compute the product, and why others do not."""
    results: list[Any] = [None] * len(sets)

    def keeping(call: Callable[[int], object]) -> Callable[[int], object]:
        # A result that is freed at once would be written to the same place each time, and stay in the L2.
        def launch(i: int) -> object:
            results[i] = call(i)
            return results[i]

        return launch

    eager = rival_of(problem, sets)
    rivals = {"torch": keeping(eager)}
    refused: dict[str, str] = {}
    if item["compile"] and problem.kind in KINDS and problem.kind != "fp8":
        fast = harness.compiled(partial(product, problem), *sets[0])
        rivals["max-autotune"] = keeping(lambda i: fast(*sets[i]))
    if item["quack"] and problem.kind in VENDORED:
        outs = [torch.empty_like(eager(i)) for i in range(len(sets))]
        operands = [
            (x if problem.order[0] == "K" else x.mT, w.mT if problem.order[1] == "K" else w) for x, w in sets
        ]
        launches = [product_of(x, w, out) for (x, w), out in zip(operands, outs, strict=True)]
        try:
            for launch in launches:
                launch()
            torch.cuda.synchronize()
            rivals["quack"] = lambda i: launches[i]()
        except RuntimeError as error:  # some of its kernels do not launch
            refused["quack"] = str(error)[:300]
    return rivals, refused


def _into(kernel: Any, sets: Sequence[Sequence[Tensor]], outs: Sequence[Tensor]) -> Callable[[int], object]:
    return lambda i: kernel(*sets[i], out=outs[i])


# --- the run -----------------------------------------------------------------------------


def main() -> None:
    parser = campaign.parser_of(__doc__, compiles=True, drawn=16)
    every = (*KINDS, *GROUPED, *NARROW)
    parser.add_argument("--kinds", default=",".join(every), help=f"of {', '.join(every)}")
    parser.add_argument("--spans", default=",".join(SPANS), help=f"of {', '.join(SPANS)}")
    parser.add_argument("--candidates", type=int, default=1, metavar="N", help="kernels of each product")
    parser.add_argument("--builds", type=int, default=80, metavar="N", help="kernels of each kind")
    parser.add_argument("--tune", type=int, default=0, metavar="BUILDS", help="search, by at most so many")
    parser.add_argument("--quack", action="store_true", help="time quack's products too")
    parser.add_argument(
        "--window", type=float, default=1000.0, metavar="US", help="of each round of a candidate"
    )
    options = parser.parse_args()
    problems = drawn(options.drawn, options.seed, options.kinds.split(","), options.spans.split(","))
    problems = harness.selected(problems, options, lambda problem: problem.name)
    about = {name: getattr(options, name) for name in ("window", "candidates", "builds", "tune", "quack")}
    campaign.report(
        "benchmarks.products:row",
        [Case(p.name, p.text, p.sizes, {"problem": astuple(p), **about}) for p in problems],
        options,
        line,
        classes,
        row_seconds=ROW_SECONDS,
        held=held(options),
        prepare=prepared,
    )


def held(options: argparse.Namespace) -> dict[str, Bar]:
    bars_ = {f"{kind} over torch": Bar(geomean=1.03, least=0.92) for kind in VENDORED}
    bars_ |= {f"{kind} tuned over the best rival": Bar(geomean=1.06, least=0.97) for kind in VENDORED}
    bars_ |= {
        f"{kind} over max-autotune": Bar(geomean=1.25) for kind, facts in KINDS.items() if facts.epilogue
    }
    every = (*KINDS, *GROUPED, *NARROW)
    bars_ |= {f"{kind} first choice over the fastest": Bar(share=(1 / (1 + CLOSE), 0.95)) for kind in every}
    return bars_


def ratios(r: Row) -> dict[str, float]:
    """Returns a row's ratios: times of rivals, or of the fastest candidate, over that of the first choice, or of the
    tuned kernel."""
    first, tuned = r["candidates"][0]["us"], [c["us"] for c in r["candidates"] if c.get("tuned")]
    best = min(r["rivals"].values())
    found = {f"over {name}": us / first for name, us in r["rivals"].items()}
    if len(r["rivals"]) > 1:
        found["over the best rival"] = best / first
    if tuned:
        found["tuned over the best rival"] = best / tuned[0]
    if len(r["candidates"]) > 1:
        found["first choice over the fastest"] = min(c["us"] for c in r["candidates"]) / first
    return found


def classes(rows: list[Row]) -> dict[str, dict[str, float]]:
    every = [
        (f"{r['name'].split()[0]} {what}", r["name"], ratio)
        for r in rows
        for what, ratio in ratios(r).items()
    ]
    labels = dict.fromkeys(label for label, _, _ in every)
    return {label: {name: ratio for own, name, ratio in every if own == label} for label in labels}


def line(r: Row) -> str:
    first, best = r["candidates"][0], min(r["candidates"], key=lambda c: c["us"])
    other = "" if first is best else f"  best {best['us']:.1f}: {' '.join(best['schedule'].split())}"
    words = "  ".join(f"{what} {ratio:.3f}" for what, ratio in ratios(r).items())
    refused = "".join(f"  {name} refused: {why[:80]}" for name, why in r["refused"].items())
    return (
        f"{r['name']:30} {first['us']:8.1f} us  {words}  spread {r['spread']:.3f}  "
        f"{' '.join(first['schedule'].split())}{other}{refused}"
    )


if __name__ == "__main__":
    main()

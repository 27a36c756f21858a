"""How far the planner's first choice is from the best of its own candidates and from torch, over drawn products.

    python -m benchmarks.first_choice --out FILE [--seed N] [--drawn N] [--kinds KIND,..] [--spans SPAN,..] [--candidates N]
        [--compiled]

Claims: over problems that the seed draws, the first choice is within 5 % of the fastest candidate for 95 of 100; bf16 and
f16 products are 1.03 times as fast as cuBLAS in the geomean and none below 0.92; the best candidate of bf16 products 1.06 times as
fast as the best of cuBLAS and, with `--compiled`, max-autotune, and none below 0.97. At most `--builds` kernels
of each kind are built: every problem's first choice, then the next cheapest ones in turns; a kernel that several problems have
is built once. Each problem's candidates and torch's product are then timed in turns. `benchmarks.fit_heuristic` reads the report.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import ucutlass
from benchmarks import harness
from benchmarks.harness import Item, Row
from ucutlass import frontend
from ucutlass.api import LoadedKernel
from ucutlass.backend import build_sources, source_of
from ucutlass.ir.hardware import ARCHES, Device, default_device
from ucutlass.ir.schedule import PartialSchedule, partial_schedule_of_json, scheduled, show
from ucutlass.kernels import families
from ucutlass.kernels.planned import Planned
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.inputs import generate
from ucutlass.runtime.timing import compare, sets_for
from ucutlass.shapes import complete

ARCH = "sm90a"

CLOSE = 0.05
"""How much longer than the fastest candidate a first choice may take."""

FAR = 1.4
"""Candidates priced beyond so many times the first choice are left out."""

ROW_SECONDS = 60.0

MOST_OPERATIONS = 6e11
"""Of a drawn problem."""

_PRODUCT = "kernel k(x: {t}[{b}{x}], w: {t}[{b}{w}]{more}) -> {r}[{b}M, N] {{ return {value} }}"


@dataclass(frozen=True, slots=True)
class Kind:
    """Products of one type. `elem` and `result` are stored, `item` is bytes of a stored element; `orders` are the
    contiguous modes of both operands; `fused` adds a bias and applies gelu."""

    elem: str
    result: str
    item: int
    orders: tuple[str, ...] = ("KK",)
    dot: str = "x, w"
    batched: bool = False
    fused: bool = False


_ORDERS = ("KK", "KN", "MK", "MN")

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "bf16": Kind("bf16", "bf16", 2, _ORDERS),
        "f16": Kind("f16", "f16", 2, _ORDERS),
        "f32": Kind("f32", "f32", 4, _ORDERS),
        "tf32": Kind("f32", "f32", 4, _ORDERS, "tf32(x), tf32(w)"),
        "fp8": Kind("e4m3", "bf16", 1),
        "batched": Kind("bf16", "bf16", 2, _ORDERS, batched=True),
        "bf16+gelu": Kind("bf16", "bf16", 2, fused=True),
        "tf32+gelu": Kind("f32", "f32", 4, dot="tf32(x), tf32(w)", fused=True),
    }
)

GROUPED = {
    "grouped": "kernel k(x: bf16[M, K], w: bf16[G, N, K], o: i32[G+1]) -> bf16[M, N] "
    "{ return dot[K](x, w[G = segment(M, o)]) }"
}

NARROW = {
    kind: f"kernel k(x: bf16[M, (G J=128)], w: {elem}[N, (G J)], s: f32[N, G]) -> bf16[M, N] "
    "{ return sum[G](dot[J](x, bf16(w)) * s) }"
    for kind, elem in (("int8", "s8"), ("int4", "s4"))
}
"""Weights of so many bits with a scale for `_SCALED` elements of K; torch multiplies widened ones."""

_SCALED = 128


@dataclass(frozen=True, slots=True)
class Problem:
    """One product. `batch` is 1 where there is none, the number of groups where they are ragged."""

    kind: str
    order: str
    batch: int
    m: int
    n: int
    k: int

    @property
    def name(self) -> str:
        batch = f"{self.batch}x" if self.batch > 1 else ""
        return f"{self.kind} {self.order} {batch}{self.m}x{self.n}x{self.k}"

    @property
    def text(self) -> str:
        if text := {**GROUPED, **NARROW}.get(self.kind):
            return text
        kind = KINDS[self.kind]
        x, w = ("M, K" if self.order[0] == "K" else "K, M"), ("N, K" if self.order[1] == "K" else "K, N")
        b = "B, " if kind.batched else ""
        more = f", bias: {kind.elem}[N]" if kind.fused else ""
        value = f"gelu(dot[K]({kind.dot}) + bias)" if kind.fused else f"dot[K]({kind.dot})"
        return _PRODUCT.format(t=kind.elem, r=kind.result, b=b, x=x, w=w, more=more, value=value)

    @property
    def sizes(self) -> dict[str, int]:
        match self.kind:
            case "grouped":
                return {"M": self.m, "N": self.n, "K": self.k, "G": self.batch}
            case "int8" | "int4":
                return {"M": self.m, "N": self.n, "G": self.k // _SCALED}
            case "batched":
                return {"B": self.batch, "M": self.m, "N": self.n, "K": self.k}
            case _:
                return {"M": self.m, "N": self.n, "K": self.k}


# --- drawing -----------------------------------------------------------------------------

SPANS: Mapping[str, tuple[tuple[float, float], ...]] = MappingProxyType(
    {
        "few": ((2, 8), (10.5, 14), (10.5, 14)),
        "deep": ((7.65, 9.65), (10.6, 11.3), (12.8, 13.3)),
        "large": ((9.5, 13), (9, 14), (8, 13.5)),
        "small": ((7, 10.5), (7, 10.5), (7, 12)),
    }
)
"""Logarithms to base 2 between which M, N and K are drawn: few rows and large weights, 200 to 800 rows of 7k to 10k
elements, and products that are large or small on all sides."""


def drawn(count: int, seed: int, kinds: Sequence[str], spans: Sequence[str] = tuple(SPANS)) -> list[Problem]:
    """Returns `count` problems of each kind, of these spans in turn."""
    return [problem for kind in kinds for problem in _of_kind(kind, count, seed, spans)]


def _of_kind(kind: str, count: int, seed: int, spans: Sequence[str]) -> Iterator[Problem]:
    draw = random.Random(f"{kind} {seed}")
    orders = KINDS[kind].orders if kind in KINDS else ("KK",)
    # Vectors of 16 bytes, as TMA needs them.
    step = 16 // KINDS[kind].item if kind in KINDS else 8 if kind in NARROW else 128
    done = 0
    while done < count:
        span = SPANS[spans[done % len(spans)]]
        order = orders[done // len(spans) % len(orders)]
        m, n, k = (int(2 ** draw.uniform(*ends)) // step * step or step for ends in span)
        k = max(_SCALED, k // _SCALED * _SCALED) if kind in NARROW else k
        batch = draw.choice((4, 8, 16, 32, 64)) if kind in ("grouped", "batched") else 1
        if kind == "batched":
            n, k = (max(step, v // 4 // step * step) for v in (n, k))
        every = m * n * k * (1 if kind == "grouped" else batch)
        if 2.0 * every <= MOST_OPERATIONS and n * k * batch <= 2**30:
            done += 1
            yield Problem(kind, order, batch, m, n, k)


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
    for planned in family.candidates(pattern, sizes, ARCHES[ARCH], device, PartialSchedule()):
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


def build(problems: Sequence[Problem], chosen: Mapping[str, Sequence[Planned]]) -> dict[Any, str]:
    """Builds all kernels. Returns why some were not built, by their plans."""
    sources = {}
    for problem in problems:
        checked = frontend.read_text(problem.text)
        program = frontend.kernel(checked)
        for planned in chosen[problem.name]:
            if planned.plan not in sources:
                sources[planned.plan] = source_of(checked, program, planned)
    results = build_sources([(source, plan) for plan, source in sources.items()])
    return {p: str(r)[:500] for p, r in zip(sources, results, strict=True) if not isinstance(r, Artifact)}


# --- in the other process ----------------------------------------------------------------


def row_of(item: Item) -> Row:
    problem = Problem(*item["problem"])
    checked = frontend.read_text(problem.text)
    program = frontend.kernel(checked)
    first: Sequence[Any] = generate(
        program, problem.sizes, "normal", seed=item["seed"], device="cuda", generator_device="cuda"
    )
    count = sets_for(sum(a.numel() * a.element_size() for a in first))
    sets: list[list[Tensor]] = [[a.clone() for a in first] for _ in range(count)]
    rival = rival_of(problem, sets)
    expected = rival(0).double()
    launches: dict[str, Callable[[int], object]] = {}
    distances, timed = [], []
    for number, candidate in enumerate(item["candidates"]):
        request = partial_schedule_of_json(candidate["request"])
        kernel: Any = LoadedKernel(checked, scheduled(program, ARCH, request), ARCH)
        outs = [torch.empty_like(kernel(*a)) for a in sets]
        distances.append(float((kernel(*sets[0], out=outs[0]).double() - expected).norm() / expected.norm()))
        launches[str(number)] = _into(kernel, sets, outs)
    results: list[Tensor | None] = [None] * count

    def theirs(i: int) -> object:
        results[i] = rival(i)
        return results[i]

    rivals: dict[str, Callable[[int], object]] = {"torch": theirs}
    if item["compiled"]:
        fast = harness.compiled(partial(_product, problem), *sets[0])

        def compiled(i: int) -> object:
            results[i] = fast(*sets[i])
            return results[i]

        rivals["max-autotune"] = compiled
    times = compare({**rivals, **launches}, count, rounds=5, window_us=item["window"])
    for number, candidate in enumerate(item["candidates"]):
        timed.append(candidate | {"us": times[str(number)].median, "distance": distances[number]})
    best = min(c["us"] for c in timed)
    return {
        "problem": item["problem"],
        "candidates": timed,
        "torch": times["torch"].median,
        "spread": max(t.spread for t in times.values()),
        "over best": best / timed[0]["us"],
        "over torch": times["torch"].median / timed[0]["us"],
        "best over torch": times["torch"].median / best,
        **(
            {"best over rivals": min(times[name].median for name in rivals) / best}
            if item["compiled"]
            else {}
        ),
    }


def _into(kernel: Any, sets: Sequence[Sequence[Tensor]], outs: Sequence[Tensor]) -> Callable[[int], object]:
    return lambda i: kernel(*sets[i], out=outs[i])


def rival_of(problem: Problem, sets: Sequence[Sequence[Tensor]]) -> Callable[[int], Tensor]:
    """Returns torch's product of a set's operands."""
    torch.backends.cuda.matmul.allow_tf32 = problem.kind.startswith("tf32")
    if problem.kind == "grouped":
        ends = [o[1:].contiguous() for _, _, o in sets]
        return lambda i: torch._grouped_mm(sets[i][0], sets[i][1].mT, offs=ends[i])
    if problem.kind in NARROW:
        _, w, s = sets[0]
        wide = (
            (w if problem.kind == "int8" else ucutlass.unpack_s4(w)).float() * s.repeat_interleave(_SCALED, 1)
        ).bfloat16()
        copies = [wide.clone() for _ in sets]
        return lambda i: sets[i][0].view(problem.m, -1) @ copies[i].mT
    if problem.kind == "fp8":
        one = torch.ones((), device="cuda")
        return lambda i: torch._scaled_mm(
            sets[i][0], sets[i][1].mT, scale_a=one, scale_b=one, out_dtype=torch.bfloat16
        )

    return lambda i: _product(problem, *sets[i])


def _product(problem: Problem, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    if bias is not None:
        return F.gelu(F.linear(x, w, bias))
    return torch.matmul(x if problem.order[0] == "K" else x.mT, w.mT if problem.order[1] == "K" else w)


# --- the run -----------------------------------------------------------------------------


def main() -> None:
    parser = harness.parser_of(__doc__)
    every = (*KINDS, *GROUPED, *NARROW)
    parser.add_argument("--kinds", default=",".join(every), help=f"of {', '.join(every)}")
    parser.add_argument("--spans", default=",".join(SPANS), help=f"of {', '.join(SPANS)}")
    parser.add_argument("--drawn", type=int, default=16, metavar="N", help="products of each kind")
    parser.add_argument("--candidates", type=int, default=12, metavar="N", help="kernels of each product")
    parser.add_argument("--builds", type=int, default=80, metavar="N", help="kernels of each kind")
    parser.add_argument(
        "--window", type=float, default=1000.0, metavar="US", help="of each round of a candidate"
    )
    parser.add_argument("--compiled", action="store_true", help="time max-autotune of plain products too")
    options = parser.parse_args()
    problems = drawn(options.drawn, options.seed, options.kinds.split(","), options.spans.split(","))
    problems = harness.selected(problems, options, lambda problem: problem.name)
    rows = run(problems, options.candidates, options.builds, options)
    print(table(rows))
    sys.exit(any(not row["ok"] for row in rows))


def run(problems: Sequence[Problem], most: int, builds: int, options: Any) -> list[Row]:
    """Builds and times, the kernels of one kind while those of the kind before are timed; writes the report to
    `--out`."""
    device = harness.device() or default_device(ARCHES[ARCH])
    kinds = [[p for p in problems if p.kind == kind] for kind in dict.fromkeys(p.kind for p in problems)]
    chosen: dict[str, list[Planned]] = {}
    for own in kinds:
        chosen |= within({p.name: candidates(p, device, most) for p in own}, builds)
    rows: list[Row] = []
    unbuilt: dict[Any, str] = {}
    with ThreadPoolExecutor(1) as builder:
        builds_of = [builder.submit(build, own, chosen) for own in kinds]
        for own, building in zip(kinds, builds_of, strict=True):
            unbuilt |= building.result()
            items = [_item(p, [c for c in chosen[p.name] if c.plan not in unbuilt], options) for p in own]
            journal = harness.fresh(options.out.with_suffix(f".{own[0].kind}.jsonl"))
            rows += harness.run("benchmarks.first_choice:row_of", items, journal, item_seconds=ROW_SECONDS)
            report = {"machine": harness.machine(), "drawn": rows, "unbuilt": list(unbuilt.values())}
            harness.write(options.out, report)
    return rows


def _item(problem: Problem, kernels: Sequence[Planned], options: Any) -> Item:
    return {
        "name": problem.name,
        "problem": astuple(problem),
        "seed": options.seed,
        "window": options.window,
        "compiled": options.compiled and problem.kind in KINDS and problem.kind != "fp8",
        "candidates": [
            {"request": p.request.fixed(), "schedule": show(p.request), "estimate": p.seconds * 1e6}
            for p in kernels
        ],
    }


def table(rows: Sequence[Row]) -> str:
    right = [row for row in rows if row["ok"]]
    lines = []
    for row in right:
        first, best = row["candidates"][0], min(row["candidates"], key=lambda c: c["us"])
        other = "" if first is best else f"  best {best['us']:.1f}: {' '.join(best['schedule'].split())}"
        lines.append(
            f"{row['name']:30} {first['us']:8.1f} us  of best {row['over best']:.3f}  over torch {row['over torch']:.3f}  "
            f"{' '.join(first['schedule'].split())}{other}"
        )
    kinds = dict.fromkeys(row["name"].split()[0] for row in right)
    for kind in kinds:
        own = [row for row in right if row["name"].split()[0] == kind]
        close = sum(row["over best"] >= 1 / (1 + CLOSE) for row in own) / len(own)
        lines.append(f"{kind}: first choice within {CLOSE:.0%} of the best for {close:.0%} of {len(own)}")
        lines += harness.means(
            {
                f"{kind} {key}": [row[key] for row in own]
                for key in ("over best", "over torch", "best over torch", "best over rivals")
                if key in own[0]
            }
        )
    return "\n".join([*lines, *harness.lost_lines(rows, {})])


if __name__ == "__main__":
    main()

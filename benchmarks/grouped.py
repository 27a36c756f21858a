"""Ragged groups (mixture of experts) against torch's grouped product, Triton, eager and torch.compile.

    python -m benchmarks.grouped --out grouped.json [--only "PART;.."] [--compile ["PART;.."]]

Default schedules, nothing tuned; candidates in turns in one process over rotated results. `over best` is the
fastest rival's time over ours. Rivals of a plain product are torch._grouped_mm and a Triton kernel tuned to
the shape; of one with silu also the same with silu in a launch of its own (eager), and torch.compile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F

import ucutlass
from benchmarks.product_tables import Planned, Row, compiled, finished, planned, table
from ucutlass.runtime.timing import compare

TEXTS: Mapping[str, str] = MappingProxyType(
    {
        "product": "kernel k(x: bf16[T, D], w: bf16[E, F, D], o: i32[E+1]) -> bf16[T, F] "
        "{ return dot[D](x, w[E = segment(T, o)]) }",
        "silu": "kernel k(x: bf16[T, D], w: bf16[E, F, D], o: i32[E+1]) -> bf16[T, F] "
        "{ return silu(dot[D](x, w[E = segment(T, o)])) }",
        "gated": "kernel k(x: bf16[T, D], w: bf16[E, F, D], u: bf16[E, F, D], o: i32[E+1]) -> bf16[T, F] {\n"
        "  g = segment(T, o)\n  return silu(dot[D](x, w[E = g])) * dot[D](x, u[E = g]) }",
        "rows": "kernel k(y: bf16[T, F], w: bf16[E, F, D], o: i32[E+1]) -> bf16[T, D] "
        "{ return dot[F](y, w[E = segment(T, o)]) }",
        "weights": "kernel k(y: bf16[T, F], x: bf16[T, D], o: i32[O]) -> bf16[E=O-1, F, D] {\n"
        "  own = segment(T, o) == index(E)\n"
        "  return dot[T](bf16(where(own, y, 0)), bf16(where(own, x, 0))) }",
    }
)
"""The forward product, alone, with an epilogue and as a gated pair; the gradients of rows and of weights."""

LAYERS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "8 of 14336x4096": {"T": 16384, "D": 4096, "F": 14336, "E": 8},
        "16 of 8192x2048": {"T": 16384, "D": 2048, "F": 8192, "E": 16},
        "32 of 4096x7168": {"T": 8192, "D": 7168, "F": 4096, "E": 32},
        "128 of 1536x2048": {"T": 32768, "D": 2048, "F": 1536, "E": 128},
        "64 of 2816x2048": {"T": 6144, "D": 2048, "F": 2816, "E": 64},
        "64, few rows": {"T": 512, "D": 2048, "F": 8192, "E": 64},
    }
)
"""Layers of the sizes of known models: rows after routing, model width, expert width, experts."""


@dataclass(frozen=True, slots=True)
class Problem:
    kind: str
    layer: str
    spread: str

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.layer}, {self.spread}"

    @property
    def sizes(self) -> dict[str, int]:
        sizes = dict(LAYERS[self.layer])
        if self.kind == "weights":
            sizes["O"] = sizes.pop("E") + 1
        return sizes


PROBLEMS = [
    Problem(kind, layer, spread)
    for kind, layers in (
        ("product", tuple(LAYERS)),
        ("silu", tuple(LAYERS)[:2]),
        ("gated", tuple(LAYERS)[2:4]),
        ("rows", tuple(LAYERS)[:4:2]),
        ("weights", tuple(LAYERS)[1:4:2]),
    )
    for layer in layers
    for spread in ("even", "uneven")
]


def offsets(rows: int, groups: int, spread: str, seed: int = 3) -> torch.Tensor:
    """Even groups, or rows drawn one by one with log-normal chances, as an untrained router has them."""
    if spread == "even":
        ends = torch.arange(1, groups + 1) * rows // groups
    else:
        random = torch.Generator().manual_seed(seed)
        chances = torch.exp(0.7 * torch.randn(groups, generator=random))
        owners = torch.multinomial(chances, rows, replacement=True, generator=random)
        ends = torch.bincount(owners, minlength=groups).cumsum(0)
    return torch.cat((torch.zeros(1, dtype=torch.int64), ends)).int().cuda()


def rivals(problem: Problem, args: list[torch.Tensor], out: torch.Tensor) -> dict[str, Callable[[], Any]]:
    from benchmarks.triton_grouped import grouped

    o = args[-1]
    ends = o[1:].contiguous()
    product = torch._grouped_mm
    match problem.kind:
        case "product" | "silu":
            x, w, _ = args
            wt = w.transpose(-2, -1)
            mine = grouped(x, w, o, out, problem.kind == "silu")
            if problem.kind == "product":
                return {"torch": lambda: product(x, wt, offs=ends), "triton": mine}
            return {"eager": lambda: F.silu(product(x, wt, offs=ends)), "triton": mine}
        case "gated":
            x, w, u, _ = args
            wt, ut = w.transpose(-2, -1), u.transpose(-2, -1)
            return {"eager": lambda: F.silu(product(x, wt, offs=ends)) * product(x, ut, offs=ends)}
        case "rows":
            y, w, _ = args
            return {"torch": lambda: product(y, w, offs=ends)}
        case _:
            y, x, _ = args
            return {"torch": lambda: product(y.t(), x, offs=ends)}


def arguments(problem: Problem) -> list[torch.Tensor]:
    sizes, layer = problem.sizes, LAYERS[problem.layer]
    random = torch.Generator("cuda").manual_seed(1)

    def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_(0, scale, generator=random)

    rows, d, f, groups = layer["T"], sizes["D"], sizes["F"], layer["E"]
    o = offsets(rows, groups, problem.spread)
    weights = [normal(groups, f, d, scale=d**-0.5) for _ in range(2 if problem.kind == "gated" else 1)]
    match problem.kind:
        case "rows":
            return [normal(rows, f), *weights, o]
        case "weights":
            return [normal(rows, f), normal(rows, d), o]
        case _:
            return [normal(rows, d), *weights, o]


def row(problem: Problem, compile_too: bool) -> Row:
    kernel = ucutlass.loads(TEXTS[problem.kind])
    args = arguments(problem)
    out = kernel(*args)
    mine = out.clone()
    others = rivals(problem, args, out)
    wanted = next(iter(others.values()))()
    error = float((mine.float() - wanted.float()).norm() / wanted.float().norm())
    if compile_too:
        others["compile"] = compiled(next(iter(others.values())))
    candidates: dict[str, Callable[[int], object]] = {"ours": lambda _: kernel(*args, out=out)}
    candidates |= {name: lambda _, call=call: call() for name, call in others.items()}  # type: ignore[misc]
    times = compare(candidates, 1, rounds=9, window_us=6000.0)
    layer = LAYERS[problem.layer]
    operations = 2.0 * layer["T"] * layer["D"] * layer["F"] * (2 if problem.kind == "gated" else 1)
    return finished(problem.name, error, plan_of(problem), operations, times)


def plan_of(problem: Problem) -> Planned:
    return planned(TEXTS[problem.kind], problem.sizes)


def main() -> None:
    named = {p.name: p for p in PROBLEMS}
    plans = {name: plan_of(p) for name, p in named.items()}
    table(__doc__, plans, lambda name, compile_too: row(named[name], compile_too))


if __name__ == "__main__":
    main()

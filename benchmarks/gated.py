"""Gated pairs, two dots over one left operand in one launch, against eager and torch.compile.

    python -m benchmarks.gated --out gated.json [--only "PART;.."] [--compile ["PART;.."]]

Default schedules, nothing tuned; candidates in turns in one process. `over best` is the fastest rival's time
over ours; "one product" is cuBLAS's time for one product of twice the columns, with no gate: no rival, since
it computes less, but what the multiplications alone cost there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
import torch.nn.functional as F

import ucutlass
from benchmarks.product_tables import Planned, Row, compiled, finished, planned, table
from ucutlass.runtime.timing import compare

TEXTS: Mapping[str, str] = MappingProxyType(
    {
        "swiglu": "kernel k(x: {t}[T, D], w: {t}[F, D], u: {t}[F, D]) -> {t}[T, F] "
        "{{ return silu(dot[D](x, w)) * dot[D](x, u) }}",
        "geglu": "kernel k(x: {t}[T, D], w: {t}[F, D], u: {t}[F, D], a: {t}[F], b: {t}[F]) -> {t}[T, F] "
        "{{ return gelu(dot[D](x, w) + a) * (dot[D](x, u) + b) }}",
    }
)

SHAPES = (
    (8192, 4096, 14336),
    (4096, 4096, 11008),
    (2048, 5120, 13824),
    (16384, 2048, 5632),
    (512, 4096, 14336),
    (64, 4096, 14336),
    (4096, 8192, 28672),
)
"""Rows, model width, gate's width."""

CASES = [("swiglu", "bf16", shape) for shape in SHAPES] + [("geglu", "f16", shape) for shape in SHAPES[:3]]

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}


def eager(
    kind: str, x: torch.Tensor, w: torch.Tensor, u: torch.Tensor, *biases: torch.Tensor
) -> torch.Tensor:
    if kind == "swiglu":
        return F.silu(x @ w.t()) * (x @ u.t())
    return F.gelu(F.linear(x, w, biases[0])) * F.linear(x, u, biases[1])


def plan_of(kind: str, dtype: str, shape: tuple[int, int, int]) -> Planned:
    return planned(TEXTS[kind].format(t=dtype), dict(zip("TDF", shape, strict=True)))


def name_of(kind: str, dtype: str, shape: tuple[int, int, int]) -> str:
    return f"{kind} {dtype} {'x'.join(map(str, shape))}"


def row(kind: str, dtype: str, shape: tuple[int, int, int], compile_too: bool) -> Row:
    t, d, f = shape
    random = torch.Generator("cuda").manual_seed(1)

    def normal(*extents: int, scale: float = 1.0) -> torch.Tensor:
        return torch.empty(extents, dtype=DTYPES[dtype], device="cuda").normal_(0, scale, generator=random)

    args = [normal(t, d), normal(f, d, scale=d**-0.5), normal(f, d, scale=d**-0.5)]
    args += [normal(f), normal(f)] if kind == "geglu" else []
    kernel = ucutlass.loads(TEXTS[kind].format(t=dtype))
    out = kernel(*args)
    wanted = eager(kind, *args)
    error = float((out.float() - wanted.float()).norm() / wanted.float().norm())
    both = torch.cat((args[1], args[2]))
    candidates: dict[str, Callable[[int], object]] = {
        "ours": lambda _: kernel(*args, out=out),
        "eager": lambda _: eager(kind, *args),
        "one product": lambda _: args[0] @ both.t(),
    }
    if compile_too:
        fast = compiled(lambda: eager(kind, *args))
        candidates["compile"] = lambda _: fast()
    times = compare(candidates, 1, rounds=7, window_us=4000.0)
    plan = plan_of(kind, dtype, shape)
    return finished(name_of(kind, dtype, shape), error, plan, 4.0 * t * d * f, times, ("eager", "compile"))


def main() -> None:
    named = {name_of(*case): case for case in CASES}
    plans = {name: plan_of(*case) for name, case in named.items()}
    table(__doc__, plans, lambda name, compile_too: row(*named[name], compile_too))


if __name__ == "__main__":
    main()

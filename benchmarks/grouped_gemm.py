"""Grouped, dual and mixed-input GEMM against torch's own, Triton, eager and torch.compile in one run.

    python -m benchmarks.grouped_gemm --out grouped.json [--only grouped,dual,mixed] [--no-compile] [--quick]

Claim: products over ragged groups (mixture of experts) are as fast as torch._grouped_mm and a Triton kernel,
dual GEMMs (two products over one left operand, gated) are faster than eager, and weights narrower than the
activations cost no more than cuBLAS's product of widened ones. Default schedules, nothing tuned.

`over_best` is the fastest rival's time over ours. Of groups, rivals are torch._grouped_mm, with the epilogue as
further kernels where there is one, and a Triton kernel tuned to the shape. "one product" in a dual GEMM's row
is cuBLAS's time for one product of twice the columns without a gate: no rival, since it computes less. Mixed
rows stand against cuBLAS's product of bf16 weights, to which a person without the kernel would widen them
beforehand, and torch's own products of four bits (tinygemm) and of fp8 with the same scales, where this torch
has them; for few rows the weights rotate through as many copies as L2 does not hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F

import ucutlass
from benchmarks import bars, campaign, harness
from benchmarks.campaign import Case
from benchmarks.harness import Item, Row, compiled
from ucutlass.runtime.timing import LaunchTiming, compare

ROW_SECONDS = 150.0

MOST_ERROR = 0.01
"""Norm of the error over the norm of the result."""

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}


# --- grouped GEMM ------------------------------------------------------------------------

GROUPED: Mapping[str, str] = MappingProxyType(
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
        "64 few rows": {"T": 512, "D": 2048, "F": 8192, "E": 64},
    }
)
"""Layers of the sizes of known models: rows after routing, model width, expert width, experts."""


@dataclass(frozen=True, slots=True)
class Grouped:
    kind: str
    layer: str
    spread: str

    @property
    def name(self) -> str:
        return f"grouped {self.kind} {self.layer} {self.spread}"

    @property
    def text(self) -> str:
        return GROUPED[self.kind]

    @property
    def sizes(self) -> dict[str, int]:
        sizes = dict(LAYERS[self.layer])
        if self.kind == "weights":
            sizes["O"] = sizes.pop("E") + 1
        return sizes

    def arguments(self, seed: int) -> list[torch.Tensor]:
        layer = LAYERS[self.layer]
        random = torch.Generator("cuda").manual_seed(1 + seed)

        def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
            empty = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
            return empty.normal_(0, scale, generator=random)

        rows, d, f, groups = layer["T"], layer["D"], layer["F"], layer["E"]
        o = offsets(rows, groups, self.spread, 3 + seed)
        weights = [normal(groups, f, d, scale=d**-0.5) for _ in range(2 if self.kind == "gated" else 1)]
        match self.kind:
            case "rows":
                return [normal(rows, f), *weights, o]
            case "weights":
                return [normal(rows, f), normal(rows, d), o]
            case _:
                return [normal(rows, d), *weights, o]

    def rivals(self, args: list[torch.Tensor], out: torch.Tensor) -> dict[str, Callable[[], Any]]:
        from benchmarks.triton_grouped import grouped

        o = args[-1]
        ends = o[1:].contiguous()
        product = torch._grouped_mm
        match self.kind:
            case "product" | "silu":
                x, w, _ = args
                wt = w.transpose(-2, -1)
                triton = grouped(x, w, o, out, self.kind == "silu")
                if self.kind == "product":
                    return {"torch": lambda: product(x, wt, offs=ends), "triton": triton}
                return {"eager": lambda: F.silu(product(x, wt, offs=ends)), "triton": triton}
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

    def measure(self, with_compile: bool, seed: int) -> Row:
        kernel = ucutlass.loads(self.text)
        args = self.arguments(seed)
        out = kernel(*args)
        result = out.clone()
        others = self.rivals(args, out)
        expected = next(iter(others.values()))()
        error = float((result.float() - expected.float()).norm() / expected.float().norm())
        if with_compile:
            others["compile"] = compiled(next(iter(others.values())))
        candidates: dict[str, Callable[[int], object]] = {"ours": lambda _: kernel(*args, out=out)}
        candidates |= {name: lambda _, call=call: call() for name, call in others.items()}  # type: ignore[misc]
        times = compare(candidates, 1, rounds=9, window_us=6000.0)
        layer = LAYERS[self.layer]
        operations = 2.0 * layer["T"] * layer["D"] * layer["F"] * (2 if self.kind == "gated" else 1)
        return measured(error, operations, times)


def offsets(rows: int, groups: int, spread: str, seed: int) -> torch.Tensor:
    """Returns the offsets of even groups, or of rows drawn one by one with log-normal chances, as an untrained
    router has them."""
    if spread == "even":
        ends = torch.arange(1, groups + 1) * rows // groups
    else:
        random = torch.Generator().manual_seed(seed)
        chances = torch.exp(0.7 * torch.randn(groups, generator=random))
        owners = torch.multinomial(chances, rows, replacement=True, generator=random)
        ends = torch.bincount(owners, minlength=groups).cumsum(0)
    return torch.cat((torch.zeros(1, dtype=torch.int64), ends)).int().cuda()


def grouped_problems() -> list[Grouped]:
    layers = {
        "product": tuple(LAYERS),
        "silu": tuple(LAYERS)[:2],
        "gated": tuple(LAYERS)[2:4],
        "rows": tuple(LAYERS)[:4:2],
        "weights": tuple(LAYERS)[1:4:2],
    }
    return [
        Grouped(kind, x, spread) for kind in layers for x in layers[kind] for spread in ("even", "uneven")
    ]


# --- dual GEMM ---------------------------------------------------------------------------

DUAL: Mapping[str, str] = MappingProxyType(
    {
        "swiglu": "kernel k(x: {t}[T, D], w: {t}[F, D], u: {t}[F, D]) -> {t}[T, F] "
        "{{ return silu(dot[D](x, w)) * dot[D](x, u) }}",
        "geglu": "kernel k(x: {t}[T, D], w: {t}[F, D], u: {t}[F, D], a: {t}[F], b: {t}[F]) -> {t}[T, F] "
        "{{ return gelu(dot[D](x, w) + a) * (dot[D](x, u) + b) }}",
    }
)

DUAL_SHAPES = (
    (8192, 4096, 14336),
    (4096, 4096, 11008),
    (2048, 5120, 13824),
    (16384, 2048, 5632),
    (512, 4096, 14336),
    (64, 4096, 14336),
    (4096, 8192, 28672),
)
"""Rows, model width, gate's width."""


@dataclass(frozen=True, slots=True)
class Dual:
    kind: str
    dtype: str
    shape: tuple[int, int, int]

    @property
    def name(self) -> str:
        return f"dual {self.kind} {self.dtype} {'x'.join(map(str, self.shape))}"

    @property
    def text(self) -> str:
        return DUAL[self.kind].format(t=self.dtype)

    @property
    def sizes(self) -> dict[str, int]:
        return dict(zip("TDF", self.shape, strict=True))

    def eager(self, x: torch.Tensor, w: torch.Tensor, u: torch.Tensor, *biases: torch.Tensor) -> torch.Tensor:
        if self.kind == "swiglu":
            return F.silu(x @ w.t()) * (x @ u.t())
        return F.gelu(F.linear(x, w, biases[0])) * F.linear(x, u, biases[1])

    def measure(self, with_compile: bool, seed: int) -> Row:
        t, d, f = self.shape
        random = torch.Generator("cuda").manual_seed(1 + seed)

        def normal(*extents: int, scale: float = 1.0) -> torch.Tensor:
            empty = torch.empty(extents, dtype=DTYPES[self.dtype], device="cuda")
            return empty.normal_(0, scale, generator=random)

        args = [normal(t, d), normal(f, d, scale=d**-0.5), normal(f, d, scale=d**-0.5)]
        args += [normal(f), normal(f)] if self.kind == "geglu" else []
        kernel = ucutlass.loads(self.text)
        out = kernel(*args)
        expected = self.eager(*args)
        error = float((out.float() - expected.float()).norm() / expected.float().norm())
        both = torch.cat((args[1], args[2]))
        candidates: dict[str, Callable[[int], object]] = {
            "ours": lambda _: kernel(*args, out=out),
            "eager": lambda _: self.eager(*args),
            "one product": lambda _: args[0] @ both.t(),
        }
        if with_compile:
            fast = compiled(lambda: self.eager(*args))
            candidates["compile"] = lambda _: fast()
        times = compare(candidates, 1, rounds=7, window_us=4000.0)
        return measured(error, 4.0 * t * d * f, times, ("eager", "compile"))


def dual_problems() -> list[Dual]:
    swiglu = [Dual("swiglu", "bf16", shape) for shape in DUAL_SHAPES]
    return swiglu + [Dual("geglu", "f16", shape) for shape in DUAL_SHAPES[:3]]


# --- mixed-input and blockwise-scaled GEMM -----------------------------------------------

MIXED: Mapping[str, str] = MappingProxyType(
    {
        "int8 scale a column": "kernel k(x: bf16[M, K], w: s8[N, K], s: bf16[N]) -> bf16[M, N] "
        "{ return dot[K](x, bf16(w)) * s }",
        "int8 scales of 128": "kernel k(x: bf16[M, (G J=128)], w: s8[N, (G J)], s: f32[N, G]) -> bf16[M, N] "
        "{ return sum[G](dot[J](x, bf16(w)) * s) }",
        "int4 scale a column": "kernel k(x: bf16[M, K], w: s4[N, K], s: bf16[N]) -> bf16[M, N] "
        "{ return dot[K](x, bf16(w)) * s }",
        "int4 scales of 128": "kernel k(x: bf16[M, (G J=128)], w: s4[N, (G J)], s: f32[N, G]) -> bf16[M, N] "
        "{ return sum[G](dot[J](x, bf16(w)) * s) }",
        "fp8 weights": "kernel k(x: bf16[M, K], w: e4m3[N, K], s: bf16[N]) -> bf16[M, N] "
        "{ return dot[K](x, bf16(w)) * s }",
        "fp8 blocks": "kernel k(x: e4m3[M, (G J=128)], sx: f32[M, G], w: e4m3[(P Q=128), (G J)], sw: f32[P, G]) "
        "-> bf16[M, (P Q)] { return sum[G](dot[J](x, w) * sx * sw) }",
    }
)

MIXED_SHAPES = ((16, 14336, 4096), (128, 4096, 14336), (4096, 4096, 7168), (8192, 8192, 4096))
"""Rows, columns, K."""

FEW = 128
"""Rows up to which weights are rotated: they are what is moved then."""

BEYOND_L2 = 3e8
"""Bytes of all copies of the weights."""

FP8 = torch.float8_e4m3fn


@dataclass(frozen=True, slots=True)
class Weights:
    """One copy: as the kernel takes them, and widened."""

    stored: torch.Tensor
    wide: torch.Tensor


@dataclass(frozen=True, slots=True)
class Mixed:
    kind: str
    shape: tuple[int, int, int]

    @property
    def name(self) -> str:
        return f"mixed {self.kind} {'x'.join(map(str, self.shape))}"

    @property
    def text(self) -> str:
        return MIXED[self.kind]

    @property
    def sizes(self) -> dict[str, int]:
        m, n, k = self.shape
        if self.kind == "fp8 blocks":
            return {"M": m, "P": n // 128, "G": k // 128}
        return {"M": m, "N": n} | ({"G": k // 128} if "128" in self.kind else {"K": k})

    def measure(self, with_compile: bool, seed: int) -> Row:
        kind, (m, n, k) = self.kind, self.shape
        random = torch.Generator("cuda").manual_seed(1 + seed)
        blocks = kind == "fp8 blocks"
        x = torch.empty((m, k), device="cuda").normal_(generator=random).to(FP8 if blocks else torch.bfloat16)
        copies = math.ceil(BEYOND_L2 / (n * k / (2 if kind.startswith("int4") else 1))) if m <= FEW else 1
        by_group = (n // 128 if blocks else n, k // 128)
        s = torch.rand(by_group if "128" in kind or blocks else (n,), device="cuda", generator=random)
        s = s if "128" in kind or blocks else s.bfloat16()
        stored = [weights(kind, n, k, random) for _ in range(copies)]
        every = [Weights(w, widened(kind, w, s)) for w in stored]
        sx = torch.rand(m, k // 128, device="cuda", generator=random)
        wide_x = parts(x, sx) if blocks else x
        kernel = ucutlass.loads(self.text)

        def ours(i: int) -> Any:
            return kernel(x, sx, stored[i], s, out=out) if blocks else kernel(x, stored[i], s, out=out)

        out = torch.empty((m, n), device="cuda", dtype=torch.bfloat16)
        candidates: dict[str, Callable[[int], object]] = {
            "ours": ours,
            "bf16": lambda i: wide_x @ every[i].wide.t(),
        }
        candidates |= _of_torch(kind, x, sx, s, stored)
        ours(0)
        expected = wide_x.float() @ every[0].wide.float().t()
        error = float((out.float() - expected).norm() / expected.norm())
        if with_compile and not blocks:
            fast = compiled(lambda w: x @ widened(kind, w, s).t(), stored[0])
            candidates["compile"] = lambda i: fast(stored[i])
        times = compare(candidates, copies, rounds=7, window_us=3000.0)
        return measured(error, 2.0 * m * n * k, times)


def parts(x: torch.Tensor, scale: torch.Tensor, rows: int = 1) -> torch.Tensor:
    """Returns values times their scales: one for 128 neighbours along K, or one a row."""
    if scale.dim() == 1:
        return (x.float() * scale.float()[:, None]).bfloat16()
    return (x.float() * scale.repeat_interleave(rows, 0).repeat_interleave(128, 1)).bfloat16()


def widened(kind: str, stored: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    values = ucutlass.unpack_s4(stored) if kind.startswith("int4") else stored
    return parts(values, scale, 128 if kind == "fp8 blocks" else 1)


def weights(kind: str, n: int, k: int, random: torch.Generator) -> torch.Tensor:
    if kind.startswith("int4"):
        return torch.randint(0, 256, (n, k // 2), device="cuda", dtype=torch.uint8, generator=random)
    if kind.startswith("int8"):
        return torch.randint(-128, 128, (n, k), device="cuda", dtype=torch.int8, generator=random)
    return torch.empty((n, k), device="cuda").normal_(generator=random).to(FP8)


def _of_torch(
    kind: str, x: torch.Tensor, sx: torch.Tensor, s: torch.Tensor, stored: list[torch.Tensor]
) -> dict[str, Callable[[int], object]]:
    """Returns torch's own product of such weights, where it has one for them."""
    try:
        if kind == "fp8 blocks":
            sxt = sx.t().contiguous().t()

            def scaled(i: int) -> Any:
                return torch._scaled_mm(x, stored[i].t(), sxt, s.t(), out_dtype=torch.bfloat16)

            scaled(0)
            return {"scaled_mm": scaled}
        if kind == "int4 scales of 128":
            # Its own order of bytes and of tiles; zeros are offsets of 8 that it subtracts itself.
            packed = [torch._convert_weight_to_int4pack(w, 8) for w in stored]
            both = torch.stack((s.t(), torch.zeros_like(s.t())), -1).bfloat16().contiguous()

            def tinygemm(i: int) -> Any:
                return torch._weight_int4pack_mm(x, packed[i], 128, both)

            tinygemm(0)
            return {"tinygemm": tinygemm}
    except (RuntimeError, ValueError) as refusal:
        print(f"{kind}: {str(refusal)[:200]}")
    return {}


# --- the run -----------------------------------------------------------------------------

Problem: TypeAlias = Grouped | Dual | Mixed


def problems() -> list[Problem]:
    mixed = [Mixed(kind, shape) for kind in MIXED for shape in MIXED_SHAPES]
    return [*grouped_problems(), *dual_problems(), *mixed]


def measured(
    error: float, operations: float, times: Mapping[str, LaunchTiming], rivals: tuple[str, ...] = ()
) -> Row:
    """Returns a row. `rivals` are the candidates that count; without them all but ours."""
    ours = times["ours"].median
    others = [n for n in times if n != "ours" and (not rivals or n in rivals)]
    return {
        "error": error,
        "tflops": operations / ours * 1e-6,
        "over_best": min(times[n].median for n in others) / ours,
        **harness.summary_of(times),
    }


def row(item: Item) -> Row:
    (problem,) = (p for p in problems() if p.name == item["name"])
    times = problem.measure(item["compile"], item["seed"])
    if not times["error"] < MOST_ERROR:
        raise ArithmeticError(f"it errs by {times['error']:.2g}, at most {MOST_ERROR} is right")
    return {"schedule": item["schedule"]} | times


def main() -> None:
    options = campaign.parser_of(__doc__, compiles=True).parse_args()
    chosen = harness.selected(problems(), options, lambda p: p.name)
    cases = [Case(p.name, p.text, p.sizes) for p in chosen]
    campaign.report("benchmarks.grouped_gemm:row", cases, options, _line, _classes, row_seconds=ROW_SECONDS)


def _classes(rows: list[Row]) -> dict[str, dict[str, float]]:
    return bars.classed(rows, lambda r: r["over_best"], lambda r: str(r["name"]).split()[0])


def _line(r: Row) -> str:
    others = "  ".join(f"{name} {us:.1f}" for name, us in r["microseconds"].items() if name != "ours")
    return (
        f"{r['name']:42} {r['microseconds']['ours']:9.1f} us {r['tflops']:6.1f} TFLOP/s  over best "
        f"{r['over_best']:.3f}  ({others})  spread {r['spread']:.3f}  error {r['error']:.1e}  "
        f"{r['schedule'].removeprefix('WgmmaSchedule')}"
    )


if __name__ == "__main__":
    main()

"""Matrix products that a seed draws: their programs, and what each is compared with."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

import ucutlass

MOST_OPERATIONS = 6e11
"""Of a drawn problem."""

_PRODUCT = "kernel k(x: {t}[{b}{x}], w: {t}[{b}{w}]{more}) -> {r}[{b}M, N] {{ return {value} }}"


@dataclass(frozen=True, slots=True)
class Kind:
    """Products of one type. `elem` and `result` are stored, `item` is bytes of a stored element; `orders` are the
    contiguous modes of both operands; `epilogue` is one of EPILOGUES, where it has one."""

    elem: str
    result: str
    item: int
    orders: tuple[str, ...] = ("KK",)
    dot: str = "x, w"
    batched: bool = False
    epilogue: str = ""


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What is made of a product at once: further parameters, the result's expression in the product's, which is
    `{dot}`, and torch's of the operands."""

    params: str
    value: str
    eager: Callable[..., Tensor]


EPILOGUES: Mapping[str, Epilogue] = MappingProxyType(
    {
        "gelu": Epilogue(
            "bias: {t}[N]", "gelu({dot} + bias)", lambda x, w, bias: F.gelu(F.linear(x, w, bias))
        ),
        "residual": Epilogue(
            "r: {t}[M, N]", "relu({dot} + r)", lambda x, w, r: torch.relu(F.linear(x, w) + r)
        ),
        "gated": Epilogue(
            "u: {t}[N, K]", "silu({dot}) * {other}", lambda x, w, u: F.silu(F.linear(x, w)) * F.linear(x, u)
        ),
    }
)


_ORDERS = ("KK", "KN", "MK", "MN")

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "bf16": Kind("bf16", "bf16", 2, _ORDERS),
        "f16": Kind("f16", "f16", 2, _ORDERS),
        "f32": Kind("f32", "f32", 4, _ORDERS),
        "tf32": Kind("f32", "f32", 4, _ORDERS, "tf32(x), tf32(w)"),
        "fp8": Kind("e4m3", "bf16", 1),
        "batched": Kind("bf16", "bf16", 2, _ORDERS, batched=True),
        "bf16+gelu": Kind("bf16", "bf16", 2, epilogue="gelu"),
        "tf32+gelu": Kind("f32", "f32", 4, dot="tf32(x), tf32(w)", epilogue="gelu"),
        "bf16+residual": Kind("bf16", "bf16", 2, epilogue="residual"),
        "f16+gated": Kind("f16", "f16", 2, epilogue="gated"),
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
        more, value = "", f"dot[K]({kind.dot})"
        if kind.epilogue:
            epilogue = EPILOGUES[kind.epilogue]
            more = f", {epilogue.params.format(t=kind.elem)}"
            value = epilogue.value.format(dot=value, other=f"dot[K]({kind.dot.replace('w', 'u')})")
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


# --- torch's ------------------------------------------------------------------------------


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

    return lambda i: product(problem, *sets[i])


def product(problem: Problem, x: Tensor, w: Tensor, *more: Tensor) -> Tensor:
    """Returns torch's, of operands of one of KINDS other than fp8."""
    if epilogue := KINDS[problem.kind].epilogue:
        return EPILOGUES[epilogue].eager(x, w, *more)
    return torch.matmul(x if problem.order[0] == "K" else x.mT, w.mT if problem.order[1] == "K" else w)

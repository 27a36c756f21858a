"""Modules of core ATen operators, drawn step by step so that every step is legal for PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import nn

T = TypeVar("T")
Pick = Callable[[Sequence[Any]], Any]
"""Chooses one of several values, as a random number or a shrinking test does."""

MOST_ELEMENTS = 1500


@dataclass(eq=False)
class Step:
    """`apply(values, module)` appends what it gives to the values so far."""

    words: str
    apply: Callable[[list[torch.Tensor], DrawnModule], torch.Tensor]


@dataclass(eq=False)
class Plan:
    inputs: list[torch.Tensor]
    steps: list[Step] = field(default_factory=list)
    results: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        shapes = ", ".join(f"{tuple(x.shape)} {x.dtype}" for x in self.inputs)
        return f"inputs {shapes}\n" + "\n".join(s.words for s in self.steps) + f"\nresults {self.results}"


class DrawnModule(nn.Module):
    def __init__(self, plan: Plan, weights: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.plan = plan
        self.weights = nn.ParameterDict({k: nn.Parameter(v) for k, v in weights.items()})

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        values = [x, y]
        for step in self.plan.steps:
            values.append(step.apply(values, self))
        return tuple(values[i] for i in self.plan.results)


UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "silu": F.silu,
    "softplus": F.softplus,
    "mish": F.mish,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "elu": F.elu,
    "celu": lambda x: F.celu(x, 1.5),
    "leaky_relu": F.leaky_relu,
    "logsigmoid": F.logsigmoid,
    "abs": torch.abs,
    "neg": torch.neg,
    "exp": lambda x: torch.exp(x.clamp(max=3.0)),
    "sqrt": lambda x: torch.sqrt(x.abs() + 0.5),
    "rsqrt": lambda x: torch.rsqrt(x.abs() + 0.5),
    "reciprocal": lambda x: 1 / (x.abs() + 0.5),
    "log": lambda x: torch.log(x.abs() + 0.5),
    "square": torch.square,
    "sin": torch.sin,
    "clamp": lambda x: x.clamp(-0.5, 0.75),
    "relu6": F.relu6,
    "hardtanh": F.hardtanh,
    "floor": lambda x: torch.floor(x * 3),
    "add a number": lambda x: x + 1.5,
    "times a number": lambda x: x * -0.75,
    "softsign": F.softsign,
    "tanhshrink": F.tanhshrink,
    "threshold": lambda x: F.threshold(x, 0.1, 2.0),
    "pow 3": lambda x: x**3,
}

BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "div": lambda a, b: a / (b.abs() + 0.5),
    "where": lambda a, b: torch.where(a > b, a, b * 2),
    "masked_fill": lambda a, b: (a + b).masked_fill(b > 0, -1.0),
    "addcmul": lambda a, b: torch.addcmul(a, a, b, value=0.5),
    "mse_loss": lambda a, b: F.mse_loss(*torch.broadcast_tensors(a, b), reduction="none"),
    "smooth_l1": lambda a, b: F.smooth_l1_loss(*torch.broadcast_tensors(a, b), reduction="none"),
}


def broadcasts(a: torch.Tensor, b: torch.Tensor) -> bool:
    try:
        shape = torch.broadcast_shapes(a.shape, b.shape)
    except RuntimeError:
        return False
    return math.prod(shape) <= MOST_ELEMENTS


def factors(n: int, pick: Pick) -> list[int]:
    """Returns a random factorisation of n."""
    shape: list[int] = []
    while n > 1 and len(shape) < 4:
        divisors = [d for d in range(1, n + 1) if n % d == 0]
        d = pick(divisors)
        shape.append(d)
        n //= d
    return [*shape, n] if n > 1 or not shape else shape


def draw(pick: Pick, steps: int) -> tuple[Plan, dict[str, torch.Tensor]]:
    """Returns a plan and its weights."""
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    sizes = [1, 2, 3, 4, 6]
    x = normal(*(pick(sizes) for _ in range(pick([1, 2, 3, 4]))))
    y = normal(*x.shape) if pick([True, False]) else normal(*(pick(sizes) for _ in range(pick([1, 2, 3, 4]))))
    plan = Plan([x, y])
    weights: dict[str, torch.Tensor] = {}
    values: list[torch.Tensor] = [x, y]

    def weight(*shape: int) -> str:
        name = f"w{len(weights)}"
        weights[name] = normal(*shape)
        return name

    for _ in range(steps):
        step = one_step(pick, values, weight)
        if step is None:
            continue
        module = DrawnModule(plan, weights)
        with torch.no_grad():
            value = step.apply(values, module)
        if value.numel() == 0 or value.numel() > MOST_ELEMENTS or value.dim() > 6:
            continue
        plan.steps.append(step)
        values.append(value)
    last = len(values) - 1
    plan.results = [last]
    if last > 2 and pick([False, False, True]):
        plan.results.append(pick(range(2, last)))
    return plan, weights


def one_step(pick: Pick, values: list[torch.Tensor], weight: Callable[..., str]) -> Step | None:
    recent = list(range(len(values)))[-3:]
    i = pick(recent)
    v = values[i]
    kind = pick(sorted(KINDS))
    return KINDS[kind](pick, values, i, v, weight)


def _unary(pick: Pick, values: list[torch.Tensor], i: int, v: torch.Tensor, weight: Any) -> Step:
    name = pick(sorted(UNARY))
    return Step(f"{name}({i})", lambda vs, m: UNARY[name](vs[i]))


def _binary(pick: Pick, values: list[torch.Tensor], i: int, v: torch.Tensor, weight: Any) -> Step | None:
    others = [j for j, o in enumerate(values) if broadcasts(v, o)]
    j = pick(others)
    name = pick(sorted(BINARY))
    return Step(f"{name}({i}, {j})", lambda vs, m: BINARY[name](vs[i], vs[j]))


def _dims(pick: Pick, v: torch.Tensor) -> list[int]:
    if not v.dim():
        return []
    first = pick(range(v.dim()))
    return [first] if pick([True, False]) else sorted({first, pick(range(v.dim()))})


def _reduction(pick: Pick, values: list[torch.Tensor], i: int, v: torch.Tensor, weight: Any) -> Step | None:
    dims, keep = _dims(pick, v), pick([True, False])
    if not dims:
        return None
    table: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "sum": lambda t: t.sum(dims, keepdim=keep),
        "mean": lambda t: t.mean(dims, keepdim=keep),
        "amax": lambda t: t.amax(dims, keepdim=keep),
        "amin": lambda t: t.amin(dims, keepdim=keep),
        "var": lambda t: t.var(dims, correction=0, keepdim=keep),
        "logsumexp": lambda t: t.logsumexp(dims, keepdim=keep),
        "norm": lambda t: torch.linalg.vector_norm(t, dim=dims, keepdim=keep),
        "norm1": lambda t: torch.linalg.vector_norm(t, ord=1, dim=dims, keepdim=keep),
        "prod": lambda t: t.prod(dims[0], keepdim=keep),
        "max values": lambda t: t.max(dims[0], keepdim=keep)[0],
        "any": lambda t: (t > 0).any(dims[0], keepdim=keep).to(t.dtype) + 1,
        "argmax": lambda t: t.argmax(dims[0], keepdim=keep).to(t.dtype) * 0.5,
    }
    name = pick(sorted(table))
    return Step(f"{name}({i}, {dims}, {keep})", lambda vs, m: table[name](vs[i]))


def _along(pick: Pick, values: list[torch.Tensor], i: int, v: torch.Tensor, weight: Any) -> Step | None:
    if not v.dim():
        return None
    d = pick(range(v.dim()))
    n = v.shape[d]
    shift = pick(range(-n, n + 1))
    start = pick(range(n))
    stop = pick(range(start + 1, n + 1))
    step = pick([1, 1, 2])
    place = pick(range(n))
    count = pick([2, 3])
    ids = [pick(range(n)) for _ in range(pick([1, 2, 4]))]
    before, after = pick([0, 1, 2]), pick([0, 1])
    value = pick([0.0, 0.0, 1.5])
    rest = [0, 0] * (v.dim() - 1 - d)
    table: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        f"softmax({i}, {d})": lambda t: t.softmax(d),
        f"log_softmax({i}, {d})": lambda t: t.log_softmax(d),
        f"cumsum({i}, {d})": lambda t: t.cumsum(d),
        f"flip({i}, {d})": lambda t: t.flip(d),
        f"roll({i}, {shift}, {d})": lambda t: t.roll(shift, d),
        f"slice({i}, {d}, {start}:{stop}:{step})": lambda t: t.movedim(d, 0)[start:stop:step].movedim(0, d),
        f"select({i}, {d}, {place})": lambda t: t.select(d, place),
        f"repeat_interleave({i}, {count}, {d})": lambda t: t.repeat_interleave(count, d),
        f"repeat({i}, {count}, {d})": lambda t: t.repeat(*(count if k == d else 1 for k in range(t.dim()))),
        f"index_select({i}, {d}, {ids})": lambda t: t.index_select(d, torch.tensor(ids)),
        f"pad({i}, {d}, {before}, {after}, {value})": lambda t: F.pad(t, [*rest, before, after], value=value),
        f"unsqueeze({i}, {d})": lambda t: t.unsqueeze(d),
        f"squeeze({i}, {d})": lambda t: t.squeeze(d),
        f"chunk({i}, {d})": lambda t: t.chunk(2, d)[-1],
        f"narrow({i}, {d}, {start}, {stop})": lambda t: t.narrow(d, start, stop - start),
        f"unfold({i}, {d})": lambda t: t.unfold(d, min(2, n), 1),
        f"shifted({i}, {d})": lambda t: torch.cat([t.narrow(d, 0, 1), t], d),
        f"glu({i}, {d})": lambda t: F.glu(torch.cat([t, t * 2], d), d),
    }
    words = pick(sorted(table))
    return Step(words, lambda vs, m: table[words](vs[i]))


def _view(pick: Pick, values: list[torch.Tensor], i: int, v: torch.Tensor, weight: Any) -> Step | None:
    shape = factors(v.numel(), pick)
    order = list(range(v.dim()))
    for k in range(len(order) - 1):
        j = pick(range(k, len(order)))
        order[k], order[j] = order[j], order[k]
    count = pick([2, 3])
    table: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        f"reshape({i}, {shape})": lambda t: t.reshape(shape),
        f"permute({i}, {order})": lambda t: t.permute(order),
        f"flatten({i})": lambda t: t.flatten(),
        f"expand({i}, {count})": lambda t: t.unsqueeze(0).expand(count, *t.shape),
    }
    words = pick(sorted(table))
    return Step(words, lambda vs, m: table[words](vs[i]))


def _joined(pick: Pick, values: list[torch.Tensor], i: int, v: torch.Tensor, weight: Any) -> Step | None:
    same = [j for j, o in enumerate(values) if o.shape == v.shape]
    j = pick(same)
    if not v.dim():
        return Step(f"stack({i}, {j})", lambda vs, m: torch.stack([vs[i], vs[j]]))
    d = pick(range(v.dim()))
    if pick([True, False]):
        return Step(f"cat({i}, {j}, {d})", lambda vs, m: torch.cat([vs[i], vs[j]], d))
    return Step(f"stack({i}, {j}, {d})", lambda vs, m: torch.stack([vs[i], vs[j]], d))


def _matrix(pick: Pick, values: list[torch.Tensor], i: int, v: torch.Tensor, weight: Any) -> Step | None:
    if v.dim() < 1 or v.shape[-1] < 1:
        return None
    out = pick([1, 2, 3, 5])
    kind = pick(["linear", "matmul", "transposed product", "einsum", "attention", "tril", "triu"])
    if kind == "linear":
        w, b = weight(out, v.shape[-1]), weight(out)
        return Step(f"linear({i}, {out})", lambda vs, m: F.linear(vs[i], m.weights[w], m.weights[b]))
    if v.dim() < 2:
        return None
    if kind == "tril":
        return Step(f"tril({i})", lambda vs, m: vs[i].tril())
    if kind == "triu":
        return Step(f"triu({i})", lambda vs, m: vs[i].triu(1))
    if kind == "matmul":
        w = weight(v.shape[-1], out)
        return Step(f"matmul({i}, {out})", lambda vs, m: vs[i] @ m.weights[w])
    if kind == "transposed product":
        return Step(f"product({i})", lambda vs, m: vs[i] @ vs[i].transpose(-1, -2))
    if kind == "einsum" and v.dim() == 3:
        w = weight(v.shape[1], out)
        return Step(f"einsum({i})", lambda vs, m: torch.einsum("abc,bd->adc", vs[i], m.weights[w]))
    if kind == "attention" and v.dim() in (3, 4):
        causal = pick([True, False])
        return Step(
            f"attention({i}, {causal})",
            lambda vs, m: F.scaled_dot_product_attention(vs[i], vs[i] * 0.5, vs[i] + 1, is_causal=causal),
        )
    return None


def _spatial(pick: Pick, values: list[torch.Tensor], i: int, v: torch.Tensor, weight: Any) -> Step | None:
    if v.dim() not in (3, 4):
        return None
    n = v.dim() - 2
    channels, size = v.shape[1], min(v.shape[2:])
    width = pick([k for k in (1, 2, 3) if k <= size + 2])
    stride, padding, out = pick([1, 2]), pick([0, 1]), pick([1, 2, 4])
    groups = pick([g for g in (1, 2, 3) if channels % g == 0])
    dilation = pick([1, 1, 2])
    kind = pick(
        [
            "conv",
            "transposed",
            "max_pool",
            "avg_pool",
            "mean_pool",
            "batch_norm",
            "group_norm",
            "instance_norm",
        ]
    )
    wide = [s + 2 * padding - dilation * (width - 1) - 1 for s in v.shape[2:]]
    if kind == "conv" and min(wide) >= 0:
        w, b = weight(out * groups, channels // groups, *[width] * n), weight(out * groups)
        conv = F.conv1d if n == 1 else F.conv2d
        return Step(
            f"conv({i}, {out}, {width}, {stride}, {padding}, {groups}, {dilation})",
            lambda vs, m: conv(vs[i], m.weights[w], m.weights[b], stride, padding, dilation, groups),
        )
    if kind == "transposed":
        w = weight(channels, out, *[width] * n)
        transposed: Any = F.conv_transpose1d if n == 1 else F.conv_transpose2d
        short = min(padding, (width - 1) // 2)
        return Step(
            f"transposed({i}, {out}, {width}, {stride}, {short}, {groups})",
            lambda vs, m: transposed(vs[i], m.weights[w], None, stride, short, 0, groups),
        )
    pad = min(padding, width // 2)
    if kind == "max_pool" and width <= size:
        pool = F.max_pool1d if n == 1 else F.max_pool2d
        return Step(f"max_pool({i}, {width}, {stride}, {pad})", lambda vs, m: pool(vs[i], width, stride, pad))
    if kind == "avg_pool" and width <= size:
        average: Any = F.avg_pool1d if n == 1 else F.avg_pool2d
        ceil, count = pick([True, False]), pick([True, False])
        return Step(
            f"avg_pool({i}, {width}, {stride}, {pad}, {ceil}, {count})",
            lambda vs, m: average(vs[i], width, stride, pad, ceil, count),
        )
    if kind == "mean_pool":
        adaptive: Any = F.adaptive_avg_pool1d if n == 1 else F.adaptive_avg_pool2d
        return Step(f"mean_pool({i})", lambda vs, m: adaptive(vs[i], 1))
    if kind == "batch_norm" and v.numel() > channels:
        w, b = weight(channels), weight(channels)
        return Step(
            f"batch_norm({i})",
            lambda vs, m: F.batch_norm(vs[i], None, None, m.weights[w], m.weights[b], True),
        )
    if kind == "group_norm" and v.numel() > channels * v.shape[0]:
        w, b = weight(channels), weight(channels)
        return Step(
            f"group_norm({i}, {groups})",
            lambda vs, m: F.group_norm(vs[i], groups, m.weights[w], m.weights[b], 0.1),
        )
    if kind == "instance_norm" and size > 1:
        return Step(f"instance_norm({i})", lambda vs, m: F.instance_norm(vs[i], eps=0.1))
    return None


def _norm(pick: Pick, values: list[torch.Tensor], i: int, v: torch.Tensor, weight: Any) -> Step | None:
    if not v.dim() or v.shape[-1] < 2:
        return None
    shape = v.shape[-1:]
    w, b = weight(*shape), weight(*shape)
    if pick([True, False]):
        return Step(
            f"layer_norm({i})", lambda vs, m: F.layer_norm(vs[i], shape, m.weights[w], m.weights[b], 0.1)
        )
    return Step(f"rms_norm({i})", lambda vs, m: F.rms_norm(vs[i], shape, m.weights[w], 0.1))


KINDS: dict[str, Callable[[Pick, list[torch.Tensor], int, torch.Tensor, Any], Step | None]] = {
    "unary": _unary,
    "binary": _binary,
    "binary again": _binary,
    "reduction": _reduction,
    "along": _along,
    "along again": _along,
    "view": _view,
    "view again": _view,
    "joined": _joined,
    "matrix": _matrix,
    "spatial": _spatial,
    "norm": _norm,
}

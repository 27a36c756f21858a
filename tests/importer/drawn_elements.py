"""Element-wise steps: functions, comparisons, casts, integers, bools, losses without a reduction."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F

from tests.importer.drawn_modules import Apply, Draft, Maker, Step, chosen

UNARY: Mapping[str, Apply] = {
    "abs": torch.abs,
    "add a number": lambda x: x + 1.5,
    "ceil": lambda x: torch.ceil(x * 3),
    "celu": lambda x: F.celu(x, 1.5),
    "clamp": lambda x: x.clamp(-0.5, 0.75),
    "clamp above": lambda x: x.clamp(max=0.25),
    "clamp below": lambda x: x.clamp(min=-0.25),
    "cos": torch.cos,
    "elu": lambda x: F.elu(x, 1.25),
    "erf": torch.erf,
    "erfc": torch.erfc,
    "exp": lambda x: torch.exp(x.clamp(max=3.0)),
    "exp2": lambda x: torch.exp2(x.clamp(max=3.0)),
    "expm1": lambda x: torch.expm1(x.clamp(max=3.0)),
    "floor": lambda x: torch.floor(x * 3),
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "hardshrink": lambda x: F.hardshrink(x, 0.4),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "hardtanh": F.hardtanh,
    "hardtanh of bounds": lambda x: F.hardtanh(x, -0.25, 2.0),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "lerp": lambda x: torch.lerp(x, x * x, 0.25),
    "log": lambda x: torch.log(x.abs() + 0.5),
    "log10": lambda x: torch.log10(x.abs() + 0.5),
    "log1p": lambda x: torch.log1p(x.abs()),
    "log2": lambda x: torch.log2(x.abs() + 0.5),
    "logit": lambda x: torch.logit(torch.sigmoid(x) * 0.5 + 0.25),
    "logsigmoid": F.logsigmoid,
    "mish": F.mish,
    "neg": torch.neg,
    "number minus": lambda x: 2.5 - x,
    "pow 3": lambda x: x**3,
    "pow 1.5": lambda x: (x.abs() + 0.1) ** 1.5,
    "pow of a number": lambda x: 1.5 ** x.clamp(max=3.0),
    "reciprocal": lambda x: 1 / (x.abs() + 0.5),
    "relu": F.relu,
    "relu6": F.relu6,
    "round": lambda x: torch.round(x * 3),
    "rsqrt": lambda x: torch.rsqrt(x.abs() + 0.5),
    "selu": F.selu,
    "sigmoid": torch.sigmoid,
    "sign": torch.sign,
    "silu": F.silu,
    "sin": torch.sin,
    "softplus": F.softplus,
    "softplus of bounds": lambda x: F.softplus(x, 2.0, 1.0),
    "softshrink": lambda x: F.softshrink(x, 0.4),
    "softsign": F.softsign,
    "sqrt": lambda x: torch.sqrt(x.abs() + 0.5),
    "square": torch.square,
    "tan": lambda x: torch.tan(x.clamp(-1, 1)),
    "tanh": torch.tanh,
    "tanhshrink": F.tanhshrink,
    "threshold": lambda x: F.threshold(x, 0.1, 2.0),
    "times a number": lambda x: x * -0.75,
    "trunc": lambda x: torch.trunc(x * 3),
    "remainder": lambda x: torch.remainder(x, 1.3),
    "fmod": lambda x: torch.fmod(x, 1.3),
    "floor_divide": lambda x: x // 0.7,
    "divide towards 0": lambda x: torch.div(x, 0.7, rounding_mode="trunc"),
    "nan_to_num": torch.nan_to_num,
    "sinh": lambda x: torch.sinh(x.clamp(-2, 2)),
    "atan": torch.atan,
    "frac": torch.frac,
    "dropout of nothing": lambda x: F.dropout(x, 0.5, training=False),
    "masked by itself": lambda x: x.masked_fill(x > 0.2, -1.0),
    "to bf16": lambda x: x.to(torch.bfloat16).to(x.dtype),
}

BINARY: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "add of a multiple": lambda a, b: torch.add(a, b, alpha=0.5),
    "sub": torch.sub,
    "mul": torch.mul,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "div": lambda a, b: a / (b.abs() + 0.5),
    "pow": lambda a, b: (a.abs() + 0.1) ** b.clamp(-2, 2),
    "atan2": lambda a, b: torch.atan2(a, b.abs() + 0.5),
    "hypot": torch.hypot,
    "where": lambda a, b: torch.where(a > b, a, b * 2),
    "where a number": lambda a, b: torch.where(a + b > 0, a + b, -1.0),
    "masked_fill": lambda a, b: (a + b).masked_fill(b > 0, -1.0),
    "addcmul": lambda a, b: torch.addcmul(a, a, b, value=0.5),
    "addcdiv": lambda a, b: torch.addcdiv(a, a, b.abs() + 0.5, value=0.5),
    "lerp of a tensor": lambda a, b: torch.lerp(a, a * 2, torch.sigmoid(b)),
    "xlogy": lambda a, b: torch.xlogy(a, b.abs() + 0.5),
    "clamp by tensors": lambda a, b: torch.clamp(a, b - 0.5, b + 0.5),
    "prelu": lambda a, b: torch.where(a > 0, a, b * a),
    "mse_loss": lambda a, b: F.mse_loss(*torch.broadcast_tensors(a, b), reduction="none"),
    "l1_loss": lambda a, b: F.l1_loss(*torch.broadcast_tensors(a, b), reduction="sum"),
    "huber_loss": lambda a, b: F.huber_loss(*torch.broadcast_tensors(a, b), delta=0.7),
    "smooth_l1_loss": lambda a, b: F.smooth_l1_loss(
        *torch.broadcast_tensors(a, b), reduction="none", beta=0.6
    ),
    "bce_loss": lambda a, b: (
        F.binary_cross_entropy(
            torch.sigmoid(a) * 0.9 + 0.05, torch.sigmoid(b.expand(a.shape) if a.dim() >= b.dim() else a)
        )
        if torch.broadcast_shapes(a.shape, b.shape) == a.shape
        else a + b
    ),
    "bce_with_logits": lambda a, b: F.binary_cross_entropy_with_logits(
        *(t.clone() for t in torch.broadcast_tensors(a, torch.sigmoid(b)))
    ),
    "soft_margin_loss": lambda a, b: F.soft_margin_loss(*torch.broadcast_tensors(a, torch.sign(b))),
    "kl_div": lambda a, b: F.kl_div(*torch.broadcast_tensors(a, torch.sigmoid(b)), reduction="sum"),
    "kl_div of logs": lambda a, b: F.kl_div(
        *torch.broadcast_tensors(a, F.logsigmoid(b)), reduction="batchmean", log_target=True
    ),
    "poisson_nll_loss": lambda a, b: F.poisson_nll_loss(
        *(t.clone() for t in torch.broadcast_tensors(a.clamp(max=3), b.abs()))
    ),
    "cosine_similarity": lambda a, b: (
        F.cosine_similarity(*torch.broadcast_tensors(a, b), dim=-1, eps=0.1)
        if max(a.dim(), b.dim())
        else a + b
    ),
    "hinge": lambda a, b: torch.mean(torch.clamp(1 - a * torch.sign(b), min=0)),
}

COMPARISONS: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "eq": lambda a, b: torch.floor(a) == torch.floor(b),
    "ne": lambda a, b: torch.floor(a) != torch.floor(b),
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "logical_and of numbers": torch.logical_and,
    "logical_or of numbers": torch.logical_or,
    "logical_xor of numbers": torch.logical_xor,
}

TESTS: Mapping[str, Apply] = {
    "greater than a number": lambda x: x > 0.1,
    "equal to a number": lambda x: torch.floor(x) == 0,
    "isnan": lambda x: torch.isnan(torch.log(x)),
    "isfinite": lambda x: torch.isfinite(x),
    "logical_not of numbers": torch.logical_not,
    "to int64": lambda x: (x.clamp(-9, 9) * 2).to(torch.int64),
    "to int32": lambda x: (x.clamp(-9, 9) * 2).to(torch.int32),
    "to bool": lambda x: x.to(torch.bool),
    "to int8": lambda x: (x.clamp(-9, 9) * 2).to(torch.int8),
}

BOOLS: Mapping[str, Apply] = {
    "not": lambda x: ~x,
    "logical_not": torch.logical_not,
    "bool to float": lambda x: x.float(),
    "where of a bool": lambda x: torch.where(x, 1.5, -0.5),
    "bool to int": lambda x: x.to(torch.int64),
    "bool times number": lambda x: x * 2.5,
    "any of all": lambda x: x.any(),
    "all of all": lambda x: x.all(),
    "sum of bools": lambda x: x.sum(),
    "cumsum of bools": lambda x: x.long().cumsum(-1) if x.dim() else x.long(),
    "masked zeros": lambda x: torch.zeros_like(x, dtype=torch.float32).masked_fill(x, -2.0),
}

INTEGERS: Mapping[str, Apply] = {
    "int add": lambda x: x + 3,
    "int mul": lambda x: x * -2,
    "int floor_divide": lambda x: x // 2,
    "int remainder": lambda x: x % 3,
    "int divide towards 0": lambda x: torch.div(x, 2, rounding_mode="trunc"),
    "int fmod": lambda x: torch.fmod(x, 3),
    "int true divide": lambda x: x / 4,
    "int abs": torch.abs,
    "int sign": torch.sign,
    "int clamp": lambda x: x.clamp(0, 2),
    "int to float": lambda x: x.float() * 0.5,
    "int to bool": lambda x: x.to(torch.bool),
    "int compare": lambda x: x > 0,
    "int equal": lambda x: x == 1,
    "int square": lambda x: x**2,
    "int and": lambda x: x & 3,
    "int sum": lambda x: x.sum(),
    "int max": lambda x: x.max(),
    "one_hot": lambda x: F.one_hot(x.long() % 4, 4),
    "int float function": lambda x: torch.sigmoid(x),
}


def _unary(d: Draft, i: int) -> Step:
    return chosen(d, i, UNARY)


def _test(d: Draft, i: int) -> Step:
    return chosen(d, i, TESTS)


def _two(d: Draft, i: int, table: Mapping[str, Callable[..., torch.Tensor]]) -> Step | None:
    v = d.values[i]
    j = d.pick(d.others(lambda o: o.is_floating_point() and d.broadcasts(v, o)))
    name = d.pick(sorted(table))
    return Step(name, (i, j), (), lambda vs, m: table[name](vs[i], vs[j]))


def _binary(d: Draft, i: int) -> Step | None:
    return _two(d, i, BINARY)


def _comparison(d: Draft, i: int) -> Step | None:
    return _two(d, i, COMPARISONS)


def _masked(d: Draft, i: int) -> Step | None:
    """A value with a bool or a whole number among the values so far."""
    v = d.values[i]
    others = d.others(lambda o: not o.is_floating_point() and d.broadcasts(v, o))
    if not others:
        return None
    j = d.pick(others)
    if d.values[j].dtype is not torch.bool:
        table = {
            "float plus int": torch.add,
            "float times int": torch.mul,
            "float minus int": torch.sub,
            "float greater int": torch.gt,
        }
        name = d.pick(sorted(table))
        return Step(name, (i, j), (), lambda vs, m: table[name](vs[i], vs[j]))
    masks: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "where by a mask": lambda x, m: torch.where(m, x, -x),
        "where by a mask or a number": lambda x, m: torch.where(m, x, 0.5),
        "masked_fill by a mask": lambda x, m: (x * torch.ones_like(m, dtype=x.dtype)).masked_fill(m, 7.0),
        "mul by a mask": torch.mul,
        "float plus bool": torch.add,
    }
    name = d.pick(sorted(masks))
    return Step(name, (i, j), (), lambda vs, m: masks[name](vs[i], vs[j]))


def _prelu(d: Draft, i: int) -> Step | None:
    v = d.values[i]
    if v.dim() < 2:
        return None
    w = d.state.weight(d.pick([1, v.shape[1]]))
    return Step("prelu by channel", (i,), (), lambda vs, m: F.prelu(vs[i], m.weights[w]))


def _other_unary(d: Draft, i: int) -> Step:
    return chosen(d, i, BOOLS if d.values[i].dtype is torch.bool else INTEGERS)


def _other_binary(d: Draft, i: int) -> Step | None:
    v = d.values[i]
    j = d.pick(d.others(lambda o: o.dtype is v.dtype and d.broadcasts(v, o)))
    bools: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "and": torch.bitwise_and,
        "or": torch.bitwise_or,
        "xor": torch.bitwise_xor,
        "logical_and": torch.logical_and,
        "logical_or": torch.logical_or,
        "eq of bools": torch.eq,
        "ne of bools": torch.ne,
        "mul of bools": torch.mul,
        "where of bools": lambda a, b: torch.where(a, b, ~b),
    }
    integers: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "int plus int": torch.add,
        "int minus int": torch.sub,
        "int times int": torch.mul,
        "int maximum": torch.maximum,
        "int minimum": torch.minimum,
        "int eq int": torch.eq,
        "int lt int": torch.lt,
        "int where": lambda a, b: torch.where(a > b, a, b + 1),
    }
    table = bools if v.dtype is torch.bool else integers
    name = d.pick(sorted(table))
    return Step(name, (i, j), (), lambda vs, m: table[name](vs[i], vs[j]))


FLOATS: Mapping[str, Maker] = {
    "unary": _unary,
    "unary again": _unary,
    "binary": _binary,
    "binary again": _binary,
    "test": _test,
    "comparison": _comparison,
    "masked": _masked,
    "masked again": _masked,
    "prelu": _prelu,
}
OTHERS: Mapping[str, Maker] = {
    "other unary": _other_unary,
    "other unary again": _other_unary,
    "other binary": _other_binary,
}

"""Steps that reduce, scan or normalise."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F

from tests.importer.drawn_modules import Apply, Draft, Maker, Step, chosen


def _dims(d: Draft, v: torch.Tensor) -> list[int]:
    first = d.pick(range(v.dim()))
    return [first] if d.pick([True, False]) else sorted({first, d.pick(range(v.dim()))})


def _reduction(d: Draft, i: int) -> Step | None:
    v = d.values[i]
    if not v.dim():
        return None
    dims, keep = _dims(d, v), d.pick([True, False])
    several = math.prod(v.shape[k] for k in dims) > 1
    table: dict[str, Apply] = {
        "sum": lambda t: t.sum(dims, keepdim=keep),
        "mean": lambda t: t.mean(dims, keepdim=keep),
        "amax": lambda t: t.amax(dims, keepdim=keep),
        "amin": lambda t: t.amin(dims, keepdim=keep),
        "var": lambda t: t.var(dims, correction=0, keepdim=keep),
        "logsumexp": lambda t: t.logsumexp(dims, keepdim=keep),
        "norm 2": lambda t: torch.linalg.vector_norm(t, dim=dims, keepdim=keep),
        "norm 1": lambda t: torch.linalg.vector_norm(t, ord=1, dim=dims, keepdim=keep),
        "norm inf": lambda t: torch.linalg.vector_norm(t, ord=math.inf, dim=dims, keepdim=keep),
        "norm 3": lambda t: torch.linalg.vector_norm(t, ord=3, dim=dims, keepdim=keep),
        "prod": lambda t: t.prod(dims[0], keepdim=keep),
        "max values": lambda t: t.max(dims[0], keepdim=keep)[0],
        "max positions": lambda t: t.max(dims[0], keepdim=keep)[1],
        "min values": lambda t: t.min(dims[0], keepdim=keep)[0],
        "any": lambda t: (t > 0).any(dims[0], keepdim=keep),
        "all": lambda t: (t > 0).all(dims[0], keepdim=keep),
        "argmax": lambda t: t.argmax(dims[0], keepdim=keep),
        "argmin": lambda t: t.argmin(dims[0], keepdim=keep),
        "argmax of all": lambda t: t.argmax(),
        "sum of all": torch.sum,
        "mean of all": torch.mean,
        "max of all": torch.max,
        "norm of all": torch.linalg.vector_norm,
        "count_nonzero": lambda t: (t > 0).sum(dims),
        "normalize": lambda t: F.normalize(t, dim=dims[0], eps=0.1),
    }
    if several:
        table["var unbiased"] = lambda t: t.var(dims, keepdim=keep)
        table["std"] = lambda t: t.std(dims, keepdim=keep)
        table["var_mean"] = lambda t: sum(torch.var_mean(t, dims, keepdim=keep))
    return chosen(d, i, table, dims, keep)


def _scan(d: Draft, i: int) -> Step | None:
    v = d.values[i]
    if not v.dim():
        return None
    axis = d.pick(range(v.dim()))
    table: dict[str, Apply] = {
        "softmax": lambda t: t.softmax(axis),
        "log_softmax": lambda t: t.log_softmax(axis),
        "softmin": lambda t: F.softmin(t, axis),
        "cumsum": lambda t: t.cumsum(axis),
        "cumprod": lambda t: t.cumprod(axis),
        "cumsum reversed": lambda t: t.flip(axis).cumsum(axis).flip(axis),
        "glu": lambda t: F.glu(torch.cat([t, t * 2], axis), axis),
        "diff": lambda t: torch.diff(t, dim=axis) if t.shape[axis] > 1 else t,
        "logcumsumexp": lambda t: t.clamp(-3, 3).exp().cumsum(axis).log(),
    }
    return chosen(d, i, table, axis)


def _norm(d: Draft, i: int) -> Step | None:
    v, pick = d.values[i], d.pick
    if not v.dim() or v.shape[-1] < 2:
        return None
    count = pick([1, 1, 2]) if v.dim() > 1 else 1
    shape = v.shape[-count:]
    if pick([True, False, False]):
        bare: dict[str, Apply] = {
            "layer_norm without weights": lambda t: F.layer_norm(t, shape, eps=0.1),
            "rms_norm without weights": lambda t: F.rms_norm(t, shape, eps=0.1),
        }
        return chosen(d, i, bare, tuple(shape))
    w, b = d.state.weight(*shape), d.state.weight(*shape)
    if pick([True, False]):
        return Step(
            "layer_norm",
            (i,),
            (tuple(shape),),
            lambda vs, m: F.layer_norm(vs[i], shape, m.weights[w], m.weights[b], 0.1),
        )
    return Step("rms_norm", (i,), (tuple(shape),), lambda vs, m: F.rms_norm(vs[i], shape, m.weights[w], 0.1))


def _channel_norm(d: Draft, i: int) -> Step | None:
    v, pick = d.values[i], d.pick
    if v.dim() < 2 or v.dim() > 4:
        return None
    channels = v.shape[1]
    groups = pick([g for g in (1, 2, 3) if channels % g == 0])
    inside = v.numel() // v.shape[0] // channels
    w, b = d.state.weight(channels), d.state.weight(channels)
    mean, var = d.state.buffer(channels), d.state.buffer(channels)
    table = {
        "batch_norm eval": lambda vs, m: F.batch_norm(
            vs[i], getattr(m, mean), getattr(m, var), m.weights[w], m.weights[b], False, 0.1, 0.1
        )
    }
    if v.numel() > channels:
        table["batch_norm train"] = lambda vs, m: F.batch_norm(
            vs[i], getattr(m, mean), getattr(m, var), m.weights[w], m.weights[b], True, 0.2, 0.1
        )
        table["batch_norm of the batch"] = lambda vs, m: F.batch_norm(
            vs[i], None, None, m.weights[w], None, True, 0.1, 0.1
        )
    if inside * channels // groups > 1:
        table["group_norm"] = lambda vs, m: F.group_norm(vs[i], groups, m.weights[w], m.weights[b], 0.1)
        table["group_norm without weights"] = lambda vs, m: F.group_norm(vs[i], groups, eps=0.1)
    if inside > 1 and v.dim() > 2:
        table["instance_norm"] = lambda vs, m: F.instance_norm(vs[i], eps=0.1)
        table["instance_norm with weights"] = lambda vs, m: F.instance_norm(
            vs[i], None, None, m.weights[w], m.weights[b], eps=0.1
        )
    if v.dim() in (3, 4):
        table["local_response_norm"] = lambda vs, m: F.local_response_norm(vs[i], 2)
    name = pick(sorted(table))
    return Step(name, (i,), (groups,), table[name])


def _classes(d: Draft, i: int) -> Step | None:
    """Losses of class numbers along axis 1."""
    v, pick = d.values[i], d.pick
    if v.dim() < 2 or v.dim() > 4 or v.shape[1] < 2:
        return None
    shape = (v.shape[0], *v.shape[2:])
    target = torch.arange(math.prod(shape)).reshape(shape) * 3 % v.shape[1]
    w = d.state.buffer(v.shape[1])
    reduction = pick(["none", "mean", "sum"])
    table = {
        "cross_entropy": lambda vs, m: F.cross_entropy(vs[i], target, reduction=reduction),
        "cross_entropy smoothed": lambda vs, m: F.cross_entropy(
            vs[i], target, reduction=reduction, label_smoothing=0.1
        ),
        "cross_entropy weighted": lambda vs, m: F.cross_entropy(
            vs[i], target, getattr(m, w), reduction=reduction
        ),
        "cross_entropy ignored": lambda vs, m: F.cross_entropy(
            vs[i], target, reduction=reduction, ignore_index=0
        ),
        "cross_entropy of probabilities": lambda vs, m: F.cross_entropy(
            vs[i], torch.softmax(vs[i] * 0.5, 1), reduction=reduction
        ),
        "nll_loss": lambda vs, m: F.nll_loss(vs[i].log_softmax(1), target, reduction=reduction),
    }
    name = pick(sorted(table))
    return Step(name, (i,), (reduction,), table[name])


def _triplet(d: Draft, i: int) -> Step | None:
    v = d.values[i]
    if v.dim() != 2:
        return None
    table: dict[str, Apply] = {
        "triplet_margin_loss": lambda t: F.triplet_margin_loss(t, t + 1, t * 2),
        "pairwise_distance": lambda t: F.pairwise_distance(t, t * 2 + 1),
        "cosine_embedding_loss": lambda t: F.cosine_embedding_loss(t, t * t, torch.ones(t.shape[0])),
    }
    return chosen(d, i, table)


def _other_reduction(d: Draft, i: int) -> Step | None:
    v = d.values[i]
    if not v.dim():
        return None
    dims, keep = _dims(d, v), d.pick([True, False])
    if v.dtype is torch.bool:
        table: dict[str, Apply] = {
            "any of bools": lambda t: t.any(dims[0], keepdim=keep),
            "all of bools": lambda t: t.all(dims[0], keepdim=keep),
            "sum of bools along": lambda t: t.sum(dims, keepdim=keep),
        }
    else:
        table = {
            "int sum along": lambda t: t.sum(dims, keepdim=keep),
            "int amax": lambda t: t.amax(dims, keepdim=keep),
            "int cumsum": lambda t: t.cumsum(dims[0]),
            "int mean": lambda t: t.float().mean(dims, keepdim=keep),
            "int argmax": lambda t: t.argmax(dims[0], keepdim=keep),
            "int prod": lambda t: t.clamp(-2, 2).prod(dims[0], keepdim=keep),
        }
    return chosen(d, i, table, dims, keep)


FLOATS: Mapping[str, Maker] = {
    "reduction": _reduction,
    "reduction again": _reduction,
    "scan": _scan,
    "norm": _norm,
    "channel norm": _channel_norm,
    "classes": _classes,
    "triplet": _triplet,
}
OTHERS: Mapping[str, Maker] = {"other reduction": _other_reduction}

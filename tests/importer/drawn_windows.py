"""Steps over windows: convolutions, pooling, upsampling, unfolding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from tests.importer.drawn_modules import Apply, Draft, Maker, Step, chosen

CONVOLUTIONS: Mapping[int, Callable[..., torch.Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED: Mapping[int, Callable[..., torch.Tensor]] = {
    1: F.conv_transpose1d,
    2: F.conv_transpose2d,
    3: F.conv_transpose3d,
}
MAXIMA: Mapping[int, Callable[..., torch.Tensor]] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
AVERAGES: Mapping[int, Callable[..., torch.Tensor]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
ADAPTIVE: Mapping[int, Callable[..., torch.Tensor]] = {
    1: F.adaptive_avg_pool1d,
    2: F.adaptive_avg_pool2d,
    3: F.adaptive_avg_pool3d,
}
LARGEST: Mapping[int, Callable[..., torch.Tensor]] = {
    1: F.adaptive_max_pool1d,
    2: F.adaptive_max_pool2d,
    3: F.adaptive_max_pool3d,
}


def _convolution(d: Draft, i: int) -> Step | None:
    v, pick = d.values[i], d.pick
    if v.dim() not in (3, 4, 5):
        return None
    n, channels = v.dim() - 2, v.shape[1]
    widths = [pick([k for k in (1, 2, 3) if k <= size + 2]) for size in v.shape[2:]]
    strides, pads = [pick([1, 2]) for _ in widths], [pick([0, 1]) for _ in widths]
    dilation, out = pick([1, 1, 2]), pick([1, 2, 4])
    groups = pick([g for g in {1, 2, 3, channels} if channels % g == 0])
    w, b = d.state.weight(out * groups, channels // groups, *widths), d.state.weight(out * groups)
    conv = CONVOLUTIONS[n]
    name = "conv" if groups == 1 else "conv depthwise" if groups == channels else "conv grouped"
    name += " dilated" if dilation > 1 else ""
    if pick([False, False, False, True]):
        return Step(
            f"{name} same",
            (i,),
            (widths, groups, dilation),
            lambda vs, m: conv(vs[i], m.weights[w], m.weights[b], 1, "same", dilation, groups),
        )
    room = [s + 2 * p - dilation * (k - 1) - 1 for s, p, k in zip(v.shape[2:], pads, widths, strict=True)]
    if min(room) < 0:
        return None
    return Step(
        f"{name} {n}d",
        (i,),
        (out, widths, strides, pads, dilation, groups),
        lambda vs, m: conv(vs[i], m.weights[w], m.weights[b], strides, pads, dilation, groups),
    )


def _branches(d: Draft, i: int) -> Step | None:
    """Convolutions of one value, of other windows about the same places, whose results are concatenated."""
    v, pick = d.values[i], d.pick
    if v.dim() not in (3, 4, 5):
        return None
    n, conv = v.dim() - 2, CONVOLUTIONS[v.dim() - 2]
    stride, widths = pick([1, 1, 2]), [pick([1, 3]), 3, 5][: pick([2, 2, 3])]
    columns = [pick([1, 2, 4]) for _ in widths]
    weights = [
        (d.state.weight(out, v.shape[1], *[width] * n), d.state.weight(out))
        for out, width in zip(columns, widths, strict=True)
    ]
    after = [pick([torch.relu, torch.relu, torch.sigmoid]) for _ in widths]

    def joined(vs: list[torch.Tensor], m: Any) -> torch.Tensor:
        parts = [
            f(conv(vs[i], m.weights[w], m.weights[b], stride, (width - 1) // 2))
            for (w, b), width, f in zip(weights, widths, after, strict=True)
        ]
        return torch.cat(parts, 1)

    return Step("conv branches", (i,), (stride, widths, columns), joined)


def _unbatched(d: Draft, i: int) -> Step | None:
    v, pick = d.values[i], d.pick
    if v.dim() not in (2, 3):
        return None
    w = d.state.weight(2, v.shape[0], *(1 for _ in v.shape[1:]))
    conv: Any = CONVOLUTIONS[v.dim() - 1]
    width = pick([k for k in (1, 2) if k <= min(v.shape[1:])])
    table = {
        "conv without batch": lambda vs, m: conv(vs[i], m.weights[w]),
        "max_pool without batch": lambda vs, m: MAXIMA[v.dim() - 1](vs[i], width),
        "avg_pool without batch": lambda vs, m: AVERAGES[v.dim() - 1](vs[i], width),
    }
    name = pick(sorted(table))
    return Step(name, (i,), (width,), table[name])


def _transposed(d: Draft, i: int) -> Step | None:
    v, pick = d.values[i], d.pick
    if v.dim() not in (3, 4, 5):
        return None
    n, channels = v.dim() - 2, v.shape[1]
    width, stride, out = pick([1, 2, 3]), pick([1, 2]), pick([1, 2])
    groups = pick([g for g in {1, 2, 3, channels} if channels % g == 0])
    dilation = pick([1, 1, 2])
    padding = pick([0, 1]) if dilation * (width - 1) >= 2 else 0
    extra = pick([0, 1]) if stride == 2 or dilation == 2 else 0
    w, b = d.state.weight(channels, out, *[width] * n), d.state.weight(out * groups)
    name = f"transposed {n}d" + (" grouped" if groups > 1 else "") + (" dilated" if dilation > 1 else "")
    return Step(
        name,
        (i,),
        (out, width, stride, padding, extra, groups, dilation),
        lambda vs, m: TRANSPOSED[n](
            vs[i], m.weights[w], m.weights[b], stride, padding, extra, groups, dilation
        ),
    )


def _pooling(d: Draft, i: int) -> Step | None:
    v, pick = d.values[i], d.pick
    if v.dim() not in (3, 4, 5):
        return None
    n = v.dim() - 2
    width = [pick([k for k in (1, 2, 3) if k <= size]) for size in v.shape[2:]]
    stride = [pick([1, 2, 3]) for _ in width]
    pad = [pick([0, k // 2]) for k in width]
    ceil, count = pick([True, False]), pick([True, False])
    places = [pick(range(1, size + 2)) for size in v.shape[2:]]
    table: dict[str, Apply] = {
        f"max_pool {n}d": lambda t: MAXIMA[n](t, width, stride, pad, 1, ceil),
        f"avg_pool {n}d": lambda t: AVERAGES[n](t, width, stride, pad, ceil, count),
        f"adaptive_avg_pool {n}d": lambda t: ADAPTIVE[n](t, places if n > 1 else places[0]),
        f"adaptive_max_pool {n}d": lambda t: LARGEST[n](t, places if n > 1 else places[0]),
        f"mean_pool {n}d": lambda t: ADAPTIVE[n](t, 1),
        f"max_pool positions {n}d": lambda t: MAXIMA[n](t, width, stride, pad, return_indices=True)[1],
    }
    if all(2 * (k - 1) < size for k, size in zip(width, v.shape[2:], strict=True)):
        table[f"max_pool dilated {n}d"] = lambda t: MAXIMA[n](t, width, stride, 0, 2)
    if n < 3:
        table[f"lp_pool {n}d"] = lambda t: (F.lp_pool1d if n == 1 else F.lp_pool2d)(
            t.abs() + 0.1, 2, width[0] if n == 1 else width, stride=1
        )
    if n > 1:
        table[f"avg_pool divided {n}d"] = lambda t: AVERAGES[n](
            t, width, stride, pad, ceil, count, divisor_override=5
        )
    return chosen(d, i, table, width, stride, pad, ceil, count, places)


def _upsampled(d: Draft, i: int) -> Step | None:
    v, pick = d.values[i], d.pick
    if v.dim() not in (3, 4, 5) or v.numel() > 300:
        return None
    factor, corners = pick([2, 1.5, 3]), pick([True, False])
    size = [pick([1, 2, 3, 5]) for _ in v.shape[2:]]
    linear = {3: "linear", 4: "bilinear", 5: "trilinear"}[v.dim()]
    table: dict[str, Apply] = {
        "upsample nearest": lambda t: F.interpolate(t, scale_factor=factor),
        "upsample nearest to a size": lambda t: F.interpolate(t, size),
        "upsample nearest exact": lambda t: F.interpolate(t, scale_factor=factor, mode="nearest-exact"),
        "upsample linear": lambda t: F.interpolate(t, scale_factor=2, mode=linear, align_corners=corners),
        "upsample linear to a size": lambda t: F.interpolate(t, size, mode=linear, align_corners=corners),
    }
    if v.dim() == 4:
        table["upsample bicubic"] = lambda t: F.interpolate(t, scale_factor=2, mode="bicubic")
    return chosen(d, i, table, factor, corners, size)


def _columns(d: Draft, i: int) -> Step | None:
    v, pick = d.values[i], d.pick
    if v.dim() != 4 or min(v.shape[2:]) < 2:
        return None
    stride, padding = pick([1, 2]), pick([0, 1])
    w = d.state.weight(v.shape[0], 3, 3, 2)
    table = {
        "im2col": lambda vs, m: F.unfold(vs[i], 2, 1, padding, stride),
        "grid_sample": lambda vs, m: F.grid_sample(vs[i], torch.tanh(m.weights[w]), align_corners=False),
        "col2im": lambda vs, m: F.fold(F.unfold(vs[i], 2, stride=1), v.shape[2:], 2, stride=1),
        "channel_shuffle": lambda vs, m: F.channel_shuffle(vs[i], 1),
    }
    name = pick(sorted(table))
    return Step(name, (i,), (stride, padding), table[name])


FLOATS: Mapping[str, Maker] = {
    "convolution": _convolution,
    "convolution again": _convolution,
    "branches": _branches,
    "unbatched": _unbatched,
    "transposed": _transposed,
    "pooling": _pooling,
    "upsampled": _upsampled,
    "columns": _columns,
}

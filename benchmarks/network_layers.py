"""Convolutions of torchvision's and timm's networks and their gradients, as the planner schedules them, against cuDNN.

    python -m benchmarks.network_layers --out FILE [--seed N] [--drawn N] [--only NAME,..] [--quick]

Claim: over layers that the seed draws, with their gradients, in bf16, f16, TF32 and f32, both memory orders and
batches of 1 to 64, at least as fast as cuDNN (`benchmark=True`, TF32 for those in TF32 alone) in the geomean, and none
below 0.8.
`data/network_layers.json` has the layers of 67 networks at 224 x 224 (299 of inception_v3), as rows of `Layer`'s
fields and how often each occurs. Depthwise, grouped and 1x1 layers and those of few channels are drawn in turn, so
that each is seen. A row counts where it errs by at most `MOST_ERROR` of the largest result from cuDNN's f32, and for layers
in f32 from its float64.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import ucutlass
from benchmarks import bars, campaign, harness
from benchmarks.bars import Bar
from benchmarks.campaign import Case
from benchmarks.convolution_cases import DTYPES
from benchmarks.harness import Item, Row
from ucutlass.runtime.timing import compare, sets_for

DATA = Path(__file__).parent / "data" / "network_layers.json"

ROW_SECONDS = 30.0

BARS = {"all": Bar(geomean=1.0, least=0.8)}

MOST_ERROR = {"bf16": 1.2e-2, "f16": 2e-3, "tf32": 3e-3, "f32": 3e-5}

GROUPS = ("dense", "dense", "dense", "depthwise", "depthwise", "few", "grouped", "1x1", "1x1")
"""Of which kind the layers are that are drawn in turn."""

FEW = 16
"""Channels up to which a layer counts as one of few."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution: channels, window, strides, paddings, dilations, groups and the images' extents."""

    c: int
    k: int
    r: int
    s: int
    stride_h: int
    stride_w: int
    pad_h: int
    pad_w: int
    dilation_h: int
    dilation_w: int
    groups: int
    h: int
    w: int

    @property
    def kind(self) -> str:
        if self.groups > 1:
            return "depthwise" if self.groups == self.c == self.k else "grouped"
        return "few" if self.c <= FEW else "1x1" if self.r == self.s == 1 else "dense"

    @property
    def results(self) -> tuple[int, int]:
        p = (self.h + 2 * self.pad_h - self.dilation_h * (self.r - 1) - 1) // self.stride_h + 1
        return p, (self.w + 2 * self.pad_w - self.dilation_w * (self.s - 1) - 1) // self.stride_w + 1


@dataclass(frozen=True, slots=True)
class Task:
    """A layer, or the gradient of its input (`data`) or its `weights`, with a batch; `last`: channels last."""

    layer: Layer
    which: str
    compute_type: str
    n: int
    last: bool

    @property
    def name(self) -> str:
        v, order = self.layer, "NHWC" if self.last else "NCHW"
        window = f"{v.r}x{v.s}/{v.stride_h} p{v.pad_h} d{v.dilation_h} g{v.groups}"
        return (
            f"{v.kind} {self.which} {self.compute_type} {order} {self.n}x{v.c}-{v.k} {window} at {v.h}x{v.w}"
        )

    @property
    def facts(self) -> Item:
        """What an item has of it."""
        names = ("which", "compute_type", "n", "last")
        return {"layer": astuple(self.layer)} | {name: getattr(self, name) for name in names}

    @property
    def text(self) -> str:
        v, tf32 = self.layer, self.compute_type == "tf32"
        e = "f32" if tf32 else self.compute_type
        rows = ("H", "P", "R", v.stride_h, v.dilation_h, v.pad_h, v.r)
        columns = ("W", "Q", "S", v.stride_w, v.dilation_w, v.pad_w, v.s)
        taps = [f"{axis[2]}={axis[-1]}" for axis in (rows, columns) if axis[-1] > 1]
        names = [tap[0] for tap in taps]
        moves = v.r * v.s > 1 or v.stride_h * v.stride_w > 1 or v.pad_h + v.pad_w > 0
        (p, q), places = v.results, ["P", "Q"] if moves else ["H", "W"]
        depthwise = v.kind == "depthwise"
        wide, narrow = [f"C={v.c}"], [f"K={v.k}"]
        if v.groups > 1:
            g = f"G={v.groups}"
            wide, narrow = [f"({g} C={v.c // v.groups})"], [f"({g} K={v.k // v.groups})"]
        if depthwise:
            wide = narrow = [f"C={v.c}"]

        def images(channels: list[str], extents: list[str]) -> str:
            axes = [*extents, *channels] if self.last else [*channels, *extents]
            return f"{e}[{', '.join([f'N={self.n}', *axes])}]"

        x = images(wide, [f"H={v.h}", f"W={v.w}"])
        y = images(narrow, [f"{places[0]}={p}", f"{places[1]}={q}"])
        inner = [] if depthwise else [f"C={v.c // v.groups}"]
        w = f"{e}[{', '.join([*narrow, *taps, *inner] if self.last else [*narrow, *inner, *taps])}]"

        def rounded(value: str) -> str:
            return f"tf32({value})" if tf32 else value

        forward, backward = (", ".join(f(*axis) for axis in (rows, columns)) for f in (_window, _position))
        read = rounded(f"x[{forward}]" if moves else "x")
        if self.which == "forward":
            consumed, head, result, body = (
                [*names, *([] if depthwise else ["C"])],
                f"x: {x}, w: {w}",
                y,
                (read, rounded("w")),
            )
        elif self.which == "data":
            gradient = rounded(f"y[{backward}]" if moves else "y")
            consumed, head, result, body = (
                [*names, *([] if depthwise else ["K"])],
                f"y: {y}, w: {w}",
                x,
                (gradient, rounded("w")),
            )
        else:
            consumed, head, result, body = ["N", *places], f"x: {x}, y: {y}", w, (read, rounded("y"))
        return f"kernel k({head}) -> {result} {{ return dot[{', '.join(consumed)}]({', '.join(body)}) }}"


def _window(axis: str, place: str, tap: str, stride: int, dilation: int, pad: int, taps: int) -> str:
    """Where a window reads the images."""
    return f"{axis} = {_terms(((stride, place), *(((dilation, tap),) if taps > 1 else ())), -pad)}"


def _position(axis: str, place: str, tap: str, stride: int, dilation: int, pad: int, taps: int) -> str:
    """Which window reads an element of the images by a tap."""
    read = _terms(((1, axis),), pad)
    tapped = f" - {_terms(((dilation, tap),), 0)}" if taps > 1 else ""
    return f"{_terms(((stride, place),), 0)} = {read}{tapped}"


def _terms(terms: tuple[tuple[int, str], ...], offset: int) -> str:
    text = " + ".join(name if count == 1 else f"{count}*{name}" for count, name in terms)
    return text if offset == 0 else f"{text} {'+' if offset > 0 else '-'} {abs(offset)}"


def drawn(count: int, seed: int) -> list[Task]:
    """Layers of one seed, by how often they occur among those of their kind."""
    draw = random.Random(seed)
    layers: dict[str, list[tuple[Layer, int]]] = {}
    for row in json.loads(DATA.read_text(encoding="utf-8"))["layers"]:
        layer = Layer(*row[:-1])
        if layer.kind == "depthwise" and layer.r * layer.s == 1:
            continue  # a scale: nothing is summed
        layers.setdefault(layer.kind, []).append((layer, row[-1]))
    tasks = []
    for i in range(count):
        among = layers[GROUPS[i % len(GROUPS)]]
        (layer,) = draw.choices([v for v, _ in among], [n for _, n in among])
        which = draw.choice(("forward", "forward", "weights", "data"))
        if layer.kind == "few" and which == "data":
            which = "weights"
        compute_type = draw.choice(("bf16", "bf16", "f16", "tf32", "tf32", "f32"))
        tasks.append(Task(layer, which, compute_type, draw.choice((1, 8, 16, 32, 64)), draw.random() < 0.5))
    return list(dict.fromkeys(tasks))


# --- one row ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tensors:
    """Images, weights and gradients of results as torch has them."""

    x: Tensor
    w: Tensor
    y: Tensor


def _tensors(task: Task) -> Tensors:
    v, order = task.layer, torch.channels_last if task.last else torch.contiguous_format
    shapes = ((task.n, v.c, v.h, v.w), (v.k, v.c // v.groups, v.r, v.s), (task.n, v.k, *v.results))
    like: dict[str, Any] = {"device": "cuda", "dtype": DTYPES[task.compute_type]}
    return Tensors(*(torch.randn(s, **like).contiguous(memory_format=order) for s in shapes))


def _eager(task: Task, t: Tensors) -> Tensor:
    v = task.layer
    geometry = ([v.stride_h, v.stride_w], [v.pad_h, v.pad_w], [v.dilation_h, v.dilation_w])
    if task.which == "forward":
        return F.conv2d(t.x, t.w, None, *geometry, v.groups)
    needed = [task.which == "data", task.which == "weights", False]
    gradients: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
        t.y, t.x, t.w, None, *geometry, False, [0, 0], v.groups, needed
    )
    return gradients[0 if task.which == "data" else 1]


def expected(task: Task, t: Tensors) -> Tensor:
    """Torch's result in the program's order."""
    result = _eager(task, t)
    if task.which == "weights":
        return _weights(task, result)
    return result.movedim(1, -1) if task.last else result


def arguments(task: Task, t: Tensors) -> tuple[Tensor, Tensor]:
    """The program's operands."""
    x, y = (v.movedim(1, -1) if task.last else v for v in (t.x, t.y))
    w = _weights(task, t.w)
    return {"forward": (x, w), "data": (y, w), "weights": (x, y)}[task.which]


def _weights(task: Task, w: Tensor) -> Tensor:
    """Weights in the program's order, without axes of one tap, nor that of one channel in a depthwise layer."""
    v = task.layer
    taps = [n for n in (v.r, v.s) if n > 1]
    if v.kind == "depthwise":
        return w.reshape(v.c, *taps)
    c = v.c // v.groups
    return w.movedim(1, -1).reshape(v.k, *taps, c).contiguous() if task.last else w.reshape(v.k, c, *taps)


def row(item: Item) -> Row:
    torch.manual_seed(item["seed"])
    task = Task(Layer(*item["layer"]), item["which"], item["compute_type"], item["n"], item["last"])
    kernel: Any = ucutlass.loads(task.text)
    first = _tensors(task)
    sets = sets_for(sum(v.numel() * v.element_size() for v in (first.x, first.w, first.y)))
    every = [first, *(_tensors(task) for _ in range(sets - 1))]
    operands = [arguments(task, t) for t in every]
    result = kernel(*operands[0])
    torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = False
    # cuDNN's own sums in f32 err by more than the limit: by 6e-5 of 200,000 products.
    exactly = torch.float64 if task.compute_type == "f32" else torch.float32
    exact = expected(task, Tensors(*(v.to(exactly) for v in (first.x, first.w, first.y))))
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = task.compute_type == "tf32"
    error = float((result.to(exactly) - exact).abs().max() / exact.abs().max())
    if not error <= MOST_ERROR[task.compute_type]:
        raise ArithmeticError(f"it errs by {error:.2g} of the largest result")
    times = compare({"ours": lambda i: kernel(*operands[i]), "cudnn": lambda i: _eager(task, every[i])}, sets)
    over = times["cudnn"].median / times["ours"].median
    return {**harness.summary_of(times), "schedule": item["schedule"], "error": error, "over cudnn": over}


def main() -> None:
    options = campaign.parser_of(__doc__, drawn=90).parse_args()
    tasks = harness.selected(drawn(options.drawn, options.seed), options, lambda task: task.name)
    cases = [Case(task.name, task.text, {}, task.facts) for task in tasks]
    campaign.report(
        "benchmarks.network_layers:row", cases, options, _line, _classes, row_seconds=ROW_SECONDS, held=BARS
    )


def _line(r: Row) -> str:
    us = r["microseconds"]
    return (
        f"{r['name']:70} {us['ours']:8.1f} us  cudnn {us['cudnn']:8.1f}  ratio {r['over cudnn']:.3f}  "
        f"spread {r['spread']:.3f}  error {r['error']:.1e}  {r['schedule'].partition('(')[0]}"
    )


def _classes(rows: list[Row]) -> dict[str, dict[str, float]]:
    def by(label: Callable[[list[str]], str]) -> dict[str, dict[str, float]]:
        return bars.classed(rows, lambda r: r["over cudnn"], lambda r: label(r["name"].split()))

    return (
        by(lambda words: "all" if words[2] != "f32" else "f32, without TF32")
        | by(lambda words: f"{words[0]} {words[1]}")
        | by(lambda words: f"{words[2]} {words[3]}")
    )


if __name__ == "__main__":
    main()

"""Shapes of convolutions and their gradients, as programs and as torch's functions."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from ucutlass import frontend
from ucutlass.shapes import complete

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "tf32": torch.float32}


def _kernel(head: str, result: str, dot: str) -> str:
    return f"kernel k({head}{{more}}) -> {{t}}[{result}] {{{{ return {{before}}{dot}{{after}} }}}}"


def _dot(names: str, left: str, right: str = "w") -> str:
    return f"dot[{names}]({{compute_type}}{left}{{close}}, {{compute_type}}{right}{{close}})"


_ROWS = "P=(H+2*{p}-{d}*({r}-1)-1)//{s}+1, Q=(W+2*{p}-{d}*({r}-1)-1)//{s}+1"
_READ = "x[H = {s}*P + {d}*R - {p}, W = {s}*Q + {d}*S - {p}]"

FORWARD1 = _kernel(
    "x: {t}[N, W, C], w: {t}[K, S={r}, C]",
    "N, Q=(W+2*{p}-{d}*({r}-1)-1)//{s}+1, K",
    _dot("S, C", "x[W = {s}*Q + {d}*S - {p}]"),
)
FORWARD2 = _kernel("x: {t}[N, H, W, C], w: {t}[K, R={r}, S={r}, C]", f"N, {_ROWS}, K", _dot("R, S, C", _READ))
FORWARD3 = _kernel(
    "x: {t}[N, D, H, W, C], w: {t}[K, T={r}, R={r}, S={r}, C]",
    "N, O=(D+2*{p}-{r})//{s}+1, P=(H+2*{p}-{r})//{s}+1, Q=(W+2*{p}-{r})//{s}+1, K",
    _dot("T, R, S, C", "x[D = {s}*O + T - {p}, H = {s}*P + R - {p}, W = {s}*Q + S - {p}]"),
)
GROUPED = _kernel(
    "x: {t}[N, H, W, (G={g} C)], w: {t}[(G K), R={r}, S={r}, C]", f"N, {_ROWS}, (G K)", _dot("R, S, C", _READ)
)
DEPTHWISE = _kernel("x: {t}[N, H, W, K], w: {t}[R={r}, S={r}, K]", f"N, {_ROWS}, K", _dot("R, S", _READ))
TRANSPOSED = _kernel(
    "x: {t}[N, H, W, C], w: {t}[C, R={r}, S={r}, K]",
    "N, P={s}*H-2*{p}+{r}-{s}, Q={s}*W-2*{p}+{r}-{s}, K",
    _dot("R, S, C", "x[{s}*H = P + {p} - R, {s}*W = Q + {p} - S]"),
)
WEIGHTS = _kernel(
    f"x: {{t}}[N, H, W, C], y: {{t}}[N, {_ROWS}, K]", "K, R={r}, S={r}, C", _dot("N, P, Q", _READ, "y")
)
DATA = _kernel(
    "y: {t}[N, P, Q, K], w: {t}[K, R={r}, S={r}, C]",
    "N, H={s}*P, W={s}*Q, C",
    _dot("R, S, K", "y[{s}*P = H + {p} - R, {s}*Q = W + {p} - S]"),
)


@dataclass(frozen=True, slots=True)
class Case:
    """A shape. `kind` is forward, depthwise, grouped, transposed, or the gradient data or weights; `size` the
    spatial extent of the images, in every one of `space` dimensions; channels of a group are `c` and `k`. `t`
    is the compute type: tf32 and f32 have f32 tensors."""

    name: str
    kind: str
    n: int
    size: int
    c: int
    k: int
    r: int
    s: int = 1
    p: int = 0
    d: int = 1
    g: int = 1
    space: int = 2
    t: str = "bf16"

    def text(self, fused: bool) -> str:
        template = {
            "forward": {1: FORWARD1, 2: FORWARD2, 3: FORWARD3}[self.space],
            "grouped": GROUPED,
            "depthwise": DEPTHWISE,
            "transposed": TRANSPOSED,
            "weights": WEIGHTS,
            "data": DATA,
        }[self.kind]
        stored = "f32" if self.t == "tf32" else self.t
        bias = f"b: {stored}[(G K)]" if self.kind == "grouped" else f"b: {stored}[K]"
        return template.format(
            t=stored,
            compute_type="tf32(" if self.t == "tf32" else "",
            close=")" if self.t == "tf32" else "",
            p=self.p,
            s=self.s,
            d=self.d,
            g=self.g,
            r=self.r,
            more=f", {bias}" if fused else "",
            before="relu(" if fused else "",
            after=" + b)" if fused else "",
        )

    def sizes(self) -> dict[str, int]:
        sizes = {"N": self.n, "C": self.c, "K": self.k}
        names = ("P", "Q") if self.kind == "data" else ("W", "H", "D")[: self.space]
        sizes |= dict.fromkeys(names, self.size // self.s if self.kind == "data" else self.size)
        if self.kind == "depthwise":
            del sizes["C"]
        return sizes

    @property
    def flops(self) -> float:
        c = 1 if self.kind == "depthwise" else self.c
        side = (
            self.size
            if self.kind == "transposed"
            else (self.size + 2 * self.p - self.d * (self.r - 1) - 1) // self.s + 1
        )
        return float(2 * self.n * side**self.space * c * self.k * self.g * self.r**self.space)


_FORWARD: tuple[Case, ...] = (
    Case("stem 7x7/2", "forward", 32, 224, 3, 64, 7, 2, 3),
    Case("3x3 64 at 56", "forward", 32, 56, 64, 64, 3, 1, 1),
    Case("3x3 128 at 28", "forward", 32, 28, 128, 128, 3, 1, 1),
    Case("3x3 256 at 14", "forward", 32, 14, 256, 256, 3, 1, 1),
    Case("3x3 512 at 7", "forward", 32, 7, 512, 512, 3, 1, 1),
    Case("3x3/2 128 at 56", "forward", 32, 56, 128, 128, 3, 2, 1),
    Case("3x3/2 512 at 14", "forward", 32, 14, 512, 512, 3, 2, 1),
    Case("1x1 256-64 at 56", "forward", 32, 56, 256, 64, 1),
    Case("1x1 64-256 at 56", "forward", 32, 56, 64, 256, 1),
    Case("1x1/2 256-512 at 56", "forward", 32, 56, 256, 512, 1, 2),
    Case("3x3 256 at 56", "forward", 16, 56, 256, 256, 3, 1, 1),
    Case("3x3 dilated 256 at 28", "forward", 32, 28, 256, 256, 3, 1, 2, 2),
    Case("5x5 128 at 28 f16", "forward", 32, 28, 128, 128, 5, 1, 2, t="f16"),
    Case("3d 3x3x3 64 at 28", "forward", 4, 28, 64, 64, 3, 1, 1, space=3),
    Case("1d 9 512 at 2048", "forward", 16, 2048, 512, 512, 9, 1, 4, space=1),
)

_OTHERS: tuple[Case, ...] = (
    Case("grouped 3x3 8x64 at 28", "grouped", 32, 28, 64, 64, 3, 1, 1, g=8),
    Case("depthwise 3x3 384 at 56", "depthwise", 32, 56, 1, 384, 3, 1, 1),
    Case("depthwise 3x3/2 384 at 56", "depthwise", 32, 56, 1, 384, 3, 2, 1),
    Case("depthwise 7x7 192 at 56", "depthwise", 32, 56, 1, 192, 7, 1, 3),
    Case("transposed 4x4/2 256-128 at 28", "transposed", 32, 28, 256, 128, 4, 2, 1),
    Case("transposed 2x2/2 256-128 at 28", "transposed", 32, 28, 256, 128, 2, 2, 0),
)


def _gradients(kind: str, *names: str) -> list[Case]:
    """Of shapes that stand above."""
    return [replace(c, name=f"{kind} {c.name}", kind=kind) for n in names for c in _FORWARD if c.name == n]


def _compute_type(t: str) -> list[Case]:
    same = ("3x3 64 at 56", "3x3 128 at 28", "3x3 256 at 14")
    return [replace(c, name=f"{c.name} {t}", t=t) for c in _FORWARD if c.name in same]


_F32 = (
    *_compute_type("f32"),
    *(replace(c, name=f"{c.name} f32", t="f32") for c in (_FORWARD[0], _OTHERS[4])),
)

CASES: tuple[Case, ...] = (
    *_FORWARD,
    *_OTHERS,
    *_gradients(
        "weights",
        "3x3 128 at 28",
        "1x1 256-64 at 56",
        "3x3 512 at 7",
        "3x3 64 at 56",
        "3x3/2 128 at 56",
        "stem 7x7/2",
    ),
    *_gradients("data", "3x3 128 at 28", "3x3/2 128 at 56", "3x3 512 at 7"),
    *_compute_type("tf32"),
    *_F32,
)

NOT_FUSED = ("weights", "data")


# --- drawn ------------------------------------------------------------------------

DRAWN = ("2d", "strided", "3d", "transposed", "grouped", "few", "1d", "weights", "data", "depthwise")
"""Of which sort the cases are that are drawn in turn."""

SIZES = {1: (64, 4096), 2: (7, 112), 3: (6, 40)}
"""Least and largest images by their dimensions, drawn evenly in the logarithm."""

MOST_FLOPS, MOST_ELEMENTS = 4e11, 2**28


def drawn(count: int, seed: int) -> list[Case]:
    """Returns cases of a seed, in TF32, bf16 and f16, each sort in turn."""
    draw = random.Random(f"convolutions {seed}")
    cases: list[Case] = []
    while len(cases) < count:
        case = _case(draw, DRAWN[len(cases) % len(DRAWN)])
        pixels = case.n * case.size**case.space
        if case.flops <= MOST_FLOPS and pixels * max(case.c, case.k) * case.g <= MOST_ELEMENTS:
            cases.append(case)
    return cases


def _case(draw: random.Random, sort: str) -> Case:
    space = {"1d": 1, "3d": 3}.get(sort, 2)
    kind = sort if sort in ("transposed", "grouped", "weights", "data", "depthwise") else "forward"
    low, high = SIZES[space]
    size = round(low * (high / low) ** draw.random())
    s = 2 if sort in ("strided", "transposed") else draw.choice((1, 1, 2))
    s = s if space == 2 else 1
    if kind in ("data", "transposed"):
        size = max(8, size // 2 * 2)
    r = draw.choice((2, 4) if kind == "transposed" else (3, 5) if kind == "depthwise" else (1, 3, 3, 5))
    p = (r - s) // 2 if kind == "transposed" else r // 2
    c, k = (8 * draw.choice((2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)) for _ in range(2))
    g = 1
    match sort:
        case "few":
            c = draw.choice((1, 3, 4, 8))
        case "grouped":
            g = draw.choice((2, 4, 8, 16))
            c = k = draw.choice((4, 8, 16, 32, 64))
        case "depthwise":
            c = 1
    t, n = draw.choice(("tf32", "tf32", "bf16", "f16")), draw.choice((1, 4, 8, 16, 32))
    groups = f" in {g} groups" if g > 1 else ""
    name = f"{sort} {t} {n}x{c}-{k}{groups} {'x'.join([str(r)] * space)}/{s} at {size}"
    return Case(name, kind, n, size, c, k, r, s, p, g=g, space=space, t=t)


# --- tensors ----------------------------------------------------------------------


def channels_second(x: torch.Tensor) -> torch.Tensor:
    """Channels-last memory seen as torch's order of names: the same bytes."""
    return x.movedim(-1, 1)


def tensors(case: Case, fused: bool, sets: int) -> list[tuple[torch.Tensor, ...]]:
    """What our kernel takes, set by set."""
    program = frontend.kernel(frontend.read_text(case.text(fused)))
    sizes = dict(zip(program.dims, complete(program, case.sizes()), strict=True))

    def shape(type_: Any) -> tuple[int, ...]:
        lengths = []
        for axis in type_.axes:
            length = 1
            for d in axis.dims:
                length *= sizes[d]
            lengths.append(length)
        return tuple(lengths)

    shapes = [shape(p.type) for p in program.params] + [shape(program.results[0].type)]
    return [tuple(torch.randn(s, device="cuda").to(DTYPES[case.t]) for s in shapes) for _ in range(sets)]


def eager(case: Case, fused: bool) -> Callable[..., torch.Tensor]:
    """torch's own, of tensors in its order of names."""
    convolve = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[case.space]

    def run(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
        if case.kind == "transposed":
            y = F.conv_transpose2d(x, w, b, stride=case.s, padding=case.p)
        elif case.kind == "weights":
            shape = [case.k, case.c, case.r, case.r]
            of_weights: torch.Tensor = torch.ops.aten.convolution_backward(
                w,
                x,
                x.new_empty(shape).to(memory_format=torch.channels_last),
                None,
                [case.s] * 2,
                [case.p] * 2,
                [1, 1],
                False,
                [0, 0],
                1,
                [False, True, False],
            )[1]
            return of_weights
        elif case.kind == "data":
            images = x.new_empty([case.n, case.c, case.size, case.size]).to(memory_format=torch.channels_last)
            of_images: torch.Tensor = torch.ops.aten.convolution_backward(
                x, images, w, None, [case.s] * 2, [case.p] * 2, [1, 1], False, [0, 0], 1, [True, False, False]
            )[0]
            return of_images
        else:
            groups = case.k if case.kind == "depthwise" else case.g
            y = convolve(x, w, b, stride=case.s, padding=case.p, dilation=case.d, groups=groups)
        return torch.relu(y) if fused else y

    return run


def given(case: Case, ours: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Our tensors without copies as torch takes them; weights of a depthwise in its own order."""
    x, w = channels_second(ours[0]), ours[1]
    if case.kind == "depthwise":
        w = w.permute(2, 0, 1)[:, None].contiguous(memory_format=torch.channels_last)
    else:
        w = channels_second(w)
    return (x, w, *ours[2:-1])


def sampled(case: Case, tensors_: Sequence[torch.Tensor], at: int) -> tuple[torch.Tensor, ...]:
    """The tensors of image `at`, of gradients of weights those of eight columns from `at`."""
    first, second, *others, result = tensors_
    if case.kind == "weights":
        return first, second[..., at : at + 8].contiguous(), *others, result[at : at + 8]
    return first[at : at + 1], second, *others, result[at : at + 1]

"""Attention of f32 operands, by three TF32 passes and by one, against torch's backends.

    python -m benchmarks.attention_f32 --out FILE [--only NAME,..] [--seed N] [--drawn N] [--quick]

Claim: f32 attention is at least 1.5 times as fast as the best of torch's backends without TF32, and errs no more.
Rows are fixed shapes, and `--drawn` shapes of the seed. `over` is the best rival's time over ours, `over_tf32` that
of torch with TF32 allowed over one pass's; errors are norms of differences from float64 over the norm of the
result, of the first batch's first heads.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import ucutlass
from benchmarks import campaign, harness
from benchmarks.bars import Bar
from benchmarks.campaign import Case
from benchmarks.harness import Item, Row
from benchmarks.turns import Launch, on_sets
from ucutlass.runtime.timing import compare, sets_for

COMPUTE_TYPES = ("f32", "tf32")

ROW_SECONDS = 60.0
MOST_SCORES = 2 * 2**30
"""Bytes of scores over all sets up to which the backend that stores them is a rival; it is the slowest beyond."""

ANY = (
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.MATH,
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Batches, heads of queries and of keys, rows, keys, the head's elements."""

    name: str
    b: int
    h: int
    g: int
    rows: int
    keys: int
    head: int
    causal: bool

    @property
    def sizes(self) -> dict[str, int]:
        heads = {"H": self.h} if self.g == self.h else {"H": self.g, "G": self.h // self.g}
        return {"B": self.b, **heads, "L": self.rows, "S": self.keys}

    @property
    def flops(self) -> float:
        return 4.0 * self.b * self.h * self.rows * self.keys * self.head * (0.5 if self.causal else 1.0)


SHAPES = (
    Shape("4x16x1k 64", 4, 16, 16, 1024, 1024, 64, False),
    Shape("4x16x2k 64 causal", 4, 16, 16, 2048, 2048, 64, True),
    Shape("2x16x4k 128 causal", 2, 16, 16, 4096, 4096, 128, True),
    Shape("8x12x512 64", 8, 12, 12, 512, 512, 64, False),
    Shape("4x16x1k 128", 4, 16, 16, 1024, 1024, 128, False),
    Shape("16x12x197 64", 16, 12, 12, 197, 197, 64, False),
    Shape("1x8x2k 256", 1, 8, 8, 2048, 2048, 256, False),
    Shape("2x32 over 8x1k 128 causal", 2, 32, 8, 1024, 1024, 128, True),
    Shape("1x16x4 over 8k 128", 1, 16, 16, 4, 8192, 128, False),
)


def drawn(count: int, seed: int) -> list[Shape]:
    """Shapes of one seed, of about as many multiplications each."""
    draw = random.Random(seed)
    shapes = []
    for i in range(count):
        head, rows = draw.choice((32, 64, 80, 96, 128)), draw.randint(130, 3000)
        keys = rows if (causal := draw.random() < 0.5) else draw.randint(130, 3000)
        h, b = draw.choice((4, 8, 12, 16)), draw.randint(1, 8)
        g = h // draw.choice((1, 1, 2, 4))
        shapes.append(
            Shape(f"drawn {i}: {b}x{h}/{g}x{rows}x{keys} {head}", b, h, g, rows, keys, head, causal)
        )
    return shapes


def program(shape: Shape, compute_type: str) -> str:
    """One kernel of attention."""
    heads, cast = ("(H G)" if shape.g != shape.h else "H"), "tf32" if compute_type == "tf32" else ""
    q, k, p, v = (f"{cast}({x})" if cast else x for x in ("q", "k", "p", "v"))
    score = f"dot[D]({q}, {k}) * rsqrt(size(D))"
    if shape.causal:
        score = f"where(index(S) <= index(L), {score}, -inf)"
    return (
        f"kernel attention(q: f32[B, {heads}, L, D={shape.head}], k: f32[B, H, S, D], v: f32[B, H, S, D])\n"
        f"    -> f32[B, {heads}, L, D] {{\n  p = softmax[S]({score})\n  return dot[S]({p}, {v})\n}}\n"
    )


def operands(shape: Shape, sets: int, seed: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    generator = torch.Generator("cuda").manual_seed(seed)

    def tensor(heads: int, rows: int) -> Tensor:
        return torch.randn(shape.b, heads, rows, shape.head, device="cuda", generator=generator)

    return [
        (tensor(shape.h, shape.rows), tensor(shape.g, shape.keys), tensor(shape.g, shape.keys))
        for _ in range(sets)
    ]


def rivals(shape: Shape, sets: list[tuple[Tensor, Tensor, Tensor]]) -> dict[str, Launch]:
    """torch's backends by name; `tf32` ones run where TF32 is allowed. Ones that refuse are left out."""
    grouped = shape.g != shape.h

    def launch(backend: SDPBackend | None, tf32: bool) -> Launch:
        def run(i: int) -> object:
            torch.backends.cuda.matmul.allow_tf32 = tf32
            q, k, v = sets[i]
            backends = list(ANY) if backend is None else [backend]
            with sdpa_kernel(backends):
                y = F.scaled_dot_product_attention(q, k, v, is_causal=shape.causal, enable_gqa=grouped)
            torch.backends.cuda.matmul.allow_tf32 = False
            return y

        return run

    scores = 4 * shape.b * shape.h * shape.rows * shape.keys * len(sets)
    stored = {"math": launch(SDPBackend.MATH, False), "math tf32": launch(SDPBackend.MATH, True)}
    launches = {
        "sdpa": launch(None, False),
        "efficient": launch(SDPBackend.EFFICIENT_ATTENTION, False),
        "sdpa tf32": launch(None, True),
        "efficient tf32": launch(SDPBackend.EFFICIENT_ATTENTION, True),
        **(stored if scores <= MOST_SCORES else {}),
    }
    found = {}
    for name, run in launches.items():
        try:
            run(0)
            torch.cuda.synchronize()
            found[name] = run
        except (RuntimeError, torch.cuda.OutOfMemoryError):
            torch.backends.cuda.matmul.allow_tf32 = False
    return found


def exact(shape: Shape, q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """The first heads of the first batch, in float64."""
    share = shape.h // shape.g
    k64, v64 = (x[0].double().repeat_interleave(share, 0)[:heads] for x in (k, v))
    with sdpa_kernel([SDPBackend.MATH]):
        return F.scaled_dot_product_attention(q[0, :heads].double(), k64, v64, is_causal=shape.causal)


def row(item: Item) -> Row:
    shape = Shape(**item["shape"])
    bytes_ = 4 * shape.head * shape.b * 2 * (shape.h * shape.rows + shape.g * shape.keys)
    count = sets_for(bytes_)
    sets = operands(shape, count, item["seed"])
    kernels: dict[str, Any] = {t: ucutlass.loads(program(shape, t)) for t in COMPUTE_TYPES}
    launches: dict[str, Launch] = {t: on_sets(k, sets) for t, k in kernels.items()}
    theirs = rivals(shape, sets)
    errors = {}
    heads = min(shape.h, 4)
    reference = exact(shape, *sets[0], heads)
    for name, run in (launches | theirs).items():
        y: Any = run(0)
        difference = y[0, :heads].double() - reference
        errors[name] = float(difference.norm() / reference.norm())
        errors[f"{name} max"] = float(difference.abs().max() / reference.abs().max())
    timed = compare(launches | theirs, count, rounds=5, window_us=1500.0)
    times = {name: time.median for name, time in timed.items()}
    best = {
        "torch": min(t for n, t in times.items() if n in theirs and not n.endswith("tf32")),
        "torch tf32": min(t for n, t in times.items() if n in theirs and n.endswith("tf32")),
    }
    return {
        "times": times,
        "errors": errors,
        "tflops": {n: shape.flops * 1e-6 / t for n, t in times.items()},
        "spread": max(time.spread for time in timed.values()),
        "error": errors["f32"] / min(errors[n] for n in theirs if not n.endswith("tf32")),
        "over": best["torch"] / times["f32"],
        "over_tf32": best["torch tf32"] / times["tf32"],
    }


def main() -> None:
    parser = campaign.parser_of(__doc__, drawn=0)
    options = parser.parse_args()
    shapes = [*SHAPES, *drawn(options.drawn, options.seed)]
    chosen = harness.selected(shapes, options, lambda shape: shape.name)
    campaign.report(
        "benchmarks.attention_f32:row",
        [
            Case(s.name, program(s, "f32"), s.sizes, {"shape": asdict(s)}, ((program(s, "tf32"), s.sizes),))
            for s in chosen
        ],
        options,
        _line,
        lambda rows: {
            "over eager": {r["name"]: r["over"] for r in rows},
            "TF32 over eager with TF32": {r["name"]: r["over_tf32"] for r in rows},
            "error over eager's": {r["name"]: r["error"] for r in rows},
        },
        row_seconds=ROW_SECONDS,
        held={"over eager": Bar(least=1.5), "error over eager's": Bar(most=1.0)},
    )


def _line(r: Row) -> str:
    return (
        f"{r['name']:32} {r['times']['f32']:9.1f} us  over eager {r['over']:.3f}  TF32 {r['over_tf32']:.3f}  "
        f"error {r['error']:.2f} of eager's  spread {r['spread']:.3f}"
    )


if __name__ == "__main__":
    main()

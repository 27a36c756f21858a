"""Attention of f32 operands in one launch, by three TF32 passes and by one, against torch's backends and three launches.

    python -m benchmarks.attention_f32 --out FILE [--only NAME,..] [--seed N] [--drawn N] [--staged] [--quick]

Claim: f32 attention is at least 1.5 times as fast as the best of torch's backends without TF32, and errs no more.
Rows are fixed shapes, each with several tiles, and `--drawn` shapes of the seed, with the planner's tile alone.
`over` is the best rival's time over the planner's choice's, `over_tf32` that of torch with TF32 allowed over one pass's; errors are
norms of differences from float64 over the norm of the result, of the first batch's first heads.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import ucutlass
from benchmarks import harness
from benchmarks.harness import Item, Row
from ucutlass.runtime.timing import compare, sets_for

Launch = Callable[[int], object]

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

TILES: Mapping[tuple[str, int], tuple[str, ...]] = {
    ("f32", 64): ("128x64", "128x128", "128x96", "192x64"),
    ("f32", 128): ("128x64", "64x64", "128x32"),
    ("f32", 256): ("128x32",),
    ("tf32", 64): ("128x128", "128x64", "192x128"),
    ("tf32", 128): ("128x128", "128x64"),
    ("tf32", 256): ("128x64",),
}
"""By compute type and head; the first is the planner's."""


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


def program(shape: Shape, compute_type: str, tile: str) -> str:
    """One kernel of attention."""
    heads, cast = ("(H G)" if shape.g != shape.h else "H"), "tf32" if compute_type == "tf32" else ""
    q, k, p, v = (f"{cast}({x})" if cast else x for x in ("q", "k", "p", "v"))
    score = f"dot[D]({q}, {k}) * rsqrt(size(D))"
    if shape.causal:
        score = f"where(index(S) <= index(L), {score}, -inf)"
    schedule = f"  schedule sm90a {{ tile {tile}x{shape.head} }}\n" if tile else ""
    return (
        f"kernel attention(q: f32[B, {heads}, L, D={shape.head}], k: f32[B, H, S, D], v: f32[B, H, S, D])\n"
        f"    -> f32[B, {heads}, L, D] {{\n  p = softmax[S]({score})\n  return dot[S]({p}, {v})\n{schedule}}}\n"
    )


def three_launches(shape: Shape, compute_type: str) -> str:
    """The scores in memory."""
    heads, cast = ("(H G)" if shape.g != shape.h else "H"), "tf32" if compute_type == "tf32" else ""
    q, k, p, v = (f"{cast}({x})" if cast else x for x in ("q", "k", "p", "v"))
    score = f"dot[D]({q}, {k}) * rsqrt(size(D))"
    if shape.causal:
        score = f"where(index(S) <= index(L), {score}, -inf)"
    return (
        f"pipeline attention(q: f32[B, {heads}, L, D={shape.head}], k: f32[B, H, S, D], v: f32[B, H, S, D])\n"
        f"    -> f32[B, {heads}, L, D] {{\n  s: f32[B, {heads}, L, S] = {score}\n"
        f"  p: f32[B, {heads}, L, S] = softmax[S](s)\n  return dot[S]({p}, {v})\n}}\n"
    )


def launchable(text: str, arguments: Sequence[Tensor]) -> Any:
    """The program of a text, launched once; why it cannot be where it cannot."""
    try:
        kernel: Any = ucutlass.loads(text)
        kernel(*arguments)
        torch.cuda.synchronize()
    except Exception as error:  # a row says what it lacks
        return f"{type(error).__name__}: {error}"[:300]
    return kernel


def programs(shape: Shape, every: bool, staged: bool) -> dict[str, str]:
    """Texts by name: the kernels with the first or `every` tile and, where `staged`, three launches."""
    texts = {}
    for compute_type in ("f32", "tf32"):
        width = next(n for n in (64, 128, 256) if shape.head <= n)
        tiles = TILES[compute_type, width]
        texts[f"{compute_type} chosen"] = program(shape, compute_type, "")
        for tile in tiles if every else ():
            texts[f"{compute_type} {tile}"] = program(shape, compute_type, tile)
        if staged:
            texts[f"{compute_type} three launches"] = three_launches(shape, compute_type)
    return texts


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
    shape, every = Shape(**item["shape"]), item["every"]
    bytes_ = 4 * shape.head * shape.b * 2 * (shape.h * shape.rows + shape.g * shape.keys)
    count = sets_for(bytes_)
    sets = operands(shape, count, item["seed"])
    launches: dict[str, Launch] = {}
    lacking: dict[str, str] = {}

    def add(name: str, text: str) -> None:
        kernel = launchable(text, sets[0])
        if isinstance(kernel, str):
            lacking[name] = kernel
        else:
            launches[name] = lambda i: kernel(*sets[i])

    for name, text in programs(shape, every, item["staged"]).items():
        add(name, text)
    theirs = rivals(shape, sets)
    errors = {}
    heads = min(shape.h, 4)
    reference = exact(shape, *sets[0], heads)
    for name, run in (launches | theirs).items():
        y: Any = run(0)
        difference = y[0, :heads].double() - reference
        errors[name] = float(difference.norm() / reference.norm())
        errors[f"{name} max"] = float(difference.abs().max() / reference.abs().max())
    times = {n: t.median for n, t in compare(launches | theirs, count, rounds=5, window_us=1500.0).items()}
    best = {
        "f32": times.get("f32 chosen", 0.0),
        "tf32": times.get("tf32 chosen", 0.0),
        "torch": min(t for n, t in times.items() if n in theirs and not n.endswith("tf32")),
        "torch tf32": min(t for n, t in times.items() if n in theirs and n.endswith("tf32")),
    }
    return {
        "times": times,
        "errors": errors,
        "lacking": lacking,
        "tflops": {n: shape.flops * 1e-6 / t for n, t in times.items()},
        "over": best["torch"] / best["f32"] if best["f32"] else None,
        "over_tf32": best["torch tf32"] / best["tf32"] if best["tf32"] else None,
    }


def rows_here(items: list[Item], rows: str, item_seconds: float) -> int:
    """Runs in the child of `harness.run`."""
    tasks: dict[str, Shape] = {}
    for item in items:
        shape = Shape(**item["shape"])
        tasks |= dict.fromkeys(programs(shape, item["every"], item["staged"]).values(), shape)
    with ThreadPoolExecutor(12) as pool:  # compilers run beside each other
        list(pool.map(lambda task: launchable(task[0], operands(task[1], 1, 0)[0]), tasks.items()))
    return harness.serve(row, items, rows, item_seconds)


def main() -> None:
    parser = harness.parser_of(__doc__)
    parser.add_argument(
        "--drawn", type=int, default=0, metavar="N", help="shapes of the seed beside the fixed"
    )
    parser.add_argument(
        "--staged", action="store_true", help="time three launches too: builds of half a minute"
    )
    options = parser.parse_args()
    shapes = [(s, True) for s in SHAPES] + [(s, False) for s in drawn(options.drawn, options.seed)]
    chosen = harness.selected(shapes, options, lambda pair: pair[0].name)
    items: list[Item] = [
        {"name": s.name, "shape": asdict(s), "every": every, "staged": options.staged, "seed": options.seed}
        for s, every in chosen
    ]
    rows = harness.run(
        "benchmarks.attention_f32:rows_here",
        items,
        harness.fresh(options.out.with_suffix(".jsonl")),
        item_seconds=ROW_SECONDS,
    )
    harness.write(options.out, {"machine": harness.machine(), "rows": rows})
    for r in rows:
        print(r["name"], f"over {r.get('over')}", f"tf32 {r.get('over_tf32')}", r.get("error", ""))
    sys.exit(not all(r["ok"] for r in rows))


if __name__ == "__main__":
    main()

"""Times kernels as two checkouts of this project compile them, side by side.

    python -m benchmarks.checkouts OTHER [--seed N] [--out FILE]

Programs of GEMM, attention, reductions and convolution at extents drawn by `--seed`, with each checkout's own
default schedule. Each of four turns (OTHER, this, this, OTHER) is a process that imports one checkout, builds
every row in parallel and times it by CUDA graphs over rotated buffers (`ucutlass.runtime.timing`). A row's time
of a checkout is the lesser of its two medians; the spread is how far these two are apart. Prints a table by
class and every row that is slower by more than `--noise`, and exits 1 where there is one.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

from ucutlass import files

Row: TypeAlias = dict[str, Any]
"""`class`, `text` and `sizes` of a program."""

TURNS = ("other", "this", "this", "other")

GEMM = "kernel k(x: {e}[M, K], w: {e}[N, K]) -> {e}[M, N] {{ return {value} }}"
ATTENTION = """kernel k(q: {e}[B, (G U), L, D], k: {e}[B, G, S, D], v: {e}[B, G, S, D]) -> {e}[B, (G U), L, D] {{
  p = softmax[S](dot[D](q, k) * rsqrt(size(D)))
  return dot[S]({e}(p), v)
}}"""
CONV = (
    "kernel k(x: {e}[N, H, W, C], w: {e}[K, R=3, S=3, C]) -> {e}[N, P=(H+1)//2, Q=(W+1)//2, K] {{"
    " return dot[R, S, C](x[H = 2*P + R - 1, W = 2*Q + S - 1], w) }}"
)
REDUCTIONS = (
    "kernel k(x: bf16[T, D], w: bf16[D]) -> bf16[T, D] { return x * rsqrt(mean[D](f32(x) * f32(x)) + 1e-6) * w }",
    "kernel k(x: bf16[T, D]) -> bf16[T, D] { return softmax[D](f32(x)) }",
    "kernel k(x: f32[T, D]) -> f32[D] { return sum[T](x) }",
    "kernel k(x: f32[T, D]) -> f32[T, D] { return cumsum[D](x) }",
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path, help="the root of another checkout, set up like this one")
    parser.add_argument("--seed", type=int, default=0, help="of the extents")
    parser.add_argument("--class", action="append", dest="classes", metavar="CLASS", help="these rows alone")
    parser.add_argument("--noise", type=float, default=0.02, help="a slower row is one beyond this share")
    parser.add_argument("--out", type=Path, help="every row's times, JSON")
    options = parser.parse_args()
    rows = [row for row in drawn(options.seed) if not options.classes or row["class"] in options.classes]
    folders = {"this": Path(__file__).resolve().parent.parent, "other": options.other.resolve()}
    times: dict[str, list[list[float | None]]] = {"this": [], "other": []}
    for turn in TURNS:
        times[turn].append(timed_by(folders[turn], rows))
    report = [judged(row, times, i) for i, row in enumerate(rows)]
    if options.out:
        files.write(options.out, json.dumps(report, indent=1))
    slower = table(report, options.noise)
    sys.exit(bool(slower))


# --- rows --------------------------------------------------------------------------------


def drawn(seed: int) -> list[Row]:
    """Returns the rows of a seed: GEMM by TMA, by the multistage kernel and by plain threads, and the rest."""
    draw = random.Random(seed)

    def extent(low: int, high: int, step: int) -> int:
        return round(math.exp(draw.uniform(math.log(low), math.log(high))) / step) * step or step

    def rows(kind: str, count: int, row: Callable[[int], tuple[str, dict[str, int]]]) -> list[Row]:
        return [dict(zip(("class", "text", "sizes"), (kind, *row(i)), strict=True)) for i in range(count)]

    def gemm(e: str, step: int, schedule: str = "") -> tuple[str, dict[str, int]]:
        value = draw.choice(("dot[K](x, w)", "relu(dot[K](x, w))"))
        text = GEMM.format(e=e, value=value)
        text = f"{text[:-1]} schedule sm90a {{ {schedule} }} }}" if schedule else text
        return text, {name: extent(64, 8192, step) for name in ("M", "N", "K")}

    def attention(_: int) -> tuple[str, dict[str, int]]:
        heads = draw.choice((8, 16))
        length = extent(256, 8192, 64)
        shared = draw.choice((1, 4))
        sizes = {"B": draw.choice((1, 2, 4)), "G": heads // shared, "U": shared, "L": length}
        return ATTENTION.format(e=draw.choice(("f16", "bf16"))), sizes | {
            "S": length,
            "D": draw.choice((64, 128)),
        }

    def reduction(i: int) -> tuple[str, dict[str, int]]:
        return REDUCTIONS[i % len(REDUCTIONS)], {"T": extent(512, 16384, 1), "D": extent(512, 16384, 8)}

    def conv(e: str) -> tuple[str, dict[str, int]]:
        side = extent(14, 64, 2)
        channels = {"C": extent(32, 512, 8), "K": extent(32, 512, 8)}
        return CONV.format(e=e), {"N": draw.choice((8, 32)), "H": side, "W": side, **channels}

    return [
        *rows("TMA GEMM", 12, lambda i: gemm(("bf16", "f16", "f32")[i % 3], 16)),
        *rows("multistage GEMM", 8, lambda i: gemm(("bf16", "f16")[i % 2], 1, "warps multistage")),
        *rows("f32 GEMM", 4, lambda i: gemm("f32", 1)),
        *rows("attention", 6, attention),
        *rows("reduction", 12, reduction),
        *rows("convolution", 6, lambda i: conv(("bf16", "f16")[i % 2])),
        *rows("f32 convolution", 4, lambda i: conv("f32")),
    ]


# --- timing ------------------------------------------------------------------------------


def timed_by(folder: Path, rows: Sequence[Row]) -> list[float | None]:
    """Returns microseconds of each row as the checkout compiles it, None where it refuses the program. Raises
    CalledProcessError where the process fails."""
    with tempfile.TemporaryDirectory() as scratch:
        given, answer = Path(scratch, "rows.json"), Path(scratch, "times.json")
        files.put(given, json.dumps(rows))
        code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import checkouts; checkouts.turn()"
        paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        command = [sys.executable, "-c", code, str(given), str(answer)]
        subprocess.run(command, cwd=folder, env=environment, check=True)
        times: list[float | None] = json.loads(answer.read_text(encoding="utf-8"))
        return times


def turn() -> None:
    """A process's turn: builds and times the rows of the file it is given, of the checkout it imports."""
    import torch

    rows = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        prepared = list(pool.map(prepare, rows))
    times = []
    for launcher in prepared:
        times.append(None if launcher is None else median_of(*launcher))
        torch.cuda.empty_cache()
    files.put(Path(sys.argv[2]), json.dumps(times))


def prepare(row: Row) -> tuple[Any, dict[str, int]] | None:
    """Returns the row's kernel, built, and its extents; None, with a line that says so, where it is refused."""
    import torch

    import ucutlass
    from ucutlass.diagnostics import ProgramError
    from ucutlass.runtime.inputs import generate

    try:
        kernel = ucutlass.loads(row["text"])
        kernel(*generate(kernel.program, row["sizes"], "normal", seed=1, device="cuda"))
    except ProgramError as refusal:
        print(f"{row['text']} {row['sizes']}: {refusal}", file=sys.stderr)
        return None
    torch.cuda.synchronize()
    return kernel, row["sizes"]


def median_of(kernel: Any, sizes: dict[str, int]) -> float:
    """Returns the median microseconds of a launch."""
    import torch

    from ucutlass.runtime import timing
    from ucutlass.runtime.inputs import generate

    # Checkouts draw on other devices: numbers are drawn once, and rotated buffers are copies.
    first = list(generate(kernel.program, sizes, "normal", seed=0, device="cuda"))
    count = timing.sets_for(sum(a.numel() * a.element_size() for a in first if isinstance(a, torch.Tensor)))
    sets = [
        first,
        *([a.clone() if isinstance(a, torch.Tensor) else a for a in first] for _ in range(1, count)),
    ]
    results = [kernel(*each) for each in sets]
    launches = {"kernel": lambda i: kernel(*sets[i], out=results[i])}
    return timing.compare(launches, count, rounds=15)["kernel"].median


# --- report ------------------------------------------------------------------------------


def judged(row: Row, times: dict[str, list[list[float | None]]], number: int) -> Row:
    """Returns the row with microseconds of both checkouts and this one's over the other's, None where one of
    them refuses the program."""
    both = {}
    spread = 0.0
    for name, turns in times.items():
        values = [time for turn_ in turns if (time := turn_[number]) is not None]
        both[name] = min(values, default=None)
        spread = max(spread, max(values) / min(values) - 1.0) if values else spread
    this, other = both["this"], both["other"]
    ratio = this / other if this is not None and other is not None else None
    return {**row, **both, "ratio": ratio, "spread": spread}


def table(report: Sequence[Row], noise: float) -> list[Row]:
    """Prints the classes and the slower rows; returns the slower rows."""
    print(f"{'class':24} {'rows':>4} {'this over other':>15} {'worst':>6} {'best':>6} {'spread':>6}")
    for kind in dict.fromkeys(row["class"] for row in report):
        mine = [row for row in report if row["class"] == kind and row["ratio"] is not None]
        if not mine:
            print(f"{kind:24} {0:4}")
            continue
        ratios = [row["ratio"] for row in mine]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        spread = max(row["spread"] for row in mine)
        print(f"{kind:24} {len(mine):4} {mean:15.3f} {max(ratios):6.3f} {min(ratios):6.3f} {spread:6.3f}")
    slower = [
        row for row in report if row["ratio"] is not None and row["ratio"] > 1 + max(noise, row["spread"])
    ]
    refused = [row for row in report if (row["this"] is None) != (row["other"] is None)]
    for row in [*slower, *refused]:
        print(f"{row['this']} us for {row['other']} us: {row['text']} {row['sizes']}")
    return slower


if __name__ == "__main__":
    main()

"""Random programs without a dot: element-wise work, reductions, softmax, scans, windows and gathers.

    python -m benchmarks.random_sweeps --first 0 --count 100 [--processes 2]

Each accepted program's CUDA file runs on the host, emulated, and is judged against the float64 reference
on integers and on normal numbers. Prints how many of each kind were right, and every one that was not.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from benchmarks.emulated import Job, Row, emulate

ELEMENTS = ("f32", "f32", "f16", "bf16")
UNARY = (
    "relu({})",
    "gelu({})",
    "silu({})",
    "tanh({})",
    "sigmoid({})",
    "abs({})",
    "(-{})",
    "exp(-abs({}))",
    "({} * 0.5)",
)
BINARY = ("({} + {})", "({} - {})", "({} * {})", "max({}, {})", "min({}, {})", "where({} > 0, {}, 0.25)")
EXTENTS = (1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 31, 32, 40, 64, 65, 96, 128, 200, 257, 520)
MOST = 30_000
"""Elements of the largest tensor: what the emulator does in seconds."""

KINDS = ("element-wise", "reduction", "normalisation", "softmax", "scan", "window", "gather", "pick")


@dataclass(frozen=True, slots=True)
class Program:
    """A text of one kernel `k`, with extents."""

    kind: str
    text: str
    sizes: dict[str, int]


class Maker:
    """One program of a seed."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.names = list("ABCD"[: self.draw.randint(1, 4)])
        self.sizes: dict[str, int] = {}
        room = MOST
        for name in self.draw.sample(self.names, len(self.names)):
            fits = [n for n in EXTENTS if n <= room] or [1]
            self.sizes[name] = self.draw.choice(fits)
            room //= self.sizes[name]
        self.params = [f"x: {self.draw.choice(ELEMENTS)}[{', '.join(self.names)}]"]
        self.leaves = ["x"]

    def program(self) -> Program:
        kind = self.draw.choice(KINDS)
        for name in ("y", "z"):
            if self.draw.random() < 0.5:
                self.operand(name)
        body, dims = getattr(self, "_" + kind.replace("-", "_"))()
        order = self.draw.sample(dims, len(dims)) if self.draw.random() < 0.3 else dims
        result = f"{'i64' if kind == 'pick' else self.draw.choice(ELEMENTS)}[{', '.join(order)}]"
        text = f"kernel k({', '.join(self.params)}) -> {result} {{\n{body}\n}}\n"
        return Program(kind, text, self.sizes)

    def operand(self, name: str) -> None:
        """Another tensor over some of the names."""
        some = [n for n in self.names if self.draw.random() < 0.6]
        if self.draw.random() < 0.3:
            self.draw.shuffle(some)
        elem = self.draw.choice((*ELEMENTS, "s8", "i32"))
        self.params.append(f"{name}: {elem}[{', '.join(some)}]")
        self.leaves.append(name if elem not in ("s8", "i32") else f"f32({name})")

    def expr(self, depth: int, must: str = "") -> str:
        """A float expression; `must` stands in it."""
        if depth == 0:
            return must or self.draw.choice(
                [*self.leaves, "0.75", f"f32(index({self.draw.choice(self.names)})) * 0.01"]
            )
        if self.draw.random() < 0.4:
            return self.draw.choice(UNARY).format(self.expr(depth - 1, must))
        shape = self.draw.choice(BINARY)
        parts = [self.expr(depth - 1, must), self.expr(self.draw.randint(0, depth - 1))]
        return shape.format(*parts)

    def consumed(self) -> tuple[list[str], list[str]]:
        """Names that are reduced, and those that stay."""
        count = self.draw.randint(1, min(2, len(self.names)))
        over = [n for n in self.names if n in self.draw.sample(self.names, count)] or self.names[-1:]
        return over, [n for n in self.names if n not in over]

    def _element_wise(self) -> tuple[str, list[str]]:
        return f"  return {self.expr(3, 'x')}", self.names

    def _reduction(self) -> tuple[str, list[str]]:
        over, left = self.consumed()
        op = self.draw.choice(("sum", "mean", "max", "min", "logsumexp", "var"))
        return f"  return tanh({op}[{', '.join(over)}]({self.expr(2, 'x')}))", left

    def _normalisation(self) -> tuple[str, list[str]]:
        over, _ = self.consumed()
        names = ", ".join(over)
        return (
            f"  v = {self.expr(1, 'x')}\n  d = v - mean[{names}](v)\n"
            f"  return {self.expr(1, f'(d * rsqrt(mean[{names}](d * d) + 0.1))')}"
        ), self.names

    def _softmax(self) -> tuple[str, list[str]]:
        over, _ = self.consumed()
        kind = self.draw.choice(("softmax", "log_softmax"))
        return f"  return {self.expr(1, f'{kind}[{over[0]}]({self.expr(1, chr(120))})')}", self.names

    def _scan(self) -> tuple[str, list[str]]:
        along = self.draw.choice(self.names)
        options = "".join(f", {o}=true" for o in ("exclusive", "reverse") if self.draw.random() < 0.4)
        return f"  return cumsum[{along}]({self.expr(1, 'x')}{options}) * 0.5", self.names

    def _window(self) -> tuple[str, list[str]]:
        name = self.draw.choice(self.names)
        step, taps = self.draw.randint(1, 3), self.draw.randint(2, 4)
        low = self.draw.randint(0, taps - 1)
        op = self.draw.choice(("max", "min", "sum", "mean"))
        step = step if self.sizes[name] + low >= step else 1
        dims = [n if n != name else f"P=({name}+{low})//{step}" for n in self.names]
        self.leaves = ["x"]
        self.params = self.params[:1]
        return f"  return relu({op}[R={taps}](x[{name} = {step}*P + R - {low}]))", dims

    def _gather(self) -> tuple[str, list[str]]:
        name = self.draw.choice(self.names)
        others = [n for n in self.names if n != name]
        ids = [n for n in others if self.draw.random() < 0.4] + ["J"]
        self.sizes["J"] = self.draw.choice((1, 3, 8, 17))
        self.params = [self.params[0], f"ids: i64[{', '.join(ids)}]"]
        return f"  return x[{name} = min(max(ids, 0), size({name}) - 1)] * 2", [*others, "J"]

    def _pick(self) -> tuple[str, list[str]]:
        name = self.draw.choice(self.names)
        return f"  return {self.draw.choice(('argmax', 'argmin'))}[{name}](x)", [
            n for n in self.names if n != name
        ]


def program(seed: int) -> Program:
    """The program of a seed."""
    return Maker(seed).program()


def job(seed: int) -> Job:
    """It, to be emulated."""
    made = program(seed)
    return Job(f"{seed} {made.kind}", made.text, "k", made.sizes, None, seed)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.count)
    with ThreadPoolExecutor(options.processes) as pool:
        rows = list(pool.map(lambda seed: emulate(job(seed)), seeds))
    print(table(rows))
    sys.exit(any(row.status not in ("right", "rejected") for row in rows))


def table(rows: list[Row]) -> str:
    """Counts by kind and outcome, then what was not right."""
    counted = Counter((row.job.name.split(" ", 1)[1], row.status) for row in rows)
    lines = [f"{kind:14} {status:12} {n}" for (kind, status), n in sorted(counted.items())]
    lines += [
        f"{r.job.name}: {r.status}: {r.detail[:600]}\n{r.job.text}{r.job.sizes}"
        for r in rows
        if r.status != "right"
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()

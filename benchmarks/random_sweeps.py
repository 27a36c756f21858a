"""Random programs without a dot for `benchmarks.random_kernels`: element-wise work, reductions, softmax, scans,
windows and gathers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.emulated import Job

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
COMPOSED = ("of a window", "of a row", "results", "masked", "window sum", "window of two names")
"""Compositions: a reduction, softmax or scan of a window's values, scans and picks of what a row's reductions
give, results of several kinds, masks, weighted windows, windows that two names move. (A window of windows
takes two launches.)"""


@dataclass(frozen=True, slots=True)
class Program:
    """A text of one kernel `k`, with extents."""

    kind: str
    text: str
    sizes: dict[str, int]


class Maker:
    """One program of a seed."""

    def __init__(self, seed: int, kinds: Sequence[str] = KINDS) -> None:
        self.kinds = kinds
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
        self.results = ""

    def program(self) -> Program:
        kind = self.draw.choice(self.kinds)
        for name in ("y", "z"):
            if self.draw.random() < 0.5:
                self.operand(name)
        body, dims = getattr(self, "_" + kind.replace("-", "_").replace(" ", "_"))()
        order = self.draw.sample(dims, len(dims)) if self.draw.random() < 0.3 else dims
        result = f"{'i64' if kind == 'pick' else self.draw.choice(ELEMENTS)}[{', '.join(order)}]"
        result = self.results or result
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

    # --- compositions

    def _windowed(self) -> tuple[str, str, str, list[str]]:
        """A window's values, of a name; the name that it moves, and all names of the values."""
        name, taps = self.draw.choice(self.names), self.draw.randint(2, 4)
        low = self.draw.randint(0, taps - 1)
        op = self.draw.choice(("max", "min", "sum", "mean"))
        dims = [n if n != name else "P" for n in self.names]
        inner = self.draw.choice(("x", "relu(x)", "(x * 0.5)"))
        return f"{op}[R={taps}]({inner}[{name} = P + R - {low}])", name, f"P={name}", dims

    def _of_a_window(self) -> tuple[str, list[str]]:
        value, _, declared, dims = self._windowed()
        over = self.draw.choice(dims)
        shown = {"P": declared}
        whole = [shown.get(d, d) for d in dims]
        left = [shown.get(d, d) for d in dims if d != over]
        name = shown.get(over, over)
        self.leaves, self.params = ["x"], self.params[:1]
        match self.draw.choice(("reduce", "softmax", "scan", "norm")):
            case "reduce":
                op = self.draw.choice(("sum", "mean", "max", "logsumexp"))
                return f"  return tanh({op}[{name}]({value}))", left
            case "softmax":
                return f"  return softmax[{over}]({value})", whole
            case "scan":
                reverse = self.draw.choice(("", ", reverse=true"))
                return f"  return cumsum[{over}]({value}{reverse}) * 0.5", whole
            case _:
                body = f"  v = {value}\n  d = v - mean[{over}](v)\n"
                return f"{body}  return d * rsqrt(mean[{over}](d * d) + 0.1)", whole

    def _of_a_row(self) -> tuple[str, list[str]]:
        over = self.draw.choice(self.names)
        v = self.expr(1, "x")
        match self.draw.choice(("scan", "scan of softmax", "pick", "centred")):
            case "scan":
                options = "".join(f", {o}=true" for o in ("exclusive", "reverse") if self.draw.random() < 0.4)
                body = f"  v = {v}\n  return cumsum[{over}]((v - mean[{over}](v)){options})"
                return f"{body} * 0.25", self.names
            case "scan of softmax":
                return f"  return cumsum[{over}](softmax[{over}]({v}))", self.names
            case "pick":
                return f"  return {v} * f32(argmax[{over}](x))", self.names
            case _:
                spread = f"(max[{over}](v) - min[{over}](v) + 1)"
                return f"  v = {v}\n  return (v - min[{over}](v)) / {spread}", self.names

    def _results(self) -> tuple[str, list[str]]:
        over = self.draw.choice(self.names)
        left = [n for n in self.names if n != over]
        elem = self.draw.choice(ELEMENTS)
        v = self.expr(1, "x")
        few = ", ".join(left)
        self.results = f"(a: {elem}[{', '.join(self.names)}], b: f32[{few}], c: i64[{few}])"
        return (
            f"  v = {v}\n  return a = softmax[{over}](v), b = logsumexp[{over}](v), "
            f"c = {self.draw.choice(('argmax', 'argmin'))}[{over}](x)"
        ), self.names

    def _masked(self) -> tuple[str, list[str]]:
        over = self.draw.choice(self.names)
        other = self.draw.choice(self.names)
        mask = f"index({over}) <= index({other})" if other != over else f"index({over}) % 3 > 0"
        op = self.draw.choice(("softmax", "log_softmax"))
        if self.draw.random() < 0.5:
            return f"  return cumsum[{over}](where({mask}, {self.expr(1, 'x')}, 0))", self.names
        fill = "-inf" if op == "softmax" and other == over else "-30"
        return f"  return {op}[{over}](where({mask}, {self.expr(1, 'x')}, {fill}))", self.names

    def _window_of_two_names(self) -> tuple[str, list[str]]:
        value, dims = self._window()
        dims.insert(self.draw.randint(0, len(dims)), f"O={self.draw.randint(2, 3)}")
        return value.replace("*P + R", f"*P + {self.draw.randint(1, 5)}*O + R"), dims

    def _window_sum(self) -> tuple[str, list[str]]:
        name, taps = self.names[-1], self.draw.randint(2, 4)
        rest = [n for n in self.names[:-1] if self.draw.random() < 0.6]
        self.leaves = ["x"]
        self.params = [self.params[0], f"w: {self.draw.choice(ELEMENTS)}[{', '.join([*rest, f'R={taps}'])}]"]
        dims = [n if n != name else f"P={name}" for n in self.names]
        return f"  return silu(sum[R](x[{name} = P + R - {taps - 1}] * w))", dims


def program(seed: int, kinds: Sequence[str] = KINDS) -> Program:
    """The program of a seed."""
    return Maker(seed, kinds).program()


def job(seed: int, kinds: Sequence[str] = KINDS) -> Job:
    """Returns it, to be emulated."""
    drawn = program(seed, kinds)
    return Job(f"{seed} {drawn.kind}", drawn.text, "k", drawn.sizes, None, seed, seed % 5 == 4)

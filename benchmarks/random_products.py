"""Random grouped, dual, mixed-input and blockwise-scaled GEMMs for `benchmarks.random_kernels`, with random
epilogues, orders in memory and compute types. Small ones are those that plain multiply-adds serve."""

from __future__ import annotations

import random
from collections.abc import Sequence

from benchmarks.emulated import Job
from benchmarks.random_sweeps import Program

KINDS = ("pair", "batched pair", "ragged", "ragged pair", "gradient", "narrow", "scaled")
LANES = ("bf16", "bf16", "f16", "f16", "e4m3", "s8", "tf32", "f32")
UNARY = ("relu({})", "gelu({})", "silu({})", "tanh({})", "sigmoid({})", "({} * 0.5)", "abs({})")
BINARY = ("({} + {})", "({} - {})", "({} * {})", "max({}, {})", "where({} > 0, {}, 0.25)")


class Maker:
    """One program of a seed; on a `host` small ones that plain multiply-adds serve."""

    def __init__(self, seed: int, host: bool) -> None:
        self.draw = random.Random(seed)
        self.host = host
        self.kind = self.draw.choice(KINDS)
        self.lane = self.draw.choice(LANES)
        self.step = 1 if host or self.draw.random() < 0.15 else 16
        self.sizes = {"T": self.rows(), "D": self.extent(), "F": self.extent()}
        if "ragged" in self.kind or self.kind == "gradient":
            groups = self.draw.choice((1, 2, 3, 5, 8, 33, 40))
            self.sizes["O" if self.kind == "gradient" else "E"] = groups + (self.kind == "gradient")
        if self.kind == "batched pair":
            self.sizes["B"] = self.draw.choice((1, 2, 3))
        if self.kind in ("narrow", "scaled"):
            self.lane = self.draw.choice(("bf16", "f16", "e4m3")[: 2 + (self.kind == "scaled")])
        if self.kind == "scaled":
            del self.sizes["D"]
            length = self.draw.choice((20, 33)) if host else 128
            self.sizes |= {"G": self.draw.choice((1, 2, 3, 5)), "J": length}
        self.params: list[str] = []

    def extent(self) -> int:
        most = (7, 13, 33, 65) if self.host else (1, 2, 5, 8, 9, 17, 20)
        return self.draw.choice(most) * (self.step if not self.host else 1)

    def rows(self) -> int:
        return self.draw.choice((1, 7, 40, 77) if self.host else (1, 16, 64, 130, 257, 500, 777))

    def memory(self) -> str:
        return "f32" if self.lane == "tf32" else self.lane

    def operand(self, text: str) -> str:
        return f"tf32({text})" if self.lane == "tf32" else text

    def tensor(self, name: str, elem: str, dims: Sequence[str]) -> str:
        self.params.append(f"{name}: {elem}[{', '.join(dims)}]")
        return name

    def order(self, *dims: str) -> list[str]:
        """Mostly as given; TMA takes narrow or wide lanes along the contracted name alone."""
        return list(dims) if self.draw.random() < 0.6 else self.draw.sample(dims, len(dims))

    def program(self) -> Program:
        special = {"gradient": self._gradient, "narrow": self._narrow, "scaled": self._scaled}
        dots, result, groups = special.get(self.kind, self._products)()
        value = self._epilogue(dots, [d for d in result if d != "E=O-1"], groups)
        elem = self.draw.choice(("bf16", "f16", "f32", "f32", "e4m3" if self.lane == "e4m3" else "bf16"))
        lines = [f"  h = {value}"]
        head = f"{elem}[{', '.join(result)}]"
        if self.draw.random() < 0.25:
            head = f"(y: {head}, z: bool[{', '.join(d.split('=')[0] for d in result)}])"
            lines.append("  return y = h, z = h > 0")
        else:
            lines.append("  return h")
        own = ["  own = segment(T, o) == index(E)"] if self.kind == "gradient" else []
        text = "\n".join([f"kernel k({', '.join(self.params)}) -> {head} {{", *own, *lines, "}"])
        return Program(self.kind, text, self.sizes)

    def _products(self) -> tuple[list[str], list[str], bool]:
        batched, ragged = self.kind == "batched pair", "ragged" in self.kind
        rows = ["B", "T"] if batched else ["T"]
        x_dims = [*rows, "D"] if ragged or batched else self.order("T", "D")
        x = self.operand(self.tensor("x", self.memory(), x_dims))
        weights = ["w", "u"] if "pair" in self.kind else ["w"]
        base = ["E"] if ragged else ["B"] if batched and self.draw.random() < 0.5 else []
        inner = self.order("F", "D")
        dots = []
        for name in weights:
            self.tensor(name, self.memory(), [*base, *inner])
            picked = f"{name}[E = segment(T, o)]" if ragged else name
            pair = [x, self.operand(picked)]
            dots.append(f"dot[D]({', '.join(pair if self.draw.random() < 0.8 else pair[::-1])})")
        if ragged:
            self.params.append(f"o: {self.draw.choice(('i32', 'i64'))}[E+1]")
        return dots, [*rows, "F"] if batched else self.order("T", "F"), ragged

    def _gradient(self) -> tuple[list[str], list[str], bool]:
        x, dy = self.tensor("x", self.memory(), ["T", "D"]), self.tensor("y", self.memory(), ["T", "F"])
        self.params.append(f"o: {self.draw.choice(('i32', 'i64'))}[O]")
        cast = "" if self.lane == "f32" else self.lane
        sides = [f"{cast}(where(own, {name}, 0))" if cast else f"where(own, {name}, 0)" for name in (dy, x)]
        return [f"dot[T]({', '.join(sides)})"], ["E=O-1", *self.order("F", "D")], False

    def _narrow(self) -> tuple[list[str], list[str], bool]:
        x = self.tensor("x", self.lane, ["T", "D"])
        stored = self.draw.choice(("s4", "s8", "u8", "e4m3", "e5m2"))
        self.sizes["D"] += self.sizes["D"] % 2 if stored == "s4" else 0
        w = self.tensor("w", stored, ["F", "D"])
        pair = [x, f"{self.lane}({w})"]
        dot = f"dot[D]({', '.join(pair if self.draw.random() < 0.7 else pair[::-1])})"
        return [f"({dot} * 0.1)"], self.order("T", "F"), False

    def _scaled(self) -> tuple[list[str], list[str], bool]:
        stored = self.draw.choice((self.lane, self.lane, "s8", "s4")) if self.lane != "e4m3" else self.lane
        if stored == "s4" and self.sizes["G"] * self.sizes["J"] % 2:
            stored = "s8"
        x = self.tensor("x", self.lane, ["T", "(G J)"])
        w = self.tensor("w", stored, ["F", "(G J)"])
        w = w if stored == self.lane else f"{self.lane}({w})"
        scales = [
            self.tensor(name, self.draw.choice(("f32", "bf16")), self.order(d, "G"))
            for name, d in (("a", "T"), ("b", "F"))
            if self.draw.random() < 0.7
        ] or [self.tensor("a", "f32", ["T", "G"])]
        factors = [f"dot[J]({x}, {w})", *scales]
        return (
            [f"sum[G]({' * '.join(factors if self.draw.random() < 0.7 else factors[::-1])})"],
            self.order("T", "F"),
            False,
        )

    def _epilogue(self, dots: list[str], dims: list[str], groups: bool) -> str:
        scaled = f"({dots[0]} * {0.001 if self.lane == 's8' else 0.1})"
        value = self.draw.choice(UNARY).format(scaled) if self.draw.random() < 0.6 else scaled
        if len(dots) == 2:
            other = f"({dots[1]} * {0.001 if self.lane == 's8' else 0.1})"
            value = self.draw.choice(BINARY).format(value, other)
        for name in ("p", "q"):
            if self.draw.random() < 0.45:
                shape = self.draw.choice((["F"] if "F" in dims else dims[:1], dims[:1], dims, []))
                operand = self.tensor(name, self.draw.choice(("f32", "bf16", "f16")), shape)
                value = self.draw.choice(BINARY).format(value, operand)
        if groups and self.draw.random() < 0.5:
            self.tensor("g", "f32", ["E", "F"])
            value = f"({value} + g[E = segment(T, o)])"
        if self.draw.random() < 0.3:
            self.params.append("s: f32")
            value = f"({value} * s)"
        if self.draw.random() < 0.2:
            value = f"({value} + index(F) * 0.01)"
        return value


def program(seed: int, host: bool = False) -> Program:
    """The program of a seed."""
    return Maker(seed, host).program()


def job(seed: int) -> Job:
    """Returns the small program of a seed, to be emulated."""
    small = program(seed, True)
    return Job(f"{seed} {small.kind}", small.text, "k", small.sizes, None, seed)

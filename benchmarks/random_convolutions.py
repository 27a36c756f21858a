"""Random convolutions for `benchmarks.random_kernels`: every order of names in memory, of each tensor by itself;
strides, dilations, flips, divided positions, axes without windows, groups as one axis with their channels or
anywhere, which names are summed, compute types, odd channels, epilogues, tensors that do not begin at a multiple
of 16 bytes."""

from __future__ import annotations

from random import Random

from benchmarks.emulated import Job
from benchmarks.random_sweeps import Program

LANES = ("f16", "f16", "bf16", "bf16", "tf32", "f32")
CHANNELS = (1, 3, 5, 8, 16, 24, 32, 40, 64, 72)
GROUPED = ("GC", "GK")
COLUMNS = (1, 7, 8, 16, 33, 64, 72)


class Maker:
    """A drawn program: `text`, `sizes` and `kind`."""

    def __init__(self, draw: Random) -> None:
        self.draw = draw
        self.lane = draw.choice(LANES)
        self.kind = draw.choices(("forward", "weights", "depthwise", "summed"), (6, 2, 1, 1))[0]
        self.space = draw.choice((1, 2, 2, 2, 3))
        self.grouped = self.kind == "forward" and draw.random() < 0.15
        self.sizes = {"N": draw.choice((1, 2, 3, 4, 8)), "C": draw.choice(CHANNELS)}
        if self.kind in ("forward", "weights"):
            self.sizes["K"] = draw.choice(COLUMNS)
        if self.grouped:
            self.sizes["G"] = draw.choice((2, 3))
        self.windowed = [i for i in range(self.space) if i == 0 or draw.random() < 0.8]
        self.windows = [self.window(i) for i in self.windowed]
        plain = [f"X{i}" for i in range(self.space) if i not in self.windowed]
        self.sizes |= {x: draw.choice((1, 2, 3, 4, 8)) for x in plain}
        self.listed = draw.choice((0.25, 0.9))
        self.text = self.program()

    def window(self, i: int) -> str:
        """An equation over axis i: X0 = .. P0 .. R0 .."""
        draw, x, p, r = self.draw, f"X{i}", f"P{i}", f"R{i}"
        most = {1: 25, 2: 8, 3: 5}[self.space]
        self.sizes |= {x: draw.randint(1, most), p: draw.randint(1, most), r: draw.randint(1, 3)}
        scale = draw.choice((1, 1, 1, 2, 3))
        along = 1 if scale > 1 else draw.choice((1, 1, 2, 3))
        tap = draw.choice((1, 1, 2, -1))
        terms = f"{along}*{p} {'-' if tap < 0 else '+'} {abs(tap)}*{r} + ({draw.randint(-3, 3)})"
        self.sizes[r] = min(self.sizes[r], 4)
        return f"{scale}*{x} = {terms}" if scale > 1 else f"{x} = {terms}"

    def order(self, names: list[str]) -> str:
        """Names in memory: as they are listed, channels last, or any order, in which groups stand beside
        their channels or anywhere. `listed` is the share of the first."""
        if self.draw.random() < self.listed:
            return ", ".join(map(_axis, names))
        apart = self.draw.random() < 0.5
        axes = [axis for n in names for axis in (list(n) if apart and n in GROUPED else [n])]
        return ", ".join(map(_axis, self.draw.sample(axes, len(axes))))

    def program(self) -> str:
        rooms = [f"X{i}" for i in range(self.space)]
        places = [f"P{i}" if i in self.windowed else f"X{i}" for i in range(self.space)]
        taps = [f"R{i}" for i in self.windowed]
        c, k = ("GC", "GK") if self.grouped else ("C", "K")
        x = ["N", *rooms, c]
        match self.kind:
            case "forward":
                w, over, result = [k, *taps, "C"], [*taps, "C"], ["N", *places, k]
            case "weights":
                w, over, result = ["N", *places, k], ["N", *places], [k, *taps, c]
            case _:
                w, over, result = [*taps, c], taps, ["N", *places, c]
        stored = "f32" if self.lane == "tf32" else self.lane
        fixed = [n for n in ("G", *taps) if n in self.sizes and (n == "G" or self.draw.random() < 0.7)]
        read, weights = f"x[{', '.join(self.windows)}]", "w"
        if self.lane == "tf32" and self.kind != "summed":
            read, weights = f"tf32({read})", "tf32(w)"
        sides = (read, weights) if self.draw.random() < 0.7 else (weights, read)
        value = f"dot[{', '.join(over)}]({sides[0]}, {sides[1]})"
        if self.kind == "summed":
            value = f"sum[{', '.join(over)}]({sides[0]} * {sides[1]})"
        params = [f"x: {stored}[{self.order(x)}]", f"w: {stored}[{self.order(w)}]"]
        value = self.outcome(value, result, params)
        elem = self.draw.choice((stored, stored, "f32"))
        head = ", ".join(params)
        for name in fixed:
            head = _first(head, name, f"{name}={self.sizes[name]}") if _stands(head, name) else head
        type_ = f"{elem}[{self.order(result)}]"
        for name in (*places, *taps):
            if not _stands(head, name):
                type_ = _first(type_, name, f"{name}={self.sizes[name]}")
        return f"kernel k({head}) -> {type_} {{\n  return {value}\n}}\n"

    def outcome(self, value: str, result: list[str], params: list[str]) -> str:
        draw = self.draw
        if draw.random() < 0.4:
            name = draw.choice(result)
            params.append(f"b: f32[{_axis(name)}]")
            value = f"{value} + b"
        if draw.random() < 0.25:
            params.append(f"y: f32[{self.order(result)}]")
            value = f"{value} * 0.5 + y"
        return f"relu({value})" if draw.random() < 0.3 else value


def _axis(name: str) -> str:
    """A name as it is declared; groups and their channels as one axis."""
    return f"({' '.join(name)})" if name in GROUPED else name


def _stands(head: str, name: str) -> bool:
    """Whether an operand but the epilogue's has the name."""
    own = head.partition(", b: ")[0].partition(", y: ")[0]
    return _first(own, name, "") != own or f"{name}=" in own


def _first(head: str, name: str, value: str) -> str:
    """The extent at the name's first place in the types."""
    for before, after in ((" ", ","), (" ", "]"), ("[", ","), ("[", "]"), ("(", " ")):
        at = head.find(f"{before}{name}{after}")
        if at >= 0:
            return f"{head[: at + 1]}{value}{head[at + 1 + len(name) :]}"
    return head


def seeded(seed: int) -> Maker:
    """The program of a seed."""
    return Maker(Random(f"convolution {seed}"))


def program(seed: int) -> Program:
    """The program of a seed."""
    drawn = seeded(seed)
    return Program(f"{drawn.kind} {drawn.lane}", drawn.text, drawn.sizes)


def job(seed: int) -> Job:
    """The program of a seed, to be emulated."""
    drawn = seeded(seed)
    return Job(f"{seed} {drawn.kind} {drawn.lane}", drawn.text, "k", drawn.sizes, None, seed, seed % 5 == 4)

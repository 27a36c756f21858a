"""Random programs over the whole schedule and epilogue space of the GEMM families.

A program comes from its seed alone. Nothing here knows the legality rules: what is illegal is
proposed too, and the checker decides.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

COMPUTE_TYPES = ("bf16", "f16", "f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "f32")
EXTENTS = (
    1,
    2,
    3,
    7,
    8,
    16,
    17,
    31,
    32,
    40,
    64,
    100,
    127,
    128,
    129,
    192,
    200,
    256,
    264,
    384,
    509,
    512,
    520,
    768,
    1000,
)
ALIGNED = (16, 32, 64, 128, 144, 192, 256, 320, 384, 512, 640, 1024)
UNARY = (
    "relu",
    "gelu",
    "gelu_tanh",
    "silu",
    "sigmoid",
    "tanh",
    "softplus",
    "elu",
    "selu",
    "mish",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "abs",
    "erf",
    "sign",
    "floor",
)
WARPS = ("pingpong", "cooperative", "multistage", "gemv")


@dataclass(frozen=True, slots=True)
class RandomProgram:
    """A program's text, the extents of its free dimensions, and its seed."""

    seed: int
    text: str
    sizes: dict[str, int]


MOST_WORK = 2**20
"""Multiplications of a small program."""


def random_program(seed: int, warps: Sequence[str] = WARPS, small: bool = False) -> RandomProgram:
    """The program of a seed. `warps` are the kernels that its schedule may name; `small` asks for
    extents of at most 80 and MOST_WORK."""
    return _Draw(seed, warps, small).program()


def _shrunk(sizes: dict[str, int], r: random.Random) -> dict[str, int]:
    """Extents up to 8 as they are; the others become odd multiples of a power of two, which is
    theirs (at most 16) in half of the programs, and differ where they can."""
    keep = r.random() < 0.5
    units = {d: math.gcd(n, 16) if keep else r.choice((1, 1, 2, 4, 8)) for d, n in sizes.items()}
    small = {d: n for d, n in sizes.items() if n <= 8}
    for name in [d for d in sizes if d not in small]:
        choices = [n for n in range(units[name], 81, 2 * units[name]) if n > 8]
        small[name] = r.choice([n for n in choices if n not in small.values()] or choices)
    while math.prod(small.values()) > MOST_WORK:
        longest = max(small, key=lambda d: small[d])
        small[longest] = units[longest] if small[longest] > units[longest] else small[longest] // 2
    return {d: small[d] for d in sizes}


class _Draw:
    def __init__(self, seed: int, warps: Sequence[str], small: bool) -> None:
        self.seed = seed
        self.r = random.Random(seed)
        self.params: list[str] = []
        self.determined: set[str] = set()
        self.fixed: set[str] = set()
        self.compute_type = self.r.choice(COMPUTE_TYPES)
        self.batch = self.r.choices(([], ["B"], ["B", "C"]), (6, 4, 1))[0]
        self.m = self.r.choices((["M"], ["M", "U"], []), (12, 3, 1))[0]
        self.n = self.r.choices((["N"], ["N", "V"], []), (12, 3, 1))[0]
        self.k = self.r.choices((["K"], ["K", "L"]), (10, 1))[0]
        self.gram = self.r.random() < 0.06
        """x times a rename of itself: N is M under another name."""
        if self.gram:
            self.m, self.n = ["M"], ["J"]
        self.any_warps = len(warps) == len(WARPS)
        self.warps = self.r.choice([w for w in warps if self.possible(w)] or list(warps))
        self.extents = _shrunk(self.sizes(), random.Random(seed)) if small else self.sizes()
        if self.gram:
            self.extents["J"] = self.extents["M"]

    def possible(self, warps: str) -> bool:
        return self.compute_type != "f32" or warps in ("multistage", "gemv")

    def program(self) -> RandomProgram:
        memory = {"tf32": "f32"}.get(self.compute_type, self.compute_type)
        shared_a = [d for d in self.batch if self.r.random() < 0.85]
        shared_b = [d for d in self.batch if self.r.random() < 0.85 or d not in shared_a]
        if self.gram:
            self.batch = shared_b = shared_a
        self.params.append(f"x: {memory}{self.parameter(shared_a + self.m + self.k)}")
        if not self.gram:
            self.params.append(f"w: {memory}{self.parameter(shared_b + self.n + self.k)}")
        wrap = "tf32({})" if self.compute_type == "tf32" else "{}"
        left, right = "x", "x[M = J]" if self.gram else "w"
        if self.gram and self.r.random() < 0.3:
            left, right = right, left
        dot = f"dot[{', '.join(self.k)}]({wrap.format(left)}, {wrap.format(right)}{self.accumulation()})"
        lines = [f"  d = {dot}"]
        values = self.epilogue(lines)
        results, returned = self.results(values)
        text = (
            f"kernel k({', '.join(self.params)}) -> {results} {{\n"
            + "\n".join(lines)
            + f"\n  return {returned}\n{self.schedules()}}}\n"
        )
        free = {d: n for d, n in self.extents.items() if d not in self.fixed and d != "J"}
        return RandomProgram(self.seed, text, {d: n for d, n in free.items() if d in self.used(text)})

    def used(self, text: str) -> set[str]:
        head = text.split("->")[0]
        return {d for d in self.extents if any(f"{a}{d}{b}" in head for a in "[( " for b in "]), ")}

    def accumulation(self) -> str:
        if self.compute_type == "f16" and self.r.random() < 0.2:
            return ", acc=f16"
        if self.compute_type in ("e4m3", "e5m2") and self.r.random() < 0.4:
            return ", acc=fast"
        return ""

    @property
    def dims(self) -> list[str]:
        return self.batch + self.m + self.n

    # --- types --------------------------------------------------------------------

    def axes(self, dims: Sequence[str], ordered: float = 0.5, parameter: bool = False) -> str:
        order = list(dims)
        if self.r.random() > ordered:
            self.r.shuffle(order)
        parts: list[str] = []
        while order:
            take = min(len(order), self.r.choices((1, 2, 3), (84, 14, 2))[0])
            taken = order[:take]
            del order[:take]
            names = self.determine(taken) if parameter else taken
            parts.append(f"({' '.join(names)})" if take > 1 else names[0])
        if self.r.random() < 0.06:
            parts.insert(self.r.randint(0, len(parts)), "1")
        return f"[{', '.join(parts)}]"

    def parameter(self, dims: Sequence[str], ordered: float = 0.5) -> str:
        return self.axes(dims, ordered, parameter=True)

    def determine(self, axis: list[str]) -> list[str]:
        """The names of one axis, with extents where no parameter so far says them; J's is M's."""
        unknown = [d for d in axis if d not in self.determined]
        known = unknown[1:] if len(unknown) > 1 else []
        if len(axis) == 1 and unknown and self.r.random() < 0.05:
            known = unknown
        self.determined |= set(axis)
        self.fixed |= set(known)
        return [f"{d}={self.extents[d]}" if d in known else d for d in axis]

    # --- expressions --------------------------------------------------------------

    def operand(self, kind: str = "") -> str:
        """A new parameter to compute with, read under another name now and then."""
        name = f"p{len(self.params)}"
        shape = self.r.choice(("scalar", "device", "n", "m", "full", "batch", "n", "full", "some"))
        elem = kind or self.element_of_operand()
        if shape == "scalar":
            number = kind or self.r.choice(("f32", "f32", "f16", "i32"))
            self.params.append(f"{name}: {number}")
            return name
        dims = {
            "device": [],
            "n": self.n,
            "m": self.m,
            "full": self.dims,
            "batch": self.batch[:1],
            "some": [d for d in self.dims if self.r.random() < 0.5],
        }[shape]
        if shape in ("n", "m") and self.batch and self.r.random() < 0.3:
            dims = [self.batch[0], *dims]
        if self.gram:
            return self.renamed(name, elem, dims)
        self.params.append(f"{name}: {elem}{self.parameter(dims, 0.7) if dims else '[]'}")
        return name

    def renamed(self, name: str, elem: str, dims: Sequence[str]) -> str:
        """An operand beside a Gram matrix: over J only by a rename, or with J's extent written."""
        if "J" not in dims:
            self.params.append(f"{name}: {elem}{self.parameter(dims, 0.7) if dims else '[]'}")
            return name
        if "M" not in dims:
            stored = ["M" if d == "J" else d for d in dims]
            self.params.append(f"{name}: {elem}{self.parameter(stored, 0.7)}")
            return f"{name}[M = J]"
        stored = [d for d in dims if d != "J"] + ["T"]
        self.extents["T"] = self.extents["M"]
        self.params.append(f"{name}: {elem}{self.axes(stored, 0.7).replace('T', 'T=M')}")
        self.determined.add("T")
        self.fixed.add("T")
        return f"{name}[T = J]"

    def element_of_operand(self) -> str:
        if self.compute_type == "s8":
            return self.r.choice(("f32", "f32", "i32", "u8", "s8"))
        return self.r.choice(("f32", "f16", "bf16", "f32", "f16", "bf16", "e4m3", "u8", "i32", "s8"))

    def epilogue(self, lines: list[str]) -> list[str]:
        """Bindings of the epilogue; the last one is the plain result."""
        values = ["d"]
        value = "d"
        if self.compute_type in ("e4m3", "e5m2", "s8") and self.r.random() < 0.5:
            value = f"{value} * {self.r.choice((0.25, 0.5, 0.125))}"
        for step in range(self.r.choice((0, 1, 1, 2, 2, 3, 4))):
            value = self.step(value)
            lines.append(f"  v{step} = {value}")
            value = f"v{step}"
            values.append(value)
        return [*values[:-1], value] if value in values else [*values, value]

    def step(self, value: str) -> str:
        kind = self.r.choice(
            (
                "unary",
                "unary",
                "add",
                "add",
                "mul",
                "minmax",
                "where",
                "mask",
                "cast",
                "clamp",
                "exp",
                "choose",
                "coordinate",
            )
        )
        match kind:
            case "unary":
                return f"{self.r.choice(UNARY)}({value})"
            case "add":
                return f"{value} {self.r.choice('+-')} {self.operand()}"
            case "mul":
                return f"{value} * {self.operand()}"
            case "minmax":
                return f"{self.r.choice(('min', 'max'))}({value}, {self.operand()})"
            case "where":
                limit = self.operand()
                return f"where({value} > {limit}, {value}, {self.r.choice(('0', '1.5', value + ' * 0.5'))})"
            case "choose":
                return f"where({self.operand('bool')}, {value}, {self.r.choice(('0', '-1', 'd'))})"
            case "mask" if self.dims:
                return f"where({self.mask()}, {value}, {self.r.choice(('0', '-1'))})"
            case "coordinate" if self.dims:
                along = self.r.choice(self.dims)
                return f"{value} + {self.r.choice((f'index({along}) % 5', f'size({along}) * 0.125'))}"
            case "cast":
                return f"{self.r.choice(('bf16', 'f16', 'f32'))}({value})"
            case "exp":
                return f"exp(-abs({value}))"
            case _:
                return f"clamp({value}, -{self.r.randint(1, 9)}.5, {self.r.randint(1, 9)})"

    def mask(self) -> str:
        """A comparison of coordinates, of any of the dot's dimensions, batch ones too."""
        left, right = self.r.choice(self.dims), self.r.choice(self.dims)
        compare, shift = self.r.choice(("<=", ">", "!=")), self.r.randint(-3, 40)
        mask = f"index({left}) {compare} index({right}) + {shift}"
        if self.r.random() < 0.2:
            mask = f"{mask} {self.r.choice(('and', 'or'))} not index({left}) < {self.r.randint(1, 20)}"
        return mask

    def results(self, values: Sequence[str]) -> tuple[str, str]:
        value = values[-1]
        outputs = [self.stored(value)]
        while self.r.random() < 0.3 and len(outputs) < 3:
            if self.r.random() < 0.4:
                outputs.append(self.stored(self.r.choice(values)))
                continue
            some = [d for d in self.dims if self.r.random() < 0.5]
            over = self.r.choice((self.n, self.m, self.m + self.n, self.dims, self.batch, some))
            rest = [x for x in self.dims if x not in over]
            if not over:
                continue
            op = self.r.choice(("sum", "max", "min", "mean"))
            floats, integers = ("f32", "f32", "f16", "bf16"), ("i32", "i32", "f32")
            elem = self.r.choice(integers if self.compute_type == "s8" else floats)
            reduced = f"{op}[{', '.join(over)}]({self.r.choice(values)})"
            outputs.append((f"{elem}{self.axes(rest, 0.8) if rest else '[]'}", reduced))
        if len(outputs) == 1:
            return outputs[0]
        types = ", ".join(f"y{i}: {t}" for i, (t, _) in enumerate(outputs))
        return f"({types})", ", ".join(f"y{i} = {v}" for i, (_, v) in enumerate(outputs))

    def stored(self, value: str) -> tuple[str, str]:
        shape = self.axes(self.dims, 0.7) if self.dims else "[]"
        if self.r.random() < 0.06:
            return f"bool{shape}", f"{value} > {self.r.choice(('0', '0.5', 'd'))}"
        if self.compute_type == "s8":
            return f"{self.r.choice(('i32', 'f32', 's8', 'f16'))}{shape}", value
        narrow = "e4m3" if self.compute_type.startswith("e") else "f32"
        return f"{self.r.choice(('f32', 'f16', 'bf16', 'bf16', 'f16', narrow))}{shape}", value

    # --- schedules ----------------------------------------------------------------

    def schedules(self) -> str:
        if self.any_warps and self.r.random() < 0.15:
            return ""
        blocks: list[str] = []
        if self.r.random() < 0.15:
            dim = self.r.choice([d for d in (*self.m, *self.n, *self.k) if d != "J"])
            test = self.r.choice((f"{dim} <= {self.r.choice(ALIGNED)}", f"{dim} % 64 == 0 and {dim} > 16"))
            blocks.append(f"\n  schedule sm90a when {test} {self.block()}")
        if self.r.random() < 0.05:
            blocks.append("\n  schedule sm80 { stages 3 }")
        return "".join([*blocks, f"\n  schedule sm90a {self.block()}\n"])

    def block(self) -> str:
        fields = [f"warps {self.warps}"]
        k = {"tf32": 32, "f32": 32, "e4m3": 128, "e5m2": 128, "s8": 128}.get(self.compute_type, 64)
        if self.warps in ("pingpong", "cooperative"):
            tiles = [self.hopper_tile(k) for _ in range(self.r.choices((1, 2), (6, 1))[0])]
            fields.append(f"tile {' or '.join(tiles)}")
            self.maybe(fields, 0.6, "cluster", ("1x1", "2x1", "1x2", "2x2", "4x1", "1x4"))
            self.maybe(fields, 0.3, "stages", (2, 3, 4, 5, 7, "2 or auto"))
            if self.warps == "cooperative":
                self.maybe(fields, 0.3, "split_k", (1, 2, 3, 4, "stream"))
                self.maybe(fields, 0.1, "partials", ("memory", "cluster"))
        elif self.warps == "multistage":
            m, n = self.r.choice((32, 64, 128, 256)), self.r.choice((32, 64, 128, 256))
            fields.append(f"tile {m}x{n}x{self.r.choice((16, 32, 64))}")
            self.maybe(fields, 0.3, "stages", (2, 3, 4, "3 or 2"))
            self.maybe(fields, 0.3, "split_k", (1, 2, 3, 5, "2 or 4"))
            if self.compute_type == "f32":
                self.maybe(fields, 0.7, "math", ("simt", "tf32x3", "simt or tf32x3"))
        else:
            self.maybe(fields, 0.5, "rows", (1, 2, 4, 8, 16))
            self.maybe(fields, 0.5, "threads", (32, 64, 128, 256, 512))
        if self.warps != "gemv":
            self.maybe(fields, 0.3, "raster", ("along_m", "along_n", "heuristic"))
            self.maybe(fields, 0.3, "swizzle", (1, 2, 4, 8))
        self.maybe(fields, 0.2, "swap", ("yes", "no", "yes or no"))
        return f"{{ {'  '.join(fields)} }}"

    def hopper_tile(self, k: int) -> str:
        m = self.r.choice((64, 64, 128) if self.warps == "pingpong" else (128, 128, 256))
        n = self.r.choice((16, 32, 48, 64, 96, 128, 128, 160, 192, 256))
        return f"{m}x{n}x{self.r.choice((k, k, k, k // 2, k * 2))}"

    def maybe(self, fields: list[str], chance: float, name: str, values: tuple[object, ...]) -> None:
        if self.r.random() < chance:
            fields.append(f"{name} {self.r.choice(values)}")

    # --- extents ------------------------------------------------------------------

    def sizes(self) -> dict[str, int]:
        pool = ALIGNED if self.r.random() < 0.75 else EXTENTS
        sizes = {d: self.r.choice(pool) for d in (*self.m, *self.n, *self.k)}
        if len(self.m) > 1:
            sizes["U"] = self.r.choice((2, 3, 8, 16))
        if len(self.n) > 1:
            sizes["V"] = self.r.choice((2, 8, 16, 24))
        if len(self.k) > 1:
            sizes["L"] = self.r.choice((2, 3, 16, 32))
        if self.r.random() < 0.3:
            sizes[self.r.choice([*self.m, *self.n] or self.k)] = self.r.choice(EXTENTS)
        if self.warps == "gemv" and self.r.random() < 0.8:
            few = self.r.choice([side for side in (self.m, self.n) if side] or [[]])
            sizes |= {d: self.r.choice((1, 2, 3, 8) if i == 0 else (1, 2)) for i, d in enumerate(few)}
        sizes.pop("J", None)
        return sizes | {d: self.r.choice((1, 2, 3, 5)) for d in self.batch}

"""Random programs over the whole schedule and epilogue space of the GEMM families.

A program comes from its seed alone. Nothing here knows the legality rules: what is illegal is
proposed too, and the checker decides.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

LANES = ("bf16", "f16", "f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "f32")
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
    "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "softplus", "elu", "selu", "mish", "hardswish",
    "hardtanh", "leaky_relu", "abs", "erf", "sign", "floor",
)


@dataclass(frozen=True, slots=True)
class RandomProgram:
    """A program's text, the extents of its free dimensions, and its seed."""

    seed: int
    text: str
    sizes: dict[str, int]


def random_program(seed: int) -> RandomProgram:
    return _Draw(seed).program()


class _Draw:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.r = random.Random(seed)
        self.params: list[str] = []
        self.lane = self.r.choice(LANES)
        self.batch = self.r.choices(([], ["B"], ["B", "C"]), (6, 4, 1))[0]
        self.m = self.r.choices((["M"], ["M", "U"], []), (12, 2, 1))[0]
        self.n = self.r.choices((["N"], ["N", "V"], []), (12, 2, 1))[0]
        self.k = self.r.choices((["K"], ["K", "J"]), (12, 1))[0]

    def program(self) -> RandomProgram:
        memory = {"tf32": "f32"}.get(self.lane, self.lane)
        shared_a = [d for d in self.batch if self.r.random() < 0.85]
        shared_b = [d for d in self.batch if self.r.random() < 0.85 or d not in shared_a]
        self.params.append(f"x: {memory}{self.axes(shared_a + self.m + self.k)}")
        self.params.append(f"w: {memory}{self.axes(shared_b + self.n + self.k)}")
        wrap = "tf32({})" if self.lane == "tf32" else "{}"
        acc = ""
        if self.lane == "f16" and self.r.random() < 0.2:
            acc = ", acc=f16"
        if self.lane in ("e4m3", "e5m2") and self.r.random() < 0.4:
            acc = ", acc=fast"
        dot = f"dot[{', '.join(self.k)}]({wrap.format('x')}, {wrap.format('w')}{acc})"
        lines = [f"  d = {dot}"]
        value = self.epilogue(lines)
        results, returned = self.results(value)
        text = (
            f"kernel k({', '.join(self.params)}) -> {results} {{\n" + "\n".join(lines)
            + f"\n  return {returned}\n{self.schedule()}}}\n"
        )
        return RandomProgram(self.seed, text, self.sizes())

    @property
    def dims(self) -> list[str]:
        return self.batch + self.m + self.n

    def axes(self, dims: list[str], ordered: float = 0.5) -> str:
        order = list(dims)
        if self.r.random() > ordered:
            self.r.shuffle(order)
        parts: list[str] = []
        while order:
            take = 2 if len(order) > 1 and self.r.random() < 0.06 else 1
            parts.append(order[0] if take == 1 else f"({' '.join(order[:2])})")
            del order[:take]
        return f"[{', '.join(parts)}]"

    def operand(self, lines: list[str]) -> str:
        name = f"p{len(self.params)}"
        kind = self.r.choice(("scalar", "device", "n", "m", "full", "batch", "n", "full"))
        elem = (
            self.r.choice(("f32", "f16", "bf16"))
            if self.lane != "s8"
            else self.r.choice(("f32", "f32", "i32"))
        )
        if kind == "scalar":
            self.params.append(f"{name}: f32")
            return name
        dims = {
            "device": [], "n": self.n, "m": self.m, "full": self.dims, "batch": self.batch[:1],
        }[kind]
        if kind in ("n", "m") and self.batch and self.r.random() < 0.3:
            dims = [self.batch[0], *dims]
        self.params.append(f"{name}: {elem}{self.axes(list(dims), 0.7) if dims else '[]'}")
        return name

    def epilogue(self, lines: list[str]) -> str:
        value = "d"
        if self.lane in ("e4m3", "e5m2", "s8") and self.r.random() < 0.5:
            value = f"{value} * {self.r.choice((0.25, 0.5, 0.125))}"
        for step in range(self.r.choice((0, 1, 1, 2, 2, 3, 4))):
            value = self.step(value, lines)
            lines.append(f"  v{step} = {value}")
            value = f"v{step}"
        return value

    def step(self, value: str, lines: list[str]) -> str:
        kind = self.r.choice(
            ("unary", "unary", "add", "add", "mul", "minmax", "where", "mask", "cast", "clamp", "exp")
        )
        match kind:
            case "unary":
                return f"{self.r.choice(UNARY)}({value})"
            case "add":
                return f"{value} {self.r.choice('+-')} {self.operand(lines)}"
            case "mul":
                return f"{value} * {self.operand(lines)}"
            case "minmax":
                return f"{self.r.choice(('min', 'max'))}({value}, {self.operand(lines)})"
            case "where":
                limit = self.operand(lines)
                return f"where({value} > {limit}, {value}, {self.r.choice(('0', '1.5', value + ' * 0.5'))})"
            case "mask" if self.m and self.n:
                compare, shift = self.r.choice(("<=", ">", "!=")), self.r.randint(-3, 90)
                mask = f"index({self.n[0]}) {compare} index({self.m[-1]}) + {shift}"
                return f"where({mask}, {value}, {self.r.choice(('0', '-1'))})"
            case "cast":
                return f"{self.r.choice(('bf16', 'f16'))}({value})"
            case "exp":
                return f"exp(-abs({value}))"
            case _:
                return f"clamp({value}, -{self.r.randint(1, 9)}.5, {self.r.randint(1, 9)})"

    def element(self) -> str:
        if self.lane == "s8":
            return self.r.choice(("i32", "f32", "s8", "f16"))
        return self.r.choice(
            ("f32", "f16", "bf16", "bf16", "f16", "e4m3" if self.lane.startswith("e") else "f32")
        )

    def results(self, value: str) -> tuple[str, str]:
        outputs = [(f"{self.element()}{self.axes(self.dims, 0.7) if self.dims else '[]'}", value)]
        while self.r.random() < 0.3 and len(outputs) < 3:
            if self.r.random() < 0.4:
                outputs.append(
                    (
                        f"{self.element()}{self.axes(self.dims, 0.8) if self.dims else '[]'}",
                        self.r.choice(("d", value)),
                    )
                )
                continue
            over = self.r.choice((self.n, self.m, self.m + self.n, self.dims))
            rest = [x for x in self.dims if x not in over]
            if not over:
                continue
            op = self.r.choice(("sum", "max", "min", "mean"))
            elem = self.r.choice(("f32", "f32", "f16", "bf16"))
            outputs.append(
                (f"{elem}{self.axes(rest, 0.8) if rest else '[]'}", f"{op}[{', '.join(over)}]({value})")
            )
        if len(outputs) == 1:
            return outputs[0]
        types = ", ".join(f"y{i}: {t}" for i, (t, _) in enumerate(outputs))
        return f"({types})", ", ".join(f"y{i} = {v}" for i, (_, v) in enumerate(outputs))

    def schedule(self) -> str:
        if self.r.random() < 0.15:
            return ""
        warps = self.r.choice(("pingpong", "cooperative", "cooperative", "pingpong", "multistage", "gemv"))
        if self.lane == "f32":
            warps = self.r.choice(("multistage", "multistage", "gemv"))
        fields = [f"warps {warps}"]
        k = {"tf32": 32, "f32": 32, "e4m3": 128, "e5m2": 128, "s8": 128}.get(self.lane, 64)
        if warps in ("pingpong", "cooperative"):
            m = self.r.choice((64, 64, 128) if warps == "pingpong" else (128, 128, 256))
            n = self.r.choice((16, 32, 48, 64, 96, 128, 128, 160, 192, 256))
            fields.append(f"tile {m}x{n}x{self.r.choice((k, k, k, k // 2, k * 2))}")
            self.maybe(fields, 0.6, "cluster", ("1x1", "2x1", "1x2", "2x2", "4x1", "1x4"))
            self.maybe(fields, 0.3, "stages", (2, 3, 4, 5, 7))
            if warps == "cooperative":
                self.maybe(fields, 0.3, "split_k", (1, 2, 3, 4, "stream"))
        elif warps == "multistage":
            m, n = self.r.choice((32, 64, 128, 256)), self.r.choice((32, 64, 128, 256))
            fields.append(f"tile {m}x{n}x{self.r.choice((16, 32, 64))}")
            self.maybe(fields, 0.3, "stages", (2, 3, 4))
            self.maybe(fields, 0.3, "split_k", (1, 2, 3, 5))
            if self.lane == "f32":
                self.maybe(fields, 0.7, "math", ("simt", "tf32x3"))
        else:
            self.maybe(fields, 0.5, "rows", (1, 2, 4, 8, 16))
            self.maybe(fields, 0.5, "threads", (32, 64, 128, 256, 512))
        if warps != "gemv":
            self.maybe(fields, 0.3, "raster", ("along_m", "along_n", "heuristic"))
            self.maybe(fields, 0.3, "swizzle", (1, 2, 4, 8))
        self.maybe(fields, 0.2, "swap", ("yes", "no"))
        return f"\n  schedule sm90a {{ {'  '.join(fields)} }}\n"

    def maybe(self, fields: list[str], chance: float, name: str, values: tuple[object, ...]) -> None:
        if self.r.random() < chance:
            fields.append(f"{name} {self.r.choice(values)}")

    def sizes(self) -> dict[str, int]:
        pool = ALIGNED if self.r.random() < 0.75 else EXTENTS
        sizes = {d: self.r.choice(pool) for d in (*self.m, *self.n, *self.k)}
        if len(self.m) > 1:
            sizes["U"] = self.r.choice((2, 3, 8, 16))
        if len(self.n) > 1:
            sizes["V"] = self.r.choice((2, 8, 16, 24))
        if len(self.k) > 1:
            sizes["J"] = self.r.choice((2, 3, 16, 32))
        if self.r.random() < 0.3:
            sizes[self.r.choice([*self.m, *self.n] or self.k)] = self.r.choice(EXTENTS)
        return sizes | {d: self.r.choice((1, 2, 3, 5)) for d in self.batch}

"""Random attention for `benchmarks.random_kernels`: orders of names, shared keys, masks, windows, biases,
functions of scores and results; packed sequences, and few queries whose keys are split."""

from __future__ import annotations

from random import Random

from benchmarks.emulated import Job

HEADS = (8, 16, 24, 32, 64, 72, 96, 128)
LENGTHS = (1, 7, 40, 64, 65, 127, 129, 150)
FIRST = "fn first[T, O](starts) {{\n  e = segment(T, starts){after}\n  return index(T) - starts[O = e]\n}}\n"


class Maker:
    """A program of a seed: `text` and `sizes`."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(f"attention {seed}")
        self.lane = self.draw.choice(("f16", "bf16"))
        self.head, self.shared = self.draw.choice(HEADS), self.draw.random() < 0.4
        names = ["B", "H", *(["G"] if self.shared else []), "L", "S"]
        small = {"B": (1, 2), "H": (1, 2, 3), "G": (1, 2, 3)}
        self.sizes = {n: self.draw.choice(small.get(n, LENGTHS)) for n in names}
        if self.draw.random() < 0.15:  # so many keys that some are split
            self.sizes |= {"L": self.draw.choice((1, 3, 7)), "S": self.draw.randint(1100, 2300)}
        self.params: list[str] = []
        heads = "(H G)" if self.shared else "H"
        self.query = self.order(["B", heads, "L"])
        self.kind = "scaled"
        score = self.score()
        result, outcome = self.result(heads)
        key, value = (self.order(["B", "H", "S"]) for _ in range(2))
        operands = [f"q: {self.lane}[{self.query}, D={self.head}]", f"k: {self.lane}[{key}, D]"]
        operands += [f"v: {self.lane}[{value}, D]", *self.params]
        self.text = "" if self.draw.random() < 0.7 else self.packed()
        self.text = self.text or (
            f"kernel k({', '.join(operands)}) -> {result} {{\n"
            f"  d = dot[D]({self.draw.choice(('q, k', 'k, q'))})\n"
            f"  p = softmax[S]({score})\n"
            f"  return {outcome}\n}}\n"
        )

    def order(self, names: list[str]) -> str:
        """Names in memory: rows of tokens before or after heads."""
        swapped = [names[0], names[2], names[1]]
        return ", ".join(self.draw.choice((names, names, swapped)))

    def packed(self) -> str:
        """Sequences in one axis of tokens, of which the queries' and the keys' may be one."""
        square, wide = self.draw.random() < 0.4, self.draw.choice(("i32", "i32", "i64"))
        self.sizes = {n: self.sizes[n] for n in ("H", "G", "L", "S") if n in self.sizes}
        self.sizes = {**self.sizes, "O": self.draw.choice((2, 3, 6, 30))}
        if square:
            del self.sizes["S"]
        heads = "(H G)" if self.shared else "H"
        queries, keys = (f"L, {heads}", "S, H") if self.draw.random() < 0.7 else (f"{heads}, L", "H, S")
        first = keys.replace("S", "S=L") if square else keys
        starts = f"a: {wide}[O]" if square else f"a: {wide}[O], c: {wide}[P=O]"
        of_keys = ("a", "O") if square else ("c", "P")
        row, key = "first[L, O](a)", f"first[S, {of_keys[1]}]({of_keys[0]})"
        limits = [
            f"{key} <= {row}",
            f"{row} - {key} < {self.draw.randint(1, 90)}",
            f"{key} < {row} + {self.draw.randint(-9, 40)}",
            "index(S) <= index(L)",
            "index(S) % 3 != 1",
        ]
        own = self.draw.choice(
            (f"segment(L, a) == segment(S, {of_keys[0]})", f"segment(S, {of_keys[0]}) == segment(L, a)")
        )
        masks = [own, *self.draw.sample(limits, self.draw.choice((0, 1, 1, 2)))]
        self.draw.shuffle(masks)
        e = f"d * rsqrt(size(D)){self.draw.choice(('', '', ' + b'))}"
        self.params = [starts, *(["b: f32[H, S]"] if "+ b" in e else [])]
        self.kind = f"packed {len(masks)}"
        if self.draw.random() < 0.3:
            e = f"where({masks.pop()}, {e}, -inf)"
        if masks:
            e = f"where({' and '.join(masks)}, {e}, -inf)"
        operands = [f"q: {self.lane}[{queries}, D={self.head}]", f"k: {self.lane}[{first}, D]"]
        operands += [f"v: {self.lane}[{keys}, D]", *self.params]
        return (
            FIRST.format(after=self.draw.choice(("", " + 1")))
            + f"kernel k({', '.join(operands)}) -> {self.lane}[{queries}, D] {{\n"
            f"  d = dot[D](q, k)\n  p = softmax[S]({e})\n  return dot[S]({self.lane}(p), v)\n}}\n"
        )

    def score(self) -> str:
        factor = self.draw.choice(("* rsqrt(size(D))", "/ sqrt(size(D))", "* 0.125", "", "* -0.25"))
        e = f"d {factor}".strip()
        if self.draw.random() < 0.35:
            e = f"{e} + b"
            dims = [n for n in ("B", "H", "L") if self.draw.random() < 0.5]
            self.params.append(f"b: {self.draw.choice(('f32', self.lane))}[{', '.join([*dims, 'S'])}]")
            self.kind = "bias"
        if self.draw.random() < 0.15:
            e, self.kind = f"tanh(({e}) / 8.0) * 8.0", "capped"
        if self.draw.random() < 0.5:
            e, self.kind = f"where({self.window()}, {e}, -inf)", f"{self.kind}, window"
        if self.draw.random() < 0.2:
            self.params.append("m: bool[B, L, S]")
            e, self.kind = f"where(m or index(S) == 0, {e}, -inf)", f"{self.kind}, mask"
        return e

    def window(self) -> str:
        offset = self.draw.choice(("", " + size(S) - size(L)", f" + {self.draw.randint(-20, 60)}"))
        above = f"index(S) <= index(L){offset}"
        if self.draw.random() < 0.6:
            return above
        wide = self.draw.randint(1, 140)
        below = f"index(L) - index(S) < {wide}"
        return self.draw.choice((f"{above} and {below}", below, f"index(S) > index(L) - {wide}"))

    def result(self, heads: str) -> tuple[str, str]:
        elem = self.draw.choice((self.lane, self.lane, self.lane, "f32"))
        names = self.order(["B", heads, "L"])
        axes = self.draw.choice((f"{names}, D",) * 5 + (f"B, {heads}, D, L",))
        value = f"dot[S]({self.lane}(p), v)"
        if self.draw.random() < 0.2:
            self.params.append(f"g: {self.lane}[{names}, D]")
            value, self.kind = f"{self.draw.choice(('sigmoid(g) *', 'g +'))} {value}", f"{self.kind}, result"
        return f"{elem}[{axes}]", value


def job(seed: int) -> Job:
    """The program of a seed, to be emulated."""
    drawn = Maker(seed)
    return Job(f"{seed} {drawn.kind}", drawn.text, "k", drawn.sizes, None, seed)

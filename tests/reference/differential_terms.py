"""What `tests.reference.differential` draws: a table of features, each a term with its value in torch."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch
from torch import Tensor

from tests.reference import differential_torch as ft
from tests.reference.differential_torch import Undefined, Value

FLOATS = ("f32", "f16", "bf16", "e4m3", "e5m2", "f64")
INTEGERS = ("s8", "u8", "i32", "i64")
ELEMENTS = (*FLOATS, *INTEGERS, "bool")
EXTENTS = (0, 1, 1, 2, 3, 3, 4, 5, 7)
NUMBERS = (
    0.0,
    -0.0,
    0.5,
    -0.5,
    1.0,
    -1.0,
    1.5,
    -2.5,
    2.5,
    3.0,
    0.1,
    -7.3,
    100.0,
    448.0,
    464.0,
    65504.0,
    65520.0,
    3e38,
    -3e38,
    1e-40,
    2.0**-9,
    2.0**24 + 2,
    float("inf"),
    float("-inf"),
    float("nan"),
)
LITERALS = (
    0,
    1,
    -1,
    2,
    3,
    7,
    -5,
    100,
    300,
    2**31 - 1,
    -(2**31),
    2**31,
    2**32 + 1,
    -(2**40),
    2**62,
    2**63 - 1,
)
COMPUTE_TYPES = ("f16", "bf16", "tf32", "f32", "e4m3", "e5m2", "s8")


@dataclass(frozen=True, slots=True)
class Term:
    """An expression's text and what torch makes of it. Of an index, or a cast of one, `source` is what is
    read at `equations`: a reduction of it reads its own neutral element outside."""

    text: str
    value: Value
    source: Value | None = None
    equations: tuple[ft.Equation, ...] = ()

    def within(self, op: str, sizes: Mapping[str, int]) -> Value:
        """The value inside a reduction."""
        if self.source is None:
            return self.value
        source = ft.to_float(self.source) if op == "logsumexp" else self.source
        return ft.read(source, self.equations, sizes, ft.neutral(op, source.elem))


@dataclass(slots=True)
class Drawing:
    """One program under construction: its parameters, its arguments, and what was drawn of the tables."""

    r: random.Random
    sizes: dict[str, int]
    params: list[str] = field(default_factory=list)
    arguments: list[Tensor | float | int] = field(default_factory=list)
    drawn: list[tuple[str, str]] = field(default_factory=list)
    windows: int = 0
    undefined: bool = False

    def defined(self, make: Callable[[], Value]) -> Value:
        """A value, or one of its shape where it has no result: then the whole program has none."""
        try:
            return make()
        except Undefined as lost:
            self.undefined = True
            return lost.value

    def note(self, feature: str, elem: str) -> None:
        self.drawn.append((feature, elem))

    def term(self, kind: str, depth: int) -> Term:
        table = LEAVES if depth == 0 else TABLE
        name = self.r.choice(sorted(table[kind]))
        term = table[kind][name](self, depth - 1)
        self.note(name, term.value.elem)
        return term

    def number(self, depth: int) -> Term:
        return self.term(self.r.choice(("float", "float", "int")), depth)

    def over(self, kind: str, depth: int) -> tuple[Term, str]:
        """A term and one of its names; a tensor where it has none."""
        before = self.undefined
        term = self.term(kind, depth)
        if not term.value.dims:
            self.undefined = before
            elements = {"float": FLOATS, "int": INTEGERS, "bool": ("bool",)}[kind]
            term = self.tensor(self.r.choice(elements), every=True)
        return term, self.r.choice(term.value.dims)

    def tensor(self, elem: str, every: bool = False) -> Term:
        """A parameter over some of the names."""
        some = [d for d in self.sizes if every or self.r.random() < 0.6]
        self.r.shuffle(some)
        data = self.numbers(elem, [self.sizes[d] for d in some])
        name = f"p{len(self.params)}"
        self.params.append(f"{name}: {elem}[{', '.join(some)}]")
        self.arguments.append(data.to(ft.DTYPES[elem]))
        return Term(name, ft.exact(data, tuple(some), elem))

    def numbers(self, elem: str, shape: Sequence[int]) -> Tensor:
        """Values of the element in the kind of its expressions."""
        count = torch.Size(shape).numel()
        if elem == "bool":
            truths = [self.r.random() < 0.5 for _ in range(count)]
            return torch.tensor(truths, dtype=torch.bool).reshape(shape)
        if elem in INTEGERS:
            ends = torch.iinfo(ft.DTYPES[elem])
            few = [ends.min, ends.max, 0, max(-1, ends.min)]
            values = [
                self.r.choice(few) if self.r.random() < 0.1 else self.r.randint(max(-9, ends.min), 9)
                for _ in range(count)
            ]
            return torch.tensor(values, dtype=torch.int64).reshape(shape)
        wild = self.r.random() < 0.3
        floats = [
            self.r.choice(NUMBERS)
            if wild and self.r.random() < 0.3
            else self.r.choice(NUMBERS[:12])
            if self.r.random() < 0.5
            else self.r.gauss(0, 2)
            for _ in range(count)
        ]
        return ft.rounded(torch.tensor(floats, dtype=torch.float64).reshape(shape).float().double(), elem)


Maker = Callable[[Drawing, int], Term]


# --- leaves -----------------------------------------------------------------------------------------------


def _tensor(*elements: str) -> Maker:
    return lambda d, _: d.tensor(d.r.choice(elements))


def _float_literal(d: Drawing, _: int) -> Term:
    number = d.r.choice((0.0, 0.5, 1.5, 0.1, 2.5, 1e30, 3e38, 1e39, 1e-40))
    data = torch.tensor(number, dtype=torch.float64)
    return Term(f"{number!r}", ft.exact(ft.in_range(data), (), "f32", True))


def _infinity(d: Drawing, _: int) -> Term:
    sign = d.r.choice(("", "-"))
    data = torch.tensor(float(f"{sign}inf"), dtype=torch.float64)
    return Term(f"({sign}inf)", ft.exact(data, (), "f32", True))


def _int_literal(d: Drawing, _: int) -> Term:
    number = d.r.choice(LITERALS)
    text = f"({number})" if number >= -(2**31) else f"({number + 1} - 1)"
    return Term(text, ft.exact(torch.tensor(number), (), "i64", True))


def _scalar(kind: str) -> Maker:
    def make(d: Drawing, _: int) -> Term:
        elem = d.r.choice(("f32", "f16", "bf16") if kind == "float" else ("i32",))
        number = d.r.choice((0.1, -2.5, 3.0)) if kind == "float" else d.r.choice((-3, 0, 7, 2**31 - 1))
        name = f"p{len(d.params)}"
        d.params.append(f"{name}: {elem}")
        d.arguments.append(number)
        data = ft.rounded(torch.tensor(number, dtype=torch.float64 if kind == "float" else torch.int64), elem)
        return Term(name, ft.exact(data, (), elem))

    return make


def _index(d: Drawing, _: int) -> Term:
    name = d.r.choice(sorted(d.sizes))
    return Term(f"index({name})", ft.exact(torch.arange(d.sizes[name]), (name,), "i64"))


def _size(d: Drawing, _: int) -> Term:
    name = d.r.choice(sorted(d.sizes))
    return Term(f"size({name})", ft.exact(torch.tensor(d.sizes[name]), (), "i64"))


def _segment(d: Drawing, _: int) -> Term:
    along = d.r.choice(sorted(d.sizes))
    extent = d.sizes[along]
    cuts = sorted(d.r.randint(0, extent) for _ in range(d.r.randint(0, 3)))
    offsets = torch.tensor([0, *cuts, extent])
    name = f"p{len(d.params)}"
    elem = d.r.choice(("i32", "i64"))
    d.params.append(f"{name}: {elem}[O{len(d.params)}]")
    d.arguments.append(offsets.to(ft.DTYPES[elem]))
    group = [sum(int(o) <= t for o in offsets[1:]) for t in range(extent)]
    data = torch.tensor(group, dtype=torch.int64)
    return Term(f"segment({along}, {name})", ft.exact(data, (along,), "i64"))


# --- element-wise -----------------------------------------------------------------------------------------


def _unary(name: str) -> Maker:
    def make(d: Drawing, depth: int) -> Term:
        x = d.number(depth)
        return Term(f"{name}({x.text})", ft.function(name, x.value))

    return make


def _binary(op: str, kind: str) -> Maker:
    def make(d: Drawing, depth: int) -> Term:
        a = d.term(kind, depth)
        b = d.term(d.r.choice((kind, "int")), depth)
        a, b = (a, b) if d.r.random() < 0.5 else (b, a)
        text = f"{op}({a.text}, {b.text})" if op in ("min", "max") else f"({a.text} {op} {b.text})"
        return Term(text, ft.operator(op, a.value, b.value))

    return make


def _divide(d: Drawing, depth: int) -> Term:
    a, b = d.number(depth), d.number(depth)
    return Term(f"({a.text} / {b.text})", ft.quotient(a.value, b.value))


def _power(d: Drawing, depth: int) -> Term:
    a = d.number(depth)
    number = d.r.choice((2, 3, 0, -1))
    b = ft.exact(torch.tensor(number), (), "i64", True)
    if d.r.random() < 0.5:
        return Term(f"(({a.text}) ** ({number}))", ft.power(a.value, b))
    return Term(f"pow({a.text}, {number})", ft.power(a.value, b))


def _negate(kind: str) -> Maker:
    def make(d: Drawing, depth: int) -> Term:
        x = d.term(kind, depth)
        value = ft.computed(torch.neg, [x.value], ft.common([x.value]))
        return Term(f"(-{x.text})", replace(value, literal=x.value.literal))

    return make


def _clamp(kind: str) -> Maker:
    def make(d: Drawing, depth: int) -> Term:
        x = d.term(kind, depth)
        low, high = d.r.choice(((0, 6), (-3, 3), (2, -2)))
        ends = [ft.exact(torch.tensor(v), (), "i64", True) for v in (low, high)]
        elem = ft.common([x.value, *ends])
        at = ft.operator("min", ft.operator("max", x.value, ends[0]), ends[1])
        return Term(f"clamp({x.text}, {low}, {high})", replace(at, elem=elem))

    return make


def _where(kind: str) -> Maker:
    def make(d: Drawing, depth: int) -> Term:
        c, a = d.term("bool", depth), d.term(kind, depth)
        b = d.term(kind if kind != "float" else d.r.choice(("float", "int")), depth)
        return Term(f"where({c.text}, {a.text}, {b.text})", ft.where(c.value, a.value, b.value))

    return make


def _compare(op: str) -> Maker:
    def make(d: Drawing, depth: int) -> Term:
        a, b = d.number(depth), d.number(depth)
        return Term(f"({a.text} {op} {b.text})", ft.compared(op, a.value, b.value))

    return make


def _logical(op: str) -> Maker:
    def make(d: Drawing, depth: int) -> Term:
        a, b = d.term("bool", depth), d.term("bool", depth)
        return Term(f"({a.text} {op} {b.text})", ft.logical(op, a.value, b.value))

    return make


def _not(d: Drawing, depth: int) -> Term:
    x = d.term("bool", depth)
    return Term(f"(not {x.text})", ft.logical("not", x.value))


def _cast(elements: Sequence[str]) -> Maker:
    def make(d: Drawing, depth: int) -> Term:
        x, elem = d.term(d.r.choice(("float", "int", "bool")), depth), d.r.choice(elements)
        d.note(f"cast from {x.value.kind}", elem)
        source = None if x.source is None else ft.cast(x.source, elem)
        return Term(f"{elem}({x.text})", ft.cast(x.value, elem), source, x.equations)

    return make


# --- reductions and scans ---------------------------------------------------------------------------------


def _reduce(op: str, kind: str) -> Maker:
    def make(d: Drawing, depth: int) -> Term:
        x, name = d.over(kind, depth)
        names = [name]
        if len(x.value.dims) > 1 and not op.startswith("arg") and d.r.random() < 0.3:
            names = d.r.sample(x.value.dims, 2)
        d.note(f"{op} of", x.value.elem)
        d.note(f"{op} over", str(min(d.sizes[n] for n in names)))
        value = d.defined(lambda: ft.reduced(op, names, x.within(op, d.sizes)))
        return Term(f"{op}[{', '.join(names)}]({x.text})", value)

    return make


def _softmax(op: str) -> Maker:
    def make(d: Drawing, depth: int) -> Term:
        x, name = d.over(d.r.choice(("float", "int")), depth)
        d.note(f"{op} of", x.value.elem)
        return Term(f"{op}[{name}]({x.text})", ft.softmax([name], x.value, op == "log_softmax"))

    return make


def _scan(op: str, kind: str) -> Maker:
    def make(d: Drawing, depth: int) -> Term:
        x, name = d.over(kind, depth)
        exclusive, reverse = d.r.random() < 0.5, d.r.random() < 0.5
        options = ", exclusive=true" * exclusive + ", reverse=true" * reverse
        d.note(f"{op}{options} of", x.value.elem)
        value = ft.scanned(op, name, x.value, exclusive, reverse)
        return Term(f"{op}[{name}]({x.text}{options})", value)

    return make


def _window(op: str, kind: str) -> Maker:
    """A reduction of an index: what lies outside is its neutral element, through casts too."""

    def make(d: Drawing, depth: int) -> Term:
        x, name = d.over(kind, depth)
        tap, taps = f"R{d.windows}", d.r.randint(1, 3)
        d.windows += 1
        step, low = d.r.randint(1, 2), d.r.randint(-1, 2)
        equation = ft.Equation(name, 1, ((name, step), (tap, 1)), -low)
        sizes = {**d.sizes, tap: taps}
        text = f"({x.text})[{name} = {step}*{name} + {tap} - {low}]".replace("- -", "+ ")
        source, elem = x.value, x.value.elem
        if d.r.random() < 0.3:
            free = op in ("mean", "var", "logsumexp", "argmax", "argmin")
            elem = d.r.choice(
                [
                    *(FLOATS[:-1] if free or kind == "float" else ()),
                    *(INTEGERS if free or kind == "int" else ()),
                ]
            )
            source, text = ft.cast(source, elem), f"{elem}({text})"
        d.note(f"window {op} of", elem)
        value = Term(text, source, source, (equation,)).within(op, sizes)
        return Term(f"{op}[{tap}={taps}]({text})", d.defined(lambda: ft.reduced(op, [tap], value)))

    return make


# --- positions, products ----------------------------------------------------------------------------------


def _index_of(d: Drawing, text: str, source: Value, *equations: ft.Equation) -> Term:
    return Term(text, ft.read(source, equations, d.sizes), source, equations)


def _read(form: str) -> Maker:
    def make(d: Drawing, depth: int, kind: str = "float") -> Term:
        x, name = d.over(d.r.choice(("float", "int", "bool")) if kind == "any" else kind, depth)
        n = d.sizes[name]
        other = d.r.choice([o for o in d.sizes if o not in x.value.dims] or [name])
        offset = d.r.randint(-2, 2)
        scale, terms, at, text = {
            "shift": (1, ((name, 1),), offset, f"{name} + {offset}"),
            "flip": (1, ((name, -1),), n - 1, f"size({name}) - 1 - {name}"),
            "stride": (1, ((name, 2),), offset, f"2*{name} + {offset}"),
            "divide": (2, ((name, 1),), offset, f"{name} + {offset}"),
            "constant": (1, (), abs(offset), f"{abs(offset)}"),
            "other name": (1, ((other, 1),), 0, other),
            "sum of names": (
                1,
                ((name, 1), (other, 1)) if other != name else ((name, 1),),
                offset,
                f"{name} + {other} + {offset}" if other != name else f"{name} + {offset}",
            ),
        }[form]
        left = name if scale == 1 else f"{scale}*{name}"
        text = f"({x.text})[{left} = {text}]".replace("+ -", "- ")
        d.note(f"index {form} of", x.value.elem)
        return _index_of(d, text, x.value, ft.Equation(name, scale, terms, at))

    return make


def _diagonal(kind: str) -> Maker:
    """Two equations in one bracket."""

    def make(d: Drawing, depth: int) -> Term:
        before = d.undefined
        x = d.term(kind, depth)
        if len(x.value.dims) < 2:
            d.undefined = before
            return d.term(kind, 0)
        a, b = d.r.sample(x.value.dims, 2)
        equations = ft.Equation(a, 1, ((b, 1),), 0), ft.Equation(b, 1, ((a, 1),), -1)
        return _index_of(d, f"({x.text})[{a} = {b}, {b} = {a} - 1]", x.value, *equations)

    return make


def _gather(kind: str) -> Maker:
    def make(d: Drawing, depth: int) -> Term:
        x, name = d.over(kind, depth)
        ids = d.term("int", min(depth, 1))
        last = d.sizes[name] - 1
        d.note("gather of", x.value.elem)
        ends = [ft.exact(torch.tensor(v), (), "i64") for v in (0, last)]
        at = ft.operator("min", ft.operator("max", ids.value, ends[0]), ends[1])
        text = f"({x.text})[{name} = clamp({ids.text}, 0, size({name}) - 1)]"
        return Term(text, d.defined(lambda: ft.gathered(x.value, name, at)))

    return make


def _dot(d: Drawing, depth: int) -> Term:
    compute_type = d.r.choice([elem for elem in COMPUTE_TYPES if elem != "s8"])
    return _product(d, depth, compute_type)


def _whole_dot(d: Drawing, depth: int) -> Term:
    return _product(d, depth, "s8")


def _product(d: Drawing, depth: int, compute_type: str) -> Term:
    kind = "int" if compute_type == "s8" else "float"
    a, name = d.over(kind, depth)
    before = d.undefined
    b = d.term(kind, depth)
    if name not in b.value.dims:
        d.undefined = before
        b = d.tensor("s8" if compute_type == "s8" else "f32", every=True)
    x, y = (ft.cast(t.value, compute_type) for t in (a, b))
    accumulate = "f16" if compute_type == "f16" and d.r.random() < 0.3 else ""
    d.note(f"dot {compute_type} {accumulate}".strip(), compute_type)
    option = f", acc={accumulate}" if accumulate else ""
    text = f"dot[{name}]({compute_type}({a.text}), {compute_type}({b.text}){option})"
    return Term(text, ft.dot([name], x, y, compute_type, accumulate))


READS = ("shift", "flip", "stride", "divide", "constant", "other name", "sum of names")

LEAVES: Mapping[str, Mapping[str, Maker]] = MappingProxyType(
    {
        "float": {
            "tensor of floats": _tensor(*FLOATS),
            "literal": _float_literal,
            "inf": _infinity,
            "host float": _scalar("float"),
        }
        | {f"tensor of {e}": _tensor(e) for e in FLOATS},
        "int": {
            "whole literal": _int_literal,
            "host integer": _scalar("int"),
            "index": _index,
            "size": _size,
            "segment": _segment,
        }
        | {f"tensor of {e}": _tensor(e) for e in INTEGERS},
        "bool": {"tensor of bool": _tensor("bool")},
    }
)

TABLE: Mapping[str, Mapping[str, Maker]] = MappingProxyType(
    {
        "float": {name: _unary(name) for name in ft.UNARY if name != "abs"}
        | {f"float {op}": _binary(op, "float") for op in ft.BINARY}
        | {
            "/": _divide,
            "power": _power,
            "float negate": _negate("float"),
            "float clamp": _clamp("float"),
            "float where": _where("float"),
            "cast to float": _cast(("f32", "f16", "bf16", "e4m3", "e5m2")),
            "dot": _dot,
            "float gather": _gather("float"),
            "float diagonal": _diagonal("float"),
        }
        | {f"float {op}": _reduce(op, "float") for op in ("sum", "prod", "mean", "var", "logsumexp")}
        | {f"float {op} of a row": _reduce(op, "float") for op in ("max", "min")}
        | {f"integer {op}": _reduce(op, "int") for op in ("mean", "var", "logsumexp")}
        | {op: _softmax(op) for op in ("softmax", "log_softmax")}
        | {f"float {op}": _scan(op, "float") for op in ("cumsum", "cumprod")}
        | {
            f"window {op}": _window(op, "float")
            for op in ("sum", "prod", "max", "min", "mean", "var", "logsumexp")
        }
        | {f"integer window {op}": _window(op, "int") for op in ("mean", "var", "logsumexp")}
        | {f"float {form}": _read(form) for form in READS},
        "int": {f"integer {op}": _binary(op, "int") for op in ft.BINARY}
        | {
            "integer negate": _negate("int"),
            "integer clamp": _clamp("int"),
            "integer where": _where("int"),
            "integer abs": lambda d, n: _abs(d, n),
            "cast to integer": _cast(INTEGERS),
            "whole dot": _whole_dot,
            "integer gather": _gather("int"),
            "integer diagonal": _diagonal("int"),
        }
        | {f"integer {op}": _reduce(op, "int") for op in ("sum", "prod")}
        | {f"integer {op} of a row": _reduce(op, "int") for op in ("max", "min")}
        | {f"{op} of {kind}s": _reduce(op, kind) for op in ("argmax", "argmin") for kind in ("float", "int")}
        | {f"integer {op}": _scan(op, "int") for op in ("cumsum", "cumprod")}
        | {f"integer window {op}": _window(op, "int") for op in ("sum", "prod", "max", "min")}
        | {
            f"window {op} of {kind}s": _window(op, kind)
            for op in ("argmax", "argmin")
            for kind in ("float", "int")
        }
        | {f"integer {form}": lambda d, n, form=form: _read(form)(d, n, "int") for form in READS},
        "bool": {f"compare {op}": _compare(op) for op in ft.COMPARISONS}
        | {op: _logical(op) for op in ("and", "or")}
        | {
            "not": _not,
            "bool where": _where("bool"),
            "cast to bool": _cast(("bool",)),
            "bool gather": _gather("bool"),
            "bool diagonal": _diagonal("bool"),
        }
        | {f"bool {form}": lambda d, n, form=form: _read(form)(d, n, "bool") for form in READS},
    }
)
"""What a term of a kind may be, by the feature's name."""


def _abs(d: Drawing, depth: int) -> Term:
    x = d.term("int", depth)
    value = ft.function("abs", x.value)
    return Term(f"abs({x.text})", replace(value, literal=x.value.literal))

"""Programs drawn by productions: every form of the language, about half of them valid.

An expression is drawn for the names it must range over, so that what is drawn mostly means something; slips
of chance (a wrong name, element or extent) make the rest. What was drawn is counted by `FEATURES`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from ucutlass.check.calls import REDUCTIONS
from ucutlass.ir.compute_types import COMPUTE_TYPES
from ucutlass.ir.elements import ELEMENTS
from ucutlass.ir.functions import NAMED
from ucutlass.ir.hardware import ARCHES
from ucutlass.ir.schedule import FIELDS, ScheduleField

Dims = tuple[str, ...]

_NAMES = ("A", "B", "C", "D")
_TORCH = (
    "torch.relu({x})",
    "torch.softmax({x}, dim=0)",
    "torch.cumsum({x}, dim=0)",
    "torch.flip({x}, dims=0)",
    "torch.roll({x}, shifts=1)",
    "torch.sort({x})",
    "torch.tril({x})",
    "torch.triu({x}, diagonal=1)",
    "torch.argsort({x})",
    "torch.log_softmax({x}, dim=0)",
)
_BINARY = ("+", "-", "*", "/", "//", "%", "**")
_COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")

FEATURES: tuple[str, ...] = (
    "fn",
    "fn block",
    "fn in fn",
    "fn twice in fn",
    "fn of dimensions",
    "binding",
    "typed binding",
    "literal",
    "size",
    "index()",
    "scalar parameter",
    "element on the device",
    "operator",
    "comparison",
    "logic",
    "where",
    "cast",
    "softmax",
    "log_softmax",
    "cumsum",
    "cumprod",
    "scan flags",
    "dot",
    "acc",
    "window",
    "stride",
    "divided index",
    "shift",
    "flip",
    "constant position",
    "rename",
    "gather",
    "segment",
    "composite axis",
    "fixed extent",
    "derived extent",
    "nameless axis",
    "several results",
    "require",
    "schedule",
    "guard",
    "alternatives",
    "several blocks",
    "pipeline",
    "stage",
    "stage without an order",
    "call of a kernel",
    "torch stage",
    "stage schedule",
    "comment",
    *(f"reduction {op}" for op in REDUCTIONS),
    *(f"function {name}" for name in NAMED),
    *(f"element {name}" for name in ELEMENTS),
    *(f"field {name}" for name in FIELDS),
)
"""What a run must have reached."""


@dataclass(slots=True)
class Drawing:
    """A program while it is drawn. `slip` is the chance of a mistake at a place where one can be made."""

    r: Random
    slip: float
    reached: Counter[str] = field(default_factory=Counter)
    functions: list[tuple[str, int, int]] = field(default_factory=list)
    items: list[str] = field(default_factory=list)

    def mark(self, feature: str, text: str = "") -> str:
        self.reached[feature] += 1
        return text

    def chance(self, p: float) -> bool:
        return self.r.random() < p


@dataclass(slots=True)
class Body:
    """The program that is drawn into: `params` by name with what they range over, in the order drawn.
    `spare` are names of dimensions that nothing has yet."""

    d: Drawing
    params: dict[str, tuple[str, Dims, str]] = field(default_factory=dict)
    values: dict[str, Dims] = field(default_factory=dict)
    statements: list[str] = field(default_factory=list)
    pipeline: bool = False
    count: int = 0

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def param(self, dims: Dims, elem: str = "", type_: str = "") -> str:
        """A parameter over these names, an earlier one where there is one."""
        d = self.d
        known = [n for n, (e, own, _) in self.params.items() if own == dims and elem in ("", e) and not type_]
        if known and d.chance(0.7):
            return d.r.choice(known)
        name = self.fresh("x")
        kind = elem or d.r.choice(("f32", "f32", "bf16", "f16", "bf16", *_STORED))
        d.mark(f"element {kind}")
        order = list(dims)
        if d.chance(0.2):
            d.r.shuffle(order)
        self.params[name] = (kind, dims, type_ or f"{kind}[{', '.join(_axes(d, order))}]")
        return name


_STORED = tuple(name for name, e in ELEMENTS.items() if e.storable and name not in ("bool", "f64", "s4"))


def _axes(d: Drawing, order: Sequence[str]) -> list[str]:
    axes = list(order)
    if len(axes) >= 2 and d.chance(0.08):
        at = d.r.randrange(len(axes) - 1)
        d.mark("composite axis")
        axes[at : at + 2] = [f"({axes[at]}={d.r.choice((2, 8, 64))} {axes[at + 1]})"]
    if d.chance(0.04):
        axes.insert(d.r.randrange(len(axes) + 1), d.mark("nameless axis", "1"))
    if d.chance(0.03 + d.slip / 4):
        axes = [f"{a}={d.r.choice((1, 8, 128, 1000))}" if a in _NAMES and d.chance(0.5) else a for a in axes]
        d.mark("fixed extent")
    return axes


# --- expressions -----------------------------------------------------------------


def number(b: Body, dims: Dims, depth: int) -> str:
    """An expression of numbers that ranges over some of `dims`."""
    d = b.d
    if d.chance(d.slip / 6):
        return d.r.choice(("nothing", "M", "dot(x)", "sum(1)", "x[Q = 1]", "1.5.2", "f32", "relu(1, 2, 3)"))
    if depth <= 0 or d.chance(0.15):
        return _leaf(b, dims)
    return d.r.choice(_NUMBERS)(b, dims, depth - 1)


def condition(b: Body, dims: Dims, depth: int) -> str:
    d = b.d
    if depth > 0 and d.chance(0.3):
        d.mark("logic")
        if d.chance(0.3):
            return f"not ({condition(b, dims, depth - 1)})"
        word = d.r.choice(("and", "or"))
        return f"({condition(b, dims, depth - 1)}) {word} ({condition(b, dims, depth - 1)})"
    d.mark("comparison")
    if dims and d.chance(0.1):
        return b.param(dims, "bool")
    if dims and d.chance(0.5):
        pair = [f"index({d.mark('index()', d.r.choice(dims))})" for _ in range(2)]
        return f"{pair[0]} {d.r.choice(_COMPARISONS)} {pair[1]}{d.r.choice(('', ' + 3', ' * 2', ' // 2'))}"
    return f"({number(b, dims, depth - 1)}) {d.r.choice(_COMPARISONS)} ({number(b, dims, depth - 1)})"


def _some(d: Drawing, dims: Dims) -> Dims:
    return tuple(x for x in dims if d.chance(0.75)) or dims[:1]


def _leaf(b: Body, dims: Dims) -> str:
    d = b.d
    known = [name for name, own in b.values.items() if set(own) <= set(dims)]
    match d.r.randrange(10):
        case 0:
            return d.mark("literal", d.r.choice(("1", "2", "0.5", "1e-5", "3", "-1", "inf", "0", "100000")))
        case 1 if dims:
            return d.mark("size", f"size({d.r.choice(dims)})")
        case 2 if dims:
            return d.mark("index()", f"index({d.r.choice(dims)})")
        case 3:
            name = b.fresh("s")
            kind = d.r.choice(("f32", "i32", "bf16"))
            b.params[name] = (kind, ("", name), kind)
            return d.mark("scalar parameter", name)
        case 4 if d.chance(0.4):
            name = b.fresh("e")
            b.params[name] = ("f32", ("", name), "f32[]")
            return d.mark("element on the device", name)
        case 5 | 6 if known:
            return d.r.choice(known)
        case _:
            return b.param(_some(d, dims))


def _operator(b: Body, dims: Dims, depth: int) -> str:
    op = b.d.mark("operator", b.d.r.choice(_BINARY))
    return f"({number(b, dims, depth)} {op} {number(b, dims, depth)})"


def _function(b: Body, dims: Dims, depth: int) -> str:
    name = b.d.r.choice(tuple(NAMED))
    b.d.mark(f"function {name}")
    if name == "where":
        return _where(b, dims, depth)
    least, most = NAMED[name].arity
    return f"{name}({', '.join(number(b, dims, depth) for _ in range(b.d.r.randint(least, most)))})"


def _where(b: Body, dims: Dims, depth: int) -> str:
    b.d.mark("where")
    return f"where({condition(b, dims, depth)}, {number(b, dims, depth)}, {number(b, dims, depth)})"


def _cast(b: Body, dims: Dims, depth: int) -> str:
    elem = b.d.r.choice([e for e in ELEMENTS if e not in ("tf32", "bool")])
    b.d.mark("cast")
    b.d.mark(f"element {elem}")
    return f"{elem}({number(b, dims, depth)})"


def _reduction(b: Body, dims: Dims, depth: int) -> str:
    d = b.d
    op = d.r.choice(REDUCTIONS)
    more = "K" if d.chance(0.9) else d.r.choice(_NAMES)
    if more in dims:
        return _operator(b, dims, depth)
    d.mark(f"reduction {op}")
    inner = number(b, (*dims, more), depth)
    if not d.chance(d.slip / 3):
        inner = f"({inner} + {b.param((*dims, more))})" if op != "sum" else f"({inner} * {b.param((more,))})"
    return f"{op}[{more}]({inner})"


def _softmax(b: Body, dims: Dims, depth: int) -> str:
    if not dims:
        return _leaf(b, dims)
    op = b.d.r.choice(("softmax", "log_softmax"))
    return b.d.mark(op, f"{op}[{dims[-1]}]({number(b, dims, depth)} + {b.param(dims)})")


def _scan(b: Body, dims: Dims, depth: int) -> str:
    if not dims:
        return _leaf(b, dims)
    op, flags = b.d.r.choice(("cumsum", "cumprod")), ""
    if b.d.chance(0.4):
        flags = b.d.mark("scan flags", b.d.r.choice((", reverse=true", ", exclusive=true")))
    return b.d.mark(op, f"{op}[{dims[-1]}]({number(b, dims, depth)} + {b.param(dims)}{flags})")


def _window(b: Body, dims: Dims, depth: int) -> str:
    if not dims:
        return _leaf(b, dims)
    d, axis = b.d, b.d.r.choice(dims)
    op, wide = d.r.choice(("max", "min", "sum", "mean", "prod")), b.fresh("W")
    stride = d.r.choice(("", "", "2*"))
    if stride:
        d.mark("stride")
    d.mark("window")
    d.mark(f"reduction {op}")
    at = f"{stride}{axis} + {wide} - {d.r.choice((0, 1, 2))}"
    return f"{op}[{wide}={d.r.choice((1, 2, 3, 7))}]({b.param(dims)}[{axis} = {at}])"


def _index(b: Body, dims: Dims, depth: int) -> str:
    if not dims:
        return _leaf(b, dims)
    d, axis = b.d, b.d.r.choice(dims)
    base = b.param(dims) if d.chance(0.7) else f"({number(b, dims, depth)} + {b.param(dims)})"
    match d.r.randrange(6):
        case 0:
            return d.mark("shift", f"{base}[{axis} = {axis} - {d.r.choice((1, 2, 100))}]")
        case 1:
            return d.mark("flip", f"{base}[{axis} = size({axis}) - 1 - {axis}]")
        case 2:
            at = d.r.choice(("0", f"size({axis}) - 1", "-1", "2147483648" if d.chance(d.slip) else "7"))
            return d.mark("constant position", f"{base}[{axis} = {at}]")
        case 3:
            new = b.fresh("R")
            source = b.param(tuple(new if x == axis else x for x in dims))
            return d.mark("rename", f"{source}[{new} = {axis}]")
        case 4:
            return d.mark("divided index", f"{base}[2*{axis} = {axis} + 1]")
        case _:
            scale = d.r.choice((1, 2, 3, 9223372036854775807 if d.chance(d.slip) else 4))
            return d.mark("stride", f"{base}[{axis} = {scale}*{axis} + {d.r.choice((0, 1, 5))}]")


def _gather(b: Body, dims: Dims, depth: int) -> str:
    if not dims:
        return _leaf(b, dims)
    d, new = b.d, b.fresh("V")
    rest = dims[1:] if d.chance(0.5) else ()
    d.mark("gather")
    if d.chance(0.2):
        offsets = b.fresh("o")
        b.params[offsets] = ("i32", ("", offsets), f"i32[{new}+1]" if d.chance(0.9) else "i32[9]")
        d.mark("segment")
        table = b.param((new, *rest), type_=f"f32[{', '.join((new, *rest))}]")
        return f"{table}[{new} = segment({dims[0]}, {offsets})]"
    ids = b.param((dims[0],), d.r.choice(("i32", "i64", "s8")))
    return f"{b.param((new, *rest))}[{new} = {ids}]"


def _call(b: Body, dims: Dims, depth: int) -> str:
    d = b.d
    if not d.functions or not dims:
        return _operator(b, dims, depth)
    name, named, arguments = d.r.choice(d.functions)
    brackets = f"[{dims[-1]}]" if named else ""
    d.mark("fn")
    return f"{name}{brackets}({', '.join(f'{b.param(dims)} * {i + 1}' for i in range(arguments))})"


_NUMBERS: tuple[Callable[[Body, Dims, int], str], ...] = (
    _operator,
    _operator,
    _operator,
    _function,
    _function,
    _function,
    _where,
    _cast,
    _reduction,
    _softmax,
    _scan,
    _window,
    _index,
    _gather,
    _call,
    _call,
)


# --- items -----------------------------------------------------------------------


def functions(d: Drawing) -> None:
    """Some functions, each of which may call those before it, once or twice."""
    for i in range(d.r.choice((0, 0, 1, 2, 3, 6))):
        named, arguments = d.chance(0.4), d.r.randint(1, 2)
        plain = [f for f, n, a in d.functions if not n and a == 1]
        body = "a * a + 0.5" if arguments == 1 else "a * b - a"
        if plain and d.chance(0.7):
            inner = d.r.choice(plain)
            twice = d.chance(0.6)
            d.mark("fn twice in fn" if twice else "fn in fn")
            body = f"{inner}(a) * {inner}(a{d.r.choice(('', ' + 1'))})" if twice else f"{inner}(a) + 1"
        if named:
            d.mark("fn of dimensions")
            body = f"{body} - {d.r.choice(('mean', 'max', 'sum'))}[D](a)"
        head = f"fn g{i}{'[D]' if named else ''}({', '.join('ab'[:arguments])})"
        if d.chance(0.4):
            d.mark("fn block")
            d.items.append(f"{head} {{\n  t = {body}\n  return t + {d.r.choice(('t', 'a', '1'))}\n}}\n")
        else:
            d.items.append(f"{head} = {body}\n")
        d.functions.append((f"g{i}", int(named), arguments))


def _result_type(d: Drawing, dims: Dims, elem: str = "") -> str:
    kind = elem or d.r.choice(("f32", "f32", "f32", "bf16", "f16", *_STORED))
    d.mark(f"element {kind}")
    return f"{kind}[{', '.join(dims)}]"


def _value(b: Body, dims: Dims) -> str:
    """An expression over exactly `dims`, but for a slip."""
    d = b.d
    drawn = number(b, dims, d.r.choice((1, 2, 2, 3, 4)))
    return drawn if d.chance(d.slip / 3) else f"{drawn} {d.r.choice('+-*')} {b.param(dims)}"


def _bindings(b: Body, dims: Dims) -> None:
    d = b.d
    for _ in range(d.r.choice((0, 0, 1, 2, 4))):
        name = b.fresh("v")
        if d.chance(0.2):
            b.statements.append(f"{name}: [{', '.join(dims)}] = {_value(b, dims)}")
            d.mark("typed binding")
        else:
            b.statements.append(d.mark("binding", f"{name} = {_value(b, dims)}"))
        b.values[name] = dims


def _product(b: Body) -> tuple[str, Dims]:
    """A dot under an epilogue."""
    d = b.d
    compute_type = d.r.choice((*COMPUTE_TYPES, "bf16", "f16", "bf16"))
    elem, cast = ("f32", "tf32") if compute_type == "tf32" else (compute_type, "")
    d.mark("dot")
    d.mark(f"element {compute_type}")
    batch = ("B",) if d.chance(0.2) else ()
    x, w = b.param((*batch, "A", "K"), elem), b.param((*batch, "C", "K"), elem)
    operands = f"{cast}({x}), {cast}({w})" if cast else f"{x}, {w}"
    if d.chance(0.15):
        operands += d.mark("acc", f", acc={d.r.choice(COMPUTE_TYPES[compute_type].accumulations)}")
    term, dims = f"dot[K]({operands})", (*batch, "A", "C")
    for _ in range(d.r.choice((0, 1, 2))):
        name = d.r.choice(("relu", "gelu", "silu", "tanh", "sigmoid", "abs"))
        d.mark(f"function {name}")
        term = f"{name}({term} + {b.param(d.r.choice((('C',), ('A',), dims)))})"
    return term, dims


def _value_of(field_: ScheduleField, d: Drawing) -> str:
    options = [*field_.words, "auto"]
    if field_.numbers:
        low, high = field_.numbers
        options += [str(v) for v in (low, high, 2, 4, 8, 128, high + 1 if d.chance(d.slip) else low)]
    if field_.rank:
        sides = (1, 2, 16, 32, 64, 96, 128, 192, 256)
        options += ["x".join(str(d.r.choice(sides)) for _ in range(field_.rank)) for _ in range(4)]
    return d.r.choice(options)


def schedules(d: Drawing, dims: Sequence[str], stage: str = "") -> list[str]:
    """Blocks of schedules, the last of an architecture mostly without a condition."""
    blocks: list[str] = []
    for _ in range(d.r.choice((0, 0, 1, 1, 2, 3))):
        fields = []
        for name in d.r.sample(list(FIELDS), d.r.choice((0, 1, 1, 2, 3))):
            values = [_value_of(FIELDS[name], d) for _ in range(d.r.choice((1, 1, 1, 2, 3)))]
            d.mark(f"field {name}")
            if len(values) > 1:
                d.mark("alternatives")
            fields.append(f"{name} {' or '.join(values)}")
        when = ""
        if dims and d.chance(0.5):
            when = f" when {d.mark('guard', _guard(d, dims))}"
        d.mark("schedule")
        if stage:
            d.mark("stage schedule")
        blocks.append(f"schedule {d.r.choice((*ARCHES, 'sm90a'))}{stage}{when} {{ {'  '.join(fields)} }}")
    if len(blocks) > 1:
        d.mark("several blocks")
    return blocks


def _guard(d: Drawing, dims: Sequence[str]) -> str:
    test = (
        f"{d.r.choice(dims)} {d.r.choice(_COMPARISONS)} {d.r.choice((1, 8, 64, 4096, 9223372036854775807))}"
    )
    other = f"{d.r.choice(dims)} % {d.r.choice((2, 8, 0))} == 0"
    return d.r.choice((test, other, f"{test} and {other}", f"not ({test}) or {other}"))


def _text(kind: str, name: str, b: Body, results: str, lines: Sequence[str]) -> str:
    params = ", ".join(f"{n}: {type_}" for n, (_, _, type_) in b.params.items())
    body = "".join(f"  {line}\n" for line in lines)
    return f"{kind} {name}({params}) -> {results} {{\n{body}}}\n"


def kernel(d: Drawing, name: str) -> None:
    b = Body(d)
    dims: Dims = _NAMES[: d.r.choice((1, 1, 2, 2, 2, 3, 4))]
    if d.chance(0.3):
        value, dims = _product(b)
    else:
        _bindings(b, dims)
        value = _value(b, dims)
    lines = list(b.statements)
    results = _result_type(d, dims)
    if d.chance(0.2):
        d.mark("several results")
        second, least = d.r.choice(("sum", "max", "mean")), dims[-1]
        lines.append(f"y = {value}")
        shown = ", ".join(dims[:-1])
        results = f"(p: {results}, q: f32[{shown}])"
        value = f"p = y, q = {second}[{least}](y)"
    if d.chance(0.15):
        lines.append(d.mark("require", f"require {_guard(d, dims)}"))
    lines.append(f"return {value}")
    if d.chance(0.1):
        lines.append(d.mark("comment", f"# {d.r.choice(('a', 'é', '/* */', '#' * 50))}"))
    known = [x for x in (*_NAMES, "K") if any(x in own for _, own, _ in b.params.values())]
    lines += schedules(d, known)
    if d.chance(0.1):
        results = _derived(d, b, results)
    d.items.append(_text("kernel", name, b, results, lines))


def _derived(d: Drawing, b: Body, results: str) -> str:
    """A parameter nobody reads whose extent is computed from another."""
    first = next((x for x in _NAMES if any(x in own for _, own, _ in b.params.values())), "A")
    by = d.r.choice(("2*{}", "{} + 1", "{} // 2", "({} + 3) // 4 * 4", "{} % 7", "{} - 1"))
    b.params[b.fresh("z")] = ("f32", ("",), f"f32[{first}, Z={by.format(first)}]")
    d.mark("derived extent")
    return results


def pipeline(d: Drawing) -> None:
    """Stages of its own, calls of a kernel, torch functions; memory orders written or left out."""
    d.mark("pipeline")
    b = Body(d, pipeline=True)
    dims: Dims = _NAMES[: d.r.choice((1, 2, 2, 3))]
    joined = ", ".join(dims)
    d.items.append(f"kernel called(u: f32[{joined}]) -> f32[{joined}] {{\n  return relu(u) + 1\n}}\n")
    last = b.param(dims, "f32", f"f32[{joined}]")
    blocks: list[str] = []
    for _ in range(d.r.choice((1, 2, 3, 5))):
        name = b.fresh("h")
        match d.r.randrange(6):
            case 0:
                d.mark("call of a kernel")
                b.statements.append(f"{name} = called({last})")
            case 1:
                d.mark("torch stage")
                b.statements.append(f"{name}: f32[{joined}] = {d.r.choice(_TORCH).format(x=last)}")
            case 2:
                b.statements.append(f"{name} = {_value(b, dims)} + {last}")
            case 3:
                d.mark("stage without an order")
                b.statements.append(f"{name}: f32 = {_value(b, dims)} + {last}")
                blocks += schedules(d, dims, f" for {name}")
            case _:
                d.mark("stage")
                b.statements.append(f"{name}: f32[{joined}] = {_value(b, dims)} + {last}")
                blocks += schedules(d, dims, f" for {name}")
        b.values[name] = dims
        # A torch function and a called kernel take what is stored in a written order.
        if " = called" in b.statements[-1] or f"{name}: f32[" in b.statements[-1]:
            last = name
    lines = [*b.statements, f"return {last} + {_value(b, dims)}", *blocks]
    if d.chance(0.3):
        lines += schedules(d, dims, " for return")
    d.items.append(_text("pipeline", "p", b, _result_type(d, dims, "f32"), lines))


@dataclass(frozen=True, slots=True)
class Drawn:
    text: str
    reached: Mapping[str, int]


def drawn(seed: int) -> Drawn:
    """Program number `seed`."""
    r = Random(f"grammar {seed}")
    d = Drawing(r, slip=r.choice((0.0, 0.0, 0.0, 0.2, 0.6)))
    functions(d)
    if r.random() < 0.25:
        pipeline(d)
    else:
        for i in range(r.choice((1, 1, 1, 2))):
            kernel(d, f"k{i}")
    if d.chance(0.3):
        r.shuffle(d.items)
    return Drawn("\n".join(d.items), d.reached)

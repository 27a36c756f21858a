"""Features of programs without a dot: how an operand is indexed, where it stands, what consumes it.

Every program computes a value over the names B, L and D from the operand of an indexing form, places it in an
expression, and reduces, scans, normalises or maps it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from tests.pairs.pairs import Choice, Program, Space
from ucutlass.kernels.reduction.plan import ReductionPlan

NAMES = ("B", "L", "D")
"""The names of the value, in their natural order."""

INTEGERS = ("s8", "u8", "i32", "i64")


@dataclass(slots=True)
class Draft:
    """A program while it is written: its parameters by name, and extents beside those of NAMES."""

    choice: Choice
    draw: random.Random
    sizes: dict[str, int]
    params: dict[str, str] = field(default_factory=dict)

    def tensor(self, name: str, elem: str, *dims: str) -> str:
        """Adds a parameter whose names stand in the order of the choice; gives its name."""
        order = list(dims)
        match self.choice["order"]:
            case "reversed":
                order.reverse()
            case "rotated":
                order = [*order[1:], *order[:1]]
            case _:
                pass
        self.params[name] = f"{elem}[{', '.join(order)}]"
        return name

    def operand(self, *dims: str) -> str:
        """The operand that the form indexes; truth values as numbers, since reductions take no bool."""
        x = self.tensor("x", self.choice["element"], *dims)
        return f"where({x}, 1.5, -0.5)" if self.choice["element"] == "bool" else x

    def table(self, *dims: str, rows: int = 0) -> str:
        """An operand that is gathered along V."""
        self.sizes["V"] = rows or self.draw.choice((1, 5, 24))
        return self.operand(*dims)

    def coordinates(self, *dims: str, name: str = "ids") -> str:
        return self.tensor(name, self.choice["coordinates"], *dims)

    def everywhere(self, value: str, *names: str) -> str:
        """The value with further names, along which it is the same."""
        return f"where({' and '.join(f'index({n}) >= 0' for n in names)}, {value}, 0)"


# --- indexing forms ------------------------------------------------------------------


def _renamed(d: Draft) -> str:
    d.sizes["J"] = d.sizes["L"]
    return f"{d.operand('B', 'J', 'D')}[J = L]"


def _gathered_value(d: Draft) -> str:
    table = d.table("V", "D")
    scale = d.tensor("scale", "i32" if d.choice["element"] in INTEGERS else "f32", "D")
    return f"({table} * {scale})[V = {d.coordinates('B', 'L')}]"


def _shifted(d: Draft) -> str:
    return f"{d.operand('B', 'L', 'D')}[L = L - 2, D = D + 1]"


def _strided(d: Draft) -> str:
    d.sizes["Z"] = max(1, 2 * d.sizes["L"] - d.draw.randint(0, 2))
    return f"{d.operand('B', 'Z', 'D')}[Z = 2*L + 1]"


def _divided(d: Draft) -> str:
    d.sizes["Z"] = d.sizes["L"] // 2 + 1
    return f"{d.operand('B', 'Z', 'D')}[2*Z = L + 1]"


def _window(d: Draft) -> str:
    name = d.draw.choice("LD")
    d.sizes["Z"] = d.sizes[name]
    dims = [("Z" if n == name else n) for n in NAMES]
    op = d.draw.choice(("sum", "max", "min", "mean"))
    return f"{op}[R=3]({d.operand(*dims)}[Z = {name} + R - 1])"


def _window_of_two_names(d: Draft) -> str:
    step = d.draw.randint(1, 5)
    d.sizes["Z"] = d.sizes["L"] * d.draw.randint(1, 2) + step * d.sizes["D"]
    op = d.draw.choice(("sum", "max"))
    return f"{op}[R={d.draw.randint(2, 4)}]({d.operand('B', 'Z')}[Z = {step}*D + L + R - 1])"


def _constant(d: Draft) -> str:
    d.sizes["Z"] = d.draw.choice((2, 5))
    return d.everywhere(f"{d.operand('B', 'Z', 'D')}[Z = 1]", "L")


def _gathered_again(d: Draft) -> str:
    d.sizes["U"] = 6
    table = d.table("V", "D")
    return f"{table}[V = {d.coordinates('U', name='rows')}[U = {d.coordinates('B', 'L')}]]"


def _gathered_window(d: Draft) -> str:
    d.sizes["Z"] = d.sizes["D"]
    op = d.draw.choice(("sum", "max"))
    return f"{op}[R=3]({d.table('V', 'Z')}[V = {d.coordinates('B', 'L')}, Z = D + R - 1])"


def _window_of_both(d: Draft) -> str:
    d.sizes |= {"Z": d.sizes["D"], "G": d.sizes["L"]}
    ids = d.coordinates("B", "G")
    return f"sum[R=2, Q=2]({d.table('V', 'Z')}[V = {ids}[G = L + Q - 1], Z = D + R - 1])"


def _by_window(d: Draft) -> str:
    d.sizes["Z"] = d.sizes["L"]
    return f"{d.table('V', 'D')}[V = max[R=3]({d.coordinates('B', 'Z')}[Z = L + R - 1])]"


def _by_coordinate(d: Draft) -> str:
    return f"{d.table('B', 'V', 'D', rows=d.sizes['L'] // 2 + 1)}[V = i64(index(L) // 2)]"


def _by_argmax(d: Draft) -> str:
    table = d.table("V", "D", rows=d.sizes["D"])
    return f"{table}[V = argmax[D]({d.tensor('s', 'f32', *NAMES)})]"


def _by_window_argmax(d: Draft) -> str:
    d.sizes["K"] = 4
    return f"{d.table('V', 'D', rows=4)}[V = argmax[K=4]({d.tensor('s', 'f32', 'B', 'L', 'K')})]"


def _by_scan(d: Draft) -> str:
    return f"{d.table('V', 'D')}[V = cumsum[L]({d.coordinates('B', 'L')}) % size(V)]"


def _two_gathers(d: Draft) -> str:
    d.sizes["U"] = 3
    ids = d.coordinates("B", "L"), d.coordinates("L", name="jds")
    return f"{d.table('V', 'U', 'D')}[V = {ids[0]}, U = {ids[1]}]"


def _segment(d: Draft) -> str:
    d.sizes["E"] = d.draw.choice((1, 3))
    table = d.operand("E", "D")
    d.params["offsets"] = "i32[E+1]"
    return d.everywhere(f"{table}[E = segment(L, offsets)]", "B")


FORMS: Mapping[str, Callable[[Draft], str]] = MappingProxyType(
    {
        "plain": lambda d: d.operand(*NAMES),
        "rename": _renamed,
        "broadcast": lambda d: d.everywhere(d.operand("B", "D"), "L"),
        "expand": lambda d: f"expand[L]({d.operand('B', 'D')})",
        "composite": lambda d: d.operand("(B L)", "D"),
        "masked": lambda d: f"where(index(L) <= index(D), {d.operand(*NAMES)}, 0)",
        "shift": _shifted,
        "flip": lambda d: f"{d.operand(*NAMES)}[D = size(D) - 1 - D]",
        "stride": _strided,
        "divided": _divided,
        "window": _window,
        "window of two names": _window_of_two_names,
        "constant": _constant,
        "gather": lambda d: f"{d.table('V', 'D')}[V = {d.coordinates('B', 'L')}]",
        "gather along D": lambda d: f"{d.table('B', 'L', 'V')}[V = {d.coordinates('D')}]",
        "gather by all names": lambda d: f"{d.table('V')}[V = {d.coordinates(*NAMES)}]",
        "gather by one name": lambda d: f"{d.table('V', 'B', 'D')}[V = {d.coordinates('L')}]",
        "gather by arithmetic": lambda d: (
            f"{d.table('V', 'D')}[V = min(max({d.coordinates('B', 'L')} - 1, 0), size(V) - 1)]"
        ),
        "gather by a coordinate": _by_coordinate,
        "gather by gathered coordinates": _gathered_again,
        "gather of a value": _gathered_value,
        "gather and shift": lambda d: f"{d.table('V', 'D')}[V = {d.coordinates('B', 'L')}, D = D - 1]",
        "gather in a window": _gathered_window,
        "gather by a moving window": _window_of_both,
        "gather by a window": _by_window,
        "gather by argmax": _by_argmax,
        "gather by argmax of few": _by_window_argmax,
        "gather by a scan": _by_scan,
        "two gathers": _two_gathers,
        "gather by segment": _segment,
    }
)

# --- places and operations -----------------------------------------------------------

PLACES: Mapping[str, str] = MappingProxyType(
    {
        "alone": "{v}",
        "times weights": "({v} * w)",
        "from weights": "(w - {v})",
        "in a function": "abs({v} - 1)",
        "in a condition": "where({v} > 0, w, 2)",
        "chosen": "where(w > 0, {v}, 1)",
        "twice": "({v} + {v} * {v})",
    }
)
"""How the value `v` of the form stands in the argument of the operation; `w` is a tensor of weights."""


@dataclass(frozen=True, slots=True)
class Operation:
    """`text` in terms of the argument `a`, the consumed names `o` and a plain operand `y`.

    `keeps` tells whether the result has the consumed names, `single` whether the operation takes one name
    alone, `result` is the result's element where the choice does not decide it, `whole` tells whether
    integers stay integers, `several` gives the types of several results."""

    text: str
    keeps: bool = True
    single: bool = False
    result: str = ""
    whole: bool = False
    several: str = ""


OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        "element-wise": Operation("{a} + 1", whole=True),
        "sum": Operation("sum[{o}]({a})", keeps=False, whole=True),
        "mean": Operation("mean[{o}]({a})", keeps=False, whole=True),
        "max": Operation("max[{o}]({a})", keeps=False, whole=True),
        "min": Operation("min[{o}]({a})", keeps=False, whole=True),
        "prod": Operation("prod[{o}]({a})", keeps=False, whole=True),
        "var": Operation("var[{o}]({a})", keeps=False, whole=True),
        "logsumexp": Operation("logsumexp[{o}]({a})", keeps=False),
        "argmax": Operation("argmax[{o}]({a})", keeps=False, single=True, result="i64", whole=True),
        "argmin": Operation("argmin[{o}]({a})", keeps=False, single=True, result="i32", whole=True),
        "softmax": Operation("softmax[{o}]({a})"),
        "log_softmax": Operation("log_softmax[{o}]({a})"),
        "cumsum": Operation("cumsum[{o}]({a})", single=True, whole=True),
        "reverse exclusive cumsum": Operation(
            "cumsum[{o}]({a}, exclusive=true, reverse=true)", single=True, whole=True
        ),
        "cumprod": Operation("cumprod[{o}](where({a} > 0, 1, -1))", single=True, whole=True),
        "centred": Operation("{a} - mean[{o}]({a})"),
        "normalised": Operation("({a} - mean[{o}]({a})) * rsqrt(var[{o}]({a}) + 0.5)"),
        "from the largest": Operation("{a} - max[{o}]({a})", whole=True),
        "scan of a centred value": Operation("cumsum[{o}]({a} - mean[{o}]({a}))", single=True),
        "window": Operation("max[T=2]({a}[D = D + T - 1])", whole=True),
        "beside a reduction": Operation("{a} - max[{o}](y)"),
        "several results": Operation(
            "p = softmax[{o}]({a}), q = sum[{o}]({a})", several="(p: {e}[{k}], q: f32[{r}])"
        ),
    }
)

AXES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "form": tuple(FORMS),
        "operation": tuple(OPERATIONS),
        "place": tuple(PLACES),
        "over": ("L", "D", "B", "L and D", "B and D"),
        "element": ("f32", "f16", "bf16", "e4m3", "e5m2", *INTEGERS, "bool"),
        "coordinates": ("i64", "i32", "u8", "s8"),
        "order": ("natural", "reversed", "rotated"),
        "result order": ("natural", "reversed"),
        "result": ("f32", "bf16", "f16", "e4m3"),
        "extents": ("aligned", "odd", "ones", "long"),
        "schedule": ("auto", "keep reread", "vector 1", "items 2", "split_k 3", "cluster 1x2"),
    }
)


def _extents(choice: Choice, over: tuple[str, ...], draw: random.Random) -> dict[str, int]:
    match choice["extents"]:
        case "aligned":
            return {"B": draw.choice((2, 8)), "L": draw.choice((8, 16)), "D": draw.choice((16, 48, 64))}
        case "odd":
            return {"B": draw.choice((3, 5)), "L": draw.choice((5, 9)), "D": draw.choice((7, 33, 37))}
        case "ones":
            return {n: draw.choice((1, 1, 4)) for n in NAMES}
        case _:
            long = {"B": 2, "L": 3, "D": 4}
            return long | {draw.choice(over): draw.choice((1023, 2500, 4096))}


def program(choice: Choice, draw: random.Random) -> Program:
    """The program of a choice."""
    operation = OPERATIONS[choice["operation"]]
    over = tuple(choice["over"].split(" and "))
    if operation.single:
        over = (draw.choice(over),)
    draft = Draft(choice, draw, _extents(choice, over, draw))
    value = FORMS[choice["form"]](draft)
    integral = operation.whole and choice["element"] in INTEGERS
    if choice["element"] in INTEGERS and not integral:
        value = f"f32({value})"
    weights = "i32" if integral else "f32"
    # Every name has its extent from a parameter, also where it is consumed.
    known = "".join(draft.params.values())
    draft.tensor("w", weights, "B", "L", *(("D",) if "D" not in known else ()))
    if "(y)" in operation.text:
        draft.tensor("y", "f32", *NAMES)
    argument = PLACES[choice["place"]].format(v="v")
    if operation.text.count("{a}") > 1:
        body = f"  v = {value}\n  a = {argument}\n  "
        argument = "a"
    else:
        body = f"  v = {value}\n  "
    text = operation.text.format(a=argument, o=", ".join(over))
    left = [n for n in NAMES if operation.keeps or n not in over]
    if choice["result order"] == "reversed":
        left.reverse()
    elem = operation.result or choice["result"]
    if operation.several:
        few = [n for n in left if n not in over]
        result = operation.several.format(e=elem, k=", ".join(left), r=", ".join(few))
    else:
        result = f"{elem}[{', '.join(left)}]"
    schedule = "" if choice["schedule"] == "auto" else f"\n  schedule sm90a {{ {choice['schedule']} }}"
    params = ", ".join(f"{name}: {kind}" for name, kind in draft.params.items())
    return Program(f"kernel k({params}) -> {result} {{\n{body}return {text}{schedule}\n}}\n", draft.sizes)


REDUCTIONS = Space("reduction", AXES, program, lambda planned: isinstance(planned.plan, ReductionPlan))

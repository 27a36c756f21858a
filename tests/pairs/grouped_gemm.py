"""Programs of pairs of dots, of ragged groups, of narrow weights and of scaled parts, by features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType

from tests.pairs.gemm import COMPUTE_TYPES
from tests.pairs.pairs import Choice, Program, Space
from tests.pairs.text import Axis, Stored, kernel
from ucutlass.kernels.grouped_gemm.plan import GroupedGemmPlan

SCHEDULES: Mapping[str, str] = MappingProxyType(
    {
        "chosen": "",
        "direct": "warps direct",
        "cooperative": "warps cooperative",
        "pingpong": "warps pingpong",
        "split": "warps cooperative  split_k 2",
    }
)

FUNCTIONS: Mapping[str, str] = MappingProxyType(
    {
        "none": "{v}",
        "relu": "relu({v})",
        "gated": "silu({v}) * {u}",
        "sum": "{v} + {u}",
        "greatest": "max({v}, {u} * 0.5)",
        "compared": "where({v} > {u} * 0.5 + 0.125, {v}, 0.25)",
        "rounded": "bf16({v}) * 0.5 + 1",
        "coordinates": "{v} + index({n}) % 5 * 0.5 + index({m}) * 0.125",
    }
)
"""Of the first dot with its operand, and of the second dot or, where there is one alone, of that."""

AXES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "form": (
            "pair",
            "batched pair",
            "ragged",
            "ragged pair",
            "group sums",
            "narrow s4",
            "narrow s8",
            "narrow u8",
            "narrow e4m3",
            "narrow e5m2",
            "scaled rows",
            "scaled columns",
            "scaled both",
            "scaled blocks",
            "scaled s4",
            "scaled s8",
        ),
        "compute type": ("bf16", "f16", "tf32", "f32", "e4m3", "e5m2", "s8"),
        "order": ("K last", "rows last", "columns last", "K first"),
        "sides": ("rows first", "columns first"),
        "operand": ("none", "columns", "rows", "all", "groups", "host", "device", "shifted", "gathered"),
        "operand element": ("f32", "f16", "bf16", "e4m3", "e5m2", "s8", "u8", "i32", "bool"),
        "function": tuple(FUNCTIONS),
        "element": ("f32", "f16", "bf16", "e4m3", "e5m2", "s8", "i32", "bool"),
        "result": ("columns last", "rows last"),
        "outcome": ("one", "two", "comparison"),
        "offsets": ("i32", "i64", "i32, many", "i64, one"),
        "extents": ("tiles", "aligned", "odd result", "odd", "one"),
        "schedule": tuple(SCHEDULES),
    }
)


@dataclass(frozen=True, slots=True)
class _Form:
    """The dimensions of a form by role, and how its kernels write the left and the right operands.

    `batch` is an axis of results, whose name `groups` is; `stored` the right operands' element, None: the
    compute type's. `left` and `right` stand around the operands in a dot.
    """

    rows: tuple[str, ...] = ("T",)
    columns: tuple[str, ...] = ("F",)
    summed: tuple[str, ...] = ("D",)
    batch: tuple[Axis, ...] = ()
    left: str = "{x}"
    right: str = "{w}"
    stored: str | None = None
    two: bool = False


def _form(choice: Choice) -> _Form:
    kind, compute_type = choice["form"], COMPUTE_TYPES[choice["compute type"]][0]
    cast = (
        f"{choice['compute type']}({{w}})"
        if choice["compute type"] in ("bf16", "f16", "f32", "tf32")
        else f"{compute_type}({{w}})"
    )
    match kind.split():
        case ["pair"]:
            return _Form(two=True)
        case ["batched", _]:
            return _Form(batch=("B",), two=True)
        case ["ragged", *pair]:
            return _Form(right="{w}[E = segment(T, o)]", two=bool(pair))
        case ["group", _]:
            masked = "where(own, {x}, 0)"
            return _Form(("F",), ("D",), ("T",), ("E=O-1",), masked, masked.replace("x", "w"))
        case ["narrow", stored]:
            return _Form(right=cast, stored=stored)
        case ["scaled", ("s4" | "s8") as stored]:
            return _Form(summed=("G", "J"), right=cast, stored=stored)
        case ["scaled", "blocks"]:
            return _Form(columns=("P", "Q"), summed=("G", "J"))
    return _Form(summed=("G", "J"))


def program(choice: Choice, draw: Random) -> Program:
    """The program of a choice. What a choice leaves no room for falls away: offsets without groups."""
    form = _form(choice)
    extents = _extents(choice, form, draw)
    parameters = _operands(choice, form)
    if choice["form"] in ("ragged", "ragged pair", "group sums"):
        axis = "O" if form.batch else "E+1"
        parameters.append(Stored("o", choice["offsets"][:3], (axis,)))
    bindings = ["own = segment(T, o) == index(E)"] if choice["form"] == "group sums" else []
    bindings += _dots(choice, form, parameters, draw)
    bindings += _epilogue(choice, form, parameters, extents)
    results = _results(choice, form)
    return kernel(parameters, results, bindings, extents, SCHEDULES[choice["schedule"]])


# --- dots ---------------------------------------------------------------------------


def _operands(choice: Choice, form: _Form) -> list[Stored]:
    elem = COMPUTE_TYPES[choice["compute type"]][0]
    summed: tuple[Axis, ...] = form.summed if len(form.summed) == 1 else (form.summed,)
    columns: tuple[Axis, ...] = form.columns if len(form.columns) == 1 else (form.columns,)
    batch: tuple[Axis, ...] = ("B",) if choice["form"] == "batched pair" else ()
    groups: tuple[Axis, ...] = ("E",) if choice["form"].startswith("ragged") else batch
    rows_last = choice["order"] in ("rows last", "K first")
    columns_last = choice["order"] in ("columns last", "K first")
    x = (*summed, *form.rows) if rows_last else (*form.rows, *summed)
    w = (*summed, *columns) if columns_last else (*columns, *summed)
    names = ("w", "u") if form.two else ("w",)
    rights = [Stored(name, form.stored or elem, (*groups, *w)) for name in names]
    return [Stored("x", elem, (*batch, *x)), *rights]


def _dots(choice: Choice, form: _Form, parameters: list[Stored], draw: Random) -> list[str]:
    """The bindings `d`, of the first dot, and `e`, of the second where there is one."""
    compute_type, around, _ = COMPUTE_TYPES[choice["compute type"]]
    masked = choice["form"] == "group sums"
    if masked and choice["compute type"] not in ("f32", "tf32"):
        around = f"{compute_type}({{}})"
    over = form.summed[-1]
    bindings = []
    for name, right in zip("de", ("w", "u") if form.two else ("w",), strict=False):
        # A cast of a narrow operand is to the compute type already.
        outer = "{}" if form.stored else around
        pair = [around.format(form.left.format(x="x")), outer.format(form.right.format(w=right))]
        sides = pair if choice["sides"] == "rows first" else pair[::-1]
        value = f"dot[{over}]({', '.join(sides)})"
        if choice["form"].startswith("scaled"):
            value = _scaled(choice, value, form, parameters, draw)
        bindings.append(f"{name} = {value} * {0.001 if choice['compute type'] == 's8' else 0.25}")
    return bindings


def _scaled(choice: Choice, dot: str, form: _Form, parameters: list[Stored], draw: Random) -> str:
    """The sum of scaled parts; adds the scales to the parameters."""
    kind = choice["form"].split()[1]
    scales = {"rows": ("T",), "both": ("T", "F"), "blocks": ("T", "P")}.get(kind, ("F",))
    for name, dim in zip("ab", scales, strict=False):
        axes = draw.choice(((dim, "G"), ("G", dim)))
        parameters.append(Stored(name, draw.choice(("f32", "bf16")), axes))
    factors = [dot, *"ab"[: len(scales)]]
    return f"sum[G]({' * '.join(factors if draw.random() < 0.7 else factors[::-1])})"


# --- the epilogue -------------------------------------------------------------------


def _epilogue(choice: Choice, form: _Form, parameters: list[Stored], extents: dict[str, int]) -> list[str]:
    """The bindings, of which the last is `r`; adds the operand to the parameters."""
    kind, elem, n = choice["operand"], choice["operand element"], form.columns[-1]
    ragged = choice["form"].startswith("ragged")
    groups: tuple[Axis, ...] = ("E", *form.columns) if ragged else (*form.batch, *form.columns)
    axes: tuple[Axis, ...] | None = {
        "none": None,
        "host": None,
        "device": (),
        "columns": form.columns,
        "rows": form.rows,
        "all": (*form.batch, *form.rows, *form.columns),
        "groups": groups,
        "shifted": form.columns,
        "gathered": ("V", *form.columns),
    }[kind]
    read = "p"
    match kind:
        case "groups" if ragged:
            read = "p[E = segment(T, o)]"
        case "shifted":
            read = f"p[{n} = {n} - 1]"
        case "gathered":
            parameters.append(Stored("ids", "i32", form.rows))
            extents["V"], read = 8, "p[V = ids]"
    value = "d"
    if kind != "none":
        parameters.append(Stored("p", elem, axes))
        value = f"where({read}, d, -1)" if elem == "bool" else f"d + {read} * 0.5"
    second = "e" if form.two else "d"
    # Without a part in the outcome the second dot would not be computed.
    function = FUNCTIONS[choice["function"]].format(v="v", u=second, m=form.rows[-1], n=n)
    if form.two and "{u}" not in FUNCTIONS[choice["function"]]:
        function = f"{function} - e"
    return [f"v = {value}", f"r = {function}"]


def _results(choice: Choice, form: _Form) -> list[tuple[Stored, str]]:
    inner = (*form.columns, *form.rows) if choice["result"] == "rows last" else (*form.rows, *form.columns)
    axes = (*form.batch, *inner)
    bare: tuple[Axis, ...] = tuple(a.partition("=")[0] if isinstance(a, str) else a for a in axes)
    stored = (Stored("y", choice["element"], axes), "r > 0" if choice["element"] == "bool" else "r")
    match choice["outcome"]:
        case "two":
            return [stored, (Stored("z", "bf16", bare), "d")]
        case "comparison":
            return [stored, (Stored("z", "bool", bare), "r > d * 0.5 + 0.125")]
        case _:
            return [stored]


# --- extents ------------------------------------------------------------------------

TILES, ALIGNED, ODD = (64, 128), (80, 48, 112), (37, 29, 19)


def _extents(choice: Choice, form: _Form, draw: Random) -> dict[str, int]:
    kind = choice["extents"]
    sides = {"tiles": TILES, "odd": ODD, "odd result": ODD}.get(kind, ALIGNED)
    summed = {"tiles": TILES, "odd": ODD}.get(kind, ALIGNED)
    across = choice["form"] == "group sums"
    extents = {
        "T": draw.choice(summed if across else sides),
        "F": draw.choice(sides),
        "D": draw.choice(sides if across else summed),
        "B": 3,
        "P": 1 if kind == "one" else 2,
        "Q": {"tiles": 64, "odd": 19, "odd result": 19}.get(kind, 48),
        "G": draw.choice((1, 2, 3)),
        "J": 21 if kind == "odd" else 128,
    }
    groups = {"i32, many": 33, "i64, one": 1}.get(choice["offsets"], draw.choice((3, 5)))
    extents |= {"O": groups + 1} if across else {"E": groups}
    if kind == "one":
        extents[draw.choice("TFD")] = 1
    if form.stored == "s4":
        # Two values share a byte along the innermost axis.
        last = form.columns[-1] if choice["order"] in ("columns last", "K first") else form.summed[-1]
        extents[last] += extents[last] % 2
    return extents


SCALED = ("scaled rows", "scaled columns", "scaled both", "scaled blocks")
NARROW = ("narrow s4", "narrow s8", "narrow u8", "narrow e4m3", "narrow e5m2", "scaled s4", "scaled s8")
TMA = ("cooperative", "pingpong", "split")

REFUSED: tuple[Mapping[str, tuple[str, ...]], ...] = (
    {"operand": ("shifted", "gathered")},
    {"extents": ("odd",), "schedule": TMA},
    {"compute type": ("f32",), "schedule": TMA},
    # What f16 and bf16 hold exactly is widened to these.
    {"form": NARROW, "compute type": ("tf32", "f32", "e4m3", "e5m2", "s8")},
    {"form": SCALED, "compute type": ("s8",)},
    {"form": (*SCALED, "scaled s4", "scaled s8"), "order": ("rows last", "columns last", "K first")},
    # Parts of K are added without ragged groups.
    {"form": ("ragged", "ragged pair", "group sums"), "schedule": ("split",)},
    {"compute type": ("s8",), "schedule": ("split",)},
    {"order": ("columns last", "K first"), "schedule": ("split",)},
)

GROUPED_GEMMS = Space(
    "grouped_gemm", AXES, program, lambda planned: isinstance(planned.plan, GroupedGemmPlan), refused=REFUSED
)

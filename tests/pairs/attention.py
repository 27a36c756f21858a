"""Programs of attention, by features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType

from tests.pairs.pairs import Choice, Program, Space
from tests.pairs.text import Axis, Stored, kernel
from ucutlass.kernels.attention.plan import AttentionPlan

MASKS: Mapping[str, str] = MappingProxyType(
    {
        "none": "",
        "causal": "index(S) <= index(L)",
        "causal at the end": "index(S) <= index(L) + size(S) - size(L)",
        "window": "index(S) <= index(L) + 40 and index(L) - index(S) < 33",
        "ahead": "index(S) > index(L) - 70",
        "strided": "index(S) % 3 != 1",
        "of keys": "m or index(S) == 0",
        "of queries and keys": "m or index(S) == 0",
        "packed": "{own}",
        "packed causal": "{own} and {key} <= {row}",
        "packed window": "{row} - {key} < 19 and {own}",
        "one packed": "{own} and index(S) <= index(L)",
    }
)
"""The condition under which a score counts."""

SCORES: Mapping[str, str] = MappingProxyType(
    {
        "scaled": "d * rsqrt(size(D))",
        "divided": "d / sqrt(size(D))",
        "plain": "d",
        "negative": "d * -0.25",
        "capped": "tanh(d * 0.125) * 4",
        "by place": "d * 0.125 - 0.01 * abs(index(S) - index(L))",
    }
)

SCHEDULES: Mapping[str, str] = MappingProxyType(
    {
        "chosen": "",
        "two stages": "stages 2",
        "tile": "tile 64x64x{D}",
        "wide tile": "tile 128x64x{D}  stages 2",
    }
)

LENGTHS: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = MappingProxyType(
    {
        "tiles": ((64, 128), (64, 128)),
        "odd": ((37, 65), (67, 129)),
        "one query": ((1,), (65, 150)),
        "many keys": ((1, 3), (1100, 1500)),
        "few": ((7, 3), (5, 1)),
    }
)
"""Queries and keys."""

AXES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "compute type": ("f16", "bf16"),
        "head": ("64", "8", "24", "72", "128", "256", "values of 32"),
        "heads": ("own", "shared", "shared apart", "one of keys", "none"),
        "order": ("heads, tokens", "tokens, heads", "tokens outermost"),
        "keys' order": ("heads, tokens", "tokens, heads", "tokens outermost"),
        "score": tuple(SCORES),
        "mask": tuple(MASKS),
        "operand": (
            "none",
            "keys",
            "queries",
            "queries, keys",
            "keys, queries",
            "heads, keys",
            "all",
            "host",
            "device",
            "shifted",
            "gathered",
        ),
        "operand element": ("f32", "f16", "bf16", "e4m3", "e5m2", "s8", "u8", "i32", "bool"),
        "outcome": ("plain", "gated", "residual", "by rows", "two results", "comparison"),
        "element": ("f16", "bf16", "f32", "e4m3", "e5m2", "s8", "i32", "bool"),
        "result": ("heads, tokens", "tokens, heads", "tokens outermost", "tokens last"),
        "lengths": tuple(LENGTHS),
        "schedule": tuple(SCHEDULES),
    }
)

FIRST = """fn first[T, O](starts) {
  e = segment(T, starts)
  return index(T) - starts[O = e]
}
"""


@dataclass(frozen=True, slots=True)
class _Names:
    """The dimensions by role: of the batch, of heads that queries and keys have, and of queries alone."""

    batch: tuple[str, ...]
    heads: tuple[str, ...]
    shared: tuple[str, ...]
    composite: bool
    own_keys: bool

    @property
    def query_heads(self) -> tuple[Axis, ...]:
        both = (*self.heads, *self.shared)
        return (both,) if self.composite and len(both) > 1 else both

    @property
    def rows(self) -> tuple[str, ...]:
        return (*self.batch, *self.heads, *self.shared, "L")


def program(choice: Choice, draw: Random) -> Program:
    """The program of a choice. Features that a choice leaves no room for fall away: packed sequences have no
    batch, and where they share one axis there are as many keys as queries."""
    names, compute_type = _names(choice), choice["compute type"]
    extents = _extents(choice, draw)
    q = Stored("q", compute_type, (*_order(choice["order"], names.batch, names.query_heads, "L"), "D"))
    of_keys = names.heads if names.own_keys else ()
    keys = _order(choice["keys' order"], names.batch, of_keys, "S")
    value = "E" if choice["head"] == "values of 32" else "D"
    parameters = [q, Stored("k", compute_type, (*keys, "D")), Stored("v", compute_type, (*keys, value))]
    score = _score(choice, names, parameters, extents)
    sides = draw.choice(("q, k", "k, q"))
    masked, functions = _masked(choice, names, parameters, extents)
    bindings = [f"d = dot[D]({sides})", *score, *masked, f"o = dot[S]({compute_type}(softmax[S](f)), v)"]
    results = _results(choice, names, value, parameters)
    schedule = SCHEDULES[choice["schedule"]].format(D=extents["D"])
    shown = {d: n for d, n in extents.items() if d != "S" or choice["mask"] != "one packed"}
    return kernel(parameters, results, bindings, shown, schedule, functions)


def _names(choice: Choice) -> _Names:
    batch = () if choice["mask"].endswith("packed") or choice["mask"].startswith("packed") else ("B",)
    shared = ("G",) if choice["heads"].startswith("shared") else ()
    heads = () if choice["heads"] == "none" else ("H",)
    return _Names(batch, heads, shared, choice["heads"] == "shared", choice["heads"] != "one of keys")


def _order(order: str, batch: tuple[str, ...], heads: tuple[Axis, ...], tokens: str) -> tuple[Axis, ...]:
    match order:
        case "tokens, heads":
            return (*batch, tokens, *heads)
        case "tokens outermost":
            return (tokens, *batch, *heads)
        case _:
            return (*batch, *heads, tokens)


# --- scores -------------------------------------------------------------------------


def _score(choice: Choice, names: _Names, parameters: list[Stored], extents: dict[str, int]) -> list[str]:
    """The binding `e`; adds the bias to the parameters."""
    kind, elem, read = choice["operand"], choice["operand element"], "p"
    axes: tuple[Axis, ...] | None = {
        "none": None,
        "host": None,
        "device": (),
        "keys": ("S",),
        "queries": ("L",),
        "queries, keys": ("L", "S"),
        "keys, queries": ("S", "L"),
        "heads, keys": (*names.heads, "S"),
        "all": (*names.rows, "S"),
        "shifted": ("S",),
        "gathered": ("V", "S"),
    }[kind]
    match kind:
        case "shifted":
            read = "p[S = S - 1]"
        case "gathered":
            parameters.append(Stored("ids", "i32", ("L",)))
            extents["V"], read = 8, "p[V = ids]"
    value = SCORES[choice["score"]]
    if kind != "none":
        parameters.append(Stored("p", elem, axes))
        value = f"where({read}, {value}, -2)" if elem == "bool" else f"{value} + {read} * 0.5"
    return [f"e = {value}"]


def _masked(
    choice: Choice, names: _Names, parameters: list[Stored], extents: dict[str, int]
) -> tuple[list[str], str]:
    """The binding `f`, and the functions that it calls; adds masks and offsets to the parameters."""
    kind, wide = choice["mask"], "i32" if choice["compute type"] == "f16" else "i64"
    condition, functions = MASKS[kind], ""
    if kind.startswith("of "):
        rows: tuple[Axis, ...] = ("L",) if "queries" in kind else ()
        parameters.append(Stored("m", "bool", (*names.batch, *rows, "S")))
    if "packed" in kind:
        packed = kind == "one packed"
        parameters.append(Stored("a", wide, ("O",)))
        if not packed:
            parameters.append(Stored("c", wide, ("P=O",)))
        own = f"segment(L, a) == segment(S, {'a' if packed else 'c'})"
        condition = condition.format(own=own, row="first[L, O](a)", key="first[S, P](c)")
        functions = FIRST if "first" in condition else ""
        extents["O"] = 4
        if packed:
            parameters[1:3] = [_as_long(p) for p in parameters[1:3]]
    return [f"f = where({condition}, e, -inf)" if condition else "f = e"], functions


def _as_long(stored: Stored) -> Stored:
    """Keys of which there are as many as queries."""
    axes = tuple("S=L" if axis == "S" else axis for axis in stored.axes or ())
    return Stored(stored.name, stored.elem, axes)


# --- results ------------------------------------------------------------------------


def _results(choice: Choice, names: _Names, value: str, parameters: list[Stored]) -> list[tuple[Stored, str]]:
    kind = choice["outcome"]
    if choice["result"] == "tokens last":
        axes: tuple[Axis, ...] = (*names.batch, *names.query_heads, value, "L")
    else:
        axes = (*_order(choice["result"], names.batch, names.query_heads, "L"), value)
    if kind in ("gated", "residual"):
        parameters.append(Stored("g", "bf16", axes))
    if kind == "by rows":
        parameters.append(Stored("g", "f32", names.rows[-1:]))
    outcome = {"gated": "sigmoid(g) * o", "residual": "o + g", "by rows": "o * g"}.get(kind, "o")
    stored = (
        Stored("y", choice["element"], axes),
        f"{outcome} > 0" if choice["element"] == "bool" else outcome,
    )
    match kind:
        case "two results":
            return [stored, (Stored("z", "f32", axes), "o * 0.5")]
        case "comparison":
            return [(Stored("z", "bool", axes), "o > 0.125"), stored]
        case _:
            return [stored]


def _extents(choice: Choice, draw: Random) -> dict[str, int]:
    queries, keys = LENGTHS[choice["lengths"]]
    head = 64 if choice["head"] == "values of 32" else int(choice["head"])
    extents = {"B": draw.choice((1, 2)), "H": 2, "G": draw.choice((2, 3)), "D": head, "E": 32}
    extents |= {"L": draw.choice(queries), "S": draw.choice(keys)}
    if choice["mask"] == "one packed":
        extents["L"] = extents["S"] = min(extents["S"], 150)
    return extents


ATTENTION = Space(
    "attention",
    AXES,
    program,
    lambda planned: isinstance(planned.plan, AttentionPlan),
    refused=({"operand": ("shifted", "gathered")},),
)

"""Programs of one dot with its epilogue, by features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType

from tests.pairs.pairs import Choice, Program, Space
from tests.pairs.text import Axis, Stored, kernel
from ucutlass.kernels.gemm.plan import GemmPlan

COMPUTE_TYPES: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {
        "bf16": ("bf16", "{}", ""),
        "f16": ("f16", "{}", ""),
        "f16, sums in f16": ("f16", "{}", ", acc=f16"),
        "tf32": ("f32", "tf32({})", ""),
        "f32": ("f32", "{}", ""),
        "e4m3": ("e4m3", "{}", ""),
        "e4m3, fast": ("e4m3", "{}", ", acc=fast"),
        "e5m2": ("e5m2", "{}", ""),
        "s8": ("s8", "{}", ""),
    }
)
"""By feature: the element in memory, what stands around an operand, and the accumulation."""

SCHEDULES: Mapping[str, str] = MappingProxyType(
    {
        "chosen": "",
        "cooperative": "warps cooperative",
        "pingpong": "warps pingpong",
        "split": "warps cooperative  split_k 2",
        "stream": "warps cooperative  split_k stream",
        "cluster": "warps cooperative  split_k 2  partials cluster",
        "swapped": "warps cooperative  swap yes",
        "three f16 passes": "warps cooperative  math f16x3",
        "multistage": "warps multistage",
        "multistage, split": "warps multistage  split_k 2",
        "gemv": "warps gemv",
    }
)

REDUCED = ("sum of columns", "max of rows", "min of all", "mean of columns", "sum of batches")
"""Outcomes that are a reduction of the result."""

FUNCTIONS: Mapping[str, str] = MappingProxyType(
    {
        "none": "{v}",
        "relu": "relu({v})",
        "gelu": "gelu({v} * 0.25)",
        "exp": "exp(-abs({v}))",
        "clamp": "clamp({v}, -1.5, 3)",
        "compared": "where({v} > 0.5, {v}, d * 0.5)",
        "rounded": "f16({v}) * 0.5 + 1",
        "coordinates": "{v} + index({n}) % 5 * 0.5 + size({m})",
        "masked": "where(index({m}) >= index({n}) + 1, {v}, 0)",
    }
)

AXES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "compute type": tuple(COMPUTE_TYPES),
        "order": ("K last", "rows last", "columns last", "K first"),
        "names": (
            "plain",
            "renamed columns",
            "with itself",
            "composite rows",
            "rows apart",
            "composite columns",
            "composite K",
            "K apart",
        ),
        "batch": ("none", "first", "between", "last", "of rows", "of columns", "two"),
        "operand": (
            "none",
            "columns",
            "rows",
            "all",
            "all across",
            "batch",
            "host",
            "device",
            "composite",
            "shifted",
            "gathered",
        ),
        "operand element": ("f32", "f16", "bf16", "e4m3", "e5m2", "s8", "u8", "i32", "bool"),
        "function": tuple(FUNCTIONS),
        "element": ("f32", "f16", "bf16", "e4m3", "e5m2", "s8", "i32", "bool"),
        "result": ("columns last", "rows last", "batch last", "composite"),
        "outcome": ("one", "two", "comparison", *REDUCED),
        "extents": ("tiles", "aligned", "odd result", "odd", "one"),
        "schedule": tuple(SCHEDULES),
    }
)


@dataclass(frozen=True, slots=True)
class _Names:
    """The dimensions of a product by role; `rows` and `columns` without batch names."""

    batch: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    summed: tuple[str, ...]

    @property
    def result(self) -> tuple[str, ...]:
        return (*self.batch, *self.rows, *self.columns)


def program(choice: Choice, draw: Random) -> Program:
    """The program of a choice. Features that a choice leaves no room for fall away: a batch name that one
    side alone has, in a product with itself."""
    itself = choice["names"] == "with itself"
    names = _names(choice)
    elem, around, accumulation = COMPUTE_TYPES[choice["compute type"]]
    x, w = _operands(choice, names, elem)
    parameters = [x] if itself else [x, w]
    left, right = _reads(choice, draw)
    extents = _extents(choice, names, draw)
    bindings = _epilogue(choice, names, parameters, extents)
    dot = f"d = dot[{', '.join(names.summed)}]({around.format(left)}, {around.format(right)}{accumulation})"
    results = _results(choice, names)
    if choice["names"] in ("with itself", "renamed columns"):
        del extents["N"]  # a rename tells it
    return kernel(parameters, results, (dot, *bindings), extents, SCHEDULES[choice["schedule"]])


def _names(choice: Choice) -> _Names:
    batch = {"none": (), "two": ("B", "C")}.get(choice["batch"], ("B",))
    rows = ("M", "U") if choice["names"] in ("composite rows", "rows apart") else ("M",)
    columns = ("N", "V") if choice["names"] == "composite columns" else ("N",)
    summed = ("K", "L") if choice["names"] in ("composite K", "K apart") else ("K",)
    return _Names(batch, rows, columns, summed)


# --- operands of the dot ------------------------------------------------------------


def _operands(choice: Choice, names: _Names, elem: str) -> tuple[Stored, Stored]:
    rows_last = choice["order"] in ("rows last", "K first")
    columns_last = choice["order"] in ("columns last", "K first")
    kind, itself = choice["names"], choice["names"] == "with itself"
    rows: tuple[Axis, ...] = {"composite rows": (("M", "U"),), "rows apart": ("U", "M")}.get(kind, ("M",))
    columns: tuple[Axis, ...] = {"composite columns": (("N", "V"),), "renamed columns": ("T",)}.get(
        kind, ("N",)
    )
    summed: tuple[Axis, ...] = (("K", "L"),) if kind == "composite K" else tuple(names.summed)
    batch_x = () if choice["batch"] == "of columns" and not itself else names.batch
    batch_w = () if choice["batch"] == "of rows" else names.batch
    x = _placed(choice["batch"], batch_x, rows, summed, rows_last)
    w = _placed(choice["batch"], batch_w[::-1], columns, summed, columns_last)
    return Stored("x", elem, x), Stored("w", elem, w)


def _placed(
    place: str, batch: tuple[str, ...], side: tuple[Axis, ...], summed: tuple[Axis, ...], across: bool
) -> tuple[Axis, ...]:
    first, second = (summed, side) if across else (side, summed)
    match place:
        case "between":
            return (*first, *batch, *second)
        case "last":
            return (*first, *second, *batch)
        case _:
            return (*batch, *first, *second)


def _reads(choice: Choice, draw: Random) -> tuple[str, str]:
    match choice["names"]:
        case "with itself":
            sides = ("x", "x[M = N]")
        case "renamed columns":
            sides = ("x", "w[T = N]")
        case _:
            sides = ("x", "w")
    return sides if draw.random() < 0.8 else sides[::-1]


# --- the epilogue -------------------------------------------------------------------


def _epilogue(choice: Choice, names: _Names, parameters: list[Stored], extents: dict[str, int]) -> list[str]:
    """The bindings, of which the last is `r`; adds the operand to the parameters."""
    elem, kind = choice["operand element"], choice["operand"]
    value = "d * 0.0625" if choice["compute type"] == "s8" else "d"
    (m, *_), (n, *_) = names.rows, names.columns
    axes: tuple[Axis, ...] | None = {
        "none": None,
        "host": None,
        "columns": names.columns,
        "rows": names.rows,
        "all": names.result,
        "all across": (*names.columns, *names.rows[::-1], *names.batch),
        "batch": names.batch,
        "device": (),
        "composite": (*names.batch, *names.rows[:-1], (names.rows[-1], *names.columns)),
        "shifted": names.columns,
        "gathered": ("G", *names.rows),
    }[kind]
    axes, read = _renamed(choice, axes, "p")
    if kind == "shifted":
        read = read.replace("= N", "= N - 1") if read != "p" else f"p[{n} = {n} - 1]"
    if kind == "gathered":
        parameters.append(Stored("ids", "i32", names.rows))
        extents["G"], read = 8, "p[G = ids]"
    if kind != "none":
        parameters.append(Stored("p", elem, axes))
        value = f"where({read}, {value}, -1)" if elem == "bool" else f"{value} + {read} * 0.5"
    return [f"v = {value}", f"r = {FUNCTIONS[choice['function']].format(v='v', m=m, n=n)}"]


def _renamed(choice: Choice, axes: tuple[Axis, ...] | None, name: str) -> tuple[tuple[Axis, ...] | None, str]:
    """The axes of an operand in memory, and how it is read, where columns have another name in memory."""
    memory = {"renamed columns": "T", "with itself": "T=M" if "M" in _flat(axes) else "M"}.get(
        choice["names"]
    )
    if memory is None or "N" not in _flat(axes):
        return axes, name
    assert axes is not None
    new = {"N": memory}
    renamed = tuple(new.get(a, a) if isinstance(a, str) else tuple(new.get(d, d) for d in a) for a in axes)
    return renamed, f"{name}[{memory.removesuffix('=M')} = N]"


def _flat(axes: tuple[Axis, ...] | None) -> list[str]:
    return [d for a in axes or () for d in ((a,) if isinstance(a, str) else a)]


# --- results ------------------------------------------------------------------------


def _results(choice: Choice, names: _Names) -> list[tuple[Stored, str]]:
    axes: tuple[Axis, ...] = {
        "columns last": names.result,
        "rows last": (*names.batch, *names.columns, *names.rows),
        "batch last": (*names.rows, *names.columns, *names.batch),
        "composite": (*names.batch, *names.rows[:-1], (names.rows[-1], *names.columns)),
    }[choice["result"]]
    stored = (Stored("y", choice["element"], axes), "r > 0" if choice["element"] == "bool" else "r")
    over = {
        "sum of columns": ("sum", names.columns),
        "max of rows": ("max", names.rows),
        "min of all": ("min", names.result),
        "mean of columns": ("mean", names.columns),
        "sum of batches": ("sum", names.batch or names.rows),
    }.get(choice["outcome"])
    if over is not None:
        op, dims = over
        left = tuple(d for d in names.result if d not in dims)
        # Floats alone: what a reduction stores is of its own kind.
        return [stored, (Stored("z", "f32", left), f"{op}[{', '.join(dims)}](f32(r))")]
    match choice["outcome"]:
        case "two":
            return [stored, (Stored("z", "bf16", names.result), "d")]
        case "comparison":
            return [(Stored("z", "bool", names.result), "r > d * 0.5 + 0.125"), stored]
        case _:
            return [stored]


# --- extents ------------------------------------------------------------------------

LARGE: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"tiles": (128, 256), "aligned": (144, 80, 48, 112), "odd": (37, 29, 53, 41, 67)}
)
SMALL: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"tiles": (64, 32), "aligned": (48, 16, 80), "odd": (37, 29, 19, 41)}
)
"""Extents that the emulator takes in seconds."""


def _extents(choice: Choice, names: _Names, draw: Random) -> dict[str, int]:
    """Extents by dimension. Where they are odd they all are, but K's parts where only the result's are."""
    pools = SMALL if choice["schedule"].startswith(("multistage", "gemv")) else LARGE
    sides, summed, few = {
        "tiles": (pools["tiles"], pools["tiles"], (2,)),
        "aligned": (pools["aligned"], pools["aligned"], (2, 3)),
        "odd result": (pools["odd"], pools["aligned"], (3,)),
        "odd": (pools["odd"], pools["odd"], (3,)),
        "one": (pools["aligned"], pools["aligned"], (1, 2)),
    }[choice["extents"]]
    extents = {"M": draw.choice(sides), "N": draw.choice(sides), "K": draw.choice(summed)}
    if choice["schedule"] == "gemv":
        extents[draw.choice("MN")] = draw.choice((1, 3) if "odd" in choice["extents"] else (1, 2, 3, 8))
    if choice["extents"] == "one":
        extents[draw.choice("MNK")] = 1
    extents |= {d: draw.choice(few) for d in (*names.batch, *names.rows[1:], *names.columns[1:])}
    if len(names.summed) > 1:
        extents["L"] = 3 if choice["extents"] == "odd" else draw.choice((2, 16))
    if choice["names"] == "with itself":
        extents["N"] = extents["M"]
    if choice["names"] == "renamed columns":
        extents["T"] = extents["N"]
    return extents


TMA = ("cooperative", "pingpong", "split", "stream", "cluster", "swapped", "three f16 passes")

REFUSED: tuple[Mapping[str, tuple[str, ...]], ...] = (
    {"operand": ("shifted", "gathered")},
    # TMA reads rows of 16 bytes.
    {"batch": ("last",), "schedule": TMA},
    {"extents": ("odd",), "schedule": TMA},
    {
        "compute type": ("bf16", "f16", "f16, sums in f16", "tf32", "e4m3", "e4m3, fast", "e5m2", "s8"),
        "schedule": ("three f16 passes",),
    },
    # Parts that a cluster adds are f32, and their outcome is not reduced (UC0434).
    {"compute type": ("f16, sums in f16",), "schedule": ("cluster",)},
    {"outcome": REDUCED, "schedule": ("cluster",)},
)

GEMM = Space("gemm", AXES, program, lambda planned: isinstance(planned.plan, GemmPlan), refused=REFUSED)

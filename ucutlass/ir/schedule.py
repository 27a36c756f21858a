"""Schedule fields: the one table that the checker, the planner and the guide read.

A schedule says how a kernel runs, never what it computes. Every field may be left out
(`auto`): the planner then chooses, and `ucc explain` says why.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

from ucutlass.ir import Choice, Kernel, ScheduleBlock

Warps: TypeAlias = Literal["pingpong", "cooperative", "multistage", "gemv", "direct", "sliced"]

Math: TypeAlias = Literal["tf32x3", "tf32x3_rs", "tf32x3_fused", "f16x3", "f16", "simt"]

Value: TypeAlias = int | str | tuple[int, ...]

SplitK: TypeAlias = int | Literal["stream"]

Fold: TypeAlias = Literal["no", "yes", "rows", "groups"]

Partials: TypeAlias = Literal["memory", "cluster"]

RASTERS: Mapping[str, int] = MappingProxyType({"heuristic": 0, "along_m": 1, "along_n": 2})
"""Words of `raster`, and the launch parameter's number."""


@dataclass(frozen=True, slots=True)
class ScheduleField:
    """One field; the kernels that have it list it (`ucutlass.kernels.variant`). `rank` counts the extents of a
    shape (0: not a shape), `words` are the legal words besides `auto`, `numbers` the legal whole numbers
    (inclusive bounds) where it takes any. `hopper`: only kernels of compute capability 9.0 have it."""

    name: str
    rank: int
    words: tuple[str, ...]
    numbers: tuple[int, int] | None
    meaning: str
    hopper: bool = False


FIELDS: Mapping[str, ScheduleField] = MappingProxyType(
    {
        f.name: f
        for f in (
            ScheduleField("warps", 0, get_args(Warps), None, "kernel; `sliced`: K in turns"),
            ScheduleField("tile", 3, (), None, "elements a block; attention: rows x keys x head"),
            ScheduleField(
                "cluster", 2, (), None, "blocks that share loads; without dot 1xN share a row", True
            ),
            ScheduleField("stages", 0, (), (2, 32), "tiles of K, keys, lines in flight"),
            ScheduleField("warp_tile", 2, (), None, "elements of a warp"),
            ScheduleField(
                "math", 0, get_args(Math), None, "f32: 3 passes (`rs`: A in registers), FFMA; `f16` TF32"
            ),
            ScheduleField("swap", 0, ("no", "yes"), None, "yes: the transpose, N on the tile's M side"),
            ScheduleField(
                "split_k", 0, ("stream",), (1, 1024), "parts of K or a row, added; `stream`: stream-K"
            ),
            ScheduleField("partials", 0, get_args(Partials), None, "where parts of K meet", True),
            ScheduleField("raster", 0, tuple(RASTERS), None, "tile order; no build"),
            ScheduleField("swizzle", 0, (), (1, 8), "tiles side by side; no build"),
            ScheduleField("rows", 0, (), (1, 1024), "rows, or vectors of rows, a block"),
            ScheduleField("columns", 0, (), (1, 8), "vectors at a time"),
            ScheduleField("threads", 0, (), (1, 1024), "that share K, or a row"),
            ScheduleField("vector", 0, (), (1, 16), "elements at a time"),
            ScheduleField("items", 0, (), (1, 64), "vectors a thread holds"),
            ScheduleField(
                "keep", 0, ("registers", "reread", "shared"), None, "where rows lie between passes"
            ),
            ScheduleField("fold", 0, ("no", "yes", "rows", "groups"), None, "how taps are read", True),
            ScheduleField("blocks", 0, (), (1, 8), "blocks an SM holds", True),
        )
    }
)


@dataclass(frozen=True, slots=True)
class PartialSchedule:
    """A partial schedule: what a program fixed. None is `auto`."""

    warps: Warps | None = None
    tile: tuple[int, int, int] | None = None
    cluster: tuple[int, int] | None = None
    stages: int | None = None
    warp_tile: tuple[int, int] | None = None
    math: Math | None = None
    swap: Literal["no", "yes"] | None = None
    split_k: SplitK | None = None
    partials: Partials | None = None
    raster: Literal["heuristic", "along_m", "along_n"] | None = None
    swizzle: int | None = None
    rows: int | None = None
    columns: int | None = None
    threads: int | None = None
    vector: int | None = None
    items: int | None = None
    keep: Literal["registers", "reread", "shared"] | None = None
    fold: Fold | None = None
    blocks: int | None = None

    def fixed(self) -> dict[str, Value]:
        """Returns the fields that are fixed, in the table's order."""
        return {name: v for name in FIELDS if (v := getattr(self, name)) is not None}


def differing(a: PartialSchedule, b: PartialSchedule) -> dict[str, Value | None]:
    """The fields of `b` that are not as in `a`, with `b`'s values."""
    return {f.name: getattr(b, f.name) for f in fields(b) if getattr(a, f.name) != getattr(b, f.name)}


def without(request: PartialSchedule, *names: str) -> PartialSchedule:
    """The request with these fields back to `auto`."""
    return replace(request, **dict.fromkeys(names))


def show_value(value: Value) -> str:
    """`128x256x64`, `4`, `pingpong`: as the program writes it."""
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def show(request: PartialSchedule) -> str:
    """`tile 128x256x64  cluster 2x1`: the fixed fields as a schedule writes them."""
    return "  ".join(f"{name} {show_value(value)}" for name, value in request.fixed().items())


def legal_values(field: ScheduleField) -> str:
    """What the field takes, in words, for the guide and for diagnostics."""
    parts = [f"`{w}`" for w in field.words]
    if field.rank:
        parts.append("x".join("MNK"[: field.rank]) + " in whole numbers")
    if field.numbers:
        parts.append(f"{field.numbers[0]} to {field.numbers[1]}")
    return ", ".join([*parts, "`auto`"])


def fits(field: ScheduleField, value: Value) -> bool:
    """Whether a value has the field's kind and range; legality for a kernel is the rules'."""
    match value:
        case "auto":
            return True
        case str():
            return value in field.words
        case tuple():
            return len(value) == field.rank and all(1 <= v <= 4096 for v in value)
        case _:
            return field.numbers is not None and field.numbers[0] <= value <= field.numbers[1]


def partial_schedule_of_json(fields: object) -> PartialSchedule:
    """The request that was kept as JSON, which knows lists alone; null is a field left out.

    Raises ValueError for what is no such request: another kind, an unknown field, a value that does not
    fit its field, or `auto`, which is left out.
    """
    if not isinstance(fields, dict):
        raise ValueError("the schedule is no object")
    values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in fields.items()}
    for name, value in values.items():
        if value is None and name in FIELDS:
            continue
        if name not in FIELDS or not _is_value(value) or value == "auto" or not fits(FIELDS[name], value):
            raise ValueError(f"the schedule has {name[:40]!r} {value!r:.80}")
    return PartialSchedule(**values)


def _is_value(value: object) -> bool:
    parts = value if isinstance(value, tuple) else (value,)
    return type(value) is str or all(type(part) is int for part in parts)


def partial_schedules(choices: Iterable[Choice]) -> Iterator[PartialSchedule]:
    """Every schedule that a block's alternatives stand for, in the order written.

    The choices must fit their fields (`fits`). Raises KeyError for an unknown field.
    """
    named = [(FIELDS[c.field].name, c.values) for c in choices]
    for values in itertools.product(*(v for _, v in named)):
        fixed = {name: v for (name, _), v in zip(named, values, strict=True) if v != "auto"}
        yield replace(PartialSchedule(), **fixed)  # type: ignore[arg-type]


def scheduled(program: Kernel, arch: str, request: PartialSchedule) -> Kernel:
    """The kernel with one schedule for an architecture in place of its own blocks."""
    choices = tuple(Choice(name, (value,), program.span) for name, value in request.fixed().items())
    return replace(program, schedules=(ScheduleBlock(arch, None, choices, program.span),))

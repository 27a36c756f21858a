"""This module reads shape sets: a CSV file of extents and weights, one shape a line.

M,N,K,weight
1,4096,4096,0.7
512,4096,4096,0.3
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ucutlass import ir
from ucutlass.shapes import ShapeError, complete, free_dims, parse_sizes

MOST = 256
"""Shapes of a set: more would be tuned for a day."""

MOST_BYTES = 1 << 20
WEIGHT = "weight"


class ShapesFileError(ShapeError):
    """Raised where a file is no set of shapes for the program; says where, and why."""

    def __init__(self, file: Path, line: int | None, words: str) -> None:
        super().__init__("UC0601", f"{file}:{line}: {words}" if line else f"{file}: {words}")


@dataclass(frozen=True, slots=True)
class WeightedShape:
    """`sizes` has the free dimensions by name; `line` is where the shape stands; `weight` is above 0."""

    sizes: Mapping[str, int]
    weight: float = 1.0
    line: int = 0


def split(texts: Sequence[str]) -> tuple[Path | None, tuple[str, ...]]:
    """Returns what `-s` was given: the file of a set, if one is named, and the extents beside it.

    Raises ShapeError UC0601 for two files.
    """
    files = [text for text in texts if text.endswith(".csv") and "=" not in text]
    if len(files) > 1:
        raise ShapeError("UC0601", f"one file of shapes is tuned at a time, here are {len(files)}")
    rest = tuple(text for text in texts if text not in files)
    return (Path(files[0]) if files else None), rest


def read(path: Path, program: ir.Kernel, common: Sequence[str] = ()) -> tuple[WeightedShape, ...]:
    """Returns the shapes of a file; `common` are texts as `M=4096` of dimensions that are no column.

    Raises OSError, ShapeError for `common`, ShapesFileError with the line.
    """
    if not path.is_file():
        raise ShapesFileError(path, None, "there is no such file")
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ShapesFileError(path, None, f"a set of shapes has at most {MOST_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = data[: problem.start].count(b"\n") + 1
        raise ShapesFileError(path, line, "this is no UTF-8") from problem
    return parse(text, path, program, parse_sizes(common) if common else {})


def parse(
    text: str, file: Path, program: ir.Kernel, common: Mapping[str, int] | None = None
) -> tuple[WeightedShape, ...]:
    """Does as `read`, from a text."""
    lines = csv.reader(io.StringIO(text, newline=""), strict=True, skipinitialspace=True)
    columns: tuple[str, ...] = ()
    shapes: dict[tuple[int, ...], WeightedShape] = {}
    try:
        for cells in lines:
            at, cells = lines.line_num, [cell.strip() for cell in cells]
            if not any(cells):
                continue
            if not columns:
                columns = _header(cells, file, at, program, common or {})
                continue
            sizes, shape = _shape(cells, columns, file, at, program, common or {})
            if (first := shapes.setdefault(sizes, shape)) is not shape:
                raise ShapesFileError(file, at, f"this shape stands in line {first.line} already")
            if len(shapes) > MOST:
                raise ShapesFileError(file, at, f"a set has at most {MOST} shapes")
    except csv.Error as problem:
        raise ShapesFileError(file, lines.line_num, f"this is no CSV: {problem}") from problem
    if not shapes:
        raise ShapesFileError(file, None, "there are no shapes: a header and a line a shape, as M,N,K")
    return tuple(shapes.values())


def _header(
    cells: Sequence[str], file: Path, line: int, program: ir.Kernel, common: Mapping[str, int]
) -> tuple[str, ...]:
    columns = [*program.dims, *([] if WEIGHT in program.dims else [WEIGHT])]
    for cell in cells:
        if cell not in columns:
            names = ", ".join(columns)
            raise ShapesFileError(file, line, f"{cell[:60]!r} is no column: a header has some of {names}")
        if cells.count(cell) > 1:
            raise ShapesFileError(file, line, f"the column {cell} is there {cells.count(cell)} times")
        if cell in common:
            raise ShapesFileError(file, line, f"{cell} is a column here and given with -s")
    return tuple(cells)


def _shape(
    cells: Sequence[str],
    columns: Sequence[str],
    file: Path,
    line: int,
    program: ir.Kernel,
    common: Mapping[str, int],
) -> tuple[tuple[int, ...], WeightedShape]:
    if len(cells) != len(columns):
        raise ShapesFileError(
            file, line, f"there are {len(cells)} values for {len(columns)} columns, {', '.join(columns)}"
        )
    row = dict(zip(columns, cells, strict=True))
    weight = 1.0 if WEIGHT in program.dims else _weight(row.pop(WEIGHT, "1"), file, line)
    try:
        own_sizes = parse_sizes([f"{name}={cell}" for name, cell in row.items()]) if row else {}
        sizes = complete(program, {**common, **own_sizes})
    except ShapeError as problem:
        raise ShapesFileError(file, line, str(problem).removesuffix(f" [{problem.code}]")) from problem
    by_name = dict(zip(program.dims, sizes, strict=True))
    return sizes, WeightedShape({name: by_name[name] for name in free_dims(program)}, weight, line)


def _weight(cell: str, file: Path, line: int) -> float:
    try:
        weight = float(cell)
    except ValueError:
        weight = math.nan
    if not (math.isfinite(weight) and weight > 0):
        raise ShapesFileError(file, line, f"the weight is {cell[:40]!r}; it is a number above 0")
    return weight

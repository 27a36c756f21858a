"""The reference interpreter against PyTorch: drawn programs of every operation over every element type.

    python -m tests.reference.differential --count 20000 --seed 0

A program is drawn from a table of features (`differential_terms`) together with its meaning in torch
(`differential_torch`), over extents of 0 and up and numbers with ties, ends of ranges, NaN and infinities.
Its stored result must be torch's bit by bit, but where float64's own rounding leaves two values open: then
either of them and what lies between. Prints how often each feature, and each pair of a feature and an element
type, was drawn, and every difference; the exit status is 1 where there is one, or where a feature was never
drawn.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.reference import differential_torch as ft
from tests.reference.differential_terms import EXTENTS, LEAVES, TABLE, Drawing
from tests.reference.differential_torch import Value
from ucutlass import frontend
from ucutlass.diagnostics import ProgramError
from ucutlass.reference import errors, evaluate


@dataclass(frozen=True, slots=True)
class Program:
    """A text with arguments; `value` is what torch makes of it, as the result's element and before that."""

    seed: int
    text: str
    arguments: tuple[Tensor | float | int, ...]
    elem: str
    value: Value | None
    drawn: tuple[tuple[str, str], ...]


def program(seed: int) -> Program:
    """The program of a seed. `value` is None where it has no result."""
    r = random.Random(seed)
    d = Drawing(r, {n: r.choice(EXTENTS) for n in "ABC"[: r.randint(1, 3)]})
    d.tensor("f32", every=True)
    term = d.term(r.choice(("float", "float", "int", "int", "bool")), r.choice((1, 1, 2, 2, 3)))
    elem = _stored(r, term.value)
    d.note(f"stored {term.value.kind}", elem)
    result = f"{elem}[{', '.join(term.value.dims)}]"
    text = f"kernel k({', '.join(d.params)}) -> {result} {{ return {term.text} }}"
    value = None if d.undefined else ft.stored(term.value, elem)
    return Program(seed, text, tuple(d.arguments), elem, value, tuple(d.drawn))


def _stored(r: random.Random, value: Value) -> str:
    if value.kind == "bool":
        return "bool"
    return r.choice(("f32", "f32", "f16", "bf16", "e4m3", "e5m2", "s8", "u8", "i32", "i64", "bool"))


@dataclass(frozen=True, slots=True)
class Outcome:
    program: Program
    status: str
    detail: str = ""


def judge(program: Program) -> Outcome:
    """`same`, `different`, or `rejected` by the checker."""
    try:
        kernel = frontend.kernel(frontend.read_text(program.text))
    except ProgramError as problem:
        return Outcome(program, "rejected", problem.diagnostics[0].code)
    try:
        (out,) = evaluate(kernel, program.arguments)
    except errors.CallError as problem:
        status = "same" if program.value is None else "different"
        return Outcome(program, status, f"{type(problem).__name__}: {problem}")
    if program.value is None:
        return Outcome(program, "different", "a result, where torch has none")
    return _compared(program, program.value, out)


def _compared(program: Program, value: Value, out: Tensor) -> Outcome:
    got = ft.rounded(out.double(), "f64") if out.is_floating_point() else out
    if tuple(got.shape) != tuple(value.data.shape):
        return Outcome(program, "different", f"shape {tuple(got.shape)}, torch's {tuple(value.data.shape)}")
    if got.dtype == torch.bool:
        apart = (got != value.data) & (value.error == 0)
    else:
        apart = ~(ft.gap(got, value.data) <= value.error)
    if not bool(apart.any()):
        return Outcome(program, "same")
    at = apart.nonzero()[0].tolist()
    mine, theirs, error = (t[tuple(at)].item() for t in (got, value.data, value.error))
    what = f"{int(apart.sum())} elements, {at}: {mine!r}, torch's {theirs!r} +- {error}"
    return Outcome(program, "different", what)


# --- the campaign -----------------------------------------------------------------------------------------


def campaign(count: int, seed: int) -> list[Outcome]:
    """So many programs that the checker accepts, and those that it rejects between them."""
    torch.set_num_threads(1)
    rows: list[Outcome] = []
    accepted, number = 0, seed * 10_000_000
    while accepted < count:
        rows.append(judge(program(number)))
        number += 1
        accepted += rows[-1].status != "rejected"
    return rows


def undrawn(rows: Sequence[Outcome]) -> list[str]:
    """Features of the tables that no accepted program has."""
    have = {feature for row in rows if row.status != "rejected" for feature, _ in row.program.drawn}
    every = {name for tables in (LEAVES, TABLE) for table in tables.values() for name in table}
    return sorted(every - have)


def report(rows: Sequence[Outcome], seconds: float) -> str:
    accepted = [row for row in rows if row.status != "rejected"]
    pairs = Counter(pair for row in accepted for pair in set(row.program.drawn))
    features: dict[str, list[str]] = {}
    for (feature, elem), n in sorted(pairs.items()):
        features.setdefault(feature, []).append(f"{elem} {n}")
    statuses = Counter(row.status for row in rows)
    codes = Counter(row.detail for row in rows if row.status == "rejected")
    lines = [f"{feature:32} {'  '.join(elems)}" for feature, elems in features.items()]
    lines += [f"never drawn: {name}" for name in undrawn(rows)]
    apart = [row for row in accepted if row.status == "different"]
    lines += [f"\n{row.program.seed}: {row.detail}\n{row.program.text}" for row in apart[:20]]
    lines.append(
        f"{len(accepted)} programs in {seconds:.0f} s: {statuses['same']} the same as PyTorch, "
        f"{statuses['different']} different; {len(pairs)} pairs of features and elements; "
        f"rejected {dict(codes)}"
    )
    return "\n".join(lines)


def main() -> None:
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    start = time.monotonic()
    rows = campaign(options.count, options.seed)
    print(report(rows, time.monotonic() - start))
    sys.exit(any(row.status == "different" for row in rows) or bool(undrawn(rows)))


if __name__ == "__main__":
    main()

"""Chooses the launches that verify a kernel: distributions at the requested extents, then extents at tile
edges.

A suite is data: it can be printed, recorded, repeated from its seed, and run case by case.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from ucutlass.ir import Dot, Kernel, Pipeline, Program, TensorType
from ucutlass.ir.elements import F16
from ucutlass.kernels.granularity import Granularity
from ucutlass.reference.binding import shape_of
from ucutlass.runtime.distributions import CORE, EXACT, MEANINGS, Distribution
from ucutlass.runtime.inputs import nodes_of, residue_dims, result_types, roles_of, summed_dims
from ucutlass.shapes import ShapeError, complete, free_dims

CaseKind: TypeAlias = Literal["values", "refilled", "repeats", "shifted", "edge", "refusal", "misaligned"]
"""`values`: one set of arguments. `refilled`: then other numbers in the same buffers, which a result
kept from before would miss. `repeats`: ten runs while another stream copies. `shifted`: every tensor
begins at an odd multiple of 16 bytes. `edge`: extents beside those asked for, which the kernel may
refuse. `refusal`: extents that break its steps; `misaligned`: tensors that begin one element off: it
should refuse both. Whatever a kernel does not refuse it must compute rightly."""

REPEATS = 10
"""Bitwise repeats of a `repeats` case; other cases run twice, `refilled` twice for each filling."""

FEWEST_RUNS = 4
"""Runs of a case at the asked extents: as many as tell apart what memory held before."""


@dataclass(frozen=True, slots=True)
class VerifyCase:
    """One thing that is run and judged. `sizes` has the free dimensions; `why` says what the extents
    are for; the arguments come from `distribution` and `seed` alone."""

    name: str
    kind: CaseKind
    sizes: Mapping[str, int]
    distribution: Distribution
    seed: int
    why: str
    repeats: int = 2
    refill: Mapping[str, Any] = field(default_factory=dict)
    """`distribution` and `seed` of what a `refilled` case fills its buffers with next: the numbers of another case."""
    staged: bool = False
    """Whether the program is a pipeline: of whole numbers its later stages are given what is none any more, and
    larger from stage to stage."""

    @property
    def strains(self) -> bool:
        """Whether the case may stay undecided: no kernel need be judged on such numbers."""
        return self.kind == "values" and self.distribution not in (CORE - EXACT if self.staged else CORE)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What the suite would have held, and why it does not."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Suite:
    """`seed` makes all its cases again, for the same program, extents and limits."""

    cases: tuple[VerifyCase, ...]
    left_out: tuple[LeftOut, ...]
    seed: int


NO_GRANULARITY = Granularity({}, {}, {})


def suite(
    program: Program,
    sizes: Mapping[str, int],
    granularity: Granularity = NO_GRANULARITY,
    *,
    seed: int,
    distributions: Sequence[Distribution] = (),
    most: int = 64,
    memory_bytes: int = 16 << 30,
    refusals: bool = True,
) -> Suite:
    """Returns the cases of a program at `sizes`, in the order of what they are worth.

    First the asked extents with every distribution (those of `distributions` where it names any),
    exact integers first; then other numbers in the same buffers, and repeats under jitter; then a
    tile more or less, single elements, primes and short sums, one dimension at a time, with exact
    integers and every second time normal numbers; last, extents that break a step. Of these at most
    `most` are kept, and none but the asked extents that would take more than `memory_bytes`. What is
    not kept is in `left_out` with its reason.

    Raises ShapeError where `sizes` does not fit the program.
    """
    complete(program, sizes)
    extents = {d: sizes[d] for d in free_dims(program)}
    requested = tuple(distributions) or tuple(MEANINGS)
    left_out: list[LeftOut] = []
    cases: list[VerifyCase] = []
    for draft in [
        *_requested_cases(program, extents, requested, left_out),
        *_neighbours(program, extents, granularity, requested, left_out),
        *(_refusals(program, extents, granularity) if refusals else ()),
    ]:
        size = memory_of(program, draft.sizes)
        if len(cases) >= most:
            left_out.append(LeftOut(draft.name, f"a suite has at most {most} cases"))
        elif draft.sizes != extents and size > memory_bytes:
            left_out.append(LeftOut(draft.name, f"about {size >> 20} MiB, of at most {memory_bytes >> 20}"))
        else:
            cases.append(replace(_seeded(draft, seed), staged=isinstance(program, Pipeline)))
    return Suite(tuple(cases), tuple(left_out), seed)


def _seeded(case: VerifyCase, seed: int) -> VerifyCase:
    """Returns the case with its seed, which is that of all cases of one distribution at the same extents: what was
    found right there needs no reference again. Nobody who knows their numbers knows others."""
    own = replace(case, seed=_seed(case.distribution, case.sizes, seed))
    if case.kind != "refilled":
        return own
    other: Distribution = "uniform" if case.distribution != "uniform" else "normal"
    return replace(own, refill={"distribution": other, "seed": _seed(other, case.sizes, seed)})


def _seed(distribution: Distribution, sizes: Mapping[str, int], seed: int) -> int:
    shown = ",".join(f"{d}={n}" for d, n in sizes.items())
    digest = hashlib.sha256(f"{seed}/{distribution} {shown}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def memory_of(program: Program, sizes: Mapping[str, int]) -> int:
    """Returns bytes that judging a case takes, about: every tensor in its own type and in float64, and
    twelve float64 numbers for each element of the largest value (reference, bound, comparisons)."""
    full = dict(zip(program.dims, complete(program, sizes), strict=True))
    tensors = [p.type for p in program.params if isinstance(p.type, TensorType)]
    tensors += result_types(program)
    stored = sum(math.prod(shape_of(t, full)) * (8 + 3 * max(1, t.elem.bytes)) for t in tensors)
    nodes = (math.prod(full.get(d, 1) for d in node.dims) for node in nodes_of(program))
    return int(stored + 96 * max(nodes, default=0))


# --- the asked extents ---------------------------------------------------------------


def _draft(
    kind: CaseKind, sizes: Mapping[str, int], distribution: Distribution, why: str, repeats: int = 2
) -> VerifyCase:
    shown = ",".join(f"{d}={n}" for d, n in sizes.items())
    prefix = "" if kind in ("values", "edge") else f"{kind} "
    return VerifyCase(f"{prefix}{distribution} {shown}", kind, dict(sizes), distribution, 0, why, repeats)


def _requested_cases(
    program: Program, extents: Mapping[str, int], requested: Sequence[Distribution], left_out: list[LeftOut]
) -> Iterator[VerifyCase]:
    why = "the asked extents"
    for distribution in (d for d in MEANINGS if d in requested):
        if reason := _unfit(program, distribution):
            left_out.append(LeftOut(distribution, reason))
        else:
            yield _draft("values", extents, distribution, why, FEWEST_RUNS)
    again: Distribution = "normal" if "normal" in requested else requested[0]
    yield _draft("refilled", extents, again, "other numbers in the same buffers")
    yield _draft("repeats", extents, again, "bitwise repeats while another stream copies", REPEATS)
    yield _draft("shifted", extents, again, "tensors begin at odd multiples of 16 bytes")


_OVERFLOWING: frozenset[Distribution] = frozenset({"wide", "powers"})


def _unfit(program: Program, distribution: Distribution) -> str:
    """Returns why a distribution says nothing about a program; "" where it does."""
    if distribution.startswith("residue") and not residue_dims(program, distribution):
        return "the program has no such dimension"
    narrow = any(isinstance(n, Dot) and n.accumulate == "f16" for n in nodes_of(program))
    if narrow and distribution in _OVERFLOWING:
        return "sums kept in f16 overflow in an order that is the kernel's own"
    if distribution in _GROWING and _chained_in_f16(program):
        return "products of products leave f16 between launches"
    return ""


_GROWING: frozenset[Distribution] = frozenset({"wide", "powers", "large", "positive", "negated"})


def _chained_in_f16(program: Program) -> bool:
    """Returns whether a pipeline keeps a dot's outcome in f16 for another one."""
    if not isinstance(program, Pipeline) or all(kind.elem is not F16 for _, kind in program.buffers):
        return False
    dots = [s for s in program.stages if isinstance(s.call, Kernel) and summed_dims(s.call, Dot)]
    return len(dots) > 1


# --- extents at tile edges -----------------------------------------------------------

RESIDUES: tuple[Distribution, ...] = ("residue", "residue_rows", "residue_columns")
_PRIME = 13


def _neighbours(
    program: Program,
    extents: Mapping[str, int],
    granularity: Granularity,
    requested: Sequence[Distribution],
    left_out: list[LeftOut],
) -> Iterator[VerifyCase]:
    """Yields each shape once, with exact integers; every second one with normal numbers as well."""
    first: Distribution = "integer" if "integer" in requested else requested[0]
    neighbours = [dict(extents)]
    for why, sizes in _shapes(program, extents, granularity):
        if sizes in neighbours:
            continue
        neighbours.append(sizes)
        try:
            complete(program, sizes)
        except ShapeError as error:
            left_out.append(LeftOut(why, str(error)))
            continue
        yield _draft("edge", sizes, first, why)
        if len(neighbours) % 2 == 0 and "normal" in requested and first != "normal":
            yield _draft("edge", sizes, "normal", why)
        if len(neighbours) == 2:  # the asked extents may end with a whole tile
            for residue in (d for d in RESIDUES if d in requested and not _unfit(program, d)):
                yield _draft("edge", sizes, residue, why)


def _shapes(
    program: Program, extents: Mapping[str, int], granularity: Granularity
) -> Iterator[tuple[str, dict[str, int]]]:
    """Yields extents with what they are for. The dimensions that are not varied take little more than a
    tile, so that a case costs little; those that a dot sums, little more than its pipeline."""
    summed = {d for over in summed_dims(program, Dot) for d in over}
    fewest = dict.fromkeys(_offset_dims(program), 2)  # offsets of no sequence are none
    least = {d: max(_step(granularity, d), fewest.get(d, 1)) for d in extents}
    base = {d: min(n, _up(max(granularity.tile.get(d, 1), 1) + 1, least[d])) for d, n in extents.items()}
    yield "a tile and a little of the next in every dimension", dict(base)
    for d, n in extents.items():
        for what, value in _values(d, n, granularity, d in summed):
            if value >= fewest.get(d, 1):
                yield f"{d} is {what}", {**base, d: value}
    yield "the least of every dimension", dict(least)
    for d, n in extents.items():
        yield f"the asked extents, {d} a step longer", {**extents, d: n + least[d]}


def _offset_dims(program: Program) -> set[str]:
    """Returns names that count the offsets of segments."""
    roles = roles_of(program)
    offset_params = [p for p in program.params if p.name in roles and roles[p.name].offsets_of is not None]
    types = [p.type for p in offset_params if isinstance(p.type, TensorType)]
    return {d for type_ in types for d in type_.dims}


def _values(d: str, extent: int, granularity: Granularity, summed: bool) -> Iterator[tuple[str, int]]:
    tile, step = granularity.tile.get(d, 1), _step(granularity, d)
    by = "" if step == 1 else f" times {step}"
    yield ("1" if step == 1 else f"{step}, the least"), step
    if tile > step:
        yield "less than a tile by a step", _up(tile, step) - step
        yield "one tile", _up(tile, step)
        yield "more than a tile by a step", _down(tile, step) + step
    prime = _PRIME if tile < _PRIME * step else _PRIME * 7 + 6  # 97
    yield f"a prime, {prime}{by}", prime * step
    if summed and tile > step:
        yield "half of a tile", _up(tile // 2, step)
        depth = max(granularity.depth.get(d, tile), tile)
        yield "more than the pipeline's depth by a tile and a step", _up(depth + tile, step) + step
    if extent > 2 * tile > 2:
        yield "two tiles", _up(2 * tile, step)


def _step(granularity: Granularity, d: str) -> int:
    return granularity.step.get(d, 1)


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


def _down(value: int, step: int) -> int:
    return value // step * step


def _refusals(program: Program, extents: Mapping[str, int], granularity: Granularity) -> Iterator[VerifyCase]:
    """Yields one extent that is not a multiple of its step, for each dimension that has one; tensors that
    begin where no vector may."""
    if any(_step(granularity, d) > 1 for d in extents):
        yield _draft(
            "misaligned", extents, "normal", "tensors begin one element off: the kernel should refuse"
        )
    for d, n in extents.items():
        step = _step(granularity, d)
        if step == 1 or not isinstance(program, Kernel):
            continue
        sizes = {**extents, d: n + 1 if (n + 1) % step else n + 2}
        try:
            complete(program, sizes)
        except ShapeError:
            continue
        yield _draft("refusal", sizes, "normal", f"{d} is no multiple of {step}: the kernel should refuse it")


# --- reduced extents, for tools that are slow ------------------------------------------


def reduced(
    program: Program, sizes: Mapping[str, int], granularity: Granularity = NO_GRANULARITY, *, seed: int
) -> tuple[VerifyCase, ...]:
    """Returns a few cases of little work that still pass every edge: a tile and a little of the next, a
    summed extent longer than the pipeline, single elements. Raises ShapeError where `sizes` does not fit."""
    complete(program, sizes)
    extents = {d: sizes[d] for d in free_dims(program)}
    purposes = ("a tile and a little", "pipeline's depth", "the least of every")
    cases: list[VerifyCase] = []
    for why, shape in _shapes(program, extents, granularity):
        new = any(w in why for w in purposes) and shape not in [c.sizes for c in cases]
        if new and _fits(program, shape):
            cases.append(_seeded(_draft("edge", shape, "normal", why), seed))
    return tuple(cases)


def barely_reduced(
    program: Program, sizes: Mapping[str, int], granularity: Granularity = NO_GRANULARITY, *, seed: int
) -> tuple[VerifyCase, ...]:
    """Returns a case for each dimension: the asked extents with little more than a tile of that one, the least
    memory first. They are for kernels that were made for some of the asked extents and refuse all that
    `reduced` has. Raises ShapeError where `sizes` does not fit."""
    complete(program, sizes)
    extents = {d: sizes[d] for d in free_dims(program)}
    _, base = next(_shapes(program, extents, granularity))
    shapes = [shape for d, n in base.items() if n < extents[d] and _fits(program, shape := {**extents, d: n})]
    why = "the asked extents, one of them reduced"
    drafts = [_draft("edge", shape, "normal", why) for shape in shapes]
    return tuple(_seeded(d, seed) for d in sorted(drafts, key=lambda d: memory_of(program, d.sizes)))


def _fits(program: Program, sizes: Mapping[str, int]) -> bool:
    try:
        complete(program, sizes)
    except ShapeError:
        return False
    return True

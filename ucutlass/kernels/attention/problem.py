"""The attention pattern with extents: modes, strides, and which of the score's function the kernel knows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ucutlass import ir
from ucutlass.ir.elements import F32
from ucutlass.ir.extents import Combined, Extent, Fixed, Free, evaluate
from ucutlass.kernels.access import MAX_BATCH_MODES, Access, Store
from ucutlass.kernels.addresses import MergedModes, Operand, Sizes, access, runs
from ucutlass.kernels.arithmetic import Accumulator, Arithmetic, CoordinateValue
from ucutlass.kernels.attention.match import AttentionPattern
from ucutlass.kernels.attention.match_score import Score, score_of
from ucutlass.kernels.attention.plan import (
    MAX_TMA_BATCHES,
    TF32_TYPES,
    AttentionProblem,
    ExtentNumber,
    Number,
    Offsets,
    Packed,
    Relative,
    ScoreCall,
)
from ucutlass.kernels.epilogue import EpiloguePattern, arithmetic
from ucutlass.kernels.gemm.plan import GemmProblem
from ucutlass.kernels.refused import Refused


def attention_problem(
    pattern: AttentionPattern, sizes: Sequence[int], aligned: Sequence[bool] | None = None
) -> AttentionProblem:
    """The pattern with concrete extents, in the order of `kernel.dims`.

    `aligned[i]`: pointer i is a multiple of 16 bytes; None: all are. Raises Refused.
    """
    at = Sizes(pattern.position, tuple(sizes))
    by_name = dict(zip(pattern.kernel.dims, at.values, strict=True))
    keys, head = _one(pattern, pattern.keys, (pattern.k, pattern.v)), pattern.head
    rows, batch = _rows(pattern, at, by_name)
    position_name = _position_name(pattern, by_name)
    row = position_name or (rows[0] if len(rows) == 1 else None)
    key = keys[0] if len(keys) == 1 else None
    score = score_of(pattern.score.outputs[0].value, pattern.first, row, key, by_name)
    if len(batch) > MAX_BATCH_MODES:
        raise _too_many(pattern, len(batch), MAX_BATCH_MODES)
    first, second = (
        MergedModes(rows, keys, (head,), batch),
        MergedModes(rows, (pattern.head_v,), (keys,), batch),
    )
    scores = _product(pattern, first, at, aligned, (pattern.q, pattern.k), score)
    results = _product(pattern, second, at, aligned, (pattern.q, pattern.v), None)
    for a in (scores.a, scores.b, results.b):
        _addressed(pattern, a)
    return AttentionProblem(
        pattern.compute_type,
        at.number(at.product(head)),
        by_name[pattern.head_v],
        scores,
        results,
        factor=None if score.factor is None else _placed(score.factor, pattern.position),
        above=tuple(_extent(e, pattern.position) for e in score.above),
        below=tuple(_extent(e, pattern.position) for e in score.below),
        plain=_is_plain(pattern, results),
        dims=len(pattern.kernel.dims),
        pointers=scores.pointers,
        scalars=scores.scalars,
        query_position=_query_position(position_name, rows, batch, at),
        packed=_packed(pattern),
    )


def _extent(extent: Extent, position: Mapping[str, int]) -> Extent:
    """The extent with positions for names."""
    match extent:
        case Free(dim):
            return Free(str(position[dim]))
        case Combined(op, left, right):
            return Combined(op, _extent(left, position), _extent(right, position))
        case Fixed():
            return extent


def _placed(number: Number, position: Mapping[str, int]) -> Number:
    match number:
        case ExtentNumber(extent):
            return ExtentNumber(_extent(extent, position))
        case ScoreCall(function, args):
            return ScoreCall(function, tuple(_placed(a, position) for a in args))
        case float():
            return number


# --- modes -------------------------------------------------------------------------


def _one(pattern: AttentionPattern, names: tuple[str, ...], tensors: tuple[Operand, ...]) -> tuple[str, ...]:
    merged = runs(names, (*tensors, *pattern.score.inputs))
    if len(merged) == 1:
        return merged[0]
    raise Refused(
        "UC0321",
        f"the keys' names, {', '.join(names)}, lie apart in memory; the kernel addresses them as one",
        pattern.second.span,
        "store k, v and the score's operands with these names next to each other, in one order",
    )


def _rows(
    pattern: AttentionPattern, at: Sizes, by_name: dict[str, int]
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """The run of names that a tile's rows are, and the batch modes.

    A name that windows are around is a run by itself, and the rows, unless others are much longer, or it is
    so short that a tile is better filled with others beside it. Packed tokens are the rows.
    """
    position_name = _position_name(pattern, by_name)
    whole = runs(pattern.queries, pattern.tensors)
    if pattern.packed is None and position_name and by_name[position_name] <= FEW:
        rows = min(whole, key=lambda run: (_tiles(run, whole, at), position_name not in run))
        return rows, _batch(pattern, whole, rows)
    parts: list[tuple[str, ...]] = []
    for run in whole:
        parts += [run] if position_name not in run else _apart(run, position_name)
    length = {part: at.number(at.product(part)) for part in parts}
    rows = max(parts, key=lambda part: (length[part], parts.index(part)), default=())
    if (position_name,) in parts and (
        pattern.packed is not None or 8 * length[position_name,] >= length[rows]
    ):
        rows = (position_name,)
    return rows, _batch(pattern, parts, rows)


FEW = 64
"""Queries around which windows are: so few share a tile with what else reads the same keys."""


def _tiles(run: tuple[str, ...], every: Sequence[tuple[str, ...]], at: Sizes) -> int:
    """Tiles of 64 rows where this run is the rows."""
    others = math.prod(at.number(at.product(run_)) for run_ in every if run_ != run)
    return others * -(-at.number(at.product(run)) // 64)


def _batch(
    pattern: AttentionPattern, parts: Sequence[tuple[str, ...]], rows: tuple[str, ...]
) -> tuple[tuple[str, ...], ...]:
    rest = [name for part in parts if part != rows for name in part]
    return runs([*pattern.batch, *rest], pattern.tensors)


def _apart(run: tuple[str, ...], name: str) -> list[tuple[str, ...]]:
    i = run.index(name)
    return [part for part in (run[:i], (name,), run[i + 1 :]) if part]


def _position_name(pattern: AttentionPattern, by_name: dict[str, int]) -> str:
    """The name of the queries that a window of keys is around, or that is packed; "" for none."""
    if pattern.packed is not None:
        return pattern.packed.query
    for key in pattern.keys:
        for name in pattern.queries:
            score = score_of(pattern.score.outputs[0].value, pattern.first, name, key, by_name)
            if score.above or score.below:
                return name
    return ""


def _query_position(
    position_name: str, rows: tuple[str, ...], batch: tuple[tuple[str, ...], ...], at: Sizes
) -> CoordinateValue | None:
    """Where the coordinate along `position_name` is found; None: it is the row's."""
    if not position_name or rows == (position_name,):
        return None
    extent = at.product((position_name,))
    if position_name in rows:
        inner = at.product(rows[rows.index(position_name) + 1 :])
        return CoordinateValue("m", 0, inner, extent, "i64")
    i, run = next((i, run) for i, run in enumerate(batch) if position_name in run)
    return CoordinateValue("batch", i, at.product(run[run.index(position_name) + 1 :]), extent, "i64")


def _packed(pattern: AttentionPattern) -> Packed | None:
    if pattern.packed is None:
        return None
    packed, place = pattern.packed, pattern.position
    limits = {
        above: tuple(
            Relative(_extent(limit.constant, place), tuple((s.side, s.after, n) for s, n in limit.starts))
            for limit in packed.limits
            if limit.above is above
        )
        for above in (True, False)
    }
    q, k = (Offsets(o.pointer, o.elem, _extent(o.count, place)) for o in (packed.q, packed.k))
    return Packed(q, k, limits[True], limits[False])


# --- products ----------------------------------------------------------------------


def _product(
    pattern: AttentionPattern,
    modes: MergedModes,
    at: Sizes,
    aligned: Sequence[bool] | None,
    operands: tuple[Operand, Operand],
    score: Score | None,
) -> GemmProblem:
    """The first product with the score as its epilogue; where `score` is None, the second with its own."""
    params = pattern.kernel.params
    pointers = sum(isinstance(p.type, ir.TensorType) for p in params) + len(pattern.kernel.results)
    fine = tuple(aligned) if aligned is not None else (True,) * pointers
    around = pattern.outcome if score is None else _scored(pattern.score, score)
    outer = MergedModes(modes.m, modes.n, (), modes.batch)

    def reach(tensor: Operand, over: MergedModes) -> Access:
        return access(tensor, over, at, fine[tensor.pointer])

    if score is None:
        outputs = tuple(Store(reach(o.tensor, outer)) for o in around.outputs)
        function = arithmetic(around, modes, at)
    else:
        lack = (None,) * len(modes.batch)
        outputs = (Store(Access(-1, F32, None, None, (), lack, 1)),)
        folded = Arithmetic((Accumulator("f32"),), (0,))
        function = folded if score.factor is not None else arithmetic(around, modes, at)
    inputs = () if score is not None and score.factor is not None else around.inputs
    return GemmProblem(
        compute_type=pattern.compute_type,
        accumulate="f32",
        m=at.product(modes.m),
        n=at.product(modes.n),
        k=tuple(at.product(run) for run in modes.k),
        batch=tuple(at.product(run) for run in modes.batch),
        a=reach(operands[0], modes),
        b=reach(operands[1], modes),
        inputs=tuple(reach(t, outer) for t in inputs),
        outputs=outputs,
        arithmetic=function,
        dims=len(pattern.kernel.dims),
        pointers=pointers,
        scalars=sum(isinstance(p.type, ir.ScalarType) for p in params),
    )


def _scored(whole: EpiloguePattern, score: Score) -> EpiloguePattern:
    return replace(whole, outputs=(replace(whole.outputs[0], value=score.rest),))


def _addressed(pattern: AttentionPattern, a: Access) -> None:
    batches = sum(stride is not None for stride in a.batch)
    if batches > MAX_TMA_BATCHES:
        raise _too_many(pattern, batches, MAX_TMA_BATCHES)


def _too_many(pattern: AttentionPattern, count: int, most: int) -> Refused:
    return Refused(
        "UC0305",
        f"{count} batch dimensions lie apart in memory; attention addresses {most} of a tensor",
        pattern.first.span,
        "store q, k, v and the result with these names next to each other",
    )


def _is_plain(pattern: AttentionPattern, results: GemmProblem) -> bool:
    """Whether the second dot's value is all there is to store, in boxes that TMA takes."""
    output = pattern.outcome.outputs[0]
    tensor = results.outputs[0].access
    return (
        pattern.compute_type.name not in TF32_TYPES
        and len(pattern.outcome.outputs) == 1
        and output.value is pattern.second
        and tensor.elem.name in ("f16", "bf16")
        and tensor.contiguous == "n"
        and tensor.align == 8
        and sum(stride is not None for stride in tensor.batch) <= MAX_TMA_BATCHES
    )


@dataclass(frozen=True, slots=True)
class KeyWindow:
    """Holds, for these extents, the most and the least that a key's position may exceed a row's."""

    above: int
    below: int

    @staticmethod
    def of(problem: AttentionProblem, sizes: Sequence[int]) -> KeyWindow:
        named = {str(i): n for i, n in enumerate(sizes)}
        above = [evaluate(e, named) for e in problem.above]
        below = [evaluate(e, named) for e in problem.below]
        return KeyWindow(min(above, default=2**40), max(below, default=-(2**40)))

    def keys(self, row: int, keys: int) -> int:
        """How many keys a row looks at."""
        return max(0, min(keys, row + self.above + 1) - max(0, row + self.below))


def flops(problem: AttentionProblem, sizes: Sequence[int]) -> float:
    """Multiplications and additions of both products, within the window."""
    rows, keys = (math.prod(sizes[i] for i in mode) for mode in (problem.scores.m, problem.scores.n))
    batches = math.prod(sizes[i] for mode in problem.scores.batch for i in mode)
    window, sampled = KeyWindow.of(problem, sizes), range(0, rows, max(1, rows // 256))
    if problem.packed is not None:  # where sequences begin is not known here: as for equal ones
        each = max(1, evaluate(problem.packed.q.count, {str(i): n for i, n in enumerate(sizes)}) - 1)
        pairs = rows * keys / each * (0.5 if problem.packed.above or problem.above else 1.0)
    elif problem.query_position is None:
        pairs = rows / len(sampled) * sum(window.keys(row, keys) for row in sampled)
    else:
        pairs = rows * float(
            window.keys(math.prod(sizes[i] for i in problem.query_position.extent) - 1, keys)
        )
    return 2.0 * batches * pairs * (problem.head + problem.head_v)

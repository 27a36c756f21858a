"""The attention form with extents: modes, strides, and which of the score's function the kernel knows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ucutlass import ir
from ucutlass.elements import F32
from ucutlass.families.addresses import Modes, Operand, Sizes, access, runs
from ucutlass.families.attention import AttentionForm
from ucutlass.families.attention_score import Score, score_of
from ucutlass.families.epilogue import Epilogue, arithmetic
from ucutlass.families.refuse import Refused
from ucutlass.plan import MAX_BATCH_MODES, Access, Accumulator, Arithmetic, GemmProblem, Store
from ucutlass.plans.attention import MAX_TMA_BATCHES, NO_WINDOW, AttentionProblem

LOG2E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class Placed:
    """A problem with what its launch needs to know: the factor of the exponent, and the window of keys."""

    problem: AttentionProblem
    scale: float
    above: int
    below: int


def attention_problem(
    form: AttentionForm, sizes: Sequence[int], aligned: Sequence[bool] | None = None
) -> Placed:
    """The form with concrete extents, in the order of `kernel.dims`.

    `aligned[i]`: pointer i is a multiple of 16 bytes; None: all are. Raises Refused.
    """
    at = Sizes(form.position, tuple(sizes))
    by_name = dict(zip(form.kernel.dims, at.values, strict=True))
    keys, head = _one(form, form.keys, (form.k, form.v), at), form.head
    rows, batch = _rows(form, at, by_name)
    row = rows[0] if len(rows) == 1 else None
    key = keys[0] if len(keys) == 1 else None
    score = score_of(form.score.outputs[0].value, form.first, row, key, by_name)
    if len(batch) > MAX_BATCH_MODES:
        raise _too_many(form, len(batch), MAX_BATCH_MODES)
    first, second = Modes(rows, keys, (head,), batch), Modes(rows, (form.head_v,), (keys,), batch)
    scores = _product(form, first, at, aligned, (form.q, form.k), score)
    results = _product(form, second, at, aligned, (form.q, form.v), None)
    for a in (scores.a, scores.b, results.b):
        _addressed(form, a)
    problem = AttentionProblem(
        form.lane, at.number(at.product(head)), by_name[form.head_v], scores, results,
        folded=score.factor is not None, above=score.above < NO_WINDOW, below=score.below > -NO_WINDOW,
        plain=_is_plain(form, results), dims=len(form.kernel.dims), pointers=scores.pointers,
        scalars=scores.scalars,
    )  # fmt: skip
    return Placed(problem, LOG2E * (score.factor if score.factor is not None else 1.0), score.above, score.below)


# --- modes -------------------------------------------------------------------------


def _one(form: AttentionForm, names: tuple[str, ...], tensors: tuple[Operand, ...], at: Sizes) -> tuple[str, ...]:
    made = runs(names, (*tensors, *form.score.inputs))
    if len(made) == 1:
        return made[0]
    raise Refused(
        "UC0321", f"the keys' names, {', '.join(names)}, lie apart in memory; the kernel walks them as one", form.second.span,
        "store k, v and the score's operands with these names next to each other, in one order",
    )  # fmt: skip


def _rows(
    form: AttentionForm, at: Sizes, by_name: dict[str, int]
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """The run of names that a tile's rows are, and the batch modes.

    A name that windows are around is a run by itself, and the rows, where it is not much shorter than the others.
    """
    walked = _windowed(form, by_name)
    parts: list[tuple[str, ...]] = []
    for run in runs(form.queries, form.tensors):
        parts += [run] if walked not in run else _apart(run, walked)
    length = {part: at.number(at.product(part)) for part in parts}
    rows = max(parts, key=lambda part: (length[part], parts.index(part)), default=())
    if (walked,) in parts and 8 * length[walked,] >= length[rows]:
        rows = (walked,)
    rest = [name for part in parts if part != rows for name in part]
    return rows, runs([*form.batch, *rest], form.tensors)


def _apart(run: tuple[str, ...], name: str) -> list[tuple[str, ...]]:
    i = run.index(name)
    return [part for part in (run[:i], (name,), run[i + 1 :]) if part]


def _windowed(form: AttentionForm, by_name: dict[str, int]) -> str:
    """The name of the queries that a window of keys is around; "" for none."""
    for key in form.keys:
        for name in form.queries:
            found = score_of(form.score.outputs[0].value, form.first, name, key, by_name)
            if found.above < NO_WINDOW or found.below > -NO_WINDOW:
                return name
    return ""


# --- products ----------------------------------------------------------------------


def _product(
    form: AttentionForm, modes: Modes, at: Sizes, aligned: Sequence[bool] | None,
    operands: tuple[Operand, Operand], score: Score | None,
) -> GemmProblem:
    """The first product with the score as its epilogue; the second with the result's, where `score` is None."""
    params = form.kernel.params
    pointers = sum(isinstance(p.type, ir.TensorType) for p in params) + len(form.kernel.results)
    fine = tuple(aligned) if aligned is not None else (True,) * pointers
    around = form.outcome if score is None else _scored(form.score, score)
    outer = Modes(modes.m, modes.n, (), modes.batch)

    def reach(tensor: Operand, over: Modes) -> Access:
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
        lane=form.lane, accumulate="f32", m=at.product(modes.m), n=at.product(modes.n),
        k=tuple(at.product(run) for run in modes.k), batch=tuple(at.product(run) for run in modes.batch),
        a=reach(operands[0], modes), b=reach(operands[1], modes),
        inputs=tuple(reach(t, outer) for t in inputs), outputs=outputs, arithmetic=function,
        dims=len(form.kernel.dims), pointers=pointers,
        scalars=sum(isinstance(p.type, ir.ScalarType) for p in params),
    )  # fmt: skip


def _scored(whole: Epilogue, score: Score) -> Epilogue:
    return replace(whole, outputs=(replace(whole.outputs[0], value=score.rest),))


def _addressed(form: AttentionForm, a: Access) -> None:
    batches = sum(stride is not None for stride in a.batch)
    if batches > MAX_TMA_BATCHES:
        raise _too_many(form, batches, MAX_TMA_BATCHES)


def _too_many(form: AttentionForm, count: int, most: int) -> Refused:
    return Refused(
        "UC0305", f"{count} batch dimensions lie apart in memory; attention addresses {most} of a tensor",
        form.first.span, "store q, k, v and the result with these names next to each other",
    )  # fmt: skip


def _is_plain(form: AttentionForm, results: GemmProblem) -> bool:
    """Whether the second dot's value is all there is to store, in boxes that TMA takes."""
    output = form.outcome.outputs[0]
    tensor = results.outputs[0].access
    return (
        len(form.outcome.outputs) == 1
        and output.value is form.second
        and tensor.elem.name in ("f16", "bf16")
        and tensor.contiguous == "n"
        and tensor.align == 8
        and sum(stride is not None for stride in tensor.batch) <= MAX_TMA_BATCHES
    )


def flops(problem: AttentionProblem, placed: Placed, sizes: Sequence[int]) -> float:
    """Multiplications and additions of both products, within the window."""
    at = [sizes[i] for i in problem.scores.m], [sizes[i] for i in problem.scores.n]
    rows, keys = math.prod(at[0]), math.prod(at[1])
    batches = math.prod(sizes[i] for mode in problem.scores.batch for i in mode)
    seen = sum(_seen(row, keys, placed) for row in range(0, rows, max(1, rows // 256)))
    seen *= rows / len(range(0, rows, max(1, rows // 256)))
    return 2.0 * batches * seen * (problem.head + problem.head_v)


def _seen(row: int, keys: int, placed: Placed) -> int:
    return max(0, min(keys, row + placed.above + 1) - max(0, row + placed.below))

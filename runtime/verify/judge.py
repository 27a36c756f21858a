"""Runs one launch several times and judges it.

Evidence that is missing counts against the kernel: elements that nothing wrote, writes past an
output or the workspace, inputs that changed, runs that differ and results that depend on
what memory held before are findings of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from ucutlass.ir import Kernel, Program, TensorType
from ucutlass.reference import (
    Expected,
    ExpectedResults,
    ReferenceSlice,
    RowSample,
    least_results,
    sampled_results,
    sizes_of,
    whole_results,
)
from ucutlass.reference.binding import shape_of
from ucutlass.reference.host_numbers import extremes, extremes_of, numbers
from ucutlass.reference.interpreter import Argument, device_of
from ucutlass.reference.projections import projection_errors
from ucutlass.reference.rounding import outer_dtype
from ucutlass.reference.slices import NOTHING, ResultShape
from ucutlass.runtime.inputs import result_types
from ucutlass.runtime.verify.accepted import AcceptedResults
from ucutlass.runtime.verify.comparison import Comparison, compare, merged, unravel
from ucutlass.runtime.verify.guards import POISONS, Guarded, guarded, words
from ucutlass.runtime.verify.verdict import LaunchProblem, LaunchVerdict
from ucutlass.spans import span, timed_items

JudgedLaunch: TypeAlias = Callable[[Sequence[Argument], Sequence[Tensor]], None]
"""Runs the program's kernels on arguments and fills the given results, in program order. It may
return before the device is done; it raises where it cannot launch."""


@dataclass(frozen=True, slots=True, eq=False)
class DirectLaunch:
    """A launch that takes its workspace from the caller: `workspace` bytes, None where that is 0."""

    run: Callable[[Sequence[Argument], Sequence[Tensor], Tensor | None], None]
    workspace: int


Jitter: TypeAlias = Callable[[int], AbstractContextManager[object]]
"""What goes on around the run of that number, such as copies on another stream."""


_PATTERNS = ((0, 0), (1, 1), (0, 1), (1, 0))
"""Which of POISONS outputs and workspace hold, run by run; later runs repeat the first. The
third and fourth tell whether a difference between the first two came from either."""


def judge_launch(
    program: Program,
    launch: JudgedLaunch | DirectLaunch,
    arguments: Sequence[Argument],
    *,
    tile: tuple[int, int] | Mapping[str, int] | None = None,
    deterministic: bool = True,
    expected: Sequence[Expected] | ExpectedResults | None = None,
    repeats: int = 2,
    jitter: Jitter | None = None,
    offset: int = 0,
    around: Mapping[str, int] = NOTHING,
    sample: RowSample | None = None,
    accepted: AcceptedResults | None = None,
    device: torch.device | None = None,
) -> tuple[LaunchVerdict, tuple[Tensor, ...]]:
    """Runs `launch` `repeats` times (at least 2), on outputs and, where it is a DirectLaunch, a workspace
    poisoned with NaN and with a finite pattern, and judges all runs. Also what the first run wrote.

    `deterministic=False` allows the runs to differ (atomic sums): each must then be within the bound.
    `tile` locates the worst error: extents along a result's last two axes, or by dimension's name.
    `offset` bytes is how far results begin past a multiple of 256.
    `expected` saves computing the reference again for the same arguments; without it a large one is made in
    slices (`ucutlass.reference.slices`). `around` as in `binding.bind`; with `sample` a kernel's results are
    compared at some coordinates alone, where that saves anything. What `accepted` has seen of a kernel is compared
    with nothing again, and what is right everywhere is added to it. `device` is the results', by default that of the
    first tensor, or the CPU where there is none. Errors of the launch and of the
    reference (`ucutlass.reference.errors`) are raised; ValueError for fewer than 2 repeats.
    """
    if repeats < 2:
        raise ValueError(f"{repeats} runs cannot show an unwritten element: at least 2 are needed")
    # Parts of a reference are made after launches, which may have changed what they were given.
    with span("inputs"):
        snapshot = [a.clone() if isinstance(a, Tensor) else a for a in arguments]
        scale = largest_of_arguments(arguments)
    comparing = _Comparing(
        program,
        snapshot,
        [_tile_of(kind, tile) for kind in result_types(program)],
        scale,
        around,
        sample,
        accepted if expected is None and deterministic and isinstance(program, Kernel) else None,
        expected if expected is None or isinstance(expected, ExpectedResults) else whole_results(expected),
    )
    shapes = comparing.shapes()
    runs: list[list[Guarded]] = []
    differs: list[bool] = []
    problems: list[LaunchProblem] = []
    comparisons: list[Comparison] = []
    for number in range(repeats):
        # The span waits for the device, which must not end what goes on around the launch.
        with span("launch"), nullcontext() if jitter is None else jitter(number):
            outputs, run_problems = _run(
                launch, arguments, shapes, device or device_of(arguments), _pattern(number), offset
            )
        problems += run_problems
        if number < 2:
            runs.append(outputs)
        if number == 0 or not deterministic:
            of_run, of_sums = comparing.compare([o.result for o in outputs])
            comparisons += of_run
            problems += of_sums
        with span("comparison"):
            differs.append(any(_differ(a, b) for a, b in zip(runs[0], outputs, strict=True)))
    with span("comparison"):
        problems += _changed(program, arguments, snapshot)
        # Where both runs left the same bits nothing holds the poison of each, since these are two.
        for result, first, second in zip(shapes, *runs, strict=True) if differs[1] else ():
            problems += _unwritten(result, first, second)
    if deterministic and not problems and any(differs):
        has_workspace = isinstance(launch, DirectLaunch) and launch.workspace > 0
        problems += _unsteady(shapes, runs, differs, has_workspace)
    verdict = LaunchVerdict(tuple(comparisons), tuple(dict.fromkeys(problems)))
    return verdict, tuple(o.result for o in runs[0])


@dataclass(slots=True, eq=False)
class _Comparing:
    """Compares what runs leave with the reference of `arguments`, which is made where `accepted` has not seen that."""

    program: Program
    arguments: Sequence[Argument]
    tiles: Sequence[tuple[int, int] | None]
    scale: float
    around: Mapping[str, int]
    sample: RowSample | None
    accepted: AcceptedResults | None
    reference: ExpectedResults | None

    def shapes(self) -> Sequence[ResultShape]:
        if self.accepted is None:
            return self._reference().results
        return _result_shapes(self.program, sizes_of(self.program, self.arguments, self.around))

    def compare(self, results: Sequence[Tensor]) -> tuple[Sequence[Comparison], list[LaunchProblem]]:
        """Returns each result's comparison, and what sums of a sampled product say of the rows between."""
        with span("comparison"):
            mark = (
                None if self.accepted is None else self.accepted.mark(self.program, self.arguments, results)
            )
            earlier = None if self.accepted is None else self.accepted.find(mark)
        if earlier is not None:
            return earlier, []
        reference = self._reference()
        comparisons = tuple(compare_results(reference, results, self.tiles, self.scale))
        if self.accepted is not None and not reference.sampled:
            self.accepted.add(mark, comparisons)
        if self.sample is None or not reference.sampled or not all(c.ok for c in comparisons):
            return comparisons, []
        return comparisons, _projected(
            self.program, self.arguments, results, reference, self.sample.seed, self.around
        )

    def _reference(self) -> ExpectedResults:
        if self.reference is None:
            self.reference = _reference(self.program, self.arguments, self.around, self.sample)
        return self.reference


def _result_shapes(program: Program, sizes: Mapping[str, int]) -> tuple[ResultShape, ...]:
    assert isinstance(program, Kernel)
    return tuple(ResultShape(r.name, r.type.elem, shape_of(r.type, sizes)) for r in program.results)


def _reference(
    program: Program, arguments: Sequence[Argument], around: Mapping[str, int], sample: RowSample | None
) -> ExpectedResults:
    sampled = None
    if sample is not None and isinstance(program, Kernel):
        sampled = sampled_results(program, arguments, sample, around)
    return least_results(program, arguments, around) if sampled is None else sampled


@span("comparison")
def _projected(
    program: Program,
    arguments: Sequence[Argument],
    results: Sequence[Tensor],
    reference: ExpectedResults,
    seed: int,
    around: Mapping[str, int],
) -> list[LaunchProblem]:
    """Returns the problems of products whose projections are not those of their operands: a sample of rows does not
    see the others."""
    assert isinstance(program, Kernel)
    (part,) = reference.slices()
    errors = projection_errors(program, arguments, results, part, seed, around)
    return [
        LaunchProblem(
            "not its operands'",
            f"{program.results[number].name or 'the result'}, summed with random signs, is {error:.3g} times as far "
            "from the product of its operands as a right one may be",
        )
        for number, error in errors.items()
        if error > 1
    ]


CLEAR = 0.5
"""Of least bounds: errors that are no larger in root mean square are no larger of the bounds, which is what the audit
objects to (`agent/integrity/rules.py`)."""


def _is_clear(comparison: Comparison) -> bool:
    """Returns whether bounds would say of a result what least bounds do."""
    return comparison.ok and (comparison.rms is None or comparison.rms <= CLEAR)


@span("comparison")
def compare_results(
    reference: ExpectedResults,
    outputs: Sequence[Tensor],
    tiles: Sequence[tuple[int, int] | None],
    scale: float = 0.0,
) -> list[Comparison]:
    """Compares every result with its reference, slice by slice and where that is; `tiles` and `scale` as in
    `compare`. What lower estimates of bounds do not clear is held against the bounds."""
    comparisons = _compared(reference, outputs, tiles, scale)
    if reference.full is None or all(map(_is_clear, comparisons)):
        return comparisons
    return _compared(reference.full(), outputs, tiles, scale)


def _compared(
    reference: ExpectedResults,
    outputs: Sequence[Tensor],
    tiles: Sequence[tuple[int, int] | None],
    scale: float,
) -> list[Comparison]:
    """Compares slice by slice: one with the bits and the reference of the one before it compares as that did."""
    slices: list[list[Comparison]] = [[] for _ in outputs]
    before: ReferenceSlice | None = None
    for part in timed_items("bounds", reference.slices()):
        for number, (e, out, tile) in enumerate(zip(part.expected, outputs, tiles, strict=True)):
            piece = part.slice_of(number, out)
            if before is not None and _is_repeated(number, out, piece, part, before):
                slices[number].append(slices[number][-1])
                continue
            compared = compare(
                piece.to(e.reference.device),
                e.reference,
                e.bound,
                tile=tile if part.index is None else None,
                name=e.name,
                overflows=e.overflows,
                free=e.free,
                scale=scale,
                origin=part.origin(number),
            )
            slices[number].append(replace(compared, index=part.place(number, compared.index)))
        before = part
    return [merged(result_slices) for result_slices in slices]


def _is_repeated(
    number: int, out: Tensor, piece: Tensor, part: ReferenceSlice, before: ReferenceSlice
) -> bool:
    """Returns whether a slice of a result has the reference of the slice before it, and its bits."""
    if part.expected[number] is not before.expected[number]:
        return False
    return torch.equal(words(piece), words(before.slice_of(number, out)))


def largest_of_arguments(arguments: Sequence[Argument]) -> float:
    """Returns the largest finite magnitude of the float tensors' numbers."""
    floats = [a for a in arguments if isinstance(a, Tensor) and a.is_floating_point()]
    return max((_largest(a, ends) for a, ends in zip(floats, extremes_of(*floats), strict=True)), default=0.0)


def _largest(tensor: Tensor, ends: tuple[float, float]) -> float:
    if not all(map(math.isfinite, ends)):
        wide = tensor if tensor.element_size() > 1 else tensor.to(torch.float32)
        ends = extremes(wide.nan_to_num(0.0, 0.0, 0.0))
    return max(map(abs, ends))


def _pattern(number: int) -> tuple[int, int]:
    return _PATTERNS[number] if number < len(_PATTERNS) else _PATTERNS[0]


def _tile_of(kind: TensorType, tile: tuple[int, int] | Mapping[str, int] | None) -> tuple[int, int] | None:
    if not isinstance(tile, Mapping):
        return tile
    if len(kind.axes) < 2:
        return None
    rows, columns = ((axis.dims or ("",))[-1] for axis in kind.axes[-2:])
    return tile.get(rows, 1), tile.get(columns, 1)


def _run(
    launch: JudgedLaunch | DirectLaunch,
    arguments: Sequence[Argument],
    results: Sequence[ResultShape],
    device: torch.device,
    pattern: tuple[int, int],
    offset: int,
) -> tuple[list[Guarded], list[LaunchProblem]]:
    out, work = (POISONS[i] for i in pattern)
    outputs = [guarded(r.shape, outer_dtype(r.elem), device, out, offset) for r in results]
    written = [o.result for o in outputs]
    scratch: Guarded | None = None
    match launch:
        case DirectLaunch(run, workspace):
            if workspace:
                scratch = guarded((workspace,), torch.uint8, device, work)
            run(arguments, written, None if scratch is None else scratch.result)
        case _:
            launch(arguments, written)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    named = [(r.name or "the result", o) for r, o in zip(results, outputs, strict=True)]
    named += [("the workspace", scratch)] if scratch is not None else []
    return outputs, [
        LaunchProblem("overrun", f"{name} was written past: first canary hit at byte {at} of it")
        for name, memory in named
        for at in memory.overruns()
    ]


def _changed(
    program: Program, arguments: Sequence[Argument], snapshot: Sequence[Argument]
) -> list[LaunchProblem]:
    pairs = [
        (decl.name, words(now), words(before))
        for decl, now, before in zip(program.params, arguments, snapshot, strict=True)
        if isinstance(now, Tensor) and isinstance(before, Tensor)
    ]
    problems: list[LaunchProblem] = []
    changes = numbers(*((bits != as_given).any() for _, bits, as_given in pairs))
    for (name, bits, as_given), changed in zip(pairs, changes, strict=True):
        if changed:
            at = int((bits != as_given).to(torch.uint8).argmax()) * bits.element_size()
            problems.append(LaunchProblem("input changed", f"{name} changed, first at byte {at}"))
    return problems


def _unwritten(result: ResultShape, first: Guarded, second: Guarded) -> list[LaunchProblem]:
    """Returns the problems of elements that hold the poison after both runs: no one value is both
    patterns."""
    untouched = first.holds(POISONS[0]) & second.holds(POISONS[1])
    count = int(untouched.sum())
    if not count:
        return []
    at = unravel(int(untouched.to(torch.uint8).argmax()), result.shape)
    total = math.prod(result.shape)
    what = f"{count} of {total} elements of {result.name or 'the result'}"
    return [LaunchProblem("unwritten", f"{what}, first {list(at)}")]


def _differ(first: Guarded, second: Guarded) -> bool:
    return first is not second and not torch.equal(words(first.result), words(second.result))


def _unsteady(
    results: Sequence[ResultShape],
    runs: Sequence[Sequence[Guarded]],
    differs: Sequence[bool],
    workspace: bool,
) -> list[LaunchProblem]:
    """Returns why runs differ: what memory held before, or nothing that the judge did."""
    culprit = None
    if len(differs) >= len(_PATTERNS) and not any(differs[len(_PATTERNS) :]):
        match differs[1:4]:
            case [True, True, False] if workspace:
                culprit = "the workspace"
            case [True, False, True]:
                culprit = "the results"
    if culprit is not None:
        what = f"what was written depends on what {culprit} held before the launch"
        return [LaunchProblem("reads poison", what)]
    problems = [p for r, a, b in zip(results, *runs, strict=True) for p in _unrepeatable(r, a, b)]
    number = differs.index(True)
    return problems or [
        LaunchProblem("not repeatable", f"run {number + 1} of {len(differs)} differs from the first")
    ]


def _unrepeatable(result: ResultShape, first: Guarded, second: Guarded) -> list[LaunchProblem]:
    differs = words(first.result) != words(second.result)
    count = int(differs.sum())
    if not count:
        return []
    at = unravel(int(differs.to(torch.uint8).argmax()), result.shape)
    total = math.prod(result.shape)
    what = f"{count} of {total} elements of {result.name or 'the result'} differ bitwise between two runs"
    return [LaunchProblem("not repeatable", f"{what}, first {list(at)}")]

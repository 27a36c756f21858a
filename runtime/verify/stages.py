"""Judges a pipeline stage by stage: each launch is compared with that stage's reference on the numbers it
was given.

A bound that goes from stage to stage grows with each: after ten layers it is wider than the results, and
after a division infinite. The bound of one stage on known inputs stays as tight as a kernel's. What is
carried from stage to stage is what the launches stored, poisoned, guarded and in memory of its own; the
pipeline itself, on its one workspace, must then give the same bits. So it is right as a whole where every
stage is right: each stage's inputs are what the stages before it stored. (An a-posteriori, or running,
error analysis; Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, section 3.3.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ucutlass.ir import Program
from ucutlass.pipeline.names import outer_names
from ucutlass.pipeline.sized import SizedPipeline, Step, alone
from ucutlass.reference import (
    Expected,
    ExpectedResults,
    RowSample,
    exact_result,
    least_results,
    whole_results,
)
from ucutlass.reference.errors import CallError, UnsupportedError
from ucutlass.reference.interpreter import Argument, device_of, run_stage, stage_arguments
from ucutlass.reference.slices import VALUES, values
from ucutlass.runtime.verify.accepted import AcceptedResults
from ucutlass.runtime.verify.comparison import unravel
from ucutlass.runtime.verify.guards import words
from ucutlass.runtime.verify.judge import DirectLaunch, Jitter, JudgedLaunch, judge_launch
from ucutlass.runtime.verify.verdict import LaunchProblem, LaunchVerdict, StageVerdict

Tile = tuple[int, int] | Mapping[str, int] | None


@dataclass(frozen=True, slots=True, eq=False)
class StagedLaunch:
    """A pipeline's launch, and beside it that of each step of `layout` alone, on memory of its own: None for
    a torch function."""

    entire: JudgedLaunch | DirectLaunch
    sized: SizedPipeline
    steps: tuple[JudgedLaunch | DirectLaunch | None, ...]


def check(
    program: Program,
    launch: JudgedLaunch | DirectLaunch | StagedLaunch,
    arguments: Sequence[Argument],
    *,
    tile: Tile = None,
    deterministic: bool = True,
    expected: Sequence[Expected] | ExpectedResults | None = None,
    repeats: int = 2,
    jitter: Jitter | None = None,
    offset: int = 0,
    sample: RowSample | None = None,
    accepted: AcceptedResults | None = None,
    end_to_end: bool = True,
    device: torch.device | None = None,
) -> LaunchVerdict:
    """As `ucutlass.runtime.verify.judge.judge_launch`; a StagedLaunch stage by stage too, and then a
    reference of the whole that has no bound, or does not fit into the device's memory, raises nothing. With
    `sample` there is none of the whole, and without `end_to_end` one only where stages decide nothing.

    `accepted` is for stages and the whole. `expected` is of the whole: what the program should compute, where that is another text's to say.
    """
    # A stage without operands, such as one that fills a buffer, runs where the others do.
    device = device or device_of(arguments)
    judged = partial(
        judge_launch,
        program,
        arguments=arguments,
        tile=tile,
        deterministic=deterministic,
        repeats=repeats,
        jitter=jitter,
        offset=offset,
        device=device,
    )
    if not isinstance(launch, StagedLaunch):
        return judged(launch, expected=expected, sample=sample, accepted=accepted)[0]
    stages, stored, cut = _judge_stages(
        launch, arguments, tile, deterministic, offset, sample, accepted, device
    )
    if cut:
        return LaunchVerdict((), (), tuple(stages), cut)
    kinds = launch.sized.pipeline.results
    mark = None if accepted is None else accepted.mark(program, arguments, stored)
    earlier = None if accepted is None else accepted.find(mark)
    references = whole_results(
        [exact_result(name, kind, t) for (name, kind), t in zip(kinds, stored, strict=True)]
    )
    missing = ""
    if earlier is None:
        try:
            of_the_whole = end_to_end or any(stage.state == "undecided" for stage in stages)
            references = _references(program, launch.sized, arguments, expected, sample, of_the_whole)
        except (UnsupportedError, NotComputed, torch.OutOfMemoryError) as problem:
            missing = f"{type(problem).__name__}: {problem}"[:200]
    verdict, results = judged(launch.entire, expected=references)
    problems = list(verdict.problems)
    if deterministic:
        for (name, _), mine, its in zip(kinds, stored, results, strict=True):
            problems += _result_differences(name, mine, its)
    comparisons = verdict.comparisons
    if earlier is not None and verdict.ok:
        comparisons = earlier  # the entire launch has the bits of its stages', which were right before
    elif accepted is not None and expected is None and not missing and deterministic and not problems:
        accepted.add(mark, comparisons)  # which have the bits of the stages', whose mark it is
    return LaunchVerdict(() if missing else comparisons, tuple(problems), tuple(stages), missing)


def _references(
    program: Program,
    layout: SizedPipeline,
    arguments: Sequence[Argument],
    expected: Sequence[Expected] | ExpectedResults | None,
    sample: RowSample | None,
    end_to_end: bool,
) -> ExpectedResults:
    """Returns what the whole is to compute. Raises NotComputed, UnsupportedError, torch.OutOfMemoryError."""
    if sample is not None or not end_to_end:
        raise NotComputed("only the stages were asked for" if sample is None else "the stages were sampled")
    if expected is None:
        return _program_reference(program, layout, arguments)
    return expected if isinstance(expected, ExpectedResults) else whole_results(expected)


class NotComputed(Exception):
    """There is no reference of a whole pipeline: it was not asked for, or would hold more values than MOST."""


MOST = 4 * VALUES
"""Values of all stages together: a pipeline's reference is made whole, and keeps what stages store."""


def _program_reference(
    program: Program, layout: SizedPipeline, arguments: Sequence[Argument]
) -> ExpectedResults:
    count = sum(
        values(step.kernel, dict(zip(step.kernel.dims, step.sizes, strict=True)))
        for step in layout.steps
        if step.kernel
    )
    if count > MOST:
        raise NotComputed(
            f"its reference has {count:.2g} values, of at most {MOST:.2g} that are made at once"
        )
    return least_results(program, arguments)


def _judge_stages(
    staged: StagedLaunch,
    arguments: Sequence[Argument],
    tile: Tile,
    deterministic: bool,
    offset: int,
    sample: RowSample | None,
    accepted: AcceptedResults | None,
    device: torch.device,
) -> tuple[list[StageVerdict], list[Tensor], str]:
    """Returns every stage's verdict, the results as the stages stored them, and why not all stages were
    judged: a stage that is wrong ends it where no reference takes what it stored."""
    layout = staged.sized
    buffers = dict(zip((p.name for p in layout.pipeline.params), arguments, strict=True))
    verdicts: list[StageVerdict] = []
    for number, (step, launch) in enumerate(zip(layout.steps, staged.steps, strict=True)):
        operands = stage_arguments(step.stage, buffers)
        try:
            verdict, outputs = _judge_stage(
                layout, step, launch, operands, tile, deterministic, offset, sample, accepted, device
            )
        except CallError as problem:
            if all(m.state != "wrong" for m in verdicts):
                raise
            return verdicts, [], f"stage {step.name} cannot be judged on what a wrong stage stored: {problem}"
        verdicts.append(verdict)
        buffers |= dict(zip(step.stage.outputs, outputs, strict=True))
        for name in [
            n for n in buffers if n in layout.intermediates and max(layout.readers(n), default=-1) <= number
        ]:
            del buffers[name]
    stored = [buffers[name] for name in layout.results]
    return verdicts, [t for t in stored if isinstance(t, Tensor)], ""


def _judge_stage(
    layout: SizedPipeline,
    step: Step,
    launch: JudgedLaunch | DirectLaunch | None,
    operands: Sequence[Argument],
    tile: Tile,
    deterministic: bool,
    offset: int,
    sample: RowSample | None,
    accepted: AcceptedResults | None,
    device: torch.device,
) -> tuple[StageVerdict, Sequence[Tensor]]:
    if launch is None:
        # As the series stores it.
        outputs = [r.contiguous() for r in run_stage(step.stage, operands, layout.sizes)]
        return StageVerdict(step.name, torch=True), outputs
    kernel = step.kernel
    if kernel is None:
        each = dict(zip(step.stage.arguments, operands, strict=True))
        program, inputs = alone(layout, step), [each[name] for name in step.reads]
        verdict, results = judge_launch(
            program, launch, inputs, tile=tile, deterministic=deterministic, offset=offset, device=device
        )
        return StageVerdict(step.name, verdict.comparisons, verdict.problems), results
    own = tile
    if isinstance(tile, Mapping):
        own = {d: tile[outer] for d, outer in outer_names(layout, step).items() if outer in tile}
    verdict, results = judge_launch(
        kernel,
        launch,
        operands,
        tile=own,
        deterministic=deterministic,
        offset=offset,
        around=layout.sizes,
        sample=sample,
        accepted=accepted,
        device=device,
    )
    return StageVerdict(step.name, verdict.comparisons, verdict.problems), results


def _result_differences(name: str, stored: Tensor, result: Tensor) -> list[LaunchProblem]:
    """Where the pipeline's result has other bits than its stages, one after the other, stored."""
    differs = words(stored) != words(result)
    count = int(differs.sum())
    if not count:
        return []
    at = list(unravel(int(differs.to(torch.uint8).argmax()), result.shape))
    where = f"{count} of {result.numel()} elements of {name or 'the result'}, first {at}"
    return [LaunchProblem("not its stages'", f"{where}, are not what its stages store one after the other")]

"""Schedules of a pipeline's stages: which stage each block is for, and what of it a stage can have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ucutlass import ir
from ucutlass.check.schedules import check_blocks
from ucutlass.check.scope import Poisoned, Reject, Scope, did_you_mean
from ucutlass.grammar import syntax
from ucutlass.ir import Stage, TensorType
from ucutlass.ir.extents import names as extent_names
from ucutlass.pipeline.copy_elision import elided_copies

RejectTo = Callable[[Reject], None]


@dataclass(frozen=True, slots=True)
class Scheduling:
    """A pipeline whose statements were all read. `called` are the kernels that stages may call, `unordered`
    the buffers whose memory order is not in the text."""

    scope: Scope
    called: Mapping[str, ir.Kernel]
    stages: Sequence[Stage]
    buffers: Sequence[tuple[str, TensorType]]
    results: Sequence[tuple[str, TensorType]]
    unordered: Sequence[str]

    def stages_with(self, blocks: Sequence[syntax.Schedule], reject: RejectTo) -> tuple[Stage, ...]:
        """The stages with their schedules, in the order of the text; findings go to `reject`."""
        stages = list(self.stages)
        by_stage: dict[int, list[syntax.Schedule]] = {}
        for block in blocks:
            try:
                at = self._stage(block)
            except Reject as problem:
                reject(problem)
                continue
            if at is not None:
                by_stage.setdefault(at, []).append(block)
        for at, mine in by_stage.items():
            stages[at] = self._with(stages[at], mine, reject)
        return tuple(stages)

    def _stage(self, block: syntax.Schedule) -> int | None:
        """The number of the stage that a block is for; None where its binding was rejected. Raises Reject."""
        stage = block.stage
        if stage is None:
            some = next(iter(self._inline()), "return")
            raise Reject(
                "UC0505",
                "a pipeline's schedule is of one of its stages",
                block.arch_span,
                f"name the stage: schedule {block.arch[:40]} for {some} {{ .. }}",
            )
        at = next((i for i, s in enumerate(self.stages) if stage.words in s.outputs), None)
        if at is not None:
            self._check_inline(self.stages[at], stage)
        elif not self._rejected(stage):
            raise self._unknown(stage)
        return at

    def _rejected(self, stage: syntax.StageName) -> bool:
        """Whether there would be such a stage, had its own statement been sound."""
        if stage.returned:
            return any(result == stage.words for result, _ in self.results)
        return isinstance(self.scope.values.get(stage.name or ""), Poisoned)

    def _unknown(self, stage: syntax.StageName) -> Reject:
        name = stage.words
        value = None if stage.returned else self.scope.values.get(name)
        hint = f"stages that can have one: {', '.join(self._inline()) or 'none'}"
        if stage.returned:
            what = f"this pipeline has no `{name}`"
        elif isinstance(value, ir.ParamValue) and name not in dict(self.buffers):
            what = f"{name} is a parameter, which no stage fills"
        elif value is not None:
            what = f"{name} is not stored: the stages that use it compute it themselves"
            hint = f"store it, as in {name}: f32 = .., or write the schedule for the stage that uses it"
        else:
            what, hint = f"no stage is named {name}", did_you_mean(name, self._inline()) or hint
        return Reject("UC0506", what, stage.span, hint)

    def _check_inline(self, stage: Stage, stage_name: syntax.StageName) -> None:
        """Raises Reject UC0507 for a stage whose schedule has another place."""
        match stage.call:
            case ir.TorchCall(function):
                raise Reject(
                    "UC0507",
                    f"{stage_name.words} is torch.{function}, which the compiler does not schedule",
                    stage_name.span,
                )
            case ir.Kernel(name) as kernel if self.called.get(name) is kernel:
                raise Reject(
                    "UC0507",
                    f"{stage_name.words} calls the kernel {name}, where its schedules stand",
                    stage_name.span,
                    f"write them in {name}, without `for`",
                )
        copied = {result: name for name, result in self._copies().items()}
        if stage_name.words in copied:
            name = copied[stage_name.words]
            raise Reject(
                "UC0507",
                f"{stage_name.words} is {name} itself, so that no launch fills it",
                stage_name.span,
                f"write the schedule for {name}",
            )

    def _copies(self) -> dict[str, str]:
        """Of a buffer without an order nobody knows yet whether its copy falls away."""
        ordered = [(name, type_) for name, type_ in self.buffers if name not in self.unordered]
        return elided_copies(self.stages, ordered, self.results)

    def _with(self, stage: Stage, blocks: list[syntax.Schedule], reject: RejectTo) -> Stage:
        kernel = stage.call
        assert isinstance(kernel, ir.Kernel)
        by_span = {block.arch_span: block for block in blocks}
        schedules = check_blocks(blocks, self.scope, reject)
        for block in schedules:
            when = by_span[block.span].when
            own = () if block.guard is None else _extents(block.guard)
            foreign = [d for d in own if d not in kernel.dims]
            if foreign and when is not None:
                reject(
                    Reject(
                        "UC0405",
                        f"the stage {' '.join(stage.outputs)} has no {', '.join(foreign)}",
                        when.span,
                        f"a stage's conditions are on its own extents: {', '.join(kernel.dims)}",
                    )
                )
        return replace(stage, call=replace(kernel, schedules=schedules))

    def _inline(self) -> list[str]:
        """The stages that can have a schedule here."""
        copied = set(self._copies().values())
        return [
            output
            for s in self.stages
            for output in s.outputs
            if isinstance(s.call, ir.Kernel)
            and self.called.get(s.call.name) is not s.call
            and output not in copied
        ]


def _extents(guard: ir.Value) -> tuple[str, ...]:
    own = extent_names(guard.extent) if isinstance(guard, ir.Size) else ()
    return tuple(dict.fromkeys([*own, *(d for child in ir.children(guard) for d in _extents(child))]))

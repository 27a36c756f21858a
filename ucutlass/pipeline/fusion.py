"""Which neighbouring stages could be one launch, which could not and why, and the bytes that a cut costs.

The families decide: a pair is joined into the kernel that would do both, and recognised and planned like
any other. Nothing is fused behind the text's back; a proposal says what to write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ucutlass import ir
from ucutlass.ir.hardware import ARCHES, Device
from ucutlass.ir.schedule import Request
from ucutlass.kernels.families import match, plan_pattern
from ucutlass.kernels.refused import Refused
from ucutlass.limits import LimitPassed
from ucutlass.pipeline.fused_kernel import FusedKernel, NotFusible, fuse
from ucutlass.pipeline.planning import PipelinePlan
from ucutlass.pipeline.sized import SizedPipeline, Step


@dataclass(frozen=True, slots=True)
class FusionCandidate:
    """A buffer between two stages, `maker` and `reader` by number. `bytes` is what moves because it is
    stored there: its writing, where nobody else reads it, and this reading. `possible`: one launch could do
    both. `why` says how or why not; `saves` is the difference of the estimates in seconds."""

    buffer: str
    maker: int
    reader: int
    bytes: int
    possible: bool
    why: str
    saves: float | None = None


def fusion_candidates(
    plan: PipelinePlan, arch: str, device: Device | None = None
) -> tuple[FusionCandidate, ...]:
    """Every buffer that one stage fills and another reads, in order."""
    found = plan.layout
    made: list[FusionCandidate] = []
    for number, step in enumerate(found.steps):
        for name in step.stage.outputs:
            for reader in found.readers(name):
                made.append(_candidate(plan, name, number, reader, arch, device))
    return tuple(made)


def _candidate(
    plan: PipelinePlan, name: str, maker: int, reader: int, arch: str, device: Device | None
) -> FusionCandidate:
    found = plan.layout
    first, second = found.steps[maker], found.steps[reader]
    keep = _needed_elsewhere(found, first, reader)
    size = found.buffers[name].bytes
    moved = size * (1 if name in keep else 2)
    if any(other != maker and _depends_on(found, other, maker) for other in second.after):
        return FusionCandidate(
            name, maker, reader, moved, False, "a stage between the two needs what the first makes"
        )
    try:
        seconds = _fused_seconds(partial(fuse, first, second, keep), arch, device)
    except NotFusible as problem:
        return FusionCandidate(name, maker, reader, moved, False, str(problem))
    saves = _separate_seconds(plan, maker, reader) - seconds
    return FusionCandidate(name, maker, reader, moved, True, _fusion_hint(found, name, keep), saves)


def _fuse_three(a: Step, b: Step, c: Step) -> FusedKernel:
    return fuse(fuse(a, b).step(), c)


def _fused_seconds(join: Callable[[], FusedKernel], arch: str, device: Device | None) -> float:
    """The estimate in seconds. Raises NotJoined, in the families' words, where none serves it."""
    try:
        one = join()
        planned = plan_pattern(match(one.kernel), one.sizes, ARCHES[arch], device, Request())
    except LimitPassed:
        raise NotFusible("together they are too large a program") from None
    except Refused as refused:
        raise NotFusible(f"{refused.diagnostic.message} [{refused.diagnostic.code}]") from None
    if isinstance(planned, tuple):
        raise NotFusible(f"{planned[0].message} [{planned[0].code}]")
    return planned.seconds


def _separate_seconds(plan: PipelinePlan, *stages: int) -> float:
    return sum(s.chosen.planned.seconds for s in (plan.stages[i] for i in stages) if s.chosen is not None)


# --- three at once ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FusionChain:
    """Three stages in a row of which no two could be one launch, but all three: attention cut at its scores.
    `buffers` between them would not be stored, `bytes` not move; `saves` as in `Cut`."""

    stages: tuple[int, int, int]
    buffers: tuple[str, str]
    bytes: int
    saves: float


def fusion_chains(
    plan: PipelinePlan, found: Sequence[FusionCandidate], arch: str, device: Device | None = None
) -> tuple[FusionChain, ...]:
    """Every such row; `found` are the plan's cuts."""
    only = {c.maker: c for c in found if _private(plan.layout, c)}
    made: list[FusionChain] = []
    for first in only.values():
        second = only.get(first.reader)
        if second is None or first.possible or second.possible:
            continue
        a, b, c = (plan.layout.steps[i] for i in (first.maker, first.reader, second.reader))
        try:
            seconds = _fused_seconds(partial(_fuse_three, a, b, c), arch, device)
        except NotFusible:
            continue
        stages = first.maker, first.reader, second.reader
        saves = _separate_seconds(plan, *stages) - seconds
        made.append(FusionChain(stages, (first.buffer, second.buffer), first.bytes + second.bytes, saves))
    return tuple(made)


def _private(found: SizedPipeline, cut: FusionCandidate) -> bool:
    """Whether the maker fills this buffer alone and the reader alone reads it."""
    outputs = found.steps[cut.maker].stage.outputs
    return outputs == (cut.buffer,) and not _needed_elsewhere(found, found.steps[cut.maker], cut.reader)


def _needed_elsewhere(found: SizedPipeline, first: Step, reader: int) -> tuple[str, ...]:
    """What the first stage fills that somebody besides the reader needs."""
    return tuple(
        name
        for name in first.stage.outputs
        if name in found.results or any(r != reader for r in found.readers(name))
    )


def _depends_on(found: SizedPipeline, step: int, on: int) -> bool:
    after = found.steps[step].after
    return on in after or any(_depends_on(found, other, on) for other in after)


def _fusion_hint(found: SizedPipeline, name: str, keep: tuple[str, ...]) -> str:
    elem = found.buffers[name].type.elem.name
    if name in keep:
        return f"a kernel with both results does it; {name} is still stored, but not read again"
    shown = name.removeprefix("return ").strip() or "it"
    if elem == "f32":
        return f"write {shown} without an element type, or both in one kernel"
    return f"write {shown} without an element type ({elem}(..) keeps its rounding), or both in one kernel"


# --- what was fused already ------------------------------------------------------------


def operators(kernel: ir.Kernel) -> tuple[str, ...]:
    """What one launch does, in order: dots, reductions and the like with what they consume, then names of
    element-wise functions, each once."""
    seen: dict[int, ir.Value] = {}

    def visit(node: ir.Value) -> None:
        if id(node) not in seen:
            for child in ir.children(node):
                visit(child)
            seen[id(node)] = node

    for result in kernel.results:
        visit(result.value)
    return tuple(dict.fromkeys(word for node in seen.values() if (word := _operator_name(node))))


def _operator_name(node: ir.Value) -> str:
    match node:
        case ir.Dot(over=over):
            return f"dot[{', '.join(over)}]"
        case ir.Reduce(op=op, over=over):
            return f"{op}[{', '.join(over)}]"
        case ir.Softmax(over=over, log=log):
            return f"{'log_' if log else ''}softmax[{', '.join(over)}]"
        case ir.Scan(op=op, along=along):
            return f"{op}[{along}]"
        case ir.Gather(dim=dim):
            return f"gather[{dim}]"
        case ir.Read(positions=positions):
            return f"read[{', '.join(p.dim for p in positions)}]"
        case ir.Apply(function=function):
            return function
        case ir.Cast(elem=elem) if elem.storable:
            return elem.name
        case _:
            return ""

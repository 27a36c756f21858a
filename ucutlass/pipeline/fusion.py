"""Reports which neighbouring stages could be one launch, which could not and why, and what traffic a cut
costs.

The kernel families decide: a pair of stages is fused into the kernel that would do both, and that kernel is
matched and planned like any other. The compiler never fuses behind the text's back; a candidate says what to
write, and `ucc fuse` writes it (`ucutlass.pipeline.joins`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ucutlass import ir
from ucutlass.ir.hardware import Device
from ucutlass.pipeline.fused_kernel import FusedKernel, NotFusible, fuse
from ucutlass.pipeline.planning import PipelinePlan
from ucutlass.pipeline.pricing import NotOneKernel, kernel_seconds
from ucutlass.pipeline.sized import SizedPipeline, Step


@dataclass(frozen=True, slots=True)
class FusionCandidate:
    """A buffer between two stages, `producer` and `reader`, given by number. `bytes` is the traffic that
    storing the buffer costs: the write, where no other stage reads it, and this read. `possible` says whether
    one launch could do both stages, `why` says how or why not, and `saves` is the difference of the estimates
    in seconds."""

    buffer: str
    producer: int
    reader: int
    bytes: int
    possible: bool
    why: str
    saves: float | None = None


def fusion_candidates(
    plan: PipelinePlan, arch: str, device: Device | None = None
) -> tuple[FusionCandidate, ...]:
    """Returns every buffer that one stage fills and another reads, in order."""
    sized = plan.sized
    candidates: list[FusionCandidate] = []
    for number, step in enumerate(sized.steps):
        for name in step.stage.outputs:
            for reader in sized.readers(name):
                candidates.append(_candidate(plan, name, number, reader, arch, device))
    return tuple(candidates)


def _candidate(
    plan: PipelinePlan, name: str, producer: int, reader: int, arch: str, device: Device | None
) -> FusionCandidate:
    sized = plan.sized
    first, second = sized.steps[producer], sized.steps[reader]
    kept_buffers = _needed_elsewhere(sized, first, reader)
    size = sized.buffers[name].bytes
    traffic = size * (1 if name in kept_buffers else 2)
    if any(other != producer and _depends_on(sized, other, producer) for other in second.after):
        return FusionCandidate(
            name, producer, reader, traffic, False, "a stage between the two needs what the first makes"
        )
    try:
        seconds = _fused_seconds(partial(fuse, first, second, kept_buffers), arch, device)
    except (NotFusible, NotOneKernel) as problem:
        return FusionCandidate(name, producer, reader, traffic, False, str(problem))
    saves = _separate_seconds(plan, producer, reader) - seconds
    return FusionCandidate(
        name, producer, reader, traffic, True, _fusion_hint(sized, name, kept_buffers), saves
    )


def _fuse_three(a: Step, b: Step, c: Step) -> FusedKernel:
    return fuse(fuse(a, b).as_step(), c)


def _fused_seconds(fuse_stages: Callable[[], FusedKernel], arch: str, device: Device | None) -> float:
    """Returns the estimate of the fused kernel in seconds. Raises NotFusible and NotOneKernel."""
    fused = fuse_stages()
    return kernel_seconds(fused.kernel, fused.sizes, arch, device)


def _separate_seconds(plan: PipelinePlan, *stages: int) -> float:
    return sum(s.chosen.planned.seconds for s in (plan.stages[i] for i in stages) if s.chosen is not None)


# --- three at once ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FusionChain:
    """Three consecutive stages of which no two could be one launch, but all three could: attention that was
    cut at its scores. The `buffers` between them would not be stored and their `bytes` would not move;
    `saves` is as in `FusionCandidate`."""

    stages: tuple[int, int, int]
    buffers: tuple[str, str]
    bytes: int
    saves: float


def fusion_chains(
    plan: PipelinePlan, candidates: Sequence[FusionCandidate], arch: str, device: Device | None = None
) -> tuple[FusionChain, ...]:
    """Returns every such chain; `candidates` are the plan's fusion candidates."""
    private_by_producer = {c.producer: c for c in candidates if _private(plan.sized, c)}
    chains: list[FusionChain] = []
    for first in private_by_producer.values():
        second = private_by_producer.get(first.reader)
        if second is None or (first.possible and second.possible):
            continue
        a, b, c = (plan.sized.steps[i] for i in (first.producer, first.reader, second.reader))
        try:
            seconds = _fused_seconds(partial(_fuse_three, a, b, c), arch, device)
        except (NotFusible, NotOneKernel):
            continue
        stages = first.producer, first.reader, second.reader
        saves = _separate_seconds(plan, *stages) - seconds
        chains.append(FusionChain(stages, (first.buffer, second.buffer), first.bytes + second.bytes, saves))
    return tuple(chains)


def _private(sized: SizedPipeline, candidate: FusionCandidate) -> bool:
    """Returns whether the producer fills this buffer alone and the reader alone reads it."""
    outputs = sized.steps[candidate.producer].stage.outputs
    return outputs == (candidate.buffer,) and not _needed_elsewhere(
        sized, sized.steps[candidate.producer], candidate.reader
    )


def _needed_elsewhere(sized: SizedPipeline, first: Step, reader: int) -> tuple[str, ...]:
    """Returns the buffers that the first stage fills and that something besides the reader needs."""
    return tuple(
        name
        for name in first.stage.outputs
        if name in sized.results or any(r != reader for r in sized.readers(name))
    )


def _depends_on(sized: SizedPipeline, step: int, producer: int) -> bool:
    after = sized.steps[step].after
    return producer in after or any(_depends_on(sized, other, producer) for other in after)


def _fusion_hint(sized: SizedPipeline, name: str, kept_buffers: tuple[str, ...]) -> str:
    elem = sized.buffers[name].type.elem.name
    if name in kept_buffers:
        return f"a kernel with both results does it; {name} is still stored, but not read again"
    buffer_text = name.removeprefix("return ").strip() or "it"
    if elem == "f32":
        return f"write {buffer_text} without an element type, or both in one kernel"
    return (
        f"write {buffer_text} without an element type ({elem}(..) keeps its rounding), or both in one kernel"
    )


# --- what was fused already ------------------------------------------------------------


def operators(kernel: ir.Kernel) -> tuple[str, ...]:
    """Returns what one launch does, in order and each once: dots, reductions, scans and the values that they
    consume, then the names of element-wise functions."""
    visited: dict[int, ir.Value] = {}

    def visit(node: ir.Value) -> None:
        if id(node) not in visited:
            for child in ir.children(node):
                visit(child)
            visited[id(node)] = node

    for result in kernel.results:
        visit(result.value)
    return tuple(dict.fromkeys(word for node in visited.values() if (word := _operator_name(node))))


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

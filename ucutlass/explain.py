"""Collects what `ucc explain` shows of a planned kernel, as data: resources, work, limits, reasons."""

from __future__ import annotations

from dataclasses import dataclass

from ucutlass.ir.schedule import show
from ucutlass.kernels.gemm.candidate import candidate_of
from ucutlass.kernels.gemm.rules.tiles import accumulators_per_thread
from ucutlass.kernels.gemm.smem import SharedMemory, memory_of
from ucutlass.kernels.planned import Note, Planned
from ucutlass.sol.bounds import TimeBounds


@dataclass(frozen=True, slots=True)
class Explanation:
    """Numbers behind a plan. Bytes, seconds, registers of 32 bits; fractions from 0 to 1.

    `waves`: tiles over the slots that run at a time; `quantisation`: how busy the average slot
    is while the busiest works; `padding`: the useful part of the multiplications; `bound_share`:
    the fused bound over the estimate. `origin`: what chose the schedule, "" where the program fixed it.
    `routes` has a word for each epilogue tensor.
    """

    arch: str
    device: str
    family: str
    schedule: str
    origin: str
    m: int
    n: int
    k: int
    batch: int
    tiles: int
    slots: int
    waves: float
    quantisation: float
    padding: float
    k_steps: int
    accumulators: int
    memory: SharedMemory
    memory_limit: int
    routes: tuple[str, ...]
    dram_bytes: int
    seconds: float
    bound: TimeBounds
    bound_share: float
    notes: tuple[Note, ...]


def explain(planned: Planned, bound: TimeBounds) -> Explanation:
    """The numbers and reasons of a plan, for the extents it was made for. `bound` is the program's on the
    plan's device (`ucutlass.sol.bounds`)."""
    c, e = candidate_of(planned), planned.estimate
    return Explanation(
        arch=c.arch.name,
        device=planned.device.name,
        family=c.family,
        schedule=show(planned.request),
        origin=planned.origin,
        m=c.shape.m,
        n=c.shape.n,
        k=c.shape.k,
        batch=c.shape.batch,
        tiles=e.tiles,
        slots=e.slots,
        waves=e.waves,
        quantisation=e.quantisation,
        padding=e.padding,
        k_steps=c.k_tiles,
        accumulators=accumulators_per_thread(c),
        memory=memory_of(c),
        memory_limit=c.arch.shared_memory,
        routes=c.routes,
        dram_bytes=round(e.dram_bytes),
        seconds=e.seconds,
        bound=bound,
        bound_share=bound.fused.seconds / e.seconds,
        notes=planned.notes,
    )

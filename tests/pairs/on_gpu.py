"""Drawn programs on a GPU: built side by side, then launched and judged in processes of their own."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

import ucutlass
from tests.emulated import DISTRIBUTIONS, Job, plan
from tests.pairs.pairs import Drawn, Judged, State
from tests.soundness.lowering import distinct_scalars
from ucutlass.backend import build_sources, source_of
from ucutlass.emit.text import Source
from ucutlass.kernels.families import Plan
from ucutlass.runtime import isolation, verify
from ucutlass.runtime.inputs import generate

UNIT = 64
"""Programs of a process: what a fault of one takes down is judged again, each program alone."""

LIMIT_SECONDS = 300.0


def launched(drawn: Sequence[Drawn], processes: int) -> list[Judged]:
    """Builds every program on all cores, then judges the units in so many processes at a time."""
    # A program whose build fails says so again, and is judged wrong, where it is launched.
    build_sources(sources(drawn), group=8)
    units = [drawn[i : i + UNIT] for i in range(0, len(drawn), UNIT)]
    with ThreadPoolExecutor(processes) as pool:
        return [judged for unit in pool.map(_unit, units) for judged in unit]


def sources(drawn: Sequence[Drawn]) -> list[tuple[Source, Plan]]:
    """Returns the programs' kernels, each once."""
    by_entry = {}
    for program in drawn:
        checked, kernel, planned = plan(
            Job("", program.program.text, "k", dict(program.program.sizes), None, 0)
        )
        source = source_of(checked, kernel, planned)
        by_entry[source.entry] = (source, planned.plan)
    return list(by_entry.values())


def _unit(unit: Sequence[Drawn]) -> list[Judged]:
    programs = [{"text": d.program.text, "sizes": dict(d.program.sizes), "seed": d.number} for d in unit]
    outcome = isolation.run(
        "tests.pairs.on_gpu:unit_here", {"programs": programs}, limit_seconds=LIMIT_SECONDS
    )
    if isinstance(outcome, isolation.Returned):
        return [Judged(program, **verdict) for program, verdict in zip(unit, outcome.value, strict=True)]
    if len(unit) == 1:
        return [Judged(unit[0], "wrong", str(outcome)[-1500:])]
    return [judged for program in unit for judged in _unit([program])]


def unit_here(programs: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Launches and judges programs; for `isolate`, since a fault ends the process's context."""
    return [_judge(**program) for program in programs]


def _judge(text: str, sizes: dict[str, int], seed: int) -> dict[str, str]:
    kernel = ucutlass.loads(text)
    program = kernel.program

    def launch(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> None:
        kernel(*inputs, out=outputs[0] if len(outputs) == 1 else tuple(outputs))
        torch.cuda.synchronize()

    states: list[State] = []
    details: list[str] = []
    for distribution in DISTRIBUTIONS:
        arguments = generate(
            program, sizes, distribution, seed=seed, device="cuda", scalars=distinct_scalars(program)
        )
        verdict = verify.check(program, launch, arguments)
        states.append(verdict.state)
        if verdict.state != "right":
            details.append(f"{distribution}: {verdict.state}: {verdict}")
    return {"state": verify.worst(states), "detail": "\n".join(details)}

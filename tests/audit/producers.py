"""Records as `ucc bench` and `ucc verify` make them, from their own code, on a device of the tests' own."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from tests.bench.bench_fakes import SIDE, Cells, FakeGpu
from ucutlass import frontend, ir
from ucutlass.reference import evaluate
from ucutlass.runtime import verify
from ucutlass.runtime.bench.measure import BenchCandidate, measure
from ucutlass.runtime.bench.protocol import CacheRegime, Protocol
from ucutlass.runtime.bench.report import to_json
from ucutlass.runtime.evidence import Machine, Record, RecordSubject, sealed
from ucutlass.runtime.inputs import MEANINGS, Distribution, generate
from ucutlass.runtime.store import record
from ucutlass.runtime.subject import subject_of
from ucutlass.runtime.verify.evidence import CaseResult, evidence_of
from ucutlass.runtime.verify.suite import suite

H200 = Machine("NVIDIA H200", "GPU-0", {"driver": "570"})


def bench(subject: RecordSubject, us: float, regime: CacheRegime = "cold", trick: bool = False) -> Record:
    """A time of `us` microseconds, or of a trick on another stream that the protocol refuses."""
    gpu, cells = FakeGpu(clock=1.83e9), Cells()
    ticks = itertools.count()
    chosen = Protocol(regime=regime, warmup=0.0, min_seconds=0.0, block_us=600.0)
    made = _side(gpu, cells) if trick else cells.honest(gpu, "ours", us)
    measured = measure([made], cells, gpu, chosen, now=lambda: next(ticks) / 100)
    report = to_json(measured, chosen)
    return record("bench", subject, H200, report.pop("protocol"), report)


def _side(gpu: FakeGpu, cells: Cells) -> BenchCandidate:
    def launch(at: int, cell: list[Any]) -> None:
        gpu.run("product", 30.0, lambda: cell.__setitem__(0, cells.held[at]), stream=SIDE)

    return cells.candidate("ours", launch)


def verified(
    subject: RecordSubject, kernel: ir.Program, wrong: float = 0.0, distributions: Sequence[Distribution] = ()
) -> Record:
    """A suite's record, of a launch that copies the reference and adds `wrong` to one element. It is
    judged at extents of 8, and told as if at the subject's."""
    sizes = dict.fromkeys(subject.sizes, 8)
    cases = suite(kernel, sizes, seed=1, distributions=distributions, most=len(MEANINGS) + 1)

    def launch(given: Sequence[Any], outputs: Sequence[Tensor]) -> None:
        for out, right in zip(outputs, evaluate(kernel, given), strict=True):
            out.copy_(right)
            out.reshape(-1)[0] += wrong

    results = []
    for case in cases.cases:
        arguments = generate(kernel, case.sizes, case.distribution, seed=case.seed)
        found = verify.check(kernel, launch, arguments)
        results.append(CaseResult(case, "right" if found.ok else "wrong", found))
    found = evidence_of(cases, results).to_json()
    for case in found["cases"]:
        case["sizes"] = {d: subject.sizes[d] for d in case["sizes"]}
    return record("verify", subject, H200, {}, found)


def subject(checked: frontend.Checked, sizes: dict[str, int], **changes: Any) -> RecordSubject:
    """Of the code that this package emits now for an H200."""
    from ucutlass.assembly import ProgramAtSizes, code_of, planned_sources
    from ucutlass.ir.hardware import DEVICES

    program = frontend.program(checked)
    extents = tuple(sizes[d] for d in program.dims)
    _, pairs = planned_sources(ProgramAtSizes(checked, program, extents), "sm90a", DEVICES["H200"])
    record_subject = subject_of(
        program,
        checked.source,
        extents,
        arch="sm90a",
        compute_type="bf16",
        schedule="auto",
        code=code_of(source for source, _ in pairs),
    )
    return replace(record_subject, binary="b" * 64, **changes)


def without(one: Record, *path: str) -> Record:
    """The record, sealed anew, without a field of its result; numbers index lists."""
    result: Any = _copied(one.result)
    inner = result
    for name in path[:-1]:
        inner = inner[int(name)] if isinstance(inner, list) else inner[name]
    del inner[path[-1]]
    return sealed(replace(one, result=result, id=""))


def _copied(value: Any) -> Any:
    match value:
        case dict():
            return {k: _copied(v) for k, v in value.items()}
        case list():
            return [_copied(v) for v in value]
        case _:
            return value

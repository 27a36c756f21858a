"""Guards of what a judge keeps: results that were right before, and references for the next candidate."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from torch import Tensor

from tests.mutants.guards import Mutant, Trial
from ucutlass import frontend, ir
from ucutlass.reference import evaluate
from ucutlass.runtime.bench import workload
from ucutlass.runtime.bench.workload import Buffers
from ucutlass.runtime.verify.reference_cache import ReferenceCache
from ucutlass.tasks.candidate_run import verdict_of

SIZES = {"M": 12, "N": 8, "K": 16}
PLACE = (3, 4)


def program() -> ir.Program:
    text = "kernel linear(x: f32[M, K], w: f32[N, K]) -> f32[M, N] { return relu(dot[K](x, w)) }"
    return frontend.program(frontend.read_text(text))


def _timed(then: str) -> bool:
    """Whether a timed result is objected to, after the right one of the same content was not."""
    buffers = Buffers(program(), SIZES, 3, "cpu", 0, random.Random(0))
    check = buffers.strict()
    results: dict[int, Tensor] = {}
    while len(results) < workload.CONTENTS:
        at = buffers.refresh()
        results[buffers.content(at)] = evaluate(program(), buffers.arguments[at])[0].float()
        assert not check(at, [results[buffers.content(at)]])
    result = results[buffers.content(at)].clone()
    match then:
        case "another element":
            result[PLACE] += 1.0
        case "another content":
            result = results[(buffers.content(at) + 1) % workload.CONTENTS]
    return bool(check(at, [result]))


class Loaded:
    """A kernel whose result is `off` at one place."""

    def __init__(self, off: float) -> None:
        self.off = off

    def judged(self, *_: Any) -> Any:
        def run(given: Sequence[Any], outputs: Sequence[Tensor]) -> None:
            outputs[0].copy_(evaluate(program(), given)[0])
            outputs[0][PLACE] += self.off

        return run


def _next_candidate(off: float, altered: float) -> bool:
    """Whether a candidate is objected to, after one before it altered the reference by so much."""
    cache = ReferenceCache()
    first = cache.case(program(), SIZES, "normal", 3, "cpu")
    assert first.expected is not None and first.expected.whole is not None
    first.expected.whole[0].reference[PLACE] += altered
    case = cache.case(program(), SIZES, "normal", 3, "cpu")
    return not verdict_of(program(), Loaded(off), case.arguments, True, case.expected).ok


TRIALS: Mapping[str, Trial] = MappingProxyType(
    {
        "the same bits again": Trial(False, lambda: _timed("the same")),
        "other bits than before": Trial(True, lambda: _timed("another element")),
        "bits that were right for another content": Trial(True, lambda: _timed("another content")),
        "honest, by what is kept": Trial(False, lambda: _next_candidate(0.0, 0.0)),
        "wrong, by what is kept": Trial(True, lambda: _next_candidate(2.0, 0.0)),
        "wrong as a reference that was altered": Trial(True, lambda: _next_candidate(2.0, 2.0)),
        "honest, after a reference was altered": Trial(False, lambda: _next_candidate(0.0, 2.0)),
    }
)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "all results have one fingerprint",
        (48,),
        ((workload, "fingerprint"),),
        lambda _: lambda *_: (),
        "other bits than before",
    ),
    Mutant(
        "what is kept is not compared with its fingerprint",
        (10,),
        ((ReferenceCache, "_marks"),),
        lambda _: lambda *_: (),
        "wrong as a reference that was altered",
    ),
)

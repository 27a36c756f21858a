"""What `benchmarks.optimise` runs on the GPU once a problem's searches have ended: the winner through the
suite, then everything timed in turns.

Everything goes in and comes out as JSON values, for the engine's process that keeps the GPU.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ucutlass.engine.work import TABLE, TaskEntry, TaskTable

if TYPE_CHECKING:
    from torch import Tensor

IMPORTS = " ".join(
    (
        "torch",
        "torch._inductor.compile_fx",
        "torch._inductor.select_algorithm",
        "ucutlass.backend",
        "ucutlass.tasks.candidate_run",
        "ucutlass.tasks.tune",
    )
)
"""torch.compile's too: the GPU lock would be held for the seconds that they take."""

GPU: TaskTable = {
    **TABLE,
    "prepare": TaskEntry(f"{IMPORTS}:ready", "gpu", "prepare"),
    "compared": TaskEntry("benchmarks.optimise_gpu:compared", "gpu", "warm"),
}
"""The engine's table with one function more."""

ROUNDS = 9


def compared(
    task: str, texts: Mapping[str, str], cases: int, compiled: bool, seed: int = 0
) -> dict[str, Any]:
    """`texts` are programs by name, of which `default` is the problem's own. `us` has microseconds a launch
    of each, of the twin in eager torch by torch's defaults (`eager`), with TF32 allowed (`eager_tf32`), and
    of what torch.compile makes of it (`compile`); `spread` theirs. `best` names the program that is fastest
    turn by turn; `cases` of its suite are run, `verdicts` counts what came of them,
    and `wrong` says which were wrong or lost. Where torch.compile fails, `uncompiled` says how."""
    import torch

    from benchmarks.optimise_cases import ARCH, TASKS
    from ucutlass import frontend
    from ucutlass.api import loaded
    from ucutlass.runtime.timing import compare
    from ucutlass.tasks.candidate_run import argument_sets, turns

    start = time.monotonic()
    (problem,) = (t for t in TASKS if t.name == task)
    _, program = problem.checked
    sets = argument_sets(program, dict(problem.sizes), seed)
    launches: dict[str, Callable[[int], object]] = {}
    for name, text in texts.items():
        checked = frontend.read_text(text, name)
        launches[name] = turns(loaded(checked, frontend.program(checked), ARCH), sets)
    twin, single = problem.twin, problem.compute_type in ("tf32", "f32")
    launches["eager"] = lambda i: _with(False, twin, sets[i])
    if single:
        launches["eager_tf32"] = lambda i: _with(True, twin, sets[i])
    uncompiled = ""
    if compiled:
        try:
            # Within the compute type: a tf32 problem's compiled twin may use TF32 too.
            launches["compile"] = _compiled(twin, problem.compute_type == "tf32", sets)
        except Exception as failure:  # a backend of torch's that fails is a row's finding
            uncompiled = f"{type(failure).__name__}: {failure}"[:400]
    compiled_in = time.monotonic() - start
    with torch.no_grad():
        times = compare(launches, len(sets), rounds=ROUNDS)
    us = {name: t.median for name, t in times.items()}
    if not single:
        us["eager_tf32"] = us["eager"]
    best = min(texts, key=us.__getitem__)
    launches.clear()
    sets.clear()
    if compiled:
        torch._dynamo.reset()
    torch.cuda.empty_cache()
    judged = values(texts[best], problem.sizes, cases, seed)
    torch.cuda.empty_cache()
    return {
        "us": us,
        "spread": {name: t.spread for name, t in times.items()},
        "best": best,
        "cases": cases,
        "uncompiled": uncompiled,
        "ready_seconds": round(compiled_in, 1),
        "spent": round(time.monotonic() - start, 1),
        **judged,
    }


@contextmanager
def _tf32(matmul: bool) -> Iterator[None]:
    """Convolutions may use TF32 by torch's own default, matrix products where they are allowed to."""
    import torch

    flags = torch.backends.cuda.matmul
    before = flags.allow_tf32
    flags.allow_tf32 = matmul
    try:
        yield
    finally:
        flags.allow_tf32 = before


def _with(matmul: bool, twin: Callable[..., Tensor], arguments: Sequence[Any]) -> Tensor:
    with _tf32(matmul):
        return twin(*arguments)


def _compiled(
    twin: Callable[..., Tensor], matmul: bool, sets: Sequence[Sequence[Any]]
) -> Callable[[int], object]:
    import torch

    torch._dynamo.reset()
    fast = torch.compile(twin, dynamic=False, mode="max-autotune-no-cudagraphs")
    with torch.no_grad():
        _with(matmul, fast, sets[0])
    return lambda i: _with(matmul, fast, sets[i])


def values(text: str, sizes: Mapping[str, int], cases: int, seed: int) -> dict[str, Any]:
    """The suite's first `cases` at the asked extents, one distribution each, drawn on the GPU: what the
    suite proper draws on one core would hold the GPU lock for seconds a case."""
    from benchmarks.optimise_cases import ARCH
    from ucutlass import frontend
    from ucutlass.api import loaded
    from ucutlass.runtime import verify
    from ucutlass.runtime.inputs import generate

    checked = frontend.read_text(text, "winner")
    program = frontend.program(checked)
    kernel = loaded(checked, program, ARCH)

    drawn = [c for c in verify.suite(program, sizes, seed=seed).cases if c.kind == "values"][:cases]
    wrong: list[str] = []
    counted: Counter[str] = Counter()
    for case in drawn:
        arguments = generate(
            program, sizes, case.distribution, seed=case.seed, device="cuda", generator_device="cuda"
        )
        verdict = verify.check(program, kernel.judged(*arguments), arguments)
        counted[verdict.state] += 1
        if not verify.CaseResult(case, verdict.state, verdict).ok:
            wrong.append(f"{case.name}: {verdict}"[:300])
    return {"verdicts": counted, "wrong": wrong}

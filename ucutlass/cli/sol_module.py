"""This module is `ucc sol` on a PyTorch problem file: the part of the command that knows modules."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from ucutlass.cli.errors import Status, fail
from ucutlass.cli.sol_show import SolRequest, present
from ucutlass.runtime import isolation
from ucutlass.runtime.module.graph import GraphUnreadable, from_json
from ucutlass.runtime.module.work import ComputePolicy, ModuleWork, count
from ucutlass.sol.bounds import bounds_of

LIMIT_SECONDS = 300.0
MEMORY = 6 * 2**30
"""Host memory that the file's process may take. Tensors take none; torch itself and a graph of many
thousand nodes do."""

OUR_ERRORS = ("ProblemUnusable", "ValueDependent", "ExportFailed")
"""Exceptions of `runtime.module.export`, whose messages stand for themselves."""


class ModuleLost(Exception):
    """Raised where the problem file gave no graph: its own code failed, hung, or ended its process. The
    message has what happened, with the file."""


def module_work(
    file: Path, policy: ComputePolicy = "pytorch", limit_seconds: float = LIMIT_SECONDS
) -> ModuleWork:
    """Returns the work of the module of a problem file in KernelBench's format, whose code runs in a process
    of its own, without the memory of its tensors. Raises ModuleLost."""
    outcome = isolation.run(
        "ucutlass.tasks.module_graph:graph",
        {"file": str(file)},
        limit_seconds=limit_seconds,
        memory_bytes=MEMORY,
    )
    if not isinstance(outcome, isolation.Returned):
        raise ModuleLost(_lost(file, outcome))
    try:
        return count(from_json(outcome.value), policy, file.stem)
    except GraphUnreadable as error:
        raise ModuleLost(f"{file}: {error}") from error


def _lost(file: Path, outcome: isolation.CallOutcome) -> str:
    match outcome:
        case isolation.Raised(kind, message) if kind in OUR_ERRORS:
            return message
        case isolation.TooMuchMemory():
            return isolation.failure_text(outcome, str(file)) + ": does it make arrays without torch?"
        case isolation.Raised():
            return f"{file}: " + isolation.failure_text(outcome, "")
        case _:
            return isolation.failure_text(outcome, str(file))


# --- the command's part -----------------------------------------------------------


def report(file: Path, request: SolRequest) -> None:
    """Prints the bounds of a problem file's module, as `ucc sol` does."""
    try:
        work = module_work(file, request.policy)
        if not work.fused.bytes:
            raise ModuleLost(f"{file}: the module gives its inputs back: there is no work to bound")
    except ModuleLost as problem:
        fail(Status.PROGRAM, str(problem), request.as_json)
    sol_bounds = bounds_of(
        work.fused, work.operators, request.device, ceilings=request.ceilings, regime=request.regime
    )
    present(file.stem, sol_bounds, request, module_row(work) if request.as_json else module_words(work))


def module_row(work: ModuleWork) -> dict[str, Any]:
    """Returns what a module's answer has beside its bounds: how the graph was exported, what is not counted,
    and where a kernel may do less than the bounds say."""
    return {
        "program": work.fused.label,
        "lane_policy": work.policy,
        "products": work.products,
        "operators": [part.label for part in work.operators],
        "may_do_less": list(work.conditions),
        "not_counted": dict(work.not_counted),
        "exported_by": work.method,
        "exporters_that_failed": list(work.attempts),
    }


def module_words(work: ModuleWork) -> dict[str, str]:
    """Returns the same for a person."""
    kinds = Counter(part.label.split(" ", 1)[0].removeprefix("aten.") for part in work.operators)
    most = ", ".join(f"{n} {op}" if n > 1 else op for op, n in kinds.most_common(_SHOWN))
    result = {
        "program": work.fused.label,
        "operators": f"{len(work.operators)}: {most}{', ..' if len(kinds) > _SHOWN else ''}",
        "lane": _POLICY_WORDS.get(work.policy, f"float32 products count in compute type {work.policy}"),
        "exported by": work.method,
    }
    if work.attempts:
        result["tried before"] = "; ".join(work.attempts)
    if work.not_counted:
        names = ", ".join(f"{op} ({n})" for op, n in work.not_counted.items())
        result["not counted"] = f"the operations of {names}; their bytes are"
    if work.conditions:
        result["may do less"] = "; ".join(work.conditions)
    return result


_SHOWN = 6

_POLICY_WORDS = {
    "pytorch": "float32 as PyTorch's defaults compute it: matrix products in f32, convolutions in tf32"
}

"""Verifies a built kernel from outside: the suite, the processes it runs in, and the tools on top.

`ucutlass.tasks.verify_cases` has what runs inside those processes.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from ucutlass import frontend, ir
from ucutlass.assembly import AnyBuilt, BuiltPipeline, kernels_of, versions_of
from ucutlass.backend import Built
from ucutlass.files import put
from ucutlass.kernels.families import granularity
from ucutlass.kernels.granularity import Granularity
from ucutlass.pipeline.names import outer_names
from ucutlass.pipeline.orders import Orders
from ucutlass.runtime import isolation, sanitize
from ucutlass.runtime.errors import MachineError
from ucutlass.runtime.evidence import Machine
from ucutlass.runtime.verify import pool
from ucutlass.runtime.verify.evidence import CaseResult, SuiteEvidence, evidence_of
from ucutlass.runtime.verify.guards import GUARD, POISONS
from ucutlass.runtime.verify.suite import LeftOut, Suite, VerifyCase, barely_reduced, reduced, suite
from ucutlass.tasks.built import artifact_of
from ucutlass.tasks.verify_cases import START_SECONDS, facts

_SANITIZED = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from ucutlass.tasks.verify_cases import sanitized; sanitized(sys.argv[1])"
)


class DeviceUnusable(MachineError):
    """A process that only looked at the GPU did not come back with an answer."""


@dataclass(frozen=True, slots=True)
class VerificationPlan:
    """What is to be run: the kernel as `ucutlass.tasks.verify_cases.facts`, its suite, and the cases for
    sanitizers: `reduced`, and `barely_reduced` for a kernel that refuses all of these. `device` is "cpu" for an
    emulated kernel."""

    kernel: Mapping[str, Any]
    granularity: Granularity
    suite: Suite
    reduced: tuple[VerifyCase, ...]
    barely_reduced: tuple[VerifyCase, ...] = ()
    device: str = "cuda"


def plan(
    checked: frontend.Checked,
    program: ir.Program,
    built: AnyBuilt,
    sizes: Mapping[str, int],
    *,
    seed: int,
    distributions: Sequence[str] = (),
    most: int = 64,
) -> VerificationPlan:
    """Returns the suite of a built program at `sizes`. Raises ShapeError where these do not fit the
    program."""
    match built:
        case Built():
            granularity = _kernel_granularity(built, tuple(program.dims))
            stages: list[tuple[str, str, tuple[int, ...]] | None] = [_launch(built)]
            orders: Orders = {}
        case BuiltPipeline():
            granularity = _pipeline_granularity(built)
            stages = [None if built_stage is None else _launch(built_stage) for built_stage in built.built]
            orders = built.plan.orders
    kernel = facts(checked, program.name, stages, orders)
    chosen: Any = tuple(distributions)
    cases = suite(program, sizes, granularity, seed=seed, distributions=chosen, most=most)
    few, fewer = (reduce(program, sizes, granularity, seed=seed) for reduce in (reduced, barely_reduced))
    return VerificationPlan(kernel, granularity, cases, few, fewer)


def _launch(built: Built) -> tuple[str, str, tuple[int, ...]]:
    return str(built.artifact.library), built.artifact.entry, built.planned.launch


def _kernel_granularity(built: Built, dims: Sequence[str]) -> Granularity:
    return granularity(built.planned.plan, dims, built.planned.launch)


def _pipeline_granularity(pipeline: BuiltPipeline) -> Granularity:
    """Returns every stage's granularity in the pipeline's names: the largest tile, depth and step of each."""
    tile: dict[str, int] = {}
    step: dict[str, int] = {}
    depth: dict[str, int] = {}
    for stage, built in zip(pipeline.plan.stages, pipeline.built, strict=True):
        if built is None or stage.step.kernel is None:
            continue
        granularity = _kernel_granularity(built, tuple(stage.step.kernel.dims))
        names = outer_names(pipeline.plan.sized, stage.step)
        for combined, own in ((tile, granularity.tile), (step, granularity.step), (depth, granularity.depth)):
            for dim, extent in own.items():
                if dim in names:
                    combined[names[dim]] = max(extent, combined.get(names[dim], 1))
    return Granularity(tile, step, depth)


def run(
    plan: VerificationPlan,
    *,
    case_seconds: float = 120.0,
    sanitize: bool = False,
    on_result: Callable[[CaseResult], None] = lambda _: None,
    call: isolation.IsolatedCall | None = None,
    side_by_side: int = 1,
) -> SuiteEvidence:
    """Judges every case on the first GPU that torch sees; a lost case costs itself alone. `call` and `side_by_side`
    as in `pool.run`."""
    shared = {"kernel": dict(plan.kernel), "tile": dict(plan.granularity.tile), "device": plan.device}
    results = pool.run(
        "ucutlass.tasks.verify_cases:judged",
        shared,
        plan.suite.cases,
        case_seconds=case_seconds,
        start_seconds=START_SECONDS,
        on_result=on_result,
        call=call,
        side_by_side=side_by_side,
    )
    return evidence_of(plan.suite, results, sanitizers(plan) if sanitize else ())


FreshProcess: TypeAlias = Callable[[], AbstractContextManager[isolation.WarmProcess]]
"""Gives a process that did nothing before, which ends with the block."""


def on_gpu(
    kernel: dict[str, Any],
    keys: list[str],
    tile: dict[str, int],
    suite: dict[str, Any],
    case_seconds: float,
    built_with: dict[str, str],
    fresh: FreshProcess,
    sanitized: Mapping[str, list[dict[str, Any]]] | None = None,
    side_by_side: int = 1,
) -> dict[str, Any]:
    """Returns a plan's suite on an engine's GPU: `machine`, and `evidence` as `SuiteEvidence.to_json` writes
    it. The first of the `fresh` processes says what machine it is and then judges cases, `side_by_side` with others,
    until it is lost with one; then the next does.

    `keys` are of the cache entries that hold the kernel's libraries, launch by launch: where this runs they
    may lie elsewhere. `sanitized` has the cases of the plan for sanitizers: then each tool runs, where the
    suite is right. Raises ArtifactGone, DeviceUnusable.
    """
    rest = iter(keys)
    stages = [None if s is None else {**s, "library": _library(next(rest))} for s in kernel["stages"]]
    left_out = tuple(LeftOut(**fields) for fields in suite["left_out"])
    entire = Suite(tuple(VerifyCase(**c) for c in suite["cases"]), left_out, suite["seed"])
    few, fewer = (
        tuple(VerifyCase(**case) for case in (sanitized or {}).get(name, ()))
        for name in ("reduced", "barely_reduced")
    )
    plan = VerificationPlan({**kernel, "stages": stages}, Granularity(tile, {}, {}), entire, few, fewer)
    with fresh() as first:
        unused = iter([first])

        def call(target: str, arguments: Mapping[str, Any], **limits: Any) -> isolation.CallOutcome:
            if (process := next(unused, None)) is not None:
                return process.call(target, arguments, **limits)
            with fresh() as process:
                return process.call(target, arguments, **limits)

        this_machine = _machine(built_with, first.call)
        evidence = run(plan, case_seconds=case_seconds, call=call, side_by_side=side_by_side)
    if sanitized is not None and evidence.ok:
        evidence = replace(evidence, sanitizers=sanitizers(plan))
    return {"machine": asdict(this_machine), "evidence": evidence.to_json()}


def gpu_arguments(
    plan: VerificationPlan,
    built: AnyBuilt,
    case_seconds: float,
    *,
    sanitized: bool = False,
    side_by_side: int = 1,
) -> dict[str, Any]:
    """Returns the arguments of `on_gpu`; `sanitized`: with the sanitizers."""
    cases = {"reduced": plan.reduced, "barely_reduced": plan.barely_reduced}
    few = {name: [asdict(case) for case in cases_] for name, cases_ in cases.items()}
    return ({"sanitized": few} if sanitized else {}) | {
        "kernel": dict(plan.kernel),
        "keys": [kernel.artifact.key for kernel in kernels_of(built)],
        "tile": dict(plan.granularity.tile),
        "suite": asdict(plan.suite),
        "case_seconds": case_seconds,
        "built_with": versions_of(built),
        "side_by_side": side_by_side,
    }


def _library(key: str) -> str:
    return str(artifact_of(key).library)


def sanitizers(
    plan: VerificationPlan, tools: Sequence[sanitize.SanitizerTool] = sanitize.TOOLS
) -> tuple[sanitize.SanitizerReport, ...]:
    """Returns every tool's report on one launch of each reduced case that the kernel does not refuse; where it
    refuses all of them, of the first that it takes of those that are barely reduced."""
    tool_path = sanitize.find()
    if tool_path is None:
        return tuple(sanitize.absent(tool) for tool in tools)
    path = json.dumps([str(Path(p).absolute()) for p in sys.path])
    settings = {
        "kernel": dict(plan.kernel),
        "tile": dict(plan.granularity.tile),
        "cases": [asdict(c) for c in plan.reduced],
        "otherwise": [asdict(c) for c in plan.barely_reduced],
        "device": plan.device,
    }

    def report(tool: sanitize.SanitizerTool, folder: Path) -> sanitize.SanitizerReport:
        request, receipt = folder / f"{tool}.request.json", folder / f"{tool}.receipt.json"
        # initcheck does not see what TMA stores: a copy of a result would read what nothing wrote.
        compares = tool != "initcheck"
        put(request, json.dumps({**settings, "compares": compares, "receipt": str(receipt)}))
        command = [sys.executable, "-I", "-c", _SANITIZED, str(request), path]
        return sanitize.check(tool, tool_path, command, receipt, len(plan.reduced), folder=folder)

    # Side by side: each is mostly a process that starts.
    most = max(1, min(len(tools), (os.cpu_count() or 1) // 2))
    with (
        tempfile.TemporaryDirectory(prefix="ucutlass-sanitize-") as name,
        ThreadPoolExecutor(most, thread_name_prefix="ucutlass-sanitize") as pool,
    ):
        return tuple(pool.map(report, tools, [Path(name)] * len(tools)))


def machine(built: AnyBuilt) -> Machine:
    """Returns the machine with its GPU, asked in a process of its own. Raises DeviceUnusable."""
    return _machine(versions_of(built))


def _machine(built_with: Mapping[str, str], call: isolation.IsolatedCall | None = None) -> Machine:
    outcome = (isolation.run if call is None else call)(
        "ucutlass.tasks.verify_cases:machine", {"built_with": dict(built_with)}, limit_seconds=START_SECONDS
    )
    match outcome:
        case isolation.Returned(dict(fields)):
            return Machine(**fields)
        case isolation.Raised(kind, message):
            words = f"{kind}: {message}"
        case _:
            words = (
                f"its process ended with {type(outcome).__name__} {outcome.output[-300:].strip()}".rstrip()
            )
    raise DeviceUnusable(f"the GPU cannot be used: {words}", "see `ucc doctor` and `nvidia-smi`")


def protocol(plan: VerificationPlan, case_seconds: float) -> dict[str, Any]:
    """Returns how it was verified, for the record."""
    return {
        "seed": plan.suite.seed,
        "reference": "float64 interpreter, component-wise derived bounds; pipelines stage by stage",
        "poisons": list(POISONS),
        "guard_bytes": GUARD,
        "tile": dict(plan.granularity.tile),
        "step": dict(plan.granularity.step),
        "case_seconds": case_seconds,
        "sanitized_extents": [dict(c.sizes) for c in plan.reduced],
    }

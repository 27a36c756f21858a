"""Verifying a built kernel from outside: the suite, the processes it runs in, the tools on top.

`ucutlass.tasks.verify_cases` has what runs inside those processes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ucutlass import frontend, ir
from ucutlass.assembly import AnyBuilt, BuiltPipeline, kernels_of, versions_of
from ucutlass.backend import Built
from ucutlass.files import put
from ucutlass.kernels.families import granularity
from ucutlass.kernels.granularity import Granularity
from ucutlass.pipeline.names import outer_names
from ucutlass.pipeline.orders import Orders
from ucutlass.runtime import isolation, sanitize
from ucutlass.runtime.build import kept
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.errors import MachineError
from ucutlass.runtime.evidence import Machine
from ucutlass.runtime.verify import pool
from ucutlass.runtime.verify.evidence import CaseResult, Evidence, evidence_of
from ucutlass.runtime.verify.guards import GUARD, POISONS
from ucutlass.runtime.verify.suite import Case, LeftOut, Suite, reduced, suite
from ucutlass.tasks.tune import ArtifactGone
from ucutlass.tasks.verify_cases import START_SECONDS, facts

_SANITIZED = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from ucutlass.tasks.verify_cases import sanitized; sanitized(sys.argv[1])"
)


class DeviceUnusable(MachineError):
    """A process that only looked at the GPU did not come back with an answer."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run: the kernel as `ucutlass.tasks.verify_cases.facts`, its suite and reduced cases.
    `device` is "cpu" for an emulated kernel."""

    kernel: Mapping[str, Any]
    grain: Granularity
    suite: Suite
    reduced: tuple[Case, ...]
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
) -> Plan:
    """The suite of a built program at `sizes`. Raises ShapeError where these do not fit the program."""
    match built:
        case Built():
            grain = _grain(built, tuple(program.dims))
            stages: list[tuple[str, str, tuple[int, ...]] | None] = [_launch(built)]
            orders: Orders = {}
        case BuiltPipeline():
            grain = _whole_grain(built)
            stages = [None if one is None else _launch(one) for one in built.built]
            orders = built.plan.orders
    kernel = facts(checked.source, checked.file, program.name, stages, orders)
    chosen: Any = tuple(distributions)
    cases = suite(program, sizes, grain, seed=seed, distributions=chosen, most=most)
    return Plan(kernel, grain, cases, reduced(program, sizes, grain, seed=seed))


def _launch(built: Built) -> tuple[str, str, tuple[int, ...]]:
    return str(built.artifact.library), built.artifact.entry, built.planned.launch


def _grain(built: Built, dims: Sequence[str]) -> Granularity:
    return granularity(built.planned.plan, dims, built.planned.launch)


def _whole_grain(made: BuiltPipeline) -> Granularity:
    """Every stage's grain in the pipeline's names: the largest tile, depth and step of each."""
    tile: dict[str, int] = {}
    step: dict[str, int] = {}
    depth: dict[str, int] = {}
    for stage, built in zip(made.plan.stages, made.built, strict=True):
        if built is None or stage.step.kernel is None:
            continue
        grain = _grain(built, tuple(stage.step.kernel.dims))
        names = outer_names(made.plan.sized, stage.step)
        for whole, own in ((tile, grain.tile), (step, grain.step), (depth, grain.depth)):
            for dim, extent in own.items():
                if dim in names:
                    whole[names[dim]] = max(extent, whole.get(names[dim], 1))
    return Granularity(tile, step, depth)


def run(
    plan: Plan,
    *,
    case_seconds: float = 120.0,
    sanitize: bool = False,
    on_result: Callable[[CaseResult], None] = lambda _: None,
) -> Evidence:
    """Judges every case on the first GPU that torch sees; a lost case costs itself alone."""
    shared = {"kernel": dict(plan.kernel), "tile": dict(plan.grain.tile), "device": plan.device}
    results = pool.run(
        "ucutlass.tasks.verify_cases:judged",
        shared,
        plan.suite.cases,
        case_seconds=case_seconds,
        start_seconds=START_SECONDS,
        on_result=on_result,
    )
    return evidence_of(plan.suite, results, sanitizers(plan) if sanitize else ())


def on_gpu(
    kernel: dict[str, Any],
    keys: list[str],
    tile: dict[str, int],
    suite: dict[str, Any],
    case_seconds: float,
    built_with: dict[str, str],
) -> dict[str, Any]:
    """A plan's suite on an engine's GPU: `machine`, and `evidence` as `Evidence.to_json` writes it.

    `keys` are of the cache entries that hold the kernel's libraries, launch by launch: where this runs they
    may lie elsewhere. Raises ArtifactGone, DeviceUnusable.
    """
    rest = iter(keys)
    stages = [None if s is None else {**s, "library": _library(next(rest))} for s in kernel["stages"]]
    left_out = tuple(LeftOut(**one) for one in suite["left_out"])
    whole = Suite(tuple(Case(**c) for c in suite["cases"]), left_out, suite["seed"])
    made = Plan({**kernel, "stages": stages}, Granularity(tile, {}, {}), whole, ())
    seen = _machine(built_with)
    return {"machine": asdict(seen), "evidence": run(made, case_seconds=case_seconds).to_json()}


def asked_of_gpu(plan: Plan, built: AnyBuilt, case_seconds: float) -> dict[str, Any]:
    """The arguments of `on_gpu`."""
    return {
        "kernel": dict(plan.kernel),
        "keys": [one.artifact.key for one in kernels_of(built)],
        "tile": dict(plan.grain.tile),
        "suite": asdict(plan.suite),
        "case_seconds": case_seconds,
        "built_with": versions_of(built),
    }


def _library(key: str) -> str:
    cache = Cache.from_switches()
    artifact = kept(key, cache)
    if artifact is None:
        words = f"{cache.root} has no entry {key[:16]}"
        raise ArtifactGone(words, "give the cache more room, and run it again")
    return str(artifact.library)


def sanitizers(plan: Plan, tools: Sequence[sanitize.Tool] = sanitize.TOOLS) -> tuple[sanitize.Report, ...]:
    """Every tool's report on one launch of each reduced case."""
    found = sanitize.find()
    if found is None:
        return tuple(sanitize.absent(tool) for tool in tools)
    with tempfile.TemporaryDirectory(prefix="ucutlass-sanitize-") as name:
        folder = Path(name)
        request, receipt = folder / "request.json", folder / "receipt.json"
        wanted = {
            "kernel": dict(plan.kernel),
            "tile": dict(plan.grain.tile),
            "cases": [asdict(c) for c in plan.reduced],
            "receipt": str(receipt),
            "device": plan.device,
        }
        put(request, json.dumps(wanted))
        path = json.dumps([str(Path(p).absolute()) for p in sys.path])
        command = [sys.executable, "-I", "-c", _SANITIZED, str(request), path]
        return tuple(
            sanitize.check(tool, found, command, receipt, len(plan.reduced), folder=folder) for tool in tools
        )


def machine(built: AnyBuilt) -> Machine:
    """The machine with its GPU, asked in a process of its own. Raises DeviceUnusable."""
    return _machine(versions_of(built))


def _machine(built_with: Mapping[str, str]) -> Machine:
    outcome = isolation.run(
        "ucutlass.tasks.verify_cases:machine", {"built_with": dict(built_with)}, limit_seconds=START_SECONDS
    )
    match outcome:
        case isolation.Returned(dict(made)):
            return Machine(**made)
        case isolation.Raised(kind, message):
            words = f"{kind}: {message}"
        case _:
            words = f"its process ended so: {type(outcome).__name__} {outcome.output[-300:].strip()}".rstrip()
    raise DeviceUnusable(f"the GPU cannot be used: {words}", "see `ucc doctor` and `nvidia-smi`")


def protocol(plan: Plan, case_seconds: float) -> dict[str, Any]:
    """How it was verified, for the record."""
    return {
        "seed": plan.suite.seed,
        "reference": "float64 interpreter, component-wise derived bounds; pipelines stage by stage",
        "poisons": list(POISONS),
        "guard_bytes": GUARD,
        "tile": dict(plan.grain.tile),
        "step": dict(plan.grain.step),
        "case_seconds": case_seconds,
        "sanitized_extents": [dict(c.sizes) for c in plan.reduced],
    }

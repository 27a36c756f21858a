"""This module prints what `ucc explain` and `ucc build` say of a pipeline."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ucutlass import frontend, ir
from ucutlass.assembly import BuiltPipeline, build_pipeline, step_signature
from ucutlass.cli import show
from ucutlass.cli.build_files import Export
from ucutlass.ir.hardware import Device
from ucutlass.ir.schedule import show as show_schedule
from ucutlass.pipeline.fusion import FusionCandidate, FusionChain, fusion_candidates, fusion_chains, operators
from ucutlass.pipeline.orders import BetterOrder, better_orders, type_text
from ucutlass.pipeline.planning import PipelinePlan, StagePlan, estimator, plan_pipeline
from ucutlass.pipeline.sized import Step
from ucutlass.pipeline.workspace import pointers, workspace_layout
from ucutlass.runtime.switches import BuildPath
from ucutlass.shapes import ShapeError
from ucutlass.sol import report
from ucutlass.sol.bounds import TimeBounds, bounds, metric_prefixed
from ucutlass.units import duration

# --- explain -------------------------------------------------------------------------


def explain(
    checked: frontend.Checked,
    program: ir.Pipeline,
    sizes: Sequence[int],
    arch: str,
    device: Device | None,
    as_json: bool,
) -> None:
    """Prints every stage with its kernel, bytes and stream, the workspace, and what each cut costs. Raises
    ShapeError and ProgramError."""
    plan = plan_pipeline(checked, program, sizes, arch, device)
    plan_cuts = fusion_candidates(plan, arch, device)
    rows = fusion_chains(plan, plan_cuts, arch, device)
    quicker = better_orders(plan.sized.pipeline, plan.sizes, estimator(checked, arch, device))
    on = next((s.chosen.planned.device for s in plan.stages if s.chosen is not None), None)
    fused_bounds, unknown = _bounds(program, plan, on)
    row: dict[str, Any] = {
        "pipeline": program.name,
        "arch": arch,
        "device": on.name if on else "",
        "sizes": dict(plan.sized.sizes),
        "stages": [stage_row(plan, i) for i in range(len(plan.stages))],
        "workspace": _workspace(plan),
        "cuts": [_cut_row(plan, c) for c in plan_cuts],
        "runs": [_run_row(plan, r) for r in rows],
        "orders": _order_rows(plan, quicker),
        "bound": None if fused_bounds is None else report.row(fused_bounds),
        "seconds": _seconds(plan),
    }
    if as_json:
        show.data(row, default=str)
        return
    show.table(("", ""), _head(row, fused_bounds, unknown, plan))
    show.table(
        ("stage", "one launch of", "schedule", "reads", "writes", "stream", "estimate"),
        [_stage_line(s) for s in row["stages"]],
    )
    show.table(("buffer", "bytes", "at"), _memory_lines(row["workspace"]))
    if plan_cuts:
        lines = [_cut_line(plan, c) for c in plan_cuts] + [_run_line(plan, r) for r in rows]
        show.table(("cut", "between", "moves", "one launch?", ""), lines)
    if row["orders"]:
        show.table(("buffer", "order", ""), [_order_line(order) for order in row["orders"]])


def stage_row(plan: PipelinePlan, number: int) -> dict[str, Any]:
    """Returns a stage as data: bytes are those of whole tensors, `after` the streams and stages it waits
    for."""
    stage, turn = plan.stages[number], plan.streams.slots[number]
    step, buffers = stage.step, plan.sized.buffers
    tensors = [name for name in step.reads if name in buffers]
    kernel = step.kernel
    return {
        "name": step.name,
        "torch": step.by_torch,
        **_kernel(stage),
        "operators": _operators(step),
        "sizes": {} if kernel is None else dict(zip(kernel.dims, step.sizes, strict=True)),
        "reads": {name: buffers[name].bytes for name in tensors},
        "writes": {name: buffers[name].bytes for name in step.stage.outputs},
        "stream": turn.stream,
        "waits": [plan.stages[w].step.name for w in turn.waits],
    }


def _operators(step: Step) -> list[str]:
    """Returns what a kernel computes; nothing of what torch does."""
    match step.stage.call:
        case ir.Kernel() as kernel:
            return list(operators(kernel))
        case ir.TorchCall(function):
            return [function] if step.problem is not None else []


def _kernel(stage: StagePlan) -> dict[str, Any]:
    if stage.chosen is None:
        return {"kernel": "torch", "schedule": "", "given": [], "seconds": None}
    planned, block = stage.chosen.planned, stage.chosen.block
    return {
        "given": [] if block is None else [choice.field for choice in block.choices],
        "kernel": type(planned.plan).__name__.removesuffix("Plan").lower(),
        "schedule": show_schedule(planned.request),
        "seconds": planned.seconds,
    }


def _workspace(plan: PipelinePlan) -> dict[str, Any]:
    """Returns the workspace without what kernels take for themselves, which they say once they are built."""
    layout = workspace_layout(plan.sized, plan.streams, [0] * len(plan.stages))
    return {
        "bytes": layout.bytes,
        "apart": layout.unshared_bytes,
        "offsets": {
            name: {"at": at, "bytes": plan.sized.buffers[name].bytes} for name, at in layout.offsets.items()
        },
    }


def _cut_row(plan: PipelinePlan, cut: FusionCandidate) -> dict[str, Any]:
    return {
        "buffer": cut.buffer,
        "between": [plan.stages[i].step.name for i in (cut.producer, cut.reader)],
        "bytes": cut.bytes,
        "one_launch": cut.possible,
        "why": cut.why,
        "saves_seconds": cut.saves,
    }


def _seconds(plan: PipelinePlan) -> float:
    """Returns the estimates of all kernels, one after the other."""
    return sum(s.chosen.planned.seconds for s in plan.stages if s.chosen is not None)


def _bounds(program: ir.Pipeline, plan: PipelinePlan, on: Device | None) -> tuple[TimeBounds | None, str]:
    """Returns the bound of all stages as one kernel, or why it is not known: of what deep modules mask, too many
    conditions. Raises ShapeError for other reasons."""
    if on is None:
        return None, ""
    try:
        return bounds(program, plan.sized.sizes, on), ""
    except ShapeError as problem:
        if problem.code != "UC0709":
            raise
        return None, str(problem)


def _head(
    row: Mapping[str, Any], fused_bounds: TimeBounds | None, unknown: str, plan: PipelinePlan
) -> list[tuple[str, str]]:
    extents = " ".join(f"{n}={v}" for n, v in row["sizes"].items())
    torch = plan.torch_stages
    lines = [
        ("pipeline", f"{row['pipeline']} {extents}"),
        ("planned for", f"{row['arch']}, {row['device']}"),
        ("stages", f"{len(plan.stages)} on {plan.streams.count} streams"),
        ("torch functions", ", ".join(torch) if torch else "none"),
    ]
    if fused_bounds is not None:
        lines.append(
            ("bound", f"{duration(fused_bounds.fused.seconds)} by {fused_bounds.limit}, were it one kernel")
        )
    elif unknown:
        lines.append(("bound", f"not known: {unknown}"))
    return [*lines, ("estimate", f"{duration(row['seconds'])} for its kernels one after the other")]


def _stage_line(stage: Mapping[str, Any]) -> Sequence[str]:
    waits = f", after {', '.join(stage['waits'])}" if stage["waits"] else ""
    return (
        stage["name"],
        "torch: not looked into" if stage["torch"] else " ".join(stage["operators"]) or "copy",
        _schedule_words(stage),
        metric_prefixed(sum(stage["reads"].values())),
        metric_prefixed(sum(stage["writes"].values())),
        f"{stage['stream']}{waits}",
        "" if stage["seconds"] is None else duration(stage["seconds"]),
    )


def _schedule_words(stage: Mapping[str, Any]) -> str:
    """Returns the kernel, its schedule, and which fields the text gives."""
    if not stage["schedule"]:
        return str(stage["kernel"])
    given_fields = f" (given: {' '.join(stage['given'])})" if stage["given"] else ""
    return f"{stage['kernel']}: {stage['schedule']}{given_fields}"


def _memory_lines(workspace: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    lines = [
        (name, metric_prefixed(buffer["bytes"]), str(buffer["at"]))
        for name, buffer in workspace["offsets"].items()
    ]
    apart = f"{metric_prefixed(workspace['apart'])} side by side; kernels' own workspaces come on top"
    return [*lines, ("workspace", metric_prefixed(workspace["bytes"]), apart)]


def _cut_line(plan: PipelinePlan, cut: FusionCandidate) -> Sequence[str]:
    first, second = (plan.stages[i].step.name for i in (cut.producer, cut.reader))
    gain = "" if cut.saves is None else f"; about {duration(cut.saves)}"
    return (
        cut.buffer,
        f"{first} and {second}",
        metric_prefixed(cut.bytes),
        "yes" if cut.possible else "no",
        cut.why + (gain if cut.possible else ""),
    )


def _run_row(plan: PipelinePlan, run: FusionChain) -> dict[str, Any]:
    return {
        "stages": [plan.stages[i].step.name for i in run.stages],
        "buffers": list(run.buffers),
        "bytes": run.bytes,
        "saves_seconds": run.saves,
    }


def _run_line(plan: PipelinePlan, run: FusionChain) -> Sequence[str]:
    names = ", ".join(plan.stages[i].step.name for i in run.stages)
    gain = f"all three are one kernel where neither is stored; about {duration(run.saves)}"
    return " and ".join(run.buffers), names, metric_prefixed(run.bytes), "yes", gain


def _order_rows(plan: PipelinePlan, quicker: Sequence[BetterOrder]) -> list[dict[str, Any]]:
    """Orders that the compiler chose, and ones that it would choose where the text has another."""
    buffers = plan.sized.buffers
    left_out = [name for name in plan.orders if name in buffers]
    rows = [{"buffer": n, "order": type_text(buffers[n].type), "chosen": True} for n in left_out]
    rows += [
        {"buffer": b.buffer, "order": type_text(b.type), "chosen": False, "saves_seconds": b.saves}
        for b in quicker
        if b.buffer not in plan.orders
    ]
    return rows


def _order_line(row: Mapping[str, Any]) -> Sequence[str]:
    if row["chosen"]:
        return row["buffer"], row["order"], "chosen: the text leaves it out"
    saves = duration(row["saves_seconds"])
    return row["buffer"], row["order"], f"would save about {saves}; without axes the compiler chooses"


# --- build ---------------------------------------------------------------------------


def build(
    checked: frontend.Checked,
    program: ir.Pipeline,
    shapes: Sequence[tuple[int, ...]],
    arch: str,
    build_path: BuildPath | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Builds every stage's kernel for each shape and says where it lies; with `output` what C++ needs.
    Raises ShapeError, ProgramError and a build's failures."""
    exported = None if output is None else Export(output)
    rows = []
    for sizes in shapes:
        with show.building(program.name) as progress:
            built = build_pipeline(checked, program, sizes, arch, build_path=build_path, on_progress=progress)
        rows.append(_built_row(program, built, exported))
    if exported is not None:
        exported.write()
    if as_json:
        show.data(rows if len(rows) > 1 else rows[0])
        return
    for row in rows:
        extents = " ".join(f"{n}={v}" for n, v in row["sizes"].items())
        head = [("pipeline", f"{row['kernel']} {extents}")]
        if "series" in row:
            head.append(("series", row["series"]))
        show.table(("", ""), head)
        show.table(
            ("stage", "entry", "library", "schedule"),
            [
                (s["name"], s["entry"], s["library"], s["schedule"])
                if "entry" in s
                else (s["name"], "torch", "", "")
                for s in row["stages"]
            ],
        )


def _built_row(program: ir.Pipeline, built: BuiltPipeline, exported: Export | None) -> dict[str, Any]:
    stages = []
    for number, (stage, kernel) in enumerate(zip(built.plan.stages, built.built, strict=True)):
        if kernel is None:
            stages.append({"name": stage.step.name, "torch": True})
            continue
        files = {"library": kernel.artifact.library}
        if exported is not None:
            files = exported.add(step_signature(built.plan.sized, stage.step), [kernel])
        stages.append(
            {
                "name": stage.step.name,
                "entry": kernel.source.entry,
                "seconds": kernel.artifact.seconds,
                "schedule": show_schedule(kernel.planned.request),
                "extents": list(stage.step.sizes),
                "knobs": list(kernel.planned.launch),
                "tensors": list(pointers(stage.step)),
                "stream": built.plan.streams.slots[number].stream,
                "waits": [built.plan.stages[w].step.name for w in built.plan.streams.slots[number].waits],
                **{kind: str(path) for kind, path in files.items()},
            }
        )
    row: dict[str, Any] = {
        "kernel": program.name,
        "sizes": dict(built.plan.sized.sizes),
        "stages": stages,
        "workspace": _workspace(built.plan),
    }
    if exported is not None:
        series = exported.folder / "series.json"
        row["series"] = str(series)
        exported.contents[series] = json.dumps(row, indent=2) + "\n"
    return row

"""Collects what `ucc explain` shows of a planned kernel of any family, as data and as rows of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

from ucutlass.ir.schedule import show
from ucutlass.kernels.families import family_of_plan, resources
from ucutlass.kernels.planned import Estimate, Note, Planned, Resources
from ucutlass.sol import report
from ucutlass.sol.bounds import TimeBounds
from ucutlass.units import duration


@dataclass(frozen=True, slots=True)
class Explanation:
    """Numbers behind a plan. Bytes, seconds, registers of 32 bits; fractions from 0 to 1.

    `variant` is the kernel of the family, `plan` has the fields of its schedule as the emitter reads them.
    `bound_share` is the fused bound over the estimate. `origin` says
    what chose the schedule, "" where the program fixed it.
    """

    arch: str
    device: str
    family: str
    variant: str
    schedule: str
    plan: Mapping[str, Any]
    origin: str
    resources: Resources
    estimate: Estimate
    bound: TimeBounds
    bound_share: float
    notes: tuple[Note, ...]


def explain(planned: Planned, bound: TimeBounds) -> Explanation:
    """Returns the numbers and reasons of a plan, for the extents it was made for. `bound` is the program's on
    the plan's device (`ucutlass.sol.bounds`)."""
    launch_resources = resources(planned)
    return Explanation(
        arch=planned.plan.arch,
        device=planned.device.name,
        family=family_of_plan(planned.plan).name,
        variant=launch_resources.variant,
        schedule=show(planned.request),
        plan=asdict(cast(Any, planned.plan.schedule)),
        origin=planned.origin,
        resources=launch_resources,
        estimate=planned.estimate,
        bound=bound,
        bound_share=bound.fused.seconds / planned.seconds,
        notes=planned.notes,
    )


def rows(e: Explanation) -> list[tuple[str, str]]:
    """Returns labels and words, the same labels for every family."""
    r, b = e.resources, e.bound
    useful = f"; {e.estimate.padding:.0%} of the multiplications useful" if r.tile else ""
    lines = [
        ("family", f"{e.family.replace('_', ' ')}, {e.variant}"),
        ("schedule", f"{e.arch} {{ {e.schedule} }}"),
        ("chosen", e.origin or "by the program"),
        ("planned for", e.device),
        ("problem", f"{_extents(r)}, compute type {b.compute_type}"),
        (
            "tiles",
            f"{e.estimate.tiles} on {e.estimate.slots} slots: {e.estimate.waves:.2f} waves, "
            f"{e.estimate.quantisation:.0%} busy{useful}",
        ),
        ("threads", f"{r.threads} of a block{_cluster(r)}"),
        ("steps", _steps(r)),
        ("pipeline", "none" if r.stages is None else f"{r.stages} stages of {r.most_stages} that fit"),
        ("accumulators", f"{r.accumulators} registers a thread"),
        ("shared memory", _memory(r)),
        ("epilogue", ", ".join(r.routes) or "no tensors"),
        ("work", report.work_text(b)),
        ("bound", f"{duration(b.fused.seconds)} by {b.limit}; {duration(b.realistic.seconds)} for this plan"),
        (
            "estimate",
            f"{duration(e.estimate.seconds)}, {e.bound_share:.0%} of the bound; about "
            f"{e.estimate.dram_bytes / 1e6:.4g} MB from memory",
        ),
    ]
    return lines + [(note.field or "kernel", f"{note.value}: {note.reason}") for note in e.notes]


def to_json(e: Explanation) -> dict[str, Any]:
    """Returns plain JSON values of everything that is shown."""
    resource_values = asdict(e.resources)
    resource_values["memory"] = resource_values["memory"] | {"total": e.resources.shared_memory}
    flat = {
        name: getattr(e, name)
        for name in ("arch", "device", "family", "variant", "schedule", "plan", "origin")
    }
    return (
        flat
        | asdict(e.estimate)
        | resource_values
        | {
            "bound": report.row(e.bound),
            "bound_share": e.bound_share,
            "notes": [asdict(note) for note in e.notes],
        }
    )


def _extents(r: Resources) -> str:
    return "  ".join(f"{name} {extent}" for name, extent in r.extents.items() if extent)


def _cluster(r: Resources) -> str:
    return "" if r.cluster == (1, 1) else f", {r.cluster[0]}x{r.cluster[1]} blocks of a cluster"


def _steps(r: Resources) -> str:
    of = f"{r.steps} of {r.loop}" if r.loop else str(r.steps)
    return of if r.parts == 1 else f"{of}, in {r.parts} parts"


def _memory(r: Resources) -> str:
    parts = ", ".join(f"{name} {size}" for name, size in r.memory.items() if size)
    return f"{r.shared_memory} of {r.memory_limit} bytes" + (f": {parts}" if parts else "")

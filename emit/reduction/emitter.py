"""Kernels of the reduction family: element-wise work, reductions and scans over columns, windows and gathers.

The template is `reduction/reduction.cu.j2`, its library `reduction/library.j2`; `ucutlass.emit.reduction.body` writes the
kernel's body.
"""

from __future__ import annotations

from ucutlass.emit import text
from ucutlass.emit.cuda_types import types_of
from ucutlass.emit.definitions import require_definitions
from ucutlass.emit.functions import INTEGER, definitions
from ucutlass.emit.reduction.body import Body
from ucutlass.emit.reduction.checks import aligned, filled, multiples
from ucutlass.emit.reduction.indexing import IndexText
from ucutlass.emit.reduction.loads import Loader
from ucutlass.emit.reduction.lookback import LookBackText
from ucutlass.emit.reduction.meeting import SLOT, counters, workspace
from ucutlass.emit.reduction.reductions import paired
from ucutlass.emit.reduction.ring import RingText
from ucutlass.emit.reduction.splits import Splits
from ucutlass.emit.reduction.statements import indented
from ucutlass.emit.reduction.writer import Fields, Writer
from ucutlass.emit.tolerance import coarse, tolerant
from ucutlass.ir.elements import BF16, TF32
from ucutlass.kernels.arithmetic import Round
from ucutlass.kernels.reduction.plan import (
    Load,
    ReductionOutput,
    ReductionPlan,
    RowReduce,
    RowScan,
    RowWindow,
    arguments,
)
from ucutlass.kernels.reduction.plan_applied import applied_values
from ucutlass.kernels.reduction.smem import TILE

_INCLUDES = ("<cmath>", "<cstdint>", "<cstring>", "<limits>", "<type_traits>", "<cuda_runtime.h>")


def render(plan: ReductionPlan) -> str:
    """The code of a plan, for `ucutlass.emit.text.finish`."""
    kernel = _body_of(plan)
    statements = kernel.lines()
    require_definitions(statements)
    body = "\n".join(indented(statements))
    return text.render(
        "reduction/reduction.cu.j2",
        body=body,
        **_library(kernel, body),
        **_tile(plan),
        **_launch(kernel),
        **_shared_memory(kernel),
        **_entry(kernel),
    )


def _body_of(plan: ReductionPlan) -> Body:
    problem = plan.problem
    exact = [o.value for o in problem.outputs if not coarse(o.elem)]
    every, loads = range(len(problem.instructions)), problem.loads
    fast = tolerant(problem.instructions, every, exact, lambda instruction: arguments(instruction, loads))
    applied = applied_values(problem) if plan.schedule.applied else {}
    writer = Writer(plan, Fields(), {}, fast, applied=applied)
    loader = Loader(plan, writer)
    return Body(plan, writer, loader, IndexText(plan, writer, loader))


# --- the template's variables -----------------------------------------------------


def _library(kernel: Body, body: str) -> dict[str, object]:
    """Headers, element types, and what of the library the body uses."""
    problem, schedule = kernel.problem, kernel.plan.schedule
    every: list[Load | ReductionOutput] = [*problem.loads, *problem.outputs]
    elems = {x.elem for x in every} | {i.elem for i in problem.instructions if isinstance(i, Round)}
    types = types_of(elems)
    atomic = ("<atomic>",) if schedule.stages > 1 else ()
    integers = [INTEGER] if "ucc_integer<" in body else []
    return {
        "includes": (*atomic, *_INCLUDES, *dict.fromkeys(t.header for t in types)),
        "types": types,
        "bf16": BF16 in elems,
        "tf32": TF32 in elems,
        "functions": "\n".join([*integers, definitions(tuple(kernel.writer.uses))]),
        "reductions": any(isinstance(i, RowReduce | RowWindow) for i in problem.instructions),
        "scans": any(isinstance(i, RowScan) for i in problem.instructions),
        "rounds": "ucc_round<" in body,
        "retained": "_retained" in body,
        "between": "load_between" in body,
        "lies_between": "read_between" in body,
        "extends": "extend(" in body,
        "pairs": paired(problem) if "largest_of(" in body else [],
    }


def _tile(plan: ReductionPlan) -> dict[str, object]:
    """What a thread, a block and a cluster have of the rows and columns."""
    problem, s = plan.problem, plan.schedule
    return {
        "columns": bool(problem.columns),
        "across": problem.across,
        "vector": s.vector,
        "threads": s.threads,
        "rows": s.rows,
        "items": s.items,
        "rows_per_block": 1 if s.transposed else s.rows * (1 if problem.columns else s.items),
        "transposes": bool(s.transposed),
        "tile": TILE,
        "straddle": s.straddle,
        "full": filled(problem, s),
        "whole": any(o.whole for o in problem.outputs),
    }


def _launch(kernel: Body) -> dict[str, object]:
    """The grid, and how its blocks meet."""
    plan, s = kernel.plan, kernel.plan.schedule
    look_back = LookBackText(plan)
    sides = (s.threads, s.rows) if kernel.problem.across else (s.rows, s.threads)
    return {
        "launches": kernel.launches,
        "merges": kernel.merges(),
        "splits": s.splits,
        "block": ", ".join(map(str, sides)),
        "block_threads": s.threads * s.rows,
        "blocks_per_sm": _blocks_per_sm(kernel, look_back),
        "cluster": s.cluster,
        "overlaps": plan.overlaps,
        "grid": s.grid,
        "slot": SLOT,
        "counters": counters(plan),
        "look_back": s.look_back,
        "radix": look_back.radix,
        "workspace": look_back.workspace()
        if s.look_back
        else workspace(plan)
        if s.grid > 1
        else Splits(plan).workspace(),
    }


def _blocks_per_sm(kernel: Body, look_back: LookBackText) -> int:
    """The blocks for which an SM is to have registers, 0 where that is the compiler's to say."""
    schedule, problem = kernel.plan.schedule, kernel.problem
    if schedule.look_back:
        fetched = kernel.writer.fetched(o.value for o in problem.outputs)
        return look_back.blocks(problem.loads[k] for k in fetched)
    return schedule.blocks if schedule.blocks > 1 or schedule.keep == "shared" else 0


def _shared_memory(kernel: Body) -> dict[str, object]:
    """The ring of lines that bulk copies fill, and what stays for all rows."""
    schedule = kernel.plan.schedule
    ring = RingText(kernel.plan, kernel.writer, kernel.index)
    return {
        "stages": schedule.stages,
        "ring": ring.declared() if schedule.stages > 1 else [],
        "resident": ring.declared_resident(),
        "held": schedule.keep == "shared",
    }


def _entry(kernel: Body) -> dict[str, object]:
    """The parameters, and what the host computes and checks of a call."""
    problem, fields = kernel.problem, kernel.writer.fields
    return {
        "dims": problem.dims,
        "fields": [{"type": cpp, "name": name, "note": note} for name, (cpp, note) in fields.types.items()],
        "floors": any("floor_" in line for line in fields.host),
        "host": fields.host,
        "aligned": aligned(problem, kernel.plan.schedule),
        "multiples": multiples(problem, kernel.plan.schedule),
    }

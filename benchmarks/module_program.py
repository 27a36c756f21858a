"""Makes a problem file's program without a GPU, in a process of its own: imported and planned.

Everything goes in and comes out as JSON values, for `ucutlass.runtime.isolation`. The file's code runs here.
"""

from __future__ import annotations

import json
import math
import re
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from ucutlass import ir
    from ucutlass.frontend import Checked
    from ucutlass.ir.hardware import Device

Row: TypeAlias = dict[str, Any]
Lane: TypeAlias = Literal["f32", "tf32"]

CUDNN = ("conv", "gru", "lstm", "rnn_")
"""In the names of operators that compute in TF32 by PyTorch's default."""


def prepared(file: str, lane: Lane, arch: str, device: str | None, payload: str, note: str) -> Row:
    """Returns the row of a problem so far: `status` where it ends here, else what the program is. The program,
    its plans and their sources are written to the file `payload`, for `benchmarks.kernel_builds`. Each step's
    facts are added to the lines of the file `note` too, for a process that does not return."""
    from benchmarks.harness import append
    from ucutlass.files import put
    from ucutlass.ir.hardware import DEVICES

    row: Row = {}

    def tell(**facts: Any) -> None:
        row.update(facts)
        append(Path(note), facts)

    tell(stage="import")
    start = time.monotonic()
    answer, mode = _imported(file)
    tell(import_seconds=_since(start), mode=mode)
    if "text" not in answer:
        tell(status="not imported", why=_refusal(answer))
        return row
    tell(
        stages=answer["stages"],
        torch_stages=answer["torch_stages"],
        convolves=any(word in fate["operator"] for fate in answer["report"] for word in CUDNN),
    )
    checked, program, in_lane = program_of(answer["text"], answer["name"], lane)
    tell(stage="plan", lane=in_lane, held_bytes=bytes_of(program))
    start = time.monotonic()
    try:
        plans = planned(checked, program, arch, None if device is None else DEVICES[device])
    except Exception as refused:  # the row says in which words, whatever it was
        tell(status="not planned", why=f"{type(refused).__name__}: {refused}"[:600])
        return row
    tell(
        plan_seconds=_since(start),
        kernels=sum(kernel is not None for kernel in plans["kernels"]),
        distinct=len({kernel["source"]["entry"] for kernel in plans["kernels"] if kernel is not None}),
        stage="build",
    )
    about = {"name": answer["name"], "inputs": answer["inputs"], "text": checked.source}
    put(Path(payload), json.dumps(about | plans))
    return row


def planned(checked: Checked, program: ir.Program, arch: str, device: Device | None) -> Row:
    """Returns the program for `ucutlass.handoff.checked_of`, and what `ucutlass.tasks.built` takes of it, with
    each kernel's plan and source in place of its artefact's key. Raises ProgramError, NotServed."""
    from ucutlass import ir
    from ucutlass.assembly import step_source
    from ucutlass.backend import source_of
    from ucutlass.frontend import plan_kernel
    from ucutlass.handoff import plan_payload, program_payload
    from ucutlass.pipeline.planning import plan_pipeline
    from ucutlass.shapes import complete

    sizes = complete(program, {})
    if isinstance(program, ir.Pipeline):
        plan = plan_pipeline(checked, program, sizes, arch, device)
        stages = [
            (partial(step_source, checked, plan.sized, stage.step), stage.chosen) for stage in plan.stages
        ]
        orders = {buffer: list(order) for buffer, order in plan.orders.items()}
        sizes = plan.sizes
    else:
        chosen = plan_kernel(checked, program, sizes, arch, device)
        stages, orders = [(partial(source_of, checked, program), chosen)], {}
    kernels = [
        None
        if chosen is None
        else {"plan": plan_payload(chosen.planned), "source": asdict(source(chosen.planned))}
        for source, chosen in stages
    ]
    return {"program": program_payload(checked), "sizes": list(sizes), "orders": orders, "kernels": kernels}


def _since(start: float) -> float:
    return round(time.monotonic() - start, 2)


def _imported(file: str) -> tuple[Row, str]:
    """Returns the import in the mode that the file constructs, or in eval mode where that one draws random
    numbers."""
    from ucutlass.tasks.import_module import program

    name = re.sub(r"\W+", "_", Path(file).stem.split("_", 1)[-1]).strip("_").lower()
    answer = program(file, name, "constructed")
    if "random" in str(answer.get("refused", {}).get("why", "")):
        return program(file, name, "eval"), "eval"
    return answer, "constructed"


def _refusal(answer: Row) -> str:
    refused = answer.get("refused") or answer.get("unusable") or {}
    words = (refused.get(key, "") for key in ("operator", "code", "why"))
    return " ".join(filter(None, words))[:600]


def bytes_of(program: ir.Program) -> int:
    """Returns the bytes of a program's arguments, whose extents are all known."""
    from ucutlass import ir
    from ucutlass.reference.binding import shape_of
    from ucutlass.shapes import complete

    sizes = dict(zip(program.dims, complete(program, {}), strict=True))
    kinds = (p.type for p in program.params)
    return sum(
        math.prod(shape_of(kind, sizes)) * kind.elem.bits // 8
        for kind in kinds
        if isinstance(kind, ir.TensorType)
    )


# --- the lane --------------------------------------------------------------------


def program_of(text: str, name: str, lane: Lane) -> tuple[Checked, ir.Program, Lane]:
    """Returns the checked program, and the lane that it is in: a program that multiplies in another type than
    f32, or may not in TF32, stays as it is."""
    from ucutlass import frontend
    from ucutlass.agent.compute_type_casts import in_compute_type

    rounded = in_compute_type(text, name, lane)
    checked = frontend.read_text(rounded, f"{name}.ucu")
    return checked, frontend.program(checked, name), "f32" if rounded == text else lane

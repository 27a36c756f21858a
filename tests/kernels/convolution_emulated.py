"""A convolution's emitted kernel, run on the host behind the emulator and judged as on a GPU."""

from __future__ import annotations

import ctypes
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.emit import emulator
from tests.emit.harness import HOST_SHIM
from ucutlass import frontend
from ucutlass.emit import emit
from ucutlass.kernels.convolution.plan import ConvolutionPlan, DirectSchedule
from ucutlass.kernels.planned import Planned
from ucutlass.reference import expect
from ucutlass.runtime import verify
from ucutlass.runtime.inputs import generate
from ucutlass.shapes import complete


def plan(text: str, given: Mapping[str, int], arch: str = "sm80") -> Planned:
    """The plan for these extents; sm80's kernels are those that the emulator runs."""
    checked = frontend.read_text(text)
    program = frontend.kernel(checked)
    return frontend.plan_kernel(checked, program, complete(program, given), arch).planned


def direct_schedule(
    text: str, element: str, schedule: str, sizes: Mapping[str, int]
) -> tuple[str, DirectSchedule]:
    """The text with its element type E and its SCHEDULE filled in, and the schedule of the direct kernel that it gets on
    sm90a."""
    written = text.replace("E[", f"{element}[").replace("SCHEDULE", schedule)
    chosen = plan(written, sizes, "sm90a").plan
    assert isinstance(chosen, ConvolutionPlan) and isinstance(chosen.schedule, DirectSchedule)
    return written, chosen.schedule


def judge(
    text: str,
    given: Mapping[str, int],
    seed: int = 0,
    arch: str = "sm80",
    change: Callable[[Planned], Planned] = lambda planned: planned,
) -> list[str]:
    """What is wrong with the kernel of a program for these extents, planned and then changed."""
    checked = frontend.read_text(text)
    program = frontend.kernel(checked)
    planned = change(plan(text, given, arch))
    source = emit(planned.plan, "")
    folder = Path(tempfile.mkdtemp(prefix="convolution-"))
    try:
        entry = emulator.build(replace(source, text=f"#include <cmath>\n{HOST_SHIM}{source.text}"), folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)

    def launch(arguments: Sequence[Any], outputs: Sequence[Tensor]) -> None:
        tensors = [t for t in (*arguments, *outputs) if isinstance(t, Tensor)]
        scalars = [float(a) for a in arguments if not isinstance(a, Tensor)]
        code = call(entry, tensors, planned.sizes, scalars, planned.launch)
        if code:
            raise RuntimeError(f"the entry returned {code}")

    wrong = []
    for distribution in ("integer", "normal"):
        arguments = generate(program, dict(given), distribution, seed=seed)
        verdict = verify.check(program, launch, arguments, expected=expect(program, arguments))
        if not verdict.ok:
            wrong.append(f"{distribution}: {verdict}")
    return wrong


def call(
    entry: Any,
    tensors: Sequence[Tensor],
    sizes: Sequence[int],
    scalars: Sequence[float],
    launch_parameters: Sequence[int],
) -> int:
    """Asks for the workspace, fills it with NaN, and launches."""
    pointers = (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))
    extents = (ctypes.c_int64 * len(sizes))(*sizes)
    numbers = (ctypes.c_double * max(1, len(scalars)))(*scalars)
    chosen = (ctypes.c_int64 * len(launch_parameters))(*launch_parameters)
    size = ctypes.c_uint64(0)
    code = int(entry(pointers, extents, numbers, chosen, None, ctypes.byref(size), None))
    if code:
        return code
    workspace = torch.full((size.value + 256,), 0xFF, dtype=torch.uint8)
    start = (workspace.data_ptr() + 255) // 256 * 256
    return int(entry(pointers, extents, numbers, chosen, ctypes.c_void_p(start), None, None))

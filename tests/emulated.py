"""What an emitted kernel computes on the host: its CUDA file compiled by g++ behind the emulator of tests/emit,
and judged as `ucc run` would on a GPU. For `tests.pairs.pairs` and the tests of kernels."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias
from unittest import mock

import torch
from torch import Tensor

from tests import isolated
from tests.emit import emulator, hopper, plan_reference
from tests.emit.guarded import guarded
from tests.emit.harness import HOST_SHIM
from tests.random_programs import random_program
from tests.soundness.lowering import distinct_scalars
from ucutlass import frontend, ir
from ucutlass.backend import source_of
from ucutlass.diagnostics import ProgramError
from ucutlass.ir.hardware import ARCHES
from ucutlass.ir.schedule import PartialSchedule, Warps, show
from ucutlass.kernels.gemm import planner
from ucutlass.kernels.gemm.plan import LaunchParameters, Sm90Schedule
from ucutlass.kernels.gemm.problem import gemm_problem
from ucutlass.kernels.grouped_gemm.plan import WgmmaSchedule
from ucutlass.kernels.planned import Planned
from ucutlass.kernels.reduction import planner as reduction_planner
from ucutlass.reference import expect
from ucutlass.runtime import isolation, verify
from ucutlass.runtime.inputs import Distribution, generate
from ucutlass.shapes import complete

EMULABLE: tuple[Warps, ...] = ("multistage", "gemv")
DISTRIBUTIONS: tuple[Distribution, ...] = ("integer", "normal")
LIMIT_SECONDS = 600.0
EXAMPLES = Path(__file__).parent.parent / "examples"
ARCH = "sm90a"

Status: TypeAlias = Literal["right", "wrong", "undecided", "not emulable", "rejected"]


@dataclass(frozen=True, slots=True)
class Job:
    """A kernel of a text with extents. `warps` overrides its schedule where it is given; `shifted`
    operands begin one element past a multiple of 16 bytes."""

    name: str
    text: str
    kernel: str
    sizes: dict[str, int]
    warps: Warps | None
    seed: int
    shifted: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    job: Job
    status: Status
    detail: str = ""
    schedule: str = ""


# --- jobs -------------------------------------------------------------------------


def random_jobs(first: int, count: int) -> Iterator[Job]:
    """Random programs whose schedule is legal and of an emulable family."""
    seed = first
    while count:
        program = random_program(seed, EMULABLE, small=True)
        job = Job(f"seed {seed}", program.text, "k", program.sizes, None, seed, seed % 4 == 3)
        seed += 1
        try:
            plan(job)
        except ProgramError:
            continue
        count -= 1
        yield job


def plan(job: Job) -> tuple[frontend.Checked, ir.Kernel, Planned]:
    """Raises ProgramError where no family or no legal schedule serves the job."""
    checked = frontend.read_text(job.text)
    kernel = frontend.kernel(checked, job.kernel)
    sizes = complete(kernel, job.sizes)
    if job.warps is None:
        tensors = sum(isinstance(p.type, ir.TensorType) for p in kernel.params)
        aligned = [not job.shifted] * tensors + [True] * len(kernel.results)
        with as_large():
            planned = frontend.plan_kernel(checked, kernel, sizes, ARCH, aligned=aligned).planned
        return checked, kernel, planned
    what = gemm_problem(frontend.pattern(checked, kernel), sizes)
    answer = planner.plan(what, sizes, ARCHES[ARCH], None, PartialSchedule(warps=job.warps))
    if isinstance(answer, Planned):
        return checked, kernel, answer
    raise ShownViolation("; ".join(f"{v.code} {v.message}" for v in answer))


def as_large() -> AbstractContextManager[object]:
    """Plans element-wise kernels of few elements as those of many, for which they stand."""
    return mock.patch.multiple(reduction_planner, LEAST_THREADS=0, LEAST_STRADDLED=0)


class ShownViolation(Exception):
    """A forced schedule breaks these rules."""


# --- one job, in a process of its own -----------------------------------------------


def emulate_here(job: dict[str, Any]) -> dict[str, str]:
    """Compiles and judges one job; for `isolate`, because an emulated kernel ends its process
    where it does what a GPU would not survive."""
    torch.set_num_threads(1)
    task = Job(**job)
    try:
        checked, kernel, planned = plan(task)
    except (ProgramError, ShownViolation) as refused:
        return {"status": "rejected", "detail": str(refused)[:400]}
    shown = show(planned.request)
    if isinstance(planned.plan.schedule, Sm90Schedule):
        return {"status": "not emulable", "detail": "a kernel of wgmma by CUTLASS", "schedule": shown}
    folder = Path(tempfile.mkdtemp(prefix="emulated-"))
    source = source_of(checked, kernel, planned)
    try:
        if isinstance(planned.plan.schedule, WgmmaSchedule):
            entry = hopper.build(source, folder)
        else:
            shim = f"#include <cmath>\n{HOST_SHIM}{source.text}"
            entry = emulator.build(replace(source, text=shim), folder)
    except (AssertionError, hopper.NotEmulable) as error:
        return {"status": "not emulable", "detail": str(error)[-1500:], "schedule": shown}
    finally:
        shutil.rmtree(folder)
    verdicts = {d: _judge(entry, kernel, planned, task, d) for d in DISTRIBUTIONS}
    detail = "\n".join(f"{d}: {v.state}: {v}" for d, v in verdicts.items() if not v.ok)
    return {"status": verify.worst(v.state for v in verdicts.values()), "detail": detail, "schedule": shown}


def _judge(
    entry: Any, kernel: ir.Kernel, planned: Planned, job: Job, distribution: Distribution
) -> verify.LaunchVerdict:
    arguments = generate(kernel, job.sizes, distribution, seed=job.seed, scalars=distinct_scalars(kernel))
    if job.shifted:
        arguments = [_shifted(a) if isinstance(a, Tensor) else a for a in arguments]
    arguments = [guarded(a) if isinstance(a, Tensor) else a for a in arguments]
    scalars = [float(a) for a in arguments if not isinstance(a, Tensor)]
    launch_parameters = LaunchParameters(*planned.launch)

    def launch(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> None:
        addresses = [t.data_ptr() for t in (*inputs, *outputs) if isinstance(t, Tensor)]
        code = plan_reference.call(entry, addresses, planned.sizes, scalars, launch_parameters, "cpu", 0)
        if code:
            raise RuntimeError(f"the entry returned {code}")

    return verify.check(kernel, launch, arguments, expected=expect(kernel, arguments))


def _shifted(tensor: Tensor) -> Tensor:
    room = torch.empty(tensor.numel() + 1, dtype=tensor.dtype)
    return room[1:].copy_(tensor.reshape(-1)).view(tensor.shape)


def emulate(job: Job) -> Row:
    outcome = isolated.run("tests.emulated:emulate_here", {"job": asdict(job)}, limit_seconds=LIMIT_SECONDS)
    match outcome:
        case isolation.Returned(value=dict(fields)):
            return Row(job, **fields)
        case _:
            return Row(job, "wrong", str(outcome)[-1500:])

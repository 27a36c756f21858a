"""Evidence without a GPU: what plans compute, and what emitted kernels compute on the host.

    python -m benchmarks.emulated --lowering 5000 [--seed 0] [--out FOLDER]
    python -m benchmarks.emulated --programs 120 [--seed 0] [--processes 2] [--out FOLDER]

The first compares the planned problem of random programs with their typed program (plain
interpretation, no code). The second compiles the CUDA files of random programs of the multistage and
matrix-vector kernels, and of every example forced onto both, with g++ behind the emulator of
tests/emit, and judges what they compute as `ucc run` would on a GPU.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from benchmarks.random_programs import random_program
from tests.emit import emulator, hopper, plan_reference
from tests.emit.harness import HOST_SHIM
from tests.soundness.lowering import Lowered, distinct_scalars, lowered
from ucutlass import frontend, ir
from ucutlass.backend import source_of
from ucutlass.diagnostics import ProgramError
from ucutlass.files import write
from ucutlass.ir.hardware import ARCHES
from ucutlass.ir.schedule import PartialSchedule, Warps, show
from ucutlass.kernels.gemm import planner
from ucutlass.kernels.gemm.match import GemmPattern, problem
from ucutlass.kernels.gemm.plan import LaunchParameters, Sm90Schedule
from ucutlass.kernels.grouped_gemm.plan import WgmmaSchedule
from ucutlass.kernels.planned import Planned
from ucutlass.reference import expect
from ucutlass.runtime import isolation, verify
from ucutlass.runtime.inputs import Distribution, generate
from ucutlass.shapes import complete, free_dims

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


def example_jobs() -> Iterator[Job]:
    """Every product of examples/, by both kernels, with small odd extents."""
    for path in sorted(EXAMPLES.glob("*.ucu")):
        checked = frontend.read(path)
        for kernel in checked.module.programs:
            if isinstance(kernel, ir.Kernel) and isinstance(
                form := frontend.pattern(checked, kernel), GemmPattern
            ):
                for warps in EMULABLE:
                    sizes = _odd(kernel, form, warps)
                    name = f"{path.name} {kernel.name} {warps}"
                    yield Job(name, checked.source, kernel.name, sizes, warps, 0)


_ODD = (37, 19, 53, 29, 67)


def _odd(kernel: ir.Kernel, form: GemmPattern, warps: Warps) -> dict[str, int]:
    """Odd extents; few columns (or rows, where columns are fixed) for the matrix-vector kernel."""
    free = free_dims(kernel)
    sizes = {d: 3 if d in form.batch else _ODD[i % len(_ODD)] for i, d in enumerate(free)}
    if warps == "gemv":
        few = [d for d in form.n if d in free] if all(d in free for d in form.n) else form.m
        sizes |= {d: 3 if i == 0 else 1 for i, d in enumerate(few)}
    return sizes


def plan(job: Job) -> tuple[frontend.Checked, ir.Kernel, Planned]:
    """Raises ProgramError where no family or no legal schedule serves the job."""
    checked = frontend.read_text(job.text)
    kernel = frontend.kernel(checked, job.kernel)
    sizes = complete(kernel, job.sizes)
    if job.warps is None:
        tensors = sum(isinstance(p.type, ir.TensorType) for p in kernel.params)
        aligned = [not job.shifted] * tensors + [True] * len(kernel.results)
        return checked, kernel, frontend.plan_kernel(checked, kernel, sizes, ARCH, aligned=aligned).planned
    what = problem(frontend.pattern(checked, kernel), sizes)
    answer = planner.plan(what, sizes, ARCHES[ARCH], None, PartialSchedule(warps=job.warps))
    if isinstance(answer, Planned):
        return checked, kernel, answer
    raise ShownViolation("; ".join(f"{v.code} {v.message}" for v in answer))


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
    scalars = [float(a) for a in arguments if not isinstance(a, Tensor)]
    knobs = LaunchParameters(*planned.launch)

    def launch(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> None:
        addresses = [t.data_ptr() for t in (*inputs, *outputs) if isinstance(t, Tensor)]
        code = plan_reference.call(entry, addresses, planned.sizes, scalars, knobs, "cpu", 0)
        if code:
            raise RuntimeError(f"the entry returned {code}")

    return verify.check(kernel, launch, arguments, expected=expect(kernel, arguments))


def _shifted(tensor: Tensor) -> Tensor:
    room = torch.empty(tensor.numel() + 1, dtype=tensor.dtype)
    return room[1:].copy_(tensor.reshape(-1)).view(tensor.shape)


def emulate(job: Job) -> Row:
    outcome = isolation.run(
        "benchmarks.emulated:emulate_here", {"job": asdict(job)}, limit_seconds=LIMIT_SECONDS
    )
    match outcome:
        case isolation.Returned(value=dict(fields)):
            return Row(job, **fields)
        case _:
            return Row(job, "wrong", str(outcome)[-1500:])


def failed(rows: Sequence[Row]) -> bool:
    """Whether a kernel is wrong or could not be judged at all. One that is undecided is reported: its bounds
    say nothing, which is no fault of the kernel."""
    return any(row.status in ("wrong", "not emulable") for row in rows)


# --- campaigns ----------------------------------------------------------------------


def run_emulated(programs: int, seed: int, processes: int, out: Path) -> list[Row]:
    jobs = [*example_jobs(), *random_jobs(seed, programs)]
    rows: list[Row] = []
    with ThreadPoolExecutor(processes) as pool, (out / "emulated.jsonl").open("w", encoding="utf-8") as log:
        for done in as_completed([pool.submit(emulate, job) for job in jobs]):
            rows.append(done.result())
            log.write(json.dumps(asdict(rows[-1])) + "\n")
            log.flush()
    return rows


def show_emulated(rows: Sequence[Row]) -> None:
    for kind, mine in (
        ("examples", [r for r in rows if r.job.warps]),
        ("random", [r for r in rows if not r.job.warps]),
    ):
        counts = Counter(r.status for r in mine)
        print(f"{kind:9} {len(mine):4} programs: " + ", ".join(f"{n} {s}" for s, n in counts.most_common()))
    for row in rows:
        if row.status != "right":
            print(f"\n{row.job.name}: {row.status} {row.job.sizes} {row.schedule}\n{row.detail[:700]}")
            if row.status == "wrong":
                print(row.job.text)


def run_lowering(programs: int, seed: int, processes: int, out: Path) -> list[Lowered]:
    with ProcessPoolExecutor(processes, initializer=partial(torch.set_num_threads, 1)) as pool:
        outcomes = list(pool.map(lowered, range(seed, seed + programs), chunksize=20))
    wrong = [asdict(each) for each in outcomes if each.outcome != "right"]
    write(out / "lowering.json", json.dumps({"programs": programs, "not right": wrong}, indent=1))
    return outcomes


def show_lowering(outcomes: Sequence[Lowered]) -> None:
    counts = Counter(each.outcome for each in outcomes)
    legal = sum(each.planned for each in outcomes)
    print(f"{len(outcomes)} programs: {dict(counts)}; schedule legal for {legal}")
    for each in [o for o in outcomes if o.outcome == "wrong"][:10]:
        print(f"\nseed {each.seed} {each.sizes}\n{each.text}" + "\n".join(each.wrong[:4]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--lowering", type=int, default=0)
    parser.add_argument("--programs", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "ucutlass-emulated")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.lowering:
        show_lowering(run_lowering(options.lowering, options.seed, options.processes, options.out))
    if options.programs:
        show_emulated(run_emulated(options.programs, options.seed, options.processes, options.out))


if __name__ == "__main__":
    main()

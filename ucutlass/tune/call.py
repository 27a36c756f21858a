"""Tuning from Python: `ucutlass.tune("linear.ucu", {"M": 4096, "N": 4096, "K": 4096})`."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ucutlass import frontend, ir
from ucutlass.api import LoadedKernel, NoKernelsHere
from ucutlass.engine.work import LIMIT_SECONDS, WAIT_SECONDS
from ucutlass.runtime import gpu
from ucutlass.shapes import complete
from ucutlass.tune.job import Settings, describe, job_of, prepare
from ucutlass.tune.job import tune as tune_job
from ucutlass.tune.live import Live
from ucutlass.tune.policy import Limits, Name
from ucutlass.tune.tune import OnTrial


@dataclass(frozen=True, slots=True)
class Result:
    """A tuned kernel. Where no kernel ran and was right, `schedule`, `microseconds`, `record` and the
    ratios are None.

    `schedule` is as a program writes it. `microseconds` were measured in a fresh process; `bound` is what
    the best plan could come to, in microseconds, 0 where none is known. `gain` is the speed over the
    kernel that the compiler would choose, `shrinkage` the share of the search's speed that was not
    confirmed. `builds` and `seconds` are what the search took, `stopped` why it ended. `details` is all of
    it, as `ucc tune --json` prints it.
    """

    kernel: str
    sizes: Mapping[str, int]
    arch: str
    device: str
    schedule: str | None
    microseconds: float | None
    bound: float
    gain: float | None
    shrinkage: float | None
    builds: int
    seconds: float
    stopped: str
    record: str | None
    details: Mapping[str, Any]

    @property
    def ok(self) -> bool:
        """Whether a kernel ran and was right."""
        return self.schedule is not None


def tune(
    program: LoadedKernel | str | os.PathLike[str], sizes: Mapping[str, int], *,
    name: str | None = None, arch: str | None = None, budget: float | None = None,
    builds: int = Limits().builds, free: bool = False, policy: Name = "guided", seed: int = 0,
    on_trial: OnTrial = lambda _: None,
) -> Result:  # fmt: skip
    """Finds the fastest kernel that a program denotes for these extents (free dimensions by name), on the
    first GPU, and records it: `ucutlass.load(.., tuned=True)` takes it from then on.

    `program` is a file, with `name` where it has several kernels, or a kernel that was loaded. `budget`
    is in seconds; it and `builds` bound the search. `free` looks at every legal schedule. `on_trial` hears
    of each binary that was timed. A kernel that was called before keeps what it was built with.

    Raises OSError, ProgramError, ShapeError, ValueError for a budget that is none, NoKernelsHere without a
    GPU that a compile target serves, StoreError where nothing can be recorded, and ToolchainError.
    """
    if builds < 1 or (budget is not None and not (math.isfinite(budget) and budget > 0)):
        raise ValueError(f"builds is {builds} and budget {budget}: at least one build, and seconds above 0")
    checked, kernel = _read(program, name)
    complete(kernel, sizes)  # the call's mistakes before the machine's
    found = gpu.at_hand()
    if found is None:
        raise NoKernelsHere("there is no NVIDIA GPU here that a compile target serves: nothing was tuned")
    prepare()
    settings = Settings(Limits(builds, math.inf if budget is None else budget), policy, seed, free)
    job = job_of(checked, kernel, sizes, arch or found.arch.name, found.device, free)
    live = Live(checked, kernel, sizes, job.first.plan.arch, seed, LIMIT_SECONDS, WAIT_SECONDS)
    with closing(live) as shop:
        outcome = tune_job(job, shop, settings, on_trial=on_trial)
    row = describe(outcome, settings)
    return Result(
        row["kernel"], row["sizes"], row["arch"], row["device"], row["schedule"], row["microseconds"],
        row["bound"], outcome.gain, row["shrinkage"], len(row["trials"]), row["seconds"], row["stopped"],
        outcome.record, row,
    )  # fmt: skip


def _read(
    program: LoadedKernel | str | os.PathLike[str], name: str | None
) -> tuple[frontend.Checked, ir.Kernel]:
    if isinstance(program, LoadedKernel):
        return program.checked, program.program
    checked = frontend.read(Path(program))
    return checked, frontend.kernel(checked, name)

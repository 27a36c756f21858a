"""Runs a kernel under a profiler, times it beside others, or measures its energy.

`timed` and `compared` are for `ucutlass.runtime.isolation`; run as a module with a request's file,
this launches the kernel once between cudaProfilerStart and cudaProfilerStop, for Nsight Compute. `program` is
a payload of `ucutlass.handoff`, `built` one of `ucutlass.tasks.built.kernel_payload`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ucutlass.advice.facts import TimingFacts

if TYPE_CHECKING:
    from ucutlass.api import LoadedKernel
    from ucutlass.frontend import Checked

WARM_UPS = 3
"""Launches before the one that is profiled: the build, the launcher and the clock settle."""

AGREE = 0.02
"""Schedules add in different orders; two roundings to bf16 are at most 2^-8 apart, so results whose
distance is more than 2 % of their norm are not the same computation."""

BEYOND = 1e30

_WALL_CALLS = 200
_COPY_BYTES = 2**29
_COPIES = 10
_ENERGY_WINDOW_US = 50_000.0
"""Of one replay under the energy counter: long beside the host's work between replays."""

_ROUNDS = 24
"""Of a comparison of two: twelve blocks A B B A, two more than an interval needs."""


def timed(
    program: dict[str, Any],
    name: str,
    sizes: dict[str, int],
    arch: str,
    built: dict[str, Any],
    seed: int,
    energy: bool,
    versions: dict[str, str],
) -> dict[str, Any]:
    """Returns microseconds a launch on the device and a call from the host, the bandwidth of a copy, and, if
    wanted, joules a launch (or `no_energy`, why not); `machine` as `subject.machine_of` gives it."""
    from ucutlass.runtime.subject import machine_of
    from ucutlass.runtime.timing import compare

    launch, sets = _launcher(program, name, sizes, arch, built, seed)
    timing = compare({"kernel": launch}, sets)["kernel"]
    report: dict[str, Any] = {
        "machine": asdict(machine_of(0, versions)),
        "microseconds": timing.median,
        "spread": timing.spread,
        "wall_microseconds": _wall(launch, sets),
        "copy_bandwidth": _copy_bandwidth(),
    }
    return report | (energy_of(launch, sets, timing.median, report["machine"]["uuid"]) if energy else {})


def timing_of(answer: Mapping[str, Any]) -> TimingFacts:
    """Returns the facts in what `timed` returned."""
    energy = answer.get("energy") or {}
    return TimingFacts(
        seconds=answer["microseconds"] / 1e6,
        spread=answer["spread"],
        wall_seconds=answer["wall_microseconds"] / 1e6,
        copy_bandwidth=answer["copy_bandwidth"],
        clock=energy.get("clock"),
        start_clock=energy.get("start_clock"),
        joules=energy.get("joules"),
        power_capped="software power cap" in energy["throttled"] if energy else None,
    )


def compared(
    program: dict[str, Any],
    name: str,
    sizes: dict[str, int],
    arch: str,
    builds: dict[str, dict[str, Any]],
    seed: int,
    versions: dict[str, str],
) -> dict[str, Any]:
    """Times several schedules of one kernel in turns: `times` has each one's microseconds by round, in the
    order of measurement; `differences` how far its results are from the first one's, as a part of their norm
    (a sanity check, not verification: both may be wrong)."""
    from ucutlass.runtime.subject import machine_of
    from ucutlass.runtime.timing import compare

    kernels, sets = _prepared(program, name, sizes, arch, builds, seed)
    differences = _differences({label: k(*sets[0]) for label, k in kernels.items()})
    times = compare(_launches(kernels, sets), len(sets), rounds=_ROUNDS)
    return {
        "machine": asdict(machine_of(0, versions)),
        "differences": differences,
        "times": {label: list(t.rounds) for label, t in times.items()},
    }


def _launcher(
    program: dict[str, Any], name: str, sizes: dict[str, int], arch: str, built: dict[str, Any], seed: int
) -> tuple[Callable[[int], object], int]:
    kernels, sets = _prepared(program, name, sizes, arch, {"kernel": built}, seed)
    return _launches(kernels, sets)["kernel"], len(sets)


def _prepared(
    program: dict[str, Any],
    name: str,
    sizes: dict[str, int],
    arch: str,
    builds: dict[str, dict[str, Any]],
    seed: int,
) -> tuple[dict[str, LoadedKernel], list[list[Any]]]:
    """Returns a kernel for each schedule, and argument sets that rotate through more than twice the L2."""
    import torch

    from ucutlass.handoff import checked_of
    from ucutlass.runtime.inputs import generate
    from ucutlass.runtime.timing import sets_for

    checked = checked_of(program)
    kernels = {label: _loaded(checked, name, arch, built) for label, built in builds.items()}
    typed = next(iter(kernels.values())).program
    first = generate(typed, sizes, "normal", seed=seed, device="cuda")
    moved = sum(a.numel() * a.element_size() for a in first if isinstance(a, torch.Tensor))
    sets = [[a.clone() if isinstance(a, torch.Tensor) else a for a in first] for _ in range(sets_for(moved))]
    return kernels, sets


def _launches(
    kernels: Mapping[str, LoadedKernel], sets: list[list[Any]]
) -> dict[str, Callable[[int], object]]:
    """A launch function of each kernel. Results rotate like the arguments: one that stayed in place
    would stay in L2."""
    results = [next(iter(kernels.values()))(*arguments) for arguments in sets]

    def launch(kernel: LoadedKernel) -> Callable[[int], object]:
        return lambda i: kernel(*sets[i], out=results[i])

    return {label: launch(k) for label, k in kernels.items()}


def _loaded(checked: Checked, name: str, arch: str, built: Mapping[str, Any]) -> LoadedKernel:
    from ucutlass import frontend
    from ucutlass.api import LoadedKernel
    from ucutlass.tasks.built import built_kernel

    program = frontend.kernel(checked, name)
    return LoadedKernel(checked, program, arch, ready=built_kernel(checked, program, built))


def _differences(results: Mapping[str, Any]) -> dict[str, float]:
    """Returns, for every kernel's results, the distance from the first kernel's over their norm; `BEYOND`
    where one is not finite, for which JSON has no number."""
    import torch

    doubled = {
        label: [t.double() for t in (r if isinstance(r, tuple) else (r,))] for label, r in results.items()
    }
    first = next(iter(doubled.values()))

    def apart(mine: list[torch.Tensor]) -> float:
        pairs = zip(mine, first, strict=True)
        far = max(float((a - b).norm() / b.norm().clamp_min(1e-30)) for a, b in pairs)
        return far if far < BEYOND else BEYOND

    return {label: apart(mine) for label, mine in doubled.items()}


def _wall(launch: Callable[[int], object], sets: int) -> float:
    """Returns microseconds a call, many in a row, the device idle before and after."""
    import time

    import torch

    torch.cuda.synchronize()
    start = time.perf_counter()
    for i in range(_WALL_CALLS):
        launch(i % sets)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e6 / _WALL_CALLS


def _copy_bandwidth() -> float:
    """Returns bytes per second, read and written, of a copy within the device's memory."""
    import torch

    source = torch.empty(_COPY_BYTES, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    start: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    target.copy_(source)
    start.record()
    for _ in range(_COPIES):
        target.copy_(source)
    end.record()
    end.synchronize()
    milliseconds: float = start.elapsed_time(end)
    return 2 * _COPY_BYTES * _COPIES / (milliseconds / 1e3)


def energy_of(launch: Callable[[int], object], sets: int, launch_us: float, uuid: str) -> dict[str, Any]:
    """Returns `energy` of a launch that takes so many microseconds, or `no_energy`, why there is none."""
    import torch

    from ucutlass.runtime.profile import energy
    from ucutlass.runtime.timing import capture

    meter = energy.open_meter(uuid)
    if isinstance(meter, energy.NoEnergy):
        return {"no_energy": meter.reason}
    count = sets * max(1, min(4096, round(_ENERGY_WINDOW_US / launch_us / sets)))
    graph = capture(launch, sets, count)
    measured = energy.measure(meter, graph.replay, count, torch.cuda.synchronize)
    if isinstance(measured, energy.NoEnergy):
        return {"no_energy": measured.reason}
    return {"energy": asdict(measured)}


def main(arguments: Sequence[str]) -> None:
    """Launches the kernel of a request's file once, in the range that a profiler watches."""
    import torch

    request = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    launch, sets = _launcher(**request)
    for i in range(WARM_UPS):
        launch(i % sets)
    torch.cuda.synchronize()
    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    launch(WARM_UPS % sets)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main(sys.argv[1:])

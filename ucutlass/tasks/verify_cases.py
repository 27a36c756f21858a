"""Judges a built kernel's cases, and launches it for compute-sanitizer."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ucutlass.files import put
from ucutlass.runtime.isolation import STARTS
from ucutlass.spans import span

if TYPE_CHECKING:
    import torch

    from ucutlass.frontend import Checked
    from ucutlass.ir import Pipeline, Program
    from ucutlass.runtime.launch import BoundKernel
    from ucutlass.runtime.verify import DirectLaunch, StagedLaunch
    from ucutlass.runtime.verify.suite import VerifyCase

START_SECONDS = 300.0
"""What a process may take before its first case."""


def judged(
    kernel: Mapping[str, Any],
    tile: Mapping[str, int],
    cases: Sequence[Mapping[str, Any]],
    journal: str,
    case_seconds: float,
    device: str = "cuda",
) -> str:
    """Judges cases: see `ucutlass.runtime.verify.batch.judge_all`. `kernel` is `facts`; its library
    may be an emulated one for the device "cpu"."""
    # A driver or a library that hangs before the first case must not hold the device for hours.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, START_SECONDS)

    with span(STARTS):
        from ucutlass.runtime.cuda_driver import sleep_while_waiting
        from ucutlass.runtime.verify.batch import judge_all

        if device == "cuda":
            sleep_while_waiting()
    with span("launch"):
        loaded = _Loaded(kernel, device)
    return judge_all(
        loaded.program, loaded.judged, cases, journal, tile=tile, device=device, case_seconds=case_seconds
    )


def sanitized(request: str) -> None:
    """Launches every case of a request's file once that the kernel takes, and writes how many it went through
    into its receipt. Raises LaunchError where the kernel takes none, SanitizedResultWrong.

    For compute-sanitizer: nothing but the kernel and copies runs on the device, and what the launch
    leaves undefined stays undefined, so that initcheck may see it. Where the request says so, the host compares
    a kernel's results: warps that a tool slows down lose races that they win otherwise.
    """
    import torch

    from ucutlass.runtime.entry_codes import BAD_ARGUMENTS, LaunchError
    from ucutlass.runtime.verify.suite import VerifyCase

    settings = json.loads(Path(request).read_text(encoding="utf-8"))
    loaded = _Loaded(settings["kernel"], settings["device"])
    device = torch.device(settings["device"])

    def serves(case: VerifyCase) -> bool:
        try:
            _launched(loaded, case, settings["tile"], device, compares=settings["compares"])
        except LaunchError as error:
            if error.code != BAD_ARGUMENTS:
                raise
            return False
        return True

    served = 0
    for number, fields in enumerate(settings["cases"], 1):
        served += serves(VerifyCase(**fields))
        if number < len(settings["cases"]):
            put(Path(settings["receipt"]), json.dumps(number))
    if not served and not any(serves(VerifyCase(**fields)) for fields in settings["otherwise"]):
        raise LaunchError(f"{loaded.program.name} at every reduced extent", BAD_ARGUMENTS)
    put(Path(settings["receipt"]), json.dumps(len(settings["cases"])))


class SanitizedResultWrong(Exception):
    """A result that is not within its bound."""


def _launched(
    loaded: _Loaded, case: VerifyCase, tile: Mapping[str, int], device: torch.device, *, compares: bool
) -> None:
    """Launches a case once, and `compares` its results. Raises LaunchError, SanitizedResultWrong."""
    import torch

    from ucutlass.ir import Kernel
    from ucutlass.reference import expected_results
    from ucutlass.runtime.inputs import generate
    from ucutlass.runtime.verify.judge import compare_results
    from ucutlass.shapes import complete

    extents = complete(loaded.program, case.sizes)
    launch = loaded.launch(extents)
    arguments = generate(
        loaded.program, case.sizes, case.distribution, seed=case.seed, device=device, tile=tile
    )
    on_host = [a.cpu().clone() if isinstance(a, torch.Tensor) else a for a in arguments]
    results = loaded.results(extents)
    workspace = torch.empty(launch.workspace, dtype=torch.uint8, device=device)
    launch.run(arguments, results, workspace if launch.workspace else None)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    if compares and isinstance(loaded.program, Kernel):  # a pipeline's results rest on those of its stages
        expected = expected_results(loaded.program, on_host)
        compared = compare_results(expected, [r.cpu() for r in results], [None] * len(results))
        if wrong := [str(comparison) for comparison in compared if not comparison.ok]:
            raise SanitizedResultWrong(f"{case.name}: {'; '.join(wrong)}")


def machine(built_with: Mapping[str, str]) -> dict[str, Any]:
    """Returns the fields of `runtime.evidence.Machine` for the GPU that the cases run on. The process may judge
    cases then, so it waits for the device as those do."""
    from contextlib import suppress
    from dataclasses import asdict

    import torch

    from ucutlass.runtime.cuda_driver import sleep_while_waiting
    from ucutlass.runtime.subject import machine_of

    with suppress(OSError):  # no driver, which torch says in better words
        sleep_while_waiting()

    return asdict(machine_of(torch.cuda.current_device(), built_with))


def facts(
    checked: Checked,
    name: str,
    stages: Sequence[tuple[str, str, Sequence[int]] | None],
    orders: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> dict[str, Any]:
    """Returns what the processes need of a built program: a payload of `ucutlass.handoff`, and library, entry
    and launch parameters of each launch, None for a torch function. A kernel is one launch. `orders` as
    `ucutlass.pipeline.orders`."""
    from ucutlass.handoff import program_payload

    launches = [
        None if s is None else {"library": s[0], "entry": s[1], "launch_parameters": list(s[2])}
        for s in stages
    ]
    permutations = {buffer: list(order) for buffer, order in orders.items()}
    program = program_payload(checked)
    return {"program": program, "name": name, "stages": launches, "orders": permutations}


class _Loaded:
    """A built program, loaded from its libraries: what is judged are the very files that are kept."""

    program: Program
    pipeline: Pipeline
    """Where the program is one, with the orders that it was built with."""

    def __init__(self, kernel: Mapping[str, Any], device: str) -> None:
        import torch

        from ucutlass import frontend
        from ucutlass.handoff import checked_of
        from ucutlass.ir import Pipeline
        from ucutlass.pipeline.orders import permuted
        from ucutlass.runtime.launch_spec import spec_of

        self.program = frontend.program(checked_of(kernel["program"]), kernel["name"])
        self._spec = spec_of(self.program)
        if isinstance(self.program, Pipeline):
            orders = {buffer: tuple(order) for buffer, order in kernel["orders"].items()}
            self.pipeline = permuted(self.program, orders)
        self._bounds = [None if stage is None else _bound(stage) for stage in kernel["stages"]]
        number = torch.cuda.current_device() if device == "cuda" else 0
        self._device = torch.device(device, number)

    def launch(self, extents: tuple[int, ...]) -> DirectLaunch:
        """Of the whole program. Raises LaunchError where a kernel does not serve the extents."""
        from ucutlass.runtime.verify import DirectLaunch, StagedLaunch

        judged = self.judged(extents)
        entire = judged.entire if isinstance(judged, StagedLaunch) else judged
        assert isinstance(entire, DirectLaunch)
        return entire

    def judged(self, extents: tuple[int, ...]) -> DirectLaunch | StagedLaunch:
        """Returns what the judge takes: a pipeline with its stages. Raises as `launch`."""
        from ucutlass.ir import Pipeline
        from ucutlass.runtime import direct_launch
        from ucutlass.runtime.launch import single_launch
        from ucutlass.runtime.pipeline import rebind_all

        if isinstance(self.program, Pipeline):
            return rebind_all(self.pipeline, self._bounds, extents, self._device)
        (bound,) = self._bounds
        assert bound is not None
        again = direct_launch.rebind(self._spec, bound, extents, self._device)
        return direct_launch.direct_launch(self._spec, single_launch(self._spec, extents, again))

    def results(self, extents: tuple[int, ...]) -> list[Any]:
        """Returns tensors for the results, whose content is undefined."""
        import torch

        from ucutlass.runtime.launch_spec import dtype_of, shape_of

        return [
            torch.empty(shape_of(self._spec, r, extents), dtype=dtype_of(r.elem), device=self._device)
            for r in self._spec.results
        ]


def _bound(stage: Mapping[str, Any]) -> BoundKernel:
    from ucutlass.runtime.cache import altered
    from ucutlass.runtime.launch import BoundKernel
    from ucutlass.runtime.library import LibraryForeign, load_entry

    library = Path(stage["library"])
    if reason := altered(library):
        raise LibraryForeign(f"{library} is not what was built: {reason}", "build the kernel again")
    entry = load_entry(library, stage["entry"])
    return BoundKernel(entry.address, tuple(stage["launch_parameters"]), 0, entry)

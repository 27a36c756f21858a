"""The public interface: `k = ucutlass.load("linear_gelu.ucu"); y = k(x, w, bias)`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from ucutlass import ir
from ucutlass.frontend import Checked, program, read, read_text
from ucutlass.ir.hardware import ARCHES, Device, arch_for, device_named
from ucutlass.pipeline.planning import Draw, as_written
from ucutlass.pipeline.sized import sized_pipeline
from ucutlass.shapes import ShapeError, free_dims, holds

if TYPE_CHECKING:
    from torch import Tensor

    from ucutlass.assembly import BuiltPipeline
    from ucutlass.backend import Built
    from ucutlass.diagnostics import Diagnostic
    from ucutlass.runtime.graph import CapturedCall
    from ucutlass.runtime.launch import BoundKernel, Choose, LaunchRequest
    from ucutlass.runtime.launch_sequence import LaunchSequence
    from ucutlass.runtime.launch_spec import LaunchSpec, Requirement
    from ucutlass.runtime.lending import Lends
    from ucutlass.runtime.stage_times import StageTime
    from ucutlass.runtime.verify import JudgedLaunch, StagedLaunch
    from ucutlass.tune.origin import Origin


class NoKernelsHere(Exception):
    """No compile target serves the GPU at hand."""


def load(
    path: str | os.PathLike[str],
    name: str | None = None,
    *,
    arch: str | None = None,
    tuned: bool = False,
    check_offsets: bool = False,
) -> LoadedProgram:
    """Returns the kernel or pipeline of a file as a callable; `name` selects one where the file has several
    kernels, or several pipelines.

    Nothing is built before the first call of a shape. `arch` is a compile target (`sm90a`, `sm89`, `sm80`);
    None takes the best one for the tensors' GPU. `tuned` takes the source that `ucc adopt` confirmed, or the
    schedule that `ucc tune` recorded, for exactly this GPU, program and shape, whatever the program says;
    where there is none, the kernel is planned as without it. With `check_offsets`, each call checks the offsets of segments among its arguments
    before it launches, which waits for the stream, and raises WrongOffsets (`ucutlass.runtime.offsets`).
    Raises OSError and ProgramError; ValueError where there are no offsets to check.
    """
    checked = read(Path(path))
    return loaded(checked, program(checked, name), arch, tuned, check_offsets)


def loads(
    text: str,
    name: str | None = None,
    *,
    arch: str | None = None,
    tuned: bool = False,
    check_offsets: bool = False,
) -> LoadedProgram:
    """Does what `load` does, from a text. Raises ProgramError and ValueError."""
    checked = read_text(text)
    return loaded(checked, program(checked, name), arch, tuned, check_offsets)


def loaded(
    checked: Checked,
    program: ir.Program,
    arch: str | None = None,
    tuned: bool = False,
    check_offsets: bool = False,
) -> LoadedKernel | LoadedPipeline:
    """Returns a checked file's program as a callable; the options are those of `load`."""
    if isinstance(program, ir.Pipeline):
        return LoadedPipeline(checked, program, arch, tuned, check_offsets)
    return LoadedKernel(checked, program, arch, tuned, check_offsets)


L = TypeVar("L", bound="LoadedProgram")


class LoadedProgram:
    """A program that is built on demand and called with torch tensors.

    `spec` says what a call must bring; `route` is "native", or "python" where the native launcher
    could not be built here.

    `k(*arguments, out=None)` runs on the current stream of the arguments' GPU: parameters in
    declared order, dense tensors in the declared memory order, numbers for host scalars. It
    returns the result, or a tuple of the results. Each new shape is planned once and built if the
    cache lacks it.

    Calls raise a subclass of `ucutlass.runtime.arguments.ArgumentError` for arguments that do not
    fit, ProgramError where no legal kernel exists for the shape, BuildError and MachineError
    from the build, LaunchError from the launch.
    """

    checked: Checked
    program: ir.Program
    spec: LaunchSpec
    route: str
    _request_of: Callable[..., tuple[LaunchRequest, list[Tensor], list[float]]]

    @classmethod
    def _of(
        cls: type[L],
        checked: Checked,
        program: ir.Program,
        requires: Sequence[Requirement],
        choose: Choose,
        check_offsets: bool,
    ) -> L:
        from ucutlass.runtime.launch import Launcher
        from ucutlass.runtime.launch_spec import spec_of
        from ucutlass.runtime.offsets import offsets_of

        offsets = offsets_of(program) if check_offsets else ()
        launcher = Launcher(replace(spec_of(program, requires), offsets=offsets), choose)
        # Python looks `__call__` up on the type; a type of its own keeps a Python frame out of calls.
        own = type(cls.__name__, (cls,), {"__call__": staticmethod(type(launcher).__call__)})
        self: L = object.__new__(own)
        self.checked, self.program = checked, program
        self.spec, self.route = launcher.spec, launcher.route
        self._request_of = launcher.request_of
        return self

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """Diagnostics of what is legal in the program's text but cannot be meant, such as a parameter that
        nothing uses."""
        return self.checked.warnings

    if TYPE_CHECKING:

        def __call__(self, *arguments: Any, out: Any = None) -> Any: ...

    def reference(self, *arguments: Tensor | float | int) -> Tensor | tuple[Tensor, ...]:
        """Returns the same results from the float64 interpreter, on the device of the arguments.

        Raises a subclass of `ucutlass.reference.errors.CallError`.
        """
        from ucutlass.reference import evaluate

        results = evaluate(self.program, arguments)
        return results[0] if len(results) == 1 else results

    def judged(self, *arguments: Tensor | float | int) -> JudgedLaunch | StagedLaunch:
        """Returns what `ucutlass.runtime.verify.check` takes: calls of this program, and for a pipeline also
        the launches of its stages for these arguments' extents. Raises as a call does."""
        return self._called

    def _called(self, arguments: Sequence[Any], results: Sequence[Tensor]) -> None:
        self(*arguments, out=results[0] if len(results) == 1 else tuple(results))

    def graph(self, *arguments: Tensor | float | int) -> CapturedCall:
        """Captures the call into a CUDA graph whose inputs are exactly these tensors: see
        `ucutlass.runtime.graph.CapturedCall`. Raises as a call does."""
        from ucutlass.runtime.graph import CapturedCall

        return CapturedCall(self, arguments)


class LoadedKernel(LoadedProgram):
    """One kernel. `origins` says where the schedule of each shape that was called comes from; shapes
    choose the guarded schedule. Calls with aligned tensors of the extents for which a kernel is `ready` take
    that one; it is planned and built. `lends` says to which other extents kernels are lent."""

    program: ir.Kernel
    origins: Mapping[LaunchRequest, Origin]

    def __new__(
        cls,
        checked: Checked,
        program: ir.Kernel,
        arch: str | None,
        tuned: bool = False,
        check_offsets: bool = False,
        ready: Built | None = None,
        lends: Lends = "no",
    ) -> LoadedKernel:
        from ucutlass.runtime.launch_spec import Requirement

        requires = [
            Requirement(checked.source[c.span.start : c.span.end], partial(holds, c))
            for c in program.requires
        ]
        origins: dict[LaunchRequest, Origin] = {}
        built: dict[LaunchRequest, Built] = {}
        own = partial(_choose, checked, program, arch, tuned, origins, built, ready)
        choose = _lending(own, partial(_lent_kernel, program, tuned, built), program, lends)
        self = cls._of(checked, program, requires, choose, check_offsets)
        self.origins = MappingProxyType(origins)
        return self

    def __repr__(self) -> str:
        return f"<ucutlass kernel {self.program.name} of {self.checked.file}>"


class LoadedPipeline(LoadedProgram):
    """Several launches as one call: intermediates lie in one workspace, and stages that need nothing of
    each other run on branches beside the current stream, which joins them again. `built` has what was
    planned and built for each shape that was called; `ready` is as of a kernel.

    Besides what every call raises: TorchResultMismatch (`ucutlass.runtime.launch_sequence`) where a torch
    function gives another shape than the text says.
    """

    program: ir.Pipeline
    built: Mapping[LaunchRequest, BuiltPipeline]

    def __new__(
        cls,
        checked: Checked,
        program: ir.Pipeline,
        arch: str | None,
        tuned: bool = False,
        check_offsets: bool = False,
        ready: BuiltPipeline | None = None,
        lends: Lends = "no",
    ) -> LoadedPipeline:
        from ucutlass.runtime.launch_spec import Requirement

        built: dict[LaunchRequest, BuiltPipeline] = {}
        own = partial(_choose_all, checked, program, arch, tuned, built, ready)
        self = cls._of(
            checked,
            program,
            [Requirement("extents that fit every stage", partial(_fits, program))],
            _lending(own, partial(_lent_pipeline, program, tuned, built), program, lends),
            check_offsets,
        )
        self.built = MappingProxyType(built)
        return self

    def judged(self, *arguments: Tensor | float | int) -> StagedLaunch:
        from ucutlass.assembly import bind_stages

        self(*arguments)  # plans and builds where no call did
        request, _, _ = self._request_of(*arguments)
        return replace(bind_stages(self.built[request]), entire=self._called)

    def stage_times(self, *arguments: Tensor | float | int, repeats: int = 20) -> Sequence[StageTime]:
        """Returns the time of each stage on the device, measured one after the other. Raises as a call
        does."""
        from ucutlass.assembly import bind_pipeline
        from ucutlass.pipeline.workspace import streams_of
        from ucutlass.runtime.stage_times import stage_times

        self(*arguments)  # plans and builds where no call did
        request, tensors, scalars = self._request_of(*arguments)
        built = self.built[request]
        in_line = bind_pipeline(built, streams_of(built.plan.sized, 1))
        return stage_times(self.spec, in_line, request, tensors, scalars, repeats)

    def __repr__(self) -> str:
        return f"<ucutlass pipeline {self.program.name} of {self.checked.file}>"


def _fits(program: ir.Pipeline, sizes: Mapping[str, int]) -> bool:
    """Returns True; raises RequirementFailed in the words of the stage that does not fit."""
    from ucutlass.runtime.arguments import RequirementFailed

    try:
        sized_pipeline(program, tuple(sizes[d] for d in program.dims))
    except ShapeError as problem:
        raise RequirementFailed(f"{program.name}: {problem}") from problem
    return True


def _lending(
    own: Callable[[LaunchRequest], BoundKernel | LaunchSequence],
    lent: Callable[[LaunchRequest, LaunchRequest], BoundKernel | LaunchSequence | None],
    program: ir.Program,
    lends: Lends,
) -> Choose:
    from ucutlass.runtime.lending import Lender, Lending

    if lends == "no":
        return own
    free = [list(program.dims).index(dim) for dim in free_dims(program)]
    return Lending(Lender(own, lent, free), lends).choose


def _lent_kernel(
    program: ir.Kernel,
    tuned: bool,
    kernels: Mapping[LaunchRequest, Built],
    plan: LaunchRequest,
    request: LaunchRequest,
) -> BoundKernel | None:
    """Returns a plan's kernel at the extents of another request. None where a schedule is recorded for these, and
    where the kernel's source was written by hand. Raises as `bind` does."""
    from ucutlass.backend import bind, resized
    from ucutlass.tune.lookup import recorded

    built = kernels.get(plan)
    if built is None or (tuned and recorded(program, request.extents, built.planned.plan.arch)):
        return None
    return bind(resized(built, request.extents), program.name)


def _lent_pipeline(
    program: ir.Pipeline,
    tuned: bool,
    pipelines: dict[LaunchRequest, BuiltPipeline],
    plan: LaunchRequest,
    request: LaunchRequest,
) -> LaunchSequence | None:
    """Returns a plan's launches as `_lent_kernel` does."""
    from ucutlass.assembly import bind_pipeline, resized_pipeline
    from ucutlass.tune.lookup import recorded

    pipeline = resized_pipeline(pipelines[plan], program, request.extents)
    kernels = zip(pipeline.plan.sized.steps, pipeline.built, strict=True)
    if tuned and any(
        recorded(step.kernel, step.sizes, built.planned.plan.arch)
        for step, built in kernels
        if step.kernel is not None and built is not None
    ):
        return None
    sequence = bind_pipeline(pipeline)
    pipelines[request] = pipeline
    return sequence


def _choose_all(
    checked: Checked,
    program: ir.Pipeline,
    arch_name: str | None,
    tuned: bool,
    built: dict[LaunchRequest, BuiltPipeline],
    ready: BuiltPipeline | None,
    request: LaunchRequest,
) -> LaunchSequence:
    import torch

    from ucutlass.assembly import bind_pipeline, build_pipeline

    if ready is not None and ready.plan.sizes == request.extents and all(request.aligned):
        built[request] = ready
        return bind_pipeline(ready)
    gpu = torch.cuda.get_device_properties(request.device)
    arch = checked_arch(arch_name, gpu.name, (gpu.major, gpu.minor))
    device = known_device(gpu.name, arch)
    draw: Draw = as_written
    if tuned and all(request.aligned):
        from ucutlass.tune.lookup import draw_recorded

        draw = draw_recorded(checked, arch, gpu.name, device)
    pipeline = build_pipeline(
        checked, program, request.extents, arch, device=device, aligned=request.aligned, draw=draw
    )
    built[request] = pipeline
    return bind_pipeline(pipeline)


def _choose(
    checked: Checked,
    program: ir.Kernel,
    arch_name: str | None,
    tuned: bool,
    origins: dict[LaunchRequest, Origin],
    kernels: dict[LaunchRequest, Built],
    ready: Built | None,
    request: LaunchRequest,
) -> BoundKernel:
    import torch

    from ucutlass.backend import bind, build_kernel
    from ucutlass.tune.origin import written

    if ready is not None and ready.planned.sizes == request.extents and all(request.aligned):
        origins[request] = written(program, request.extents, ready.planned.plan.arch)
        kernels[request] = ready
        return bind(ready, program.name)
    gpu = torch.cuda.get_device_properties(request.device)
    arch = checked_arch(arch_name, gpu.name, (gpu.major, gpu.minor))
    device = known_device(gpu.name, arch)
    origin = written(program, request.extents, arch)
    # What is recorded was measured on tensors that are aligned.
    if tuned and all(request.aligned):
        from ucutlass.adopt.lookup import bound_adopted
        from ucutlass.tune.lookup import recall

        adopted = bound_adopted(checked, program, request.extents, arch, gpu.name, device)
        if adopted is not None:
            bound, origins[request] = adopted
            return bound
        program, origin = recall(checked, program, request.extents, arch, gpu.name, device, beyond=True)
    built = build_kernel(checked, program, request.extents, arch, device=device, aligned=request.aligned)
    origins[request], kernels[request] = origin, built
    return bind(built, program.name)


def checked_arch(arch: str | None, gpu: str, capability: tuple[int, int]) -> str:
    """Returns the compile target for a GPU: the given one, or the best that its capability runs.

    Raises NoKernelsHere where none serves it.
    """
    if arch is not None:
        return arch
    best = arch_for(capability)
    if best is None:
        raise NoKernelsHere(
            f"no compile target serves {gpu} (compute capability {capability[0]}.{capability[1]}); "
            f"targets: {' '.join(ARCHES)}"
        )
    return best.name


def known_device(name: str, arch: str) -> Device | None:
    """Returns the device's facts where the table has them; None plans for the target's default device."""
    device = device_named(name)
    return device if device is not None and device.capability >= ARCHES[arch].capability else None

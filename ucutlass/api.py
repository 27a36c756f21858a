"""The public interface: `k = ucutlass.load("linear_gelu.ucu"); y = k(x, w, bias)`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ucutlass import ir
from ucutlass.frontend import Checked, kernel, read, read_text
from ucutlass.hardware import ARCHES, Device, arch_for, device_named
from ucutlass.shapes import holds

if TYPE_CHECKING:
    from torch import Tensor

    from ucutlass.runtime.declaration import LaunchSpec
    from ucutlass.runtime.launch import Bound, Request
    from ucutlass.tune.origin import Origin


class NoKernelsHere(Exception):
    """The GPU at hand is of a kind that no compile target serves."""


def load(
    path: str | os.PathLike[str], name: str | None = None, *, arch: str | None = None, tuned: bool = False
) -> LoadedKernel:
    """The kernel of a file as a callable; `name` where the file has several.

    Nothing is built before the first call of a shape. `arch` is a compile target (`sm90a`,
    `sm89`, `sm80`); None takes the best for the tensors' GPU. `tuned` takes the schedule that
    `ucc tune` recorded for exactly this GPU, program and shape, whatever the program says; where
    none is recorded, the kernel is planned as without it. Raises OSError and ProgramError.
    """
    checked = read(Path(path))
    return LoadedKernel(checked, kernel(checked, name), arch, tuned)


def loads(
    text: str, name: str | None = None, *, arch: str | None = None, tuned: bool = False
) -> LoadedKernel:
    """As `load`, from a text. Raises ProgramError."""
    checked = read_text(text)
    return LoadedKernel(checked, kernel(checked, name), arch, tuned)


class LoadedKernel:
    """A kernel that is built on demand and called with torch tensors.

    `spec` says what a call must bring; `route` is "native", or "python" where the native launcher
    could not be built here; `origins` where the schedule of each shape that was called comes from.

    `k(*arguments, out=None)` runs on the current stream of the arguments' GPU: parameters in
    declared order, dense tensors in the declared memory order, numbers for host scalars. It
    returns the result, or a tuple of the results. Shapes choose the guarded schedule; each new
    shape is planned once and built if the cache lacks it.

    Calls raise a subclass of `ucutlass.runtime.arguments.ArgumentError` for arguments that do not
    fit, ProgramError where no legal kernel exists for the shape, BuildError and MachineError
    from the build, LaunchError from the launch.
    """

    checked: Checked
    program: ir.Kernel
    spec: LaunchSpec
    route: str
    origins: Mapping[Request, Origin]

    def __new__(
        cls, checked: Checked, program: ir.Kernel, arch: str | None, tuned: bool = False
    ) -> LoadedKernel:
        from ucutlass.runtime.declaration import Requirement, spec_of
        from ucutlass.runtime.launch import Launcher

        requires = [
            Requirement(checked.source[c.span.start : c.span.end], partial(holds, c))
            for c in program.requires
        ]
        origins: dict[Request, Origin] = {}
        choose = partial(_choose, checked, program, arch, tuned, origins)
        launcher = Launcher(spec_of(program, requires), choose)
        # Python looks `__call__` up on the type; a type of its own keeps a Python frame out of calls.
        own = type(cls.__name__, (cls,), {"__call__": staticmethod(type(launcher).__call__)})
        self: LoadedKernel = object.__new__(own)
        self.checked, self.program = checked, program
        self.origins = MappingProxyType(origins)
        self.spec, self.route = launcher.spec, launcher.route
        return self

    if TYPE_CHECKING:

        def __call__(self, *arguments: Any, out: Any = None) -> Any: ...

    def reference(self, *arguments: Tensor | float | int) -> Tensor | tuple[Tensor, ...]:
        """The same results from the float64 interpreter, on the device of the arguments.

        Raises a subclass of `ucutlass.reference.errors.CallError`.
        """
        from ucutlass.reference import evaluate

        results = evaluate(self.program, arguments)
        return results[0] if len(results) == 1 else results

    def __repr__(self) -> str:
        return f"<ucutlass kernel {self.program.name} of {self.checked.file}>"


def _choose(
    checked: Checked, program: ir.Kernel, arch_name: str | None, tuned: bool,
    origins: dict[Request, Origin], request: Request,
) -> Bound:  # fmt: skip
    import torch

    from ucutlass.backend import bind, build_kernel
    from ucutlass.tune.origin import written

    gpu = torch.cuda.get_device_properties(request.device)
    arch = checked_arch(arch_name, gpu.name, (gpu.major, gpu.minor))
    device = _facts(gpu.name, arch)
    origin = written(program, request.extents, arch)
    # What is recorded was measured on tensors that are aligned.
    if tuned and all(request.aligned):
        from ucutlass.tune.recall import recall

        program, origin = recall(checked, program, request.extents, arch, gpu.name, device, beyond=True)
    built = build_kernel(checked, program, request.extents, arch, device=device, aligned=request.aligned)
    origins[request] = origin
    return bind(built, program.name)


def checked_arch(wanted: str | None, gpu: str, capability: tuple[int, int]) -> str:
    """The compile target for a GPU: the wanted one, or the best that its capability runs.

    Raises NoKernelsHere where none serves it.
    """
    if wanted is not None:
        return wanted
    found = arch_for(capability)
    if found is None:
        raise NoKernelsHere(
            f"no compile target serves {gpu} (compute capability {capability[0]}.{capability[1]}); "
            f"targets: {' '.join(ARCHES)}"
        )
    return found.name


def _facts(name: str, arch: str) -> Device | None:
    """The device's facts where the table has them; None plans for the target's default device."""
    device = device_named(name)
    return device if device is not None and device.capability >= ARCHES[arch].capability else None

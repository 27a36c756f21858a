"""This module describes a problem to whoever proposes: its program, its facts, its bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ucutlass import frontend, ir
from ucutlass.agent.module import TorchModule, match_module
from ucutlass.diagnostics import ProgramError
from ucutlass.ir.extents import evaluate
from ucutlass.ir.hardware import ARCHES, DEVICES, Device
from ucutlass.shapes import ShapeError, complete
from ucutlass.sol import report
from ucutlass.sol.bounds import bounds


@dataclass(frozen=True, slots=True)
class ProblemDescription:
    """`facts` and `bound` are lines of ours, numbers and all; `text`, `baseline` and `memory` are others'.
    `compute_type` is the least precision that a candidate may work in, "" where nothing says. `memory` are verified
    conclusions of earlier problems. Where a `module` says what is computed, `text` is a first program, ""
    where there is none yet, and extents follow from the module's shapes."""

    text: str
    program: str
    sizes: Mapping[str, int]
    arch: str
    device: str
    compute_type: str = ""
    facts: tuple[str, ...] = ()
    bound: tuple[str, ...] = ()
    baseline: str = ""
    memory: tuple[str, ...] = ()
    module: TorchModule | None = None

    @property
    def hardware(self) -> Device:
        return DEVICES[self.device]

    def extents(self, program: ir.Program) -> dict[str, int]:
        """Returns every extent of a candidate by name. Raises ShapeError, with what does not fit the
        module."""
        if self.module is None:
            return dict(zip(program.dims, complete(program, self.sizes), strict=True))
        met = match_module(program, self.module)
        if isinstance(met, str):
            raise ShapeError("UC0602", met)
        return dict(met.sizes)


def subject_of_module(
    module: TorchModule,
    checked: frontend.Checked | None,
    program: str,
    arch: str,
    device: str,
    *,
    compute_type: str = "",
    baseline: str = "",
    memory: Sequence[str] = (),
) -> ProblemDescription:
    """Does as `subject_of`, for what a PyTorch module says; `checked` is a first program, None without one.
    Raises ProgramError, ShapeError and KeyError of a first program."""
    text = "" if checked is None else checked.source
    description = ProblemDescription(
        text, program, {}, arch, device, compute_type, (), (), baseline, tuple(memory), module
    )
    if checked is None:
        return description
    typed = frontend.program(checked, program)
    extents = description.extents(typed)
    lines = bound_lines(checked, typed, extents, ARCHES[arch].name, DEVICES[device])
    return replace(description, facts=tuple(_facts(typed, extents)), bound=tuple(lines))


def subject_of(
    checked: frontend.Checked,
    program: str | None,
    sizes: Mapping[str, int],
    arch: str,
    device: str,
    *,
    compute_type: str = "",
    baseline: str = "",
    memory: Sequence[str] = (),
) -> ProblemDescription:
    """Returns the description of a problem with what the compiler knows of it. `device` is a name in
    `ucutlass.ir.hardware.DEVICES`. Raises ProgramError, ShapeError, and KeyError for a device or target that is
    not there."""
    typed = frontend.program(checked, program)
    extents = dict(zip(typed.dims, complete(typed, sizes), strict=True))
    lines = bound_lines(checked, typed, extents, ARCHES[arch].name, DEVICES[device])
    return ProblemDescription(
        checked.source,
        typed.name,
        dict(sizes),
        arch,
        device,
        compute_type,
        tuple(_facts(typed, extents)),
        tuple(lines),
        baseline,
        tuple(memory),
    )


def bound_lines(
    checked: frontend.Checked, program: ir.Program, extents: Mapping[str, int], arch: str, device: Device
) -> list[str]:
    """Returns what no kernel can beat, as `ucc sol` says it. Raises ShapeError."""
    planned = None
    if isinstance(program, ir.Kernel):
        try:
            chosen = frontend.plan_kernel(checked, program, tuple(extents.values()), arch, device)
            planned = chosen.planned
        except ProgramError:
            pass  # the bound of the fused program needs no plan
    sol_bounds = bounds(program, extents, device, planned=planned)
    return [f"{name}: {words}" for name, words in report.lines(sol_bounds)]


def _facts(program: ir.Program, extents: Mapping[str, int]) -> list[str]:
    extents_text = ", ".join(f"{name}={n}" for name, n in extents.items())
    lines = [f"extents: {extents_text}"]
    lines += [f"parameter {p.name}: {_shape(p.type, extents)}" for p in program.params]
    match program:
        case ir.Kernel():
            results = [(r.name, r.type) for r in program.results]
        case ir.Pipeline():
            results = list(program.results)
    lines += [f"result {name or '(unnamed)'}: {_shape(type_, extents)}" for name, type_ in results]
    return lines


def _shape(type_: ir.ParamType, extents: Mapping[str, int]) -> str:
    match type_:
        case ir.TensorType(elem, axes):
            shape = [evaluate(axis.extent, extents) for axis in axes]
            return f"{elem.name} of {' x '.join(map(str, shape)) or 'one element'}"
        case _:
            return "a number"

"""A problem as whoever proposes is told it: its program, its facts, its bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ucutlass import frontend, ir
from ucutlass.agent.module import TorchModule, meet
from ucutlass.diagnostics import ProgramError
from ucutlass.ir.extents import evaluate
from ucutlass.ir.hardware import ARCHES, DEVICES, Device
from ucutlass.shapes import ShapeError, complete
from ucutlass.sol import report
from ucutlass.sol.bounds import bounds


@dataclass(frozen=True, slots=True)
class ProblemDescription:
    """`facts` and `bound` are lines of ours, numbers and all; `text`, `baseline` and `memory` are others'.
    `lane` is the least precision that a candidate may work in, "" where nothing says. `memory` are verified
    conclusions of earlier problems. Where a `module` says what is computed, `text` is a first program, ""
    where there is none yet, and extents follow from the module's shapes."""

    text: str
    program: str
    sizes: Mapping[str, int]
    arch: str
    device: str
    lane: str = ""
    facts: tuple[str, ...] = ()
    bound: tuple[str, ...] = ()
    baseline: str = ""
    memory: tuple[str, ...] = ()
    module: TorchModule | None = None

    @property
    def hardware(self) -> Device:
        return DEVICES[self.device]

    def extents(self, program: ir.Program) -> dict[str, int]:
        """Every extent of a candidate by name. Raises ShapeError, with what does not fit the module."""
        if self.module is None:
            return dict(zip(program.dims, complete(program, self.sizes), strict=True))
        met = meet(program, self.module)
        if isinstance(met, str):
            raise ShapeError("UC0602", met)
        return dict(met.sizes)


def subject_of_module(
    module: TorchModule,
    text: str,
    program: str,
    arch: str,
    device: str,
    *,
    lane: str = "",
    baseline: str = "",
    memory: Sequence[str] = (),
) -> ProblemDescription:
    """As `subject_of`, for what a PyTorch module says. Raises ProgramError, ShapeError and KeyError of a
    first program."""
    made = ProblemDescription(text, program, {}, arch, device, lane, (), (), baseline, tuple(memory), module)
    if not text:
        return made
    checked = frontend.read_text(text, "problem")
    found = frontend.program(checked, program)
    extents = made.extents(found)
    lines = bound_lines(checked, found, extents, ARCHES[arch].name, DEVICES[device])
    return replace(made, facts=tuple(_facts(found, extents)), bound=tuple(lines))


def subject_of(
    text: str,
    program: str | None,
    sizes: Mapping[str, int],
    arch: str,
    device: str,
    *,
    lane: str = "",
    baseline: str = "",
    memory: Sequence[str] = (),
) -> ProblemDescription:
    """With what the compiler knows of it. `device` is a name in `ucutlass.ir.hardware.DEVICES`. Raises
    ProgramError, ShapeError, and KeyError for a device or target that is not there."""
    checked = frontend.read_text(text, "problem")
    found = frontend.program(checked, program)
    extents = dict(zip(found.dims, complete(found, sizes), strict=True))
    lines = bound_lines(checked, found, extents, ARCHES[arch].name, DEVICES[device])
    return ProblemDescription(
        text,
        found.name,
        dict(sizes),
        arch,
        device,
        lane,
        tuple(_facts(found, extents)),
        tuple(lines),
        baseline,
        tuple(memory),
    )


def bound_lines(
    checked: frontend.Checked, program: ir.Program, extents: Mapping[str, int], arch: str, device: Device
) -> list[str]:
    """What no kernel can beat, as `ucc sol` says it. Raises ShapeError."""
    planned = None
    if isinstance(program, ir.Kernel):
        try:
            chosen = frontend.plan_kernel(checked, program, tuple(extents.values()), arch, device)
            planned = chosen.planned
        except ProgramError:
            pass  # the bound of the fused program needs no plan
    found = bounds(program, extents, device, planned=planned)
    return [f"{name}: {words}" for name, words in report.lines(found)]


def _facts(program: ir.Program, extents: Mapping[str, int]) -> list[str]:
    given = ", ".join(f"{name}={n}" for name, n in extents.items())
    lines = [f"extents: {given}"]
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

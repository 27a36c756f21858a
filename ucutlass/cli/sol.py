"""This module is `ucc sol`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ucutlass import frontend, ir
from ucutlass.cli import gpu, inputs
from ucutlass.cli.cpu_limit import cpu_limited
from ucutlass.cli.errors import Status, fail, reported
from ucutlass.cli.options import PositiveNumber, RenamedOption, json_option, kernel_option, sizes_option
from ucutlass.cli.outputs import OutputPath
from ucutlass.cli.sol_show import SolRequest, present
from ucutlass.diagnostics import ProgramError
from ucutlass.ir.hardware import DEVICES, Device, arch_for, device_named
from ucutlass.ir.schedule import show as show_schedule
from ucutlass.kernels.planned import Planned
from ucutlass.runtime import calibrate
from ucutlass.runtime.module.work import POLICIES, ComputePolicy
from ucutlass.shapes import ShapeError, complete, parse_sizes
from ucutlass.sol.bounds import Regime, bounds
from ucutlass.sol.ceilings import Ceilings, CeilingsError, from_json


@click.command("sol")
@click.argument("file", type=inputs.existing())
@sizes_option
@kernel_option
@click.option(
    "--device", type=click.Choice(tuple(DEVICES)), help="GPU to bound for: the one here, else H200."
)
@click.option(
    "--time",
    "microseconds",
    type=PositiveNumber(),
    metavar="MICROSECONDS",
    help="A measured time, for the gap.",
)
@click.option(
    "--regime",
    type=click.Choice(("cold", "warm")),
    default="cold",
    show_default=True,
    help="Whether data comes from DRAM, or what fits lies in the L2 already.",
)
@click.option(
    "--ceilings",
    type=inputs.existing(),
    help="Measured ceilings; by default those that `ucc calibrate` kept for such a GPU.",
)
@click.option(
    "--compute-type",
    "--lane",
    "policy",
    cls=RenamedOption,
    type=click.Choice(POLICIES),
    help="The compute type of a PyTorch module's float32 products; by default pytorch, which is PyTorch's own choice.",
)
@click.option("--roofline", type=OutputPath(), metavar="FILE", help="Write a picture, SVG.")
@json_option
def command(
    file: Path,
    sizes: tuple[str, ...],
    name: str | None,
    device: str | None,
    microseconds: float | None,
    regime: Regime,
    ceilings: Path | None,
    policy: ComputePolicy | None,
    roofline: Path | None,
    as_json: bool,
) -> None:
    """Say what no kernel for FILE's program can beat: its speed of light on a device.

    FILE is a `.ucu` kernel or pipeline, or a PyTorch problem (`.py`). Prints what limits it, three bounds
    with their terms, and with --time how far a kernel is from them. Needs no GPU.
    """
    with reported(as_json):
        chosen = DEVICES[device] if device else _device_here()
        measured = _ceilings(chosen, ceilings, as_json)
        seconds = None if microseconds is None else microseconds * 1e-6
        request = SolRequest(chosen, measured, seconds, regime, roofline, as_json, policy or "pytorch")
        if file.suffix == ".py":
            _module(file, sizes, request)
        elif policy is not None:
            fail(
                Status.CALL,
                f"{file}: a .ucu program names its own compute types; leave --compute-type out",
                as_json,
            )
        else:
            with cpu_limited(file):
                _program(file, sizes, name, request)


def _device_here() -> Device:
    local_gpu = gpu.at_hand()
    return local_gpu.device if local_gpu and local_gpu.device else DEVICES["H200"]


def _ceilings(device: Device, file: Path | None, as_json: bool) -> Ceilings | None:
    """Returns the ceilings of a file, or the newest kept here for such a GPU."""
    try:
        if file is not None:
            from_file = _read(file)
            if device_named(from_file.device) is not device:
                fail(Status.CALL, f"{file} is of {from_file.device}, not of {device.name}", as_json)
            return from_file
        calibrations = [_read(path) for path in calibrate.ceiling_files()]
    except CeilingsError as problem:
        fail(Status.MACHINE, str(problem), as_json)
    mine = [c for c in calibrations if device_named(c.device) is device]
    return max(mine, key=lambda c: c.created, default=None)


def _read(file: Path) -> Ceilings:
    """Reads ceilings as `ucc calibrate` writes them, or the ceilings alone."""
    text, shown = inputs.content(file).decode(errors="replace"), inputs.shown(file)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise CeilingsError(f"{shown} is not JSON: {problem}; run `ucc calibrate`, or remove it") from None
    inner = content.get("ceilings") if isinstance(content, dict) else None
    try:
        return from_json(text if inner is None else json.dumps(inner))
    except CeilingsError as problem:
        raise CeilingsError(f"{shown}: {problem}") from None


def _module(file: Path, sizes: tuple[str, ...], request: SolRequest) -> None:
    """Bounds a PyTorch problem file: `ucutlass.cli.sol_module` counts it and prints."""
    from ucutlass.cli.sol_module import report

    if sizes:
        words = f"{file}: a PyTorch problem brings its own extents; leave -s out"
        fail(Status.CALL, words, request.as_json)
    report(file, request)


def _program(file: Path, sizes: tuple[str, ...], name: str | None, request: SolRequest) -> None:
    checked = inputs.read(file)
    program = _pick(checked, name)
    extents = complete(program, parse_sizes(sizes))
    by_name = dict(zip(program.dims, extents, strict=True))
    with checked.limits(program):
        planned, why = _plan(checked, program, extents, request.device)
        sol_bounds = bounds(
            program,
            by_name,
            request.device,
            planned=planned,
            ceilings=request.ceilings,
            regime=request.regime,
        )
    title = f"{program.name} {' '.join(f'{n}={v}' for n, v in by_name.items())}"
    present(title, sol_bounds, request, {"program": program.name, "sizes": by_name, "plan": why})


def _pick(checked: frontend.Checked, name: str | None) -> ir.Program:
    """Returns the kernel or pipeline of this name, the file's only program, or its only pipeline: the kernels
    beside it are its launches. Raises ShapeError UC0601 where that names none."""
    programs = {p.name: p for p in checked.module.programs}
    pipelines = [p.name for p in programs.values() if isinstance(p, ir.Pipeline)]
    for only in (list(programs), pipelines):
        if name is None and len(only) == 1:
            (name,) = only
    if name is None or name not in programs:
        raise ShapeError(
            "UC0601",
            f"{checked.file} has {', '.join(programs) or 'no program'}: say which one with --kernel NAME",
        )
    return programs[name]


def _plan(
    checked: frontend.Checked, program: ir.Program, extents: tuple[int, ...], device: Device
) -> tuple[Planned | None, str]:
    """Returns the plan behind the realistic bound, or why there is none."""
    arch = arch_for(device.capability)
    if isinstance(program, ir.Pipeline):
        return None, "none: a pipeline is not planned as one unit"
    if arch is None:
        return None, f"none: {device.name} has no compile target"
    try:
        planned = frontend.plan_kernel(checked, program, extents, arch.name, device).planned
    except ProgramError as problem:
        first = problem.diagnostics[0]
        return None, f"none: {first.message} [{first.code}]"
    return planned, f"{arch.name} {{ {show_schedule(planned.request)} }}"

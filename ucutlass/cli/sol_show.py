"""This module holds what `ucc sol` was asked for, and shows its bounds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ucutlass.cli import show
from ucutlass.cli.errors import Status, fail
from ucutlass.cli.outputs import write
from ucutlass.ir.hardware import Device
from ucutlass.runtime.module.work import ComputePolicy
from ucutlass.sol import roofline as picture
from ucutlass.sol.bounds import Regime, TimeBounds
from ucutlass.sol.ceilings import Ceilings
from ucutlass.sol.report import lines, row


@dataclass(frozen=True, slots=True)
class SolRequest:
    """Describes what the command was asked for beside the file; `seconds` is a measured time, `policy` the
    compute type in which a PyTorch problem's float32 products count."""

    device: Device
    ceilings: Ceilings | None
    seconds: float | None
    regime: Regime
    roofline: Path | None
    as_json: bool
    policy: ComputePolicy = "pytorch"


def present(title: str, sol_bounds: TimeBounds, request: SolRequest, more: dict[str, Any]) -> None:
    """Prints bounds, under the words of `more`, and writes the picture. `title` heads the picture."""
    if request.roofline is not None:
        try:
            text = picture.svg(title, sol_bounds, request.device, request.seconds)
        except picture.RooflineError as problem:
            fail(Status.PROGRAM, str(problem), request.as_json)
        write(request.roofline, text)
    if request.as_json:
        show.data(more | row(sol_bounds, request.seconds))
        return
    head = [(key, value if isinstance(value, str) else _value_text(value)) for key, value in more.items()]
    tail = [] if request.roofline is None else [("roofline", str(request.roofline))]
    show.table(("", ""), head + lines(sol_bounds, request.seconds) + tail)


def _value_text(value: Any) -> str:
    return " ".join(f"{n}={v}" for n, v in value.items()) if isinstance(value, dict) else str(value)

"""This module is `ucc calibrate`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ucutlass.cli import show
from ucutlass.cli.errors import Status, fail, reported
from ucutlass.cli.options import WholeNumber, json_option, seconds_option
from ucutlass.ir.hardware import Device, device_named
from ucutlass.runtime import isolation, system
from ucutlass.runtime.bench.gpu_lock import NoGpu
from ucutlass.runtime.calibrate import RATES, Calibration, CeilingMeasurement, best, calibration, save
from ucutlass.runtime.store import EvidenceStore
from ucutlass.units import duration


@click.command("calibrate")
@click.option(
    "--device",
    "index",
    type=WholeNumber(0),
    default=0,
    show_default=True,
    help="Which of the GPUs that CUDA sees.",
)
@seconds_option("--limit", 600.0, "Seconds that measuring may take.")
@seconds_option("--wait", 300.0, "Seconds to wait for another process that times there.")
@json_option
def command(index: int, limit: float, wait: float, as_json: bool) -> None:
    """Measure the ceilings that this very GPU reaches, and keep them beside the data sheet.

    Copy and read bandwidth, L2 reads, matrix products of each compute type, and the launch floor, with the SM
    clock during each, in a process of its own. `ucc sol` takes them from then on. Exit status 3
    without a GPU.
    """
    with reported(as_json):
        _present(index)
        EvidenceStore.open().prepare()
        answer = _measured(index, limit, wait, as_json)
        result, sealed = calibration(answer)
        file = save(result)
        EvidenceStore.open().add(sealed)
    if as_json:
        show.data(_as_json(result, file))
    else:
        _report(result, file)


def _present(index: int) -> None:
    """Raises NoGpu where there is nothing to measure, BadParameter for an index beyond the last GPU."""
    driver = system.driver()
    if driver is None or not driver.gpus:
        why = "no NVIDIA driver" if driver is None else driver.problem or "the driver sees no GPU"
        raise NoGpu(f"no GPU to calibrate: {why}", "run `ucc calibrate` on a machine with an NVIDIA GPU")
    count = len(driver.gpus)
    if not 0 <= index < count:
        raise click.BadParameter(f"{index} is none of the {count} GPUs here", param_hint="--device")


def _measured(index: int, limit: float, wait: float, as_json: bool) -> dict[str, Any]:
    outcome = isolation.run(
        "ucutlass.tasks.calibrate:measure", {"index": index, "wait_seconds": wait}, limit_seconds=limit + wait
    )
    if not isinstance(outcome, isolation.Returned):
        fail(Status.MACHINE, isolation.failure_text(outcome, "the measurement"), as_json)
    assert isinstance(outcome.value, dict)
    return outcome.value


def _as_json(result: Calibration, file: Path) -> dict[str, Any]:
    return {
        "file": str(file),
        "ceilings": {
            name: getattr(result.ceilings, name) for name in result.ceilings.__slots__ if name != "flops"
        }
        | {"flops": dict(result.ceilings.flops)},
        "versions": dict(result.versions),
        "readings": [asdict(r) for r in result.readings],
        "refused": [asdict(r) for r in result.refused],
    }


def _report(result: Calibration, file: Path) -> None:
    device = device_named(result.ceilings.device)
    rows = [_row(r, device) for r in best(result.readings).values()]
    show.table(("", "reached", "of the data sheet", "spread", "SM clock", "by"), rows)
    for refused in result.refused:
        show.line("not measured", refused.quantity, f"{refused.name}: {refused.why}")
    show.line("kept", str(file))


def _row(reading: CeilingMeasurement, device: Device | None) -> tuple[str, ...]:
    clock = "unknown" if reading.clock is None else f"{reading.clock / 1e6:.0f} MHz"
    if reading.quantity == "launch_floor":
        reached = duration(reading.seconds)
    elif reading.quantity in RATES:
        reached = f"{reading.rate / 1e12:.3f} TB/s"
    else:
        reached = f"{reading.rate / 1e12:.1f} TFLOP/s"
    sheet = _sheet(reading.quantity, device)
    share = "" if sheet is None else f"{reading.rate / sheet:.0%}"
    return reading.quantity, reached, share, f"{reading.spread:.1%}", clock, reading.name


def _sheet(quantity: str, device: Device | None) -> float | None:
    """Returns what the data sheet says of a quantity; None where it says nothing."""
    if device is None or quantity in ("l2", "launch_floor"):
        return None
    return device.bandwidth if quantity in RATES else device.peaks.get(quantity)

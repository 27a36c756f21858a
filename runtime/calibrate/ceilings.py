"""Turns measured rates of this GPU into `Ceilings` and stores them.

Everything here is arithmetic and files. The probes are in `probes`, the device in
`cuda`; a `ProbeTimer` stands between.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from ucutlass.files import write
from ucutlass.runtime import folders, switches
from ucutlass.runtime.errors import FolderUntrusted, FolderUnusable, MachineError
from ucutlass.runtime.evidence import Machine, Record, RecordSubject
from ucutlass.runtime.statistics import summary
from ucutlass.runtime.store.records import record
from ucutlass.sol.ceilings import Ceilings, CeilingsError, from_json, to_json

FOLDER = "ceilings"
"""Below the data folder (UCUTLASS_DATA_DIR)."""

RATES = ("copy", "read", "l2")
"""Quantities in bytes per second; `launch_floor` is in seconds, every other is a compute type in FLOP/s."""


class CalibrationFailed(MachineError):
    """A ceiling that every bound needs could not be measured."""


# --- measuring --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProbeTimes:
    """Seconds a launch, one number for each repeat, and the SM clock in Hz over all of them; None
    where it could not be read."""

    seconds: tuple[float, ...]
    clock: float | None


class ProbeTimer(Protocol):
    """The device, as far as calibrating needs it."""

    def time(self, launch: Callable[[], object], launches: int, repeats: int) -> ProbeTimes:
        """Returns `repeats` times, how long `launches` of them take one after another, without the host."""


@dataclass(frozen=True, slots=True)
class CeilingProbe:
    """One way to reach one ceiling. `quantity` is of RATES, `launch_floor` or a compute type; `amount` the
    bytes or operations of a launch; `make` allocates and gives the launch."""

    quantity: str
    name: str
    amount: float
    make: Callable[[], Callable[[], object]]


@dataclass(frozen=True, slots=True)
class CalibrationProtocol:
    """Seconds. `warmup` of a matrix product before the first measurement: clocks settle in about three
    seconds of load. A repeat takes at least `window`; the rate is of the median of `repeats`."""

    warmup: float = 3.0
    window: float = 0.02
    repeats: int = 15
    most_launches: int = 2000


@dataclass(frozen=True, slots=True)
class CeilingMeasurement:
    """`seconds` is the median of a launch, `spread` the median absolute deviation over it, `rate` the
    amount over the median (for `launch_floor` the seconds themselves)."""

    quantity: str
    name: str
    amount: float
    launches: int
    seconds: float
    spread: float
    rate: float
    clock: float | None


@dataclass(frozen=True, slots=True)
class RefusedProbe:
    """A probe that this machine could not run, with its words."""

    quantity: str
    name: str
    why: str


def measure(
    probe: CeilingProbe, ruler: ProbeTimer, method: CalibrationProtocol
) -> CeilingMeasurement | RefusedProbe:
    """Times one probe. What torch or the driver refuses is an answer: memory, an element type, or,
    as AttributeError, a type or function that this torch does not have."""
    try:
        launch = probe.make()
        launch()
        once = min(ruler.time(launch, 1, 3).seconds)
        launches = min(method.most_launches, max(1, math.ceil(method.window / once)))
        timed = ruler.time(launch, launches, method.repeats)
    except (RuntimeError, AttributeError) as error:
        if isinstance(error, AttributeError) and not _is_of_torch(error.obj):
            raise  # a slip of ours
        first = str(error).partition("\n")[0]
        return RefusedProbe(probe.quantity, probe.name, f"{type(error).__name__}: {first}")
    of = summary(timed.seconds)
    rate = of.median if probe.quantity == "launch_floor" else probe.amount / of.median
    return CeilingMeasurement(
        probe.quantity, probe.name, probe.amount, launches, of.median, of.mad, rate, timed.clock
    )


def _is_of_torch(where: object) -> bool:
    return isinstance(where, ModuleType) and where.__name__.partition(".")[0] == "torch"


def warm(launch: Callable[[], object], ruler: ProbeTimer, seconds: float) -> None:
    """Keeps the device busy with a launch for this long, by its own clock."""
    spent = 0.0
    while spent < seconds:
        once = min(ruler.time(launch, 1, 1).seconds)
        spent += once
        count = max(1, min(2000, math.ceil(0.2 / once)))
        spent += sum(ruler.time(launch, count, 1).seconds) * count


# --- the ceilings -----------------------------------------------------------------


def best(readings: Sequence[CeilingMeasurement]) -> dict[str, CeilingMeasurement]:
    """Returns for each quantity the reading with the highest rate; for the launch floor the shortest."""
    fastest: dict[str, CeilingMeasurement] = {}
    for reading in readings:
        held = fastest.get(reading.quantity)
        lower = reading.quantity == "launch_floor"
        if held is None or (reading.rate < held.rate if lower else reading.rate > held.rate):
            fastest[reading.quantity] = reading
    return fastest


def ceilings(
    device: str, uuid: str, readings: Sequence[CeilingMeasurement], *, evidence: str = "", created: str = ""
) -> Ceilings:
    """Returns the ceilings that readings show. Raises CalibrationFailed where copy, read, the launch
    floor, every compute type or every clock is missing."""
    reached = best(readings)
    peaks = {q: r.rate for q, r in reached.items() if q not in (*RATES, "launch_floor")}
    clocks = [r.clock for q, r in reached.items() if q in peaks and r.clock is not None]
    missing = [q for q in ("copy", "read", "launch_floor") if q not in reached]
    missing += [what for what, has in (("any matrix product", peaks), ("the SM clock", clocks)) if not has]
    if missing:
        raise CalibrationFailed(
            f"{device}: {', '.join(missing)} could not be measured",
            "run `ucc calibrate --json` and read why each probe was refused",
        )
    l2 = reached["l2"].rate if "l2" in reached else None
    return Ceilings(
        device,
        uuid,
        peaks,
        reached["copy"].rate,
        reached["read"].rate,
        l2,
        reached["launch_floor"].rate,
        sorted(clocks)[len(clocks) // 2],
        evidence,
        created,
    )


# --- the file ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Calibration:
    """Ceilings with all that they were made of. `versions` names driver, CUDA and torch, `method` has
    the fields of a CalibrationProtocol."""

    ceilings: Ceilings
    versions: Mapping[str, str]
    method: Mapping[str, Any]
    readings: tuple[CeilingMeasurement, ...]
    refused: tuple[RefusedProbe, ...]


def path(device: str, uuid: str, folder: Path | None = None) -> Path:
    """Returns the file of a GPU's ceilings. Names come from a driver and are cut to plain letters first.
    Raises FolderUnusable, FolderUntrusted."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", f"{device} {uuid}").strip("-")[:120]
    return _folder(folder) / f"{name}.json"


def ceiling_files() -> list[Path]:
    """Returns the files of every GPU's ceilings that this user has. Raises as `path`."""
    return sorted(_folder(None).glob("*.json"))


def _folder(folder: Path | None) -> Path:
    data = switches.read().data_dir
    for checked in (folder,) if folder is not None else (data, data / FOLDER):
        folders.check(checked, switches.DATA_DIR, FolderUnusable, FolderUntrusted)
    return folder or data / FOLDER


def to_file(calibration: Calibration) -> str:
    """Returns the text of the file."""
    content = {
        "ceilings": json.loads(to_json(calibration.ceilings)),
        "versions": dict(calibration.versions),
        "method": dict(calibration.method),
        "readings": [asdict(r) for r in calibration.readings],
        "refused": [asdict(r) for r in calibration.refused],
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def save(calibration: Calibration, folder: Path | None = None) -> Path:
    """Writes the file in one step, over an older one of this GPU."""
    file = path(calibration.ceilings.device, calibration.ceilings.uuid, folder)
    folders.make(file.parent)
    write(file, to_file(calibration))
    return file


def load(device: str, uuid: str, folder: Path | None = None) -> Ceilings | None:
    """Returns the ceilings that were kept for this very GPU, by the driver's name and its UUID; None where
    there are none. Raises CeilingsError for a file that cannot be read or is another GPU's."""
    file = path(device, uuid, folder)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        content: Any = json.loads(text)
    except ValueError as error:
        raise CeilingsError(f"{file} is not JSON: {error}; run `ucc calibrate` again") from None
    if not isinstance(content, dict) or "ceilings" not in content:
        raise CeilingsError(f"{file} holds no ceilings; run `ucc calibrate` again")
    loaded = from_json(json.dumps(content["ceilings"]))
    if (loaded.device, loaded.uuid) != (device, uuid):
        raise CeilingsError(
            f"{file} is of {loaded.device} {loaded.uuid}, not of {device} {uuid}; run `ucc calibrate` again"
        )
    return loaded


# --- from the process that measured -----------------------------------------------


def calibration(answer: Mapping[str, Any]) -> tuple[Calibration, Record]:
    """Returns what `ucutlass.tasks.calibrate.measure` answered, and the sealed record that it rests on.

    Raises CalibrationFailed where a ceiling is missing.
    """
    machine = Machine(**answer["machine"])
    readings = tuple(CeilingMeasurement(**r) for r in answer["readings"])
    refused = tuple(RefusedProbe(**r) for r in answer["refused"])
    result = {"readings": answer["readings"], "refused": answer["refused"]}
    sealed = record("calibrate", _SUBJECT, machine, answer["method"], result)
    measured = ceilings(machine.device, machine.uuid, readings, evidence=sealed.id, created=sealed.created)
    return Calibration(measured, machine.versions, answer["method"], readings, refused), sealed


_SUBJECT = RecordSubject("calibrate", "", "", "", "", "", {})
"""No program is measured: the machine is."""

"""Ceilings that one particular device was measured to reach, beside the data sheet's: `ucc calibrate` makes
them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


class CeilingsError(ValueError):
    """A text does not describe ceilings: it is not JSON, or an entry is missing, unknown or not a
    measurement."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Measured ceilings of one GPU; every number was measured on this device, none is from a data sheet.

    `device` is the driver's name and `uuid` the GPU's. `flops` maps entries of `Device.peaks` to FLOP/s (a
    multiply-add counts as two) of the best matrix product or, for `f32`, chain of FFMA that was measured; a
    compute type that was not measured is absent. `copy` and `read` are bytes per second at the memory
    interface, far outside the L2: `copy` counts each byte twice (read and written), `read` once. `l2` is
    bytes per second of reads that stay in the L2, None where it was not measured. `launch_floor` is the
    seconds that an empty kernel takes in a stream, `clock` the SM clock in Hz during the matrix products.
    `evidence` is the id of the sealed record behind it and `created` is UTC in ISO 8601; both are empty for
    ceilings that were made by hand.
    """

    device: str
    uuid: str
    flops: Mapping[str, float] = field(hash=False)
    copy: float
    read: float
    l2: float | None
    launch_floor: float
    clock: float
    evidence: str = ""
    created: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "flops", MappingProxyType(dict(self.flops)))
        numbers = {f"flops[{compute_type}]": value for compute_type, value in self.flops.items()}
        numbers |= {n: getattr(self, n) for n in ("copy", "read", "launch_floor", "clock")}
        if self.l2 is not None:
            numbers["l2"] = self.l2
        for name, value in numbers.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise CeilingsError(f"{name} of the ceilings of {self.device} is {value!r}, not a number")
            if not math.isfinite(value) or value <= 0:
                raise CeilingsError(f"{name} of the ceilings of {self.device} is {value}: not positive")

    @property
    def bandwidth(self) -> float:
        """The larger of `copy` and `read`: no mix of reads and writes was measured to be faster."""
        return max(self.copy, self.read)


def to_json(ceilings: Ceilings) -> str:
    """Returns the ceilings as one JSON object with sorted keys; `from_json` returns an equal value."""
    content = {name: getattr(ceilings, name) for name in ceilings.__slots__} | {"flops": dict(ceilings.flops)}
    return json.dumps(content, indent=2, sort_keys=True, allow_nan=False)


def from_json(text: str) -> Ceilings:
    """Returns the ceilings that a text holds. Raises CeilingsError naming the entry that is wrong."""
    try:
        content: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CeilingsError(f"the ceilings are no JSON: {error}") from None
    if not isinstance(content, dict):
        raise CeilingsError(f"the ceilings are a JSON {type(content).__name__}, not an object")
    needed = {"device", "uuid", "flops", "copy", "read", "l2", "launch_floor", "clock"}
    missing, unknown = needed - content.keys(), content.keys() - needed - {"evidence", "created"}
    if missing or unknown:
        problems = [f"no {name}" for name in sorted(missing)]
        problems += [f"{name!r}, unknown" for name in sorted(unknown)]
        raise CeilingsError(f"the ceilings have {', '.join(problems)}; run `ucc calibrate` again")
    texts = {name: content[name] for name in ("device", "uuid", "evidence", "created") if name in content}
    if any(not isinstance(word, str) for word in texts.values()) or not isinstance(content["flops"], dict):
        raise CeilingsError("of the ceilings, device, uuid, evidence and created are texts, flops an object")
    return Ceilings(**content)

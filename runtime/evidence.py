"""Evidence: one thing that was seen, with everything it hangs on, sealed by its hash.

A number without the program, binary, harness, device and protocol that it belongs to counts as
missing. Records are values: the store in `ucutlass.runtime.store` keeps them, and nothing else
decides what happened.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal["verify", "bench", "profile", "audit", "calibrate", "advice"]


@dataclass(frozen=True, slots=True)
class Subject:
    """What was looked at. `program`, `algorithm`, `source` and `binary` are hex SHA-256 of the
    file's text, of the kernel without its schedules, of the emitted code and of the library;
    empty where there is none, as for a baseline of PyTorch. `sizes` has every extent by name."""

    kernel: str
    program: str
    algorithm: str
    schedule: str
    arch: str
    lane: str
    sizes: Mapping[str, int]
    source: str = ""
    binary: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """Where it was seen. `device` is the driver's name, `uuid` the GPU's, both empty where it ran on
    a CPU; `versions` names the driver, CUDA, torch, nvcc, CUTLASS as far as they took part."""

    device: str
    uuid: str
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Record:
    """`harness` is the digest of this package's own code; `protocol` says how it was measured,
    `result` what came out, both as JSON values; `created` is UTC in ISO 8601; `parents` are the
    records that this one rests on. `id` seals all the rest: `sealed` makes it, `intact` checks it."""

    kind: Kind
    subject: Subject
    machine: Machine
    harness: str
    protocol: Mapping[str, Any]
    result: Mapping[str, Any]
    created: str
    parents: tuple[str, ...] = ()
    id: str = ""


def seal(record: Record) -> str:
    """Hex SHA-256 of everything in the record but its `id`.

    Raises ValueError for a NaN or infinity, TypeError for what is no JSON: neither is evidence.
    """
    content = asdict(replace(record, id=""))
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def sealed(record: Record) -> Record:
    """The record with its `id`."""
    return replace(record, id=seal(record))


def intact(record: Record) -> bool:
    """Whether the record still is what was sealed."""
    return record.id == seal(record)

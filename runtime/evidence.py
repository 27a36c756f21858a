"""Defines an evidence record: one observation with everything it depends on, sealed by its hash.

A number without the program, binary, harness, device and protocol that it belongs to counts as
missing. Records are values: the store in `ucutlass.runtime.store` keeps them, and nothing else
decides what happened.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NoReturn, TypeAlias, get_args

ADOPTED = "adopted source "
"""Begins the `schedule` of a record whose kernel was written by hand; the digest of its code follows."""

EvidenceKind: TypeAlias = Literal["verify", "bench", "profile", "audit", "calibrate", "advice", "tune"]


@dataclass(frozen=True, slots=True)
class RecordSubject:
    """What was looked at. `program`, `algorithm`, `source` and `binary` are hex SHA-256 of the
    file's text, of the computation (no names, no schedules), of the emitted code and of the library;
    empty where there is none, as for a baseline of PyTorch. `lane` is the compute type, under the key
    that sealed records have. `sizes` has every extent by name.
    `ucutlass.runtime.subject` makes them."""

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

    kind: EvidenceKind
    subject: RecordSubject
    machine: Machine
    harness: str
    protocol: Mapping[str, Any]
    result: Mapping[str, Any]
    created: str
    parents: tuple[str, ...] = ()
    id: str = ""


KINDS: tuple[EvidenceKind, ...] = get_args(EvidenceKind)


def seal(record: Record) -> str:
    """Returns the hex SHA-256 of everything in the record but its `id`.

    Raises ValueError for a NaN, an infinity or a whole number beyond every float, TypeError for what
    is not JSON: none is evidence.
    """
    return hashlib.sha256(_text(_content(replace(record, id=""))).encode()).hexdigest()


def sealed(record: Record) -> Record:
    """Returns the record with its `id`."""
    return replace(record, id=seal(record))


def intact(record: Record) -> bool:
    """Returns whether the record still is what was sealed."""
    return record.id == seal(record)


# --- as text ---------------------------------------------------------------------


def to_json(record: Record) -> str:
    """Returns the record as one line of JSON: sorted keys, no blanks, ASCII. Raises as `seal`."""
    return _text(_content(record))


def from_json(text: str) -> Record:
    """Returns the record that `to_json` wrote; its seal is not checked.

    Raises ValueError, with the field, for a text that is no such record: other fields, other types,
    a NaN or infinity.
    """
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite, parse_int=_bounded_integer)
    except RecursionError:
        raise ValueError("the text nests too deeply") from None
    facts = _fields(value, "record", Record)
    facts["subject"] = RecordSubject(**_fields(facts["subject"], "subject", RecordSubject))
    facts["machine"] = Machine(**_fields(facts["machine"], "machine", Machine))
    facts["parents"] = tuple(facts["parents"])
    if facts["kind"] not in KINDS:
        raise ValueError(f"kind is {facts['kind']!r}, not one of {', '.join(KINDS)}")
    return Record(**facts)


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _content(record: Record) -> dict[str, Any]:
    return {name: _plain(getattr(record, name), name) for name in _names(Record)}


def _plain(value: Any, where: str) -> Any:
    """Returns the value as JSON reads it back: mappings with text for keys, lists. Keys that are not text
    would be written as text and then sort, and seal, otherwise."""
    match value:
        case RecordSubject() | Machine():
            return {name: _plain(getattr(value, name), name) for name in _names(type(value))}
        case Mapping():
            if wrong := [key for key in value if not isinstance(key, str)]:
                raise TypeError(f"a key in {where} is {wrong[0]!r}: JSON takes text alone")
            return {key: _plain(inner, key) for key, inner in value.items()}
        case list() | tuple():
            return [_plain(inner, where) for inner in value]
        case int() if abs(value) > _MOST:
            raise ValueError(f"a whole number in {where} is beyond all that a float holds: no evidence")
        case _:
            return value


def _names(kind: type[Record] | type[RecordSubject] | type[Machine]) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind))


_MAPPINGS: Mapping[str, type] = {"sizes": int, "versions": str, "protocol": object, "result": object}
_INNER = ("subject", "machine")


def _fields(
    value: Any, what: str, kind: type[Record] | type[RecordSubject] | type[Machine]
) -> dict[str, Any]:
    names = _names(kind)
    if not isinstance(value, dict) or set(value) != set(names):
        raise ValueError(f"the {what} lacks the fields {', '.join(names)}")
    for name, inner in value.items():
        if not _right(name, inner):
            raise ValueError(f"{what}: {name} is {str(inner)[:80]!r}, which it cannot be")
    return value


def _right(name: str, value: Any) -> bool:
    if name in _INNER:
        return True
    if name == "parents":
        return isinstance(value, list) and all(isinstance(v, str) for v in value)
    if name in _MAPPINGS:
        inner = _MAPPINGS[name]
        return isinstance(value, dict) and all(
            isinstance(v, inner) and not (inner is int and isinstance(v, bool)) for v in value.values()
        )
    return isinstance(value, str)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no evidence")


_MOST = sys.float_info.max
"""Of whole numbers too: JSON knows no end of them, and who computes with one would fall."""


def _bounded_integer(digits: str) -> int:
    value = int(digits)
    if abs(value) > _MOST:
        _refuse(f"{digits[:20]}..")
    return value


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        _refuse(digits)
    return value

"""Parses what ran on the device by CUPTI from the Chrome trace that `torch.profiler` exports.

The format is Kineto's (libkineto/src/output_json.cpp and CuptiActivity.cpp): `ts` and `dur` count
microseconds with three decimals, `args` of a device event carry `stream`, `correlation` and,
from CUDA 12 on, `graph id`, which is 0 for work that no graph launched.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, TypeAlias

DeviceEventKind: TypeAlias = Literal["kernel", "memcpy", "memset"]

_KINDS: Mapping[str, DeviceEventKind] = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}


class TraceUnreadable(Exception):
    """The profiler's output is not of the known form."""


@dataclass(frozen=True, slots=True)
class DeviceEvent:
    """A kernel, copy or fill. `start` and `end` are nanoseconds on one time line; `stream` is CUPTI's
    number of the stream, which is no handle; `graph` is 0 outside of graphs."""

    name: str
    kind: DeviceEventKind
    start: int
    end: int
    stream: int
    correlation: int
    graph: int = 0


def parse(text: str) -> tuple[DeviceEvent, ...]:
    """Returns the device's events in the order in which they started.

    Raises TraceUnreadable.
    """
    try:
        # Decimal: seven microsecond digits behind a time line of weeks do not all fit a float.
        rows = json.loads(text, parse_float=Decimal)["traceEvents"]
        events = [_event(row) for row in rows if row.get("ph") == "X" and row.get("cat") in _KINDS]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TraceUnreadable(f"the profiler's trace cannot be read: {error!r}") from error
    return tuple(sorted(events, key=lambda e: (e.start, e.end)))


def _event(row: Mapping[str, Any]) -> DeviceEvent:
    start = _nanoseconds(row["ts"])
    args = row["args"]
    return DeviceEvent(
        str(row["name"]),
        _KINDS[row["cat"]],
        start,
        start + _nanoseconds(row["dur"]),
        int(args["stream"]),
        int(args.get("correlation", 0)),
        int(args.get("graph id", 0)),
    )


def _nanoseconds(microseconds: Decimal | int) -> int:
    return int(Decimal(microseconds) * 1000)

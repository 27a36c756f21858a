"""Says which kernels a call launches, in the order of the device's clock, and how long each takes."""

from __future__ import annotations

import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch

KernelTime: TypeAlias = tuple[str, float, float, int, int]
"""Name, begin and duration in microseconds, blocks, stream."""

DEVICE_EVENTS = ("kernel", "gpu_memcpy", "gpu_memset")
NAME_LETTERS = 120


def kernel_times(call: Callable[[], object]) -> list[KernelTime]:
    """Returns what one call launches, as a CUDA graph where it can be captured. The first begins at 0."""
    from ucutlass.runtime.bench.cuda import graph_of

    def launch() -> None:
        call()

    launch()
    torch.cuda.synchronize()
    try:
        replay: Callable[[], object] = graph_of(launch).replay
    except RuntimeError:
        torch.cuda.synchronize()
        replay = call
    for _ in range(3):
        replay()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        replay()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(file))
        events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    return in_order(events)


def in_order(events: Sequence[Mapping[str, Any]]) -> list[KernelTime]:
    """Returns the device's events of a Chrome trace."""
    launched = sorted((e for e in events if e.get("cat") in DEVICE_EVENTS), key=lambda e: e["ts"])
    first = launched[0]["ts"] if launched else 0.0
    return [
        (
            shortened(e["name"]),
            round(e["ts"] - first, 2),
            round(e["dur"], 2),
            _blocks(e.get("args", {})),
            int(e.get("args", {}).get("stream", 0)),
        )
        for e in launched
    ]


def _blocks(arguments: Mapping[str, Any]) -> int:
    blocks = 1
    for extent in arguments.get("grid", ()):
        blocks *= int(extent)
    return blocks


def shortened(name: str) -> str:
    """Returns a kernel's name without its arguments and namespaces that say nothing."""
    return re.sub(r"\(anonymous namespace\)::|^void ", "", name).partition("(")[0][:NAME_LETTERS]


def by_name(times: Sequence[KernelTime]) -> list[tuple[str, int, float]]:
    """Returns kernels with the number of their launches and their time together, the slowest first."""
    together: dict[str, list[float]] = defaultdict(list)
    for name, _, us, _, _ in times:
        together[name].append(us)
    rows = [(name, len(taken), round(sum(taken), 2)) for name, taken in together.items()]
    return sorted(rows, key=lambda row: -row[2])

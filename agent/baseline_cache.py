"""This module keeps on disk how fast a module runs in ways that take torch long to prepare, so that no other session
on the same machine has them prepared again.

A time belongs to the module's text, its mode and precision, the GPU, its driver, torch, and the protocol by which it
was measured: whatever differs is another entry.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ucutlass import files
from ucutlass.agent.module import TorchModule
from ucutlass.runtime import folders, switches
from ucutlass.runtime.bench.protocol import Protocol
from ucutlass.runtime.subject import driver_version

FOLDER = "baselines"
"""Of the data folder."""

MOST_ENTRIES = 4096
"""Of the folder: the oldest go first."""

MOST_BYTES = 1 << 16
"""Of an entry."""


@dataclass(frozen=True, slots=True)
class BaselineRatio:
    """The time of eager PyTorch over that of another way, in turns with it: `low` and `high` bound it at 95 %."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class BaselineCache:
    """Entries in a folder of this user's. One that cannot be read counts as none."""

    folder: Path

    @staticmethod
    def open() -> BaselineCache:
        """Returns the user's own; nothing is made before it is needed."""
        return BaselineCache(switches.read().data_dir / FOLDER)

    def find(self, key: str) -> BaselineRatio | None:
        with suppress(OSError, ValueError):
            match json.loads(files.read_text(self._path(key), MOST_BYTES)):
                case {"eager": {"median": float(median), "low": float(low), "high": float(high)}}:
                    if all(math.isfinite(x) and x > 0 for x in (median, low, high)):
                        return BaselineRatio(median, low, high)
        return None

    def add(self, key: str, about: Mapping[str, Any], ratio: BaselineRatio) -> None:
        """Raises OSError."""
        folders.make(self.folder)
        files.put(
            self._path(key), json.dumps({"eager": asdict(ratio), "about": dict(about)}, indent=1) + "\n"
        )
        entries = sorted(self.folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
        for path in entries[:-MOST_ENTRIES]:
            path.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"


def about_baseline(module: TorchModule, way: str, gpu: str, protocol: Protocol) -> dict[str, Any]:
    """Returns all that a time depends on; `gpu` is the driver's name of it."""
    return {
        "source": hashlib.sha256(module.source.encode("utf-8", "surrogatepass")).hexdigest(),
        "mode": module.mode,
        "precision": module.precision,
        "way": way,
        "gpu": gpu,
        "driver": driver_version(),
        "torch": metadata.version("torch"),
        "protocol": asdict(protocol),
    }


def key_of(about: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()

"""What every benchmark's table carries: the machine, and the mean of ratios."""

from __future__ import annotations

import math
import platform
import subprocess

import torch


def geomean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def machine() -> dict[str, str]:
    """Device and versions, for the table's head."""
    query = "name,driver_version,clocks.sm,clocks.max.sm,power.limit"
    smi = subprocess.run(
        ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    return {
        "gpu": smi.stdout.strip().splitlines()[0] if smi.stdout else torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
    }

"""Records for tests, and what other processes do to a store."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ucutlass.runtime.evidence import Machine, Record, RecordSubject, sealed

ROOT = Path(__file__).parent.parent.parent

SUBJECT = RecordSubject(
    "linear", "a" * 64, "b" * 64, "warps pingpong", "sm90a", "bf16", {"M": 64, "N": 128}, "c" * 64, "d" * 64
)
MACHINE = Machine("NVIDIA H200", "GPU-0f1e", {"torch": "2.11.0", "driver": "570.124.06"})


def made(number: int = 0, **changes: Any) -> Record:
    """A sealed record, unlike those of other numbers."""
    plain = Record(
        "bench",
        SUBJECT,
        MACHINE,
        "e" * 64,
        {"clock": "events", "seed": number},
        {"median": 1.5},
        f"2026-03-01T12:{number // 60 % 60:02}:{number % 60:02}.000000+00:00",
    )
    return sealed(replace(plain, **changes))


def about(number: int = 0, subject: Mapping[str, Any] | None = None, **machine: Any) -> Record:
    """As `made`, with fields of the subject and the machine changed."""
    return made(number, subject=replace(SUBJECT, **subject or {}), machine=replace(MACHINE, **machine))


def python(code: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Code in a process of its own that finds the package and this module."""
    paths = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(Path(__file__).parent)!r}]\n"
    return subprocess.Popen(
        [sys.executable, "-c", paths + code, *arguments],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )

"""Keeps the versions that programs and libraries report, from process to process.

To ask a compiler takes ten milliseconds, to load one that is a library twenty; a warm load of a kernel needs
the versions alone. An answer holds as long as the file is the same: its path, size and time of change. A
script may start anything, so only machine code is remembered.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ucutlass.files import write
from ucutlass.runtime import folders, switches

_FILE = "versions.json"
_ELF = b"\x7fELF"


def version(path: Path, ask: Callable[[], str]) -> str:
    """Returns what `ask` says of the file, or said when it was asked last. What it raises is not kept."""
    name = _name(path)
    if name is None:
        return ask()
    folder = switches.read().cache_dir
    if folders.others_may_write(Path(os.path.realpath(folder)), Path(os.path.realpath(folder / _FILE))):
        return ask()  # whoever wants more of that folder than versions is told why it is not used
    file = folder / _FILE
    answers = _read(file)
    if name in answers:
        return answers[name]
    answer = ask()
    _write(file, {**answers, name: answer})
    return answer


def _name(path: Path) -> str | None:
    """Returns the file and its state; None for what is not machine code, or cannot be read."""
    try:
        real = path.resolve()
        with real.open("rb") as content:
            if content.read(len(_ELF)) != _ELF:
                return None
        stat = real.stat()
    except OSError:
        return None
    return f"{real} {stat.st_size} {stat.st_mtime_ns}"


def _read(file: Path) -> dict[str, str]:
    """A file that is not there, damaged or of another form is as one without answers."""
    try:
        answers = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(answers, dict):
        return {}
    return {k: v for k, v in answers.items() if isinstance(k, str) and isinstance(v, str)}


def _write(file: Path, answers: dict[str, str]) -> None:
    """Whole or not at all; of two writers the last one's answers stay. Where it cannot be written, the next
    process asks again."""
    with suppress(OSError):
        folders.make(file.parent)
        write(file, json.dumps(answers, indent=1))

"""Checks paths that are given to nvcc, which runs its passes by a shell and only puts double quotes
around them."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ucutlass.runtime.errors import MachineError

_READ_BY_SHELLS = re.compile(r"[$`\"\\;&|<>()*?\x00-\x1f\x7f]")


def characters(path: Path) -> str:
    """Returns what a shell may read other than as a name, in a path or in the place that it leads to: each
    character once, quoted; "" where there is nothing. Blanks are no harm."""
    names = f"{path}{os.path.realpath(path)}"
    return " ".join(dict.fromkeys(ascii(c) for c in _READ_BY_SHELLS.findall(names)))


def check(path: Path, what: str, fault: type[MachineError], fix: str) -> None:
    """Raises `fault` where a shell would read a path as more than a name; `what` says whose path it is."""
    if unsafe := characters(path):
        raise fault(f"{what} {str(path)!a} has {unsafe} in its path, which nvcc's shell would read", fix)

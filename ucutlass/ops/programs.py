"""The programs of the operators: files of this package, written for bf16 and one activation.

For another element type or activation the same text is taken with the words exchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ucutlass.api import LoadedProgram, loads
from ucutlass.frontend import source_of
from ucutlass.ops.equivalents import ACTIVATIONS, NO_ACTIVATION

FOLDER = Path(__file__).parent

ELEMENTS: Mapping[torch.dtype, str] = MappingProxyType(
    {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
)
"""The language's element type of each dtype that a program can be had for."""

_WRITTEN = ELEMENTS[torch.bfloat16]
_ACTIVATION = re.compile(r"^fn activation\(x\) = .*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ProgramCall:
    """A call of a program: `file` without its ending, the program's name, the arguments in order, and what
    `text` takes."""

    file: str
    name: str
    arguments: tuple[Tensor | float | int, ...]
    activation: str = NO_ACTIVATION


@dataclass(frozen=True, slots=True)
class ServedProgram:
    """A loaded program, and the reason of each call that its planner refused by the arguments' shapes."""

    loaded: LoadedProgram
    refused: dict[tuple[Any, ...], str] = field(default_factory=dict)


def text(file: str, dtype: torch.dtype = torch.bfloat16, activation: str | None = None) -> str:
    """Returns the text of a program of docs/ops.md, such as `linear`, for an element type and an activation;
    None is the one that the file has.

    Raises ValueError for a dtype, an activation or a file that there is not.
    """
    path = FOLDER / f"{file}.ucu"
    if path.parent != FOLDER or not path.is_file():
        raise ValueError(f"there is no file {file}; there are {', '.join(files())}")
    if dtype not in ELEMENTS:
        raise ValueError(f"programs are for {', '.join(map(str, ELEMENTS))}, not for {dtype}")
    written = re.sub(rf"\b{_WRITTEN}\b", ELEMENTS[dtype], source_of(path))
    if activation is None:
        return written
    check_activation(activation)
    value = "x" if activation == NO_ACTIVATION else f"{activation}(x)"
    return _ACTIVATION.sub(f"fn activation(x) = {value}", written)


def files() -> tuple[str, ...]:
    """Returns the names of the programs' files, without their endings."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.ucu")))


def check_activation(activation: str) -> None:
    """Raises ValueError for an activation that there is not."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"there is no activation {activation!r}; there are {', '.join(ACTIVATIONS)}")


@cache
def served(file: str, name: str, dtype: torch.dtype, activation: str) -> ServedProgram:
    """Returns a program, loaded once for each element type and activation."""
    return ServedProgram(loads(text(file, dtype, activation), name))

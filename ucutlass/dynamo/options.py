"""The options of the torch.compile backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias, get_args

from ucutlass.runtime import switches

Fallback: TypeAlias = Literal["inductor", "eager", "error"]


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """What `options=` of torch.compile may set.

    `fallback` computes what no program serves: TorchInductor, PyTorch's eager kernels, or nothing, which is
    an error. `check` compares the first call of each program with the float64 reference and raises
    WrongResult where it is beyond the derived bounds.
    """

    fallback: Fallback = "inductor"
    check: bool = False


def options_of(options: Mapping[str, Any] | None) -> CompileOptions:
    """Returns the options of a mapping; without `check`, UCUTLASS_CHECK says it. Raises ValueError for a name or
    a value that is none, and SwitchError."""
    given = {"check": switches.read().check, **(options or {})}
    known = {field.name for field in fields(CompileOptions)}
    if unknown := sorted(given.keys() - known):
        raise ValueError(f"no option is named {', '.join(unknown)}; options are {', '.join(sorted(known))}")
    result = CompileOptions(**given)
    if result.fallback not in get_args(Fallback):
        raise ValueError(f"fallback is {result.fallback!r}; it is one of {', '.join(get_args(Fallback))}")
    if not isinstance(result.check, bool):
        raise ValueError(f"check is {result.check!r}; it is True or False")
    return result

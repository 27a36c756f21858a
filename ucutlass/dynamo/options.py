"""The options of the torch.compile backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias, get_args

from ucutlass.runtime import switches

Fallback: TypeAlias = Literal["inductor", "eager", "error"]
Choose: TypeAlias = Literal["time", "later", "always"]


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """What `options=` of torch.compile may set.

    `fallback` computes what no program serves: TorchInductor, PyTorch's eager kernels, or nothing, which is
    an error. `check` compares the first call of each program with the float64 reference and raises
    WrongResult where it is beyond the derived bounds. `choose` times a graph as programs against the whole
    graph as the fallback computes it, and takes the faster: at the first call, which compiles the fallback; or
    later, at the first call after another process has compiled it, where programs serve graphs of free extents; or
    always takes programs.
    Without `wait` the fallback computes calls until the kernels are built. `cuda_graphs` replays calls without
    gradients as CUDA graphs, one for each set of shapes. `tuned` takes sources that `ucc adopt` confirmed and
    schedules that `ucc tune` recorded for exactly this GPU, program and shape; without it the compiler plans.
    """

    fallback: Fallback = "inductor"
    check: bool = False
    choose: Choose = "later"
    wait: bool = True
    cuda_graphs: bool = False
    tuned: bool = True


def options_of(options: Mapping[str, Any] | None) -> CompileOptions:
    """Returns the options of a mapping; without `check`, UCUTLASS_CHECK says it. Raises ValueError for a name or
    a value that is none, and SwitchError."""
    requested = {"check": switches.read().check, **(options or {})}
    names = {field.name for field in fields(CompileOptions)}
    if unknown := sorted(requested.keys() - names):
        raise ValueError(f"no option is named {', '.join(unknown)}; options are {', '.join(sorted(names))}")
    result = CompileOptions(**requested)
    for name, values in {"fallback": get_args(Fallback), "choose": get_args(Choose)}.items():
        if (value := getattr(result, name)) not in values:
            raise ValueError(f"{name} is {value!r}; it is one of {', '.join(values)}")
    for name in ("check", "wait", "cuda_graphs", "tuned"):
        if not isinstance(value := getattr(result, name), bool):
            raise ValueError(f"{name} is {value!r}; it is True or False")
    if result.fallback == "error" and not result.wait:
        raise ValueError('wait=False needs a fallback, which fallback="error" leaves out')
    return result

"""Measures a program's energy, to choose between candidates that are equally fast.

Everything goes in and comes out as JSON values, for `ucutlass.runtime.isolation`; `program` is a payload of
`ucutlass.handoff`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any


def measured(
    program: dict[str, Any], built: dict[str, Any], name: str, sizes: dict[str, int], arch: str, seed: int
) -> dict[str, Any]:
    """Returns `energy`, fields of `runtime.profile.energy.Energy` a call, over two seconds of calls on
    rotated arguments; or `no_energy`, why there is none. `built` is a payload of `ucutlass.tasks.built`."""
    import torch

    from ucutlass.handoff import checked_of
    from ucutlass.runtime.subject import machine_of
    from ucutlass.runtime.timing import compare
    from ucutlass.tasks.built import loaded_built
    from ucutlass.tasks.candidate_run import argument_sets, turns
    from ucutlass.tasks.profile import energy_of

    kernel = loaded_built(checked_of(program), name, arch, built)
    sets = argument_sets(kernel.program, sizes, seed)
    launch = turns(kernel, sets)
    seconds = compare({"candidate": launch}, len(sets), rounds=3)["candidate"].median
    energy = energy_of(launch, len(sets), seconds, asdict(machine_of(0))["uuid"])
    torch.cuda.empty_cache()
    return energy

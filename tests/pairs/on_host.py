"""Drawn programs on the host: many of a translation unit, behind the emulator of tests/emit."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests import isolated
from tests.emit import emulator, plan_reference
from tests.emit.guarded import guarded
from tests.emit.harness import HOST_SHIM
from tests.emulated import DISTRIBUTIONS, Job, emulate, plan
from tests.pairs.pairs import Drawn, Judged, State
from tests.soundness.lowering import distinct_scalars
from ucutlass import ir
from ucutlass.backend import source_of
from ucutlass.emit import Source
from ucutlass.kernels.gemm.plan import LaunchParameters
from ucutlass.kernels.planned import Planned
from ucutlass.reference import expect
from ucutlass.runtime import isolation, verify
from ucutlass.runtime.inputs import generate
from ucutlass.shapes import complete

UNITS = {"reduction": 24}
"""Programs of a translation unit, by space: their headers, two seconds of a core, are read once for them.
Those of other spaces are built each alone: their emulators differ by kernel."""

LIMIT_SECONDS = 900.0


def emulated(drawn: Sequence[Drawn], processes: int) -> list[Judged]:
    """Every program; those of a unit whose process died are judged each in a process of its own, since an
    emulated kernel ends its process where it does what a GPU would not survive."""
    units: list[list[Drawn]] = []
    for program in drawn:
        if units and units[-1][0].space == program.space and len(units[-1]) < UNITS.get(program.space, 1):
            units[-1].append(program)
        else:
            units.append([program])
    with ThreadPoolExecutor(processes) as pool:
        return [judged for unit in pool.map(_judged, units) for judged in unit]


def _judged(unit: Sequence[Drawn]) -> list[Judged]:
    if unit[0].space in UNITS:
        return _unit(unit)
    (program,) = unit
    name, sizes = f"{program.space} {program.number}", dict(program.program.sizes)
    row = emulate(Job(name, program.program.text, "k", sizes, None, program.number))
    return [Judged(program, "wrong" if row.status == "rejected" else row.status, row.detail)]


def _unit(unit: Sequence[Drawn]) -> list[Judged]:
    outcome = _isolated(unit)
    if isinstance(outcome, isolation.Returned):
        return [Judged(program, **verdict) for program, verdict in zip(unit, outcome.value, strict=True)]
    if len(unit) == 1:
        return [Judged(unit[0], "wrong", str(outcome)[-1500:])]
    return [judged for program in unit for judged in _unit([program])]


def _isolated(unit: Sequence[Drawn]) -> isolation.CallOutcome:
    programs = [{"text": d.program.text, "sizes": dict(d.program.sizes), "seed": d.number} for d in unit]
    return isolated.run("tests.pairs.on_host:unit_here", {"programs": programs}, limit_seconds=LIMIT_SECONDS)


def unit_here(programs: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Compiles programs as one unit and judges each; for `isolate`."""
    torch.set_num_threads(1)
    planned = [plan(Job("", p["text"], "k", p["sizes"], None, p["seed"])) for p in programs]
    sources = [source_of(*parts) for parts in planned]
    entries = _entries(sources)
    return [
        _judge(entries[source.entry], kernel, choice, program)
        for source, (_, kernel, choice), program in zip(sources, planned, programs, strict=True)
    ]


def _entries(sources: Sequence[Source]) -> dict[str, Any]:
    """The entries by name, or the compiler's words for a source that it refuses."""
    distinct = {source.entry: source for source in sources}
    emulable, refused = {}, {}
    for entry, source in distinct.items():
        try:
            emulable[entry] = replace(source, text=emulator.translated(source.text))
        except AssertionError as error:
            refused[entry] = str(error)
    if not emulable:
        return refused
    folder = Path(tempfile.mkdtemp(prefix="emulated-"))
    try:
        library = emulator.build_unit(f"#include <cmath>\n{HOST_SHIM}", list(emulable.values()), folder)
        return {**refused, **{entry: emulator.entry(library, entry) for entry in emulable}}
    except AssertionError as error:
        if len(emulable) == 1:
            return {**refused, **dict.fromkeys(emulable, str(error)[-1500:])}
    finally:
        shutil.rmtree(folder)
    alone = [_entries([source]) for source in distinct.values() if source.entry in emulable]
    return {**refused, **{entry: value for entries in alone for entry, value in entries.items()}}


def _judge(entry: Any, kernel: ir.Kernel, planned: Planned, program: dict[str, Any]) -> dict[str, str]:
    if isinstance(entry, str):
        return {"state": "not emulable", "detail": entry}
    verdicts = list(_verdicts(entry, kernel, planned, program))
    states: list[State] = [verdict.state for _, verdict in verdicts]
    worst = verify.worst(states)
    shown = [f"{name}: {verdict}" for name, verdict in verdicts if verdict.state == worst]
    return {"state": worst, "detail": "" if worst == "right" else "\n".join(shown)}


def _verdicts(
    entry: Any, kernel: ir.Kernel, planned: Planned, program: dict[str, Any]
) -> Iterator[tuple[str, verify.LaunchVerdict]]:
    sizes = dict(zip(kernel.dims, complete(kernel, program["sizes"]), strict=True))
    for distribution in DISTRIBUTIONS:
        arguments = generate(
            kernel, sizes, distribution, seed=program["seed"], scalars=distinct_scalars(kernel)
        )
        arguments = [guarded(a) if isinstance(a, Tensor) else a for a in arguments]
        scalars = [float(a) for a in arguments if not isinstance(a, Tensor)]

        def launch(inputs: Sequence[Any], outputs: Sequence[Tensor], scalars: Any = scalars) -> None:
            addresses = [t.data_ptr() for t in (*inputs, *outputs) if isinstance(t, Tensor)]
            launch_parameters = LaunchParameters(*planned.launch)
            code = plan_reference.call(entry, addresses, planned.sizes, scalars, launch_parameters, "cpu", 0)
            if code:
                raise RuntimeError(f"the entry returned {code}")

        yield distribution, verify.check(kernel, launch, arguments, expected=expect(kernel, arguments))

"""Compiles a mutant for the host and lets the judge look at it."""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests import isolated
from tests.emit import emulator
from tests.emit.harness import HOST_SHIM
from tests.emulated import ARCH
from tests.mutants.hopper import HOPPER, HOPPER_BASES
from tests.mutants.lowering import BASES, LOWERINGS, mutated
from ucutlass import frontend, ir
from ucutlass.backend import source_of
from ucutlass.emit.text import Source
from ucutlass.kernels.planned import Planned
from ucutlass.reference import expect
from ucutlass.reference.rounding import outer_dtype
from ucutlass.runtime import isolation, verify
from ucutlass.runtime.entry_codes import LaunchError
from ucutlass.runtime.inputs import Distribution, generate
from ucutlass.shapes import complete

DISTRIBUTIONS: tuple[Distribution, ...] = (
    "integer",
    "residue",
    "normal",
    "positive",
    "negated",
    "wide",
    "zeros",
    "special",
)
LIMIT_SECONDS = 900.0
FLAT = 1e-2


@dataclass(frozen=True, slots=True)
class Row:
    """What became of a mutant. `killed_by` names what objected: a kind of problem, `value` or
    `launch` with the distribution, or how the process ended. `flat_check` tells whether the usual check
    would have passed it: one launch on normal inputs, outputs that hold the right answer of a run
    before, torch.allclose within 1e-2."""

    name: str
    patterns: tuple[int, ...]
    killed_by: tuple[str, ...]
    flat_check: bool
    detail: str = ""

    @property
    def killed(self) -> bool:
        return bool(self.killed_by)


def run(name: str) -> Row:
    """A mutant (or, by the name of its base, the honest kernel) in a process of its own."""
    patterns = next((m.patterns for m in LOWERINGS if m.name == name), ())
    outcome = isolated.run(
        "tests.mutants.emulated:judged_here",
        {"name": name},
        limit_seconds=LIMIT_SECONDS,
        memory_bytes=6 * 2**30,
    )
    match outcome:
        case isolation.Returned(value=dict(found)):
            return Row(name, patterns, tuple(found["killed_by"]), found["flat_check"], found["detail"])
        case isolation.Raised(type=kind, message=words):
            raise AssertionError(f"{name}: {kind}: {words[-3000:]}")
        case _:
            return Row(name, patterns, (type(outcome).__name__.lower(),), False, outcome.output[-300:])


def judged_here(name: str) -> dict[str, Any]:
    """Builds and judges; for `isolate`."""
    torch.set_num_threads(1)
    made = prepared(name)
    folder = Path(tempfile.mkdtemp(prefix="mutant-"))
    try:
        text = f"#include <cmath>\n{HOST_SHIM}{made.source.text}"
        entry = emulator.build(replace(made.source, text=text), folder)
    finally:
        shutil.rmtree(folder)
    launch = exposed(entry, made.planned)
    # The other order of threads within each round: a race shows in one or the other.
    os.environ["EMULATOR_BACKWARDS"] = "1"
    found = [f for d in DISTRIBUTIONS[:2] for f in objections(launch, made, d, "cpu")]
    del os.environ["EMULATOR_BACKWARDS"]
    return judgement(launch, made, "cpu", found)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A program with its plan, and the source with its bug, if any."""

    kernel: ir.Kernel
    sizes: Mapping[str, int]
    planned: Planned
    source: Source


def prepared(name: str) -> Prepared:
    """Of a mutant, or by its base's name of the honest kernel. Raises EditStale."""
    mutant = next((m for m in (*LOWERINGS, *HOPPER) if m.name == name), None)
    base = {**BASES, **HOPPER_BASES}[mutant.base if mutant else name]
    checked = frontend.read_text(base.text)
    kernel = frontend.kernel(checked)
    planned = frontend.plan_kernel(checked, kernel, complete(kernel, base.sizes), ARCH).planned
    source = source_of(checked, kernel, planned)
    if mutant is not None:
        source = replace(source, text=mutated(source.text, mutant), code=mutated(source.code, mutant))
    return Prepared(kernel, base.sizes, planned, source)


def judgement(
    launch: verify.DirectLaunch, made: Prepared, device: str, found: Sequence[tuple[str, str]] = ()
) -> dict[str, Any]:
    """What the judge says of a launch, as `Row` has it."""
    flat = _flat_check(launch, made, device)
    every = [*(f for d in DISTRIBUTIONS for f in objections(launch, made, d, device)), *found]
    kinds = dict.fromkeys(kind for kind, _ in every)
    return {"killed_by": list(kinds), "flat_check": flat, "detail": every[0][1][:500] if every else ""}


def exposed(entry: Any, planned: Planned) -> verify.DirectLaunch:
    """An emulated entry for the judge, who brings the workspace."""

    def call(
        given: Sequence[Any], outputs: Sequence[Tensor], workspace: Tensor | None, size: Any = None
    ) -> None:
        tensors = [t.data_ptr() for t in (*given, *outputs) if isinstance(t, Tensor)]
        numbers = [float(a) for a in given if not isinstance(a, Tensor)]
        launch_parameters = [int(k) for k in planned.launch]
        code = entry(
            (ctypes.c_void_p * max(1, planned.plan.problem.pointers))(*tensors),
            (ctypes.c_int64 * len(planned.sizes))(*planned.sizes),
            (ctypes.c_double * max(1, len(numbers)))(*numbers),
            (ctypes.c_int64 * len(launch_parameters))(*launch_parameters),
            None if workspace is None else ctypes.c_void_p(workspace.data_ptr()),
            size,
            None,
        )
        if code:
            raise LaunchError("the mutant", code)

    expected = ctypes.c_uint64(0)
    call((), (), None, ctypes.byref(expected))
    return verify.DirectLaunch(call, expected.value)


def objections(
    launch: verify.DirectLaunch, made: Prepared, distribution: Distribution, device: str
) -> Iterator[tuple[str, str]]:
    """What kind of thing is wrong, and in which words."""
    arguments = generate(made.kernel, made.sizes, distribution, seed=7, device=device)
    try:
        verdict = verify.check(made.kernel, launch, arguments)
    except LaunchError as error:
        yield f"launch status ({distribution})", str(error)
        return
    for problem in verdict.problems:
        yield problem.kind, problem.message
    for comparison in verdict.comparisons:
        if not comparison.ok:
            yield f"value ({distribution})", str(comparison)


def _flat_check(launch: verify.DirectLaunch, made: Prepared, device: str) -> bool:
    arguments = generate(made.kernel, made.sizes, "normal", seed=1, device=device)
    expected = expect(made.kernel, arguments)
    outputs = [e.reference.to(outer_dtype(e.elem)) for e in expected]
    count = launch.workspace
    workspace = torch.zeros(count, dtype=torch.uint8, device=device) if count else None
    try:
        launch.run(arguments, outputs, workspace)
    except LaunchError:
        return False
    pairs = zip(outputs, expected, strict=True)
    return all(torch.allclose(o.double(), e.reference.double(), rtol=FLAT, atol=FLAT) for o, e in pairs)


def as_json(row: Row) -> dict[str, Any]:
    return asdict(row) | {"killed": row.killed}

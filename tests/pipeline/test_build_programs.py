"""Kernels of several programs, built in one go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ucutlass import assembly, frontend
from ucutlass.assembly import BuiltPipeline, ProgramAtSizes, kernels_of, sizes_of, start_programs
from ucutlass.backend import Built
from ucutlass.diagnostics import ProgramError
from ucutlass.emit.text import Source
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.errors import MachineError
from ucutlass.shapes import ShapeError

KERNEL = "kernel double(x: f32[M, N]) -> f32[M, N] { return x * 2 }"
PIPELINE = """
pipeline twice(x: f32[M, N]) -> f32[M] {
  y: f32[M, N] = x * 2
  z: f32[M] = sum[N](y)
  return z + y[N = 0]
}
"""


def job(text: str, *sizes: int) -> ProgramAtSizes:
    checked = frontend.read_text(text)
    return ProgramAtSizes(checked, frontend.program(checked), sizes)


class Compilers:
    """Compiles nothing, and remembers what it was given in each call; entries of `broken` fail."""

    def __init__(self, *broken: int) -> None:
        self.calls: list[list[str]] = []
        self._broken = broken

    def __call__(self, pairs: Sequence[tuple[Source, Any]], **_: Any) -> tuple[Artifact | MachineError, ...]:
        self.calls.append([source.entry for source, _ in pairs])
        return tuple(
            MachineError("no room", "make room") if number in self._broken else artifact(source)
            for number, (source, _) in enumerate(pairs)
        )


def artifact(source: Source) -> Artifact:
    values: dict[str, Any] = dict.fromkeys(Artifact.__dataclass_fields__)
    return Artifact(**{**values, "entry": source.entry})


def test_the_kernels_of_all_programs_are_built_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    compilers = Compilers()
    monkeypatch.setattr(assembly, "build_sources", compilers)
    kernel, pipeline = start_programs([job(KERNEL, 64, 32), job(PIPELINE, 64, 32)], "sm90a")()
    assert isinstance(kernel, Built) and isinstance(pipeline, BuiltPipeline)
    entries = [built.artifact.entry for built in (*kernels_of(kernel), *kernels_of(pipeline))]
    assert compilers.calls == [entries] and len(entries) > 2
    assert sizes_of(kernel) == sizes_of(pipeline) == (64, 32)


def test_what_fails_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "build_sources", Compilers(1))
    first, second, third = start_programs(
        [job(KERNEL, 64, 32), job(PIPELINE, 64, 32), job(KERNEL, 8, 8)], "sm90a"
    )()
    assert isinstance(first, Built) and isinstance(second, MachineError) and isinstance(third, Built)


def test_a_program_without_a_plan_is_its_own_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "build_sources", Compilers())
    first, second = start_programs([job(PIPELINE, 1 << 40, 1 << 40), job(KERNEL, 64, 32)], "sm90a")()
    assert isinstance(first, ShapeError | ProgramError)
    assert isinstance(second, Built)

"""Imports the module of a Python file: a problem in KernelBench's format, or a class of its own.

The file's code is executed here: call this in an isolated process only (`ucutlass.tasks.import_module`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ucutlass.importer.graph import Unsupported
from ucutlass.importer.program import ImportedText, imported
from ucutlass.runtime.module.inspection import called, load, seeded
from ucutlass.runtime.module.signature import Mode


class _Mode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Copies of a module stay in the original's mode, because modules copy their layers."""

    def __deepcopy__(self, memo: dict[int, object]) -> _Mode:
        return self


def import_problem(file: str, name: str, mode: Mode) -> ImportedText:
    """Returns the program of a problem file's module. Raises Unusable where the file is at fault, Unsupported
    where the importer is.

    The module is made without memory first, and with it where its code needs the values of tensors.
    """
    try:
        with _Mode():
            return _imported(file, name, mode)
    except Unsupported:
        raise
    except Exception as problem:
        try:
            return _imported(file, name, mode)
        except Unsupported as real:
            raise real from problem


def _imported(file: str, name: str, mode: Mode) -> ImportedText:
    loaded = load(file, mode, "own")
    seeded(1)
    inputs = called(file, "inputs", "get_inputs()", lambda: list(loaded.module.get_inputs()))
    called(file, "forward", "Model.forward", lambda: _run(loaded.model, inputs))
    try:
        return imported(loaded.model, inputs, name)[0]
    except Unsupported:
        raise
    except Exception as problem:
        words = next((line for line in str(problem).splitlines() if line.strip()), "")
        raise Unsupported(f"torch.export: {type(problem).__name__}: {words[:300]}") from problem


def _run(model: torch.nn.Module, inputs: list[Any]) -> None:
    """Runs forward once without memory, so that what it raises is told in its own words."""
    if any(type(t) is torch.Tensor for t in inputs):
        return
    with torch.no_grad():
        model(*(x.clone() if isinstance(x, torch.Tensor) else x for x in inputs))

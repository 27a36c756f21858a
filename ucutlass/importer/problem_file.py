"""Imports the module of a Python file: a problem in KernelBench's format, or a class of its own.

The file's code is executed here: call this in an isolated process only (`ucutlass.tasks.import_module`).
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ucutlass.importer.export import Exported, ForwardArguments, ForwardNotFollowed, export_failed, exported
from ucutlass.importer.graph import Unsupported
from ucutlass.importer.program import ImportedText, TooLong, chained, no_kernel, text_of
from ucutlass.importer.stages import NoKernelServes
from ucutlass.ir.elements import ELEMENTS
from ucutlass.runtime.module.inspection import CAST, called, load, seeded, with_buffers
from ucutlass.runtime.module.signature import Mode, Precision, Unusable
from ucutlass.runtime.module.source import tensor_type

T = TypeVar("T")


class MemorylessMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Tensors without storage. Copies of a module stay in the original's mode, because modules copy their
    layers."""

    def __deepcopy__(self, memo: dict[int, object]) -> MemorylessMode:
        return self


def import_problem(
    file: str, name: str, mode: Mode, cls: str = "", inputs: Sequence[str] = (), precision: Precision = "own"
) -> ImportedText:
    """Returns the program of a file's module: of `Model` with `get_inputs()` and `get_init_inputs()`, or of the
    class `cls`, which takes those functions too where the file has them; `inputs` are types of its inputs
    otherwise, such as `f32[16, 1024]`; `precision` is what floating tensors are cast to. Raises Unusable where
    the file is at fault, Unsupported where the importer is.

    The module is made without memory first, and with it where its code needs the values of tensors.
    """
    return _with_memory_if_needed(lambda: text_of(_exported(file, mode, cls, inputs, precision), name))


def import_in_parts(
    file: str, name: str, mode: Mode, cls: str = "", inputs: Sequence[str] = (), precision: Precision = "own"
) -> list[tuple[ImportedText, tuple[str, ...]]]:
    """Returns the program of a file's module with its results, or several in a row where one would be too long.
    Arguments and exceptions are those of `import_problem`."""

    def parts() -> list[tuple[ImportedText, tuple[str, ...]]]:
        export = _exported(file, mode, cls, inputs, precision)
        try:
            return chained(export.graph, name, export.written)
        except NoKernelServes as problem:
            raise no_kernel(problem) from problem

    return _with_memory_if_needed(parts)


def _with_memory_if_needed(imported: Callable[[], T]) -> T:
    try:
        with MemorylessMode():
            return imported()
    except Unsupported as problem:
        if isinstance(problem, TooLong) or (
            problem.origin is not None and not isinstance(problem, ForwardNotFollowed)
        ):
            raise
        return imported()
    except Exception as problem:
        try:
            return imported()
        except (Unsupported, Unusable) as real:
            raise real from problem


def _exported(file: str, mode: Mode, cls: str, specs: Sequence[str], precision: Precision) -> Exported:
    if (cls and cls != "Model") or specs:
        model, inputs = _class(file, cls or "Model", mode, specs)
        with_buffers(model)
    else:
        loaded = load(file, mode, "own")
        seeded(1)
        inputs = called(file, "inputs", "get_inputs()", lambda: list(loaded.module.get_inputs()))
        model = loaded.model
    if precision != "own":
        model = model.to(CAST[precision])
        inputs = [_cast(x, CAST[precision]) for x in inputs]
    try:
        return exported(model, ForwardArguments(inputs))
    except Unsupported:
        raise
    except Exception as problem:
        raise export_failed(problem) from problem


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.dtype.is_floating_point else value


def _class(file: str, cls: str, mode: Mode, specs: Sequence[str]) -> tuple[torch.nn.Module, list[Any]]:
    spec = importlib.util.spec_from_file_location("ucutlass_module", file)
    if spec is None or spec.loader is None:
        raise Unusable(file, "unreadable", "its name must end in .py")
    source = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = source
    loader = spec.loader
    seeded(0)
    called(file, "import", "the file itself", lambda: loader.exec_module(source))
    constructor = getattr(source, cls, None)
    if not callable(constructor):
        raise Unusable(file, "lacks", f"it defines no {cls}")
    init = getattr(source, "get_init_inputs", list)
    model = called(file, "construct", f"{cls}(..)", lambda: constructor(*init()))
    if not isinstance(model, torch.nn.Module):
        raise Unusable(file, "lacks", f"{cls} gives a {type(model).__name__}")
    if mode != "constructed":
        model.train(mode == "train")
    if specs:
        return model, [_input(file, text) for text in specs]
    if not callable(getattr(source, "get_inputs", None)):
        raise Unusable(
            file, "lacks", "it defines no get_inputs: give --input, such as --input 'f32[16, 1024]'"
        )
    return model, called(file, "inputs", "get_inputs()", lambda: list(source.get_inputs()))


def _input(file: str, text: str) -> torch.Tensor:
    """Returns a tensor of a type such as `f32[16, 1024]`. Raises Unusable for a text that is no type."""
    element, shape = tensor_type(file, text)
    return torch.zeros(shape, dtype=getattr(torch, ELEMENTS[element].torch))

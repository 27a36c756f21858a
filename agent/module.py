"""This module describes a PyTorch module as what a candidate must compute: it is read once in a process of
its own, then it is a value.

Nothing of the file runs here. A program meets the module by names (`ucutlass.runtime.module.signature.names`):
each of its parameters is an input, a parameter or a buffer of the module, and extents follow from shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ucutlass import files, ir
from ucutlass.agent.gpu_calls import gpu_at_hand
from ucutlass.agent.module_processes import ModuleCall, in_own_process
from ucutlass.ir.compute_types import COMPUTE_TYPES
from ucutlass.ir.elements import ELEMENTS, Element
from ucutlass.reference.binding import bind, shape_of
from ucutlass.reference.errors import CallError
from ucutlass.runtime import isolation, system
from ucutlass.runtime.inputs import result_types
from ucutlass.runtime.module.signature import (
    Mode,
    ModuleSignature,
    NumberSpec,
    Precision,
    TensorSpec,
    Unusable,
    names,
    signature_of_json,
)
from ucutlass.runtime.module.source import class_as_problem

LIMIT_SECONDS = 300.0
WAIT_SECONDS = 60.0
"""For a GPU that is in use, before a file is read on the CPU, which takes as long for a large module."""

MOST_SOURCE = 200_000
"""Characters of a problem file: KernelBench's longest has some fifteen thousand."""


@dataclass(frozen=True, slots=True)
class TorchModule:
    """`source` is the file's text as it was when `facts` were taken, and what every later process runs."""

    file: str
    source: str
    mode: Mode
    precision: Precision
    facts: ModuleSignature

    def arguments(self) -> dict[str, Any]:
        """Returns what a process that runs it is given."""
        return {"source": self.source, "file": self.file, "mode": self.mode, "precision": self.precision}


def module_of_json(value: Mapping[str, Any]) -> TorchModule:
    """Raises KeyError, TypeError, ValueError for another's fields."""
    facts = signature_of_json(value["facts"])
    return TorchModule(value["file"], value["source"], value["mode"], value["precision"], facts)


@dataclass(frozen=True, slots=True)
class ModuleFile:
    """Is a problem file that was read and not run: the fields of `TorchModule` without its facts."""

    file: str
    source: str
    mode: Mode
    precision: Precision

    def arguments(self) -> dict[str, Any]:
        """Returns what a process that runs it is given."""
        return {"source": self.source, "file": self.file, "mode": self.mode, "precision": self.precision}


def read_file(
    path: Path,
    mode: Mode = "constructed",
    precision: Precision = "own",
    cls: str = "",
    types: Sequence[str] = (),
) -> ModuleFile:
    """Returns a problem file; `cls` and `types` name another class of it and the types of its inputs, as
    `class_as_problem` takes them. Raises Unusable."""
    file = str(path)
    try:
        source = files.read_text(path, 4 * MOST_SOURCE)
    except OSError as error:
        raise Unusable(file, "unreadable", error.strerror or str(error)) from error
    if len(source) > MOST_SOURCE:
        raise Unusable(file, "unreadable", f"it has {len(source)} characters; at most {MOST_SOURCE} are read")
    return ModuleFile(file, class_as_problem(file, source, cls, types), mode, precision)


def read_module(
    path: Path,
    mode: Mode = "constructed",
    precision: Precision = "own",
    *,
    cls: str = "",
    types: Sequence[str] = (),
    limit_seconds: float = LIMIT_SECONDS,
    memory_bytes: int | None = None,
    call: ModuleCall = in_own_process,
) -> TorchModule:
    """Returns the module of a problem file as `module_of_file` does, after `read_file`."""
    read = read_file(path, mode, precision, cls, types)
    return module_of_file(read, limit_seconds=limit_seconds, memory_bytes=memory_bytes, call=call)


def module_of_file(
    read: ModuleFile,
    *,
    limit_seconds: float = LIMIT_SECONDS,
    memory_bytes: int | None = None,
    call: ModuleCall = in_own_process,
) -> TorchModule:
    """Returns the module of a problem file, after `call` ran it in a process. Raises Unusable."""
    wait = min(limit_seconds, WAIT_SECONDS)
    outcome = call(
        "ucutlass.tasks.problem_file:inspect",
        read.arguments() | {"gpu": gpu_at_hand(), "wait": wait},
        limit_seconds=limit_seconds + wait,
        memory_bytes=memory_bytes or memory_limit(),
    )
    reply = process_reply(outcome, read.file)
    try:
        facts = signature_of_json(reply["facts"])
        return TorchModule(read.file, read.source, read.mode, read.precision, facts)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unusable(read.file, "unreadable", f"its process sent no facts: {error!r}"[:300]) from error


def memory_limit() -> int:
    """Returns bytes that a problem file's process may take: three quarters of what is free."""
    return system.memory_available() * 3 // 4


def process_reply(outcome: isolation.CallOutcome, file: str) -> Mapping[str, Any]:
    """Returns what a process of `ucutlass.tasks.problem_file` answered. Raises Unusable, for however else it
    ended."""
    match outcome:
        case isolation.Returned({"unusable": {"code": str(code), "why": str(why)}}):
            raise Unusable(file, code, why)
        case isolation.Returned(dict(reply)):
            return reply
        case isolation.Raised(type="OutOfMemoryError"):
            code = "memory"
        case _:
            code = _ENDED[type(outcome)]
    raise Unusable(file, code, isolation.failure_text(outcome, "the file") + _last(outcome.output))


_ENDED: Mapping[type, str] = {
    isolation.TimedOut: "hangs",
    isolation.TooMuchMemory: "memory",
    isolation.Exited: "exits",
    isolation.Crashed: "crashes",
    isolation.Raised: "unreadable",
    isolation.Returned: "unreadable",
}


def _last(output: str) -> str:
    line = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "")
    return f"; it printed last: {line[:200]!r}" if line else ""


# --- how a program meets it ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModuleMatch:
    """`sizes` has every extent of the program, `keys` for each parameter what it is, as
    `ucutlass.tasks.problem_file` reads it."""

    sizes: Mapping[str, int]
    keys: Mapping[str, str]


def match_module(program: ir.Program, module: TorchModule) -> ModuleMatch | str:
    """Returns the program on the module's tensors, or why it does not fit: a name, an element type, a shape
    or the results."""
    module_values = names(module.facts)
    shapes: list[tuple[int, ...] | None] = []
    for decl in program.params:
        value = module_values.get(decl.name)
        if value is None:
            return f"the module has no {decl.name}; it has {value_list(module_values)}"
        difference = _unlike(decl, value)
        if difference:
            return difference
        shapes.append(value.shape if isinstance(value, TensorSpec) else None)
    try:
        sizes = bind(program, shapes)
    except CallError as error:
        return f"the module's shapes do not fit: {error}"
    difference = _results(program, module.facts, sizes)
    if difference:
        return difference
    return ModuleMatch(
        sizes, {decl.name: _key(module.facts, module_values[decl.name]) for decl in program.params}
    )


def value_list(module_values: Mapping[str, TensorSpec | NumberSpec]) -> str:
    return "; ".join(f"{name}: {value}" for name, value in module_values.items())


def _unlike(decl: ir.ParamDecl, module_value: TensorSpec | NumberSpec) -> str:
    match decl.type, module_value:
        case ir.ScalarType(elem), NumberSpec(value=constant):
            kind = "bool" if isinstance(constant, bool) else "int" if isinstance(constant, int) else "float"
            fits = elem.kind == kind or (elem.kind, kind) == ("float", "int")
            return (
                ""
                if fits
                else f"{decl.name} is {module_value} in the module and a number of type {elem.name} here"
            )
        case ir.TensorType(elem), TensorSpec(dtype=dtype):
            if elem.torch == dtype and elem.packed == 1:
                return ""
            return f"{decl.name} is {module_value} in the module and {elem.name} here; memory holds {_elem(dtype)}"
        case ir.ScalarType(), TensorSpec(dtype=dtype):
            return f"{decl.name} is {module_value} in the module and a number here; write {_elem(dtype)}[..]"
        case _:
            return f"{decl.name} is {module_value} in the module and a tensor here"


def _elem(dtype: str) -> str:
    return next((e.name for e in ELEMENTS.values() if e.torch == dtype and e.storable), dtype)


def _results(program: ir.Program, facts: ModuleSignature, sizes: Mapping[str, int]) -> str:
    ours = result_types(program)
    if len(ours) != len(facts.results):
        return f"it has {len(ours)} results and the module {len(facts.results)}"
    for at, (kind, expected) in enumerate(zip(ours, facts.results, strict=True)):
        shape = shape_of(kind, sizes)
        if (kind.elem.torch, shape) != (expected.dtype, expected.shape):
            extents = " x ".join(map(str, shape)) or "one element"
            return f"result {at} is {expected} in the module, and {kind.elem.name} of {extents} here"
    return ""


def _key(facts: ModuleSignature, value: TensorSpec | NumberSpec) -> str:
    for at, tensor in enumerate(facts.inputs):
        if tensor is value:
            return f"input {at}"
    return f"state {value.name}"


def bytes_of_module(module: TorchModule) -> int:
    """Returns bytes of a module's inputs, state and results."""
    sizes = {element.torch: element.bytes for element in ELEMENTS.values() if element.packed == 1}
    facts = module.facts
    tensors = [t for t in (*facts.inputs, *facts.state, *facts.results) if isinstance(t, TensorSpec)]
    total = 0
    for tensor in tensors:
        elements = 1
        for extent in tensor.shape:
            elements *= extent
        total += elements * int(sizes.get(tensor.dtype, 8))
    return total


def widest(facts: ModuleSignature) -> Element | None:
    """Returns the widest floating element among inputs and state that a compute type multiplies."""
    dtypes = {tensor.dtype for tensor in (*facts.inputs, *facts.state) if isinstance(tensor, TensorSpec)}
    elements = [
        compute_type.elem
        for compute_type in COMPUTE_TYPES.values()
        if compute_type.elem.storable and compute_type.elem.torch in dtypes
    ]
    return max((e for e in elements if e.kind == "float"), key=lambda e: (e.bits, e.mantissa), default=None)

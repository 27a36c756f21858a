"""Runs a PyTorch problem file without allocating its memory, and exports what its module computes.

The file's code is executed here: call this in an isolated process only (`ucutlass.tasks.module_graph`).
Module and inputs are made under torch's FakeTensorMode, in which a tensor has a shape, a dtype and no
storage, so that a problem of many gigabytes costs none.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._pytree import tree_leaves

from ucutlass.runtime.module.graph import (
    ITEM_BYTES,
    GraphInput,
    GraphOutput,
    InputOrigin,
    ModuleGraph,
    OperatorNode,
    Ref,
    TensorMeta,
)

NAMES = ("Model", "get_inputs", "get_init_inputs")
"""The names that a problem file in KernelBench's format defines; ScalingIntelligence/KernelBench, README."""


class ProblemUnusable(Exception):
    """The problem file cannot be loaded, lacks a name, or its own code raised. `where` is the step that
    failed, `why` the words of the failure."""

    def __init__(self, file: str, where: str, why: str) -> None:
        super().__init__(file, where, why)
        self.file, self.where, self.why = file, where, why

    def __str__(self) -> str:
        return f"{self.file}: {self.where}: {self.why}"


class ValueDependent(Exception):
    """The module asks for a tensor's value (item(), nonzero(), a mask as an index): its shapes or its control
    flow depend on data that does not exist without memory."""

    def __init__(self, file: str, where: str, why: str) -> None:
        super().__init__(file, where, why)
        self.file, self.where, self.why = file, where, why

    def __str__(self) -> str:
        return (
            f"{self.file}: {self.where} needs the values of a tensor ({self.why}), but only shapes are "
            "followed here; write it without item(), nonzero() and boolean indices"
        )


class ExportFailed(Exception):
    """No exporter could follow the module; `attempts` has each exporter with its error."""

    def __init__(self, file: str, attempts: Sequence[str]) -> None:
        super().__init__(file, tuple(attempts))
        self.file, self.attempts = file, tuple(attempts)

    def __str__(self) -> str:
        return f"{self.file}: the module could not be exported; " + "; ".join(self.attempts)


class _Unbounded(Exception):
    """A tensor's shape is not a number."""


_VALUE_DEPENDENT = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
    _Unbounded,
)
"""What torch raises where only a value could decide how to continue."""
_ORIGINS: Mapping[str, InputOrigin] = MappingProxyType(
    {
        "PARAMETER": "parameter",
        "BUFFER": "buffer",
        "CONSTANT_TENSOR": "constant",
        "CUSTOM_OBJ": "constant",
        "TOKEN": "constant",
        "USER_INPUT": "input",
    }
)
"""torch.export.graph_signature.InputKind, by its name."""


class _Mode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Copies of a module stay in the original's mode, because modules copy their layers."""

    def __deepcopy__(self, memo: dict[int, object]) -> _Mode:
        return self


def graph_of(file: str, keep: Callable[[str], bool]) -> ModuleGraph:
    """Returns the graph of a problem file's module on its inputs.

    An operator for which `keep` (of `aten.NAME.OVERLOAD`) is true stays whole; every other operator that
    PyTorch defines by smaller ones is decomposed to core ATen. Exporters are tried in order: torch.export
    (non-strict), then make_fx over the functionalised module; the graph names the one that succeeded and why
    those before it failed.

    Raises ProblemUnusable, ValueDependent, ExportFailed.
    """
    module = _load(file)
    with _Mode():
        init = _call(file, "get_init_inputs()", module.get_init_inputs)
        model = _call(file, "Model(*get_init_inputs())", lambda: module.Model(*init))
        inputs = tuple(_call(file, "get_inputs()", module.get_inputs))
        if not isinstance(model, torch.nn.Module):
            raise ProblemUnusable(file, "Model", f"is a {type(model).__name__}, not a torch.nn.Module")
        return _export(file, model, inputs, keep)


def _load(file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("ucutlass_problem", Path(file).absolute())
    if spec is None or spec.loader is None:
        raise ProblemUnusable(file, "the file", "is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    loader = spec.loader
    _call(file, "the file itself", lambda: loader.exec_module(module))
    if missing := [name for name in NAMES if not callable(getattr(module, name, None))]:
        raise ProblemUnusable(file, "the file", f"defines no {' and no '.join(missing)}; it needs {NAMES}")
    return module


def _call(file: str, where: str, function: Callable[[], Any]) -> Any:
    """Returns the function's value; whatever the file's code raises becomes one of the errors above, with its
    words."""
    try:
        return function()
    except _VALUE_DEPENDENT as error:
        raise ValueDependent(file, where, _error_text(error)) from error
    except Exception as error:
        raise ProblemUnusable(file, where, _error_text(error)) from error


def _error_text(error: BaseException) -> str:
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first.strip()}" if first else type(error).__name__


# --- exporters --------------------------------------------------------------------


def _export(
    file: str, model: torch.nn.Module, inputs: tuple[Any, ...], keep: Callable[[str], bool]
) -> ModuleGraph:
    # What eager execution itself refuses is the file's fault, and is told in its own words.
    _call(file, "Model.forward", lambda: _leaves(_forward(model, inputs)))
    attempts: list[str] = []
    for method, exporter in _EXPORTERS.items():
        try:
            return exporter(model, inputs, keep, tuple(attempts))
        except _VALUE_DEPENDENT as error:
            raise ValueDependent(file, "Model.forward", _error_text(error)) from error
        except Exception as error:
            attempts.append(f"{method} failed: {_error_text(error)}")
    raise ExportFailed(file, attempts)


def _forward(model: torch.nn.Module, inputs: tuple[Any, ...]) -> object:
    with torch.no_grad():
        return model(*_fresh(inputs))


def _leaves(out: object) -> list[Any]:
    """Returns what a forward returned, out of its containers. Raises TypeError for an object that may hide
    tensors, and where there is no tensor at all."""
    leaves: list[Any] = tree_leaves(out)
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor | int | float | complex | str | None):
            raise TypeError(f"returned a {type(leaf).__name__}, in which tensors cannot be found")
    if not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        raise TypeError("returned no tensor")
    return leaves


def _fresh(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns copies, for a module that writes over its inputs."""
    return tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in inputs)


def _by_export(
    model: torch.nn.Module, inputs: tuple[Any, ...], keep: Callable[[str], bool], attempts: tuple[str, ...]
) -> ModuleGraph:
    table: Any = torch.export.default_decompositions()
    for op in [op for op in table if keep(str(op))]:
        table.pop(op)
    program = torch.export.export(model, _fresh(inputs), strict=False).run_decompositions(table)
    signature, nodes = program.graph_signature, program.graph.nodes
    values = {n.name: n.meta.get("val") for n in nodes if n.op == "placeholder"}
    sources = [
        GraphInput(spec.arg.name, _ORIGINS[spec.kind.name], _tensor(values[spec.arg.name]))
        for spec in signature.input_specs
        if isinstance(values.get(spec.arg.name), torch.Tensor)
    ]
    fates = [spec.kind.name for spec in signature.output_specs]
    return _graph(nodes, sources, fates, "torch.export, non-strict, with core ATen decompositions", attempts)


def _by_make_fx(
    model: torch.nn.Module, inputs: tuple[Any, ...], keep: Callable[[str], bool], attempts: tuple[str, ...]
) -> ModuleGraph:
    from torch._decomp import core_aten_decompositions
    from torch.fx.experimental.proxy_tensor import make_fx

    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    names, parameters = list(state), {name for name, _ in model.named_parameters()}
    decompositions: Any = core_aten_decompositions()
    table = {op: f for op, f in decompositions.items() if not keep(str(op))}

    def call(weights: list[torch.Tensor], inputs_: list[Any]) -> list[Any]:
        out = torch.func.functional_call(model, dict(zip(names, weights, strict=True)), tuple(inputs_))
        return [leaf for leaf in _leaves(out) if isinstance(leaf, torch.Tensor)]

    with torch.no_grad():
        functional = torch.func.functionalize(call, remove="mutations_and_views")
        traced = make_fx(functional, decomposition_table=table)(list(state.values()), list(_fresh(inputs)))
    origins: list[InputOrigin] = ["parameter" if name in parameters else "buffer" for name in names]
    holders = [n for n in traced.graph.nodes if n.op == "placeholder"]
    origins += ["input"] * (len(holders) - len(origins))
    sources = [
        GraphInput(n.name, origin, _tensor(n.meta["val"]))
        for n, origin in zip(holders, origins, strict=True)
        if isinstance(n.meta.get("val"), torch.Tensor)
    ]
    return _graph(traced.graph.nodes, sources, None, "make_fx of the functionalised module", attempts)


_EXPORTERS: Mapping[str, Callable[..., ModuleGraph]] = MappingProxyType(
    {"torch.export": _by_export, "make_fx": _by_make_fx}
)


# --- from torch.fx to the graph ---------------------------------------------------


def _graph(
    nodes: Iterable[Any],
    sources: list[GraphInput],
    fates: Sequence[str] | None,
    method: str,
    attempts: tuple[str, ...],
) -> ModuleGraph:
    """Returns the graph. `fates` are the OutputKind names of the results in order; None where all of them are
    returned."""
    refs: dict[str, Ref] = {s.name: Ref(s.name) for s in sources}
    operators: list[OperatorNode] = []
    results: list[GraphOutput] = []
    for node in nodes:
        match node.op:
            case "get_attr":
                value = _attribute(node)
                if isinstance(value, torch.Tensor):
                    sources.append(GraphInput(node.name, "constant", _tensor(value)))
                    refs[node.name] = Ref(node.name)
            case "call_function" if getattr(node.target, "__name__", "") == "getitem":
                source, index = node.args
                refs[node.name] = Ref(refs[source.name].name, index)
            case "call_function":
                operators.append(_node(node, refs))
                refs[node.name] = Ref(node.name)
            case "output":
                leaves: list[Any] = list(node.args[0])
                kinds = fates if fates is not None else ["USER_OUTPUT"] * len(leaves)
                for leaf, kind in zip(leaves, kinds, strict=True):
                    if isinstance(leaf, torch.fx.Node) and isinstance(leaf.meta.get("val"), torch.Tensor):
                        fate = "mutation" if kind.endswith("MUTATION") else "result"
                        results.append(GraphOutput(refs[leaf.name], fate))  # type: ignore[arg-type]
    return ModuleGraph(tuple(sources), tuple(operators), tuple(results), method, attempts)


def _attribute(node: Any) -> Any:
    value: Any = node.graph.owning_module
    for part in node.target.split("."):
        value = getattr(value, part)
    return value


def _node(node: Any, refs: Mapping[str, Ref]) -> OperatorNode:
    schema = getattr(node.target, "_schema", None)
    named = {a.name: a.default_value for a in schema.arguments if a.has_default_value()} if schema else {}
    names = [a.name for a in schema.arguments] if schema else [f"argument {i}" for i in range(len(node.args))]
    named |= dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    value = node.meta.get("val")
    outputs = list(value) if isinstance(value, tuple | list) else [value]
    return OperatorNode(
        node.name,
        str(node.target),
        {name: _plain(v, refs) for name, v in named.items()},
        tuple(_tensor(v) if isinstance(v, torch.Tensor) else None for v in outputs),
    )


def _plain(value: Any, refs: Mapping[str, Ref]) -> Any:
    match value:
        case torch.fx.Node():
            return refs[value.name]
        case list() | tuple():
            return [_plain(item, refs) for item in value]
        case None | bool() | int() | float() | str():
            return value
        case torch.dtype():
            return str(value).removeprefix("torch.")
        case _:
            return str(value)


def _tensor(value: torch.Tensor) -> TensorMeta:
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in ITEM_BYTES:
        raise TypeError(f"element type {dtype} is not known here; known are {', '.join(ITEM_BYTES)}")
    extents = tuple(value.shape)
    if not all(isinstance(extent, int) for extent in extents):
        raise _Unbounded(f"a tensor of shape {extents}")
    return TensorMeta(extents, dtype)

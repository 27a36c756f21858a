"""Compiles the whole graph's fallback in a process of its own, which leaves it in TorchInductor's cache on disk.

The process has its own interpreter lock and tensors of no memory; what it compiles, this process loads from the
cache afterwards. It ends with the process that started it.
"""

from __future__ import annotations

import base64
import importlib
import io
import logging
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from types import FunctionType
from typing import Any, TypeAlias

import torch
from torch import fx

from ucutlass.dynamo.inductor import start_compilers, whole
from ucutlass.runtime import isolation

_LOG = logging.getLogger("ucutlass.dynamo")

TARGET = "ucutlass.tasks.fallback:compile_graph"

SECONDS = 600.0
"""Limit of a compilation."""

MEMORY_BYTES = 32 << 30
"""Host memory of the process and of TorchInductor's compilers, pages that they share counted for each."""

StartFallback: TypeAlias = Callable[[bytes], "Future[bool]"]
"""Starts a compilation of a graph that `portable` wrote; the future says whether it is in the cache."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A node of a graph, as an argument: its number."""

    number: int


@dataclass(frozen=True, slots=True)
class PortableInput:
    """A tensor without its elements, or a number."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool


@dataclass(frozen=True, slots=True)
class PortableNode:
    """A node: with its source and its mark as a parameter, where it is an input."""

    op: str
    name: str
    target: Any
    args: Any
    kwargs: Any
    source: Any
    static: Any


@dataclass(frozen=True, slots=True)
class PortableGraph:
    """A graph of TorchDynamo, its inputs, and the settings that TorchInductor's key of it depends on."""

    nodes: tuple[PortableNode, ...]
    inputs: tuple[Any, ...]
    meta: Mapping[str, Any]
    names: Any
    settings: Mapping[str, Any]
    configurations: Mapping[str, bytes]


# --- settings ---------------------------------------------------------------------


_FLAGS: Mapping[str, tuple[Any, tuple[str, ...]]] = {
    "matmul": (
        torch.backends.cuda.matmul,
        (
            "fp32_precision",
            "allow_tf32",
            "allow_fp16_reduced_precision_reduction",
            "allow_bf16_reduced_precision_reduction",
        ),
    ),
    "cudnn": (torch.backends.cudnn, ("allow_tf32", "benchmark", "deterministic", "enabled")),
}
"""Flags of torch that decide what is compiled, by the module that has them."""


def _settings() -> dict[str, Any]:
    cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return {
        "device": torch.cuda.current_device() if cuda else None,
        "grad": torch.is_grad_enabled(),
        "dtype": torch.get_default_dtype(),
        "precision": torch.get_float32_matmul_precision(),
        "flags": {name: _flags(module, names) for name, (module, names) in _FLAGS.items()},
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
    }


def _flags(module: Any, names: Sequence[str]) -> dict[str, Any]:
    flags = {}
    for name in names:
        # One that this torch has not, or of the older interface where the newer one was used.
        with suppress(AttributeError, RuntimeError):
            flags[name] = getattr(module, name)
    return flags


def _set(settings: Mapping[str, Any]) -> None:
    if settings["device"] is not None:
        torch.cuda.set_device(settings["device"])
    torch.set_grad_enabled(settings["grad"])
    torch.set_default_dtype(settings["dtype"])
    # What is so already is not set: that it was never set is in TorchInductor's key.
    if settings["precision"] != torch.get_float32_matmul_precision():
        torch.set_float32_matmul_precision(settings["precision"])
    for name, (module, names) in _FLAGS.items():
        present = _flags(module, names)
        for flag, value in settings["flags"][name].items():
            if flag in present and present[flag] != value:
                setattr(module, flag, value)
    enabled, warn_only = settings["deterministic"]
    torch.use_deterministic_algorithms(enabled, warn_only=warn_only)


def _configurations() -> dict[str, Any]:
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor

    return {"inductor": inductor, "functorch": functorch}


# --- there and back ---------------------------------------------------------------


def portable(graph: fx.GraphModule, inputs: Sequence[Any]) -> bytes | None:
    """Returns a graph as another process reads it, None where it cannot be compiled there: its extents are free,
    it holds tensors or modules of its own, names what is not importable, or TorchInductor keeps no cache."""
    configurations = _configurations()
    inductor = configurations["inductor"]
    if not inductor.fx_graph_cache or getattr(inductor, "force_disable_caches", False):
        return None
    if any(node.op in ("get_attr", "call_module") for node in graph.graph.nodes):
        return None
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    if any(isinstance(n, torch.SymInt | torch.SymFloat) for x in tensors for n in (*x.shape, *x.stride())):
        return None
    if not all(isinstance(x, torch.Tensor | bool | int | float) for x in inputs):
        return None
    numbers = {node: number for number, node in enumerate(graph.graph.nodes)}

    def place(node: fx.Node) -> Any:
        return _Place(numbers[node])

    def places(value: Any) -> Any:
        return fx.node.map_arg(value, place)

    portable_graph = PortableGraph(
        tuple(
            PortableNode(
                node.op,
                node.name,
                node.target,
                places(node.args),
                places(node.kwargs),
                getattr(node, "_dynamo_source", None),
                node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type"),
            )
            for node in graph.graph.nodes
        ),
        tuple(map(_portable_input, inputs)),
        {name: graph.meta[name] for name in ("dynamo_compile_id",) if name in graph.meta},
        getattr(graph, "_param_name_to_source", None),
        _settings(),
        {name: module.save_config() for name, module in configurations.items()},
    )
    written = io.BytesIO()
    try:
        _Pickler(written).dump(portable_graph)
    except (pickle.PicklingError, AttributeError, TypeError) as problem:
        _LOG.info("a graph stays in this process: %s", problem)
        return None
    return written.getvalue()


class _Pickler(pickle.Pickler):
    """Writes a function that another one made, such as `max_pool2d`, by the name under which its module has it."""

    def reducer_override(self, value: Any) -> Any:
        name = getattr(value, "__name__", "")
        if (
            isinstance(value, FunctionType)
            and value.__qualname__ != name
            and getattr(sys.modules.get(value.__module__), name, None) is value
        ):
            return _function, (value.__module__, name)
        return NotImplemented


def _function(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _portable_input(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return PortableInput(
        tuple(value.shape), tuple(value.stride()), value.dtype, value.device, value.requires_grad
    )


def compile_portable(written: bytes) -> None:
    """Compiles a graph that `portable` wrote in this process, for the cache."""
    from torch._guards import TracingContext, tracing
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    start_compilers()
    portable_graph: PortableGraph = pickle.loads(written)
    for name, module in _configurations().items():
        module.load_config(portable_graph.configurations[name])
    functorch = _configurations()["functorch"]
    if hasattr(functorch, "force_non_lazy_backward_lowering"):
        # The caller compiles the gradient where it is first wanted, and takes it from the cache then.
        functorch.force_non_lazy_backward_lowering = True
    _set(portable_graph.settings)
    mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True)
    with mode:
        inputs = [_fake(value) for value in portable_graph.inputs]
    with tracing(TracingContext(mode)):
        whole(_graph(portable_graph, inputs), inputs)


def _fake(value: Any) -> Any:
    if not isinstance(value, PortableInput):
        return value
    tensor = torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device=value.device)
    return tensor.requires_grad_(value.requires_grad)


def _graph(portable_graph: PortableGraph, inputs: Sequence[Any]) -> fx.GraphModule:
    graph = fx.Graph()
    nodes: list[fx.Node] = []
    examples = iter(inputs)
    for place in portable_graph.nodes:
        args, kwargs = (_nodes(value, nodes) for value in (place.args, place.kwargs))
        node = graph.create_node(place.op, place.target, args, kwargs, place.name)
        if place.op == "placeholder":
            node._dynamo_source = place.source
            node.meta["example_value"] = next(examples)
            static = {} if place.static is None else {"_dynamo_static_input_type": place.static}
            node.meta["tensor_dict"] = static
        nodes.append(node)
    module = fx.GraphModule({}, graph)
    module.meta.update(portable_graph.meta)
    if portable_graph.names is not None:
        module._param_name_to_source = portable_graph.names
    return module


def _nodes(value: Any, nodes: Sequence[fx.Node]) -> Any:
    match value:
        case _Place(number):
            return nodes[number]
        case list():
            return [_nodes(v, nodes) for v in value]
        case tuple() if hasattr(value, "_fields"):
            return type(value)(*[_nodes(v, nodes) for v in value])
        case tuple():
            return tuple(_nodes(v, nodes) for v in value)
        case dict():
            return {k: _nodes(v, nodes) for k, v in value.items()}
        case slice():
            return slice(*[_nodes(v, nodes) for v in (value.start, value.stop, value.step)])
        case _:
            return value


# --- the process ------------------------------------------------------------------


def started(written: bytes) -> Future[bool]:
    """Starts a process that compiles a graph that `portable` wrote; the future says whether it did."""
    future: Future[bool] = Future()

    def wait() -> None:
        try:
            graph = base64.b64encode(written).decode()
            outcome = isolation.run(
                TARGET, {"graph": graph}, limit_seconds=SECONDS, memory_bytes=MEMORY_BYTES
            )
            if not isinstance(outcome, isolation.Returned):
                _LOG.info("%s", isolation.failure_text(outcome, "the fallback"))
            future.set_result(isinstance(outcome, isolation.Returned))
        except BaseException as problem:  # handed to whoever asks for it
            future.set_exception(problem)

    # The process ends with the thread that started it, which a daemon thread does with the interpreter.
    Thread(target=wait, name="ucutlass-fallback", daemon=True).start()
    return future

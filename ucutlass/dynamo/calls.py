"""The host's side of a compiled graph: a divided graph as one function, and the call of a part's program."""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

from torch import Tensor, fx
from torch.fx.graph import _BoxedCodeGen

from ucutlass.dynamo.region import Executor, Order, Region, inverse

Boxed: TypeAlias = Callable[[list[Any]], Any]
"""A function of a list of arguments, which it empties, so that a tensor goes with its last use."""

PartCall: TypeAlias = Callable[..., tuple[Any, ...]]
"""What computes a part: a function of its arguments."""


def boxed(graph: fx.GraphModule, calls: Mapping[str, PartCall]) -> Boxed:
    """Returns a divided graph as a function. `calls` has what to call for its submodules, by their names."""
    flat = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in graph.graph.nodes:
        if node.op == "call_module":
            arguments = tuple(copies[source] for source in node.args)
            copies[node] = flat.call_function(calls[node.target], arguments)
        else:
            copies[node] = flat.node_copy(node, copies.__getitem__)
    flat.set_codegen(_BoxedCodeGen())
    # Submodules stay behind: what was computed by a program needs no module any more.
    module = fx.GraphModule(_attributes(graph), flat)
    run = functools.partial(type(module).forward, module)
    run._boxed_call = True  # type: ignore[attr-defined]
    return run


class LateBoxed:
    """A boxed function that `make` returns: once `finish` is called, or at the first call."""

    def __init__(self, make: Callable[[], Boxed]) -> None:
        self._boxed_call = True  # of the object itself, whose attributes TorchDynamo's wrappers copy
        self._make: Callable[[], Boxed] | None = make
        self._run: Boxed | None = None
        self._lock = threading.Lock()

    def finish(self) -> Boxed:
        """Raises what `make` raises."""
        with self._lock:
            if self._run is None:
                assert self._make is not None
                self._run = self._make()
                self._make = None  # and the graphs that it holds
            return self._run

    def __call__(self, arguments: list[Any]) -> Any:
        return (self._run or self.finish())(arguments)


def _attributes(graph: fx.GraphModule) -> dict[str, Any]:
    """Returns the tensors that a graph holds itself."""
    return {
        node.target: functools.reduce(getattr, node.target.split("."), graph)
        for node in graph.graph.nodes
        if node.op == "get_attr"
    }


def call_of(region: Region, execute: Executor, dense: Collection[int] = ()) -> PartCall:
    """Returns a function of the part's arguments, of any strides, that gives the tuple of its results with the
    strides that the graph says. `dense` has the places of parameters that are known to be dense in the region's
    order, so that no call looks."""
    take = _taker([number for number, _ in region.inputs])
    moves = tuple(
        (place, _unless_identity(order), place not in dense)
        for place, (_, order) in enumerate(region.inputs)
        if _unless_identity(order) is not None or place not in dense
    )
    outputs = tuple((number, _unless_identity(inverse(order))) for number, order in region.outputs)
    as_they_are = outputs == tuple((number, None) for number in range(len(outputs)))

    def call(*arguments: Tensor) -> tuple[Any, ...]:
        tensors = take(arguments)
        if moves:
            tensors = list(tensors)
            for place, order, looked_at in moves:
                tensor = tensors[place] if order is None else tensors[place].permute(order)
                tensors[place] = tensor.contiguous() if looked_at else tensor
        results = execute(*tensors)
        several: tuple[Tensor, ...] = results if isinstance(results, tuple) else (results,)
        if as_they_are:
            return several
        return tuple(
            [
                several[number] if order is None else several[number].permute(order)
                for number, order in outputs
            ]
        )

    return call


def _taker(numbers: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Returns a function that takes several of a sequence."""
    if len(numbers) > 1:
        return operator.itemgetter(*numbers)
    return lambda values: [values[number] for number in numbers]


def _unless_identity(order: Order) -> Order | None:
    return None if order == tuple(range(len(order))) else order

"""Writes a typed program as a PyTorch user would: these are the baselines `eager` and `compile`.

The plain way, which is also what these baselines cost: a dot is torch's product of the operands in
their own element type and has that type (so does F.linear, which takes a bias along); element-wise work
and reductions go on in whatever type torch's own promotion gives; the result is cast at
the end. No f32 in between unless the program casts: rounding is torch's, and results agree with
the reference only as closely as that does. Products in f32 use f32, in the compute type tf32 TF32
(`needs_tf32`); fp8 goes through torch._scaled_mm, whose result is bf16.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import fx

from ucutlass import ir
from ucutlass.ir import extents
from ucutlass.ir.functions import FUNCTIONS
from ucutlass.reference.binding import shape_of
from ucutlass.reference.interpreter import TORCH_FUNCTIONS
from ucutlass.reference.packing import unpack_s4
from ucutlass.reference.rounding import outer_dtype
from ucutlass.torch_functions import RECURRENCES


class NotAvailable(Exception):
    """PyTorch has no plain form of this program; the message says of what."""


HostNumber: TypeAlias = float | int | bool


@dataclass(frozen=True, slots=True)
class _Value:
    """A node of the graph, or a number, and the dimensions of its axes in order."""

    node: fx.Node | HostNumber
    dims: tuple[str, ...] = ()

    @property
    def number(self) -> bool:
        return not isinstance(self.node, fx.Node)


def eager(program: ir.Program, sizes: Mapping[str, int], device: str = "cuda") -> fx.GraphModule:
    """Returns the program as a module of torch calls for these extents (every dimension by name): takes the
    parameters in order, gives a tuple of the results. Its `code` is what would have been written.

    Raises NotAvailable.
    """
    graph = fx.Graph()
    placeholders = [graph.placeholder(f"p{i}") for i in range(len(program.params))]
    match program:
        case ir.Kernel():
            out = _FxGraphWriter(graph, program, sizes, device).kernel(placeholders)
        case ir.Pipeline():
            out = _pipeline(graph, program, sizes, device, placeholders)
    graph.output(tuple(out))
    graph.eliminate_dead_code()  # a product that F.linear took the place of
    return fx.GraphModule(torch.nn.Module(), graph)


def compute_types(program: ir.Program) -> frozenset[str]:
    """Returns the names of the compute types of all dots."""
    kernels = (
        [program]
        if isinstance(program, ir.Kernel)
        else [s.call for s in program.stages if isinstance(s.call, ir.Kernel)]
    )
    return frozenset(d.compute_type.name for k in kernels for d in dots(k))


def needs_tf32(program: ir.Program) -> bool:
    """Returns whether f32 products are to use TF32. Raises NotAvailable where both kinds occur: torch's
    switch is the process's."""
    types = compute_types(program)
    if {"f32", "tf32"} <= types:
        raise NotAvailable("dots in f32 and in tf32 together: torch has one switch for both")
    return "tf32" in types


def dots(kernel: ir.Kernel) -> tuple[ir.Dot, ...]:
    """Returns every dot, each once."""
    visited: dict[int, ir.Value] = {}
    pending: list[ir.Value] = [r.value for r in kernel.results]
    while pending:
        node = pending.pop()
        if id(node) not in visited:
            visited[id(node)] = node
            pending += ir.children(node)
    return tuple(n for n in visited.values() if isinstance(n, ir.Dot))


def _pipeline(
    graph: fx.Graph,
    program: ir.Pipeline,
    sizes: Mapping[str, int],
    device: str,
    placeholders: Sequence[fx.Node],
) -> list[fx.Node]:
    buffers: dict[str, Any] = {p.name: g for p, g in zip(program.params, placeholders, strict=True)}
    for stage in program.stages:
        arguments = [buffers[a] if isinstance(a, str) else a for a in stage.arguments]
        match stage.call:
            case ir.Kernel() as kernel:
                inner = {**sizes, **_extents(kernel, sizes)}
                results = _FxGraphWriter(graph, kernel, inner, device).kernel(arguments)
            case ir.TorchCall(function, keywords, types):
                node = graph.call_function(_torch(function), tuple(arguments), dict(keywords))
                results = [graph.call_method("to", (node, outer_dtype(type_.elem))) for type_ in types]
        buffers |= dict(zip(stage.outputs, results, strict=True))
    return [buffers[name] for name, _ in program.results]


def _extents(kernel: ir.Kernel, sizes: Mapping[str, int]) -> dict[str, int]:
    return {dim: extents.evaluate(extent, sizes) for dim, extent in kernel.dims.items()}


OTHERWISE = frozenset({"sort", "flip", "roll", "inverse", "scatter", "scatter_add"}) | RECURRENCES
"""Torch stages whose arguments are not those of torch's function."""


def _torch(function: str) -> Callable[..., Any]:
    torch_function: Callable[..., Any] | None = getattr(torch, function, None)
    if torch_function is None or function not in TORCH_FUNCTIONS or function in OTHERWISE:
        raise NotAvailable(f"torch.{function} in a graph")
    return torch_function


# --- element-wise functions ----------------------------------------------------------


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


FORMS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "add": operator.add,
        "subtract": operator.sub,
        "multiply": operator.mul,
        "divide": operator.truediv,
        "floor_divide": operator.floordiv,
        "modulo": operator.mod,
        "power": operator.pow,
        "pow": operator.pow,
        "negate": operator.neg,
        "less": operator.lt,
        "less_equal": operator.le,
        "greater": operator.gt,
        "greater_equal": operator.ge,
        "equal": operator.eq,
        "not_equal": operator.ne,
        "and": operator.and_,
        "or": operator.or_,
        "not": torch.logical_not,
        "where": torch.where,
        "min": torch.minimum,
        "max": torch.maximum,
        "abs": torch.abs,
        "clamp": torch.clamp,
        "hardtanh": F.hardtanh,
        "relu": F.relu,
        "leaky_relu": F.leaky_relu,
        "gelu": F.gelu,
        "gelu_tanh": _gelu_tanh,
        "silu": F.silu,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "softplus": F.softplus,
        "elu": F.elu,
        "selu": F.selu,
        "mish": F.mish,
        "hardswish": F.hardswish,
        "exp": torch.exp,
        "log": torch.log,
        "log1p": torch.log1p,
        "sqrt": torch.sqrt,
        "rsqrt": torch.rsqrt,
        "erf": torch.erf,
        "sin": torch.sin,
        "cos": torch.cos,
        "floor": torch.floor,
        "round": torch.round,
        "sign": torch.sign,
    }
)
"""torch's own form of each of `ucutlass.ir.functions.FUNCTIONS`."""

_REDUCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin, "logsumexp": torch.logsumexp}
)


# --- a kernel ------------------------------------------------------------------------


class _FxGraphWriter:
    """Writes one kernel's values into a graph, each once."""

    def __init__(self, graph: fx.Graph, kernel: ir.Kernel, sizes: Mapping[str, int], device: str) -> None:
        self._graph = graph
        self._kernel = kernel
        self._sizes = sizes
        self._device = device
        self._params: list[_Value] = []
        self._done: dict[int, _Value] = {}

    def kernel(self, arguments: Sequence[Any]) -> list[fx.Node]:
        self._params = [
            self._parameter(p.type, g) for p, g in zip(self._kernel.params, arguments, strict=True)
        ]
        return [self._result(self._value(r.value), r.type) for r in self._kernel.results]

    # --- in and out

    def _parameter(self, kind: ir.ParamType, argument: Any) -> _Value:
        if isinstance(kind, ir.ScalarType):
            return _Value(argument)
        if any(not a.dims and a.extent != extents.Fixed(1) for a in kind.axes):
            raise NotAvailable("a parameter with a nameless axis")
        if kind.elem.packed > 1:
            argument = self._call(unpack_s4, argument)
        shape = [self._sizes[d] for d in kind.dims]
        plain = all(len(a.dims) == 1 for a in kind.axes)
        return _Value(argument if plain else self._call(torch.reshape, argument, shape), kind.dims)

    def _result(self, value: _Value, kind: ir.TensorType) -> fx.Node:
        shape = [self._sizes[d] for d in kind.dims]
        if value.number:
            dtype = outer_dtype(kind.elem)
            return self._call(torch.full, shape, value.node, dtype=dtype, device=self._device)
        node = self._spread(value, kind.dims)
        if set(value.dims) != set(kind.dims):
            node = self._method("expand", node, shape)
        if any(len(a.dims) != 1 for a in kind.axes):
            node = self._call(torch.reshape, node, list(shape_of(kind, self._sizes)))
        return self._method("contiguous", self._method("to", node, outer_dtype(kind.elem)))

    # --- values

    def _value(self, node: ir.Value) -> _Value:
        """Children first, without recursion over the whole depth: programs may be long chains."""
        pending = [node]
        while pending:
            at = pending[-1]
            if waiting := [c for c in ir.children(at) if id(c) not in self._done]:
                pending += waiting
                continue
            pending.pop()
            if id(at) not in self._done:
                self._done[id(at)] = self._write(at)
        return self._done[id(node)]

    def _write(self, node: ir.Value) -> _Value:
        of = [self._done[id(c)] for c in ir.children(node)]
        match node:
            case ir.ParamValue(index=index):
                return self._params[index]
            case ir.Constant(value=value):
                return _Value(value)
            case ir.Size(extent=extent):
                return _Value(extents.evaluate(extent, self._sizes))
            case ir.Coordinate(dim=dim):
                return _Value(self._call(torch.arange, self._sizes[dim], device=self._device), (dim,))
            case ir.Apply():
                return self._apply(node, of)
            case ir.Cast(elem=elem):
                return self._cast(of[0], elem.name, node)
            case ir.Dot():
                return self._dot(node, *of)
            case ir.Reduce():
                return self._reduce(node, of[0])
            case ir.Softmax(over=over, log=log):
                if len(over) != 1 or of[0].number:
                    raise NotAvailable("softmax over several dimensions")
                form = torch.log_softmax if log else torch.softmax
                return _Value(self._call(form, of[0].node, of[0].dims.index(over[0])), of[0].dims)
            case ir.Scan(op=op, along=along, exclusive=exclusive, reverse=reverse):
                return self._scan(op, of[0], along, exclusive, reverse)
            case ir.Gather(dim=dim):
                return self._gather(of[0], dim, of[1])
            case _:
                raise NotAvailable(f"{type(node).__name__.lower()} has no one torch function")

    def _cast(self, value: _Value, elem: str, node: ir.Cast) -> _Value:
        if elem == "tf32":
            return value  # `needs_tf32` has torch round the operands itself
        if value.number:
            kind = {"float": float, "int": int, "bool": bool}[node.elem.kind]
            return _Value(kind(value.node))
        return _Value(self._method("to", value.node, outer_dtype(node.elem)), value.dims)

    def _apply(self, node: ir.Apply, of: list[_Value]) -> _Value:
        if all(v.number for v in of):
            return _Value(_folded(node, [v.node for v in of]))
        if (linear := self._linear(node, of)) is not None:
            return linear
        dims = node.dims
        parts = [v.node if v.number else self._spread(v, dims) for v in of]
        if node.function in ("min", "max") and any(v.number for v in of):
            # torch.minimum takes tensors only; a bound that is a number is a clamp.
            tensor, bound = (parts[0], parts[1]) if of[1].number else (parts[1], parts[0])
            result = self._call(torch.clamp, tensor, **{"max" if node.function == "min" else "min": bound})
        else:
            result = self._call(FORMS[node.function], *parts)
        return _Value(result, dims)

    def _linear(self, node: ir.Apply, of: list[_Value]) -> _Value | None:
        """F.linear where a bias along the product's last dimension is added to a product of (.., K) and
        (N, K) or (K, N): what torch fuses into the product's own kernel."""
        if node.function != "add":
            return None
        for i in (0, 1):
            dot, bias = node.args[i], of[1 - i]
            if not isinstance(dot, ir.Dot) or dot.compute_type.name not in ("f16", "bf16", "f32", "tf32"):
                continue
            left, right = (self._done[id(c)] for c in ir.children(dot))
            if bias.number or node.args[1 - i].elem.name != dot.compute_type.name.replace("tf32", "f32"):
                continue
            if len(dot.over) == 1 and len(right.dims) == 2 and left.dims[-1:] == dot.over:
                n = next((d for d in right.dims if d not in dot.over), None)
                if (
                    n is not None
                    and bias.dims == (n,)
                    and n not in left.dims
                    and not (set(right.dims) & set(left.dims[:-1]))
                ):
                    weight = self._spread(right, (n, dot.over[0]))
                    result = self._call(F.linear, left.node, weight, bias.node)
                    return _Value(result, (*left.dims[:-1], n))
        return None

    def _dot(self, node: ir.Dot, left: _Value, right: _Value) -> _Value:
        if left.number or right.number:
            raise NotAvailable("a dot of a number")
        match node.compute_type.name:
            case "e4m3" | "e5m2":
                return self._scaled(node, left, right)
            case "s8":
                return self._integer(node, left, right)
        shared = [d for d in left.dims if d in right.dims and d not in node.over]
        if not shared and right.dims == node.over == left.dims[-1:]:
            return _Value(self._call(torch.matmul, left.node, right.node), left.dims[:-1])
        if not shared and all(d in left.dims and d in right.dims for d in node.over):
            axes = ([left.dims.index(d) for d in node.over], [right.dims.index(d) for d in node.over])
            free = [d for v in (left, right) for d in v.dims if d not in node.over]
            return _Value(self._call(torch.tensordot, left.node, right.node, axes), tuple(free))
        letters = {d: chr(ord("a") + i) for i, d in enumerate(dict.fromkeys((*left.dims, *right.dims)))}
        if len(letters) > 26:
            raise NotAvailable("a dot over more than 26 dimensions")
        spell = ["".join(letters[d] for d in dims) for dims in (left.dims, right.dims, node.dims)]
        equation = f"{spell[0]},{spell[1]}->{spell[2]}"
        return _Value(self._call(torch.einsum, equation, left.node, right.node), node.dims)

    def _matrix(self, node: ir.Dot, left: _Value, right: _Value) -> tuple[fx.Node, fx.Node, tuple[str, str]]:
        """(M, K) and (K, N), a view of (N, K) where that is how it lies."""
        over = node.over
        if len(over) != 1 or len(left.dims) != 2 or len(right.dims) != 2 or len(node.dims) != 2:
            raise NotAvailable(f"torch multiplies {node.compute_type.name} as two matrices only")
        m, n = ((d for d in v.dims if d not in over) for v in (left, right))
        names = (next(m), next(n))
        return self._spread(left, (names[0], over[0])), self._spread(right, (over[0], names[1])), names

    def _scaled(self, node: ir.Dot, left: _Value, right: _Value) -> _Value:
        if right.dims[-1:] != node.over or left.dims[-1:] != node.over:
            raise NotAvailable("torch._scaled_mm wants both operands contiguous along the summed dimension")
        a, b, names = self._matrix(node, left, right)
        unit_scale = self._call(torch.ones, [], dtype=torch.float32, device=self._device)
        fast = {"use_fast_accum": True} if node.accumulate == "fast" else {}
        return _Value(
            self._call(
                torch._scaled_mm,
                a,
                b,
                scale_a=unit_scale,
                scale_b=unit_scale,
                out_dtype=torch.bfloat16,
                **fast,
            ),
            names,
        )

    def _integer(self, node: ir.Dot, left: _Value, right: _Value) -> _Value:
        a, b, names = self._matrix(node, left, right)
        return _Value(self._call(torch._int_mm, a, b), names)

    def _reduce(self, node: ir.Reduce, value: _Value) -> _Value:
        if value.number:
            raise NotAvailable("a reduction of a number")
        axes = [value.dims.index(d) for d in node.over]
        remaining = tuple(d for d in value.dims if d not in node.over)
        match node.op:
            case "sum" | "mean" | "max" | "min" | "logsumexp":
                result = self._call(_REDUCTIONS[node.op], value.node, axes)
            case "var":
                result = self._call(torch.var, value.node, axes, correction=0)
            case "prod" | "argmax" | "argmin" if len(axes) == 1:
                result = self._call(getattr(torch, node.op), value.node, axes[0])
            case _:
                raise NotAvailable(f"{node.op} over several dimensions")
        return _Value(result, remaining)

    def _scan(self, op: str, value: _Value, along: str, exclusive: bool, reverse: bool) -> _Value:
        if exclusive or value.number:
            raise NotAvailable("an exclusive scan")
        axis = value.dims.index(along)
        form = torch.cumsum if op == "cumsum" else torch.cumprod
        node = self._call(torch.flip, value.node, [axis]) if reverse else value.node
        node = self._call(form, node, axis)
        return _Value(self._call(torch.flip, node, [axis]) if reverse else node, value.dims)

    def _gather(self, value: _Value, dim: str, ids: _Value) -> _Value:
        if value.number or ids.number or len(ids.dims) != 1 or ids.dims[0] in value.dims:
            raise NotAvailable("a gather by several dimensions")
        axis = value.dims.index(dim)
        dims = (*value.dims[:axis], ids.dims[0], *value.dims[axis + 1 :])
        return _Value(self._call(torch.index_select, value.node, axis, ids.node), dims)

    # --- the graph

    def _spread(self, value: _Value, dims: Sequence[str]) -> Any:
        """Returns the node with its axes in the order of `dims`, extent 1 for those behind its first that it
        lacks; torch broadcasts over the ones before."""
        node: Any = value.node
        present = [d for d in dims if d in value.dims]
        if tuple(present) != value.dims:
            node = self._method("permute", node, [value.dims.index(d) for d in present])
        inner = [d for i, d in enumerate(dims) if any(p in value.dims for p in dims[:i])]
        for d in inner:
            if d not in value.dims:
                lead = len(dims) - len(inner) - 1
                node = self._method("unsqueeze", node, dims.index(d) - lead)
        return node

    def _call(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> fx.Node:
        return self._graph.call_function(function, arguments, keywords)

    def _method(self, name: str, *arguments: Any) -> fx.Node:
        return self._graph.call_method(name, arguments)


def _folded(node: ir.Apply, numbers: Sequence[Any]) -> HostNumber:
    """Returns the value of a function of numbers, as the reference computes it."""
    function = FUNCTIONS[node.function]
    missing = len(function.parameters) - len(numbers)
    supplied = [*numbers, *function.defaults[len(function.defaults) - missing :]]
    exact = torch.int64 if node.elem.kind == "int" else torch.float64
    tensors = [torch.tensor(n, dtype=torch.bool if isinstance(n, bool) else exact) for n in supplied]
    value = function.reference(*tensors).item()
    return bool(value) if node.elem.kind == "bool" else value

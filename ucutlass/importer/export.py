"""From a PyTorch module to the importer's graph, by torch.export.

The module's forward runs here, on tensors without storage. For a file that is not ours, call this in an
isolated process only.
"""

from __future__ import annotations

import inspect
import itertools
import operator
import re
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves, tree_map_only

from ucutlass.importer.complex_numbers import parts_of, with_real_parts
from ucutlass.importer.derived_extents import Formulas
from ucutlass.importer.expressions import operand
from ucutlass.importer.graph import ImportedTensor, Input, OperatorOrigin, TensorGraph, Unsupported
from ucutlass.importer.masks import noted
from ucutlass.importer.naming import free
from ucutlass.importer.operators import RULES
from ucutlass.importer.operators.builder import Arguments, GraphBuilder, ValueRef
from ucutlass.importer.operators.pointwise import Rule
from ucutlass.importer.operators.products import ATTENDS, WINDOW
from ucutlass.importer.operators.views import EMPTY, MEMORY, READ_MEMORY, SKIP_EMPTY, constant
from ucutlass.importer.recurrences import rolled
from ucutlass.importer.symbolic import formulas_of, small_stand_ins, stand_ins, symbols_of
from ucutlass.importer.whole_layers import TORCHS, whole_layers

ELEMENTS = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "e4m3",
    torch.float8_e5m2: "e5m2",
    torch.int8: "s8",
    torch.uint8: "u8",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "bool",
}
"""The language's element of each of torch's types."""

CHECKS = frozenset(
    {
        "aten._assert_tensor_metadata.default",
        "aten._assert_async.default",
        "aten._assert_async.msg",
        "aten.sym_constrain_range_for_size.default",
        "aten._assert_scalar.default",
    }
)
"""Operators that compute nothing: they check values."""

DECOMPOSED = frozenset(
    f"aten.{name}"
    for name in (
        "bucketize.Scalar",
        "bucketize.Tensor",
        "dist.default",
        "grid_sampler_2d.default",
        "ldexp.Tensor",
        "tril_indices.default",
        "triu_indices.default",
    )
)
"""Operators of core ATen that are taken apart too."""

_ORIGINS: Mapping[str, Literal["input", "parameter", "buffer", "constant"]] = {
    "PARAMETER": "parameter",
    "BUFFER": "buffer",
    "CONSTANT_TENSOR": "constant",
    "USER_INPUT": "input",
}


_RULE_FAILURES = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""What a rule raises on arguments that its author did not think of: the operator is refused then."""


@dataclass(frozen=True, slots=True)
class Exported:
    """A graph, and how it meets a call of the module.

    `constants` are the tensors by path that are neither parameters nor buffers. `arguments` has for each leaf
    of forward's arguments the input that it is, or the constant that it must equal. `leaves` has for each leaf
    of what forward returns the number of the program's result, or a constant; `structure` puts them together.
    `written` are the paths of the buffers that forward writes: their new values are the results after those,
    where they were asked for. `dynamic` has for each input whose extents vary the numbers of those axes. `keywords` are
    the names of the arguments that forward takes by name, in order, behind the others. `shared` are pairs of arguments
    that were one tensor, which the graph reads once.
    """

    graph: TensorGraph
    constants: Mapping[str, torch.Tensor]
    arguments: tuple[str | FixedValue, ...]
    leaves: tuple[int | FixedValue, ...]
    structure: Any
    written: tuple[str, ...]
    dynamic: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    keywords: tuple[str, ...] = ()
    shared: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class FixedValue:
    """A number, a text or None among a module's arguments or results."""

    value: Any


class ForwardNotFollowed(Unsupported):
    """torch.export cannot follow a module's forward."""


_REASONS: Mapping[str, str] = {
    "GuardOnDataDependentSymNode": "control flow depends on the values of tensors",
    "DynamicOutputShapeException": "a shape depends on the values of tensors",
    "DataDependentOutputException": "a number is read from a tensor",
}
"""What some of torch.export's exceptions mean, which say it in many lines."""


def export_failed(problem: Exception) -> ForwardNotFollowed:
    """Returns what torch.export raised in one line, with the innermost line of the module's own source."""
    own = [
        frame
        for frame in traceback.extract_tb(problem.__traceback__)
        if frame.line and not any(Path(frame.filename).is_relative_to(folder) for folder in _LIBRARIES)
    ]
    line = f"{own[-1].filename}:{own[-1].lineno}, {own[-1].line}" if own else ""
    kind = type(problem).__name__
    first = next((text.strip() for text in str(problem).splitlines() if text.strip()), "")
    why = _REASONS.get(kind) or f"{kind}: {first[:300]}"
    if unknown := _UNKNOWN_TYPE.search(first):
        name = unknown[1].rpartition(".")[2]
        why = f"forward takes or gives {name}, whose parts it does not know; where it is a dataclass, "
        why += f"torch.export.register_dataclass({name}) tells them"
    return ForwardNotFollowed(why, OperatorOrigin("torch.export", "", line))


_UNKNOWN_TYPE = re.compile(r"(?:Unsupported input type|Found) <class '([^']+)'>(?=\.| in output)")
"""How torch.export begins to say that it cannot take an object apart."""

_LIBRARIES = (Path(torch.__file__).parent, Path(__file__).parent)


@dataclass(frozen=True, slots=True)
class ForwardArguments:
    """The arguments of one call of a module: by position, and by name."""

    positional: Sequence[Any]
    named: Mapping[str, Any] = field(default_factory=dict)


def exported(model: torch.nn.Module, call: ForwardArguments, updates: bool = False) -> Exported:
    """Returns the module's graph on these arguments, whose shapes it keeps. With `updates` the new values of
    the buffers that forward writes are results too. Raises Unsupported, and what torch.export raises."""
    program = _program(model, call, None)
    return _translated(program, _argument_names(model, call, program), updates, fixed, _shared(program, call))


def exported_twice(
    model: torch.nn.Module, call: ForwardArguments, updates: bool, dynamic_shapes: Any, small: bool
) -> tuple[Exported, Exported, Formulas]:
    """Returns the module's graph with two numbers for each extent that torch.export takes for dynamic, of the
    larger or the `small` ones, and what numbers of both are. Raises Unsupported, DependsOnExtents, and what
    torch.export raises."""
    program = _program(model, call, dynamic_shapes)
    values = [node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"]
    names = _argument_names(model, call, program)
    every = [node.meta.get("val") for node in program.graph.nodes]
    leaves = [leaf for value in every for leaf in (value if isinstance(value, tuple | list) else (value,))]
    symbols = symbols_of(values)
    first, second = small_stand_ins(symbols, leaves) if small else stand_ins(symbols)
    shared = _shared(program, call)
    graphs = [_translated(program, names, updates, numbers, shared) for numbers in (first, second)]
    return graphs[0], graphs[1], formulas_of(leaves, (first, second))


def _program(model: torch.nn.Module, call: ForwardArguments, dynamic_shapes: Any) -> Any:
    _refuse_kinds(model, call)
    table = dict(decompositions())
    with _EXPORTS, torch.no_grad(), whole_layers(model), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch.export copies types that torch has deprecated
        positional, named = _own_arguments(call)
        program = torch.export.export(model, positional, named, dynamic_shapes=dynamic_shapes, strict=False)
        rolled(program.graph)  # cells are whole here alone
        program = program.run_decompositions(table)
        rolled(program.graph)
        with_real_parts(program.graph, inputs_are_parts=True)
        return program


def _own_arguments(call: ForwardArguments) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments, each tensor one of its own: torch.export takes tensors for one that are the same object, a
    parameter too, and extents for dynamic that a tensor is marked with for torch.compile."""
    own: dict[int, torch.Tensor] = {}
    arguments: tuple[tuple[Any, ...], dict[str, Any]] = tree_map_only(
        torch.Tensor,
        lambda leaf: own.setdefault(id(leaf), leaf.detach()),
        (tuple(call.positional), dict(call.named)),
    )
    return arguments


def _shared(program: Any, call: ForwardArguments) -> tuple[tuple[int, int], ...]:
    """Returns the pairs of arguments that are one tensor, by their numbers in the program."""
    leaves = tree_leaves((call.positional, [call.named[name] for name in _keywords(program)]))
    first: dict[int, int] = {}
    for number, leaf in enumerate(leaves):
        first.setdefault(id(leaf), number)
    tensors = ((n, leaf) for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
    return tuple((first[id(leaf)], n) for n, leaf in tensors if first[id(leaf)] != n)


_EXPORTS = threading.RLock()
"""Held by the thread that exports: two at once leave torch's modes in a state in which TorchDynamo compiles nothing any
more."""


def _refuse_kinds(model: torch.nn.Module, call: ForwardArguments) -> None:
    """Raises Unsupported for layers and tensors of kinds at which torch.export ends in words of its own."""
    if not isinstance(model, torch.nn.Module):
        raise Unsupported(f"it is a {type(model).__name__}, not a torch.nn.Module")
    for path, layer in model.named_modules():
        if type(layer).__module__.startswith(("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")):
            name = f"{path or 'it'} is a quantized layer ({type(layer).__name__})"
            raise Unsupported(f"{name}, which no program computes")
    leaves = [(f"argument {number}", leaf) for number, leaf in enumerate(tree_leaves(call.positional))]
    leaves += [(name, leaf) for name, value in call.named.items() for leaf in tree_leaves(value)]
    for name, leaf in (*leaves, *model.named_parameters(), *model.named_buffers()):
        if kind := _kind(leaf):
            raise Unsupported(f"{name} is a {kind} tensor, which no program takes")


def _kind(value: Any) -> str:
    """Returns of what kind a tensor is, "" for one that is dense, and for what is none."""
    if not isinstance(value, torch.Tensor):
        return ""
    if value.is_nested:
        return "nested"
    if is_traceable_wrapper_subclass(value):
        return type(value).__name__
    if value.is_quantized:
        return "quantized"
    return "" if value.layout == torch.strided else str(value.layout).removeprefix("torch.")


def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """Returns PyTorch's code for the operators that are taken apart. To ask for it ahead spares the first export
    a quarter of its time: torch looks through all of its operators."""
    return _decompositions_of(len(torch._C._dispatch_get_all_op_names()))


@lru_cache(1)
def _decompositions_of(_: int) -> Mapping[Any, Callable[..., Any]]:
    """Returns them for so many operators as are registered now."""
    table: dict[Any, Callable[..., Any]] = dict(torch.export.default_decompositions())
    return {op: code for op, code in table.items() if str(op) not in RULES} | {
        **ready_operators(),
        **more_decompositions(),
    }


def more_decompositions() -> Mapping[Any, Callable[..., Any]]:
    """Returns PyTorch's code for operators that core ATen keeps whole and that have no rule."""
    from torch._decomp import decomposition_table

    return {op: function for op, function in decomposition_table.items() if str(op) in DECOMPOSED}


def ready_operators() -> Mapping[Any, Callable[..., Any]]:
    """Returns the PyTorch code of each operator of `ucutlass.ops`, none where no module can have them."""
    if "ucutlass.ops" not in sys.modules:
        return {}
    from ucutlass.ops.registry import OPERATORS
    from ucutlass.ops.table import TABLE

    return {operator: TABLE[name].equivalent for name, operator in OPERATORS.items()}


def _argument_names(model: torch.nn.Module, call: ForwardArguments, program: Any) -> tuple[str, ...]:
    """Returns the names in `forward` of the arguments; none where one of them is a container, or where
    forward does not name them all."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return ()
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = tuple(p.name for p in parameters if p.kind in by_position)[: len(call.positional)]
    flat = all(not isinstance(x, list | tuple | dict) for x in (*call.positional, *call.named.values()))
    return (*names, *_keywords(program)) if flat and len(names) == len(call.positional) else ()


def _keywords(program: Any) -> tuple[str, ...]:
    """Returns the names of the arguments that a call names, in the order of the program's inputs."""
    _, named = program.call_spec.in_spec.children()
    return tuple(named.context)


@dataclass(frozen=True, slots=True)
class _Placeholders:
    """What the placeholders of a program are. `refs` has by a node's name what reads of it get, `numbers` the value of a
    constant of no axes; `names` are those that are taken."""

    inputs: list[Input] = field(default_factory=list)
    refs: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    numbers: dict[str, float | int | bool] = field(default_factory=dict)
    dynamic: dict[str, tuple[int, ...]] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)


def _translated(
    program: Any,
    argument_names: Sequence[str],
    updates: bool,
    number_of: Callable[[Any], int],
    shared: tuple[tuple[int, int], ...],
) -> Exported:
    user = [spec for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    places = _placeholders(
        program, {spec.arg.name: name for spec, name in zip(user, argument_names, strict=False)}, number_of
    )
    refs = places.refs
    builder = _builder(program, places, number_of)
    for node in program.graph.nodes:
        if node.op in ("call_function", "get_attr"):
            refs[node.name] = _value(node, places, builder, number_of)
    results, leaves, written = _outputs(program, refs, updates)
    results = [_computed(builder, name) for name in results]
    read = needed(builder, results)
    nodes_left = tuple(n for n in builder.nodes if n.name in read)
    inputs_left = tuple(i for i in places.inputs if i.name in read or i.origin == "input")
    graph = TensorGraph(inputs_left, nodes_left, tuple(results), dict(builder.values))
    read_constants = {i.path for i in inputs_left if i.origin == "constant"}
    arguments = tuple(
        refs[spec.arg.name].name
        if isinstance(refs.get(spec.arg.name), ValueRef)
        else FixedValue(getattr(spec.arg, "value", None))
        for spec in user
    )
    return Exported(
        graph,
        {p: t for p, t in places.constants.items() if p in read_constants},
        arguments,
        leaves,
        program.call_spec.out_spec,
        written,
        places.dynamic,
        _keywords(program),
        shared,
    )


def _placeholders(program: Any, paths: Mapping[str, str], number_of: Callable[[Any], int]) -> _Placeholders:
    """Returns what the placeholders are; `paths` has the names of forward's arguments by their nodes'. Arguments come first,
    so that they keep their names where a parameter has the same. Raises Unsupported."""
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    places = _Placeholders()
    ranks = {kind: rank for rank, kind in enumerate(_ORIGINS) if kind != "USER_INPUT"}
    for spec in sorted(program.graph_signature.input_specs, key=lambda s: ranks.get(s.kind.name, -1)):
        node = nodes.get(getattr(spec.arg, "name", ""))
        if node is None or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        value = node.meta["val"]
        if spec.kind.name not in _ORIGINS:
            raise Unsupported(f"forward takes an argument of the kind {spec.kind.name}")
        origin = _ORIGINS[spec.kind.name]
        if origin != "input" and not value.numel():
            places.refs[node.name] = EMPTY
            continue
        path = paths.get(node.name, node.name) if origin == "input" else spec.target
        name = free(path, places.names)
        places.names.append(name)
        places.refs[node.name] = ValueRef(name)
        if origin == "constant":
            tensor = program.constants[spec.target]
            places.constants[path] = tensor if value.is_complex() else parts_of(tensor)
            if (number := _number(places.constants[path])) is not None:
                places.numbers[node.name] = number
                continue
        if origin == "input" or node.users:
            places.inputs.append(Input(name, path, origin, tensor_of(value, name, number_of)))
            if axes := tuple(i for i, n in enumerate(value.shape) if not isinstance(n, int)):
                places.dynamic[name] = axes
    return places


def _builder(program: Any, places: _Placeholders, number_of: Callable[[Any], int]) -> GraphBuilder:
    """Returns a graph of the inputs and of the constants that are numbers."""
    builder = GraphBuilder({i.name: i.tensor for i in places.inputs})
    for i in places.inputs:
        if i.origin == "constant" and _is_positions(places.constants[i.path]):
            builder.positions.add(i.name)
        elif i.origin == "parameter":
            builder.parameters.add(i.name)
    noted(program.graph, _state(program), number_of)
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    for name, number in places.numbers.items():
        builder.name = free(name, places.names)
        element = tensor_of(values[name], name).element
        places.refs[name] = constant(builder, number, (), element)
    return builder


def _value(node: Any, places: _Placeholders, builder: GraphBuilder, number_of: Callable[[Any], int]) -> Any:
    """Returns what an operator's node gives: values of the graph, an extent, or None for what no operator reads. Raises
    Unsupported."""
    if node.op == "get_attr":
        reader = next(iter(node.users), node)
        place = OperatorOrigin(str(reader.target), _module(reader), source_line(reader))
        raise Unsupported("a branch or a loop on values of tensors, of which no program has any", place)
    if node.target is operator.getitem:
        source, index = node.args
        return places.refs[source.name][index]
    match node.meta.get("val"):
        case int() | torch.SymInt() as extent:
            return number_of(extent)
        case torch.SymBool() | torch.SymFloat():
            return None  # a condition on extents, or a number that is read nowhere
    return translated(node, places.refs, builder, places.names, RULES, number_of)


def _state(program: Any) -> dict[str, torch.Tensor]:
    """Returns the tensors of a program's buffers and constants that no call changes, by their nodes' names."""
    signature = program.graph_signature
    written = set(signature.buffers_to_mutate.values())
    tensors = {**program.constants, **program.state_dict}
    return {
        spec.arg.name: tensors[spec.target]
        for spec in signature.input_specs
        if spec.kind.name in ("BUFFER", "CONSTANT_TENSOR")
        and spec.target not in written
        and isinstance(tensors.get(spec.target), torch.Tensor)
    }


def _computed(builder: GraphBuilder, name: str) -> str:
    """Returns a result's value; a result that is an input is a copy of it."""
    if any(node.name == name for node in builder.nodes):
        return name
    builder.name, builder.origin = f"{name}_result", OperatorOrigin("copy")
    return builder.pointwise(operand(0), [ValueRef(name)], builder.values[name].element, "copy").name


def _outputs(
    program: Any, refs: Mapping[str, Any], updates: bool
) -> tuple[list[str], tuple[int | FixedValue, ...], tuple[str, ...]]:
    """Returns the values of the program's results, the leaves of what forward returns, and the buffers that
    it writes."""
    node = next(n for n in program.graph.nodes if n.op == "output")
    results: list[str] = []
    leaves: list[int | FixedValue] = []
    new: list[tuple[str, str]] = []
    for spec, leaf in zip(program.graph_signature.output_specs, node.args[0], strict=True):
        ref = refs.get(leaf.name) if isinstance(leaf, torch.fx.Node) else None
        match spec.kind.name:
            case "BUFFER_MUTATION" | "USER_OUTPUT" if ref is EMPTY:
                raise Unsupported("a result of forward has no elements")
            case "BUFFER_MUTATION":
                new.append((spec.target, ref.name if isinstance(ref, ValueRef) else ""))
            case "USER_OUTPUT" if isinstance(ref, ValueRef):
                leaves.append(len(results))
                results.append(ref.name)
            case "USER_OUTPUT" if not isinstance(leaf, torch.fx.Node):
                leaves.append(FixedValue(leaf))
            case "USER_OUTPUT":
                raise Unsupported("a result of forward is no tensor")
            case _:
                raise Unsupported(f"forward writes over its input {spec.target}")
    if not results:
        raise Unsupported("forward gives no tensor")
    if updates:
        if missing := [path for path, value in new if not value]:
            raise Unsupported(f"the new value of the buffer {missing[0]} is not computed")
        results += [value for _, value in new]
    return results, tuple(leaves), tuple(path for path, _ in new)


def _is_positions(value: torch.Tensor) -> bool:
    """Returns whether a constant holds whole numbers that are not negative."""
    tensor = getattr(value, "constant", None) if isinstance(value, FakeTensor) else value
    if tensor is None or value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        return False
    with unset_fake_temporarily():
        return bool((tensor >= 0).all())


def _number(value: torch.Tensor) -> float | int | bool | None:
    """Returns the value of a constant of no axes, None for others and for one whose value is not known."""
    tensor = getattr(value, "constant", None) if isinstance(value, FakeTensor) else value
    if value.dim() or tensor is None:
        return None
    with unset_fake_temporarily():
        number: float | int | bool = tensor.item()
    return number


def needed(builder: GraphBuilder, results: Iterable[str]) -> set[str]:
    """Returns the values that the results are computed from."""
    by_name = {node.name: node for node in builder.nodes}
    needed: set[str] = set()
    stack = list(results)
    while stack:
        name = stack.pop()
        if name in needed:
            continue
        needed.add(name)
        if name in by_name:
            stack += [operand.value for operand in by_name[name].operands]
    return needed


def fixed(extent: Any) -> int:
    """Returns an extent that is a number. Raises Unsupported for a symbolic one."""
    if not isinstance(extent, int):
        raise Unsupported("a shape depends on the values of tensors")
    return extent


def tensor_of(value: torch.Tensor, name: str, number: Callable[[Any], int] = fixed) -> ImportedTensor:
    """Returns the shape and the element of a tensor; `number` is what stands for an extent. Raises Unsupported
    where no program takes it."""
    if value.dtype not in ELEMENTS:
        raise Unsupported(f"{name} has the element type {value.dtype}, which no program takes")
    shape = tuple(map(number, value.shape))
    if 0 in shape:
        raise Unsupported(f"{name} has no elements")
    return ImportedTensor(shape, ELEMENTS[value.dtype])


def translated(
    node: Any,
    refs: Mapping[str, Any],
    builder: GraphBuilder,
    used_names: list[str],
    rules: Mapping[str, Rule],
    number: Callable[[Any], int] = fixed,
) -> Any:
    """Returns what an operator gives by its rule: a ValueRef, or a tuple of them. Raises Unsupported."""
    target = TORCHS.get(str(node.target), str(node.target))
    if target in CHECKS:
        return None
    builder.origin = OperatorOrigin(target, _module(node), source_line(node))
    builder.name = free(_short(node.name), used_names)
    rule = rules.get(target)
    value = node.meta.get("val")
    outputs = list(value) if isinstance(value, tuple | list) else [value]
    if all(is_empty(v) for v in outputs):
        return EMPTY if isinstance(value, torch.Tensor) else tuple(EMPTY for _ in outputs)
    if rule is None:
        raise builder.fail("the importer has no rule for this operator")
    try:
        results = tuple(_result(v, node.name, number) for v in outputs)
    except Unsupported as problem:
        raise builder.fail(problem.why) from problem
    missing = [n for n in node.all_input_nodes if n.name in refs and refs[n.name] is None]
    if missing:
        source = missing[0].args[0] if missing[0].target is operator.getitem else missing[0]
        raise builder.fail(f"it reads a result of {getattr(source, 'target', source)} that no program gives")
    if target not in SKIP_EMPTY and any(refs.get(n.name) is EMPTY for n in node.all_input_nodes):
        raise builder.fail("it reads a tensor without elements")
    named = _arguments(node, refs)
    named |= {note: node.meta[note] for note in (ATTENDS, WINDOW) if note in node.meta}
    if target in READ_MEMORY:
        source = node.args[0].meta["val"]
        named[MEMORY] = tuple(map(number, (source.storage_offset(), *source.stride())))
    try:
        return rule(builder, Arguments(named, results))
    except _RULE_FAILURES as problem:
        raise builder.fail(f"its rule does not serve it: {type(problem).__name__}: {problem}") from problem


def _result(value: Any, name: str, number: Callable[[Any], int]) -> ImportedTensor:
    """Returns a result's tensor; of what is none, or has no elements, one that nothing reads."""
    if not isinstance(value, torch.Tensor) or 0 in map(number, value.shape):
        return ImportedTensor((), "f32")
    return tensor_of(value, name, number)


def is_empty(value: Any) -> bool:
    """Returns whether a value is a tensor that has no elements whatever its symbols are."""
    return isinstance(value, torch.Tensor) and any(isinstance(n, int) and n == 0 for n in value.shape)


def _short(name: str) -> str:
    """Returns a graph node's name without what only tells it from others."""
    return re.sub(r"^_+|_default$|_tensor$", "", name) or name


def _arguments(node: Any, refs: Mapping[str, Any]) -> dict[str, Any]:
    schema = node.target._schema
    named = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    named |= dict(zip([a.name for a in schema.arguments], node.args, strict=False)) | dict(node.kwargs)
    return {name: _plain(value, refs) for name, value in named.items()}


def _plain(value: Any, refs: Mapping[str, Any]) -> Any:
    match value:
        case torch.fx.Node():
            return refs[value.name]
        case list() | tuple():
            return [_plain(item, refs) for item in value]
        case _:
            return value


def _module(node: Any) -> str:
    """Returns the path of the innermost submodule that called the operator."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values()]
    return str(paths[-1]) if paths else ""


def source_line(node: Any) -> str:
    """Returns `file:line, code` of the innermost line of the module's own source."""
    trace = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines() if line.strip()]
    for place, code in reversed(list(itertools.pairwise(trace))):
        matched = re.match(r'File "(.*)", line (\d+)', place)
        if matched and "/torch/" not in matched[1] and not matched[1].startswith("<"):
            return f"{matched[1]}:{matched[2]}, {code}"
    return ""

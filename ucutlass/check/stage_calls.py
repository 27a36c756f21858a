"""Stages of a pipeline that are calls: of its file's kernels, and of torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ucutlass import ir
from ucutlass.check.draft import Draft, declared_type, define
from ucutlass.check.scope import Cascade, Poisoned, Reject, did_you_mean
from ucutlass.check.spellings import spelling_hint
from ucutlass.check.types import named_axis
from ucutlass.check.unify import hint_if_one, settle, substitute, unify
from ucutlass.grammar import syntax
from ucutlass.grammar.problems import shortened
from ucutlass.grammar.syntax import Span
from ucutlass.ir import MemoryAxis, ScalarType, TensorType
from ucutlass.ir.extents import Extent, Fixed, Free, agree, bare
from ucutlass.torch_functions import TORCH_SIGNATURES, Keywords, UnsupportedCall


def call_stage(statement: syntax.Bind, call: syntax.Call, draft: Draft) -> None:
    callee = callee_of(call, draft)
    if len(statement.targets) != len(callee.results):
        raise Reject(
            "UC0501",
            f"{callee.name} has {len(callee.results)} results, here are {len(statement.targets)} names",
            statement.span,
        )
    arguments, sizes = arguments_of(call, callee, draft)
    names = _names_of(callee, arguments, draft)
    types_ = [
        declared_type(target, draft.scope)
        if target.type is not None and target.type.element
        else _result_type(result.type, sizes, names, draft)
        for target, result in zip(statement.targets, callee.results, strict=False)
    ]
    for target, type_, result in zip(statement.targets, types_, callee.results, strict=False):
        check_same(type_, result.type, sizes, target.span, draft)
    draft.stages.append(ir.Stage(callee, arguments, tuple(t.name for t in statement.targets), call.span))
    for target, type_ in zip(statement.targets, types_, strict=False):
        define(target.name, type_, target.span, draft)
        if target.type is None:
            draft.called.add(target.name)


def callee_of(call: syntax.Call, draft: Draft) -> ir.Kernel:
    kernel = draft.kernels.get(call.callee)
    if kernel is not None:
        return kernel
    program = draft.scope.programs[call.callee]
    if program.kind == "pipeline":
        raise Reject(
            "UC0109",
            f"{call.callee} is a pipeline; a pipeline calls kernels",
            call.callee_span,
            "call its kernels, or write its stages here",
        )
    raise Cascade


def arguments_of(
    call: syntax.Call, callee: ir.Kernel, draft: Draft
) -> tuple[tuple[str | float | int, ...], dict[str, Extent]]:
    """The stage's arguments, and the callee's dimensions in the pipeline's terms."""
    by_name = {a.name: a for a in call.arguments if a.name is not None}
    positional = [a for a in call.arguments if a.name is None]
    sizes: dict[str, Extent] = {d: e for d, e in callee.dims.items() if isinstance(e, Fixed)}
    bound: list[str | float | int] = []
    if len(positional) + len(by_name) != len(callee.params):
        raise Reject(
            "UC0105",
            f"{callee.name} takes {len(callee.params)} arguments, here are {len(call.arguments)}",
            call.span,
            f"its parameters: {', '.join(param.name for param in callee.params)}",
        )
    pairs: list[tuple[ir.ParamDecl, syntax.Argument]] = []
    for i, param in enumerate(callee.params):
        argument = positional[i] if i < len(positional) else by_name.get(param.name)
        if argument is None:
            raise _not_given(param.name, by_name, callee, call)
        pairs.append((param, argument))
    for param, argument in pairs:
        bound.append(_argument(param, argument, sizes, draft))
    laid = [
        (param.name, param.type, buffer, argument.span)
        for (param, argument), name in zip(pairs, bound, strict=True)
        if isinstance(param.type, TensorType)
        and isinstance(name, str)
        and isinstance(buffer := draft.buffers[name], TensorType)
    ]
    settle(callee, laid, sizes, draft.scope.dims.expand, call.span)
    return tuple(bound), sizes


def _not_given(
    missing: str, by_name: Mapping[str, syntax.Argument], callee: ir.Kernel, call: syntax.Call
) -> Reject:
    names = [param.name for param in callee.params]
    hint = f"its parameters: {', '.join(names)}"
    for name, argument in by_name.items():
        if name not in names:
            hint = did_you_mean(name, names) or hint
            return Reject("UC0105", f"{callee.name} has no parameter named {name}", argument.span, hint)
    return Reject("UC0105", f"{callee.name} is not given {missing}", call.span, hint)


def _argument(
    param: ir.ParamDecl, argument: syntax.Argument, sizes: dict[str, Extent], draft: Draft
) -> str | float | int:
    match argument.value, param.type:
        case syntax.Name(name), TensorType() as expected:
            if isinstance(draft.scope.values.get(name), Poisoned):
                raise Cascade
            buffer = draft.buffers.get(name)
            if not isinstance(buffer, TensorType):
                raise Reject(
                    "UC0501",
                    f"{param.name} is a tensor in memory; {name} is not stored",
                    argument.span,
                    f"store it first: {name}: {expected.elem.name}[..] = ..",
                )
            _check_ordered(name, argument.span, draft)
            unify(expected, buffer, param.name, argument.span, sizes, draft.scope.dims.expand)
            return name
        case syntax.Name(name), ScalarType() as scalar if isinstance(draft.buffers.get(name), ScalarType):
            if draft.buffers[name].elem is not scalar.elem:
                raise Reject(
                    "UC0501",
                    f"{param.name} is {scalar.elem.name}, {name} is {draft.buffers[name].elem.name}",
                    argument.span,
                )
            return name
        case syntax.Number(value), ScalarType():
            return value
        case syntax.Unary("-", syntax.Number(value)), ScalarType():
            return -value
    raise Reject(
        "UC0502",
        f"the argument for {param.name} is a buffer's name, or a number for a host scalar",
        argument.span,
        "bind what is computed to a name with an element type first",
    )


def _check_ordered(name: str, span: Span, draft: Draft) -> None:
    """Calls take tensors axis by axis. Raises Reject UC0501."""
    if name in draft.unordered:
        raise Reject(
            "UC0501",
            f"{name} lies in an order that the compiler chooses, and a call takes tensors axis by axis",
            span,
            f"write the axes of {name} where it is stored",
        )


def check_same(
    declared: TensorType, result: TensorType, sizes: dict[str, Extent], span: Span, draft: Draft
) -> None:
    """A callee's result fits the type it is bound or returned as: element and every extent.

    A name that the type introduces takes the callee's extent. Raises Reject UC0501.
    """
    if declared.elem is not result.elem:
        raise Reject(
            "UC0501", f"the callee gives {result.elem.name}, the type here is {declared.elem.name}", span
        )
    shape = [substitute(axis.extent, sizes) for axis in result.axes]
    check_shape(declared, shape, "the callee", "UC0501", span, draft)


def check_shape(
    declared: TensorType, shape: Sequence[Extent | None], who: str, code: str, span: Span, draft: Draft
) -> None:
    """What `who` gives fits the declared type axis by axis. Raises Reject with `code`."""
    if len(declared.axes) != len(shape):
        raise Reject(
            code,
            f"{who} gives a tensor of {len(shape)} axes, the type here has {len(declared.axes)}",
            span,
            f"write a type of {len(shape)} axes, those of the result in memory order",
        )
    dims = draft.scope.dims
    for number, (here, extent) in enumerate(zip(declared.axes, shape, strict=True)):
        if extent is None:
            continue
        if len(here.dims) == 1 and here.dims[0] in dims.pending:
            dims.declare(here.dims[0], extent, span)
            continue
        mine, theirs = dims.expand(here.extent), dims.expand(extent)
        if not agree(mine, theirs):
            raise Reject(
                code,
                f"axis {number} of what {who} gives has extent {bare(theirs)}, the type here says "
                f"{bare(mine)}",
                span,
                hint_if_one(mine, theirs) or "results fit axis by axis, in memory order",
            )


def _names_of(
    callee: ir.Kernel, arguments: Sequence[str | float | int], draft: Draft
) -> dict[str, tuple[str, ...]]:
    """The pipeline's names for the callee's dimensions, read off the buffers that it is called with. A
    dimension that is a composite axis of a buffer has several."""
    names: dict[str, tuple[str, ...]] = {}
    for param, argument in zip(callee.params, arguments, strict=True):
        buffer = draft.buffers.get(argument) if isinstance(argument, str) else None
        if not isinstance(param.type, TensorType) or not isinstance(buffer, TensorType):
            continue
        for theirs, ours in zip(param.type.axes, buffer.axes, strict=True):
            if len(theirs.dims) == 1 and ours.dims:
                names.setdefault(theirs.dims[0], ours.dims)
            elif len(theirs.dims) == len(ours.dims):
                for dim, name in zip(theirs.dims, ours.dims, strict=True):
                    names.setdefault(dim, (name,))
    return names


def _result_type(
    type_: TensorType, sizes: dict[str, Extent], names: dict[str, tuple[str, ...]], draft: Draft
) -> TensorType:
    """The callee's result in the pipeline's names. A dimension that no argument has keeps its own name where
    the pipeline knows it as one of the same extent; an axis without names is nameless."""
    axes: list[MemoryAxis] = []
    used: set[str] = set()
    for axis in type_.axes:
        parts = [names.get(d) or _own_name(d, sizes, draft) for d in axis.dims]
        dims = tuple(name for part in parts for name in part)
        if not all(parts) or used & set(dims) or len(set(dims)) < len(dims):
            dims = ()
        used.update(dims)
        axes.append(named_axis(dims) if dims else MemoryAxis((), substitute(axis.extent, sizes)))
    return TensorType(type_.elem, tuple(axes))


def _own_name(dim: str, sizes: dict[str, Extent], draft: Draft) -> tuple[str, ...]:
    dims = draft.scope.dims
    equal = draft.scope.extent_known(dim) and dims.expand(Free(dim)) == dims.expand(sizes[dim])
    return (dim,) if equal else ()


def name_axes(name: str, type_: TensorType, span: Span, draft: Draft) -> None:
    """Gives the nameless axes of what a call returned the names that a result of its shape has there.

    Raises Reject UC0501 where the extents differ.
    """
    buffer = draft.buffers[name]
    if not isinstance(buffer, TensorType) or len(buffer.axes) != len(type_.axes):
        return
    axes = tuple(ours if ours.dims else theirs for ours, theirs in zip(buffer.axes, type_.axes, strict=True))
    if axes == buffer.axes or any(
        ours.dims not in ((), theirs.dims) for ours, theirs in zip(buffer.axes, type_.axes, strict=True)
    ):
        return
    check_shape(type_, [axis.extent for axis in buffer.axes], name, "UC0501", span, draft)
    define(name, TensorType(buffer.elem, axes), span, draft)


def torch_stage(statement: syntax.Bind, call: syntax.Call, draft: Draft) -> None:
    if (
        len(statement.targets) != 1
        or statement.targets[0].type is None
        or not statement.targets[0].type.element
    ):
        raise Reject(
            "UC0504",
            "a torch call needs a stored binding that names its type",
            call.span,
            "write h: f32[B, C] = torch.NAME(x)",
        )
    (target,) = statement.targets
    type_ = declared_type(target, draft.scope)
    names: list[str] = []
    keywords: list[tuple[str, float | int | bool]] = []
    for argument in call.arguments:
        match argument:
            case syntax.Argument(syntax.Name(name), None) if isinstance(draft.buffers.get(name), TensorType):
                _check_ordered(name, argument.span, draft)
                names.append(name)
            case syntax.Argument(syntax.Number(value), str(keyword)):
                keywords.append((keyword, value))
            case syntax.Argument(syntax.Unary("-", syntax.Number(value)), str(keyword)):
                keywords.append((keyword, -value))
            case syntax.Argument(syntax.Literal_(word="true" | "false" as word), str(keyword)):
                keywords.append((keyword, word == "true"))
            case _:
                raise Reject("UC0501", "a torch call takes buffers, then named numbers", argument.span)
    _check_torch(call, type_, [draft.buffers[name] for name in names], dict(keywords), draft)
    gives = tuple(int(value) for name, value in keywords if name == "gives") or (0,)
    others = tuple((name, value) for name, value in keywords if name != "gives")
    node = ir.TorchCall(call.callee.removeprefix("torch."), others, (type_,), gives)
    _add(ir.Stage(node, tuple(names), (target.name,), call.span), draft)
    define(target.name, type_, target.span, draft)


def _add(stage: ir.Stage, draft: Draft) -> None:
    """Adds a stage of a torch function; to an earlier one if that gives other results of the same call, so that it runs
    once."""
    call = stage.call
    assert isinstance(call, ir.TorchCall)
    for number, earlier in enumerate(draft.stages):
        match earlier:
            case ir.Stage(ir.TorchCall() as other, stage.arguments) if (other.function, other.keywords) == (
                call.function,
                call.keywords,
            ) and call.gives[0] not in other.gives:
                both = replace(other, results=other.results + call.results, gives=other.gives + call.gives)
                draft.stages[number] = replace(earlier, call=both, outputs=earlier.outputs + stage.outputs)
                return
    draft.stages.append(stage)


def _check_torch(
    call: syntax.Call, declared: TensorType, types: Sequence[ir.ParamType], keywords: Keywords, draft: Draft
) -> None:
    """The call fits the function's signature, the declared type what it gives; a name that the type
    introduces takes the extent. Raises Reject UC0508, UC0509 or UC0510."""
    name = call.callee.removeprefix("torch.")
    function = TORCH_SIGNATURES.get(name)
    if function is None:
        raise Reject(
            "UC0508",
            f"torch.{shortened(name)} is not among the functions that a pipeline may call",
            call.callee_span,
            spelling_hint(name)
            or did_you_mean(name, TORCH_SIGNATURES)
            or "there are " + " ".join(TORCH_SIGNATURES),
        )
    tensors = [type_ for type_ in types if isinstance(type_, TensorType)]
    shapes = [tuple(draft.scope.dims.expand(a.extent) for a in t.axes) for t in tensors]
    try:
        elem, shape = function.result([t.elem for t in tensors], shapes, keywords)
    except UnsupportedCall as why:
        raise Reject("UC0509", f"{call.callee} {why}", call.span, f"write {function.signature}") from None
    if declared.elem.kind != elem.kind or declared.elem.packed > 1:
        raise Reject(
            "UC0510",
            f"{call.callee} gives {elem.name} here, the type says {declared.elem.name}",
            call.span,
            f"write {elem.name}[..], and convert where it is used",
        )
    check_shape(declared, shape, call.callee, "UC0510", call.span, draft)

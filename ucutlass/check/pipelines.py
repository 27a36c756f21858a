"""Pipelines: stages over named buffers, cut where a binding has an element type."""

from __future__ import annotations

from dataclasses import dataclass, field

from ucutlass import ir
from ucutlass.check import expressions, programs, types
from ucutlass.check.graph import Graph, GraphTooLarge
from ucutlass.check.programs import Findings, Names
from ucutlass.check.scope import Cascade, Poisoned, Reject, Scope
from ucutlass.check.stages import Scheduling
from ucutlass.check.unify import settle, substitute, unify
from ucutlass.extents import Extent, Fixed, Free, agree, show
from ucutlass.extents import names as extent_names
from ucutlass.grammar import syntax
from ucutlass.grammar.syntax import Span
from ucutlass.ir import MemoryAxis, ScalarType, TensorType, Value
from ucutlass.walks import walk


@dataclass(slots=True)
class _Draft:
    """A pipeline under construction: buffers by name, in the order in which they are filled."""

    scope: Scope
    kernels: dict[str, ir.Kernel]
    buffers: dict[str, ir.ParamType] = field(default_factory=dict)
    stages: list[ir.Stage] = field(default_factory=list)
    unordered: list[str] = field(default_factory=list)

    def buffer_names(self) -> tuple[str, ...]:
        return tuple(self.buffers)


def check_pipeline(
    program: syntax.Program, names: Names, kernels: dict[str, ir.Kernel], findings: Findings
) -> ir.Pipeline | None:
    """The typed pipeline, or None where anything in it was rejected."""
    before = len(findings.diagnostics)
    scope = programs.new_scope(names)
    params = programs.check_params(program, scope, findings)
    declared = programs.check_results(program, scope, findings)
    if params is None or len({p.name for p in params}) < len(params):
        return None
    draft = _Draft(scope, kernels, {p.name: p.type for p in params})
    returned: list[syntax.Return] = []
    blocks: list[syntax.Schedule] = []
    for statement in program.body:
        try:
            match statement:
                case syntax.Bind():
                    _bind(statement, draft)
                case syntax.Return():
                    returned.append(statement)
                case syntax.Schedule():
                    blocks.append(statement)
                case syntax.Require():
                    raise Reject(
                        "UC0501", "a pipeline has no requirements; they belong to kernels", statement.span
                    )
        except (Reject, Cascade, GraphTooLarge) as problem:
            _record(problem, statement, draft, findings)
    _return(program, declared, returned, draft, findings)
    results = tuple((_result_buffer(name), type_) for name, (type_, _) in declared.items())
    inner = tuple(
        (n, t) for n, t in draft.buffers.items()
        if isinstance(t, TensorType) and n not in {p.name for p in params}
    )  # fmt: skip
    scheduling = Scheduling(scope, kernels, draft.stages, inner, results, draft.unordered)
    stages = scheduling.stages_with(blocks, findings.reject)
    programs.finish(None, (), scope, findings)
    if len(findings.diagnostics) > before:
        return None
    return ir.Pipeline(
        program.name, dict(scope.dims.extents), params, results, inner, stages, program.name_span,
        tuple(draft.unordered),
    )  # fmt: skip


def _result_buffer(name: str) -> str:
    """Buffers of results; no binding can be named so."""
    return f"return {name}".strip()


def _record(
    problem: Reject | Cascade | GraphTooLarge, statement: syntax.Statement, draft: _Draft, findings: Findings
) -> None:
    match problem:
        case Reject():
            findings.reject(problem)
        case GraphTooLarge():
            findings.reject(programs.too_large(statement.span))
    if isinstance(statement, syntax.Bind):
        for target in statement.targets:
            draft.scope.values[target.name] = Poisoned()


def _bind(statement: syntax.Bind, draft: _Draft) -> None:
    scope = draft.scope
    for target in statement.targets:
        programs.check_fresh(target, scope)
    value = statement.value
    if isinstance(value, syntax.Call) and value.callee.startswith("torch."):
        _torch_stage(statement, value, draft)
    elif isinstance(value, syntax.Call) and value.callee in scope.programs:
        _call_stage(statement, value, draft)
    elif (
        len(statement.targets) == 1
        and statement.targets[0].type is not None
        and statement.targets[0].type.element
    ):
        (target,) = statement.targets
        assert target.type is not None
        if target.type.axes is None:
            made = expressions.check(value, scope)
            type_ = _own_type(target.type, made)
            draft.unordered.append(target.name)
        else:
            type_ = _declared_type(target, scope)
            made = expressions.check(value, scope)
        _inline_stage(made, type_, target.name, target.span, draft)
        _define(target.name, type_, target.span, draft)
    else:
        programs.bind(statement, scope)


def _declared_type(target: syntax.Target, scope: Scope) -> TensorType:
    assert target.type is not None
    types.register_names(target.type.axes or (), scope.dims, pending=True)
    return types.tensor_type(target.type, scope)


def _own_type(type_: syntax.TypeExpr, value: Value) -> TensorType:
    """Of `h: bf16 = e`: the value's names, in some order."""
    assert type_.element is not None
    elem = types.stored_element(type_.element, type_.element_span)
    return TensorType(elem, tuple(MemoryAxis((dim,), Free(dim)) for dim in value.dims))


def _define(name: str, type_: TensorType, span: Span, draft: _Draft) -> None:
    index = len(draft.buffers)
    draft.buffers[name] = type_
    draft.scope.values[name] = draft.scope.graph.add(ir.ParamValue(index, type_.elem, type_.dims, span))


# --- inline stages ----------------------------------------------------------------


def _inline_stage(value: Value, type_: TensorType, output: str, span: Span, draft: _Draft) -> None:
    """A stage whose kernel stands in place: its parameters are the buffers it reads."""
    scope = draft.scope
    programs.fit(value, type_.dims, span, scope)
    programs.check_known((*type_.dims, *value.dims), scope)
    used = sorted({node.index for node in walk(value) if isinstance(node, ir.ParamValue)})
    names = draft.buffer_names()
    rebuilt = _renumber(value, {old: new for new, old in enumerate(used)})
    params = tuple(ir.ParamDecl(names[i], draft.buffers[names[i]], span) for i in used)
    kernel = ir.Kernel(
        output,
        _used_dims(rebuilt, params, type_, scope),
        params,
        (ir.ResultDecl("", type_, rebuilt, span),),
        (),
        (),
        span,
    )
    draft.stages.append(ir.Stage(kernel, tuple(names[i] for i in used), (output,), span))


def _used_dims(
    value: Value, params: tuple[ir.ParamDecl, ...], type_: TensorType, scope: Scope
) -> dict[str, Extent]:
    """The stage's own dimensions: those that its tensors and values range over."""
    tensors = [type_, *(p.type for p in params if isinstance(p.type, TensorType))]
    used = {d for t in tensors for axis in t.axes for d in (*axis.dims, *extent_names(axis.extent))}
    used |= {d for node in walk(value) for d in node.dims}
    used |= {d for node in walk(value) if isinstance(node, ir.Size) for d in extent_names(node.extent)}
    used |= {d for dim in used for d in extent_names(scope.dims.extents[dim])}
    return {d: e for d, e in scope.dims.extents.items() if d in used}


def _renumber(value: Value, index: dict[int, int]) -> Value:
    graph = Graph()
    return graph.add(
        ir.rebuild(
            value,
            lambda node: (
                ir.ParamValue(index[node.index], node.elem, node.dims, node.span)
                if isinstance(node, ir.ParamValue)
                else node
            ),
        )
    )


# --- calls ------------------------------------------------------------------------


def _call_stage(statement: syntax.Bind, call: syntax.Call, draft: _Draft) -> None:
    callee = _callee(call, draft)
    if len(statement.targets) != len(callee.results):
        raise Reject(
            "UC0501",
            f"{callee.name} has {len(callee.results)} results, here are {len(statement.targets)} names",
            statement.span,
        )
    arguments, sizes = _arguments(call, callee, draft)
    types_ = [
        _declared_type(target, draft.scope) if target.type is not None and target.type.element
        else _result_type(result.type, sizes, call, draft)
        for target, result in zip(statement.targets, callee.results, strict=False)
    ]
    for target, type_, result in zip(statement.targets, types_, callee.results, strict=False):
        _check_same(type_, result.type, sizes, target.span, draft)
    draft.stages.append(ir.Stage(callee, arguments, tuple(t.name for t in statement.targets), call.span))
    for target, type_ in zip(statement.targets, types_, strict=False):
        _define(target.name, type_, target.span, draft)


def _callee(call: syntax.Call, draft: _Draft) -> ir.Kernel:
    kernel = draft.kernels.get(call.callee)
    if kernel is not None:
        return kernel
    program = draft.scope.programs[call.callee]
    if program.kind == "pipeline":
        raise Reject("UC0109", f"{call.callee} is a pipeline; a pipeline calls kernels", call.callee_span)
    raise Cascade


def _arguments(
    call: syntax.Call, callee: ir.Kernel, draft: _Draft
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
        )
    pairs: list[tuple[ir.ParamDecl, syntax.Argument]] = []
    for i, param in enumerate(callee.params):
        argument = positional[i] if i < len(positional) else by_name.get(param.name)
        if argument is None:
            raise Reject("UC0105", f"{callee.name} is not given {param.name}", call.span)
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


def _argument(
    param: ir.ParamDecl, argument: syntax.Argument, sizes: dict[str, Extent], draft: _Draft
) -> str | float | int:
    match argument.value, param.type:
        case syntax.Name(name), TensorType() as wanted:
            if isinstance(draft.scope.values.get(name), Poisoned):
                raise Cascade
            given = draft.buffers.get(name)
            if not isinstance(given, TensorType):
                raise Reject(
                    "UC0501",
                    f"{param.name} is a tensor in memory; {name} is not stored",
                    argument.span,
                    f"store it first: {name}: {wanted.elem.name}[..] = ..",
                )
            _check_ordered(name, argument.span, draft)
            unify(wanted, given, param.name, argument.span, sizes, draft.scope.dims.expand)
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


def _check_ordered(name: str, span: Span, draft: _Draft) -> None:
    """Calls take tensors axis by axis. Raises Reject UC0501."""
    if name in draft.unordered:
        raise Reject(
            "UC0501",
            f"{name} lies in an order that the compiler chooses, and a call takes tensors axis by axis",
            span,
            f"write the axes of {name} where it is stored",
        )


def _check_same(
    declared: TensorType, made: TensorType, sizes: dict[str, Extent], span: Span, draft: _Draft
) -> None:
    """A callee's result fits the type it is bound or returned as: element and every extent.

    A name that the type introduces takes the callee's extent. Raises Reject UC0501.
    """
    if declared.elem is not made.elem:
        raise Reject(
            "UC0501", f"the callee gives {made.elem.name}, the type here is {declared.elem.name}", span
        )
    if len(declared.axes) != len(made.axes):
        raise Reject(
            "UC0501",
            f"the callee's result has {len(made.axes)} axes, the type here {len(declared.axes)}",
            span,
        )
    dims = draft.scope.dims
    for here, there in zip(declared.axes, made.axes, strict=False):
        extent = substitute(there.extent, sizes)
        if len(here.dims) == 1 and here.dims[0] in dims.pending:
            dims.declare(here.dims[0], extent, span)
        elif not agree(dims.expand(here.extent), dims.expand(extent)):
            raise Reject(
                "UC0501",
                f"an axis of the callee's result has extent {show(dims.expand(extent))}, the type here says "
                f"{show(dims.expand(here.extent))}",
                span,
                "results fit axis by axis, in memory order",
            )


def _result_type(type_: TensorType, sizes: dict[str, Extent], call: syntax.Call, draft: _Draft) -> TensorType:
    """The callee's result in the pipeline's names; an axis without one there is nameless."""
    axes = []
    for axis in type_.axes:
        dims = tuple(_name_of(sizes.get(d)) for d in axis.dims)
        extent = substitute(axis.extent, sizes)
        named = tuple(d for d in dims if d is not None and d in draft.scope.dims.extents)
        axes.append(MemoryAxis(named if len(named) == len(axis.dims) else (), extent))
    return TensorType(type_.elem, tuple(axes))


def _name_of(extent: Extent | None) -> str | None:
    return extent.dim if isinstance(extent, Free) else None


def _torch_stage(statement: syntax.Bind, call: syntax.Call, draft: _Draft) -> None:
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
    type_ = _declared_type(target, draft.scope)
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
    node = ir.TorchCall(call.callee.removeprefix("torch."), tuple(keywords), type_)
    draft.stages.append(ir.Stage(node, tuple(names), (target.name,), call.span))
    _define(target.name, type_, target.span, draft)


# --- return -----------------------------------------------------------------------


def _return(
    program: syntax.Program, declared: dict[str, tuple[TensorType, Span]], returned: list[syntax.Return],
    draft: _Draft, findings: Findings,
) -> None:
    try:
        items = programs.match_return(program, declared, returned)
    except Reject as problem:
        findings.reject(problem)
        return
    for name, item in items.items():
        type_, _ = declared[name]
        try:
            value = item.value
            if isinstance(value, syntax.Call) and value.callee in draft.scope.programs:
                callee = _callee(value, draft)
                if len(callee.results) != 1:
                    raise Reject("UC0502", f"{callee.name} has several results; bind them first", value.span)
                arguments, sizes = _arguments(value, callee, draft)
                _check_same(type_, callee.results[0].type, sizes, item.span, draft)
                draft.stages.append(ir.Stage(callee, arguments, (_result_buffer(name),), value.span))
            else:
                _inline_stage(
                    expressions.check(value, draft.scope), type_, _result_buffer(name), item.span, draft
                )
        except (Reject, Cascade, GraphTooLarge) as problem:
            _record(problem, returned[0], draft, findings)


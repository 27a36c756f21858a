"""Pipelines: stages over named buffers, cut where a binding has an element type."""

from __future__ import annotations

from ucutlass import ir
from ucutlass.check import expressions, programs, types
from ucutlass.check.draft import Draft, declared_type, define
from ucutlass.check.graph import Graph
from ucutlass.check.programs import Findings, ProgramNames
from ucutlass.check.scope import Cascade, Poisoned, Reject, Scope, beyond
from ucutlass.check.stage_calls import arguments_of, call_stage, callee_of, check_same, name_axes, torch_stage
from ucutlass.check.stages import Scheduling
from ucutlass.grammar import syntax
from ucutlass.grammar.syntax import Span
from ucutlass.ir import MemoryAxis, TensorType, Value
from ucutlass.ir.extents import Extent, Free
from ucutlass.ir.extents import names as extent_names
from ucutlass.ir.traversal import walk
from ucutlass.limits import BLOCKS, STAGES, LimitPassed, within


def check_pipeline(
    program: syntax.Program, names: ProgramNames, kernels: dict[str, ir.Kernel], findings: Findings
) -> ir.Pipeline | None:
    """The typed pipeline, or None where anything in it was rejected. Raises LimitPassed for what is no one
    statement's."""
    before = len(findings.diagnostics)
    scope = programs.new_scope(program, names)
    params = programs.check_params(program, scope, findings)
    declared = programs.check_results(program, scope, findings)
    if params is None or len({p.name for p in params}) < len(params):
        return None
    draft = Draft(scope, kernels, {p.name: p.type for p in params})
    returned: list[syntax.Return] = []
    blocks: list[syntax.Schedule] = []
    within(BLOCKS, sum(isinstance(s, syntax.Schedule) for s in program.body))
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
        except (Reject, Cascade, LimitPassed) as problem:
            _record(problem, statement, draft, findings)
    _return(program, declared, returned, draft, findings)
    within(STAGES, len(draft.stages))
    results = tuple((_result_buffer(name), type_) for name, (type_, _) in declared.items())
    inner = tuple(
        (n, t)
        for n, t in draft.buffers.items()
        if isinstance(t, TensorType) and n not in {p.name for p in params}
    )
    scheduling = Scheduling(scope, kernels, draft.stages, inner, results, draft.unordered)
    stages = scheduling.stages_with(blocks, findings.reject)
    called = [s.call for s in draft.stages if isinstance(s.call, ir.Kernel)]
    inline = [kernel for kernel in called if kernels.get(kernel.name) is not kernel]
    programs.finish(None, [r.value for kernel in inline for r in kernel.results], scope, findings)
    if len(findings.diagnostics) > before:
        return None
    return ir.Pipeline(
        program.name,
        dict(scope.dims.extents),
        params,
        results,
        inner,
        stages,
        program.name_span,
        tuple(draft.unordered),
    )


def _result_buffer(name: str) -> str:
    """Buffers of results; no binding can be named so."""
    return f"return {name}".strip()


def _record(
    problem: Reject | Cascade | LimitPassed, statement: syntax.Statement, draft: Draft, findings: Findings
) -> None:
    match problem:
        case Reject():
            findings.reject(problem)
        case LimitPassed():
            findings.reject(beyond(problem, statement.span))
    if isinstance(statement, syntax.Bind):
        for target in statement.targets:
            draft.scope.values[target.name] = Poisoned()


def _bind(statement: syntax.Bind, draft: Draft) -> None:
    scope = draft.scope
    for target in statement.targets:
        programs.check_fresh(target, scope)
    value = statement.value
    if isinstance(value, syntax.Call) and value.callee.startswith("torch."):
        torch_stage(statement, value, draft)
    elif isinstance(value, syntax.Call) and value.callee in scope.programs:
        call_stage(statement, value, draft)
    elif (
        len(statement.targets) == 1
        and statement.targets[0].type is not None
        and statement.targets[0].type.element
    ):
        (target,) = statement.targets
        assert target.type is not None
        if target.type.axes is None:
            expression = expressions.check(value, scope)
            type_ = _own_type(target.type, expression)
            draft.unordered.append(target.name)
        else:
            type_ = declared_type(target, scope)
            expression = expressions.check(value, scope)
        _inline_stage(expression, type_, target.name, target.span, draft)
        define(target.name, type_, target.span, draft)
    else:
        programs.bind(statement, scope)


def _own_type(type_: syntax.TypeExpr, value: Value) -> TensorType:
    """Of `h: bf16 = e`: the value's names, in some order."""
    assert type_.element is not None
    elem = types.stored_element(type_.element, type_.element_span)
    return TensorType(elem, tuple(MemoryAxis((dim,), Free(dim)) for dim in value.dims))


# --- inline stages ----------------------------------------------------------------


def _inline_stage(value: Value, type_: TensorType, output: str, span: Span, draft: Draft) -> None:
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


# --- return -----------------------------------------------------------------------


def _return(
    program: syntax.Program,
    declared: dict[str, tuple[TensorType, Span]],
    returned: list[syntax.Return],
    draft: Draft,
    findings: Findings,
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
                callee = callee_of(value, draft)
                if len(callee.results) != 1:
                    raise Reject("UC0502", f"{callee.name} has several results; bind them first", value.span)
                arguments, sizes = arguments_of(value, callee, draft)
                check_same(type_, callee.results[0].type, sizes, item.span, draft)
                draft.stages.append(ir.Stage(callee, arguments, (_result_buffer(name),), value.span))
            else:
                if isinstance(value, syntax.Name) and value.name in draft.called:
                    name_axes(value.name, type_, item.span, draft)
                _inline_stage(
                    expressions.check(value, draft.scope), type_, _result_buffer(name), item.span, draft
                )
        except (Reject, Cascade, LimitPassed) as problem:
            _record(problem, returned[0], draft, findings)

"""Kernels: parameters, body, results and schedules of one launch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ucutlass import ir
from ucutlass.check import expressions, schedules, types
from ucutlass.check.graph import Graph
from ucutlass.check.positions import empty_reads
from ucutlass.check.scope import Cascade, DimTable, Poisoned, Reject, Scope, beyond, describe, show_value
from ucutlass.diagnostics import Diagnostic
from ucutlass.grammar import syntax
from ucutlass.grammar.syntax import Span
from ucutlass.ir import TensorType, Value
from ucutlass.ir.extents import Fixed, bare, never_positive
from ucutlass.ir.traversal import walk
from ucutlass.limits import BLOCKS, DIMENSIONS, ERRORS, PARAMETERS, RESULTS, Effort, LimitPassed, within


@dataclass(frozen=True, slots=True)
class ProgramNames:
    """What a file defines, as far as its programs may refer to it."""

    functions: Mapping[str, syntax.Function]
    programs: Mapping[str, syntax.Program]
    effort: Effort = field(default_factory=Effort)


class TooManyErrors(Exception):
    """Nobody reads so many: the checker stops."""


class Findings:
    """Collects diagnostics. `reject` raises TooManyErrors once there are more than are listed."""

    def __init__(self) -> None:
        self.diagnostics: list[Diagnostic] = []
        self._distinct: set[Diagnostic] = set()

    def reject(self, problem: Reject) -> None:
        self.diagnostics += problem.diagnostics
        # A mistake in a function is found again wherever it is expanded.
        self._distinct.update(problem.diagnostics)
        if len(self._distinct) > ERRORS.most:
            raise TooManyErrors

    @property
    def failed(self) -> bool:
        return any(d.severity == "error" for d in self.diagnostics)


def check_kernel(program: syntax.Program, names: ProgramNames, findings: Findings) -> ir.Kernel | None:
    """The typed kernel, or None where anything in it was rejected. Raises LimitPassed for what is no one
    statement's."""
    before = len(findings.diagnostics)
    scope = new_scope(program, names)
    params = check_params(program, scope, findings)
    declared = check_results(program, scope, findings)
    returned, requires = _body(program, scope, findings)
    results = _results(program, declared, returned, scope, findings)
    own = _own_schedules(program, findings)
    within(BLOCKS, len(own))
    blocks = schedules.check_blocks(own, scope, findings.reject)
    finish(params, [r.value for r in results or ()], scope, findings)
    if len(findings.diagnostics) > before or params is None or results is None:
        return None
    return ir.Kernel(
        program.name, dict(scope.dims.extents), params, results, tuple(requires), blocks, program.name_span
    )


def _own_schedules(program: syntax.Program, findings: Findings) -> list[syntax.Schedule]:
    """A kernel's blocks; one for a stage is a pipeline's."""
    schedules: list[syntax.Schedule] = []
    for block in (s for s in program.body if isinstance(s, syntax.Schedule)):
        if block.stage is None:
            schedules.append(block)
            continue
        problem = Reject(
            "UC0505", "a kernel is one launch and has no stages", block.stage.span, "leave `for` out"
        )
        findings.reject(problem)
    return schedules


def finish(
    params: tuple[ir.ParamDecl, ...] | None, values: Sequence[Value], scope: Scope, findings: Findings
) -> None:
    """What can be said only of a whole program: extents resolve, nameless axes are left alone."""
    try:
        scope.dims.resolve()
        _check_lengths(scope)
        for problem in empty_reads(values, scope.dims.extents):
            findings.reject(problem)
        for node in _readers(values):
            type_ = params[node.index].type if params is not None else None
            if isinstance(type_, TensorType) and any(not a.dims and a.extent != Fixed(1) for a in type_.axes):
                raise Reject(
                    "UC0220",
                    "a nameless axis longer than 1 cannot take part in an expression",
                    node.span,
                    "give the axis a name",
                )
    except Reject as problem:
        findings.reject(problem)


def _check_lengths(scope: Scope) -> None:
    """Raises Reject UC0221 for a dimension that no call can give an element."""
    for name, extent in scope.dims.extents.items():
        if never_positive(extent):
            raise Reject(
                "UC0221",
                f"the extent of {name} is {bare(extent)}, which is never 1 or more",
                scope.dims.spans[name],
                "give it an extent of 1 or more",
            )


def _readers(values: Sequence[Value]) -> list[ir.ParamValue]:
    """Parameters that are read element by element, not as a segment's offsets."""

    def into(node: Value) -> tuple[Value, ...]:
        return () if isinstance(node, ir.Segment) else ir.children(node)

    return [node for node in walk(*values, into=into) if isinstance(node, ir.ParamValue)]


def new_scope(program: syntax.Program, names: ProgramNames) -> Scope:
    bound = {t.name: t.span for s in program.body if isinstance(s, syntax.Bind) for t in s.targets}
    graph = Graph(names.effort)
    return Scope(expressions.check, DimTable(), graph, names.functions, names.programs, {}, bound=bound)


def check_params(
    program: syntax.Program, scope: Scope, findings: Findings
) -> tuple[ir.ParamDecl, ...] | None:
    """The parameters, their dimensions declared and their values bound. Raises LimitPassed."""
    within(PARAMETERS, len(program.params))
    for param in program.params:
        types.register_names(param.type.axes or (), scope.dims, pending=False)
        within(DIMENSIONS, len(scope.dims.extents))
    declared: list[ir.ParamDecl] = []
    for param in program.params:
        try:
            declared.append(ir.ParamDecl(param.name, types.param_type(param.type, scope), param.span))
        except Reject as problem:
            findings.reject(problem)
    if len(declared) != len(program.params):
        scope.values.update({param.name: Poisoned() for param in program.params})
        return None
    try:
        _check_names(program, scope)
        tensors = tuple((d.type, d.span) for d in declared if isinstance(d.type, TensorType))
        types.check_determined(tensors, scope.dims)
    except Reject as problem:
        findings.reject(problem)
    for index, decl in enumerate(declared):
        dims = decl.type.dims if isinstance(decl.type, TensorType) else ()
        scope.values[decl.name] = scope.graph.add(ir.ParamValue(index, decl.type.elem, dims, decl.span))
    return tuple(declared)


def _check_names(program: syntax.Program, scope: Scope) -> None:
    spans: dict[str, Span] = {}
    for param in program.params:
        if param.name in spans:
            raise Reject(
                "UC0103",
                f"two parameters are named {param.name}",
                param.span,
                None,
                (("the first", spans[param.name]),),
            )
        if param.name in scope.dims.extents:
            raise Reject(
                "UC0108",
                f"{param.name} is a dimension and a parameter",
                param.span,
                "rename one of them",
                ((f"{param.name} as a dimension", scope.dims.spans[param.name]),),
            )
        spans[param.name] = param.span


def check_results(
    program: syntax.Program, scope: Scope, findings: Findings
) -> dict[str, tuple[TensorType, Span]]:
    """The declared results by name ("" for the unnamed one); rejected ones are left out. Raises
    LimitPassed."""
    within(RESULTS, len(program.results))
    for result in program.results:
        types.register_names(result.type.axes or (), scope.dims, pending=True)
        within(DIMENSIONS, len(scope.dims.extents))
    declared: dict[str, tuple[TensorType, Span]] = {}
    for result in program.results:
        name = result.name or ""
        try:
            if name in declared:
                raise Reject("UC0103", f"two results are named {name}", result.span)
            if name in scope.dims.extents:
                raise Reject(
                    "UC0108", f"{name} is a dimension and a result", result.span, "rename one of them"
                )
            declared[name] = (types.tensor_type(result.type, scope), result.span)
        except Reject as problem:
            findings.reject(problem)
    return declared


def _body(
    program: syntax.Program, scope: Scope, findings: Findings
) -> tuple[list[syntax.Return], list[Value]]:
    returned: list[syntax.Return] = []
    requires: list[Value] = []
    for statement in program.body:
        try:
            match statement:
                case syntax.Bind():
                    bind(statement, scope)
                case syntax.Return():
                    returned.append(statement)
                case syntax.Require(condition):
                    requires.append(expressions.truth(condition, scope))
        except Reject as problem:
            findings.reject(problem)
            _poison(statement, scope)
        except Cascade:
            _poison(statement, scope)
        except LimitPassed as problem:
            findings.reject(beyond(problem, statement.span))
            _poison(statement, scope)
    return returned, requires


def _poison(statement: syntax.Statement, scope: Scope) -> None:
    if isinstance(statement, syntax.Bind):
        for target in statement.targets:
            scope.values[target.name] = Poisoned()


def bind(statement: syntax.Bind, scope: Scope) -> None:
    """`a = e` or `win: [N, R=3] = e`. Raises Reject; UC0503 for a stored binding."""
    if len(statement.targets) != 1:
        raise Reject(
            "UC0502",
            "several results come from a call of a program, which is a pipeline's stage",
            statement.span,
        )
    (target,) = statement.targets
    check_fresh(target, scope)
    type_ = target.type
    if type_ is None:
        scope.values[target.name] = expressions.check(statement.value, scope)
        return
    if type_.element is not None:
        raise Reject(
            "UC0503",
            f"{target.name} is stored, which is a cut between launches; a kernel is one launch",
            target.span,
            f"make this a pipeline, or write {target.name} = {type_.element[:40]}(..) to round only",
        )
    types.register_names(type_.axes or (), scope.dims, pending=True)
    axes = types.memory_axes(type_, scope)
    value = expressions.check(statement.value, scope)
    fit(value, tuple(d for a in axes for d in a.dims), target.span, scope)
    scope.values[target.name] = value


def check_fresh(target: syntax.Target, scope: Scope) -> None:
    """Raises Reject where a binding would hide or redefine a name."""
    if target.name in scope.values and not isinstance(scope.values[target.name], Poisoned):
        raise Reject(
            "UC0103", f"{target.name} is bound already", target.span, "give the new value a name of its own"
        )
    if target.name in scope.dims.extents:
        raise Reject("UC0108", f"{target.name} is a dimension", target.span, "give the value another name")


def _results(
    program: syntax.Program,
    declared: dict[str, tuple[TensorType, Span]],
    returned: list[syntax.Return],
    scope: Scope,
    findings: Findings,
) -> tuple[ir.ResultDecl, ...] | None:
    try:
        items = match_return(program, declared, returned)
    except Reject as problem:
        findings.reject(problem)
        return None
    results: list[ir.ResultDecl] = []
    for name, item in items.items():
        type_, span = declared[name]
        try:
            value = expressions.check(item.value, scope)
            fit(value, type_.dims, item.span, scope)
            check_known((*type_.dims, *value.dims), scope)
            results.append(ir.ResultDecl(name, type_, value, span))
        except Reject as problem:
            findings.reject(problem)
        except Cascade:
            pass
        except LimitPassed as problem:
            findings.reject(beyond(problem, item.span))
    return tuple(results) if len(results) == len(declared) == len(program.results) else None


def match_return(
    program: syntax.Program, declared: Iterable[str], returned: list[syntax.Return]
) -> dict[str, syntax.ReturnItem]:
    """Return items by result name, in the declared order. Raises Reject UC0223 or UC0218."""
    if len(returned) != 1:
        span = returned[1].span if returned else program.name_span
        words = f"{program.name} has {len(returned)} returns; it needs one"
        hint = "name several results in one: return y = e1, z = e2" if returned else "end it in: return e"
        raise Reject("UC0223", words, span, hint)
    (statement,) = returned
    items = {item.name or "": item for item in statement.items}
    results = [r.name or "" for r in program.results]
    if len(items) != len(statement.items) or set(items) != set(results):
        shape = "return e" if results == [""] else "return " + ", ".join(f"{w} = .." for w in results)
        raise Reject(
            "UC0218", "return does not name the declared results, each once", statement.span, f"write {shape}"
        )
    return {name: items[name] for name in results if name in set(declared)}


def check_known(dims: Iterable[str], scope: Scope) -> None:
    """Every dimension of a result has an extent by now. Raises Reject UC0209."""
    for dim in dims:
        if dim in scope.dims.pending:
            scope.extent(dim, scope.dims.spans[dim])


def fit(value: Value, dims: tuple[str, ...], span: Span, scope: Scope) -> None:
    """A value is returned or bound only as a type with exactly its names.

    Raises Reject UC0206, UC0207 or UC0208.
    """
    missing = [d for d in dims if d not in value.dims]
    extra = [d for d in value.dims if d not in dims]
    if extra and (shared := _accidental(value, extra)):
        dim, dot = shared
        raise Reject(
            "UC0206",
            f"both operands of dot have {dim}, which is not listed, so it is a batch name; the type "
            f"{describe(dims)} lacks it",
            span,
            f"sum over it with dot[.., {dim}](..), or give one operand another name for it: x[{dim} = J]",
            (("the dot", dot.span),),
        )
    if extra:
        rename, note = _rename(value, extra, dims, scope)
        raise Reject(
            "UC0208",
            f"the value ranges over {describe(value.dims)}, the type over {describe(dims)}: "
            f"{', '.join(extra)} is left over",
            span,
            f"{rename}reduce it, as in sum[{', '.join(extra)}](..), or add it to the type",
            note,
        )
    if missing:
        raise Reject(
            "UC0207",
            f"the type has {', '.join(missing)}, but the value ranges over {describe(value.dims)}: "
            f"{show_value(value)}",
            span,
            f"repeat it in plain sight: expand[{', '.join(map(scope.written, missing))}](..)",
        )


def _rename(
    value: Value, extra: list[str], dims: tuple[str, ...], scope: Scope
) -> tuple[str, tuple[tuple[str, Span], ...]]:
    """Where a tensor has a name of its own for an axis of the type, the rename that aligns it: the opening of
    a hint, and where the tensor is. Of `f32[M, K] + f32[M, C]` as `f32[M, K]`, that C is K."""
    names = {id(bound): name for name, bound in scope.values.items() if not isinstance(bound, Poisoned)}

    def into(node: Value) -> tuple[Value, ...]:
        """What is combined element by element: only there is a name as good as another."""
        return ir.children(node) if isinstance(node, ir.Apply | ir.Cast) else ()

    tensors = [n for n in walk(value, into=into) if isinstance(n, ir.ParamValue) and id(n) in names]
    alone = [d for d in extra if sum(d in node.dims for node in tensors) == 1]  # no accident in two
    for node in tensors:
        own = [d for d in node.dims if d in alone]
        lacks = [d for d in dims if d not in node.dims and _as_long(scope, own[:1], d)]
        if len(own) == 1 and lacks:
            read = f"{names[id(node)]}[{own[0]} = {lacks[-1]}]"
            note = f"{own[0]} comes from {names[id(node)]}"
            return f"if {own[0]} is {lacks[-1]}, say so: write {read}; else ", ((note, node.span),)
    return "", ()


def _as_long(scope: Scope, own: list[str], other: str) -> bool:
    """Whether two dimensions may be of one extent."""
    extents = [scope.dims.extents.get(d) for d in (*own, other)]
    fixed = {e for e in extents if isinstance(e, Fixed)}
    return len(fixed) <= 1


def _accidental(value: Value, extra: list[str]) -> tuple[str, ir.Dot] | None:
    visited: set[int] = set()
    stack = [value]
    while stack:
        node = stack.pop()
        if id(node) in visited:
            continue
        visited.add(id(node))
        if isinstance(node, ir.Dot):
            for dim in extra:
                if dim in node.left.dims and dim in node.right.dims and dim in node.dims:
                    return dim, node
        stack += ir.children(node)
    return None

"""Warnings: what is legal in a program and cannot be meant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from ucutlass import ir
from ucutlass.check.conditions import impossible
from ucutlass.check.subexpressions import names, parts
from ucutlass.diagnostics import Diagnostic
from ucutlass.grammar import syntax
from ucutlass.grammar.syntax import Span
from ucutlass.ir import Value
from ucutlass.ir.extents import Extent


def warnings(tree: syntax.File, module: ir.Module) -> tuple[Diagnostic, ...]:
    """Returns the warnings of a file without errors, in the order of the text."""
    checked = {program.name: program for program in module.programs}
    diagnostics = list(_unused_functions(tree))
    for item in tree.items:
        if isinstance(item, syntax.Function):
            diagnostics += _unused_in_function(item)
            continue
        diagnostics += _unused_in_program(item)
        diagnostics += _conditions(item, checked[item.name])
        diagnostics += _repeated(item)
    return tuple(sorted(diagnostics, key=lambda d: d.span.start))


def _warning(
    code: str, message: str, span: Span, hint: str, notes: tuple[tuple[str, Span], ...] = ()
) -> Diagnostic:
    return Diagnostic(code, message, span, hint, notes, "warning")


# --- what nothing uses ----------------------------------------------------------------


def _unused_functions(tree: syntax.File) -> Iterator[Diagnostic]:
    """Functions that no program comes to; a file without programs is a library."""
    functions = {item.name: item for item in tree.items if isinstance(item, syntax.Function)}
    pending: list[syntax.Program | syntax.Function] = [
        item for item in tree.items if isinstance(item, syntax.Program)
    ]
    if not pending:
        return
    reached: set[str] = set()
    while pending:
        called = {c for s in pending.pop().body for e in _expressions(s) for c in _called(e)}
        new = [name for name in called if name in functions and name not in reached]
        reached.update(new)
        pending += [functions[name] for name in new]
    for name, function in functions.items():
        if name not in reached:
            yield _warning(
                "UC0803", f"no program calls the function {name}", function.name_span, "call it, or remove it"
            )


def _unused_in_function(function: syntax.Function) -> Iterator[Diagnostic]:
    used = _used(function.body)
    for name in function.params:
        if name not in used:
            yield _warning(
                "UC0801",
                f"{function.name} does not use its parameter {name}",
                function.name_span,
                f"use {name}, or leave it out here and in the calls",
            )
    yield from _unused_bindings(function.body, used)


def _unused_in_program(program: syntax.Program) -> Iterator[Diagnostic]:
    used = _used(program.body)
    for param in program.params:
        if param.name not in used and not _brings_extents(param, program, used):
            yield _warning(
                "UC0801",
                f"{program.name} does not use its parameter {param.name}",
                param.span,
                f"use {param.name}, or leave it out",
            )
    yield from _unused_bindings(program.body, used)


def _unused_bindings(body: Iterable[syntax.Statement], used: Set[str]) -> Iterator[Diagnostic]:
    for statement in body:
        if not isinstance(statement, syntax.Bind) or any(t.name in used for t in statement.targets):
            continue
        for target in statement.targets:
            yield _warning(
                "UC0802",
                f"nothing uses {target.name}",
                target.span,
                f"use {target.name}, or remove the binding",
            )


def _brings_extents(param: syntax.Param, program: syntax.Program, used: Set[str]) -> bool:
    """Whether a dimension that the rest of the program needs stands in no other parameter."""
    others = {d for p in program.params if p is not param for d in _dims(p.type)}
    needed = {d for r in program.results for d in _dims(r.type)} | used
    return bool((_dims(param.type) - others) & needed)


def _dims(type_: syntax.TypeExpr) -> set[str]:
    """Every name in a type: those of its axes, and those of which their extents are made."""
    dims: set[str] = set()
    for axis in type_.axes or ():
        match axis:
            case syntax.NamelessAxis(extent):
                dims |= names(extent)
            case syntax.NamedAxis() | syntax.CompositeAxis():
                parts = axis.parts if isinstance(axis, syntax.CompositeAxis) else (axis,)
                for part in parts:
                    dims |= {part.name} | (names(part.extent) if part.extent is not None else set())
    return dims


def _used(body: Iterable[syntax.Statement]) -> set[str]:
    """Every name that a statement reads, values and dimensions alike."""
    return {name for statement in body for e in _expressions(statement) for name in names(e)}


def _expressions(statement: syntax.Statement) -> tuple[syntax.Expr, ...]:
    match statement:
        case syntax.Bind(value=value):
            return (value,)
        case syntax.Return(items=items):
            return tuple(item.value for item in items)
        case syntax.Require(condition):
            return (condition,)
        case syntax.Schedule(when=when):
            return () if when is None else (when,)


def _called(expr: syntax.Expr) -> set[str]:
    own = {expr.callee} if isinstance(expr, syntax.Call) else set[str]()
    return own.union(*map(_called, parts(expr)))


# --- conditions -----------------------------------------------------------------------


def _conditions(program: syntax.Program, checked: ir.Program) -> Iterator[Diagnostic]:
    """Yields warnings of guards and requirements: what never holds, what always does, what an earlier one
    leaves nothing."""
    whens = {s.arch_span: s.when.span for s in program.body if isinstance(s, syntax.Schedule) and s.when}
    if isinstance(checked, ir.Kernel):
        written = [s for s in program.body if isinstance(s, syntax.Require)]
        yield from _requirements(written, checked)
        yield from _guards(checked.schedules, checked.requires, checked.dims, whens)
        return
    mine = {s.arch_span for s in program.body if isinstance(s, syntax.Schedule)}
    for stage in checked.stages:
        # Guards of a kernel that a stage calls are looked at where they stand.
        blocks = stage.call.schedules if isinstance(stage.call, ir.Kernel) else ()
        yield from _guards([b for b in blocks if b.span in mine], (), checked.dims, whens)


MOST = 32
"""Conditions of a program, and of its blocks of one architecture, that are held against each other."""


def _requirements(written: Sequence[syntax.Require], kernel: ir.Kernel) -> Iterator[Diagnostic]:
    for number, (statement, condition) in enumerate(zip(written, kernel.requires[:MOST], strict=False)):
        earlier, span = kernel.requires[:number], statement.condition.span
        after = " where those before it hold" if earlier else ""
        if impossible(earlier, (), kernel.dims):
            return
        if impossible((*earlier, condition), (), kernel.dims):
            yield _warning(
                "UC0807",
                f"this requirement never holds{after}: no call can be right",
                span,
                "correct the condition",
            )
        elif impossible(earlier, (condition,), kernel.dims):
            yield _warning(
                "UC0806", f"this requirement always holds{after}", span, "remove it, or correct the condition"
            )


def _guards(
    blocks: Sequence[ir.ScheduleBlock],
    requires: Sequence[Value],
    dims: Mapping[str, Extent],
    whens: Mapping[Span, Span],
) -> Iterator[Diagnostic]:
    requires = requires[:MOST]
    if impossible(requires, (), dims):
        return
    earlier_blocks: dict[str, dict[int, ir.ScheduleBlock]] = {}
    for block in blocks:
        earlier = earlier_blocks.setdefault(block.arch, {})
        if id(block.guard) in earlier or len(earlier) >= MOST:
            continue  # an alternative of a block that was looked at
        own = () if block.guard is None else (block.guard,)
        refuted = [b.guard for b in earlier.values() if b.guard is not None]
        before = next(reversed(earlier.values()), block)
        earlier[id(block.guard)] = block
        span = whens.get(block.span, block.span)
        if impossible((*requires, *own), (), dims):
            yield _warning(
                "UC0804",
                "this condition never holds: the block is never chosen",
                span,
                "correct the condition",
            )
        elif impossible((*requires, *own), refuted, dims):
            yield _warning(
                "UC0805",
                "this block is never chosen: wherever it could be, an earlier condition holds, and "
                "the first that holds wins",
                span,
                "write the narrower condition first",
                (("the block before", before.span),),
            )


# --- alternatives ---------------------------------------------------------------------


def _repeated(program: syntax.Program) -> Iterator[Diagnostic]:
    """Values of a field that stand twice, and blocks that say the same as one before."""
    blocks: dict[object, syntax.Schedule] = {}
    for block in (s for s in program.body if isinstance(s, syntax.Schedule)):
        for field in block.fields:
            yield from _twice(field)
        key = _sense(block)
        if key in blocks:
            yield _warning(
                "UC0808",
                "this block says what an earlier one says",
                block.arch_span,
                "remove one of them",
                (("the earlier block", blocks[key].arch_span),),
            )
        blocks.setdefault(key, block)


def _sense(block: syntax.Schedule) -> object:
    """What a block says, without the order of its fields and of their values."""
    fields = frozenset((f.name, frozenset(f.alternatives)) for f in block.fields)
    return block.arch, None if block.stage is None else block.stage.words, block.when, fields


def _twice(field: syntax.Field) -> Iterator[Diagnostic]:
    earlier: set[object] = set()
    for value in field.alternatives:
        if value in earlier:
            yield _warning(
                "UC0808", f"an alternative of {field.name} stands twice", value.span, "remove one of them"
            )
        earlier.add(value)

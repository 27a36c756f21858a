"""Joins the stages of a pipeline's text where one launch for them is estimated to take less time.

A stored binding is a stage of its own. Without its element type it is computed by whatever reads it, rounded
by a cast as its storage would have rounded it: the text changes in its types, casts and schedules alone, and a
kernel that a stage calls is written in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ucutlass import ir
from ucutlass.check import check_tree
from ucutlass.grammar import syntax
from ucutlass.grammar.format import format_file
from ucutlass.ir.hardware import Device
from ucutlass.limits import LimitPassed
from ucutlass.pipeline.called import CallInPlace, NotInPlace, in_place, type_of
from ucutlass.pipeline.orders import choose_orders, permuted
from ucutlass.pipeline.pricing import NotOneKernel, kernel_seconds, pays
from ucutlass.pipeline.sized import SizedPipeline, Step, sized_pipeline
from ucutlass.shapes import ShapeError, complete, free_dims


@dataclass(frozen=True, slots=True)
class Join:
    """`buffers` that would no longer be stored, and the `stages` that fill and read them, by their buffers.
    `apart` and `together` are the estimates of these stages in seconds; `together` is None where no kernel
    does it, for the reason `why`. `joined` says that the text has it."""

    buffers: tuple[str, ...]
    stages: tuple[str, ...]
    apart: float
    together: float | None
    joined: bool
    why: str


@dataclass(frozen=True, slots=True)
class JoinedText:
    """A program's tree with its joins, those that were made first."""

    tree: syntax.File
    joins: tuple[Join, ...]

    @property
    def text(self) -> str:
        return format_file(self.tree)


class _NotJoined(Exception):
    """The stages cannot be joined; the message says why."""


def joined(
    tree: syntax.File,
    program: ir.Pipeline,
    sizes: Mapping[str, int],
    arch: str = "sm90a",
    device: Device | None = None,
) -> JoinedText:
    """Returns the text of a checked file in which stages of a pipeline are joined where it pays at these
    extents, the join that saves most first. `sizes` has every extent by name. Raises ShapeError, and
    NotOneKernel where no kernel serves a stage as it stands."""
    joiner = _Joiner(program.name, sizes, arch, device)
    text = joiner.text(tree, program)
    steps: list[Join] = []
    attempts: dict[tuple[str, ...], _Attempt] = {}
    while True:
        attempts = {
            names: attempts.get(names) or joiner.attempt(text, names) for names in text.candidates(attempts)
        }
        for names in text.chains(attempts):
            attempts[names] = joiner.attempt(text, names)
        paying = [a for a in attempts.values() if a.join.joined and a.text is not None]
        if not paying:
            break
        best = max(paying, key=lambda a: a.saves)
        assert best.text is not None
        steps.append(best.join)
        text = best.text
        changed = {*best.join.stages}
        attempts = {n: a for n, a in attempts.items() if not changed & {*a.join.stages}}
        # What is left was tried in a text that has not this join: the text is stale, the verdict is not.
        attempts = {n: replace(a, text=None) for n, a in attempts.items() if not a.join.joined}
    left = tuple(a.join for a in attempts.values())
    return JoinedText(text.tree, (*steps, *left))


@dataclass(frozen=True, slots=True)
class _Text:
    """A file whose pipeline was checked, at its extents."""

    tree: syntax.File
    name: str
    sized: SizedPipeline

    @property
    def program(self) -> syntax.Program:
        return _program(self.tree, self.name)

    @property
    def stored(self) -> dict[str, syntax.Bind]:
        """The bindings of the pipeline that are stages of one result, by name."""
        inner = {*self.sized.intermediates}
        return {
            b.targets[0].name: b
            for b in self.program.body
            if isinstance(b, syntax.Bind) and len(b.targets) == 1 and b.targets[0].name in inner
        }

    def candidates(self, attempts: Mapping[tuple[str, ...], _Attempt]) -> list[tuple[str, ...]]:
        single: list[tuple[str, ...]] = [(name,) for name in self.stored]
        return [*single, *(n for n in attempts if len(n) > 1 and {*n} <= self.stored.keys())]

    def chains(self, attempts: Mapping[tuple[str, ...], _Attempt]) -> Iterator[tuple[str, ...]]:
        """Yields the pairs of buffers of which not each can be left out alone, but perhaps both: attention that
        was cut at its scores. What stores several buffers is no candidate itself."""
        for name in self.stored:
            readers = self.readers(name)
            if len(readers) != 1:
                continue
            pair = (name, *readers[0].stage.outputs)
            each = [attempts[name,], attempts.get(pair[1:])]
            refused = [a is not None and a.join.together is None for a in each]
            if each[1] is not None and any(refused) and pair not in attempts:
                yield pair

    def step(self, name: str) -> Step:
        number = self.sized.producer(name)
        assert number is not None
        return self.sized.steps[number]

    def type_of(self, name: str) -> syntax.TypeExpr:
        buffer = self.sized.buffers[name]
        return type_of(buffer.type, buffer.shape)

    def readers(self, name: str) -> list[Step]:
        return [self.sized.steps[i] for i in self.sized.readers(name)]


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A join, and the text that has it; None where it cannot be, or was tried in an earlier text."""

    join: Join
    text: _Text | None

    @property
    def saves(self) -> float:
        return self.join.apart - (self.join.together or 0.0)


@dataclass(slots=True)
class _Joiner:
    name: str
    sizes: Mapping[str, int]
    arch: str
    device: Device | None
    prices: dict[tuple[str, ir.Kernel, tuple[int, ...]], float] = field(default_factory=dict)

    def text(self, tree: syntax.File, program: ir.Pipeline) -> _Text:
        extents = complete(program, {d: self.sizes[d] for d in free_dims(program)})
        if program.unordered:
            orders = choose_orders(program, extents, self.price)
            program = permuted(program, orders)
        return _Text(tree, self.name, sized_pipeline(program, extents))

    def price(self, step: Step) -> float:
        """Returns the estimate of a stage in seconds, 0 for a torch function. Raises NotOneKernel."""
        if step.kernel is None:
            return 0.0
        return kernel_seconds(step.kernel, step.sizes, self.arch, self.device)

    def attempt(self, text: _Text, names: tuple[str, ...]) -> _Attempt:
        involved = [text.step(n) for n in names]
        involved += [r for n in names for r in text.readers(n) if r not in involved]
        involved = list({s.name: s for s in involved}.values())
        outputs = tuple(output for s in involved for output in s.stage.outputs)
        apart = [self.price(s) for s in involved]
        try:
            after = self._without(text, names)
            together = [self.price(after.step(o)) for o in outputs if after.sized.producer(o) is not None]
        except (_NotJoined, NotOneKernel, ShapeError, LimitPassed) as problem:
            return _Attempt(Join(names, outputs, sum(apart), None, False, str(problem)), None)
        good = pays(apart, together)
        why = "" if good else "one kernel for them is estimated to take longer"
        return _Attempt(Join(names, outputs, sum(apart), sum(together), good, why), after)

    def _without(self, text: _Text, names: Sequence[str]) -> _Text:
        """Returns the text in which these buffers are not stored. Raises _NotJoined and ShapeError."""
        readers = {" ".join(r.stage.outputs) for n in names for r in text.readers(n)}

        def changed(statement: syntax.Statement) -> tuple[syntax.Statement, ...]:
            match statement:
                case syntax.Bind(targets=(syntax.Target(name=name),)) if name in names:
                    written = self._in_place(text, statement.value, name)
                    return _behind(written.bindings, _unstored(statement, written.value, text.step(name)))
                case syntax.Bind(targets=(syntax.Target(name=name) as target,)) if name in readers:
                    written = self._in_place(text, statement.value, name)
                    if written.value is statement.value:
                        return (statement,)
                    typed = replace(target, type=target.type or text.type_of(name))
                    return _behind(
                        written.bindings, replace(statement, targets=(typed,), value=written.value)
                    )
                case syntax.Return(items=items):
                    parts = [
                        self._in_place(text, i.value, output)
                        if output in readers
                        else CallInPlace((), i.value)
                        for i in items
                        for output in [f"return {i.name or ''}".strip()]
                    ]
                    bindings = tuple(b for part in parts for b in part.bindings)
                    returned = tuple(
                        replace(i, value=part.value) for i, part in zip(items, parts, strict=True)
                    )
                    return _behind(bindings, replace(statement, items=returned))
                case syntax.Schedule(stage=syntax.StageName() as stage) if stage.words in {*names, *readers}:
                    return ()
            return (statement,)

        tree = _with_body(text.tree, self.name, changed)
        module, diagnostics = check_tree(tree)
        wrong = next((d for d in diagnostics if d.severity == "error"), None)
        if wrong is not None:
            raise _NotJoined(f"{wrong.message} [{wrong.code}]")
        program = next(p for p in module.programs if p.name == self.name)
        assert isinstance(program, ir.Pipeline)
        return self.text(tree, program)

    def _in_place(self, text: _Text, value: syntax.Expr, output: str) -> CallInPlace:
        """Returns the value of a stage without a call of a kernel. Raises _NotJoined."""
        kernels = {i.name: i for i in text.tree.items if isinstance(i, syntax.Program) and i.kind == "kernel"}
        if not isinstance(value, syntax.Call) or value.callee not in kernels:
            return CallInPlace((), value)
        buffers: dict[str, ir.ParamType] = {p.name: p.type for p in text.sized.pipeline.params}
        buffers |= {name: buffer.type for name, buffer in text.sized.buffers.items()}
        bound = {t.name for s in text.program.body if isinstance(s, syntax.Bind) for t in s.targets}
        used_names = {*buffers, *bound, *text.sized.sizes}
        result = text.sized.buffers[output].type
        try:
            return in_place(value, kernels[value.callee], buffers, result, used_names)
        except NotInPlace as problem:
            raise _NotJoined(f"the kernel {value.callee} is not written in place: {problem}") from problem


def _program(tree: syntax.File, name: str) -> syntax.Program:
    return next(i for i in tree.items if isinstance(i, syntax.Program) and i.name == name)


def _behind(bindings: Sequence[syntax.Bind], statement: syntax.Statement) -> tuple[syntax.Statement, ...]:
    """Returns the bindings and the statement, whose comments before it stand before them all."""
    if not bindings:
        return (statement,)
    first = replace(bindings[0], comments=replace(statement.comments, behind=None))
    return (first, *bindings[1:], replace(statement, comments=replace(statement.comments, before=())))


def _with_body(
    tree: syntax.File, name: str, change: Callable[[syntax.Statement], tuple[syntax.Statement, ...]]
) -> syntax.File:
    program = _program(tree, name)
    body = tuple(s for statement in program.body for s in change(statement))
    items = tuple(replace(program, body=body) if item is program else item for item in tree.items)
    return replace(tree, items=items)


def _unstored(bind: syntax.Bind, value: syntax.Expr, step: Step) -> syntax.Bind:
    """Returns a binding of this value that is computed where it is read. Raises _NotJoined for a torch
    function."""
    target, kernel = bind.targets[0], step.kernel
    if kernel is None:
        raise _NotJoined("the compiler does not look into a torch function")
    result = kernel.results[0]
    stored = result.type.elem
    if result.value.elem is not stored:
        value = syntax.Call(stored.name, None, (syntax.Argument(value),))
    return replace(bind, targets=(replace(target, type=_introducing(target.type)),), value=value)


def _introducing(type_: syntax.TypeExpr | None) -> syntax.TypeExpr | None:
    """Returns what is left of a type without its element: its names, where some have their extents there."""
    axes = () if type_ is None else type_.axes or ()
    names: list[syntax.NamedAxis] = []
    for axis in axes:
        match axis:
            case syntax.NamedAxis():
                names.append(axis)
            case syntax.CompositeAxis(parts=parts):
                names += parts
    if all(name.extent is None for name in names):
        return None
    return syntax.TypeExpr(None, tuple(names))

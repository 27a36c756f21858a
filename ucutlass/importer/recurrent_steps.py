"""Writes a recurrent layer as a product of all steps' inputs and a kernel that is called for each step.

cuDNN's recurrent layers approximate tanh: over hundreds of steps they err by some ten times what PyTorch's loop
does, which no result in f32 may. A step reads its weights from L2, and takes as long as a launch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from ucutlass.grammar import syntax
from ucutlass.grammar.syntax import Argument, Bind, Call, Expr, Name, NamedAxis, NamelessAxis, Number
from ucutlass.importer.expressions import add, at, binary, call, index, mul, over, plus, where
from ucutlass.importer.graph import ImportedTensor, TorchStage
from ucutlass.importer.naming import numbered

ACTIVATIONS: Mapping[str, str] = MappingProxyType({"rnn_tanh": "tanh", "rnn_relu": "relu"})
"""By the function of torch: what gives a step's state."""

MOST_STEPS = 384
"""Calls of a longer loop would be a program that nobody reads."""

MOST_PRODUCTS = 2**22
"""Products of a step, each of which reads a weight: of more, a tensor core's kernel would be faster."""

CONCATENATED = 16
"""Tensors that one kernel puts side by side."""


def is_stepwise(stage: TorchStage | None, values: Mapping[str, ImportedTensor]) -> bool:
    """Returns whether a recurrent layer is written as steps: in f32, of one layer in one direction, of which every
    step's state is read."""
    if stage is None or stage.function not in ACTIVATIONS or stage.tensor.element != "f32":
        return False
    if stage.keywords.get("layers") != 1 or stage.keywords.keys() - {"layers", "batch_first"}:
        return False
    x, state = (values[operand.value].shape for operand in stage.operands[:2])
    steps = x[1 if stage.keywords.get("batch_first") else 0]
    return len(x) == len(state) == 3 and steps <= MOST_STEPS and math.prod(state) * state[-1] <= MOST_PRODUCTS


def with_steps(tree: syntax.File, layers: Sequence[str]) -> syntax.File:
    """Returns a program whose bindings of these names, calls of recurrent layers, are steps. Its last item is a
    pipeline that declares the types of all bindings."""
    *kernels, pipeline = tree.items
    assert isinstance(pipeline, syntax.Program)
    writer = _StepsWriter(pipeline, {item.name for item in kernels if isinstance(item, syntax.Program)})
    body = tuple(itertools.chain.from_iterable(writer.statements(s, layers) for s in pipeline.body))
    return syntax.File((*kernels, *writer.kernels, replace(pipeline, body=body)))


@dataclass(slots=True)
class _StepsWriter:
    """`used` are names that no other kernel or binding may have."""

    pipeline: syntax.Program
    used: set[str]
    kernels: list[syntax.Program] = field(default_factory=list)
    extents: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        types = [param.type for param in self.pipeline.params] + [r.type for r in self.pipeline.results]
        targets = [t for s in self.pipeline.body if isinstance(s, Bind) for t in s.targets]
        types += [target.type for target in targets if target.type is not None]
        self.used |= {self.pipeline.name, *(p.name for p in self.pipeline.params), *(t.name for t in targets)}
        for axis in itertools.chain.from_iterable(kind.axes or () for kind in types):
            if isinstance(axis, NamedAxis):
                self.used.add(axis.name)
                if isinstance(axis.extent, Number):
                    self.extents[axis.name] = int(axis.extent.value)

    def name(self, noun: str) -> str:
        free = numbered(noun, self.used)
        self.used.add(free)
        return free

    def statements(self, statement: syntax.Statement, layers: Sequence[str]) -> Iterator[syntax.Statement]:
        match statement:
            case Bind((syntax.Target(name, syntax.TypeExpr() as type_),), Call() as layer) if name in layers:
                yield from self._layer(statement, name, type_, layer)
            case _:
                yield statement

    def _layer(
        self, statement: Bind, name: str, type_: syntax.TypeExpr, layer: Call
    ) -> Iterator[syntax.Statement]:
        """Yields the calls of a layer, the first of which declare the names of its result's axes."""
        keywords = {a.name for a in layer.arguments if a.name}
        x, state, of_input, of_state, *biases = (a.value for a in layer.arguments if not a.name)
        time = 1 if "batch_first" in keywords else 0
        axes = type_.axes or ()
        steps = self._extent(axes[time])
        inputs, first, step = (self.name(f"{name}_{noun}") for noun in ("inputs", "before", "step"))
        letters = _exchanged(("T", "B", "N"), time)
        self.kernels += [
            _inputs_kernel(inputs, time, len(biases)),
            _kernel(first, {"x": (1, "B", "N")}, ("B", "N"), Name("x")),
            _step_kernel(step, letters, ACTIVATIONS[layer.callee.removeprefix("torch.")]),
        ]
        summed, before = self.name(f"{name}_sums"), self.name(f"{name}_0")
        yield _bound(summed, type_, _calls(inputs, x, of_input, *biases), statement.comments)
        names = tuple(replace(a, extent=None) if isinstance(a, NamedAxis) else a for a in axes)
        of_step = replace(type_, axes=names[:time] + names[time + 1 :])
        yield _bound(before, of_step, _calls(first, state))
        states = []
        for number in range(steps):
            states.append(self.name(f"{name}_{number + 1}"))
            yield _bound(
                states[-1], of_step, _calls(step, Name(summed), Name(before), of_state, Number(number))
            )
            before = states[-1]
        yield from self._side_by_side(name, replace(type_, axes=names), time, states)

    def _extent(self, axis: syntax.Axis) -> int:
        if isinstance(axis, NamedAxis):
            return self.extents[axis.name]
        assert isinstance(axis, NamelessAxis) and isinstance(axis.extent, Number)
        return int(axis.extent.value)

    def _side_by_side(
        self, name: str, type_: syntax.TypeExpr, time: int, states: Sequence[str]
    ) -> Iterator[syntax.Statement]:
        """Yields the calls that put the states of all steps side by side, so many at a time."""
        parts, extents = list(states), [0] * len(states)
        while True:
            groups = [slice(i, i + CONCATENATED) for i in range(0, len(parts), CONCATENATED)]
            joined: list[str] = []
            lengths: list[int] = []
            for group in groups:
                length = sum(max(1, n) for n in extents[group])
                whole = len(groups) == 1
                axes = type_.axes or ()
                if not whole:
                    axes = (*axes[:time], NamelessAxis(Number(length)), *axes[time + 1 :])
                joined.append(name if whole else self.name(f"{name}_part"))
                lengths.append(length)
                kernel = self._concatenation(tuple(extents[group]), time)
                yield _bound(joined[-1], replace(type_, axes=axes), _calls(kernel, *map(Name, parts[group])))
            parts, extents = joined, lengths
            if len(groups) == 1:
                return

    def _concatenation(self, extents: tuple[int, ...], time: int) -> str:
        """Returns the name of the kernel of so long parts, 0 for one without the axis of steps."""
        name = f"steps_{'_'.join(f'{count}x{n}' for n, count in _runs(extents))}"
        if all(kernel.name != name for kernel in self.kernels):
            letters = _exchanged(("T", "B", "N"), time)
            params: dict[str, tuple[str | int, ...]] = {}
            value: Expr | None = None
            begin = sum(max(1, n) for n in extents)
            total = begin
            for number, extent in reversed(list(enumerate(extents))):
                part = f"x{number}"
                own = f"S{number}" if extent > 1 else 1
                params[part] = letters[:time] + ((own,) if extent else ()) + letters[time + 1 :]
                end, begin = begin, begin - max(1, extent)
                read: Expr = at(part, {own: plus(Name("T"), -begin)}) if isinstance(own, str) else Name(part)
                value = read if value is None else where(binary("<", index("T"), end), read, value)
            assert value is not None
            sizes = {f"S{i}": n for i, n in enumerate(extents) if n > 1} | {"T": total}
            ordered = dict(reversed(params.items()))
            along = "T" if total > 1 else 1
            result = (*letters[:time], along, *letters[time + 1 :])
            self.kernels.append(_kernel(name, ordered, result, value, sizes))
        return name


def _runs(extents: Sequence[int]) -> list[tuple[int, int]]:
    return [(n, len(list(group))) for n, group in itertools.groupby(max(1, n) for n in extents)]


def _exchanged(letters: tuple[str, ...], time: int) -> tuple[str, ...]:
    """Returns the names of the axes where that of steps lies at this place."""
    first, second, *others = letters
    return (second, first, *others) if time else letters


def _inputs_kernel(name: str, time: int, biases: int) -> syntax.Program:
    """What each step adds of its input: the same for all steps."""
    vectors = [f"b{i}" for i in range(biases)]
    value: Expr = over("dot", ("K",), "x", "w")
    for vector in vectors:
        value = add(value, vector)
    params: dict[str, tuple[str | int, ...]] = {"x": _exchanged(("T", "B", "K"), time), "w": ("N", "K")}
    return _kernel(name, params | dict.fromkeys(vectors, ("N",)), _exchanged(("T", "B", "N"), time), value)


def _step_kernel(name: str, letters: tuple[str, ...], activation: str) -> syntax.Program:
    sums = add(at("x", {"T": "step"}), over("sum", ("K",), mul("h", "w")))
    kernel = _kernel(
        name, {"x": letters, "h": ("B", "K"), "w": ("N", "K")}, ("B", "N"), call(activation, sums)
    )
    return replace(kernel, params=(*kernel.params, syntax.Param("step", syntax.TypeExpr("i64", None))))


def _kernel(
    name: str,
    params: Mapping[str, Sequence[str | int]],
    result: Sequence[str | int],
    value: Expr,
    extents: Mapping[str, int] = MappingProxyType({}),
) -> syntax.Program:
    """A kernel of f32 tensors with these names of axes, and the extents of names where they are declared."""
    declared: set[str] = set()

    def typed(axes: Sequence[str | int]) -> syntax.TypeExpr:
        named: list[syntax.Axis] = []
        for axis in axes:
            if isinstance(axis, int):
                named.append(NamelessAxis(Number(axis)))
                continue
            fresh = axis in extents and axis not in declared
            declared.add(axis)
            named.append(NamedAxis(axis, Number(extents[axis]) if fresh else None))
        return syntax.TypeExpr("f32", tuple(named))

    parameters = tuple(syntax.Param(param, typed(axes)) for param, axes in params.items())
    results = (syntax.Result(typed(result), None),)
    body = (syntax.Return((syntax.ReturnItem(value),)),)
    return syntax.Program("kernel", name, parameters, results, body)


def _calls(kernel: str, *arguments: Expr) -> Call:
    return Call(kernel, None, tuple(map(Argument, arguments)))


def _bound(name: str, type_: syntax.TypeExpr, value: Expr, comments: syntax.Comments | None = None) -> Bind:
    bind = Bind((syntax.Target(name, type_),), value)
    return bind if comments is None else replace(bind, comments=comments)

"""Averages and sums of what a product or a convolution gives: of its operands first, where that is less work.

The mean over positions of a convolution is a product of the mean of its image, an average pool behind a convolution is
a convolution of larger steps, the mean over filters is a product with the mean filter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType

from ucutlass.grammar.syntax import (
    Argument,
    Binary,
    BracketName,
    Call,
    Expr,
    Index,
    IndexItem,
    Name,
    Number,
    Unary,
)
from ucutlass.importer.expressions import (
    add,
    affine,
    binary,
    both,
    div,
    folded,
    index,
    mul,
    names_in,
    number,
    over,
    plus,
    sub,
    where,
)
from ucutlass.importer.graph import (
    Axes,
    Computation,
    ImportedTensor,
    Kind,
    Node,
    OperandRead,
    Reshape,
    TensorGraph,
    readers,
)
from ucutlass.importer.operators.products import EXACT, dot_body
from ucutlass.importer.prices import StagePrices
from ucutlass.pipeline.pricing import pays

LEAST_GAIN = 0.1
"""Share of the estimates that must be saved: they are not more exact."""


@dataclass(frozen=True, slots=True)
class AxisAverage:
    """Averages along an axis of `extent` elements: of windows of so many, `places` of them, each `stride` further."""

    extent: int
    width: int
    places: int = 1
    stride: int = 1
    offset: int = 0

    @property
    def inside(self) -> bool:
        return self.offset == 0 and (self.places - 1) * self.stride + self.width <= self.extent

    @property
    def whole(self) -> bool:
        return self.inside and self.places == 1 and self.width == self.extent


Averages = Mapping[int, AxisAverage]
"""By axes of a value; along the others it stays as it is."""


def with_averaged_operands(graph: TensorGraph, prices: StagePrices) -> TensorGraph:
    """Returns the graph with averages and sums of products as products of averages, where these are estimated to take
    less time: sums of finite numbers in another order (`ucutlass.algebra`, "sum across dot", "window of a dot")."""
    for node in graph.nodes:
        if isinstance(node, Computation) and node.kind in ("reduction", "window"):
            total = _total(node, graph.values)
            if total is not None:
                graph = _replaced(graph, node, total, prices)
    return graph


def _replaced(graph: TensorGraph, node: Computation, total: _Total, prices: StagePrices) -> TensorGraph:
    writer = _AverageWriter(graph, prices, node)
    average = writer.average(node.operands[0].value, total.averages)
    if average is None or not writer.is_quicker():
        return graph
    read = tuple(
        () if n == 1 else axis for n, axis in zip(writer.values[average].shape, total.axes, strict=True)
    )
    body: Expr = Name("x0") if total.count == 1 else mul("x0", number(float(total.count)))
    used = {label for axis in (*read, *node.axes) for label in axis}
    last = replace(
        node,
        kind="view" if total.count == 1 else "pointwise",
        operands=(OperandRead(average, read),),
        body=body,
        extents={label: n for label, n in node.extents.items() if label in used},
    )
    gone = {name for name in writer.gone if name != node.name}
    nodes = [
        new
        for old in graph.nodes
        if old.name not in gone
        for new in ((*writer.nodes, last) if old is node else (old,))
    ]
    values = {name: tensor for name, tensor in writer.values.items() if name not in gone}
    return replace(graph, nodes=tuple(nodes), values=MappingProxyType(values))


# --- what is averaged ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Total:
    """A mean, or `count` times a mean. `axes` are those of the value that is read, with the labels that a window gives
    it."""

    averages: Averages
    axes: Axes
    count: int


def _total(node: Computation, values: Mapping[str, ImportedTensor]) -> _Total | None:
    if len(node.operands) != 1 or node.tensor.element != "f32":
        return None
    (operand,) = node.operands
    shape = values[operand.value].shape
    if values[operand.value].element != "f32" or any(len(axis) > 1 for axis in operand.axes):
        return None
    match node.body:
        case Call("mean" | "sum" as function, brackets, (Argument(Name("x0")),)) if brackets:
            labels = {bracket.name for bracket in brackets}
            averages = {
                i: AxisAverage(n, n)
                for i, (axis, n) in enumerate(zip(operand.axes, shape, strict=True))
                if labels.intersection(axis)
            }
            axes = operand.axes
        case Call("mean" | "sum" as function, brackets, (Argument(Index(Name("x0"), items)),)) if brackets:
            windows = {bracket.name: node.extents[bracket.name] for bracket in brackets}
            pairs = _windows(node, items, windows, shape)
            if pairs is None:
                return None
            averages, axes = pairs
        case _:
            return None
    if len(averages) != len(brackets):
        return None
    count = prod(average.width for average in averages.values())
    return _Total(averages, axes, count if function == "sum" else 1)


def _windows(
    node: Computation, items: Sequence[IndexItem], windows: Mapping[str, int], shape: Sequence[int]
) -> tuple[dict[int, AxisAverage], Axes] | None:
    averages: dict[int, AxisAverage] = {}
    axes = list(node.operands[0].axes)
    for item in items:
        equation = _equation(item)
        if equation is None or equation.scale != 1 or (equation.input,) not in axes:
            return None
        at = axes.index((equation.input,))
        inner = [label for label in equation.factors if label in windows]
        outer = [label for label in equation.factors if label not in windows]
        if len(inner) != 1 or len(outer) > 1 or equation.factors[inner[0]] != 1:
            return None
        places = node.extents[outer[0]] if outer else 1
        stride = equation.factors[outer[0]] if outer else 1
        averages[at] = AxisAverage(shape[at], windows[inner[0]], places, stride, equation.offset)
        axes[at] = tuple(outer)
    return (averages, tuple(axes)) if len(axes) == len(node.axes) and tuple(axes) == node.axes else None


@dataclass(frozen=True, slots=True)
class _Equation:
    """`scale * input = sum of factors times labels + offset`."""

    input: str
    scale: int
    factors: Mapping[str, int]
    offset: int


def _equation(item: IndexItem) -> _Equation | None:
    left, right = _affine(item.left), _affine(item.right)
    if left is None or right is None or left[1] != 0 or len(left[0]) != 1:
        return None
    ((label, scale),) = left[0].items()
    return _Equation(label, scale, right[0], right[1])


def _affine(value: Expr) -> tuple[dict[str, int], int] | None:
    """Returns factors by label and the number of a sum of multiples."""
    match value:
        case Name(name):
            return {name: 1}, 0
        case Number(n) if isinstance(n, int):
            return {}, n
        case Unary("-", inner):
            return _scaled(_affine(inner), -1)
        case Binary("*", Number(n), inner) | Binary("*", inner, Number(n)) if isinstance(n, int):
            return _scaled(_affine(inner), n)
        case Binary("*", Unary("-", Number(n)), inner) if isinstance(n, int):
            return _scaled(_affine(inner), -n)
        case Binary("+" | "-" as op, left, right):
            a, b = _affine(left), _scaled(_affine(right), 1 if op == "+" else -1)
            if a is None or b is None or a[0].keys() & b[0].keys():
                return None
            return {**a[0], **b[0]}, a[1] + b[1]
    return None


def _scaled(value: tuple[dict[str, int], int] | None, factor: int) -> tuple[dict[str, int], int] | None:
    return None if value is None else ({k: factor * n for k, n in value[0].items()}, factor * value[1])


# --- what is computed in its place --------------------------------------------------------------


@dataclass(slots=True)
class _AverageWriter:
    """`nodes` are new, `gone` are the names of those that they stand for. `by_windows` says whether what a convolution
    reads is averaged otherwise than an operand as it lies."""

    graph: TensorGraph
    prices: StagePrices
    total: Computation
    nodes: list[Node] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    values: dict[str, ImportedTensor] = field(default_factory=dict)
    by_windows: bool = False

    def __post_init__(self) -> None:
        self.values = dict(self.graph.values)
        self.gone.append(self.total.name)

    def is_quicker(self) -> bool:
        """Returns whether the new computations are estimated to take less time than those that they stand for, in one
        launch where a kernel does so. Where extents stand for any: whether fewer elements are multiplied."""
        old = [node for node in self.graph.nodes if node.name in self.gone]
        if not self.prices.exact:
            return not self.by_windows
        apart = [self._seconds((node,)) for node in old]
        together = self._seconds(old)
        return pays([min(sum(apart), together)], [self._seconds((node,)) for node in self.nodes], LEAST_GAIN)

    def _seconds(self, nodes: Sequence[Node]) -> float:
        if all(node.kind == "view" for node in nodes):
            return 0.0
        return self.prices.of_stage(self.values, nodes, (nodes[-1].name,))

    def average(self, value: str, averages: Averages) -> str | None:
        """Returns the name of the averages of a value; None where no product is behind it, or another does not pay."""
        node = {node.name: node for node in self.graph.nodes}.get(value)
        alone = len(readers(self.graph.nodes).get(value, ())) == 1 and value not in self.graph.results
        if node is None or not alone or node.tensor.element != "f32":
            return None
        before = len(self.nodes), len(self.gone)
        match node:
            case Reshape():
                average = self._of_reshape(node, averages)
            case Computation(kind="view" | "pointwise"):
                average = self._of_elements(node, averages)
            case Computation(kind="dot"):
                average = _averaged_product(self, node, averages)
            case _:
                return None
        if average is None:
            del self.nodes[before[0] :], self.gone[before[1] :]
        else:
            self.gone.append(value)
        return average

    def put(self, node: Computation | Reshape) -> str:
        """Adds a node under a name of its own, which is returned."""
        name = f"{self.total.name}_{node.name}"
        while name in self.values:
            name += "_"
        self.nodes.append(replace(node, name=name))
        self.values[name] = node.tensor
        return name

    def _of_reshape(self, node: Reshape, averages: Averages) -> str | None:
        """Averages of what has other axes of one element."""
        own, source = node.tensor.shape, self.values[node.value].shape
        places = [i for i, n in enumerate(own) if n != 1], [i for i, n in enumerate(source) if n != 1]
        if [own[i] for i in places[0]] != [source[i] for i in places[1]]:
            return None
        counterpart = dict(zip(*places, strict=True))
        average = self.average(
            node.value, {counterpart[i]: a for i, a in averages.items() if i in counterpart}
        )
        return (
            None
            if average is None
            else self.put(replace(node, value=average, tensor=_shrunk(node.tensor, averages)))
        )

    def _of_elements(self, node: Computation, averages: Averages) -> str | None:
        """Averages of sums and multiples, and of what has the same elements."""
        if any(len(axis) > 1 for axes in (node.axes, *(o.axes for o in node.operands)) for axis in axes):
            return None
        moved = {node.axes[i][0]: average for i, average in averages.items() if node.axes[i]}
        varying = {
            f"x{i}" for i, o in enumerate(node.operands) if any(moved.keys() & {*axis} for axis in o.axes)
        }
        inside = all(average.inside for average in averages.values())
        if not inside or _degree(node.body, varying) != 1:
            return None
        names: list[str] = []
        has_product = False
        for number_, operand in enumerate(node.operands):
            own = {i: moved[axis[0]] for i, axis in enumerate(operand.axes) if axis and axis[0] in moved}
            average = self.average(operand.value, own) if f"x{number_}" in varying else operand.value
            has_product = has_product or (average is not None and average != operand.value)
            names.append(self.averaged(operand.value, own) if average is None else average)
        if not has_product:
            return None
        extents = {label: moved[label].places if label in moved else n for label, n in node.extents.items()}
        axes = _without_ones(node.axes, extents, moved)
        operands = tuple(
            OperandRead(name, _without_ones(operand.axes, extents, moved))
            for name, operand in zip(names, node.operands, strict=True)
        )
        tensor = _shrunk(node.tensor, averages)
        return self.put(replace(node, operands=operands, axes=axes, extents=extents, tensor=tensor))

    def averaged(self, value: str, averages: Averages) -> str:
        """Adds the averages of a value as it lies."""
        if not averages:
            return value
        tensor = self.values[value]
        labels = [f"_{chr(97 + i)}" for i in range(len(tensor.shape))]
        extents = dict(zip(labels, tensor.shape, strict=True))
        own: list[tuple[str, ...]] = []
        items: list[IndexItem] = []
        reduced: list[str] = []
        for i, label in enumerate(labels):
            average = averages.get(i)
            if average is None:
                own.append((label,) if tensor.shape[i] != 1 else ())
            elif average.whole:
                own.append(())
                reduced.append(label)
            else:
                extents |= {f"{label}_": average.places, f"{label}r": average.width}
                reduced.append(f"{label}r")
                own.append((f"{label}_",) if average.places != 1 else ())
                start = affine(f"{label}_", average.stride) if average.places != 1 else number(0)
                items.append(IndexItem(Name(label), folded(plus(add(start, f"{label}r"), average.offset))))
        read: Expr = Index(Name("x0"), tuple(items)) if items else Name("x0")
        axes = tuple((label,) if n != 1 else () for label, n in zip(labels, tensor.shape, strict=True))
        return self.put(
            Computation(
                f"{value}_mean",
                "window" if items else "reduction",
                (OperandRead(value, axes),),
                over("mean", tuple(reduced), read),
                tuple(own),
                extents,
                _shrunk(tensor, averages),
                self.total.origin,
                "average",
            )
        )


def _shrunk(tensor: ImportedTensor, averages: Averages) -> ImportedTensor:
    return replace(
        tensor, shape=tuple(averages[i].places if i in averages else n for i, n in enumerate(tensor.shape))
    )


def _without_ones(axes: Axes, extents: Mapping[str, int], moved: Mapping[str, AxisAverage]) -> Axes:
    return tuple(() if axis and axis[0] in moved and extents[axis[0]] == 1 else axis for axis in axes)


def _degree(body: Expr, varying: set[str]) -> int | None:
    """Returns the degree of a polynomial in some operands, 0 or 1; None for other functions, for higher degrees."""
    match body:
        case Name(name):
            return int(name in varying)
        case Unary("-", inner):
            return _degree(inner, varying)
        case Binary("+" | "-", left, right):
            degrees = _degree(left, varying), _degree(right, varying)
            return None if None in degrees else max(d for d in degrees if d is not None)
        case Binary("*", left, right):
            a, b = _degree(left, varying), _degree(right, varying)
            return None if a is None or b is None or a + b > 1 else a + b
        case Binary("/", left, right):
            return _degree(left, varying) if _degree(right, varying) == 0 else None
        case Number():
            return 0
    return None


# --- products -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Product:
    """A product whose operands are averaged, one step after another: what it reads and gives so far."""

    writer: _AverageWriter
    image: OperandRead
    filters: OperandRead
    equations: dict[str, _Equation]
    """By the label of the image's axis."""
    axes: Axes
    extents: dict[str, int]

    def averaged(self, averages: Mapping[str, AxisAverage]) -> bool:
        """Averages along labels of the result. Returns False where the operands do not allow it."""
        windows = {label: e for e in self.equations.values() for label in averages if label in e.factors}
        directly = {label: average for label, average in averages.items() if label not in windows}
        operands = [[o for o in (self.image, self.filters) if (label,) in o.axes] for label in directly]
        named = [label for o in (self.image, self.filters) for axis in o.axes for label in axis]
        if any(len(reading) != 1 for reading in operands) or any(
            named.count(label) != (label in directly) for label in averages
        ):
            return False
        self.image = self._averaged_operand(self.image, directly)
        self.filters = self._averaged_operand(self.filters, directly)
        for label, equation in windows.items():
            average = averages[label]
            by = self._over_positions if average.whole else self._by_larger_steps
            if not average.inside or not by(label, equation, average):
                return False
        for label, average in averages.items():
            self.extents[label] = average.places
            if average.places == 1:
                self.axes = _without(self.axes, label)
        return True

    def _averaged_operand(self, operand: OperandRead, averages: Mapping[str, AxisAverage]) -> OperandRead:
        own = {operand.axes.index((label,)): a for label, a in averages.items() if (label,) in operand.axes}
        axes = operand.axes
        for label, average in averages.items():
            if average.places == 1:
                axes = _without(axes, label)
        return OperandRead(self.writer.averaged(operand.value, own), axes)

    def _over_positions(self, label: str, equation: _Equation, average: AxisAverage) -> bool:
        """The mean over the positions of a convolution along an axis: of the image's elements that each element of the
        filter meets, which are all of them but for some at the borders."""
        along, window = equation.input, self._window(equation, label)
        size, width = self.extents[along], 1 if window is None else self.extents[window]
        factor, step = equation.factors[label], 0 if window is None else equation.factors[window]
        if abs(factor) != 1 and equation.scale != 1:
            return False
        self.writer.by_windows = True
        at = self.image.axes.index((along,))
        met = [
            {
                place // equation.scale
                for p in range(average.width)
                for place in (factor * p + step * r + equation.offset,)
                if place % equation.scale == 0 and 0 <= place // equation.scale < size
            }
            for r in range(width)
        ]
        del self.equations[along]
        axes = list(self.image.axes)
        if all(len(places) == size for places in met):
            axes[at] = ()
            body: Expr = over("sum", (along,), "x0")
            if window is not None:
                summed = _without(self.filters.axes, window)
                reduced = over("sum", (window,), "x0")
                self.filters = self._reduced(self.filters, reduced, summed, "reduction", "filter")
        else:
            axes[at] = () if window is None else (window,)
            position = plus(folded(mul(equation.scale, index(along))), -equation.offset)
            if window is not None:
                shift = folded(mul(abs(step), index(window)))
                position = sub(position, shift) if step > 0 else add(position, shift)
            if abs(factor) == 1:
                place = folded(mul(number(factor), position)) if factor < 0 else folded(position)
                ends = [
                    factor * (equation.scale * h - step * r - equation.offset)
                    for h in (0, size - 1)
                    for r in (0, width - 1)
                ]
                low = [binary(">=", place, 0)] if min(ends) < 0 else []
                high = [binary("<", place, average.width)] if max(ends) >= average.width else []
                inside = both(*low, *high)
                body = over("sum", (along,), where(inside, "x0", 0))
            else:
                body = over("sum", (label,), Index(Name("x0"), (_item(equation),)))
        body = div(body, float(average.width))
        kind: Kind = "window" if label in names_in(body) else "reduction"
        self.image = self._reduced(self.image, body, tuple(axes), kind, "average")
        return True

    def _by_larger_steps(self, label: str, equation: _Equation, average: AxisAverage) -> bool:
        """An average pool behind a convolution: a convolution whose filter is the sum of the pool's, one place further
        each."""
        along, window = equation.input, self._window(equation, label)
        if window is None:
            return False
        factor, step, scale = equation.factors[label], equation.factors[window], equation.scale
        if factor < 1 or (scale != 1 and factor != 1) or (factor * average.stride) % scale:
            return False
        width = self.extents[window]
        taps = {
            (a, r): factor * a + step * r + equation.offset
            for a in range(average.width)
            for r in range(width)
        }
        reached = [place // scale for place in taps.values() if place % scale == 0]
        if not reached:
            return False
        first = min(reached)
        self.writer.by_windows = True
        own, pool = f"_{window}", f"_{window}p"
        # step * own = scale * (window + first) - offset - factor * pool
        start = scale * first - equation.offset
        right = plus(sub(affine(window, scale), affine(pool, factor)), start)
        left: Expr = Name(own)
        if step < 0:
            right = plus(sub(affine(pool, factor), affine(window, scale)), -start)
        if abs(step) != 1:
            left = mul(abs(step), own)
        body = over("mean", (pool,), Index(Name("x0"), (IndexItem(left, right),)))
        read = tuple((own,) if axis == (window,) else axis for axis in self.filters.axes)
        extents = {own: width, pool: average.width, window: max(reached) - first + 1}
        self.filters = self._reduced(
            OperandRead(self.filters.value, read), body, self.filters.axes, "window", "filter", extents
        )
        self.extents |= {window: extents[window]}
        factors = {label: factor * average.stride // scale, window: 1}
        self.equations[along] = _Equation(along, 1, factors, first)
        return True

    def _window(self, equation: _Equation, label: str) -> str | None:
        return next((name for name in equation.factors if name != label), None)

    def _reduced(
        self,
        operand: OperandRead,
        body: Expr,
        axes: Axes,
        kind: Kind,
        hint: str,
        more: Mapping[str, int] = MappingProxyType({}),
    ) -> OperandRead:
        """Adds a reduction of an operand."""
        extents = {**self.extents, **more}
        shape = tuple(prod(extents[label] for label in axis) for axis in axes)
        tensor = replace(self.writer.values[operand.value], shape=shape)
        origin = self.writer.total.origin
        used = {*names_in(body), *(label for axis in (*operand.axes, *axes) for label in axis)}
        extents = {label: n for label, n in extents.items() if label in used}
        node = Computation(
            f"{operand.value}_{hint}", kind, (operand,), body, axes, extents, tensor, origin, hint
        )
        return OperandRead(self.writer.put(node), axes)


def _without(axes: Axes, label: str) -> Axes:
    return tuple(() if axis == (label,) else axis for axis in axes)


def _averaged_product(writer: _AverageWriter, dot: Computation, averages: Averages) -> str | None:
    """Adds a product of averaged operands; None where they cannot be."""
    equations = _equations_of(dot)
    if equations is None or any(len(dot.axes[i]) != 1 for i in averages):
        return None
    if prod(a.places for a in averages.values()) >= prod(a.extent for a in averages.values()):
        return None
    image, filters = dot.operands
    by_input = {equation.input: equation for equation in equations}
    product = _Product(writer, image, filters, by_input, dot.axes, dict(dot.extents))
    if not product.averaged({dot.axes[i][0]: average for i, average in averages.items()}):
        return None
    used = {label for axis in (*product.image.axes, *product.filters.axes) for label in axis}
    consumed = [bracket.name for bracket in _brackets(dot) if bracket.name in used]
    if not consumed:
        return None
    items = tuple(_item(e) for e in product.equations.values())
    read: Expr = Index(Name("x0"), items) if items else Name("x0")
    used |= {label for axis in product.axes for label in axis} | {
        label for equation in product.equations.values() for label in (equation.input, *equation.factors)
    }
    node = replace(
        dot,
        operands=(product.image, product.filters),
        body=dot_body("f32", consumed, read),
        axes=product.axes,
        extents={label: n for label, n in product.extents.items() if label in used},
        tensor=_shrunk(dot.tensor, averages),
    )
    return writer.put(node)


def _item(equation: _Equation) -> IndexItem:
    left: Expr = Name(equation.input)
    if equation.scale != 1:
        left = mul(equation.scale, equation.input)
    positive = [(label, factor) for label, factor in equation.factors.items() if factor > 0]
    negative = [(label, -factor) for label, factor in equation.factors.items() if factor < 0]
    right: Expr = affine(*positive[0])
    for label, factor in positive[1:]:
        right = add(right, affine(label, factor))
    right = plus(right, equation.offset)
    for label, factor in negative:
        right = sub(right, affine(label, factor))
    return IndexItem(left, right)


def _brackets(dot: Computation) -> tuple[BracketName, ...]:
    return (dot.body.brackets or ()) if isinstance(dot.body, Call) else ()


def _equations_of(dot: Computation) -> tuple[_Equation, ...] | None:
    """Returns the equations by which a product of two operands reads its first one; None where it is another body."""
    match dot.body:
        case Call(
            "dot",
            _,
            (
                Argument(Call(callee, None, (_, Argument(left)))),
                Argument(Call(other, None, (_, Argument(Name("x1"))))),
            ),
        ) if callee == other == EXACT and len(dot.operands) == 2:
            if left == Name("x0"):
                return ()
            if isinstance(left, Index) and left.base == Name("x0"):
                equations = [_equation(item) for item in left.items]
                return None if None in equations else tuple(e for e in equations if e is not None)
    return None

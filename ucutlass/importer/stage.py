"""One kernel of an imported program: which names its dimensions have, and its text as a syntax tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ucutlass.grammar import syntax
from ucutlass.grammar.format import format_expression
from ucutlass.grammar.syntax import (
    Argument,
    Binary,
    BracketName,
    Call,
    Expr,
    Index,
    IndexItem,
    Literal_,
    Name,
    Number,
    Unary,
)
from ucutlass.importer.atoms import Atom, Conflict, Dimension, leaves, regroup, unify
from ucutlass.importer.branches import simplified
from ucutlass.importer.expressions import (
    add,
    binary,
    both,
    call,
    folded,
    index,
    mul,
    names_in,
    number,
    sub,
    where,
)
from ucutlass.importer.free_concatenations import with_free_parts
from ucutlass.importer.graph import Computation, ImportedTensor, Node, OperandRead, Reshape, TorchStage
from ucutlass.importer.naming import AXES, numbered, operator_noun
from ucutlass.importer.operators.products import EXACT
from ucutlass.ir.elements import ELEMENTS

LONGEST = 88
"""Characters of an expression that is written inside another one; a longer one gets a name."""

REDUCTIONS = frozenset(
    {
        "sum",
        "prod",
        "mean",
        "max",
        "min",
        "var",
        "argmax",
        "argmin",
        "logsumexp",
        "softmax",
        "log_softmax",
        "cumsum",
        "cumprod",
        "dot",
    }
)
"""What consumes the names in its brackets."""

_NOTHING_TO_DO = frozenset({"sum", "prod", "mean", "max", "min", "logsumexp", "cumsum", "cumprod"})
"""What gives its argument where it has no name to consume."""


@dataclass(slots=True)
class Inference:
    """The dimensions of all values of some computations that shall be one kernel.

    `inputs` are the values from outside, in order of first use. `renames` has for each computation and
    operand the atoms that are read under another name there.
    """

    values: Mapping[str, ImportedTensor]
    nodes: Sequence[Node]
    outputs: Sequence[str]
    ranks: Mapping[str, int] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    dimensions: dict[str, list[Dimension]] = field(default_factory=dict)
    labels: dict[tuple[str, str], Atom] = field(default_factory=dict)
    lefts: dict[tuple[str, int, str], Atom] = field(default_factory=dict)
    renames: dict[tuple[str, int], list[tuple[Atom, Atom]]] = field(default_factory=dict)

    def run(self) -> Inference:
        """Finds the dimensions. Raises Conflict."""
        for node in self.nodes:
            match node:
                case Reshape():
                    self.dimensions[node.name] = regroup(self._of(node.value), node.tensor.shape)
                case Computation():
                    self._computation(node)
                case TorchStage():
                    for operand in node.operands:
                        self._of(operand.value)
                    self.dimensions[node.name] = self._new(node.name, node.tensor)
        for output in self.outputs:
            self._of(output)
        self._settle()
        return self

    def _of(self, value: str) -> list[Dimension]:
        if value not in self.dimensions:
            self.inputs.append(value)
            self.dimensions[value] = self._new(value, self.values[value])
        return self.dimensions[value]

    def _new(self, value: str, tensor: ImportedTensor) -> list[Dimension]:
        letters = tensor.letters(AXES.get(len(tensor.shape), ""))
        rank = self.ranks.get(value, 5)
        return [
            [Atom(extent, {value}, hint=(rank, letters[i] if letters else ""))] if extent != 1 else []
            for i, extent in enumerate(tensor.shape)
        ]

    def _computation(self, node: Computation) -> None:
        lefts = set(_left_labels(node.body))
        own = {
            label: Atom(extent, {node.name}, hint=_hint(label))
            for label, extent in node.extents.items()
            if extent != 1 and label not in lefts
        }
        for label, atom in own.items():
            self.labels[node.name, label] = atom
        for number_, operand in enumerate(node.operands):
            self._operand(node, number_, operand, own, lefts)
        self.dimensions[node.name] = [[own[label] for label in axis if label in own] for axis in node.axes]

    def _operand(
        self, node: Computation, number_: int, operand: OperandRead, own: Mapping[str, Atom], lefts: set[str]
    ) -> None:
        dimensions = self._of(operand.value)
        for position, axis in enumerate(operand.axes):
            atoms: Dimension = []
            for label in axis:
                extent = node.extents[label]
                if label in lefts:
                    atom = Atom(extent, set(), whole=True, hint=_hint(label))
                    self.lefts[node.name, number_, label] = atom
                    if extent == 1:
                        self._named_one(operand.value, dimensions[position], atom)
                        continue
                    atoms.append(atom)
                elif extent != 1:
                    atoms.append(own[label])
            if atoms:
                pairs = unify([a for a in dimensions[position] if a.root().extent != 1], atoms)
                if pairs:
                    self.renames.setdefault((node.name, number_), []).extend(pairs)

    def _named_one(self, value: str, dimension: Dimension, atom: Atom) -> None:
        """Gives an axis of one element a name, because it is read outside too."""
        if dimension:
            dimension[0].root().whole = True
            atom.parent = dimension[0].root()
            return
        if value not in self.inputs:
            raise Conflict("an axis of one element is read elsewhere")
        atom.owners.add(value)
        dimension.append(atom)

    def sort_inputs(self) -> None:
        """Orders the inputs as the computations read them, views aside."""
        views = {n.name: n.operands[0].value for n in self.nodes if n.kind == "view" and n.operands}
        order: list[str] = []
        for node in self.nodes:
            if node.kind != "view":
                for operand in node.operands:
                    value = operand.value
                    while value in views:
                        value = views[value]
                    order.append(value)
        self.inputs.sort(key=lambda value: order.index(value) if value in order else len(order))

    def _settle(self) -> None:
        """Splits what is read under another name as that name is split."""
        changed = True
        while changed:
            changed = False
            for pairs in self.renames.values():
                for index_, (a, b) in enumerate(pairs):
                    if len(leaves([a])) != 1 or len(leaves([b])) != 1:
                        pairs[index_ : index_ + 1] = unify([a], [b], joined=False)
                        changed = True
                        break

    def order(self) -> Iterator[Atom]:
        """Yields every leaf as a reader meets it: the inputs, the outputs, then the others."""
        for value in [*self.inputs, *self.outputs]:
            for dimension in self.dimensions[value]:
                yield from leaves(dimension)
        for dimensions in self.dimensions.values():
            for dimension in dimensions:
                yield from leaves(dimension)
        yield from leaves(self.labels.values())
        yield from leaves(self.lefts.values())


def _hint(label: str) -> tuple[int, str]:
    """Returns a label as a letter for a name. Windows' letters win, outputs' give way to inputs'."""
    rank = 1 if label in ("R", "S", "T") else 3 if label in ("O", "P", "Q") else 2
    return (9, "") if label.startswith("_") else (rank, label)


def _left_labels(body: Expr) -> Iterator[str]:
    match body:
        case Index(base, items):
            yield from _left_labels(base)
            for item in items:
                yield _left(item)
        case Unary(_, inner):
            yield from _left_labels(inner)
        case Binary(_, left, right):
            yield from _left_labels(left)
            yield from _left_labels(right)
        case Call(_, _, arguments):
            for argument in arguments:
                yield from _left_labels(argument.value)
        case _:
            pass


def _left(item: IndexItem) -> str:
    match item.left:
        case Name(label) | Binary("*", Number(), Name(label)):
            return label
    raise AssertionError(item.left)


# --- text ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _WrittenValue:
    """An expression, the atoms that are its names, and whether it lies in memory in its own element."""

    expr: Expr
    names: frozenset[Atom]
    stored: bool = False


@dataclass(slots=True)
class StageWriter:
    """Writes the body of a stage. `names` has the name of every atom, `values` the names of the inputs;
    `used_names` are the words that a binding may not use, `introduced` the names whose extents a type gives."""

    inference: Inference
    names: Mapping[Atom, str]
    inputs: Mapping[str, str]
    used_names: set[str]
    introduced: set[str]
    nouns: Mapping[str, str] = field(default_factory=dict)
    """What bindings of computations are called, where their operators do not say."""
    bindings: list[syntax.Bind] = field(default_factory=list)
    written: dict[str, _WrittenValue] = field(default_factory=dict)
    as_long: dict[Atom, str] = field(default_factory=dict)
    """By an axis under another name: the name that it has in a type."""

    def results(self) -> list[Expr]:
        """Writes the bindings and returns the expressions of the outputs, with exactly their names."""
        inference = self.inference
        for value in inference.inputs:
            own = frozenset(leaf for dimension in inference.dimensions[value] for leaf in leaves(dimension))
            self.written[value] = _WrittenValue(Name(self.inputs[value]), own, True)
        uses = _uses(inference.nodes, inference.outputs)
        for node in inference.nodes:
            match node:
                case Reshape():
                    self.written[node.name] = self.written[node.value]
                case Computation():
                    self.written[node.name] = self._binding(node, self._computed(node), uses)
                case TorchStage():
                    raise Conflict("torch computes a stage of its own")
        return [self._result(output) for output in inference.outputs]

    def _result(self, output: str) -> Expr:
        value = self.written[output]
        own = frozenset(leaf for dimension in self.inference.dimensions[output] for leaf in leaves(dimension))
        if not value.names <= own:
            raise Conflict("the value has a name that its axes have not")
        return self._along(value, own).expr

    def _binding(self, node: Computation, value: _WrittenValue, uses: Mapping[str, int]) -> _WrittenValue:
        """Returns the value, named where it is used again or is too long to stand inside another one."""
        if isinstance(value.expr, Name | Number) or node.name in self.inference.outputs:
            return value
        used = uses.get(node.name, 0)
        cheap = node.kind == "view" or (node.kind == "constant" and not value.names)
        if (used <= 1 or cheap) and len(format_expression(value.expr)) <= LONGEST:
            return value
        name = numbered(self._noun(node), {*self.used_names, "index", "size"})
        self.used_names.add(name)
        self.bindings.append(syntax.Bind((syntax.Target(name, self._introduced(node, value)),), value.expr))
        return _WrittenValue(Name(name), value.names, value.stored)

    def _noun(self, node: Computation) -> str:
        """Returns what a binding is called: what the value is, the input that it is a cast of, or what computes
        it."""
        source = node.operands[0].value if len(node.operands) == 1 else ""
        match node.body:
            case Call(element, None, (Argument(Name()),)) if element in ELEMENTS and source in self.inputs:
                return f"{self.inputs[source]}_{element}"
        return node.hint or self.nouns.get(node.name) or operator_noun(node.origin.operator)

    def _introduced(self, node: Computation, value: _WrittenValue) -> syntax.TypeExpr | None:
        """Returns the type of a binding whose value has names that nothing before has; None for others."""
        if all(self.names[atom] in self.introduced for atom in value.names):
            return None
        dimensions = [
            [atom for atom in leaves(dimension) if atom in value.names]
            for dimension in self.inference.dimensions[node.name]
        ]
        axes = axes_of([d for d in dimensions if d], self.names, self.introduced)
        return syntax.TypeExpr(None, axes)

    def _computed(self, node: Computation) -> _WrittenValue:
        value = self._expr(node, node.body)
        stored = isinstance(node.body, Name) and self.written[node.operands[0].value].stored
        if isinstance(node.body, Index) and isinstance(node.body.base, Name):
            stored = self.written[node.operands[_number(node.body.base)].value].stored
        return _WrittenValue(value.expr, value.names, stored)

    def _expr(self, node: Computation, body: Expr) -> _WrittenValue:
        match body:
            case Name(name) if name[0] == "x" and name[1:].isdigit():
                return self._read(node, int(name[1:]), ())
            case Index(Name() as base, items):
                return self._read(node, _number(base), items)
            case Unary(op, inner):
                value = self._expr(node, inner)
                return _WrittenValue(Unary(op, value.expr), value.names)
            case Binary(op, left, right):
                a, b = self._expr(node, left), self._expr(node, right)
                return _WrittenValue(Binary(op, a.expr, b.expr), a.names | b.names)
            case Call("index", None, (Argument(Name(label)),)):
                return self._coordinate(node, label)
            case Call(callee, None, (_, Argument(inner))) if callee == EXACT:
                return self._exact(node, body, inner)
            case Call(callee, brackets, arguments) if brackets is not None and callee in REDUCTIONS:
                return self._consuming(node, callee, [b.name for b in brackets], arguments)
            case Call(callee, None, arguments):
                values = [self._expr(node, a.value) for a in arguments]
                written = tuple(Argument(v.expr, a.name) for v, a in zip(values, arguments, strict=True))
                extents = (
                    {name: atom.extent for atom, name in self.names.items()} if callee == "where" else {}
                )
                whole = simplified(Call(callee, None, written), extents)
                return _WrittenValue(whole, frozenset().union(*(v.names for v in values)))
            case _:
                return _WrittenValue(body, frozenset())

    def _atoms(self, node: Computation, label: str) -> Dimension:
        atom = self.inference.labels.get((node.name, label))
        return leaves([atom]) if atom is not None else []

    def _exact(self, node: Computation, body: Expr, inner: Expr) -> _WrittenValue:
        assert isinstance(body, Call)
        element = body.arguments[0].value
        assert isinstance(element, Name)
        value = self._expr(node, inner)
        read = inner.base if isinstance(inner, Index) else inner
        assert isinstance(read, Name)
        stored = self.written[node.operands[_number(read)].value].stored
        if element.name in ("f32", "f64") or (stored and element.name != "tf32"):
            return value
        match value.expr:
            case Call(callee, None, _) if callee == element.name:
                return value
        return _WrittenValue(call(element.name, value.expr), value.names)

    def _read(self, node: Computation, number_: int, items: Sequence[IndexItem]) -> _WrittenValue:
        """Returns an operand, under the names that it has in this computation, read at the positions."""
        value = self.written[node.operands[number_].value]
        pairs = [
            (a.root(), b.root())
            for a, b in self.inference.renames.get((node.name, number_), ())
            if a.root() in value.names
        ]
        written = [IndexItem(Name(self.names[a]), Name(self.names[b])) for a, b in pairs]
        self.as_long |= {b: self.names[a] for a, b in pairs if self.names[a] in self.introduced}
        gone = {a for a, _ in pairs}
        new = {b for _, b in pairs}
        for item in items:
            left = leaves([self.inference.lefts[node.name, number_, _left(item)]])
            if len(left) != 1:
                raise Conflict("an axis is indexed as one and split elsewhere")
            if left[0] not in value.names:
                element = self.inference.values[node.operands[number_].value].element
                value = self._inside(node, item, left[0].extent, value, element)
                continue
            gone.add(left[0])
            position = self._position(node, item.right)
            new |= position.names
            scale = item.left.left if isinstance(item.left, Binary) else None
            name = Name(self.names[left[0]])
            written.append(IndexItem(name if scale is None else mul(scale, name), folded(position.expr)))
        if not written:
            return value
        if any(self.names[atom] not in self.introduced for atom in value.names):
            value = self._typed(value)
        return _WrittenValue(Index(value.expr, tuple(written)), (value.names - gone) | frozenset(new))

    def _typed(self, value: _WrittenValue) -> _WrittenValue:
        """Returns a value that is bound with its names, because nothing else gives their extents."""
        name = numbered("value", self.used_names)
        self.used_names.add(name)
        order = sorted(value.names, key=lambda atom: self.names[atom])
        axes = tuple(_named_axis(atom, self.names, self.introduced, True) for atom in order)
        self.bindings.append(syntax.Bind((syntax.Target(name, syntax.TypeExpr(None, axes)),), value.expr))
        return _WrittenValue(Name(name), value.names, value.stored)

    def _inside(
        self, node: Computation, item: IndexItem, extent: int, value: _WrittenValue, element: str
    ) -> _WrittenValue:
        """Returns a value that is the same everywhere along an axis, read at a position of it: 0 or false outside."""
        if value.expr in (Number(0), Number(0.0), Literal_("false")):
            return value
        if not isinstance(item.left, Name):
            raise Conflict("a value that is repeated along an axis is read at a fraction of it")
        position = self._coordinates(node, item.right)
        inside = both(binary(">=", position.expr, 0), binary("<", position.expr, extent))
        if element != "bool":
            body = where(inside, value.expr, 0)
        else:
            body = inside if value.expr == Literal_("true") else binary("and", inside, value.expr)
        return _WrittenValue(body, value.names | position.names)

    def _coordinates(self, node: Computation, right: Expr) -> _WrittenValue:
        """Returns a position as a value."""
        match right:
            case Name(name) if name in node.extents:
                return self._coordinate(node, name)
            case Name(name):
                return self._read(node, int(name[1:]), ())
            case Binary(op, left, second):
                a, b = self._coordinates(node, left), self._coordinates(node, second)
                return _WrittenValue(folded(Binary(op, a.expr, b.expr)), a.names | b.names)
            case _:
                return _WrittenValue(right, frozenset())

    def _position(self, node: Computation, right: Expr) -> _WrittenValue:
        """Returns the right side of an index equation: labels are coordinates, operands are values."""
        match right:
            case Name(name) if (node.name, name) in self.inference.labels or name in node.extents:
                atoms = self._atoms(node, name)
                whole: Expr = number(0)
                for atom in atoms:
                    whole = folded(add(mul(whole, atom.extent), Name(self.names[atom])))
                return _WrittenValue(whole, frozenset(atoms))
            case Name(name):
                value = self._read(node, int(name[1:]), ())
                return value if isinstance(value.expr, Name) else self._named(value)
            case Call("segment", None, (Argument(Name(label)), Argument(Name(name)))):
                rows, offsets = self._position(node, Name(label)), self._read(node, int(name[1:]), ())
                return _WrittenValue(call("segment", rows.expr, offsets.expr), rows.names)
            case Binary("+" | "-" | "*" as op, left, second):
                a, b = self._position(node, left), self._position(node, second)
                return _WrittenValue(_distributed(op, a.expr, b.expr), a.names | b.names)
            case _:
                return _WrittenValue(right, frozenset())

    def _named(self, value: _WrittenValue) -> _WrittenValue:
        """A gather's coordinates are a name or one call."""
        name = numbered("ids", self.used_names)
        self.used_names.add(name)
        self.bindings.append(syntax.Bind((syntax.Target(name),), value.expr))
        return _WrittenValue(Name(name), value.names)

    def _coordinate(self, node: Computation, label: str) -> _WrittenValue:
        atoms = self._atoms(node, label)
        whole: Expr = number(0)
        for atom in atoms:
            whole = folded(add(mul(whole, atom.extent), index(self.names[atom])))
        return _WrittenValue(whole, frozenset(atoms))

    def _consuming(
        self, node: Computation, callee: str, labels: Sequence[str], arguments: Sequence[Argument]
    ) -> _WrittenValue:
        atoms = [leaf for label in labels for leaf in self._atoms(node, label)]
        values = [self._expr(node, a.value) for a in arguments if a.name is None]
        if not atoms:
            return self._of_one(callee, values)
        values = [self._along(value, frozenset(atoms)) for value in values]
        brackets = tuple(self._bracket(atom) for atom in atoms)
        named = [a for a in arguments if a.name is not None]
        written = Call(callee, brackets, (*(Argument(v.expr) for v in values), *named))
        every = frozenset[Atom]().union(*(v.names for v in values))
        keeps = callee in ("softmax", "log_softmax", "cumsum", "cumprod")
        if callee in ("argmax", "argmin") and len(atoms) > 1:
            raise Conflict("a position along several names")
        return _WrittenValue(written, every if keeps else every - set(atoms))

    def _of_one(self, callee: str, values: Sequence[_WrittenValue]) -> _WrittenValue:
        """Returns what a reduction over one element gives."""
        if callee == "dot":
            a, b = values
            return _WrittenValue(mul(a.expr, b.expr), a.names | b.names)
        if callee in _NOTHING_TO_DO:
            return values[0]
        # What is not finite makes NaN, as it does over more elements.
        zero = sub(values[0].expr, values[0].expr)
        if callee in ("var", "log_softmax"):
            return _WrittenValue(zero, values[0].names)
        if callee == "softmax":
            return _WrittenValue(add(zero, 1), values[0].names)
        return _WrittenValue(number(0), frozenset())

    def _bracket(self, atom: Atom) -> BracketName:
        name = self.names[atom]
        if name in self.introduced:
            return BracketName(name)
        self.introduced.add(name)
        return BracketName(name, Name(self.as_long[atom]) if atom in self.as_long else number(atom.extent))

    def _along(self, value: _WrittenValue, along: frozenset[Atom]) -> _WrittenValue:
        """Returns the value repeated along the names that it lacks."""
        missing = sorted(along - value.names, key=lambda atom: self.names[atom])
        if not missing:
            return value
        brackets = tuple(self._bracket(atom) for atom in missing)
        return _WrittenValue(Call("expand", brackets, (Argument(value.expr),)), value.names | set(missing))


def _number(name: Name) -> int:
    return int(name.name[1:])


def _distributed(op: str, left: Expr, right: Expr) -> Expr:
    """Returns the product of a number and a sum term by term: positions are sums of multiples."""
    if op == "*" and isinstance(left, Number) and isinstance(right, Binary) and right.op in ("+", "-"):
        return binary(right.op, _distributed("*", left, right.left), _distributed("*", left, right.right))
    if op == "*" and isinstance(left, Number) and isinstance(right, Binary) and right.op == "*":
        if isinstance(right.left, Number):
            return folded(binary("*", number(left.value * right.left.value), right.right))
        if isinstance(right.right, Number):
            return folded(binary("*", number(left.value * right.right.value), right.left))
    return folded(binary(op, left, right))


def _uses(nodes: Sequence[Node], outputs: Iterable[str]) -> dict[str, int]:
    """Returns how often each value is written, through views."""
    views = {
        node.name: node.operands[0].value
        for node in nodes
        if isinstance(node, Reshape) or (isinstance(node, Computation) and node.kind == "view")
    }
    counts: dict[str, int] = {}

    def use(value: str, times: int) -> None:
        counts[value] = counts.get(value, 0) + times
        if value in views:
            use(views[value], times)

    for node in nodes:
        if isinstance(node, Computation) and node.kind != "view":
            words = list(names_in(node.body))
            for i, operand in enumerate(node.operands):
                use(operand.value, words.count(f"x{i}"))
    for output in outputs:
        use(output, 1)
    return counts


# --- types and the whole kernel ----------------------------------------------------


def axes_of(
    dimensions: Sequence[Dimension], names: Mapping[Atom, str], introduced: set[str], fixed: bool = True
) -> tuple[syntax.Axis, ...]:
    """Returns the axes of a type. A name that is not yet `introduced` gets its extent, where `fixed`."""
    axes: list[syntax.Axis] = []
    for dimension in dimensions:
        parts = tuple(_named_axis(atom, names, introduced, fixed) for atom in leaves(dimension))
        match parts:
            case ():
                axes.append(syntax.NamelessAxis(Number(1)))
            case (only,):
                axes.append(only)
            case _:
                axes.append(syntax.CompositeAxis(parts))
    return tuple(axes)


def _named_axis(atom: Atom, names: Mapping[Atom, str], introduced: set[str], fixed: bool) -> syntax.NamedAxis:
    name = names[atom]
    if name in introduced or not fixed:
        return syntax.NamedAxis(name)
    introduced.add(name)
    return syntax.NamedAxis(name, number(atom.extent))


def stage_inference(
    values: Mapping[str, ImportedTensor],
    nodes: Sequence[Node],
    outputs: Sequence[str],
    ranks: Mapping[str, int] = {},
) -> Inference:
    return Inference(values, nodes, outputs, ranks).run()


_ALONG = {"P": "H", "Q": "W", "O": "D"}
"""The dimension of an input along which that of an output lies, by the letters of convolutions."""


def _free_types(
    inference: Inference, inputs: Mapping[str, str], names: Mapping[Atom, str]
) -> tuple[tuple[syntax.Param, ...], list[syntax.TypeExpr], set[str]]:
    """Returns the types of a kernel that serves every extent, as far as its body does: windows and the parts
    of composite axes have their extents, an output's follow from its input's."""
    introduced: set[str] = set()
    extents: dict[str, int] = {}

    def axes(value: str, result: bool) -> tuple[syntax.Axis, ...]:
        typed: list[syntax.Axis] = []
        for dimension in inference.dimensions[value]:
            atoms = leaves(dimension)
            parts = []
            for atom in atoms:
                name = names[atom]
                fixed = name not in introduced and (result or len(atoms) > 1 or atom.hint[0] == 1)
                extent = _extent(name, atom.extent, extents, result) if fixed else None
                introduced.add(name)
                extents[name] = atom.extent
                parts.append(syntax.NamedAxis(name, extent))
            typed.append(
                syntax.NamelessAxis(Number(1))
                if not parts
                else parts[0]
                if len(parts) == 1
                else syntax.CompositeAxis(tuple(parts))
            )
        return tuple(typed)

    params = tuple(
        syntax.Param(inputs[v], syntax.TypeExpr(inference.values[v].element, axes(v, False)))
        for v in inference.inputs
    )
    results = [syntax.TypeExpr(inference.values[v].element, axes(v, True)) for v in inference.outputs]
    return params, results, introduced


def _extent(name: str, extent: int, extents: Mapping[str, int], result: bool) -> Expr:
    """Returns an extent as a formula of the input's where a short one gives it, else as a number."""
    along = _ALONG.get(name, "")
    size = extents.get(along)
    if result and size is not None:
        if size == extent:
            return Name(along)
        if size % 2 == 0 and size // 2 == extent:
            return binary("//", along, 2)
        if extent == 2 * size:
            return mul(2, along)
    return number(extent)


def free_kernel_of(
    inference: Inference, name: str, inputs: Mapping[str, str], names: Mapping[Atom, str]
) -> syntax.Program:
    """Returns the stage as `kernel_of` does, with extents left to the call."""
    params, types, introduced = _free_types(inference, inputs, names)
    program = _program(inference, name, inputs, names, params, types, introduced)
    return with_free_parts(program, {written: atom.extent for atom, written in names.items()})


def kernel_of(
    inference: Inference, name: str, inputs: Mapping[str, str], names: Mapping[Atom, str]
) -> syntax.Program:
    """Returns the stage as a kernel of its own. `inputs` names its parameters. Raises Conflict."""
    introduced: set[str] = set()
    params = tuple(
        syntax.Param(
            inputs[value],
            syntax.TypeExpr(
                inference.values[value].element, axes_of(inference.dimensions[value], names, introduced)
            ),
        )
        for value in inference.inputs
    )
    types = [
        syntax.TypeExpr(inference.values[v].element, axes_of(inference.dimensions[v], names, introduced))
        for v in inference.outputs
    ]
    return _program(inference, name, inputs, names, params, types, introduced)


def _program(
    inference: Inference,
    name: str,
    inputs: Mapping[str, str],
    names: Mapping[Atom, str],
    params: tuple[syntax.Param, ...],
    types: Sequence[syntax.TypeExpr],
    introduced: set[str],
) -> syntax.Program:
    used_names = {*inputs.values(), *names.values()}
    writer = StageWriter(inference, names, inputs, used_names, introduced)
    exprs = writer.results()
    single = len(exprs) == 1
    labels = [None] if single else [numbered(f"y{i}", used_names) for i in range(len(exprs))]
    results = tuple(syntax.Result(t, label) for t, label in zip(types, labels, strict=True))
    items = tuple(syntax.ReturnItem(e, label) for e, label in zip(exprs, labels, strict=True))
    body: tuple[syntax.Statement, ...] = (*writer.bindings, syntax.Return(items))
    return syntax.Program("kernel", name, params, results, body)

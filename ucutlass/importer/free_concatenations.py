"""Concatenations in kernels that several stages call: each part begins where those before it end, at any extents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ucutlass.grammar import syntax
from ucutlass.grammar.syntax import Argument, Binary, Call, Expr, Index, IndexItem, Name, Number
from ucutlass.importer.expressions import add, binary, index, sub


def with_free_parts(program: syntax.Program, extents: Mapping[str, int]) -> syntax.Program:
    """Returns a kernel whose concatenations begin their parts at sums of `size(..)`, and whose concatenated axes have
    sums of names as their extents, so that it serves parts of other extents too. `extents` has those of its names."""
    writer = _PartsWriter(extents, frozenset(_names(param.type for param in program.params)))
    body = tuple(writer.statement(statement) for statement in program.body)
    results = tuple(replace(result, type=writer.typed(result.type)) for result in program.results)
    return replace(program, body=body, results=results)


@dataclass(slots=True)
class _PartsWriter:
    """`declared` are the names of parameters' axes, `parts` those that each concatenated name is made of."""

    extents: Mapping[str, int]
    declared: frozenset[str]
    parts: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def statement(self, statement: syntax.Statement) -> syntax.Statement:
        match statement:
            case syntax.Bind(value=value):
                return replace(statement, value=self.written(value))
            case syntax.Return(items=items):
                return replace(statement, items=tuple(replace(i, value=self.written(i.value)) for i in items))
        return statement

    def written(self, value: Expr) -> Expr:
        match value:
            case Call(
                "where", None, (Argument(Binary("<", Call("index", None, (Argument(Name(along)),)))), *_)
            ):
                reads = _reads(value, along)
                names = tuple(name for name, _ in reads)
                if names and self._is_whole(along, reads) and self.parts.setdefault(along, names) == names:
                    return _concatenated(along, reads)
                return value
            case Binary(left=left, right=right):
                return replace(value, left=self.written(left), right=self.written(right))
            case Call(arguments=arguments):
                return replace(
                    value, arguments=tuple(replace(a, value=self.written(a.value)) for a in arguments)
                )
        return value

    def _is_whole(self, along: str, reads: Sequence[tuple[str, Index]]) -> bool:
        """Returns whether these reads are one after another all that an axis has."""
        begin = 0
        for name, read in reads:
            place = Name(along) if begin == 0 else sub(along, begin)
            if name not in self.declared or read.items[0].right != place:
                return False
            begin += self.extents[name]
        return begin == self.extents.get(along)

    def typed(self, type_: syntax.TypeExpr) -> syntax.TypeExpr:
        axes = [
            replace(axis, extent=_sum([Name(part) for part in self.parts[axis.name]]))
            if isinstance(axis, syntax.NamedAxis) and axis.name in self.parts and axis.extent is not None
            else axis
            for axis in type_.axes or ()
        ]
        return type_ if type_.axes is None else replace(type_, axes=tuple(axes))


def _names(types: Iterable[syntax.TypeExpr]) -> Iterator[str]:
    for type_ in types:
        for axis in type_.axes or ():
            match axis:
                case syntax.NamedAxis(name=name):
                    yield name
                case syntax.CompositeAxis(parts=parts):
                    yield from (part.name for part in parts)


def _reads(value: Expr, along: str) -> list[tuple[str, Index]]:
    """Returns what a chain of `where` on the coordinate of a name reads, each with the name that it reads along, where
    each limit is where the next read begins; none for other values."""
    reads: list[tuple[str, Index]] = []
    limits: list[Expr] = []
    while True:
        match value:
            case Call(
                "where", None, (Argument(Binary("<", where, limit)), Argument(first), Argument(others))
            ):
                if where != index(along):
                    return []
                limits.append(limit)
                value, read = others, first
            case _:
                read = value
        match read:
            case Index(Name(), (IndexItem(Name(name), place),)):
                begins = limits[len(reads) - 1] if reads else Number(0)
                if reads and place != sub(Name(along), begins):
                    return []
                reads.append((name, read))
            case _:
                return []
        if read is value:
            return reads


def _concatenated(along: str, reads: Sequence[tuple[str, Index]]) -> Expr:
    sizes = [Call("size", None, (Argument(Name(name)),)) for name, _ in reads]
    ends = [_sum(sizes[: number + 1]) for number in range(len(sizes))]
    starts = [None, *ends]
    parts = [
        replace(read, items=(replace(read.items[0], right=sub(along, start)),)) if start is not None else read
        for (_, read), start in zip(reads, starts, strict=False)
    ]
    whole: Expr = parts[-1]
    for part, end in zip(reversed(parts[:-1]), reversed(ends[:-1]), strict=True):
        condition = binary("<", index(along), end)
        whole = Call("where", None, (Argument(condition), Argument(part), Argument(whole)))
    return whole


def _sum(terms: Sequence[Expr]) -> Expr:
    total = terms[0]
    for term in terms[1:]:
        total = add(total, term)
    return total

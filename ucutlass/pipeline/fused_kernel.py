"""Builds the one kernel that would do two stages of a pipeline, whether or not a family serves it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ucutlass import ir
from ucutlass.check.graph import Graph
from ucutlass.ir import Kernel, TensorType, Value
from ucutlass.ir.extents import Combined, Extent, Fixed, Free
from ucutlass.pipeline.sized import Step


class NotFusible(Exception):
    """The stages cannot be one kernel; the message says why."""


@dataclass(frozen=True, slots=True)
class FusedKernel:
    """One kernel for two stages. `sizes` has every extent in the order of the kernel's `dims`; `arguments`
    are the buffers and numbers that it takes, and `outputs` the buffers that it fills."""

    kernel: Kernel
    sizes: tuple[int, ...]
    arguments: tuple[str | float | int, ...]
    outputs: tuple[str, ...]

    def as_step(self) -> Step:
        """Returns the kernel as a step that can be fused with a third; its dependences are left empty."""
        stage = ir.Stage(self.kernel, self.arguments, self.outputs, self.kernel.span)
        return Step(self.kernel.name, stage, self.sizes, frozenset())


def fuse(first: Step, second: Step, keep: Sequence[str] = ()) -> FusedKernel:
    """Returns `second` with what it reads of `first` computed in place, rounded as the buffer would have
    rounded it. Results of `first` that are in `keep` are stored as well. Raises NotFusible."""
    a, b = first.kernel, second.kernel
    if a is None or b is None:
        raise NotFusible("the compiler does not look into a torch function")
    classes = _DimClasses()
    for step, kernel in ((first, a), (second, b)):
        for dim, size in zip(kernel.dims, step.sizes, strict=True):
            classes.add(step, dim, kernel.dims[dim], size)
    intermediates = dict(zip(first.stage.outputs, a.results, strict=True))
    for decl, argument in zip(b.params, second.stage.arguments, strict=True):
        if isinstance(decl.type, TensorType) and isinstance(argument, str) and argument in intermediates:
            classes.unify_axes(first, intermediates[argument].type, second, decl.type)
    for mine, name in _tensors(first, a):
        for theirs, other in _tensors(second, b):
            if name == other:
                classes.unify_axes(first, mine, second, theirs, must=False)
    return _FusedKernelBuilder(classes, first, second, intermediates, tuple(keep)).kernel()


def _tensors(step: Step, kernel: Kernel) -> list[tuple[TensorType, str]]:
    return [
        (decl.type, argument)
        for decl, argument in zip(kernel.params, step.stage.arguments, strict=True)
        if isinstance(decl.type, TensorType) and isinstance(argument, str)
    ]


# --- names ---------------------------------------------------------------------------


@dataclass(slots=True)
class _DimClasses:
    """Equivalence classes of the dimensions of two kernels. A class never holds two dimensions of one kernel,
    which stay two dimensions even where their extents are equal. A class is a dictionary whose keys are its
    members, in the order in which they joined."""

    classes: list[dict[tuple[str, str], None]] = field(default_factory=list)
    extents: dict[tuple[str, str], tuple[Extent, int]] = field(default_factory=dict)

    def add(self, step: Step, dim: str, extent: Extent, size: int) -> None:
        self.extents[step.name, dim] = extent, size
        self.classes.append({(step.name, dim): None})

    def unify_axes(self, a: Step, x: TensorType, b: Step, y: TensorType, must: bool = True) -> None:
        """Unifies the dimensions of a tensor's axes as the two kernels name them. Raises NotFusible where
        `must` is set and they cannot be unified."""
        for mine, theirs in zip(x.axes, y.axes, strict=True):
            if len(mine.dims) != len(theirs.dims):
                if must:
                    raise NotFusible("the two split an axis of it differently into names")
                continue
            for p, q in zip(mine.dims, theirs.dims, strict=True):
                if not self._merge((a.name, p), (b.name, q)) and must:
                    raise NotFusible(f"{p} and {q} would have to be one dimension and are two")

    def _merge(self, p: tuple[str, str], q: tuple[str, str]) -> bool:
        left, right = self._class(p), self._class(q)
        if left is right:
            return True
        if {step for step, _ in left} & {step for step, _ in right} or self.extents[p][1] != self.extents[q][
            1
        ]:
            return False
        left |= right
        self.classes.remove(right)
        return True

    def _class(self, key: tuple[str, str]) -> dict[tuple[str, str], None]:
        return next(c for c in self.classes if key in c)

    def of(self, step: Step) -> dict[str, str]:
        """Returns the fused kernel's name for each of a stage's dimensions."""
        pairs = zip(self._labels(), self.classes, strict=True)
        return {dim: label for label, c in pairs for owner, dim in c if owner == step.name}

    def _labels(self) -> list[str]:
        """Returns a name for each class: the name of its first member, with a number where another class has
        that name."""
        labels: list[str] = []
        for members in self.classes:
            name = label = next(iter(members))[1]
            number = 1
            while label in labels:
                number += 1
                label = f"{name}_{number}"
            labels.append(label)
        return labels

    def dims(self, steps: Sequence[Step]) -> dict[str, tuple[Extent, int]]:
        """Returns every dimension of the fused kernel with its extent, as far as a text gives it, and its
        size."""
        of = {step.name: self.of(step) for step in steps}
        extents: dict[str, tuple[Extent, int]] = {}
        for label, members in zip(self._labels(), self.classes, strict=True):
            members_extents = [(owner, *self.extents[owner, dim]) for owner, dim in members]
            owner, extent, size = next(
                (k for k in members_extents if not isinstance(k[1], Free)), members_extents[0]
            )
            extents[label] = renamed_extent(extent, of[owner]), size
        return extents


def renamed_extent(extent: Extent, names: Mapping[str, str]) -> Extent:
    match extent:
        case Fixed():
            return extent
        case Free(dim):
            return Free(names[dim])
        case Combined(op, left, right):
            return Combined(op, renamed_extent(left, names), renamed_extent(right, names))


def _renamed_type(type_: TensorType, names: Mapping[str, str]) -> TensorType:
    return TensorType(
        type_.elem,
        tuple(
            ir.MemoryAxis(tuple(names[d] for d in axis.dims), renamed_extent(axis.extent, names))
            for axis in type_.axes
        ),
    )


def _renamed(node: Value, names: Mapping[str, str]) -> Value:
    """Returns one node with renamed dimensions; its children stay as they are."""
    dims = tuple(names[d] for d in node.dims)
    match node:
        case ir.Size(extent=extent):
            return replace(node, extent=renamed_extent(extent, names), dims=dims)
        case ir.Coordinate(dim=dim) | ir.Gather(dim=dim) | ir.Segment(dim=dim):
            return replace(node, dim=names[dim], dims=dims)
        case ir.Dot(over=over) | ir.Reduce(over=over) | ir.Softmax(over=over):
            return replace(node, over=tuple(names[d] for d in over), dims=dims)
        case ir.Scan(along=along):
            return replace(node, along=names[along], dims=dims)
        case ir.Read(positions=positions):
            return replace(node, positions=tuple(_position(p, names) for p in positions), dims=dims)
        case _:
            return replace(node, dims=dims)


def _position(position: ir.Position, names: Mapping[str, str]) -> ir.Position:
    at = position.at
    terms = tuple((names[d], factor) for d, factor in at.terms)
    return ir.Position(
        names[position.dim], position.scale, ir.Affine(terms, renamed_extent(at.offset, names))
    )


# --- the kernel ------------------------------------------------------------------------


@dataclass(slots=True)
class _FusedKernelBuilder:
    classes: _DimClasses
    first: Step
    second: Step
    intermediates: Mapping[str, ir.ResultDecl]
    keep: tuple[str, ...]
    graph: Graph = field(default_factory=Graph)
    params: list[tuple[str | float | int, ir.ParamDecl]] = field(default_factory=list)

    def kernel(self) -> FusedKernel:
        a, b = self.first.kernel, self.second.kernel
        assert a is not None and b is not None
        inside = {n: self._value(self.first, a, decl.value, {}) for n, decl in self.intermediates.items()}
        names_a, names_b = self.classes.of(self.first), self.classes.of(self.second)
        results = [
            (name, ir.ResultDecl(name, _renamed_type(decl.type, names_b), value))
            for name, decl in zip(self.second.stage.outputs, b.results, strict=True)
            for value in [self._value(self.second, b, decl.value, inside)]
        ]
        results += [
            (name, ir.ResultDecl(name, _renamed_type(decl.type, names_a), inside[name]))
            for name, decl in self.intermediates.items()
            if name in self.keep
        ]
        dims = self.classes.dims((self.first, self.second))
        kernel = Kernel(
            f"{self.first.name} with {self.second.name}",
            {d: e for d, (e, _) in dims.items()},
            tuple(decl for _, decl in self.params),
            tuple(decl for _, decl in results),
            (),
            (),
            b.span,
        )
        sizes = tuple(size for _, size in dims.values())
        return FusedKernel(kernel, sizes, tuple(a for a, _ in self.params), tuple(n for n, _ in results))

    def _value(self, step: Step, kernel: Kernel, root: Value, inside: Mapping[str, Value]) -> Value:
        names = self.classes.of(step)

        def change(node: Value) -> Value:
            if isinstance(node, ir.ParamValue):
                return self._param(step, kernel, node, names, inside)
            return self.graph.add(_renamed(node, names))

        return ir.rebuild(root, change)

    def _param(
        self,
        step: Step,
        kernel: Kernel,
        node: ir.ParamValue,
        names: Mapping[str, str],
        inside: Mapping[str, Value],
    ) -> Value:
        decl, argument = kernel.params[node.index], step.stage.arguments[node.index]
        if isinstance(argument, str) and argument in inside:
            value = inside[argument]
            if value.elem is node.elem:
                return value
            return self.graph.add(ir.Cast(value, node.elem, value.dims, node.span))
        type_ = _renamed_type(decl.type, names) if isinstance(decl.type, TensorType) else decl.type
        index = next(
            (
                i
                for i, (name, param) in enumerate(self.params)
                if isinstance(name, str) and (name, param.type) == (argument, type_)
            ),
            len(self.params),
        )
        if index == len(self.params):
            self.params.append((argument, ir.ParamDecl(f"p{index}", type_, decl.span)))
        return self.graph.add(ir.ParamValue(index, node.elem, tuple(names[d] for d in node.dims), node.span))

"""An imported module: its program's text, what became of each operator, and its tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves, tree_unflatten

from ucutlass.grammar import syntax
from ucutlass.grammar.format import format_file
from ucutlass.importer.atoms import Conflict
from ucutlass.importer.averaged_products import with_averaged_operands
from ucutlass.importer.chain import ChainLink, ProgramChain, halves
from ucutlass.importer.complex_numbers import parts_of
from ucutlass.importer.export import (
    Exported,
    FixedValue,
    ForwardArguments,
    export_failed,
    exported,
    exported_twice,
)
from ucutlass.importer.graph import (
    ImportedStage,
    ImportedTensor,
    Input,
    Node,
    Reshape,
    TensorGraph,
    TorchStage,
    Unsupported,
    with_copied_inputs,
)
from ucutlass.importer.joined_convolutions import with_joined_convolutions
from ucutlass.importer.orders import channels_last
from ucutlass.importer.parts_statistics import with_statistics_of_parts
from ucutlass.importer.prices import NotLegal, StagePrices
from ucutlass.importer.shifted_scans import with_shifted_scans
from ucutlass.importer.short_products import with_short_products
from ucutlass.importer.stages import NoKernelServes, cut
from ucutlass.importer.symbolic import DependsOnExtents, with_free_extents
from ucutlass.importer.text import INLINE_STAGES, value_names, written
from ucutlass.importer.viewed_orders import as_viewed
from ucutlass.importer.weights import weights_ahead
from ucutlass.ir.elements import ELEMENTS
from ucutlass.ir.hardware import ARCHES
from ucutlass.kernels.families import match_call, plan_call
from ucutlass.limits import LimitPassed
from ucutlass.runtime import switches

if TYPE_CHECKING:
    from ucutlass.api import LoadedProgram


@dataclass(frozen=True, slots=True)
class OperatorFate:
    """What became of one operator of the module: the stages that compute it by their names in the program,
    and by what: `kernel`, `torch`, or `nothing` for a view."""

    operator: str
    module: str
    line: str
    stage: str
    by: str


class TooLong(Unsupported):
    """A program is refused as a whole: it is too long, or its stages do not go together."""


class WrongCall(TypeError):
    """The arguments of a call are not of the kind that the module was imported for."""


class ImportedProgram:
    """A module as a program, bound to the module's parameters.

    `text` is the program, `report` says what became of each operator, `parameters` has the module's tensors
    by the names that the program gives them. `program(*inputs)` computes what `module(*inputs)` does, without
    gradients; `kernel` is the program itself, which takes all tensors as arguments. A module that one program
    cannot hold is several in a row: `texts` has each, `text` all of them, and `kernel` is a ProgramChain.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        programs: Sequence[tuple[ImportedText, tuple[str, ...]]],
        export: Exported,
    ) -> None:
        self.module, self._programs, self._export = module, tuple(programs), export
        texts = [program for program, _ in programs]
        self.texts = tuple(program.text for program in texts)
        self.text, self.name = "\n".join(self.texts), texts[0].name
        self.report = tuple(fate for program in texts for fate in program.report)
        own = {i.name for i in export.graph.inputs}
        inputs = {i.name: i for program in texts for i in program.inputs if i.name in own}
        self.inputs = tuple(inputs.values())
        self._constants: dict[tuple[str, torch.device], torch.Tensor] = {}

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """The module's parameters, buffers and constants as they are now, by name in the program."""
        return {i.name: self._state(i) for i in self.inputs if i.origin != "input"}

    @property
    def written(self) -> tuple[str, ...]:
        """The paths of the buffers that a call writes; their new values are the last results of `kernel`."""
        return self._export.written

    @cached_property
    def kernel(self) -> LoadedProgram | ProgramChain:
        from ucutlass.api import loads

        if len(self._programs) == 1:
            return loads(self.text, self.name)
        links = [
            ChainLink(
                partial(loads, program.text, program.name), tuple(i.name for i in program.inputs), gives
            )
            for program, gives in self._programs
        ]
        return ProgramChain(links, [i.name for i in self.inputs], self._export.graph.results)

    @cached_property
    def _execute(self) -> Callable[..., Any]:
        from ucutlass.importer.first_call import checked

        kernel = self.kernel
        if not switches.read().check:
            return kernel
        if not isinstance(kernel, ProgramChain):
            return checked(kernel)
        calls = [checked(program) for program in kernel.programs]
        return lambda *arguments: kernel.run(calls, arguments)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Runs the program on a GPU. Raises WrongCall, and what a call of `kernel` raises; with
        UCUTLASS_CHECK=1 the first call raises `ucutlass.importer.first_call.WrongResult` where it is wrong."""
        results = self._execute(*self.arguments(*inputs, **named))
        return self._returned(results)

    def reference(self, *inputs: Any, **named: Any) -> Any:
        """Returns what the float64 interpreter gives, on any device; buffers are left alone."""
        results = self.kernel.reference(*self.arguments(*inputs, **named))
        return self._structured(results if isinstance(results, tuple) else (results,))

    def arguments(self, *inputs: Any, **named: Any) -> list[torch.Tensor]:
        """Returns the tensors of one call in the order of the program's parameters. Raises WrongCall."""
        keywords = self._export.keywords
        if named.keys() != set(keywords):
            raise WrongCall(f"the module was imported for {_listed(keywords)} by name, here {_listed(named)}")
        leaves = tree_leaves((inputs, [named[name] for name in keywords]))
        expected = self._export.arguments
        if len(leaves) != len(expected):
            raise WrongCall(f"the module was imported for {len(expected)} arguments, here are {len(leaves)}")
        for first, second in self._export.shared:
            if leaves[first] is not leaves[second]:
                raise WrongCall(
                    f"the module was imported for one tensor as {expected[first]} and {expected[second]}, here are two: "
                    "import it for two"
                )
        input_leaves: dict[str, Any] = {}
        for leaf, name in zip(leaves, expected, strict=True):
            if isinstance(name, FixedValue):
                if leaf != name.value:
                    raise WrongCall(f"the module was imported for the argument {name.value!r}, not {leaf!r}")
                continue
            leaf = parts_of(leaf) if isinstance(leaf, torch.Tensor) else leaf
            if not isinstance(leaf, torch.Tensor) or not self._takes(name, leaf.shape):
                shape = tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else type(leaf).__name__
                raise WrongCall(f"the module was imported for {name} of {self._shape(name)}, not {shape}")
            input_leaves[name] = leaf
        tensors = {
            i.name: input_leaves[i.name] if i.origin == "input" else self._state(i) for i in self.inputs
        }
        # Export makes a list that indexes a tensor on the CPU, wherever that tensor is.
        device = next((tensors[i.name].device for i in self.inputs if i.origin != "constant"), None)
        for i in self.inputs:
            if i.origin == "constant" and device is not None:
                tensors[i.name] = self._constant(i, device)
        return [t.detach().contiguous() for t in tensors.values()]

    def _constant(self, source: Input, device: torch.device) -> torch.Tensor:
        """Returns a constant on a device, to which it is copied once."""
        key = (source.path, device)
        if key not in self._constants:
            self._constants[key] = self._export.constants[source.path].to(device)
        return self._constants[key]

    def _takes(self, name: str, shape: Sequence[int]) -> bool:
        own, dynamic = self._export.graph.values[name].shape, self._export.dynamic.get(name, ())
        return len(own) == len(shape) and all(
            i in dynamic or n == m for i, (n, m) in enumerate(zip(own, shape, strict=True))
        )

    def _shape(self, name: str) -> str:
        own, dynamic = self._export.graph.values[name].shape, self._export.dynamic.get(name, ())
        extents = ["any" if i in dynamic else str(n) for i, n in enumerate(own)]
        return f"({', '.join(extents)}{',' * (len(extents) == 1)})"

    def _state(self, source: Input) -> torch.Tensor:
        if source.origin == "constant":
            return self._export.constants[source.path]
        value: Any = self.module
        for part in source.path.split("."):
            value = getattr(value, part)
        assert isinstance(value, torch.Tensor)
        return parts_of(value.detach())

    def _returned(self, results: Any) -> Any:
        many = results if isinstance(results, tuple) else (results,)
        count = sum(not isinstance(leaf, FixedValue) for leaf in self._export.leaves)
        for path, value in zip(self._export.written, many[count:], strict=True):
            owner, _, name = path.rpartition(".")
            buffer = getattr(self.module.get_submodule(owner), name)
            buffer.copy_(value)
        return self._structured(many)

    def _structured(self, results: Sequence[torch.Tensor]) -> Any:
        leaves = [
            leaf.value if isinstance(leaf, FixedValue) else results[leaf] for leaf in self._export.leaves
        ]
        return tree_unflatten(leaves, self._export.structure)

    def __repr__(self) -> str:
        return f"<ucutlass import of {type(self.module).__name__}, program {self.name}>"


def _listed(names: Collection[str]) -> str:
    return ", ".join(names) or "nothing"


def from_torch(
    module: torch.nn.Module, *inputs: Any, name: str = "", dynamic_shapes: Any = None, **named_inputs: Any
) -> ImportedProgram:
    """Returns a module as a program that computes the same on inputs of these shapes and types; a call names those
    that are named here.

    `dynamic_shapes` is torch.export's: the extents that it marks are free in the program.

    The module is exported by torch.export in its present mode; its parameters stay its own, so that a program
    follows their changes. What forward writes into buffers, such as running statistics in training, is
    written by each call. Raises `ucutlass.importer.graph.Unsupported` with the operator and the line of the
    module that no program can compute.
    """
    call = ForwardArguments(inputs, named_inputs)
    try:
        if dynamic_shapes is None:
            export = exported(module, call, True)
            programs = chained(export.graph, name or type(module).__name__.lower(), export.written)
        else:
            program, export = imported(module, call, name, True, dynamic_shapes)
            programs = [(program, export.graph.results)]
    except NoKernelServes as problem:
        raise no_kernel(problem) from problem
    except Unsupported:
        raise
    except Exception as problem:
        raise export_failed(problem) from problem
    return ImportedProgram(module, programs, export)


def chained(
    graph: TensorGraph, name: str, written_buffers: tuple[str, ...] = ()
) -> list[tuple[ImportedText, tuple[str, ...]]]:
    """Returns the program of a graph and its results, or where it is too long those of both halves. Raises
    NoKernelServes and Unsupported."""
    try:
        return [(program_of(graph, name, written_buffers), graph.results)]
    except TooLong:
        divided = halves(graph)
        if divided is None:
            raise
        return [link for n, half in enumerate(divided, 1) for link in chained(half, f"{name}_{n}")]


@dataclass(frozen=True, slots=True)
class ImportedText:
    """A program and how it meets its module: `inputs` in the order of its parameters."""

    tree: syntax.File
    text: str
    name: str
    inputs: tuple[Input, ...]
    report: tuple[OperatorFate, ...]
    stages: int
    torch_stages: int
    written: tuple[str, ...]


def imported(
    model: torch.nn.Module,
    call: ForwardArguments,
    name: str = "",
    updates: bool = False,
    dynamic_shapes: Any = None,
) -> tuple[ImportedText, Exported]:
    """Exports a module and writes its program, with free extents where `dynamic_shapes`, torch.export's, marks
    them. Raises Unsupported, and what torch.export raises."""
    name = name or type(model).__name__.lower()
    if dynamic_shapes is None:
        export = exported(model, call, updates)
        return text_of(export, name), export
    try:
        return _with_dynamic(model, call, name, updates, dynamic_shapes, small=False)
    except (DependsOnExtents, Unsupported):
        pass  # the larger numbers may be more than a table of positions has, or than a kernel computes
    try:
        return _with_dynamic(model, call, name, updates, dynamic_shapes, small=True)
    except DependsOnExtents as problem:
        raise Unsupported(f"not one program for all extents: {problem}") from problem


def _with_dynamic(
    model: torch.nn.Module, call: ForwardArguments, name: str, updates: bool, dynamic_shapes: Any, small: bool
) -> tuple[ImportedText, Exported]:
    """Returns a module's program with free extents. Raises as `exported_twice` does."""
    *exports, table = exported_twice(model, call, updates, dynamic_shapes, small)
    first, second = (
        text_of(export, name, StagePrices(exact=False, extents=extents))
        for export, extents in zip(exports, ({}, table.firsts), strict=True)
    )
    tree = with_free_extents(first.tree, second.tree, table)
    return replace(first, tree=tree, text=format_file(tree)), exports[0]


def text_of(export: Exported, name: str, prices: StagePrices | None = None) -> ImportedText:
    """Returns the program of an exported module, cut by these prices. Raises Unsupported."""
    try:
        return program_of(export.graph, name, export.written, prices=prices)
    except NoKernelServes as problem:
        raise no_kernel(problem) from problem


def no_kernel(problem: NoKernelServes) -> Unsupported:
    return Unsupported(f"no kernel serves it: {problem.why}", problem.node.origin)


def program_of(
    graph: TensorGraph,
    name: str,
    written_buffers: tuple[str, ...] = (),
    several: bool = False,
    most_bindings: int = INLINE_STAGES,
    prices: StagePrices | None = None,
) -> ImportedText:
    """Returns the program of a graph, of at most so many bindings, cut by these prices; with `several` of stages that
    may have several results. Raises NoKernelServes and Unsupported."""
    if not graph.inputs or not any(_reads(graph, i.name) for i in graph.inputs):
        raise Unsupported("nothing that is returned depends on a tensor")
    prices = StagePrices() if prices is None else prices
    graph = with_joined_convolutions(with_shifted_scans(with_copied_inputs(graph)), prices)
    if switches.read().averages_ahead:
        graph = with_averaged_operands(graph, prices)
    graph = with_short_products(with_statistics_of_parts(graph), prices)
    graph, stages = channels_last(*cut(graph, several, prices), prices)
    graph, stages = as_viewed(graph, stages, prices)
    graph, stages = weights_ahead(graph, stages, prices)
    torch_stages = [stage.torch for stage in stages if stage.torch is not None]
    compiled = [node.name for node in torch_stages if prices.exact and _is_compiled(node, graph.values)]
    try:
        program = written(graph, stages, name, most_bindings)
    except (NotLegal, Conflict, LimitPassed) as problem:
        raise TooLong(f"the program of {len(stages)} stages is refused: {problem}") from problem
    item = program.tree.items[-1]
    assert isinstance(item, syntax.Program)
    order = {p.name: i for i, p in enumerate(item.params)}
    inputs = sorted((i for i in graph.inputs if i.name in order), key=lambda i: order[i.name])
    return ImportedText(
        program.tree,
        program.text,
        item.name,
        tuple(inputs),
        _report(graph, stages, compiled),
        len(stages),
        len(torch_stages) - len(compiled),
        written_buffers,
    )


def _reads(graph: TensorGraph, name: str) -> bool:
    return name in graph.results or any(o.value == name for node in graph.nodes for o in node.operands)


def _is_compiled(stage: TorchStage, values: Mapping[str, ImportedTensor]) -> bool:
    """Returns whether a kernel computes the torch function of a stage on Hopper."""
    operands = [values[operand.value] for operand in stage.operands]
    elements = [ELEMENTS[operand.element] for operand in operands]
    shapes = [operand.shape for operand in operands]
    problem = match_call(stage.function, stage.keywords, (0,), elements, shapes)
    return problem is not None and plan_call(problem, ARCHES["sm90a"]) is not None


def _report(
    graph: TensorGraph, stages: Sequence[ImportedStage], compiled: Sequence[str]
) -> tuple[OperatorFate, ...]:
    names: Mapping[str, str] = value_names(graph, stages)
    holders: dict[str, list[str]] = {}
    for stage in stages:
        for node in stage.nodes:
            holders.setdefault(node.name, []).append(names[stage.outputs[0]])
    fates: list[OperatorFate] = []
    for node in graph.nodes:
        by = "kernel" if node.name in compiled else _by(node)
        fate = OperatorFate(
            node.origin.operator,
            node.origin.module,
            node.origin.line,
            ", ".join(dict.fromkeys(holders.get(node.name, ()))),
            by,
        )
        if not fates or fates[-1] != fate:
            fates.append(fate)
    return tuple(fates)


def _by(node: Node) -> str:
    if isinstance(node, Reshape) or node.kind == "view":
        return "nothing"
    return "torch" if hasattr(node, "function") else "kernel"

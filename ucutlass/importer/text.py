"""Writes stages as a program: one kernel, a pipeline of bindings, or a pipeline that calls kernels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ucutlass.check import check_tree
from ucutlass.check.calls import BUILTINS
from ucutlass.grammar import syntax
from ucutlass.grammar.format import format_file
from ucutlass.grammar.parse import SyntaxProblem, check_length
from ucutlass.grammar.syntax import Argument, Call, Name, Number
from ucutlass.importer.atoms import Atom, Conflict
from ucutlass.importer.expressions import expr
from ucutlass.importer.graph import Computation, ImportedTensor, TensorGraph, TorchStage
from ucutlass.importer.naming import dimension_names, identifier, numbered
from ucutlass.importer.stage import (
    Inference,
    StageWriter,
    axes_of,
    free_kernel_of,
    kernel_of,
    stage_inference,
)
from ucutlass.importer.stages import ImportedStage, NotLegal, checked_kernel
from ucutlass.ir.elements import ELEMENTS
from ucutlass.ir.functions import NAMED

INLINE_STAGES = 12
"""Up to so many stages are bindings of one pipeline; more are calls of kernels, which repeat."""


@dataclass(frozen=True, slots=True)
class Written:
    """A program's text, and the name in it of each stored value."""

    tree: syntax.File
    text: str
    names: Mapping[str, str]


def written(graph: TensorGraph, stages: Sequence[ImportedStage], name: str) -> Written:
    """Returns the program of these stages. Raises NotLegal where the checker refuses it."""
    ranks = _ranks(graph)
    if len(stages) == 1 and stages[0].torch is None and stages[0].outputs == graph.results:
        return _kernel(graph, stages[0], name, ranks)
    if len(stages) <= INLINE_STAGES:
        try:
            return _checked(_Bindings(graph, stages, name, ranks).file(), {})
        except (Conflict, NotLegal):
            pass
    return _checked(_Calls(graph, stages, name, ranks).file(), {})


def _ranks(graph: TensorGraph) -> dict[str, int]:
    return {i.name: 5 if i.origin == "input" else 7 for i in graph.inputs} | {
        node.name: 6 for node in graph.nodes
    }


def _checked(tree: syntax.File, names: Mapping[str, str]) -> Written:
    text = format_file(tree)
    try:
        check_length(text, "the program")
    except SyntaxProblem as problem:
        raise NotLegal(f"{problem.problems[0].message} [{problem.problems[0].code}]") from problem
    _, diagnostics = check_tree(tree)
    for diagnostic in diagnostics:
        if diagnostic.severity == "error":
            raise NotLegal(f"{diagnostic.message} [{diagnostic.code}]")
    return Written(tree, text, names)


def _inputs(graph: TensorGraph) -> dict[str, str]:
    return {i.name: i.name for i in graph.inputs}


def _kernel(graph: TensorGraph, stage: ImportedStage, name: str, ranks: Mapping[str, int]) -> Written:
    inference = stage_inference(graph.values, stage.nodes, stage.outputs, ranks)
    inference.inputs.sort(key=[i.name for i in graph.inputs].index)
    names = dimension_names(inference.order(), [i.name for i in graph.inputs])
    program = kernel_of(inference, free_program_name(name, graph), _inputs(graph), names)
    checked_kernel(program)
    tree = syntax.File((program,))
    return Written(tree, format_file(tree), {})


def free_program_name(name: str, graph: TensorGraph) -> str:
    return numbered(name, {*_built_in(), *(i.name for i in graph.inputs)})


def value_names(graph: TensorGraph, stages: Sequence[ImportedStage]) -> dict[str, str]:
    """Returns the names of inputs and of what stages store: a stored value is called as what it is, or by the
    submodule that computes it."""
    names = _inputs(graph)
    used = set(names.values()) | {"index", "size"}
    for stage in stages:
        for output in stage.outputs:
            names[output] = numbered(_noun(stage, output), used)
            used.add(names[output])
    return names


def _noun(stage: ImportedStage, output: str) -> str:
    last = next((n for n in stage.nodes if n.name == output), stage.nodes[-1] if stage.nodes else None)
    if last is None:
        return "copy"
    modules = [n.origin.module for n in stage.nodes if n.origin.module]
    hint = getattr(last, "hint", "")
    if hint:
        return hint
    path = modules[-1] if modules else ""
    short = re.sub(r"\.(\d+)(?=\.|$)", r"\1", path)
    noun = identifier(short.split(".")[-1]) if short else ""
    if noun and not noun.startswith("_"):
        return noun
    operator = last.origin.operator.split(".")[1] if "." in last.origin.operator else "value"
    return identifier(operator.strip("_"))


def _results(graph: TensorGraph) -> list[str | None]:
    if len(graph.results) == 1:
        return [None]
    return [f"y{i}" for i in range(len(graph.results))]


# --- bindings ------------------------------------------------------------------------


@dataclass(slots=True)
class _Bindings:
    """Every stage is a binding of the pipeline, under names that hold throughout."""

    graph: TensorGraph
    stages: Sequence[ImportedStage]
    name: str
    ranks: Mapping[str, int]

    def file(self) -> syntax.File:
        graph = self.graph
        nodes = [n for n in graph.nodes if any(n in s.nodes for s in self.stages)]
        whole = stage_inference(graph.values, nodes, list(graph.results), self.ranks)
        order = [i.name for i in graph.inputs]
        whole.inputs.sort(key=order.index)
        inputs = [i for i in order if i in whole.inputs]
        values = value_names(graph, self.stages)
        names = dimension_names(whole.order(), values.values())
        known: set[str] = set()
        params = tuple(
            syntax.Param(
                i, syntax.TypeExpr(graph.values[i].element, axes_of(whole.dimensions[i], names, known))
            )
            for i in inputs
        )
        taken = {*values.values(), *names.values(), *order}
        body: list[syntax.Statement] = []
        items: dict[str, syntax.Expr] = {}
        for stage in self.stages:
            if stage.torch is not None:
                body.append(self._torch(stage, whole, names, known, values))
                items[stage.outputs[0]] = Name(values[stage.outputs[0]])
                continue
            part = replace(whole, nodes=stage.nodes, outputs=stage.outputs, inputs=list(stage.inputs))
            types = {
                o: syntax.TypeExpr(graph.values[o].element, axes_of(whole.dimensions[o], names, known))
                for o in stage.outputs
                if o not in graph.results or self._read(o)
            }
            writer = StageWriter(part, names, values, taken, known)
            exprs = writer.results()
            body += writer.bindings
            for output, value in zip(stage.outputs, exprs, strict=True):
                if output in types:
                    body.append(syntax.Bind((syntax.Target(values[output], types[output]),), value))
                    items[output] = Name(values[output])
                else:
                    items[output] = value
        labels = _results(graph)
        used = set(taken)
        labels = [None if label is None else numbered(label, used) for label in labels]
        results = tuple(
            syntax.Result(
                syntax.TypeExpr(graph.values[r].element, axes_of(whole.dimensions[r], names, known)), label
            )
            for r, label in zip(graph.results, labels, strict=True)
        )
        returned = tuple(
            syntax.ReturnItem(items.get(r, Name(r)), label)
            for r, label in zip(graph.results, labels, strict=True)
        )
        body.append(syntax.Return(returned))
        name = free_program_name(self.name, graph)
        return syntax.File((syntax.Program("pipeline", name, params, results, tuple(body)),))

    def _read(self, value: str) -> bool:
        return any(value in stage.inputs for stage in self.stages) or self.graph.results.count(value) > 1

    def _torch(
        self,
        stage: ImportedStage,
        whole: Inference,
        names: Mapping[Atom, str],
        known: set[str],
        values: Mapping[str, str],
    ) -> syntax.Bind:
        node = stage.torch
        assert node is not None
        kind = syntax.TypeExpr(node.tensor.element, axes_of(whole.dimensions[node.name], names, known))
        return syntax.Bind((syntax.Target(values[node.name], kind),), torch_call(node, values))


def torch_call(node: TorchStage, values: Mapping[str, str]) -> Call:
    arguments = [Argument(Name(values[o.value])) for o in node.operands]
    named = [Argument(expr(v), k) for k, v in node.keywords.items()]
    return Call(f"torch.{node.function}", None, (*arguments, *named))


# --- calls ---------------------------------------------------------------------------


@dataclass(slots=True)
class _Calls:
    """Every stage calls a kernel of the file; stages that differ in their tensors alone call the same one."""

    graph: TensorGraph
    stages: Sequence[ImportedStage]
    name: str
    ranks: Mapping[str, int]

    def file(self) -> syntax.File:
        graph = self.graph
        values = value_names(graph, self.stages)
        own_name = free_program_name(self.name, graph)
        kernels: dict[syntax.Program, str] = {}
        used = {own_name, *values.values(), *_built_in()}
        weights = {i.name for i in graph.inputs if i.origin in ("parameter", "buffer")}
        types = _TypeNames(self._shapes(), weights, {*values.values()})
        params = tuple(syntax.Param(i.name, types.of(i.name, i.tensor)) for i in graph.inputs)
        body: list[syntax.Statement] = []
        for stage in self.stages:
            output = stage.outputs[0]
            tensor = graph.values[output]
            if stage.torch is not None:
                call: syntax.Expr = torch_call(stage.torch, values)
            else:
                program, inputs = self._kernel(stage)
                if program not in kernels:
                    kernels[program] = numbered(_kernel_name(stage), used)
                    used.add(kernels[program])
                arguments = tuple(Argument(Name(values[v])) for v in inputs)
                call = Call(kernels[program], None, arguments)
            if stage is self.stages[-1] and graph.results == (output,) and stage.torch is None:
                kind = types.of(output, tensor)
                body.append(syntax.Return((syntax.ReturnItem(call),)))
                return self._file(kernels, own_name, params, (syntax.Result(kind),), body)
            body.append(syntax.Bind((syntax.Target(values[output], types.of(output, tensor)),), call))
        labels = _results(graph)
        labels = [None if label is None else numbered(label, used) for label in labels]
        results = tuple(
            syntax.Result(types.of(r, graph.values[r]), label)
            for r, label in zip(graph.results, labels, strict=True)
        )
        items = [Name(values[r]) for r in graph.results]
        body.append(syntax.Return(tuple(map(syntax.ReturnItem, items, labels))))
        return self._file(kernels, own_name, params, results, body)

    @staticmethod
    def _file(
        kernels: Mapping[syntax.Program, str],
        name: str,
        params: tuple[syntax.Param, ...],
        results: tuple[syntax.Result, ...],
        body: Sequence[syntax.Statement],
    ) -> syntax.File:
        pipeline = syntax.Program("pipeline", name, params, results, tuple(body))
        programs = tuple(replace(program, name=name) for program, name in kernels.items())
        return syntax.File((*programs, pipeline))

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        stored = [o for stage in self.stages for o in stage.outputs]
        return {v: self.graph.values[v].shape for v in [*(i.name for i in self.graph.inputs), *stored]}

    def _kernel(self, stage: ImportedStage) -> tuple[syntax.Program, list[str]]:
        inference = stage_inference(self.graph.values, stage.nodes, stage.outputs, self.ranks)
        inference.sort_inputs()
        inputs = _local_names(self.graph, inference.inputs)
        names = dimension_names(inference.order(), inputs.values())
        return free_kernel_of(inference, "kernel_", inputs, names), inference.inputs


def _built_in() -> set[str]:
    return {*BUILTINS, *NAMED, *ELEMENTS}


def _local_names(graph: TensorGraph, inputs: Sequence[str]) -> dict[str, str]:
    """Returns the parameters' names of a kernel that several stages call: `weight` for a parameter of that
    name, letters for others."""
    paths = {i.name: i.path for i in graph.inputs if i.origin in ("parameter", "buffer")}
    names: dict[str, str] = {}
    letters = iter("xyzuvst")
    for value in inputs:
        base = paths[value].rpartition(".")[2] if value in paths else next(letters, "x")
        names[value] = numbered(base, names.values())
    return names


@dataclass(slots=True)
class _TypeNames:
    """Names of a pipeline's dimensions: a letter for the axis, with the extent where the letter has
    several."""

    letters: dict[str, str]
    extents: dict[str, set[int]]
    taken: set[str]
    introduced: set[str]

    def __init__(self, shapes: Mapping[str, Sequence[int]], weights: set[str], taken: set[str]) -> None:
        self.letters = {
            v: (_WEIGHT_AXES if v in weights else _AXES).get(len(shape), _MANY) for v, shape in shapes.items()
        }
        self.extents = {}
        for value, shape in shapes.items():
            for letter, extent in zip(self.letters[value], shape, strict=False):
                if extent != 1:
                    self.extents.setdefault(letter, set()).add(extent)
        self.taken, self.introduced = taken, set()

    def of(self, value: str, tensor: ImportedTensor) -> syntax.TypeExpr:
        axes: list[syntax.Axis] = []
        for letter, extent in zip(self.letters[value], tensor.shape, strict=False):
            if extent == 1:
                axes.append(syntax.NamelessAxis(Number(1)))
                continue
            name = letter if len(self.extents[letter]) == 1 else f"{letter}{extent}"
            while name in self.taken:
                name += "_"
            fresh = name not in self.introduced
            self.introduced.add(name)
            axes.append(syntax.NamedAxis(name, Number(extent) if fresh else None))
        return syntax.TypeExpr(tensor.element, tuple(axes))


_AXES = {1: "N", 2: "MN", 3: "BLD", 4: "BCHW", 5: "BCDHW"}
_WEIGHT_AXES = {1: "C", 2: "NK", 3: "KCR", 4: "KCRS", 5: "KCTRS"}
_MANY = "ABCDEFGHIJKLOPQ"


def _kernel_name(stage: ImportedStage) -> str:
    words: list[str] = []
    for node in stage.nodes:
        if isinstance(node, Computation) and node.kind != "view":
            operator = (
                node.origin.operator.split(".")[1].strip("_") if "." in node.origin.operator else "value"
            )
            word = re.sub(r"^native_|_legit.*$|_default$|(?<=[a-z])\dd$", "", operator)
            word = "copy" if node.hint == "copy" else _WORDS.get(word, word)
            if word and word not in words[-1:]:
                words.append(word)
    return identifier("_".join(words[:4])) or "copy"


_WORDS = {
    "scaled_dot_product_attention": "attention",
    "convolution": "conv",
    "view": "copy",
    "select": "",
    "slice": "",
    "clone": "copy",
    "unsafe_view": "copy",
    "split_with_sizes": "",
}
"""Operators that a kernel is called otherwise by."""

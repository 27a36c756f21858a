"""Writes stages as a program: one kernel, a pipeline of bindings, or a pipeline that calls kernels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace

from ucutlass.check import check_tree
from ucutlass.check.calls import BUILTINS
from ucutlass.grammar import syntax
from ucutlass.grammar.format import format_expression, format_file
from ucutlass.grammar.parse import SyntaxProblem, check_length
from ucutlass.grammar.syntax import Argument, Call, Name, Number
from ucutlass.importer.atoms import Atom, Conflict
from ucutlass.importer.expressions import expr
from ucutlass.importer.graph import Computation, ImportedStage, ImportedTensor, TensorGraph, TorchStage
from ucutlass.importer.naming import (
    dimension_names,
    identifier,
    module_noun,
    numbered,
    operator_noun,
    qualified_noun,
)
from ucutlass.importer.prices import NotLegal, checked_kernel
from ucutlass.importer.stage import (
    Inference,
    StageWriter,
    axes_of,
    free_kernel_of,
    kernel_of,
    stage_inference,
)
from ucutlass.ir import Kernel, Pipeline, Program
from ucutlass.ir.elements import ELEMENTS
from ucutlass.ir.functions import NAMED
from ucutlass.kernels.families import match
from ucutlass.kernels.refused import Refused

INLINE_STAGES = 12
"""Up to so many stages are bindings of one pipeline; more are calls of kernels, which repeat."""


@dataclass(frozen=True, slots=True)
class Written:
    """A program's text, and the name in it of each stored value."""

    tree: syntax.File
    text: str
    names: Mapping[str, str]


def written(
    graph: TensorGraph, stages: Sequence[ImportedStage], name: str, most_bindings: int = INLINE_STAGES
) -> Written:
    """Returns the program of these stages, of which at most so many are bindings of one pipeline. Raises NotLegal where
    the checker refuses it."""
    ranks = _ranks(graph)
    if len(stages) == 1 and stages[0].torch is None and stages[0].outputs == graph.results:
        return _kernel(graph, stages[0], name, ranks)
    if len(stages) <= most_bindings:
        try:
            return _served(_Bindings(graph, stages, name, ranks).file())
        except (Conflict, NotLegal):
            pass
    return _checked(_Calls(graph, stages, name, ranks).file())


def _ranks(graph: TensorGraph) -> dict[str, int]:
    return {i.name: 5 if i.origin == "input" else 7 for i in graph.inputs} | {
        node.name: 6 for node in graph.nodes
    }


def _checked(tree: syntax.File) -> Written:
    return _with_programs(tree)[0]


def _served(tree: syntax.File) -> Written:
    """Works as `_checked`, where the names of one pipeline tie those of its stages: a stage that is a kernel by names
    of its own may be none by these, such as one that reads a tensor and the sum of another. Raises NotLegal."""
    program, programs = _with_programs(tree)
    kernels = [s.call for p in programs if isinstance(p, Pipeline) for s in p.stages]
    for kernel in kernels:
        if isinstance(kernel, Kernel):
            try:
                match(kernel)
            except Refused as refused:
                raise NotLegal(f"{refused.diagnostic.message} [{refused.diagnostic.code}]") from None
    return program


def _with_programs(tree: syntax.File) -> tuple[Written, Sequence[Program]]:
    text = _text(tree)
    module, diagnostics = check_tree(tree)
    for diagnostic in diagnostics:
        if diagnostic.severity == "error":
            raise NotLegal(f"{diagnostic.message} [{diagnostic.code}]")
    return Written(tree, text, {}), module.programs


def _text(tree: syntax.File) -> str:
    """Returns the text of a program. Raises NotLegal where it is longer than any that is read."""
    text = format_file(tree)
    try:
        check_length(text, "the program")
    except SyntaxProblem as problem:
        raise NotLegal(f"{problem.problems[0].message} [{problem.problems[0].code}]") from problem
    return text


def _inputs(graph: TensorGraph) -> dict[str, str]:
    return {i.name: i.name for i in graph.inputs}


def _kernel(graph: TensorGraph, stage: ImportedStage, name: str, ranks: Mapping[str, int]) -> Written:
    inference = stage_inference(graph.values, stage.nodes, stage.outputs, ranks)
    inference.inputs.sort(key=[i.name for i in graph.inputs].index)
    names = dimension_names(inference.order(), [i.name for i in graph.inputs])
    program = kernel_of(inference, free_program_name(name, graph), _inputs(graph), names)
    checked_kernel(program)
    tree = syntax.File((program,))
    return Written(tree, _text(tree), {})


def free_program_name(name: str, graph: TensorGraph) -> str:
    return numbered(name, {*_built_in(), *(i.name for i in graph.inputs)})


def value_names(graph: TensorGraph, stages: Sequence[ImportedStage]) -> dict[str, str]:
    """Returns the names of inputs and of what stages store: a stored value is called as what it is, or by the
    submodule that computes it."""
    names = _inputs(graph)
    used = set(names.values()) | {"index", "size"}
    nouns = {output: _noun(stage, output) for stage in stages for output in stage.outputs}
    paths = {output: _module(stage) for stage in stages for output in stage.outputs}
    nouns |= _told_apart(nouns, paths)
    for output, noun in nouns.items():
        names[output] = numbered(noun, used)
        used.add(names[output])
    return names


def _told_apart(nouns: Mapping[str, str], paths: Mapping[str, str]) -> dict[str, str]:
    """Returns longer nouns of values that share one, where the modules around tell them apart."""
    longer: dict[str, str] = {}
    for noun in dict.fromkeys(nouns.values()):
        same = [v for v, other in nouns.items() if other == noun and module_noun(paths[v]) == noun]
        qualified = {v: qualified_noun(paths[v]) for v in same}
        if len(same) > 1 and len({*qualified.values()}) == len(same):
            longer |= qualified
    return longer


def _noun(stage: ImportedStage, output: str) -> str:
    last = next((n for n in stage.nodes if n.name == output), stage.nodes[-1] if stage.nodes else None)
    if last is None:
        return "copy"
    if last.hint:
        return last.hint
    operator = operator_noun(last.origin.operator)
    noun = "" if operator in _SPEAKING else module_noun(_module(stage))
    return noun if noun and not noun.startswith("_") else operator


_SPEAKING = frozenset({"softmax", "log_softmax", "cat", "logsumexp", "sort", "topk", "cumsum"})
"""Operators that say better what a stored value is than the submodule around them."""


def _module(stage: ImportedStage) -> str:
    """Returns the path of the last of the innermost submodules whose work a stage does."""
    paths = [n.origin.module for n in stage.nodes if n.kind != "view"] or [
        n.origin.module for n in stage.nodes
    ]
    deepest = max(map(_depth, paths), default=0)
    return next((path for path in reversed(paths) if _depth(path) == deepest), "")


def _depth(path: str) -> int:
    return len(path.split(".")) if path else 0


def _results(graph: TensorGraph) -> list[str | None]:
    if len(graph.results) == 1:
        return [None]
    return [f"y{i}" for i in range(len(graph.results))]


# --- bindings ------------------------------------------------------------------------


@dataclass(slots=True)
class _Bindings:
    """Every stage is a binding of the pipeline, under names that hold throughout; one of several results calls a
    kernel."""

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
        introduced: set[str] = set()
        params = tuple(
            syntax.Param(
                i, syntax.TypeExpr(graph.values[i].element, axes_of(whole.dimensions[i], names, introduced))
            )
            for i in inputs
        )
        several = {v for stage in self.stages if len(stage.outputs) > 1 for v in stage.outputs}
        written = [v for v in values if v not in graph.results or v in several or self._read(v)]
        used_names = {*(values[v] for v in written), *names.values(), *order}
        kernels = _CalledKernels(graph, self.ranks, {*used_names, self.name, *_built_in()})
        body: list[syntax.Statement] = []
        items: dict[str, syntax.Expr] = {}
        for stage in self.stages:
            if stage.torch is not None:
                body.append(self._torch(stage, whole, names, introduced, values))
                items[stage.outputs[0]] = Name(values[stage.outputs[0]])
                continue
            if len(stage.outputs) > 1:
                call = kernels.call(stage, values)
                body.append(syntax.Bind(self._targets(stage, whole, names, introduced, values), call))
                items |= {output: Name(values[output]) for output in stage.outputs}
                continue
            exprs, types, bindings = self._stage(stage, whole, names, introduced, values, used_names)
            body += bindings
            for output, value in zip(stage.outputs, exprs, strict=True):
                if output in types:
                    body.append(syntax.Bind((syntax.Target(values[output], types[output]),), value))
                    items[output] = Name(values[output])
                else:
                    items[output] = value
        labels = _results(graph)
        used = set(used_names)
        labels = [None if label is None else numbered(label, used) for label in labels]
        results = tuple(
            syntax.Result(
                syntax.TypeExpr(graph.values[r].element, axes_of(whole.dimensions[r], names, introduced)),
                label,
            )
            for r, label in zip(graph.results, labels, strict=True)
        )
        returned = tuple(
            syntax.ReturnItem(items.get(r, Name(r)), label)
            for r, label in zip(graph.results, labels, strict=True)
        )
        body.append(syntax.Return(returned))
        name = free_program_name(self.name, graph)
        return syntax.File(
            (*kernels.programs(), syntax.Program("pipeline", name, params, results, tuple(body)))
        )

    def _targets(
        self,
        stage: ImportedStage,
        whole: Inference,
        names: Mapping[Atom, str],
        introduced: set[str],
        values: Mapping[str, str],
    ) -> tuple[syntax.Target, ...]:
        """Returns what a stage stores, with types."""
        return tuple(
            syntax.Target(
                values[o],
                syntax.TypeExpr(
                    self.graph.values[o].element, axes_of(whole.dimensions[o], names, introduced)
                ),
            )
            for o in stage.outputs
        )

    def _stage(
        self,
        stage: ImportedStage,
        whole: Inference,
        names: Mapping[Atom, str],
        introduced: set[str],
        values: Mapping[str, str],
        used_names: set[str],
    ) -> tuple[list[syntax.Expr], dict[str, syntax.TypeExpr], list[syntax.Bind]]:
        """Returns the values of a stage's outputs, their types where they are stored, and the bindings before
        them. Extents of new names stand in the types, unless a binding before has the name."""
        part = replace(whole, nodes=stage.nodes, outputs=stage.outputs, inputs=list(stage.inputs))
        nouns = _nouns(stage)

        def types(introduced: set[str]) -> dict[str, syntax.TypeExpr]:
            return {
                o: syntax.TypeExpr(
                    self.graph.values[o].element, axes_of(whole.dimensions[o], names, introduced)
                )
                for o in stage.outputs
                if o not in self.graph.results or self._read(o)
            }

        later, free_names = {*introduced}, {*used_names}
        stored = types(later)
        new = later - introduced
        writer = StageWriter(part, names, values, free_names, later, nouns)
        exprs = writer.results()
        words = {w for b in writer.bindings for w in re.findall(r"\w+", format_expression(b.value))}
        if new & words:
            later, free_names = {*introduced}, {*used_names}
            writer = StageWriter(part, names, values, free_names, later, nouns)
            exprs = writer.results()
            stored = types(later)
        introduced |= later
        used_names |= free_names
        return exprs, stored, writer.bindings

    def _read(self, value: str) -> bool:
        return any(value in stage.inputs for stage in self.stages) or self.graph.results.count(value) > 1

    def _torch(
        self,
        stage: ImportedStage,
        whole: Inference,
        names: Mapping[Atom, str],
        introduced: set[str],
        values: Mapping[str, str],
    ) -> syntax.Bind:
        node = stage.torch
        assert node is not None
        kind = syntax.TypeExpr(node.tensor.element, axes_of(whole.dimensions[node.name], names, introduced))
        return syntax.Bind((syntax.Target(values[node.name], kind),), torch_call(node, values))


def _nouns(stage: ImportedStage) -> dict[str, str]:
    """Returns the nouns of the submodules by what they give within a stage: values that other modules read."""
    readers: dict[str, set[str]] = {}
    for node in stage.nodes:
        for operand in node.operands:
            readers.setdefault(operand.value, set()).add(node.origin.module)
    return {
        node.name: noun
        for node in stage.nodes
        if (noun := module_noun(node.origin.module))
        and not noun.startswith("_")
        and node.origin.module not in readers.get(node.name, ())
    }


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
        used = {own_name, *values.values(), *_built_in()}
        kernels = _CalledKernels(graph, self.ranks, used)
        weights = {i.name for i in graph.inputs if i.origin in ("parameter", "buffer")}
        types = _TypeNames(self._tensors(), weights, {*values.values()})
        params = tuple(syntax.Param(i.name, types.of(i.name, i.tensor)) for i in graph.inputs)
        body: list[syntax.Statement] = []
        for stage in self.stages:
            if stage.torch is not None:
                call: syntax.Expr = torch_call(stage.torch, values)
            else:
                call = kernels.call(stage, values)
            kinds = [types.of(output, graph.values[output]) for output in stage.outputs]
            last = stage is self.stages[-1] and stage.torch is None
            if last and len(kinds) == 1 and graph.results == stage.outputs:
                body.append(syntax.Return((syntax.ReturnItem(call),)))
                return self._file(kernels, own_name, params, (syntax.Result(kinds[0]),), body)
            names = [values[output] for output in stage.outputs]
            body.append(syntax.Bind(tuple(map(syntax.Target, names, kinds)), call))
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
        kernels: _CalledKernels,
        name: str,
        params: tuple[syntax.Param, ...],
        results: tuple[syntax.Result, ...],
        body: Sequence[syntax.Statement],
    ) -> syntax.File:
        pipeline = syntax.Program("pipeline", name, params, results, tuple(body))
        return syntax.File((*kernels.programs(), pipeline))

    def _tensors(self) -> dict[str, ImportedTensor]:
        stored = [o for stage in self.stages for o in stage.outputs]
        return {v: self.graph.values[v] for v in [*(i.name for i in self.graph.inputs), *stored]}


@dataclass(slots=True)
class _CalledKernels:
    """The kernels that stages call, by their programs without names; `used` are the names that none may have."""

    graph: TensorGraph
    ranks: Mapping[str, int]
    used: set[str]
    names: dict[syntax.Program, str] = field(default_factory=dict)

    def call(self, stage: ImportedStage, values: Mapping[str, str]) -> Call:
        """Returns a stage as a call of its kernel."""
        inference = stage_inference(self.graph.values, stage.nodes, stage.outputs, self.ranks)
        inference.sort_inputs()
        inputs = _local_names(self.graph, inference.inputs)
        dimensions = dimension_names(inference.order(), inputs.values())
        program = free_kernel_of(inference, "kernel_", inputs, dimensions)
        if _renames(program) and _is_refused(program):
            # Only numbers say that two names are as long.
            program = kernel_of(inference, "kernel_", inputs, dimensions)
        if program not in self.names:
            self.names[program] = numbered(_kernel_name(stage), self.used)
            self.used.add(self.names[program])
        arguments = tuple(Argument(Name(values[v])) for v in inference.inputs)
        return Call(self.names[program], None, arguments)

    def programs(self) -> tuple[syntax.Program, ...]:
        return tuple(replace(program, name=name) for program, name in self.names.items())


def _renames(part: object) -> bool:
    """Returns whether a part of a program reads a tensor by another name: `x[C = K]`."""
    if isinstance(part, tuple):
        return any(map(_renames, part))
    if isinstance(part, syntax.IndexItem):
        return isinstance(part.left, Name) and isinstance(part.right, Name)
    return is_dataclass(part) and any(_renames(getattr(part, own.name)) for own in fields(part))


def _is_refused(program: syntax.Program) -> bool:
    """Returns whether no family serves a kernel that the checker accepts."""
    module, diagnostics = check_tree(syntax.File((program,)))
    if any(diagnostic.severity == "error" for diagnostic in diagnostics):
        return False
    kernel = module.programs[0]
    assert isinstance(kernel, Kernel)
    try:
        match(kernel)
    except Refused:
        return True
    return False


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
    """Names of a pipeline's dimensions: a letter for the axis, with a number where the letter has another extent
    already. No name holds an extent: imports whose extents stand for any are to be one program."""

    letters: dict[str, str]
    names: dict[tuple[str, int], str]
    introduced: set[str]

    def __init__(
        self, tensors: Mapping[str, ImportedTensor], weights: set[str], used_names: set[str]
    ) -> None:
        self.letters = {
            v: tensor.letters((_WEIGHT_AXES if v in weights else _AXES).get(len(tensor.shape), _MANY))
            for v, tensor in tensors.items()
        }
        self.names, self.introduced = {}, set()
        for value, tensor in tensors.items():
            for pair in zip(self.letters[value], tensor.shape, strict=False):
                if pair[1] != 1 and pair not in self.names:
                    self.names[pair] = numbered(pair[0], {*used_names, *self.names.values()})

    def of(self, value: str, tensor: ImportedTensor) -> syntax.TypeExpr:
        axes: list[syntax.Axis] = []
        for letter, extent in zip(self.letters[value], tensor.shape, strict=False):
            if extent == 1:
                axes.append(syntax.NamelessAxis(Number(1)))
                continue
            name = self.names[letter, extent]
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
            operator = operator_noun(node.origin.operator)
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

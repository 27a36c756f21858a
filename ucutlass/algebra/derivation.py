"""Derives cheaper programs from a program by algebra, with their derivations.

A candidate is text by the formatter. It is read back and its graph compared with the terms that were taken out, so
that what is proposed is what the rules say; it is then a candidate as any other, judged like any other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from ucutlass import frontend, ir
from ucutlass.algebra.egraph import EGraph, Full, LongProof, Rewrite, rewritten
from ucutlass.algebra.extraction import WEIGHTS, Coarse, extract
from ucutlass.algebra.folding import FoldedPart, depending_alone, divided
from ucutlass.algebra.rule import AlgebraRule
from ucutlass.algebra.rules import RULES
from ucutlass.algebra.saturation import Bounds, Saturation, saturate
from ucutlass.algebra.terms import Terms
from ucutlass.algebra.whole import WholeProgram, new_graph, whole_program
from ucutlass.algebra.writing import NotWritable, parts_of, unchanged_calls, written
from ucutlass.check import check_tree
from ucutlass.grammar import syntax
from ucutlass.grammar.format import format_file
from ucutlass.ir import Value, children
from ucutlass.ir.extents import evaluate
from ucutlass.ir.hardware import ARCHES, DEVICES, Device
from ucutlass.ir.traversal import walk
from ucutlass.limits import LimitPassed
from ucutlass.pipeline.joins import joined
from ucutlass.pipeline.orders import choose_orders, permuted
from ucutlass.pipeline.pricing import NotOneKernel, kernel_seconds
from ucutlass.pipeline.sized import Step as Launch
from ucutlass.pipeline.sized import sized_pipeline
from ucutlass.shapes import ShapeError, complete, free_dims

LEAST_GAIN = 0.02
"""Share of the estimate that a candidate must save: cost models are not more exact."""

MOST_CANDIDATES = 4

BOUNDS = Bounds()

MORE_TERMS = 10_000
"""Terms that extraction and reading back may add to a graph that is full."""


@dataclass(frozen=True, slots=True)
class DerivationStep:
    """`rule` distinct the program `text` of that of the step before; "" where the language does not say it in between.
    `seconds` is its estimate, None where no kernels serve it as it stands."""

    rule: AlgebraRule
    text: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class ProofStep:
    """A step that makes `value` of the result `root`."""

    root: str
    step: Rewrite
    value: Value


@dataclass(frozen=True, slots=True)
class AlgebraCandidate:
    """A program that is equal for all inputs. `rules` are those that its derivation takes, in order and each
    once; `constants` names results that depend on no input, which is a property of the problem."""

    text: str
    seconds: float
    rules: tuple[AlgebraRule, ...]
    constants: tuple[str, ...]
    steps: tuple[ProofStep, ...] = field(repr=False)
    roots: Mapping[str, Value] = field(repr=False)


@dataclass(frozen=True, slots=True)
class FoldedCandidate:
    """Two programs in one text: `NAME_folded`, which takes `once` seconds and is called once, and the program,
    which takes its results as parameters and `seconds` a call. Right as long as the folded parameters stay."""

    text: str
    seconds: float
    once: float
    rules: tuple[AlgebraRule, ...]


@dataclass(frozen=True, slots=True)
class Derivation:
    """`seconds` is the estimate of the program as it stands, None where no kernels serve it. `candidates` come
    cheapest first."""

    seconds: float | None
    candidates: tuple[AlgebraCandidate, ...]
    saturation: Saturation
    _deriver: _Deriver = field(repr=False)

    def folded(self, names: Sequence[str]) -> FoldedCandidate | None:
        """Returns the program that takes least time a call where what depends on these parameters alone is computed
        once; None where nothing is gained."""
        return self._deriver.folded(frozenset(names), self.seconds)

    def steps(self, candidate: AlgebraCandidate) -> Iterator[DerivationStep]:
        """Yields the derivation of a candidate, step by step."""
        yield from self._deriver.shown(candidate)


def derive(
    checked: frontend.Checked,
    program: ir.Program,
    sizes: Mapping[str, int],
    arch: str = "sm90a",
    device: Device | None = None,
    bounds: Bounds = BOUNDS,
    most: int = MOST_CANDIDATES,
    rules: Sequence[AlgebraRule] = RULES,
) -> Derivation:
    """Returns the programs that algebra makes of a program at these extents and that are estimated to take less
    time. `sizes` has the free extents by name. Raises ShapeError, and Full where the program alone has more
    terms than `bounds` allow."""
    extents = dict(
        zip(program.dims, complete(program, {d: sizes[d] for d in free_dims(program)}), strict=True)
    )
    terms = new_graph(program, bounds.terms)
    whole = whole_program(program, terms)
    for dim, extent in whole.program.dims.items():
        if dim not in extents:
            extents[dim] = evaluate(extent, extents)
    original = frozenset(id(v) for v in walk(*(whole.stored[r] for r in whole.roots)))
    gpu = device or next(d for d in DEVICES.values() if d.capability == ARCHES[arch].capability)
    deriver = _Deriver(
        checked, program, extents, arch, device, gpu, terms, whole, original, {r.name: r for r in rules}
    )
    before = deriver.seconds(checked.tree)
    saturation = saturate(terms, rules, bounds)
    terms.graph.most_terms += MORE_TERMS
    candidates = deriver.candidates(before, time.thread_time() + bounds.pricing)
    return Derivation(before, tuple(candidates[:most]), saturation, deriver)


def proof(
    program: ir.Program, other: ir.Program, bounds: Bounds = BOUNDS, rules: Sequence[AlgebraRule] = RULES
) -> tuple[AlgebraRule, ...] | None:
    """Returns the rules by which another program of the same parameters and results is equal to a program for
    all inputs, each once; None where they do not show that within the bounds, which does not mean that it is
    not equal. Raises Full where the programs alone have more terms than `bounds` allow."""
    terms = new_graph(program, bounds.terms)
    first = whole_program(program, terms)
    if not _extents_agree(other, first.program):
        return None
    second = whole_program(other, terms)
    if first.inputs != second.inputs or len(first.roots) != len(second.roots):
        return None
    pairs = [(first.stored[a], second.stored[b]) for a, b in zip(first.roots, second.roots, strict=True)]
    saturate(terms, rules, bounds)
    if not all(terms.graph.equal(a, b) for a, b in pairs):
        return None
    terms.graph.most_terms += MORE_TERMS
    by_name = {rule.name: rule for rule in rules}
    try:
        steps = [step for a, b in pairs for step, _ in terms.graph.explain(a, b) if step is not None]
    except (Full, LongProof):
        return None
    return tuple(by_name[name] for name in dict.fromkeys(step.rule for step in steps))


@dataclass(slots=True)
class _Deriver:
    checked: frontend.Checked
    program: ir.Program
    extents: Mapping[str, int]
    arch: str
    device: Device | None
    gpu: Device
    terms: Terms
    whole: WholeProgram
    known: frozenset[int]
    """Identities of the terms that the program has as it stands."""
    rules: Mapping[str, AlgebraRule]

    @property
    def graph(self) -> EGraph:
        return self.terms.graph

    @property
    def roots(self) -> list[Value]:
        return [self.whole.stored[name] for name in self.whole.roots]

    def candidates(self, before: float | None, deadline: float) -> list[AlgebraCandidate]:
        distinct: dict[str, AlgebraCandidate] = {}
        tried: set[tuple[int, ...]] = {tuple(map(id, self.roots))}
        for weights in WEIGHTS:
            if time.thread_time() > deadline:
                break
            try:
                cheapest = extract(self.graph, self.roots, Coarse(self.extents, self.gpu, weights))
                if cheapest is None or tuple(map(id, cheapest)) in tried:
                    continue
                tried.add(tuple(map(id, cheapest)))
                candidate = self._candidate(dict(zip(self.whole.roots, cheapest, strict=True)), deadline)
            except (Full, LongProof, RecursionError):
                continue
            if candidate is None or any(_alike(candidate, other) for other in distinct.values()):
                continue
            if before is None or candidate.seconds < (1 - LEAST_GAIN) * before:
                distinct[candidate.text] = candidate
        return sorted(distinct.values(), key=lambda c: c.seconds)

    def _candidate(self, roots: Mapping[str, Value], deadline: float) -> AlgebraCandidate | None:
        options: dict[str, float] = {}
        for stored in (self._lean(roots), self._full(roots)):
            if options and time.thread_time() > deadline:
                break
            file = self._joined(self._file(roots, stored))
            price = None if file is None else self.seconds(file)
            if file is not None and price is not None:
                options[format_file(file)] = price
        if not options:
            return None
        text = min(options, key=options.__getitem__)
        steps = self._steps(roots)
        rules = tuple(self.rules[name] for name in dict.fromkeys(s.step.rule for s in steps))
        constants = tuple(
            n for n, v in roots.items() if not any(isinstance(t, ir.ParamValue) for t in walk(v))
        )
        return AlgebraCandidate(text, options[text], rules, constants, steps, roots)

    def _steps(self, roots: Mapping[str, Value]) -> tuple[ProofStep, ...]:
        """Returns the proof, without detours."""
        steps: list[ProofStep] = []
        for name, value in roots.items():
            here = self.whole.stored[name]
            way = [(Rewrite("", here, here), here)]
            for step, term in self.graph.explain(here, value):
                if step is None:
                    way[-1] = (way[-1][0], term)
                else:
                    way.append((step, term))
            steps += [ProofStep(name, step, term) for step, term in self._direct(way)]
        return tuple(steps)

    def _direct(self, way: Sequence[tuple[Rewrite, Value]]) -> Iterator[tuple[Rewrite, Value]]:
        """Yields the steps of a way that leads on at once wherever a step, taken wherever its term stands, or
        none, gives a later term of it."""
        last = {id(term): at for at, (_, term) in enumerate(way)}
        at = last[id(way[0][1])]
        while at < len(way) - 1:
            step = way[at + 1][0]
            everywhere = last.get(id(rewritten(way[at][1], step, self.graph)), 0)
            at = max(last[id(way[at + 1][1])], everywhere)
            yield step, way[at][1]

    # --- folded parameters -----------------------------------------------------------

    def folded(self, names: frozenset[str], before: float | None) -> FoldedCandidate | None:
        indices = frozenset(i for i, n in enumerate(self.whole.inputs) if n in names)
        every = [term for _, members in self.graph.classes() for term in members]
        alone = depending_alone(every, indices)
        cheaper: list[FoldedCandidate] = []
        for weights in WEIGHTS:
            try:
                cheapest = extract(self.graph, self.roots, Coarse(self.extents, self.gpu, weights, alone))
                roots = dict(zip(self.whole.roots, cheapest or (), strict=False))
                parts = divided(self.graph, self.whole, roots, indices) if cheapest else None
                candidate = None if parts is None else self._folded(roots, *parts)
            except (Full, LongProof, NotWritable, RecursionError):
                continue
            if candidate is not None and (before is None or candidate.seconds < (1 - LEAST_GAIN) * before):
                cheaper.append(candidate)
        return min(cheaper, key=lambda c: c.seconds, default=None)

    def _folded(
        self, roots: Mapping[str, Value], once: FoldedPart, each: FoldedPart
    ) -> FoldedCandidate | None:
        files: list[syntax.File] = []
        for part in (once, each):
            file = written(part.whole, part.roots, syntax.File((part.header,)), self._full(part.roots))
            program = self._typed(file, part.header.name)
            joint = (
                self._joined(file, part.header.name) if program and self._same(program, part.roots) else None
            )
            if joint is None:
                return None
            files.append(joint)
        seconds = [self.seconds(f, p.header.name) for f, p in zip(files, (once, each), strict=True)]
        if seconds[0] is None or seconds[1] is None:
            return None
        names = dict.fromkeys(s.step.rule for s in self._steps(roots))
        text = format_file(syntax.File((*files[0].items, *files[1].items)))
        return FoldedCandidate(text, seconds[1], seconds[0], tuple(self.rules[n] for n in names))

    # --- where launches end ----------------------------------------------------------

    def _lean(self, roots: Mapping[str, Value]) -> list[Value]:
        """Returns the values that were stored, and the new ones that a launch ends with."""
        stored = {id(v) for v in self.whole.stored.values()} | self._operands(roots)
        return [
            v for v in self._walk(roots) if id(v) in stored or (id(v) not in self.known and self._ends(v))
        ]

    def _full(self, roots: Mapping[str, Value]) -> list[Value]:
        operands = self._operands(roots)
        return [v for v in self._walk(roots) if self._ends(v) or id(v) in operands]

    def _walk(self, roots: Mapping[str, Value]) -> Iterator[Value]:
        """Yields the values that are written: not what calls that stay compute inside."""
        calls = unchanged_calls(self.whole, roots, self.header)
        return walk(*roots.values(), into=partial(parts_of, calls=calls, whole=self.whole))

    @property
    def header(self) -> syntax.Program:
        items = (i for i in self.checked.tree.items if isinstance(i, syntax.Program))
        return next(i for i in items if i.name == self.program.name)

    @staticmethod
    def _ends(value: Value) -> bool:
        return isinstance(value, ir.Dot | ir.Reduce | ir.Softmax | ir.Scan)

    def _operands(self, roots: Mapping[str, Value]) -> set[int]:
        """Returns the identities of what new products multiply, which must lie in memory."""
        return {
            id(base)
            for dot in self._walk(roots)
            if isinstance(dot, ir.Dot) and id(dot) not in self.known
            for operand in children(dot)
            if not isinstance(base := _base(operand), ir.ParamValue | ir.Constant)
        }

    # --- texts -----------------------------------------------------------------------

    def _file(self, roots: Mapping[str, Value], stored: Sequence[Value]) -> syntax.File | None:
        """Returns the file with the roots computed so; None where the language does not say it, or where what
        it says reads back as something else."""
        try:
            file = written(self.whole, roots, self.checked.tree, stored)
        except NotWritable:
            return None
        program = self._typed(file)
        return file if program is not None and self._same(program, roots) else None

    def _typed(self, file: syntax.File, name: str = "") -> ir.Program | None:
        module, diagnostics = check_tree(file)
        if any(d.severity == "error" for d in diagnostics):
            return None
        return next(p for p in module.programs if p.name == (name or self.program.name))

    def _same(self, program: ir.Program, roots: Mapping[str, Value]) -> bool:
        if not _extents_agree(program, self.whole.program):
            return False
        again = whole_program(program, self.terms)
        self.graph.rebuild()
        return all(n in again.stored and self.graph.equal(again.stored[n], v) for n, v in roots.items())

    def _joined(self, file: syntax.File | None, name: str = "") -> syntax.File | None:
        program = None if file is None else self._typed(file, name)
        if file is None or program is None:
            return None
        if isinstance(program, ir.Kernel):
            return file
        try:
            return joined(file, program, self.extents, self.arch, self.device).tree
        except (NotOneKernel, ShapeError, LimitPassed):
            return None

    # --- prices ----------------------------------------------------------------------

    def seconds(self, file: syntax.File, name: str = "") -> float | None:
        """Returns the estimate of all launches, one after the other; None where no kernel serves one."""
        program = self._typed(file, name)
        try:
            if program is None:
                return None
            sizes = complete(program, {d: self.extents[d] for d in free_dims(program)})
            if isinstance(program, ir.Kernel):
                return kernel_seconds(program, sizes, self.arch, self.device)
            if program.unordered:
                program = permuted(program, choose_orders(program, sizes, self._launch_seconds))
            return math.fsum(map(self._launch_seconds, sized_pipeline(program, sizes).steps))
        except (NotOneKernel, ShapeError, LimitPassed):
            return None

    def _launch_seconds(self, step: Launch) -> float:
        if step.kernel is None:
            return 0.0
        return kernel_seconds(step.kernel, step.sizes, self.arch, self.device)

    # --- derivations -----------------------------------------------------------------

    def shown(self, candidate: AlgebraCandidate) -> Iterator[DerivationStep]:
        roots = {name: self.whole.stored[name] for name in candidate.roots}
        for proved in candidate.steps:
            roots = roots | {proved.root: proved.value}
            file = self._file(roots, self._full(roots))
            file = self._joined(file) or file
            text = "" if file is None else format_file(file)
            seconds = None if file is None else self.seconds(file)
            yield DerivationStep(self.rules[proved.step.rule], text, seconds)


def _extents_agree(program: ir.Program, other: ir.Program) -> bool:
    """Returns whether each dimension of a program is one of another, of the same extent: a name stands for it in the
    terms of both."""
    return all(other.dims.get(dim) == extent for dim, extent in program.dims.items())


def _alike(a: AlgebraCandidate, b: AlgebraCandidate) -> bool:
    """Two candidates differ in spelling alone, as far as prices tell."""
    return a.text == b.text or (math.isclose(a.seconds, b.seconds) and {*a.rules} == {*b.rules})


def _base(operand: Value) -> Value:
    """Returns what is read where a dot reads an operand."""
    while isinstance(operand, ir.Read) or (isinstance(operand, ir.Cast) and not operand.elem.storable):
        operand = operand.value
    return operand

"""Cuts a graph into stages, each of which one kernel serves.

Every computation starts as a stage of its own. First the work behind a dot joins it, then each stage takes in
what only it reads, as far as the checker and the kernel families accept the kernel that would do both and the
cost model does not say that it takes longer than its parts. At last, what several stages read is computed by
each of them where that is quicker.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ucutlass.grammar import syntax
from ucutlass.importer.atoms import Conflict
from ucutlass.importer.expressions import names_in
from ucutlass.importer.graph import (
    Computation,
    ImportedStage,
    Node,
    Reshape,
    TensorGraph,
    TorchStage,
    in_order,
    with_constant,
    with_copy,
    with_stored,
)
from ucutlass.importer.prices import StagePrices
from ucutlass.importer.several_results import joined
from ucutlass.importer.text import INLINE_STAGES
from ucutlass.pipeline.pricing import pays

MOST_ROUNDS = 20
"""How often a graph is cut anew with more copies in it."""

SLACK = 0.05
"""Share of the time of stages that estimates must differ by to decide against the rule: cost models are not
more exact, and two imports at different extents should agree."""

SLACK_OF_DOTS = 0.5
"""The same for products side by side, as of a gated pair, in one kernel: its family has wgmma for 16 bits alone, and in
f32 takes up to 25 times as long."""

_REPEATABLE = frozenset({"index", "constant", "pointwise", "reduction"})
"""Kinds of computations that several stages may each do."""

LARGE_EPILOGUE = 12
"""Element-wise operators that are joined to a dot without asking what they cost its registers."""

MOST_REPEATED, MOST_READERS = 4, 4
"""Computations of a stage that is done anew, and stages that do it: a text with more is not what a person would
write."""

APPLIED_IN_WINDOWS = 2.0
"""Times the estimate that a window takes which works on its elements: it does so for each of them where they overlap,
and loads what is the same for all again (1.7 to 3.8 times on an H100, of pooled norms)."""

FEW = 16
"""Elements that are worked on for each that is reduced from them, from which the work may move to where it is read."""

DEEP = 3
"""How many stages before one are tried together with it: attention is a dot, a softmax, and the dot before."""


LARGEST_INLINE = 64
"""A constant of more computations, counted as often as they are read, is stored and not computed anew by each
stage: a mask that is written piece by piece reads the one before it several times each."""


class NoKernelServes(Exception):
    """A computation that no kernel serves even alone."""

    def __init__(self, node: Node, why: str) -> None:
        super().__init__(f"{node.origin.operator}: {why}")
        self.node, self.why = node, why


@dataclass(slots=True)
class _Cutter:
    graph: TensorGraph
    prices: StagePrices
    nodes: dict[str, Node] = field(default_factory=dict)
    order: dict[str, int] = field(default_factory=dict)
    inline: set[str] = field(default_factory=set)
    """Views and constants, which every stage that reads them holds itself."""
    regions: dict[str, frozenset[str]] = field(default_factory=dict)
    """By root: the nodes of a stage, without those inline."""
    holders: dict[str, list[str]] = field(default_factory=dict)
    """By node: the roots of the regions that have it."""
    tried: dict[tuple[frozenset[str], str], ImportedStage | str] = field(default_factory=dict)
    texts: dict[tuple[frozenset[str], str], syntax.Program] = field(default_factory=dict)
    """By nodes and root: the text of the stage, where it is a kernel."""
    statistics: set[str] = field(default_factory=set)
    """The roots of what was reduced for work that its reader does."""
    sinks: dict[str, list[str]] = field(default_factory=dict)
    """By value: the nodes that are not inline and read it, and `=NAME` for a result."""

    def __post_init__(self) -> None:
        sizes: dict[str, int] = {}
        for number, node in enumerate(self.graph.nodes):
            self.nodes[node.name] = node
            self.order[node.name] = number
            size = _size(node, sizes)
            constant = node.hint != "copy" and size <= LARGEST_INLINE and self._is_constant(node)
            if node.kind == "view" or constant:
                self.inline.add(node.name)
                sizes[node.name] = size
        for node in self.graph.nodes:
            if node.name not in self.inline:
                for value in dict.fromkeys(o.value for o in node.operands):
                    self._sink(value, node.name)
        for result in self.graph.results:
            self._sink(result, f"={result}")

    def _is_constant(self, node: Node) -> bool:
        return node.kind == "constant" or (
            node.kind in ("pointwise", "index")
            and bool(node.operands)
            and all(self._from_nothing(o.value) for o in node.operands)
        )

    def _from_nothing(self, value: str) -> bool:
        node = self.nodes.get(value)
        return (
            node is not None
            and node.name in self.inline
            and all(self._from_nothing(o.value) for o in node.operands)
        )

    def _sink(self, value: str, sink: str) -> None:
        """Adds a reader of a value, through what is inline."""
        readers = self.sinks.setdefault(value, [])
        if sink in readers:
            return
        readers.append(sink)
        if value in self.inline:
            for operand in self.nodes[value].operands:
                self._sink(operand.value, sink)

    # --- stages ------------------------------------------------------------------

    def stage(self, members: frozenset[str], root: str) -> ImportedStage | str:
        """Returns the stage of these nodes that gives `root`, or why no kernel serves it."""
        key = (members, root)
        if key not in self.tried:
            self.tried[key] = self._attempt(members, root)
        return self.tried[key]

    def _attempt(self, members: frozenset[str], root: str) -> ImportedStage | str:
        inside: set[str] = set()
        inputs: list[str] = []
        stack = [root]
        while stack:
            value = stack.pop()
            if value in inside or value in inputs:
                continue
            if value in members or value in self.inline:
                inside.add(value)
                stack += [o.value for o in reversed(self.nodes[value].operands)]
            else:
                inputs.append(value)
        nodes = tuple(self.nodes[n] for n in sorted(inside, key=self.order.__getitem__))
        if nodes and any(isinstance(n, TorchStage) for n in nodes):
            if len(nodes) > 1 and not all(n.kind == "view" for n in nodes[:-1]):
                return "torch computes a stage of its own"
            return ImportedStage(nodes, tuple(inputs), (root,))
        try:
            tree, reads = self.prices.text(self.graph.values, nodes, (root,))
        except Conflict as problem:
            return str(problem)
        kernel = self.prices.kernel(tree)
        if isinstance(kernel, str):
            return kernel
        self.texts[members, root] = tree
        return ImportedStage(nodes, reads, (root,))

    def _seconds(self, members: frozenset[str], root: str) -> float:
        """Returns the estimate of a stage at its extents: 0 for a torch function, infinity where no kernel does
        it."""
        stage = self.stage(members, root)
        if isinstance(stage, str):
            return math.inf
        if stage.torch is not None:
            return 0.0
        return self.prices.seconds(self.texts[members, root])

    def together(self, nodes: Collection[Node], outputs: Sequence[str]) -> tuple[ImportedStage, float] | None:
        """Returns the stage that gives these values and its estimate, None where no kernel does."""
        members = tuple(sorted(nodes, key=lambda node: self.order[node.name]))
        try:
            tree, reads = self.prices.text(self.graph.values, members, outputs)
        except Conflict:
            return None
        if isinstance(self.prices.kernel(tree), str):
            return None
        return ImportedStage(members, reads, tuple(outputs)), self.prices.seconds(tree)

    # --- merging -----------------------------------------------------------------

    def run(self) -> list[ImportedStage]:
        for node in self.graph.nodes:
            if node.name not in self.inline:
                self._put(node.name, frozenset({node.name}))
        for result in dict.fromkeys(self.graph.results):
            self._result(result)
        for root in [r for r in self.regions if self._holds_dot(r)]:
            self._behind(root)
        for root in sorted(self.regions, key=self._place):
            if root in self.regions and self._holds_dot(root):
                self._attention(root)
        for root in sorted(self.regions, key=self._place):
            if root in self.regions:
                self._before(root)
        for root in sorted(self.regions, key=self._place, reverse=True):
            if root in self.regions:
                self._apply_where_read(root)
        self._repeated()
        stages: list[ImportedStage] = []
        unclean: dict[str, tuple[Node, bool]] = {}
        why = ""
        for root in sorted(self.regions, key=self._place):
            stage = self.stage(self.regions[root], root)
            if isinstance(stage, str):
                cause = self._reshape_of(root) or self._repeating(root) or self._viewed_constant(root)
                if cause is not None:
                    why = why or stage
                    unclean[cause.name] = cause, cause.name in self.inline
                    continue
                raise NoKernelServes(self.nodes.get(root) or self.graph.nodes[-1], stage)
            stages.append(stage)
        if unclean:
            raise _Unclean(tuple(unclean.values()), why)
        return in_order(stages)

    def _reshape_of(self, root: str) -> Reshape | None:
        """Returns the last reshape between a stage and what it reads, where names are in conflict there."""
        values = [v for m in (self.regions[root] or {root}) for v in self._values(m)]
        nodes = [node for v in dict.fromkeys(values) if isinstance(node := self.nodes.get(v), Reshape)]
        reshapes = [node for node in nodes if not self._copied(node)]
        return max(reshapes, key=lambda node: self.order[node.name], default=None)

    def _repeating(self, root: str) -> Node | None:
        """Returns the first computation of a stage that reads a view or a constant."""
        nodes = [self.nodes[m] for m in sorted(self.regions[root], key=self.order.__getitem__)]
        return next((n for n in nodes if n.hint != "copy" and self._inline_operands(n)), None)

    def _viewed_constant(self, root: str) -> Node | None:
        """Returns a constant that a stage reads through a view, which cannot be computed under its names."""
        values = [v for m in (self.regions[root] or {root}) for v in self._values(m)]
        nodes = [self.nodes[v] for v in dict.fromkeys(values) if v in self.inline]
        views = [n for n in nodes if n.kind == "view" and n.operands[0].value in self.inline]
        constants = [self.nodes[n.operands[0].value] for n in views]
        return next((n for n in constants if n.kind != "view"), None)

    def _inline_operands(self, node: Node) -> list[int]:
        return [i for i, o in enumerate(node.operands) if o.value in self.inline]

    def _copied(self, reshape: Reshape) -> bool:
        """Returns whether a reshape reads a copy already, or reads what lies in the same axes."""
        source = self.nodes.get(reshape.value)
        own = [n for n in self.graph.values[reshape.value].shape if n != 1]
        if reshape.hint == "copy" or (source is not None and source.hint == "copy"):
            return True
        return own == [n for n in reshape.tensor.shape if n != 1]

    def _place(self, root: str) -> int:
        return self.order.get(root, -1)

    def _result(self, result: str) -> None:
        """A result that is a view is given by the stage that computes it, or copied by one of its own."""
        if result in self.regions:
            return
        base = result
        while base in self.inline and self.nodes[base].operands and self.nodes[base].kind == "view":
            base = self.nodes[base].operands[0].value
        alone = base in self.regions and self.sinks[base] == [f"={result}"]
        if alone and not isinstance(self.nodes[base], TorchStage):
            merged = self.regions[base]
            if not isinstance(self.stage(merged, result), str):
                self._take(base)
                self._put(result, merged)
                return
        self._put(result, frozenset())

    def _holds_dot(self, root: str) -> bool:
        return any(
            self.nodes[n].kind == "dot" and not isinstance(self.nodes[n], TorchStage)
            for n in self.regions[root]
        )

    def _base(self, root: str) -> str:
        """Returns the node of a region that its root is a view of."""
        while root in self.inline:
            root = self.nodes[root].operands[0].value
        return root

    def _reading(self, value: str) -> list[str]:
        """Returns the roots of the regions that read a value; `=` for a result that no region is."""
        roots: list[str] = []
        for sink in self.sinks.get(value, ()):
            if sink.startswith("="):
                roots.append("=" if sink[1:] == value or sink[1:] not in self.regions else sink[1:])
            else:
                roots += self.holders.get(sink, [])
        return list(dict.fromkeys(roots))

    def _behind(self, root: str) -> None:
        """Joins the work behind a dot to it, as far as one kernel does both."""
        while root in self.regions:
            reading = self._reading(root)
            if len(reading) != 1 or reading[0] == "=" or reading[0] not in self.regions:
                return
            reader = reading[0]
            kinds = {self.nodes[n].kind for n in self.regions[reader]}
            if kinds & {"window", "scan"} or not self._merge([root], reader):
                return
            root = reader

    def _merge(self, producers: Sequence[str], reader: str) -> bool:
        merged = self.regions[reader].union(*(self.regions[p] for p in producers))
        if isinstance(self.stage(merged, reader), str):
            return False
        beside = self._beside(producers, reader)
        if beside or self._doubtful(producers, reader):
            apart = [self._seconds(self.regions[r], r) for r in (*producers, reader)]
            if not pays(apart, [self._seconds(merged, reader)], -SLACK_OF_DOTS if beside else -SLACK):
                return False
        for producer in producers:
            self._take(producer)
        self._put(reader, merged)
        return True

    def _doubtful(self, producers: Sequence[str], reader: str) -> bool:
        """Returns whether a price decides on stages that one kernel serves: where operands of a dot would be
        computed or read otherwise on the way in, or its results stored elsewhere or met by what lies in other axes,
        which may cost it TMA and wgmma, where much would be done behind a dot, and where what was reduced is
        repeated, which may reduce it anew for each of its readers. Other stages are always quicker together."""
        if self._repeats(producers, reader):
            return True
        into = self._holds_dot(reader)
        dots = [p for p in producers if self._holds_dot(p)]
        if into:
            return not dots
        behind = {n for n in self.regions[reader] if self.nodes[n].kind not in ("view", "constant")}
        reduces = any(self.nodes[n].kind == "reduction" for n in behind)
        copies = any(self.nodes[n].hint == "copy" for n in behind)
        met = any(self._is_reshaped(o.value, producers) for n in behind for o in self.nodes[n].operands)
        return bool(dots) and (reduces or copies or met or len(behind) > LARGE_EPILOGUE)

    def _is_reshaped(self, value: str, producers: Collection[str]) -> bool:
        """Returns whether a value is another one under another shape; a producer's, whether it is so more than
        once, which moves its elements."""
        count = 0
        while value in self.inline and self.nodes[value].kind == "view":
            count += isinstance(self.nodes[value], Reshape)
            value = self.nodes[value].operands[0].value
        return count > (value in producers)

    def _beside(self, producers: Sequence[str], reader: str) -> bool:
        """Returns whether both have dots of which none of the reader's reads what the producers give, as those of
        attention do."""
        dots = [n for n in self.regions[reader] if self.nodes[n].kind == "dot"]
        read = {value for dot in dots for value in self._values(dot)}
        return bool(dots) and any(map(self._holds_dot, producers)) and read.isdisjoint(producers)

    def _repeats(self, producers: Sequence[str], reader: str) -> bool:
        """Returns whether a stage has more elements than a reduction that it would take in."""
        elements = math.prod(self.graph.values[reader].shape)
        return any(
            elements > math.prod(self.graph.values[p].shape)
            and any(self.nodes[n].kind in ("reduction", "window") for n in self.regions[p])
            for p in producers
        )

    def _put(self, root: str, members: frozenset[str]) -> None:
        self.regions[root] = members
        for member in members:
            holders = self.holders.setdefault(member, [])
            if root not in holders:
                holders.append(root)

    def _take(self, root: str) -> None:
        for member in self.regions.pop(root):
            self.holders[member].remove(root)

    def _absorbable(self, readers: Iterable[str]) -> list[str]:
        """Returns the roots whose values only these regions read."""
        roots = set(readers)
        members = frozenset().union(*(self.regions[r] for r in roots))
        values = dict.fromkeys(v for m in (members or roots) for v in self._values(m))
        return [v for v in values if v in self.regions and v not in roots and set(self._reading(v)) <= roots]

    def _values(self, name: str) -> list[str]:
        """Returns what a node reads, through what is inline."""
        values: list[str] = []
        inside = name in self.nodes and name not in self.inline
        stack = [o.value for o in self.nodes[name].operands] if inside else [name]
        while stack:
            value = stack.pop()
            values.append(value)
            if value in self.inline:
                stack += [o.value for o in self.nodes[value].operands]
        return values

    def _before(self, reader: str) -> None:
        """Takes in what only this stage reads."""
        changed = True
        while changed:
            changed = False
            for producer in self._absorbable([reader]):
                if self._merge([producer], reader) or self._deep(producer, reader):
                    changed = True
                    break

    def _attention(self, root: str) -> None:
        """Joins two dots around a softmax before either takes in what it reads: attention reads stored operands
        alone, and a part of a projection is better copied than its scores are stored."""
        for producer in self._absorbable([root]):
            if self._deep(producer, root):
                return

    def _deep(self, producer: str, reader: str) -> bool:
        """Tries a stage together with some before it: where two are refused, three may be attention. What is no product is
        left out where it is that which is refused, such as a bias that is gathered."""
        if not self._holds_dot(reader) or any(self.nodes[n].kind == "dot" for n in self.regions[producer]):
            return False
        group = [producer]
        for _ in range(DEEP):
            more = [v for v in self._absorbable([reader, *group]) if v not in group and v != reader]
            more = [v for v in more if v in self._feeding(group)]
            if not more:
                return False
            products = [v for v in more if self._holds_dot(v)]
            if self._merge([*group, *more], reader) or (
                products and products != more and self._merge([*group, *products], reader)
            ):
                return True
            group += more
        return False

    def _feeding(self, group: Sequence[str]) -> set[str]:
        return {v for root in group for m in self.regions[root] for v in self._values(m)}

    def _apply_where_read(self, root: str) -> None:
        """Parts a stage that reduces and works on all elements again, such as a batch norm, where its reader does that
        work in its own pass: what was reduced is stored alone, and the elements are read twice and not stored."""
        members, reading = self.regions[root], self._reading(root)
        if (
            not self.prices.exact
            or len(reading) != 1
            or reading[0] not in self.regions
            or root not in members
        ):
            return
        reader = reading[0]
        kinds = {self.nodes[n].kind for n in members}
        if "reduction" not in kinds or not kinds <= _REPEATABLE or self._holds_dot(reader):
            return
        size = math.prod(self.graph.values[root].shape)
        work = frozenset(n for n in members if math.prod(self.graph.values[n].shape) == size)
        small = members - work
        reduced = [v for v in dict.fromkeys(v for n in work for v in self._values(n)) if v in small]
        if not reduced or any(self.graph.values[v].element != "f32" for v in reduced):
            return
        parts = {v: self._ancestors(v, members) for v in reduced}
        if frozenset().union(*parts.values()) & work or sum(self._elements(v) for v in reduced) * FEW > size:
            return
        window = self._window_before_reductions(reader)
        if window == "=":
            return
        own = self.regions[reader]
        ahead = self._ancestors(window, own) if window else own
        applied = {window or reader: ahead | work, **({reader: own - ahead} if window else {})}
        apart = [self._seconds(members, root), self._seconds(own, reader)]
        together = [self._seconds(part, v) for v, part in parts.items()]
        if len(parts) > 1:
            nodes = [self.nodes[n] for n in frozenset().union(*parts.values())]
            views = [self.nodes[v] for n in nodes for v in self._values(n.name) if v in self.inline]
            joined = self.together({n.name: n for n in (*nodes, *views)}.values(), reduced)
            together = together if joined is None else [joined[1]]
        for value, part in applied.items():
            windows = any(self.nodes[n].kind == "window" for n in part & ahead)
            together.append(
                self._seconds(part, value) * (APPLIED_IN_WINDOWS if windows and work & part else 1.0)
            )
        if not pays(apart, together, SLACK):
            return
        self.statistics |= parts.keys()
        self._take(root)
        for value, part in parts.items():
            self._put(value, part)
        self._take(reader)
        for value, part in applied.items():
            self._put(value, part)

    def _window_before_reductions(self, root: str) -> str:
        """Returns the window whose values a stage reduces once more, "" where it has none, "=" where it has several: each
        pass of a reduction reads windows anew, and would do what is ahead of them anew."""
        kinds = {n: self.nodes[n].kind for n in self.regions[root]}
        windows = [n for n, kind in kinds.items() if kind == "window"]
        if not windows or "reduction" not in kinds.values():
            return ""
        return windows[0] if len(windows) == 1 and windows[0] != root else "="

    def _elements(self, value: str) -> int:
        return math.prod(self.graph.values[value].shape)

    def _ancestors(self, value: str, members: frozenset[str]) -> frozenset[str]:
        """Returns the nodes of a region that a value is computed of, with its own."""
        needed: set[str] = set()
        stack = [value]
        while stack:
            name = stack.pop()
            if name in members and name not in needed:
                needed.add(name)
                stack += self._values(name)
        return frozenset(needed)

    def _repeated(self) -> None:
        """Lets readers compute anew what moves elements, and what else is quicker so, where each of them can."""
        for root in sorted(self.regions, key=self._place, reverse=True):
            members = self.regions[root]
            kinds = {self.nodes[n].kind for n in members}
            reading = self._reading(root)
            if not members or not reading or "=" in reading or any(r not in self.regions for r in reading):
                continue
            if not kinds <= _REPEATABLE or any(isinstance(self.nodes[n], TorchStage) for n in members):
                continue
            moves = kinds <= {"index", "constant"} and self._is_one_read(members)
            inputs = {v for n in members for v in self._values(n)} - members - self.inline
            if not moves and (len(members) > MOST_REPEATED or len(inputs) > 1 or len(reading) > MOST_READERS):
                continue
            merged = {r: self.regions[r] | members for r in reading}
            if any(isinstance(self.stage(m, r), str) for r, m in merged.items()):
                continue
            apart = [self._seconds(members, root), *(self._seconds(self.regions[r], r) for r in reading)]
            together = [self._seconds(m, r) for r, m in merged.items()]
            if not pays(apart, together, -SLACK if moves else SLACK):
                continue
            for reader, whole in merged.items():
                self._put(reader, whole)
            self._take(root)

    def _is_one_read(self, members: frozenset[str]) -> bool:
        return len(members) == 1 and len(self.nodes[next(iter(members))].operands) <= 1


def _size(node: Node, sizes: Mapping[str, int]) -> int:
    """Returns how many computations a value is, of operands of these sizes; what is stored has none."""
    reads = [o.value for o in node.operands]
    if isinstance(node, Computation):
        words = list(names_in(node.body))
        return 1 + sum(sizes.get(value, 0) * words.count(f"x{i}") for i, value in enumerate(reads))
    return 1 + sum(sizes.get(value, 0) for value in reads)


class _Unclean(Exception):
    """What must be stored before a stage can be a kernel: reshapes, whose names on the two sides do not fit,
    views and constants that a computation reads, and constants that a view reads. With each stands whether
    it is a constant or a view itself."""

    def __init__(self, nodes: tuple[tuple[Node, bool], ...], why: str) -> None:
        super().__init__(nodes[0][0].name)
        self.nodes, self.why = nodes, why


def _stored(graph: TensorGraph, node: Node, inline: Collection[str]) -> TensorGraph:
    """Returns the graph with a copy before a reshape, or of every operand of another node that is computed
    inline."""
    if isinstance(node, Reshape):
        return with_copy(graph, node)
    for number, operand in enumerate(node.operands):
        if operand.value in inline:
            graph = with_stored(graph, next(n for n in graph.nodes if n.name == node.name), number)
    return graph


def cut(
    graph: TensorGraph, several: bool = False, prices: StagePrices | None = None
) -> tuple[TensorGraph, list[ImportedStage]]:
    """Returns the stages of a graph, each after what it reads, and the graph with the copies that they need.
    `several`: stages may have more than one result. Else those of statistics alone have, in a program so short that each
    value has a binding. `prices` are added to. Raises NoKernelServes."""
    prices = StagePrices() if prices is None else prices
    for _ in range(MOST_ROUNDS):
        cutter = _Cutter(graph, prices)
        try:
            stages = cutter.run()
            if several or (prices.exact and len(stages) > INLINE_STAGES):
                stages = joined(stages, graph.results, graph.values, cutter.together)
            elif cutter.statistics:
                stages = joined(stages, graph.results, graph.values, cutter.together, cutter.statistics)
            return graph, stages
        except _Unclean as problem:
            before = graph
            for node, inline in problem.nodes:
                constant = inline and node.kind != "view"
                graph = with_constant(graph, node) if constant else _stored(graph, node, cutter.inline)
            if graph is before:
                raise NoKernelServes(problem.nodes[0][0], problem.why) from problem
    raise NoKernelServes(graph.nodes[-1], "its views and reshapes do not fit any kernel")

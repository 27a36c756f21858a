"""Chooses the memory orders of buffers between stages. Where the text leaves an order out (`h: bf16 = e`),
the compiler takes the one for which the producer and the readers are together estimated fastest; where the
text gives one, `ucc explain` says which order would be faster.

An order changes no result: kernels address axes by name, and the types of the producer and of all readers are
permuted together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations, islice, permutations, product
from typing import TypeAlias

from ucutlass import ir
from ucutlass.diagnostics import ProgramError
from ucutlass.ir import Kernel, Pipeline, TensorType
from ucutlass.ir.extents import show
from ucutlass.pipeline.copy_elision import elided_copies
from ucutlass.pipeline.sized import SizedPipeline, Step, with_copies

Orders: TypeAlias = Mapping[str, tuple[int, ...]]
"""The axes of each buffer in memory order, outermost first."""

Seconds: TypeAlias = Callable[[Step], float]
"""Returns a step's estimate in seconds. Raises ProgramError where the step has no kernel."""

MOST_ESTIMATES = 240
"""Most orders that are estimated for all buffers together; each buffer gets an equal share."""

FEWEST_ORDERS = 4
"""Fewest orders that are tried for a buffer: the given one, and each of three axes innermost."""

MOST_TOGETHER = 48
"""Most combinations of orders that are tried for buffers whose stages have no kernel."""

ROUNDS = 3
"""Most passes over the buffers: one buffer's order may favour another order of its neighbour."""

WORTH = 0.97
"""Ratio of estimates below which another order is taken; smaller differences are within the estimate's
error."""

Cost: TypeAlias = tuple[int, float]
"""The number of stages without a kernel, and the seconds of the others."""


@dataclass(frozen=True, slots=True)
class BetterOrder:
    """An order that is estimated faster than the one in the text: the buffer's type in that order, and the
    seconds that it saves."""

    buffer: str
    type: TensorType
    saves: float


def permuted(pipeline: Pipeline, orders: Orders) -> Pipeline:
    """Returns the pipeline with these buffers' axes permuted wherever they are filled and read; no buffer of
    it is left without an order."""
    return replace(
        pipeline,
        buffers=tuple((name, _permuted_type(type_, name, orders)) for name, type_ in pipeline.buffers),
        stages=tuple(_permuted_stage(stage, orders) for stage in pipeline.stages),
        unordered=(),
    )


def _permuted_type(type_: TensorType, name: str, orders: Orders) -> TensorType:
    if name not in orders:
        return type_
    return TensorType(type_.elem, tuple(type_.axes[i] for i in orders[name]))


def _permuted_stage(stage: ir.Stage, orders: Orders) -> ir.Stage:
    kernel = stage.call
    if not isinstance(kernel, Kernel) or not orders.keys() & {*stage.outputs, *stage.arguments}:
        return stage
    params = tuple(
        replace(decl, type=_permuted_type(decl.type, argument, orders))
        if isinstance(decl.type, TensorType) and isinstance(argument, str)
        else decl
        for decl, argument in zip(kernel.params, stage.arguments, strict=True)
    )
    results = tuple(
        replace(decl, type=_permuted_type(decl.type, name, orders))
        for decl, name in zip(kernel.results, stage.outputs, strict=True)
    )
    return replace(stage, call=replace(kernel, params=params, results=results))


def type_text(type_: TensorType) -> str:
    """Returns the type as a text writes it: `bf16[B, T, (H D)]`."""
    axes = [
        show(axis.extent)
        if not axis.dims
        else axis.dims[0]
        if len(axis.dims) == 1
        else f"({' '.join(axis.dims)})"
        for axis in type_.axes
    ]
    return f"{type_.elem.name}[{', '.join(axes)}]"


# --- the quickest ------------------------------------------------------------------


def choose_orders(pipeline: Pipeline, sizes: tuple[int, ...], seconds: Seconds) -> Orders:
    """Returns an order for every buffer that has none. The search starts from the order that suits each
    producer alone, then takes the fastest order of one buffer after another with the others fixed. Where a
    stage has no kernel in these orders, all buffers that it touches are permuted together, each to the
    producer's best order for every innermost axis. Raises ShapeError as `sized_pipeline` does."""
    if not pipeline.unordered:
        return {}
    search = _Search(pipeline, with_copies(pipeline, sizes), seconds, len(pipeline.unordered))
    chosen = search.settled({name: search.producer_ranked(name)[0] for name in pipeline.unordered})
    blocked = search.blocked(chosen)
    innermost_choices = [
        {order[-1]: order for order in reversed(search.producer_ranked(name))}.values() for name in blocked
    ]
    trials = [
        {**chosen, **dict(zip(blocked, orders, strict=True))}
        for orders in islice(product(*innermost_choices), MOST_TOGETHER if blocked else 0)
    ]
    if trials:
        chosen = search.settled(min(trials, key=lambda trial: search.cost(trial, search.all)))
    return chosen


def better_orders(pipeline: Pipeline, sizes: tuple[int, ...], seconds: Seconds) -> tuple[BetterOrder, ...]:
    """Returns every buffer between stages that no torch function touches and whose producer and readers would
    be faster with another order, the other buffers being fixed. Raises ShapeError as `sized_pipeline`
    does."""
    candidates = [name for name, _ in pipeline.buffers if not _by_torch(pipeline, name)]
    search = _Search(pipeline, with_copies(pipeline, sizes), seconds, len(candidates))
    improvements: list[BetterOrder] = []
    for name, type_ in pipeline.buffers:
        if name not in candidates:
            continue
        current_cost = search.cost({}, search.touching(name))
        order = search.best(name, {})
        best_cost = search.cost({name: order}, search.touching(name))
        if current_cost[0] == best_cost[0] and best_cost[1] < current_cost[1]:
            improvements.append(
                BetterOrder(name, _permuted_type(type_, name, {name: order}), current_cost[1] - best_cost[1])
            )
    return tuple(improvements)


def _by_torch(pipeline: Pipeline, name: str) -> bool:
    """Returns whether a torch function touches the buffer, since torch functions address axes by number."""
    return any(
        isinstance(stage.call, ir.TorchCall) and name in (*stage.arguments, *stage.outputs)
        for stage in pipeline.stages
    )


def some_orders(axes: int) -> Iterator[tuple[int, ...]]:
    """Yields permutations of `axes` axes, the most useful ones first: the identity, one axis innermost,
    neighbours exchanged, one axis outermost, two axes innermost; of up to four axes, all permutations."""
    identity = tuple(range(axes))
    orders = [identity]
    orders += [(*(a for a in identity if a != last), last) for last in reversed(identity)]
    for a in reversed(identity[:-1]):
        orders.append((*identity[:a], a + 1, a, *identity[a + 2 :]))
    orders += [(first, *(a for a in identity if a != first)) for first in identity]
    if axes <= 4:
        orders += permutations(identity)
    else:
        pairs = (pair for two in combinations(reversed(identity), 2) for pair in (two[::-1], two))
        orders += [(*(a for a in identity if a not in pair), *pair) for pair in pairs]
    yield from dict.fromkeys(orders)


@dataclass(frozen=True, slots=True)
class _Search:
    """`sized` is the pipeline at its extents, which no order changes; `buffers` is the number of buffers
    whose orders are searched."""

    pipeline: Pipeline
    sized: SizedPipeline
    seconds: Seconds
    buffers: int
    costs: dict[object, Cost] = field(default_factory=dict)

    @property
    def all(self) -> frozenset[str]:
        """The outputs of all stages."""
        return frozenset(output for stage in self.pipeline.stages for output in stage.outputs)

    def producer_ranked(self, name: str) -> list[tuple[int, ...]]:
        """Returns a buffer's orders, those first that are fastest to fill."""
        own = frozenset(o for s in self.pipeline.stages if name in s.outputs for o in s.outputs)
        return sorted(self.candidates(name), key=lambda order: self.cost({name: order}, own))

    def blocked(self, chosen: Orders) -> tuple[str, ...]:
        """Returns the buffers without an order that are touched by stages without a kernel."""
        touched = {
            name
            for step in self._launches(chosen, self.all)
            if self._step(step)[0]
            for name in (*step.stage.outputs, *step.reads)
        }
        return tuple(name for name in self.pipeline.unordered if name in touched)

    def settled(self, chosen: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Optimises one buffer's order after the other until none changes."""
        for _ in range(ROUNDS):
            before = dict(chosen)
            for name in before:
                chosen = {**chosen, name: self.best(name, chosen)}
            if chosen == before:
                break
        return chosen

    def candidates(self, name: str) -> Iterator[tuple[int, ...]]:
        """Yields the orders of a buffer that are estimated."""
        axes = dict(self.pipeline.buffers)[name].axes
        return islice(some_orders(len(axes)), max(FEWEST_ORDERS, MOST_ESTIMATES // self.buffers))

    def best(self, name: str, others: Orders) -> tuple[int, ...]:
        """Returns the fastest order of a buffer; ties keep the first, which is the current one."""
        touching = self.touching(name)
        standing = others.get(name, tuple(range(len(dict(self.pipeline.buffers)[name].axes))))
        best_order, least = standing, self.cost({**others, name: standing}, touching)
        for order in self.candidates(name):
            cost = self.cost({**others, name: order}, touching)
            if cost[0] < least[0] or (cost[0] == least[0] and cost[1] < least[1] * WORTH):
                best_order, least = order, cost
        return best_order

    def touching(self, name: str) -> frozenset[str]:
        """Returns the outputs of all stages that fill or read a buffer."""
        return frozenset(
            output
            for stage in self.pipeline.stages
            if name in stage.outputs or name in stage.arguments
            for output in stage.outputs
        )

    def cost(self, orders: Orders, touching: frozenset[str]) -> Cost:
        """Returns the cost of the stages that fill any of these buffers; an elided copy costs nothing."""
        absent, total = 0, 0.0
        for step in self._launches(orders, touching):
            step_cost = self._step(step)
            absent, total = absent + step_cost[0], total + step_cost[1]
        return absent, total

    def _launches(self, orders: Orders, touching: frozenset[str]) -> Iterator[Step]:
        """Yields the steps with a kernel that fill any of these buffers, with permuted tensors."""
        permuted = [_permuted_stage(stage, orders) for stage in self.copying]
        stored = [(n, _permuted_type(t, n, orders)) for n, t in self.pipeline.buffers] if permuted else []
        elided = set(elided_copies(permuted, stored, self.pipeline.results).values())
        for step in self.sized.steps:
            fills = {*step.stage.outputs}
            if step.kernel is not None and touching & fills and not elided & fills:
                yield replace(step, stage=_permuted_stage(step.stage, orders))

    @property
    def copying(self) -> list[ir.Stage]:
        """The stages that only return a stored buffer; with the right order there is no such launch."""
        results = {name for name, _ in self.pipeline.results}
        return [
            stage
            for stage in self.pipeline.stages
            if results & {*stage.outputs}
            and isinstance(stage.call, Kernel)
            and isinstance(stage.call.results[0].value, ir.ParamValue)
        ]

    def _step(self, step: Step) -> Cost:
        kernel = step.kernel
        assert kernel is not None
        key = (step.name, *(p.type for p in kernel.params), *(r.type for r in kernel.results))
        if key not in self.costs:
            try:
                self.costs[key] = 0, self.seconds(step)
            except ProgramError:
                self.costs[key] = 1, 0.0
        return self.costs[key]

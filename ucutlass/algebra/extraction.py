"""Takes the cheapest programs out of a graph of equal values, by a roofline of each value.

The price of a value here is a coarse one: it ranks ways to compute a class before launches are known. What is
taken out is written as text and priced by the kernel families (`derivation.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ucutlass import ir
from ucutlass.algebra.egraph import EGraph
from ucutlass.ir import Value, children
from ucutlass.ir.hardware import Device


@dataclass(frozen=True, slots=True)
class Weights:
    """How much launches and bytes count beside arithmetic."""

    launch: float = 1.0
    bytes: float = 1.0


WEIGHTS = (
    Weights(),
    Weights(launch=0.0),
    Weights(launch=4.0),
    Weights(bytes=0.25),
    Weights(bytes=4.0, launch=0.0),
)
"""Extractions with other weights are other candidates."""

SHARE_OF_PEAK = 0.6
"""What kernels reach of a device's peaks."""

PASSES = 3
"""f32 products take three passes of TF32."""


@dataclass(frozen=True, slots=True)
class Coarse:
    """The coarse price of values at concrete extents."""

    sizes: Mapping[str, int]
    device: Device
    weights: Weights
    folded: frozenset[int] = frozenset()
    """Identities of terms that are computed once, and not at each call."""

    def seconds(self, term: Value) -> float:
        if id(term) in self.folded:
            return 0.0
        match term:
            case ir.ParamValue() | ir.Constant() | ir.Size() | ir.Coordinate():
                return 0.0
            case ir.Dot(over=over, left=left, right=right):
                work = 2.0 * self._count(term.dims) * self._count(over) / self._rate(term)
                moved = sum(self._bytes(v) for v in (left, right, term)) / self.device.bandwidth
                stored = sum(map(self._stored, (left, right)))
                return max(work / SHARE_OF_PEAK, moved * self.weights.bytes) + self._launch + stored
            case ir.Reduce(value=value) | ir.Softmax(value=value) | ir.Scan(value=value):
                work = self._count(value.dims) / self._plain
                moved = (self._bytes(value) + self._bytes(term)) / self.device.bandwidth
                return max(work, moved * self.weights.bytes) + self._launch
            case _:
                # Element-wise work is done where its operands are made or read.
                moved = 0.05 * self._bytes(term) / self.device.bandwidth
                return self._count(term.dims) / self._plain + moved * self.weights.bytes + 1e-10

    def _stored(self, operand: Value) -> float:
        """Returns what it costs to store an operand that is computed element by element: a dot reads memory."""
        if not isinstance(operand, ir.Apply | ir.Cast) or not operand.elem.storable:
            return 0.0
        return 2.0 * self._bytes(operand) / self.device.bandwidth * self.weights.bytes + self._launch

    @property
    def _launch(self) -> float:
        return self.device.launch_floor * self.weights.launch

    @property
    def _plain(self) -> float:
        return self.device.peaks["f32"] / 4.0

    def _rate(self, dot: ir.Dot) -> float:
        peaks = self.device.peaks
        if dot.compute_type.name == "f32":
            return peaks.get("tf32", PASSES * peaks["f32"]) / PASSES
        name = "f16" if dot.compute_type.name == "bf16" else dot.compute_type.name
        return peaks.get(name, peaks["f32"])

    def _count(self, dims: Sequence[str]) -> int:
        return math.prod(self.sizes[d] for d in dims)

    def _bytes(self, term: Value) -> float:
        return self._count(term.dims) * term.elem.bits / 8


@dataclass(frozen=True, slots=True)
class _Choice:
    """A term of a class with everything that it needs: the price of each class, by representative."""

    term: Value
    needs: Mapping[int, float]
    seconds: float


class _Circular(Exception):
    """Choices that were improved one after the other need each other."""


ROUNDS = 30


def extract(graph: EGraph, roots: Sequence[Value], price: Coarse) -> tuple[Value, ...] | None:
    """Returns the cheapest terms of the roots' classes in which what is used twice is paid once, as a greedy
    bottom-up extraction finds them; None where a class has no term without itself."""
    best: dict[int, _Choice] = {}
    classes = [(id(root), members) for root, members in graph.classes()]
    own = {id(t): price.seconds(t) for _, members in classes for t in members}
    for _ in range(ROUNDS):
        changed = False
        for identity, members in classes:
            for term in members:
                choice = _chosen(graph, identity, term, own[id(term)], best)
                cheapest = best.get(identity)
                if choice is not None and (
                    cheapest is None or choice.seconds < cheapest.seconds * (1 - 1e-9)
                ):
                    best[identity] = choice
                    changed = True
        if not changed:
            break
    done: dict[int, Value] = {}
    if any(id(graph.find(root)) not in best for root in roots):
        return None
    try:
        return tuple(_taken(graph, root, best, done, set()) for root in roots)
    except _Circular:
        return None


def _chosen(
    graph: EGraph, identity: int, term: Value, seconds: float, best: Mapping[int, _Choice]
) -> _Choice | None:
    needs: dict[int, float] = {}
    for part in children(term):
        choice = best.get(id(graph.find(part)))
        if choice is None or identity in choice.needs:
            return None
        needs |= choice.needs
    needs[identity] = seconds
    return _Choice(term, needs, math.fsum(needs.values()))


def _taken(
    graph: EGraph, term: Value, best: Mapping[int, _Choice], done: dict[int, Value], open_: set[int]
) -> Value:
    identity = id(graph.find(term))
    if identity not in done:
        if identity in open_:
            raise _Circular
        open_.add(identity)
        chosen = best[identity].term
        done[identity] = graph.add(
            ir.with_children(chosen, lambda part: _taken(graph, part, best, done, open_))
        )
        open_.discard(identity)
    return done[identity]

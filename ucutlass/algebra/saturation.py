"""Applies the rules to a graph of equal values until nothing is new, or a bound is met."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ucutlass import ir
from ucutlass.algebra.egraph import Full
from ucutlass.algebra.rule import AlgebraRule, Head
from ucutlass.algebra.terms import Terms
from ucutlass.ir import Value


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a search may take: processor `seconds` to saturate, and `pricing` to extract, write and price, which a busy
    host does not shorten. A rule that makes more than `most_equations` equations in one round is left out of the next."""

    terms: int = 6_000
    rounds: int = 8
    seconds: float = 5.0
    pricing: float = 15.0
    most_equations: int = 50


@dataclass(frozen=True, slots=True)
class Saturation:
    """How a saturation ended: after `rounds`, with `terms`, `saturated` or for the reason `stopped`."""

    rounds: int
    terms: int
    stopped: str

    @property
    def saturated(self) -> bool:
        return not self.stopped


def saturate(terms: Terms, rules: Sequence[AlgebraRule], bounds: Bounds) -> Saturation:
    """Adds to a graph what the rules say of it."""
    by_head: dict[Head, list[AlgebraRule]] = defaultdict(list)
    for rule in rules:
        for head in rule.heads:
            by_head[head].append(rule)
    deadline = time.thread_time() + bounds.seconds
    banned: dict[str, int] = {}
    graph = terms.graph
    for number in range(bounds.rounds):
        before = (graph.version, graph.terms)
        counts: dict[str, int] = defaultdict(int)
        try:
            for _, members in graph.classes():
                for term in members:
                    for rule in (*by_head.get(_head(term), ()), *by_head.get((_head(term)[0], ""), ())):
                        if banned.get(rule.name, -1) >= number or counts[rule.name] > bounds.most_equations:
                            continue
                        for left, right in rule.apply(terms, term):
                            counts[rule.name] += graph.union(left, right, rule.name)
                    if time.thread_time() > deadline:
                        graph.rebuild()
                        return Saturation(number + 1, graph.terms, f"{bounds.seconds:g} s")
        except Full as full:
            graph.rebuild()
            return Saturation(number + 1, graph.terms, str(full))
        graph.rebuild()
        banned = {name: number + 1 for name, count in counts.items() if count > bounds.most_equations}
        if (graph.version, graph.terms) == before and not banned:
            return Saturation(number + 1, graph.terms, "")
    return Saturation(bounds.rounds, graph.terms, f"{bounds.rounds} rounds")


def _head(term: Value) -> Head:
    match term:
        case ir.Apply(function=function):
            return "Apply", function
        case ir.Reduce(op=op):
            return "Reduce", op
        case _:
            return type(term).__name__, ""

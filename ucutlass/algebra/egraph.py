"""A graph of equal values (an e-graph) over typed programs.

A *term* is a typed value (`ucutlass.ir`), interned, so that equal terms are one object. A *class* is a set of
terms that are equal for all inputs; its members have one element type and one set of dimensions. Two terms
whose parts are of the same classes are of one class (congruence closure, as in Willsey et al., egg, POPL 2021).

Why two terms are equal is kept in a forest (Nieuwenhuis and Oliveras, Proof-producing congruence closure, RTA
2005; Flatt et al., FMCAD 2022): each edge is a rule, applied to exactly these two terms, or congruence.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from ucutlass import ir
from ucutlass.ir import Value, children, with_children
from ucutlass.ir.function_facts import facts

V = TypeVar("V", bound=Value)

CONGRUENCE = ""
"""The justification of an edge between terms whose parts are equal."""

Key: TypeAlias = tuple[Hashable, ...]


class Full(Exception):
    """The graph has as many terms as it may have."""


class LongProof(Exception):
    """A proof has more steps than anybody would read."""


class NotEqual(Exception):
    """Two terms of different element types or dimensions were to be made equal: a rule is wrong."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One term became another by a rule."""

    rule: str
    before: Value
    after: Value


@dataclass(slots=True)
class EGraph:
    """`order` numbers the dimensions of the program; `most_terms` bounds the terms ever made."""

    order: dict[str, int]
    most_terms: int = 20_000
    _terms: dict[Key, Value] = field(default_factory=dict)
    _parent: dict[int, Value] = field(default_factory=dict)
    """Union-find, by identity of terms."""
    _members: dict[int, dict[Key, Value]] = field(default_factory=dict)
    """By representative: one term for each way to make the value from parts of other classes."""
    _users: dict[int, list[Value]] = field(default_factory=lambda: defaultdict(list))
    """By representative: the terms that have a part of the class."""
    _congruent: dict[Key, Value] = field(default_factory=dict)
    _proof: dict[int, tuple[Value, str]] = field(default_factory=dict)
    _pending: list[Value] = field(default_factory=list)
    version: int = 0
    """Counts the unions."""

    # --- terms -----------------------------------------------------------------------

    def dims(self, names: Iterable[str]) -> ir.Dims:
        return tuple(sorted(set(names), key=self.order.__getitem__))

    def add(self, term: V) -> V:
        """Returns the interned term, whose parts were added before. Raises Full."""
        key = (*_head(term), tuple(id(c) for c in children(term)))
        existing = self._terms.get(key)
        if existing is not None:
            return existing  # type: ignore[return-value]  # the key holds the type
        if len(self._terms) >= self.most_terms:
            raise Full(f"{self.most_terms} terms")
        self._terms[key] = term
        self._parent[id(term)] = term
        congruence = self._class_key(term)
        self._members[id(term)] = {congruence: term}
        for child in children(term):
            self._users[id(self.find(child))].append(term)
        same = self._congruent.setdefault(congruence, term)
        if same is not term:
            self._union(term, same, CONGRUENCE)
        return term

    @property
    def terms(self) -> int:
        return len(self._terms)

    # --- classes ---------------------------------------------------------------------

    def find(self, term: Value) -> Value:
        root = term
        while (above := self._parent[id(root)]) is not root:
            root = above
        while (above := self._parent[id(term)]) is not root:
            self._parent[id(term)] = root
            term = above
        return root

    def equal(self, a: Value, b: Value) -> bool:
        return self.find(a) is self.find(b)

    def members(self, term: Value, kind: type[V]) -> list[V]:
        """Returns the terms of a term's class that are of one kind."""
        return [t for t in self.all_members(term) if isinstance(t, kind)]

    def all_members(self, term: Value) -> list[Value]:
        return list(self._members[id(self.find(term))].values())

    def classes(self) -> Iterator[tuple[Value, list[Value]]]:
        """Yields each class: its representative and its members."""
        for identity, members in list(self._members.items()):
            yield self._parent[identity], list(members.values())

    def union(self, a: Value, b: Value, rule: str) -> bool:
        """Makes two terms equal by a rule; returns whether they were not. Raises NotEqual."""
        if a.elem is not b.elem or {*a.dims} != {*b.dims}:
            raise NotEqual(f"{rule}: {a.elem.name}{list(a.dims)} is not {b.elem.name}{list(b.dims)}")
        if self.equal(a, b):
            return False
        self._union(a, b, rule)
        return True

    def _union(self, a: Value, b: Value, rule: str) -> None:
        left, right = self.find(a), self.find(b)
        if left is right:
            return
        self.version += 1
        self._reroot(a)
        self._proof[id(a)] = (b, rule)
        if len(self._users[id(left)]) > len(self._users[id(right)]):
            left, right = right, left
        self._parent[id(left)] = right
        self._members[id(right)] |= self._members.pop(id(left))
        moved = self._users.pop(id(left), [])
        self._users[id(right)] += moved
        self._pending.append(right)

    def rebuild(self) -> None:
        """Restores congruence after unions."""
        while self._pending:
            for root in {id(self.find(t)): self.find(t) for t in self._pending}.values():
                self._pending = [t for t in self._pending if self.find(t) is not root]
                self._repair(root)

    def _repair(self, root: Value) -> None:
        users = {id(u): u for u in self._users[id(root)]}
        for user in users.values():
            key = self._class_key(user)
            same = self._congruent.setdefault(key, user)
            if not self.equal(same, user):
                self._union(user, same, CONGRUENCE)
            home = self._members[id(self.find(user))]
            for old in [k for k, t in home.items() if t is user and k != key]:
                del home[old]
            home.setdefault(key, user)

    def _class_key(self, term: Value) -> Key:
        """Returns what congruent terms share."""
        parts = tuple(id(self.find(c)) for c in children(term))
        if isinstance(term, ir.Dot) or (isinstance(term, ir.Apply) and facts(term.function).commutes):
            parts = tuple(sorted(parts))
        return (*_head(term), parts)

    # --- proofs ----------------------------------------------------------------------

    def _reroot(self, term: Value) -> None:
        """Makes a term the root of its tree of the proof forest."""
        path: list[tuple[Value, Value, str]] = []
        here = term
        while id(here) in self._proof:
            there, rule = self._proof[id(here)]
            path.append((here, there, rule))
            here = there
        for here, there, rule in reversed(path):
            self._proof[id(there)] = (here, rule)
        self._proof.pop(id(term), None)

    def explain(self, before: Value, after: Value, most: int = 5_000) -> list[tuple[Rewrite | None, Value]]:
        """Returns the terms that lead from one to another of its class, the first left out, each with the step
        that makes it; None where arguments were only written in another order. Raises NotEqual where they are
        not of one class, and LongProof beyond `most` steps."""
        if not self.equal(before, after):
            raise NotEqual("the terms are of two classes")
        explained: dict[tuple[int, int], list[tuple[Rewrite | None, Value]]] = {}

        def lead(a: Value, b: Value) -> list[tuple[Rewrite | None, Value]]:
            key = (id(a), id(b))
            if key in explained:
                return explained[key]
            terms: list[tuple[Rewrite | None, Value]] = []
            for x, y, rule in self._path(a, b):
                if rule:
                    terms.append((Rewrite(rule, x, y), y))
                    continue
                here = x
                for at, (p, q) in enumerate(self._paired(x, y)):
                    for step, part in lead(p, q):
                        here = self._with_part(here, at, part)
                        terms.append((step, here))
                if here is not y:
                    terms.append((None, y))
                if len(terms) > most:
                    raise LongProof(f"more than {most} steps")
            explained[key] = terms
            return terms

        return lead(before, after)

    def _with_part(self, term: Value, at: int, part: Value) -> Value:
        places = iter(range(len(children(term))))
        return self.add(with_children(term, lambda child: part if next(places) == at else child))

    def _paired(self, x: Value, y: Value) -> list[tuple[Value, Value]]:
        left, right = children(x), children(y)
        if all(self.equal(p, q) for p, q in zip(left, right, strict=True)):
            return list(zip(left, right, strict=True))
        return list(zip(left, reversed(right), strict=True))

    def _path(self, a: Value, b: Value) -> list[tuple[Value, Value, str]]:
        """Returns the edges of the proof forest from one term to another of its class."""
        up = list(self._ancestors(a))
        places = {id(term): at for at, (term, _) in enumerate(up)}
        down: list[tuple[Value, Value, str]] = []
        here = b
        while id(here) not in places:
            there, rule = self._proof[id(here)]
            down.append((there, here, rule))
            here = there
        first = [(up[i][0], up[i + 1][0], up[i][1]) for i in range(places[id(here)])]
        return [*first, *reversed(down)]

    def _ancestors(self, term: Value) -> Iterator[tuple[Value, str]]:
        while True:
            edge = self._proof.get(id(term))
            yield term, "" if edge is None else edge[1]
            if edge is None:
                return
            term = edge[0]


def rewritten(root: Value, step: Rewrite, graph: EGraph) -> Value:
    """Returns a term with the step's term replaced wherever it stands. Raises Full."""
    done: dict[int, Value] = {id(step.before): step.after}

    def visit(node: Value) -> Value:
        if id(node) not in done:
            done[id(node)] = graph.add(with_children(node, visit))
        return done[id(node)]

    return visit(root)


def _head(term: Value) -> Key:
    """Returns everything of a term but its parts."""
    names = [f.name for f in dataclasses.fields(term) if f.name not in ("span", *_PARTS)]
    own = [_hashable(term.value)] if isinstance(term, ir.Constant) else []
    return (type(term).__name__, *own, *(_hashable(getattr(term, name)) for name in names))


_PARTS = ("args", "value", "left", "right", "ids", "offsets")
"""The fields of terms that hold terms; a constant's `value` is a number."""


def _hashable(part: object) -> Hashable:
    """Returns a number with its type and spelling: 0.0, -0.0 and 0 are three constants."""
    if isinstance(part, bool | int | float):
        return (type(part).__name__, repr(part))
    assert isinstance(part, Hashable)
    return part

"""Which dimensions of a kernel are one, found by atoms and a union-find.

A dimension of a tensor is a list of atoms, outer first. Operators unify lists; a reshape cuts them. An axis
of one element is the empty list. After all operators of a kernel are seen, every atom that is left is a name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias


class Conflict(Exception):
    """The computations cannot be one kernel as names go; the message says why."""


@dataclass(eq=False, slots=True)
class Atom:
    """A set of dimensions that are one. `owners` are the tensors and computations that have it: two atoms of
    one owner never join. An atom that an index reads cannot be split: `whole`. `hint` is a letter for its
    name, with a rank of which the lowest wins."""

    extent: int
    owners: set[str] = field(default_factory=set)
    whole: bool = False
    hint: tuple[int, str] = (9, "")
    parent: Atom | None = None
    parts: tuple[Atom, Atom] | None = None

    def root(self) -> Atom:
        atom = self
        while atom.parent is not None:
            atom = atom.parent
        return atom


Dimension: TypeAlias = list[Atom]


def leaves(atoms: Iterable[Atom]) -> Dimension:
    """Returns the atoms that these are made of."""
    flat: Dimension = []
    for atom in atoms:
        root = atom.root()
        if root.parts is None:
            flat.append(root)
        else:
            flat += leaves(root.parts)
    return flat


def split(atom: Atom, inner: int) -> None:
    """Splits a leaf into `extent // inner` by `inner`. Raises Conflict for an atom that must stay whole."""
    if atom.whole:
        raise Conflict(
            f"an axis of {atom.extent} is indexed as one and split into {atom.extent // inner} by {inner}"
        )
    outer = Atom(atom.extent // inner, set(atom.owners), hint=(8, ""))
    atom.parts = (outer, Atom(inner, set(atom.owners), hint=atom.hint))


def join(a: Atom, b: Atom) -> bool:
    """Makes two leaves one. Returns False where a tensor has both, so that they must stay two."""
    if a is b:
        return True
    if a.owners & b.owners:
        return False
    b.parent = a
    a.owners |= b.owners
    a.whole = a.whole or b.whole
    a.hint = min(a.hint, b.hint)
    return True


def unify(own: Sequence[Atom], other: Sequence[Atom], joined: bool = True) -> list[tuple[Atom, Atom]]:
    """Unifies two lists of one extent. Returns the pairs that must stay two names, of which the first is to
    be read as the second. Without `joined` the two are only split alike, and every pair is returned."""
    left, right = leaves(own), leaves(other)
    pairs: list[tuple[Atom, Atom]] = []
    i = j = 0
    while i < len(left) and j < len(right):
        a, b = left[i], right[j]
        if a.extent == b.extent:
            if not joined or not join(b, a):
                pairs.append((a, b))
            i, j = i + 1, j + 1
        elif a.extent % b.extent == 0:
            _split_outer(a, b.extent)
            left[i : i + 1] = leaves([a])
            right[j:] = leaves(right[j:])
        elif b.extent % a.extent == 0:
            _split_outer(b, a.extent)
            right[j : j + 1] = leaves([b])
            left[i:] = leaves(left[i:])
        else:
            raise Conflict(f"axes of {a.extent} and {b.extent} do not divide each other")
    if i < len(left) or j < len(right):
        raise Conflict("axes of different extents are one")
    return pairs


def _split_outer(atom: Atom, outer: int) -> None:
    split(atom, atom.extent // outer)


def regroup(dimensions: Sequence[Dimension], shape: Sequence[int]) -> list[Dimension]:
    """Returns the dimensions of a reshaped tensor. Raises Conflict where an axis would have to hold a part of
    an atom that does not divide."""
    rest = leaves(atom for dimension in dimensions for atom in dimension)
    rest = [atom for atom in rest if atom.extent != 1]
    new: list[Dimension] = []
    for extent in shape:
        dimension: Dimension = []
        size = 1
        while size < extent:
            if not rest or extent % size:
                raise Conflict("a reshape that does not keep axes apart")
            atom, need = rest[0], extent // size
            if atom.extent > need:
                if atom.extent % need:
                    raise Conflict("a reshape that does not keep axes apart")
                split(atom, atom.extent // need)
                rest[0:1] = leaves([atom])
                atom = rest[0]
            elif need % atom.extent:
                raise Conflict("a reshape that does not keep axes apart")
            dimension.append(atom)
            size *= atom.extent
            rest.pop(0)
        new.append(dimension)
    return new

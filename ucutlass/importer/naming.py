"""Names for dimensions and for values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ucutlass.importer.atoms import Atom
from ucutlass.runtime.module.signature import KEYWORDS

AXES = {1: "N", 2: "MN", 3: "BLD", 4: "BCHW", 5: "BCDHW"}
"""What the axes of an input are called by its rank where no operator says better."""

_SPARE = "NMKJIEFUVWXYZABCDGHLOPQRST"


def dimension_names(atoms: Iterable[Atom], taken: Iterable[str]) -> dict[Atom, str]:
    """Returns a name for each atom, in order: the letter that an operator suggests, else a free letter, else
    one with a number."""
    used = set(taken)
    names: dict[Atom, str] = {}
    for atom in atoms:
        if atom in names:
            continue
        names[atom] = name = dimension_name(atom.hint[1], used)
        used.add(name)
    return names


def dimension_name(hint: str, used: set[str]) -> str:
    candidates = [hint] if hint else list(_SPARE)
    for name in candidates:
        if name not in used:
            return name
    base = hint or "N"
    number = 2
    while f"{base}{number}" in used:
        number += 1
    return f"{base}{number}"


def identifier(text: str) -> str:
    """Returns the text as a name of the language, by the rule of docs/kernelbench.md."""
    name = re.sub(r"\W", "_", text.replace(".", "_"), flags=re.ASCII)
    return name if re.match(r"[A-Za-z_]", name) else f"_{name}"


def free(text: str, used: Iterable[str]) -> str:
    """Returns the text as a name that is neither taken nor a word of the language."""
    name, taken = identifier(text), set(used)
    while name in taken or name in KEYWORDS:
        name += "_"
    return name


def numbered(text: str, used: Iterable[str]) -> str:
    """Returns the name, with a number where it is taken."""
    base, taken = identifier(text), set(used) | KEYWORDS
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base}_{number}" if base[-1].isdigit() else f"{base}{number}"
    return name


def program_name(words: Sequence[str]) -> str:
    return "_".join(words) or "program"

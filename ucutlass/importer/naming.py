"""Names for dimensions and for values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ucutlass.importer.atoms import Atom
from ucutlass.runtime.module.signature import KEYWORDS

AXES = {1: "N", 2: "MN", 3: "BLD", 4: "BCHW", 5: "BCDHW"}
"""What the axes of an input are called by its rank where no operator says better."""

_SPARE = "NMKJIEFUVWXYZABCDGHLOPQRST"


_ALTERNATIVES = {"K": "KFJI", "N": "NFJI", "C": "CFE", "D": "DE", "H": "HG"}
"""What further dimensions of one role are called: a width, the one that a layer widens it to, and so on."""


def dimension_names(atoms: Iterable[Atom], used_names: Iterable[str]) -> dict[Atom, str]:
    """Returns a name for each atom, in order: the letter that an operator suggests, else one like it or a free
    letter, else one with a number."""
    used = set(used_names)
    names: dict[Atom, str] = {}
    for atom in atoms:
        if atom in names:
            continue
        names[atom] = name = dimension_name(atom.hint[1], used)
        used.add(name)
    return names


def dimension_name(hint: str, used: set[str]) -> str:
    candidates = _ALTERNATIVES.get(hint, hint) or _SPARE
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
    name, used_names = identifier(text), set(used)
    while name in used_names or name in KEYWORDS:
        name += "_"
    return name


def numbered(text: str, used: Iterable[str]) -> str:
    """Returns the name, with a number where it is taken."""
    base, used_names = identifier(text), set(used) | KEYWORDS
    name, number = base, 1
    while name in used_names:
        number += 1
        name = f"{base}_{number}" if base[-1].isdigit() else f"{base}{number}"
    return name


def program_name(words: Sequence[str]) -> str:
    return "_".join(words) or "program"


def operator_noun(operator: str) -> str:
    """Returns what a value is called that an operator such as `aten.cat.default` gives."""
    words = operator.split(".")
    return identifier(words[1].strip("_") if len(words) > 1 else "value") or "value"


def module_noun(path: str) -> str:
    """Returns what a value is called that a submodule gives: the last word of its path, with the number of a
    layer behind its word."""
    return identifier(_joined_numbers(path).split(".")[-1]) if path else ""


def qualified_noun(path: str) -> str:
    """Returns the noun of a submodule with that of the module around it."""
    return identifier("_".join(_joined_numbers(path).split(".")[-2:]))


def _joined_numbers(path: str) -> str:
    return re.sub(r"\.(\d+)(?=\.|$)", r"\1", path)

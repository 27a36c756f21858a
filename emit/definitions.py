"""Checks that emitted statements define a value before they read it.

A compiler accepts a read of an array that no statement has filled, and the kernel then computes from whatever
its registers hold. Emitters that write statements pass them through `require_definitions` before they become
a kernel: `emit.reduction` a whole body, `emit.arithmetic` the function of every other family's outcomes,
`emit.attention` the loops around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


class UndefinedRead(Exception):
    """An emitted statement reads a value that no statement before it defines: a defect of the emitter."""


_VALUE = r"(?:raw|next|end|span|wide|from|out|to|v|h|a|s)\d+"
_READ = re.compile(rf"(?<![.\w])({_VALUE})\b")
_INITIALISED = re.compile(rf"\bconst ({_VALUE}) =|\b(a\d+)\[kVector\];$")
_UNINITIALISED = re.compile(rf"^(?:Pack<.*> |\w+ )({_VALUE})(?:\[\w+\])*;")
_FILLED = re.compile(r"\bucc_arithmetic\(.*\)")
"""A call that takes its results by reference."""
_RESULT = re.compile(r"\bout\d+")
_ASSIGNED = re.compile(rf"(?:^|[;{{)] )({_VALUE})(?:\[[^=]*?\])*(?:\.value\[[^=]*?\])? = ")


@dataclass(slots=True)
class _Scope:
    """Names that a block of statements declares, and those that it assigns. `leaves`: its end returns."""

    declared: dict[str, bool] = field(default_factory=dict)
    assigned: set[str] = field(default_factory=set)
    leaves: bool = False


def require_definitions(statements: Iterable[str]) -> None:
    """Checks the statements of a kernel's body, one a line, in the order of the text.

    A statement in a loop counts for what follows the loop: loops over the same range fill and read an array.
    What a block that ends in `return;` assigns does not count for what follows the block.

    Raises UndefinedRead with the first name that is read too early and its statement.
    """
    scopes = [_Scope()]
    for statement in statements:
        for closing, text, opening in _blocks(statement.partition("//")[0]):
            if closing:
                _close(scopes)
            _statement(text, scopes, statement)
            if opening:
                scopes.append(_Scope())


def _blocks(statement: str) -> Iterable[tuple[bool, str, bool]]:
    """The statement's parts between braces, with whether one closes a block before or opens one after.

    A brace of an initialiser opens and closes on the same line and counts as a block that declares nothing.
    """
    parts = re.split(r"([{}])", statement)
    for i in range(0, len(parts), 2):
        yield i > 0 and parts[i - 1] == "}", parts[i].strip(), i + 1 < len(parts) and parts[i + 1] == "{"


def _statement(text: str, scopes: Sequence[_Scope], statement: str) -> None:
    if not text or text.startswith("#"):
        return
    scopes[-1].leaves = text.endswith("return;")
    assigned = {m[1] for m in _ASSIGNED.finditer(text)}
    if call := _FILLED.search(text):
        assigned |= set(_RESULT.findall(call[0]))
    initialised = {m[1] or m[2] for m in _INITIALISED.finditer(text)}
    uninitialised = {m[1] for m in _UNINITIALISED.finditer(text)} - initialised
    for name in _READ.findall(text):
        if name not in assigned | initialised | uninitialised and not _defined(name, scopes):
            raise UndefinedRead(
                f"the emitted statement `{statement}` reads {name}, which no statement before it defines; "
                "this is a defect of the compiler: please report the program"
            )
    for name in uninitialised:
        scopes[-1].declared[name] = False
    for name in initialised:
        scopes[-1].declared[name] = True
    for name in assigned:
        scopes[-1].assigned.add(name)


def _defined(name: str, scopes: Sequence[_Scope]) -> bool:
    for scope in reversed(scopes):
        if scope.declared.get(name, False) or name in scope.assigned:
            return True
        if name in scope.declared:
            return False
    return False


def _close(scopes: list[_Scope]) -> None:
    """Ends the innermost block: what it assigned of names declared around it stays assigned."""
    inner = scopes.pop()
    if not inner.leaves:
        scopes[-1].assigned |= inner.assigned - inner.declared.keys()

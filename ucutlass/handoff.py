"""Hands checked programs and plans to another process as JSON, so that nothing is read or planned twice.

The form is data that nothing executes: a table of frozen dataclasses in the order in which they build on one
another, each a class's number and its fields. What may stand in a field follows from its type hint alone, and
a class must be reachable from the hints of what is decoded, so a text can make no other object. Objects that
the graph shares are one entry of the table and are shared again after decoding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ucutlass import ir
from ucutlass.diagnostics import Diagnostic
from ucutlass.frontend import Checked
from ucutlass.grammar.syntax import File
from ucutlass.ir.elements import ELEMENTS, Element
from ucutlass.ir.hardware import DEVICES, Device
from ucutlass.kernels.families import PLANS
from ucutlass.kernels.planned import Plan, Planned

T = TypeVar("T")

MOST_NODES = 1_000_000
"""Objects of one payload. The largest program that the limits admit has some tens of thousands."""

MOST_DEPTH = 16
"""Lists within lists in one field."""


class HandoffError(ValueError):
    """A payload is not one that `encode` of this version writes. The message says where it differs."""


# --- writing ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Table:
    """What `encode` has written: `numbers` by the identity of an object, which `alive` keeps from reuse."""

    classes: dict[type, int]
    nodes: list[list[Any]]
    numbers: dict[int, int]
    alive: list[object]


def encode(value: object) -> dict[str, Any]:
    """Returns a frozen dataclass, and all that it holds, as JSON values. Raises TypeError for an object that
    has no such form: a function, a set, a class that is no dataclass."""
    table = _Table({}, [], {}, [])
    root = _encoded(value, table)
    classes = [[_name(cls), [field.name for field in fields(cls)]] for cls in table.classes]
    return {"classes": classes, "nodes": table.nodes, "root": root}


def _encoded(value: Any, table: _Table) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"float": repr(value)}
        case tuple():
            return [_encoded(item, table) for item in value]
        case Mapping():
            return {"map": [[_encoded(k, table), _encoded(v, table)] for k, v in value.items()]}
        case Element():
            return {"element": value.name}
        case Device() if DEVICES.get(value.name) == value:
            return {"device": value.name}
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {"node": _node(value, table)}
        case _:
            raise TypeError(f"{type(value).__name__} cannot be handed to another process")


def _node(value: Any, table: _Table) -> int:
    if id(value) not in table.numbers:
        row = [_encoded(getattr(value, field.name), table) for field in fields(value)]
        number = table.classes.setdefault(type(value), len(table.classes))
        table.numbers[id(value)] = len(table.nodes)
        table.nodes.append([number, *row])
        table.alive.append(value)
    return table.numbers[id(value)]


# --- reading ----------------------------------------------------------------------


def decode(payload: object, kind: type[T]) -> T:
    """Returns what `encode` wrote, of class `kind`. Raises HandoffError for anything else, also for a payload
    of another version, whose classes have other fields."""
    match payload:
        case {"classes": list(classes), "nodes": list(nodes), "root": root, **rest} if not rest:
            pass
        case _:
            raise HandoffError("a payload has `classes`, `nodes` and `root`, and nothing else")
    if len(nodes) > MOST_NODES:
        raise HandoffError(f"{len(nodes)} objects in one payload; at most {MOST_NODES} are read")
    root_class: type = kind
    reachable = _reachable(root_class)
    types = [_class(entry, reachable) for entry in classes]
    objects: list[Any] = []
    for row in nodes:
        objects.append(_object(row, types, objects))
    value = _value(root, kind, objects, 0)
    assert isinstance(value, kind)
    return value


def _class(entry: object, reachable: Mapping[str, type]) -> type:
    match entry:
        case [str(name), list(names)] if name in reachable:
            own = [field.name for field in fields(reachable[name])]
            if names != own:
                raise HandoffError(f"{name} has the fields {', '.join(own)}, not {names!r:.200}")
            return reachable[name]
        case _:
            raise HandoffError(f"no class of a program or plan: {entry!r:.200}")


def _object(row: object, types: list[type], objects: list[Any]) -> object:
    match row:
        case [int(number), *values] if type(number) is int and 0 <= number < len(types):
            cls = types[number]
        case _:
            raise HandoffError(f"no object: {row!r:.200}")
    hints = _hints(cls)
    if len(values) != len(hints):
        raise HandoffError(f"{cls.__name__} has {len(hints)} fields, not {len(values)}")
    pairs = zip(values, hints.items(), strict=True)
    arguments = {name: _value(value, hint, objects, 0) for value, (name, hint) in pairs}
    try:
        return cls(**arguments)
    except (TypeError, ValueError) as refused:
        raise HandoffError(f"{cls.__name__}: {refused}") from refused


def _value(value: Any, hint: Any, objects: list[Any], depth: int) -> Any:
    """Returns the value of a field with this type hint."""
    if depth > MOST_DEPTH:
        raise HandoffError(f"lists of more than {MOST_DEPTH} levels")
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _alternative(value, arguments, objects, depth)
    if origin is Literal:
        if any(type(value) is type(word) and value == word for word in arguments):
            return value
    elif origin is tuple and isinstance(value, list):
        variadic = len(arguments) == 2 and arguments[1] is Ellipsis
        inner = arguments[:1] * len(value) if variadic else arguments
        if len(inner) == len(value):
            return tuple(_value(v, h, objects, depth + 1) for v, h in zip(value, inner, strict=True))
    else:
        match value:
            case {"map": list(pairs), **rest} if not rest and origin is Mapping:
                return _mapping(pairs, arguments[0], arguments[1], objects, depth)
            case {"node": int(number), **rest} if not rest and _refers(number, hint, objects):
                return objects[number]
            case {"element": str(name), **rest} if not rest and hint is Element and name in ELEMENTS:
                return ELEMENTS[name]
            case {"device": str(name), **rest} if not rest and hint is Device and name in DEVICES:
                return DEVICES[name]
            case {"float": "inf" | "-inf" | "nan" as word, **rest} if not rest and hint is float:
                return float(word)
            case None if hint is NoneType:
                return None
            case bool() | int() | float() | str() if type(value) is hint:
                return value
            case int() if hint is float and type(value) is int:
                return value  # as Python's own typing has it; the number stays what it was
    raise HandoffError(f"{value!r:.200} is no {hint}")


def _alternative(value: Any, hints: tuple[Any, ...], objects: list[Any], depth: int) -> Any:
    for hint in hints:
        try:
            return _value(value, hint, objects, depth + 1)
        except HandoffError:
            continue
    raise HandoffError(f"{value!r:.200} is none of {len(hints)} types")


def _mapping(pairs: list[Any], key: Any, item: Any, objects: list[Any], depth: int) -> dict[Any, Any]:
    entries: dict[Any, Any] = {}
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2:
            raise HandoffError(f"no entry of a mapping: {pair!r:.200}")
        name = _value(pair[0], key, objects, depth + 1)
        if name in entries:
            raise HandoffError(f"twice in one mapping: {name!r:.200}")
        entries[name] = _value(pair[1], item, objects, depth + 1)
    return entries


def _refers(number: object, hint: Any, objects: list[Any]) -> bool:
    """Whether this is the number of an object that came before, of the hint's class."""
    if type(number) is not int or not 0 <= number < len(objects):
        return False
    return isinstance(objects[number], _plans() if hint is Plan else hint if isinstance(hint, type) else ())


# --- types ------------------------------------------------------------------------


@cache
def _plans() -> tuple[type, ...]:
    return PLANS


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


@cache
def _hints(cls: type) -> dict[str, Any]:
    """Returns the type hint of each field, in their order."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls)}


@cache
def _reachable(kind: type) -> dict[str, type]:
    """Returns the dataclasses that a `kind` may hold, by their full names."""
    reachable: dict[str, type] = {}
    waiting: list[Any] = [kind]
    while waiting:
        hint = waiting.pop()
        if hint is Plan:
            waiting += _plans()
        elif isinstance(hint, type) and is_dataclass(hint) and hint is not Element:
            if _name(hint) not in reachable:
                reachable[_name(hint)] = hint
                waiting += _hints(hint).values()
        elif get_origin(hint) is not Literal:
            waiting += get_args(hint)
    return reachable


# --- what is handed over ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProgramText:
    """A checked file: its typed programs and its tree, and the text, which diagnostics and headers quote."""

    module: ir.Module
    source: str
    file: str
    tree: File


def program_payload(checked: Checked) -> dict[str, Any]:
    """Returns a checked file for `checked_of`, without its warnings, which are told where it was read."""
    return encode(ProgramText(checked.module, checked.source, checked.file, checked.tree))


def checked_of(payload: object) -> Checked:
    """Returns the checked file of a payload. Raises HandoffError."""
    text = decode(payload, ProgramText)
    return Checked(text.module, text.source, text.file, text.tree)


def plan_payload(planned: Planned) -> dict[str, Any]:
    """Returns a plan for `planned_of`."""
    return encode(planned)


def planned_of(payload: object) -> Planned:
    """Returns the plan of a payload. Raises HandoffError."""
    return decode(payload, Planned)


@dataclass(frozen=True, slots=True)
class RefusedText:
    """What is wrong with a text that did not pass the checker."""

    diagnostics: tuple[Diagnostic, ...]


def diagnostics_payload(diagnostics: tuple[Diagnostic, ...]) -> dict[str, Any]:
    """Returns what is wrong with a text for `diagnostics_of`."""
    return encode(RefusedText(diagnostics))


def diagnostics_of(payload: object) -> tuple[Diagnostic, ...]:
    """Returns the diagnostics of a payload. Raises HandoffError."""
    return decode(payload, RefusedText).diagnostics

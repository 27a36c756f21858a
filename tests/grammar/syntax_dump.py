"""A compact text of a syntax tree, so that a golden tree can be read."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from ucutlass.grammar.syntax import Comments, Literal_, Name, Number, Span


def dump(node: Any) -> str:
    """`Bind((Target(y)), Call(relu, (Argument(x))))`: what is left at its default is left out."""
    match node:
        case Number(value):
            return repr(value)
        case Name(word) | Literal_(word):
            return word
        case tuple():
            return f"({', '.join(map(dump, node))})"
        case str() | int() | None:
            return str(node)
    assert is_dataclass(node)
    parts = [
        dump(value)
        for field in fields(node)
        if not isinstance(value := getattr(node, field.name), Span)
        and field.name not in ("text", "closing")
        and value != Comments()
        and (field.name, value) != ("stage", None)
    ]
    return f"{type(node).__name__}({', '.join(parts)})"

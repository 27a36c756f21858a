"""This module quotes the text of others as data: what a model reads but must not obey.

Programs, problems, tools' words and earlier answers go into a prompt only through `quoted`. A prompt is the
same whenever it is made again, so that an API's cache and recorded traffic serve it: fences follow from the
text alone.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace

from ucutlass.agent.candidate_text import candidate_text
from ucutlass.grammar.format import format_file
from ucutlass.grammar.syntax import Comments, Field, File, Function, Item, Program, Schedule, Statement

MOST = 6_000
"""Characters of one quoted text: some four times the longest program that was written so far."""


def quoted(what: str, text: str, most: int = MOST) -> str:
    """Returns `text` between two lines that cannot occur in it, bounded. `what` is ours, one line."""
    body = bounded(plain(text), most).strip("\n")
    mark = fence(body)
    return f"<data {mark} {what}>\n{body}\n</data {mark}>"


def fence(text: str) -> str:
    """Returns eight hexadecimal digits that do not occur in the text; they are always the same for it."""
    number = 0
    while True:
        mark = hashlib.sha256(f"{number}:{text}".encode("utf-8", "surrogatepass")).hexdigest()[:8]
        if mark not in text:
            return mark
        number += 1


def bounded(text: str, most: int) -> str:
    """Returns at most about `most` characters: the start and the end, and how much was left out between."""
    if len(text) <= most:
        return text
    head = most * 2 // 3
    tail = most - head
    left_out = len(text) - most
    return f"{text[:head]}\n[{left_out} characters left out]\n{text[-tail:]}"


def plain(text: str) -> str:
    """Returns the text without what no terminal or model should be sent: control characters, lone surrogates,
    and marks that turn the direction of writing or have no width."""
    return "".join(c if c in "\n\t" or c.isprintable() else " " for c in text)


# --- programs --------------------------------------------------------------------


def uncommented(text: str) -> str:
    """Returns a program without its comments, in the canonical form where it can be read. Comments of a
    candidate say what its proposer wished to say, and nothing of what it computes."""
    tree = candidate_text(text).tree
    # The language has no string in which a `#` could stand.
    return re.sub(r"#[^\n]*", "", text) if tree is None else format_file(_bare(tree))


def _bare(tree: File) -> File:
    return File(tuple(map(bare_item, tree.items)))


def bare_item(item: Item) -> Item:
    """Returns the item without comments, its own and those of what stands in it."""
    match item:
        case Program() | Function():
            body = tuple(map(bare_statement, item.body))
            return replace(item, body=body, closing=(), comments=Comments())


def bare_statement(statement: Statement) -> Statement:
    match statement:
        case Schedule():
            fields = tuple(map(bare_field, statement.fields))
            return replace(statement, fields=fields, closing=(), comments=Comments())
        case _:
            return replace(statement, comments=Comments())


def bare_field(field: Field) -> Field:
    return replace(field, comments=Comments())

"""Gives comments to the statements and items that they belong to."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from lark import Token

from ucutlass.grammar.syntax import Comments, Field, File, Function, Item, Program, Schedule, Statement
from ucutlass.grammar.tokens import Comment

_Node = TypeVar("_Node", Program, Function, Item, Statement, Field)


def attach(file: File, tokens: Sequence[Token], comments: Sequence[Comment]) -> File:
    """`file` with its comments.

    A comment behind the last token of a node, on its line, is `behind` it; any other goes
    before the node that it stands in or before, or closes the block that it ends.
    """
    if not comments:
        return file
    braces = [t.start_pos or 0 for t in tokens if t.type == "LBRACE"]
    items, closing = _Attach(braces).nodes(file.items, comments)
    return File(items, closing)


@dataclass(frozen=True, slots=True)
class _Attach:
    braces: Sequence[int]

    def nodes(
        self, nodes: tuple[_Node, ...], comments: Sequence[Comment]
    ) -> tuple[tuple[_Node, ...], tuple[str, ...]]:
        """`nodes` of one block with its comments, and those behind the last node."""
        out: list[_Node] = []
        at = 0
        for node in nodes:
            start, stop = at, at
            while stop < len(comments) and comments[stop].start < node.span.start:
                stop += 1
            inner = stop
            while stop < len(comments) and comments[stop].start < node.span.end:
                stop += 1
            behind = stop < len(comments) and comments[stop].after == node.span.end
            at = stop + 1 if behind else stop
            last = comments[stop].text if behind else None
            out.append(self.node(node, comments[start:inner], comments[inner:stop], last))
        return tuple(out), tuple(c.text for c in comments[at:])

    def node(
        self, node: _Node, before: Sequence[Comment], inside: Sequence[Comment], behind: str | None
    ) -> _Node:
        if not before and not inside and behind is None:
            return node
        brace = self._brace(node)
        head = [c.text for c in (*before, *inside) if brace is None or c.start < brace]
        comments = Comments(tuple(head), behind)
        body = [c for c in inside if brace is not None and c.start > brace]
        return self._with(node, comments, body)

    def _brace(self, node: Program | Function | Statement | Field) -> int | None:
        """Where the block of `node` opens: no head has a brace of its own."""
        match node:
            case Program() | Schedule() | Function(is_block=True):
                return self.braces[bisect.bisect_left(self.braces, node.span.start)]
            case _:
                return None

    def _with(self, node: _Node, comments: Comments, body: Sequence[Comment]) -> _Node:
        match node:
            case Program() | Function(is_block=True):
                statements, closing = self.nodes(node.body, body)
                return replace(node, body=statements, closing=closing, comments=comments)
            case Schedule():
                fields, closing = self.nodes(node.fields, body)
                return replace(node, fields=fields, closing=closing, comments=comments)
            case _:
                return replace(node, comments=comments)

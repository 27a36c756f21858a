"""Hypothesis strategies for every tree that the parser can give."""

from __future__ import annotations

from typing import get_args

from hypothesis import strategies as st

from ucutlass.grammar.problems import MAX_INTEGER
from ucutlass.grammar.syntax import (
    Argument,
    Axis,
    Binary,
    BinaryOp,
    Bind,
    BracketName,
    Call,
    Comments,
    CompositeAxis,
    Expr,
    Field,
    File,
    Function,
    Index,
    IndexItem,
    IntValue,
    Item,
    Literal_,
    Name,
    NamedAxis,
    NamelessAxis,
    Number,
    Param,
    Program,
    Require,
    Result,
    Return,
    ReturnItem,
    Schedule,
    ShapeValue,
    StageName,
    Statement,
    Target,
    TypeExpr,
    Unary,
    WordValue,
)

KEYWORDS = frozenset(
    {
        "kernel",
        "pipeline",
        "fn",
        "schedule",
        "for",
        "when",
        "or",
        "and",
        "not",
        "return",
        "require",
        "true",
        "false",
        "inf",
    }
)

names = st.one_of(
    st.sampled_from(["x", "M", "K", "f", "torch", "orx", "x128", "_", "e5", "infinite"]),
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,40}", fullmatch=True),
).filter(lambda name: name not in KEYWORDS)
integers = st.one_of(st.integers(0, 300), st.integers(0, MAX_INTEGER))
numbers = st.builds(Number, st.one_of(integers, st.floats(0.0, allow_nan=False, allow_infinity=False)))
words = st.builds(Literal_, st.sampled_from(["true", "false", "inf"]))


def _some(strategy: st.SearchStrategy, least: int = 1, most: int = 3) -> st.SearchStrategy:
    return st.lists(strategy, min_size=least, max_size=most).map(tuple)


def _deeper(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    bracket_names = st.builds(BracketName, names, st.none() | inner)
    arguments = _some(st.builds(Argument, inner, st.none() | names), least=0)
    return st.one_of(
        st.builds(Unary, st.sampled_from(["-", "not"]), inner),
        st.builds(Binary, st.sampled_from(get_args(BinaryOp)), inner, inner),
        st.builds(Call, names, st.none() | _some(bracket_names), arguments),
        st.builds(Call, names.map("torch.{}".format), st.none(), arguments),
        st.builds(Index, inner, _some(st.builds(IndexItem, inner, inner))),
    )


expressions: st.SearchStrategy[Expr] = st.recursive(
    st.one_of(numbers, words, st.builds(Name, names)), _deeper, max_leaves=8
)

named_axes = st.builds(NamedAxis, names, st.none() | expressions)
axes: st.SearchStrategy[Axis] = st.one_of(
    named_axes,
    st.builds(CompositeAxis, _some(named_axes, least=2)),
    st.builds(NamelessAxis, expressions.filter(lambda e: not isinstance(e, Name))),
)
shapes = _some(axes, least=0, most=4)
types = st.builds(TypeExpr, names, st.none() | shapes)
target_types = st.one_of(types, st.builds(TypeExpr, st.none(), shapes))

comment_texts = st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"]), max_size=12).map(
    str.rstrip
)
comment_lines = _some(comment_texts, least=0, most=2)
comments = st.one_of(st.just(Comments()), st.builds(Comments, comment_lines, st.none() | comment_texts))

binds = st.builds(Bind, _some(st.builds(Target, names, st.none() | target_types)), expressions, comments)
unnamed_return = st.builds(ReturnItem, expressions, st.none()).map(lambda item: (item,))
returns = st.builds(
    Return, st.one_of(unnamed_return, _some(st.builds(ReturnItem, expressions, names))), comments
)
requires = st.builds(Require, expressions, comments)
values = st.one_of(
    st.builds(ShapeValue, _some(integers, least=2)),
    st.builds(IntValue, integers),
    st.builds(WordValue, names),
)
fields = st.builds(Field, names, _some(values), comments)
stage_names = st.one_of(st.builds(StageName, names), st.builds(StageName, st.none() | names, st.just(True)))
schedules = st.builds(
    Schedule,
    names,
    st.none() | expressions,
    _some(fields, least=0, most=5),
    comment_lines,
    comments,
    stage=st.none() | stage_names,
)
statements: st.SearchStrategy[Statement] = st.one_of(binds, returns, requires, schedules)

results = st.one_of(
    st.builds(Result, types, st.none()).map(lambda result: (result,)), _some(st.builds(Result, types, names))
)
programs = st.builds(
    Program,
    st.sampled_from(["kernel", "pipeline"]),
    names,
    _some(st.builds(Param, names, types), least=0, most=5),
    results,
    _some(statements, least=0, most=4),
    comment_lines,
    comments,
)
short_functions = st.builds(
    Function,
    names,
    _some(names, least=0),
    _some(names, least=0),
    unnamed_return.map(lambda items: (Return(items),)),
    st.just(False),
    st.just(()),
    comments,
)
block_functions = st.builds(
    Function,
    names,
    _some(names, least=0),
    _some(names, least=0),
    _some(st.one_of(binds, returns), least=0),
    st.just(True),
    comment_lines,
    comments,
)
items: st.SearchStrategy[Item] = st.one_of(programs, short_functions, block_functions)
trees: st.SearchStrategy[File] = st.builds(File, _some(items, least=0), comment_lines)

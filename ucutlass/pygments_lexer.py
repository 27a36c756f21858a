"""Colours programs in documents and terminals: the Pygments lexer `ucu`, found through its entry point.

Its words are the compiler's own: the grammar's terminals, and the tables of elements, functions, schedule fields
and compile targets.
"""

from __future__ import annotations

from collections.abc import Iterable

from lark.lexer import PatternStr
from pygments.lexer import RegexLexer, bygroups, include, words
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, Whitespace

from ucutlass.check.calls import BUILTINS
from ucutlass.grammar.tables import load_parser
from ucutlass.ir.elements import ELEMENTS
from ucutlass.ir.functions import NAMED
from ucutlass.ir.hardware import ARCHES
from ucutlass.ir.schedule import FIELDS

_PATTERNS = {terminal.name: terminal.pattern for terminal in load_parser(None).terminals}
_REGEXES = {name: p.to_regexp() for name, p in _PATTERNS.items() if not isinstance(p, PatternStr)}
_LITERALS = frozenset(p.value for p in _PATTERNS.values() if isinstance(p, PatternStr))

_DECLARATIONS = frozenset({"kernel", "pipeline", "fn"})
_CONSTANTS = frozenset({"true", "false", "inf"})
_OPERATORS = frozenset({"and", "or", "not"})
_KEYWORDS = {word for word in _LITERALS if word.isalpha()} - _DECLARATIONS - _CONSTANTS - _OPERATORS
_BRACKETS = _LITERALS & set("()[]{},:")
_SIGNS = {sign for sign in _LITERALS if not sign.isalpha()} - _BRACKETS
_VALUES = {word for field in FIELDS.values() for word in field.words} | {"auto"}


def _word(names: Iterable[str]) -> words:
    return words(sorted(names), prefix=r"\b", suffix=r"\b")


def _called(names: Iterable[str]) -> words:
    """Matches names in front of a bracket: a value may be called like a function."""
    return words(sorted(names), prefix=r"\b", suffix=r"(?=\s*[\[(])")


class UcuLexer(RegexLexer):
    """Lexes programs of uCUTLASS."""

    name = "uCUTLASS"
    aliases = ("ucu", "ucutlass")
    filenames = ("*.ucu",)
    mimetypes = ("text/x-ucutlass",)

    # Pygments reads the table from the class.
    tokens = {  # noqa: RUF012
        "root": [
            (
                f"({'|'.join(sorted(_DECLARATIONS))})({_REGEXES['WS']})({_REGEXES['NAME']})",
                bygroups(Keyword.Declaration, Whitespace, Name.Function),
            ),
            (r"\bschedule\b", Keyword, "schedule"),
            include("common"),
        ],
        "schedule": [
            (_word(ARCHES), Name.Constant),
            (r"\{", Punctuation, "fields"),
            (r"\}", Punctuation, "#pop"),
            include("common"),
        ],
        "fields": [
            (_word(FIELDS), Name.Attribute),
            (_word(_VALUES), Name.Constant),
            (r"\}", Punctuation, "#pop:2"),
            include("common"),
        ],
        "common": [
            (_REGEXES["WS"], Whitespace),
            (_REGEXES["COMMENT"], Comment.Single),
            (_REGEXES["SHAPE"], Number),
            (_REGEXES["FLOAT"], Number.Float),
            (_REGEXES["INT"], Number.Integer),
            (_word(_OPERATORS), Operator.Word),
            (_word(_CONSTANTS), Keyword.Constant),
            (_word(_DECLARATIONS), Keyword.Declaration),
            (_word(_KEYWORDS), Keyword),
            (_word(ELEMENTS), Keyword.Type),
            (_REGEXES["TORCH"], Name.Builtin),
            (_called([*BUILTINS, *NAMED]), Name.Builtin),
            (_REGEXES["NAME"], Name),
            (words(sorted(_SIGNS)), Operator),
            (words(sorted(_BRACKETS)), Punctuation),
        ],
    }

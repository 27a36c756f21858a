"""This module looks words up in the guide, the tables of the language and what earlier sessions taught."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ucutlass.agent.memory import Conclusion
from ucutlass.agent.proposers.quoting import plain
from ucutlass.codes import CODES
from ucutlass.guide import guide
from ucutlass.ir.schedule import FIELDS, legal_values
from ucutlass.kernels.families import RULES

MOST_QUERY = 200
"""Characters of a query that are read."""

MOST_EXCERPT = 600
"""Characters of one hit."""


@dataclass(frozen=True, slots=True)
class Hit:
    """`uri` is where all of it stands, `excerpt` what answers the query."""

    uri: str
    title: str
    excerpt: str


def search(query: str, conclusions: Sequence[Conclusion] = (), most: int = 12) -> list[Hit]:
    """Returns what is known of a diagnostic's code (UC0404), a schedule field (cluster), or words: at most so
    many, the best first."""
    text = plain(query).strip()[:MOST_QUERY]
    exact = [*_coded(text.upper()), *_field(text.lower())]
    words = _words(text)
    scored = [
        (len(words & _words(f"{hit.title} {hit.excerpt}")), hit)
        for hit in [*_guide(), *_codes(), *map(_conclusion, conclusions)]
    ]
    best = sorted((s for s in scored if s[0]), key=lambda s: -s[0])
    return list(dict.fromkeys([*exact, *(hit for _, hit in best)]))[:most]


def diagnostic(code: str) -> str:
    """Returns what is known of a code: its meaning, or the rules that raise it. Raises LookupError."""
    rules = [f"{rule.title}. {rule.text} (from: {rule.source})" for rule in RULES if rule.code == code]
    if not rules and code not in CODES:
        raise LookupError(f"no diagnostic has the code {code[:20]!r}; codes read like UC0404")
    return "\n".join(rules or [CODES[code]])


def _coded(code: str) -> Iterator[Hit]:
    if code in CODES or any(rule.code == code for rule in RULES):
        yield Hit(f"ucc://diagnostics/{code}", code, diagnostic(code))


def _field(name: str) -> Iterator[Hit]:
    if name in FIELDS:
        field = FIELDS[name]
        yield Hit("ucc://guide", f"schedule field {name}", f"{name} {legal_values(field)}: {field.meaning}")


def _codes() -> Iterator[Hit]:
    for code in dict.fromkeys([*CODES, *(rule.code for rule in RULES)]):
        yield Hit(f"ucc://diagnostics/{code}", code, diagnostic(code)[:MOST_EXCERPT])


def _guide() -> Iterator[Hit]:
    heading = ""
    for line in guide().splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.strip(" `|-"):
            yield Hit("ucc://guide", heading, line[:MOST_EXCERPT])


def _conclusion(conclusion: Conclusion) -> Hit:
    return Hit(
        f"ucc://sessions/{conclusion.session}", conclusion.problem, plain(conclusion.words)[:MOST_EXCERPT]
    )


def _words(text: str) -> set[str]:
    return {word for word in re.findall(r"\w+", text.lower()) if len(word) > 2}

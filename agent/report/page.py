"""This module renders the page: facts and charts go through a template that escapes everything.

Nothing in it runs and nothing is fetched: a Content-Security-Policy allows one style sheet, by its digest,
and neither scripts, images, fonts, frames, forms nor connections.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ucutlass.agent.report import figures
from ucutlass.agent.report.chart import LEFT, RIGHT, TOP, WIDTH
from ucutlass.agent.report.facts import KINDS, ReportedCandidate, SessionFacts
from ucutlass.units import duration

FOLDER = Path(__file__).parent

INDENT = 8
"""Generations by which the list of candidates indents at most: a search that always goes on from the
fastest is as deep as it is long."""


def page(facts: SessionFacts) -> str:
    """Returns the whole HTML document."""
    style = (FOLDER / "page.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            facts=facts,
            style=style,
            digest=digest,
            progress=figures.progress(facts),
            roofline=figures.roofline(facts),
            tree=figures.tree(facts),
            walk=walk(facts.candidates),
            best=figures.best_id(facts),
            kinds=KINDS,
            evidence=evidence(facts),
            indent=INDENT,
            plot={"left": LEFT, "right": RIGHT, "top": TOP, "width": WIDTH},
        )
    )


def walk(candidates: Sequence[ReportedCandidate]) -> list[ReportedCandidate]:
    """Returns the candidates so that each stands right below its parent or its elder siblings'
    descendants."""
    children: dict[int | None, list[ReportedCandidate]] = {}
    for c in candidates:
        children.setdefault(c.parent, []).append(c)
    result: list[ReportedCandidate] = []
    waiting = list(reversed(children.get(None, [])))
    while waiting:
        result.append(waiting.pop())
        waiting.extend(reversed(children.get(result[-1].id, [])))
    return result


def evidence(facts: SessionFacts) -> list[ReportedCandidate]:
    """Returns candidates that the audit judged: the rejected, and those with records."""
    return [c for c in facts.candidates if c.kind == "rejected" or c.records]


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "time": time_of,
        "share": share,
        "times": times,
        "amount": amount,
        "moment": moment,
    }
    return environment


def time_of(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)


def share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def times(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}x"


def amount(value: float) -> str:
    """Returns a count, or a sum of money or seconds."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"


def moment(at: str) -> str:
    """Returns the time to the second; as it stands where it is no time."""
    try:
        return f"{datetime.fromisoformat(at):%Y-%m-%d %H:%M:%S} UTC"
    except ValueError:
        return at

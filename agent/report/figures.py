"""This module draws the report's charts from its facts: progress, roofline, tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ucutlass.agent.report.chart import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    Chart,
    ChartAxis,
    Curve,
    Label,
    Mark,
    MarkShape,
    Tick,
    linear,
    logarithmic,
    number,
    round_values,
)
from ucutlass.agent.report.facts import Kind, ReportedCandidate, Roofline, SessionFacts
from ucutlass.agent.report.sanitize import one_line
from ucutlass.units import duration

HEIGHT = 300

_SHAPES: dict[Kind, MarkShape] = {"confirmed": "dot", "read": "dot"}
"""What is no result is a cross: results are told from others by more than their colour."""


def shape(candidate: ReportedCandidate, best: int | None) -> MarkShape:
    return "diamond" if candidate.id == best else _SHAPES.get(candidate.kind, "cross")


def best_id(facts: SessionFacts) -> int | None:
    return None if facts.gain is None else facts.gain.candidate


# --- best so far -----------------------------------------------------------------


def progress(facts: SessionFacts) -> list[Chart]:
    """Returns charts of the best so far over attempts, tokens and seconds; what was not spent has no
    chart."""
    charts = [
        _progress(facts, "attempts", "attempts", lambda c: float(c.at.attempts)),
        _progress(facts, "tokens", "tokens", lambda c: float(c.at.tokens)),
        _progress(facts, "seconds", "seconds of work, waiting not counted", lambda c: c.at.seconds),
    ]
    return [c for c in charts if c is not None]


def _progress(
    facts: SessionFacts, id: str, across: str, spent: Callable[[ReportedCandidate], float]
) -> Chart | None:
    candidates = facts.candidates
    timed = [c.seconds for c in candidates if c.seconds is not None]
    most = max((spent(c) for c in candidates), default=0.0)
    if not timed or most <= 0:
        return None
    floor = HEIGHT - BOTTOM
    levels = [v for v in (facts.bound, facts.baseline or 0.0) if v > 0]
    y = logarithmic((*timed, *levels), floor, TOP)
    x = linear(0, most, LEFT, RIGHT)
    points: list[tuple[float, float]] = []
    for c, best in zip(candidates, facts.best, strict=True):
        if best is None:
            continue
        here = x.at(spent(c))
        if points and points[-1][1] != y.at(best):
            points.append((here, points[-1][1]))
        points.append((here, y.at(best)))
    chosen = best_id(facts)
    marks = [
        Mark(
            x.at(spent(c)),
            floor - 4 if c.seconds is None else y.at(c.seconds),
            shape(c, chosen),
            c.kind,
            f"#{c.id}: {c.words}",
            f"c{c.id}",
        )
        for c in sorted(candidates, key=lambda c: c.id == chosen)
    ]
    curves = [Curve(tuple(points), "best", "the best so far")] if len(points) > 1 else []
    level, words = _levels(facts, y)
    ends = f"{_us(next(b for b in facts.best if b is not None))} at first, {_us(facts.best[-1])} in the end"
    return Chart(
        f"best-{id}",
        f"Best so far over {id}",
        f"Microseconds of one call: {ends}.",
        HEIGHT,
        tuple(Tick(x.at(v), number(v)) for v in round_values(x)),
        tuple(Tick(y.at(v), f"{v * 1e6:.4g}") for v in round_values(y)),
        across,
        "microseconds",
        (*level, *curves),
        tuple(marks),
        words,
    )


def _levels(facts: SessionFacts, y: ChartAxis) -> tuple[tuple[Curve, ...], tuple[Label, ...]]:
    """Returns the bound and the baseline, with their names at the right."""
    curves, labels = [], []
    for seconds, name in ((facts.bound, "bound"), (facts.baseline or 0.0, "baseline")):
        if seconds > 0:
            at = y.at(seconds)
            words = f"{name}: {_us(seconds)}"
            curves.append(Curve(((LEFT, at), (RIGHT, at)), name, words))
            above = at - 5 if at > TOP + 14 else at + 14
            labels.append(Label(RIGHT, above, words, name, "end"))
    return tuple(curves), tuple(labels)


def _us(seconds: float | None) -> str:
    return "no result" if seconds is None else duration(seconds)


# --- the roofline ----------------------------------------------------------------


def roofline(facts: SessionFacts) -> Chart | None:
    """Returns every result under the device's ceilings; without the program's work, under the bound; None
    where that is not known either."""
    timed = [c for c in facts.candidates if c.seconds is not None]
    if not timed:
        return None
    if facts.roofline is not None:
        return _roofline(facts, facts.roofline, timed)
    return _shares(facts, timed) if facts.bound > 0 else None


def _roofline(facts: SessionFacts, work: Roofline, timed: Sequence[ReportedCandidate]) -> Chart:
    rates = [work.operations / c.seconds for c in timed if c.seconds]
    slope = next(r for r in work.roofs if r.slopes)
    flat = next(r for r in work.roofs if not r.slopes)
    ridge = flat.rate / slope.rate
    height = HEIGHT + 60
    over = min(flat.rate, slope.rate * work.intensity)
    x = logarithmic((work.intensity / 3, work.intensity * 3, ridge / 3, ridge * 3), LEFT, RIGHT)
    y = logarithmic((*rates, over, flat.rate), height - BOTTOM, TOP, 1.4)
    start = max(x.low, y.low / slope.rate)
    curves = (
        Curve(_placed(x, y, (start, start * slope.rate), (ridge, flat.rate)), "roof", slope.name),
        Curve(_placed(x, y, (ridge, flat.rate), (x.high, flat.rate)), "roof", flat.name),
        Curve(_placed(x, y, (work.intensity, y.low), (work.intensity, over)), "drop", "this program"),
    )
    chosen = best_id(facts)
    marks = tuple(
        Mark(
            x.at(work.intensity),
            y.at(work.operations / c.seconds),
            shape(c, chosen),
            c.kind,
            f"#{c.id}: {number(work.operations / c.seconds)} operations per second, {_us(c.seconds)}",
            f"c{c.id}",
        )
        for c in sorted(timed, key=lambda c: c.id == chosen)
        if c.seconds
    )
    labels = (
        Label(RIGHT, y.at(flat.rate) - 6, f"{flat.name}: {number(flat.rate)}op/s", "roof", "end"),
        Label(LEFT + 8, TOP + 12, f"slope, {slope.name}: {number(slope.rate)}B/s", "roof"),
    )
    best = max(rates)
    says = (
        f"{work.intensity:.1f} operations per byte, the ridge is {ridge:.0f}; the fastest reaches "
        f"{number(best)}op/s of {number(over)} that {work.device} allows there, {best / over:.0%}."
    )
    return Chart(
        "roofline",
        f"Roofline on {work.device}",
        says,
        height,
        tuple(Tick(x.at(v), number(v)) for v in round_values(x)),
        tuple(Tick(y.at(v), number(v)) for v in round_values(y)),
        "operations per byte of compulsory traffic",
        f"{work.lane} operations per second",
        curves,
        marks,
        labels,
    )


def _placed(x: ChartAxis, y: ChartAxis, *points: tuple[float, float]) -> tuple[tuple[float, float], ...]:
    return tuple((x.at(a), y.at(b)) for a, b in points)


def _shares(facts: SessionFacts, timed: Sequence[ReportedCandidate]) -> Chart:
    """Returns each result's share of the bound, for a journal without work and bytes."""
    shares = [c.share for c in timed if c.share is not None]
    x = linear(0, max(1, len(facts.candidates) - 1), LEFT, RIGHT)
    y = linear(0, max(1.0, *shares), HEIGHT - BOTTOM, TOP)
    chosen = best_id(facts)
    marks = tuple(
        Mark(
            x.at(c.id),
            y.at(c.share),
            shape(c, chosen),
            c.kind,
            f"#{c.id}: {c.share:.1%} of the bound",
            f"c{c.id}",
        )
        for c in sorted(timed, key=lambda c: c.id == chosen)
        if c.share is not None
    )
    return Chart(
        "roofline",
        "Results against the bound",
        f"The journal says nothing of the program's work. The fastest has {max(shares):.1%} of the bound.",
        HEIGHT,
        tuple(Tick(x.at(v), number(v)) for v in round_values(x)),
        tuple(Tick(y.at(v), f"{v:.0%}") for v in round_values(y, 6)),
        "candidate",
        "share of the bound",
        (Curve(((LEFT, y.at(1)), (RIGHT, y.at(1))), "bound", "the bound"),),
        marks,
        (Label(RIGHT, y.at(1) + 14, f"bound: {_us(facts.bound)}", "bound", "end"),),
    )


# --- the tree --------------------------------------------------------------------

STEP = 34
"""Pixels from a generation to the next."""

LARGEST = 250
"""Candidates up to which a picture of the tree says anything."""


def tree(facts: SessionFacts) -> Chart | None:
    """Returns a chart of which candidate was made from which, a generation a row; None for a tree that is too
    small or too large for a picture (the list below it has every candidate)."""
    candidates = facts.candidates
    if not 1 < len(candidates) <= LARGEST:
        return None
    places, columns = _places(candidates)
    x = linear(0, max(1.0, columns - 1), LEFT, RIGHT)
    across = {at: x.at(place) for at, place in places.items()}
    step = min(STEP, 700 / (1 + max(c.depth for c in candidates)))
    down = {c.id: TOP + 12 + c.depth * step for c in candidates}
    chosen = best_id(facts)
    curves = tuple(
        Curve(
            ((across[c.parent], down[c.parent]), (across[c.id], down[c.id])),
            "path" if c.path else "edge",
            f"#{c.id} from #{c.parent}",
        )
        for c in sorted(candidates, key=lambda c: c.path)
        if c.parent is not None
    )
    marks = tuple(
        Mark(
            across[c.id],
            down[c.id],
            shape(c, chosen),
            c.kind,
            f"#{c.id}: {one_line(c.words, 120)}",
            f"c{c.id}",
        )
        for c in sorted(candidates, key=lambda c: c.id == chosen)
    )
    named = [c for c in candidates if c.id == chosen or c.id == 0]
    labels = tuple(
        Label(
            across[c.id] + (8 if across[c.id] < RIGHT - 80 else -8),
            down[c.id] - 7,
            f"#{c.id}" + (f" {_us(c.seconds)}" if c.seconds else ""),
            anchor="start" if across[c.id] < RIGHT - 80 else "end",
        )
        for c in named
    )
    depth = max(c.depth for c in candidates)
    says = f"{len(candidates)} candidates in {depth + 1} generations; the winner's line is drawn bold."
    return Chart(
        "tree",
        "The search tree",
        says,
        TOP + 12 + depth * step + BOTTOM / 2,
        y_ticks=tuple(Tick(TOP + 12 + d * step, str(d)) for d in range(0, depth + 1, max(1, depth // 12))),
        up="generation" if depth * step > 80 else "",
        curves=curves,
        marks=marks,
        labels=labels,
    )


def _places(candidates: Sequence[ReportedCandidate]) -> tuple[dict[int, float], int]:
    """Returns a column for each leaf, in the order of a walk through the tree; parents over the middle of
    their children. Children come after their parents, so no recursion is needed."""
    children: dict[int, list[int]] = {}
    for c in candidates:
        if c.parent is not None:
            children.setdefault(c.parent, []).append(c.id)
    places: dict[int, float] = {}
    waiting, columns = [0], 0
    while waiting:
        at = waiting.pop()
        if at not in children:
            places[at] = float(columns)
            columns += 1
        waiting.extend(reversed(children.get(at, [])))
    for c in reversed(candidates):
        if c.id in children:
            below = [places[child] for child in children[c.id]]
            places[c.id] = (min(below) + max(below)) / 2
    return places, columns

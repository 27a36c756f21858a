"""Formats bounds as rows of a table and as JSON values."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ucutlass.sol.bounds import Term, TimeBound, TimeBounds, metric_prefixed
from ucutlass.sol.work import Work
from ucutlass.units import duration

_SHOWN = 4
"""Most added terms of a bound that are shown, the longest first; the others share one line."""


def row(bounds: TimeBounds, seconds: float | None = None) -> dict[str, Any]:
    """Returns everything as one JSON object; `seconds` is a measured time."""
    return {
        "device": bounds.device,
        "regime": bounds.regime,
        "limit": bounds.limit,
        "seconds": bounds.fused.seconds,
        "lane": bounds.compute_type,
        "intensity": bounds.intensity,
        "ridge": bounds.ridge,
        "work": _work(bounds.least),
        "work_at_most": _work(bounds.most),
        "seconds_at_most": bounds.fused_most.seconds,
        "bounds": {b.name: _bound(b) for b in (bounds.unfused, bounds.fused, bounds.realistic)},
        "calibrated": {b.name: _bound(b) for b in bounds.calibrated} or None,
        "measured_seconds": seconds,
        "gap": None if seconds is None else bounds.gap(seconds),
    }


def _work(work: Work) -> dict[str, Any]:
    return {
        "operations": dict(work.operations),
        "read": work.read,
        "written": work.written,
        "bytes": work.bytes,
    }


def _bound(bound: TimeBound) -> dict[str, Any]:
    return {
        "seconds": bound.seconds,
        "binding": bound.binding,
        "basis": bound.basis,
        "limits": [asdict(t) for t in bound.limits],
        "added": [asdict(t) for t in bound.added],
    }


def lines(bounds: TimeBounds, seconds: float | None = None) -> list[tuple[str, str]]:
    """Returns what decides, the work, every bound with its terms, and the gap, as rows of a table."""
    rows = [
        ("limit", f"{bounds.limit}: {duration(bounds.fused.seconds)} on {bounds.device}, {bounds.regime}"),
        ("work", work_text(bounds)),
    ]
    if bounds.most != bounds.least:
        rows.append(("by the data", _by_data(bounds)))
    shown: tuple[Term, ...] = ()
    for bound in (bounds.unfused, bounds.fused, bounds.realistic, *bounds.calibrated):
        rows += _bound_lines(bound, shown)
        shown += bound.limits
    if seconds is not None:
        rows.append(("time", f"{duration(seconds)}: {bounds.gap(seconds):.3g} times the fused bound"))
        if seconds < bounds.fused.seconds:
            rows.append(("below", "faster than the bound: measurement, program or clock are not as assumed"))
    return rows


def work_text(bounds: TimeBounds) -> str:
    """Returns operations by compute type, bytes, and the intensity beside the ridge, as text."""
    operations = ", ".join(
        f"{metric_prefixed(n)} {compute_type}" for compute_type, n in sorted(bounds.least.operations.items())
    )
    return (
        f"{operations or 'no operations'}; {metric_prefixed(bounds.least.read)} bytes read, "
        f"{metric_prefixed(bounds.least.written)} written: {bounds.intensity:.1f} {bounds.compute_type} operations per byte, "
        f"ridge {bounds.ridge:.0f}"
    )


def _by_data(bounds: TimeBounds) -> str:
    most, least = bounds.most, bounds.least
    parts = [f"{metric_prefixed(most.read)} bytes read"] if most.read != least.read else []
    parts += [
        f"{metric_prefixed(n)} {compute_type}"
        for compute_type, n in sorted(most.operations.items())
        if n != least.operations.get(compute_type, 0)
    ]
    return (
        f"at most {', '.join(parts)}, {duration(bounds.fused_most.seconds)} fused: gathers and masks of "
        "data decide; the bounds take the least"
    )


def _bound_lines(bound: TimeBound, shown: tuple[Term, ...]) -> list[tuple[str, str]]:
    """Returns the rows of one bound; terms that are in `shown` are not repeated."""
    name = bound.name if bound.basis == "data sheet" else f"{bound.name}, {bound.basis}"
    rows = [(name, f"{duration(bound.seconds)}, most by {bound.binding}")]
    rows += [(f"  {t.name}", f"{duration(t.seconds)}: {t.why}") for t in bound.limits if t not in shown]
    added = sorted(bound.added, key=lambda t: -t.seconds)
    rows += [(f"  + {t.name}", f"{duration(t.seconds)}: {t.why}") for t in added[:_SHOWN]]
    if rest := added[_SHOWN:]:
        rows.append((f"  + {len(rest)} more", f"{duration(sum(t.seconds for t in rest))} together"))
    return rows

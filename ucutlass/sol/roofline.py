"""Draws a roofline of bounds as SVG with logarithmic axes, legible on light and dark backgrounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from ucutlass.ir.hardware import Device
from ucutlass.sol.bounds import TimeBounds, compute_rate, data_sheet, metric_prefixed
from ucutlass.sol.costs import SPECIAL
from ucutlass.units import duration

WIDTH, HEIGHT = 760, 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 740, 40, 330
_ROW = 18


class RooflineError(ValueError):
    """A program without operations in any compute type cannot be placed on a roofline."""


@dataclass(frozen=True, slots=True)
class LogAxis:
    """A logarithmic axis that maps values `low` to `high`, whole powers of ten, to pixels `start` to
    `end`."""

    low: int
    high: int
    start: float
    end: float

    def at(self, value: float) -> float:
        """Returns the pixel of a value; values beyond the axis are clamped to its ends."""
        position = (math.log10(value) - self.low) / (self.high - self.low)
        return self.start + min(1.0, max(0.0, position)) * (self.end - self.start)

    @property
    def decades(self) -> range:
        return range(self.low, self.high + 1)


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """A point of the picture: operations per byte, operations per second, and its label."""

    mark: str
    intensity: float
    rate: float
    words: str


@dataclass(frozen=True, slots=True)
class Roof:
    """A ceiling: `flops` operations per second where it is flat, `flops` times the intensity where it
    slopes."""

    words: str
    flops: float
    slopes: bool


def points(bounds: TimeBounds, seconds: float | None = None) -> tuple[RooflinePoint, ...]:
    """Returns the program under each bound, and as measured, by the operations of its slowest compute type.

    Raises RooflineError where it has none.
    """
    count = round(bounds.intensity * bounds.least.bytes)
    if not count or not bounds.least.bytes:
        raise RooflineError(
            f"{bounds.least.label} has no operations of a compute type, only bytes or special functions: a "
            "roofline cannot place it"
        )
    unfused = count / max(1, bounds.unfused_bytes)
    times = [
        ("fused", bounds.intensity, bounds.fused.seconds, "fused bound"),
        ("realistic", bounds.intensity, bounds.realistic.seconds, "realistic"),
        ("unfused", unfused, bounds.unfused.seconds, "unfused"),
    ]
    if seconds is not None:
        times.append(("measured", bounds.intensity, seconds, "measured"))
    return tuple(
        RooflinePoint(
            mark, at, count / t, f"{words} {duration(t)}, {metric_prefixed(count / t)} operations per second"
        )
        for mark, at, t, words in times
    )


def roofs(bounds: TimeBounds, device: Device) -> tuple[Roof, ...]:
    """Returns memory's slope (the L2's too in the warm regime) and one roof for each compute type that the
    program uses."""
    rates = data_sheet(device)
    sloped = [Roof(f"DRAM {metric_prefixed(rates.memory)} B/s", rates.memory, True)]
    if bounds.regime == "warm":
        sloped.append(Roof(f"L2 {metric_prefixed(rates.l2)} B/s ({rates.notes['l2']})", rates.l2, True))
    peaks = {
        compute_rate(compute_type, rates.flops)
        for compute_type in bounds.least.operations
        if compute_type != SPECIAL
    }
    flat = [
        Roof(f"{compute_type} {metric_prefixed(rate)} per second", rate, False)
        for compute_type, rate in peaks
    ]
    return (*sloped, *sorted(flat, key=lambda r: -r.flops))


def svg(title: str, bounds: TimeBounds, device: Device, seconds: float | None = None) -> str:
    """Returns the picture as an SVG document. `title` may be any text; it is escaped.

    Raises RooflineError as `points` does.
    """
    shown, above = points(bounds, seconds), roofs(bounds, device)
    x, y = scales(shown, above)
    body = [*_grid(x, y), *_roofs(above, x, y), *_points(shown, x, y)]
    label = f"Roofline of {title} on {device.name}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
            f'height="{HEIGHT}" role="img" aria-label={quoteattr(label)}>',
            f"<title>{escape(label)}</title>",
            f"<style>{_STYLE}</style>",
            f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}"/>',
            f'<text class="title" x="{_LEFT}" y="24">{escape(_truncated(f"{title} on {device.name}"))}</text>',
            *body,
            "</svg>",
            "",
        ]
    )


def scales(shown: Sequence[RooflinePoint], above: Sequence[Roof]) -> tuple[LogAxis, LogAxis]:
    """Returns axes in whole decades that contain every point and every corner between a slope and a roof."""
    slopes = [r.flops for r in above if r.slopes]
    flats = [r.flops for r in above if not r.slopes]
    across = [p.intensity for p in shown] + [flat / slope for flat in flats for slope in slopes]
    up = [p.rate for p in shown] + flats
    left, right = math.floor(math.log10(min(across)) - 0.3), math.ceil(math.log10(max(across)) + 0.3)
    low, high = math.floor(math.log10(min(up)) - 0.3), math.ceil(math.log10(max(up)) + 0.1)
    return LogAxis(left, right, _LEFT, _RIGHT), LogAxis(low, high, _BOTTOM, _TOP)


_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1b1f24}.title{font-size:15px;font-weight:600}"
    ".ground{fill:#ffffff}.grid{stroke:#d4d9e0}.roof{stroke:#3b6ea8;stroke-width:2;fill:none}"
    ".slope{stroke:#2f8f6b;stroke-width:2;fill:none}.dim{fill:#5a6370}"
    ".fused{fill:#c2410c}.realistic{fill:#7c3aed}.unfused{fill:#64748b}.measured{fill:#0f766e}"
    "@media (prefers-color-scheme:dark){text{fill:#e6e9ee}.ground{fill:#14171c}.grid{stroke:#343b45}"
    ".roof{stroke:#7fb0ea}.slope{stroke:#6fd0a8}.dim{fill:#a2abb8}"
    ".fused{fill:#fb923c}.realistic{fill:#c4a5ff}.unfused{fill:#a3afc0}.measured{fill:#5eead4}}"
)


def _grid(x: LogAxis, y: LogAxis) -> list[str]:
    elements = []
    for power in x.decades:
        at = x.at(10.0**power)
        elements.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{_BOTTOM}"/>')
        words = f"{10.0**power:g}"
        elements.append(
            f'<text class="dim" x="{at:.1f}" y="{_BOTTOM + 16}" text-anchor="middle">{words}</text>'
        )
    for power in y.decades:
        at = y.at(10.0**power)
        elements.append(f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        words = metric_prefixed(10.0**power)
        elements.append(
            f'<text class="dim" x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{words}</text>'
        )
    middle = (_LEFT + _RIGHT) / 2
    elements.append(
        f'<text class="dim" x="{middle}" y="{_BOTTOM + 34}" text-anchor="middle">operations per byte; '
        "up: operations per second</text>"
    )
    return elements


def _roofs(above: Sequence[Roof], x: LogAxis, y: LogAxis) -> list[str]:
    """Draws roofs from where a slope meets them, slopes up to the highest roof, and a label beside each."""
    highest = max((r.flops for r in above if not r.slopes), default=10.0**y.high)
    steepest = max(r.flops for r in above if r.slopes)
    left, right = 10.0**x.low, 10.0**x.high
    elements, lowest = [], 0.0
    for roof in above:
        if roof.slopes:
            start, end = max(left, 10.0**y.low / roof.flops), min(right, highest / roof.flops)
            ends = (start, start * roof.flops, end, end * roof.flops)
            elements.append(_line("slope", roof, ends, x, y))
            continue
        ends = (max(left, roof.flops / steepest), roof.flops, right, roof.flops)
        elements.append(_line("roof", roof, ends, x, y))
        text_y = max(y.at(roof.flops) - 5, lowest + 14)
        lowest = text_y
        elements.append(
            f'<text x="{_RIGHT - 4}" y="{text_y:.1f}" text-anchor="end">{escape(roof.words)}</text>'
        )
    slopes = "; ".join(f"slope: {r.words}" for r in above if r.slopes)
    elements.append(f'<text class="dim" x="{_LEFT}" y="{_BOTTOM + 56}">{escape(slopes)}</text>')
    return elements


def _line(kind: str, roof: Roof, ends: tuple[float, float, float, float], x: LogAxis, y: LogAxis) -> str:
    x1, y1, x2, y2 = ends
    return (
        f'<line class="{kind}" x1="{x.at(x1):.1f}" y1="{y.at(y1):.1f}" x2="{x.at(x2):.1f}" '
        f'y2="{y.at(y2):.1f}"><title>{escape(roof.words)}</title></line>'
    )


def _points(shown: Sequence[RooflinePoint], x: LogAxis, y: LogAxis) -> list[str]:
    """Draws a mark for each point, and a line below the picture that describes it."""
    elements = []
    for i, point in enumerate(shown):
        at, up = x.at(point.intensity), y.at(point.rate)
        elements.append(
            f'<circle class="{point.mark}" id="{point.mark}" cx="{at:.1f}" cy="{up:.1f}" r="5">'
            f"<title>{escape(point.words)}</title></circle>"
        )
        below = _BOTTOM + 56 + _ROW * (i + 1)
        elements.append(f'<circle class="{point.mark}" cx="{_LEFT + 6}" cy="{below - 4}" r="5"/>')
        elements.append(f'<text x="{_LEFT + 18}" y="{below}">{escape(point.words)}</text>')
    return elements


def _truncated(text: str) -> str:
    return text if len(text) <= 90 else text[:89] + "…"

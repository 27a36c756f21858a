"""Compares two bench records. Little can be said of them unless they were measured in turns.

A bench record's `result` has `outcomes`, the record's own subject first: each with its `clock`, the
`span` of that clock (a summary with median, p10 and p90, in microseconds a launch), `trusted`, and
`blocks` (fields of `bench.protocol.Block`) in the order of measurement, two a round A B B A. Its
`protocol` has the fields of `bench.protocol.Protocol`; records of one interleaved comparison share
a `comparison` that is not empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ucutlass.runtime.bench.protocol import Protocol, TimingBlock, comparable
from ucutlass.runtime.evidence import Record
from ucutlass.runtime.statistics import MIN_BLOCKS, Ratio, RatioVerdict, paired_ratio, verdict


class Incomparable(ValueError):
    """Two records whose times mean different things; `reasons` say why."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__(*reasons)
        self.reasons = tuple(reasons)

    def __str__(self) -> str:
        return "these records cannot be compared: " + "; ".join(self.reasons)


@dataclass(frozen=True, slots=True)
class Time:
    """Microseconds a launch of a record's own subject. `blocks` are in order, two a round."""

    clock: str
    median: float
    p10: float
    p90: float
    trusted: bool
    blocks: tuple[TimingBlock, ...]


@dataclass(frozen=True, slots=True)
class RecordComparison:
    """`medians` is a's over b's, below 1 where a is the faster. `ratio` and `verdict` are None unless
    the two were measured in turns; `cautions` say why, and what else differs."""

    a: Time
    b: Time
    medians: float
    ratio: Ratio | None
    verdict: RatioVerdict | None
    cautions: tuple[str, ...]


def time_of(record: Record) -> Time:
    """Raises Incomparable for a record that is no bench record or has no time."""
    who = f"record {record.id[:12]}"
    if record.kind != "bench":
        raise Incomparable([f"{who} is of kind {record.kind}, not bench"])
    result: Mapping[str, Any] = record.result
    match result:
        case {"outcomes": [{"failed": stage, **rest}, *_]}:
            raise Incomparable([f"{who} has no time, it failed in {stage}: {rest.get('words', '')}"])
        case {"outcomes": [{"clock": str(clock), "span": {"median": m, "p10": p10, "p90": p90}, **rest}, *_]}:
            blocks = _blocks(rest.get("blocks"))
            if blocks is not None and all(_is_time(v) for v in (m, p10, p90)):
                return Time(clock, m, p10, p90, rest.get("trusted") is True, blocks)
    raise Incomparable([f"{who} has no time of the known form"])


def _blocks(listed: Any) -> tuple[TimingBlock, ...] | None:
    """None for what is no list of blocks."""
    blocks: list[TimingBlock] = []
    for value in listed if isinstance(listed, list | tuple) else [None]:
        match value:
            case {"median": median, "spread": int() | float() as spread, "clock": clock} if _is_time(
                median
            ) and (clock is None or _is_time(clock)):
                blocks.append(TimingBlock(median, spread, clock))
            case _:
                return None
    return tuple(blocks)


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def compare(a: Record, b: Record) -> RecordComparison:
    """Returns what two bench records say of one another. Raises Incomparable for other compute types, devices,
    sizes, regimes or clocks, and as `time_of`."""
    x, y = time_of(a), time_of(b)
    if reasons := _differences(_MUST_AGREE, a, b):
        raise Incomparable(reasons)
    if x.clock != y.clock:
        raise Incomparable([f"the clocks are {x.clock} and {y.clock}"])
    medians, cautions = x.median / y.median, _differences(_OUGHT_TO_AGREE, a, b)
    match _turns(a, b, x, y):
        case str(why):
            return RecordComparison(x, y, medians, None, None, (f"no verdict: {why}", *cautions))
        case (ours, theirs, chosen):
            ratio = paired_ratio(ours, theirs, chosen.seed)
            return RecordComparison(x, y, medians, ratio, verdict(ratio, chosen.resolution), tuple(cautions))


def _turns(a: Record, b: Record, x: Time, y: Time) -> str | tuple[list[float], list[float], Protocol]:
    """Returns the medians of the blocks whose rounds can be compared, by the rule of `ucc bench`, and its
    protocol; or why there is no verdict."""
    shared = a.protocol.get("comparison")
    if not shared or shared != b.protocol.get("comparison") or a.machine.uuid != b.machine.uuid:
        return (
            "the two come from different runs and were not interleaved, so clocks, heat and neighbours "
            "differ; time both in one `ucc bench` to know"
        )
    if wrong := [r.id[:12] for r, t in ((a, x), (b, y)) if not t.trusted]:
        return f"the time of {' and of '.join(wrong)} is not to be trusted (`ucc results show`)"
    if len(x.blocks) != len(y.blocks) or len(x.blocks) % 2:
        return f"there are {len(x.blocks)} and {len(y.blocks)} blocks, so they took no turns A B B A"
    chosen = _protocol(a)
    if chosen is None:
        return "the protocol names no seed, resolution, drift or spread"
    rounds = [(x.blocks[i : i + 2], y.blocks[i : i + 2]) for i in range(0, len(x.blocks), 2)]
    capped = _power_capped(a) and _power_capped(b)
    comparable_rounds = [pair for pair in rounds if comparable(*pair, chosen, capped)]
    if len(comparable_rounds) < MIN_BLOCKS:
        return (
            f"{len(comparable_rounds)} of {len(rounds)} rounds can be compared, and {MIN_BLOCKS} are needed"
        )
    ours, theirs = ([block.median for pair in comparable_rounds for block in pair[side]] for side in (0, 1))
    return ours, theirs, chosen


def _power_capped(record: Record) -> bool:
    """Returns whether the comparison found its kernels' clocks to be their own."""
    listed = record.result.get("findings")
    findings = listed if isinstance(listed, list | tuple) else ()
    return any(isinstance(f, Mapping) and f.get("name") == "power-capped" for f in findings)


def _protocol(record: Record) -> Protocol | None:
    """Returns what a verdict needs of the protocol, None where some of it is missing."""
    match record.protocol:
        case {
            "seed": int(seed),
            "resolution": int() | float() as resolution,
            "drift": int() | float() as drift,
            "spread": int() | float() as spread,
        }:
            return Protocol(seed=seed, resolution=resolution, drift=drift, spread=spread)
    return None


def _sizes(record: Record) -> str:
    return " ".join(f"{d}={n}" for d, n in sorted(record.subject.sizes.items()))


Facts = Mapping[str, Callable[[Record], str]]

_MUST_AGREE: Facts = {
    "compute types": lambda r: r.subject.lane,
    "devices": lambda r: r.machine.device,
    "sizes": _sizes,
    "regimes": lambda r: str(r.protocol.get("regime", "")),
}
_OUGHT_TO_AGREE: Facts = {
    "GPUs": lambda r: r.machine.uuid,
    "computations": lambda r: r.subject.algorithm[:12],
    "harnesses": lambda r: r.harness[:12],
    "versions": lambda r: " ".join(f"{n} {v}" for n, v in sorted(r.machine.versions.items())),
}


def _differences(facts: Facts, a: Record, b: Record) -> list[str]:
    pairs = ((name, of(a), of(b)) for name, of in facts.items())
    return [f"the {name} are {x or 'none'} and {y or 'none'}" for name, x, y in pairs if x != y]

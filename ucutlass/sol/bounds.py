"""Bounds on a program's time: unfused, fused, and what a plan can reach; each bound lists its terms.

`fused` is the speed of light: the largest of the times that each compute type, the special-function units and
memory need for the compulsory work alone. `unfused` adds up the operators, each with its own largest limit.
`realistic` adds the effects of a plan's tiles: padding, waves, its L2 and DRAM traffic, and the launch floor;
it bounds this plan and no other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ucutlass.ir import Program
from ucutlass.ir.hardware import Device
from ucutlass.kernels.families import traffic
from ucutlass.kernels.planned import Planned
from ucutlass.sol.ceilings import Ceilings
from ucutlass.sol.costs import SPECIAL
from ucutlass.sol.eager import stages
from ucutlass.sol.program import least_and_most
from ucutlass.sol.work import Work
from ucutlass.units import duration

Limit = Literal["multiplications", "arithmetic", "special functions", "memory"]
"""What decides a fused bound: the products of dots, other f32 operations, special functions, or bytes."""

Regime = Literal["cold", "warm"]
"""In `cold`, every byte comes from and goes to DRAM. In `warm`, what fits into the L2 is already there."""

POLYNOMIAL = 8
"""Fewest f32 operations that a special function takes without its unit: a range reduction and a polynomial of
degree 3 are four multiply-adds (FlashAttention-4 computes a part of its exponentials this way)."""


@dataclass(frozen=True, slots=True)
class Term:
    """One limit or one added part of a bound: its seconds, and the reason with its numbers."""

    name: str
    seconds: float
    why: str


@dataclass(frozen=True, slots=True)
class TimeBound:
    """`seconds` is the largest of `limits` plus the sum of `added`; `binding` names the longest term. `basis`
    says where the rates come from: `data sheet` or `calibrated`."""

    name: str
    basis: str
    limits: tuple[Term, ...]
    added: tuple[Term, ...]

    @property
    def seconds(self) -> float:
        return max((t.seconds for t in self.limits), default=0.0) + sum(t.seconds for t in self.added)

    @property
    def binding(self) -> str:
        decides = max((*self.limits, *self.added), key=lambda t: t.seconds, default=None)
        return "nothing" if decides is None else decides.name


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """Every bound of a program on a device.

    `least` is the compulsory work, and `most` is the same where data asks for as much as it can.
    `compute_type` is the compute type that needs longest; `intensity` is its operations per byte, and above
    `ridge` operations decide. `unfused_bytes` is the traffic of the separate operators. `fused` is the bound
    of `least` and `fused_most` that of `most`: the bound of the actual data lies between them. `calibrated`
    is empty without measured ceilings.
    """

    device: str
    regime: Regime
    limit: Limit
    least: Work
    most: Work
    compute_type: str
    intensity: float
    ridge: float
    fused: TimeBound
    fused_most: TimeBound
    unfused: TimeBound
    realistic: TimeBound
    unfused_bytes: int
    calibrated: tuple[TimeBound, ...] = ()

    def gap(self, seconds: float) -> float:
        """Returns g = t / t_SOL: how many times the fused bound a kernel took."""
        return seconds / self.fused.seconds if self.fused.seconds else math.inf


@dataclass(frozen=True, slots=True)
class Rates:
    """What a device does per second: FLOP/s by compute type, special functions, and bytes of DRAM and L2."""

    basis: str
    flops: Mapping[str, float]
    special: float
    memory: float
    l2: float
    launch_floor: float
    notes: Mapping[str, str]


def data_sheet(device: Device) -> Rates:
    """Returns the device's rates as its data sheet gives them."""
    return Rates(
        "data sheet",
        device.peaks,
        device.special_rate,
        device.bandwidth,
        device.l2_bandwidth,
        device.launch_floor,
        {"l2": device.l2_source, "launch": "an estimate"},
    )


def calibrated(device: Device, ceilings: Ceilings) -> Rates:
    """Returns the rates that were measured on the device; rates that were not measured are the data
    sheet's."""
    sheet = data_sheet(device)
    flops = dict(sheet.flops) | dict(ceilings.flops)
    for compute_type in ("tf32", "f16"):
        if compute_type in ceilings.flops and f"{compute_type}x3" not in ceilings.flops:
            flops[f"{compute_type}x3"] = ceilings.flops[compute_type] / 3
    l2 = sheet.notes["l2"] if ceilings.l2 is None else "measured"
    return replace(
        sheet,
        basis="calibrated",
        flops=flops,
        memory=ceilings.bandwidth,
        l2=ceilings.l2 or sheet.l2,
        launch_floor=ceilings.launch_floor,
        notes={"l2": l2, "launch": "measured"},
    )


def compute_rate(compute_type: str, flops: Mapping[str, float]) -> tuple[str, float]:
    """Returns the entry of `flops` at which operations of a compute type run, and its rate.

    f32 products run as three passes of tf32 or f16 or as f32, whichever is fastest. f16 accumulation runs at f16's rate
    unless the device has a rate of its own for it. A compute type that the tensor cores lack widens to
    f16.
    """
    match compute_type:
        case "tf32x3":
            options: tuple[str, ...] = ("tf32x3", "f16x3", "f32")
        case "f16_f16":
            options = ("f16_f16", "f16")
        case _:
            options = (compute_type,)
    entry = max((o for o in options if o in flops), key=lambda o: flops[o], default="f16")
    return entry, flops[entry]


# --- the bounds --------------------------------------------------------------------


def fused_bound(work: Work, device: Device, rates: Rates, regime: Regime = "cold") -> TimeBound:
    """Returns the speed of light of compulsory work."""
    return TimeBound("fused", rates.basis, tuple(_limits(work, device, rates, regime)), ())


def unfused_bound(parts: Sequence[Work], device: Device, rates: Rates, regime: Regime = "cold") -> TimeBound:
    """Returns the bound of operators that run one after another, each with its largest limit."""
    terms = []
    for part in parts:
        largest = max(_limits(part, device, rates, regime), key=lambda t: t.seconds)
        if largest.seconds:
            terms.append(Term(part.label, largest.seconds, f"{largest.name}: {largest.why}"))
    return TimeBound("unfused", rates.basis, (), tuple(terms))


def _limits(work: Work, device: Device, rates: Rates, regime: Regime) -> Iterator[Term]:
    by_type: dict[str, int] = {}
    for compute_type, count in work.operations.items():
        if compute_type != SPECIAL and count:
            entry = compute_rate(compute_type, rates.flops)[0]
            by_type[entry] = by_type.get(entry, 0) + count
    for compute_type, count in sorted(by_type.items()):
        rate = rates.flops[compute_type]
        yield Term(
            compute_type,
            count / rate,
            f"{metric_prefixed(count)} operations at {metric_prefixed(rate)} per second",
        )
    special = work.operations.get(SPECIAL, 0)
    if special:
        rate = rates.special + rates.flops["f32"] / POLYNOMIAL
        yield Term(
            "special functions",
            special / rate,
            f"{metric_prefixed(special)} special functions at {metric_prefixed(rates.special)} per second on their units and "
            f"{POLYNOMIAL} f32 operations each beside them",
        )
    yield _memory(work.bytes, device, rates, regime)


def _memory(size: int, device: Device, rates: Rates, regime: Regime) -> Term:
    cold = Term(
        "memory",
        size / rates.memory,
        f"{metric_prefixed(size)} bytes at {metric_prefixed(rates.memory)} bytes per second",
    )
    if regime == "cold":
        return cold
    l2_seconds = size / rates.l2
    l2_text = f"{metric_prefixed(size)} bytes at {metric_prefixed(rates.l2)} bytes per second of L2 ({rates.notes['l2']})"
    if size <= device.l2:
        return Term("memory", l2_seconds, l2_text)
    dram_seconds = (size - device.l2) / rates.memory
    if dram_seconds < l2_seconds:
        return Term("memory", l2_seconds, l2_text)
    return Term(
        "memory",
        dram_seconds,
        f"{metric_prefixed(size)} bytes less the {metric_prefixed(device.l2)} that the L2 may hold, at "
        f"{metric_prefixed(rates.memory)} bytes per second",
    )


def realistic_bound(
    fused: TimeBound, device: Device, rates: Rates, planned: Planned | None, regime: Regime = "cold"
) -> TimeBound:
    """Returns the fused bound with a plan's tiles, waves and traffic, and with the launch floor. Without a
    plan it is the fused bound and the floor, which the term `launch` says."""
    note = rates.notes["launch"]
    if planned is None:
        why = f"an empty kernel takes {duration(rates.launch_floor)} ({note}); no plan, so no tiles or waves"
        return TimeBound("realistic", rates.basis, fused.limits, (Term("launch", rates.launch_floor, why),))
    why = f"an empty kernel takes {duration(rates.launch_floor)} ({note})"
    terms = (*fused.limits, *_planned_limits(planned, device, rates, regime))
    return TimeBound("realistic", rates.basis, terms, (Term("launch", rates.launch_floor, why),))


def _planned_limits(planned: Planned, device: Device, rates: Rates, regime: Regime) -> Iterator[Term]:
    tiles, estimate = traffic(planned), planned.estimate
    if tiles is None:
        return
    compute_type, rate = compute_rate(tiles.compute_type, rates.flops)
    yield Term(
        "tiles",
        tiles.operations / (rate * estimate.padding * estimate.quantisation),
        f"{metric_prefixed(tiles.operations)} operations at {metric_prefixed(rate)} per second of {compute_type}, {estimate.padding:.0%} of them "
        f"useful, {estimate.tiles} tiles on {estimate.slots} slots: {estimate.waves:.2f} waves, {estimate.quantisation:.0%} busy",
    )
    yield Term(
        "L2",
        tiles.l2_bytes / rates.l2,
        f"tiles read {metric_prefixed(tiles.l2_bytes)} bytes of A and B at {metric_prefixed(rates.l2)} bytes per second "
        f"({rates.notes['l2']})",
    )
    if regime == "cold":
        yield Term(
            "DRAM",
            estimate.dram_bytes / rates.memory,
            f"about {metric_prefixed(estimate.dram_bytes)} bytes with what waves read again, at {metric_prefixed(rates.memory)} bytes "
            "per second",
        )


def bounds(
    program: Program,
    sizes: Mapping[str, int],
    device: Device,
    *,
    planned: Planned | None = None,
    ceilings: Ceilings | None = None,
    regime: Regime = "cold",
) -> TimeBounds:
    """Returns every bound of a program for concrete extents; `sizes` has every dimension's extent by name.

    `planned` is a plan for the same extents; `ceilings` were measured on the device.
    """
    least, most = least_and_most(program, sizes)
    return bounds_of(
        least, stages(program, sizes), device, most=most, planned=planned, ceilings=ceilings, regime=regime
    )


def bounds_of(
    least: Work,
    parts: Sequence[Work],
    device: Device,
    *,
    most: Work | None = None,
    planned: Planned | None = None,
    ceilings: Ceilings | None = None,
    regime: Regime = "cold",
) -> TimeBounds:
    """Returns the bounds of work that is already counted, as compulsory work and operator by operator."""
    sheet = data_sheet(device)
    fused = fused_bound(least, device, sheet, regime)
    compute_type, count = _slowest_compute_type(least, sheet)
    measured: tuple[TimeBound, ...] = ()
    if ceilings is not None:
        rates = calibrated(device, ceilings)
        calibrated_fused = fused_bound(least, device, rates, regime)
        measured = (
            calibrated_fused,
            unfused_bound(parts, device, rates, regime),
            realistic_bound(calibrated_fused, device, rates, planned, regime),
        )
    return TimeBounds(
        device.name,
        regime,
        _limit(fused, least, sheet),
        least,
        most or least,
        compute_type,
        count / max(1, least.bytes),
        sheet.flops[compute_type] / sheet.memory,
        fused,
        fused_bound(most or least, device, sheet, regime),
        unfused_bound(parts, device, sheet, regime),
        realistic_bound(fused, device, sheet, planned, regime),
        sum(p.bytes for p in parts),
        measured,
    )


def _limit(fused: TimeBound, work: Work, rates: Rates) -> Limit:
    match fused.binding:
        case "memory" | "special functions" as name:
            return name
        case compute_type:
            products = (p for p in work.operations if p not in (SPECIAL, "f32"))
            return (
                "multiplications" if any(_runs_at(p, compute_type, rates) for p in products) else "arithmetic"
            )


def _runs_at(compute_type: str, entry: str, rates: Rates) -> bool:
    return compute_rate(compute_type, rates.flops)[0] == entry


def _slowest_compute_type(work: Work, rates: Rates) -> tuple[str, int]:
    """Returns the compute type whose operations take longest and their number; f32 where there are none."""
    rates_and_counts = [
        (compute_rate(compute_type, rates.flops), n)
        for compute_type, n in work.operations.items()
        if compute_type != SPECIAL
    ]
    (compute_type, _), count = max(
        rates_and_counts, key=lambda pair: pair[1] / pair[0][1], default=(("f32", 1.0), 0)
    )
    return compute_type, count


# --- words -------------------------------------------------------------------------


def metric_prefixed(value: float) -> str:
    """Returns a number with a metric prefix, such as `137 G`."""
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.4g} {prefix}"
    return f"{value:.4g}"

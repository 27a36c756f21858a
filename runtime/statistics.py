"""Summarises repeated times: medians and spreads, the ratio of two kernels with its interval, and the
verdict.

Pure functions of sequences of positive floats. A mean never stands alone here: times are skewed
to the right, and one interrupted launch moves a mean as far as it likes. Whatever is drawn at
random comes from the given seed, so equal input gives equal output in every process.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

RatioVerdict: TypeAlias = Literal["faster", "slower", "no difference"]

CONFIDENCE = 0.95
"""Of the interval of a ratio, two-sided."""

RESAMPLES = 2000
"""Bootstrap resamples. Efron and Tibshirani, An Introduction to the Bootstrap (1993), section 14.3,
ask for 1000 or more where the ends of a 95 % interval are wanted."""

MIN_BLOCKS = 10
"""Below five or six blocks no resampling can give 95 %: the widest interval, from the least to the
greatest of n, holds the median with probability 1 - 2**(1 - n). At six to eight blocks simulated
intervals still fell short of it by up to three points; from ten on they hold it
(tests/evidence/test_statistics.py)."""


# --- one series ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TimeSummary:
    """Summarises `count` values, in their unit. `mad` is the median absolute deviation over the median,
    without a factor that would make it a standard deviation of normal noise."""

    count: int
    min: float
    p10: float
    median: float
    p90: float
    mad: float


def summary(values: Sequence[float]) -> TimeSummary:
    """Raises ValueError for no values, and for one that is not positive and finite."""
    ordered = sorted(_positive(values))
    median = statistics.median(ordered)
    mad = statistics.median(abs(v - median) for v in ordered) / median
    return TimeSummary(len(ordered), ordered[0], quantile(ordered, 0.1), median, quantile(ordered, 0.9), mad)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Returns a quantile of ascending values by linear interpolation: type 7 of Hyndman and Fan, Sample
    quantiles in statistical packages, The American Statistician 50 (1996)."""
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def relative_error_of_median(values: Sequence[float]) -> float:
    """Returns the standard error of the median over the median, for stopping once it is small enough.

    From order statistics, so without a shape of the noise: McKean and Schrader, A comparison of
    methods for studentizing the sample median, Communications in Statistics 13 (1984), which take
    the 99 % interval's width over twice its normal quantile. Infinite for fewer than eight values:
    their least and greatest do not span 99 %. Raises ValueError as `summary`.
    """
    ordered = sorted(_positive(values))
    count = len(ordered)
    if count < _MIN_FOR_ERROR:
        return math.inf
    rank = max(1, round((count + 1) / 2 - _Z99 * math.sqrt(count / 4)))
    width = ordered[count - rank] - ordered[rank - 1]
    return width / (2 * _Z99) / statistics.median(ordered)


_Z99 = statistics.NormalDist().inv_cdf(0.995)
_MIN_FOR_ERROR = 8
"""The least n with 1 - 2**(1 - n) of at least 99 %."""


# --- two series ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ratio:
    """Time of a over time of b, below 1 where a is the faster: median over blocks, and the ends of
    the interval that holds it with `CONFIDENCE`."""

    median: float
    low: float
    high: float
    blocks: int


def paired_ratio(a: Sequence[float], b: Sequence[float], seed: int) -> Ratio:
    """Returns the ratio of two series measured in turns A B B A, each in the order of measurement.

    Block i holds a[2i], b[2i], b[2i+1], a[2i+1]; its ratio is that of the geometric means, from
    which a drift that is linear in the logarithm drops out. Blocks are resampled whole, so noise
    that the four share stays shared (Kalibera and Jones, Rigorous benchmarking in reasonable time,
    ISMM 2013, on resampling at the level that repeats).

    The interval is the percentile bootstrap of the median block (Efron and Tibshirani 1993,
    chapter 13). BCa takes its acceleration from the jackknife, which is inconsistent for a median
    (section 10.6), so it is not used. Logarithms make `paired_ratio(b, a)` the exact inverse.

    Raises ValueError for series of different or odd length, for fewer than `MIN_BLOCKS` blocks,
    and for a value that is not positive and finite.
    """
    if len(a) != len(b) or len(a) % 2:
        raise ValueError(
            f"blocks A B B A need two series of one even length; these have {len(a)} and {len(b)}"
        )
    if len(a) < 2 * MIN_BLOCKS:
        raise ValueError(
            f"{len(a) // 2} blocks A B B A give no interval of {CONFIDENCE:.0%}: "
            f"measure at least {MIN_BLOCKS}"
        )
    x, y = ([math.log(v) for v in _positive(series)] for series in (a, b))
    logs = [(x[i] + x[i + 1] - y[i] - y[i + 1]) / 2 for i in range(0, len(x), 2)]
    medians = sorted(_resampled_medians(logs, random.Random(seed)))
    tail = (1 - CONFIDENCE) / 2
    return Ratio(
        math.exp(statistics.median(logs)),
        math.exp(quantile(medians, tail)),
        math.exp(quantile(medians, 1 - tail)),
        len(logs),
    )


def _resampled_medians(values: Sequence[float], rng: random.Random) -> list[float]:
    count, draw = len(values), rng.random  # random() alone gives the same in every version of Python
    order = sorted(range(count), key=values.__getitem__)
    rank = sorted(range(count), key=order.__getitem__)
    medians = []
    for _ in range(RESAMPLES):
        ranks = sorted([rank[int(draw() * count)] for _ in range(count)])
        low, high = order[ranks[(count - 1) // 2]], order[ranks[count // 2]]
        medians.append((values[low] + values[high]) / 2)
    return medians


def verdict(ratio: Ratio, floor: float) -> RatioVerdict:
    """Returns what may be said of a against b: a difference only where the interval excludes 1 and the
    median is more than the factor 1 + `floor` away from it, which is what the measurement
    resolves (0.01: one per cent).

    Raises ValueError for a floor that is negative or not finite.
    """
    if not (math.isfinite(floor) and floor >= 0):
        raise ValueError(f"a resolution is a share such as 0.01, not {floor}")
    if ratio.high < 1 and ratio.median * (1 + floor) < 1:
        return "faster"
    if ratio.low > 1 and ratio.median > 1 + floor:
        return "slower"
    return "no difference"


def shrinkage(search: float, final: float) -> float:
    """Returns the share of the speed found in a search that the final measurement did not confirm:
    1 - search / final, from two times. Positive where the search was lucky, as the best of many
    noisy candidates is. Raises ValueError for a time that is not positive and finite."""
    _positive((search, final))
    return 1 - search / final


# --- one round after another -------------------------------------------------------

RaceVerdict: TypeAlias = Literal["faster", "slower", "undecided"]


def sign_evidence(wins: int, losses: int) -> float:
    """Returns the e-value of so many rounds against the claim that a round is won with probability at most
    1/2, whatever came before it.

    It is the likelihood ratio of a uniform mixture over winning probabilities from 1/2 to 1, so under the claim
    a nonnegative supermartingale that begins at 1: by Ville's inequality it ever reaches 1 / alpha with
    probability alpha at most, however often one looks and whenever one stops (Ramdas, Grunwald, Vovk and Shafer,
    Game-theoretic statistics and safe anytime-valid inference, Statistical Science 38, 2023). Nothing is assumed
    of the noise but that: 2 ** (n + 1) / ((n + 1) * C(n, wins)) * P(Bin(n + 1, 1/2) <= wins).
    """
    n = wins + losses
    below = sum(math.comb(n + 1, k) for k in range(wins + 1))
    return below / ((n + 1) * math.comb(n, wins))


def race_verdict(log_ratios: Sequence[float], alpha: float = 1 - CONFIDENCE) -> RaceVerdict:
    """Returns what rounds that two kernels were measured in turns decide, from the logarithms of a's time over
    b's in order: `faster` where a is, `slower` where b is. Each is said of the other's kernel with probability
    `alpha` at most. A round without a difference counts for neither."""
    wins = losses = 0
    for ratio in log_ratios:
        wins, losses = wins + (ratio < 0), losses + (ratio > 0)
        if sign_evidence(wins, losses) >= 1 / alpha:
            return "faster"
        if sign_evidence(losses, wins) >= 1 / alpha:
            return "slower"
    return "undecided"


# --- many problems ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Speed-ups over `attempted` problems: `geomean` with a failure as 1 (the baseline would have
    to be used), `solved` over the others alone (None where there is none), `failed` their count."""

    geomean: float
    solved: float | None
    attempted: int
    failed: int


def geomean(values: Sequence[float]) -> float:
    """Raises ValueError for no values, and for one that is not positive and finite."""
    return math.exp(statistics.fmean(math.log(v) for v in _positive(values)))


def aggregate(times: Sequence[tuple[float, float] | None], resolution: float) -> Aggregate:
    """Aggregates (baseline's time, candidate's time) for every problem attempted, None for a failure.

    Times below the timer's `resolution` count as that: a time that was rounded to nothing must not
    make a speed-up without end. Raises ValueError for no problems, for a negative or non-finite
    time, and for a resolution that is not positive.
    """
    _positive((resolution,))
    pairs = [pair for pair in times if pair is not None]
    if wrong := [t for pair in pairs for t in pair if not (math.isfinite(t) and t >= 0)]:
        raise ValueError(f"{wrong[0]} is no time")
    ratios = [max(base, resolution) / max(own, resolution) for base, own in pairs]
    failed = len(times) - len(pairs)
    return Aggregate(
        geomean([*ratios, *[1.0] * failed]), geomean(ratios) if ratios else None, len(times), failed
    )


def _positive(values: Sequence[float]) -> Sequence[float]:
    if not values:
        raise ValueError("no values were measured")
    for at, value in enumerate(values):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"value {at} of {len(values)} is {value}; a time is positive and finite")
    return values

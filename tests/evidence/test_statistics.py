"""Laws of the statistics, and their honesty on simulated measurements of known truth."""

from __future__ import annotations

import math
import random
import statistics as stdlib
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ucutlass.runtime import statistics
from ucutlass.runtime.statistics import Ratio, paired_ratio, verdict

times = st.floats(1e-3, 1e6)
series = st.lists(times, min_size=20, max_size=60).map(lambda v: v[: len(v) // 2 * 2])

# --- one series ------------------------------------------------------------------


def test_a_summary_by_hand() -> None:
    time_summary = statistics.summary([5.0, 1.0, 2.0, 4.0, 3.0])
    assert time_summary == statistics.TimeSummary(5, 1.0, pytest.approx(1.4), 3.0, pytest.approx(4.6), 1 / 3)


@given(st.lists(times, min_size=1), st.randoms())
def test_a_summary_knows_no_order_and_is_ordered(values: list[float], rng: random.Random) -> None:
    time_summary = statistics.summary(values)
    shuffled = values[:]
    rng.shuffle(shuffled)
    assert statistics.summary(shuffled) == time_summary
    assert time_summary.min <= time_summary.p10 <= time_summary.median <= time_summary.p90 <= max(values)
    assert (
        time_summary.min == min(values)
        and time_summary.median == stdlib.median(values)
        and time_summary.mad >= 0
    )


@given(st.lists(times, min_size=2, max_size=50), st.sampled_from([0.1, 0.25, 0.5, 0.9]))
def test_quantiles_are_those_of_the_standard_library(values: list[float], share: float) -> None:
    theirs = stdlib.quantiles(values, n=20, method="inclusive")[round(share * 20) - 1]
    assert statistics.quantile(sorted(values), share) == pytest.approx(theirs)


@given(st.lists(times, min_size=8), st.sampled_from([1e-3, 3.0, 1e4]))
def test_relative_figures_have_no_unit(values: list[float], unit: float) -> None:
    scaled = [unit * v for v in values]
    for figure in (lambda v: statistics.summary(v).mad, statistics.relative_error_of_median):
        assert figure(scaled) == pytest.approx(figure(values), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("values", [[], [1.0, 0.0], [-1.0], [math.nan], [1.0, math.inf]])
@pytest.mark.parametrize(
    "function", [statistics.summary, statistics.relative_error_of_median, statistics.geomean]
)
def test_what_is_no_time_is_refused(
    function: Callable[[Sequence[float]], object], values: list[float]
) -> None:
    with pytest.raises(ValueError, match=r"measured|positive"):
        function(values)


@pytest.mark.parametrize("count", [20, 100])
def test_the_error_of_the_median_is_that_of_repeated_medians(count: int) -> None:
    """The mean estimate against the spread that 2000 medians really have, skewed noise."""
    rng = random.Random(1)
    draws = [[100 + rng.expovariate(0.5) for _ in range(count)] for _ in range(2000)]
    truth = stdlib.stdev(stdlib.median(d) for d in draws) / stdlib.median(map(stdlib.median, draws))
    estimate = stdlib.fmean(statistics.relative_error_of_median(d) for d in draws)
    assert estimate == pytest.approx(truth, rel=0.25)


def test_few_values_never_look_exact() -> None:
    assert statistics.relative_error_of_median([1.0] * 7) == math.inf
    assert statistics.relative_error_of_median([1.0] * 8) == 0.0


# --- two series ------------------------------------------------------------------


def _noisy(values: list[float], seed: int) -> list[float]:
    rng = random.Random(seed)
    return [v * math.exp(rng.gauss(0, 1)) for v in values]


@given(series, st.integers(0, 2**32), st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_the_ratio_turned_round_is_the_inverse(a: list[float], noise: int, seed: int) -> None:
    b = _noisy(a, noise)
    there, back = paired_ratio(a, b, seed), paired_ratio(b, a, seed)
    inverse = (1 / back.median, 1 / back.high, 1 / back.low)
    assert (there.median, there.low, there.high) == pytest.approx(inverse, rel=1e-9)
    assert there.low <= there.median * (1 + 1e-12) and there.median <= there.high * (1 + 1e-12)


@given(series, st.integers(0, 2**32), st.sampled_from([1e-3, 7.0, 1e5]))
@settings(max_examples=30, deadline=None)
def test_the_ratio_has_no_unit(a: list[float], noise: int, unit: float) -> None:
    b = _noisy(a, noise)
    one = paired_ratio(a, b, 0)
    other = paired_ratio([unit * v for v in a], [unit * v for v in b], 0)
    assert (one.median, one.low, one.high) == pytest.approx((other.median, other.low, other.high), rel=1e-9)


def test_the_ratio_depends_on_nothing_but_its_arguments() -> None:
    rng = random.Random(0)
    a, b = ([rng.uniform(1, 2) for _ in range(40)] for _ in range(2))
    random.seed(5)
    first = paired_ratio(a, b, 3)
    random.seed(6)
    assert paired_ratio(a, b, 3) == first
    assert len({paired_ratio(a, b, seed) for seed in range(10)}) > 1, "the seed takes no part"


def test_drift_that_is_linear_in_the_logarithm_drops_out() -> None:
    """A slows by 1 % from launch to launch, and so does B: A B B A sees b = 2 a all the same."""
    a: list[float] = []
    b: list[float] = []
    for block in range(12):
        t = [1.01 ** (4 * block + i) for i in range(4)]
        a += [t[0], t[3]]
        b += [2 * t[1], 2 * t[2]]
    ratio = paired_ratio(a, b, 0)
    assert (ratio.median, ratio.low, ratio.high) == pytest.approx((0.5, 0.5, 0.5))
    assert ratio.blocks == 12


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        ([1.0] * 20, [1.0] * 22, "20 and 22"),
        ([1.0] * 21, [1.0] * 21, "even"),
        ([1.0] * 18, [1.0] * 18, "at least 10"),
        ([1.0] * 20, [1.0] * 19 + [0.0], "positive"),
    ],
)
def test_blocks_that_are_none_are_refused(a: list[float], b: list[float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        paired_ratio(a, b, 0)


@pytest.mark.parametrize(
    ("ratio", "floor", "said"),
    [
        (Ratio(0.9, 0.88, 0.92, 10), 0.01, "faster"),
        (Ratio(1.1, 1.08, 1.12, 10), 0.01, "slower"),
        (Ratio(0.9, 0.7, 1.0, 10), 0.01, "no difference"),
        (Ratio(0.995, 0.994, 0.996, 10), 0.01, "no difference"),
        (Ratio(1.005, 1.004, 1.006, 10), 0.01, "no difference"),
        (Ratio(0.995, 0.994, 0.996, 10), 0.0, "faster"),
        (Ratio(1.0, 1.0, 1.0, 10), 0.0, "no difference"),
    ],
)
def test_the_verdict_needs_interval_and_size(ratio: Ratio, floor: float, said: str) -> None:
    assert verdict(ratio, floor) == said


@given(st.floats(0.5, 2), st.floats(0, 0.2), st.floats(0, 0.2), st.floats(0, 0.1))
def test_the_verdict_is_fair_to_both(median: float, below: float, above: float, floor: float) -> None:
    ratio = Ratio(median, median * math.exp(-below), median * math.exp(above), 10)
    turned = Ratio(1 / ratio.median, 1 / ratio.high, 1 / ratio.low, 10)
    opposite = {"faster": "slower", "slower": "faster", "no difference": "no difference"}
    if abs(abs(math.log(median)) - math.log1p(floor)) > 1e-9:  # on the edge, rounding decides
        assert verdict(turned, floor) == opposite[verdict(ratio, floor)]


@pytest.mark.parametrize("floor", [-0.1, math.nan, math.inf])
def test_a_resolution_is_a_share(floor: float) -> None:
    with pytest.raises(ValueError, match="resolution"):
        verdict(Ratio(1.0, 1.0, 1.0, 10), floor)


# --- simulated measurements of known truth ---------------------------------------

NOISES: dict[str, Callable[[random.Random], float]] = {
    "normal 1 %": lambda r: 100 * math.exp(r.gauss(0, 0.01)),
    "lognormal 30 %": lambda r: math.exp(r.gauss(0, 0.3)),
    "skewed": lambda r: 100 + r.expovariate(1),
    "5 % interrupted": lambda r: (100 + r.gauss(0, 0.3)) * (3 if r.random() < 0.05 else 1),
    "coarse timer": lambda r: round(100 * math.exp(r.gauss(0, 0.01))),
}
TRIALS = 400


def _measured(seed: int, blocks: int, noise: Callable[[random.Random], float], truth: float) -> Ratio:
    """One simulated measurement, its clock drifting by a common random walk from block to block."""
    rng = random.Random(seed)
    a: list[float] = []
    b: list[float] = []
    clock = 0.0
    for _ in range(blocks):
        clock += rng.gauss(0, 0.01)
        a += [truth * math.exp(clock) * noise(rng) for _ in range(2)]
        b += [math.exp(clock) * noise(rng) for _ in range(2)]
    return paired_ratio(a, b, seed)


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("blocks", [10, 25])
def test_the_interval_holds_the_truth_95_times_in_100(noise: str, blocks: int) -> None:
    """Within three standard errors of 95 % over 400 trials; more is no fault where values tie."""
    held = sum(
        r.low <= 0.97 <= r.high for t in range(TRIALS) if (r := _measured(t, blocks, NOISES[noise], 0.97))
    )
    slack = 3 * math.sqrt(0.95 * 0.05 / TRIALS)
    assert 0.95 - slack <= held / TRIALS
    assert held / TRIALS <= 0.95 + slack or noise == "coarse timer"


@pytest.mark.parametrize(
    "noise",
    [
        "skewed",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("normal 1 %", "5 % interrupted", "coarse timer")),
    ],
)
def test_a_against_itself_is_no_difference(noise: str) -> None:
    ratio_verdicts = [verdict(_measured(t, 10, NOISES[noise], 1.0), 0.005) for t in range(TRIALS)]
    assert ratio_verdicts.count("no difference") >= 0.95 * TRIALS


def test_a_true_difference_is_found() -> None:
    ratio_verdicts = [verdict(_measured(t, 10, NOISES["normal 1 %"], 0.97), 0.01) for t in range(TRIALS)]
    assert ratio_verdicts.count("faster") >= 0.95 * TRIALS and "slower" not in ratio_verdicts


# --- many problems ---------------------------------------------------------------


@given(st.lists(times, min_size=1, max_size=30), st.sampled_from([0.5, 4.0]))
def test_the_geometric_mean(values: list[float], factor: float) -> None:
    mean = statistics.geomean(values)
    assert mean == pytest.approx(stdlib.geometric_mean(values))
    assert statistics.geomean([factor * v for v in values]) == pytest.approx(factor * mean)


def test_failures_count_twice() -> None:
    aggregate = statistics.aggregate([(8.0, 2.0), None, (1.0, 1.0), None], resolution=0.001)
    assert (aggregate.attempted, aggregate.failed) == (4, 2)
    assert aggregate.solved == pytest.approx(2.0) and aggregate.geomean == pytest.approx(math.sqrt(2))
    assert statistics.aggregate([None], 0.001) == statistics.Aggregate(1.0, None, 1, 1)


def test_a_time_of_nothing_makes_no_endless_speed_up() -> None:
    aggregate = statistics.aggregate([(1.0, 0.0)], resolution=0.5)
    assert aggregate.solved == 2.0
    assert statistics.aggregate([(0.0, 0.0)], resolution=0.5).solved == 1.0


@pytest.mark.parametrize(
    ("given_times", "resolution"), [([], 1.0), ([(1.0, math.nan)], 1.0), ([(-1.0, 1.0)], 1.0), ([None], 0.0)]
)
def test_an_aggregate_of_what_is_no_time(
    given_times: list[tuple[float, float] | None], resolution: float
) -> None:
    with pytest.raises(ValueError):
        statistics.aggregate(given_times, resolution)


def test_shrinkage_is_the_share_of_speed_that_was_luck() -> None:
    assert statistics.shrinkage(8.0, 10.0) == pytest.approx(0.2)
    assert statistics.shrinkage(10.0, 10.0) == 0.0 and statistics.shrinkage(10.0, 8.0) < 0
    rng = random.Random(0)
    lucky = [min(100 + rng.gauss(0, 2) for _ in range(50)) for _ in range(100)]
    assert stdlib.fmean(statistics.shrinkage(s, 100.0) for s in lucky) > 0.02
    with pytest.raises(ValueError):
        statistics.shrinkage(0.0, 1.0)

"""Compares the readings of three clocks and reports what their disagreement means.

All in microseconds a launch. The first is CUPTI's span of the launch's kernels, the second CUDA
events around replays of a graph of many launches, the third the host's clock around plain
launches with the whole device idle before and after.
"""

from __future__ import annotations

from dataclasses import dataclass

from ucutlass.runtime.bench.timing_issues import TimingIssue

FLOOR_US = 4.0
"""Below this a time is mostly the launch's own: an empty kernel's span is 1.5 to 3 us on data-centre
GPUs, and kernelguard and BackendBench draw the line at about 4 us."""

EVENT_ERROR_US = 30.0
"""The worst error of a pair of events that NVIDIA/nvbench issue 184 reports; over n launches a share."""

SPAN_BEYOND_EVENTS = 1.10
"""Events around launches of one stream hold every span whole: a span may pass them by measurement
error alone, and a tenth is more than that."""

GAP_SHARE, GAP_US = 1.25, 2.0
"""A graph's launches lie about 1 us apart; beyond a quarter of the span and twice that a kernel,
something else ran or waited between them."""

OVERHEAD_SHARE, OVERHEAD_US = 1.5, 5.0
"""A plain launch costs the host 2 to 5 us, hidden as long as the kernel takes longer."""

WALL_SHORT = 0.75
"""Spans are disjoint (`spans.Iteration`), so the host cannot see less than they add up to; a quarter is
room for an SM clock that rises in pauses."""


@dataclass(frozen=True, slots=True)
class Readings:
    """Medians in microseconds a launch, None where a clock could not be had. `launches` lie between
    a pair of events, `kernels` run in a launch."""

    span: float | None
    events: float | None
    wall: float | None
    kernels: int
    launches: int


def disagreements(r: Readings) -> tuple[TimingIssue, ...]:
    """Returns what the three say against one another, `span-beyond-events` and `wall-short` forbidding
    trust."""
    issues: list[TimingIssue] = []
    span = r.span if r.span is not None else r.events
    if r.span is not None and r.events is not None:
        error = EVENT_ERROR_US / r.launches
        # CUPTI watches the spans but not the events, and lengthens the pauses between a launch's kernels.
        pauses = GAP_US * (r.kernels - 1)
        if r.span > SPAN_BEYOND_EVENTS * r.events + pauses + error:
            issues.append(
                TimingIssue(
                    "span-beyond-events",
                    f"kernels span {r.span:.2f} us a launch, events on their stream saw {r.events:.2f} us: "
                    "work escaped the timed stream",
                )
            )
        if r.events > GAP_SHARE * r.span + GAP_US * r.kernels + error:
            issues.append(
                TimingIssue(
                    "event-gaps",
                    f"events saw {r.events:.2f} us a launch, its kernels span {r.span:.2f} us: "
                    "the device waited or did other work between launches",
                )
            )
    if span is not None and r.wall is not None:
        if r.wall < WALL_SHORT * span:
            issues.append(
                TimingIssue(
                    "wall-short",
                    f"plain launches took {r.wall:.2f} us each by the host's clock, with the device idle "
                    f"before and after; the timed ones {span:.2f} us: they are not the same work",
                )
            )
        if r.wall > OVERHEAD_SHARE * span and r.wall > span + OVERHEAD_US:
            issues.append(
                TimingIssue(
                    "launch-overhead",
                    f"a plain launch takes {r.wall:.2f} us from the host, its kernels {span:.2f} us",
                )
            )
    if span is not None and span < FLOOR_US:
        issues.append(
            TimingIssue("launch-floor", f"{span:.2f} us is below {FLOOR_US:g} us, mostly the launch itself")
        )
    return tuple(issues)


L2_SURVIVORS = 1.05
"""What a launch may find in the L2 although sets rotate: see `regimes.ROTATED_L2`."""


def beyond_bound(microseconds: float, moved: int, bandwidth: float) -> tuple[TimingIssue, ...]:
    """Returns `beyond-bound` where a cold launch would have moved its compulsory bytes faster than the
    device's memory can. `moved` counts bytes, `bandwidth` is bytes per second."""
    reached = moved / (microseconds * 1e-6)
    if reached <= L2_SURVIVORS * bandwidth:
        return ()
    return (
        TimingIssue(
            "beyond-bound",
            f"{moved} bytes in {microseconds:.2f} us are {reached / 1e12:.2f} TB/s, the memory has "
            f"{bandwidth / 1e12:.2f}: the operands did not come from memory",
        ),
    )

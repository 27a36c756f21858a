"""CUPTI's events from the profiler's file, and the iteration that each belongs to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ucutlass.runtime.bench.frequency import STAMP
from ucutlass.runtime.bench.spans import AttributionError, audit, iterations, windows
from ucutlass.runtime.bench.trace import DeviceEvent, TraceUnreadable, parse

WRITTEN = Path(__file__).parent / "kineto_trace.json"
"""By hand, in the form that Kineto writes (libkineto/src/output_json.cpp and CuptiActivity.cpp): a graph of
two launches, a fill and a copy, with the host's rows between."""


def event(name: str, start: int, took: int, stream: int = 7) -> DeviceEvent:
    return DeviceEvent(name, "kernel", start, start + took, stream, 0)


def stamp(start: int) -> DeviceEvent:
    return event(STAMP, start, 1)


# --- parsing ---------------------------------------------------------------------------


def test_device_events_are_read_to_the_nanosecond() -> None:
    device_events = parse(WRITTEN.read_text())
    assert [(e.kind, e.stream, e.graph) for e in device_events] == [
        ("memset", 7, 0),
        ("kernel", 7, 0),
        ("kernel", 7, 2),
        ("kernel", 7, 2),
        ("memcpy", 13, 0),
    ]
    product = device_events[2]
    assert product.name.startswith("nvjet_tst_128x256")
    assert product.start == 4309239589176313 and product.end - product.start == 20481
    assert product.correlation == device_events[3].correlation == 412


def test_a_trace_of_this_machine_has_no_device_events() -> None:
    """The real exporter of the installed torch, as far as it goes without a GPU."""
    import tempfile

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        torch.ones(8, 8) @ torch.ones(8, 8)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(file))
        text = file.read_text()
    assert parse(text) == ()
    rows = [r for r in json.loads(text)["traceEvents"] if r.get("cat") == "cpu_op"]
    rows[0] |= {"cat": "kernel"}
    rows[0]["args"]["stream"] = 7
    (found,) = parse(json.dumps({"traceEvents": rows}))
    assert found.end - found.start == round(rows[0]["dur"] * 1000)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1}]}']
)
def test_what_is_no_trace_is_an_error(text: str) -> None:
    with pytest.raises(TraceUnreadable):
        parse(text)


# --- windows and iterations ------------------------------------------------------------


def test_windows_lie_between_pairs_of_stamps() -> None:
    a, b, c = event("a", 10, 5), event("b", 110, 5), event("c", 60, 5)
    found, outside = windows([stamp(0), a, stamp(50), c, stamp(100), b, stamp(150)])
    assert [w.events for w in found] == [(a,), (b,)]
    assert outside == (c,)


def test_a_lost_stamp_is_an_error() -> None:
    with pytest.raises(AttributionError, match="odd"):
        windows([stamp(0), event("a", 10, 5), stamp(50), stamp(100)])


def test_span_reaches_from_the_first_start_to_the_last_end() -> None:
    events = [event("a", 0, 10), event("b", 5, 20), event("a", 100, 10), event("b", 108, 2)]
    found = iterations(events, ("a", "b"), 2)
    assert [(i.span, i.total) for i in found] == [(25, 30), (10, 12)]


def test_a_launch_that_overlaps_the_one_before_counts_from_its_end() -> None:
    events = [event("a", 0, 10), event("a", 8, 12), event("a", 9, 5), event("a", 30, 4)]
    found = iterations(events, ("a",), 4)
    assert [(i.span, i.total) for i in found] == [(10, 10), (10, 10), (0, 0), (4, 4)]


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 60)), min_size=1, max_size=40))
def test_no_moment_is_of_two_launches_and_none_of_a_kernel_is_of_none(times: list[tuple[int, int]]) -> None:
    found = iterations([event("a", *t) for t in sorted(times)], ("a",), len(times))
    busy = {moment for start, length in times for moment in range(start, start + length)}
    assert sum(i.span for i in found) == sum(i.total for i in found) == len(busy)


@pytest.mark.parametrize(
    "given, finding",
    [
        ([], "no-kernel"),
        (["a", "b", "a"], "names-changed"),
        (["a", "b", "a", "c"], "names-changed"),
        (["a", "b", "b", "a"], "names-changed"),
    ],
)
def test_what_does_not_repeat_is_an_error(given: list[str], finding: str) -> None:
    events = [event(n, 10 * i, 5) for i, n in enumerate(given)]
    with pytest.raises(AttributionError) as error:
        iterations(events, ("a", "b"), 2)
    assert error.value.finding == finding


# --- the audit -------------------------------------------------------------------------


def session(*launches: list[DeviceEvent], more: tuple[DeviceEvent, ...] = ()) -> list[DeviceEvent]:
    """Each launch between two stamps, a microsecond apart from the next; `launches` in local times."""
    out: list[DeviceEvent] = []
    for i, launch in enumerate(launches):
        base = 1_000_000 * i
        moved = [DeviceEvent(e.name, e.kind, base + e.start, base + e.end, e.stream, 0) for e in launch]
        out += [stamp(base), *moved, stamp(base + 500_000)]
    return sorted([*out, *more], key=lambda e: e.start)


def audited(events: list[DeviceEvent], launches: int) -> dict[str, str]:
    return {f.name: f.message for f in audit(events, launches).findings}


def test_an_honest_launch_passes() -> None:
    honest = [event("product", 10, 100), event("epilogue", 120, 10)]
    found = audit(session(honest, honest, honest), 3)
    assert found.findings == () and found.period == ("product", "epilogue") and found.span == 120


def test_each_misfit_has_its_name() -> None:
    honest = [event("product", 10, 100)]
    side = [event("product", 10, 100, stream=13), event("empty", 20, 1)]
    assert set(audited(session(side, side), 2)) == {"off-stream"}
    assert set(audited(session(honest, []), 2)) == {"no-kernel", "names-changed"}
    assert set(audited(session(honest, [event("cheaper", 1, 1)]), 2)) == {"names-changed"}
    late = event("product", 700_000, 100)
    assert set(audited(session(honest, honest, more=(late,)), 2)) == {"escaped"}


def test_a_missing_launch_is_an_error() -> None:
    with pytest.raises(AttributionError, match="3 launches were made, 2 are in the trace"):
        audit(session([event("a", 1, 1)], [event("a", 1, 1)]), 3)


def forked(second_ends: int, order: str = "ab") -> list[DeviceEvent]:
    """A launch whose root is followed by two kernels on two streams and a last one on the first."""
    first, second = order
    return [
        event("root", 1, 10),
        event(first, 12, 20, stream=7 if first == "a" else 9),
        event(second, 13, second_ends - 13, stream=7 if second == "a" else 9),
        event("join", 40, 10),
    ]


def test_a_launch_that_forks_and_joins_may_be_audited_as_one_that_does() -> None:
    events = session(forked(39), forked(35, "ba"), forked(39))
    found = audit(events, 3, branches=True)
    assert [f.name for f in found.findings] == ["branches"]
    assert found.period == ("a", "b", "join", "root")
    assert {f.name for f in audit(events, 3).findings} >= {"off-stream", "names-changed"}


def test_a_branch_that_is_not_joined_is_off_its_stream() -> None:
    late = audit(session(forked(39), forked(600_000)), 2, branches=True)
    assert {f.name for f in late.findings} == {"off-stream", "escaped"}


def test_iterations_of_branches_are_those_of_their_kernels_in_any_order() -> None:
    moved = [event(e.name, e.start + 60, e.end - e.start, e.stream) for e in forked(35, "ba")]
    found = iterations([*forked(39), *moved], ("root", "a", "b", "join"), 2, branches=True)
    assert [i.span for i in found] == [49, 49]
    with pytest.raises(AttributionError, match="iteration 1"):
        iterations([*forked(39), *moved], ("root", "a", "b", "join"), 2)

"""What a call launches, read from a profiler's trace."""

from __future__ import annotations

from benchmarks.kernel_trace import by_name, in_order


def test_a_trace_gives_the_device_s_events_in_order() -> None:
    name = "void ucc_a_12_kernel::(anonymous namespace)::gemm<(ucc_a_12_kernel::Pass)0>(Params)"
    events = [
        {"cat": "kernel", "name": name, "ts": 105.0, "dur": 2.5, "args": {"grid": [4, 2, 1], "stream": 7}},
        {"cat": "gpu_memset", "name": "Memset (Device)", "ts": 100.0, "dur": 1.0, "args": {}},
        {"cat": "cpu_op", "name": "aten::mm", "ts": 90.0, "dur": 50.0},
        {"cat": "kernel", "name": name, "ts": 109.0, "dur": 3.5, "args": {"grid": [1, 1, 1], "stream": 7}},
    ]
    times = in_order(events)
    assert [t[1:] for t in times] == [(0.0, 1.0, 1, 0), (5.0, 2.5, 8, 7), (9.0, 3.5, 1, 7)]
    assert times[1][0].startswith("ucc_a_12_kernel::gemm<")
    assert by_name(times) == [(times[1][0], 2, 6.0), ("Memset ", 1, 1.0)]

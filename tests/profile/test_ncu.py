"""Nsight Compute's output, its complaints, and how each becomes counters or words.

`data/raw.csv` is made by hand in the form of `--csv --page raw`: a header, a row of units, rows of
launches, lines of the tool and of the program between them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucutlass.advice import Counters
from ucutlass.runtime.errors import CompilerUnusable
from ucutlass.runtime.profile import metrics, ncu

RAW = (Path(__file__).parent / "data" / "raw.csv").read_text()

PERMISSION = (
    "==PROF== Connected to process 42 (python)\n"
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance "
    "Counters on the target device 0. For instructions on enabling permissions and to get more information "
    "see https://developer.nvidia.com/ERR_NVGPUCTRPERM\n==PROF== Disconnected from process 42\n"
)

NO_LIBRARY = "==ERROR== Failed to initialize the profiler: LibraryNotLoaded\n"


def test_rows_units_and_other_lines() -> None:
    output = ncu.parse(RAW)
    assert [r.kernel for r in output.rows] == [
        "finish_reduction(Params, int)",
        'cutlass::device_kernel<"Kernel", 2>(Params)',
    ]
    values = output.rows[1].values
    assert values["dram__bytes_read.sum"] == 100_663_296
    assert values["gpu__time_duration.sum"] == pytest.approx(180.544e-6)
    assert values["lts__throughput.avg.pct_of_peak_sustained_elapsed"] == pytest.approx(0.6125)
    assert values["sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"] is None
    assert "Kernel Name" not in values


@pytest.mark.parametrize(
    ("cell", "unit", "value"),
    [
        ("1,234.5", "byte", 1234.5),
        ("12", "Kbyte", 12e3),
        ("3", "Ksector", 3e3),
        ("7.5", "%", 0.075),
        ("2", "usecond", 2e-6),
        ("2", "us", 2e-6),
        ("1e3", "", 1000.0),
        ("n/a", "byte", None),
        ("", "byte", None),
        ("nan", "", None),
        ("12", "furlong", None),
        ("(1, 1, 1)", "", None),
    ],
)
def test_numbers(cell: str, unit: str, value: float | None) -> None:
    number = ncu.number(cell, unit)
    assert number == (value if value is None else pytest.approx(value))


@given(st.text(max_size=400))
def test_any_text_is_read_without_a_fault(text: str) -> None:
    ncu.parse(text)
    ncu.parse(RAW + text)


def test_the_longest_kernel_of_a_launch_is_the_one() -> None:
    outcome = ncu.count(Path("ncu"), "sm90", ["a", "b"], ["python"], _writes(RAW))
    assert isinstance(outcome, ncu.KernelCounters)
    assert outcome.kernel.startswith("cutlass::device_kernel")
    assert outcome.counters.dram_bytes == 100_663_296 + 33_554_432
    assert outcome.counters.dram == pytest.approx(0.17)
    assert outcome.counters.clusters_active == 66
    assert outcome.counters.sm_cycles_most == 310_016
    assert outcome.counters.tensor is None, "n/a is unknown, not zero"
    assert outcome.counters.xu is None, "a metric that was not written is unknown"


def test_the_call_asks_for_the_table_and_nothing_else() -> None:
    names = metrics.metric_names("sm90")
    line = ncu.command(Path("/x/ncu"), names, ["_Z4gemm"], Path("log"), "none", ["python", "t"])
    given_ = dict(pairwise(line))
    assert given_["--metrics"].split(",") == list(metrics.metric_names("sm90"))
    assert given_["--kernel-name"] == "regex:^(_Z4gemm)$"
    assert given_["--clock-control"] == "none" and given_["--cache-control"] == "none"
    assert given_["--profile-from-start"] == "off" and given_["--page"] == "raw"
    assert line[-2:] == ("python", "t")


@pytest.mark.parametrize(
    ("said", "words"), [(PERMISSION, "ERR_NVGPUCTRPERM"), (NO_LIBRARY, "LibraryNotLoaded"), ("", "nothing")]
)
def test_no_counters_says_the_tools_words(said: str, words: str) -> None:
    outcome = ncu.count(Path("ncu"), "sm90", ["a"], ["python"], _writes(said, "1"))
    assert isinstance(outcome, ncu.NoCounters)
    assert words in outcome.reason


def test_an_unknown_metric_is_dropped_and_the_rest_tried_again() -> None:
    calls: list[str] = []

    def run(line: Sequence[str], folder: Path) -> tuple[str, str]:
        names = line[line.index("--metrics") + 1]
        calls.append(names)
        if "launch__cluster_max_active" in names:
            pattern = r"^launch__cluster_max_active(\.(sum|min|max|avg))?$"
            return "1", f"==ERROR== Failed to find metric regex:{pattern}\n"
        (folder / "ncu.csv").write_text(RAW)
        return "0", ""

    outcome = ncu.count(Path("ncu"), "sm90", ["a"], ["python"], run)
    assert isinstance(outcome, ncu.KernelCounters)
    assert outcome.dropped == ("launch__cluster_max_active",)
    assert len(calls) == 2


def test_a_tool_that_does_not_start_is_no_fault() -> None:
    def run(line: Sequence[str], folder: Path) -> tuple[str, str]:
        raise CompilerUnusable("ncu cannot be started: Exec format error", "ucc doctor")

    outcome = ncu.count(Path("ncu"), "sm90", [], ["python"], run)
    assert isinstance(outcome, ncu.NoCounters)
    assert "cannot be started" in outcome.reason


def _writes(text: str, status: str = "0") -> ncu.RunTool:
    def run(line: Sequence[str], folder: Path) -> tuple[str, str]:
        if text:
            Path(line[line.index("--log-file") + 1]).write_text(text)
        return status, ""

    return run


@pytest.mark.parametrize("table", metrics.METRICS)
def test_tables_have_every_counter_and_nothing_else(table: str) -> None:
    assert set(metrics.METRICS[table]) == {f.name for f in dataclasses.fields(Counters)}
    assert len(set(metrics.metric_names(table))) == len(metrics.metric_names(table))
    assert table in metrics.CHIPS


def test_hopper_only_counters_are_unknown_elsewhere() -> None:
    assert metrics.METRICS["sm80"]["tma_bytes"] is None
    assert metrics.METRICS["sm100"]["stall_gmma"] is None
    counters = metrics.counters("sm80", dict.fromkeys(metrics.metric_names("sm80"), 1.0))
    assert counters.tma_bytes is None and counters.dram_bytes == 2.0
    assert set(metrics.unknown(counters)) == {"tma_bytes", "stall_gmma", "clusters_active"}


def test_tables_are_found_by_capability() -> None:
    assert metrics.table_for((9, 0)) == "sm90"
    assert metrics.table_for((12, 0)) is None


def test_query_lists_base_names() -> None:
    text = (
        "Device NVIDIA H200 (GH100)\n------------ ---- ------\nMetric Name   Metric Type  Metric Unit\n"
        "dram__bytes_read    Counter  byte    # of bytes read from DRAM\n"
        "sm__cycles_active   Counter  cycle   # of cycles with at least one warp in flight\n"
    )
    assert ncu.queried(text) == {"dram__bytes_read", "sm__cycles_active"}


def test_running_kills_at_the_limit(tmp_path: Path) -> None:
    run = ncu.runner({"PATH": "/usr/bin:/bin"}, 0.2)
    status, _ = run(("sleep", "60"), tmp_path)
    assert status == "timed out"

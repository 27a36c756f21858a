"""KernelBench's modules measured as they stand: what each process does, and what becomes of one that is lost."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu_queue, kernelbench_modules, module_program, turns
from benchmarks.bars import summary_path
from benchmarks.gpu_queue import GpuJob, GpuQueue
from benchmarks.harness import append, lines
from benchmarks.kernel_builds import KernelBuilder, build
from benchmarks.module_measure import measured, ways
from ucutlass import frontend
from ucutlass.emit.text import Source

FILE = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.conv = nn.Conv1d(3, n, 3)
        self.bn = nn.BatchNorm1d(n)
    def forward(self, x):
        return self.bn(torch.relu(self.conv(x)))

def get_inputs():
    return [torch.randn(2, 3, 10)]

def get_init_inputs():
    return [4]
"""


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    file = tmp_path / "level1" / "7_Conv.py"
    file.parent.mkdir()
    file.write_text(FILE)
    return file


# --- one problem -----------------------------------------------------------------------


def test_a_problem_is_prepared_built_and_measured(problem: Path, tmp_path: Path) -> None:
    payload, note = tmp_path / "payload.json", tmp_path / "note.jsonl"
    row = module_program.prepared(str(problem), "f32", "sm90a", None, str(payload), str(note))
    assert "status" not in row and row["kernels"] == row["distinct"] == row["stages"] and row["convolves"]
    with ThreadPoolExecutor(2) as pool:
        row |= build(payload, KernelBuilder(pool, lambda source, plan: source.entry))
    assert "status" not in row
    keys = [kernel["key"] for kernel in json.loads(payload.read_text())["built"]["kernels"]]
    assert all(key.startswith("ucc_") for key in keys)
    result = measured(
        str(problem),
        row["mode"],
        "f32",
        row["lane"],
        str(payload),
        None,
        str(note),
        str(tmp_path / "lock"),
        "cpu",
        convolves=True,
        exact=True,
        compile=True,
        kernels=False,
        hold_seconds=1000.0,
        compile_seconds=1000.0,
    )
    assert (result["status"], result["oracle"], result["wrong"]) == ("right", "float64", [])
    assert set(result["us"]) == {"ucutlass", *ways("f32", True, True)} and result["stage"] == "end"
    written: dict[str, Any] = {}
    for line in lines(note):
        written |= line
    assert written == {k: v for k, v in (row | result).items() if k != "build_seconds"}


def test_a_failed_build_is_the_problem_s(problem: Path, tmp_path: Path) -> None:
    payload, note = tmp_path / "payload.json", tmp_path / "note.jsonl"
    module_program.prepared(str(problem), "f32", "sm90a", None, str(payload), str(note))

    def refuse(source: object, plan: object) -> str:
        raise ValueError("no compiler")

    with ThreadPoolExecutor(1) as pool:
        row = build(payload, KernelBuilder(pool, refuse))
    assert row["status"] == "build failed" and "no compiler" in row["why"]


def test_equal_kernels_are_built_once() -> None:
    source = Source("text", "code", "ucc_0", "sm_90a")
    calls: list[str] = []
    with ThreadPoolExecutor(2) as pool:
        builder = KernelBuilder(pool, lambda s, plan: calls.append(s.entry) or s.entry)  # type: ignore[func-returns-value]
        assert builder.future(source, {}).result() == builder.future(source, {}).result()
    assert calls == [source.entry]


def test_a_module_that_cannot_be_imported_says_why(tmp_path: Path) -> None:
    file = tmp_path / "1_Fft.py"
    forward = "return torch.fft.fft(x).real"
    file.write_text(FILE.replace("return self.bn(torch.relu(self.conv(x)))", forward))
    row = module_program.prepared(
        str(file), "f32", "sm90a", None, str(tmp_path / "p"), str(tmp_path / "note")
    )
    assert row["status"] == "not imported" and "fft" in row["why"]


def test_the_tf32_lane_rounds_what_a_dot_takes() -> None:
    text = "kernel k(x: f32[M=64, K=32], w: f32[N=16, K]) -> f32[M, N] {\n  return relu(dot[K](x, w))\n}\n"
    checked, _, lane = module_program.program_of(text, "k", "tf32")
    assert lane == "tf32" and "dot[K](tf32(x), tf32(w))" in checked.source
    assert module_program.program_of(checked.source, "k", "tf32")[0].source == checked.source
    half = text.replace("f32[M=64", "f16[M=64").replace("f32[N=16", "f16[N=16")
    kept, _, lane = module_program.program_of(half, "k", "tf32")
    assert lane == "f32" and "tf32" not in kept.source
    assert frontend.program(checked, "k").name == "k"


# --- errors ----------------------------------------------------------------------------


def test_a_result_is_judged_beside_eager_s_error() -> None:
    exact = torch.linspace(1, 2, 1000, dtype=torch.float64)
    eager = [(exact * (1 + 1e-7)).float()]
    near, far = (exact * (1 + 3e-7)).float(), (exact * (1 + 1e-3)).float()
    assert turns.wrong([near], eager, [exact], turns.FLOORS["f32"]) == []
    assert "norm" in turns.wrong([far], eager, [exact], turns.FLOORS["f32"])[0]
    single = near.clone()
    single[3] += 1.2e-3
    assert "largest" in turns.wrong([single], eager, [exact], 2.0**-15)[0]
    single[3] = torch.nan
    assert "finite" in turns.wrong([single], eager, [exact], turns.FLOORS["f32"])[0]
    assert "2 results" in turns.wrong([near, near], eager, [exact], 1.0)[0]
    assert "a result of (5,)" in turns.wrong([near[:5]], eager, [exact], 1.0)[0]


def test_whole_numbers_are_counted() -> None:
    exact = torch.arange(1000)
    other = exact.clone()
    other[:50] += 1
    assert turns.error_of(other, exact).apart == 0.05
    assert turns.wrong([other], [exact], [exact], 1.0) and not turns.wrong([exact], [exact], [exact], 0.0)


def test_a_result_in_pieces_has_the_error_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = torch.randn(1000, dtype=torch.float64)
    result = exact + 0.1 * torch.randn(1000)
    whole = turns.error_of(result, exact)
    monkeypatch.setattr(turns, "CHUNK", 7)
    pieces = turns.error_of(result, exact)
    assert pieces.norm == pytest.approx(whole.norm) and pieces.most == whole.most
    assert whole.norm == pytest.approx(float((result - exact).norm() / exact.norm()))


# --- times, limits, locks --------------------------------------------------------------


def test_candidates_take_turns() -> None:
    order: list[str] = []
    names = ("a", "b", "c")
    launches = {name: (lambda at, name=name: order.append(name)) for name in names}
    times = turns.compare(launches, 2, turns.host_clock(), window_us=1.0, seconds=10.0)  # type: ignore[arg-type]
    assert set(times) == set(names) and not any(t.captured for t in times.values())
    timed = order[-turns.ROUNDS * 6 :: 2]
    assert timed[:3] == timed[3:6][::-1] and len(timed) == 3 * turns.ROUNDS


def test_a_step_that_takes_too_long_is_left() -> None:
    start = time.monotonic()
    with pytest.raises(turns.Late), turns.within(0.2):
        while time.monotonic() < start + 30:
            time.sleep(0.01)
    with turns.within(0.2):
        pass
    time.sleep(0.3)  # nothing rings any more


def test_the_lock_is_free_while_a_graph_is_compiled(tmp_path: Path) -> None:
    lock = turns.DeviceLock(tmp_path / "lock", 1000.0)
    held: list[bool] = []

    def backend(graph: Any, inputs: Any) -> Any:
        held.append(lock.held)
        return lambda *arguments: held.append(lock.held) or graph.forward(*arguments)

    fast = turns.compiled(torch.nn.Linear(3, 2), lock, backend=backend)
    with torch.no_grad():
        fast(torch.randn(4, 3))
    assert held == [False, True] and lock.held
    lock.give()
    with lock.holding(), torch.no_grad():
        turns.compiled(torch.nn.Linear(3, 2), lock, backend=backend)(torch.randn(4, 3))
    assert held == [False, True, False, True] and not lock.held


def hold(lock: str, note: str) -> None:
    append(Path(note), {"stage": "check"})
    turns.DeviceLock(Path(lock), 0.5).take()
    time.sleep(100)


def test_who_holds_the_lock_too_long_is_ended(tmp_path: Path) -> None:
    row = gpu_queue.called(
        f"{__name__}:hold", {"lock": str(tmp_path / "lock")}, tmp_path / "note", limit_seconds=90.0
    )
    assert row["status"] == "lost" and row["stage"] == "check" and "SIGALRM" in row["lost"]
    turns.DeviceLock(tmp_path / "lock", 1000.0).take()  # it went with its process
    signal.setitimer(signal.ITIMER_REAL, 0)


# --- the queue ---------------------------------------------------------------------------


def lose(how: str, note: str) -> dict[str, Any]:
    append(Path(note), {"stage": "time", "status": "right"})
    match how:
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "hang":
            time.sleep(1000)
        case "raise":
            raise ValueError("no such thing")
    return {"stage": "end"}


@pytest.mark.parametrize(
    ("how", "words"), [("crash", "SIGSEGV"), ("hang", "within"), ("raise", "no such thing")]
)
def test_what_was_known_of_a_lost_row_stays(how: str, words: str, tmp_path: Path) -> None:
    limit = 3.0 if how == "hang" else 90.0
    row = gpu_queue.called(f"{__name__}:lose", {"how": how}, tmp_path / "n" / "note", limit_seconds=limit)
    assert words in row["lost"]
    assert row["stage"] == "time" or how == "hang"  # a slow machine may not get as far


def test_a_row_that_returns_has_its_facts(tmp_path: Path) -> None:
    row = gpu_queue.called(f"{__name__}:lose", {"how": ""}, tmp_path / "note", limit_seconds=90.0)
    assert row == {"stage": "end", "status": "right"}
    over = gpu_queue.called(
        f"{__name__}:lose", {"how": ""}, tmp_path / "note", limit_seconds=90.0, deadline=time.monotonic()
    )
    assert over["status"] == "lost" and "time was over" in over["lost"]


def test_a_row_without_times_is_measured_again() -> None:
    assert gpu_queue.finished({"status": "right", "us": {}}) and gpu_queue.finished(
        {"status": "not imported"}
    )
    assert gpu_queue.finished({"status": "right", "us": {}, "lost": "SIGSEGV"})
    assert not gpu_queue.finished({"status": "right", "lost": "the run's time was over"})
    assert not gpu_queue.finished({"status": "lost", "lost": "SIGALRM"})


def test_jobs_share_a_gpu_s_memory() -> None:
    queue = GpuQueue((0, 1), memory=10 * 2**30)
    for name, size in (("small", 1), ("large", 100), ("middle", 4)):
        queue.put(GpuJob(name, {}, size * 2**30))
    large = queue.take(0)
    assert large is not None and large.name == "large"
    middle, small = queue.take(1), queue.take(1)
    assert middle is not None and small is not None and (middle.name, small.name) == ("middle", "small")
    gpu_jobs: list[GpuJob | None] = []
    waiting = threading.Thread(target=lambda: gpu_jobs.append(queue.take(0)))
    queue.put(GpuJob("last", {}, 2**30))
    waiting.start()
    waiting.join(0.2)
    assert not gpu_jobs  # the large one has all of it
    queue.give(0, large)
    waiting.join(60)
    assert gpu_jobs[0] is not None and gpu_jobs[0].name == "last"
    queue.close()
    assert queue.take(1) is None


def test_a_lost_row_is_tried_in_a_smaller_way() -> None:
    whole = {"exact": True, "compile": True}
    assert kernelbench_modules.smaller({"status": "right", "stage": "end"}, whole) == whole
    lost = {"status": "lost", "lost": "SIGALRM"}
    assert not kernelbench_modules.smaller({**lost, "stage": "check"}, whole)["exact"]
    assert not kernelbench_modules.smaller({**lost, "stage": "compile"}, whole)["compile"]
    assert kernelbench_modules.smaller({**lost, "stage": "load"}, whole) == whole


# --- the table ---------------------------------------------------------------------------

ROWS = [
    {"name": "1/1_A", "level": 1, "status": "right", "us": {"ucutlass": 10.0, "eager": 20.0, "compile": 5.0}},
    {"name": "1/2_B", "level": 1, "status": "right", "us": {"ucutlass": 10.0, "eager": 5.0}},
    {
        "name": "1/3_C",
        "level": 1,
        "status": "wrong",
        "wrong": ["result 0"],
        "us": {"ucutlass": 1.0, "eager": 9.0},
    },
    {"name": "2/1_D", "level": 2, "status": "not imported", "why": "aten.sort"},
    {"name": "2/1_D", "level": 2, "status": "lost", "lost": "SIGSEGV", "stage": "check"},
]


def test_the_table_counts_by_level() -> None:
    text = "\n".join(kernelbench_modules.table(ROWS, {1: 4, 2: 1}))
    assert "level 1: 4 problems, {'right': 2, 'wrong': 1}" in text
    assert "against eager          2 timed, geomean 1.000, fast_1 25.0%, least 0.500" in text
    assert "level 2: 1 problems, {'lost': 1}" in text  # the last row of a problem counts
    assert "0.500 1/2_B" in text and "2/1_D; lost" in text and "1/3_C; wrong" in text


def test_a_table_is_printed_from_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    path = tmp_path / "rows.jsonl"
    for row in ROWS:
        append(path, row)
    monkeypatch.setattr("sys.argv", ["kernelbench_modules", "--table", str(path)])
    assert kernelbench_modules.main() == 0
    assert "all: 4 problems" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_writes_a_row_a_problem_and_goes_on_where_it_was(
    problem: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (problem.parent / "8_Bad.py").write_text("raise ValueError('not today')\n")
    out = tmp_path / "rows.jsonl"
    words = ["kernelbench_modules", str(tmp_path), "--levels", "1", "--out", str(out), "--fake"]
    monkeypatch.setattr("sys.argv", words)
    assert kernelbench_modules.main() == 1, "one of two is not imported: the bar is missed"
    rows = {row["name"]: row for row in lines(out)}
    assert rows["1/7_Conv"]["status"] == "right" and rows["1/8_Bad"]["status"] == "not imported"
    summary = json.loads(summary_path(out).read_text())
    assert (summary["wrong"], summary["not reached"]) == ([], [])
    assert [f["rows"] for f in summary["classes"] if f["class"] == "without a torch node that costs"] == [2]
    kernelbench_modules.main()
    assert len(lines(out)) == 2

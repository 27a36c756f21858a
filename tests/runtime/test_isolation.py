from __future__ import annotations

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
from runtime_fakes import all_ended, hung

from ucutlass.runtime.isolation import (
    CallOutcome,
    Crashed,
    Exited,
    Raised,
    Returned,
    TimedOut,
    TooMuchMemory,
    run,
)


def call(function: str, limit_seconds: float = 60.0, **arguments: object) -> CallOutcome:
    return run(f"isolation_candidates:{function}", arguments, limit_seconds=limit_seconds)


def test_a_result_comes_back() -> None:
    assert call("add", a=2, b=3) == Returned(5, "")


def test_printing_disturbs_nothing_and_its_end_is_kept() -> None:
    outcome = call("noisy")
    assert isinstance(outcome, Returned) and outcome.value == "true"
    assert len(outcome.output) <= 1 << 16
    assert outcome.output.endswith("\ufffd last words")


def test_an_exception() -> None:
    outcome = call("raises", word="lost")
    assert isinstance(outcome, Raised)
    assert (outcome.type, outcome.message) == ("LookupError", "lost")
    assert "isolation_candidates.py" in outcome.traceback


@pytest.mark.parametrize(
    ("target", "kind"),
    [("no_such_module:f", "ModuleNotFoundError"), ("isolation_candidates:no", "AttributeError")],
)
def test_a_target_that_is_not_there(target: str, kind: str) -> None:
    outcome = run(target, {}, limit_seconds=60)
    assert isinstance(outcome, Raised) and outcome.type == kind


def test_a_result_that_is_no_json() -> None:
    outcome = call("not_json")
    assert isinstance(outcome, Raised) and outcome.type == "TypeError"


@pytest.mark.parametrize(("function", "name"), [("segfault", "SIGSEGV"), ("aborts", "SIGABRT")])
def test_a_crash_is_named_and_located(function: str, name: str) -> None:
    outcome = call(function)
    assert isinstance(outcome, Crashed) and outcome.signal == name
    assert f"in {function}" in outcome.output


def test_a_hang_is_killed_with_its_children(tmp_path: Path) -> None:
    note = tmp_path / "note"
    limit, outcome = hung(lambda limit: call("hangs", limit_seconds=limit, note=str(note)), note)
    assert isinstance(outcome, TimedOut) and outcome.limit_seconds == limit
    processes = [int(n) for n in note.read_text().split()]
    assert len(processes) == 2 and all_ended(processes)


def test_a_call_that_is_stopped_ends_with_its_children(tmp_path: Path) -> None:
    note, stop = tmp_path / "note", Event()
    with ThreadPoolExecutor(1) as pool:
        arguments = {"note": str(note)}
        called = pool.submit(run, "isolation_candidates:hangs", arguments, limit_seconds=600.0, stop=stop)
        while not note.exists() or len(note.read_text().split()) < 2:
            time.sleep(0.01)
        stop.set()
        assert isinstance(called.result(), TimedOut)
    assert all_ended([int(n) for n in note.read_text().split()])


@pytest.mark.parametrize(("function", "status"), [("leaves", 5), ("leaves_politely", 0)])
def test_an_early_exit(function: str, status: int) -> None:
    assert call(function) == Exited(status, "")


def test_a_result_counts_though_the_process_would_fall_over_while_ending() -> None:
    assert call("falls_over_at_the_end") == Returned(1, "")


def test_the_process_dies_with_its_caller(tmp_path: Path) -> None:
    note = tmp_path / "note"
    caller = os.fork()
    if caller == 0:
        call("hangs", limit_seconds=600.0, note=str(note))
        os._exit(1)
    while not note.exists() or not note.read_text():
        time.sleep(0.01)
    os.kill(caller, signal.SIGKILL)
    os.waitpid(caller, 0)
    process, grandchild = (int(n) for n in note.read_text().split())
    assert all_ended([process, grandchild])


def test_a_memory_limit() -> None:
    outcome = run("isolation_candidates:devours", {}, limit_seconds=60, memory_bytes=256 * 2**20)
    assert isinstance(outcome, TooMuchMemory) and outcome.limit_bytes == 256 * 2**20


def test_input_is_empty_and_not_the_request() -> None:
    assert call("reads_input") == Returned("", "")


def test_the_callers_path_and_the_given_environment_hold() -> None:
    target = "isolation_candidates:path_and_environment"
    outcome = run(target, {}, limit_seconds=60, environ={"CUDA_PROBE": "7"})
    assert isinstance(outcome, Returned)
    assert outcome.value == {"path": [str(Path(p).absolute()) for p in sys.path], "probe": "7"}


def test_malformed_calls() -> None:
    with pytest.raises(ValueError, match=r"package\.module:function"):
        run("isolation_candidates.add", {}, limit_seconds=1)
    with pytest.raises(TypeError):
        run("isolation_candidates:add", {"a": object()}, limit_seconds=1)

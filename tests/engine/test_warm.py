"""`isolation.WarmProcess`: one process for many calls, lost with the one that misbehaves."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread, Timer

import pytest
from runtime_fakes import alive, all_ended, hung

from ucutlass.runtime.isolation import (
    CallOutcome,
    Crashed,
    Exited,
    Raised,
    Returned,
    TimedOut,
    TooMuchMemory,
    WarmProcess,
)
from ucutlass.runtime.process_template import ProcessTemplate, TemplateLost


@pytest.fixture(scope="module")
def template() -> Iterator[ProcessTemplate]:
    process_template = ProcessTemplate(["json"], ["fractions"])
    yield process_template
    process_template.close()


@pytest.fixture(params=["started", "forked"])
def warm(request: pytest.FixtureRequest, template: ProcessTemplate) -> Iterator[WarmProcess]:
    warm_process = WarmProcess(template=template if request.param == "forked" else None)
    yield warm_process
    warm_process.close()


def call(warm: WarmProcess, function: str, limit_seconds: float = 60.0, **arguments: object) -> CallOutcome:
    return warm.call(f"isolation_candidates:{function}", arguments, limit_seconds=limit_seconds)


def pid(warm: WarmProcess) -> int:
    found = warm.call("engine_fakes:process", {}, limit_seconds=60)
    assert isinstance(found, Returned)
    return int(found.value)


def test_one_process_serves_call_after_call(warm: WarmProcess) -> None:
    first = pid(warm)
    assert [call(warm, "add", a=i, b=1) for i in range(5)] == [Returned(i + 1, "") for i in range(5)]
    assert pid(warm) == first != os.getpid()


def test_what_it_prints_is_no_answer(warm: WarmProcess) -> None:
    call_outcome = call(warm, "noisy")
    assert isinstance(call_outcome, Returned) and call_outcome.value == "true"
    after = call(warm, "add", a=1, b=2)
    assert isinstance(after, Returned) and after.value == 3


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        ("segfault", Crashed),
        ("aborts", Crashed),
        ("leaves", Exited),
        ("leaves_politely", Exited),
        ("not_json", Raised),
        ("no_such_function", Raised),
    ],
)
def test_whoever_fails_is_alone_with_it(warm: WarmProcess, function: str, kind: type) -> None:
    first = pid(warm)
    assert isinstance(call(warm, function), kind)
    assert pid(warm) != first and all_ended([first])


def test_an_exception_comes_with_its_place_and_its_process_goes(warm: WarmProcess) -> None:
    first = pid(warm)
    call_outcome = call(warm, "raises", word="lost")
    assert isinstance(call_outcome, Raised) and (call_outcome.type, call_outcome.message) == (
        "LookupError",
        "lost",
    )
    assert "isolation_candidates.py" in call_outcome.traceback
    assert pid(warm) != first and all_ended([first])


def test_a_crash_is_located(warm: WarmProcess) -> None:
    assert call(warm, "add", a=1, b=2) == Returned(3, "")
    call_outcome = call(warm, "segfault")
    assert (
        isinstance(call_outcome, Crashed)
        and call_outcome.signal == "SIGSEGV"
        and "in segfault" in call_outcome.output
    )


def test_a_hang_is_killed_with_its_children(warm: WarmProcess, tmp_path: Path) -> None:
    assert call(warm, "add", a=1, b=2) == Returned(3, "")
    note = tmp_path / "note"
    limit, call_outcome = hung(lambda limit: call(warm, "hangs", limit, note=str(note)), note)
    assert call_outcome == TimedOut(limit, "")
    assert all_ended([int(n) for n in note.read_text().split()])
    assert call(warm, "add", a=1, b=2) == Returned(3, "")


def test_a_process_that_does_not_read_is_killed(warm: WarmProcess) -> None:
    os.kill(pid(warm), signal.SIGSTOP)
    # More than the pipe takes: the caller must not wait in its write.
    assert isinstance(call(warm, "add", limit_seconds=1.0, a="x" * (1 << 20), b="y"), TimedOut)
    assert call(warm, "add", a="x" * (1 << 20), b="y") == Returned("x" * (1 << 20) + "y", "")


def test_who_dies_while_nobody_asks_costs_nobody(warm: WarmProcess) -> None:
    first = pid(warm)
    os.kill(first, signal.SIGKILL)
    assert all_ended([first])
    assert call(warm, "add", a=1, b=2) == Returned(3, "")


def test_who_died_before_its_supervisor_reports_it_costs_nobody(warm: WarmProcess) -> None:
    first = pid(warm)
    supervisor = int(Path(f"/proc/{first}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(supervisor, signal.SIGSTOP)
    os.kill(first, signal.SIGKILL)
    assert all_ended([first])
    later = Timer(0.5, os.kill, (supervisor, signal.SIGCONT))
    later.start()
    assert call(warm, "add", a=1, b=2) == Returned(3, "")
    later.join()


def test_a_memory_limit(warm: WarmProcess) -> None:
    found = warm.call("isolation_candidates:devours", {}, limit_seconds=60, memory_bytes=256 * 2**20)
    assert isinstance(found, TooMuchMemory)


def test_an_answer_to_another_call_is_none(warm: WarmProcess) -> None:
    found = warm.call("engine_fakes:forges", {}, limit_seconds=60)
    assert isinstance(found, Raised) and found.type == "Garbled"
    assert call(warm, "add", a=1, b=2) == Returned(3, "")


@pytest.mark.parametrize("forks", [False, True])
def test_modules_are_imported_before_the_first_call(forks: bool, template: ProcessTemplate) -> None:
    warm = WarmProcess(os.environ | {"CUDA_PROBE": "7"}, template if forks else None)
    try:
        warm.prepare(["no_such_module", "fractions"])
        assert warm.call("engine_fakes:has", {"module": "fractions"}, limit_seconds=60) == Returned("7", "")
    finally:
        warm.close()


@pytest.mark.parametrize("forks", [False, True])
def test_closing_ends_the_process(forks: bool, template: ProcessTemplate) -> None:
    warm = WarmProcess(template=template if forks else None)
    first = pid(warm)
    warm.close()
    assert all_ended([first])


def test_a_fork_has_what_its_template_imported_and_ends_with_it(template: ProcessTemplate) -> None:
    ends = ProcessTemplate(["fractions"])
    first, second = WarmProcess(template=ends), WarmProcess(template=ends)
    own = {"module": "fractions"}
    assert WarmProcess(os.environ | {"CUDA_PROBE": "7"}, ends).call(
        "engine_fakes:has", own, limit_seconds=60
    ) == Returned("7", "")
    number = pid(first)
    ends.close()
    assert all_ended([number]) and pid(first) != number, "without one it is started"
    assert call(second, "add", a=1, b=2) == Returned(3, "")
    for process in (first, second):
        process.close()


def test_a_template_calls_functions_too() -> None:
    calls = ProcessTemplate(["gc:disable"])
    warm = WarmProcess(template=calls)
    assert warm.call("gc:isenabled", {}, limit_seconds=60) == Returned(False, "")
    warm.close()
    calls.close()


def test_a_template_that_uses_a_gpu_forks_nothing() -> None:
    on_gpu = ProcessTemplate(["template_on_gpu"])
    with pytest.raises(TemplateLost, match="GPU"):
        on_gpu.fork([0, 1], 2, 2, {})
    warm = WarmProcess(template=on_gpu)
    assert call(warm, "add", a=1, b=2) == Returned(3, "")
    warm.close()
    on_gpu.close()


def test_what_waits_when_it_is_closed_starts_no_other_process(tmp_path: Path) -> None:
    warm, heard, note = WarmProcess(), [], tmp_path / "note"

    def waits() -> None:
        with pytest.raises(RuntimeError, match="closed"):
            warm.call("engine_fakes:note", {"log": str(tmp_path / "log"), "words": "late"}, limit_seconds=60)
        heard.append("closed")

    # It is at work for seconds, so that the other call waits, and closing does too.
    first = Thread(
        target=lambda: heard.append(hung(lambda limit: call(warm, "hangs", limit, note=str(note)), note)[1])
    )
    first.start()
    while not note.exists():
        time.sleep(0.01)
    second = Thread(target=waits)
    second.start()
    time.sleep(0.1)
    warm.close()
    first.join()
    second.join()
    assert len(heard) == 2 and "closed" in heard and any(isinstance(one, TimedOut) for one in heard)
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("forks", [False, True])
def test_the_process_dies_with_its_caller(tmp_path: Path, forks: bool) -> None:
    place = tmp_path / "note"
    caller = os.fork()
    if caller == 0:
        warm = WarmProcess(template=ProcessTemplate(["json"]) if forks else None)
        (tmp_path / "part").write_text(str(pid(warm)))
        (tmp_path / "part").rename(place)
        time.sleep(600)
        os._exit(1)
    while not place.exists():
        time.sleep(0.01)
    os.kill(caller, signal.SIGKILL)
    os.waitpid(caller, 0)
    while alive(int(place.read_text())):
        time.sleep(0.01)


def test_malformed_calls(warm: WarmProcess) -> None:
    with pytest.raises(ValueError, match=r"package\.module:function"):
        warm.call("isolation_candidates.add", {}, limit_seconds=1)
    with pytest.raises(TypeError):
        call(warm, "add", a=object())

"""Code that is not ours, in a process of its own: what it sees of its caller, and that none stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime_fakes import alive, all_ended

from ucutlass.runtime import isolation, supervised_process
from ucutlass.runtime.environment_allowlist import ALLOWED, allowed_environment
from ucutlass.runtime.supervised_process import SupervisedProcess

Call: TypeAlias = Callable[..., isolation.CallOutcome]

SECRETS = ("ANTHROPIC_API_KEY", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "SSH_AUTH_SOCK", "CUDA_TOKEN", "DB_URL")


def _by_run(function: str, limit_seconds: float = 60.0, **arguments: object) -> isolation.CallOutcome:
    return isolation.run(f"isolation_candidates:{function}", arguments, limit_seconds=limit_seconds)


@pytest.fixture(params=["run", "Warm"])
def call(request: pytest.FixtureRequest) -> Iterator[Call]:
    """Both ways to call a function in a process of its own."""
    if request.param == "run":
        yield _by_run
        return
    warm = isolation.WarmProcess()

    def by_warm(function: str, limit_seconds: float = 60.0, **arguments: object) -> isolation.CallOutcome:
        return warm.call(f"isolation_candidates:{function}", arguments, limit_seconds=limit_seconds)

    yield by_warm
    warm.close()


def ended_daemon(note: Path) -> bool:
    """That what wrote its number there is gone, and writes no more."""
    if not all_ended([int(note.read_text())]):
        return False
    note.unlink()
    time.sleep(0.05)
    return not note.exists()


# --- the environment ----------------------------------------------------------------


def test_no_secret_of_the_caller_is_seen(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, "hush")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    outcome = call("environment")
    assert isinstance(outcome, isolation.Returned)
    assert "hush" not in outcome.value.values()
    assert outcome.value["CUDA_VISIBLE_DEVICES"] == "3" and outcome.value["PATH"] == os.environ["PATH"]
    # Python sets LC_CTYPE itself in a C locale.
    assert set(outcome.value) <= set(allowed_environment()) | {"LC_CTYPE"}


NAMES = st.text(st.characters(codec="ascii", exclude_characters="=\0"), min_size=1)


@given(st.dictionaries(NAMES | st.builds("{}{}".format, st.sampled_from(sorted(ALLOWED)), NAMES), st.text()))
def test_what_passes_is_in_the_table(environ: dict[str, str]) -> None:
    for name in allowed_environment(environ):
        assert any(
            name == known or (known.endswith("*") and name.startswith(known[:-1])) for known in ALLOWED
        )


@pytest.mark.parametrize("name", [known.replace("*", "_SECRET") for known in ALLOWED if "*" in known])
def test_no_pattern_passes_a_secret(name: str) -> None:
    assert allowed_environment({name: "hush"}) == {}
    assert allowed_environment({name: "hush"}, also=[name]) == {name: "hush"}, "its owner chose it"


# --- what is left behind ------------------------------------------------------------


def test_a_daemon_does_not_survive_the_call(call: Call, tmp_path: Path) -> None:
    note = tmp_path / "note"
    assert isinstance(call("leaves_a_daemon", note=str(note)), isolation.Returned)
    assert ended_daemon(note)
    assert call("add", a=2, b=3) == isolation.Returned(5, ""), "the next call is served"


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        ("hang", isolation.TimedOut),
        ("crash", isolation.Crashed),
        ("raise", isolation.Raised),
        ("exit", isolation.Exited),
    ],
)
def test_however_the_call_ends(call: Call, end: str, kind: type, tmp_path: Path) -> None:
    note = tmp_path / "note"
    assert isinstance(call("leaves_a_daemon_and", 3.0, note=str(note), end=end), kind)
    assert ended_daemon(note)


def test_nor_does_a_child(call: Call, tmp_path: Path) -> None:
    note = tmp_path / "note"
    assert isinstance(call("leaves_a_child", note=str(note)), isolation.Returned)
    assert all_ended([int(note.read_text())])


@pytest.mark.parametrize("way", ["run", "Warm"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_daemon_ends_with_a_caller_that_is_killed(way: str, number: signal.Signals, tmp_path: Path) -> None:
    note = tmp_path / "note"
    words = (
        "from ucutlass.runtime import isolation\n"
        f"call = isolation.run if {way!r} == 'run' else isolation.WarmProcess().call\n"
        f"call('isolation_candidates:leaves_a_daemon_and', {{'note': {str(note)!r}, 'end': 'hang'}},"
        " limit_seconds=600)"
    )
    path = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
    caller = subprocess.Popen([sys.executable, "-c", words], env={**os.environ, "PYTHONPATH": path})
    while not note.exists() or not note.read_text():
        assert caller.poll() is None
        time.sleep(0.01)
    caller.send_signal(number)
    caller.wait()
    assert ended_daemon(note)


# --- a command ----------------------------------------------------------------------


def supervised(*command: str) -> SupervisedProcess:
    null = subprocess.DEVNULL
    return SupervisedProcess(
        command, env=allowed_environment(), stdin=null, stdout=subprocess.PIPE, stderr=null
    )


def test_a_limit_of_years_is_one() -> None:
    process = supervised("true")
    assert process.wait(1e9) == 0
    process.end()


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -11 $$", -11)])
def test_the_status_is_the_commands(script: str, status: int) -> None:
    process = supervised("sh", "-c", f"echo it ran; {script}")
    assert process.stdout is not None and process.stdout.read() == b"it ran\n"
    assert process.wait(60.0) == status == process.poll()
    process.end()


@pytest.mark.parametrize("command", ["/no/such/program", os.devnull, "/"])
def test_a_command_that_cannot_be_executed_is_the_callers_error(command: str) -> None:
    with pytest.raises(OSError, match=command):
        supervised(command)


def test_a_supervisor_that_is_killed_takes_its_command_along() -> None:
    process = supervised("sleep", "1000")
    (sleeper,) = process.processes()
    os.kill(process._supervisor.pid, signal.SIGKILL)
    assert process.wait(60.0) == -signal.SIGKILL
    assert all_ended([sleeper.pid])
    process.end()


def test_it_is_stopped_by_another_thread_or_for_good() -> None:
    process = supervised("sleep", "1000")
    assert process.poll() is None
    pid = process.processes()[0].pid
    process.stop()
    assert process.wait(60.0) == -signal.SIGKILL and not alive(pid)
    process.end()
    process.end()


# --- exceptions -----------------------------------------------------------------------


def test_an_exceptions_words_are_bounded(call: Call) -> None:
    outcome = call("raises_much")
    assert isinstance(outcome, isolation.Raised)
    assert outcome.message.endswith("x … 4934464 more characters") and len(outcome.traceback) < 70_000


def test_an_exception_that_fails_at_its_own_words(call: Call) -> None:
    outcome = call("raises_what_has_no_words")
    assert isinstance(outcome, isolation.Raised) and "its __str__ raised ValueError" in outcome.message


def test_what_came_of_a_process_is_listed_as_a_scan_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "import subprocess, sys, threading, time\n"
        "kids = [subprocess.Popen(['sleep', '60'])]\n"
        "thread = threading.Thread(target=lambda: (kids.append(subprocess.Popen(['sleep', '60'])), time.sleep(60)))\n"
        "thread.start()\n"
        "subprocess.Popen(['true'])\n"
        "time.sleep(0.3); print('ready', flush=True); time.sleep(60)\n"
    )
    process = SupervisedProcess(
        [sys.executable, "-c", script],
        env=dict(os.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        listed = {info.pid for info in process.processes()}
        assert len(listed) == 3, "itself and what two of its threads started; not what has ended"
        assert all(info.resident > 0 for info in process.processes())

        def none(pid: int) -> str:
            raise supervised_process.NoChildLists

        monkeypatch.setattr(supervised_process, "_children_of", none)
        assert {info.pid for info in process.processes()} == listed
    finally:
        process.end()
    assert not process.processes()

"""The GPU's lock: alone for who times, shared for who only computes, and in turns."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from ucutlass.cli.engines import announce
from ucutlass.runtime.bench.gpu_lock import hold_gpu, hold_idle_gpu
from ucutlass.runtime.cache import this_process
from ucutlass.runtime.errors import BuildCancelled, LockTimeout


def holding(folder: Path, shared: bool = False, timeout: float = 0.0, **how: Any) -> Any:
    return hold_gpu(
        "GPU-0",
        timeout_seconds=timeout,
        on_wait=how.get("on_wait", lambda _: None),
        folder=folder,
        shared=shared,
    )


def test_what_times_nothing_shares_the_lock_and_who_times_has_it_alone(tmp_path: Path) -> None:
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(holding(tmp_path, shared=True))
        with pytest.raises(LockTimeout), holding(tmp_path):
            pass
    for shared in (True, False):
        with holding(tmp_path), pytest.raises(LockTimeout), holding(tmp_path, shared):
            pass


def test_who_waits_to_time_is_before_those_who_come_to_share(tmp_path: Path) -> None:
    waits, timed = Event(), Event()
    order: list[str] = []

    def time() -> None:
        with holding(tmp_path, timeout=60.0, on_wait=lambda _: waits.set()):
            order.append("time")
        timed.set()

    with holding(tmp_path, shared=True):
        thread = Thread(target=time)
        thread.start()
        assert waits.wait(60)
        with pytest.raises(LockTimeout), holding(tmp_path, shared=True):
            order.append("share")
    assert timed.wait(60) and order == ["time"]
    thread.join()
    with holding(tmp_path, shared=True):
        pass


def test_what_nobody_waits_for_waits_for_all_others(tmp_path: Path) -> None:
    def idle(quiet: float = 0.0) -> Any:
        return hold_idle_gpu("GPU-0", timeout_seconds=0.0, quiet_seconds=quiet, folder=tmp_path)

    for shared in (True, False):
        with holding(tmp_path, shared), pytest.raises(LockTimeout), idle():
            pass
    with idle(0.1), pytest.raises(LockTimeout), holding(tmp_path):
        pass


def test_a_wait_that_is_cancelled_takes_no_turn(tmp_path: Path) -> None:
    cancel = Event()
    cancel.set()
    late = hold_gpu("GPU-0", timeout_seconds=60, on_wait=lambda _: None, folder=tmp_path, cancel=cancel)
    with holding(tmp_path), pytest.raises(BuildCancelled), late:
        pass


def test_who_waits_is_told_what_for_but_not_of_its_own_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for purpose in ("a reference", ""):
        held = hold_gpu(
            "GPU-0", timeout_seconds=1.0, on_wait=lambda _: None, folder=tmp_path, purpose=purpose
        )
        with held, pytest.raises(LockTimeout), holding(tmp_path, on_wait=announce):
            pass
    assert capsys.readouterr().err == f"ucc: waiting for {this_process('a reference')}, which uses this GPU\n"

"""What a signal does to a command whose work is written down as it happens."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

_WORKING = """
import signal, sys, threading, time
from ucutlass.entry import Signals
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background ignores it
signals = Signals()
signals.running()
step = threading.Thread(target=time.sleep, args=(600,))
try:
    with signals.journaled():
        step.start()
        print("working", flush=True)
        step.join()
finally:
    print("cleaned up", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_waits_for_no_step_of_a_session(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _WORKING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "working\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=300)
    assert process.returncode == 128 + number
    words = "terminated" if number is signal.SIGTERM else "interrupted"
    assert err == f"ucc: {words}\n" and out == ""


_ENDLESS = """
import pathlib, time
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x

def get_inputs():
    pathlib.Path({mark!r}).touch()
    time.sleep(600)

def get_init_inputs():
    return []
"""


@pytest.mark.slow
def test_a_signal_waits_for_no_reading_of_a_module(tmp_path: Path) -> None:
    mark, file = tmp_path / "mark", tmp_path / "endless.py"
    file.write_text(_ENDLESS.format(mark=str(mark)))
    command = [sys.executable, "-m", "ucutlass.cli", "optimize", str(file), "--journal", str(tmp_path / "j")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + 240
        while not mark.exists() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        assert mark.exists()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGTERM and err.endswith("ucc: terminated\n")

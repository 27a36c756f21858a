"""A cluster whose starter is killed leaves nobody behind who holds a GPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

pytest.importorskip("distributed")

SCRIPT = textwrap.dedent(
    """
    import os, time
    from distributed import Client
    from ucutlass.engine.cluster import local_cluster

    if __name__ == "__main__":
        with local_cluster(["GPU-00000000-0000-0000-0000-000000000000"], 1) as spec:
            with Client(spec.replace("dask", "tcp")) as client:
                client.wait_for_workers(1)
                print(*client.run(os.getpid).values(), flush=True)
            time.sleep(600)
    """
)


def test_workers_end_with_whoever_started_them(tmp_path: Path) -> None:
    script = tmp_path / "starts.py"
    script.write_text(SCRIPT)
    root = str(Path(__file__).parents[2])
    starter = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": root},
    )
    try:
        assert starter.stdout is not None
        worker = int(starter.stdout.readline())
        assert _lives(worker)
    finally:
        starter.send_signal(signal.SIGKILL)
        starter.wait()
    end = time.monotonic() + 120
    while _lives(worker) and time.monotonic() < end:
        time.sleep(0.1)
    assert not _lives(worker)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False

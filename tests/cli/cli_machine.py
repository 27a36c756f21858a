"""A machine of the test's own, and `ucc` on it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from click.testing import CliRunner

from ucutlass import backend
from ucutlass.cli import main
from ucutlass.runtime import system

ROOT = Path(__file__).parent.parent.parent
LINEAR = ROOT / "examples" / "linear_gelu.ucu"
SIZES = ("-s", "M=256,N=256,K=256")

H200 = system.Driver((13, 0), (system.Gpu(0, "NVIDIA H200", (9, 0), 141 * 10**9, 132),), "")
"""What the driver of a machine with one such GPU says."""

NVCC = """#!/bin/sh
if [ "$1" = --version ]; then
  echo "Cuda compilation tools, release 13.0, V13.0.88"
  exit 0
fi
[ "$1" = --dryrun ] && exit 0
echo run >> "{home}/runs"
. "{home}/behaviour"
"""


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Ucc: TypeAlias = Callable[..., Result]


@dataclass(frozen=True)
class Machine:
    """A home for `ucc` in which everything that it finds is the test's."""

    home: Path

    @property
    def cache(self) -> Path:
        return self.home / "cache"

    @property
    def builds(self) -> int:
        runs = self.home / "runs"
        return len(runs.read_text().split()) if runs.exists() else 0

    def behave(self, script: str) -> None:
        """Sh code for every compilation from now on, in the folder of the source."""
        (self.home / "behaviour").write_text(script)

    def ucc(
        self, *arguments: str | Path, stdin: bytes = b"", environ: Mapping[str, str] | None = None
    ) -> Result:
        """One command in this process; an exception that reaches its top is the test's failure."""
        backend.toolchain.cache_clear()
        done = CliRunner().invoke(
            main,
            [str(a) for a in arguments],
            input=stdin,
            env=environ,
            catch_exceptions=False,
            prog_name="ucc",
        )
        return Result(done.exit_code, done.stdout, done.stderr)


def fake_machine(
    home: Path, monkeypatch: pytest.MonkeyPatch, driver: system.Driver | None
) -> Iterator[Machine]:
    """Yields a machine with this driver, and an nvcc that makes an empty library at once."""
    toolkit = home / "toolkit"
    (toolkit / "bin").mkdir(parents=True)
    (toolkit / "bin" / "nvcc").write_text(NVCC.format(home=home))
    (toolkit / "bin" / "nvcc").chmod(0o755)
    for name, folder in (("CACHE_DIR", "cache"), ("DATA_DIR", "data"), ("CUDA_HOME", "toolkit")):
        monkeypatch.setenv(f"UCUTLASS_{name}", str(home / folder))
    monkeypatch.setattr("ucutlass.runtime.system.driver", lambda: driver)
    machine = Machine(home)
    machine.behave(": > kernel.so\n")
    backend.toolchain.cache_clear()
    yield machine
    backend.toolchain.cache_clear()

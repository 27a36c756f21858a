"""Lets one of several test processes at a time build a module's kernels: the others find them in the cache."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch

from ucutlass.backend import build_sources
from ucutlass.emit.text import Source
from ucutlass.kernels.planned import Plan
from ucutlass.runtime import switches
from ucutlass.runtime.build import Artifact


@contextmanager
def turn(name: str) -> Iterator[None]:
    """Waits for the process that holds `name`."""
    folder = switches.read().cache_dir
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"tests-{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build_in_turn(
    name: str, sources: Callable[[], Sequence[tuple[Source, Plan]]], cases: Sequence[object]
) -> None:
    """Builds the kernel of every case, in translation units, and fails for the first that does not build.
    Skips where there is no GPU or no nvcc."""
    if not torch.cuda.is_available() or shutil.which("nvcc") is None:
        pytest.skip("no NVIDIA GPU or no nvcc")
    with turn(name):
        artifacts = build_sources(sources(), group=8)
    for artifact, case in zip(artifacts, cases, strict=True):
        assert isinstance(artifact, Artifact), f"{case}: {artifact}"

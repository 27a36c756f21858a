"""Kernels that run on the host, and both ways to launch them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.host_library import host_library
from ucutlass.runtime.launch import BoundKernel, Launcher, LaunchRequest
from ucutlass.runtime.launch_spec import LaunchSpec
from ucutlass.runtime.library import Native, NoNative, load_entry

MakeLauncher = Callable[..., tuple[Launcher, list[LaunchRequest]]]


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library of the entries in fake_kernels.c."""
    return host_library(Path(__file__).with_name("fake_kernels.c"), tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def launcher(kernels: Path, route: Native | NoNative) -> MakeLauncher:
    """Makes a launcher of one fake kernel, and the list of what its `choose` was asked."""

    def make(
        spec: LaunchSpec, symbol: str, launch_parameters: tuple[int, ...] = (0, 1, 1), workspace: int = 0
    ) -> tuple[Launcher, list[LaunchRequest]]:
        requests: list[LaunchRequest] = []
        entry = load_entry(kernels, symbol)

        def choose(request: LaunchRequest) -> BoundKernel:
            requests.append(request)
            return BoundKernel(entry.address, launch_parameters, workspace, entry)

        return Launcher(spec, choose, route), requests

    return make

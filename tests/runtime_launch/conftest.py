"""Kernels that run on the host, and both ways to launch them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ucutlass.runtime.launch import BoundKernel, Launcher, LaunchRequest
from ucutlass.runtime.launch_spec import LaunchSpec
from ucutlass.runtime.library import Native, NoNative, compile_native, load_entry, load_native

MakeLauncher = Callable[..., tuple[Launcher, list[LaunchRequest]]]


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library of the entries in fake_kernels.c."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("kernels") / "fake_kernels.so"
    source = Path(__file__).with_name("fake_kernels.c")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


@pytest.fixture(scope="session")
def native_launcher(tmp_path_factory: pytest.TempPathFactory) -> Native:
    return load_native(compile_native(tmp_path_factory.mktemp("native")))


@pytest.fixture(params=["native", "python"])
def route(request: pytest.FixtureRequest) -> Native | NoNative:
    if request.param == "python":
        return NoNative("asked for by the test")
    native = request.getfixturevalue("native_launcher")
    assert isinstance(native, Native)
    return native


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

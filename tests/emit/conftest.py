"""Tool chains for emitted arithmetic: g++ for the host, nvcc for the device."""

from __future__ import annotations

import ctypes
import shutil

import pytest

from tests.emit import host_compiler
from tests.emit.harness import HOST_SHIM, RUN_ON_DEVICE, RUN_ON_HOST, Toolchain, cutlass_include, headers


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Toolchain:
    """g++ on the emitted text itself, behind a precompiled header of CUTLASS."""
    compiler = host_compiler.compiler()
    folder = tmp_path_factory.mktemp("arithmetic")
    flags = (*host_compiler.LANGUAGE, "-O1", "-ffp-contract=off", "-fwrapv")
    header = host_compiler.precompiled("arithmetic", headers() + HOST_SHIM, flags)
    command = (compiler, *flags, *host_compiler.includes(), "-shared", "-include", str(header))
    return Toolchain(command, "", RUN_ON_HOST, ".cpp", folder)


@pytest.fixture(scope="session")
def device(tmp_path_factory: pytest.TempPathFactory) -> Toolchain:
    nvcc = shutil.which("nvcc")
    try:
        usable = ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
    except OSError:
        usable = False
    if nvcc is None or not usable:
        pytest.skip("no nvcc or no NVIDIA GPU")
    command = (
        nvcc,
        "-std=c++17",
        "-arch=native",
        "-w",
        "-shared",
        "-Xcompiler=-fPIC",
        f"-I{cutlass_include()}",
    )
    return Toolchain(command, headers(), RUN_ON_DEVICE, ".cu", tmp_path_factory.mktemp("device"))

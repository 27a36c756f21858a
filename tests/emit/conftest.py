"""Tool chains for emitted arithmetic: g++ for the host, nvcc for the device."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import pytest

from tests.emit.harness import (
    HOST_SHIM,
    RUN_ON_DEVICE,
    RUN_ON_HOST,
    Toolchain,
    cuda_includes,
    cutlass_include,
    headers,
)


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Toolchain:
    """g++ on the emitted text itself, behind a precompiled header of CUTLASS."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ to compile the arithmetic for the host")
    folder = tmp_path_factory.mktemp("arithmetic")
    # -fpermissive: CUTLASS names device intrinsics in templates that are never instantiated here.
    flags = ("-std=c++17", "-O1", "-ffp-contract=off", "-fwrapv", "-fPIC", "-w", "-fpermissive")
    includes = (f"-I{cutlass_include()}", *cuda_includes())
    header = folder / "prelude.hpp"
    header.write_text(headers() + HOST_SHIM)
    subprocess.run([compiler, *flags, *includes, str(header)], check=True)
    command = (compiler, *flags, *includes, "-shared", "-include", str(header))
    return Toolchain(command, "", RUN_ON_HOST, ".cpp", folder)


@pytest.fixture(scope="session")
def device(tmp_path_factory: pytest.TempPathFactory) -> Toolchain:
    nvcc = shutil.which("nvcc")
    try:
        found = ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
    except OSError:
        found = False
    if nvcc is None or not found:
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

"""Tool chains for emitted arithmetic: g++ for the host, nvcc for the device."""

from __future__ import annotations

import ctypes
import importlib.util
import math
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ucutlass.elements import BF16, BOOL, E4M3, E5M2, F16, F32, I32, I64, S8, TF32, U8, Element
from ucutlass.emit.arithmetic import INCLUDES, ArithmeticText, arithmetic, kind_of
from ucutlass.emit.functions import CPP, FORMS
from ucutlass.emit.text import PLACEHOLDER, comment, finish, literal, product
from ucutlass.functions import FUNCTIONS
from ucutlass.plan import (
    Access,
    Accumulator,
    Arithmetic,
    Compute,
    CoordinateValue,
    ExtentValue,
    GemmProblem,
    HostScalar,
    Instruction,
    Literal_,
    LoadSlot,
    Reduction,
    Round,
    ScalarKind,
    Store,
)

from tests.emit.harness import *


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

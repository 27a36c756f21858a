"""Streams, CUDA graphs, devices and workspaces, with small kernels of the same binary interface."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ucutlass.runtime.arguments import WrongDevice
from ucutlass.runtime.entry_codes import LaunchError
from ucutlass.runtime.launch import BoundKernel, Launcher, LaunchRequest
from ucutlass.runtime.library import Native, NoNative, load_entry

from .specs import SCALE_ADD

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")]

SPIN_CYCLES = 50_000_000
"""Some 25 ms: long enough that work on another stream would overtake."""


@pytest.fixture(scope="module")
def device_kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc on PATH")
    made = tmp_path_factory.mktemp("device") / "device_kernels.so"
    source = Path(__file__).with_name("device_kernels.cu")
    subprocess.run(
        [nvcc, "-arch=native", "-shared", "-Xcompiler", "-fPIC", "-o", str(made), str(source)], check=True
    )
    return made


def _launcher(
    library: Path, route: Native | NoNative, symbol: str = "scale_add", spin: int = 0, workspace: int = 0
) -> tuple[Launcher, list[LaunchRequest]]:
    entry, asked = load_entry(library, symbol), []

    def choose(request: LaunchRequest) -> BoundKernel:
        asked.append(request)
        return BoundKernel(entry.address, (SPIN_CYCLES, spin), workspace, entry)

    return Launcher(replace(SCALE_ADD, device="cuda"), choose, route), asked


def _inputs(m: int = 64, device: str = "cuda") -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(m, 32, device=device), torch.randn(32, device=device)


def test_result(device_kernels: Path, route: Native | NoNative) -> None:
    kernel, asked = _launcher(device_kernels, route)
    x, b = _inputs()
    out = torch.empty_like(x)
    for _ in range(3):
        torch.testing.assert_close(kernel(x, 2.0, b), 2 * x + b)
        assert kernel(x, 3.0, b, out=out) is out
        torch.testing.assert_close(out, 3 * x + b)
    assert asked[0].device == x.device and len(asked) == 1


def test_runs_on_the_current_stream(device_kernels: Path, route: Native | NoNative) -> None:
    """The kernel is slow to start; work queued after it on the same stream sees its result."""
    kernel, _ = _launcher(device_kernels, route, spin=1)
    x, b = _inputs()
    side = torch.cuda.Stream()
    torch.cuda.synchronize()  # the inputs come from the default stream
    for _ in range(2):
        with torch.cuda.stream(side):
            y = kernel(x, 2.0, b) + 1
        assert torch.cuda.default_stream().query(), "nothing was queued on the default stream"
        side.synchronize()
        torch.testing.assert_close(y, 2 * x + b + 1)


def test_never_synchronises(device_kernels: Path, route: Native | NoNative) -> None:
    kernel, _ = _launcher(device_kernels, route, spin=1, workspace=1024)
    x, b = _inputs()
    kernel(x, 1.0, b)
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    for _ in range(4):
        kernel(x, 1.0, b)
    done.record()
    assert not done.query(), "the call waited for the device"
    torch.cuda.synchronize()


@pytest.mark.parametrize("workspace", [0, 1024])
def test_cuda_graph(device_kernels: Path, route: Native | NoNative, workspace: int) -> None:
    kernel, _ = _launcher(device_kernels, route, workspace=workspace)
    x, b = _inputs()
    out = torch.empty_like(x)
    kernel(x, 2.0, b), kernel(x, 2.0, b, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = kernel(x, 2.0, b)
        kernel(y, 2.0, b, out=out)
    for _ in range(3):
        x.normal_()
        graph.replay()
        torch.testing.assert_close(y, 2 * x + b)
        torch.testing.assert_close(out, 2 * y + b)


def test_workspace_is_not_shared_between_streams(device_kernels: Path, route: Native | NoNative) -> None:
    kernel, _ = _launcher(device_kernels, route, spin=1, workspace=1024)
    x, b = _inputs()
    kernel(x, 1.0, b)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    streams = [torch.cuda.Stream() for _ in range(4)]
    results = []
    for stream in streams:
        with torch.cuda.stream(stream):
            results.append(kernel(x, 2.0, b))
    torch.cuda.synchronize()
    for y in results:
        torch.testing.assert_close(y, 2 * x + b)
    del results, y
    assert torch.cuda.memory_allocated() == before


def test_code_of_a_failed_launch(device_kernels: Path, route: Native | NoNative) -> None:
    """A block of more threads than a device has is cudaErrorInvalidConfiguration by CUDA's documentation;
    driver 580 with CUDA 13.0 was seen to answer cudaErrorInvalidValue."""
    kernel, _ = _launcher(device_kernels, route, symbol="too_many_threads")
    refused = r"CUDA error (9: invalid configuration argument|1: invalid argument) \(code 100[19]\)"
    with pytest.raises(LaunchError, match=refused):
        kernel(_inputs()[0], 1.0, _inputs()[1])
    torch.cuda.synchronize()


def test_host_tensors_after_device_tensors(device_kernels: Path, route: Native | NoNative) -> None:
    kernel, _ = _launcher(device_kernels, route)
    x, b = _inputs()
    for _ in range(2):
        kernel(x, 1.0, b)
        with pytest.raises(WrongDevice, match="x is on cpu, but the kernel runs on cuda"):
            kernel(x.cpu(), 1.0, b.cpu())
        with pytest.raises(WrongDevice, match="b is on cpu"):
            kernel(x, 1.0, b.cpu())


def test_tensors_on_another_device_than_the_current(device_kernels: Path, route: Native | NoNative) -> None:
    if torch.cuda.device_count() == 1:
        pytest.skip("one GPU")
    kernel, asked = _launcher(device_kernels, route, workspace=1024)
    for device in ("cuda:1", "cuda:0", "cuda:1"):
        x, b = _inputs(device=device)
        y = kernel(x, 2.0, b)
        assert y.device == x.device and torch.cuda.current_device() == 0
        torch.testing.assert_close(y, 2 * x + b)
    assert [r.device.index for r in asked] == [1, 0]

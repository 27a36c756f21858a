"""What can be held of the device's part without a device: launches against the kernels' signatures."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ucutlass.runtime.calibrate import cuda as calibrate_cuda
from ucutlass.runtime.calibrate.cuda import CudaProbeTimer, Kernels

PTX = calibrate_cuda._PTX
SIZES = {"u64": ctypes.c_uint64, "u32": ctypes.c_uint32}
SMS = 132


def signatures() -> dict[str, list[tuple[str, str]]]:
    """Every entry of the PTX with its parameters, (type, name)."""
    matches = re.findall(r"\.visible \.entry (\w+)\((.*?)\)", PTX.read_text(), re.DOTALL)
    return {name: re.findall(r"\.param \.(\w+) (\w+)", inner) for name, inner in matches}


class Driver:
    """libcuda as far as launching goes: decodes the arguments by the PTX's own signature."""

    def __init__(self, refuse: str = "") -> None:
        self.launches: list[tuple[str, int, int, dict[str, int]]] = []
        self.names: list[str] = []
        self._refuse = refuse

    def cuModuleLoadData(self, module: Any, image: bytes) -> int:
        assert image.endswith(b"\0") and b"ucc_read" in image
        return 218 if self._refuse == "load" else 0

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:
        self.names.append(name.decode())
        function._obj.value = len(self.names)
        return 0

    def cuLaunchKernel(self, function: Any, *rest: Any) -> int:
        blocks, _, _, threads, _, _, shared, _, pointers, extra = rest
        assert shared == 0 and extra is None
        name = self.names[function.value - 1]
        values = {
            parameter: ctypes.cast(pointers[i], ctypes.POINTER(SIZES[kind])).contents.value
            for i, (kind, parameter) in enumerate(signatures()[name])
        }
        self.launches.append((name, blocks, threads, values))
        return 0

    def cuGetErrorName(self, status: int, text: Any) -> int:
        text._obj.value = b"CUDA_ERROR_INVALID_PTX"
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    _install(made, monkeypatch)
    return made


def _install(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=7))
    properties = SimpleNamespace(multi_processor_count=SMS)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)


def test_launches_fit_the_kernels(driver: Driver) -> None:
    memory, l2 = 8 << 20, 16 << 20
    for probe in Kernels("cpu").probes(memory, l2):
        probe.make()()
    by_quantity = dict(zip(("launch_floor", "read", "l2", "f32"), driver.launches, strict=True))
    assert by_quantity["launch_floor"][:3] == ("ucc_empty", 1, 32)
    name, blocks, threads, given = by_quantity["read"]
    assert (name, blocks, threads) == ("ucc_read", 8 * SMS, 256)
    assert (given["vectors"], given["passes"]) == (memory // 16, 1)
    _, _, _, given = by_quantity["l2"]
    assert (given["vectors"], given["passes"]) == (l2 // 4 // 16, 256)
    assert given["data"] and given["sink"]
    assert by_quantity["f32"][:3] == ("ucc_fma", 4 * SMS, 256)


def test_amounts_are_what_the_launches_do(driver: Driver) -> None:
    probes = {p.quantity: p for p in Kernels("cpu").probes(8 << 20, 16 << 20)}
    for probe in probes.values():
        probe.make()()
    read, l2, fma = driver.launches[1:]
    assert probes["read"].amount == read[3]["vectors"] * 16 * read[3]["passes"]
    assert probes["l2"].amount == l2[3]["vectors"] * 16 * l2[3]["passes"]
    multiply_adds = PTX.read_text().count("fma.rn.f32")
    assert probes["f32"].amount == 2 * multiply_adds * fma[3]["iterations"] * fma[1] * fma[2]


def test_a_driver_that_refuses_has_its_words_told(monkeypatch: pytest.MonkeyPatch) -> None:
    _install(Driver("load"), monkeypatch)
    with pytest.raises(RuntimeError, match="cuModuleLoadData: CUDA_ERROR_INVALID_PTX"):
        Kernels("cpu")


def test_chains_of_fma_are_independent() -> None:
    """Eight accumulators in turn: one chain alone would measure latency."""
    targets = re.findall(r"fma\.rn\.f32 (%f\d+), \1,", PTX.read_text())
    assert len(targets) == 128
    assert targets == [f"%f{i % 8}" for i in range(128)]


def test_times_are_seconds_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events give milliseconds of a graph of several launches; stamps give the clock."""

    class Event:
        def record(self) -> None: ...

        def elapsed_time(self, other: Event) -> float:
            return 30.0

    class Graph:
        replays = 0

        def replay(self) -> None:
            Graph.replays += 1

    def captured(work: Any) -> Graph:
        work()
        return Graph()

    class FakeCuda:
        def idle(self) -> None: ...

        def session(self, work: Any, stamps: int, watch: bool) -> Any:
            work(lambda: None)
            times = dict.fromkeys(range(4), (0, 0)), dict.fromkeys(range(4), (2000000, 3000000))
            return SimpleNamespace(stamps=times)

    monkeypatch.setattr(calibrate_cuda, "graph_of", captured)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(calibrate_cuda, "_event", Event)
    ruler = object.__new__(CudaProbeTimer)
    ruler.cuda = FakeCuda()  # type: ignore[assignment]
    launched: list[int] = []
    timed = ruler.time(lambda: launched.append(1), 10, 3)
    assert timed.seconds == (0.003, 0.003, 0.003)
    assert timed.clock == 1.5e9
    assert len(launched) == 10
    assert Graph.replays == 4  # the first is warm-up


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="no ptxas")
@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90"])
def test_the_kernels_assemble(tmp_path: Path, arch: str) -> None:
    out = tmp_path / "out.cubin"
    done = subprocess.run(
        ["ptxas", f"-arch={arch}", str(PTX), "-o", str(out)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert out.stat().st_size

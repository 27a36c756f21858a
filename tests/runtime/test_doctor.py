from __future__ import annotations

from pathlib import Path

import pytest
from runtime_fakes import FakeNvcc, fake_nvcc

from ucutlass.runtime import doctor, system
from ucutlass.runtime.jit import nvjitlink, nvrtc
from ucutlass.runtime.toolchain import Nvcc


def by_name(report: doctor.DoctorReport) -> dict[str, doctor.DoctorCheck]:
    return {f.what: f for f in report.findings}


@pytest.fixture(autouse=True)
def machine(fake: FakeNvcc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCUTLASS_CUDA_HOME", str(fake.home.parent))
    monkeypatch.setenv("UCUTLASS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(system, "driver", lambda: None)


def drive(monkeypatch: pytest.MonkeyPatch, cuda: tuple[int, int], problem: str = "") -> None:
    gpu = system.Gpu(0, "NVIDIA H200", (9, 0), 150 * 2**30, 132)
    driver = system.Driver(cuda, () if problem else (gpu,), problem)
    monkeypatch.setattr(system, "driver", lambda: driver)


def test_a_machine_without_a_gpu_builds_and_does_not_run() -> None:
    report = doctor.examine()
    doctor_checks = by_name(report)
    assert report.can_build and not report.can_run
    assert doctor_checks["nvcc"].detail.startswith("13.0.88 at ")
    assert doctor_checks["NVIDIA driver"].state == "missing" and doctor_checks["NVIDIA driver"].fix


def test_a_machine_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    drive(monkeypatch, (13, 0))
    report = doctor.examine()
    assert report.can_build and report.can_run
    assert by_name(report)["GPU 0"].detail == "NVIDIA H200, sm_90, 132 SMs, 150 GiB"


def test_a_driver_older_than_the_toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    drive(monkeypatch, (12, 4))
    finding = by_name(doctor.examine())["driver version"]
    assert finding.state == "broken" and "12.4" in finding.detail and "CUDA 12" in finding.fix


def test_a_driver_in_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    drive(monkeypatch, (13, 0), problem="CUDA_ERROR_UNKNOWN")
    report = doctor.examine()
    assert not report.can_run and by_name(report)["GPU"].detail == "CUDA_ERROR_UNKNOWN"


@pytest.mark.parametrize(
    ("variable", "value", "what", "state"),
    [
        ("UCUTLASS_CUDA_HOME", "/nowhere", "nvcc", "missing"),
        ("UCUTLASS_CACHE_DIR", "/dev/null/x", "cache", "broken"),
        ("UCUTLASS_CACHE_SIZE", "huge", "cache", "broken"),
        ("UCUTLASS_BUILD_JOBS", "none", "capacity", "broken"),
    ],
)
def test_every_trouble_is_a_finding_with_a_mend(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, what: str, state: str
) -> None:
    monkeypatch.setenv(variable, value)
    report = doctor.examine()
    finding = by_name(report)[what]
    assert (finding.state, report.can_build) == (state, False) and finding.fix


def test_an_old_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvcc(tmp_path / "old/bin", version="11.8.89")
    monkeypatch.setenv("UCUTLASS_CUDA_HOME", str(tmp_path / "old"))
    assert by_name(doctor.examine())["nvcc"].state == "broken"


def test_compilers_that_are_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(nvcc: Nvcc) -> str:
        raise nvjitlink.NvJitLinkMissing(
            f"nvcc {nvcc.version} needs nvJitLink of CUDA 13.0", "pip install it"
        )

    monkeypatch.setattr(nvrtc, "locate", lambda nvcc: "/some/libnvrtc.so.13")
    monkeypatch.setattr(nvjitlink, "locate", missing)
    report = doctor.examine()
    checks = by_name(report)
    assert (checks["NVRTC"].state, checks["NVRTC"].detail) == ("found", "/some/libnvrtc.so.13")
    assert checks["nvJitLink"].state == "missing" and checks["nvJitLink"].fix == "pip install it"
    assert report.can_build, "nvcc builds, slowly"


def test_a_check_that_breaks_does_not_break_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("odd driver")

    monkeypatch.setattr(system, "driver", broken)
    assert "odd driver" in by_name(doctor.examine())["NVIDIA driver"].detail

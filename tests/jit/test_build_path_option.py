"""`ucc build --build-path`: asked for one kernel, and said where it does not serve."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from click.testing import CliRunner

from ucutlass import backend
from ucutlass.cli import main
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.jit import nvrtc
from ucutlass.runtime.toolchain import Nvcc

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("shape", [("-s", "M=64", "--all"), ("--shape", "M=128"), ("-s", "M=64")])
@pytest.mark.parametrize("option", [("--build-path", "nvrtc"), ("--build-path", "b"), ("--stage", "b")])
def test_says_what_it_does_not_serve(
    option: tuple[str, str], shape: tuple[str, ...], cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCUTLASS_CACHE_DIR", str(cache.root))
    target = ("build", str(EXAMPLES / "linear_gelu.ucu"), "--arch", "sm80", "-s", "N=256,K=256")
    done = CliRunner().invoke(main, [*target, *option, *shape])
    assert done.exit_code == 2
    assert "--build-path nvrtc: only kernels for sm90a" in done.output
    assert not cache.entries()


@pytest.mark.parametrize("option", [("--build-path", "lto"), ("--build-path", "a"), ("--stage", "a")])
def test_a_removed_build_path_is_refused_with_what_to_take(option: tuple[str, str]) -> None:
    done = CliRunner().invoke(main, ["build", str(EXAMPLES / "linear_gelu.ucu"), *option])
    assert done.exit_code == 2
    assert "this build path was removed: take auto, nvrtc or nvcc" in " ".join(done.output.split())


def missing(nvcc: Nvcc) -> str:
    raise nvrtc.NvrtcMissing("no NVRTC of CUDA 13.0", nvrtc.LIBRARY.install((13, 0)))


def test_without_nvrtc_auto_is_nvcc_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a process; a build path that was asked for by its name stays."""
    backend._automatic_stage.cache_clear()
    monkeypatch.setattr(nvrtc, "locate", missing)
    with pytest.warns(backend.NvrtcMissingWarning, match="pip install 'nvidia-cuda-nvrtc"):
        assert backend.build_stage("auto") == "nvcc"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert backend.build_stage("auto") == "nvcc"
        assert [backend.build_stage(path) for path in ("nvrtc", "nvcc")] == ["nvrtc", "nvcc"]
    backend._automatic_stage.cache_clear()


def test_a_load_by_nvcc_imports_nothing_of_nvrtc_builds() -> None:
    said = "import sys, ucutlass.backend; print(*[m for m in sys.modules if 'runtime.jit' in m or 'gemm.lean' in m])"
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""

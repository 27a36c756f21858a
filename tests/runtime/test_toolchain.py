from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.util
from pathlib import Path

import pytest
from runtime_fakes import FakeNvcc, fake_nvcc

from ucutlass.runtime import errors, toolchain


def no_pypi(monkeypatch: pytest.MonkeyPatch, *places: Path) -> None:
    """Makes `places` the only folders in which PyPI's `nvidia` packages lie."""
    spec = importlib.machinery.ModuleSpec("nvidia", None, is_package=True)
    spec.submodule_search_locations = [str(p) for p in places]
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a: spec if n == "nvidia" else real(n, *a))


def pypi_layout(site: Path) -> Path:
    home = site / "cu13"
    fake_nvcc(home / "bin")
    for part in toolchain._PARTS:
        (home / part).parent.mkdir(parents=True, exist_ok=True)
        (home / part).touch()
    return home


def test_the_switch_comes_before_cuda_home_and_path(tmp_path: Path) -> None:
    for place in "abcd":
        fake_nvcc(tmp_path / place / "bin")
    env = {
        "UCUTLASS_CUDA_HOME": str(tmp_path / "a"),
        "CUDA_HOME": str(tmp_path / "b"),
        "CUDA_PATH": str(tmp_path / "c"),
        "PATH": f"{tmp_path}/d/bin:/usr/bin:/bin",
    }
    for origin, place in zip((*list(env)[:3], "PATH"), "abcd", strict=True):
        nvcc = toolchain.find_nvcc(env)
        assert (nvcc.origin, nvcc.path) == (origin, tmp_path / place / "bin/nvcc")
        assert nvcc.version == "13.0.88"
        del env[origin]


def test_pypi_packages_are_found_last_and_bring_their_library_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = pypi_layout(tmp_path)
    no_pypi(monkeypatch, tmp_path)
    nvcc = toolchain.find_nvcc({"PATH": "/nowhere"})
    assert (nvcc.origin, nvcc.path) == ("PyPI", home / "bin/nvcc")
    assert nvcc.library_folders == (home / "lib",)


@pytest.mark.parametrize("part", list(toolchain._PARTS))
def test_a_missing_pypi_package_is_named(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = pypi_layout(tmp_path)
    no_pypi(monkeypatch, tmp_path)
    (home / part).unlink()
    with pytest.raises(errors.CompilerIncomplete, match=toolchain._PARTS[part]) as caught:
        toolchain.find_nvcc({"PATH": "/nowhere"})
    assert "pip install" in caught.value.fix


def test_no_compiler_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    no_pypi(monkeypatch)
    with pytest.raises(errors.CompilerMissing, match=r"to fix it: pip install 'nvidia-cuda-nvcc"):
        toolchain.find_nvcc({"PATH": "/nowhere"})


def test_cuda_12_packages_are_told_to_hold_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cuda_nvcc").mkdir()
    no_pypi(monkeypatch, tmp_path)
    with pytest.raises(errors.CompilerMissing, match="CUDA 12"):
        toolchain.find_nvcc({"PATH": "/nowhere"})


def test_a_variable_that_points_nowhere_is_an_error_not_a_fallback(fake: FakeNvcc, tmp_path: Path) -> None:
    with pytest.raises(errors.CompilerMissing, match=r"CUDA_HOME is .*empty"):
        toolchain.find_nvcc({"CUDA_HOME": str(tmp_path / "empty"), "PATH": str(fake.home)})


def test_an_old_compiler(tmp_path: Path) -> None:
    fake_nvcc(tmp_path / "bin", version="12.1.105")
    with pytest.raises(errors.CompilerTooOld, match=r"12\.1\.105, older than 12\.3"):
        toolchain.find_nvcc({"CUDA_HOME": str(tmp_path)})


@pytest.mark.parametrize(("script", "words"), [("exit 3", "status 3"), ("echo hello", "no version")])
def test_a_broken_compiler(script: str, words: str, tmp_path: Path) -> None:
    fake = fake_nvcc(tmp_path / "bin")
    (fake.home / "nvcc").write_text(f"#!/bin/sh\n{script}\n")
    with pytest.raises(errors.CompilerUnusable, match=words):
        toolchain.find_nvcc({"CUDA_HOME": str(tmp_path)})


def test_an_upgrade_under_a_running_process_is_seen(tmp_path: Path) -> None:
    fake = fake_nvcc(tmp_path / "bin")
    before = toolchain.find_nvcc({"CUDA_HOME": str(tmp_path)}).version
    (fake.home / "version").write_text("13.1.2")
    (fake.home / "nvcc").write_text((fake.home / "nvcc").read_text() + "# newer\n")
    assert (before, toolchain.find_nvcc({"CUDA_HOME": str(tmp_path)}).version) == ("13.0.88", "13.1.2")


def test_no_host_compiler() -> None:
    with pytest.raises(errors.HostCompilerMissing, match=r"g\+\+"):
        toolchain.find_host({"PATH": "/nowhere"})


def test_the_cutlass_headers_and_their_digest() -> None:
    cutlass = toolchain.find_cutlass()
    assert (cutlass.include / "cutlass/cutlass.h").is_file()
    assert cutlass.version.startswith("4.")
    assert cutlass == toolchain.find_cutlass()


class EditedRecord:
    """A distribution whose RECORD was changed in one digest, or is not there."""

    def __init__(self, real: importlib.metadata.Distribution, record: str | None) -> None:
        self._real, self._record, self.version = real, record, real.version

    def read_text(self, _: str) -> str | None:
        return self._record

    def locate_file(self, path: str) -> object:
        return self._real.locate_file(path)


def test_the_digest_follows_the_content_of_a_header_and_of_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = importlib.metadata.distribution("nvidia-cutlass")
    record = real.read_text("RECORD") or ""
    line = next(x for x in record.splitlines() if "source/include/cutlass/version.h" in x)
    before = toolchain.find_cutlass().digest

    def digest_with(text: str | None) -> str:
        monkeypatch.setattr(importlib.metadata, "distribution", lambda _: EditedRecord(real, text))
        return toolchain.find_cutlass().digest

    assert digest_with(record.replace(line, line.replace("sha256=", "sha256=x"))) != before
    assert digest_with("\n".join(reversed(record.splitlines())) + "\nunrelated.py,sha256=abc,3\n") == before
    with pytest.raises(errors.HeadersMissing, match="no record"):
        digest_with(None)


def test_cutlass_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> object:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    with pytest.raises(errors.HeadersMissing, match="pip install 'nvidia-cutlass"):
        toolchain.find_cutlass()


def test_modified_headers_are_named(tmp_path: Path) -> None:
    cutlass = toolchain.find_cutlass()
    copy = toolchain.Cutlass(tmp_path, cutlass.version, cutlass.digest)
    (tmp_path / "include/cutlass").mkdir(parents=True)
    (tmp_path / "include/cutlass/version.h").write_bytes((cutlass.include / "cutlass/version.h").read_bytes())
    (tmp_path / "include/cutlass/cutlass.h").write_text("// edited")
    changed = toolchain.modified_headers(copy)
    assert "include/cutlass/cutlass.h" in changed and "include/cutlass/version.h" not in changed

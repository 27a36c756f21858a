"""Which NVRTC and nvJitLink are taken where an environment holds several CUDAs. Libraries are texts of their version here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ucutlass.runtime.errors import ToolchainError
from ucutlass.runtime.jit import nvjitlink, nvrtc, shared_library
from ucutlass.runtime.jit.shared_library import CompilerLibrary, CudaVersion
from ucutlass.runtime.toolchain import Nvcc


def ask(library: str) -> CudaVersion:
    major, minor = Path(library).read_text().split(".")
    return int(major), int(minor)


LIBRARIES = [replace(library, ask=ask) for library in (nvrtc.LIBRARY, nvjitlink.LIBRARY)]

Lay = Callable[[str, str], Path]


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of PyPI's packages; there is no other place with libraries."""
    folder = tmp_path / "nvidia"
    folder.mkdir()

    class Spec:
        submodule_search_locations = (str(folder),)

    monkeypatch.setattr(shared_library.importlib.util, "find_spec", lambda name: Spec())
    monkeypatch.setattr(shared_library, "_SYSTEM", ())
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    shared_library.locate.cache_clear()
    return folder


def lay(folder: Path, library: CompilerLibrary, version: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{library.stem}.so.{version.split('.')[0]}"
    path.write_text(version)
    return path


def nvcc(tmp_path: Path, version: str) -> Nvcc:
    home = tmp_path / f"cuda-{version}"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    (home / "bin/nvcc").touch()
    return Nvcc(home / "bin/nvcc", version, "PATH", ())


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda one: one.name)
def test_the_library_of_nvccs_version_is_taken(
    library: CompilerLibrary, packages: Path, tmp_path: Path
) -> None:
    """Of those that PyTorch and packages of both kinds of names bring, and nvcc's own toolkit has."""
    new = lay(packages / "cu13/lib", library, "13.0")
    old = lay(packages / "cuda_nvrtc/lib", library, "12.9")
    own = lay(tmp_path / "cuda-12.6.85/lib64", library, "12.6")
    assert shared_library.locate(library, nvcc(tmp_path, "13.0.88")) == str(new)
    assert shared_library.locate(library, nvcc(tmp_path, "12.9.86")) == str(old)
    assert shared_library.locate(library, nvcc(tmp_path, "12.6.85")) == str(own)


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda one: one.name)
def test_libraries_of_other_versions_are_named(
    library: CompilerLibrary, packages: Path, tmp_path: Path
) -> None:
    lay(packages / "cu13/lib", library, "13.1")
    place = lay(packages / "cuda_nvrtc/lib", library, "12.9")
    with pytest.raises(library.missing) as caught:
        shared_library.locate(library, nvcc(tmp_path, "12.8.93"))
    words = str(caught.value)
    assert f"nvcc 12.8.93 ({tmp_path}/cuda-12.8.93/bin/nvcc) needs {library.name} of CUDA 12.8" in words
    assert f"12.9 ({place})" in words and "13.1 (" in words
    assert f"pip install '{library.package}-cu12==12.8.*', or set UCUTLASS_CUDA_HOME" in words


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda one: one.name)
def test_where_there_is_none_the_package_is_named(
    library: CompilerLibrary, packages: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        library.missing, match=r"found: none; to fix it: pip install 'nvidia-[a-z-]*==13.0"
    ) as caught:
        shared_library.locate(library, nvcc(tmp_path, "13.0.88"))
    assert caught.value.fix == f"pip install '{library.package}==13.0.*'"


def test_a_library_that_does_not_load_is_passed_over(packages: Path, tmp_path: Path) -> None:
    def refuse(place: str) -> CudaVersion:
        if "broken" in place:
            raise OSError("invalid ELF header")
        return ask(place)

    library = replace(nvrtc.LIBRARY, ask=refuse)
    lay(packages / "broken/lib", library, "13.0")
    good = lay(packages / "cu13/lib", library, "13.0")
    assert shared_library.locate(library, nvcc(tmp_path, "13.0.88")) == str(good)
    good.unlink()
    shared_library.locate.cache_clear()
    with pytest.raises(ToolchainError, match="does not load, invalid ELF header"):
        shared_library.locate(library, nvcc(tmp_path, "13.0.88"))

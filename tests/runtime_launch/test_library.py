"""Loading built kernels, and building the native launcher or announcing that there is none."""

from __future__ import annotations

import shutil
import subprocess
import warnings
from pathlib import Path

import pytest
import torch

from ucutlass.runtime import library
from ucutlass.runtime.launch import BoundKernel, Launcher
from ucutlass.runtime.library import (
    NativeLauncherWarning,
    NativeUnbuildable,
    NoNative,
    compile_native,
    load_entry,
)

from .specs import SCALE_ADD


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(
        library.LibraryMissing, match=r"there is no library .*; to fix it: build the kernel again"
    ):
        load_entry(tmp_path / "gone.so", "entry")


@pytest.mark.parametrize("content", [b"not a library at all" * 100, b"\x7fELF\x01" + bytes(400), b""])
def test_foreign_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "kernel.so"
    path.write_bytes(content)
    with pytest.raises(library.LibraryForeign, match=r"build the kernel again on this machine"):
        load_entry(path, "entry")


def test_missing_entry(kernels: Path) -> None:
    with pytest.raises(library.EntryMissing, match=r"has no entry 'no_such_entry'"):
        load_entry(kernels, "no_such_entry")


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("libcuda.so.1: cannot open shared object file: No such file or directory", library.DriverMissing),
        (
            "libcudart.so.13: cannot open shared object file: No such file or directory",
            library.DependencyMissing,
        ),
        ("/k.so: undefined symbol: frobnicate", library.DependencyMissing),
        ("/k.so: cannot open shared object file: Permission denied", library.LibraryMissing),
    ],
)
def test_words_of_the_loader(words: str, kind: type) -> None:
    assert type(library._load_error(Path("/k.so"), words)) is kind


def test_driver_missing_for_real(tmp_path: Path) -> None:
    """A library that needs a libcuda.so.1 which is nowhere to be found."""
    compiler = shutil.which("cc")
    if compiler is None or Path("/usr/lib/x86_64-linux-gnu/libcuda.so.1").exists():
        pytest.skip("no C compiler, or a driver is installed")
    stub, kernel = tmp_path / "stub" / "libcuda.so.1", tmp_path / "kernel.so"
    stub.parent.mkdir()
    empty = tmp_path / "empty.c"
    empty.write_text("int cuInit(unsigned f) { return (int)f; }\n")
    subprocess.run([compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", stub, empty], check=True)
    user = tmp_path / "user.c"
    user.write_text("int cuInit(unsigned); int entry(void) { return cuInit(0); }\n")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", kernel, user, stub], check=True)
    stub.unlink()
    with pytest.raises(library.DriverMissing, match=r"install the NVIDIA driver"):
        load_entry(kernel, "entry")


def test_native_launcher_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = compile_native(tmp_path)
    monkeypatch.setattr(library, "_compiler", lambda: pytest.fail("compiled again"))
    assert compile_native(tmp_path) == path
    left = {p.name for p in tmp_path.iterdir()}
    assert left == {path.name, path.with_suffix(".sha256").name}, "nothing else is left behind"


def test_a_native_launcher_that_was_changed_is_compiled_again(tmp_path: Path) -> None:
    path = compile_native(tmp_path)
    before = path.read_bytes()
    path.write_bytes(bytes(len(before)))
    assert compile_native(tmp_path) == path and path.read_bytes() == before


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NativeUnbuildable, match=r"needs a C compiler.*to fix it: apt-get install gcc"):
        compile_native(tmp_path / "cache")


def test_compiler_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'launcher.c:1: error: no such dialect' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(
        NativeUnbuildable, match=r"refused the native launcher: launcher.c:1: error: no such dialect"
    ):
        compile_native(tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*")), "a failed build leaves nothing"


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NativeUnbuildable, match=r"is not a folder.*UCUTLASS_CACHE_DIR"):
        compile_native(tmp_path / "file" / "cache")


def test_fallback_is_announced_once_and_launches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: Path
) -> None:
    monkeypatch.setenv("UCUTLASS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    library.native.cache_clear()
    try:
        entry = load_entry(kernels, "scale_add")
        with pytest.warns(NativeLauncherWarning, match=r"through ctypes.*needs a C compiler"):
            kernel = Launcher(SCALE_ADD, lambda _: BoundKernel(entry.address, (), 0, entry))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert isinstance(library.native(), NoNative)
            assert Launcher(SCALE_ADD, lambda _: BoundKernel(entry.address, (), 0, entry)).route == "python"
        assert kernel.route == "python"
        assert kernel(torch.ones(2, 2), 2.0, torch.ones(2)).sum() == 12
    finally:
        library.native.cache_clear()


def test_old_torch_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.Tensor, "__dlpack_c_exchange_api__")
    library.native.cache_clear()
    try:
        with pytest.warns(NativeLauncherWarning, match=r"no DLPack exchange table"):
            assert isinstance(library.native(), NoNative)
    finally:
        library.native.cache_clear()

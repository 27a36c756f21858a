"""Loads built kernels, and the native launcher that calls them.

The native launcher (native/launcher.c) is compiled once a machine into the user's cache folder. It
needs a C compiler and nothing else: no Python headers, no torch headers. Where it cannot be built,
launches go through ctypes, which costs microseconds more a call; that is announced once.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ucutlass.files import write_all
from ucutlass.runtime import folders, process, switches
from ucutlass.runtime.errors import MachineError

# --- built kernels ---------------------------------------------------------------


class LibraryMissing(MachineError):
    """The file is not there, or cannot be read."""


class LibraryForeign(MachineError):
    """The file is no shared library of this machine's architecture, or is cut short."""


class DriverMissing(MachineError):
    """The library needs the NVIDIA driver (libcuda.so.1), which is not installed."""


class DependencyMissing(MachineError):
    """The loader found the library but not something that it needs."""


class EntryMissing(MachineError):
    """The library has no symbol of the entry's name."""


@dataclass(frozen=True, slots=True)
class KernelEntry:
    """A kernel's entry in a loaded library: its address is good as long as the process lives."""

    address: int
    library: ctypes.CDLL


def load_entry(path: Path, symbol: str) -> KernelEntry:
    """Loads a built kernel's library, once a process and file, and looks its entry up.

    Raises LibraryMissing, LibraryForeign, DriverMissing, DependencyMissing, EntryMissing.
    """
    if not path.is_file():
        raise LibraryMissing(f"there is no library {path}", "build the kernel again: `ucc build`")
    try:
        # Local: two kernels' weak template symbols must not be merged.
        library = ctypes.CDLL(str(path.resolve()), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        raise _load_error(path, str(error)) from error
    try:
        function = getattr(library, symbol)
    except AttributeError as error:
        raise EntryMissing(
            f"{path} has no entry {symbol!r}",
            "remove it and build the kernel again: it is another kernel's, or older",
        ) from error
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return KernelEntry(address, library)


_FOREIGN = (
    "invalid ELF header",
    "wrong ELF class",
    "file too short",
    "cannot open shared object file: Exec format",
)


def _load_error(path: Path, words: str) -> MachineError:
    """Returns the loader's words (glibc's dlerror) as one class a cause."""
    if "libcuda.so" in words:
        return DriverMissing(
            f"{path.name} needs the NVIDIA driver, and libcuda.so.1 is not installed",
            "install the NVIDIA driver, or run on a machine with an NVIDIA GPU",
        )
    if any(sign in words for sign in _FOREIGN):
        return LibraryForeign(
            f"{path} is no shared library for {platform.machine()}: {words}",
            "remove it and build the kernel again on this machine",
        )
    if "Permission denied" in words:
        return LibraryMissing(f"{path} cannot be read: {words}", "give yourself read permission on it")
    return DependencyMissing(
        f"{path.name} cannot be loaded: {words}", "install what the loader names, or build again"
    )


# --- the native launcher ---------------------------------------------------------


class NativeLauncherWarning(UserWarning):
    """Kernels are launched through ctypes: right, but with more host time a call."""


@dataclass(frozen=True, slots=True)
class Native:
    """The native launcher's two functions (native/launcher.c)."""

    new: Callable[[tuple[Any, ...]], Callable[..., Any]]
    remember: Callable[[object, tuple[Any, ...], object, tuple[Any, ...]], int]


@dataclass(frozen=True, slots=True)
class NoNative:
    """Why there is no native launcher here."""

    reason: str


_SOURCES = ("launcher.c", "abi.h")
_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra")
_COMPILERS = ("cc", "gcc", "clang")
_TIMEOUT_SECONDS = 120


@functools.cache
def native() -> Native | NoNative:
    """Returns the native launcher, built if this machine has none yet; tried once a process.

    Where it cannot be had, warns once (NativeLauncherWarning) and says why.
    """
    import torch  # here: to load a library needs none of it, and it takes a second

    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        launcher: Native | NoNative = NoNative(f"torch {torch.__version__} has no DLPack exchange table")
    else:
        try:
            launcher = load_native(compile_native(switches.read().cache_dir / "native"))
        except MachineError as error:
            launcher = NoNative(str(error))
    if isinstance(launcher, NoNative):
        warnings.warn(
            f"kernels are launched through ctypes, at some microseconds more a call: {launcher.reason}",
            NativeLauncherWarning,
            stacklevel=2,
        )
    return launcher


class NativeUnbuildable(MachineError):
    """The native launcher could not be compiled or stored."""


def compile_native(folder: Path) -> Path:
    """Returns the native launcher's library in `folder`, compiled if it is not there: one file a content
    of the sources, flags and platform, put in place whole. Raises NativeUnbuildable."""
    here = Path(__file__).resolve().parent / "native"
    texts = [(here / name).read_bytes() for name in _SOURCES]
    identity = "\0".join((*_FLAGS, platform.machine(), *platform.libc_ver())).encode()
    target = folder / f"{hashlib.sha256(b''.join([identity, *texts])).hexdigest()[:32]}.so"
    for place in (folder.parent, folder):
        folders.check(place, switches.CACHE_DIR, NativeUnbuildable, NativeUnbuildable)
    seal = target.with_suffix(".sha256")
    if _as_sealed(target, seal):
        return target
    compiler = _compiler()
    try:
        folders.make(folder)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".building-") as scratch:
            built = Path(scratch) / target.name
            _compile([compiler, *_FLAGS, "-o", str(built), str(here / "launcher.c")])
            write_all({target: built, seal: hashlib.sha256(built.read_bytes()).hexdigest()})
    except OSError as error:
        raise NativeUnbuildable(
            f"the native launcher cannot be stored: {error}",
            f"make room in {folder}, or point {switches.CACHE_DIR} at a folder that can be written",
        ) from error
    return target


def _as_sealed(library: Path, seal: Path) -> bool:
    """Returns whether a launcher is there and is what was compiled."""
    try:
        return hashlib.sha256(library.read_bytes()).hexdigest() == seal.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return False


def _compiler() -> str:
    for name in _COMPILERS:
        if path := shutil.which(name):
            return path
    raise NativeUnbuildable(
        f"the native launcher needs a C compiler, and none of {', '.join(_COMPILERS)} is on PATH",
        "apt-get install gcc (or the like of your distribution)",
    )


def _compile(command: list[str]) -> None:
    try:
        done = process.output(command, _TIMEOUT_SECONDS)
    except TimeoutError as error:
        raise NativeUnbuildable(
            f"{command[0]} took over {_TIMEOUT_SECONDS} s for the native launcher",
            "run again on a less busy machine",
        ) from error
    if done.status != 0:
        words = next((line for line in done.err.splitlines() if "error" in line), done.err[-500:])
        raise NativeUnbuildable(
            f"{command[0]} refused the native launcher: {words}", "install a newer gcc or clang"
        )


def load_native(path: Path) -> Native:
    """Raises LibraryForeign and the like where the file cannot be loaded."""
    try:
        library = ctypes.PyDLL(str(path))
    except OSError as error:
        raise _load_error(path, str(error)) from error
    new, remember = library.ucutlass_launcher_new, library.ucutlass_launcher_remember
    new.argtypes, new.restype = [ctypes.py_object], ctypes.py_object
    remember.argtypes, remember.restype = [ctypes.py_object] * 4, ctypes.c_int
    return Native(new, remember)

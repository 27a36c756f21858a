"""Runs nvcc on one emitted file: its flags, a command that a reader can repeat, and its errors."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from ucutlass.files import put
from ucutlass.runtime import build_timings, process, ptxas
from ucutlass.runtime.errors import (
    ArchUnknown,
    BuildError,
    CacheFull,
    CompilerTooOld,
    HostCompilerUnsupported,
    MachineError,
    OutOfMemory,
)
from ucutlass.runtime.switches import BUILD_JOBS, CACHE_DIR
from ucutlass.runtime.toolchain import INSTALL_CUDA, Toolchain, version_tuple

if TYPE_CHECKING:
    from ucutlass.emit.text import Source

SOURCE = "source.cu"
LIBRARY = "kernel.so"
LOG = "build.log"
OBJECT = "kernel.o"
PTX = "kernel.ptx"
_SCRATCH = "tmp"
_PHASES = f"{_SCRATCH}/phases.csv"

_FREE_BYTES = 16 * 2**20
"""What a disk must have left where a compiler failed, whose own files may be gone by then, to be free of blame for it."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """`seconds` of wall time, what ptxas said, and nvcc's own account of its phases, () if it gave none."""

    seconds: float
    report: ptxas.PtxasReport
    phases: build_timings.Phases = ()


@dataclass(frozen=True, slots=True)
class CompileTarget:
    """`gencode` is nvcc's; `oldest` the first nvcc that takes it."""

    gencode: str
    oldest: tuple[int, int]


TARGETS: Mapping[str, CompileTarget] = {
    # One front-end pass, then one quick ptxas pass a chip; the PTX serves chips still to come.
    "sm_80": CompileTarget("arch=compute_80,code=[sm_80,sm_86,sm_89,sm_90,compute_80]", (12, 3)),
    "sm_89": CompileTarget("arch=compute_89,code=[sm_89,sm_90,compute_89]", (12, 3)),
    "sm_90a": CompileTarget("arch=compute_90a,code=sm_90a", (12, 3)),
}
"""Architecture of a Source to what is generated for it."""

LANGUAGE = ("-std=c++17", "-O3", "-DNDEBUG", "--expt-relaxed-constexpr")
"""Flags that every pass over a kernel's code takes."""

# A library that holds CUTLASS templates of another version may be loaded already (PyTorch's
# is): bind every symbol to this library's own, and keep inline variables out of the
# process-wide table of unique symbols.
HOST = "-Xcompiler=-fPIC,-fno-gnu-unique,-Wno-psabi"
OWN_SYMBOLS = "-Xlinker=-Bsymbolic"

_FLAGS = (*LANGUAGE, "-shared", HOST, OWN_SYMBOLS, "-Xptxas=-v")

_STRIPPED = (
    "NVCC_APPEND_FLAGS",
    "NVCC_PREPEND_FLAGS",
    "NVCC_CCBIN",
    "CPATH",
    "C_INCLUDE_PATH",
    "CPLUS_INCLUDE_PATH",
    "LIBRARY_PATH",
    "GCC_EXEC_PREFIX",
    "COMPILER_PATH",
)
"""Variables that would change what is built without being in its key."""

CUTLASS_FOLDER = (
    'CUTLASS=$(python3 -c "import importlib.util as u; '
    "print(u.find_spec('cutlass_library').submodule_search_locations[0])\")/source"
)
"""Shell line that sets the variable which `command_line` uses."""


def flags(arch: str, nvcc_version: str) -> tuple[str, ...]:
    """Returns flags that decide what is built, none of them a path. Raises ArchUnknown, CompilerTooOld."""
    target = TARGETS.get(arch)
    if target is None:
        raise ArchUnknown(arch, tuple(TARGETS))
    if version_tuple(nvcc_version)[:2] < target.oldest:
        oldest = ".".join(map(str, target.oldest))
        raise CompilerTooOld(f"{arch} needs nvcc {oldest} or newer, found {nvcc_version}", INSTALL_CUDA)
    return (*_FLAGS, f"-gencode={target.gencode}")


def command_line(arch: str, source: str, library: str) -> str:
    """Returns the build as one shell line for a person, with `$CUTLASS` for the headers' folder (see
    CUTLASS_FOLDER). Raises ArchUnknown."""
    if arch not in TARGETS:
        raise ArchUnknown(arch, tuple(TARGETS))
    options = shlex.join([*_FLAGS, f"-gencode={TARGETS[arch].gencode}"])
    headers = '-I"$CUTLASS/include" -I"$CUTLASS/tools/util/include"'
    return f"nvcc {options} {headers} -o {shlex.quote(library)} {shlex.quote(source)}"


def compile_source(
    source: Source,
    toolchain: Toolchain,
    folder: Path,
    keep: Callable[[], Path],
    cancel: Event | None,
    limit_seconds: float,
    *,
    parts: bool = False,
) -> Compiled:
    """Writes source, log and library into `folder`, with `parts` also the object and the PTX that the library
    is made of, as far as the compiler left them.

    `keep` moves the folder to where refused builds are kept. Raises BuildError, BuildTimedOut,
    BuildCancelled, MachineError, OSError (the folder cannot be written).
    """
    put(folder / SOURCE, source.text)
    return _compile(source.entry, source.arch, toolchain, folder, keep, cancel, limit_seconds, parts)


def compile_unit(
    sources: Sequence[Source],
    toolchain: Toolchain,
    folder: Path,
    keep: Callable[[], Path],
    cancel: Event | None,
    limit_seconds: float,
) -> Compiled:
    """Compiles several sources of one architecture and one `preamble` as one translation unit: the library
    has every entry. Otherwise as `compile_source`; what is refused is reported of them all."""
    for source in sources:
        put(folder / f"{source.entry}.cu", source.text)
    put(folder / SOURCE, "".join(f'#include "{source.entry}.cu"\n' for source in sources))
    entries = ", ".join(source.entry for source in sources)
    return _compile(entries, sources[0].arch, toolchain, folder, keep, cancel, limit_seconds)


def _compile(
    entry: str,
    arch: str,
    toolchain: Toolchain,
    folder: Path,
    keep: Callable[[], Path],
    cancel: Event | None,
    limit_seconds: float,
    parts: bool = False,
) -> Compiled:
    scratch = folder / _SCRATCH
    scratch.mkdir()
    start = time.monotonic()
    ended = process.run(
        _command(arch, toolchain),
        folder=folder,
        env=environment(scratch),
        log=folder / LOG,
        limit_seconds=limit_seconds,
        cancel=cancel,
    )
    seconds = round(time.monotonic() - start, 3)
    phases = _phases(folder / _PHASES)
    if ended != 0:
        require_room(folder)
    if parts:
        _keep_parts(scratch, folder)
    shutil.rmtree(scratch)
    status = process.exit_status(entry, ended, limit_seconds)
    log = (folder / LOG).read_text(encoding="utf-8", errors="replace")
    if status != 0 or not (folder / LIBRARY).is_file():
        raise refusal(entry, status, log, keep, command_line(arch, SOURCE, LIBRARY))
    return Compiled(seconds, ptxas.parse(log), phases)


def _keep_parts(scratch: Path, folder: Path) -> None:
    """Copies the object and the PTX of every target, which are among nvcc's temporary files."""
    stem = Path(SOURCE).stem
    if (compiled := scratch / f"{stem}.o").is_file():
        shutil.copyfile(compiled, folder / OBJECT)
    texts = [file.read_bytes() for file in sorted(scratch.glob(f"{stem}*.ptx"))]
    if texts:
        put(folder / PTX, b"".join(texts))


def _phases(table: Path) -> build_timings.Phases:
    """A table that is missing or unreadable costs the account, never the build."""
    try:
        return build_timings.nvcc_phases(table.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ()


def _command(arch: str, toolchain: Toolchain) -> list[str]:
    """File names are relative, so that no folder's name gets into the library; temporary files are
    kept, for else nvcc names them, and with them symbols, after its process."""
    home = toolchain.cutlass.home
    return [
        str(toolchain.nvcc.path),
        *flags(arch, toolchain.nvcc.version),
        f"-ccbin={toolchain.host.path}",
        f"-I{home / 'include'}",
        f"-I{home / 'tools/util/include'}",
        *(f"-L{folder}" for folder in toolchain.nvcc.library_folders),
        "-keep",
        f"-keep-dir={_SCRATCH}",
        f"--time={_PHASES}",
        "-o",
        LIBRARY,
        SOURCE,
    ]


def environment(scratch: Path) -> dict[str, str]:
    """Returns a compiler's variables: the caller's, less what would change the build; temporary files go
    where they are swept."""
    inherited = {name: value for name, value in os.environ.items() if name not in _STRIPPED}
    return {**inherited, "LC_ALL": "C", "TMPDIR": str(scratch)}


# --- refusals --------------------------------------------------------------------

_FEWER_JOBS = f"set {BUILD_JOBS}=1 (one compiler takes up to 4 GB)"

_MACHINE_FAULTS: tuple[tuple[re.Pattern[str], type[MachineError], str], ...] = (
    (
        re.compile(r"No space left on device|Disk quota exceeded"),
        CacheFull,
        f"ucc cache clear, or set {CACHE_DIR} to a folder with room",
    ),
    (
        re.compile(r"unsupported GNU version.*"),
        HostCompilerUnsupported,
        "put a g++ that this nvcc supports first on PATH",
    ),
    (
        re.compile(r"died due to signal 9.*|Killed signal.*|std::bad_alloc|virtual memory exhausted.*"),
        OutOfMemory,
        _FEWER_JOBS,
    ),
)
"""Words in a compiler's output by which the machine is at fault, not the source."""

_ERROR = re.compile(r"\berror\b|\bfatal\b|undefined reference|No such file", re.IGNORECASE)
_SHOWN = 5
_WIDTH = 300


def require_room(folder: Path) -> None:
    """Raises OSError where the disk of a compiler that failed is full: what it said of that found no room there either, and
    those that started it say something else."""
    room = folder / "room"
    try:
        with room.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, _FREE_BYTES)
    finally:
        room.unlink(missing_ok=True)


def refusal(
    entry: str,
    status: int,
    log: str,
    keep: Callable[[], Path],
    command: str,
    compiler: str = "nvcc",
    source: str = SOURCE,
) -> BuildError | MachineError:
    """Returns what a compiler's failure is, by its status and words; `command` repeats it beside
    `source`."""
    for pattern, fault, fix in _MACHINE_FAULTS:
        if m := pattern.search(log):
            return fault(f"compiling {entry} failed: {m[0].strip()}", fix)
    if status == -signal.SIGKILL:
        return OutOfMemory(f"compiling {entry} failed: {compiler} was killed", _FEWER_JOBS)
    kept_folder = keep()
    return BuildError(
        entry, first_errors(log, status, compiler), kept_folder / source, kept_folder / LOG, command
    )


def first_errors(log: str, status: int, compiler: str = "nvcc") -> tuple[str, ...]:
    """Returns the lines that say what was wrong, the first few; the last ones where none does."""
    lines = [line.strip()[:_WIDTH] for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.search(line)]
    if status == 0:
        return (f"{compiler} ended with status 0 but wrote no library",)
    silent = f"{compiler} ended with status {status} and said nothing"
    return tuple(errors[:_SHOWN] or lines[-_SHOWN:] or [silent])

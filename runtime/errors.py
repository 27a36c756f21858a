"""Defines the errors of building, caching, isolating and keeping evidence, one class for each mistake.

`MachineError` and below: the machine is at fault (exit status 3 of `ucc`); each names the one act
that fixes it. `BuildError`: nvcc refused a source. `SwitchError`: the caller's environment holds
a value that cannot be read (exit status 2).
"""

from __future__ import annotations

from pathlib import Path


class SwitchError(Exception):
    """An environment switch holds a value that cannot be read.

    `accepts` says what the switch takes, with an example.
    """

    def __init__(self, name: str, value: str, accepts: str) -> None:
        super().__init__(name, value, accepts)
        self.name = name
        self.value = value
        self.accepts = accepts

    def __str__(self) -> str:
        return f"environment variable {self.name} is {self.value!r}, but it takes {self.accepts}"


class FixableError(Exception):
    """`what` happened; `fix` is one act that helps."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what, fix)
        self.what = what
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.what}; to fix it: {self.fix}"


class MachineError(FixableError):
    """This machine cannot do what was asked."""


class FolderUnusable(MachineError):
    """A file stands where a folder is needed."""


class FolderUntrusted(MachineError):
    """Another user may write a folder whose content would be run or believed."""


# --- tool chain ------------------------------------------------------------------


class ToolchainError(MachineError):
    """The tool chain is missing, too old or broken."""


class CompilerMissing(ToolchainError):
    """No nvcc anywhere that was looked."""


class CompilerIncomplete(ToolchainError):
    """nvcc is there, but parts that it needs are not."""


class CompilerUnusable(ToolchainError):
    """nvcc is there, but it does not run or does not say its version."""


class PathUnusable(ToolchainError):
    """A part of the tool chain lies at a path that nvcc's own shell would read as more than a name."""


class CompilerTooOld(ToolchainError):
    """nvcc runs, but it is older than the architecture or CUTLASS needs."""


class HostCompilerMissing(ToolchainError):
    """No g++ for nvcc's host pass."""


class HostCompilerUnsupported(ToolchainError):
    """nvcc refuses this version of the host compiler."""


class BuiltInPartsAlone(ToolchainError):
    """A kernel is built of parts by NVRTC alone, and plain builds were asked for or NVRTC is missing."""


class HeadersMissing(ToolchainError):
    """The CUTLASS headers are not installed, or not complete."""


class OutOfMemory(ToolchainError):
    """The kernel ended a compiler process for want of memory."""


# --- cache -----------------------------------------------------------------------


class CacheError(MachineError):
    """The cache folder cannot be used as asked."""


class CacheReadOnly(CacheError):
    """The cache folder cannot be written; entries already in it are still served."""


class CacheFull(CacheError):
    """No space, or no quota, left under the cache folder."""


class CacheUnusable(CacheError):
    """The cache folder cannot be used for another reason; `what` holds the system's words."""


class CacheUntrusted(CacheError):
    """Another user may write the cache folder, so what lies there is not run."""


class LockTimeout(CacheError):
    """Another process holds an entry's lock for longer than the caller would wait."""


# --- evidence --------------------------------------------------------------------


class StoreError(MachineError):
    """The evidence store cannot be used as asked."""


class StoreReadOnly(StoreError):
    """The store's folder cannot be written; records already in it are still read where they can be."""


class StoreFull(StoreError):
    """No space, or no quota, left for the store."""


class StoreBusy(StoreError):
    """Other processes hold the store for longer than the caller would wait."""


class StoreNewer(StoreError):
    """A newer version of this package wrote the store."""


class StoreForeign(StoreError):
    """The file is a database of something else; it is left alone."""


class StoreUntrusted(StoreError):
    """Another user may write the store or its folder, so what lies there is not believed."""


class StoreUnusable(StoreError):
    """The store cannot be used for another reason; `what` holds the system's words."""


# --- build -----------------------------------------------------------------------


class ArchUnknown(Exception):
    """An emitted source asks for an architecture that no build recipe knows."""

    def __init__(self, arch: str, archs: tuple[str, ...]) -> None:
        super().__init__(arch, archs)
        self.arch = arch
        self.archs = archs

    def __str__(self) -> str:
        listing = ", ".join(self.archs)
        return f"no build recipe for architecture {self.arch!r}; there are recipes for {listing}"


class BuildError(Exception):
    """The compiler refused a source that passed every rule: a defect of the emitter or a rule.

    `errors`: the compiler's first error lines. `source`, `log`: where the source and everything
    the compiler said are kept. `command`: what to run beside the source to see it again.
    `program`: where the program's own line is, put first; the builder knows no programs, so it
    is None until the caller re-raises `about(..)`.
    """

    def __init__(
        self,
        entry: str,
        errors: tuple[str, ...],
        source: Path,
        log: Path,
        command: str,
        program: str | None = None,
    ) -> None:
        super().__init__(entry, errors, source, log, command, program)
        self.entry = entry
        self.errors = errors
        self.source = source
        self.log = log
        self.command = command
        self.program = program

    def about(self, program: str) -> BuildError:
        """Returns the same error with the program's own line (already rendered) shown first."""
        return BuildError(self.entry, self.errors, self.source, self.log, self.command, program)

    def __str__(self) -> str:
        lines = [] if self.program is None else [self.program]
        lines.append(f"the compiler refused the emitted source of {self.entry}:")
        lines += [f"  {line}" for line in self.errors]
        lines.append(f"  source kept: {self.source}")
        lines.append(f"  full output: {self.log}")
        lines.append(f"  command:     {self.command}")
        return "\n".join(lines)


class BuildTimedOut(Exception):
    """A compiler ran past its time limit and was ended; nothing was cached."""

    def __init__(self, entry: str, limit_seconds: float) -> None:
        super().__init__(entry, limit_seconds)
        self.entry = entry
        self.limit_seconds = limit_seconds

    def __str__(self) -> str:
        return (
            f"compiling {self.entry} took longer than {self.limit_seconds:g} s and was ended; "
            "choose a smaller tile, or raise the limit"
        )


class BuildCancelled(Exception):
    """The caller cancelled; compilers were ended, nothing was cached."""

    def __init__(self, entry: str) -> None:
        super().__init__(entry)
        self.entry = entry

    def __str__(self) -> str:
        return f"building {self.entry} was cancelled"

"""Parses what ptxas reports of a kernel: resource usage (`-Xptxas -v`) and performance warnings.

Text formats as of ptxas 13.0. Codes C7502 to C7518 come as "ptxas info" with the words "Potential
Performance Loss": C7509 to C7518 say that wgmma is serialised, C7508 and its neighbours that
setmaxnreg is ignored (NVIDIA/cutlass issues 1840 and 3406 show both).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

PtxasCode: TypeAlias = Literal["spill", "stack", "wgmma-serialised", "setmaxnreg-ignored", "ptxas"]


@dataclass(frozen=True, slots=True)
class KernelResources:
    """Resources of one kernel on one architecture. Registers per thread; the rest in bytes, stack
    and spills per thread, shared memory per thread block (static only: CUTLASS's is dynamic)."""

    kernel: str
    arch: str
    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    shared: int
    barriers: int


@dataclass(frozen=True, slots=True)
class PtxasWarning:
    """One thing that ptxas reports against a kernel, and what would fix it.

    `code`: `spill`, `stack`, `wgmma-serialised`, `setmaxnreg-ignored`, or `ptxas` for any other
    warning. `kernel` is the mangled name, empty where ptxas names none.
    """

    code: PtxasCode
    kernel: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class PtxasReport:
    usage: tuple[KernelResources, ...] = ()
    findings: tuple[PtxasWarning, ...] = ()

    def of(self, entry: str) -> PtxasReport:
        """Returns the part that names a kernel of this entry, which is in its mangled name, or none at
        all."""
        return PtxasReport(
            tuple(u for u in self.usage if entry in u.kernel),
            tuple(f for f in self.findings if entry in f.kernel or not f.kernel),
        )

    def to_json(self) -> dict[str, Any]:
        return {"usage": [asdict(u) for u in self.usage], "findings": [asdict(f) for f in self.findings]}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> PtxasReport:
        """Raises KeyError or TypeError where `data` is not what to_json wrote."""
        return PtxasReport(
            tuple(KernelResources(**u) for u in data["usage"]),
            tuple(PtxasWarning(**f) for f in data["findings"]),
        )


_COMPILING = re.compile(r"Compiling entry function '([^']+)' for '([^']+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_BARRIERS = re.compile(r"used (\d+) barriers")
_SHARED = re.compile(r"(\d+) bytes smem")
_LOSS = re.compile(r"\(C(\d+)\)\s*(Potential Performance Loss.*)")
_WARNING = re.compile(r"^ptxas\b.*\bwarning\s*:\s*(.*)")
_IN_FUNCTION = re.compile(r"function '([^']+)'")

_HINTS: Mapping[PtxasCode, str] = {
    "spill": "choose a smaller tile, or two consumer warp groups (warps cooperative)",
    "stack": "an array is indexed by a value unknown at compile time; simplify the epilogue",
    "wgmma-serialised": "each multiply waits for the last; choose a smaller tile or fewer epilogue operands",
    "setmaxnreg-ignored": "warp groups keep equal registers; bound the launch to one block per SM",
    "ptxas": "see the build's log",
}


def parse(log: str) -> PtxasReport:
    """Returns everything that ptxas said in a compiler's output; lines of other programs are ignored."""
    usage = tuple(_usage(log))
    spilled = (_spilled(u) for u in usage)
    losses = (_loss(line) for line in log.splitlines())
    warnings = [f for f in (*spilled, *losses) if f is not None]
    return PtxasReport(usage, tuple(dict.fromkeys(warnings)))


def _usage(log: str) -> list[KernelResources]:
    usage: list[KernelResources] = []
    kernel, arch, frame = "", "", (0, 0, 0)
    for line in log.splitlines():
        if m := _COMPILING.search(line):
            kernel, arch, frame = m[1], m[2], (0, 0, 0)
        elif m := _STACK.search(line):
            # A device function's own frame may follow the kernel's; the largest is what runs.
            frame = tuple(max(a, int(b)) for a, b in zip(frame, m.groups(), strict=True))  # type: ignore[assignment]
        elif (m := _USED.search(line)) and kernel:
            shared, barriers = _SHARED.search(line), _BARRIERS.search(line)
            usage.append(
                KernelResources(
                    kernel,
                    arch,
                    int(m[1]),
                    *frame,
                    int(shared[1]) if shared else 0,
                    int(barriers[1]) if barriers else 0,
                )
            )
            kernel = ""
    return usage


def _spilled(u: KernelResources) -> PtxasWarning | None:
    if u.spill_stores or u.spill_loads:
        words = (
            f"{u.registers} registers on {u.arch} do not suffice: each thread spills "
            f"{u.spill_stores} bytes and reloads {u.spill_loads} bytes"
        )
        return PtxasWarning("spill", u.kernel, words, _HINTS["spill"])
    if u.stack > _QUIET_STACK:
        return PtxasWarning(
            "stack", u.kernel, f"each thread keeps {u.stack} bytes on its stack", _HINTS["stack"]
        )
    return None


_QUIET_STACK = 16
"""Bytes of stack that are no finding: CUTLASS's own sm90 GEMM shows 8 (CUTLASS 4.2, nvcc 13.0)."""


def _loss(line: str) -> PtxasWarning | None:
    if not line.startswith("ptxas"):
        return None
    kernel = m[1] if (m := _IN_FUNCTION.search(line)) else ""
    if m := _LOSS.search(line):
        code = _code(m[2])
        return PtxasWarning(code, kernel, f"C{m[1]}: {m[2]}", _HINTS[code])
    if m := _WARNING.search(line):
        return PtxasWarning("ptxas", kernel, m[1], _HINTS["ptxas"])
    return None


def _code(words: str) -> PtxasCode:
    if "wgmma" in words and "serializ" in words:
        return "wgmma-serialised"
    if "setmaxnreg" in words:
        return "setmaxnreg-ignored"
    return "ptxas"

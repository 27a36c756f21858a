"""Reads the machine code of a built library: which instructions it holds, and how wide its accesses are.

`cuobjdump --dump-sass` writes, for each function, `Function : NAME` and lines of
`/*0010*/  @!P0 LDG.E.128 R4, [R2.64] ;  /* 0x... */`. Counts are static: an instruction in a loop
counts once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ucutlass.advice import BuildFacts
from ucutlass.runtime import process
from ucutlass.runtime.ptxas import PtxasReport

WGMMA = frozenset({"HGMMA", "QGMMA", "IGMMA", "BGMMA"})
"""Hopper's warp-group multiplications."""

TENSOR = WGMMA | {"HMMA", "QMMA", "IMMA", "DMMA", "BMMA", "UTCHMMA", "UTCQMMA", "UTCIMMA", "UTCOMMA"}
"""Instructions of the tensor cores."""

GLOBAL = frozenset({"LDG", "STG"})
LOCAL = frozenset({"LDL", "STL"})
TMA = frozenset({"UTMALDG", "UTMASTG", "UTMAREDG", "UBLKCP", "UBLKRED"})


@dataclass(frozen=True, slots=True)
class SassSummary:
    """A function's instructions: how many of each opcode with its modifiers (`LDG.E.128`)."""

    function: str
    opcodes: Mapping[str, int]

    def count(self, *families: str) -> int:
        """Returns instructions of these families, whatever their modifiers."""
        return sum(n for op, n in self.opcodes.items() if op.partition(".")[0] in families)

    @property
    def total(self) -> int:
        return sum(self.opcodes.values())

    def widths(self, family: str) -> Mapping[int, int]:
        """Returns bytes of an access to how many instructions of a family (LDG, STG, LDS, ..)."""
        counts: Counter[int] = Counter()
        for op, n in self.opcodes.items():
            if op.partition(".")[0] == family:
                counts[width(op)] += n
        return dict(counts)


def width(opcode: str) -> int:
    """Returns bytes that a thread moves: by the modifier, 4 where there is none."""
    parts = opcode.split(".")[1:]
    return next((_WIDTHS[p] for p in parts if p in _WIDTHS), 4)


_WIDTHS: Mapping[str, int] = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16, "256": 32}


_FUNCTION = re.compile(r"^\s*Function : (\S+)")
_INSTRUCTION = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+\{?\s*(?:@!?U?P[T\d]+\s+)?([A-Z][A-Z0-9_]*(?:\.[A-Za-z0-9_]+)*)"
)


def parse(text: str) -> tuple[SassSummary, ...]:
    """Returns every function of a dump; one that is there for several architectures counts once for each."""
    functions: list[tuple[str, Counter[str]]] = []
    for line in text.splitlines():
        if m := _FUNCTION.match(line):
            functions.append((m[1], Counter()))
        elif functions and (m := _INSTRUCTION.match(line)):
            functions[-1][1][m[1]] += 1
    return tuple(SassSummary(name, dict(counts)) for name, counts in functions)


def main_kernel(codes: tuple[SassSummary, ...]) -> SassSummary | None:
    """Returns the function that multiplies: most tensor instructions, else most FFMA, else the longest."""
    return max(codes, key=lambda c: (c.count(*TENSOR), c.count("FFMA"), c.total), default=None)


@dataclass(frozen=True, slots=True)
class NoCode:
    """Why there is no disassembly."""

    reason: str


_LIMIT_SECONDS = 120.0


_IMAGE = "kernel.cubin"
"""Beside a library that was built in stages (`ucutlass.runtime.jit.link`), which holds it as data."""


def _code_of(library: Path) -> Path:
    image = library.with_name(_IMAGE)
    return image if image.is_file() else library


def read(library: Path, cuobjdump: Path) -> tuple[SassSummary, ...] | NoCode:
    """Returns the functions of a library. The dump's text is data: it is matched, nothing else."""
    try:
        done = process.output([str(cuobjdump), "--dump-sass", str(_code_of(library))], _LIMIT_SECONDS)
    except OSError as error:
        return NoCode(f"{cuobjdump} does not run: {error}")
    codes = parse(done.out)
    if done.status or not codes:
        words = (done.err or done.out).strip()[:200] or "no function in its output"
        return NoCode(f"cuobjdump ended with status {done.status}: {words}")
    return codes


def build_facts(report: PtxasReport, codes: tuple[SassSummary, ...] | NoCode) -> BuildFacts:
    """Returns what ptxas and the disassembly say, as plain numbers; the disassembly's are unknown without
    one."""
    serialised = tuple(f.message for f in report.findings if f.code == "wgmma-serialised")
    ptxas_facts = BuildFacts(
        registers=max((u.registers for u in report.usage), default=None),
        spill_bytes=max((u.spill_stores + u.spill_loads for u in report.usage), default=None),
        serialised=serialised if report.usage else None,
    )
    main = None if isinstance(codes, NoCode) else main_kernel(codes)
    if main is None:
        return ptxas_facts
    accesses = [main.widths(family) for family in sorted(GLOBAL)]
    return replace(
        ptxas_facts,
        tensor_instructions=main.count(*TENSOR),
        wgmma_instructions=main.count(*WGMMA),
        local_accesses=main.count(*LOCAL),
        global_accesses=sum(n for widths in accesses for n in widths.values()),
        narrow_accesses=sum(n for widths in accesses for size, n in widths.items() if size <= _NARROW),
    )


_NARROW = 8
"""Bytes from which downwards an access is narrow: half of the widest, 16."""

"""Digests of machine code, for `benchmarks.digests`: a few kernels compiled, and the code read from their ELF.

A kernel of parts is built as `ucc build` builds it, by NVRTC and nvJitLink; any other by nvcc for the case's own
architecture alone, which leaves out the host's side. The digest is of the contents of the sections of code and
constants, whatever their names are, with each kernel's registers.
"""

from __future__ import annotations

import hashlib
import json
import struct
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.digest_cases import Case, emitted, plan
from ucutlass import files
from ucutlass.backend import build_artifact, toolchain
from ucutlass.emit import emit
from ucutlass.emit.text import Source
from ucutlass.runtime import process
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.errors import BuildError
from ucutlass.runtime.jit.link import IMAGE
from ucutlass.runtime.nvcc import LANGUAGE, SOURCE, environment

LIMIT_SECONDS = 600.0

SHARES: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "gemm": {"in parts": 10, "gemv": 6, "multistage": 5, "pingpong": 1, "cooperative": 1},
        "grouped GEMM": {"direct": 5, "pingpong": 2, "cooperative": 2},
        "convolution": {"direct": 6, "cooperative": 3, "multistage": 3},
        "attention": {"plain": 6, "split": 2},
        "reduction": {"registers": 9, "reread": 7},
    }
)
"""Of 68 kernels, so many of each family's kinds: fewer of those that CUTLASS's templates take long for."""

HOPPER = ("pingpong", "cooperative")
"""The kinds that multiply by wgmma."""


def spread(rows: Sequence[Mapping[str, Any]], count: int) -> list[str]:
    """The keys of some rows of each kind in SHARES, in proportion, of texts that differ; the order by digest, so
    that what is taken is neither the first nor the simplest."""
    total = sum(sum(kinds.values()) for kinds in SHARES.values())
    keys: list[str] = []
    for family, kinds in SHARES.items():
        mine = [row for row in rows if row["family"] == family and row.get("schedule") is not None]
        for kind, share in kinds.items():
            of_kind = [row for row in mine if _is_kind(row["kernel_kind"], kind)]
            keys += _varied(of_kind, max(1, round(share * count / total)))
    return keys


def _is_kind(kernel_kind: str, kind: str) -> bool:
    """Kernels of parts are a kind of their own; f32 by wgmma has no other way to be built."""
    words = kernel_kind.split()
    if kind == "in parts":
        return words[-2:] == ["in", "parts"]
    return words[0] == kind and words[-2:] != ["in", "parts"] and not (kind in HOPPER and "tf32x3" in words)


def _varied(rows: Sequence[Mapping[str, Any]], count: int) -> list[str]:
    """So many rows, round by round one of each finer kind and architecture."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    texts: set[str] = set()
    for row in sorted(rows, key=lambda row: hashlib.sha256(row["key"].encode()).hexdigest()):
        if row["text_digest"] not in texts:
            texts.add(row["text_digest"])
            groups.setdefault((row["kernel_kind"], row["arch"]), []).append(row)
    order = sorted(groups, key=lambda name: hashlib.sha256(repr(name).encode()).hexdigest())
    rounds = max(map(len, groups.values()), default=0)
    taken = [groups[name][at]["key"] for at in range(rounds) for name in order if at < len(groups[name])]
    return taken[:count]


# --- compiling --------------------------------------------------------------------


def compiled(cases: Mapping[str, Case], processes: int) -> dict[str, dict[str, Any]]:
    """By key: `sass_digest`, and `sass` with the bytes of code and the registers of each kernel."""
    with tempfile.TemporaryDirectory(prefix="digests-") as folder:
        places = [Path(folder) / str(number) for number in range(len(cases))]
        with ThreadPoolExecutor(processes) as pool:
            rows = pool.map(_compiled, cases.values(), places)
            return dict(zip(cases, rows, strict=True))


class NotBuilt(Exception):
    """A compiler refuses a kernel; the message is what it said."""


def _compiled(case: Case, folder: Path) -> dict[str, Any]:
    planned = plan(case)
    assert planned is not None
    folder.mkdir()
    try:
        if case.in_parts:
            artifact = build_artifact(emit(planned.plan, ""), planned.plan, "nvrtc", Cache(folder, 2**33))
            return _digest((artifact.folder / IMAGE).read_bytes())
        source, (code,) = emitted(case, planned)
        return _digest(_by_nvcc(source, code, folder))
    except (BuildError, NotBuilt) as refused:
        return {"sass_digest": "not built", "sass": {"words": str(refused)[-1000:]}}


def _by_nvcc(source: Source, code: str, folder: Path) -> bytes:
    """The entry, named by a digest of the code, gets the same name in all kernels."""
    chain = toolchain()
    text = code.replace(source.entry, f"ucc_{'0' * 16}")
    files.put(folder / SOURCE, text)
    scratch = folder / "tmp"
    scratch.mkdir()
    home = chain.cutlass.home
    command = [
        str(chain.nvcc.path),
        *LANGUAGE,
        "-cubin",
        f"-arch={source.arch}",
        f"-ccbin={chain.host.path}",
        f"-I{home / 'include'}",
        f"-I{home / 'tools/util/include'}",
        "-o",
        IMAGE,
        SOURCE,
    ]
    log = folder / "log"
    ended = process.run(
        command, folder=folder, env=environment(scratch), log=log, limit_seconds=LIMIT_SECONDS, cancel=None
    )
    if process.exit_status(source.entry, ended, LIMIT_SECONDS) != 0:
        raise NotBuilt(log.read_text(encoding="utf-8", errors="replace")[-1000:])
    return (folder / IMAGE).read_bytes()


# --- ELF --------------------------------------------------------------------------


def sections(elf: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and contents of the sections of a 64-bit ELF that have contents."""
    if elf[:5] != b"\x7fELF\x02":
        raise ValueError("no 64-bit ELF")
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, table + i * size) for i in range(count)]
    start = headers[names_at][4]
    for name, kind, _, _, offset, length, *_ in headers:
        if kind not in (0, 8):  # SHT_NULL, SHT_NOBITS
            text = elf[start + name : elf.index(b"\0", start + name)].decode()
            yield text, elf[offset : offset + length]


def _digest(cubin: bytes) -> dict[str, Any]:
    contents: list[tuple[str, int, str]] = []
    registers: list[int] = []
    for name, data in sections(cubin):
        if name == ".nv.info":
            registers = sorted(_registers(data))
        elif name.startswith((".text.", ".nv.constant", ".nv.global.init")) and ".constant0" not in name:
            of = name.removeprefix(".nv").split(".")[1]
            contents.append((of, len(data), hashlib.sha256(data).hexdigest()))
    contents.sort()
    sizes = [length for of, length, _ in contents if of == "text"]
    digest = hashlib.sha256(json.dumps([contents, registers]).encode()).hexdigest()
    return {"sass_digest": digest, "sass": {"bytes": sizes, "registers": registers}}


def _registers(info: bytes) -> Iterator[int]:
    """The register counts (EIATTR_REGCOUNT) of all functions. An attribute is a format, a number, and either a
    value of two bytes or, of format 4, a length and so many bytes."""
    at = 0
    while at + 4 <= len(info):
        form, attribute, length = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == 4:
            if attribute == 0x2F:
                yield struct.unpack_from("<I", info, at + 4)[0]
            at += length

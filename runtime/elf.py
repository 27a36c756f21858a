"""Reads what an object file calls, what it offers, and what runs when it is loaded.

The format is ELF of 64 bits, little-endian (System V ABI, gABI 4.1; Linux's is the same on x86-64 and
AArch64). An object says more than the library that it becomes: nvcc links CUDA's runtime in, which itself
opens files and loads libraries.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

MOST_BYTES = 1 << 28

_RELA, _SYMTAB = 4, 2
_WITHOUT_CONTENTS = frozenset({0, 8})
"""SHT_NULL and SHT_NOBITS."""
_STARTUP_TYPES = frozenset({14, 15, 16})
"""SHT_INIT_ARRAY, SHT_FINI_ARRAY and SHT_PREINIT_ARRAY."""

_STARTUP_LISTS = (".init_array", ".fini_array", ".preinit_array", ".ctors", ".dtors")
_STARTUP_CODE = (".init", ".fini")
_FUNCTION, _RESOLVER = 2, 10
"""STT_FUNC and STT_GNU_IFUNC."""


class ElfUnreadable(ValueError):
    """Raised for bytes that are no such object file."""


@dataclass(frozen=True, slots=True)
class StartupFunction:
    """A function that runs when the object is loaded or unloaded, "" for one without a name, and the symbols
    and sections that its code refers to."""

    name: str
    references: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ObjectFile:
    """`undefined` are the symbols that others must offer, `functions` those that it offers to others itself;
    `resolvers` choose a function when the object is loaded (IFUNC)."""

    undefined: frozenset[str]
    functions: frozenset[str]
    startup: tuple[StartupFunction, ...]
    resolvers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    type: int
    offset: int
    size: int
    link: int
    info: int


@dataclass(frozen=True, slots=True)
class _Symbol:
    name: str
    type: int
    binding: int
    section: int
    value: int
    size: int


def read(data: bytes) -> ObjectFile:
    """Returns what an object file holds. Raises ElfUnreadable."""
    if len(data) > MOST_BYTES or data[:6] != b"\x7fELF\x02\x01":
        raise ElfUnreadable("no ELF file of 64 bits, little-endian")
    try:
        return _read(data)
    except ElfUnreadable:
        raise
    except (struct.error, IndexError, ValueError) as problem:
        raise ElfUnreadable(f"a damaged ELF file: {problem}") from problem


def _read(data: bytes) -> ObjectFile:
    sections = _sections(data)
    tables = [number for number, section in enumerate(sections) if section.type == _SYMTAB]
    if len(tables) != 1:
        raise ElfUnreadable(f"{len(tables)} symbol tables; an object file has one")
    symbols = list(_symbols(data, sections[tables[0]], sections))
    offered = {s.name for s in symbols if s.binding != 0 and s.section != 0 and s.type == _FUNCTION}
    return ObjectFile(
        frozenset(s.name for s in symbols if s.section == 0 and s.binding != 0),
        frozenset(offered),
        tuple(_startup(data, sections, symbols)),
        tuple(s.name for s in symbols if s.type == _RESOLVER),
    )


def section_contents(data: bytes) -> dict[str, bytes]:
    """Returns the contents of the sections of any ELF file by their names, of those that have contents. Raises
    ElfUnreadable."""
    try:
        return {
            s.name: data[s.offset : s.offset + s.size]
            for s in _sections(data)
            if s.type not in _WITHOUT_CONTENTS
        }
    except (struct.error, IndexError, ValueError) as problem:
        raise ElfUnreadable(f"a damaged ELF file: {problem}") from problem


def _sections(data: bytes) -> list[_Section]:
    (begin,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    if size != 64 or not begin:
        raise ElfUnreadable(f"section headers of {size} bytes")
    # Where there are more than a half word counts, the first header has the numbers.
    first = struct.unpack_from("<IIQQQQIIQQ", data, begin)
    count, names = count or first[5], first[6] if names == 0xFFFF else names
    if begin + count * size > len(data):
        raise ElfUnreadable(f"{count} section headers that the file does not hold")
    rows = [struct.unpack_from("<IIQQQQIIQQ", data, begin + number * size) for number in range(count)]
    strings = rows[names][4]
    return [
        _Section(_string(data, strings + name), kind, offset, length, link, info)
        for name, kind, _, _, offset, length, link, info, _, _ in rows
    ]


def _symbols(data: bytes, table: _Section, sections: list[_Section]) -> Iterator[_Symbol]:
    strings = sections[table.link].offset
    for offset in range(table.offset, table.offset + table.size, 24):
        name, info, _, section, value, size = struct.unpack_from("<IBBHQQ", data, offset)
        yield _Symbol(_string(data, strings + name), info & 15, info >> 4, section, value, size)


def _startup(data: bytes, sections: list[_Section], symbols: list[_Symbol]) -> Iterator[StartupFunction]:
    for number, section in enumerate(sections):
        if section.name in _STARTUP_CODE and section.size:
            yield StartupFunction(f"section {section.name}")
        if not _is_startup(section):
            continue
        for _, symbol, addend in _relocations(data, sections, symbols, number):
            function = symbol if symbol.type == _FUNCTION else _function_at(symbols, symbol, addend)
            if function is None:
                yield StartupFunction(symbol.name)
                continue
            end = function.value + function.size
            yield StartupFunction(
                function.name,
                tuple(
                    target.name or sections[target.section].name
                    for offset, target, _ in _relocations(data, sections, symbols, function.section)
                    if function.value <= offset < end
                ),
            )


def _is_startup(section: _Section) -> bool:
    listed = any(section.name == name or section.name.startswith(f"{name}.") for name in _STARTUP_LISTS)
    return listed or section.type in _STARTUP_TYPES


def _relocations(
    data: bytes, sections: list[_Section], symbols: list[_Symbol], number: int
) -> Iterator[tuple[int, _Symbol, int]]:
    """Yields offset, symbol and addend of every address that is filled into a section."""
    for table in sections:
        if table.type == _RELA and table.info == number:
            for place in range(table.offset, table.offset + table.size, 24):
                offset, info, addend = struct.unpack_from("<QQq", data, place)
                yield offset, symbols[info >> 32], addend


def _function_at(symbols: list[_Symbol], symbol: _Symbol, addend: int) -> _Symbol | None:
    place = (symbol.section, symbol.value + addend)
    return next((s for s in symbols if s.type == _FUNCTION and (s.section, s.value) == place), None)


def _string(data: bytes, begin: int) -> str:
    return data[begin : data.index(b"\0", begin)].decode("ascii")

"""The machine code in a cubin, read without a disassembler."""

from __future__ import annotations

import struct
from collections import Counter


def kernels(image: bytes) -> dict[str, bytes]:
    """Bytes of each function by its symbol; an ELF64 image has them in sections `.text.SYMBOL`."""
    assert image[:5] == b"\x7fELF\x02"
    (start,) = struct.unpack_from("<Q", image, 0x28)
    size, count, names = struct.unpack_from("<HHH", image, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", image, start + i * size) for i in range(count)]
    table = headers[names][4]

    def name(offset: int) -> str:
        return image[table + offset : image.index(b"\0", table + offset)].decode()

    sections = {name(h[0]): image[h[4] : h[4] + h[5]] for h in headers}
    return {n.removeprefix(".text."): c for n, c in sections.items() if n.startswith(".text.")}


HGMMA, IGMMA, QGMMA = 0x1F0, 0x1F1, 0x1F3
"""wgmma of 16-bit floats and tf32, of integers, and of fp8."""

FLOAT = frozenset({0x008, 0x009, 0x020, 0x021, 0x023, 0x108, HGMMA})
"""FSEL, FMNMX, FMUL, FADD, FFMA, MUFU and HGMMA, as `operations` counts them."""

CALLS = frozenset({0x143, 0x144})
"""CALL to an absolute and to a relative place."""


def operations(code: bytes) -> Counter[int]:
    """How often each operation occurs: the lowest 9 bits of each 16-byte instruction of sm90a; the next
    three say of what kind the operands are."""
    return Counter(int.from_bytes(code[i : i + 2], "little") & 0x1FF for i in range(0, len(code), 16))

"""The digests keep what a renaming keeps, see what an operation changes, and are of every family."""

from __future__ import annotations

import re
import struct
from itertools import islice

import pytest

from benchmarks.digest_cases import Case, drawn, from_json, programs, to_json
from benchmarks.digest_sass import sections, spread
from benchmarks.digests import alpha_digest, differences, row_of, text_digest

CODE = """\
// Adds.
#include <cuda_fp16.h>
namespace ucc_0123456789abcdef_kernel {
constexpr int kWidth = 32;
__device__ float scaled(float const* in, int at) { return in[at] * 0.5f; }
__global__ void run(float const* in, float* out) {
  int lane = threadIdx.x % kWidth, first = 0, m, n, k[2];
  auto [low, high] = bounds(lane, m);
  asm volatile("membar.gl;" ::: "memory");
  out[lane] = fmaxf(scaled(in, lane), 0.0f) + out[lane];
}
}
"""


@pytest.mark.parametrize(
    "old, new",
    [
        ("scaled", "halved"),
        ("lane", "at_lane"),
        ("kWidth", "warp_size"),
        ("run", "go"),
        ("first", "begin"),
        ("m", "rows"),
        ("n", "columns"),
        ("k", "depth"),
        ("low", "least"),
        ("high", "most"),
    ],
)
def test_a_renaming_keeps_alpha_alone(old: str, new: str) -> None:
    renamed = re.sub(rf"\b{old}\b", new, CODE)
    assert renamed != CODE
    assert alpha_digest([renamed]) == alpha_digest([CODE])
    assert text_digest([renamed]) != text_digest([CODE])


def test_comments_white_space_and_the_entry_do_not_matter() -> None:
    entry = "ucc_0123456789abcdef"
    other = (
        CODE.replace("// Adds.", "/* Sums\n */").replace("  ", "\t").replace(entry, "ucc_fedcba9876543210")
    )
    assert alpha_digest([other], "ucc_fedcba9876543210") == alpha_digest([CODE], entry)


@pytest.mark.parametrize(
    "old, new",
    [
        (" + out", " - out"),
        ("fmaxf", "fminf"),
        ("bounds", "limits"),
        ("0.5f", "0.25f"),
        ("threadIdx", "blockIdx"),
        ("membar.gl", "membar.sys"),
        ("cuda_fp16", "cuda_bf16"),
        ("in[at]", "in[in]"),
        ("float const* in, int", "double const* in, int"),
    ],
)
def test_another_operation_alters_alpha(old: str, new: str) -> None:
    assert old in CODE
    assert alpha_digest([CODE.replace(old, new)]) != alpha_digest([CODE])


@pytest.fixture(scope="module")
def sample() -> list[Case]:
    """Cases of a few programs of every source."""
    numbered = list(enumerate(programs()))
    return [case for number, program in numbered[::145] for case in islice(drawn(program, number), 4)]


def test_the_corpus_has_every_family_and_no_key_twice(sample: list[Case]) -> None:
    assert {case.family for case in sample} == {
        "gemm",
        "grouped GEMM",
        "convolution",
        "attention",
        "reduction",
    }
    assert {case.arch for case in sample} == {"sm80", "sm89", "sm90a"}
    assert len({case.key for case in sample}) == len(sample)
    assert len(list(programs())) > 2000


def test_a_case_that_was_written_and_read_has_the_same_row(sample: list[Case]) -> None:
    for case in sample[::8]:
        row = row_of(case)
        assert row is not None
        assert row_of(from_json(row)) == row
        assert row | to_json(case) == row


def test_differences_are_by_key(sample: list[Case]) -> None:
    rows = [row for case in sample[:6] if (row := row_of(case)) is not None]
    other = {**rows[0], "text_digest": "", "sass_digest": "b"}
    found = differences([{**rows[0], "sass_digest": "a"}, *rows[1:]], [other, *rows[2:]])
    keys = {name: [row["key"] for row in of] for name, of in found.items()}
    mine = rows[0]["key"]
    assert keys == {"vanished": [rows[1]["key"]], "appeared": [], "text": [mine], "alpha": [], "sass": [mine]}


def test_kernels_to_compile_are_of_every_family(sample: list[Case]) -> None:
    rows = [row for case in sample if (row := row_of(case)) is not None]
    keys = spread(rows, 20)
    assert {row["family"] for row in rows if row["key"] in keys} == {row["family"] for row in rows}


def test_sections_of_an_elf() -> None:
    names = b"\0.names\0.text.k\0"
    code = b"\1\2\3\4"
    head = (
        b"\x7fELF\x02".ljust(0x28, b"\0")
        + struct.pack("<Q", 0x80)
        + bytes(10)
        + struct.pack("<HHH", 64, 3, 1)
    )
    headers = struct.pack("<IIQQQQIIQQ", *[0] * 10)
    headers += struct.pack("<IIQQQQIIQQ", 1, 3, 0, 0, 0x40, len(names), 0, 0, 1, 0)
    headers += struct.pack("<IIQQQQIIQQ", 8, 1, 0, 0, 0x60, len(code), 0, 0, 1, 0)
    elf = head.ljust(0x40, b"\0") + names.ljust(0x20, b"\0") + code.ljust(0x20, b"\0") + headers
    assert dict(sections(elf)) == {".names": names, ".text.k": code}

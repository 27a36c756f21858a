"""Small kernels: launches that begin while the one before ends, coordinates of 32 bits, short vectors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.emit import emulator, plan_reference
from tests.emit.harness import HOST_SHIM
from tests.kernels.test_ring import SCAN, SOFTMAX, planned_source, schedule
from tests.kernels.test_straddle import BACKWARDS, GATHERED, POOL, SUM, SWAPPED, compiled
from ucutlass import frontend
from ucutlass.backend import source_of
from ucutlass.kernels.gemm.plan import LaunchParameters
from ucutlass.shapes import complete

EARLY = "cudaLaunchAttributeProgrammaticStreamSerialization"
COLUMN_SUMS = "kernel k(x: f32[A, B]) -> f32[B] { return sum[A](x) SCHEDULE }"
OUTER = "kernel k(x: bf16[A, B], y: bf16[A, C]) -> bf16[A, B, C] { return x * y SCHEDULE }"
SWAPPED_LAST = "kernel k(x: bf16[A, B, C]) -> bf16[A, C, B] { return x SCHEDULE }"
ADD_SWAPPED = "kernel k(x: bf16[A, B, C], y: bf16[A, C, B]) -> bf16[A, B, C] { return x + y SCHEDULE }"
BIAS = "kernel k(x: f32[A, B], b: f32[B]) -> f32[A, B] { return x + b SCHEDULE }"


@pytest.mark.parametrize(
    ("program", "fields", "sizes", "launches"),
    [
        (BIAS, "", {"A": 512, "B": 512}, 1),
        (SWAPPED, "", {"A": 256, "B": 64, "C": 256}, 1),
        (SOFTMAX, "", {"T": 64, "D": 304}, 1),
        (COLUMN_SUMS, "", {"A": 2**16, "B": 128}, 2),
    ],
)
def test_a_launch_waits_before_it_reads(
    program: str, fields: str, sizes: dict[str, int], launches: int
) -> None:
    code = planned_source(program, fields, **sizes)[1].code
    kernels = code.split("__global__ void")[1:]
    assert EARLY in code and len(kernels) == launches
    for kernel in kernels:
        body = kernel.partition(") {\n")[2].split("\n")
        assert [line.strip().partition("  //")[0] for line in body[:2]] == [
            "griddepcontrol_wait();",
            "griddepcontrol_launch_dependents();",
        ]


@pytest.mark.parametrize(
    ("program", "fields", "sizes"),
    [
        (SOFTMAX, "stages 4  threads 32", {"T": 64, "D": 2048}),
        (SOFTMAX, "cluster 1x2", {"T": 64, "D": 8192}),
        (SCAN, "", {"T": 4, "D": 2**20}),
    ],
)
def test_what_follows_a_memset_or_stays_begins_after_the_launch_before(
    program: str, fields: str, sizes: dict[str, int]
) -> None:
    code = planned_source(program, fields, **sizes)[1].code
    assert EARLY not in code and "griddepcontrol" not in code


def test_before_hopper_no_launch_begins_early() -> None:
    checked = frontend.read_text(BIAS.replace("SCHEDULE", ""))
    kernel = frontend.kernel(checked)
    planned = frontend.plan_kernel(checked, kernel, complete(kernel, {"A": 8, "B": 8}), "sm80").planned
    assert "griddepcontrol" not in source_of(checked, kernel, planned).code


@pytest.mark.parametrize(
    ("program", "sizes", "short"),
    [
        (BIAS, {"A": 512, "B": 512}, True),
        (BIAS, {"A": 2**20, "B": 1024}, True),
        (BIAS, {"A": 2**21, "B": 1024}, False),
        (SWAPPED, {"A": 5, "B": 7, "C": 64}, True),
        (BACKWARDS, {"D": 6, "Z": 9, "B": 64}, False),
        (GATHERED, {"L": 29, "V": 3, "B": 64}, False),
        (POOL, {"B": 3, "H": 9, "W": 257}, False),
        (SUM, {"A": 4097, "B": 1003}, False),
        (SOFTMAX, {"T": 64, "D": 304}, False),
    ],
)
def test_coordinates_have_32_bits_where_every_offset_does(
    program: str, sizes: dict[str, int], short: bool
) -> None:
    assert schedule(program, "", **sizes).short == short


@compiled
def test_a_kernel_with_coordinates_of_32_bits_refuses_more_elements(tmp_path: Path) -> None:
    source = planned_source(BIAS, "", A=512, B=512)[1]
    entry = emulator.build(replace(source, text=f"#include <cmath>\n{HOST_SHIM}{source.text}"), tmp_path)
    tensors = [torch.zeros(64) for _ in range(3)]
    addresses = [t.data_ptr() for t in tensors]
    ended = [
        plan_reference.call(entry, addresses, sizes, (), LaunchParameters(), "cpu", 0)
        for sizes in ((2, 4), (2**21, 1024))
    ]
    assert ended == [0, 1]


@pytest.mark.parametrize(
    ("program", "sizes", "vector", "straddle"),
    [
        (BIAS, {"A": 512, "B": 512}, 4, False),
        (BIAS, {"A": 64, "B": 512}, 1, False),
        (SUM, {"A": 63, "B": 601}, 1, False),
        (SUM, {"A": 513, "B": 601}, 8, True),
        (SWAPPED, {"A": 64, "B": 3, "C": 333}, 1, False),
        (SWAPPED, {"A": 640, "B": 3, "C": 333}, 8, True),
    ],
)
def test_few_elements_are_spread_over_the_gpu(
    program: str, sizes: dict[str, int], vector: int, straddle: bool
) -> None:
    chosen = schedule(program, "", **sizes)
    assert (chosen.vector, chosen.straddle) == (vector, straddle)


@pytest.mark.parametrize(
    ("program", "sizes", "rows", "items"),
    [
        (OUTER, {"A": 10_444, "B": 40, "C": 128}, 256, 4),
        (OUTER, {"A": 1044, "B": 40, "C": 128}, 256, 2),
        (BIAS, {"A": 2**15, "B": 1024}, 256, 1),
        (SWAPPED, {"A": 3113, "B": 64, "C": 431}, 256, 4),
        (SWAPPED, {"A": 3113, "B": 64, "C": 432}, 256, 1),
        (SWAPPED_LAST, {"A": 10_208, "B": 248, "C": 64}, 512, 1),
        (SWAPPED_LAST.replace("bf16", "f32"), {"A": 10_208, "B": 248, "C": 64}, 256, 4),
        (ADD_SWAPPED, {"A": 10_208, "B": 248, "C": 64}, 256, 2),
    ],
)
def test_vectors_of_a_thread_wait_together(
    program: str, sizes: dict[str, int], rows: int, items: int
) -> None:
    chosen = schedule(program, "", **sizes)
    assert (chosen.rows, chosen.items) == (rows, items)

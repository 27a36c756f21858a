"""Lean kernels' shared memory: what TMA puts there is what wgmma reads, for every tile, order and cluster."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import assume, given, settings

from tests.jit.lean_model import EMPTY, MOST, Box, Descriptor, Memory, number, read, write
from tests.jit.lean_plans import KINDS, plain, plain_plans, random_kernels
from ucutlass.emit.gemm.lean import lean
from ucutlass.emit.gemm.lean_mainloop import (
    WIDEST,
    SharedOperand,
    instructions,
    operands,
    part_step,
    parts,
    promotion,
)
from ucutlass.emit.parts import NotServed
from ucutlass.ir.elements import F16, TF32, Element
from ucutlass.kernels.gemm.plan import GemmPlan, Sm90Schedule
from ucutlass.kernels.gemm.smem import SHARED_BYTES

STAGE = 1
"""Of shared memory, that the model fills: not the first, so that a stage's own border counts too."""


@dataclass(frozen=True)
class Main:
    """A plan's main loop."""

    schedule: Sm90Schedule
    groups: int
    a: SharedOperand
    b: SharedOperand


def main_of(plan: GemmPlan) -> Main:
    assert isinstance(plan.schedule, Sm90Schedule)
    groups = 2 if plan.schedule.warps == "cooperative" else 1
    return Main(plan.schedule, groups, *operands(plan.problem, plan.schedule, groups))


def served(plan: GemmPlan) -> Main:
    try:
        return main_of(plan)
    except NotServed:
        assume(False)
        raise


def filled(one: SharedOperand, rows: int, tile_k: int) -> Memory:
    """A stage with all slices of a tile: element (row, k) is row * tile_k + k."""
    size = one.bytes // (rows * tile_k)
    memory = np.full((STAGE + 1) * one.bytes, EMPTY, np.int64)
    box = Box(*one.box, size)
    assert box.width == one.width
    for index in range(one.slices):
        for copy in one.copies:
            names = {"x": index, "y": index, "k": 0, "m0": 0, "n0": 0}
            inner = number(copy.inner, **names) + np.arange(box.inner)[None, :]
            outer = number(copy.outer, **names) + np.arange(box.outer)[:, None]
            row, k = (outer, inner) if one.inner == "k" else (inner, outer)
            assert (row < rows).all() and (k < tile_k).all()
            write(memory, box, STAGE * one.bytes + number(copy.place, **names), row * tile_k + k)
    return memory


@settings(max_examples=150, deadline=None)
@given(plain_plans())
def test_wgmma_reads_what_tma_wrote(plan: GemmPlan) -> None:
    """Also: boxes cover a stage exactly once, and no instruction reads beyond it."""
    main = served(plan)
    tile_m, tile_n, tile_k = main.schedule.tile
    size = plan.problem.compute_type.bytes
    memory_a, memory_b = filled(main.a, tile_m, tile_k), filled(main.b, tile_n, tile_k)
    for memory, one in ((memory_a, main.a), (memory_b, main.b)):
        assert (memory[STAGE * one.bytes :] != EMPTY).all() and (memory[: STAGE * one.bytes] == EMPTY).all()
    a, b = (Descriptor(o.leading, o.stride, o.swizzle_code, o.inner == "k") for o in (main.a, main.b))
    atoms = tile_m // (64 * main.groups)
    count = parts(main.schedule, promotion(plan.problem, main.schedule), atoms * tile_n // 2)
    columns = tile_n // count
    for part, group in itertools.product(range(count), range(main.groups)):
        rows_of_group = [(atom * main.groups + group) * 64 + np.arange(64) for atom in range(atoms)]
        seen = np.zeros((tile_m, tile_k), np.int64)
        for step in instructions(main.a, main.b, atoms, columns):
            start = STAGE * main.a.bytes + 16 * (group * main.a.group_step + step.a)
            left = read(memory_a, a.addresses(start, 64, size), size)
            begin = STAGE * main.b.bytes + 16 * (step.b + part * part_step(main.b, columns))
            right = read(memory_b, b.addresses(begin, columns, size), size)
            atom, rest = divmod(step.register, columns // 2)
            assert rest == 0
            rows = rows_of_group[atom]
            assert (left // tile_k == rows[:, None]).all(), "the epilogue takes these rows to be the atom's"
            assert (right // tile_k == part * columns + np.arange(columns)[:, None]).all()
            k = left % tile_k
            assert (k == k[0]).all() and (right % tile_k == k[0]).all()
            assert step.first == (not seen[rows].any())
            seen[rows[:, None], k] += 1
        assert (seen[np.concatenate(rows_of_group)] == 1).all(), "each product once"


@settings(max_examples=100, deadline=None)
@given(plain_plans())
def test_each_block_of_a_cluster_gets_every_slice_once(plan: GemmPlan) -> None:
    main = served(plan)
    cluster_m, cluster_n = main.schedule.cluster
    for one in (main.a, main.b):
        actual: dict[int, list[int]] = {rank: [] for rank in range(cluster_m * cluster_n)}
        for rank in actual:
            x, y = rank % cluster_m, rank // cluster_m
            mask, index = (one.mask << x, y) if one.name == "a" else (one.mask << (y * cluster_m), x)
            assert mask >> len(actual) == 0 or one.slices == 1
            for other in actual:
                if mask >> other & 1 if one.slices > 1 else other == rank:
                    same = (x, other % cluster_m) if one.name == "a" else (y, other // cluster_m)
                    assert same[0] == same[1], "only blocks of the same rows of the operand share it"
                    actual[other].append(index if one.slices > 1 else 0)
        assert all(sorted(slices) == list(range(one.slices)) for slices in actual.values())


@settings(max_examples=100, deadline=None)
@given(plain_plans())
def test_the_descriptors_fields_hold_their_numbers(plan: GemmPlan) -> None:
    """14 bits each, and the offsets that are added must not run out of the address."""
    main = served(plan)
    for one in (main.a, main.b):
        assert 0 < one.leading < 2**14 and 0 < one.stride < 2**14
        assert max(one.instruction_steps) * 16 < one.bytes
        assert one.bytes % 128 == 0, "the next stage begins where TMA may write"


def test_an_operand_that_the_model_would_read_wrongly_is_seen() -> None:
    """The model is no tautology: another swizzle, stride or step reads other elements."""
    main = main_of(plain(F16, Sm90Schedule((64, 64, 64), (1, 1), 2, "pingpong", "persistent")))
    memory = filled(main.a, 64, 64)
    start = STAGE * main.a.bytes
    right = Descriptor(main.a.leading, main.a.stride, main.a.swizzle_code, True)
    expected = np.arange(64)[:, None] * 64 + np.arange(16)
    assert (read(memory, right.addresses(start, 64, 2), 2) == expected).all()
    for wrong in (replace(right, swizzle=2), replace(right, stride=main.a.stride // 2)):
        assert not (read(memory, wrong.addresses(start, 64, 2), 2) == expected).all()


# --- the descriptors that the host makes -------------------------------------------


ENCODE = re.compile(
    r"ucc_lean_encode(?:_two)?\(\s*&params\.(\S+), (\d+), address\[(\d+)\], (\w+), (\w), (\w+),[ \w,]*\s*"
    r"outer, \w+ > 1 \? batch : [^;]*?, (\d+), (\d+), (\d+)\)"
)


def checked_boxes(host: str) -> int:
    """How many TMA descriptors the host's text makes; each is one that the driver takes."""
    sizes = [int(size) for size in re.findall(r"int64_t const outer = (\d) \* \(", host)]
    found = ENCODE.findall(host)
    assert len(found) == len(sizes) >= 2
    for (_, _, _, _, _, _, inner, outer, swizzle), size in zip(found, sizes, strict=True):
        assert 1 <= int(inner) <= MOST and 1 <= int(outer) <= MOST
        assert int(inner) * size == {0: 16, 1: 32, 2: 64, 3: WIDEST}[int(swizzle)], "a row is as wide"
    return len(found)


@pytest.mark.parametrize("name", KINDS)
def test_the_host_makes_boxes_that_the_driver_takes(name: str) -> None:
    assert checked_boxes(lean(KINDS[name]()).host) >= 2


def test_random_programs_have_boxes_that_the_driver_takes() -> None:
    kinds = set()
    for plan, kernel in random_kernels(range(600)):
        assert isinstance(plan.schedule, Sm90Schedule)
        checked_boxes(kernel.host)
        assert shared_bytes(kernel.device.code, plan.schedule) <= SHARED_BYTES
        kinds.add((plan.problem.compute_type.name, plan.schedule.warps))
    assert {compute_type for compute_type, _ in kinds} > {"f16", "bf16", "tf32", "e4m3"}
    assert {warps for _, warps in kinds} == {"pingpong", "cooperative"}


SIZES = {
    "cutlass::half_t": 2,
    "cutlass::bfloat16_t": 2,
    "cutlass::float_e4m3_t": 1,
    "cutlass::float_e5m2_t": 1,
    "float": 4,
    "int8_t": 1,
    "uint8_t": 1,
    "int32_t": 4,
    "int": 4,
}


def shared_bytes(code: str, schedule: Sm90Schedule) -> int:
    """Of the tensors as the emitted structs declare them, each beginning at its own border."""
    names = {name: int(value) for name, value in re.findall(r"\b(\w+) = (\d+)[,;]", code)}
    names["Columns"] = int(re.findall(r"constexpr int Columns = (\d+);", code)[0])
    names["WarpGroups"] = int(re.findall(r"constexpr int WarpGroups = (\d+);", code)[0])
    end = 0
    for align, kind, extents in re.findall(r"alignas\((\d+)\) (\S+) \w+((?:\[[^\]]+\])+);", code):
        if "CUTLASS" in kind or "Descriptor" in kind:
            continue
        count = 1
        for extent in re.findall(r"\[([^\]]+)\]", extents):
            count *= number(extent, **names)
        end = -(-end // int(align)) * int(align) + count * SIZES[kind]
    return end


def test_what_is_declared_is_counted() -> None:
    """The plain product: two operands and one result's buffers."""
    schedule = Sm90Schedule((128, 128, 64), (1, 1), 3, "cooperative", "persistent")
    code = lean(plain(F16, schedule)).device.code
    columns, buffers = (int(re.findall(rf"{name} = (\d+)", code)[0]) for name in ("Columns", "StoreBuffers"))
    assert shared_bytes(code, schedule) == 3 * 2 * 128 * 64 * 2 + buffers * 128 * columns * 2


@pytest.mark.parametrize(
    ("compute_type", "schedule"),
    [
        pytest.param(F16, Sm90Schedule((256, 192, 64), (1, 1), 4, "cooperative", "persistent"), id="memory"),
        pytest.param(TF32, Sm90Schedule((64, 16, 32), (4, 1), 2, "pingpong", "persistent"), id="slices"),
    ],
)
def test_what_does_not_fit_is_not_served(compute_type: Element, schedule: Sm90Schedule) -> None:
    plan = plain(compute_type, schedule)
    with pytest.raises(NotServed, match="CUTLASS's own collectives"):
        lean(plan)

"""The epilogue of a lean kernel (`ucutlass.emit.gemm.lean`): its operands and results, and the steps in which it
walks a tile, as numbers and C++ for the templates."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from ucutlass.emit.arithmetic import ArithmeticText
from ucutlass.emit.functions import CPP
from ucutlass.emit.gemm.lean_mainloop import WIDEST, SharedOperand
from ucutlass.emit.gemm.sm90_epilogue import element, extent
from ucutlass.emit.parts import NotServed
from ucutlass.ir.hardware import ARCHES
from ucutlass.kernels.access import Access, Reduction
from ucutlass.kernels.gemm.plan import GemmPlan, GemmProblem, Sm90Schedule

SHARED_BYTES = ARCHES["sm90a"].shared_memory
"""That a block asks for, all of it."""

BARRIERS = 1024
"""Bytes before the tensors, whose alignment it is: barriers and the scheduler's state are fewer."""


@dataclass(frozen=True, slots=True)
class EpilogueTensor:
    """An operand or a result of the epilogue.

    `shape` is "box" where TMA moves it, "direct" where each thread does, "reduced" for a reduction's
    result, else what a warp stages of it: values along a "row", along a "column", or a "single" one.
    `rows` is C++ for whether N is its contiguous mode.
    """

    name: str
    access: Access
    element: str
    shape: str
    reads: bool
    count: int = 0

    @property
    def size(self) -> int:
        return self.access.elem.bytes

    @property
    def rows(self) -> str:
        return "true" if self.access.n == () else "false"

    @property
    def batch(self) -> str:
        return "l" if self.access.batch and self.access.batch[0] is not None else "0"

    @property
    def strides(self) -> tuple[str, str, str]:
        """Along M, along N and from batch to batch as C++, in elements."""
        batch = self.access.batch[0] if self.access.batch else None
        m, n, per_batch = ("0" if s is None else extent(s) for s in (self.access.m, self.access.n, batch))
        return m, n, per_batch

    @property
    def base(self) -> str:
        return f"params.{self.name} + l * params.{self.name}_l"

    @property
    def stride(self) -> str:
        return {"row": f"params.{self.name}_n", "column": f"params.{self.name}_m", "single": "0"}[self.shape]

    @property
    def first(self) -> str:
        return {"row": "n0", "column": "m0", "single": "0"}[self.shape]

    @property
    def extent(self) -> str:
        return {"row": "get<1>(problem)", "column": "get<0>(problem)", "single": "1"}[self.shape]


@dataclass(frozen=True, slots=True)
class StoredResult:
    """A result inside a step: its slot's name, its element, and the type that it is computed in."""

    name: str
    element: str
    scalar: str
    scalar_array: str


@dataclass(frozen=True, slots=True)
class Steps:
    """How the epilogue walks a tile, and what of shared memory it takes for that."""

    columns: int
    store_buffers: int
    load_stages: int


def slots(
    plan: GemmPlan, problem: GemmProblem, schedule: Sm90Schedule
) -> tuple[list[EpilogueTensor], list[EpilogueTensor]]:
    """The epilogue's operands and results, in program order, by the routes that the plan gives them."""
    routes = iter(plan.routes)
    tile_m, tile_n, _ = schedule.tile
    counts = {"row": tile_n, "column": tile_m, "single": 1}
    inputs, outputs = [], []
    for i, (access, route) in enumerate(zip(problem.inputs, routes, strict=False)):
        shape = access.shape
        kind = {"scalar": "single", "batch": "single", "full": "box" if route == "tma" else "direct"}
        named = kind.get(shape, shape)
        inputs.append(
            EpilogueTensor(f"in{i}", access, element(access.elem), named, True, counts.get(named, 0))
        )
    for j, (output, route) in enumerate(zip(problem.outputs, routes, strict=True)):
        named = "reduced" if isinstance(output, Reduction) else "box" if route == "tma" else "direct"
        outputs.append(EpilogueTensor(f"out{j}", output.access, element(output.access.elem), named, False))
    return inputs, outputs


def steps(
    schedule: Sm90Schedule,
    loaded: tuple[SharedOperand, ...],
    groups: int,
    atoms: int,
    stores: list[EpilogueTensor],
    loads: list[EpilogueTensor],
    staged: list[EpilogueTensor],
    widths: tuple[int, ...],
) -> Steps:
    """The first of `widths`, then the most buffers, that shared memory holds beside the main loop's stages.

    A stage of loads is written anew at most one tile after it was read (`TensorStorage` has vectors of two
    tiles), so there are at most as many as steps and one more.
    """
    tile_n = schedule.tile[1]
    main = sum(_round_up(schedule.stages * operand.bytes) for operand in loaded)
    vectors = sum(2 * _round_up(s.count * s.size, 16) for s in staged)
    boxes = [*stores, *loads]
    for columns, buffers, stages in itertools.product(widths, (2, 1), (4, 3, 2)):
        steps = atoms * tile_n // columns
        fits_rows = all(16 <= columns * s.size <= WIDEST for s in boxes if s.rows == "true")
        if tile_n % columns or not fits_rows or (loads and staged and stages > steps + 1):
            continue
        if not loads and stages != 2:
            continue
        buffer = [_round_up(groups * 64 * columns * s.size) for s in stores]
        each = [_round_up(groups * 64 * columns * s.size) for s in loads]
        epilogue = _round_up(buffers * sum(buffer) + stages * sum(each) + vectors)
        if BARRIERS + epilogue + main <= SHARED_BYTES:
            return Steps(columns, buffers, stages)
    raise NotServed("shared memory, which it uses less sparingly")


def _round_up(size: int, to: int = 1024) -> int:
    return -(-size // to) * to


def call(operation: ArithmeticText, inputs: list[EpilogueTensor]) -> str:
    """The arithmetic of one element as a C++ call: its coordinates, its accumulator, the operands."""
    names = ["m", "n", *(["l"] * operation.batch)]
    coordinates = names if operation.coordinates else ["0"] * len(names)
    values = []
    for slot, kind in zip(inputs, operation.inputs, strict=True):
        at = {"box": f"{slot.name}.at[j][i][e]", "row": f"{slot.name}[e]", "column": f"{slot.name}[i]"}.get(
            slot.shape, slot.name
        )
        values.append(f"{at} != 0" if kind == "bool" else f"{CPP[kind]}({at})")
    outs = [f"out{j}" for j in range(len(operation.outputs))]
    return operation.call("params.thread", coordinates, "accumulator", values, outs)

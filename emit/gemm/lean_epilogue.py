"""The epilogue of a lean kernel (`ucutlass.emit.gemm.lean`): its operands and results as C++ for the templates. How
it goes through a tile says `ucutlass.kernels.gemm.smem.lean_epilogue`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ucutlass.emit.arithmetic import ArithmeticText
from ucutlass.emit.functions import CPP
from ucutlass.emit.gemm.lean_mainloop import batch_coordinates
from ucutlass.emit.gemm.sm90_epilogue import element, extent
from ucutlass.kernels.access import Access, Reduction
from ucutlass.kernels.arithmetic import PAIRED
from ucutlass.kernels.gemm.plan import GemmPlan, GemmProblem, Sm90Schedule
from ucutlass.kernels.gemm.smem import vector_elements


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
        return batch_coordinates(self.access)

    @property
    def strides(self) -> tuple[str, ...]:
        """Along M, along N and from batch to batch of each batch mode as C++, in elements."""
        batch = self.access.batch or (None,)
        return tuple("0" if s is None else extent(s) for s in (self.access.m, self.access.n, *batch))

    @property
    def at_batch(self) -> str:
        """Elements before those of the tile's batch."""
        second = f" + l2 * params.{self.name}_l2" if len(self.access.batch) == 2 else ""
        return f"l * params.{self.name}_l{second}"

    @property
    def base(self) -> str:
        return f"params.{self.name} + {self.at_batch}"

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


def stored_results(slots: Sequence[EpilogueTensor], operation: ArithmeticText) -> tuple[StoredResult, ...]:
    """Of the slots of all results, those of results that are stored element by element."""
    return tuple(
        StoredResult(slot.name, slot.element, CPP[kind], "uint8_t" if kind == "bool" else CPP[kind])
        for slot, kind in zip(slots, operation.outputs, strict=True)
        if slot.shape != "reduced"
    )


def slots(
    plan: GemmPlan, problem: GemmProblem, schedule: Sm90Schedule
) -> tuple[list[EpilogueTensor], list[EpilogueTensor]]:
    """The epilogue's operands and results, in program order, by the routes that the plan gives them."""
    routes = iter(plan.routes)
    inputs, outputs = [], []
    for i, (access, route) in enumerate(zip(problem.inputs, routes, strict=False)):
        shape = access.shape
        kind = {"scalar": "single", "batch": "single", "full": "box" if route == "tma" else "direct"}
        named = kind.get(shape, shape)
        inputs.append(
            EpilogueTensor(
                f"in{i}", access, element(access.elem), named, True, vector_elements(access, schedule.tile)
            )
        )
    for j, (output, route) in enumerate(zip(problem.outputs, routes, strict=True)):
        named = "reduced" if isinstance(output, Reduction) else "box" if route == "tma" else "direct"
        outputs.append(EpilogueTensor(f"out{j}", output.access, element(output.access.elem), named, False))
    return inputs, outputs


@dataclass(frozen=True, slots=True)
class RowPass:
    """A pass over a tile: the name of the statistic of a row that it gives, how terms combine, the call that gives an
    element's term, and whether the term then takes the accumulator's place."""

    name: str
    operation: str
    call: str
    keeps: bool


@dataclass(frozen=True, slots=True)
class RowExchange:
    """The passes whose outcomes the blocks of a cluster exchange together, and how these combine."""

    name: str
    operation: str
    passes: tuple[RowPass, ...]


def row_exchanges(operation: ArithmeticText, inputs: list[EpilogueTensor]) -> tuple[RowExchange, ...]:
    exchanges: list[RowExchange] = []
    for i, op in enumerate(operation.statistics):
        paired = op in PAIRED
        own = call(operation, inputs, ready=i, target=i, later=True, local=paired)
        passes: tuple[RowPass, ...] = (RowPass(f"row{i}", _TERMS.get(op, "RowAdd"), own, op == "softmax"),)
        if paired:
            passes = exchanges.pop().passes + passes
        exchanges.append(RowExchange(f"rows{i}", f"Row{op.capitalize()}", passes))
    return tuple(exchanges)


_TERMS: Mapping[str, str] = MappingProxyType({"max": "RowMost", "min": "RowLeast"})
"""How the terms of a statistic combine that are not added up."""

KEEP = -1
"""What is kept, among the values that a call gives."""


def call(
    operation: ArithmeticText,
    inputs: list[EpilogueTensor],
    ready: int | None = None,
    target: int | None = None,
    later: bool = False,
    local: bool = False,
) -> str:
    """The arithmetic of one element as a C++ call: its coordinates, its accumulator, the operands. Of the statistics of
    its row the first `ready` have values. `target` is the statistic whose `term` is set, or KEEP for what is `kept`;
    results that are not wanted are not computed once the call is inlined. `later`: what lies over M and N was read.
    `local`: the last of the statistics that have values is the block's own."""
    names = ["m", "n", *("l", "l2")[: operation.batch]]
    coordinates = names if operation.coordinates else ["0"] * len(names)
    values = []
    for slot, kind in zip(inputs, operation.inputs, strict=True):
        if later and slot.shape in ("box", "direct"):
            values.append("false" if kind == "bool" else f"{CPP[kind]}(0)")
            continue
        at = {"box": f"{slot.name}.at[j][i][e]", "row": f"{slot.name}[e]", "column": f"{slot.name}[i]"}.get(
            slot.shape, slot.name
        )
        values.append(f"{at} != 0" if kind == "bool" else f"{CPP[kind]}({at})")
    outs = [f"out{j}" for j in range(len(operation.outputs))]
    count = len(operation.statistics)
    rows = [f"row{i}[2 * atom + i]" if ready is None or i < ready else "0.0f" for i in range(count)]
    if local and ready:
        rows[ready - 1] = "own[2 * atom + i]"
    terms = ["term" if i == target else f"unused[{i}]" for i in range(count)]
    if operation.keeps:
        rows.append("accumulator")
        terms.append("kept" if target == KEEP else f"unused[{count}]")
    return operation.call("params.thread", coordinates, "accumulator", values, [*outs, *rows, *terms])


def unused_results(operation: ArithmeticText) -> tuple[str, ...]:
    """Declarations of results that a pass does not want."""
    return tuple(f"{CPP[kind]} out{j}" for j, kind in enumerate(operation.outputs))

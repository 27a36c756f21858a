"""The epilogue of a lean kernel (`ucutlass.emit.gemm.lean`): its operands and results as C++ for the templates. How
it goes through a tile says `ucutlass.kernels.gemm.smem.lean_epilogue`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ucutlass.emit.arithmetic import ArithmeticText
from ucutlass.emit.functions import CPP
from ucutlass.emit.gemm.lean_mainloop import batch_coordinates
from ucutlass.emit.gemm.sm90_epilogue import element, extent
from ucutlass.kernels.access import Access, Reduction
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


def call(operation: ArithmeticText, inputs: list[EpilogueTensor]) -> str:
    """The arithmetic of one element as a C++ call: its coordinates, its accumulator, the operands."""
    names = ["m", "n", *("l", "l2")[: operation.batch]]
    coordinates = names if operation.coordinates else ["0"] * len(names)
    values = []
    for slot, kind in zip(inputs, operation.inputs, strict=True):
        at = {"box": f"{slot.name}.at[j][i][e]", "row": f"{slot.name}[e]", "column": f"{slot.name}[i]"}.get(
            slot.shape, slot.name
        )
        values.append(f"{at} != 0" if kind == "bool" else f"{CPP[kind]}({at})")
    outs = [f"out{j}" for j in range(len(operation.outputs))]
    return operation.call("params.thread", coordinates, "accumulator", values, outs)

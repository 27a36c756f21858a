"""Products by plain multiply-adds (`ucutlass.emit.grouped_gemm.emitter`): what TMA and wgmma do not take."""

from __future__ import annotations

from dataclasses import dataclass

from ucutlass.emit.arithmetic import ArithmeticText, arithmetic
from ucutlass.emit.functions import CPP
from ucutlass.emit.gemm.lean_epilogue import EpilogueTensor, StoredResult, stored_results
from ucutlass.emit.gemm.sm90_epilogue import element, extent
from ucutlass.emit.grouped_gemm.scales import ScaleSlot, factors_of
from ucutlass.emit.text import render as template
from ucutlass.kernels.access import Access, Stride
from ucutlass.kernels.grouped_gemm.plan import GroupedGemmProblem, SimtSchedule

_INCLUDES = ("<algorithm>", "<cmath>", "<cstdint>", "<limits>")


@dataclass(frozen=True, slots=True)
class SimtOperand:
    """A or B: strides as C++ of the entry."""

    name: str
    data: str
    pointer: int
    row: str
    k: str
    l: str  # noqa: E741


@dataclass(frozen=True, slots=True)
class SimtLayout:
    """Everything that the template reads as `lean`."""

    products: int
    ragged: str
    a: SimtOperand
    b: tuple[SimtOperand, ...]
    factors: tuple[tuple[ScaleSlot, ...], ...]
    inputs: tuple[EpilogueTensor, ...]
    results: tuple[EpilogueTensor, ...]
    outputs: tuple[StoredResult, ...]
    call: str

    @property
    def scales(self) -> tuple[ScaleSlot, ...]:
        return tuple(slot for factor in self.factors for slot in factor)

    @property
    def pointers(self) -> tuple[EpilogueTensor, ...]:
        return (*self.inputs, *self.results)

    @property
    def stored(self) -> tuple[tuple[EpilogueTensor, StoredResult], ...]:
        return tuple(zip(self.results, self.outputs, strict=True))


def render(problem: GroupedGemmProblem, schedule: SimtSchedule) -> str:
    """The code, for `ucutlass.emit.text.finish`."""
    gemm = problem.gemm
    operation = arithmetic(gemm, problem.products)
    return template(
        "grouped_gemm/simt.cu.j2",
        includes=_INCLUDES,
        problem=problem,
        schedule=schedule,
        compute_type=gemm.compute_type.name,
        lean=_layout(problem, operation),
        arithmetic=operation,
        accumulator="int32_t" if gemm.compute_type.kind == "int" else "float",
        extents=[extent(product) for product in (gemm.m, gemm.n, gemm.k[0])],
        batch=extent(gemm.batch[0]) if gemm.batch else "1",
        part=extent(problem.scaled.length) if problem.scaled is not None else "K",
    )


def _layout(problem: GroupedGemmProblem, operation: ArithmeticText) -> SimtLayout:
    gemm = problem.gemm
    rights = [gemm.b] if problem.second is None else [gemm.b, problem.second]
    inputs = tuple(
        EpilogueTensor(f"in{i}", a, element(a.elem), "direct", True) for i, a in enumerate(gemm.inputs)
    )
    results = tuple(
        EpilogueTensor(f"out{j}", o.access, element(o.access.elem), "direct", False)
        for j, o in enumerate(gemm.outputs)
    )
    return SimtLayout(
        products=problem.products,
        ragged=problem.ragged.mode if problem.ragged else "",
        a=_operand("a", gemm.a, gemm.a.m),
        b=tuple(_operand(f"b{i}", b, b.n) for i, b in enumerate(rights)),
        factors=factors_of(problem.scaled),
        inputs=inputs,
        results=results,
        outputs=stored_results(results, operation),
        call=_call(operation, inputs, problem),
    )


def _operand(name: str, access: Access, row: Stride) -> SimtOperand:
    batch = access.batch[0] if access.batch else None
    row_, k, l_ = ("0" if s is None else extent(s) for s in (row, access.k[0], batch))
    data = "Nibbles" if access.elem.packed > 1 else f"{element(access.elem)} const*"
    return SimtOperand(name, data, access.pointer, row_, k, l_)


def _call(operation: ArithmeticText, inputs: tuple[EpilogueTensor, ...], problem: GroupedGemmProblem) -> str:
    names = ["m", "n", *(["l"] * operation.batch)]
    return operation.call(
        "p.arithmetic",
        names if operation.coordinates else ["0"] * len(names),
        "scaled[r][c]" if problem.scaled else ", ".join(f"sums[{i}][r][c]" for i in range(problem.products)),
        [
            f"{slot.name} != 0" if kind == "bool" else f"{CPP[kind]}({slot.name})"
            for slot, kind in zip(inputs, operation.inputs, strict=True)
        ],
        [f"out{j}" for j in range(len(operation.outputs))],
    )

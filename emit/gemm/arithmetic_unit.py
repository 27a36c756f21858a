"""The arithmetic of an epilogue as a translation unit of its own, which nvJitLink links with a skeleton.

The skeleton (`ucutlass.emit.gemm.lean`) holds everything but the function `ucc_arithmetic`, which it
declares `extern "C"`: kernels that differ in their arithmetic alone share a skeleton. The struct of the
function's parameters, and whether it reads coordinates, belong to the skeleton, whose host code fills them.
"""

from __future__ import annotations

from ucutlass.emit.arithmetic import ArithmeticText, row_arguments
from ucutlass.emit.functions import CPP
from ucutlass.emit.text import render
from ucutlass.ir.elements import ELEMENTS, F32

KERNEL_NAME = "ucc_cutlass_kernel"
"""The kernel's symbol in the linked image."""

ROUNDED = tuple(e for e in ELEMENTS.values() if e.kind == "float" and e.mantissa < F32.mantissa)
"""Elements that an arithmetic may round to."""


def arithmetic_text(operation: ArithmeticText) -> str:
    """Returns the CUDA file that defines `ucc_arithmetic`, for NVRTC."""
    device = (operation.functions, operation.struct, operation.function)
    return render(
        "gemm/arithmetic_unit.cu.j2",
        text="\n".join(part for part in device if part),
        definition=declaration(operation, "unit::"),
        call=f"ucc_arithmetic({', '.join(name for _, name in _signature(operation))})",
        rounded=ROUNDED,
    )


def declaration(operation: ArithmeticText, scope: str = "") -> str:
    """Returns the declaration that skeleton and arithmetic share; `scope` goes before its parameters' struct."""
    parameters = ", ".join(f"{cpp} {name}" for cpp, name in _signature(operation))
    return f'extern "C" __device__ void ucc_arithmetic({scope}{parameters})'


def _signature(operation: ArithmeticText) -> list[tuple[str, str]]:
    """Types and names, as `ucutlass.emit.arithmetic` lists them."""
    return [
        ("ArithmeticParams const&", "p"),
        *(("int", name) for name in ("m", "n", *(f"b{i}" for i in range(operation.batch)))),
        (CPP[operation.accumulator], "acc"),
        *((CPP[kind], f"in{i}") for i, kind in enumerate(operation.inputs)),
        *((f"{CPP[kind]}&", f"out{j}") for j, kind in enumerate(operation.outputs)),
        *row_arguments(operation.statistics, operation.keeps),
    ]

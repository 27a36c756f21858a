"""A Hopper kernel in two parts: a skeleton that is built once, and the arithmetic of its epilogue.

The skeleton holds everything but the function `ucc_arithmetic`, which it declares `extern "C"`: what
differs in its arithmetic alone shares a skeleton. The struct of the function's parameters, and
whether it reads coordinates, belong to the skeleton, whose host code fills them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ucutlass.emit.arithmetic import ArithmeticText, arithmetic
from ucutlass.emit.functions import CPP
from ucutlass.emit.gemm import sm90 as gemm_sm90
from ucutlass.emit.gemm.sm90 import NotServed
from ucutlass.emit.text import Source, finish, render
from ucutlass.ir.elements import ELEMENTS, F32
from ucutlass.kernels.gemm.plan import GemmPlan, Sm90Schedule

__all__ = ["KERNEL_NAME", "ROUNDED", "NotServed", "Staged", "arithmetic_text", "declaration", "stage"]

KERNEL_NAME = "ucc_cutlass_kernel"
"""The kernel's symbol in the linked image."""

ROUNDED = tuple(e for e in ELEMENTS.values() if e.kind == "float" and e.mantissa < F32.mantissa)
"""Elements that an arithmetic may round to."""


@dataclass(frozen=True, slots=True)
class Staged:
    """`skeleton` is compiled for the device as it is and for the host with UCC_HOST_PASS; its `entry`
    names the content. `arithmetic` is a CUDA file for NVRTC that defines `ucc_arithmetic`."""

    skeleton: Source
    arithmetic: str


def stage(plan: GemmPlan) -> Staged:
    """The plan's kernel in two parts. Raises NotServed."""
    if not isinstance(plan.schedule, Sm90Schedule):
        raise NotServed("only TMA kernels for sm90a are built in stages")
    operation = arithmetic(plan.problem)
    code = gemm_sm90.render(
        plan,
        "gemm/sm90_skeleton.j2",
        declaration=declaration(operation),
        kernel_name=KERNEL_NAME,
        rounded=ROUNDED,
    )
    return Staged(
        skeleton=finish(code, "", "sm_" + plan.arch.removeprefix("sm")), arithmetic=arithmetic_text(operation)
    )


def arithmetic_text(operation: ArithmeticText) -> str:
    """The CUDA file that defines `ucc_arithmetic`, for NVRTC."""
    device = (operation.functions, operation.struct, operation.function)
    return render(
        "gemm/arithmetic_staged.cu.j2",
        text="\n".join(part for part in device if part),
        definition=declaration(operation, "staged::"),
        call=f"ucc_arithmetic({', '.join(name for _, name in _signature(operation))})",
        rounded=ROUNDED,
    )


def declaration(operation: ArithmeticText, scope: str = "") -> str:
    """The function that skeleton and arithmetic meet in; `scope` goes before its parameters' struct."""
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
    ]

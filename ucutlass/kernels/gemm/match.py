"""The pattern of a GEMM: one dot of two stored operands, batched, with a fused epilogue.

A pattern speaks of names and serves every shape; `ucutlass.kernels.gemm.problem` gives it extents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ucutlass import ir
from ucutlass.check.indexing import is_rename
from ucutlass.ir.elements import F32, TF32
from ucutlass.kernels.addresses import Operand, operand
from ucutlass.kernels.epilogue import EpiloguePattern, epilogue
from ucutlass.kernels.refused import Refused

STORED = ("f32", "f16", "bf16", "e4m3", "e5m2", "s8", "i32", "bool")
"""Element types that the GEMM kernels write."""

LOADED = ("f32", "f16", "bf16", "e4m3", "e5m2", "s8", "u8", "i32", "bool")
"""Element types of epilogue operands that the GEMM kernels read."""


@dataclass(frozen=True, slots=True)
class GemmPattern:
    """A kernel seen as D = epilogue(A B). Roles list dimension names:

    `m` only A has, `n` only B has, `k` are summed, `batch` both have.
    """

    kernel: ir.Kernel
    dot: ir.Dot
    a: Operand
    b: Operand
    m: tuple[str, ...]
    n: tuple[str, ...]
    k: tuple[str, ...]
    batch: tuple[str, ...]
    epilogue: EpiloguePattern

    @property
    def tensors(self) -> tuple[Operand, ...]:
        """Every tensor that the kernel touches, the result's first: their orders decide what merges."""
        return (*(o.tensor for o in self.epilogue.outputs), self.a, self.b, *self.epilogue.inputs)

    @property
    def position(self) -> Mapping[str, int]:
        """Where each dimension stands in the extent array."""
        return {name: i for i, name in enumerate(self.kernel.dims)}


def match_gemm(kernel: ir.Kernel, dot: ir.Dot) -> GemmPattern:
    """The pattern of a kernel with this one dot. Raises Refused."""
    a = _dot_operand(kernel, dot.left)
    b = _dot_operand(kernel, dot.right)
    k = dot.over
    m = tuple(d for d in dot.left.dims if d not in dot.right.dims)
    n = tuple(d for d in dot.right.dims if d not in dot.left.dims)
    return GemmPattern(
        kernel,
        dot,
        a,
        b,
        m=m,
        n=n,
        k=k,
        batch=tuple(d for d in dot.left.dims if d in dot.right.dims and d not in k),
        epilogue=epilogue(kernel, dot, STORED, LOADED, rows=tuple(names for names in (m, n) if names)),
    )


def _dot_operand(kernel: ir.Kernel, value: ir.Value) -> Operand:
    rename: dict[str, str] = {}
    compute_type = value.elem
    if isinstance(value, ir.Cast) and value.elem is TF32 and value.value.elem is F32:
        value = value.value
    while isinstance(value, ir.Read):
        if not is_rename(value, kernel.dims):
            what = "a dot over windows of an operand (x[M = J] is none where the types say J=M)"
            raise Refused.no_family(kernel, what, value.span)
        rename |= {p.dim: rename.get(p.at.terms[0][0], p.at.terms[0][0]) for p in value.positions}
        value = value.value
    match value:
        case ir.ParamValue(index):
            type_ = kernel.params[index].type
            if isinstance(type_, ir.TensorType):
                return operand(type_, pointer(kernel, index), value.span, rename)
            raise Refused("UC0302", "an operand of dot is a tensor in memory", value.span)
        case ir.Gather():
            raise Refused.no_family(kernel, "a dot over gathered or segmented operands", value.span)
        case ir.Cast(inner) if isinstance(inner, ir.ParamValue):
            raise Refused(
                "UC0308",
                f"{compute_type.name}(..) of a {inner.elem.name} operand needs a pass over memory before the dot",
                value.span,
                f"store it first, in a pipeline: h: {compute_type.name}[..] = ..",
            )
        case _:
            raise Refused(
                "UC0302",
                "the operands of dot are read as they lie in memory; only tf32(..) may stand around them",
                value.span,
                f"store it first, in a pipeline: h: {compute_type.name}[..] = ..",
            )


def pointer(kernel: ir.Kernel, param: int) -> int:
    """A tensor parameter's place in the pointer array."""
    return sum(isinstance(p.type, ir.TensorType) for p in kernel.params[:param])

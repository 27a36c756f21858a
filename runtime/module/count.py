"""Counting functions: what ATen operators must compute; `ucutlass.runtime.module.operators` maps operators to
them.

A count is of the operator as it is written: a product of matrices is the schoolbook sum (no Strassen), a
convolution the direct one (no Winograd, no FFT), with a multiply-add as two operations. Positions in the
padding are not counted, nor pairs that a causal mask leaves out, since no kernel need compute them. Where the
usual kernel does more than some kernel must, the smaller count is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ucutlass.runtime.module.graph import Ref, TensorMeta


@dataclass(frozen=True, slots=True)
class OperationCount:
    """`products` counts multiply-adds as two, of a matrix product or a convolution that a tensor core could
    do; `arithmetic` counts other additions and multiplications; `special` counts functions such as exp, log,
    tanh, rsqrt, erf and the reciprocal, each as one."""

    products: int = 0
    arithmetic: int = 0
    special: int = 0
    kind: Literal["matmul", "convolution"] = "matmul"


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """An operator's call: arguments by name, with a tensor in place of each reference."""

    arguments: Mapping[str, Any]
    outputs: tuple[TensorMeta | None, ...]

    @property
    def out(self) -> TensorMeta:
        """The first result."""
        first = self.outputs[0]
        assert first is not None
        return first

    def tensor(self, name: str) -> TensorMeta:
        value = self.arguments[name]
        assert isinstance(value, TensorMeta)
        return value


Count: TypeAlias = Callable[[OperatorCall], OperationCount]


def resolve(value: Any, tensors: Mapping[Ref, TensorMeta]) -> Any:
    """Returns an argument with its references replaced by the tensors that they name."""
    match value:
        case Ref():
            return tensors[value]
        case list() | tuple():
            return [resolve(item, tensors) for item in value]
        case _:
            return value


# --- products ---------------------------------------------------------------------


def mm(left: str, right: str, last: bool = False) -> Count:
    """Counts `[.., M, K]` by `[.., K, N]`, or with `last` by `[N, K]`; an added operand may start the sum."""

    def count(call: OperatorCall) -> OperationCount:
        assert call.tensor(left).shape[-1] == call.tensor(right).shape[-1 if last else -2]
        return OperationCount(2 * call.out.elements * call.tensor(left).shape[-1])

    return count


def dot(call: OperatorCall) -> OperationCount:
    return OperationCount(2 * call.tensor("self").elements)


def mv(vector: str) -> Count:
    return lambda call: OperationCount(2 * call.out.elements * call.tensor(vector).elements)


def cdist(call: OperatorCall) -> OperationCount:
    """Counts squared distances as norms less twice a product, which is the cheapest known form; other norms
    cost at least an addition for each coordinate of each pair."""
    each = call.out.elements * call.tensor("x1").shape[-1]
    return OperationCount(2 * each) if call.arguments.get("p") == 2 else OperationCount(arithmetic=each)


def inside(extent: int, count: int, stride: int, offset: int) -> int:
    """Returns how many of `offset + i * stride`, i below `count`, lie in [0, extent)."""
    first = max(0, -(offset // stride))
    last = min(count - 1, (extent - 1 - offset) // stride)
    return max(0, last - first + 1)


def window_pairs(extent: int, outs: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """Returns the pairs of an output and a kernel position of one dimension that meet an input rather than
    padding."""
    return sum(inside(extent, outs, stride, j * dilation - padding) for j in range(kernel))


def touched(extent: int, outs: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """Returns the number of distinct inputs of one dimension that windows meet: fewer than all where the
    stride skips some."""
    met = bytearray(extent)
    for j in range(kernel):
        offset = j * dilation - padding
        if n := inside(extent, outs, stride, offset):
            start = offset + max(0, -(offset // stride)) * stride
            met[start : start + (n - 1) * stride + 1 : stride] = b"\1" * n
    return sum(met)


def _each(value: Any, dimensions: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * dimensions if len(values) == 1 else values


def convolution_windows(call: OperatorCall) -> list[tuple[int, int, int, int, int, int]]:
    """Returns the arguments of `window_pairs` for each spatial dimension of a convolution; for a transposed
    one input and output are exchanged."""
    x, w, out = call.tensor("input").shape[2:], call.tensor("weight").shape[2:], call.out.shape[2:]
    n = len(w)
    a = call.arguments
    stride, padding, dilation = (_each(a[name], n) for name in ("stride", "padding", "dilation"))
    large, small = (out, x) if a["transposed"] else (x, out)
    return list(zip(large, small, w, stride, padding, dilation, strict=True))


def convolution(call: OperatorCall) -> OperationCount:
    """Counts a convolution. PyTorch's weight is [out, in / groups, ..], transposed [in, out / groups, ..]:
    either way its first two extents give the channel pairs."""
    pairs = math.prod(window_pairs(*window) for window in convolution_windows(call))
    weight = call.tensor("weight").shape
    return OperationCount(
        2 * call.tensor("input").shape[0] * weight[0] * weight[1] * pairs, kind="convolution"
    )


def attention_pairs(queries: int, keys: int, causal: bool) -> int:
    """Returns the number of scores that are not masked; PyTorch's causal mask is aligned at the top
    left."""
    if not causal:
        return queries * keys
    full = max(0, queries - keys)
    short = min(queries, keys)
    return full * keys + short * (short + 1) // 2


def attention(call: OperatorCall) -> OperationCount:
    """Counts two products per score, and for the softmax an exponential and an addition."""
    q, k, v = (call.tensor(n).shape for n in ("query", "key", "value"))
    scores = math.prod(q[:-2]) * attention_pairs(q[-2], k[-2], bool(call.arguments.get("is_causal")))
    return OperationCount(2 * scores * (q[-1] + v[-1]), scores, scores)


# --- one value at a time ----------------------------------------------------------


def each_element(arithmetic: int, special: int = 0) -> Count:
    """Counts operations per element of the first result."""
    return lambda call: OperationCount(
        arithmetic=arithmetic * call.out.elements, special=special * call.out.elements
    )


def arithmetic(call: OperatorCall) -> OperationCount:
    """Counts an addition or multiplication of two tensors as large as the result. With a number, a row or a
    channel it may be folded into its neighbours (a scale into weights, a bias into a sum) and costs
    nothing."""
    operands = [v for v in call.arguments.values() if isinstance(v, TensorMeta)]
    large = [t for t in operands if t.elements == call.out.elements]
    return OperationCount(arithmetic=call.out.elements if len(large) > 1 else 0)


def quotient(call: OperatorCall) -> OperationCount:
    """Counts a reciprocal of each divisor that is a tensor, and a multiplication."""
    other = call.arguments.get("other")
    special = other.elements if isinstance(other, TensorMeta) else 0
    return OperationCount(arithmetic=arithmetic(call).arithmetic, special=special)


def power(call: OperatorCall) -> OperationCount:
    """Counts an integer power as at least one multiplication, any other as at least one special function."""
    n, exponent = call.out.elements, call.arguments.get("exponent")
    if isinstance(exponent, int | float) and float(exponent).is_integer() and exponent >= 0:
        return OperationCount(arithmetic=n if exponent > 1 else 0)
    return OperationCount(special=n)


# --- many values to one -----------------------------------------------------------


def reduction(arithmetic: int, special: int = 0) -> Count:
    """Counts operations per element of `self`; the operation that joins elements counts one less for each
    result."""

    def count(call: OperatorCall) -> OperationCount:
        n = call.tensor("self").elements
        return OperationCount(arithmetic=max(0, arithmetic * n - call.out.elements), special=special * n)

    return count


def per_input(name: str, arithmetic: int, special: int = 0) -> Count:
    def count(call: OperatorCall) -> OperationCount:
        n = call.tensor(name).elements
        return OperationCount(arithmetic=arithmetic * n, special=special * n)

    return count


def pool(call: OperatorCall) -> OperationCount:
    """Counts every input that a window meets once: overlapping windows can share partial results."""
    return OperationCount(arithmetic=pooled(call))


def pooled(call: OperatorCall) -> int:
    """Returns the number of inputs that the windows of a pooling meet."""
    x, kernel = call.tensor("self"), call.arguments["kernel_size"]
    n = len(call.out.shape) - 1 if isinstance(kernel, int) else len(kernel)
    sizes = _each(kernel, n)
    stride = _each(call.arguments.get("stride") or sizes, n)
    padding = _each(call.arguments.get("padding", 0), n)
    dilation = _each(call.arguments.get("dilation", 1), n)
    windows = zip(x.shape[-n:], call.out.shape[-n:], sizes, stride, padding, dilation, strict=True)
    return math.prod(x.shape[:-n]) * math.prod(touched(*window) for window in windows)


def free(_: OperatorCall) -> OperationCount:
    """Counts nothing: the operator moves or makes values and computes none."""
    return OperationCount()

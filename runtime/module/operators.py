"""Classifies ATen operators as views, moves and makers of values, and maps each to its counting function."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from ucutlass.runtime.module.count import (
    Count,
    arithmetic,
    attention,
    cdist,
    convolution,
    dot,
    each_element,
    free,
    mm,
    mv,
    per_input,
    pool,
    power,
    quotient,
    reduction,
)


def _aten(names: str) -> frozenset[str]:
    return frozenset(f"aten.{name}" for name in names.split())


def _all(names: str, count: Count) -> dict[str, Count]:
    return dict.fromkeys(_aten(names), count)


VIEWS = _aten(
    "view reshape _unsafe_view permute transpose t expand slice select unsqueeze squeeze split "
    "split_with_sizes unbind chunk diagonal as_strided alias detach unfold lift_fresh view_as_real "
    "view_as_complex"
)
"""Operators that return another view of the same memory: no bytes, no operations."""

MOVES = _aten(
    "clone copy _to_copy lift_fresh_copy cat stack constant_pad_nd reflection_pad1d reflection_pad2d "
    "reflection_pad3d replication_pad1d replication_pad2d replication_pad3d flip roll repeat "
    "repeat_interleave index index_select gather embedding index_put scatter slice_scatter select_scatter "
    "masked_fill where triu tril tile pixel_shuffle pixel_unshuffle upsample_nearest1d upsample_nearest2d "
    "upsample_nearest3d im2col fill one_hot"
)
"""Operators that copy, choose or place values and compute none."""

CREATES = _aten(
    "arange full full_like zeros zeros_like ones ones_like empty empty_like empty_strided empty_permuted "
    "scalar_tensor new_zeros new_ones new_full new_empty eye linspace rand rand_like randn randn_like "
    "randint randperm"
)
"""Operators that make values from none: a tensor argument only gives its shape."""

SCATTERS = _aten("slice_scatter select_scatter index_put scatter fill copy")
"""Operators that write over a part of `self` and keep the rest."""

_PRODUCTS: Mapping[str, Count] = {
    "aten.mm": mm("self", "mat2"),
    "aten.bmm": mm("self", "mat2"),
    "aten._int_mm": mm("self", "mat2"),
    "aten._scaled_mm": mm("self", "mat2"),
    "aten.addmm": mm("mat1", "mat2"),
    "aten.baddbmm": mm("batch1", "batch2"),
    "aten.linear": mm("input", "weight", last=True),
    "aten.dot": dot,
    "aten.vdot": dot,
    "aten.mv": mv("vec"),
    "aten.convolution": convolution,
    "aten._cdist_forward": cdist,
} | _all(
    "scaled_dot_product_attention _scaled_dot_product_flash_attention "
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention "
    "_scaled_dot_product_cudnn_attention",
    attention,
)

_POINTWISE: Mapping[str, Count] = (
    _all("neg abs sign ge gt le lt eq ne logical_and logical_or logical_not logical_xor", free)
    | _all("isnan isinf bitwise_and bitwise_or bitwise_not bitwise_xor bernoulli heaviside", free)
    | _all("relu clamp clamp_min clamp_max minimum maximum hardtanh relu6 threshold", free)
    | _all("ceil floor round trunc max.other min.other hardshrink floor_divide native_dropout", free)
    | _all("add sub rsub mul", arithmetic)
    | {"aten.div": quotient, "aten.pow": power}
    | _all("leaky_relu prelu _prelu_kernel lerp addcmul softshrink square", each_element(1))
    | _all("hardsigmoid hardswish fmod remainder", each_element(1))
    | _all("upsample_linear1d upsample_bilinear2d upsample_trilinear3d", each_element(1))
    | _all("exp exp2 log log2 log10 sqrt rsqrt sin cos tanh reciprocal sigmoid", each_element(0, 1))
    | _all("atan tan asin acos sinh cosh asinh acosh atanh erf erfc atan2", each_element(0, 1))
    | _all("log1p expm1 softplus elu celu log_sigmoid_forward", each_element(0, 1))
    | _all("gelu silu selu mish addcdiv", each_element(1, 1))
)
"""Comparisons, selections, minima and magnitudes cost nothing, as in `ucutlass.sol.costs`."""

_REDUCTIONS: Mapping[str, Count] = (
    _all("amax amin max min argmax argmin any all aminmax count_nonzero cummax cummin", free)
    | _all("max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices", free)
    | _all("adaptive_max_pool2d adaptive_max_pool3d nll_loss_forward", free)
    | _all("sum mean prod nansum linalg_vector_norm", reduction(1))
    | _all("var std var_mean std_mean", reduction(3))
    | _all("logsumexp", reduction(1, 1))
    | _all("cumsum cumprod", per_input("self", 1))
    | _all("logcumsumexp", per_input("self", 1, 1))
    | _all("_softmax _safe_softmax _log_softmax", per_input("self", 1, 1))
    | _all("layer_norm native_layer_norm group_norm native_group_norm", per_input("input", 3))
    | _all("native_batch_norm _native_batch_norm_legit cudnn_batch_norm", per_input("input", 3))
    | _all("_native_batch_norm_legit_functional", per_input("input", 3))
    | _all("_native_batch_norm_legit_no_training", free)
    | _all("rms_norm _fused_rms_norm", per_input("input", 2))
    | _all("avg_pool1d avg_pool2d avg_pool3d", pool)
    | _all("_adaptive_avg_pool2d _adaptive_avg_pool3d", per_input("self", 1))
    | _all("mse_loss smooth_l1_loss huber_loss", per_input("self", 2))
)
"""Sums cost one operation per element, a variance three (one to sum, a multiply-add to square); steps with a
value of the row or channel may be folded into their neighbours and cost nothing."""

OPERATORS: Mapping[str, Count] = MappingProxyType(
    {**dict.fromkeys(VIEWS | MOVES | CREATES | SCATTERS, free), **_PRODUCTS, **_POINTWISE, **_REDUCTIONS}
)
"""Counting functions by operator, `aten.NAME` or with its overload; the more specific entry is used."""


def counter(op: str) -> Count | None:
    """Returns the counting function of `aten.NAME.OVERLOAD`; None where the table does not have it."""
    return OPERATORS.get(op) or OPERATORS.get(_packet(op))


def _packet(op: str) -> str:
    return ".".join(op.split(".")[:2])


def counted_whole(op: str) -> bool:
    """Returns whether an operator is counted as it is and need not be decomposed; PyTorch's exporter does not
    let views stay whole."""
    return counter(op) is not None and not is_in(op, VIEWS)


def is_in(op: str, names: Collection[str]) -> bool:
    """Returns whether a set of operators has this one, with or without its overload."""
    return op in names or _packet(op) in names

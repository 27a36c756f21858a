"""What the operators of AOTAutograd's graphs become: the importer's rules, and those of operators that
torch.export leaves whole."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ucutlass.importer.expressions import add, call, number, operand
from ucutlass.importer.operators import RULES as EXPORT_RULES
from ucutlass.importer.operators.builder import Arguments, GraphBuilder, ValueRef
from ucutlass.importer.operators.pointwise import Rule
from ucutlass.importer.operators.reductions import reduce

_ATTENTION = EXPORT_RULES["aten.scaled_dot_product_attention.default"]
_LAYER_NORM = EXPORT_RULES["aten.layer_norm.default"]

_MASKS = {"attn_bias": "attn_mask"}
"""The arguments of a device's attention that the composite operator calls otherwise."""


def _attention(b: GraphBuilder, a: Arguments) -> tuple[ValueRef | None, ...]:
    """A device's own attention, of which the first result alone is given: the rest serves its gradient."""
    if a.get("return_debug_mask"):
        raise b.fail("the weights of attention are asked for")
    named = {_MASKS.get(name, name): value for name, value in a.named.items()}
    result = _ATTENTION(b, Arguments(named, a.results))
    assert isinstance(result, ValueRef)
    return (result, *(None for _ in a.results[1:]))


def _layer_norm(b: GraphBuilder, a: Arguments) -> tuple[ValueRef, ...]:
    """The norm, and for its gradient the means and the reciprocals of standard deviations."""
    x, result = a["input"], _LAYER_NORM(b, a)
    assert isinstance(result, ValueRef)
    rank = len(b.shape(x))
    dims = tuple(range(rank - len(a["normalized_shape"]), rank))
    element = a.results[1].element
    mean = reduce(b, x, "mean", dims, True, element, "mean")
    variance = reduce(b, x, "var", dims, True, element, "var")
    rstd = b.pointwise(call("rsqrt", add(operand(0), number(a["eps"]))), [variance], element, "rstd")
    return result, mean, rstd


def _group_norm(b: GraphBuilder, a: Arguments) -> tuple[ValueRef | None, ...]:
    named = {
        "input": a["input"],
        "num_groups": a["group"],
        "weight": a["weight"],
        "bias": a["bias"],
        "eps": a["eps"],
    }
    result = EXPORT_RULES["aten.group_norm.default"](b, Arguments(named, a.results))
    assert isinstance(result, ValueRef)
    return result, None, None


DEVICE_ATTENTION = (
    "aten._scaled_dot_product_flash_attention.default",
    "aten._scaled_dot_product_efficient_attention.default",
    "aten._scaled_dot_product_cudnn_attention.default",
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
)

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **EXPORT_RULES,
        **dict.fromkeys(DEVICE_ATTENTION, _attention),
        "aten.native_group_norm.default": _group_norm,
        "aten.native_layer_norm.default": _layer_norm,
    }
)
"""By the overload's name."""

"""The feature tables of all kernel families, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from benchmarks.attention_pairs import ATTENTION
from benchmarks.convolution_pairs import CONVOLUTION
from benchmarks.gemm_pairs import GEMM
from benchmarks.pairs import Space
from benchmarks.product_pairs import PRODUCTS
from benchmarks.reduction_pairs import REDUCTIONS

SPACES: Mapping[str, Space] = MappingProxyType(
    {space.name: space for space in (REDUCTIONS, GEMM, PRODUCTS, ATTENTION, CONVOLUTION)}
)

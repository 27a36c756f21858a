"""The feature tables of all kernel families, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from benchmarks.attention_pairs import ATTENTION
from benchmarks.convolution_pairs import CONVOLUTION
from benchmarks.gemm_pairs import GEMM
from benchmarks.grouped_gemm_pairs import GROUPED_GEMMS
from benchmarks.pairs import Space
from benchmarks.reduction_pairs import REDUCTIONS

SPACES: Mapping[str, Space] = MappingProxyType(
    {space.name: space for space in (REDUCTIONS, GEMM, GROUPED_GEMMS, ATTENTION, CONVOLUTION)}
)

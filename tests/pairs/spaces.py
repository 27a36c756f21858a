"""The feature tables of all kernel families, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tests.pairs.attention import ATTENTION
from tests.pairs.convolution import CONVOLUTION
from tests.pairs.gemm import GEMM
from tests.pairs.grouped_gemm import GROUPED_GEMMS
from tests.pairs.pairs import Space
from tests.pairs.reduction import REDUCTIONS

SPACES: Mapping[str, Space] = MappingProxyType(
    {space.name: space for space in (REDUCTIONS, GEMM, GROUPED_GEMMS, ATTENTION, CONVOLUTION)}
)

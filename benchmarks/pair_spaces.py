"""The feature tables of all kernel families, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from benchmarks.pairs import Space
from benchmarks.reduction_pairs import REDUCTIONS

SPACES: Mapping[str, Space] = MappingProxyType({space.name: space for space in (REDUCTIONS,)})

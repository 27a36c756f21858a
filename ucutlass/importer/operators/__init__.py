"""What each operator of core ATen becomes: one table from the operator's overload to its rule."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ucutlass.importer.operators import losses, pointwise, products, reductions, torch_stages, views, windows
from ucutlass.importer.operators.pointwise import Rule

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **pointwise.RULES,
        **reductions.RULES,
        **losses.RULES,
        **products.RULES,
        **windows.RULES,
        **views.RULES,
        **torch_stages.RULES,
    }
)
"""By the overload's name, such as `aten.relu.default`. Operators that have a rule arrive whole from
torch.export; the others are decomposed to those that have."""

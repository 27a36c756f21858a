"""The rules, in one table. Every one holds for all inputs; `AlgebraRule.holds` says of which values it is exact."""

from __future__ import annotations

from ucutlass.algebra import elementwise_rules, read_rules, reduction_rules, softmax_rules
from ucutlass.algebra.rule import AlgebraRule

RULES: tuple[AlgebraRule, ...] = (
    *reduction_rules.TABLE,
    *softmax_rules.TABLE,
    *read_rules.TABLE,
    *elementwise_rules.TABLE,
)

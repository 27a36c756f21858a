"""Renders the in-context guide: prose from `grammar/guide.md.j2`, every table from the compiler's own."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import get_args

from jinja2 import Environment, StrictUndefined

from ucutlass import grammar, ir
from ucutlass.ir.compute_types import COMPUTE_TYPES
from ucutlass.ir.elements import ELEMENTS
from ucutlass.ir.functions import NAMED, ElementwiseFunction
from ucutlass.ir.hardware import ARCHES
from ucutlass.ir.schedule import FIELDS, ScheduleField, legal_values
from ucutlass.kernels.families import FAMILIES, RULES
from ucutlass.kernels.variant import Variant

LIMIT = 10_000
"""Most characters that the guide may take in a context."""


@cache
def guide() -> str:
    """The whole language in at most LIMIT characters of Markdown."""
    template = (Path(grammar.__file__).parent / "guide.md.j2").read_text(encoding="utf-8")
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    return environment.from_string(template).render(
        accumulations="; ".join(
            f"{compute_type.elem.name} {' or '.join(compute_type.accumulations)}"
            for compute_type in COMPUTE_TYPES.values()
        ),
        reductions=" ".join(get_args(ir.ReduceOp)),
        functions=" ".join(_function(f) for f in NAMED.values()),
        elements=" ".join(name for name, e in ELEMENTS.items() if e.storable),
        compute_types=" ".join(COMPUTE_TYPES),
        arches=" ".join(ARCHES),
        fields="\n".join(_field(f) for f in FIELDS.values()),
        kernels={v.name: " ".join(_besides_warps(v)) for family in FAMILIES for v in family.variants},
        rules="\n".join(f"- {rule.text}" for rule in RULES if rule.in_guide),
    )


def _function(f: ElementwiseFunction) -> str:
    if len(f.parameters) == 1:
        return f.name
    required = len(f.parameters) - len(f.defaults)
    shown = [p if i < required else f"{p}={f.defaults[i - required]:g}" for i, p in enumerate(f.parameters)]
    return f"{f.name}({', '.join(shown)})"


def _besides_warps(variant: Variant) -> tuple[str, ...]:
    return tuple(name for name in variant.fields if name != "warps")


def _field(field: ScheduleField) -> str:
    values = legal_values(field).replace(", `auto`", "").replace(" in whole numbers", "")
    return f"- `{field.name}` {values}: {field.meaning}"

"""Writes a class of a Python file as a problem in KernelBench's format.

The text of such a problem is the file's own, with a few lines at its end that name the class `Model`: every
process that runs a problem runs that text, whichever way it was named.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence

from ucutlass.ir.elements import ELEMENTS
from ucutlass.runtime.module.signature import Unusable

_LINES = """

# The class as a problem in KernelBench's format.
Model = {cls}
if "get_init_inputs" not in globals():
    def get_init_inputs():
        return []
"""

_INPUTS = """
import torch as _torch
def get_inputs():
    return [{tensors}]
"""

_TYPE = re.compile(r"(\w+)\[\s*((?:\d+\s*(?:,\s*\d+\s*)*)?)\]")


def class_as_problem(file: str, source: str, cls: str, types: Sequence[str]) -> str:
    """Returns a file's text with its class `cls` as the problem's module; "" leaves the file's Model. `types` are
    those of its inputs, such as `f32[16, 1024]`: floating tensors are drawn from a normal distribution, others
    are zeros. Without types the file's own get_inputs() gives them. Raises Unusable for a text that is no
    type, and for a class that is no name."""
    if cls and (not cls.isidentifier() or keyword.iskeyword(cls)):
        raise Unusable(file, "lacks", f"{cls!r} is no name of a class")
    text = source + _LINES.format(cls=cls) if cls else source
    return text + _INPUTS.format(tensors=", ".join(_tensor(file, t) for t in types)) if types else text


def _tensor(file: str, text: str) -> str:
    element, shape = tensor_type(file, text)
    floating = ELEMENTS[element].kind == "float"
    values = f"_torch.{'randn' if floating else 'zeros'}({shape})"
    return f"{values}.to(_torch.{ELEMENTS[element].torch})"


def tensor_type(file: str, text: str) -> tuple[str, list[int]]:
    """Returns the element and the shape of a type such as `f32[16, 1024]`. Raises Unusable for a text that is no
    type."""
    matched = _TYPE.fullmatch(text.strip())
    element = ELEMENTS.get(matched[1]) if matched else None
    if matched is None or element is None or not element.storable or element.packed != 1:
        raise Unusable(file, "inputs", f"{text!r} is no type such as f32[16, 1024]")
    return matched[1], [int(n) for n in matched[2].split(",") if n.strip()]

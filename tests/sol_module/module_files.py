"""Problem files for the tests, made from a line or two."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import indent

from ucutlass.runtime.module.export import graph_of
from ucutlass.runtime.module.graph import Graph
from ucutlass.runtime.module.operators import whole
from ucutlass.runtime.module.work import LanePolicy, ModuleWork, count

_TEXT = """\
import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
{layers}

    def forward(self, {names}):
{body}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""


def problem(body: str, layers: str = "pass", **inputs: str) -> str:
    """The text of a problem file; an input is a shape, or an expression."""
    made = [f"torch.rand({v})" if re.fullmatch("[0-9, ]+", v) else v for v in inputs.values()]
    if "\n" not in body and not body.startswith("return"):
        body = f"return {body}"
    return _TEXT.format(
        layers=indent(layers, " " * 8),
        names=", ".join(inputs),
        body=indent(body, " " * 8),
        inputs=", ".join(made),
    )


def exported(folder: Path, text: str) -> Graph:
    """The graph of a file of our own: exported right here, for speed."""
    file = folder / "problem.py"
    file.write_text(text)
    return graph_of(str(file), whole)


def worked(folder: Path, text: str, policy: LanePolicy = "pytorch") -> ModuleWork:
    return count(exported(folder, text), policy)

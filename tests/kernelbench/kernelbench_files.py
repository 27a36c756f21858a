"""Problem files in KernelBench's format for the tests, made from a few lines."""

from __future__ import annotations

import re
from textwrap import dedent, indent

LINEAR = """
kernel linear(x: f32[M, K], fc_weight: f32[N, K], fc_bias: f32[N]) -> f32[M, N] {
  return relu(dot[K](x, fc_weight) + fc_bias) * 2
}
"""

_TEXT = """\
import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self{init}):
        super().__init__()
{layers}

    def forward(self, {names}):
{body}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return [{given}]
"""


def module(body: str, layers: str = "pass", init: str = "", given: str = "", **inputs: str) -> str:
    """The text of a file; `inputs` are expressions, or shapes of uniform tensors."""
    made = [f"torch.rand({v})" if re.fullmatch("[0-9, ]+", v) else v for v in inputs.values()]
    body = body if "return" in body else f"return {body}"
    return _TEXT.format(
        init=f", {init}" if init else "",
        layers=indent(dedent(layers), " " * 8),
        names=", ".join(inputs),
        body=indent(dedent(body), " " * 8),
        inputs=", ".join(made),
        given=given,
    )


def linear() -> str:
    """What `LINEAR` computes."""
    layer = "self.fc = nn.Linear(inner, outer)"
    return module("torch.relu(self.fc(x)) * 2", layer, "inner, outer", "48, 40", x="32, 48")

"""PyTorch's fast path of `nn.TransformerEncoderLayer`, which is one operator in AOTAutograd's graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.dynamo.test_backend import compiled


def layer(**options: Any) -> nn.TransformerEncoderLayer:
    torch.manual_seed(0)
    made = nn.TransformerEncoderLayer(32, 4, 48, dropout=0.1, batch_first=True, **options).eval()
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.2)
    return made


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_layer_without_a_mask_is_a_program(activation: str, norm_first: bool) -> None:
    module, x = layer(activation=activation, norm_first=norm_first), torch.randn(2, 7, 32)
    fast, report = compiled(module, fallback="error")
    with torch.no_grad():
        torch.testing.assert_close(fast(x), module(x))
    assert report.graphs and not any(graph.outside for graph in report.graphs)


def test_a_layer_with_hidden_keys_stays_pytorchs() -> None:
    module, x = layer(), torch.randn(2, 7, 32)
    hidden = torch.zeros(2, 7, dtype=torch.bool)
    hidden[0, 5:] = True
    fast, _ = compiled(module)
    with torch.no_grad():
        torch.testing.assert_close(
            fast(x, src_key_padding_mask=hidden)[:, :5], module(x, src_key_padding_mask=hidden)[:, :5]
        )

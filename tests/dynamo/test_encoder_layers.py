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


KEYS = torch.zeros(2, 7, dtype=torch.bool)
KEYS[0, 5:] = True
FUTURE = nn.Transformer.generate_square_subsequent_mask(7)
NO_KEY = torch.eye(7, dtype=torch.bool)
NO_KEY[2] = True


@pytest.mark.parametrize(
    "masks",
    [
        {"src_key_padding_mask": KEYS},
        {"src_mask": FUTURE},
        {"src_mask": FUTURE, "src_key_padding_mask": torch.where(KEYS, -torch.inf, 0.0)},
        {"src_mask": FUTURE.expand(8, 7, 7)},
        {"src_mask": NO_KEY},
    ],
)
@pytest.mark.filterwarnings("ignore:Support for mismatched")
def test_a_layer_with_a_mask_is_a_program(masks: dict[str, torch.Tensor]) -> None:
    """Also one whose third row sees no key, and is NaN."""
    module, x = layer(), torch.randn(2, 7, 32)
    fast, report = compiled(module, fallback="error")
    with torch.no_grad():
        torch.testing.assert_close(fast(x, **masks), module(x, **masks), equal_nan=True)
    assert report.graphs and not any(graph.outside for graph in report.graphs)

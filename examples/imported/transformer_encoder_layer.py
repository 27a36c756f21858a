"""A layer of BERT's encoder, as torch.nn has it."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width, heads, inner):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(
            width, heads, inner, dropout=0.0, activation="gelu", batch_first=True
        )

    def forward(self, x):
        return self.layer(x)


def get_inputs():
    return [torch.randn(16, 512, 768)]


def get_init_inputs():
    return [768, 12, 3072]

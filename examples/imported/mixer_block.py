"""A block of MLP-Mixer: products over tokens, then over channels."""

import torch
from torch import nn


class MLP(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.fc1 = nn.Linear(width, inner)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(inner, width)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class Model(nn.Module):
    def __init__(self, tokens, channels):
        super().__init__()
        self.norm1 = nn.LayerNorm(channels)
        self.mlp_tokens = MLP(tokens, 384)
        self.norm2 = nn.LayerNorm(channels)
        self.mlp_channels = MLP(channels, 4 * channels)

    def forward(self, x):
        x = x + self.mlp_tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.mlp_channels(self.norm2(x))


def get_inputs():
    return [torch.randn(32, 196, 768)]


def get_init_inputs():
    return [196, 768]

"""Squeeze-and-excitation: channels are scaled by what a small network says of their means."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels, reduced):
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, reduced, 1)
        self.fc2 = nn.Conv2d(reduced, channels, 1)

    def forward(self, x):
        scale = torch.relu(self.fc1(self.pool(x)))
        return x * torch.sigmoid(self.fc2(scale))


def get_inputs():
    return [torch.randn(64, 256, 28, 28)]


def get_init_inputs():
    return [256, 64]

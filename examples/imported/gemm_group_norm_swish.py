"""A product with a bias, a group norm and two swishes with a factor between, in the manner of KernelBench's level 2."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, inner, outer, groups):
        super().__init__()
        self.gemm = nn.Linear(inner, outer)
        self.group_norm = nn.GroupNorm(groups, outer)
        self.multiply_weight = nn.Parameter(torch.randn(outer))

    def forward(self, x):
        x = self.group_norm(self.gemm(x))
        x = x * torch.sigmoid(x)
        x = x * self.multiply_weight
        return x * torch.sigmoid(x)


def get_inputs():
    return [torch.rand(1024, 8192)]


def get_init_inputs():
    return [8192, 8192, 256]

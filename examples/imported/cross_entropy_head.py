"""The head of a language model with its loss."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, width, vocabulary):
        super().__init__()
        self.lm_head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, hidden, labels):
        logits = self.lm_head(hidden)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def get_inputs():
    return [torch.randn(4, 512, 1024), torch.randint(0, 32000, (4, 512))]


def get_init_inputs():
    return [1024, 32000]

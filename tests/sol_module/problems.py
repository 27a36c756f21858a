"""Small PyTorch modules with the shapes and operations of KernelBench problems, written for this table.

None of KernelBench's own code is here: each module is made from a line that says its inputs, its
layers and its expression. Shapes and problem numbers are those of KernelBench main at 423217d.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_TEMPLATE = """\
import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
{layers}

    def forward(self, {names}):
        return {forward}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""


@dataclass(frozen=True, slots=True)
class Problem:
    """`inputs` and `layers` map names to expressions, a tensor input by its shape alone. `bytes_more`
    and `flops_more` are what the graph must count beyond the independent figures, exactly, and
    `why` the reason; zero and empty where both must agree to the last unit."""

    level: int
    number: int
    inputs: dict[str, str]
    forward: str
    layers: dict[str, str] = field(default_factory=dict)
    bytes_more: int = 0
    flops_more: int = 0
    why: str = ""

    @property
    def key(self) -> str:
        return f"L{self.level}-{self.number}"

    @property
    def source(self) -> str:
        """The text of the problem file."""
        layers = [f"self.{name} = {expression}" for name, expression in self.layers.items()] or ["pass"]
        inputs = [f"torch.rand({v})" if v[0].isdigit() else v for v in self.inputs.values()]
        return _TEMPLATE.format(
            layers="\n".join(f"        {line}" for line in layers),
            names=", ".join(self.inputs),
            forward=self.forward,
            inputs=", ".join(inputs),
        )


def _gemm(number: int, a: str, b: str, forward: str = "a @ b") -> Problem:
    return Problem(1, number, {"a": a, "b": b}, forward)


def _map(number: int, forward: str, shape: str = "4096, 393216") -> Problem:
    return Problem(1, number, {"x": shape}, forward)


def _layer(
    number: int, shape: str, expression: str, bytes_more: int = 0, flops_more: int = 0, why: str = ""
) -> Problem:
    return Problem(
        1, number, {"x": shape}, "self.layer(x)", {"layer": expression}, bytes_more, flops_more, why
    )


def _linear(
    number: int,
    forward: str,
    layers: dict[str, str] | None = None,
    *,
    rows: int = 1024,
    k: int = 8192,
    n: int = 8192,
    bias: bool = True,
    bytes_more: int = 0,
    why: str = "",
) -> Problem:
    linear = {"linear": f"nn.Linear({k}, {n}, bias={bias})"}
    return Problem(2, number, {"x": f"{rows}, {k}"}, forward, linear | (layers or {}), bytes_more, 0, why)


_PADDING = "padding positions are not counted here"
_CROPPED = "products that fall outside the result are not counted here"
_BIAS = "the added bias is counted here"
_AFFINE = "the norm's weight and bias are counted here"
_NORM_SHAPE = "112, 64, 512, 512"

PROBLEMS: tuple[Problem, ...] = (
    _gemm(1, "4096, 4096", "4096, 4096"),
    _gemm(2, "2048, 8192", "8192, 4096"),
    _gemm(3, "128, 512, 1024", "128, 1024, 2048", "torch.bmm(a, b)"),
    _gemm(4, "2048, 1048576", "1048576, 1"),
    _gemm(6, "256, 524288", "524288, 256"),
    _gemm(7, "32768, 64", "64, 32768"),
    _gemm(8, "8205, 2949", "2949, 5921"),
    _gemm(10, "16, 1024, 2048", "2048, 768"),
    _gemm(11, "8, 256, 512, 256", "256, 768", 'torch.einsum("bijl,lk->bijk", a, b)'),
    _gemm(16, "8192, 2048", "8192, 4096", "a.T @ b"),
    _gemm(18, "8192, 2048", "4096, 8192", "a.T @ b.T"),
    _map(19, "torch.relu(x)"),
    _map(21, "torch.sigmoid(x)"),
    _map(23, "torch.softmax(x, dim=1)"),
    _map(25, "x * torch.sigmoid(x)"),
    _map(26, "F.gelu(x)"),
    _layer(
        33,
        "64, 64, 512, 512",
        "nn.BatchNorm2d(64)",
        4 * (64 + 64 + 4 * 64) + 16,
        why="weight, bias and the running statistics, read and written, are counted here",
    ),
    _layer(35, _NORM_SHAPE, "nn.GroupNorm(8, 64)", 2 * 64 * 4, why=_AFFINE),
    _map(36, "x / torch.sqrt(torch.mean(x ** 2, dim=1, keepdim=True) + 1e-5)", _NORM_SHAPE),
    _layer(40, "16, 64, 256, 256", "nn.LayerNorm((64, 256, 256))", 2 * 64 * 256 * 256 * 4, why=_AFFINE),
    _map(42, "F.max_pool2d(x, 4, stride=1, padding=1)", "32, 64, 512, 512"),
    _map(47, "torch.sum(x, dim=1, keepdim=True)", "128, 4096, 4095"),
    _layer(
        50,
        "256, 3, 224, 224",
        "nn.Conv2d(3, 96, 11, stride=4, padding=2)",
        flops_more=2 * 256 * 3 * 96 * (602**2 - 605**2),
        why=_PADDING,
    ),
    _layer(57, "8, 64, 1024, 1024", "nn.ConvTranspose2d(64, 64, 3, bias=False)"),
    _layer(67, "32, 64, 131072", "nn.Conv1d(64, 128, 3, bias=False)"),
    _layer(
        75,
        "16, 32, 128, 256",
        "nn.ConvTranspose2d(32, 64, (3, 5), (2, 3), (1, 2), groups=4, dilation=(2, 1), bias=False)",
        flops_more=2 * 16 * 32 * 16 * (382 * 1276 - 384 * 1280),
        why=_CROPPED,
    ),
    _layer(
        76,
        "64, 64, 524280",
        "nn.Conv1d(64, 128, 3, stride=3, dilation=4, bias=False)",
        -64 * 64 * 6 * 4,
        why="six inputs a row that no window meets are not counted here",
    ),
    _layer(
        80,
        "8, 32, 512, 512",
        "nn.Conv2d(32, 64, (5, 9), padding=(2, 4), dilation=(2, 3), bias=False)",
        flops_more=2 * 8 * 32 * 64 * (2536 * 4454 - 2540 * 4464),
        why=_PADDING,
    ),
    _layer(82, "16, 64, 512, 512", "nn.Conv2d(64, 64, 3, groups=64, bias=False)"),
    Problem(
        1,
        86,
        {"x": "16, 64, 512, 512"},
        "self.point(self.depth(x))",
        {
            "depth": "nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False)",
            "point": "nn.Conv2d(64, 128, 1, bias=False)",
        },
        flops_more=2 * 16 * 64 * (1534**2 - 1536**2),
        why=_PADDING,
    ),
    _layer(87, "16, 64, 1024, 1024", "nn.Conv2d(64, 128, 1, bias=False)"),
    _map(88, "0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x ** 3)))", "8192, 8192"),
    _map(89, "torch.cumsum(x, dim=1)", "32768, 32768"),
    _map(91, "torch.cumsum(x.flip(1), dim=1).flip(1)", "32768, 32768"),
    Problem(
        1,
        93,
        {"x": "32768, 32768", "mask": "torch.randint(0, 2, (32768, 32768)).bool()"},
        "torch.cumsum(x * mask, dim=1)",
    ),
    Problem(1, 94, {"a": "32768, 32768", "b": "32768, 32768"}, "torch.mean((a - b) ** 2)"),
    Problem(1, 95, {"x": "32768, 4096", "y": "torch.randint(0, 4096, (32768,))"}, "F.cross_entropy(x, y)"),
    Problem(
        1, 97, dict.fromkeys(("q", "k", "v"), "32, 32, 512, 1024"), "F.scaled_dot_product_attention(q, k, v)"
    ),
    Problem(1, 99, dict.fromkeys(("a", "p", "n"), "32768, 8192"), "F.triplet_margin_loss(a, p, n)"),
    Problem(1, 100, {"x": "32768, 32768", "y": "32768"}, "torch.mean(torch.clamp(1 - x * y, min=0))"),
    Problem(
        2,
        1,
        {"x": "128, 64, 128, 128"},
        "torch.relu(self.conv(x)) + self.b",
        {"conv": "nn.Conv2d(64, 128, 3)", "b": "nn.Parameter(torch.randn(128, 1, 1))"},
        128 * 4,
        0,
        _BIAS,
    ),
    _linear(9, "torch.relu((self.linear(x) - 2.0) * 1.5)"),
    _linear(14, "torch.sum(self.linear(x) / 2, dim=1, keepdim=True) * 1.5", bias=False),
    _linear(22, "F.mish(torch.logsumexp(torch.clamp(self.linear(x) * 4.0, -10, 10), 1, keepdim=True))"),
    _linear(
        37,
        "self.norm(F.silu(self.linear(x)) + self.b)",
        {"norm": "nn.GroupNorm(64, 4096)", "b": "nn.Parameter(torch.randn(4096))"},
        rows=32768,
        k=1024,
        n=4096,
        bytes_more=3 * 4096 * 4,
        why=f"the added bias, and {_AFFINE}",
    ),
    _linear(40, "(lambda y: y * 0.5 + y)(self.linear(x))", rows=16384, k=4096, n=4096),
    _linear(
        45,
        "torch.logsumexp(self.second(torch.sigmoid(self.linear(x))), dim=1)",
        {"second": "nn.Linear(4096, 1024)"},
        rows=16384,
        k=2048,
        n=4096,
    ),
    _linear(59, "F.silu(self.linear(x)) * 2.0", rows=128, k=32768, n=32768),
    _linear(70, "(lambda y: torch.sigmoid(y) * 2.0 + y)(self.linear(x))"),
    _linear(
        76,
        "torch.relu(self.linear(x) + self.b)",
        {"b": "nn.Parameter(torch.randn(8192))"},
        bias=False,
        bytes_more=8192 * 4,
        why=_BIAS,
    ),
    _linear(86, "F.gelu(self.linear(x) / 10.0)"),
    _linear(
        88,
        "F.silu(F.silu(self.norm(self.linear(x))) * self.w)",
        {"norm": "nn.GroupNorm(256, 8192)", "w": "nn.Parameter(torch.randn(8192))"},
        bytes_more=3 * 8192 * 4,
        why=f"the multiplied weight, and {_AFFINE}",
    ),
    _linear(
        95,
        "F.hardtanh(F.gelu(torch.tanh(F.silu(self.linear(x) + self.b))))",
        {"b": "nn.Parameter(torch.randn(8192))"},
        bytes_more=8192 * 4,
        why=_BIAS,
    ),
    _linear(99, "torch.softmax(F.gelu(self.linear(x)), dim=1)"),
    Problem(
        2,
        90,
        {"x": "128, 8, 16, 64, 64"},
        "F.gelu(torch.clamp(F.leaky_relu(self.conv(x), 0.2) + self.b, -1, 1))",
        {"conv": "nn.Conv3d(8, 64, 3)", "b": "nn.Parameter(torch.randn(64, 1, 1, 1))"},
        64 * 4,
        0,
        _BIAS,
    ),
    Problem(
        2,
        100,
        {"x": "16, 64, 24, 48, 48"},
        "torch.clamp(self.conv(x), min=-1.0) / 2.0",
        {"conv": "nn.ConvTranspose3d(64, 128, 3, stride=2, padding=1)"},
        flops_more=2 * 16 * 64 * 128 * (70 * 142 * 142 - 72 * 144 * 144),
        why=_CROPPED,
    ),
    Problem(
        3,
        1,
        {"x": "128, 16384"},
        "self.c(torch.relu(self.b(torch.relu(self.a(x)))))",
        {"a": "nn.Linear(16384, 16384)", "b": "nn.Linear(16384, 16384)", "c": "nn.Linear(16384, 8192)"},
    ),
    Problem(
        3,
        43,
        {"x": "128, 512, 768"},
        "self.out(F.scaled_dot_product_attention(*(t.view(128, 512, 8, 96).transpose(1, 2) for t in "
        "self.qkv(x).split(768, dim=2)), is_causal=True).transpose(1, 2).reshape(128, 512, 768))",
        {"qkv": "nn.Linear(768, 2304)", "out": "nn.Linear(768, 768)"},
        flops_more=4 * 128 * 8 * 96 * (512 * 513 // 2 - 512 * 512),
        why="scores that the causal mask leaves out are not counted here",
    ),
)

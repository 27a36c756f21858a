"""What PyTorch and NumPy call otherwise than the language: for each name, how a program writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Spelling:
    """`write` stands in a program with the tensors x, y over [M, N], the matrix w over [K, N], the images v
    over [B, C, H], their weights g over [O, C, R], the row b over [N], the conditions c over [M, N] and the
    integers ids over [L]; "" where nothing does it in one expression. `instead` says the rest. `stage`: it is
    a binding of a pipeline."""

    write: str
    instead: str = ""
    stage: bool = False

    @property
    def hint(self) -> str:
        where = "in a pipeline, " if self.stage else ""
        written = f"{where}write {self.write}" if self.write else ""
        return "; ".join(part for part in (written, self.instead) if part)


_ORDER = "no call is needed: names align, and a type's order is the order in memory"
_BROADCAST = "no call is needed: names align, and a name that one side lacks broadcasts; alone: expand[N](x)"
_SPLIT = "split or merge an axis by a composite axis in one type and its parts in another, as in f32[(H G)]"
_NO_JOIN = "results of several tensors are several results, or one tensor whose parts two kernels fill"
_DETERMINISTIC = "programs are pure: draw the mask outside and pass it, then write where(c, x * 2, 0)"
_TOPK = "the largest alone is max[N](x), its place argmax[N](x)"


def _entries() -> dict[str, Spelling]:
    rows: dict[str, Spelling | str] = {
        # element-wise
        "relu6": "clamp(x, 0, 6)",
        "hardsigmoid hard_sigmoid": "clamp(x / 6 + 0.5, 0, 1)",
        "swish": "silu(x)",
        "hard_swish": "hardswish(x)",
        "leakyrelu lrelu": "leaky_relu(x, slope=0.01)",
        "prelu": "where(x > 0, x, x * b)",
        "celu": "elu(x)",
        "gelu_new gelu_fast gelu_approx": "gelu_tanh(x)",
        "quick_gelu": "x * sigmoid(1.702 * x)",
        "logsigmoid log_sigmoid": "-softplus(-x)",
        "softsign": "x / (1 + abs(x))",
        "tanhshrink": "x - tanh(x)",
        "softmin": "softmax[N](-x)",
        "hardshrink": "where(abs(x) > 0.5, x, 0)",
        "softshrink": "sign(x) * max(abs(x) - 0.5, 0)",
        "threshold": "where(x > 0, x, 0)",
        "square": "x * x",
        "neg negative": "-x",
        "reciprocal": "1 / x",
        "add": "x + y",
        "sub subtract": "x - y",
        "mul multiply": "x * y",
        "div divide true_divide": "x / y",
        "floor_divide": "x // y",
        "remainder fmod mod": "x % y",
        "power": "pow(x, y)",
        "fabs absolute": "abs(x)",
        "maximum fmax": "max(x, y)",
        "minimum fmin": "min(x, y)",
        "clip clamp_min clamp_max": "clamp(x, 0, 1)",
        "expm1": "exp(x) - 1",
        "exp2": "exp(x * 0.6931471805599453)",
        "log2": "log(x) * 1.4426950408889634",
        "log10": "log(x) * 0.4342944819032518",
        "tan": "sin(x) / cos(x)",
        "sinh": "(exp(x) - exp(-x)) / 2",
        "cosh": "(exp(x) + exp(-x)) / 2",
        "sgn": "sign(x)",
        "ceil": "-floor(-x)",
        "trunc fix": "sign(x) * floor(abs(x))",
        "isnan": "not x == x",
        "isinf": "abs(x) == inf",
        "isfinite": "abs(x) < inf",
        "logical_and bitwise_and": "x > 0 and y > 0",
        "logical_or bitwise_or": "x > 0 or y > 0",
        "logical_not bitwise_not": "not x > 0",
        "logaddexp": "max(x, y) + log1p(exp(-abs(x - y)))",
        "lerp": "x + 0.5 * (y - x)",
        "addcmul": "x + y * b",
        "masked_fill": "where(c, -inf, x)",
        "select cond iff ifelse": "where(c, x, y)",
        "float to_float float32": "f32(x)",
        "half float16": "f16(x)",
        "bfloat16": "bf16(x)",
        "int to_int int32": "i32(x)",
        "long int64": "i64(x)",
        "int8 char": "s8(x)",
        "uint8 byte": "u8(x)",
        "double float64": "f64(x)",
        # reductions and scans
        "std stddev": "sqrt(var[N](x))",
        "variance": "var[N](x)",
        "average avg": "mean[N](x)",
        "amax": "max[N](x)",
        "amin": "min[N](x)",
        "product": "prod[N](x)",
        "any": "max[N](where(c, 1, 0)) == 1",
        "all": "min[N](where(c, 1, 0)) == 1",
        "count_nonzero": "sum[N](where(x != 0, 1, 0))",
        "norm l2_norm vector_norm": "sqrt(sum[N](x * x))",
        "l1_norm": "sum[N](abs(x))",
        "normalize": "x / max(sqrt(sum[N](x * x)), 1e-12)",
        "cosine_similarity": "sum[N](x * y) * rsqrt(sum[N](x * x) * sum[N](y * y))",
        "log_sum_exp": "logsumexp[N](x)",
        "logsoftmax": "log_softmax[N](x)",
        "prefix_sum scan cum_sum": "cumsum[N](x)",
        "cum_prod": "cumprod[N](x)",
        # products
        "matmul mm bmm einsum inner linear addmm baddbmm gemm tensordot": "dot[N](x, w)",
        "mv vdot": "dot[N](x, b)",
        "outer": "b * b[N = J]",
        "conv1d conv2d conv3d conv convolution": Spelling(
            "dot[R, C](v[H = P + R - 1], g)", "a convolution is a dot over windows; give P its extent, P=H"
        ),
        "max_pool1d max_pool2d max_pool maxpool": Spelling(
            "max[R=2](v[H = 2*P + R])", "give P its extent in the result, P=H//2"
        ),
        "avg_pool1d avg_pool2d avg_pool avgpool": Spelling(
            "mean[R=2](v[H = 2*P + R])", "give P its extent in the result, P=H//2"
        ),
        # norms and losses
        "layer_norm layernorm": "(x - mean[N](x)) * rsqrt(var[N](x) + 1e-5)",
        "rms_norm rmsnorm": "x * rsqrt(mean[N](x * x) + 1e-5)",
        "batch_norm batchnorm": "(x - mean[M](x)) * rsqrt(var[M](x) + 1e-5)",
        "instance_norm": "(v - mean[H](v)) * rsqrt(var[H](v) + 1e-5)",
        "group_norm": Spelling(
            "(v - mean[C, H](v)) * rsqrt(var[C, H](v) + 1e-5)", "with the groups a name of their own, (G=8 C)"
        ),
        "cross_entropy nll_loss": "logsumexp[N](x) - x[N = i64(index(M))]",
        "mse_loss": "mean[M, N]((x - y) * (x - y))",
        "l1_loss": "mean[M, N](abs(x - y))",
        # places
        "transpose permute swapaxes t": Spelling("x[M = J]", _ORDER),
        "view reshape flatten unflatten": Spelling("", _SPLIT),
        "squeeze unsqueeze expand_as broadcast_to repeat tile": Spelling("", _BROADCAST),
        "contiguous clone detach": Spelling("", _ORDER),
        "cat concat concatenate stack hstack vstack": Spelling("", _NO_JOIN),
        "split chunk": Spelling("x[N = J + 4]", "give J its extent in the result"),
        "shift": "x[N = N - 1]",
        "gather index_select take embedding take_along_dim": "x[M = ids]",
        "arange iota range": "index(N)",
        "triu_mask tril_mask causal_mask": "where(index(N) <= index(M), x, -inf)",
        "zeros zeros_like": "x * 0",
        "full full_like ones ones_like": "where(true, 1, x)",
        "shape numel length": "size(N)",
        # what is no expression
        "dropout rand randn bernoulli rand_like": Spelling("", _DETERMINISTIC),
        "topk kthvalue median": Spelling("", f"{_TOPK}; in a pipeline, torch.sort and torch.argsort"),
        "sort": Spelling("s: f32[M, N] = torch.sort(x, dim=1)", stage=True),
        "argsort": Spelling("s: i64[M, N] = torch.argsort(x, dim=1)", stage=True),
        "flip fliplr flipud": "x[N = size(N) - 1 - N]",
        "roll": Spelling("s: f32[M, N] = torch.roll(x, shifts=1, dims=1)", stage=True),
        "tril": "where(index(N) <= index(M), x, 0)",
        "triu": "where(index(N) >= index(M), x, 0)",
        "diag diagonal": Spelling("s: f32[N, J=N] = torch.diag(b)", stage=True),
        "inverse inv": Spelling("s: f32[M, N] = torch.inverse(x)", stage=True),
    }
    return {
        name: value if isinstance(value, Spelling) else Spelling(value)
        for names, value in rows.items()
        for name in names.split()
    }


SPELLINGS: Mapping[str, Spelling] = MappingProxyType(_entries())
"""By the foreign name in lower case. None is a name of the language."""


def spelling_hint(name: str) -> str | None:
    """How a program writes what `name`, with or without `torch.`, is elsewhere; None for an unknown name."""
    spelling = SPELLINGS.get(name.removeprefix("torch.").lower())
    return None if spelling is None else spelling.hint

"""For each rule, kernels that it says something of."""

from __future__ import annotations

from collections.abc import Mapping

_PARAMS = (
    "x: f32[M=3, N=4], y: f32[M, N], z: f32[M, N], u: f32[M], v: f32[N], a: f32[M, K=5], b: f32[N, K], "
    "c: f32[J=2, K], d: f32[J, N], h: f32[M, H=9], p: bf16[M, K], q: bf16[N, K], g: f32[R=3, H], e: f32[M, I=1]"
)


def kernel(expression: str, results: str = "M, N") -> str:
    body = expression if "return" in expression else f"return {expression}"
    return f"kernel k({_PARAMS}) -> f32[{results}] {{ {body} }}"


_WINDOW = "w: [M, P=4, R] = h[H = 2*P + R]"

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "factor of a sum": (
        kernel("sum[N](x * u)", "M"),
        kernel("mean[M](2 * x)", "N"),
        kernel("sum[M, N](x * u)", ""),
    ),
    "divisor of a sum": (kernel("sum[N](x / u)", "M"), kernel("mean[N](x / 3.0)", "M")),
    "sum of a sum": (
        kernel("sum[N](x + u)", "M"),
        kernel("mean[M, N](x - v)", ""),
        kernel("sum[M, N](u - v)", ""),
    ),
    "sum of a repeated value": (kernel("sum[N](expand[N](u))", "M"), kernel("max[N](expand[N](u))", "M")),
    "mean as a sum": (kernel("mean[N](x)", "M"), kernel("mean[M, N](x)", "")),
    "nested reductions": (
        kernel("sum[M](sum[N](x))", ""),
        kernel("mean[M](mean[N](x))", ""),
        kernel("max[M](max[N](x))", ""),
        kernel("logsumexp[M](logsumexp[N](x))", ""),
        kernel("prod[M](prod[N](x))", ""),
    ),
    "sum across dot": (
        kernel("sum[N](dot[K](a, b))", "M"),
        kernel("mean[M](dot[K](a, b))", "N"),
        kernel("sum[M, N](dot[K](a, b))", ""),
        kernel("mean[N](dot[K](p, q))", "M"),
        kernel("sum[M](dot[N](x, y))", ""),
        kernel("mean[M](dot[N](x, y))", ""),
    ),
    "factor of a dot": (kernel("dot[K](a * u, b)"), kernel("dot[K](a, b / v)"), kernel("dot[K](2 * a, b)")),
    "dot of a sum": (kernel("dot[N](x + u, d)", "M, J"), kernel("dot[N](d, x - v)", "M, J")),
    "dot of a repeated value": (
        kernel("dot[N](expand[M](v), d)", "M, J"),
        kernel("dot[N](expand[N](u), d)", "M, J"),
        kernel("dot[N](d, expand[J](x))", "M, J"),
    ),
    "sum of dots": (kernel("dot[K](a, b) + dot[K](b, a * 2)"), kernel("dot[K](a, b) - dot[K](a * a, b)")),
    "dot of a dot": (
        kernel("dot[J](dot[K](a, c), d)"),
        kernel("dot[N](d, dot[K](a, b))", "M, J"),
        kernel("dot[N](v, dot[K](a, b))", "M"),
    ),
    "dot as a sum": (kernel("dot[N](x, v)", "M"), kernel("dot[N](x, y)", "M"), kernel("dot[K](p, p)", "M")),
    "sum as a dot": (kernel("sum[N](x * v)", "M"), kernel("sum[K](a * b)")),
    "extreme of an increasing function": tuple(
        kernel(f"{op}[N]({f})", "M")
        for op in ("max", "min")
        for f in (
            *("relu(x)", "exp(x)", "sigmoid(x)", "tanh(x)", "softplus(x)", "selu(x)", "floor(x)", "round(x)"),
            *("clamp(x, -0.5, 0.5)", "leaky_relu(x)", "elu(x, 0.5)", "erf(x)", "hardtanh(x)"),
        )
    ),
    "extreme of a sum": (kernel("max[N](x + u)", "M"), kernel("min[N](x - u)", "M")),
    "extreme of a bound": (
        kernel("max[N](min(x, u))", "M"),
        kernel("max[N](max(x, u))", "M"),
        kernel("min[M](min(v, x))", "N"),
        kernel("min[M](max(x, 0.25))", "N"),
    ),
    "extreme of a multiple": (kernel("max[N](2.5 * x)", "M"), kernel("min[N](x * -0.5)", "M")),
    "variance of a line": (
        kernel("var[N](x + u)", "M"),
        kernel("var[N](x * u)", "M"),
        kernel("var[M](x - v)", "N"),
    ),
    "reduction of one": tuple(
        kernel(f"{op}[I](e)", "M") for op in ("sum", "mean", "max", "min", "prod", "logsumexp")
    ),
    "variance of one": (kernel("var[I](e)", "M"),),
    "shift of softmax": (
        kernel("softmax[N](x + u)"),
        kernel("log_softmax[N](x - u)"),
        kernel("softmax[M](v + x)"),
    ),
    "softmax of one": (kernel("softmax[I](e)", "M, I"), kernel("log_softmax[I](e)", "M, I")),
    "shift of logsumexp": (kernel("logsumexp[N](x + u)", "M"), kernel("logsumexp[M](x - v)", "N")),
    "sum of a softmax": (kernel("sum[N](softmax[N](x)) * u", "M"), kernel("mean[M, N](softmax[N](x))", "")),
    "logarithm of softmax": (kernel("log(softmax[N](x))"), kernel("exp(log_softmax[M](x))")),
    "softmax": (kernel("exp(x) / sum[N](exp(x))"), kernel("exp(x) / sum[M, N](exp(x))")),
    "logsumexp": (kernel("log(sum[N](exp(x)))", "M"),),
    "log_softmax": (kernel("x - logsumexp[N](x)"),),
    "window of a dot": (
        kernel("t = dot[K](a, b) w: [M, S=3, T=2] = t[N = S + T - 1] return mean[T](w)", "M, S"),
        kernel("w: [M, S=3, T=2] = dot[K](a, b)[N = S + T] return sum[T](w)", "M, S"),
    ),
    "window of a function": (
        kernel("w: [M, S=3, T=2] = relu(x)[N = S + T - 1] return sum[T](w)", "M, S"),
        kernel("w: [M, S=3, T=2] = (x * u)[N = S + T - 1] return sum[T](w)", "M, S"),
        kernel("w: [M, S=3, T=2] = (x + v)[N = S + T] return max[T](w)", "M, S"),
    ),
    "window of a reduction": (
        kernel("w: [S=3, T=2] = sum[M](x)[N = S + T - 1] return sum[T](w)", "S"),
        kernel("w: [S=3, T=2] = max[M](x)[N = S + T] return max[T](w)", "S"),
    ),
    "sum of a window": (
        kernel("w: [S=3, T=2, A=4, B=2] = x[N = S + T - 1, M = A + B - 2] return sum[A](w)", "S, T, B"),
        kernel("w: [S=3, T=2, A=4, B=2] = x[N = S + T - 1, M = A + B - 2] return mean[S](w)", "T, A, B"),
    ),
    "window of a window": (
        kernel(
            f"{_WINDOW} s = sum[R](w) o: [M, Q=2, R, T=2] = w[P = 2*Q + T] return sum[R, T](o) + sum[P](s)",
            "M, Q",
        ),
    ),
    "sums associate": (kernel("x + y + z"), kernel("x + (u + v)")),
    "products associate": (kernel("x * y * z"), kernel("x * (u * v)")),
    "common factor": (kernel("x * y + x * z"), kernel("y * u + u * z")),
    "common factor of a difference": (kernel("x * y - x * z"), kernel("y * u - u * z")),
    "common divisor": (kernel("x / z + y / z"), kernel("x / u + v / u")),
    "common divisor of a difference": (kernel("x / z - y / z"), kernel("x / 3.0 - v / 3.0")),
    "common summand": (kernel("(x + z) - (y + z)"), kernel("(x + u) - (u + v)")),
    "common subtrahend": (kernel("(x - z) - (y - z)"), kernel("(x - u) - (v - u)")),
    "value and its multiple": (kernel("x + 2.5 * x"),),
    "twice": (kernel("x + x"),),
    "constant across a sum": (kernel("2.5 * (x + y)"),),
    "difference as a sum": (kernel("x - y"),),
    "sum as a difference": (kernel("x + -1.0 * y"),),
    "negative": (kernel("-x"),),
    "quotient by a constant": (kernel("x / 3.0"), kernel("x / 2")),
    "plus 0": (kernel("x + 0.0"), kernel("x + 0")),
    "times 1": (kernel("x * 1.0"), kernel("x * 1")),
    "over 1": (kernel("x / 1.0"),),
    "times 0": (kernel("x * 0.0"),),
    "difference of equals": (kernel("x - x"), kernel("sum[N](x) - sum[N](x) + u", "M")),
    "smaller of equals": (kernel("min(x, x)"),),
    "larger of equals": (kernel("max(x, x)"),),
    "largest of constants": (kernel("max(max(x, 0.5), 1.0)"),),
    "smallest of constants": (kernel("min(min(x, 0.5), 1.0)"),),
    "clamp from below": (kernel("max(min(x, 0.5), -0.5)"),),
    "clamp": (kernel("min(max(x, -0.5), 0.5)"),),
    "hardtanh": (kernel("hardtanh(x, -0.5, 0.5)"),),
    "nested clamps": (
        kernel("clamp(clamp(x, -0.5, 1.0), 0.0, 2.0)"),
        kernel("clamp(clamp(x, -0.5, -0.25), 0.0, 2.0)"),
    ),
    "function of a repeated value": (kernel("relu(expand[N](u))"), kernel("expand[N](u) + v")),
    "max with 0": (kernel("max(x, 0.0)"),),
    "absorbed bound": (
        kernel("relu(exp(x))"),
        kernel("relu(relu(x))"),
        kernel("abs(sigmoid(x))"),
        kernel("clamp(tanh(x), -1.0, 1.0)"),
        kernel("max(x * x, 0.0)"),
        kernel("min(sigmoid(x), 2.0)"),
        kernel("relu(softmax[N](x))"),
        kernel("clamp(clamp(x, 0.0, 1.0), -1.0, 2.0)"),
        kernel("hardtanh(tanh(x))"),
        kernel("relu(var[N](x))", "M"),
        kernel("leaky_relu(relu(x))"),
        kernel("elu(exp(x), 0.5)"),
        kernel("relu(rsqrt(exp(x) + 0.5))"),
        kernel("relu(abs(x) * exp(y))"),
        kernel("max(x * x + 0.5, 0.25)"),
        kernel("clamp(min(x, 0.0), 0.0, 1.0)"),
        kernel("clamp(exp(x), -1.0, 0.0)"),
        kernel("relu(min(x, 0.0))"),
    ),
    "scale across relu": (kernel("relu(2.5 * x)"),),
    "scale across leaky_relu": (kernel("leaky_relu(2.5 * x)"), kernel("leaky_relu(2.5 * x, -0.5)")),
    "scale across clamp": (kernel("clamp(2.5 * x, -0.5, 1.0)"), kernel("clamp(x * 2.5, 1.0, -0.5)")),
    "exp of log": (kernel("exp(log(abs(x)))"),),
    "log of exp": (kernel("log(exp(x))"),),
    "product of exponentials": (kernel("exp(x) * exp(y)"),),
    "quotient of exponentials": (kernel("exp(x) / exp(u)"),),
    "root of a square": (kernel("sqrt(x * x)"),),
    "square of a root": (kernel("sqrt(abs(x)) * sqrt(abs(x))"),),
    "inverse root": (kernel("1.0 / sqrt(x)"), kernel("1 / sqrt(abs(x) + 0.5)")),
    "quotient by a root": (kernel("x / sqrt(abs(y))"), kernel("x / sqrt(u)")),
    "silu": (kernel("x * sigmoid(x)"),),
    "mish": (kernel("x * tanh(softplus(x))"),),
    "softplus": (kernel("log(1.0 + exp(x))"),),
    "softplus by log1p": (kernel("log1p(exp(x))"),),
    "sigmoid": (kernel("1.0 / (1.0 + exp(-1.0 * x))"),),
    "log of sigmoid": (kernel("log(sigmoid(x))"),),
    "square": (kernel("pow(x, 2.0)"),),
    "square by **": (kernel("x ** 2.0"),),
    "first power": (kernel("pow(x, 1.0)"),),
}

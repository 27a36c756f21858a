"""For each rule with a condition: kernels that do not meet it, each with what the rule would make of it all the same.

The two differ on some values, so the condition is necessary."""

from __future__ import annotations

from collections.abc import Mapping

from tests.algebra.examples import kernel

_WINDOW = "w: [M, S=3, T=2] ="

REFUSED: Mapping[str, tuple[tuple[str, str], ...]] = {
    "factor of a sum": (
        (kernel("sum[N](x * y)", "M"), kernel("sum[N](x) * sum[N](y)", "M")),
        (kernel("mean[N](x * y)", "M"), kernel("mean[N](x) * mean[N](y)", "M")),
    ),
    "divisor of a sum": ((kernel("sum[N](x / y)", "M"), kernel("sum[N](x) / sum[N](y)", "M")),),
    "factor of a dot": ((kernel("dot[K](a * a, b)"), kernel("dot[K](a, b) * sum[K](a)")),),
    "dot of a dot": (
        (kernel("dot[N](dot[K](a, b), b)", "M, K"), kernel("dot[K](a, dot[N](b, b)) + 0 * a", "M, K")),
    ),
    "extreme of an increasing function": tuple(
        (kernel(f"{op}[N]({f.format('x')})", "M"), kernel(f.format(f"{op}[N](x)"), "M"))
        for op, functions in {
            "min": (
                "silu({})",
                "gelu({})",
                "mish({})",
                "hardswish({})",
                "abs({})",
                "sin({})",
                "leaky_relu({}, -0.5)",
            ),
            "max": ("log({})", "sqrt({})", "cos({})", "elu({}, -0.5)"),
        }.items()
        for f in functions
    ),
    "extreme of a sum": ((kernel("max[N](x + y)", "M"), kernel("max[N](x) + max[N](y)", "M")),),
    "extreme of a bound": (
        (kernel("max[N](min(x, y))", "M"), kernel("min(max[N](x), max[N](y))", "M")),
        (kernel("min[N](max(x, v))", "M"), kernel("max(min[N](x), min[N](v))", "M")),
    ),
    "extreme of a multiple": (
        (kernel("max[N](x * u)", "M"), kernel("max[N](x) * u", "M")),
        (kernel("min[N](x * y)", "M"), kernel("min[N](x) * min[N](y)", "M")),
    ),
    "variance of a line": (
        (kernel("var[N](x + v)", "M"), kernel("var[N](x)", "M")),
        (kernel("var[N](x * v)", "M"), kernel("var[N](x) * var[N](v)", "M")),
    ),
    "reduction of one": (
        (kernel("sum[N](x)", "M"), kernel("x[N = 0]", "M")),
        (kernel("max[N](x)", "M"), kernel("x[N = 0]", "M")),
    ),
    "variance of one": ((kernel("var[N](x)", "M"), kernel("u * 0", "M")),),
    "shift of softmax": ((kernel("softmax[N](x + v)"), kernel("softmax[N](x)")),),
    "shift of logsumexp": ((kernel("logsumexp[N](x + v)", "M"), kernel("logsumexp[N](x) + sum[N](v)", "M")),),
    "softmax of one": ((kernel("softmax[N](x)"), kernel("x * 0 + 1")),),
    "window of a dot": (
        (
            kernel(f"{_WINDOW} dot[K](a, b)[N = S + T - 1] return max[T](w)", "M, S"),
            kernel("t: [S=3, T=2, K] = b[N = S + T - 1] return max[T](dot[K](a, t))", "M, S"),
        ),
    ),
    "window of a function": (
        (
            kernel(f"{_WINDOW} exp(x)[N = S + T - 1] return sum[T](w)", "M, S"),
            kernel(f"{_WINDOW} x[N = S + T - 1] return sum[T](exp(w))", "M, S"),
        ),
    ),
    "window of a reduction": (
        (
            kernel("w: [S=3, T=2] = logsumexp[M](x)[N = S + T - 1] return sum[T](w)", "S"),
            kernel("w: [M, S=3, T=2] = x[N = S + T - 1] return sum[T](logsumexp[M](w + 0))", "S"),
        ),
    ),
    "window of a window": (
        (
            kernel(
                "w: [M, P=4, R] = h[H = 2*P + R] s = sum[R](w) o: [M, Q=3, R, T=2] = w[P = 2*Q + T] return sum[R, T](o) + 0 * sum[P](s)",
                "M, Q",
            ),
            kernel("o: [M, Q=3, R, T=2] = h[H = 4*Q + 2*T + R] return sum[R, T](o)", "M, Q"),
        ),
    ),
    "clamp from below": ((kernel("max(min(x, 0.5), 1.0)"), kernel("clamp(x, 1.0, 0.5)")),),
    "absorbed bound": (
        (kernel("relu(x)"), kernel("x")),
        (kernel("abs(tanh(x))"), kernel("tanh(x)")),
        (kernel("leaky_relu(tanh(x))"), kernel("tanh(x)")),
        (kernel("relu(rsqrt(x))"), kernel("rsqrt(x)")),
        (kernel("clamp(sigmoid(x), 0.0, 0.5)"), kernel("sigmoid(x)")),
        (kernel("clamp(tanh(x), 0.5, 2.0)"), kernel("0 * x + 0.5")),
        (kernel("max(sigmoid(x), 0.5)"), kernel("sigmoid(x)")),
        (kernel("min(relu(x), 1.0)"), kernel("relu(x)")),
    ),
    "scale across relu": ((kernel("relu(-2.5 * x)"), kernel("-2.5 * relu(x)")),),
    "scale across leaky_relu": ((kernel("leaky_relu(-2.5 * x)"), kernel("-2.5 * leaky_relu(x)")),),
    "scale across clamp": ((kernel("clamp(-2.0 * x, -0.5, 1.0)"), kernel("-2.0 * clamp(x, 0.25, -0.5)")),),
    "exp of log": ((kernel("exp(log(x))"), kernel("x")),),
    "square of a root": ((kernel("sqrt(x) * sqrt(x)"), kernel("x")),),
}

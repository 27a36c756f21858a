"""The C++ of every element-wise function, as text: what `functions.py` calls and defines.

Floats have two forms; which is taken where stands in `functions.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from ucutlass.ir.functions import SELU_ALPHA, SELU_SCALE
from ucutlass.kernels.arithmetic import ScalarKind


@dataclass(frozen=True, slots=True)
class Form:
    """One function in C++, by the kind of its operands.

    `inline` is an expression over {0}, {1}, ..; where there is none for a kind, a device
    function is defined. Its statements are `f32`, `fast` ("": the accurate form serves) or
    `integer`, in which T is the operands' type and U the unsigned type of its width. Parameters
    have the table's names; `needs` are functions of the same kind that the statements call.
    """

    inline: Mapping[ScalarKind, str] = field(default_factory=dict)
    f32: str = ""
    fast: str = ""
    integer: str = ""
    needs: tuple[str, ...] = ()


# The instructions themselves: exp2f and __fdividef scale their operands for denormals, which costs
# more than half of what is left here. Off the device, for tests, the same work with denormals cut.
UNITS: Mapping[str, str] = MappingProxyType(
    {
        "ucc_exp2_ftz": """__forceinline__ __device__ float ucc_exp2_ftz(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  float y = exp2f(x);
  return y < 0x1p-126f ? 0.0f : y;
#endif
}
""",
        "ucc_reciprocal_ftz": """// Of a positive x.
__forceinline__ __device__ float ucc_reciprocal_ftz(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  float y = 1.0f / x;
  return y < 0x1p-126f ? 0.0f : y;
#endif
}
""",
        "ucc_reciprocal": """// Of an x from 1 to 2 ** 126: a step of Newton's leaves little more than
// half an ulp. A division tests its operands, and takes ten times as long where a numerator is
// below 2 ** -100 or so.
__forceinline__ __device__ float ucc_reciprocal(float x) {
  float y = ucc_reciprocal_ftz(x);
  return fmaf(y, fmaf(-x, y, 1.0f), y);
}
""",
    }
)
"""2 ** x (relative error 2**-22) and 1 / x (2**-23; 2**-23.8), by name; a denormal result is 0. Each
calls those before it alone."""

_FLOOR_DIVIDE = """
// Rounding a / b can reach the integer above; the exact remainder's sign tells.
float q = floorf(a / b);
float r = fmaf(-q, b, a);
if (fabsf(a) == INFINITY) return b == 0.0f ? q : NAN;
if (fabsf(b) == INFINITY && a == a) return a != 0.0f && (a < 0.0f) != (b < 0.0f) ? -1.0f : 0.0f;
return r != 0.0f && (r < 0.0f) != (b < 0.0f) ? q - 1.0f : q;
"""

_MODULO = """
float r = fmodf(a, b);
return r != 0.0f && (r < 0.0f) != (b < 0.0f) ? r + b : r;
"""

_FLOOR_DIVIDE_INTEGER = """
if (b == 0) return 0;
if (b == -1) return T(U(0) - U(a));
T q = a / b;
return q * b != a && (a < 0) != (b < 0) ? q - 1 : q;
"""

_MODULO_INTEGER = """
if (b == 0 || b == -1) return 0;
T r = a % b;
return r != 0 && (r < 0) != (b < 0) ? r + b : r;
"""

_GELU = """
// 0.5 * erfc(|x| / sqrt(2)) = exp(-x * x / 2) * p(t) * t, with t as in Abramowitz and Stegun 7.1.26; p is a
// minimax fit of relative error 2e-8 over |x| < 14.4, beyond which the result is 0. The power of two is taken
// apart: n is the nearest whole number to its exponent, f what is left, of x * x to more than float's
// precision. 2 ** n is taken 2 ** 24 times too large and p as much too small, so that only their product can
// be denormal. By erfcf it is twice as long: of a thread's 128 elements more than an SM caches of code.
constexpr float small = 0x1p-24f, half_log2e = 0x1.715476p-1f, shift = 0x1.8p23f;
float a = fminf(fabsf(x), 14.375f);
float t = ucc_reciprocal(fmaf(a, 0.268700577f, 1.0f));
float p = fmaf(t, 0.0294938758f * small, -0.131193012f * small);
p = fmaf(p, t, 0.182043120f * small);
p = fmaf(p, t, -0.0808633640f * small);
p = fmaf(p, t, 0.115109138f * small);
p = fmaf(p, t, 0.0692817271f * small);
p = fmaf(p, t, 0.101965047f * small);
p = fmaf(p, t, 0.106957905f * small);
p = fmaf(p, t, 0.107205592f * small);
float s = a * a;
float n = fmaf(s, -half_log2e, shift) - shift;
float f = fmaf(s, -half_log2e, -n);
f = fmaf(s, -0x1.4ae0cp-27f, f);
f = fmaf(fmaf(a, a, -s), -half_log2e, f);
float tail = p * t * ucc_exp2_ftz(f) * ucc_exp2_ftz(n + 24.0f);
return x * (x < 0.0f ? tail : 1.0f - tail);
"""

_GELU_FAST = """
// 0.5 * erfc(|x| / sqrt(2)) = exp(-x * x / 2) * p(t); p is a minimax fit of relative error
// 1.1e-6 over |x| < 13.5, t as in Abramowitz and Stegun 7.1.26. The power of two is taken 2 ** 24
// times too large and p as much too small, so that only their product can be denormal.
constexpr float small = 0x1p-24f;
float t = ucc_reciprocal_ftz(fmaf(fabsf(x), 0.268700577f, 1.0f));
float p = fmaf(t, -0.0625346005f * small, 0.167350829f * small);
p = fmaf(p, t, -0.0339259654f * small);
p = fmaf(p, t, 0.123099014f * small);
p = fmaf(p, t, 0.0906478092f * small);
p = fmaf(p, t, 0.108212121f * small);
p = fmaf(p, t, 0.107150286f * small);
float tail = p * t * ucc_exp2_ftz(fmaf(x * x, -0.721347520f, 24.0f));
return x * (x < 0.0f ? tail : 1.0f - tail);
"""

_GELU_TANH = """
// 0.5 * (1 + tanh(u)) = 1 / (1 + exp(-2 * u)), which does not cancel; u = z * w is kept to more
// than float's precision (u + du), because exp turns its relative error into 2 * u times that.
// The head of w's constant has 20 bits, so that 0x1.98846p-1f - w is exact for all w < 16. Every
// product that meets a sum does so in an fmaf: a compiler may fuse others, here one way, there another.
float z = fminf(fmaxf(x, -16.0f), 16.0f);
float t = z * z;
float dt = fmaf(z, z, -t);
float w = fmaf(0x1.2444f2p-5f, t, 0x1.98846p-1f);
float dw = fmaf(0x1.2444f2p-5f, t, 0x1.98846p-1f - w) - 0x1.985794p-22f;
dw += fmaf(0x1.2444f2p-5f, dt, 0x1.49b16ap-30f * t);
float u = z * w;
float du = fmaf(z, dw, fmaf(z, w, -u));
float h = expf(-fabsf(u));
h = fmaf(u < 0.0f ? du : -du, h, h);
return (x < 0.0f ? x * h * h : x) * ucc_reciprocal(fmaf(h, h, 1.0f));
"""

# The fast sigmoids are 2**-24 / (2**-24 + e), e = exp(-x) * 2**-24: no sign to choose by, the sum
# neither overflows nor has a reciprocal that is flushed before the sigmoid is below 2**-150, and
# only the last product can be denormal. There a sigmoid loses half of 2**-149, so that x times it
# keeps 2**-17.4 where it is normal: |x| < 93, the sigmoid above 2**-132.6.


def _sigmoid_fast(slope: str) -> str:
    """1 / (1 + 2 ** (x * slope)) as an expression."""
    return f"ucc_reciprocal_ftz(0x1p-24f + ucc_exp2_ftz(fmaf(x, {slope}, -24.0f))) * 0x1p-24f"


_GELU_TANH_FAST = f"""
// x * sigmoid(2 * u), u = sqrt(2 / pi) * (x + 0.044715 * x ** 3), in powers of two.
float w = fmaf(x * x, -0.102943241f, -2.30220819f);
return x * ({_sigmoid_fast("w")});
"""

_SIGMOID = """
float e = expf(-fabsf(x));
return (x < 0.0f ? e : 1.0f) * ucc_reciprocal(1.0f + e);
"""

_SIGMOID_FAST = f"return {_sigmoid_fast('-1.44269504f')};"

_SILU = """
// exp(-|x|) would be denormal where the result is not yet: take its root, multiply twice.
float h = expf(-0.5f * fabsf(x));
return (x < 0.0f ? x * h * h : x) * ucc_reciprocal(fmaf(h, h, 1.0f));
"""

_SILU_FAST = f"return x * ({_sigmoid_fast('-1.44269504f')});"

_SOFTPLUS = "return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));"

_SOFTPLUS_FAST = """
// log1p(e) = e * p(e); p is a minimax fit of relative error 1.3e-6 over e in [0, 1]. The root h of
// e stays normal where e is not 0.
float h = ucc_exp2_ftz(fabsf(x) * -0.721347520f);
float e = h * h;
float p = fmaf(e, 0.0141410199f, -0.0664017885f);
p = fmaf(p, e, 0.149223862f);
p = fmaf(p, e, -0.235038597f);
p = fmaf(p, e, 0.331094488f);
p = fmaf(p, e, -0.499869656f);
p = fmaf(p, e, 0.999998732f);
return fmaf(p, e, fmaxf(x, 0.0f));
"""

_MISH = """
// tanh(log(1 + e)) = n / (n + 2) with n = e * (e + 2), e = exp(x); 1 beyond x = 20. The root h
// of e stays normal where the result is.
float h = expf(0.5f * fminf(x, 20.0f));
float e = h * h;
float n = e * (e + 2.0f);
float r = ucc_reciprocal(n + 2.0f);
return x < 0.0f ? x * h * h * (e + 2.0f) * r : x * (n * r);
"""

_MISH_FAST = """
// As the accurate form; e is denormal only where n / (n + 2) is below 2**-126, which costs what it
// costs the sigmoids. x meets the reciprocal first, for n may be denormal and their product too.
float h = ucc_exp2_ftz(fminf(x, 20.0f) * 0.721347520f);
float e = h * h;
float n = e * (e + 2.0f);
return x * ucc_reciprocal_ftz(n + 2.0f) * n;
"""

_EXP_FAST = """
float h = ucc_exp2_ftz(x * 0.721347520f);
return h * h;
"""

_SELU = f"""
return {SELU_SCALE:.9g}f * (x > 0.0f ? x : {SELU_ALPHA:.9g}f * expm1f(x));
"""

_KINDS: tuple[ScalarKind, ...] = ("f32", "i32", "i64", "bool")
_NUMBERS: tuple[ScalarKind, ...] = ("f32", "i32", "i64")


def _extreme(instruction: str, comparison: str) -> str:
    """The smaller or larger; NaN where either is."""
    return f"""
#if defined(__CUDA_ARCH__)
float y;
asm volatile("{instruction}.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
return y;
#else
return a {comparison} b || a != a ? a : b;
#endif
"""


def _inline(expression: str, kinds: Sequence[ScalarKind] = ("f32",)) -> Form:
    return Form(inline=dict.fromkeys(kinds, expression))


def _wrapping(operator: str) -> Form:
    return Form(inline={"f32": f"{{0}} {operator} {{1}}"}, integer=f"return T(U(a) {operator} U(b));")


FORMS: Mapping[str, Form] = MappingProxyType(
    {
        "add": _wrapping("+"),
        "subtract": _wrapping("-"),
        "multiply": _wrapping("*"),
        "divide": _inline("{0} / {1}"),
        "floor_divide": Form(f32=_FLOOR_DIVIDE, integer=_FLOOR_DIVIDE_INTEGER),
        "modulo": Form(f32=_MODULO, integer=_MODULO_INTEGER),
        "power": _inline("powf({0}, {1})"),
        "negate": Form(inline={"f32": "-({0})"}, integer="return T(U(0) - U(a));"),
        "less": _inline("{0} < {1}", _NUMBERS),
        "less_equal": _inline("{0} <= {1}", _NUMBERS),
        "greater": _inline("{0} > {1}", _NUMBERS),
        "greater_equal": _inline("{0} >= {1}", _NUMBERS),
        "equal": _inline("{0} == {1}", _KINDS),
        "not_equal": _inline("{0} != {1}", _KINDS),
        "and": _inline("{0} && {1}", ("bool",)),
        "or": _inline("{0} || {1}", ("bool",)),
        "not": _inline("!{0}", ("bool",)),
        "where": _inline("{0} ? {1} : {2}", _KINDS),
        "min": Form(f32=_extreme("min", "<"), integer="return b < a ? b : a;"),
        "max": Form(f32=_extreme("max", ">"), integer="return a < b ? b : a;"),
        "abs": Form(inline={"f32": "fabsf({0})"}, integer="return x < 0 ? T(U(0) - U(x)) : x;"),
        "clamp": Form(
            f32="return ucc_min(ucc_max(x, lo), hi);",
            integer="return ucc_min(ucc_max(x, lo), hi);",
            needs=("min", "max"),
        ),
        "hardtanh": Form(f32="return ucc_min(ucc_max(x, lo), hi);", needs=("min", "max")),
        "pow": _inline("powf({0}, {1})"),
        "relu": Form(f32="return ucc_max(x, 0.0f);", needs=("max",)),
        "leaky_relu": Form(f32="return x > 0.0f ? x : x * slope;"),
        "gelu": Form(f32=_GELU, fast=_GELU_FAST),
        "gelu_tanh": Form(f32=_GELU_TANH, fast=_GELU_TANH_FAST),
        "silu": Form(f32=_SILU, fast=_SILU_FAST),
        "sigmoid": Form(f32=_SIGMOID, fast=_SIGMOID_FAST),
        "tanh": _inline("tanhf({0})"),
        "softplus": Form(f32=_SOFTPLUS, fast=_SOFTPLUS_FAST),
        "elu": Form(f32="return x > 0.0f ? x : alpha * expm1f(x);"),
        "selu": Form(f32=_SELU),
        "mish": Form(f32=_MISH, fast=_MISH_FAST),
        "hardswish": Form(f32="return x * (fminf(fmaxf(x + 3.0f, 0.0f), 6.0f) / 6.0f);"),
        "exp": Form(f32="return expf(x);", fast=_EXP_FAST),
        "log": _inline("logf({0})"),
        "log1p": _inline("log1pf({0})"),
        "sqrt": _inline("sqrtf({0})"),
        "rsqrt": _inline("rsqrtf({0})"),
        "erf": _inline("erff({0})"),
        "sin": _inline("sinf({0})"),
        "cos": _inline("cosf({0})"),
        "floor": _inline("floorf({0})"),
        "round": _inline("rintf({0})"),
        "sign": Form(f32="return float(x > 0.0f) - float(x < 0.0f);"),
    }
)
"""By name; the same names as FUNCTIONS, which a test guards."""

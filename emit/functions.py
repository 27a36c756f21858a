"""The C++ of each function of `ucutlass.ir.functions`, under the same name, and of conversions.

Two forms of float functions. The accurate one keeps the table's `error`; the fast one has a
relative error of at most 2**-16 wherever its result is not denormal, and below that error of the
smallest normal, for results that are then rounded to 16 bits or fewer. Neither is compiled with
-use_fast_math: it would flush denormals and loosen the divisions of the accurate forms.

What the table leaves open, settled here: integer arithmetic wraps, like PyTorch's; `a // 0` and
`a % 0` of integers are 0, like NumPy's (PyTorch raises); float `a % b` is `torch.remainder`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ucutlass.emit.function_forms import FORMS, UNITS
from ucutlass.ir.functions import FUNCTIONS
from ucutlass.kernels.arithmetic import ScalarKind

CPP: Mapping[ScalarKind, str] = MappingProxyType(
    {"f32": "float", "i32": "int32_t", "i64": "int64_t", "bool": "bool"}
)
"""The C++ type of a kind."""

_UNSIGNED: Mapping[ScalarKind, str] = MappingProxyType({"i32": "uint32_t", "i64": "uint64_t"})


@dataclass(frozen=True, slots=True)
class Use:
    """A function for operands of one kind, as a program uses it."""

    name: str
    kind: ScalarKind
    fast: bool = False


_WHOLE_POWERS: Mapping[str, str] = MappingProxyType({"2.0f": "{0} * {0}", "3.0f": "{0} * {0} * {0}"})


def apply(use: Use, args: Sequence[str]) -> str:
    """A call of the function as an expression; `args` are C++ primaries of its operands' kind
    (of `where`, the first is bool).

    Raises ValueError if the function takes no operands of this kind.
    """
    if use.name in ("power", "pow") and args[1] in _WHOLE_POWERS:
        return _WHOLE_POWERS[args[1]].format(args[0])
    inline = FORMS[use.name].inline.get(use.kind)
    if inline is not None:
        return inline.format(*args)
    return f"{_symbol(_defined(use))}({', '.join(args)})"


def definitions(uses: Iterable[Use]) -> str:
    """The device functions that `apply` calls for these uses, each once, callees first."""
    defined: dict[Use, None] = {}
    for use in uses:
        if use.kind not in FORMS[use.name].inline:
            defined.update(dict.fromkeys((*_callees(use), _defined(use))))
    text = "\n".join(_definition(use) for use in defined)
    for name, unit in reversed(tuple(UNITS.items())):
        if f"{name}(" in text:
            text = f"{unit}\n{text}"
    return text


def _callees(use: Use) -> tuple[Use, ...]:
    return tuple(Use(name, use.kind) for name in FORMS[use.name].needs)


def _defined(use: Use) -> Use:
    """The use with the form that exists: not every function has a fast one."""
    return Use(use.name, use.kind, use.fast and bool(FORMS[use.name].fast))


def _symbol(use: Use) -> str:
    return f"ucc_{use.name}_fast" if use.fast else f"ucc_{use.name}"


def _definition(use: Use) -> str:
    form, function = FORMS[use.name], FUNCTIONS[use.name]
    match use.kind:
        case "f32":
            body = form.fast if use.fast else form.f32
        case "i32" | "i64":
            body = re.sub(r"\b[TU]\b", lambda t: _types(use.kind)[t[0]], form.integer)
        case _:
            body = ""
    if not body:
        raise ValueError(f"{use.name} takes no operands of kind {use.kind}")
    cpp = CPP[use.kind]
    parameters = ", ".join(f"{cpp} {name}" for name in function.parameters)
    statements = "".join(f"  {line}\n" for line in body.strip().splitlines())
    return f"__forceinline__ __device__ {cpp} {_symbol(use)}({parameters}) {{\n{statements}}}\n"


def _types(kind: ScalarKind) -> Mapping[str, str]:
    return {"T": CPP[kind], "U": _UNSIGNED[kind]}


ROUND = """template <class Element>
__forceinline__ __device__ float ucc_round(float x) {
  return float(cutlass::NumericConverter<Element, float>::convert(x));
}
"""
"""To a narrower float and back: nearest, ties to even; the 8-bit floats saturate."""

INTEGER = """template <int64_t Lowest, int64_t Highest, class Integer>
__forceinline__ __device__ Integer ucc_integer(float x) {
  float r = rintf(x);
  if (!(r > float(Lowest))) return x == x ? Integer(Lowest) : Integer(0);
  return r >= float(Highest) ? Integer(Highest) : Integer(r);
}

template <int64_t Lowest, int64_t Highest, class Integer>
__forceinline__ __device__ Integer ucc_integer(int64_t x) {
  return Integer(x < Lowest ? Lowest : x > Highest ? Highest : x);
}
"""
"""To an integer of a range: nearest, ties to even; saturates; NaN gives 0."""

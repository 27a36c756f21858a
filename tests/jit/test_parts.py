"""How a kernel is cut: what shares a skeleton, and what the arithmetic alone decides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.emit.gemm_plans import SMALL as SM80
from tests.jit.arithmetic_plans import biased, everything, gelu, scaled_relu
from ucutlass.emit import emit
from ucutlass.emit.gemm.lean import lean
from ucutlass.emit.parts import NotServed
from ucutlass.kernels.arithmetic import Compute, CoordinateValue, HostScalar
from ucutlass.kernels.gemm.plan import GemmPlan


def test_kernels_that_differ_in_arithmetic_share_a_skeleton() -> None:
    one, other = lean(gelu()), lean(scaled_relu())
    assert (one.device, one.host) == (other.device, other.host)
    assert one.arithmetic != other.arithmetic
    assert emit(gelu(), "").entry != emit(scaled_relu(), "").entry


def scheduled(**changes: object) -> GemmPlan:
    return replace(gelu(), schedule=replace(gelu().schedule, **changes))  # type: ignore[type-var]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(scheduled(tile=(64, 128, 64)), id="tile"),
        pytest.param(scheduled(cluster=(2, 1)), id="cluster"),
        pytest.param(scheduled(stages=3), id="stages"),
        pytest.param(replace(gelu(), routes=("direct", "direct")), id="route"),
        pytest.param(biased(HostScalar(0, "f32"), Compute("add", (2, 3), "f32")), id="a host scalar"),
        pytest.param(
            biased(CoordinateValue("m", 0, (), (0,), "f32"), Compute("add", (2, 3), "f32")), id="coordinates"
        ),
    ],
)
def test_everything_else_is_the_skeletons(other: GemmPlan) -> None:
    assert lean(other).device.entry != lean(gelu()).device.entry


def test_each_function_is_in_one_part() -> None:
    parts = lean(gelu())
    assert "ucc_gelu" in parts.arithmetic and "ucc_gelu" not in parts.device.code
    assert "struct Mainloop" in parts.device.code and "cute" not in parts.arithmetic


def test_both_parts_declare_the_same_function_and_struct() -> None:
    parts = lean(everything())
    start = 'extern "C" __device__ void ucc_arithmetic('
    (head,) = (line for line in parts.device.code.splitlines() if line.startswith(start))
    assert head.removesuffix(";").replace(start, f"{start}unit::") + " {" in parts.arithmetic
    struct = parts.device.code[parts.device.code.index("struct ArithmeticParams") :].partition("};")[0]
    assert "scalar0" in struct and struct in parts.arithmetic


def test_says_what_is_not_served() -> None:
    with pytest.raises(NotServed, match="TMA kernels"):
        lean(replace(gelu(), schedule=SM80))

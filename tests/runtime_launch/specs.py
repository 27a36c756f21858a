"""Declarations that the tests launch; device cpu."""

from __future__ import annotations

from ucutlass.ir.elements import BF16, BOOL, F32, F64, I32
from ucutlass.ir.extents import Combined, Fixed, Free
from ucutlass.runtime.launch_spec import LaunchSpec, Requirement, ScalarSlot, SlotAxis, TensorSlot

M, K = SlotAxis((0,)), SlotAxis((1,))
MK = (("M", Free("M")), ("K", Free("K")))

SCALE_ADD = LaunchSpec(
    "scale_add",
    MK,
    (TensorSlot("x", F32, (M, K)), ScalarSlot("alpha", F32), TensorSlot("b", F32, (K,))),
    (TensorSlot("", F32, (M, K)),),
    device="cpu",
)

SUM_AND_NEXT = LaunchSpec(
    "sum_and_next",
    MK,
    (TensorSlot("x", F32, (M, K)),),
    (TensorSlot("total", F32, (M,)), TensorSlot("next", F32, (M, K))),
    device="cpu",
)

# report(x: f32[A, (G C), E + 1], n: i32, flag: bool) -> f64[8]: G is fixed, P and C are derived or split.
REPORT = LaunchSpec(
    "report",
    (
        ("A", Free("A")),
        ("G", Fixed(4)),
        ("C", Free("C")),
        ("E", Free("E")),
        ("P", Combined("*", Fixed(2), Free("A"))),
    ),
    (
        TensorSlot(
            "x", F32, (SlotAxis((0,)), SlotAxis((1, 2)), SlotAxis((), Combined("+", Free("E"), Fixed(1))))
        ),
        ScalarSlot("n", I32),
        ScalarSlot("flag", BOOL),
        TensorSlot("e", BF16, (SlotAxis((3,)), SlotAxis((4,)))),
    ),
    (TensorSlot("", F64, (SlotAxis((), Fixed(8)),)),),
    requires=(Requirement("A % 2 == 0", lambda sizes: sizes["A"] % 2 == 0),),
    device="cpu",
)

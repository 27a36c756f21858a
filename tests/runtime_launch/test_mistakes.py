"""Every mistake in a call is its own class, before anything is launched or chosen; on both routes,
and also after the same shapes were accepted once."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ucutlass.ir.elements import F32, S4
from ucutlass.ir.extents import Combined, Fixed, Free
from ucutlass.runtime import arguments
from ucutlass.runtime.entry_codes import LaunchError, describe
from ucutlass.runtime.launch import BoundKernel, Launcher
from ucutlass.runtime.launch_spec import LaunchSpec, ScalarSlot, SlotAxis, TensorSlot
from ucutlass.runtime.library import Native, NoNative

from .conftest import MakeLauncher
from .specs import REPORT, SCALE_ADD, SUM_AND_NEXT

X, B = torch.ones(3, 4), torch.ones(4)
E, R = torch.zeros(6, 4, dtype=torch.bfloat16), torch.zeros(2, 12, 7)
BUFFER = torch.zeros(64)

Case = tuple[str, Callable[[Any], Any], str]

SCALE_ADD_CASES: tuple[Case, ...] = (
    ("WrongCount", lambda k: k(X, 1.0), r"takes 3 arguments \(x, alpha, b\), but got 2"),
    ("WrongCount", lambda k: k(X, 1.0, B, B), "but got 4"),
    ("NotATensor", lambda k: k([1.0], 1.0, B), "x is a list, but a tensor is declared: f32"),
    ("NotATensor", lambda k: k(X, 1.0, None), "b is a NoneType"),
    ("NotATensor", lambda k: k(X, 1.0, B, out=3), "out is a int"),
    (
        "WrongDtype",
        lambda k: k(X.half(), 1.0, B),
        r"x is torch.float16, but is declared f32 \(torch.float32\)",
    ),
    ("WrongDtype", lambda k: k(X, 1.0, B, out=torch.empty(3, 4).double()), "out is torch.float64"),
    ("WrongRank", lambda k: k(X[None], 1.0, B), r"x has 3 axes, shape \[1, 3, 4\], .* with 2: \[M, K\]"),
    ("WrongRank", lambda k: k(X, 1.0, B[0]), "b has 0 axes"),
    (
        "ExtentMismatch",
        lambda k: k(X, 1.0, torch.ones(5)),
        "b axis 0 is K and has 5 .* must have 4: K is 4 by x axis 1",
    ),
    (
        "ExtentMismatch",
        lambda k: k(X, 1.0, B, out=torch.empty(4, 4)),
        "out axis 0 is M and has 4 .* must have 3",
    ),
    ("EmptyExtent", lambda k: k(torch.ones(0, 4), 1.0, B), "M is 0 by x axis 0"),
    (
        "NotContiguous",
        lambda k: k(torch.ones(4, 3).t(), 1.0, B),
        "x axis 1 has stride 3 where 1 was expected",
    ),
    (
        "NotContiguous",
        lambda k: k(torch.ones(3, 8)[:, :4], 1.0, B),
        "x axis 0 has stride 8 where 4 was expected",
    ),
    ("NotContiguous", lambda k: k(torch.ones(1, 4).expand(3, 4), 1.0, B), "x axis 0 has stride 0"),
    ("NotContiguous", lambda k: k(X, 1.0, B, out=torch.empty(4, 3).t()), "out axis 1 has stride 3"),
    ("NoMemory", lambda k: k(X.to("meta"), 1.0, B), "x is a meta tensor"),
    (
        "NoMemory",
        lambda k: k(FakeTensorMode().from_tensor(X), 1.0, B),
        "x is a FakeTensor, which has no memory",
    ),
    ("NoMemory", lambda k: k(X.to_sparse(), 1.0, B), "layout torch.sparse_coo"),
    ("NoMemory", lambda k: torch.vmap(lambda b: k(X, 1.0, b))(torch.ones(2, 4)), "b has no memory to read"),
    ("NeedsGrad", lambda k: k(X.clone().requires_grad_(), 1.0, B), "x requires a gradient"),
    ("NeedsGrad", lambda k: k(X, 1.0, torch.nn.Parameter(B)), "b requires a gradient"),
    ("LazyView", lambda k: k(torch._neg_view(X), 1.0, B), "x is a lazily negated view"),
    ("Overlap", lambda k: k(X, 1.0, B, out=X), "out shares memory with x"),
    (
        "Overlap",
        lambda k: k(BUFFER[:12].view(3, 4), 1.0, B, out=BUFFER[8:20].view(3, 4)),
        "out shares memory with x",
    ),
    ("BadScalar", lambda k: k(X, "1", B), "alpha is declared f32, but got str '1'"),
    (
        "BadScalar",
        lambda k: k(X, torch.tensor(1.0), B),
        r"a number of the host, but got a tensor; give .item\(\)",
    ),
    ("BadScalar", lambda k: k(X, 10**400, B), "alpha is declared f32, but 1000"),
    ("BadScalar", lambda k: k(X, None, B), "NoneType"),
)

REPORT_CASES: tuple[Case, ...] = (
    (
        "NotDivisible",
        lambda k: k(torch.zeros(2, 13, 7), 1, True, E),
        r"x axis 1 is \(G C\) .* 13 .* multiple of G = 4",
    ),
    (
        "ExtentMismatch",
        lambda k: k(torch.zeros(2, 12, 8), 1, True, E),
        r"x axis 2 has 8 .* \(E \+ 1\), E = 6 by e axis 0: 7",
    ),
    (
        "ExtentMismatch",
        lambda k: k(R, 1, True, E[:, :3].contiguous()),
        r"e axis 1 is P and has 3 .* \(2 \* A\), A = 2",
    ),
    (
        "RequirementFailed",
        lambda k: k(torch.zeros(1, 12, 7), 1, True, E[:, :2].contiguous()),
        "requires A % 2 == 0.* A = 1",
    ),
    (
        "BadScalar",
        lambda k: k(R, 2**31, True, E),
        "n is declared i32, -2147483648 to 2147483647, but got 2147483648",
    ),
    ("BadScalar", lambda k: k(R, 10**30, True, E), "but got 1000"),
    ("BadScalar", lambda k: k(R, 1.0, True, E), "n is declared i32, but got float 1.0"),
    ("BadScalar", lambda k: k(R, True, True, E), "n is declared i32, but got bool True"),
    ("BadScalar", lambda k: k(R, 1, 1, E), "flag is declared bool, but got int 1"),
)


def _ids(cases: tuple[Case, ...]) -> list[str]:
    return [f"{name}-{i}" for i, (name, _, _) in enumerate(cases)]


def _raises(case: Case, kernel: object) -> None:
    name, call, words = case
    with pytest.raises(arguments.ArgumentError, match=words) as caught:
        call(kernel)
    assert type(caught.value).__name__ == name


@pytest.mark.parametrize("case", SCALE_ADD_CASES, ids=_ids(SCALE_ADD_CASES))
def test_mistakes(case: Case, launcher: MakeLauncher) -> None:
    kernel, asked = launcher(SCALE_ADD, "scale_add")
    _raises(case, kernel)
    assert not asked, "a call with a mistake must not reach the planner"
    kernel(X, 1.0, B), kernel(X, 1.0, B, out=torch.empty(3, 4))
    _raises(case, kernel)


@pytest.mark.parametrize("case", REPORT_CASES, ids=_ids(REPORT_CASES))
def test_mistakes_in_composite_and_derived_extents(case: Case, launcher: MakeLauncher) -> None:
    kernel, asked = launcher(REPORT, "report", launch_parameters=(5, 2))
    _raises(case, kernel)
    assert not asked
    kernel(R, 1, True, E)
    _raises(case, kernel)


def test_mistakes_in_several_outs(launcher: MakeLauncher) -> None:
    kernel, _ = launcher(SUM_AND_NEXT, "sum_and_next", launch_parameters=(7, -1), workspace=64)
    kernel(X)
    kernel(X, out=(torch.empty(3), torch.empty(3, 4)))
    shared = torch.empty(12)
    for name, out, words in (
        ("NotATensor", torch.empty(3), "a tuple of 2 tensors is wanted"),
        ("WrongCount", (torch.empty(3),), "out has 1 tensors, but there are 2 results"),
        ("ExtentMismatch", (torch.empty(4), torch.empty(3, 4)), r"out\[0\] \(total\) axis 0"),
        (
            "Overlap",
            (shared[:3], shared.view(3, 4)),
            r"out\[1\] \(next\) shares memory with out\[0\] \(total\)",
        ),
    ):
        _raises((name, lambda k, out=out: k(X, out=out), words), kernel)


def test_one_negated_element(launcher: MakeLauncher) -> None:
    """Contiguous and still lazily negated: the imaginary part of a single conjugated number."""
    kernel, _ = launcher(SCALE_ADD, "scale_add")
    one = torch.ones(1)
    kernel(one.view(1, 1), 1.0, one)
    negated = torch.ones(1, 1, dtype=torch.complex64).conj().imag
    _raises(("LazyView", lambda k: k(negated, 1.0, one), "lazily negated"), kernel)


def test_unknown_keyword(launcher: MakeLauncher) -> None:
    kernel, _ = launcher(SCALE_ADD, "scale_add")
    buffer = torch.empty(3, 4)
    for _ in range(2):
        with pytest.raises(TypeError, match="output"):
            kernel(X, 1.0, B, output=buffer)
        with pytest.raises(TypeError, match="output"):
            kernel(X, 1.0, B, out=buffer, output=buffer)
        kernel(X, 1.0, B, out=buffer)


def test_wrong_device(launcher: MakeLauncher) -> None:
    kernel, asked = launcher(replace(SCALE_ADD, device="cuda"), "scale_add")
    _raises(("WrongDevice", lambda k: k(X, 1.0, B), "x is on cpu, but the kernel runs on cuda"), kernel)
    assert not asked


def test_four_bits_a_value_are_given_as_bytes() -> None:
    spec = LaunchSpec(
        "k",
        (("A", Free("A")), ("B", Fixed(9))),
        (TensorSlot("w", S4, (SlotAxis((0,)), SlotAxis((1,)))),),
        (),
        device="cpu",
    )
    with pytest.raises(arguments.WrongDtype, match=r"w is torch.int32.*two values a byte.*pack_s4"):
        arguments.check_tensor(spec, "w", spec.params[0], torch.zeros(2, 9, dtype=torch.int32))  # type: ignore[arg-type]
    with pytest.raises(arguments.ExtentMismatch, match="w axis 1 is B and has 10 elements, but must have 9"):
        arguments.bind(spec, [("w", (2, 5), spec.params[0])])  # type: ignore[list-item]


def test_declaration_that_determines_nothing() -> None:
    both = TensorSlot("x", F32, (SlotAxis((0, 1)),))
    spec = LaunchSpec(
        "k", (("A", Free("A")), ("B", Free("B"))), (both, ScalarSlot("s", F32)), (both,), device="cpu"
    )
    with pytest.raises(arguments.Undetermined, match="no tensor determines the extent of A"):
        arguments.bind(spec, [("x", (6,), both)])


def test_declaration_without_tensors(route: Native | NoNative) -> None:
    spec = LaunchSpec("k", (), (ScalarSlot("s", F32),), (TensorSlot("", F32, ()),), device="cpu")
    with pytest.raises(arguments.Undetermined, match="k: takes no tensor, so no call says on which device"):
        Launcher(spec, lambda _: BoundKernel(0, (), 0), route)


def test_derived_extent_below_one_and_division_by_zero() -> None:
    x = TensorSlot("x", F32, (SlotAxis((0,)),))

    def spec(extent: Combined) -> LaunchSpec:
        return LaunchSpec("k", (("A", Free("A")), ("P", extent)), (x,), (x,), device="cpu")

    with pytest.raises(arguments.EmptyExtent, match=r"P is -1 by P = \(A - 4\), A = 3 by x axis 0"):
        arguments.bind(spec(Combined("-", Free("A"), Fixed(4))), [("x", (3,), x)])
    with pytest.raises(arguments.EmptyExtent, match="divides by zero"):
        arguments.bind(spec(Combined("//", Fixed(4), Combined("-", Free("A"), Fixed(3)))), [("x", (3,), x)])


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (1, "refused its arguments"),
        (1700, "CUDA error 700: .*illegal memory access"),
        (1009, "CUDA error 9"),
        (2004, "CUTLASS status kErrorInvalidProblem"),
        (2011, "CUTLASS status kInvalid"),
        (2012, "does not define"),
        (-1, "does not define"),
    ],
)
def test_codes_of_the_entry(launcher: MakeLauncher, code: int, words: str) -> None:
    kernel, asked = launcher(SCALE_ADD, "refuse", launch_parameters=(code,))
    for _ in range(2):
        with pytest.raises(LaunchError, match=words) as caught:
            kernel(X, 1.0, B)
        assert caught.value.code == code and caught.value.kernel == "scale_add"
    assert len(asked) == 1


def test_code_after_the_launcher_has_seen_the_shape(kernels: Any, native_launcher: Any) -> None:
    """The native route's own error path: a shape is taught by a launch that worked."""
    answers = iter([0, 1702])
    signature = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 7)
    entry = signature(lambda *_: next(answers))
    address = ctypes.cast(entry, ctypes.c_void_p).value
    assert address is not None
    kernel = Launcher(SCALE_ADD, lambda _: BoundKernel(address, (), 0, entry), native_launcher)
    kernel(X, 1.0, B)
    with pytest.raises(LaunchError, match="timed out"):
        kernel(X, 1.0, B)


def test_describe_zero_is_not_a_failure() -> None:
    assert "does not define" in describe(0)

"""No load or store leaves the alignment that its instruction needs, wherever its coordinates put it: of
convolutions in any order of names, with groups, steps, dilations, paddings and any extents, of any type; of
reductions; and the law that all families derive their vectors by."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels import reduction_access_model
from tests.kernels.access_model import Launch, unravel, wrong_accesses
from tests.pairs.pairs import Program
from tests.pairs.spaces import SPACES
from ucutlass import frontend
from ucutlass.diagnostics import ProgramError
from ucutlass.ir.elements import F16, F32, S8
from ucutlass.kernels.addresses import PACK_BYTES, MergedModes, Operand, Sizes, access, runs, vector_width
from ucutlass.kernels.convolution.plan import ConvolutionPlan, GatheredOperand
from ucutlass.kernels.reduction.plan import ReductionPlan
from ucutlass.shapes import complete, free_dims


def launch_of(made: Program, arch: str, fine: Random | None = None) -> Launch | None:
    """The plan of a program, where a convolution's serves it; `fine` draws which tensors are aligned."""
    try:
        checked = frontend.read_text(made.text)
    except ProgramError:  # UC0224: its window lies outside at every coordinate
        return None
    kernel = frontend.kernel(checked)
    pointers = len(kernel.params) + len(kernel.results)
    aligned = tuple(fine is None or fine.random() < 0.7 for _ in range(pointers))
    try:
        planned = frontend.plan_kernel(
            checked, kernel, complete(kernel, made.sizes), arch, aligned=aligned
        ).planned
    except ProgramError:
        return None
    # Windows of one tap are a GEMM, some sums of products a reduction.
    return Launch(planned.plan, planned.sizes, aligned) if isinstance(planned.plan, ConvolutionPlan) else None


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**31), st.randoms(use_true_random=False), st.sampled_from(("sm80", "sm90a")))
def test_every_access_of_a_convolution_is_aligned(seed: int, draw: Random, arch: str) -> None:
    made = SPACES["convolution"].drawn(seed)
    if (launch := launch_of(made, arch, draw)) is not None:
        assert list(wrong_accesses(launch, draw)) == [], f"{made.text}{made.sizes} {launch.aligned}"


def reduction_launch_of(seed: int, draw: Random) -> reduction_access_model.Launch | None:
    """The plan of the reduction of a seed, where there is one; `draw` draws which tensors are aligned."""
    made = SPACES["reduction"].drawn(seed)
    try:
        checked = frontend.read_text(made.text)
        kernel = frontend.kernel(checked)
        aligned = tuple(draw.random() < 0.7 for _ in range(len(kernel.params) + len(kernel.results)))
        sizes = complete(kernel, {d: made.sizes[d] for d in free_dims(kernel)})
        planned = frontend.plan_kernel(checked, kernel, sizes, "sm90a", aligned=aligned).planned
    except ProgramError:
        return None
    if not isinstance(planned.plan, ReductionPlan):
        return None  # a sum of products may be a convolution
    return reduction_access_model.Launch(planned.plan, planned.sizes, aligned)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**31), st.randoms(use_true_random=False))
def test_every_access_of_a_reduction_is_aligned(seed: int, draw: Random) -> None:
    if (launch := reduction_launch_of(seed, draw)) is not None:
        wrong = list(reduction_access_model.wrong_accesses(launch, draw))
        assert wrong == [], f"{SPACES['reduction'].drawn(seed)} {launch.aligned}"


# --- the law, and that the models see what breaks it ----------------------------------------


@given(
    st.sampled_from((8, 16, 32, 64)),
    st.booleans(),
    st.lists(st.integers(0, 300), min_size=1, max_size=4),
    st.sampled_from((4, 16)),
    st.lists(st.integers(0, 50), min_size=4, max_size=4),
)
def test_a_width_divides_every_address_and_is_the_largest(
    bits: int, aligned: bool, steps: list[int], most: int, coordinates: list[int]
) -> None:
    width = vector_width(bits, aligned, steps, most)
    address = sum(c * s for c, s in zip(coordinates, steps, strict=False))
    assert width & (width - 1) == 0 and address % width == 0 and width * bits <= max(bits, 8 * most)
    if aligned and 2 * width * bits <= 8 * most <= 8 * PACK_BYTES:
        assert any(s % (2 * width) for s in steps)
    if not aligned:
        assert width == 1


@given(st.data())
def test_an_operand_s_alignment_holds_along_every_mode(data: st.DataObject) -> None:
    """Strides are those of the tensor's own names, whichever modes they have become."""
    names = data.draw(st.permutations("abcdef"))[: data.draw(st.integers(1, 5))]
    sizes = Sizes({n: i for i, n in enumerate(names)}, tuple(data.draw(st.integers(1, 12)) for _ in names))
    order = tuple(data.draw(st.permutations(names)))[: data.draw(st.integers(1, len(names)))]
    tensor = Operand(0, data.draw(st.sampled_from((F16, F32, S8))), order)
    role = {n: data.draw(st.sampled_from(("m", "n", "k", "batch"))) for n in names}
    parts = {r: runs([n for n in names if role[n] == r], [tensor]) for r in ("m", "n", "k", "batch")}
    m, n = (parts[r][-1] if parts[r] else () for r in ("m", "n"))
    modes = MergedModes(m, n, parts["k"], (*parts["m"][:-1], *parts["n"][:-1], *parts["batch"]))
    found = access(tensor, modes, sizes, True)
    if found.contiguous is None:
        assert found.align == 1
        return
    along = {"m": m, "n": n, "k": modes.k[-1] if modes.k else ()}[found.contiguous]
    length = math.prod(sizes.values[sizes.position[d]] for d in along)
    start = data.draw(st.integers(0, length // found.align - 1)) * found.align
    at = {d: data.draw(st.integers(0, sizes.values[sizes.position[d]] - 1)) for d in names}
    addresses = []
    for i in range(start, start + found.align):
        inside = unravel(i, [(sizes.position[d], sizes.values[sizes.position[d]]) for d in along])
        here = {**at, **{d: inside[sizes.position[d]] for d in along}}
        offset = 0
        for d in order:
            offset = offset * sizes.values[sizes.position[d]] + here[d]
        addresses.append(offset)
    assert addresses == list(range(addresses[0], addresses[0] + found.align))
    assert addresses[0] % found.align == 0


def _as_memory_says(side: GatheredOperand) -> int:
    return min(side.access.align, 16 // side.access.read.bytes)


def _sixteen_bytes(bits: int, *_: object) -> int:
    return 128 // bits


BROKEN = {
    "a batch moves along the vectors": (
        "ucutlass.kernels.convolution.plan.GatheredOperand.copy_width",
        property(_as_memory_says),
    ),
    "odd extents under a thread's neighbours": (
        "ucutlass.kernels.convolution.schedule_direct.vector_width",
        _sixteen_bytes,
    ),
    "odd strides of an operand": ("ucutlass.kernels.addresses.vector_width", _sixteen_bytes),
    "odd extents of a window": ("ucutlass.kernels.convolution.problem.vector_width", _sixteen_bytes),
}


@pytest.mark.parametrize("mistake", BROKEN)
def test_the_model_sees_accesses_that_leave_their_alignment(
    mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*BROKEN[mistake])
    launches = (launch_of(SPACES["convolution"].drawn(seed), "sm80") for seed in range(200))
    assert any(any(wrong_accesses(x, Random(0))) for x in launches if x is not None)


def _two_numbers(span: int, step: int, *_: int) -> int:
    return math.gcd(span, step)


BROKEN_REDUCTIONS = {
    "odd strides": ("ucutlass.kernels.reduction.problem.vector_width", _sixteen_bytes),
    "windows that two names move": ("ucutlass.emit.reduction.loads.gcd", _two_numbers),
}


@pytest.mark.parametrize("mistake", BROKEN_REDUCTIONS)
def test_the_reductions_model_sees_accesses_that_leave_their_alignment(
    mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*BROKEN_REDUCTIONS[mistake])
    launches = (reduction_launch_of(seed, Random(seed)) for seed in range(1200))
    assert any(any(reduction_access_model.wrong_accesses(x, Random(0))) for x in launches if x is not None)

"""Calls that are right: results, memoisation, out=, scalars, threads, lifetimes; on both routes."""

from __future__ import annotations

import gc
import re
import sys
import threading
import weakref
from pathlib import Path

import pytest
import torch

from ucutlass.ir.elements import ELEMENTS, F32, S4, Element
from ucutlass.limits import PARAMETERS
from ucutlass.runtime import launch
from ucutlass.runtime.launch import BoundKernel, Launcher, LaunchRequest
from ucutlass.runtime.launch_sequence import MOST_SCALARS, MOST_TENSORS
from ucutlass.runtime.launch_spec import LaunchSpec, ScalarSlot, TensorSlot, dtype_of
from ucutlass.runtime.library import Native, NoNative, load_entry

from .conftest import MakeLauncher
from .specs import MK, REPORT, SCALE_ADD, SUM_AND_NEXT, K, M


def _expected(x: torch.Tensor, alpha: float, b: torch.Tensor) -> torch.Tensor:
    return alpha * x + b


def test_result_is_allocated_and_right(launcher: MakeLauncher) -> None:
    kernel, _ = launcher(SCALE_ADD, "scale_add")
    x, b = torch.randn(5, 7), torch.randn(7)
    for alpha in (2.0, 3, 0.5):
        y = kernel(x, alpha, b)
        assert type(y) is torch.Tensor and y.shape == (5, 7) and y.is_contiguous()
        torch.testing.assert_close(y, _expected(x, alpha, b))


@pytest.mark.parametrize("scalars", [0, 40])
def test_many_tensors_are_passed(kernels: Path, route: Native | NoNative, scalars: int) -> None:
    entry = load_entry(kernels, "sum_of_many")
    tensors = tuple(TensorSlot(f"x{i}", F32, (M,)) for i in range(300))
    numbers = tuple(ScalarSlot(f"s{i}", F32) for i in range(scalars))
    spec = LaunchSpec("many", MK[:1], (*tensors, *numbers), (TensorSlot("", F32, (M,)),), device="cpu")
    kernel = Launcher(spec, lambda _: BoundKernel(entry.address, (), 0, entry), route)
    xs = [torch.randn(5) for _ in range(300)]
    for _ in range(2):
        y = kernel(*xs, *[0.5] * scalars)
        torch.testing.assert_close(y, torch.stack(xs).sum(0), rtol=1e-4, atol=1e-4)


def test_the_native_launcher_takes_what_a_program_may_have() -> None:
    """The limits stand in C and in Python."""
    text = (Path(launch.__file__).parent / "native" / "launcher.c").read_text()
    limits = {name: int(number) for name, number in re.findall(r"(MAX_\w+) = (\d+)", text)}
    assert (limits["MAX_TENSORS"], limits["MAX_SCALARS"]) == (MOST_TENSORS, MOST_SCALARS)
    assert f"at most {MOST_TENSORS} tensors and {MOST_SCALARS} scalars" in text
    assert PARAMETERS.most < MOST_TENSORS


def test_choose_is_asked_once_a_shape(launcher: MakeLauncher) -> None:
    kernel, asked = launcher(SCALE_ADD, "scale_add")
    for _ in range(3):
        for m in (1, 2, 3):
            kernel(torch.randn(m, 4), 1.0, torch.randn(4))
    assert [r.extents for r in asked] == [(1, 4), (2, 4), (3, 4)]
    assert {r.aligned for r in asked} == {(True, True, True)} and asked[0].device == torch.device("cpu")


def test_alignment_is_part_of_the_request(launcher: MakeLauncher) -> None:
    kernel, asked = launcher(SCALE_ADD, "scale_add")
    storage, b = torch.randn(4 * 4 + 1), torch.randn(4)
    for offset in (0, 1, 0, 1):
        x = storage[offset : offset + 16].view(4, 4)
        torch.testing.assert_close(kernel(x, 1.0, b), _expected(x, 1.0, b))
    assert [r.aligned for r in asked] == [(True, True, True), (False, True, True)]


def test_failed_choice_is_asked_again(kernels: Path, route: Native | NoNative) -> None:
    entry, attempts = load_entry(kernels, "scale_add"), []

    def choose(request: LaunchRequest) -> BoundKernel:
        attempts.append(request)
        if len(attempts) == 1:
            raise RuntimeError("no compiler today")
        return BoundKernel(entry.address, (), 0, entry)

    kernel = Launcher(SCALE_ADD, choose, route)
    with pytest.raises(RuntimeError, match="no compiler today"):
        kernel(torch.ones(2, 2), 1.0, torch.ones(2))
    assert kernel(torch.ones(2, 2), 1.0, torch.ones(2)).sum() == 8


def _count_slow(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows with every call that the native launcher hands to Python."""
    entered: list[object] = []
    slow = launch._Core.slow

    def counting(self: launch._Core, launcher: object, *args: object, out: object = None) -> object:
        entered.append(args)
        return slow(self, launcher, *args, out=out)

    monkeypatch.setattr(launch._Core, "slow", counting)
    return entered


def test_steady_state_stays_out_of_python(
    kernels: Path, native_launcher: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered = _count_slow(monkeypatch)
    entry = load_entry(kernels, "scale_add")
    kernel = Launcher(SCALE_ADD, lambda _: BoundKernel(entry.address, (), 0, entry), native_launcher)
    assert kernel.route == "native"
    x, b, out = torch.randn(3, 4), torch.nn.Parameter(torch.randn(4), requires_grad=False), torch.empty(3, 4)
    for _ in range(5):
        kernel(x, 2.0, b)
        kernel(x, 2, b, out=out)
    assert len(entered) == 2


def test_signatures_that_share_a_bucket_stay_apart(
    kernels: Path, native_launcher: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than the native table has buckets."""
    slow = _count_slow(monkeypatch)
    entry = load_entry(kernels, "scale_add")
    kernel = Launcher(SCALE_ADD, lambda _: BoundKernel(entry.address, (), 0, entry), native_launcher)
    rows, b = torch.arange(6000.0).unsqueeze(1), torch.ones(1)
    for _ in range(2):
        for m in range(1, len(rows) + 1):
            y = kernel(rows[:m], 2.0, b)
            assert y.shape == (m, 1) and y[m - 1].item() == 2 * m - 1
    assert len(slow) == len(rows), "each came to Python once"


def test_out_is_filled_and_returned(launcher: MakeLauncher) -> None:
    kernel, _ = launcher(SCALE_ADD, "scale_add")
    x, b, out = torch.randn(3, 4), torch.randn(4), torch.full((3, 4), torch.nan)
    for alpha in (1.0, 2.0):
        before = out._version
        assert kernel(x, alpha, b, out=out) is out
        torch.testing.assert_close(out, _expected(x, alpha, b))
        assert out._version > before, "autograd must see that out was overwritten"


@pytest.mark.parametrize("container", [tuple, list])
def test_several_results(launcher: MakeLauncher, container: type) -> None:
    kernel, asked = launcher(SUM_AND_NEXT, "sum_and_next", launch_parameters=(7, -1), workspace=4 * 3)
    x = torch.randn(3, 5)
    out = container((torch.empty(3), torch.empty(3, 5)))
    for _ in range(2):
        results = kernel(x)
        assert isinstance(results, tuple) and len(results) == 2
        torch.testing.assert_close(results.total, x.sum(1))
        torch.testing.assert_close(results.next, x + 1)
        assert results[0] is results.total
        given = kernel(x, out=out)
        assert given[0] is out[0] and given.next is out[1]
        torch.testing.assert_close(out[0], x.sum(1))
    assert len(asked) == 1


def test_composite_nameless_and_derived_extents(launcher: MakeLauncher) -> None:
    kernel, asked = launcher(REPORT, "report", launch_parameters=(5, 2))
    x, e = torch.zeros(2, 12, 7), torch.zeros(6, 4, dtype=torch.bfloat16)
    for _ in range(2):
        assert kernel(x, -9, True, e).tolist()[:7] == [2, 4, 3, 6, 4, -9, 1]
    assert [r.extents for r in asked] == [(2, 4, 3, 6, 4)]


def test_axes_of_one_element_may_have_any_stride(
    launcher: MakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered = _count_slow(monkeypatch)
    kernel, _ = launcher(SCALE_ADD, "scale_add")
    x = torch.randn(1, 8).as_strided((1, 8), (77, 1))
    for _ in range(2):
        torch.testing.assert_close(kernel(x, 1.0, torch.ones(8)), x + 1)
    assert len(entered) == (1 if kernel.route == "native" else 2)


def test_grad_tensors_pass_where_grad_is_off(launcher: MakeLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    entered = _count_slow(monkeypatch)
    kernel, _ = launcher(SCALE_ADD, "scale_add")
    x, b = torch.randn(2, 2, requires_grad=True), torch.nn.Parameter(torch.randn(2))
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            for _ in range(2):
                torch.testing.assert_close(kernel(x, 1.0, b), x + b)
    assert len(entered) == (1 if kernel.route == "native" else 4)


def test_plain_subclass_is_taken(launcher: MakeLauncher) -> None:
    class Tagged(torch.Tensor):
        pass

    kernel, asked = launcher(SCALE_ADD, "scale_add")
    x = torch.randn(2, 2).as_subclass(Tagged)
    for _ in range(2):
        torch.testing.assert_close(kernel(x, 1.0, torch.zeros(2)), x.as_subclass(torch.Tensor))
    assert len(asked) == 1


@pytest.mark.parametrize(
    "elem", [e for e in ELEMENTS.values() if e.packed == 1 and e.storable], ids=lambda e: e.name
)
def test_every_element_type_and_a_result_of_one_element(
    kernels: Path, native_launcher: Native, elem: Element, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered = _count_slow(monkeypatch)
    spec = LaunchSpec("one", MK, (TensorSlot("x", elem, (M, K)),), (TensorSlot("", elem, ()),), device="cpu")
    entry = load_entry(kernels, "nothing")
    kernel = Launcher(spec, lambda _: BoundKernel(entry.address, (), 0, entry), native_launcher)
    x = torch.zeros(2, 16, dtype=dtype_of(elem))
    for _ in range(3):
        y = kernel(x)
        assert y.shape == () and y.dtype == x.dtype
    assert len(entered) == 1


def test_threads_share_a_launcher(launcher: MakeLauncher) -> None:
    kernel, asked = launcher(SCALE_ADD, "scale_add")
    wrong: list[object] = []
    start = threading.Barrier(8)

    def hammer(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        inputs = [
            (torch.randn(m, 3, generator=generator), torch.randn(3, generator=generator)) for m in range(1, 9)
        ]
        start.wait()
        for i in range(400):
            x, b = inputs[i % 8]
            if not torch.equal(kernel(x, 2.0, b), 2.0 * x + b):
                wrong.append((seed, i))

    threads = [threading.Thread(target=hammer, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert sorted(r.extents for r in asked) == [(m, 3) for m in range(1, 9)]


def test_nothing_is_kept_or_lost(launcher: MakeLauncher) -> None:
    kernel, _ = launcher(SCALE_ADD, "scale_add")
    x, b, out = torch.randn(2, 2), torch.randn(2), torch.empty(2, 2)
    kernel(x, 1.0, b), kernel(x, 1.0, b, out=out)
    before = [sys.getrefcount(o) for o in (x, b, out, None)]
    for _ in range(100):
        y = kernel(x, 1.0, b)
        kernel(x, 1.0, b, out=out)
    after = [sys.getrefcount(o) for o in (x, b, out, None)]
    assert after[:3] == before[:3] and abs(after[3] - before[3]) < 50
    result = weakref.ref(y)
    del y
    assert result() is None


def test_workspaces_are_given_back(launcher: MakeLauncher) -> None:
    kernel, _ = launcher(SUM_AND_NEXT, "sum_and_next", launch_parameters=(7, -1), workspace=64)
    x, calls = torch.randn(2, 2), 500
    kernel(x), kernel(x)
    before = sys.getallocatedblocks()
    for _ in range(calls):
        kernel(x)
    assert sys.getallocatedblocks() - before < calls / 2


def test_launcher_lets_go_of_its_libraries(kernels: Path, route: Native | NoNative) -> None:
    class Owner:
        pass

    owner, entry = Owner(), load_entry(kernels, "scale_add")
    held = weakref.ref(owner)
    kernel = Launcher(SCALE_ADD, lambda _, owner=owner: BoundKernel(entry.address, (), 0, owner), route)
    kernel(torch.ones(2, 2), 1.0, torch.ones(2))
    del owner
    gc.collect()
    assert held() is not None
    del kernel
    gc.collect()
    gc.collect()  # where dynamo is loaded, its wrapper of the slow path is a cycle that the first one frees
    assert held() is None


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int4"])
def test_values_of_four_bits_come_two_a_byte(kernels: Path, native_launcher: Native, dtype: str) -> None:
    if not hasattr(torch, dtype):
        pytest.skip("a newer torch has it")
    asked = []
    spec = LaunchSpec("one", MK, (TensorSlot("x", S4, (M, K)),), (TensorSlot("", F32, ()),), device="cpu")
    entry = load_entry(kernels, "nothing")

    def choose(request: LaunchRequest) -> BoundKernel:
        asked.append(request.extents)
        return BoundKernel(entry.address, (), 0, entry)

    kernel = Launcher(spec, choose, native_launcher)
    x = torch.zeros(2, 16, dtype=torch.uint8).view(getattr(torch, dtype))
    for _ in range(3):
        assert kernel(x).shape == ()
    assert asked == [(2, 32)]

"""Kernels that are lent to calls of other extents, on both routes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ucutlass.runtime import cuda_driver, launch, lending
from ucutlass.runtime.entry_codes import BAD_ARGUMENTS, LaunchError
from ucutlass.runtime.launch import BoundKernel, Launcher, LaunchRequest
from ucutlass.runtime.lending import Lender, Lending, Lends
from ucutlass.runtime.library import Native, NoNative, load_entry

from .specs import SCALE_ADD

Rows = list[int]


class Kernels:
    """What was built, and what was lent of whom to whom, by rows. Kernels built for `silent` rows are refused by others'
    calls only as they are launched, those for `refusing` as they are bound; `gate` holds builds beside calls back."""

    def __init__(self, folder: Path, route: Native | NoNative, lends: Lends) -> None:
        self.built: Rows = []
        self.lent: list[tuple[int, int]] = []
        self.refusing: set[int] = set()
        self.silent: set[int] = set()
        self.failing: set[int] = set()
        self.gate = threading.Event()
        self.gate.set()
        self._main = threading.get_ident()
        self._entry = load_entry(folder, "scale_add")
        self._refuses = load_entry(folder, "refuse")
        self.lending = Lending(Lender(self._own, self._lent, (0,)), lends)
        self.call = Launcher(SCALE_ADD, self.lending.choose, route)

    def _own(self, request: LaunchRequest) -> BoundKernel:
        if threading.get_ident() != self._main:
            assert self.gate.wait(60)
        if request.extents[0] in self.failing:
            raise RuntimeError("no compiler")
        self.built.append(request.extents[0])
        return BoundKernel(self._entry.address, (0, 1, 1), 0, self._entry)

    def _lent(self, plan: LaunchRequest, request: LaunchRequest) -> BoundKernel | None:
        pair = (plan.extents[0], request.extents[0])
        if pair[0] in self.refusing:
            raise LaunchError("scale_add", BAD_ARGUMENTS)
        self.lent.append(pair)
        entry = self._refuses if pair[0] in self.silent else self._entry
        return BoundKernel(entry.address, (BAD_ARGUMENTS, 1, 1), 0, entry)

    def right(self, rows: int) -> None:
        x, b = torch.randn(rows, 7), torch.randn(7)
        torch.testing.assert_close(self.call(x, 2.0, b), 2.0 * x + b)

    def wait(self) -> None:
        self.gate.set()
        self.lending._maker.join(60)


Make = Callable[..., Kernels]


@pytest.fixture
def made(kernels: Path, route: Native | NoNative) -> Make:
    return lambda lends="all": Kernels(kernels, route, lends)


def test_near_calls_take_a_plan_for_good(made: Make) -> None:
    k = made()
    for rows in (16, 8, 32, 11, 16, 11):
        k.right(rows)
    assert k.built == [16]
    assert k.lent == [(16, 8), (16, 32), (16, 11)]


def test_far_calls_take_the_nearest_until_their_own_are_built(
    made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "ASKED_EVERY", 3)
    k = made()
    k.gate.clear()
    k.right(16)
    for _ in range(4):
        k.right(100)
    assert k.built == [16] and {*k.lent} == {(16, 100)}
    k.wait()
    for _ in range(4):
        k.right(100)
    k.right(60)
    assert k.built == [16, 100] and k.lent[-1] == (100, 60)


def test_a_captured_call_keeps_its_kernels(made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "ASKED_EVERY", 1)
    k = made()
    k.right(16)
    k.right(100)
    k.wait()
    monkeypatch.setattr(lending, "capturing", lambda device: True)
    k.right(100)
    assert {*k.lent} == {(16, 100)}
    asked = len(k.lent)
    monkeypatch.setattr(lending, "capturing", lambda device: False)
    k.right(100)
    k.right(60)
    assert k.lent[asked:] == [(100, 60)]


def test_one_build_runs_beside_calls_at_a_time(made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "ASKED_EVERY", 1)
    k = made()
    k.gate.clear()
    for rows in (16, 100, 1000):
        k.right(rows)
    k.wait()
    assert k.built == [16, 100]
    for _ in range(2):
        k.right(1000)  # until it is its turn
        k.wait()
    assert k.built == [16, 100, 1000]


def test_a_far_call_waits_where_kernels_are_lent_to_near_ones_alone(made: Make) -> None:
    k = made("near")
    for rows in (16, 100, 60):
        k.right(rows)
    assert k.built == [16, 100] and k.lent == [(100, 60)]


@pytest.mark.parametrize("when", ["refusing", "silent"])
def test_a_refused_call_gets_kernels_of_its_own(made: Make, when: str) -> None:
    k = made()
    k.right(16)
    getattr(k, when).add(16)
    for _ in range(2):
        k.right(12)
    assert k.built == [16, 12]


def test_another_failure_of_a_lent_kernel_is_raised(made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    k = made()
    k.right(16)

    def fails(plan: LaunchRequest, request: LaunchRequest) -> BoundKernel:
        raise LaunchError("scale_add", 1002)

    object.__setattr__(k.lending._lender, "lent", fails)
    with pytest.raises(LaunchError, match="out of memory"):
        k.right(12)


def test_a_build_that_fails_beside_calls_leaves_them_as_they_are(
    made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "ASKED_EVERY", 1)
    k = made()
    k.failing.add(100)
    for _ in range(3):
        k.right(16)
        k.right(100)
        k.wait()
    assert k.built == [16]


def test_unaligned_tensors_take_no_plan_for_aligned_ones(made: Make) -> None:
    k = made()
    k.right(16)
    b = torch.randn(7)
    x = torch.randn(12 * 7 + 1)[1:].view(12, 7)
    torch.testing.assert_close(k.call(x, 2.0, b), 2.0 * x + b)
    assert k.built == [16, 12]


def test_a_thread_that_loads_kernels_leaves_captures_of_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []

    class Driver:
        def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:
            modes.append(mode._obj.value)
            return 0

    monkeypatch.setattr(cuda_driver, "library", Driver)
    cuda_driver.ignore_captures()
    assert modes == [1]

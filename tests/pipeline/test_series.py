"""A pipeline's call: order, memory, scalars, branches and faults, both ways of launching."""

from __future__ import annotations

import ctypes

import pytest
import torch

from tests.pipeline.conftest import FIRST_EVENT, LAUNCH, RECORD, WAIT, Load, numbers
from ucutlass.runtime.arguments import (
    EmptyExtent,
    ExtentMismatch,
    NotContiguous,
    Overlap,
    WrongCount,
    WrongDtype,
    WrongRank,
)
from ucutlass.runtime.entry_codes import LaunchError
from ucutlass.runtime.launch_sequence import TorchResultMismatch

ADD = "kernel add(x: f32[M, N], s: f32) -> f32[M, N] {\n  return x + s\n}\n"
TWO = (
    "kernel two(a: f32[M, N], b: f32[M, N]) -> (y: f32[M, N], z: f32[M, N]) {\n"
    "  return y = a * b, z = a - b\n}\n"
)

CHAIN = (
    ADD
    + """
pipeline chain(x: f32[A, B], s: f32) -> f32[A, B] {
  p = add(x, s)
  q = add(p, 2)
  r = add(q, s)
  return add(r, -1)
}
"""
)

DIAMOND = (
    ADD
    + TWO
    + """
pipeline diamond(x: f32[A, B], s: f32) -> (y: f32[A, B], z: f32[A, B]) {
  root = add(x, 1)
  left = add(root, s)
  right = add(root, 3)
  p, q = two(left, right)
  return y = p, z = q
}
"""
)

APART = (
    ADD
    + """
pipeline apart(x: f32[A, B], y: f32[A, B]) -> (p: f32[A, B], q: f32[A, B]) {
  return p = add(x, 1), q = add(y, 2)
}
"""
)


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, atol=1e-4)


def launches(trace: list[tuple[int, int, int, int]]) -> list[int]:
    return [number for what, number, _, _ in trace if what == LAUNCH]


def test_a_chain_runs_in_order_with_its_scalars(load: Load) -> None:
    made = load(CHAIN)
    x = numbers(5, 7)
    for call in range(3):  # the native launcher takes over after the first
        assert close(made.call(x, 0.25 * call), x + 2 * 0.25 * call + 1)
        assert launches(made.trace()) == [0, 1, 2, 3]


def test_a_chain_reuses_its_workspace(load: Load) -> None:
    """Three intermediates of 140 bytes: no more than two are alive at once."""
    made = load(CHAIN)
    made.call(numbers(5, 7), 1.0)
    (series,) = made.series.values()
    assert series.workspace == 2 * 256


def test_kernels_own_workspaces_are_in_it_and_smear_nothing(load: Load) -> None:
    made = load(CHAIN, workspaces={1: 1000, 3: 300})
    x = numbers(5, 7)
    for _ in range(2):
        assert close(made.call(x, 0.5), x + 2.0)
        trace = made.trace()
        assert [w != 0 for _, _, _, w in trace] == [False, True, False, True]
        assert all(w % 256 == trace[1][3] % 256 for _, _, _, w in trace if w)
    (series,) = made.series.values()
    assert series.workspace == 512 + 1024


def test_each_shape_is_laid_out_once(load: Load) -> None:
    made = load(CHAIN)
    for m, n in ((3, 4), (4, 3), (3, 4), (100, 200)):
        x = numbers(m, n)
        assert close(made.call(x, 0.0), x + 1)
    assert sorted(r.extents for r in made.series) == [(3, 4), (4, 3), (100, 200)]


def test_results_can_be_given(load: Load) -> None:
    made = load(DIAMOND)
    x = numbers(4, 4)
    y, z = torch.full((4, 4), 9.0), torch.full((4, 4), 9.0)
    for _ in range(2):
        given = made.call(x, 0.5, out=(y, z))
        assert given[0] is y and given[1] is z
        assert close(y, (x + 1.5) * (x + 4)) and close(z, torch.full((4, 4), -2.5))


def test_results_have_their_names(load: Load) -> None:
    made = load(DIAMOND)
    x = numbers(4, 4)
    for _ in range(2):
        assert close(made.call(x, 0.0).z, torch.full((4, 4), -3.0))


def test_mistakes_are_those_of_kernels(load: Load) -> None:
    made = load(DIAMOND)
    x = numbers(4, 4)
    made.call(x, 1.0)
    with pytest.raises(WrongCount, match="takes 2 arguments"):
        made.call(x)
    with pytest.raises(WrongDtype, match=r"diamond: x is torch\.float64"):
        made.call(x.double(), 1.0)
    with pytest.raises(Overlap, match=r"out\[1\]"):
        made.call(x, 1.0, out=(torch.empty(4, 4), x))
    two = load(APART)
    with pytest.raises(ExtentMismatch):
        two.call(numbers(4, 4), numbers(4, 5))
    with pytest.raises(WrongRank, match="apart: y has 1"):
        two.call(numbers(4, 4), numbers(4))
    with pytest.raises(NotContiguous):
        two.call(numbers(4, 5), numbers(5, 4).t())
    for shape in ((0, 4), (4, 0)):
        with pytest.raises(EmptyExtent, match="apart"):
            two.call(numbers(*shape), numbers(*shape))
    made.trace()
    assert not two.trace(), "nothing was launched"


# --- branches ------------------------------------------------------------------------


def test_independent_stages_fork_and_join(load: Load) -> None:
    made = load(APART)
    x, y = numbers(4, 4), numbers(4, 4, seed=1)
    start, join = FIRST_EVENT, FIRST_EVENT + 1
    for _ in range(3):
        p, q = made.call(x, y)
        assert torch.equal(p, x + 1) and torch.equal(q, y + 2)
        trace = [t[:3] for t in made.trace()]
        assert trace == [
            (RECORD, start, 0),
            (LAUNCH, 0, 0),
            (WAIT, start, 1),
            (LAUNCH, 1, 1),
            (RECORD, join, 1),
            (WAIT, join, 0),
        ]


def test_a_thread_without_a_context_has_one_before_its_first_event(load: Load) -> None:
    made = load(APART)
    x, y = numbers(4, 4), numbers(4, 4, seed=1)
    for _ in range(3):  # the native launcher has the shape then
        made.call(x, y)
    made.trace()
    ctypes.c_int32.in_dll(made.library, "has_context").value = 0
    p, q = made.call(x, y)
    assert torch.equal(p, x + 1) and torch.equal(q, y + 2)
    assert [t[0] for t in made.trace()] == [RECORD, LAUNCH, WAIT, LAUNCH, RECORD, WAIT]


def test_a_diamond_waits_where_it_must(load: Load) -> None:
    made = load(DIAMOND)
    for _ in range(2):
        made.call(numbers(4, 4), 1.0)
        root, right = FIRST_EVENT, FIRST_EVENT + 1
        assert [t[:3] for t in made.trace()] == [
            (LAUNCH, 0, 0),
            (RECORD, root, 0),
            (LAUNCH, 1, 0),
            (WAIT, root, 1),
            (LAUNCH, 2, 1),
            (RECORD, right, 1),
            (WAIT, right, 0),
            (LAUNCH, 3, 0),
        ]


def test_one_stream_has_no_events(load: Load) -> None:
    made = load(DIAMOND, most_streams=1)
    made.call(numbers(4, 4), 1.0)
    assert [t[0] for t in made.trace()] == [LAUNCH] * 4
    (series,) = made.series.values()
    assert (series.streams, series.events) == (1, 0)


# --- faults --------------------------------------------------------------------------


def test_a_stage_that_fails_is_named_and_ends_the_call(load: Load) -> None:
    made = load(CHAIN, codes={2: 1})
    for _ in range(2):
        with pytest.raises(LaunchError, match="chain, stage r = add: launch failed: the kernel refused"):
            made.call(numbers(2, 2), 1.0)
        assert launches(made.trace()) == [0, 1, 2]


def test_a_branch_that_fails_is_joined_all_the_same(load: Load) -> None:
    """Its workspace goes back to the caller's stream, which must not overtake the branch."""
    made = load(APART, codes={1: 1009})
    for _ in range(2):
        with pytest.raises(LaunchError, match="stage return q = add"):
            made.call(numbers(2, 2), numbers(2, 2))
        last = FIRST_EVENT + 1
        assert [t[:3] for t in made.trace()][-2:] == [(RECORD, last, 1), (WAIT, last, 0)]


# --- torch functions -----------------------------------------------------------------

WITH_TORCH = (
    ADD
    + """
pipeline mixed(x: f32[A, B]) -> (y: f32[A, B], z: f32[B]) {
  p = add(x, 1)
  q: f32[A, B] = torch.flip(p, dims=0)
  r = add(q, 2)
  d: f32[A, B] = torch.cumsum(r, dim=1)
  e: f32[B] = torch.diag(r)
  return y = d, z = e
}
"""
)


def test_torch_functions_run_in_their_place(load: Load) -> None:
    made = load(WITH_TORCH)
    x = numbers(4, 4)
    for _ in range(3):
        y, z = made.call(x)
        expected = x.flip(0) + 3
        assert close(y, expected.cumsum(1)) and close(z, expected.diag())
        assert launches(made.trace()) == [0, 2]


def test_a_torch_function_of_another_shape_is_an_error(load: Load) -> None:
    made = load(WITH_TORCH)
    with pytest.raises(TorchResultMismatch, match=r"stage return z = torch.diag gave shape \[3\]"):
        made.call(numbers(3, 5))

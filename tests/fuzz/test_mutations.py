"""A seeded few hundred of the mutated programs that `python -m benchmarks.fuzz` makes by the ten
thousand: each ends in a result or in diagnostics, within its processor time."""

from __future__ import annotations

import pytest

from benchmarks import fuzz

STEP = 50


@pytest.mark.parametrize("start", range(0, 400, STEP))
def test_mutated_programs_end_in_results_or_diagnostics(start: int) -> None:
    found = fuzz.tally(start, STEP)
    assert not found.failures, "\n".join(f"seed {seed}:\n{words}" for seed, words in found.failures)


def test_every_step_both_takes_and_refuses_some() -> None:
    ends = fuzz.tally(0, 150).ends
    assert {"fmt done", "fmt refused", "check done", "check refused", "emit done", "emit refused"} <= set(
        ends
    )
    assert "emit empty" not in ends


def test_a_case_depends_on_its_seed_alone() -> None:
    assert [fuzz.mutated(seed) for seed in range(30)] == [fuzz.mutated(seed) for seed in range(30)]
    assert len({fuzz.mutated(seed) for seed in range(30)}) > 25
    assert all(len(fuzz.mutated(seed)) <= fuzz.LARGEST for seed in range(300))


def test_a_step_that_does_not_end_is_a_failure() -> None:
    def forever() -> None:
        while True:
            pass

    with pytest.raises(fuzz.TooSlow), fuzz.processor_time(0.05):
        forever()


PIECES = {
    "nested brackets": ("(", "x", ")"),
    "a long sum": ("x + ", "x", ""),
    "nested calls": ("relu(", "x", ")"),
    "negations": ("-", "x", ""),
}


@pytest.mark.parametrize("kind", PIECES)
def test_64_kib_of_one_thing_ends_within_the_time(kind: str) -> None:
    head, middle, tail = PIECES[kind]
    count = fuzz.LARGEST // (len(head) + len(tail)) - 20
    text = f"kernel f(x: f32[M]) -> f32[M] {{ return {head * count}{middle}{tail * count} }}"
    with fuzz.processor_time(fuzz.SECONDS):
        assert fuzz.check(text.encode(), [])  in ("refused", "typed")


def test_64_kib_of_kernels_end_within_the_time() -> None:
    one = "kernel k{}(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] {{ return relu(dot[K](x, w)) }}\n"
    text = "".join(one.format(i) for i in range(fuzz.LARGEST // len(one)))
    with fuzz.processor_time(fuzz.SECONDS):
        assert fuzz.check(text.encode(), []) == "done"

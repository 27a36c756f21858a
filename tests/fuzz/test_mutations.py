"""A seeded few hundred of the programs that `python -m tests.fuzz.fuzz` makes by the ten thousand: each ends
in a result or in diagnostics, within its memory."""

from __future__ import annotations

import os
import time

import pytest

from tests.fuzz import fuzz
from tests.fuzz.grammar import FEATURES, drawn
from tests.fuzz.mutations import amplified

STEP = 40


@pytest.mark.parametrize("start", range(1000, 1000 + 4 * STEP, STEP))
def test_programs_end_in_results_or_diagnostics(start: int) -> None:
    tally = fuzz.tally(start, STEP, fuzz.HANG_SECONDS)
    assert not tally.failures, "\n".join(f"seed {seed}:\n{words}" for seed, words in tally.failures)


def test_every_step_both_takes_and_refuses_some() -> None:
    tally = fuzz.tally(0, 100, fuzz.HANG_SECONDS)
    assert {f"{step} {end}" for step in ("fmt", "check") for end in ("done", "refused")} <= set(tally.ends)
    assert {"explain done", "emit done", "sol done"} <= set(tally.ends)
    assert not [end for end in tally.ends if end.endswith("empty")]
    assert tally.kinds.keys() == {"drawn", "mutated", "made large"}
    assert tally.valid["drawn"] >= tally.kinds["drawn"] // 4


def test_a_case_depends_on_its_seed_alone() -> None:
    for make in (fuzz.mutated, amplified, lambda seed: drawn(seed).text.encode()):
        assert [make(seed) for seed in range(30)] == [make(seed) for seed in range(30)]
        assert len({make(seed) for seed in range(30)}) > 25
        assert all(len(make(seed)) <= fuzz.LARGEST for seed in range(100))


def test_the_grammar_reaches_every_form_of_the_language() -> None:
    reached: set[str] = set()
    for seed in range(1, 3000):
        reached |= drawn(seed).reached.keys()
    assert set(FEATURES) == reached


@pytest.mark.slow
def test_a_worker_that_hangs_or_dies_is_a_failure_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = fuzz.judge(0, fuzz.HANG_SECONDS)

    def judge(seed: int) -> fuzz.Case:
        if seed == 3:
            time.sleep(600)
        if seed == 5:
            os._exit(3)
        return known

    monkeypatch.setattr(fuzz, "judge", lambda seed, _: judge(seed))
    monkeypatch.setattr(fuzz, "WALL_SECONDS", 10.0)
    monkeypatch.setattr(fuzz, "_CHUNK", 4)
    tally = fuzz.run(0, 8, 2)
    assert sorted(seed for seed, _ in tally.failures) == [3, 5]
    assert sum(tally.kinds.values()) == 6


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
    with fuzz.processor_time(fuzz.HANG_SECONDS):
        assert fuzz.check(text.encode(), []) in ("refused", "typed")


def test_64_kib_of_kernels_end_within_the_time() -> None:
    one = "kernel k{}(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] {{ return relu(dot[K](x, w)) }}\n"
    text = "".join(one.format(i) for i in range(fuzz.LARGEST // len(one)))
    with fuzz.processor_time(fuzz.HANG_SECONDS):
        assert fuzz.check(text.encode(), []) == "refused"  # by UC0702
        assert fuzz.check(text[: 200 * len(one)].encode(), []) in ("done", "refused")

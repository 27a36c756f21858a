"""A whole suite in its processes: an honest kernel stands it, every mistake falls at a named case."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from tests import programs_attention
from tests.verify import candidates
from ucutlass import frontend
from ucutlass.kernels.granularity import Granularity
from ucutlass.runtime.distributions import MEANINGS, Distribution
from ucutlass.runtime.entry_codes import LaunchError
from ucutlass.runtime.verify import (
    CaseResult,
    Comparison,
    LaunchVerdict,
    Suite,
    SuiteEvidence,
    VerifyCase,
    suite,
)
from ucutlass.runtime.verify.batch import as_json, judge_case, read_journal
from ucutlass.runtime.verify.evidence import evidence_of
from ucutlass.runtime.verify.pool import run
from ucutlass.runtime.verify.suite import barely_reduced, reduced

PROGRAM = frontend.kernel(frontend.read_text(candidates.TEXT))
GRAIN = Granularity(candidates.TILE, candidates.STEP, {"K": 128})
SIZES = {"M": 40, "K": 200, "N": 24}
TARGET = "tests.verify.candidates"


@pytest.fixture(scope="module")
def whole() -> Suite:
    return suite(PROGRAM, SIZES, GRAIN, seed=11)


def _evidence(cases: Suite, mistake: str, seconds: float = 60.0) -> SuiteEvidence:
    shared = {"mistake": mistake, "tile": candidates.TILE}
    return evidence_of(cases, run(f"{TARGET}:batch", shared, cases.cases, case_seconds=seconds))


def _here(cases: Suite, mistake: str, folder: Path) -> SuiteEvidence:
    """As `_evidence`, in this process: quicker, for launches that only compute wrongly."""
    candidates.forget()
    journal = folder / "journal"
    values = [as_json(c) for c in cases.cases]
    candidates.batch(mistake, candidates.TILE, values, str(journal), 600.0)
    ended, _ = read_journal(journal, cases.cases)
    return evidence_of(cases, list(ended.values()))


def _fallen(evidence: SuiteEvidence) -> dict[str, str]:
    return {r.case.name: (r.message or str(r.verdict)) for r in evidence.results if r.outcome != "right"}


def test_an_honest_kernel_stands(whole: Suite) -> None:
    evidence = _evidence(whole, "honest")
    assert evidence.ok, evidence.failures()
    assert {r.outcome for r in evidence.results} == {"right"}
    assert len(evidence.results) == len(whole.cases)
    worst = evidence.worst
    assert worst is not None and 0 < worst.worst <= 1


MISTAKES = {
    "skips_the_last_tile": ("integer M=40,K=200,N=24", "unwritten"),
    "drops_the_residue_of_k": ("residue M=40,K=200,N=24", "beyond the bound"),
    "drops_the_last_whole_tile_of_k": ("integer M=17,K=168,N=9", "beyond the bound"),
    "writes_past_the_result": ("zeros M=40,K=200,N=24", "the result was written past"),
    "writes_past_the_workspace": ("zeros M=40,K=200,N=24", "the workspace was written past"),
    "changes_an_input": ("zeros M=40,K=200,N=24", "b changed"),
    "differs_now_and_then": ("repeats normal M=40,K=200,N=24", "not repeatable"),
    "reads_the_workspace": ("normal M=40,K=200,N=24", "depends on what the workspace held"),
    "reads_the_result": ("normal M=40,K=200,N=24", "depends on what the results held"),
    "returns_what_it_kept_by_pointer": ("refilled normal M=40,K=200,N=24", "beyond the bound"),
    "returns_the_last_result": ("residue M=40,K=200,N=24", "beyond the bound"),
    "loses_nan": ("special M=40,K=200,N=24", "reference nan"),
    "all_nan_where_one_is": ("special M=40,K=200,N=24", "nan, reference"),
    "flushes_denormals": ("denormal M=40,K=200,N=24", "beyond the bound"),
    "sums_in_f16": ("positive M=40,K=200,N=24", "beyond the bound"),
    "transposes_a_tile": ("integer M=40,K=200,N=24", "beyond the bound"),
    "serves_what_it_cannot": ("refusal normal M=40,K=201,N=24", "beyond the bound"),
}
"""Each mistake, a case that it falls at, and what is said there."""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_falls_at_its_case(mistake: str, whole: Suite, tmp_path: Path) -> None:
    name, words = MISTAKES[mistake]
    evidence = _here(whole, mistake, tmp_path)
    fallen = _fallen(evidence)
    assert not evidence.ok
    assert name in fallen, list(fallen)
    assert words in fallen[name]


NARROW = (
    "drops_the_last_whole_tile_of_k",
    "returns_what_it_kept_by_pointer",
    "loses_nan",
    "all_nan_where_one_is",
    "flushes_denormals",
    "serves_what_it_cannot",
    "differs_now_and_then",
)
"""Mistakes that normal numbers at the asked extents cannot show."""


@pytest.mark.parametrize("mistake", NARROW)
def test_a_plain_comparison_would_miss_it(mistake: str, whole: Suite, tmp_path: Path) -> None:
    plain = Suite(tuple(c for c in whole.cases if c.name == "normal M=40,K=200,N=24"), (), whole.seed)
    assert len(plain.cases) == 1
    assert _here(plain, mistake, tmp_path).ok


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("crashes_on_one_row", "SIGSEGV"),
        pytest.param("hangs_on_one_row", "did not end within 3 s", marks=pytest.mark.slow),
        pytest.param("leaves_on_one_row", "ended by itself with status 0", marks=pytest.mark.slow),
        pytest.param("raises_on_one_row", "OutOfMemoryError: CUDA out of memory", marks=pytest.mark.slow),
    ],
)
def test_a_loss_costs_its_case_alone(mistake: str, words: str, whole: Suite) -> None:
    one_row = [c for c in whole.cases if c.sizes["M"] == 1][:2]
    others = [c for c in whole.cases if c.sizes["M"] != 1][-3:]
    few = Suite((others[0], one_row[0], others[1], one_row[1], others[2]), (), 0)
    evidence = _evidence(few, mistake, seconds=3.0 if "hangs" in mistake else 60.0)
    assert [r.outcome for r in evidence.results] == ["right", "lost", "right", "lost", "right"]
    assert words in evidence.results[1].message
    assert not evidence.ok
    assert all(any(c.name in line for line in evidence.failures()) for c in one_row)


def test_noise_changes_nothing(whole: Suite) -> None:
    few = Suite(whole.cases[:3], (), 0)
    assert _evidence(few, "is_noisy").ok


def test_a_kernel_that_always_crashes_is_given_up(whole: Suite) -> None:
    shared = {"mistake": "crashes_always", "tile": candidates.TILE}
    results = run(f"{TARGET}:batch", shared, whole.cases[:5], most_losses=2)
    assert [r.outcome for r in results] == ["lost", "lost", "not run", "not run", "not run"]
    assert "2 cases before it were lost" in results[2].message


def test_a_process_that_never_begins_leaves_everything_undone(whole: Suite) -> None:
    results = run(f"{TARGET}:never_begins", {}, whole.cases[:3])
    evidence = evidence_of(Suite(whole.cases[:3], (), 0), results)
    assert [r.outcome for r in evidence.results] == ["not run"] * 3
    assert "no CUDA-capable device" in evidence.failures()[0]
    assert not evidence.ok


@pytest.mark.parametrize(
    ("code", "refuses"),
    [
        (1, True),
        (2001, True),
        (2004, True),
        (2005, True),
        (1001, False),
        (2007, False),
        (2010, False),
        (2099, False),
    ],
)
def test_only_words_about_the_arguments_are_a_refusal(code: int, refuses: bool, whole: Suite) -> None:
    """A driver or a device that fails at an edge is a loss, though CUTLASS says so itself."""
    edge = next(c for c in whole.cases if c.kind == "edge")

    def make(_: tuple[int, ...]) -> NoReturn:
        raise LaunchError("k", code)

    if refuses:
        assert judge_case(PROGRAM, make, edge, candidates.TILE, "cpu").ok
        return
    with pytest.raises(LaunchError):
        judge_case(PROGRAM, make, edge, candidates.TILE, "cpu")


# --- evidence ----------------------------------------------------------------------------


def test_missing_evidence_is_failure(whole: Suite) -> None:
    few = Suite(whole.cases[:2], (), 0)
    results = run(f"{TARGET}:batch", {"mistake": "honest", "tile": candidates.TILE}, few.cases)
    assert evidence_of(few, results).ok
    missing = evidence_of(few, results[:1])
    assert not missing.ok
    assert missing.failures() == (f"{few.cases[1].name}: not run: it has no result",)
    assert not evidence_of(Suite((), (), 0), ()).ok


IDLE = LaunchVerdict((Comparison("", True, 0.1, (0,), None, 1.0, 1.0, 9.0, 0, 8, 0, 0, useless=8),), ())


def test_a_case_that_strains_may_stay_open_and_one_at_the_core_may_not(whole: Suite) -> None:
    cases = {c.distribution: c for c in whole.cases if c.kind == "values"}
    core, strained = (CaseResult(cases[d], "undecided", IDLE) for d in ("normal", "large"))
    right = CaseResult(cases["integer"], "right", IDLE)
    assert IDLE.state == "undecided" and strained.open and not core.open

    whole_numbers = replace(core, case=cases["integer"])
    assert not whole_numbers.open and replace(whole_numbers, case=replace(cases["integer"], staged=True)).open
    assert not replace(core, case=replace(cases["normal"], staged=True)).open

    both = Suite((right.case, strained.case), (), 0)
    evidence = evidence_of(both, [right, strained])
    assert evidence.ok and not evidence.failures()
    made = evidence.to_json()
    assert [c["ok"] for c in made["cases"]] == [True, True]
    assert [c["outcome"] for c in made["cases"]] == ["right", "undecided"]
    (words,) = made["open"]
    assert words.startswith(f"{strained.case.name}: undecided: ") and "says nothing of 8 of 8" in words

    assert not evidence_of(Suite((right.case, core.case), (), 0), [right, core]).ok
    alone = evidence_of(Suite((strained.case,), (), 0), [strained])
    assert not alone.ok and alone.failures() == (words,)
    wrong = replace(strained, outcome="wrong")
    assert not evidence_of(both, [right, wrong]).ok
    again = next(c for c in whole.cases if c.kind == "repeats")
    assert not CaseResult(replace(again, distribution="large"), "undecided", IDLE).ok


def test_evidence_is_strict_json(whole: Suite) -> None:
    few = Suite(tuple(c for c in whole.cases if c.distribution == "special"), (), 3)
    evidence = _evidence(few, "all_nan_where_one_is")
    text = json.dumps(evidence.to_json(), allow_nan=False)
    document = json.loads(text)
    assert document["ok"] is False and document["seed"] == 3
    (case,) = [c for c in document["cases"] if c["kind"] == "values"]
    assert case["worst"] == "inf" and case["ok"] is False and case["outcome"] == "wrong"
    assert case["comparisons"][0]["worst"] == "inf"
    assert case["sizes"] == SIZES and case["varies"] is False and case["reference_varies"] is True


# --- what a suite holds --------------------------------------------------------------------


def test_a_suite_begins_with_exact_integers_at_the_asked_extents(whole: Suite) -> None:
    assert whole.cases[0].distribution == "integer" and whole.cases[0].sizes == SIZES
    assert len({c.name for c in whole.cases}) == len(whole.cases)
    numbers = {(c.distribution, tuple(c.sizes.items())) for c in whole.cases}
    assert len({c.seed for c in whole.cases}) == len(numbers), "no two draw the same, but at the same extents"
    (refilled,) = (c for c in whole.cases if c.kind == "refilled")
    (uniform,) = (c for c in whole.cases if c.distribution == "uniform" and c.kind == "values")
    assert refilled.refill == {"distribution": "uniform", "seed": uniform.seed}


def test_a_suite_has_every_tile_edge(whole: Suite) -> None:
    seen = {(d, c.sizes[d]) for c in whole.cases for d in c.sizes}
    rows = {("M", n) for n in (1, 15, 16, 17, 97)}
    summed = {("K", n) for n in (8, 24, 32, 40, 104, 16, 168)}
    assert rows | summed <= seen
    assert all(c.sizes["K"] % 8 == 0 for c in whole.cases if c.kind != "refusal")


def test_the_seed_makes_a_suite_again(whole: Suite) -> None:
    assert suite(PROGRAM, SIZES, GRAIN, seed=11) == whole
    other = suite(PROGRAM, SIZES, GRAIN, seed=12)
    assert [c.name for c in other.cases] == [c.name for c in whole.cases]
    assert not {c.seed for c in other.cases} & {c.seed for c in whole.cases}


def test_what_does_not_fit_is_said(whole: Suite) -> None:
    few = suite(PROGRAM, SIZES, GRAIN, seed=1, most=5)
    assert len(few.cases) == 5
    assert len(few.left_out) == len(whole.cases) - 5
    assert "at most 5 cases" in few.left_out[0].why
    small = suite(PROGRAM, SIZES, GRAIN, seed=1, memory_bytes=1)
    assert {tuple(c.sizes.values()) for c in small.cases} == {tuple(SIZES.values())}
    assert any("MiB" in one.why for one in small.left_out)


def test_extents_that_the_program_refuses_are_left_out() -> None:
    text = candidates.TEXT.replace("{ return", "{ require N % 4 == 0 return")
    program = frontend.kernel(frontend.read_text(text))
    made = suite(program, SIZES, GRAIN, seed=1)
    assert all(c.sizes["N"] % 4 == 0 for c in made.cases)
    assert any("requirement 1" in one.why for one in made.left_out)


def test_offsets_cut_one_sequence_at_least() -> None:
    program = frontend.kernel(frontend.read_text(programs_attention.text("packed", "bf16")))
    sizes = {"L": 70, "S": 90, "H": 2, "G": 1, "D": 64, "O": 9}
    made = suite(program, sizes, Granularity({"L": 64}, {"D": 8}, {}), seed=1)
    found = {c.sizes["O"] for c in made.cases}
    assert min(found) == 2 and len(found) > 2


def test_distributions_can_be_chosen() -> None:
    made = suite(PROGRAM, SIZES, GRAIN, seed=1, distributions=["wide", "normal"])
    asked = [c for c in made.cases if c.kind == "values"]
    assert [c.distribution for c in asked] == ["normal", "wide"]


def test_sums_in_f16_are_not_asked_to_overflow() -> None:
    program = frontend.kernel(
        frontend.read_text(candidates.TEXT.replace("dot[K](x, w)", "dot[K](x, w, acc=f16)"))
    )
    made = suite(program, SIZES, GRAIN, seed=1)
    assert {"wide", "powers"} == {one.what for one in made.left_out}


def test_reduced_cases_are_small_and_pass_every_edge() -> None:
    cases: tuple[VerifyCase, ...] = reduced(PROGRAM, {"M": 4096, "K": 4096, "N": 4096}, GRAIN, seed=1)
    assert [c.sizes for c in cases] == [
        {"M": 17, "K": 40, "N": 9},
        {"M": 17, "K": 168, "N": 9},
        {"M": 1, "K": 8, "N": 1},
    ]


def test_barely_reduced_cases_keep_all_but_one_extent() -> None:
    sizes = {"M": 4096, "K": 4096, "N": 8192}
    cases = barely_reduced(PROGRAM, sizes, GRAIN, seed=1)
    changed = [{d for d in sizes if case.sizes[d] != sizes[d]} for case in cases]
    assert sorted(changed, key=min) == [{"K"}, {"M"}, {"N"}] and changed[0] == {"N"}
    assert all(case.sizes[d] < sizes[d] for case, (d,) in zip(cases, changed, strict=True))
    assert barely_reduced(PROGRAM, {"M": 1, "K": 1, "N": 1}, GRAIN, seed=1) == ()


def test_the_candidates_of_this_file_are_its_mistakes() -> None:
    text = Path(candidates.__file__).read_text()
    assert all(f"def {name}(" in text for name in MISTAKES)


def test_the_page_has_the_table_of_distributions() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "verify.md").read_text()
    assert "".join(f"| `{name}` | {meaning} |\n" for name, meaning in MEANINGS.items()) in page


@pytest.mark.parametrize("staged", [False, True])
def test_a_case_of_partial_rows_may_stay_undecided_and_normal_numbers_may_not(staged: bool) -> None:
    """Rows of zeros over their norm are NaN, whatever computes them."""
    names: tuple[Distribution, ...] = ("integer", "residue", "residue_rows", "normal", "uniform", "powers")
    cases = [VerifyCase(n, "values", {}, n, 0, "", staged=staged) for n in names]
    least = {"normal", "uniform"} if staged else {"integer", "normal", "uniform"}
    assert {c.name for c in cases if not c.strains} == least

"""The correctness campaign covers what it claims to, and every case of it reaches a source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases import campaign
from tests.cases.campaign import Accepted, Case
from tests.cases.cases import cases
from tests.cases.correctness import group_of, planned, random_accepted, summarise, table
from ucutlass import ir
from ucutlass.ir.compute_types import COMPUTE_TYPES
from ucutlass.ir.functions import FUNCTIONS
from ucutlass.kernels.access import Reduction
from ucutlass.kernels.gemm.plan import GemmProblem, GemvSchedule, Sm80Schedule, Sm90Schedule
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.errors import BuildError
from ucutlass.runtime.ptxas import PtxasReport


@pytest.fixture(scope="module")
def accepted() -> list[Accepted]:
    found, rejected = planned(cases())
    assert not rejected, [r.message for r in rejected]
    return found


def problems(accepted: list[Accepted]) -> Iterator[tuple[GemmProblem, type]]:
    for a in accepted:
        for p in a.planned:
            yield p.plan.problem, type(p.plan.schedule)


def functions(value: ir.Value) -> set[str]:
    own = {value.function} if isinstance(value, ir.Apply) else set()
    return own.union(*map(functions, ir.children(value)))


def test_names_are_unique_and_grouped() -> None:
    names = [c.name for c in cases()]
    assert len(set(names)) == len(names)
    assert all("/" in name for name in names)


def test_builds_stay_within_the_budget(accepted: list[Accepted]) -> None:
    assert len({s.code for a in accepted for s in a.sources()}) <= 125


def test_every_shape_of_a_case_shares_one_source(accepted: list[Accepted]) -> None:
    assert [a.case.name for a in accepted if len(a.sources()) > 1] == []


def test_every_function_is_in_an_epilogue(accepted: list[Accepted]) -> None:
    used = set().union(*(functions(r.value) for a in accepted for r in a.program.results))
    assert set(FUNCTIONS) - used == set()


def test_every_compute_type_and_accumulation_runs_in_every_family_that_has_it(
    accepted: list[Accepted],
) -> None:
    seen = {(p.compute_type.name, p.accumulate, schedule) for p, schedule in problems(accepted)}
    for compute_type in COMPUTE_TYPES.values():
        for accumulate in compute_type.accumulations:
            assert (compute_type.elem.name, accumulate, Sm80Schedule) in seen
            assert (compute_type.elem.name, accumulate, Sm90Schedule) in seen
        assert (compute_type.elem.name, compute_type.accumulations[0], GemvSchedule) in seen


def test_every_operand_order_runs_by_tma(accepted: list[Accepted]) -> None:
    seen = {
        (p.a.contiguous, p.b.contiguous, p.outputs[0].access.contiguous)
        for p, schedule in problems(accepted)
        if schedule is Sm90Schedule and p.compute_type.name == "f16"
    }
    assert {(a, b, d) for a in "km" for b in "kn" for d in "nm"} <= seen


def test_every_reduction_and_mode_occurs(accepted: list[Accepted]) -> None:
    for family in (Sm90Schedule, Sm80Schedule):
        seen = {
            (o.op, o.access.shape)
            for p, schedule in problems(accepted)
            if schedule is family
            for o in p.outputs
            if isinstance(o, Reduction)
        }
        assert {(op, shape) for op in ("sum", "max", "min") for shape in ("row", "column", "scalar")} <= seen


def test_a_lost_case_counts_all_of_its_runs_as_wrong(accepted: list[Accepted]) -> None:
    first, second = accepted[:2]
    runs = (
        [{"ok": True, "exact": True, "worst": 0.25}] * len(first.case.shapes) * len(first.case.distributions)
    )
    rows = [{"name": first.case.name, "runs": runs}, {"name": second.case.name, "runs": []}]
    groups = summarise([first, second], rows)
    assert sum(g.right for g in groups) == len(runs)
    assert sum(g.runs for g in groups) == len(runs) + len(second.case.shapes) * len(second.case.distributions)
    assert groups[0].name == group_of(first.case.name)
    assert groups[0].worst == 0.25
    assert groups[0].name in table(groups)


def test_shapes_of_a_case_may_need_several_kernels() -> None:
    text = "kernel k(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return dot[K](x, w) }"
    (found,), _ = planned([Case("two", text, ({"M": 64, "N": 64, "K": 64}, {"M": 7, "N": 7, "K": 7}))])
    assert len(found.sources()) == 2


TEXT = "kernel k(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] {{ return dot[K](x, w) {} }}"


def test_a_kernel_that_is_not_built_loses_its_case_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    artifact = Artifact("key", tmp_path, "nvcc", "ucc_0", "sm_90a", "nvcc", {}, 1.0, PtxasReport())
    refused = BuildError("ucc_0", ("error: no",), Path("s"), Path("l"), "nvcc")
    tiles = ("", "schedule sm90a { tile 64x64x64 }", "schedule sm90a { tile 64x128x64 }")
    every = [
        Case(name, TEXT.format(tile), ({"M": 64, "N": 128, "K": 64},))
        for name, tile in zip("abc", tiles, strict=True)
    ]
    found, _ = planned(every)
    monkeypatch.setattr(campaign, "build_sources", lambda pairs: [artifact, refused, artifact])
    monkeypatch.setattr(campaign.campaign, "run", lambda _, items, rows, **more: items)
    judged = campaign.judge(found, tmp_path)
    assert [row["name"] for row in judged.rows] == ["a", "c"] and list(judged.unbuilt) == ["b"]


def test_random_programs_are_those_that_are_accepted() -> None:
    assert [a.case.name.split("/")[0] for a in random_accepted(3, 4)] == ["random"] * 4

"""The schedules of every family besides GEMM: what the space yields is the same kernel once written and read,
and what a kernel cannot keep is refused with its rule."""

from __future__ import annotations

import re
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.convolution_programs import PROGRAMS as CONVOLUTIONS
from tests.kernels.grouped_gemm_programs import GROUPED_GEMMS
from tests.kernels.reduction_programs import REDUCTIONS
from tests.programs_attention import PROGRAMS as ATTENTIONS
from tests.programs_attention import text as attention
from ucutlass import frontend, ir
from ucutlass.diagnostics import ProgramError
from ucutlass.emit import emit
from ucutlass.ir.hardware import ARCHES
from ucutlass.ir.schedule import FIELDS, PartialSchedule, partial_schedule_of_json, show
from ucutlass.kernels.attention.plan import AttentionPlan
from ucutlass.kernels.attention.smem import SHARED_BYTES, shared_bytes
from ucutlass.kernels.families import plan_pattern, schedules
from ucutlass.kernels.planned import Planned
from ucutlass.shapes import complete, free_dims

_ATTENTION = {"B": 2, "H": 4, "G": 2, "L": 2048, "S": 1024, "E": 64, "O": 9}

CASES: dict[str, tuple[str, dict[str, int]]] = {
    **{f"reduction, {n}": (s.text, dict(s.small)) for n, s in REDUCTIONS.items()},
    **{f"reduction, {n}, large": (s.text, dict(s.large[0])) for n, s in REDUCTIONS.items()},
    **{f"convolution, {n}": (text, dict(sizes)) for n, (text, sizes) in CONVOLUTIONS.items()},
    **{f"grouped_gemm, {n}": (p.text, dict(p.large[0])) for n, p in GROUPED_GEMMS.items()},
    **{f"attention, {n}": (attention(n, "bf16", 64), _ATTENTION) for n in ATTENTIONS},
}


QUICK = tuple(CASES)[::3]
"""The others are slow tests, for their number."""


@cache
def space(name: str, arch: str = "sm90a") -> tuple[frontend.Checked, ir.Kernel, tuple[Planned, ...]]:
    text, sizes = CASES[name]
    checked = frontend.read_text(text)
    kernel = frontend.kernel(checked)
    extents = complete(kernel, {d: sizes[d] for d in free_dims(kernel)})
    form = frontend.pattern(checked, kernel)
    return checked, kernel, tuple(schedules(form, extents, ARCHES[arch], None, PartialSchedule()))


def _planned(text: str, sizes: tuple[int, ...], arch: str = "sm90a") -> Planned:
    checked = frontend.read_text(text)
    planned = frontend.plan_kernel(checked, frontend.kernel(checked), sizes, arch).planned
    assert isinstance(planned, Planned)
    return planned


def _with(text: str, schedule: str, arch: str = "sm90a") -> str:
    """The text with a block at the end of its kernel."""
    at = text.rindex("}")
    return f"{text[:at]}\n  schedule {arch} {{ {schedule} }}\n{text[at:]}"


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
)
def test_a_space_begins_with_the_planners_choice_and_has_no_kernel_twice(name: str) -> None:
    checked, kernel, found = space(name)
    own = frontend.plan_kernel(checked, kernel, found[0].sizes, "sm90a").planned
    first = found[0]
    assert (first.plan, first.launch, first.request) == (own.plan, own.launch, own.request)
    assert len({(k.plan, k.launch) for k in found}) == len(found)
    assert len({k.request for k in found}) == len(found)


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(st.data())
def test_what_a_space_yields_is_emitted_and_is_the_same_once_written_and_read(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(CASES)))
    one = data.draw(st.sampled_from(space(name)[2]))
    assert emit(one.plan, "").entry
    again = _planned(_with(CASES[name][0], show(one.request)), one.sizes)
    assert (again.plan, again.launch, again.request) == (one.plan, one.launch, one.request)
    kept = {n: list(v) if isinstance(v, tuple) else v for n, v in one.request.fixed().items()}
    assert partial_schedule_of_json(kept) == one.request


def test_a_tile_of_a_convolution_folds_taps_as_the_schedule_that_is_written_of_it() -> None:
    text, given_ = CASES["convolution, transposed"]
    kernel = frontend.kernel(frontend.read_text(text))
    sizes = complete(kernel, {d: given_[d] for d in free_dims(kernel)})
    one = _planned(_with(text, "warps cooperative  tile 64x96x64"), sizes)
    assert one.request.math == "f16x3"
    again = _planned(_with(text, show(one.request)), sizes)
    assert (again.plan, again.request) == (one.plan, one.request)


@pytest.mark.parametrize(
    "cases", [pytest.param(QUICK, id="quick"), pytest.param(tuple(CASES), id="all", marks=pytest.mark.slow)]
)
@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_any_values_are_kept_or_refused_with_a_rule_and_a_legal_neighbour(
    cases: tuple[str, ...], data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(cases)))
    names = data.draw(st.lists(st.sampled_from(sorted(FIELDS)), min_size=1, max_size=3, unique=True))
    given_ = {n: data.draw(_value(n)) for n in names}
    checked, kernel, found = space(name)
    form, asked = frontend.pattern(checked, kernel), partial_schedule_of_json(given_)
    outcome = plan_pattern(form, found[0].sizes, ARCHES["sm90a"], None, asked)
    if isinstance(outcome, Planned):
        assert asked.fixed().items() <= outcome.request.fixed().items()
        return
    assert isinstance(outcome, tuple) and outcome
    for violation in outcome:
        assert re.fullmatch(r"UC0\d{3}", violation.code) and violation.hint
        assert violation.nearest is not None
        near = plan_pattern(form, found[0].sizes, ARCHES["sm90a"], None, violation.nearest)
        assert isinstance(near, Planned) and near.request == violation.nearest


def _value(name: str) -> st.SearchStrategy[object]:
    field = FIELDS[name]
    if field.rank:
        side = st.sampled_from((1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 512))
        return st.tuples(*[side] * field.rank)
    ways: list[st.SearchStrategy[object]] = [st.sampled_from(field.words)] if field.words else []
    return st.one_of(*ways, st.integers(*field.numbers)) if field.numbers else ways[0]


SOFTMAX, COPY = REDUCTIONS["softmax"].text, REDUCTIONS["shift of a sum"].text
SCAN, DOWN = REDUCTIONS["reverse scan"].text, REDUCTIONS["softmax of a middle name"].text
CONV, DEPTH = CONVOLUTIONS["f16 strided"][0], CONVOLUTIONS["depthwise"][0]
_T4K, _CONV = {"T": 512, "D": 4096}, {"N": 32, "H": 56, "W": 56, "C": 64, "K": 64}


@pytest.mark.parametrize(
    ("text", "sizes", "schedule", "code", "says"),
    [
        (SOFTMAX, _T4K, "vector 16", "UC0470", "powers of two up to 8"),
        (SOFTMAX, _T4K, "vector 3", "UC0470", "use `vector 2` or less"),
        (SOFTMAX, _T4K, "threads 96", "UC0471", "use 128 x 1"),
        (SOFTMAX, _T4K, "threads 1024  rows 2", "UC0471", "2048 threads of a block: at most 1024"),
        (SOFTMAX, _T4K, "threads 16  rows 1", "UC0471", "use `rows 2`"),
        (COPY, {"L": 4096}, "threads 32", "UC0471", "give `rows`"),
        (SOFTMAX, _T4K, "threads 32  items 1  cluster 1x1", "UC0472", "use `items 16`"),
        (SOFTMAX, _T4K, "threads 16  items 32  keep registers", "UC0472", "bytes of loads in a thread"),
        (SOFTMAX, _T4K, "keep shared", "UC0472", "use `keep registers` or `keep reread`"),
        (COPY, {"L": 4096}, "keep shared", "UC0472", "no tile has to be transposed"),
        (COPY, {"L": 4096}, "keep reread", "UC0472", "nothing is reduced"),
        (SCAN, {"A": 100, "L": 1_000_000}, "keep registers  rows 2", "UC0472", "use `rows 1`"),
        (SOFTMAX, _T4K, "cluster 2x1", "UC0473", "1x1, 1x2, 1x4 or 1x8"),
        (SOFTMAX, _T4K, "cluster 1x3", "UC0473", "1x1, 1x2, 1x4 or 1x8"),
        (DOWN, {"A": 5, "D": 100, "C": 1000}, "cluster 1x2", "UC0473", "along which vectors lie"),
        (SCAN, {"A": 100, "L": 8192}, "split_k 1000", "UC0473", "chunks"),
        (SOFTMAX, _T4K, "split_k stream", "UC0473", "stream-K is of dots"),
        (SOFTMAX, _T4K, "split_k 1000", "UC0473", "chunks"),
        (attention("plain", "bf16", 64), _ATTENTION, "tile 128x128x128", "UC0475", "64 here"),
        (attention("plain", "bf16", 64), _ATTENTION, "tile 256x128x64", "UC0475", "1 to 3 of them"),
        (attention("bias", "bf16", 64), _ATTENTION, "tile 192x64x64", "UC0475", "a function of its own"),
        (attention("plain", "bf16", 64), _ATTENTION, "tile 128x100x64", "UC0475", "use `tile 128x96x64`"),
        (attention("plain", "bf16", 64), _ATTENTION, "tile 192x256x64", "UC0475", "leave 128"),
        (attention("plain", "bf16", 64), _ATTENTION, "stages 9", "UC0476", "use `stages 6`"),
        (CONV, _CONV, "warps pingpong", "UC0439", "`cooperative` or `multistage` or `direct`"),
        (CONV, _CONV, "warps cooperative  threads 32", "UC0439", "`threads 32`"),
        (DEPTH, _CONV, "warps multistage", "UC0480", "share both operands"),
        (CONVOLUTIONS["f32"][0], _CONV, "warps cooperative  tile 192x128x32", "UC0482", "hold 0"),
        (CONV, _CONV, "tile 96x64x64", "UC0481", "rows are 64 or 128"),
        (CONV, _CONV, "tile 128x64x32", "UC0481", "use `tile 128x64x64`"),
        (CONV, _CONV, "tile 128x256x64  blocks 3", "UC0482", "use `blocks 1` or less"),
        (CONV, _CONV, "stages 20", "UC0482", "stages in each of"),
        (CONV, _CONV, "swizzle 3", "UC0432", "swizzle 3"),
        (CONV, _CONV, "warps multistage  tile 64x64x24", "UC0440", "not a multiple of 32"),
        (CONV, _CONV, "warps multistage  tile 256x256x32  warp_tile 64x64  stages 12", "UC0426", "shared"),
        (CONV, _CONV, "warps multistage  split_k 1000", "UC0428", "steps of the tile"),
        (DEPTH, _CONV, "vector 16", "UC0483", "up to 8 neighbours"),
        (DEPTH, _CONV, "threads 48", "UC0483", "use `threads 64`"),
        (DEPTH, _CONV, "vector 1  rows 17", "UC0483", "use `rows 16`"),
    ],
)
def test_what_no_kernel_keeps_is_refused(
    text: str, sizes: dict[str, int], schedule: str, code: str, says: str
) -> None:
    checked = frontend.read_text(_with(text, schedule))
    kernel = frontend.kernel(checked)
    extents = complete(kernel, {d: sizes[d] for d in free_dims(kernel)})
    with pytest.raises(ProgramError) as refused:
        frontend.plan_kernel(checked, kernel, extents, "sm90a")
    found = {d.code: d for d in refused.value.diagnostics}
    assert code in found
    diagnostic = found[code]
    assert says in f"{diagnostic.message} {diagnostic.hint}"
    assert diagnostic.hint is not None and "nearest legal schedule: " in diagnostic.hint


def test_what_is_left_open_follows_from_what_is_fixed() -> None:
    def made(text: str, schedule: str, sizes: dict[str, int], arch: str = "sm90a") -> str:
        kernel = frontend.kernel(frontend.read_text(text))
        extents = complete(kernel, {d: sizes[d] for d in free_dims(kernel)})
        return show(_planned(_with(text, schedule, arch), extents, arch).request)

    rest = "vector 8  items {}  keep {}"
    found = made(SOFTMAX, "threads 64", _T4K)
    assert found == f"cluster 1x1  rows 2  threads 64  {rest.format(8, 'registers')}"
    found = made(SOFTMAX, "cluster 1x2  threads 128", _T4K)
    assert found == f"cluster 1x2  rows 1  threads 128  {rest.format(2, 'registers')}"
    split = made(SOFTMAX, "split_k 2", _T4K)
    assert split == f"split_k 2  rows 1  threads 256  {rest.format(1, 'reread')}"
    assert made(SOFTMAX, "keep reread", _T4K, "sm80").startswith("split_k 1")
    assert "cluster" not in made(SOFTMAX, "keep registers", _T4K, "sm80")
    assert made(CONV, "tile 128x64x64", _CONV).startswith("warps cooperative  tile 128x64x64")
    assert made(CONV, "split_k 2", _CONV).startswith("warps multistage  tile ")


def test_fields_of_hopper_are_no_others() -> None:
    with pytest.raises(ProgramError, match="UC0402"):
        frontend.read_text(_with(SOFTMAX, "cluster 1x2", "sm80"))


@pytest.mark.parametrize("name", [n for n in CASES if n.startswith("attention")])
def test_the_least_shared_memory_is_the_emitters(name: str) -> None:
    for one in space(name)[2]:
        assert isinstance(one.plan, AttentionPlan)
        p, s = one.plan.problem, one.plan.schedule
        assert shared_bytes(p, s) <= SHARED_BYTES


@pytest.mark.parametrize("arch", ["sm80", "sm89"])
def test_older_architectures_have_spaces_too(arch: str) -> None:
    for name in ("reduction, softmax", "convolution, f16 strided", "convolution, depthwise"):
        found = space(name, arch)[2]
        assert len(found) > 5
        again = _planned(_with(CASES[name][0], show(found[5].request), arch), found[5].sizes, arch)
        assert again.plan == found[5].plan

"""Several kernels in one compiler run: whose parts become whose, and what happens when it fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest
from runtime_fakes import FOREVER, FakeNvcc, all_ended

from ucutlass import frontend
from ucutlass.backend import source_of
from ucutlass.emit.text import Source, finish
from ucutlass.runtime import errors, parallel, ptxas
from ucutlass.runtime.build import Artifact, Produced, Recipe, build, nvcc_recipe
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.library import load_entry
from ucutlass.runtime.progress import Progress
from ucutlass.runtime.toolchain import find
from ucutlass.runtime.translation_unit import UnitMember, units

EACH = """
for file in *.cu; do
  entry=$(basename "$file" .cu)
  [ "$entry" = source ] && entry=$(sed -n 's/.*int32_t \\(ucc_[0-9a-f]*\\)(.*/\\1/p' source.cu)
  for one in $entry; do
    size=$(printf '%d' "0x$(echo "$one" | cut -c5-6)")
    echo "ptxas info    : Compiling entry function '_Z27${one}_kernelv' for 'sm_90a'"
    echo "    $size bytes stack frame, $size bytes spill stores, 0 bytes spill loads"
    echo "ptxas info    : Used 168 registers, used 2 barriers"
  done
done
cat *.cu > kernel.so
"""
"""Says of every kernel a number of spilled bytes that is its own: its digest's first two digits."""


def source(name: str, preamble: str = "") -> Source:
    code = f"{preamble}namespace @ENTRY@_kernel {{ int {name}; }}\nint32_t @ENTRY@(int);\n"
    return finish(code, f"about {name}", "sm_90a")


def spill(entry: str) -> int:
    return int(entry[4:6], 16)


SOURCES = [source(name) for name in "abcde"]


def test_each_member_gets_its_own_entry(fake: FakeNvcc, cache: Cache) -> None:
    fake.behave(EACH)
    heard: list[Progress] = []
    results = parallel.build_many(
        SOURCES, fake.toolchain, cache, group=4, max_jobs=1, on_progress=heard.append
    )
    assert len(fake.runs) == 2, "four together, one alone"
    together = tuple(s.entry for s in SOURCES[:4])
    for one, result in zip(SOURCES, results, strict=True):
        assert isinstance(result, Artifact)
        assert result.entry == one.entry and result.key == nvcc_recipe(one, fake.toolchain).key
        assert result.source.read_text() == one.text
        assert [(u.kernel, u.spill_stores) for u in result.report.usage] == [
            (f"_Z27{one.entry}_kernelv", spill(one.entry))
        ]
        assert all(one.entry in f.kernel for f in result.report.findings)
        assert result.unit == (together if one in SOURCES[:4] else ())
    assert len({r.library.stat().st_ino for r in results[:4] if isinstance(r, Artifact)}) == 1
    ends = [e for e in heard if e.kind == "built"]
    assert [(e.done, e.total) for e in ends] == [(i, 5) for i in range(1, 6)]


def test_what_was_built_together_is_found_alone(fake: FakeNvcc, cache: Cache) -> None:
    fake.behave(EACH)
    outcomes = parallel.build_many(SOURCES[:2], fake.toolchain, cache, group=2, max_jobs=1)
    assert build(SOURCES[0], fake.toolchain, cache) == outcomes[0]
    assert parallel.build_many(SOURCES[:2], fake.toolchain, cache) == outcomes
    assert parallel.build_many(SOURCES[:3], fake.toolchain, cache, group=3, max_jobs=1)[:2] == outcomes
    assert len(fake.runs) == 2, "the third was built alone: the others were there"
    assert not [c for c in cache.verify() if not hasattr(c, "about")]


def test_a_unit_that_fails_is_announced_and_built_one_by_one(fake: FakeNvcc, cache: Cache) -> None:
    bad = source("bad")
    fake.behave(f'if grep -q "int bad" *.cu; then echo "error: bad"; exit 1; fi\n{EACH}')
    heard: list[Progress] = []
    sources = [SOURCES[0], bad, SOURCES[1]]
    first, refused, last = parallel.build_many(
        sources, fake.toolchain, cache, group=4, max_jobs=1, on_progress=heard.append
    )
    assert isinstance(first, Artifact) and isinstance(last, Artifact)
    assert first.unit == last.unit == ()
    assert isinstance(refused, errors.BuildError) and refused.entry == bad.entry
    alone = [e for e in heard if e.kind == "alone"]
    assert [e.entry for e in alone] == [s.entry for s in sources]
    assert all("error: bad" in e.detail for e in alone)
    assert [(e.done, e.total) for e in heard if e.kind in ("built", "failed")] == [(1, 3), (2, 3), (3, 3)]
    assert len(fake.runs) == 4


def test_only_one_preamble_meets_in_a_unit(fake: FakeNvcc, cache: Cache) -> None:
    """A macro before the includes would decide for those that follow, or come too late."""
    fake.behave(EACH)
    wide = [source(name, "#define WIDE\n") for name in "abc"]
    mixed = [wide[0], SOURCES[0], wide[1], SOURCES[1]]
    results = parallel.build_many(mixed, fake.toolchain, cache, group=4, max_jobs=1)
    found = {r.unit for r in results if isinstance(r, Artifact)}
    assert found == {(mixed[0].entry, mixed[2].entry), (mixed[1].entry, mixed[3].entry)}


def test_cancelling_ends_a_unit_and_builds_nothing_alone(fake: FakeNvcc, cache: Cache) -> None:
    fake.behave(FOREVER)
    cancel = Event()

    def listen(event: Progress) -> None:
        cancel.set()

    results = parallel.build_many(
        SOURCES, fake.toolchain, cache, group=2, max_jobs=2, cancel=cancel, on_progress=listen
    )
    assert all(isinstance(r, errors.BuildCancelled) for r in results)
    assert len(fake.runs) <= 2, "no single builds after the units"
    assert all_ended(fake.runs + fake.numbers("children"))


@pytest.mark.parametrize(
    ("count", "most", "workers", "others", "sizes"),
    [
        (9, 4, 1, 0, [4, 4, 1]),
        (9, 4, 2, 0, [4, 4, 1]),
        (4, 4, 2, 0, [2, 2]),
        (3, 4, 16, 0, [1, 1, 1]),
        (0, 4, 2, 0, []),
        (8, 8, 16, 12, [2, 2, 2, 2]),
        (8, 8, 16, 20, [2, 2, 2, 2]),
        (8, 8, 2, 1, [8]),
    ],
)
def test_no_worker_idles_for_a_larger_unit(
    fake: FakeNvcc, count: int, most: int, workers: int, others: int, sizes: list[int]
) -> None:
    sources = [source(f"f{i}") for i in range(count)]
    members = [UnitMember(one, nvcc_recipe(one, fake.toolchain)) for one in sources]
    assert [len(unit) for unit in units(members, most, workers, others)] == sizes


def test_recipes_are_made_beside_units_which_are_larger_where_they_keep_workers_busy(
    fake: FakeNvcc, cache: Cache
) -> None:
    fake.behave(EACH)

    def produce(folder: Path, _: Callable[[], Path], cancel: Event | None) -> Produced:
        (folder / "kernel.so").write_text("")
        return Produced(1.0, ptxas.PtxasReport())

    members = [UnitMember(one, nvcc_recipe(one, fake.toolchain)) for one in SOURCES[:4]]
    others = [Recipe("bench", f"ucc_{n}", "sm_90a", "none", {}, {"name": str(n)}, produce) for n in range(4)]
    builds = [other for pair in zip(members, others, strict=True) for other in pair]
    results = parallel.make_many(builds, cache, max_jobs=4, group=8, toolchain=fake.toolchain)
    entries = [result.entry for result in results if isinstance(result, Artifact)]
    assert entries == [b.entry if isinstance(b, Recipe) else b.source.entry for b in builds]
    assert len(fake.runs) == 1, "a quarter of four workers builds units"


def test_a_report_is_told_apart_by_the_entry() -> None:
    a, b = (ptxas.KernelResources(f"_Z{e}_kernel", "sm_90a", 168, 0, 0, 0, 0, 0) for e in ("ucc_a", "ucc_b"))
    mine = ptxas.PtxasWarning("spill", "_Zucc_a_kernel", "spills", "")
    nameless = ptxas.PtxasWarning("ptxas", "", "odd", "")
    report = ptxas.PtxasReport((a, b), (mine, nameless))
    assert report.of("ucc_a") == ptxas.PtxasReport((a,), (mine, nameless))
    assert report.of("ucc_b") == ptxas.PtxasReport((b,), (nameless,))


@pytest.mark.nvcc
@pytest.mark.slow
@pytest.mark.parametrize("family", ["sm90", "sm80", "gemv"])
def test_emitted_kernels_share_a_library(family: str, cache: Cache) -> None:
    """Two kernels of a family through nvcc as one unit: both entries answer from one library."""
    warps = {"sm90": "pingpong", "sm80": "multistage", "gemv": "gemv"}[family]
    text = "".join(
        f"kernel k_{name}(x: f16[M, K], w: f16[N, K], b: f32[N]) -> (y: f16[M, N], s: f32[M]) {{\n"
        f"  v = {name}(dot[K](x, w) + b)  return y = v, s = sum[N](v)\n"
        f"  schedule sm90a {{ warps {warps} }}\n}}\n"
        for name in ("relu", "tanh")
    )
    checked = frontend.read_text(text)
    sizes = (256, 256, 2) if family == "gemv" else (256, 256, 256)
    sources = []
    for program in ("k_relu", "k_tanh"):
        kernel = frontend.kernel(checked, program)
        planned = frontend.plan_kernel(checked, kernel, sizes, "sm90a").planned
        sources.append(source_of(checked, kernel, planned))
    assert len({s.preamble for s in sources}) == 1
    outcomes = parallel.build_many(sources, find(), cache, group=2, max_jobs=1)
    for one, artifact in zip(sources, outcomes, strict=True):
        assert isinstance(artifact, Artifact), artifact
        assert artifact.unit == tuple(s.entry for s in sources)
        assert artifact.report.usage and all(one.entry in u.kernel for u in artifact.report.usage)
        assert load_entry(artifact.library, one.entry).address
    assert len({a.library.stat().st_ino for a in outcomes if isinstance(a, Artifact)}) == 1

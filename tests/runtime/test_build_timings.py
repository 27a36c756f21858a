"""Where a build's seconds went: nvcc's own table, what an artifact keeps, spans, and the view."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from threading import Thread

import pytest
from runtime_fakes import GOOD, FakeNvcc, source

from ucutlass import spans
from ucutlass.emit.text import finish
from ucutlass.runtime import build_timings
from ucutlass.runtime.build import Artifact, build, nvcc_recipe
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.parallel import build_many
from ucutlass.runtime.progress import ignore

TABLE = """\
source file name , phase name , phase input files , phase output file , arch , tool, metric , unit
t.cu , gcc (preprocessing 4) , t.cu  , ./t.cpp4.ii ,  , nvcc , 46.2620 , ms
t.cu , cudafe++ , ./t.cpp4.ii  , ./t.compute_90a.cudafe1.cpp , compute_90a , nvcc , 189.5830 , ms
t.cu , gcc (preprocessing 1) , t.cu  , ./t.compute_90a.cpp1.ii , compute_90a , nvcc , 49.5380 , ms
t.cu , cicc ,  ./t.compute_90a.cpp1.ii  , ./t.compute_90a.ptx , compute_90a , nvcc , 1.5 , s
t.cu , ptxas , ./t.compute_90a.ptx  , ./t.compute_90a.sm_90a.cubin , sm_90a , nvcc , 13.4110 , ms
t.cu , fatbinary , ./t.compute_90a.sm_90a.cubin  , ./t.fatbin ,  , nvcc , 3.9520 , ms
t.cu , gcc (compiling) ,   , ./t.o , compute_90a , nvcc , 133.8040 , ms
t.cu  , nvlink , ./t.o  , ./t_dlink.compute_90a.sm_90a.cubin , sm_90a , nvcc , 52.7960 , ms
t.cu  , gcc (compiling) , /usr/local/cuda/bin/crt/link.stub  , ./t_dlink.o ,  , nvcc , 15.6010 , ms
t.cu  , gcc (linking) , ./t_dlink.o ./t.o  , t.so ,  , nvcc , 47.2930 , ms
 , nvcc (driver) ,  , t.so ,  , nvcc , 0.6059 , ms
"""
"""nvcc 13.0.88's, with one step in seconds."""

PHASES = (
    ("preprocess", 0.096),
    ("cudafe++", 0.190),
    ("cicc", 1.5),
    ("ptxas", 0.013),
    ("host compile", 0.149),
    ("link", 0.100),
    ("other", 0.005),
)

TELLING = f"""for a; do case $a in --time=*) cat > "${{a#--time=}}" <<'EOF'
{TABLE}EOF
esac; done
{GOOD}"""


def test_steps_of_nvcc_are_summed_by_phase() -> None:
    assert build_timings.nvcc_phases(TABLE) == PHASES


@pytest.mark.parametrize(
    "table",
    [
        "",
        "phase name , metric\ncicc , 1\n",
        TABLE.replace("13.4110", "many"),
        TABLE.replace(", s\n", ", h\n"),
    ],
    ids=["empty", "no unit", "no number", "another unit"],
)
def test_another_table_is_refused(table: str) -> None:
    with pytest.raises(build_timings.TableUnreadable):
        build_timings.nvcc_phases(table)


def test_an_artifact_keeps_the_phases_of_its_making(fake: FakeNvcc, cache: Cache) -> None:
    fake.behave(TELLING)
    artifact = build(source(), fake.toolchain, cache)
    fake.behave("exit 1")
    assert artifact.phases == build(source(), fake.toolchain, cache).phases == PHASES
    assert {p.name for p in artifact.folder.iterdir()} == {
        "build.json",
        "build.log",
        "kernel.so",
        "source.cu",
    }


@pytest.mark.parametrize("script", [GOOD, TELLING.replace("phase name", "step")], ids=["none", "another"])
def test_without_an_account_the_build_is_the_same(fake: FakeNvcc, cache: Cache, script: str) -> None:
    fake.behave(script)
    artifact = build(source(), fake.toolchain, cache)
    assert artifact.phases == () and artifact.library.read_text() == "int f();"


def test_an_artifact_of_before_has_none(fake: FakeNvcc, cache: Cache) -> None:
    manifest = build(source(), fake.toolchain, cache).folder / "build.json"
    content = json.loads(manifest.read_text())
    del content["about"]["phases"]
    manifest.write_text(json.dumps(content))
    assert build(source(), fake.toolchain, cache).phases == ()


def test_members_of_a_unit_share_the_phases_as_they_share_the_time(fake: FakeNvcc, cache: Cache) -> None:
    fake.behave(TELLING)
    sources = [finish(f"namespace @ENTRY@_kernel {{ int {name}; }}\n", "", "sm_90a") for name in "ab"]
    outcomes = build_many(sources, fake.toolchain, cache, max_jobs=1, group=2)
    assert len(fake.runs) == 1
    for one in outcomes:
        assert isinstance(one, Artifact) and len(one.unit) == 2
        assert one.phases == tuple((name, round(seconds / 2, 3)) for name, seconds in PHASES)


def test_the_account_is_no_part_of_the_key(fake: FakeNvcc) -> None:
    assert not any("--time" in text for text in nvcc_recipe(source(), fake.toolchain).material.values())


# --- spans ------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each reading is a second after the one before."""
    ticks = count()
    monkeypatch.setattr(spans, "perf_counter", lambda: float(next(ticks)))
    yield


@pytest.mark.usefixtures("clock")
def test_a_span_counts_without_those_inside() -> None:
    with spans.recording() as heard, spans.span("outer"):
        with spans.span("inner"):
            pass
        with spans.span("inner"), spans.span("core"):
            pass
    # Readings: outer 0, inner 1-2, inner 3-6 with core 4-5, outer 7.
    assert heard.seconds == {"inner": 1 + (3 - 1), "core": 1, "outer": 7 - 1 - 3}


@pytest.mark.usefixtures("clock")
def test_a_function_that_raises_still_counts() -> None:
    @spans.span("work")
    def work() -> None:
        raise KeyError

    with spans.recording() as heard, pytest.raises(KeyError), spans.span("around"):
        work()
    assert heard.seconds == {"work": 1, "around": 2}


def test_only_the_recording_context_is_heard() -> None:
    @spans.span("work")
    def work() -> None: ...

    work()
    with spans.recording() as heard:
        other = Thread(target=work)
        other.start()
        other.join()
    work()
    assert heard.seconds == {}


def test_a_build_is_heard_as_look_up_wait_and_making(fake: FakeNvcc, cache: Cache) -> None:
    with spans.recording() as made:
        build(source(), fake.toolchain, cache)
    with spans.recording() as found:
        build(source(), fake.toolchain, cache)
    assert made.seconds.keys() == {"cache look-up", "waiting for another build", "compiling and storing"}
    assert found.seconds.keys() == {"cache look-up"}


# --- the view ---------------------------------------------------------------------


def test_the_view_adds_up(fake: FakeNvcc, cache: Cache) -> None:
    fake.behave(TELLING)
    watch = build_timings.Watch(ignore)
    made = replace(build(source(), fake.toolchain, cache, on_progress=watch), seconds=2.0)
    view = build_timings.timings(
        4.0, {"planning": 1.0, "compiling and storing": 2.5}, made, made.entry in watch.built
    )
    assert view.made_here
    assert view.here == (("planning", 1.0), ("compiling and storing", 2.5), ("other", 0.5))
    assert sum(seconds for _, seconds in view.here) == view.wall
    assert ("  cicc", "1.500", "75.0%") in view.rows() and ("  other", "0.500", "12.5%") in view.rows()
    assert view.to_json()["made"] == {"here": True, "seconds": 2.0, "phases": dict(PHASES)}


def test_a_cached_artifact_is_marked_as_such(fake: FakeNvcc, cache: Cache) -> None:
    build(source(), fake.toolchain, cache)
    watch = build_timings.Watch(ignore)
    artifact = build(source(), fake.toolchain, cache, on_progress=watch)
    view = build_timings.timings(0.1, {"cache look-up": 0.05}, artifact, artifact.entry in watch.built)
    assert not view.made_here
    (row,) = [row for row in view.rows() if row[0].startswith("making it")]
    assert row[0].endswith("once, before this call") and "no account" in row[2]

"""Lean kernels by NVRTC: what ptxas makes of them, what is reused, and where another stage serves."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.emit.divided_kernels import KERNELS, planned
from tests.emit.gemm_plans import SMALL as SM80
from tests.jit.lean_host import Bench
from tests.jit.lean_plans import KINDS, biased, residual
from tests.jit.machine_code import CALLS, HGMMA, IGMMA, QGMMA, kernels, operations
from ucutlass import backend, frontend
from ucutlass.emit import emit
from ucutlass.emit.gemm.arithmetic_unit import KERNEL_NAME
from ucutlass.emit.gemm.lean import lean
from ucutlass.emit.gemm.lean_mainloop import instructions, operands, parts, promotion, turn
from ucutlass.emit.parts import Lean, NotServed
from ucutlass.kernels.arithmetic import Arithmetic, Compute
from ucutlass.kernels.gemm.plan import GemmPlan, Sm90Schedule
from ucutlass.kernels.planned import Plan
from ucutlass.runtime import errors, process
from ucutlass.runtime.build import BUILDERS, Artifact, make
from ucutlass.runtime.cache import Cache, CacheEntry
from ucutlass.runtime.jit import device_compile, link, nvjitlink, nvrtc
from ucutlass.runtime.jit import nvrtc_build as lean_parts
from ucutlass.runtime.parallel import make_many
from ucutlass.runtime.progress import Progress
from ucutlass.runtime.toolchain import Toolchain, find

pytestmark = pytest.mark.nvcc


@pytest.fixture
def tools(compiler: nvrtc.Nvrtc, linker: nvjitlink.NvJitLink) -> Toolchain:
    return find()


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    """Of all tests here, so that the driver's part is made once."""
    return Cache(tmp_path_factory.mktemp("warm"), 10 * 2**30)


def made(plan: GemmPlan, tools: Toolchain, cache: Cache, kernel: Lean | None = None) -> Artifact:
    return make(link.recipe(emit(plan, ""), kernel or lean(plan), tools, cache), cache)


def multiplications(plan: GemmPlan) -> int:
    """wgmma in the kernel's text: a k tile's, in the loop and, where nothing is promoted, before it. Where
    each k tile is promoted, those of a turn's k tiles and of one for the rest."""
    schedule, problem = plan.schedule, plan.problem
    assert isinstance(schedule, Sm90Schedule)
    groups = 2 if schedule.warps == "cooperative" else 1
    a, b = operands(problem, schedule, groups)
    atoms = schedule.tile[0] // (64 * groups)
    tile = len(list(instructions(a, b, atoms, schedule.tile[1])))
    promoted = promotion(problem, schedule)
    registers = atoms * schedule.tile[1] // 2
    if tiles := turn(schedule, promoted, registers, atoms):
        return parts(schedule, promoted, registers) * tile * (tiles + 1 if tiles > 1 else 1)
    return tile * (1 if promoted else 2)


def test_headers_that_are_left_out_change_no_machine_code(
    tools: Toolchain, warm: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that CUTLASS moves or drops would stand in the list and save nothing."""
    include = tools.cutlass.home / "include"
    assert not [name for name in lean_parts.UNUSED_HEADERS if not (include / name).is_file()]
    without = made(residual(), tools, warm)
    monkeypatch.setattr(lean_parts, "UNUSED_HEADERS", ())
    every = made(residual(), tools, Cache(tmp_path, 10 * 2**30))
    assert every.key != without.key
    code = [kernels((artifact.folder / link.IMAGE).read_bytes()) for artifact in (without, every)]
    assert code[0] == code[1]


@pytest.mark.parametrize("name", KINDS)
def test_machine_code_is_lean(name: str, tools: Toolchain, warm: Cache) -> None:
    """No spill, no call, no serialised wgmma; as many of those as the plan has."""
    plan = KINDS[name]()
    one = made(plan, tools, warm)
    assert one.builder == BUILDERS["nvrtc"]
    assert not one.report.findings
    (usage,) = one.report.usage
    assert (usage.kernel, usage.spill_stores, usage.spill_loads) == (KERNEL_NAME, 0, 0)
    code = kernels((one.folder / link.IMAGE).read_bytes())
    assert code.keys() == {KERNEL_NAME}, "the arithmetic is inlined, and dropped"
    counted = operations(code[KERNEL_NAME])
    assert sum(counted[op] for op in (HGMMA, IGMMA, QGMMA)) == multiplications(plan)
    assert not any(counted[call] for call in CALLS)
    assert {phase for phase, _ in one.phases} >= {"skeleton", "nvJitLink", "library"}


@pytest.mark.parametrize(("left", "right"), [("e4m3", "e5m2"), ("e5m2", "e4m3")])
def test_two_types_of_fp8_are_multiplied_by_one_instruction(
    left: str, right: str, tools: Toolchain, warm: Cache
) -> None:
    text = f"kernel k(x: {left}[M, K], w: {right}[N, K]) -> bf16[M, N] {{ return dot[K](x, w) }}"
    checked = frontend.read_text(text)
    plan = frontend.plan_kernel(checked, frontend.kernel(checked), (4096, 4096, 4096), "sm90a").planned.plan
    assert isinstance(plan, GemmPlan)
    one = made(plan, tools, warm)
    counted = operations(kernels((one.folder / link.IMAGE).read_bytes())[KERNEL_NAME])
    assert one.builder == BUILDERS["nvrtc"] and not one.report.findings
    assert counted[QGMMA] == multiplications(plan)


def gelu_gone() -> GemmPlan:
    base = biased()
    body = (*base.problem.arithmetic.instructions[:3], Compute("relu", (2,), "f32"))
    return replace(base, problem=replace(base.problem, arithmetic=Arithmetic(body, (3,))))


def test_another_epilogue_takes_the_skeleton_that_is_there(
    tools: Toolchain, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = made(biased(), tools, cache)
    keys = {entry.key for entry in cache.entries()}
    assert lean_parts.recipe(lean(biased()), tools).key in keys
    assert lean_parts.recipe(lean(gelu_gone()), tools).key in keys
    runs: list[list[str]] = []
    real = process.run

    def run(command: list[str], **rest: object) -> object:
        runs.append(command)
        return real(command, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(process, "run", run)
    other = made(gelu_gone(), tools, cache)
    assert len(runs) == 2, "the arithmetic with its link, and the library's link"
    assert {entry.key for entry in cache.entries()} == keys | {other.key}
    images = [(one.folder / link.IMAGE).read_bytes() for one in (first, other)]
    assert images[0] != images[1] and other.source.read_text() == emit(gelu_gone(), "").text


def test_kernels_that_are_built_at_once_share_a_skeleton(tools: Toolchain, cache: Cache) -> None:
    plans = (biased(), gelu_gone())
    recipes = [link.recipe(emit(plan, ""), lean(plan), tools, cache) for plan in plans]
    ones = make_many(recipes, cache, max_jobs=2)
    assert [one.key for one in ones if isinstance(one, Artifact)] == [recipe.key for recipe in recipes]
    builders = Counter(entry.about["builder"] for entry in cache.entries() if isinstance(entry, CacheEntry))
    assert builders == {"lean-skeleton": 1, "lean-driver": 1, "staged-b": 2}


def test_the_drivers_part_is_made_beside_the_skeleton(
    tools: Toolchain, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the first library's link waits for nothing, and no skeleton does."""
    run, key, end = device_compile.run, lean_parts.driver_recipe(tools).key, time.monotonic() + 60.0

    def once_it_is_there(*arguments: Any, **named: Any) -> device_compile.CompilerOutput:
        while not isinstance(cache.load(key), CacheEntry):
            assert time.monotonic() < end, "the driver's part waits for the skeleton"
            time.sleep(0.02)
        return run(*arguments, **named)

    monkeypatch.setattr(device_compile, "run", once_it_is_there)
    made(biased(), tools, cache)


def test_what_is_there_is_taken(tools: Toolchain, warm: Cache) -> None:
    first = made(biased(), tools, warm)
    heard: list[Progress] = []
    recipe = link.recipe(emit(biased(), ""), lean(biased()), tools, warm)
    assert make(recipe, warm, on_progress=heard.append) == first
    assert [event.kind for event in heard] == ["cached"]


# --- parameters that differ -------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        pytest.param("int32_t mode;", "int32_t mode, more[64];", id="a field more"),
        pytest.param("uint32_t clusters[6];", "uint32_t clusters[8];", id="a longer array"),
        pytest.param("alignas(8) SchedulerParams", "alignas(64) SchedulerParams", id="a border"),
        pytest.param(
            "int device_id, sm_count, max_active_clusters;",
            "int device_id, max_active_clusters, sm_count;",
            id="two that are exchanged",
        ),
    ],
)
def test_parameters_that_are_not_cutlasss_are_refused(
    ours: str, theirs: str, tools: Toolchain, cache: Cache
) -> None:
    """Before a kernel reads what the host did not write."""
    kernel = lean(biased())
    text = kernel.device.text
    assert text.count(ours) == 1
    device = replace(kernel.device, text=text.replace(ours, theirs), code=text.replace(ours, theirs))
    with pytest.raises(errors.BuildError, match="the host fills these parameters"):
        make(lean_parts.recipe(replace(kernel, device=device), tools), cache)


FIELDS = (
    "shape",
    "mainloop",
    "mainloop.b",
    "mainloop.tma_transaction_bytes",
    "epilogue",
    "epilogue.thread",
    "epilogue.in0_map",
    "epilogue.in1",
    "epilogue.in1_m",
    "epilogue.in2_l",
    "epilogue.out0_map",
    "epilogue.out1_n",
    "hw_info.max_active_clusters",
    "scheduler",
    "workspace",
)


def test_both_compilers_put_the_parameters_in_the_same_places(
    tools: Toolchain, cache: Cache, tmp_path: Path
) -> None:
    """The host's places, asserted by NVRTC; and one that is wrong, to see that it looks."""
    plan = residual()
    kernel = lean(plan)
    places = Bench(tools, cache, tmp_path).host(plan, FIELDS).call().places

    def built(places: dict[str, int]) -> Artifact:
        params = f"(({kernel.device.entry}_kernel::KernelParams*)0)->"
        checks = [f'static_assert(__INTADDR__(&{params}{f}) == {at}, "{f}");\n' for f, at in places.items()]
        text = kernel.device.text + "".join(checks)
        device = replace(kernel.device, text=text, code=text)
        return make(lean_parts.recipe(replace(kernel, device=device), tools), cache)

    assert len(set(places.values())) >= len(FIELDS) - 2  # a struct begins where its first field does
    assert built(places).folder.is_dir()
    with pytest.raises(errors.BuildError, match=r"epilogue\.in1_m"):
        built(places | {"epilogue.in1_m": places["epilogue.in1_m"] + 8})


# --- what each build path serves -------------------------------------------------------


def half() -> GemmPlan:
    return replace(biased(), arch="sm90a", problem=replace(biased().problem, accumulate="f16"))


def sm80() -> GemmPlan:
    return replace(biased(), arch="sm90a", schedule=SM80, routes=("direct", "direct"))


def few_rows() -> Plan:
    return planned(KERNELS["matrix times vector"])[1]


@pytest.mark.parametrize(
    ("make_plan", "builder"), [(biased, "staged-b"), (half, "nvcc"), (sm80, "divided"), (few_rows, "divided")]
)
def test_auto_is_nvrtc_where_it_serves_else_nvcc(
    make_plan: Callable[[], Plan], builder: str, tools: Toolchain, cache: Cache
) -> None:
    plan = make_plan()
    recipe = backend.recipe_of(emit(plan, ""), plan, "auto", cache)
    assert recipe.builder == builder
    path = backend.BUILD_PATH_OF[builder]
    assert backend.recipe_of(emit(plan, ""), plan, path, cache).key == recipe.key


def test_nvrtc_by_its_name_is_no_other_path(tools: Toolchain, cache: Cache) -> None:
    plan = half()
    with pytest.raises(NotServed):
        backend.recipe_of(emit(plan, ""), plan, "nvrtc", cache)


# --- keys -------------------------------------------------------------------------


def test_keys_depend_on_both_sides_and_on_what_they_share(
    tools: Toolchain, cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, kernel = biased(), lean(biased())

    def key(kernel: Lean = kernel, tools: Toolchain = tools) -> str:
        return link.recipe(emit(plan, ""), kernel, tools, cache).key

    keys = [
        key(),
        key(replace(kernel, host=kernel.host + "// other")),
        key(replace(kernel, device=replace(kernel.device, code="other"))),
        key(replace(kernel, arithmetic="other")),
        key(tools=replace(tools, host=replace(tools.host, version="1.0"))),
        key(tools=replace(tools, cutlass=replace(tools.cutlass, digest="1" * 64))),
    ]
    for name in (lean_parts.HEADER, lean_parts.DRIVER_SOURCE):
        (tmp_path / name).write_text((lean_parts.NATIVE / name).read_text())
    with (tmp_path / lean_parts.HEADER).open("a") as header:
        header.write("// other\n")
    with monkeypatch.context() as patch:
        patch.setattr(lean_parts, "NATIVE", tmp_path)
        keys.append(key())
    assert len(set(keys)) == len(keys)
    assert key() == keys[0]


def test_keys_depend_on_the_drivers_part(
    tools: Toolchain, cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a library with the old one is served after an update."""
    recipe = link.recipe(emit(biased(), ""), lean(biased()), tools, cache)
    header, source = (
        (lean_parts.NATIVE / n).read_text() for n in (lean_parts.HEADER, lean_parts.DRIVER_SOURCE)
    )
    (tmp_path / lean_parts.HEADER).write_text(header)
    (tmp_path / lean_parts.DRIVER_SOURCE).write_text(source + "// other\n")
    monkeypatch.setattr(lean_parts, "NATIVE", tmp_path)
    assert link.recipe(emit(biased(), ""), lean(biased()), tools, cache).key != recipe.key

"""The whole path with a tiny skeleton, and with kernels: what is built, what is reused, what is said."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from threading import Event

import pytest

from tests.emit.test_gemm_sm90 import batched_with_reductions
from tests.jit.machine_code import CALLS, FLOAT, kernels, operations
from tests.jit.staged_plans import everything, gelu, scaled_relu
from ucutlass import backend, frontend
from ucutlass.emit import emit
from ucutlass.emit.gemm.staged import KERNEL_NAME, Staged, stage
from ucutlass.emit.text import Source
from ucutlass.kernels.gemm.plan import GemmPlan
from ucutlass.runtime import errors, nvcc, process, ptxas
from ucutlass.runtime.build import BUILDERS, Artifact, make
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.jit import compiler_process, link, nvjitlink, nvrtc, skeleton
from ucutlass.runtime.progress import Progress
from ucutlass.runtime.toolchain import Toolchain, find
from ucutlass.shapes import complete

pytestmark = pytest.mark.nvcc

SKELETON = f"""
extern "C" __device__ float arithmetic(float x);
#ifdef UCC_HOST_PASS
extern "C" unsigned char const ucc_image[];
extern "C" int ucc_skeleton(int at) {{ return ucc_image[at]; }}
#else
extern "C" __global__ void {KERNEL_NAME}(float* x) {{ x[threadIdx.x] = arithmetic(x[threadIdx.x]); }}
#endif
"""
WORKER = compiler_process.__name__
TINY = Source(SKELETON, SKELETON, "ucc_skeleton", "sm_90a")


def parts(expression: str) -> Staged:
    return Staged(TINY, f'extern "C" __device__ float arithmetic(float x) {{\n  return {expression};\n}}')


def source(entry: str = "ucc_kernel") -> Source:
    return Source("// plain", "// plain", entry, "sm_90a")


@pytest.fixture
def tools(compiler: nvrtc.Nvrtc, linker: nvjitlink.NvJitLink) -> Toolchain:
    return find()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What each run of nvcc is to make, and WORKER for NVRTC and nvJitLink."""
    seen: list[str] = []
    real = process.run

    def run(command: list[str], **rest: object) -> object:
        seen.append(command[command.index("-o") + 1] if "-o" in command else command[2])
        return real(command, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(process, "run", run)
    return seen


def made(
    staged: Staged, tools: Toolchain, cache: Cache, entry: str = "ucc_kernel", **more: object
) -> Artifact:
    return make(link.recipe(source(entry), staged, tools, cache, **more), cache)  # type: ignore[arg-type]


def test_a_new_arithmetic_is_linked_to_the_skeleton_that_is_there(
    tools: Toolchain, cache: Cache, runs: list[str]
) -> None:
    events: list[Progress] = []
    first = made(parts("x + 1.0f"), tools, cache, on_progress=events.append)
    assert sorted(runs[:2]) == [skeleton.HOST_PART, skeleton.DEVICE_PART]
    assert runs[2:] == [WORKER, nvcc.LIBRARY]
    assert (events[0].kind, events[0].entry) == ("compiling", "ucc_skeleton")
    runs.clear()
    other = made(parts("x * x"), tools, cache, "ucc_other")
    assert runs == [WORKER, nvcc.LIBRARY]
    before, after = (kernels((a.folder / link.IMAGE).read_bytes()) for a in (first, other))
    assert before != after
    runs.clear()
    assert made(parts("x + 1.0f"), tools, cache) == first and not runs


def test_the_library_has_the_entry_and_the_image(tools: Toolchain, cache: Cache) -> None:
    one = made(parts("x + 1.0f"), tools, cache)
    library = ctypes.CDLL(str(one.library), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    image = (one.folder / link.IMAGE).read_bytes()
    assert bytes(library.ucc_kernel(i) for i in range(64)) == image[:64]
    assert kernels(image).keys() == {KERNEL_NAME}
    assert [usage.kernel for usage in one.report.usage] == [KERNEL_NAME]
    assert one.builder == BUILDERS["lto"] and one.source.read_text() == source().text


def test_keys_name_the_way_and_all_that_it_depends_on(tools: Toolchain, cache: Cache) -> None:
    def key(staged: Staged, entry: str = "ucc_kernel", tools: Toolchain = tools) -> str:
        return link.recipe(source(entry), staged, tools, cache).key

    newer = replace(tools, cutlass=replace(tools.cutlass, digest="1" * 64))
    keys = [
        key(parts("x")),
        key(parts("x"), "ucc_other"),
        key(parts("-x")),
        key(replace(parts("x"), skeleton=replace(TINY, code="other"))),
        key(parts("x"), tools=newer),
    ]
    assert len(set(keys)) == len(keys)
    assert key(parts("x")) == keys[0]
    assert keys[0] != skeleton.recipe(TINY, tools).key


def test_a_refused_arithmetic_leaves_its_skeleton_to_the_next(
    tools: Toolchain, cache: Cache, runs: list[str]
) -> None:
    with pytest.raises(errors.BuildError) as caught:
        made(parts("gone(x)"), tools, cache)
    assert 'arithmetic.cu(2): error: identifier "gone" is undefined' in caught.value.errors[0]
    assert caught.value.source.read_text() == parts("gone(x)").arithmetic
    assert "gone" in caught.value.log.read_text()
    (left,) = cache.entries()
    assert left.key == skeleton.recipe(TINY, tools).key
    runs.clear()
    made(parts("x"), tools, cache)
    assert runs == [WORKER, nvcc.LIBRARY]


def test_a_refused_skeleton_is_kept_with_what_was_said(tools: Toolchain, cache: Cache) -> None:
    for wrong in ("float* x) {", "int at) {"):  # in the device's pass, in the host's
        text = SKELETON.replace(wrong, f"{wrong} gone();")
        broken = Staged(Source(text, text, "ucc_skeleton", "sm_90a"), parts("x").arithmetic)
        with pytest.raises(errors.BuildError) as caught:
            made(broken, tools, cache)
        assert '"gone" is undefined' in caught.value.errors[0]
        assert "gone" in caught.value.log.read_text()
        assert caught.value.source.read_text() == text


def test_parts_that_do_not_meet_are_a_build_error(tools: Toolchain, cache: Cache) -> None:
    other = parts("x").arithmetic.replace("arithmetic", "another")
    with pytest.raises(errors.BuildError) as caught:
        made(Staged(TINY, other), tools, cache)
    assert any("'arithmetic'" in line for line in caught.value.errors)


def test_both_passes_end_in_time_and_when_told(tools: Toolchain, cache: Cache) -> None:
    with pytest.raises(errors.BuildTimedOut):
        make(skeleton.recipe(TINY, tools, limit_seconds=0.0), cache)
    told = Event()
    told.set()
    with pytest.raises(errors.BuildCancelled):
        make(skeleton.recipe(TINY, tools), cache, cancel=told)
    assert not cache.entries()


@pytest.mark.parametrize("version", ["13.9.1", "12.9.86"])
def test_ir_of_another_version_is_not_linked(version: str, tools: Toolchain, cache: Cache) -> None:
    other = replace(tools, nvcc=replace(tools.nvcc, version=version))
    with pytest.raises(link.CompilersDiffer, match="does not read what nvcc"):
        link.recipe(source(), parts("x"), other, cache)


PROGRAM = """\
# A line before it.
kernel scaled(x: f16[M, K], w: f16[N, K]) -> f16[M, N] {
  return gelu(dot[K](x, w))
  schedule sm90a { warps pingpong  tile 64x64x64 }
}
"""


def test_a_broken_arithmetic_shows_the_programs_line_first(
    tools: Toolchain, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(plan: GemmPlan) -> Staged:
        whole = stage(plan)
        return replace(whole, arithmetic=whole.arithmetic.replace("out0 =", "gone ="))

    monkeypatch.setattr(link, "stage", broken)
    monkeypatch.setenv("UCUTLASS_CACHE_DIR", str(cache.root))
    checked = frontend.read_text(PROGRAM)
    program = frontend.kernel(checked)
    sizes = complete(program, {"M": 256, "N": 256, "K": 256})
    with pytest.raises(errors.BuildError) as caught:
        backend.build_kernel(checked, program, sizes, "sm90a", build_path="lto")
    first, second, third = str(caught.value).splitlines()[:3]
    assert first.endswith(":2: kernel scaled(x: f16[M, K], w: f16[N, K]) -> f16[M, N] {")
    assert second.startswith("the compiler refused the emitted source of ucc_")
    assert 'identifier "gone" is undefined' in third


def plain_cubin(source: Source, tools: Toolchain, folder: Path) -> tuple[bytes, ptxas.PtxasReport]:
    """The kernel's image as the plain build makes it, and what ptxas said."""
    (folder / "plain.cu").write_text(source.text)
    flags = [*nvcc.LANGUAGE, "-Xptxas=-v", "-gencode=arch=compute_90a,code=sm_90a"]
    files = [f"-I{tools.cutlass.include}", "-o", "plain.cubin", "plain.cu"]
    command = [str(tools.nvcc.path), "-cubin", *flags, *files]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return (folder / "plain.cubin").read_bytes(), ptxas.parse(done.stderr)


def refusals(library: Path, entry: str, plan: GemmPlan) -> list[int]:
    """What the entry says to arguments that no plan was made for."""
    function = getattr(ctypes.CDLL(str(library)), entry)
    function.restype = ctypes.c_int32
    dims, pointers = plan.problem.dims, plan.problem.pointers
    tensors = (ctypes.c_void_p * pointers)(*[4096] * pointers)
    odd, empty = (ctypes.c_int64 * dims)(*[63] * dims), (ctypes.c_int64 * dims)(*[0] * dims)
    knobs = (ctypes.c_int64 * 3)(0, 1, 1)
    scalars = (ctypes.c_double * 1)(1.0)
    return [function(tensors, given, scalars, knobs, None, None, None) for given in (None, odd, empty)]


def resources(report: ptxas.PtxasReport) -> list[tuple[object, ...]]:
    """What ptxas counted of each kernel, without the names."""
    return sorted(astuple(replace(usage, kernel="")) for usage in report.usage)


def staged_and_plain(plan: GemmPlan, tools: Toolchain, cache: Cache, folder: Path) -> list[dict[str, bytes]]:
    """The machine code of each kernel, built both ways; what else can be compared is."""
    source = emit(plan, "")
    one = make(link.recipe(source, stage(plan), tools, cache), cache)
    image, report = plain_cubin(source, tools, folder)
    assert resources(one.report) == resources(report)
    assert not one.report.findings
    assert refusals(one.library, one.entry, plan) == [1, 1, 1]
    return [kernels((one.folder / link.IMAGE).read_bytes()), kernels(image)]


@pytest.mark.slow
@pytest.mark.parametrize("plans", [(gelu, scaled_relu), (everything,)], ids=["bias", "everything"])
def test_machine_code_is_that_of_the_plain_build(
    plans: Sequence[Callable[[], GemmPlan]], tools: Toolchain, cache: Cache, tmp_path: Path, runs: list[str]
) -> None:
    """Byte for byte, so with the arithmetic inlined."""
    for which in plans:
        staged, plain = staged_and_plain(which(), tools, cache, tmp_path)
        assert staged.keys() == {KERNEL_NAME}
        assert list(staged.values()) == list(plain.values())
    assert runs.count(skeleton.DEVICE_PART) == 1


@pytest.mark.slow
def test_kernels_with_reductions_compute_as_the_plain_build_does(
    tools: Toolchain, cache: Cache, tmp_path: Path
) -> None:
    """Stream-K with coordinates: the optimiser meets its branches in another order, so that integer code
    differs; what rounds is the same, and nothing is called. The second launches' kernels are the same."""
    staged, plain = staged_and_plain(batched_with_reductions(), tools, cache, tmp_path)
    main, (plain_main,) = staged.pop(KERNEL_NAME), [name for name in plain if "device_kernel" in name]
    counted, counted_plain = operations(main), operations(plain.pop(plain_main))
    assert {op: counted[op] for op in FLOAT} == {op: counted_plain[op] for op in FLOAT}
    assert min(counted[0x1F0], counted[0x021]) > 0
    assert not any(counted[op] for op in CALLS)
    assert sorted(staged) == ["ucc_combine_out1", "ucc_combine_out2"]
    assert sorted(staged.values()) == sorted(plain.values())


def test_the_command_for_people_shows_the_arithmetics_errors_again(
    tools: Toolchain, cache: Cache, tmp_path: Path
) -> None:
    whole = stage(everything())
    broken = replace(whole, arithmetic=whole.arithmetic.replace("out0 =", "gone ="))
    with pytest.raises(errors.BuildError) as caught:
        make(link.recipe(emit(everything(), ""), broken, tools, cache), cache)

    def said(text: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / caught.value.source.name).write_text(text)
        command = caught.value.command
        return subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)

    again = said(broken.arithmetic)
    assert again.returncode != 0 and 'identifier "gone" is undefined' in again.stderr
    assert said(whole.arithmetic).returncode == 0

"""What the object and the PTX of a source show, before any of its code runs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from sources import BY_HAND, quick

from ucutlass import frontend
from ucutlass.adopt import fences, host
from ucutlass.adopt.refusals import SourceRefused
from ucutlass.agent.integrity.machine_precision import machine_losses, tensor_instructions
from ucutlass.runtime import elf


def compiled(folder: Path, text: str) -> bytes:
    program = shutil.which("g++")
    if program is None:
        pytest.skip("no g++ to compile for the host")
    (folder / "source.cpp").write_text(text)
    command = [
        program,
        "-O1",
        "-fPIC",
        "-w",
        "-c",
        "-o",
        str(folder / "source.o"),
        str(folder / "source.cpp"),
    ]
    subprocess.run(command, check=True)
    return (folder / "source.o").read_bytes()


RIGHT = {
    "plain": "",
    "math and memory": "#include <cmath>\n#include <cstring>\nfloat f(float* x) { std::memset(x, 0, 8); return std::exp(x[0]); }",
    "iostream": "#include <iostream>",
    "iostream of GCC 13": "namespace std { void ios_base_library_init(); }\nvoid f() { std::ios_base_library_init(); }",
    "a lock": "#include <mutex>\nstd::mutex m; void f() { std::lock_guard<std::mutex> hold(m); }",
    "an exception": "#include <vector>\nint f(std::vector<int>& v) { v.push_back(1); return v.at(3); }",
}

WRONG = {
    "system": ('#include <cstdlib>\nint f() { return system("ls"); }', "host-call", "system"),
    "fork": ("#include <unistd.h>\nint f() { return fork(); }", "host-call", "fork"),
    "exec": ('#include <unistd.h>\nint f() { return execl("a", "b", nullptr); }', "host-call", "execl"),
    "dlopen": ('#include <dlfcn.h>\nvoid* f() { return dlopen("a", 1); }', "host-call", "dlopen"),
    "a socket": ("#include <sys/socket.h>\nint f() { return socket(1, 1, 0); }", "host-call", "socket"),
    "a file": ('#include <cstdio>\nvoid* f() { return fopen("a", "r"); }', "host-call", "fopen"),
    "a stream": ('#include <fstream>\nvoid f() { std::ofstream("a") << 1; }', "host-call", "basic_filebuf"),
    "the environment": ('#include <cstdlib>\nchar* f() { return getenv("A"); }', "host-call", "getenv"),
    "a thread": ("#include <thread>\nvoid f() { std::thread([] {}).detach(); }", "host-call", "thread"),
    "a name in disguise": ('void* f(char const*) __asm__("popen"); void* g() { return f("a"); }', "host-call", "popen"),
    "a callback": ('extern "C" int cudaLaunchHostFunc(void*); int f() { return cudaLaunchHostFunc(0); }', "host-call", "cudaLaunchHostFunc"),
    "a static object": ("struct A { A() { x = std::exp(1.0f); } float x; }; volatile float one = 1; float y = std::exp(one);", "startup", "expf"),
    "a static object beside iostream": ("#include <iostream>\nstatic volatile int one; static int two = one; int f() { return two; }", "startup", "runs with"),
    "a constructor": ("__attribute__((constructor)) void early() {}", "startup", "early"),
    "a constructor beside nvcc's": (
        "volatile int x; __attribute__((constructor)) static void __sti____cudaRegisterAll() { x = 1; }\n"
        "namespace a { __attribute__((constructor)) static void early() { x = 2; } }",
        "startup",
        "early",
    ),
    "a destructor": ("__attribute__((destructor)) void late() {}", "startup", "late"),
    "a resolver": (
        'extern "C" { static void* pick() { return nullptr; } }\n'
        '__attribute__((ifunc("pick"))) void f(); void g() { f(); }',
        "startup",
        "chosen when",
    ),
    "the section of startup": (
        "typedef void (*F)(); void early() {}\n"
        '__attribute__((section(".init_array"), used)) F place = early;',
        "startup",
        "early",
    ),
    "code of startup": ('__attribute__((section(".init"))) void early() {}', "startup", "section .init"),
    "another function of C": ('extern "C" int other() { return 1; }', "entry", "other, ucc_by_hand"),
}  # fmt: skip


@pytest.mark.parametrize("name", quick(RIGHT, "plain", "iostream", "iostream of GCC 13"))
def test_what_a_kernel_needs_is_taken(name: str, tmp_path: Path) -> None:
    host.check(compiled(tmp_path, f"{RIGHT[name]}\n{BY_HAND}"), "ucc_by_hand")


@pytest.mark.parametrize(
    "name",
    quick(WRONG, "system", "a static object beside iostream", "a constructor", "another function of C"),
)
def test_what_none_needs_is_refused_by_its_symbol(name: str, tmp_path: Path) -> None:
    text, code, words = WRONG[name]
    with pytest.raises(SourceRefused) as refused:
        host.check(compiled(tmp_path, f"#include <cmath>\n{text}\n{BY_HAND}"), "ucc_by_hand")
    assert refused.value.code == code and words in refused.value.what, str(refused.value)


def test_an_object_without_the_entry(tmp_path: Path) -> None:
    with pytest.raises(SourceRefused, match="offers ucc_by_hand") as refused:
        host.check(compiled(tmp_path, BY_HAND), "ucc_another")
    assert refused.value.code == "entry"


def test_bytes_that_are_no_object(tmp_path: Path) -> None:
    whole = compiled(tmp_path, BY_HAND)
    for data in (b"", b"\x7fELF", b"x" * 4096, whole[:64], whole[: len(whole) // 2], whole[:-8]):
        with pytest.raises(SourceRefused, match="cannot be read") as refused:
            host.check(data, "ucc_by_hand")
        assert refused.value.code == "object"


def test_damage_anywhere_is_an_answer_or_a_refusal(tmp_path: Path) -> None:
    whole = bytearray(compiled(tmp_path, BY_HAND))
    for place in range(0, len(whole), 7):
        data = bytearray(whole)
        data[place] ^= 0xFF
        try:
            elf.read(bytes(data))
        except elf.ElfUnreadable:
            continue


# --- PTX -------------------------------------------------------------------------

WGMMA = "wgmma.mma_async.sync.aligned.m64n256k16"
MMA = "mma.sync.aligned.m16n8k16.row.col"
DOT = "kernel k(x: {0}[M, K], w: {0}[N, K]) -> {1}[M, N] {{ return dot[K](x, w{2}) }}"


def losses(text: str, *instructions: str) -> list[str]:
    program = frontend.kernel(frontend.read_text(text))
    ptx = "".join(f"\t{name} {{%f1}}, %rd1, %rd2, p, 1, 1, 0, 0;\n" for name in instructions)
    return [f"{loss.kind} {loss.name}" for loss in machine_losses(program, ptx)]


@pytest.mark.parametrize(
    ("text", "instruction", "lost"),
    [
        (DOT.format("bf16", "bf16", ""), f"{WGMMA}.f32.bf16.bf16", []),
        (DOT.format("bf16", "bf16", ""), f"{MMA}.f32.bf16.bf16.f32", []),
        (DOT.format("bf16", "bf16", ""), "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", []),
        (DOT.format("bf16", "bf16", ""), f"{WGMMA}.f32.f16.f16", ["compute type f16"]),
        (DOT.format("bf16", "bf16", ""), f"{WGMMA}.f32.e4m3.e4m3", ["compute type e4m3"]),
        (DOT.format("bf16", "bf16", ""), "mma.sp.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32", ["compute type e5m2"]),
        (DOT.format("f16", "f16", ""), f"{WGMMA}.f16.f16.f16", ["accumulation f16"]),
        (DOT.format("f16", "f16", ""), "wmma.mma.sync.aligned.row.col.m16n16k16.f16.f16", ["accumulation f16"]),
        (DOT.format("f16", "f16", ", acc=f16"), f"{WGMMA}.f16.f16.f16", []),
        (DOT.format("f16", "f16", ""), "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32", []),
        (DOT.format("f32", "f32", ""), f"{WGMMA}.f32.bf16.bf16", ["compute type bf16"]),
        (DOT.format("f32", "f32", ""), f"{WGMMA}.f32.tf32.tf32", ["compute type tf32"]),
        (DOT.format("e4m3", "bf16", ""), f"{WGMMA}.f32.e5m2.e4m3", []),
        (DOT.format("s8", "i32", ""), f"{MMA}.s32.s8.s8.s32", []),
        (DOT.format("s8", "i32", ""), f"{MMA}.s32.s4.s4.s32", ["compute type s4"]),
        ("kernel k(x: f32[M, N]) -> f32[M] { return sum[N](x) }", f"{WGMMA}.f32.bf16.bf16", ["compute type bf16"]),
        ("kernel k(x: bf16[M, N]) -> f32[M] { return sum[N](x) }", f"{WGMMA}.f32.bf16.bf16", []),
    ],
)  # fmt: skip
def test_tensor_cores_below_the_program(text: str, instruction: str, lost: list[str]) -> None:
    assert losses(text, instruction) == lost


def test_words_that_are_no_instruction() -> None:
    ptx = "// mma.sync\n.visible .entry gemm.mma.f32\nwgmma.fence.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n"
    assert [i.name for i in tensor_instructions(ptx)] == ["mma.f32"]


STORE = "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group"


@pytest.mark.parametrize(
    ("instructions", "words"),
    [
        ((STORE, "fence.proxy.async.shared::cta"), ""),
        (("fence.proxy.async.shared::cta", "bar.sync", STORE, STORE), ""),
        (("fence.proxy.async.shared::cta", "bar.warp.sync", STORE), ""),
        (("bar.sync", "fence.proxy.async.shared::cta", STORE), "no barrier between them"),
        ((STORE, "fence.proxy.tensormap"), "no fence.proxy.async"),
        (("cp.reduce.async.bulk.global.shared::cta.bulk_group",), "no fence.proxy.async"),
        (("cp.async.bulk.shared::cluster.global", "mbarrier.init.shared::cta.b64"), "no fence.mbarrier_init"),
        (("mbarrier.init.shared::cta.b64", "fence.mbarrier_init.release.cluster"), ""),
        ((f"{WGMMA}.f32.bf16.bf16", "wgmma.fence.sync.aligned"), "no wgmma.wait_group"),
        ((f"{WGMMA}.f32.bf16.bf16", "wgmma.wait_group.sync.aligned"), "no wgmma.fence"),
        ((f"{WGMMA}.f32.bf16.bf16", "wgmma.wait_group.sync.aligned", "wgmma.fence.sync.aligned"), ""),
        (("cp.async.cg.shared.global",), "waits for no group"),
        (("cp.async.ca.shared.global", "cp.async.wait_group"), ""),
        (("// cp.async.ca.shared.global",), ""),
        (("add.f32",), ""),
    ],
)
def test_fences_that_instructions_need(instructions: tuple[str, ...], words: str) -> None:
    ptx = "".join(f"\t{name} %r1;\n" for name in instructions)
    if not words:
        fences.check(ptx)
        return
    with pytest.raises(SourceRefused, match=words) as refused:
        fences.check(ptx)
    assert refused.value.code == "fence"

"""What the text of a source shows: every emitted file passes, and each wrong edit falls by its own check."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sources import BY_HAND, ENTRY, source

from ucutlass import frontend
from ucutlass.adopt.refusals import REFUSALS, SourceRefused
from ucutlass.adopt.source import MOST_BYTES, checked, code_of, digest_of, read
from ucutlass.adopt.tokens import scan
from ucutlass.backend import source_of
from ucutlass.shapes import complete

PROGRAMS = {
    "gemm": (
        "kernel k(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return relu(dot[K](x, w)) }",
        {"M": 256, "N": 256, "K": 128},
    ),
    "fp8": (
        "kernel k(x: e4m3[M, K], w: e4m3[N, K]) -> bf16[M, N] { return dot[K](x, w) }",
        {"M": 256, "N": 256, "K": 128},
    ),
    "vector": ("kernel k(a: bf16[M, K], x: bf16[K]) -> f32[M] { return dot[K](a, x) }", {"M": 256, "K": 512}),
    "softmax": ("kernel k(x: f16[T, D]) -> f16[T, D] { return softmax[D](x) }", {"T": 64, "D": 1024}),
    "scan": ("kernel k(x: f32[T, D]) -> f32[T, D] { return cumsum[D](x) }", {"T": 64, "D": 70000}),
}


@pytest.mark.parametrize(
    ("name", "arch"),
    [(n, a) for n in PROGRAMS for a in ("sm90a", "sm80") if (n, a) != ("fp8", "sm80")],  # which has no fp8
)
def test_what_is_emitted_is_what_may_be_adopted(name: str, arch: str) -> None:
    text, sizes = PROGRAMS[name]
    checked_text = frontend.read_text(text)
    program = frontend.kernel(checked_text)
    planned = frontend.plan_kernel(checked_text, program, complete(program, sizes), arch).planned
    emitted = source_of(checked_text, program, planned)
    adopted = checked(emitted.text.encode(), emitted.arch)
    assert (adopted.text, adopted.code, adopted.entry, adopted.arch) == (
        emitted.text,
        emitted.code,
        emitted.entry,
        emitted.arch,
    )


def test_a_source_of_ones_own_passes_and_only_its_code_counts() -> None:
    assert source().entry == "ucc_by_hand"
    commented = source(f"// Mine.\n{BY_HAND}")
    assert digest_of(commented) == digest_of(source()) and commented.code == code_of(BY_HAND)
    assert digest_of(source(BY_HAND.replace("2.0f", "3.0f"))) != digest_of(source())


def line(text: str) -> Callable[[str], str]:
    """Puts a line before the entry."""
    return lambda whole: whole.replace(ENTRY, f"{text}\n{ENTRY}")


def instead(old: str, new: str) -> Callable[[str], str]:
    def edit(whole: str) -> str:
        assert old in whole
        return whole.replace(old, new)

    return edit


WRONG: dict[str, tuple[Callable[[str], str], str, str]] = {
    "another name": (instead("ucc_by_hand", "main"), "entry", "main is no entry's name"),
    "no C linkage": (instead('extern "C" ', ""), "entry", "no function of C linkage"),
    "two entries": (line('extern "C" int32_t ucc_b(void*) { return 0; }'), "entry", "stands 2 times"),
    "a block": (instead(ENTRY, f'extern "C" {{ {ENTRY}'), "entry", "stands 2 times"),
    "another result": (instead("int32_t ucc", "void ucc"), "entry", "not void ucc_by_hand"),
    "by a macro": (line('#define LINKAGE extern "C"'), "entry", "stands 2 times"),
    "fewer parameters": (instead(", void* stream", ""), "signature", "takes 6 parameters"),
    "more parameters": (instead("void* stream", "void* stream, int more"), "signature", "takes 8 parameters"),
    "another type": (
        instead("int64_t const* extents", "int const* extents"),
        "signature",
        "parameter 2 of ucc_by_hand is int const *, and extents is int64_t const *",
    ),
    "floats": (instead("double const*", "float const*"), "signature", "parameter 3"),
    "not const": (instead("void* const* tensors", "void** tensors"), "signature", "parameter 1"),
    "a declaration": (instead("void* stream) {", "void* stream);\nint f() {"), "signature", "its body"),
    "a path": (line('#include "/etc/passwd"'), "include", "/etc/passwd"),
    "a folder up": (line('#include "cutlass/../../secret.h"'), "include", "none of CuTe"),
    "a folder up in a library": (line('#include "cutlass/a/../../x.h"'), "include", "none of CuTe"),
    "another header": (line("#include <cstdlib>"), "include", "cstdlib"),
    "a header of ones own": (line('#include "mine.h"'), "include", "mine.h"),
    "a system header": (line("#include <sys/socket.h>"), "include", "sys/socket.h"),
    "a macro as header": (line("#define H <cstdlib>\n#include H"), "include", "names no header"),
    "behind a comment": (line("#/* */include/* */<cstdlib>"), "include", "cstdlib"),
    "over two lines": (line("#inc\\\nlude <cstdlib>"), "include", "cstdlib"),
    "behind blanks": (line("#inc\\  \nlude <cstdlib>"), "include", "cstdlib"),
    "by a digraph": (line("%:include <cstdlib>"), "include", "cstdlib"),
    "by a trigraph": (line("??=include <cstdlib>"), "directive", "trigraph ??="),
    "include_next": (line("#include_next <cstdint>"), "directive", "#include_next"),
    "import": (line("#import <cstdint>"), "directive", "#import"),
    "embed": (line('#embed "/etc/passwd"'), "directive", "#embed"),
    "has_include": (line('#if __has_include("/etc/passwd")\n#endif'), "directive", "__has_include"),
    "has_embed": (line("#if __has_embed(<x>)\n#endif"), "directive", "__has_embed"),
    "has_include in a macro": (line("#define T __has_include(<x>)"), "directive", "__has_include"),
    "line": (line('#line 1 "other.cu"'), "directive", "#line"),
    "a pragma that renames": (
        line("#pragma redefine_extname memcpy system"),
        "directive",
        "redefine_extname",
    ),
    "a pragma operator": (line('_Pragma("weak f")'), "directive", "_Pragma"),
    "a constructor": (
        line("__attribute__((constructor)) static void early() {}"),
        "startup",
        "the attribute constructor",
    ),
    "a destructor": (line("[[gnu::destructor]] static void late() {}"), "startup", "destructor"),
    "a priority": (line("__attribute__((__init_priority__(200))) static int x;"), "startup", "priority"),
    "a resolver": (line('__attribute__((ifunc("r"))) void f();'), "startup", "ifunc"),
    "incbin": (line('__asm__(".incbin \\"/etc/passwd\\"");'), "assembly", ".incbin"),
    "a system call": (line('inline void f() { asm volatile("syscall"); }'), "assembly", "syscall"),
    "an interrupt": (line('inline void f() { asm volatile("int $0x80"); }'), "assembly", "int $"),
    "a section": (line('__asm__(".pushsection .init_array");'), "assembly", ".pushsection"),
    "other code": (line("void f() { cuModuleLoadData(nullptr, nullptr); }"), "host-call", "cuModuleLoadData"),
    "other code by name": (line('char const* n = "cuModuleLoad";'), "host-call", "cuModuleLoad"),
    "an end": (instead("return 0;\n}", "exit(0);\n}"), "host-call", "exit ends"),
    "a raw string": (line('char const* n = R"(/*)";'), "literal", "without R"),
    "too large": (lambda whole: whole + " " * MOST_BYTES, "size", str(MOST_BYTES)),
    "a direction mark": (line("// \u202e"), "encoding", "U+202E"),
    "a control character": (line("// \x1b[2J"), "encoding", "U+001B"),
    "a lone carriage return": (line("// \r#include <cstdlib>"), "encoding", "U+000D"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_edit_is_refused_by_its_own_check(name: str, tmp_path: Path) -> None:
    edit, code, words = WRONG[name]
    file = tmp_path / "edited.cu"
    file.write_bytes(edit(BY_HAND).encode())
    with pytest.raises(SourceRefused) as refused:
        read(file)
    assert refused.value.code == code and words in refused.value.what, str(refused.value)
    assert REFUSALS[code] in str(refused.value)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "x.cu").write_bytes(BY_HAND.encode() + b"// \xff")
    with pytest.raises(SourceRefused, match=r"\(0xFF\) is not UTF-8"):
        read(tmp_path / "x.cu")
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none.cu")


def test_a_file_that_never_ends() -> None:
    with pytest.raises(SourceRefused, match="more than"):
        read(Path("/dev/zero"))


@pytest.mark.parametrize(
    "text",
    [
        "// #include <cstdlib>",
        "/*\n#include <cstdlib>\n*/",
        'char const* n = "#include <cstdlib> /*";',
        "constexpr int n = 1'000'000;",
        "constexpr char c = '\"';",
        "#pragma unroll 4",
        "#include <cuda_fp16.h> // halves",
        '#include "cute/arch/copy_sm90_tma.hpp"',
        "constexpr int exit_code = 1;",
        "int x = 7 % 3;",
    ],
)
def test_what_only_looks_like_it_passes(text: str) -> None:
    assert source(line(text)(BY_HAND)).entry == "ucc_by_hand"


def test_lines_are_those_of_the_file() -> None:
    tokens, directives = scan("int a; \\\n int b;\n/*\n\n*/ int c;\n#define D 1\nint e;\n")
    lines = {token.text: token.line for token in tokens if token.kind == "name"}
    assert [lines[name] for name in "ace"] == [1, 5, 7]
    assert [(d.name, d.line) for d in directives] == [("define", 6)]

"""A kernel's file divided into the side of NVRTC and that of the host's compiler."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from tests.emit.divided_kernels import KERNELS, source
from ucutlass.emit.declarations import (
    Block,
    Declaration,
    FunctionDefinition,
    Lexeme,
    PreprocessorLine,
    Statement,
    declarations,
    written,
)
from ucutlass.emit.division import divide
from ucutlass.emit.parts import NotServed
from ucutlass.emit.text import Source

FILE = """\
#include <algorithm>
#include "cutlass/half.h"
#if 1
#define PLACE(x) \\
  x
#endif
namespace ucc_0123456789abcdef_kernel {  // one { of its own
namespace {
constexpr int kTile = 16, kSteps[] = {1, 2};
using Encode = CUresult (*)(CUtensorMap*);
enum class Pass { kWhole, kPartial };
struct Params { int64_t m; CUtensorMap map; __device__ int row() const { return 1; } bool fits() const { return std::max(m, m) > 0; } };
__shared__ int counters[4];
constexpr int twice(int x) { return 2 * x; }
__host__ __device__ inline int both(int x) { return '{' + x; }
template <class T, int kCount = 1>
__device__ T load(T const* p) { asm volatile("ld } %0;" : "=r"(*p)); return *p; }
__global__ void __launch_bounds__(kTile, 2) plain(__grid_constant__ Params const p) { counters[0] = p.row(); }
template <Pass kPass, class T>
__global__ void many(Params p, int (&x)[2]) { load(&p.m); }
int launch(Params p) { return cudaLaunch(many<Pass::kWhole, Pair<int, int>>) + cudaLaunch(many<Pass::kWhole, Pair<int, int>>); }
}  // namespace
}  // namespace ucc_0123456789abcdef_kernel
extern "C" int32_t ucc_0123456789abcdef(void* stream) { return ucc_0123456789abcdef_kernel::launch({}); }
"""


def whole(text: str = FILE) -> Source:
    return Source(text=text, code=text, entry="ucc_0123456789abcdef", arch="sm_90a")


def test_each_definition_is_on_its_sides() -> None:
    sides = divide(whole())
    of_device = ("row() const", "counters[4]", "load(T const* p)", "counters[0] = p.row()")
    of_host = ("fits() const", "Encode", "int launch(", 'extern "C" int32_t ucc_')
    of_both = (
        "kSteps[] = {1, 2};",
        "enum class Pass",
        "twice(int x)",
        "both(int x)",
        "int64_t m;",
        "PLACE(x) \\\n  x",
    )
    for words in of_device + of_both:
        assert sides.device.count(words) == 1, words
    for words in of_host + of_both:
        assert sides.host.count(words) == 1, words
    assert not [words for words in of_host if words in sides.device]
    assert not [words for words in of_device if words in sides.host]
    assert sides.kernels == ("plain", "many<Pass::kWhole, Pair<int, int>>")


def test_kernels_are_empty_functions_of_the_host() -> None:
    host = divide(whole()).host
    assert "void  plain( Params const p) {}" in host
    assert "template <Pass kPass, class T>\n void many(Params p, int (&x)[2]) {}" in host
    assert "ucc_register_kernel(1, &many<Pass::kWhole, Pair<int, int>>);" in host


def test_the_host_includes_no_elements() -> None:
    sides = divide(whole())
    assert '"cutlass/half.h"' in sides.device and '"cutlass/half.h"' not in sides.host
    assert "<algorithm>" in sides.host


@pytest.mark.parametrize(
    "source",
    [
        replace(whole(), arch="sm_80"),
        replace(whole(), in_parts=True),
        whole(f'#include "collective_builder.hpp"\n{FILE}'),
    ],
)
def test_other_kernels_are_not_served(source: Source) -> None:
    with pytest.raises(NotServed, match="none of CUTLASS's collectives"):
        divide(source)


@pytest.mark.parametrize("cut", [");", "}  // namespace\n", "{ return 2"])
def test_brackets_that_do_not_match_are_refused(cut: str) -> None:
    with pytest.raises(NotServed, match="brackets"):
        divide(whole(FILE.replace(cut, "", 1)))


def test_the_tree_of_declarations_has_the_whole_text() -> None:
    def tokens(tree: Iterable[Declaration]) -> Iterator[Lexeme]:
        for declaration in tree:
            match declaration:
                case PreprocessorLine(line):
                    yield line
                case Statement(words):
                    yield from words
                case FunctionDefinition(head, body):
                    yield from (*head, *body)
                case Block(opening, members, closing):
                    yield from (*opening, *tokens(members), *closing)

    assert bare(written(tokens(declarations(FILE)))) == bare(FILE)


def test_kernels_are_found_however_their_heads_are_laid_out() -> None:
    head = "  __global__ void\n  __launch_bounds__(kMost(1, 2)) __maxnreg__(64)\n  indented(\n    Params const p)\n"
    sides = divide(whole(FILE.replace("int launch(", f"{head}  {{ load(&p.m); }}\nint launch(", 1)))
    assert sides.kernels == ("plain", "many<Pass::kWhole, Pair<int, int>>", "indented")
    assert "indented( Params const p) {}" in " ".join(sides.host.split())


@pytest.mark.parametrize("name", KERNELS)
def test_every_kind_of_kernel_is_divided(name: str) -> None:
    """No definition is lost, and none of the device's is left to the host."""
    kernel = source(name)
    sides = divide(kernel)
    assert len(sides.kernels) >= kernel.code.count("__global__") > 0 or "template" in kernel.code
    assert "__global__" not in sides.host and "asm volatile" not in sides.host
    assert not re.search(r"\bcuda(Error|Stream|Launch|Get|Func)", sides.device)
    device, host = bare(sides.device), bare(sides.host)
    for line in kernel.code.splitlines():
        if not line.startswith(("#include", "__global__")):
            assert bare(line) in device or bare(line) in host, line


def bare(text: str) -> str:
    """The text without comments and space."""
    return "".join(re.sub(r"//[^\n]*", "", text).split())

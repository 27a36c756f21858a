"""Texts of at most 64 KB that once took minutes, gigabytes or a traceback: each command ends soon, in a
result or in a diagnostic that names the limit. The bounds are generous; `tests/fuzz/fuzz.py` has the real
ones."""

from __future__ import annotations

import re
import resource
import time
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.check.limit_programs import CONDITIONS, READINGS
from tests.fuzz import fuzz
from ucutlass import frontend, limits
from ucutlass.cli import main
from ucutlass.cli.cpu_limit import cpu_limited
from ucutlass.diagnostics import ProgramError

BYTES = 1 << 30

_HEAD = "kernel k(x: f32[M, N]) -> f32[M, N] { "
_GEMM = "kernel k(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return dot[K](x, w) "
_BLOCK = "schedule sm90a {{ {} }} }}"
_MN, _MNK = "M=64,N=64", "M=4096,N=4096,K=4096"


def _twice(first: str, step: str, levels: int) -> str:
    functions = "".join(f"fn g{i}(x) = {step.format(f'g{i - 1}')}\n" for i in range(1, levels))
    return f"fn g0(x) = {first}\n{functions}{_HEAD}return g{levels - 1}(x) }}"


def _bound(step: str, count: int) -> str:
    lines = "".join(f"s{i} = {step.format(f's{i - 1}', i)}\n" for i in range(1, count))
    return f"{_HEAD}s0 = x\n{lines} return s{count - 1} }}"


def _pipeline(stages: int, type_: str) -> str:
    dims = "A, B, C, D, E, F"
    lines = "".join(f" h{i}: {type_} = relu({f'h{i - 1}' if i else 'x'}) + 1\n" for i in range(stages))
    return f"pipeline p(x: bf16[{dims}]) -> bf16[{dims}] {{\n{lines} return h{stages - 1} + 1 }}"


def _extents(step: str, first: str, backwards: bool) -> str:
    names = [first, *(f"D{i}={step.format(f'D{i - 1}')}" for i in range(1, 60))]
    axes = ", ".join(names[::-1] if backwards else names)
    return f"kernel k(x: f32[{axes}]) -> f32[D0] {{ return sum[D1](x) }}"


_SIX = "A=8,B=8,C=8,D=8,E=8,F=8"
_TILES = " or ".join(f"{64 * m}x{16 * n}x64" for m in range(1, 5) for n in range(1, 17))
_DEEP = "fn g0(x) = x + 1\n" + "".join(
    f"fn g{i}(x) = {'+'.join(f'g{i - 1}(x + {j})' for j in range(60))}\n" for i in range(1, 30)
)

OFFENDERS: dict[str, tuple[str, str]] = {
    "functions that call each other twice": (_twice("x * x + 1", "{0}(x) * {0}(x)", 30), _MN),
    "with other arguments": (_twice("x * x + 1", "{0}(x) * {0}(x + 1)", 30), _MN),
    "with a mistake at the bottom": (_twice("dot(x)", "{0}(x) * {0}(x)", 30), _MN),
    "with ever more arguments": (_twice("x", "{0}(x + 1) * {0}(x * 2)", 30), _MN),
    "functions deep inside expressions": (f"{_DEEP}{_HEAD}return g29(x) }}", _MN),
    "a chain of functions": (_twice("x", "{0}(x)", 2600), _MN),
    "unknown names": (f"{_HEAD}{''.join(f'y{i} = z{i} ' for i in range(4500))} return x }}", _MN),
    "unknown arguments": (f"fn f(x) = {'+'.join(f'a{i}' for i in range(90))}\n{_HEAD}return f(x) }}", _MN),
    "millions of alternatives": (
        _GEMM
        + _BLOCK.format(
            f"tile {_TILES}  stages 2 or 3 or 4 or 5  swizzle 1 or 2 or 4 or 8  "
            "raster along_m or along_n  split_k 1 or 2 or 3 or 4"
        ),
        _MNK,
    ),
    "illegal alternatives": (
        _GEMM + _BLOCK.format(f"tile {' or '.join(f'{i}x7x64' for i in range(1, 250))}"),
        _MNK,
    ),
    "guards that never hold": (
        _GEMM + "".join(f"schedule sm90a when M * N % 7 == 6 + {i} {{}} " for i in range(60)) + "}",
        _MNK,
    ),
    "thousands of guards": (
        _GEMM + "".join(f"schedule sm90a when M <= {i} {{}} " for i in range(1700)) + "}",
        _MNK,
    ),
    "thousands of parameters": (
        f"kernel k({', '.join(f'x{i}: f32[M]' for i in range(3000))}) -> f32[M] {{ return x0 }}",
        "M=64",
    ),
    "requirements that never hold": (
        f"{_HEAD}{''.join(f'require M * N % {i + 13} == 1 ' for i in range(1500))} return x }}",
        _MN,
    ),
    "orders of six axes": (_pipeline(12, "bf16"), _SIX),
    "orders of sixty buffers": (_pipeline(60, "bf16"), _SIX),
    "two thousand stages": (_pipeline(1500, "bf16"), _SIX),
    "extents doubled": (_extents("{0}+{0}", "D0", False), "D0=1"),
    "extents doubled backwards": (_extents("{0}+{0}", "D0=1", True), ""),
    "extents squared": (_extents("{0}*{0}", "D0=1000000", False), ""),
    "a chain of extents": (
        f"kernel k(x: f32[D0, {', '.join(f'D{i}=D{i - 1}+1' for i in range(1, 2500))}]) -> f32[D0] "
        "{ return sum[D1](x) }",
        "D0=1",
    ),
    "many axes in two orders": (
        "kernel k(x: f32[{0}], y: f32[{1}]) -> f32[{0}] {{ return x + y }}".format(
            ", ".join(f"D{i}" for i in range(60)), ", ".join(f"D{i}" for i in reversed(range(60)))
        ),
        ",".join(f"D{i}=1" for i in range(60)),
    ),
    "a composite axis of huge parts": (
        f"kernel k(x: f32[({' '.join(f'D{i}=2147483647' for i in range(60))})]) -> f32[M=1] {{ return 1 }}",
        "",
    ),
    "a strided window over a long axis": (
        "kernel k(x: f16[N, H, C], w: f16[K, R=3, C]) -> f16[N, P=2*H, K] "
        "{ return dot[R, C](x[2*H = P + 1 - R], w) }",
        "N=1,H=100000000,C=8,K=8",
    ),
    "masks with remainders": (
        "kernel k(x: f32[H, W]) -> f32[H] "
        "{ return sum[W](where(index(W) * 3 % 1000 <= index(H) * 7 % 771, x, 0)) }",
        "H=1000000,W=1000000",
    ),
    "masks over three axes": CONDITIONS[:2],
    "reads of reads": (_bound("{0}[M = M - 1] + {0}", 90), _MN),
    "reads of reads at two places": (READINGS, "M=64"),
    "values used twice": (_bound("{0} * {0} + 1", 95), _MN),
    "gathers of gathers": (
        "kernel k(x: f32[M, N], i: i32[M]) -> f32[M] { s0 = i\n"
        + "".join(f"s{j} = i[M = s{j - 1}]\n" for j in range(1, 60))
        + "return x[N = s59] }",
        _MN,
    ),
    "kernels": ("".join(f"kernel k{i}(x: f32[M]) -> f32[M] {{ return x }}\n" for i in range(1400)), "M=4"),
    "a huge position": (
        f"kernel k(x: f32[A]) -> f32[B] {{ return x[A = {'*'.join(['9223372036854775807'] * 60)} * B] }}",
        "A=4",
    ),
    "a huge number": (f"{_HEAD}return x * {'9' * 60_000} }}", _MN),
    "a long name": (f"kernel k({'x' * 30_000}: f32[M]) -> f32[M] {{ return {'x' * 30_000} }}", "M=4"),
}


COSTLY = {
    "requirements that never hold",
    "two thousand stages",
    "masks with remainders",
    "with ever more arguments",
    "thousands of guards",
    "many axes in two orders",
    "reads of reads at two places",
}
"""Those that take long and of whose kind a cheaper one stays quick."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in COSTLY else name for name in OFFENDERS]
)
def test_every_command_ends_soon(name: str, tmp_path: Path) -> None:
    text, sizes = OFFENDERS[name]
    assert len(text) <= fuzz.LARGEST
    path = tmp_path / "k.ucu"
    path.write_text(text)
    _ends("fmt", path, "--check")
    _ends("check", path)
    with suppress(ProgramError):  # what has no meaning is refused by each command in the same way
        frontend.read(path)
        for command in ("explain", "emit", "sol"):
            _ends(command, path, *(["-s", sizes] if sizes else []))


def _ends(command: str, path: Path, *text: str) -> None:
    before, start = _peak(), time.process_time()
    result = CliRunner().invoke(main, [command, str(path), *text], catch_exceptions=False)
    assert time.process_time() - start < fuzz.HANG_SECONDS
    assert _peak() - before < BYTES
    if result.exit_code and command != "fmt":
        assert set(re.findall(r"\[(UC\d{4})\]", result.output)) <= fuzz.KNOWN
        assert "[UC" in result.output
    assert len(result.output) < 2_000_000


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def test_what_takes_longer_than_all_limits_foresee_is_stopped_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "k.ucu"
    path.write_text("kernel k(x: f32[M]) -> f32[M] { return x }")
    with pytest.raises(ProgramError) as caught, cpu_limited(path, 0.05):
        while True:
            pass
    (found,) = caught.value.diagnostics
    assert found.code == "UC0719" and "s of processor time" in found.message


def test_masks_that_are_not_followed_are_named(tmp_path: Path) -> None:
    path = tmp_path / "k.ucu"
    path.write_text(CONDITIONS[0])
    result = CliRunner().invoke(main, ["sol", str(path), "-s", CONDITIONS[1]])
    assert result.exit_code == 1 and "[UC0709]" in result.output and ":1:8: error" in result.output


def test_the_pages_list_every_limit() -> None:
    page = Path(__file__).parent.parent.parent / "docs" / "language.md"
    sentence = re.search(
        r"\[Limits\]\(diagnostics\.md#limits-of-the-compiler\) \((.*?)\)", page.read_text(encoding="utf-8")
    )
    assert sentence
    diagnostics = page.with_name("diagnostics.md").read_text(encoding="utf-8")
    known = {limit.code for limit in vars(limits).values() if isinstance(limit, limits.Limit)}
    assert known <= set(re.findall(r"UC\d{4}", sentence[1])) | set(
        re.findall(r"### (UC07\d{2})", diagnostics)
    )

"""The device library of Hopper kernels: every function that an emitted kernel defines, it defines once and calls."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

import pytest

from tests.kernels.convolution_programs import PROGRAMS as CONVOLUTIONS
from tests.kernels.grouped_gemm_programs import GROUPED_GEMMS
from tests.programs_attention import PROGRAMS as ATTENTION
from tests.programs_attention import text as attention_text
from ucutlass import frontend
from ucutlass.emit import emit
from ucutlass.emit.environment import FOLDER
from ucutlass.emit.gemm.lean import lean
from ucutlass.kernels.gemm.plan import GemmPlan
from ucutlass.shapes import complete, free_dims

_DEFINED = re.compile(r"__device__ __forceinline__ [\w ]+? (\w+)\(")

_SIZES = {"B": 2, "H": 3, "G": 2, "L": 197, "S": 333, "E": 128, "O": 9}
_CONVOLUTIONS: Mapping[str, Mapping[str, int]] = {
    "f16 strided": {"N": 5, "H": 57, "W": 41, "C": 64, "K": 200},
    "weight gradient": {"N": 8, "H": 28, "W": 23, "C": 64, "K": 128},
    "one dimension": {"N": 5, "L": 331, "C": 128, "K": 72},
    "data gradient": {"N": 4, "P": 17, "Q": 14, "K": 96, "C": 64},
}
_GEMM = "kernel k(x: f16[M, K], w: f16[N, K], r: f16[M, N]) -> f16[M, N] { return gelu(dot[K](x, w)) + r }"


def _code(text: str, sizes: Mapping[str, int]) -> str:
    checked = frontend.read_text(text)
    kernel = frontend.kernel(checked)
    extents = complete(kernel, {name: sizes[name] for name in free_dims(kernel)})
    plan = frontend.plan_kernel(checked, kernel, extents, "sm90a").planned.plan
    return lean(plan).device.code if isinstance(plan, GemmPlan) else emit(plan, "").code


def _programs() -> list[tuple[str, str, Mapping[str, int]]]:
    attention = [(f"attention {name}", attention_text(name, "bf16", 64), _SIZES) for name in ATTENTION]
    split = ("attention in parts", attention_text("plain", "f16", 128), {**_SIZES, "L": 5, "S": 9000})
    convolutions = [(name, CONVOLUTIONS[name][0], sizes) for name, sizes in _CONVOLUTIONS.items()]
    products = [(name, p.text, p.large[0]) for name, p in GROUPED_GEMMS.items()]
    return [*attention, split, *convolutions, *products, ("gemm", _GEMM, {"M": 512, "N": 512, "K": 512})]


@pytest.mark.parametrize(
    ("text", "sizes"), [pytest.param(text, sizes, id=name) for name, text, sizes in _programs()]
)
def test_a_kernel_holds_only_functions_that_it_calls(text: str, sizes: Mapping[str, int]) -> None:
    code = re.sub(r"//.*", "", _code(text, sizes))
    names = Counter(_DEFINED.findall(code))
    assert [name for name, count in names.items() if count > (2 if name == "wgmma" else 1)] == []
    for name, count in names.items():
        assert len(re.findall(rf"\b{name}(?:<[\w *]+>)?\(", code)) > count, name


def test_the_instructions_of_a_warp_group_are_written_nowhere_else() -> None:
    instructions = re.compile(
        r"wgmma\.(?:mma_async|fence|commit|wait)|mbarrier\.\w+[.\w]*\.b64|(?:ld|st)matrix\.sync|setmaxnreg\.(?:inc|dec)|"
        r"cp\.async\.bulk|griddepcontrol\.(?:wait|launch)|fence\.(?:proxy|mbarrier)"
    )
    outside = [
        path.relative_to(FOLDER).as_posix()
        for path in sorted(FOLDER.rglob("*.j2"))
        if path.parent.name != "hopper" and instructions.search(path.read_text(encoding="utf-8"))
    ]
    assert outside == []

"""Attention for Hopper: TMA, wgmma, a producer warp group, and two or three consumer warp groups that alternate.

The structure is FlashAttention-3's (Shah et al., arXiv 2407.08608): the softmax of one block of keys overlaps the
product of the block before with its values, and warp groups alternate between the tensor cores and the softmax. The
base of a row's exponentials is replaced only where its highest score has grown by more than 2**8, so that outputs are
seldom rescaled. The templates are `attention/attention.cu.j2` and `attention/host.j2`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ucutlass.emit import text
from ucutlass.emit.arithmetic import INCLUDES, ArithmeticText, arithmetic, kind_of
from ucutlass.emit.attention.maps import copies, maps
from ucutlass.emit.definitions import require_definitions
from ucutlass.emit.functions import CPP
from ucutlass.emit.gemm import sm80_epilogue as epilogue
from ucutlass.emit.text import product
from ucutlass.ir.elements import BOOL
from ucutlass.ir.extents import Combined, Extent, Fixed, Free
from ucutlass.kernels.access import Access
from ucutlass.kernels.attention.plan import (
    AttentionPlan,
    AttentionProblem,
    AttentionSchedule,
    ExtentNumber,
    Number,
    Packed,
    Relative,
    ScoreCall,
    columns_at_once,
    is_tf32,
    padded,
    splits_f32,
)
from ucutlass.kernels.attention.smem import query_stages
from ucutlass.kernels.gemm.plan import GemmProblem

_INCLUDES = ("<algorithm>", "<atomic>", "<cmath>", "<cstdint>", "<cstring>", "<cuda.h>", "<cuda_runtime.h>")


@dataclass(frozen=True, slots=True)
class ThreadTensor:
    """A tensor that threads address themselves; strides in C++."""

    cpp: str
    pointer: int
    m: str
    n: str
    batch: tuple[str, ...]
    value: str


def render(plan: AttentionPlan) -> str:
    """The code of a plan, for `ucutlass.emit.text.finish`."""
    p, s = plan.problem, plan.schedule
    score = None if p.factor is not None else arithmetic(p.scores)
    boxed = p.plain and not s.split
    result = None if boxed else arithmetic(p.results)
    batch = tuple(product(extent) for extent in p.scores.batch) or ("1",)
    operands = maps(p, s)
    modes = {m.name: m.modes for m in operands}
    return text.render(
        f"attention/{'tf32' if is_tf32(p) else 'attention'}.cu.j2",
        includes=_includes(score, result),
        **_shape(p, s),
        groups=s.groups,
        keys=s.keys,
        stages=s.stages,
        boxed=boxed,
        split=s.split,
        batch_modes=len(batch),
        compute_type=p.compute_type.name,
        result_type=p.results.outputs[0].access.elem.name,
        above=[_extent(e) for e in p.above],
        below=[_extent(e) for e in p.below],
        factor=_number(p.factor) if p.factor is not None else "1.0",
        score=score,
        result=result,
        score_inputs=[_slot(a) for a in p.scores.inputs],
        result_inputs=[_slot(a) for a in p.results.inputs],
        outputs=[_slot(o.access) for o in p.results.outputs],
        score_body=_score_body(p.scores, score) if score else "",
        result_body=_result_body(p.results, result) if result and not s.split else "",
        combine_body=_combine_body(p.results, result) if result and s.split else "",
        **_positions(p),
        **_packed(p.packed),
        ranks=sorted({2 + len(m.modes) for m in operands if m.name != "o"}),
        o_rank=2 + len(modes.get("o", ())),
        q_modes=modes["q"],
        k_modes=modes["k"],
        v_modes=modes["v"],
        o_modes=modes.get("o", ()),
        registers=_registers(s.groups, p.packed is not None),
        rows=product(p.scores.m),
        key_count=product(p.scores.n),
        columns=product(p.results.n),
        batch=batch,
        maps=operands,
        copies=copies(p),
        dims=p.dims,
        pointers=p.pointers,
        scalars=p.scalars,
        fixed=[(product(p.scores.k[0]), p.head), (product(p.results.n), p.head_v)],
    )


def _shape(p: AttentionProblem, s: AttentionSchedule) -> dict[str, Any]:
    """The head as the kernel takes it, and what of shared memory depends on it."""
    if is_tf32(p):
        piece = columns_at_once(p)
        head_v = -(-p.head_v // piece) * piece
        return {
            "head": -(-p.head // 8) * 8,
            "head_v": head_v,
            "piece": piece,
            "split_f32": splits_f32(p),
            "ahead": s.ahead,
        }
    stages_q = query_stages(p, s)
    return {
        "head": padded(p.head),
        "head_v": padded(p.head_v),
        "stages_q": max(1, stages_q),
        "shares_q": stages_q == 0,
        "across": s.across and stages_q > 1,
    }


def _registers(groups: int, packed: bool) -> tuple[int, int]:
    """Returns the registers of a producer thread and of a consumer thread. Packed sequences need more in the producer."""
    if packed:
        return (40, 232) if groups < 3 else (56, 152)
    return {1: (40, 232), 2: (24, 240), 3: (32, 160)}[groups]


def _includes(*texts: ArithmeticText | None) -> list[str]:
    mine = list(_INCLUDES)
    mine += [i for i in INCLUDES if any(texts) and i not in mine]
    return [i if i.startswith("<") else f'"{i}"' for i in mine]


def _positions(p: AttentionProblem) -> dict[str, Any]:
    """What the templates ask of windows: whether positions matter, where they are found, and whether groups
    of a tile skip blocks of their own."""
    windows = bool(p.above or p.below) and p.packed is None
    query_position = p.query_position if windows else None
    fields = {
        "windows": windows,
        "query_position": query_position,
        "skips": bool(p.above) and query_position is None,
    }
    if query_position is None:
        return fields
    return fields | {
        "position_inner": product(query_position.inner),
        "position_extent": product(query_position.extent),
    }


def _packed(packed: Packed | None) -> dict[str, Any]:
    if packed is None:
        return {"packed": None, "relative_above": (), "relative_below": ()}
    sides = {"q": packed.q, "k": packed.k}
    return {
        "packed": {side: offsets.elem.cpp for side, offsets in sides.items()},
        "starts_at": {side: offsets.pointer for side, offsets in sides.items()},
        "sequences": {side: f"({_extent(offsets.count)} - 1)" for side, offsets in sides.items()},
        "relative_above": packed.above,
        "relative_below": packed.below,
        "starts": _starts,
        "extent": _extent,
    }


def _starts(limit: Relative) -> str:
    """What a limit adds of the offsets, in C++ where `e` is the row's sequence."""
    terms = (f" + {n} * int64_t(__ldg(p.cu_seqlens_{side} + e + {after}))" for side, after, n in limit.starts)
    return "".join(terms)


# --- tensors -----------------------------------------------------------------------


def _slot(a: Access) -> ThreadTensor:
    cpp = "uint8_t" if a.elem is BOOL else a.elem.cpp
    batch = epilogue.batch_strides(a)
    return ThreadTensor(
        cpp, a.pointer, epilogue.stride(a.m), epilogue.stride(a.n), batch, CPP[kind_of(a.elem)]
    )


# --- numbers of a launch -----------------------------------------------------------


def _extent(extent: Extent) -> str:
    """An extent as C++ over the entry's array."""
    match extent:
        case Fixed(value):
            return f"int64_t({value})"
        case Free(position):
            return f"e[{position}]"
        case Combined("//" | "%" as op, left, right):
            return f"{'floor_divide' if op == '//' else 'modulo'}({_extent(left)}, {_extent(right)})"
        case Combined(op, left, right):
            return f"({_extent(left)} {op} {_extent(right)})"


_CALLS = {
    "add": "({} + {})",
    "subtract": "({} - {})",
    "multiply": "({} * {})",
    "divide": "({} / {})",
    "negate": "(-{})",
    "sqrt": "std::sqrt({})",
    "rsqrt": "(1.0 / std::sqrt({}))",
    "exp": "std::exp({})",
    "log": "std::log({})",
}


def _number(number: Number) -> str:
    """A number as C++, in double."""
    match number:
        case ExtentNumber(extent):
            return f"double({_extent(extent)})"
        case ScoreCall(function, args):
            return _CALLS[function].format(*(_number(a) for a in args))
        case float():
            return number.hex() if math.isfinite(number) else f"double({'-' if number < 0 else ''}INFINITY)"


# --- the score's and the result's functions ----------------------------------------


def _offset(name: str, a: Access) -> str:
    modes = [i for i, stride in enumerate(a.batch) if stride is not None]
    return " + ".join(f"tile.batch[{i}] * p.{name}.batch[{i}]" for i in modes) or "0"


def _widened(name: str, a: Access) -> str:
    if a.elem is BOOL:
        return f"{name} != 0"
    if a.elem.kind == "float":
        return f"float({name})"
    return name


def _loads(prefix: str, inputs: tuple[Access, ...], rows: str, columns: str) -> tuple[list[str], list[str]]:
    """Lines that point at a row of each operand, and expressions that read its element in column `at`."""
    lines, values = [], []
    for i, a in enumerate(inputs):
        name = f"{prefix}{i}"
        row = f" + int64_t(min(m, {rows} - 1)) * p.{name}.row" if a.m is not None else ""
        lines.append(f"    auto const* const from{i} = p.{name}.data + ({_offset(name, a)}){row};")
        column = f"int64_t(min(n_at, {columns} - 1)) * p.{name}.column" if a.n is not None else "0"
        values.append(_widened(f"from{i}[{column}]", a))
    return lines, values


def _defined(lines: Sequence[str]) -> str:
    """The lines as text, each of which reads only what one before it defines."""
    require_definitions(lines)
    return "\n".join(lines)


def _score_body(problem: GemmProblem, arithmetic: ArithmeticText) -> str:
    lines, values = _loads("score_in", problem.inputs, "p.rows", "p.keys")
    batch = [f"tile.batch[{i}]" for i in range(arithmetic.batch)]
    call = arithmetic.call("p.score", ["m", "n_at", *batch], "s[at]", values, ["s[at]"])
    return _defined(
        [
            "#pragma unroll",
            "  for (int r = 0; r < 2; ++r) {",
            "    int const m = row + 8 * r;",
            *lines,
            "#pragma unroll",
            "    for (int i = 0; i < kScores / 2; ++i) {",
            "      int const at = i / 2 * 4 + r * 2 + i % 2, n_at = n * kTileN + column + column_of(at);",
            f"      score::{call};",
            "    }",
            "  }",
        ]
    )


def _result_parts(problem: GemmProblem, arithmetic: ArithmeticText) -> tuple[list[str], list[str]]:
    """What is read and pointed at before a row's outcomes, and what is done with each."""
    lines, values = _loads("result_in", problem.inputs, "p.rows", "p.columns")
    batch = [f"tile.batch[{i}]" for i in range(arithmetic.batch)]
    outs = [f"out{j}" for j in range(len(problem.outputs))]
    call = arithmetic.call("p.result", ["m", "n_at", *batch], "o[at]", values, outs)
    pointed, stores = _targets(problem)
    declared = [f"      {CPP[kind]} out{j};" for j, kind in enumerate(arithmetic.outputs)]
    return [*lines, *pointed], [*declared, f"      result::{call};", *stores]


def _result_body(problem: GemmProblem, arithmetic: ArithmeticText) -> str:
    before, each = _result_parts(problem, arithmetic)
    return _defined(
        [
            "#pragma unroll",
            "  for (int r = 0; r < 2; ++r) {",
            "    int const m = row + 8 * r;",
            "    if (m >= p.rows) continue;",
            *before,
            "#pragma unroll",
            "    for (int i = 0; i < kOutputs / 2; ++i) {",
            "      int const at = i / 2 * 4 + r * 2 + i % 2, n_at = column + column_of(at);",
            "      if (n_at >= p.columns) continue;",
            *each,
            "    }",
            "  }",
        ]
    )


def _combine_body(problem: GemmProblem, arithmetic: ArithmeticText) -> str:
    """Writes what `_result_body` does, for the one row m whose outcomes a warp has."""
    before, each = _result_parts(problem, arithmetic)
    return _defined(
        [
            *before,
            "#pragma unroll",
            "  for (int at = 0; at < 4 * kColumnGroups; ++at) {",
            "    int const n_at = at / 4 * 128 + 4 * lane + at % 4;",
            "    if (n_at >= p.columns) continue;",
            *each,
            "  }",
        ]
    )


def _targets(problem: GemmProblem) -> tuple[list[str], list[str]]:
    """Lines that point at a row of each result, and statements that store to its column `n_at`."""
    pointed, stores = [], []
    for j, output in enumerate(problem.outputs):
        a = output.access
        pointed.append(
            f"    auto* const to{j} = p.out{j}.data + ({_offset(f'out{j}', a)}) + int64_t(m) * p.out{j}.row;"
        )
        stores.append(f"      to{j}[int64_t(n_at) * p.out{j}.column] = {_narrowed(f'out{j}', a)};")
    return pointed, stores


def _narrowed(name: str, a: Access) -> str:
    if a.elem is BOOL:
        return f"{name} ? 1 : 0"
    if a.elem.kind == "float":
        return f"cutlass::NumericConverter<{a.elem.cpp}, float>::convert({name})"
    return f"{a.elem.cpp}({name})"

"""Rules on the operands: compute types, modes, memory orders, alignment, extents."""

from __future__ import annotations

from ucutlass.kernels.access import Access, Reduction
from ucutlass.kernels.arithmetic import CoordinateValue
from ucutlass.kernels.gemm.plan import COOPERATIVE_MATHS, GemvSchedule, Sm80Schedule, Sm90Schedule
from ucutlass.kernels.gemm.problem import ceil_div, stride_bytes
from ucutlass.kernels.gemm.schedule import (
    TMA_BYTES,
    GemmCandidate,
    changed,
    multistage,
    nearest,
    tma_alignable,
)
from ucutlass.kernels.gemm.smem import lean_alone, least_lean_epilogue
from ucutlass.kernels.rule import Breach

TURNED = 32
"""Elements along N and K that a warp turns at a time: lines of 128 bytes of tf32 either way (emit/gemm/lean_turned.j2)."""

TURNED_N = tuple(range(TURNED, 256 + 1, TURNED))

TURNED_STAGES = 3
"""Of a ring in which one stage is turned while another one is multiplied."""

WGMMA_TYPES = frozenset({"f16", "bf16", "tf32", "f32", "e4m3", "e5m2", "s8"})

WGMMA_K_MAJOR = frozenset({"e4m3", "e5m2", "s8"})
"""The launch that splits f32 operands copies them K-major."""

MOST_BYTES_F32 = 4
"""Of an element in the epilogue of f32's wgmma kernel (emit/gemm/lean.py)."""

INT32 = 2**31 - 1

TMA_STRIDE = 2**40
"""A TMA stride in bytes lies below this (cuTensorMapEncodeTiled)."""


def arch_has_family(c: GemmCandidate) -> Breach | None:
    if c.family != "sm90" or c.arch.wgmma:
        return None
    return Breach(
        f"pingpong and cooperative need TMA and wgmma, which {c.arch.name} lacks",
        "use `warps multistage`, or build for sm90a",
        ("warps",),
        multistage(c),
    )


def compute_type_has_kernel(c: GemmCandidate) -> Breach | None:
    compute_type = c.problem.compute_type.name
    if compute_type not in WGMMA_TYPES:
        return Breach(
            f"wgmma does not multiply {compute_type}",
            "use `warps multistage`, or cast the operands to tf32",
            ("warps",),
            multistage(c),
        )
    limit = _beyond_lean(c) if lean_alone(c.problem) else ""
    if not limit:
        return None
    return Breach(
        f"{_LEAN_ALONE[compute_type]} by wgmma: {limit}", "use `warps multistage`", ("warps",), multistage(c)
    )


_LEAN_ALONE = {"f32": "f32", "tf32": "tf32 across K"}
"""Operands that a kernel of our own multiplies alone, as messages call them."""


def _beyond_lean(c: GemmCandidate) -> str:
    """What a kernel of our own lacks that serves alone: for other operands CUTLASS's collectives do that."""
    if (modes := len(c.problem.batch)) > 1:
        return f"the batch names stay {modes} separate modes, and the kernel iterates over one"
    stored = (o.access for o in c.problem.outputs if not isinstance(o, Reduction))
    elements = (access.elem for access in (*c.problem.inputs, *stored))
    wide = next((e for e in elements if e.bytes > MOST_BYTES_F32), None)
    if wide is not None:
        return f"the epilogue takes elements of {MOST_BYTES_F32} bytes at most, {wide.name} has {wide.bytes}"
    assert isinstance(c.schedule, Sm90Schedule)
    if least_lean_epilogue(c.problem, c.routes, c.schedule.tile, c.schedule.warps) is None:
        return "no step of the epilogue is as wide as all its results and reductions want"
    return ""


def math_fits_compute_type(c: GemmCandidate) -> Breach | None:
    assert not isinstance(c.schedule, GemvSchedule)
    compute_type, math = c.problem.compute_type.name, c.schedule.math
    if math == "f16":
        return Breach(
            "`math f16` multiplies TF32 in convolutions alone",
            "leave `math` out",
            ("math",),
            changed(c, math="tf32x3" if compute_type == "f32" else None),
        )
    if compute_type == "f32" and math == "simt" and c.family == "sm90":
        return Breach(
            "pingpong and cooperative multiply by wgmma, f32 in three passes; FFMA is the multistage "
            "kernel's",
            "use `math tf32x3`, or `warps multistage`",
            ("math", "warps"),
            changed(c, math="tf32x3"),
        )
    if compute_type == "f32" and math in COOPERATIVE_MATHS and not _is_cooperative(c):
        return Breach(
            f"`math {math}` is of two warp groups, of which one adds sums or splits A in registers while wgmma "
            "multiplies the other's",
            "use `math tf32x3`, or `warps cooperative`",
            ("math", "warps"),
            changed(c, math="tf32x3"),
        )
    if (compute_type == "f32") == (math != "tensor"):
        return None
    if compute_type == "f32":
        return Breach(
            "tensor cores do not multiply f32 in one pass",
            "use `math tf32x3` or `math simt`",
            ("math",),
            changed(c, math="tf32x3"),
        )
    return Breach(
        f"`math {math}` is a way to multiply f32; this compute type is {compute_type}",
        "leave `math` out",
        ("math",),
        changed(c, math=None),
    )


def _is_cooperative(c: GemmCandidate) -> bool:
    return isinstance(c.schedule, Sm90Schedule) and c.schedule.warps == "cooperative"


def one_k_mode(c: GemmCandidate) -> Breach | None:
    modes = len(c.problem.k)
    if modes == 1:
        return None
    return Breach(
        f"the contracted dimensions stay {modes} separate modes; the TMA main loop iterates over one",
        "use `warps multistage`, or store the contracted dimensions side by side, in one order in both",
        ("warps",),
        multistage(c),
    )


def _order(access: Access, outer_mode: str) -> str:
    """`K`, the outer mode's letter, or "" where nothing is contiguous or the outer mode is missing."""
    outer = access.m if outer_mode == "M" else access.n
    if outer is None or not access.k or access.k[-1] is None:
        return ""
    if access.k[-1] == ():
        return "K"
    return outer_mode if outer == () else ""


def operand_order(c: GemmCandidate) -> Breach | None:
    for access, name, outer_mode in ((c.problem.a, "A", "M"), (c.problem.b, "B", "N")):
        if _order(access, outer_mode):
            continue
        return Breach(
            f"operand {name} is not contiguous along K or {outer_mode}: TMA needs one of the two",
            "use `warps multistage`, or store the operand with one of them last",
            ("warps",),
            multistage(c),
        )
    return None


def k_major(c: GemmCandidate) -> Breach | None:
    compute_type = c.problem.compute_type.name
    if compute_type not in WGMMA_K_MAJOR:
        return None
    for access, name, outer_mode in ((c.problem.a, "A", "M"), (c.problem.b, "B", "N")):
        if _order(access, outer_mode) == outer_mode:
            return Breach(
                f"operand {name} is contiguous along {outer_mode}; wgmma reads {compute_type} only contiguous "
                "along K",
                "use `warps multistage`, or store the contracted dimension last",
                ("warps",),
                multistage(c),
            )
    return None


def tf32_order(c: GemmCandidate) -> Breach | None:
    assert isinstance(c.schedule, Sm90Schedule)
    if c.problem.compute_type.name != "tf32":
        return None
    turned = _order(c.problem.b, "N") == "N"
    if not turned and not _by_collectives(c):
        return None
    m, n, k = c.schedule.tile
    best, depth = nearest(n, TURNED_N), TURNED if turned else k
    deep = turned and n == TURNED and k % TURNED == 0
    if (k == depth or deep) and n == best:
        return _turned_stages(c) if turned else None
    why = (
        f"tf32 B is contiguous along N: it is turned in its place in shared memory, blocks of {TURNED} x {TURNED} side by "
        f"side, and the tile has {n} x {k} of it"
        if turned
        else f"tile N {n}: CUTLASS divides a stage of tf32 B among lines of 1024 elements, which {TURNED} "
        f"columns fill"
    )
    return Breach(
        why, f"use tile {m}x{best}x{depth}", ("tile",), changed(c, tile=(m, best, depth), stages=None)
    )


def _turned_stages(c: GemmCandidate) -> Breach | None:
    assert isinstance(c.schedule, Sm90Schedule)
    if c.schedule.stages >= TURNED_STAGES:
        return None
    m, n, k = c.schedule.tile
    tile = (m // 2, n, k) if m > n else (m, n // 2, k)
    return Breach(
        f"tf32 B is contiguous along N: one stage is turned in shared memory while another one is multiplied, and "
        f"{c.schedule.stages} stages leave none to load",
        f"use `stages {TURNED_STAGES}`, or a smaller tile",
        ("stages", "tile"),
        changed(c, tile=tile, stages=None),
    )


def _by_collectives(c: GemmCandidate) -> bool:
    """Whether CUTLASS's collectives alone multiply tf32 along K (emit/gemm/lean.py)."""
    accesses = (*c.problem.inputs, *(o.access for o in c.problem.outputs if not isinstance(o, Reduction)))
    return not lean_alone(c.problem) and (len(c.problem.batch) > 1 or any(a.elem.bytes > 4 for a in accesses))


def tma_operands(c: GemmCandidate) -> Breach | None:
    for access, name in ((c.problem.a, "A"), (c.problem.b, "B")):
        held = access.align * access.elem.bytes
        if held < TMA_BYTES:
            return Breach(
                f"operand {name} is aligned to {held} bytes: TMA needs its address and row strides in "
                f"multiples of {TMA_BYTES} bytes, {TMA_BYTES // access.elem.bytes} of {access.elem.name}",
                "use `warps multistage`, or pad the contiguous extent",
                ("warps",),
                multistage(c),
            )
    return None


def routes_are_possible(c: GemmCandidate) -> Breach | None:
    for tensor, route in zip(c.tensors, c.routes, strict=True):
        if route == "tma" and not (c.family == "sm90" and tma_alignable(tensor)):
            return Breach(
                f"a tensor of {tensor.elem.name} aligned to {tensor.align * tensor.elem.bytes} bytes "
                f"cannot go by TMA",
                "let each thread move it",
                (),
                changed(c),
            )
    return None


def reduces_a_tile(c: GemmCandidate) -> Breach | None:
    for output in c.problem.outputs:
        if isinstance(output, Reduction) and output.access.m is not None and output.access.n is not None:
            return Breach(
                "a result combines values of different batches at the same row and column, which lie in "
                "different tiles",
                "use `warps multistage`, or sum over the batch name in the dot itself",
                ("warps",),
                multistage(c),
            )
    return None


def extents_fit(c: GemmCandidate) -> Breach | None:
    s = c.shape
    counted = c.family == "sm90" or any(
        isinstance(i, CoordinateValue) for i in c.problem.arithmetic.instructions
    )
    longest = max(s.m, s.n, s.k if c.family == "sm90" else 0, s.batch)
    if counted and longest > INT32:
        return Breach(
            f"an extent of {longest} is above {INT32}, the largest that this kernel counts to",
            "split the problem along its longest dimension",
            ("warps",),
            multistage(c) if c.family == "sm90" else None,
        )
    match c.schedule:
        case GemvSchedule():
            return None
        case Sm80Schedule(tile, _, _, _):
            layers = 1
        case Sm90Schedule(tile, _, _, _, _):
            layers = s.batch
            if far := _tma_stride(c):
                return far
    tiles = ceil_div(s.m, tile[0]) * ceil_div(s.n, tile[1]) * layers
    if tiles <= INT32:
        return None
    return Breach(
        f"{tiles} output tiles are above {INT32}",
        "use a larger tile",
        ("tile",),
        changed(c, tile=(128, 128, tile[2]), stages=None) if tile[0] * tile[1] < 128**2 else None,
    )


def _tma_stride(c: GemmCandidate) -> Breach | None:
    moved = [t for t, r in zip(c.tensors, c.routes, strict=True) if r == "tma"]
    for access in (c.problem.a, c.problem.b, *moved):
        for stride in (access.m, access.n, *access.k, *access.batch):
            step = stride_bytes(stride, access, c.sizes)
            if step >= TMA_STRIDE:
                return Breach(
                    f"a stride of {step} bytes is beyond TMA's {TMA_STRIDE}",
                    "use `warps multistage`",
                    ("warps",),
                    multistage(c),
                )
    return None

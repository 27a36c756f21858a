"""Products of two batch modes that no stride joins: the main loop as it is emitted, run on the host."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from tests.jit import lean_main_loop
from ucutlass import frontend
from ucutlass.emit.gemm.lean import lean
from ucutlass.kernels.gemm.plan import GemmPlan, Sm90Schedule
from ucutlass.kernels.planned import Planned
from ucutlass.shapes import complete

SIZES = {"B": 3, "S": 70, "H": 2, "D": 40, "T": 24}
SCHEDULE = "schedule sm90a { warps cooperative  tile 128x32x32  cluster 1x1  swap no }"


def planned(text: str) -> Planned:
    checked = frontend.read_text(text)
    kernel = frontend.kernel(checked)
    sizes = {name: extent for name, extent in SIZES.items() if name in kernel.dims}
    return frontend.plan_kernel(checked, kernel, complete(kernel, sizes), "sm90a").planned


def plan_of(chosen: Planned) -> tuple[GemmPlan, Sm90Schedule]:
    plan = chosen.plan
    assert isinstance(plan, GemmPlan) and isinstance(plan.schedule, Sm90Schedule)
    assert len(plan.problem.batch) == 2
    return plan, plan.schedule


def launched(entry: object, chosen: Planned, arrays: list[np.ndarray]) -> None:
    tensors = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
    extents = (ctypes.c_int64 * len(chosen.sizes))(*chosen.sizes)
    launch = (ctypes.c_int64 * 3)(*chosen.launch)
    workspace = np.zeros(1024, np.uint8)
    address = ctypes.c_void_p(-(-workspace.ctypes.data // 256) * 256)
    assert callable(entry)
    assert entry(tensors, extents, (ctypes.c_double * 1)(), launch, address, None, None) == 0


def by_batch(result: np.ndarray, first: str) -> np.ndarray:
    """`[B, H, ..]` of a result's batches in the kernel's order, the first mode innermost."""
    rest = result.shape[1:]
    inner, outer = (SIZES["B"], SIZES["H"]) if first == "B" else (SIZES["H"], SIZES["B"])
    split = result.reshape(outer, inner, *rest)
    return split if first == "H" else split.swapaxes(0, 1)


def first_batch(chosen: Planned) -> str:
    """The name of the first batch mode, by its extent."""
    plan, _ = plan_of(chosen)
    (dimension,) = plan.problem.batch[0]
    return "B" if chosen.sizes[dimension] == SIZES["B"] else "H"


def test_each_batch_reads_its_own_operands(tmp_path: Path) -> None:
    chosen = planned(
        "kernel k(x: f32[B, S, H, D], y: f32[B, T, H, D]) -> f32[B, H, S, T] { "
        f"return dot[D](tf32(x), tf32(y)) {SCHEDULE} }}"
    )
    plan, schedule = plan_of(chosen)
    library = lean_main_loop.built(lean(plan), tmp_path)
    random = np.random.default_rng(5)
    x = random.integers(-8, 9, (SIZES["B"], SIZES["S"], SIZES["H"], SIZES["D"])).astype(np.float32)
    y = random.integers(-8, 9, (SIZES["B"], SIZES["T"], SIZES["H"], SIZES["D"])).astype(np.float32)
    batches, (m, n, _) = SIZES["B"] * SIZES["H"], schedule.tile
    height, width = -(-SIZES["S"] // m) * m, -(-SIZES["T"] // n) * n
    sums = np.zeros((batches, height, width), np.float32)
    setup = lean_main_loop.Setup(m, n, 2, 1, 1, sums.ctypes.data, height, width, batches)
    library.set_up(ctypes.byref(setup))
    d = np.zeros((SIZES["B"], SIZES["H"], SIZES["S"], SIZES["T"]), np.float32)
    launched(getattr(library, lean(plan).device.entry), chosen, [x, y, d])
    got = by_batch(sums[:, : SIZES["S"], : SIZES["T"]], first_batch(chosen))
    assert (got == np.einsum("bshd,bthd->bhst", x, y)).all()

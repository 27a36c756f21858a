"""The bounds that readings are held against, and whose work a pipeline's is."""

from __future__ import annotations

import pytest

from tests.audit.bundles import program
from ucutlass.agent.integrity.limits import calibrated_limits, limits_of, stage_works
from ucutlass.agent.integrity.precision import (
    DeclaredPrecision,
    UnknownComputeType,
    declared,
    operand_precision,
)
from ucutlass.ir.hardware import DEVICES
from ucutlass.sol.ceilings import Ceilings

H200 = DEVICES["H200"]
LINEAR = "kernel k(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return dot[K](x, w) }"
SIZES = {"M": 1024, "K": 512, "N": 2048}
BYTES = 2 * (1024 * 512 + 2048 * 512 + 1024 * 2048)


def test_the_data_sheets_limits() -> None:
    sol_times = limits_of(program(LINEAR), SIZES, H200)
    assert sol_times.compute == pytest.approx(2 * 1024 * 512 * 2048 / H200.peaks["bf16"])
    assert sol_times.memory == pytest.approx(BYTES / H200.bandwidth)
    assert sol_times.cache == pytest.approx(BYTES / H200.l2_bandwidth)
    assert (sol_times.clock, sol_times.boost, sol_times.estimated) == (H200.clock, H200.boost, True)
    assert "H200" in sol_times.what


def test_limits_at_the_boost_clock_are_put_at_the_tensor_cores() -> None:
    kernel = program("kernel k(x: f32[M, N], y: f32[M, N]) -> f32[M] { return sum[N](x * y) }")
    sol_times = limits_of(kernel, {"M": 4, "N": 1000}, H200)
    assert sol_times.compute == pytest.approx(4 * 1999 / H200.peaks["f32"] * H200.boost / H200.clock)


def test_more_than_the_cache_holds_comes_from_memory() -> None:
    sol_times = limits_of(program("kernel k(x: f32[M]) -> f32[M] { return relu(x) }"), {"M": 2**28}, H200)
    assert sol_times.cache == pytest.approx((2**31 - H200.l2) / H200.bandwidth)


def test_a_calibrations_limits() -> None:
    seen = Ceilings("NVIDIA H200", "GPU-0", {"bf16": 7e14}, 4.1e12, 4.3e12, 9e12, 2e-6, 1.7e9)
    sol_times = calibrated_limits(program(LINEAR), SIZES, H200, seen)
    assert sol_times.compute == pytest.approx(2 * 1024 * 512 * 2048 / 7e14)
    assert sol_times.memory == pytest.approx(BYTES / 4.3e12)
    assert (sol_times.cache, sol_times.clock) == (pytest.approx(BYTES / 9e12), 1.7e9)
    assert not sol_times.estimated


def test_a_kernel_is_one_stage_of_its_own() -> None:
    (stage,) = stage_works(program(LINEAR), SIZES, H200)
    assert (stage.name, stage.library) == ("k", False)
    limits = limits_of(program(LINEAR), SIZES, H200)
    assert stage.seconds == pytest.approx(max(limits.compute, limits.memory))


def test_stages_of_a_pipeline() -> None:
    text = """kernel up(a: f16[T, D], w: f16[F, D]) -> f16[T, F] { return dot[D](a, w) }

    pipeline p(x: f16[M, K], v: f16[K, N], w: f16[J, N]) -> f16[M, J] {
      h: f16[M, N] = torch.matmul(x, v)
      g: f16[M, N] = relu(h)
      return up(g, w)
    }
    """
    found = stage_works(program(text), {"M": 4096, "K": 4096, "N": 4096, "J": 4096}, H200)
    assert [(s.name, s.library) for s in found] == [("torch.matmul", True), ("g", False), ("up", False)]
    product = pytest.approx(2 * 4096**3 / H200.peaks["f16"])
    assert (found[0].seconds, found[2].seconds) == (product, product)
    assert found[1].seconds == pytest.approx(4 * 4096**2 / H200.bandwidth)


def test_recurrent_layers_that_a_kernel_computes_are_no_library_s() -> None:
    text = """pipeline p(x: f32[L=512, B=10, D=128], h: f32[Q=1, B, E], w: f32[G, D], u: f32[G, E]) -> f32[L, B, E] {
      y: f32[L, B, E] = torch.gru(x, h, w, u, layers=1)
      return y
    }
    """
    for units, library in ((256, False), (4096, True)):
        own = text.replace("E]", f"E={units}]", 1).replace("G,", f"G={3 * units},", 1)
        sizes = {"L": 512, "B": 10, "D": 128, "Q": 1, "E": units, "G": 3 * units}
        stage = stage_works(program(own), sizes, H200)[0]
        assert (stage.name, stage.library) == ("torch.gru", library)


# --- compute types -------------------------------------------------------------------------------


def test_compute_types_are_read_as_written() -> None:
    assert declared("bf16") == DeclaredPrecision("bf16", "f32") and str(declared("bf16")) == "bf16"
    assert declared("f16/f16") == DeclaredPrecision("f16", "f16") and str(declared("f16/f16")) == "f16/f16"
    assert str(declared("e4m3/f32")) == "e4m3"
    for text in ("f64", "bf16/", "", "f16/f8", "f16/f16/f16"):
        if text == "bf16/":
            assert declared(text) == declared("bf16")
        else:
            with pytest.raises(UnknownComputeType, match="compute type"):
                declared(text)


def test_a_programs_own_compute_type_is_its_operands_memory() -> None:
    assert operand_precision(program(LINEAR)) == DeclaredPrecision("bf16", "f32")
    cast = LINEAR.replace("bf16[M, K], w: bf16", "f32[M, K], w: f32").replace("(x, w)", "(tf32(x), tf32(w))")
    assert operand_precision(program(cast)) == DeclaredPrecision("f32", "f32")
    assert operand_precision(program("kernel k(x: f32[M]) -> f32[M] { return relu(x) }")) is None

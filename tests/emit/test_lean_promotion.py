"""The loop over k tiles that promotes each sum, run on the host: every tile is multiplied once, whether or not
the operands have elements that are not finite."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.gpu.test_lean_split_on_gpu import SCHEDULES
from ucutlass import frontend
from ucutlass.backend import source_of
from ucutlass.shapes import complete

PROGRAM = r"""
#include <cstdio>
#define CUTLASS_PRAGMA_NO_UNROLL
template <int N> struct Int { static constexpr int value = N; };
using _1 = Int<1>;
struct Pipeline {
  int waits = 0, releases = 0;
  void consumer_wait(int) { ++waits; }
  void consumer_release(int) { ++releases; }
};
struct Accumulators { float* data() { return nullptr; } };
struct State { int at = 0; void operator++() { ++at; } int index() const { return at; } operator int() const { return at; } };

int main() {
  for (int non_finite = 0; non_finite < 2; ++non_finite) {
    for (int tiles = 1; tiles < 8; ++tiles) {
      Pipeline pipeline;
      State read, release;
      Accumulators accumulators;
      int multiplied = 0, count = tiles, smem = 0, warp_group = 0, thread = 0;
      float* partial[2] = {};
      auto multiply_non_finite = [&](float*, float*, int, int, int, int) { ++multiplied; };
      auto promoted_tiles = [&](auto n) {
        for (int i = 0; i < n.value; ++i) {
          pipeline.consumer_wait(read), ++read, ++multiplied;
          if (i > 0) pipeline.consumer_release(release), ++release;
        }
      };
      LOOP
      (void)multiply_non_finite, (void)smem, (void)warp_group, (void)thread, (void)partial, (void)accumulators;
      if (multiplied != tiles || pipeline.waits != tiles || pipeline.releases != tiles - 1 || count != 0) {
        std::printf("%d tiles, non-finite %d: %d multiplied, %d waits, %d releases, %d left\n", tiles, non_finite,
                    multiplied, pipeline.waits, pipeline.releases, count);
        return 1;
      }
    }
  }
}
"""
"""A block of the loop leaves the last tile's stage to `mma_tail`."""


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_tile_is_multiplied_once(schedule: str, tmp_path: Path) -> None:
    checked = frontend.read_text(
        "kernel k(x: f32[B, M, K], w: f32[B, N, K]) -> f32[B, M, N] {\n"
        f"  return dot[K](x, w)\n  schedule sm90a {{ {schedule} }}\n}}\n"
    )
    program = frontend.kernel(checked)
    sizes = complete(program, {"B": 2, "M": 300, "N": 212, "K": 320})
    planned = frontend.plan_kernel(checked, program, sizes, "sm90a").planned
    code = source_of(checked, program, planned).code
    matched = re.search(r"^    while \(count > 0\) \{\n.*?^    \}\n", code, flags=re.DOTALL | re.MULTILINE)
    assert matched is not None and "multiply_non_finite(" in matched[0]
    source, binary = tmp_path / "loop.cpp", tmp_path / "loop"
    source.write_text(PROGRAM.replace("LOOP", matched[0]))
    subprocess.run(["g++", "-std=c++17", "-o", str(binary), str(source)], check=True)
    run = subprocess.run([str(binary)], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout

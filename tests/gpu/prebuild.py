"""Builds most kernels that the GPU tests launch, on all cores and before the tests begin.

    python -m tests.gpu.prebuild

Tests that build while others launch starve each other of cores: each launch that waits for a shared GPU holds
one. What fails here fails again, with its words, in the test that launches it.
"""

from __future__ import annotations

import sys
import time

from benchmarks.pair_spaces import SPACES
from benchmarks.pairs import cover
from benchmarks.pairs_gpu import sources as pair_sources
from tests.gpu import (
    test_convolution_on_gpu,
    test_gemm_sm80_on_gpu,
    test_grouped_gemm_on_gpu,
    test_reduction_on_gpu,
    test_schedules_on_gpu,
)
from tests.gpu.test_pairs_on_gpu import SEED
from ucutlass.backend import build_sources, toolchain
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.gpu import at_hand
from ucutlass.runtime.parallel import build_many

GROUP = 8
"""Kernels of a translation unit: two to three times less work than one by one."""


def main() -> int:
    gpu = at_hand()
    if gpu is None:
        print("prebuild: no NVIDIA GPU that kernels are built for", file=sys.stderr)
        return 1
    began = time.monotonic()
    pairs = [
        *(pair for space in SPACES.values() for pair in pair_sources(cover(space, SEED).drawn)),
        *test_reduction_on_gpu.sources(),
        *test_schedules_on_gpu.sources(),
        *test_grouped_gemm_on_gpu.sources(),
        *test_convolution_on_gpu.sources(["sm90a", "sm80"] if gpu.arch.name == "sm90a" else ["sm80"]),
    ]
    distinct = {source.entry: (source, plan) for source, plan in pairs}
    results = build_sources(list(distinct.values()), group=GROUP)
    multistage = test_gemm_sm80_on_gpu.sources("sm_" + gpu.arch.name.removeprefix("sm"))
    results += build_many(list(multistage.values()), toolchain(), Cache.from_switches(), group=4)
    failures = [result for result in results if not isinstance(result, Artifact)]
    for failure in failures:
        print(f"prebuild: {failure}"[:1000], file=sys.stderr)
    print(f"prebuild: {len(results)} kernels in {time.monotonic() - began:.0f} s, {len(failures)} not built")
    return 0


if __name__ == "__main__":
    sys.exit(main())

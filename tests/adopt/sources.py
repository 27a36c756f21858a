"""Sources that stand for what a person wrote: without CUDA, so that g++ compiles and runs them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from ucutlass.adopt.source import checked
from ucutlass.emit.text import Source

PROGRAM = "kernel scaled(x: f32[M, N]) -> f32[M, N] { return x * 2.0 }"
SIZES = {"M": 4, "N": 8}

ENTRY = """extern "C" int32_t ucc_by_hand(
    void* const* tensors, int64_t const* extents, double const* scalars, int64_t const* launch_parameters,
    void* workspace, uint64_t* workspace_size, void* stream) {"""

BODY = """
  if (workspace_size != nullptr) {
    *workspace_size = 0;
    return 0;
  }
  auto const x = static_cast<float const*>(tensors[0]);
  auto const y = static_cast<float*>(tensors[1]);
  for (int64_t i = 0; i < extents[0] * extents[1]; ++i) y[i] = 2.0f * x[i];
  return 0;
}
"""

BY_HAND = f"#include <cstdint>\n#include <cmath>\n\n{ENTRY}{BODY}"

PTX = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32\n"

COMPILES = """
g++ -O1 -fPIC -w -c -x c++ -o tmp/source.o source.cu && g++ -shared -o kernel.so tmp/source.o || exit 1
echo '%s' > tmp/source.ptx
"""
"""What the fake nvcc of a test does."""


def quick(names: Iterable[str], *few: str) -> list[Any]:
    """Cases by name, of which all but a few are slow: they repeat others of their kind."""
    return [name if name in few else pytest.param(name, marks=pytest.mark.slow) for name in names]


def source(text: str = BY_HAND) -> Source:
    return checked(text.encode())


def written(folder: Path, text: str = BY_HAND) -> tuple[Path, Path]:
    """The source and its program as files."""
    (folder / "by_hand.cu").write_text(text)
    (folder / "scaled.ucu").write_text(PROGRAM)
    return folder / "by_hand.cu", folder / "scaled.ucu"

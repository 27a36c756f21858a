"""Describes the return codes of a kernel's entry (the codes are those of ucutlass/kernels/gemm/plan.py)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

BAD_ARGUMENTS, CUDA_BASE, CUTLASS_BASE = 1, 1000, 2000


class LaunchError(Exception):
    """A kernel's entry refused or failed; `code` is what it returned (ucutlass/kernels/gemm/plan.py)."""

    def __init__(self, kernel: str, code: int) -> None:
        super().__init__(kernel, code)
        self.kernel = kernel
        self.code = code

    def __str__(self) -> str:
        return f"{self.kernel}: launch failed: {describe(self.code)} (code {self.code})"


CUTLASS_STATUS: tuple[str, ...] = (
    "kSuccess",
    "kErrorMisalignedOperand",
    "kErrorInvalidDataType",
    "kErrorInvalidLayout",
    "kErrorInvalidProblem",
    "kErrorNotSupported",
    "kErrorWorkspaceNull",
    "kErrorInternal",
    "kErrorArchMismatch",
    "kErrorInsufficientDriver",
    "kErrorMemoryAllocation",
    "kInvalid",
)
"""cutlass::Status in order (cutlass/cutlass.h, CUTLASS 4.2)."""

_CUDA_ERROR_TEXTS: Mapping[int, str] = MappingProxyType(
    {
        1: "invalid argument",
        2: "out of memory",
        35: "the driver is older than the CUDA runtime needs",
        98: "invalid device function",
        100: "no CUDA-capable device",
        101: "invalid device ordinal",
        200: "the device kernel image is invalid",
        201: "invalid device context",
        209: "no kernel image for this device",
        218: "a PTX compilation failed",
        500: "the driver lacks a function that the kernel needs",
        700: "an illegal memory access was encountered",
        701: "too many resources requested for launch",
        702: "the launch timed out",
        715: "an illegal instruction was encountered",
        716: "misaligned address",
        719: "unspecified launch failure",
        720: "cooperative launch too large",
        900: "the operation is not permitted while the stream is capturing",
        901: "a previous error invalidated the stream's capture",
    }
)
"""cudaError_t of driver_types.h, for a torch without CUDA's own words."""


def describe(code: int) -> str:
    """Returns the words for an entry's return code."""
    if code == BAD_ARGUMENTS:
        return "the kernel refused its arguments: they are not what its plan was made for"
    if CUDA_BASE < code < CUTLASS_BASE:
        return f"CUDA error {code - CUDA_BASE}: {_cuda_error_text(code - CUDA_BASE)}"
    if CUTLASS_BASE < code < CUTLASS_BASE + len(CUTLASS_STATUS):
        return f"CUTLASS status {CUTLASS_STATUS[code - CUTLASS_BASE]}"
    return "a code that the binary interface does not define"


def _cuda_error_text(error: int) -> str:
    import torch  # here: who only names a code's class need not wait a second for it

    if torch.version.cuda is not None and torch.cuda.is_available():
        cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        return str(cudart.cudaGetErrorString(cudart.cudaError(error)))
    return _CUDA_ERROR_TEXTS.get(error, "see cudaError_t in CUDA's documentation")

"""Lists the variables of the environment that are passed to code that is not ours.

A problem file, a candidate, a tool that launches one, or a proposer's command is told what it needs to find
and run things, and nothing else: a caller's keys are not for it.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Mapping

ALLOWED: Mapping[str, str] = {
    "PATH": "compilers and tools are found by it",
    "LD_LIBRARY_PATH": "so are CUDA's libraries",
    "HOME": "caches of torch and CUDA lie there",
    "USER": "torch names its cache folder by the user",
    "LOGNAME": "the same, where USER is not set",
    "TMPDIR": "temporary files",
    "TEMP": "the same, by another name",
    "TMP": "the same, by another name",
    "XDG_*": "where caches and data lie",
    "LANG": "the encoding of file names",
    "LC_*": "the same, by category",
    "TZ": "local time",
    "TERM": "what a terminal shows",
    "CC": "torch.compile calls a C compiler",
    "CXX": "and a C++ compiler",
    "CUDA*": "which GPUs are seen, where the toolkit lies, how launches behave",
    "NVIDIA_*": "what a container sees of the GPUs",
    "CUBLAS*": "the libraries' workspaces and logs",
    "CUDNN*": "the same",
    "NCCL_*": "the same",
    "UCUTLASS_*": "this package's switches",
    "OMP_*": "threads of the CPU's arithmetic",
    "KMP_*": "the same, of Intel's OpenMP",
    "MKL_*": "the same, of MKL",
    "OPENBLAS_*": "the same, of OpenBLAS",
    "PYTORCH_*": "torch's allocator and switches",
    "TORCH*": "the same, and the folders of its compiler",
    "TRITON_*": "the same, of Triton",
    "PYTHONPATH": "packages of the caller, for Python processes that a candidate starts",
}
"""Name to reason; `*` stands for any ending."""

_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
"""Names that are never passed by a pattern."""


def allowed_environment(environ: Mapping[str, str] | None = None, also: Iterable[str] = ()) -> dict[str, str]:
    """Returns the variables of `environ`, by default this process's, that code of others is given: those of
    PASSED, and those that `also` names, which their owner chose."""
    variables = os.environ if environ is None else environ
    named = frozenset(also)
    return {name: value for name, value in variables.items() if name in named or _is_allowed(name)}


def _is_allowed(name: str) -> bool:
    if name in ALLOWED:
        return True
    return not _SECRET.search(name) and any(fnmatch.fnmatchcase(name, pattern) for pattern in ALLOWED)

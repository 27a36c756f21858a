"""Reads hardware counters of one launch with Nsight Compute, on a process that launches it.

JSON in and out: `counted` is for an engine's GPU.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ucutlass.files import put
from ucutlass.runtime import system
from ucutlass.runtime.environment_allowlist import allowed_environment
from ucutlass.runtime.profile import cuda_tools, metrics, ncu


def counted(
    trial: dict[str, Any], kernels: list[str], limit_seconds: float, cache: ncu.CacheControl = "all"
) -> dict[str, Any]:
    """Returns `counters`, fields of `ucutlass.advice.facts.Counters`, of the first GPU that this process
    sees; or `missing`, why there are none. `trial` is a request of `ucutlass.tasks.profile`'s command,
    `kernels` the mangled names of what it launches."""
    driver = system.driver()
    if driver is None or not driver.gpus:
        return {"missing": "no GPU here"}
    match count(driver.gpus[0].capability, trial, kernels, limit_seconds, cache):
        case ncu.NoCounters(reason):
            return {"missing": reason}
        case ncu.KernelCounters(_, values):
            return {"counters": asdict(values)}


def count(
    capability: tuple[int, int],
    trial: Mapping[str, Any],
    kernels: Sequence[str],
    limit_seconds: float,
    cache: ncu.CacheControl,
) -> ncu.KernelCounters | ncu.NoCounters:
    """Returns the counters of a trial's launch. The caller holds the lock."""
    table = metrics.table_for(capability)
    if table is None:
        return ncu.NoCounters("no table of metrics for compute capability {}.{}".format(*capability))
    tool = cuda_tools.find("ncu", os.environ)
    if tool is None:
        return ncu.NoCounters("no ncu in CUDA_HOME, PATH or /opt/nvidia/nsight-compute")
    with tempfile.TemporaryDirectory(prefix="ucutlass-profile-") as folder:
        request = Path(folder) / "request.json"
        put(request, json.dumps(dict(trial)))
        target = (sys.executable, "-m", "ucutlass.tasks.profile", str(request))
        # The tool starts the process in a folder of its own; this package must be found there too.
        environ = {
            **allowed_environment(),
            "PYTHONPATH": os.pathsep.join(str(Path(p).absolute()) for p in sys.path),
        }
        return ncu.count(tool, table, kernels, target, ncu.runner(environ, limit_seconds), cache)

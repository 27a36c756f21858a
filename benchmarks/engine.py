"""Throughput of tuning on one worker and on one for each GPU, through Dask; and with a worker killed.

    python -m benchmarks.engine --out engine.json [--gpus 4] [--kernels 32] [--one 8] [--builds 4] [--kill 12]

Claim: four workers tune more than 3.4 times as many kernels a second as one. A worker is a GPU and its share of the cores: the same share where it is alone. Every run begins with empty
caches, one for each worker. Ends with status 1 where a kernel has no winner, or an entry was built twice.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from benchmarks import harness
from benchmarks.gemm_cases import PLAIN
from ucutlass import frontend
from ucutlass.engine.cluster import local_cluster
from ucutlass.engine.dask import DaskEngine
from ucutlass.engine.work import TABLE
from ucutlass.runtime import switches, system
from ucutlass.runtime.bench import gpu_lock
from ucutlass.runtime.cache import Cache, CacheEntry
from ucutlass.runtime.jit.nvrtc_build import DRIVER_BUILDER
from ucutlass.tune.job import TuningJob, TuningSettings, job_of
from ucutlass.tune.parallel import Ended, FinishedSearch, tune_many
from ucutlass.tune.policy import SearchLimits

ARCH = "sm90a"
BAR = 3.4
"""Throughput of four workers over that of one."""


@dataclass(frozen=True, slots=True)
class Run:
    """`entries` are distinct artefacts, `builds` how often any was built; `kernels` by name microseconds,
    or why there are none. `killed` is how many results there were when a worker was killed."""

    workers: int
    cores: int
    seconds: float
    kernels: dict[str, float | str]
    per_worker: dict[str, int]
    entries: int
    builds: int
    killed: int | None = None

    @property
    def throughput(self) -> float:
        """Kernels a second."""
        return sum(isinstance(v, float) for v in self.kernels.values()) / self.seconds


ROWS = (512, 768, 1024, 1536, 2048, 3072, 4096, 6144)
WIDTHS = (2048, 4096)
DEPTH = 4096


def jobs(count: int, arch: str = ARCH) -> dict[str, TuningJob]:
    """Plain products in both types, the longest first: what ends last is short. All of their candidates are
    TMA kernels, which build in seconds, so that the GPUs are what there is to share."""
    shapes = sorted(((m, n) for m in ROWS for n in WIDTHS), key=lambda s: -s[0] * s[1])
    every: dict[str, TuningJob] = {}
    for m, n in shapes[: -(-count // 2)]:
        for dtype in ("bf16", "f16"):
            checked = frontend.read_text(PLAIN.format(t=dtype))
            sizes = {"M": m, "N": n, "K": DEPTH}
            every[f"{m} x {n} x {DEPTH} {dtype}"] = job_of(checked, frontend.kernel(checked), sizes, arch)
    return dict(list(every.items())[:count])


@contextmanager
def fresh(workers: int) -> Iterator[tuple[Path, list[dict[str, str]]]]:
    """Empty caches: of this process, which is set, and of each worker, as its environment."""
    folder, before = Path(tempfile.mkdtemp(prefix="ucutlass-engine-")), os.environ.get(switches.CACHE_DIR)
    os.environ[switches.CACHE_DIR] = str(folder / "own")
    try:
        yield folder, [{switches.CACHE_DIR: str(folder / f"worker{i}")} for i in range(workers)]
    finally:
        os.environ.pop(switches.CACHE_DIR)
        if before is not None:
            os.environ[switches.CACHE_DIR] = before
        shutil.rmtree(folder, ignore_errors=True)


def measure(
    gpus: Sequence[str],
    cores: int,
    tuned: dict[str, TuningJob],
    options: argparse.Namespace,
    kill: bool = False,
) -> Run:
    """Tunes all kernels on workers of `cores` cores each."""
    settings = TuningSettings(SearchLimits(builds=options.builds))
    with fresh(len(gpus)) as (folder, environs), local_cluster(gpus, cores, environs=environs) as spec:
        engine = DaskEngine(spec.replace("dask", "tcp"), table=TABLE)
        killer = _Killer(engine, spec, len(tuned) // 3) if kill else None
        try:
            start = time.monotonic()
            ended = tune_many(
                list(tuned.values()),
                engine,
                settings,
                build_path=options.build_path,
                on_done=killer or (lambda _, __: None),
            )
            spent = time.monotonic() - start
        finally:
            engine.close()
        entries, builds = _built(folder)
    return Run(
        len(gpus),
        cores,
        spent,
        {name: _result(e) for name, e in zip(tuned, ended, strict=True)},
        dict(Counter(_gpu(e) for e in ended)),
        entries,
        builds,
        killer.at if killer else None,
    )


class _Killer:
    """Kills a worker, once, when so many results have come."""

    def __init__(self, engine: DaskEngine, spec: str, after: int) -> None:
        from distributed import Client

        connect: Any = Client
        with connect(spec.replace("dask", "tcp"), set_as_default=False) as client:
            self._pid = next(iter(client.run(os.getpid).values()))
        self._after, self._count, self._lock = after, 0, Lock()
        self.at: int | None = None

    def __call__(self, number: int, ended: Ended) -> None:
        with self._lock:
            self._count += 1
            if self._count < self._after or self.at is not None:
                return
            self.at = self._count
        os.kill(self._pid, signal.SIGKILL)


def _built(folder: Path) -> tuple[int, int]:
    """Distinct kernels, and builds: a copy has the times of its original, a second build has others. The
    part that a machine's kernels share (30 ms of g++) is made by each worker and not counted."""
    builds: Counter[str] = Counter()
    seen: set[tuple[str, str]] = set()
    for cache in folder.iterdir():
        for entry in Cache(cache, 1 << 40).entries():
            if not isinstance(entry, CacheEntry) or entry.about.get("builder") == DRIVER_BUILDER:
                continue
            about = json.dumps(dict(entry.about), sort_keys=True)
            if (entry.key, about) not in seen:
                seen.add((entry.key, about))
                builds[entry.key] += 1
    return len(builds), sum(builds.values())


def _result(ended: Ended) -> float | str:
    if not isinstance(ended, FinishedSearch):
        return f"{type(ended).__name__}: {ended}"
    winner = ended.tuned.winner
    if winner is None or not isinstance(winner.result, float):
        lost = [str(f.result) for f in ended.tuned.finals] + [str(t.result) for t in ended.tuned.trials]
        return f"no winner: {'; '.join(lost)}"[:500]
    return winner.result * 1e6


def _gpu(ended: Ended) -> str:
    return str(ended.evaluator.machine.get("uuid", "")) if isinstance(ended, FinishedSearch) else ""


def _row(run: Run) -> dict[str, Any]:
    return asdict(run) | {"throughput": run.throughput}


def main(arguments: Sequence[str] | None = None) -> int:
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpus", type=int, help="workers of the larger run; default: every GPU")
    parser.add_argument("--kernels", type=int, default=32)
    parser.add_argument("--one", type=int, help="kernels on one worker; default: as many")
    parser.add_argument("--builds", type=int, default=4)
    parser.add_argument("--build-path", "--stage", type=switches.build_path_named, default=None)
    parser.add_argument("--kill", type=int, metavar="N", help="N more, with a worker killed in the middle")
    options = parser.parse_args(arguments)
    gpus = list(gpu_lock.gpu_uuids())[: options.gpus]
    cores = max(1, system.cores() // len(gpus))
    every = jobs(options.kernels)
    few = dict(list(every.items())[:: max(1, len(every) // options.one)]) if options.one else every
    report: dict[str, Any] = {
        "gpus": len(gpus),
        "builds": options.builds,
        "stage": options.build_path,
        "runs": [],
    }
    runs = [measure(gpus[:1], cores, few, options)]
    _keep(options.out, report, runs)
    runs.append(measure(gpus, cores, every, options))
    _keep(options.out, report, runs)
    if options.kill:
        some = dict(list(every.items())[: options.kill])
        runs.append(measure(gpus, cores, some, options, kill=True))
        _keep(options.out, report, runs)
    lost = {name: v for run in runs for name, v in run.kernels.items() if not isinstance(v, float)}
    twice = any(run.builds > run.entries for run in runs if run.killed is None)
    return 1 if lost or twice else 0


def _keep(out: Path, report: dict[str, Any], runs: Sequence[Run]) -> None:
    """Writes and prints the runs so far."""
    report |= {"runs": [_row(r) for r in runs]}
    first = runs[0].throughput
    ratio = runs[1].throughput / first if len(runs) > 1 and first else None
    report["ratio"] = ratio
    harness.write(out, report)
    last = runs[-1]
    good = sum(isinstance(v, float) for v in last.kernels.values())
    print(
        f"{last.workers} workers of {last.cores} cores: {good} of {len(last.kernels)} kernels in "
        f"{last.seconds:.1f} s, {last.throughput:.3f} a second, "
        f"{last.builds} builds of {last.entries} entries"
        + ("" if last.killed is None else f", a worker killed after {last.killed}"),
        flush=True,
    )
    if ratio is not None:
        print(f"throughput: {ratio:.2f} of one worker's (bar for four: {BAR})", flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""Builds mutants with nvcc, runs them on the GPU, and lets judge and sanitizers look at them."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.mutants import emulated
from tests.mutants.emulated import Prepared, Row, judgement
from tests.mutants.hopper import HOPPER
from tests.mutants.lowering import LOWERINGS
from ucutlass.backend import toolchain
from ucutlass.emit.text import PLACEHOLDER, Source, finish
from ucutlass.runtime import isolation, sanitize, verify
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.launch_spec import dtype_of, shape_of, spec_of
from ucutlass.runtime.parallel import BuildFailure, build_many, jobs
from ucutlass.shapes import complete

GROUP = 4
"""Kernels in one run of the compiler."""

PROCESSES = 8
"""Judging processes side by side: each mostly imports torch and waits for a GPU that it leaves idle."""

LIMIT_SECONDS = 150.0
"""For one mutant, which may hang; most take ten seconds, and more beside compilers."""

SANITIZER_SECONDS = 300.0
TOOLS: tuple[sanitize.SanitizerTool, ...] = ("memcheck", "racecheck", "initcheck")
PATTERNS: Mapping[str, tuple[int, ...]] = {m.name: m.patterns for m in (*LOWERINGS, *HOPPER)}
_NOT_BUILT = "not built"
_FAULT = re.compile("CUDA (driver )?error")
"""Torch's words; a torch that cannot start CUDA says otherwise, and kills nothing."""

_LAUNCH = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from tests.mutants.gpu import launched_here; launched_here(*sys.argv[2:])"
)

# --- building ------------------------------------------------------------------------


def prepared(name: str) -> Prepared:
    """As `emulated.prepared`, with an entry of its own: mutants of one base, whose edits leave its
    name, could not stand in one unit. Raises EditStale."""
    made = emulated.prepared(name)
    source = made.source
    return replace(made, source=finish(source.code.replace(source.entry, PLACEHOLDER), name, source.arch))


Unit = Mapping[str, Source]
"""Sources by name, for one run of the compiler."""


def units(sources: Mapping[str, Source]) -> list[Unit]:
    """At most GROUP of one preamble, and no more than keep all compilers busy."""
    size = max(1, min(GROUP, -(-len(sources) // jobs(group=GROUP))))
    alike: dict[str, list[str]] = {}
    for name, source in sources.items():
        alike.setdefault(source.preamble, []).append(name)
    return [
        {name: sources[name] for name in names[i : i + size]}
        for names in alike.values()
        for i in range(0, len(names), size)
    ]


def built(units: Sequence[Unit]) -> Iterator[dict[str, str]]:
    """Yields the libraries by name, or `not built: ..`, unit by unit as they come; compilers go on while the
    caller works."""
    tools, cache = toolchain(), Cache.from_switches()

    def build(unit: Unit) -> dict[str, str]:
        results = build_many(list(unit.values()), tools, cache, max_jobs=1, group=len(unit))
        return {name: _library(result) for name, result in zip(unit, results, strict=True)}

    with ThreadPoolExecutor(jobs(group=GROUP)) as pool:
        for future in as_completed([pool.submit(build, unit) for unit in units]):
            yield future.result()


def _library(result: Artifact | BuildFailure) -> str:
    return str(result.library) if isinstance(result, Artifact) else f"{_NOT_BUILT}: {str(result)[:500]}"


def is_built(library: str) -> bool:
    return not library.startswith(_NOT_BUILT)


# --- judging -------------------------------------------------------------------------


def judged(name: str, library: str) -> Row:
    """Returns what becomes of a mutant or base, in a process of its own.

    Raises AssertionError where the failure is none of the mutant's.
    """
    if not is_built(library):
        # A mutant that nvcc refuses was never judged, so nothing killed it.
        return Row(name, PATTERNS.get(name, ()), () if name in PATTERNS else (_NOT_BUILT,), False, library)
    row = _judged(name, PATTERNS.get(name, ()), library)
    return row if row.killed or name not in PATTERNS else _sanitized(row, library)


def _judged(name: str, patterns: tuple[int, ...], library: str) -> Row:
    outcome = isolation.run(
        "tests.mutants.gpu:judged_here", {"name": name, "library": library}, limit_seconds=LIMIT_SECONDS
    )
    match outcome:
        case isolation.Returned(dict(found)):
            return Row(name, patterns, tuple(found["killed_by"]), found["flat_check"], found["detail"])
        case isolation.Raised(kind, words) if _FAULT.search(words) and "out of memory" not in words:
            return Row(name, patterns, (f"a CUDA error ({kind})",), False, words[:300])
        case isolation.Raised(kind, words):
            raise AssertionError(f"{name}: {kind}: {words[-3000:]}")
        case isolation.Crashed("SIGKILL"):
            raise AssertionError(f"{name}: killed from outside, as where memory runs out")
        case _:
            return Row(name, patterns, (type(outcome).__name__.lower(),), False, outcome.output[-300:])


def judged_here(name: str, library: str) -> dict[str, Any]:
    """For `isolate`."""
    made = prepared(name)
    return judgement(loaded(made, Path(library)), made, "cuda")


def loaded(made: Prepared, library: Path) -> verify.DirectLaunch:
    """The launch of a built library, on the current device."""
    import torch

    from ucutlass.runtime import direct_launch
    from ucutlass.runtime.launch import BoundKernel, single_launch
    from ucutlass.runtime.library import load_entry

    torch.cuda.init()
    device = torch.device("cuda", torch.cuda.current_device())
    spec, extents = spec_of(made.kernel), complete(made.kernel, made.sizes)
    entry = load_entry(library, made.source.entry)
    launch_parameters = tuple(int(k) for k in made.planned.launch)
    bound = direct_launch.rebind(
        spec, BoundKernel(entry.address, launch_parameters, 0, entry), extents, device
    )
    return direct_launch.direct_launch(spec, single_launch(spec, extents, bound))


# --- sanitizers ----------------------------------------------------------------------


def _sanitized(row: Row, library: str) -> Row:
    """The row with what compute-sanitizer objects to; one that is not installed objects to nothing."""
    tool_path = sanitize.find()
    if tool_path is None:
        return replace(row, detail="not seen; compute-sanitizer is not installed")
    texts: list[str] = []
    for tool in TOOLS:
        with tempfile.TemporaryDirectory() as folder:
            receipt = Path(folder) / "receipt"
            command = [sys.executable, "-c", _LAUNCH, json.dumps(sys.path), row.name, library, str(receipt)]
            report = sanitize.check(
                tool, tool_path, command, receipt, 1, folder=Path(folder), limit_seconds=SANITIZER_SECONDS
            )
        texts.append(f"{tool}: {report.status}: {report.message}")
        if report.status == "findings":
            return replace(row, killed_by=(f"{tool}: {report.message[:160]}",))
    return replace(row, detail="not seen; " + "; ".join(texts))


def launched_here(name: str, library: str, receipt: str) -> None:
    """One launch and nothing else on the device but copies; for compute-sanitizer."""
    import torch

    from ucutlass.runtime.inputs import generate

    made = prepared(name)
    launch = loaded(made, Path(library))
    spec, extents = spec_of(made.kernel), complete(made.kernel, made.sizes)
    arguments = generate(made.kernel, made.sizes, "normal", seed=3, device="cuda")
    results = [
        torch.empty(shape_of(spec, r, extents), dtype=dtype_of(r.elem), device="cuda") for r in spec.results
    ]
    size = launch.workspace
    launch.run(arguments, results, torch.empty(size, dtype=torch.uint8, device="cuda") if size else None)
    torch.cuda.synchronize()
    Path(receipt).write_text("1")

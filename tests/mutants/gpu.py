"""Builds mutants with nvcc, runs them on the GPU, and lets judge and sanitizers look at them."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from tests.mutants.emulated import Prepared, Row, judgement, prepared
from tests.mutants.hopper import HOPPER
from tests.mutants.lowering import LOWERINGS
from ucutlass.backend import toolchain
from ucutlass.emit.text import Source
from ucutlass.runtime import isolate, sanitize, verify
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.declaration import dtype_of, shape_of, spec_of
from ucutlass.runtime.parallel import build_many
from ucutlass.shapes import complete

LIMIT_SECONDS = 300.0
TOOLS: tuple[sanitize.Tool, ...] = ("memcheck", "racecheck")
_LAUNCH = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from tests.mutants.gpu import launched_here; launched_here(*sys.argv[2:])"
)


def run(names: Sequence[str]) -> Iterator[Row]:
    """A row for each mutant or base, by name, in order."""
    patterns = {m.name: m.patterns for m in (*LOWERINGS, *HOPPER)}
    libraries = built([prepared(name).source for name in names])
    for name, library in zip(names, libraries, strict=True):
        row = _judged(name, patterns.get(name, ()), library)
        seen = row.killed or name not in patterns or library.startswith("not built")
        yield row if seen else _sanitized(row, library)


def built(sources: Sequence[Source]) -> list[str]:
    """The library of each source, or `not built: ..`."""
    results = build_many(sources, toolchain(), Cache.from_switches())
    return [
        str(r.library) if isinstance(r, Artifact) else f"not built: {str(r)[:500]}" for r in results
    ]


def _judged(name: str, patterns: tuple[int, ...], library: str) -> Row:
    if library.startswith("not built"):
        # A mutant that nvcc refuses was never judged, so nothing killed it.
        return Row(name, patterns, () if patterns else ("not built",), False, library)
    outcome = isolate.run(
        "tests.mutants.gpu:judged_here", {"name": name, "library": library}, limit_seconds=LIMIT_SECONDS
    )
    match outcome:
        case isolate.Returned(dict(found)):
            return Row(name, patterns, tuple(found["killed_by"]), found["flat_check"], found["detail"])
        case isolate.Raised(kind, words) if "CUDA" in words:
            return Row(name, patterns, (f"a CUDA error ({kind})",), False, words[:300])
        case isolate.Raised(kind, words):
            raise AssertionError(f"{name}: {kind}: {words[-3000:]}")
        case _:
            return Row(name, patterns, (type(outcome).__name__.lower(),), False, outcome.output[-300:])


def judged_here(name: str, library: str) -> dict[str, Any]:
    """For `isolate`."""
    made = prepared(name)
    return judgement(loaded(made, Path(library)), made, "cuda")


def loaded(made: Prepared, library: Path) -> verify.Exposed:
    """The launch of a built library, on the current device."""
    import torch

    from ucutlass.runtime import bare
    from ucutlass.runtime.launch import Bound
    from ucutlass.runtime.library import load_entry

    torch.cuda.init()
    device = torch.device("cuda", torch.cuda.current_device())
    spec, extents = spec_of(made.kernel), complete(made.kernel, made.sizes)
    entry = load_entry(library, made.source.entry)
    knobs = tuple(int(k) for k in astuple(made.planned.knobs))
    bound = bare.rebound(spec, Bound(entry.address, knobs, 0, entry), extents, device)
    return bare.exposed(spec, bound, extents)


# --- sanitizers ----------------------------------------------------------------------


def _sanitized(row: Row, library: str) -> Row:
    """The row with what compute-sanitizer objects to; one that is not installed objects to nothing."""
    tool_path = sanitize.find()
    if tool_path is None:
        return Row(row.name, row.patterns, (), row.flat_check, "not seen; compute-sanitizer is not installed")
    said: list[str] = []
    for tool in TOOLS:
        with tempfile.TemporaryDirectory() as folder:
            receipt = Path(folder) / "receipt"
            command = [sys.executable, "-c", _LAUNCH, json.dumps(sys.path), row.name, library, str(receipt)]
            report = sanitize.check(tool, tool_path, command, receipt, 1, folder=Path(folder))
        said.append(f"{tool}: {report.status}: {report.message}")
        if report.status == "findings":
            return Row(row.name, row.patterns, (f"{tool}: {report.message[:160]}",), row.flat_check)
    return Row(row.name, row.patterns, (), row.flat_check, "not seen; " + "; ".join(said))


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

"""Inspects a PyTorch problem file, and decides whether a program computes the same.

Everything goes in and comes out as JSON values, for `ucutlass.runtime.isolation`. The file's code is executed
here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ucutlass.files import put
from ucutlass.runtime.isolation import STARTS
from ucutlass.spans import span, timed_items
from ucutlass.tasks.gpu_turn import gpu_of
from ucutlass.tasks.result_difference import first_difference

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ucutlass.ir import Program
    from ucutlass.runtime.module.reference import OracleCase


SHARED_INSPECTION = 12 << 30
"""Bytes of a GPU's memory in which a module is looked at while others compute."""


def inspect(
    source: str, file: str, mode: Any, precision: Any, gpu: str = "", wait: float = 0.0
) -> dict[str, Any]:
    """Returns `{"facts": ..}` as `ucutlass.runtime.module.signature` writes them, or `{"unusable": {code,
    why}}`. On a GPU, that of the UUID `gpu`, a module that takes minutes on the CPU takes seconds: beside others in
    SHARED_INSPECTION, and alone where it needs more. What is wrong with a file the CPU decides, and it takes the
    place of a GPU that is in use for longer than `wait` seconds."""
    with span(STARTS):
        import torch

        from ucutlass.runtime.module.inspection import out_of_memory
        from ucutlass.runtime.module.signature import Unusable

    with written_source(source) as path:
        for shared in (True, False) if gpu else ():
            with gpu_of(gpu, wait, or_cpu=True, shared=shared) as device:
                if device == "cpu":
                    break
                try:
                    with _memory(torch, SHARED_INSPECTION if shared and device == "cuda" else None):
                        return _facts(path, mode, precision, device)
                except (Unusable, RuntimeError) as error:
                    large = getattr(error, "code", "") == "memory" or out_of_memory(error)
                if not large:
                    break
        try:
            return _facts(path, mode, precision, "cpu")
        except Unusable as error:
            return {"unusable": {"code": error.code, "why": error.why}}


@span("inputs")
def _facts(path: str, mode: Any, precision: Any, device: str) -> dict[str, Any]:
    import torch

    from ucutlass.runtime.module.inspection import inspect_file
    from ucutlass.runtime.module.signature import signature_to_json

    with torch.device(device):
        return {"facts": signature_to_json(inspect_file(path, mode, precision))}


@contextmanager
def _memory(torch: Any, most: int | None) -> Iterator[None]:
    """Bounds the bytes of the GPU's memory that this process may take."""
    if most is None:
        yield
        return
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, most / total))
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def same(
    source: str,
    file: str,
    mode: Any,
    precision: Any,
    names: dict[str, str],
    program: dict[str, Any],
    name: str,
    seed: int,
    gpu: str = "",
    wait: float = 0.0,
    shared: bool = False,
) -> dict[str, Any]:
    """Returns whether a program, of a payload of `ucutlass.handoff`, computes what a file's module does:
    `{"words": ""}`, where they differ `{"words": ..}`, or `{"unusable": ..}`. `names` says of each parameter
    of the program what it is, `input NUMBER` or `state NAME`. Both are evaluated on the GPU of the UUID `gpu`,
    with its lock held, for which this waits so many seconds, `shared` with others; on the CPU for "". `held` are the seconds that the lock
    was held."""
    import time

    with gpu_of(gpu, wait, or_cpu=False, shared=shared) as device:
        start = time.monotonic()
        answer = _same(source, mode, precision, names, program, name, seed, device)
        return answer | {"held": time.monotonic() - start}


def _same(
    source: str,
    mode: Any,
    precision: Any,
    names: dict[str, str],
    program: dict[str, Any],
    name: str,
    seed: int,
    device: str,
) -> dict[str, Any]:
    from ucutlass import frontend
    from ucutlass.handoff import checked_of
    from ucutlass.reference.unrounded import unrounded
    from ucutlass.runtime.module.inspection import load_bound
    from ucutlass.runtime.module.reference import cases
    from ucutlass.runtime.module.signature import Unusable

    candidate = unrounded(frontend.program(checked_of(program), name))
    bound = frozenset(key.partition(" ")[2] for key in names.values() if key.startswith("state "))
    with written_source(source) as path:
        try:
            with span("inputs"):
                loaded = load_bound(path, mode, precision, bound, device)
            decisive = False
            for case in timed_items("inputs", cases(loaded, bound, seed, device)):
                words = _apart(candidate, names, case)
                if words:
                    return {"words": f"on {_DRAWN[case.draw]}, {words}"}
                decisive = decisive or any(bool(r.isfinite().any()) for r in case.results)
                del case  # the next one may fill the memory
            if not decisive:
                raise Unusable(path, "widened", "it gives no finite number on any of the draws")
        except Unusable as error:
            return {"unusable": {"code": error.code, "why": error.why}}
    return {"words": ""}


_DRAWN: Mapping[str, str] = {
    "own": "the file's own inputs and weights",
    "again": "the file's inputs, drawn anew, and other weights",
    "normal": "normal numbers",
    "integer": "small whole numbers",
    "positive": "numbers from 4 to 8",
    "wide": "numbers of many magnitudes",
}


@contextmanager
def written_source(source: str) -> Iterator[str]:
    """The recorded text as a file: what a session judges is not what the file has become since."""
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "problem.py"
        put(path, source)
        yield str(path)


def _apart(program: Program, names: Mapping[str, str], case: OracleCase) -> str:
    """Where the program's results differ from the module's; "" where they do not."""
    from ucutlass.reference import evaluated_slices
    from ucutlass.reference.errors import CallError

    arguments = [_argument(p, names[p.name], case) for p in program.params]
    try:
        for part in evaluated_slices(program, arguments):
            for at, (ours, whole) in enumerate(zip(part.results, case.results, strict=True)):
                theirs = part.slice_of(at, whole)
                with span("comparison"):
                    words = first_difference(theirs, ours, case.tolerances[at])
                if words:
                    return f"result {at} differs{part.words}: {words}"
    except CallError as error:
        return f"it cannot be evaluated: {error}"
    return ""


def _argument(decl: Any, key: str, case: OracleCase) -> Any:
    from ucutlass.ir import ScalarType
    from ucutlass.reference.rounding import outer_dtype

    kind, _, name = key.partition(" ")
    value = case.inputs[int(name)] if kind == "input" else case.state[name]
    if isinstance(decl.type, ScalarType):
        return value
    return value.to(outer_dtype(decl.type.elem)).contiguous()

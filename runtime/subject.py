"""Identifies what an evidence record is about: digests of programs, algorithms, files and this package, and
the machine.

The digests answer one question each. `program_digest`: the same text? `algorithm_digest`: the same
computation, however scheduled, formatted or named? `file_digest`: the very file that was measured?
`harness_digest`: the same code of ours that measured it?
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from ucutlass import ir
from ucutlass.ir import extents
from ucutlass.runtime import system
from ucutlass.runtime.evidence import Machine, RecordSubject

# --- programs --------------------------------------------------------------------


def program_digest(text: str) -> str:
    """Returns the hex SHA-256 of a program's text, in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def algorithm_digest(program: ir.Program) -> str:
    """Returns the hex SHA-256 of what the typed program computes, and of how its tensors lie in memory.

    Schedules, spans and every name of the program take no part: dimensions count by position,
    parameters and results too. Values count by the graph below the results and requirements, equal
    subexpressions once, so neither the order of definitions nor sharing matters. Programs with
    equal digests compute the same; unequal ones may still be equal by algebra.
    """
    match program:
        case ir.Kernel():
            form = _kernel_form(program)
        case ir.Pipeline():
            form = _pipeline_form(program)
    return hashlib.sha256(json.dumps(form, separators=(",", ":")).encode()).hexdigest()


def _kernel_form(kernel: ir.Kernel) -> list[Any]:
    place = {dim: at for at, dim in enumerate(kernel.dims)}
    roots = [*(r.value for r in kernel.results), *kernel.requires]
    nodes, numbers = _nodes(roots, place)
    count = len(kernel.results)
    return [
        "kernel",
        [_extent(e, place) for e in kernel.dims.values()],
        [_type(p.type, place) for p in kernel.params],
        nodes,
        [[_type(r.type, place), n] for r, n in zip(kernel.results, numbers, strict=False)],
        numbers[count:],
    ]


def _pipeline_form(pipeline: ir.Pipeline) -> list[Any]:
    place = {dim: at for at, dim in enumerate(pipeline.dims)}
    # Buffers are numbered as data meets them: parameters, then what each stage fills.
    filled = [o for stage in pipeline.stages for o in stage.outputs]
    met = dict.fromkeys([*(p.name for p in pipeline.params), *filled])
    number = {name: at for at, name in enumerate(met)}

    def stage_form(stage: ir.Stage) -> list[Any]:
        match stage.call:
            case ir.Kernel() as kernel:
                call: list[Any] = _kernel_form(kernel)
            case ir.TorchCall(function, keywords, results, gives):
                words = sorted([name, _number(value)] for name, value in keywords)
                call = ["torch", function, words, [_type(t, place) for t in results], list(gives)]
        arguments = [["buffer", number[a]] if isinstance(a, str) else _number(a) for a in stage.arguments]
        return [call, arguments, [number[o] for o in stage.outputs]]

    return [
        "pipeline",
        [_extent(e, place) for e in pipeline.dims.values()],
        [_type(p.type, place) for p in pipeline.params],
        [stage_form(stage) for stage in pipeline.stages],
        [[_type(t, place), number[name]] for name, t in pipeline.results],
    ]


_Places = Mapping[str, int]


def _nodes(roots: Sequence[ir.Value], place: _Places) -> tuple[list[Any], list[int]]:
    """Returns every value below the roots, children first, and the roots' numbers among them."""
    numbered: dict[str, int] = {}
    done: dict[int, int] = {}
    for root in roots:
        pending = [root]  # no recursion: long programs are deep graphs
        while pending:
            node = pending[-1]
            below = ir.children(node)
            if waiting := [c for c in below if id(c) not in done]:
                pending += reversed(waiting)
                continue
            pending.pop()
            form = json.dumps([*_node(node, place), [done[id(c)] for c in below]], separators=(",", ":"))
            done[id(node)] = numbered.setdefault(form, len(numbered))
    return [json.loads(form) for form in numbered], [done[id(root)] for root in roots]


def _node(value: ir.Value, place: _Places) -> list[Any]:
    """Returns a value's kind, type and own attributes; its children are not among them."""
    return [type(value).__name__, value.elem.name, _dims(value.dims, place), *_attributes(value, place)]


def _attributes(value: ir.Value, place: _Places) -> list[Any]:
    match value:
        case ir.ParamValue(index=index):
            return [index]
        case ir.Constant(value=number):
            return [_number(number)]
        case ir.Size(extent=extent):
            return [_extent(extent, place)]
        case ir.Coordinate(dim=dim) | ir.Gather(dim=dim) | ir.Segment(dim=dim):
            return [place[dim]]
        case ir.Apply(function=function):
            return [function]
        case ir.Cast():
            return []
        case ir.Dot(over=over, compute_type=compute_type, accumulate=accumulate):
            return [_dims(over, place), compute_type.name, accumulate]
        case ir.Reduce(op=op, over=over):
            return [op, _dims(over, place)]
        case ir.Softmax(over=over, log=log):
            return [_dims(over, place), log]
        case ir.Scan(op=op, along=along, exclusive=exclusive, reverse=reverse):
            return [op, place[along], exclusive, reverse]
        case ir.Read(positions=positions, fill=fill):
            return [[_position(p, place) for p in positions], _number(fill)]


def _position(position: ir.Position, place: _Places) -> list[Any]:
    terms = sorted([place[dim], factor] for dim, factor in position.at.terms)
    return [place[position.dim], position.scale, terms, _extent(position.at.offset, place)]


def _number(value: float | int | bool) -> list[str]:
    """Exact, and apart by kind: 1, 1.0 and true are three values, -0.0 is not 0.0."""
    return [type(value).__name__, value.hex() if isinstance(value, float) else str(value)]


def _extent(extent: extents.Extent, place: _Places) -> Any:
    match extent:
        case extents.Fixed(value):
            return value
        case extents.Free(dim):
            return ["free", place[dim]]
        case extents.Combined(op, left, right):
            return [op, _extent(left, place), _extent(right, place)]


def _dims(dims: ir.Dims, place: _Places) -> list[int]:
    return [place[dim] for dim in dims]


def _type(kind: ir.ParamType, place: _Places) -> list[Any]:
    match kind:
        case ir.ScalarType(elem):
            return ["scalar", elem.name]
        case ir.TensorType(elem, axes):
            return ["tensor", elem.name, [[_dims(a.dims, place), _extent(a.extent, place)] for a in axes]]


def subject_of(
    program: ir.Program,
    text: str,
    sizes: Sequence[int],
    *,
    arch: str,
    compute_type: str,
    schedule: str,
    code: str = "",
    library: Path | Sequence[Path] | None = None,
) -> RecordSubject:
    """Returns the subject that a checked program at these extents is, `sizes` in the order of its dims.

    `text` is its whole file, `code` what was emitted (without its header comment, which only
    explains), `library` the file that was loaded, or a pipeline's, in the order of its stages. Raises
    OSError where that cannot be read, ValueError for another number of extents than the program has.
    """
    return RecordSubject(
        kernel=program.name,
        program=program_digest(text),
        algorithm=algorithm_digest(program),
        schedule=schedule,
        arch=arch,
        lane=compute_type,
        sizes=dict(zip(program.dims, sizes, strict=True)),
        source=program_digest(code) if code else "",
        binary=_binary(library),
    )


def _binary(library: Path | Sequence[Path] | None) -> str:
    match library:
        case None:
            return ""
        case Path():
            return file_digest(library)
        case several:
            return program_digest("\n".join(file_digest(library_file) for library_file in several))


# --- files -----------------------------------------------------------------------


def file_digest(path: Path) -> str:
    """Returns the hex SHA-256 of a file's bytes. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


_HARNESS = frozenset({".py", ".j2", ".c", ".h", ".ptx", ".lark"})
"""Endings of sources. Tables that are made of them at install, or not at all, are left out."""


@cache
def harness_digest() -> str:
    """Returns the hex SHA-256 of this package's own code, as it lay on disk at the first call of the process.

    The same for a wheel, an editable installation and a checkout of one version.
    """
    import ucutlass

    assert ucutlass.__file__ is not None
    return tree_digest(Path(ucutlass.__file__).parent)


def tree_digest(root: Path) -> str:
    """Returns the hex SHA-256 of the paths below `root` and bytes of all sources there, through links too: the
    packages of a checkout are links. Raises OSError."""
    files = {
        path.relative_to(root).as_posix(): path
        for folder, _, names in os.walk(root, followlinks=True)
        for name in names
        if (path := Path(folder, name)).suffix in _HARNESS
    }
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0{file_digest(files[name])}\n".encode())
    return digest.hexdigest()


# --- machines --------------------------------------------------------------------

_MODULE, _PROC = Path("/sys/module/nvidia/version"), Path("/proc/driver/nvidia/version")
_DISTRIBUTIONS = {"ucutlass": "ucutlass", "torch": "torch", "cutlass": "nvidia-cutlass"}


def machine_of(device: int | None, built_with: Mapping[str, str] | None = None) -> Machine:
    """This machine with one CUDA device (an index of torch's), or none for what ran on the CPU.

    `built_with` adds versions that took part in a build, such as `Artifact.versions`; nothing is
    run to find any. A version that cannot be told is left out. Raises what torch raises for a
    device that is not there.
    """
    versions = {"python": platform.python_version()}
    for name, distribution in _DISTRIBUTIONS.items():
        try:
            versions[name] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    versions |= built_with or {}
    if device is None:
        return Machine("", "", versions)
    import torch

    properties = torch.cuda.get_device_properties(device)
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    if loaded := driver_version():
        versions["driver"] = loaded
    if served := system.driver():
        versions["driver_cuda"] = "{}.{}".format(*served.cuda)
    return Machine(properties.name, uuid_text(str(properties.uuid)), versions)


def driver_version(module: Path = _MODULE, proc: Path = _PROC) -> str:
    """Returns the loaded kernel module's version, such as "570.124.06"; "" where it cannot be read."""
    with suppress(OSError):
        return module.read_text(encoding="utf-8").strip()
    with suppress(OSError):
        m = re.search(r"^NVRM version:.*?(\d+(?:\.\d+)+)", proc.read_text(encoding="utf-8"), re.MULTILINE)
        return m[1] if m else ""
    return ""


def uuid_text(uuid: str) -> str:
    """Returns a UUID as nvidia-smi and NVML write it, "GPU-" before; torch writes the bare number."""
    return uuid if not uuid or uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"

"""This module writes programs as files that KernelBench's own evaluation takes (github
ScalingIntelligence/KernelBench, src/kernelbench/eval.py), in two forms.

`through_ucutlass` holds the program and imports this package. `standalone` holds the emitted CUDA source, which
PyTorch's `load_inline` compiles with flags of its own: no implicit headers, a named architecture, and without the
macros that take away the operators of half types. Its entries are called by ctypes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ucutlass import ir
from ucutlass.agent.model_new import RUN, model_new
from ucutlass.agent.module import TorchModule, match_module
from ucutlass.backend import source_of
from ucutlass.emit.text import Source
from ucutlass.frontend import Checked, plan_kernel
from ucutlass.kernels.planned import Planned
from ucutlass.pipeline.planning import plan_pipeline
from ucutlass.pipeline.workspace import pointers
from ucutlass.reference.binding import shape_of
from ucutlass.runtime.nvcc import HOST, LANGUAGE, TARGETS

Backend: TypeAlias = Literal["cuda", "cute"]
"""How KernelBench loads the file and what its static checker asks of it."""

FLAGS = (
    *LANGUAGE,
    HOST,
    *("-U__CUDA_NO_HALF_OPERATORS__", "-U__CUDA_NO_HALF_CONVERSIONS__", "-U__CUDA_NO_HALF2_OPERATORS__"),
    "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
)
"""Those of our own builds, behind PyTorch's, which defines macros that take the operators of half types away."""

ARCHES = ("sm90a", "sm80")
"""Targets in the order in which they are tried. A file names its architecture itself: PyTorch then adds none, and
its own for Hopper lacks wgmma."""


class NotExportable(ValueError):
    """Raised for a program that a form cannot hold; says why."""


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """A file's text, the backend to evaluate it with, and the target and entries of its kernels."""

    text: str
    backend: Backend
    arch: str
    entries: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExportedLaunch:
    """One launch, as the file describes it: names are of tensors, `scalars` of parameters or numbers."""

    source: Source
    tensors: tuple[str, ...]
    extents: tuple[int, ...]
    scalars: tuple[str | float, ...]
    launch: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KernelSeries:
    """The launches of a program, the tensors to allocate as shape and element type, and the names of its results."""

    kernels: Sequence[ExportedLaunch]
    buffers: Mapping[str, tuple[Sequence[int], str]]
    results: Sequence[str]


_HEAD = """\
import functools
import torch
"""

_STATE = """
def _state(module, path):
    return functools.reduce(getattr, path.split("."), module)

"""


def through_ucutlass(checked: Checked, program: ir.Program, module: TorchModule) -> ExportedModel:
    """Returns the form that imports this package, which builds the program at the first call. Raises
    NotExportable, NotRewritable."""
    keys = _keys(program, module)
    dtypes = {p.name: p.type.elem.torch for p in program.params if isinstance(p.type, ir.TensorType)}
    text = (
        _HEAD
        + "import ucutlass\n\n"
        + f"PROGRAM = {_literal(checked.source)}\n"
        + f"NAME = {program.name!r}\n"
        + f"DTYPES = {json.dumps(dtypes)}\n\n"
        + _THROUGH
        + _STATE
        + model_new(module.source, keys)
    )
    return ExportedModel(text, "cute", "", ())


_THROUGH = f"""
@functools.cache
def _program():
    return ucutlass.loads(PROGRAM, NAME)


def _taken(name, value):
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(getattr(torch, DTYPES[name])).contiguous()


def {RUN}(values):
    return _program()(*(_taken(name, value) for name, value in values.items()))

"""


def standalone(checked: Checked, program: ir.Program, module: TorchModule) -> ExportedModel:
    """Returns the form that needs PyTorch, nvcc and CUTLASS's headers alone. Kernels are planned for sm90a, or,
    where one of them is built of parts that a file cannot hold, all for sm80, which Hopper runs too. Raises
    NotExportable, NotRewritable, ProgramError."""
    match = match_module(program, module)
    if isinstance(match, str):
        raise NotExportable(match)
    series = kernel_series(checked, program, match.sizes)
    text = standalone_functions(series, program, match.sizes) + _STATE + model_new(module.source, match.keys)
    sources = {kernel.source.entry: kernel.source.code for kernel in series.kernels}
    backend: Backend = "cuda" if all("__global__" in code for code in sources.values()) else "cute"
    return ExportedModel(text, backend, series.kernels[0].source.arch, tuple(sources))


def kernel_series(checked: Checked, program: ir.Program, sizes: Mapping[str, int]) -> KernelSeries:
    """Returns the launches of a program for the first of ARCHES for which each of its kernels is one file. Raises
    NotExportable, ProgramError."""
    for arch in ARCHES:
        series = _series(checked, program, sizes, arch)
        if not any(kernel.source.in_parts for kernel in series.kernels):
            return series
    raise NotExportable("one of its kernels is built of parts, which a file cannot hold")


def standalone_functions(series: KernelSeries, program: ir.Program, sizes: Mapping[str, int]) -> str:
    """Returns a Python file whose function `RUN` builds the kernels by `load_inline` and launches them."""
    params = {
        p.name: [list(shape_of(p.type, sizes)), p.type.elem.torch]
        for p in program.params
        if isinstance(p.type, ir.TensorType)
    }
    sources = {kernel.source.entry: kernel.source.code for kernel in series.kernels}
    steps = [[k.source.entry, k.tensors, k.extents, k.scalars, k.launch] for k in series.kernels]
    gencode = f"-gencode={TARGETS[series.kernels[0].source.arch].gencode}"
    return (
        "import ctypes\nimport importlib.util\nimport os\n"
        + _HEAD
        + "from torch.utils.cpp_extension import load_inline\n\n"
        + "SOURCES = {\n"
        + "".join(f"{entry!r}: {_literal(code)},\n" for entry, code in sources.items())
        + "}\n"
        + f"FLAGS = {json.dumps([*FLAGS, gencode])}\n"
        + f"PARAMETERS = {json.dumps(params)}\n"
        + f"BUFFERS = {json.dumps(series.buffers)}\n"
        + f"STEPS = {json.dumps(steps)}\n"
        + f"RESULTS = {json.dumps(series.results)}\n\n"
        + _ALONE
    )


_ALONE = f"""
def _headers():
    folder = os.environ.get("CUTLASS_DIR")
    spec = importlib.util.find_spec("cutlass_library")
    if folder is None and spec is not None:
        folder = os.path.join(spec.submodule_search_locations[0], "source")
    if folder is None:
        return []
    return [os.path.join(folder, "include"), os.path.join(folder, "tools/util/include")]


@functools.cache
def _entry(name):
    path = load_inline(
        name=name,
        cpp_sources=[""],
        cuda_sources=[SOURCES[name]],
        functions=None,
        extra_cuda_cflags=FLAGS,
        extra_ldflags=["-Wl,-Bsymbolic"],
        extra_include_paths=_headers(),
        with_cuda=True,
        is_python_module=False,
        no_implicit_headers=True,
    )
    return getattr(ctypes.CDLL(path), name)


def _parameter(name, value):
    if name not in PARAMETERS:
        return value
    shape, dtype = PARAMETERS[name]
    if list(value.shape) != shape:
        raise RuntimeError(f"{{name}} has the shape {{list(value.shape)}}; the kernels were planned for {{shape}}")
    value = value.to(getattr(torch, dtype)).contiguous()
    return value if value.data_ptr() % 16 == 0 else value.clone()


def {RUN}(values):
    held = {{name: _parameter(name, value) for name, value in values.items()}}
    device = next(v.device for v in held.values() if isinstance(v, torch.Tensor))
    for name, (shape, dtype) in BUFFERS.items():
        held[name] = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
    stream = ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream)
    for name, tensors, extents, scalars, launch in STEPS:
        entry = _entry(name)
        numbers = [float(held[s] if isinstance(s, str) else s) for s in scalars]
        arguments = (
            (ctypes.c_void_p * len(tensors))(*(held[t].data_ptr() for t in tensors)),
            (ctypes.c_int64 * len(extents))(*extents),
            (ctypes.c_double * max(1, len(numbers)))(*numbers),
            (ctypes.c_int64 * max(1, len(launch)))(*launch),
        )
        size = ctypes.c_uint64(0)
        status = entry(*arguments, None, ctypes.byref(size), stream)
        workspace = torch.empty(size.value, dtype=torch.uint8, device=device)
        status = status or entry(*arguments, ctypes.c_void_p(workspace.data_ptr()), None, stream)
        if status != 0:
            raise RuntimeError(f"{{name}} refused its launch with {{status}}")
    results = [held[name] for name in RESULTS]
    return results[0] if len(results) == 1 else tuple(results)

"""


def _keys(program: ir.Program, module: TorchModule) -> Mapping[str, str]:
    match = match_module(program, module)
    if isinstance(match, str):
        raise NotExportable(match)
    return match.keys


def _series(checked: Checked, program: ir.Program, sizes: Mapping[str, int], arch: str) -> KernelSeries:
    extents = tuple(sizes[name] for name in program.dims)
    if isinstance(program, ir.Kernel):
        planned = plan_kernel(checked, program, extents, arch).planned
        results = {r.name or f"result {n}": r.type for n, r in enumerate(program.results)}
        params = [p.name for p in program.params if isinstance(p.type, ir.TensorType)]
        scalars = [p.name for p in program.params if isinstance(p.type, ir.ScalarType)]
        kernel = _kernel(checked, program, planned, (*params, *results), extents, scalars)
        buffers = {n: _buffer(t, shape_of(t, sizes)) for n, t in results.items()}
        return KernelSeries([kernel], buffers, list(results))
    plan = plan_pipeline(checked, program, extents, arch)
    kernels: list[ExportedLaunch] = []
    for stage in plan.stages:
        step = stage.step
        if stage.chosen is None or step.kernel is None:
            raise NotExportable(f"its stage {step.name} is a function of torch")
        scalars_of_stage = [
            argument
            for decl, argument in zip(step.kernel.params, step.stage.arguments, strict=True)
            if isinstance(decl.type, ir.ScalarType)
        ]
        kernels.append(
            _kernel(checked, step.kernel, stage.chosen.planned, pointers(step), step.sizes, scalars_of_stage)
        )
    buffers = {
        name: _buffer(buffer.type, buffer.shape)
        for name, buffer in plan.sized.buffers.items()
        if name not in plan.sized.params
    }
    return KernelSeries(kernels, buffers, list(plan.sized.results))


def _kernel(
    checked: Checked,
    program: ir.Kernel,
    planned: Planned,
    tensors: Sequence[str],
    extents: Sequence[int],
    scalars: Sequence[str | float],
) -> ExportedLaunch:
    source = source_of(checked, program, planned)
    return ExportedLaunch(source, tuple(tensors), tuple(extents), tuple(scalars), tuple(planned.launch))


def _buffer(type_: ir.TensorType, shape: Sequence[int]) -> tuple[Sequence[int], str]:
    if type_.elem.packed != 1 or type_.elem.torch is None:
        raise NotExportable(f"torch has no {type_.elem.name} of its own")
    return list(shape), type_.elem.torch


def _literal(text: str) -> str:
    """Returns a text as a literal of Python that a person can read."""
    if "'''" in text or text.endswith(("'", "\\")):
        return repr(text)
    return f"r'''{text}'''"

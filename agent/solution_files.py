"""This module writes a program as an entry of two benchmarks of kernels that share a format: a definition of what is
computed, a workload, and a solution with its sources (github flashinfer-ai/flashinfer-bench and NVIDIA/SOL-ExecBench,
their `docs/`).

FlashInfer-Bench gets a Python file that builds its kernels by `load_inline`, since its own builder takes no flags.
SOL-ExecBench forbids that and takes flags: its solution is CUDA with a binding in C++, which writes into the results
that it is given.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from ucutlass import ir
from ucutlass.agent.kernelbench_export import (
    FLAGS,
    KernelSeries,
    NotExportable,
    kernel_series,
    standalone_functions,
)
from ucutlass.agent.model_new import RUN
from ucutlass.agent.module import ModuleMatch, TorchModule, match_module
from ucutlass.frontend import Checked
from ucutlass.reference.binding import shape_of
from ucutlass.runtime.inputs import result_types
from ucutlass.runtime.nvcc import TARGETS

AUTHOR = "ucutlass"
HARDWARE = ("NVIDIA_H100", "NVIDIA_H200")

DTYPES = frozenset(
    {
        "float32",
        "float16",
        "bfloat16",
        "int64",
        "int32",
        "int16",
        "int8",
        "bool",
        "float8_e4m3fn",
        "float8_e5m2",
    }
)
"""Element types that both formats name as torch does."""


def flashinfer_bench(
    checked: Checked, program: ir.Program, module: TorchModule, name: str
) -> Mapping[str, str]:
    """Returns files by path below the benchmark's folder of traces. Raises NotExportable, ProgramError."""
    match = _match(program, module)
    series = kernel_series(checked, program, match.sizes)
    spec = {
        "language": "python",
        "target_hardware": list(HARDWARE),
        "entry_point": "main.py::run",
        "destination_passing_style": False,
        "dependencies": ["torch"],
    }
    parameters = ", ".join(p.name for p in program.params)
    values = ", ".join(f"{p.name!r}: {p.name}" for p in program.params)
    main = standalone_functions(series, program, match.sizes) + (
        f"def run({parameters}):\n    return {RUN}({{{values}}})\n"
    )
    return _files(program, module, match, name, spec, {"main.py": main})


def sol_execbench(checked: Checked, program: ir.Program, module: TorchModule, name: str) -> Mapping[str, str]:
    """Returns files by path as `flashinfer_bench` does. Raises NotExportable, ProgramError."""
    match = _match(program, module)
    series = kernel_series(checked, program, match.sizes)
    codes = {kernel.source.entry: kernel.source.code for kernel in series.kernels}
    plain = not any("cutlass/" in code or "cute/" in code for code in codes.values())
    gencode = f"-gencode={TARGETS[series.kernels[0].source.arch].gencode}"
    spec = {
        "languages": ["cuda_cpp" if plain else "cutlass"],
        "target_hardware": ["LOCAL"],
        "entry_point": "binding.cpp::run",
        "destination_passing_style": True,
        "binding": "torch",
        "dependencies": [] if plain else ["cutlass"],
        # Its defaults are --use_fast_math, by which results are others.
        "compile_options": {"cflags": ["-O3"], "cuda_cflags": [*FLAGS, gencode], "ld_flags": ["-lcuda"]},
    }
    sources = {"binding.cpp": _binding(program, match.sizes, series)}
    sources |= {f"{entry}.cu": code for entry, code in codes.items()}
    return _files(program, module, match, name, spec, sources)


def _match(program: ir.Program, module: TorchModule) -> ModuleMatch:
    match = match_module(program, module)
    if isinstance(match, str):
        raise NotExportable(match)
    return match


def _files(
    program: ir.Program,
    module: TorchModule,
    match: ModuleMatch,
    name: str,
    spec: Mapping[str, Any],
    sources: Mapping[str, str],
) -> Mapping[str, str]:
    solution = {
        "name": f"{name}_ucutlass",
        "definition": name,
        "author": AUTHOR,
        "spec": dict(spec),
        "sources": [{"path": path, "content": content} for path, content in sources.items()],
    }
    workload = {
        "definition": name,
        "workload": {
            "uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, name)),
            "axes": {},
            "inputs": {p.name: _input(p, module, match) for p in program.params},
        },
        "solution": None,
        "evaluation": None,
    }
    return {
        f"definitions/kernelbench/{name}.json": _text(definition(program, module, match, name)),
        f"workloads/kernelbench/{name}.jsonl": json.dumps(workload) + "\n",
        f"solutions/{AUTHOR}/kernelbench/{name}/{name}_ucutlass.json": _text(solution),
    }


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=1) + "\n"


def _input(decl: ir.ParamDecl, module: TorchModule, match: ModuleMatch) -> Mapping[str, Any]:
    if isinstance(decl.type, ir.TensorType):
        return {"type": "random"}
    kind, _, which = match.keys[decl.name].partition(" ")
    value = getattr(module.facts.inputs[int(which)], "value", None) if kind == "input" else None
    if not isinstance(value, bool | int | float):
        raise NotExportable(f"the number {decl.name} is no input of the module")
    return {"type": "scalar", "value": value}


# --- the definition --------------------------------------------------------------


def definition(program: ir.Program, module: TorchModule, match: ModuleMatch, name: str) -> dict[str, Any]:
    """Returns what a module computes, as both benchmarks take it: its state is given as inputs, and the reference is
    the module itself. Raises NotExportable."""
    axes: dict[str, dict[str, Any]] = {}
    results = result_types(program)
    outputs = {_output(n, len(results)): _tensor(t, match.sizes, axes) for n, t in enumerate(results)}
    inputs = {
        p.name: _tensor(p.type, match.sizes, axes)
        if isinstance(p.type, ir.TensorType)
        else {"shape": None, "dtype": "float32" if p.type.elem.kind == "float" else "int64"}
        for p in program.params
    }
    return {
        "name": name,
        "op_type": "kernelbench",
        "description": f"KernelBench's module {module.file.rsplit('/', 1)[-1]}",
        "axes": axes,
        "inputs": inputs,
        "outputs": outputs,
        "reference": _reference(program, module, match),
    }


def _output(number: int, count: int) -> str:
    return "output" if count == 1 else f"output_{number}"


def _tensor(
    type_: ir.TensorType, sizes: Mapping[str, int], axes: dict[str, dict[str, Any]]
) -> Mapping[str, Any]:
    """Returns a tensor by names of axes, and adds those: a dimension of the program, or the extent itself."""
    if type_.elem.packed != 1 or type_.elem.torch not in DTYPES:
        raise NotExportable(f"the formats have no {type_.elem.name}")
    names: list[str] = []
    for axis, extent in zip(type_.axes, shape_of(type_, sizes), strict=True):
        name = axis.dims[0] if len(axis.dims) == 1 and sizes[axis.dims[0]] == extent else f"n{extent}"
        axes.setdefault(name, {"type": "const", "value": extent})
        names.append(name)
    return {"shape": names, "dtype": type_.elem.torch}


def _reference(program: ir.Program, module: TorchModule, match: ModuleMatch) -> str:
    parameters = ", ".join(p.name for p in program.params)
    count = len(module.facts.inputs)
    inputs: list[str] = ["None"] * count
    state: list[str] = []
    for name, key in match.keys.items():
        kind, _, place = key.partition(" ")
        if kind == "input":
            inputs[int(place)] = name
        else:
            state.append(f"{place!r}: {name}")
    call = f"torch.func.functional_call(model, {{{', '.join(state)}}}, ({', '.join(inputs)},))"
    where = next((p.name for p in program.params if isinstance(p.type, ir.TensorType)), None)
    return (
        f"{module.source.rstrip()}\n\n\nimport functools\n\n\n"
        "@functools.cache\ndef _model(device):\n    return Model(*get_init_inputs()).to(device)\n\n\n"
        f"def run({parameters}):\n    model = _model({where}.device)\n"
        f"    with torch.no_grad():\n        return {call}\n"
    )


# --- the binding -----------------------------------------------------------------

_SCALAR_TYPES: Mapping[str, str] = {
    "float32": "torch::kFloat32",
    "float16": "torch::kFloat16",
    "bfloat16": "torch::kBFloat16",
    "float64": "torch::kFloat64",
    "int64": "torch::kInt64",
    "int32": "torch::kInt32",
    "int16": "torch::kInt16",
    "int8": "torch::kInt8",
    "uint8": "torch::kUInt8",
    "bool": "torch::kBool",
}

_HEAD = """\
#include <ATen/cuda/CUDAContext.h>
#include <torch/extension.h>

#include <cstdint>
#include <vector>

using Entry = int32_t(void* const*, int64_t const*, double const*, int64_t const*, void*, uint64_t*, void*);
"""

_LAUNCH = """
static void launch(Entry* entry, std::vector<void*> tensors, std::vector<int64_t> extents,
                   std::vector<double> scalars, std::vector<int64_t> parameters, torch::Tensor const& near) {
  scalars.push_back(0.0);
  parameters.push_back(0);
  void* stream = at::cuda::getCurrentCUDAStream().stream();
  uint64_t size = 0;
  int32_t status = entry(tensors.data(), extents.data(), scalars.data(), parameters.data(), nullptr, &size, stream);
  TORCH_CHECK(status == 0, "the kernel refused its arguments with ", status);
  torch::Tensor workspace = torch::empty({int64_t(size)}, near.options().dtype(torch::kUInt8));
  status = entry(tensors.data(), extents.data(), scalars.data(), parameters.data(), workspace.data_ptr(), nullptr,
                 stream);
  TORCH_CHECK(status == 0, "the kernel refused its launch with ", status);
}

static torch::Tensor taken(torch::Tensor const& tensor, std::vector<int64_t> shape) {
  TORCH_CHECK(tensor.sizes() == shape, "the kernels were planned for other shapes");
  torch::Tensor dense = tensor.contiguous();
  return reinterpret_cast<uintptr_t>(dense.data_ptr()) % 16 == 0 ? dense : dense.clone();
}
"""


def _binding(program: ir.Program, sizes: Mapping[str, int], series: KernelSeries) -> str:
    """Returns the function `run` of the inputs, then the results, as C++."""
    entries = dict.fromkeys(kernel.source.entry for kernel in series.kernels)
    outputs = [_output(n, len(series.results)) for n in range(len(series.results))]
    arguments = [
        f"torch::Tensor {p.name}_" if isinstance(p.type, ir.TensorType) else f"double {p.name}_"
        for p in program.params
    ]
    arguments += [f"torch::Tensor {name}_" for name in outputs]
    tensors = [p.name for p in program.params if isinstance(p.type, ir.TensorType)]
    lines = [
        f"  torch::Tensor {_name(p.name)} = taken({p.name}_, {_list(shape_of(p.type, sizes))});"
        for p in program.params
        if isinstance(p.type, ir.TensorType)
    ]
    near = f"{tensors[0]}_" if tensors else f"{outputs[0]}_"
    for name, (shape, dtype) in series.buffers.items():
        options = f"{near}.options().dtype({_scalar_type(dtype)})"
        lines.append(f"  torch::Tensor {_name(name)} = torch::empty({_list(shape)}, {options});")
    for kernel in series.kernels:
        pointers = ", ".join(f"{_name(t)}.data_ptr()" for t in kernel.tensors)
        scalars = ", ".join(f"{s}_" if isinstance(s, str) else repr(float(s)) for s in kernel.scalars)
        lines.append(
            f"  launch({kernel.source.entry}, {{{pointers}}}, {_list(kernel.extents)}, {{{scalars}}}, "
            f"{_list(kernel.launch)}, {near});"
        )
    lines += [f"  {out}_.copy_({_name(name)});" for out, name in zip(outputs, series.results, strict=True)]
    return (
        _HEAD
        + 'extern "C" {\n'
        + "".join(f"Entry {entry};\n" for entry in entries)
        + "}\n"
        + _LAUNCH
        + f"\nvoid run({', '.join(arguments)}) {{\n"
        + "\n".join(lines)
        + '\n}\n\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }\n'
    )


def _name(tensor: str) -> str:
    """Returns a name of C++ for a tensor of a program: `result 0` is no name, and `x` may be a type's."""
    return "t_" + "".join(c if c.isalnum() else "_" for c in tensor)


def _list(numbers: Sequence[int]) -> str:
    return "{" + ", ".join(map(str, numbers)) + "}"


def _scalar_type(dtype: str) -> str:
    if dtype not in _SCALAR_TYPES:
        raise NotExportable(f"the binding has no {dtype}")
    return _SCALAR_TYPES[dtype]

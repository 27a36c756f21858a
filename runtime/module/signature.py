"""The signature of a PyTorch problem file's module: its inputs, state and results, and the names that a
program uses for them.

This module needs no torch: the process that ran the file wrote the signature, and whoever reads it never runs
the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

Mode: TypeAlias = Literal["constructed", "train", "eval"]
"""The mode in which the module runs: as its constructor left it, which is train() and what KernelBench does,
or after train() or eval()."""

Precision: TypeAlias = Literal["own", "f32", "f16", "bf16"]
"""The precision that the module's floating tensors are cast to before anything else; `own` casts nothing."""

CODES: Mapping[str, str] = MappingProxyType(
    {
        "import": "the file cannot be imported: its own code raised",
        "lacks": "the file lacks Model, get_inputs or get_init_inputs, or Model is no torch.nn.Module",
        "construct": "get_init_inputs or Model(..) raised",
        "inputs": "get_inputs raised, or gives what is neither a tensor nor a number",
        "forward": "forward raised",
        "no-tensor": "forward gives no tensor, or hides tensors in objects of its own",
        "random": "forward draws random numbers: its result depends on the generator's state",
        "stateful": "forward carries state from call to call: the same call twice differs",
        "mode": "forward depends on train() or eval() by more than batch statistics",
        "dtype": "a tensor has an element type that no program can take or give",
        "widened": "forward cannot be followed in float64, so there is nothing to hold a program against",
        "memory": "the file's process passed its memory limit, or the GPU had no room beside what others hold",
        "hangs": "the file's process passed its time limit",
        "exits": "the file's code ended its process",
        "crashes": "a signal ended the file's process",
        "unreadable": "the file cannot be read, or its process answered what is no answer",
    }
)
"""Why a problem file cannot be used: one code for each reason."""


class Unusable(Exception):
    """A problem file cannot be used: `code` is a key of `CODES`, `why` the words of this failure."""

    def __init__(self, file: str, code: str, why: str) -> None:
        super().__init__(file, code, why)
        self.file, self.code, self.why = file, code, why

    def __str__(self) -> str:
        return f"{self.file}: {CODES[self.code]} ({self.why}) [{self.code}]"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor of the module by its own name, such as `layers.0.weight`; `dtype` is torch's, without
    `torch.`."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype} of {' x '.join(map(str, self.shape)) or 'one element'}"


@dataclass(frozen=True, slots=True)
class NumberSpec:
    """An input that is a number, which keeps its value whatever else is drawn."""

    name: str
    value: float | int | bool

    def __str__(self) -> str:
        return f"the number {self.value!r}"


@dataclass(frozen=True, slots=True)
class ModuleSignature:
    """`inputs` are forward's arguments in order, None for one that cannot be passed to a program (None or a
    string). `training` says that the module runs in train() mode; `batch_statistics` says that it would
    return something else in eval() mode, for its batch statistics alone; `multiplies` that torch may multiply matrices
    in it, other than in convolutions."""

    inputs: tuple[TensorSpec | NumberSpec | None, ...]
    parameters: tuple[TensorSpec, ...]
    buffers: tuple[TensorSpec, ...]
    results: tuple[TensorSpec, ...]
    training: bool
    batch_statistics: bool
    multiplies: bool = True

    @property
    def state(self) -> tuple[TensorSpec, ...]:
        return (*self.parameters, *self.buffers)


def signature_to_json(facts: ModuleSignature) -> dict[str, Any]:
    return asdict(facts)


def signature_of_json(value: Mapping[str, Any]) -> ModuleSignature:
    """Returns the signature of a JSON value. Raises KeyError, TypeError, ValueError for anything else."""

    def tensor(spec: Mapping[str, Any]) -> TensorSpec:
        return TensorSpec(str(spec["name"]), tuple(int(n) for n in spec["shape"]), str(spec["dtype"]))

    def tensors(many: Sequence[Mapping[str, Any]]) -> tuple[TensorSpec, ...]:
        return tuple(map(tensor, many))

    def input_spec(spec: Mapping[str, Any] | None) -> TensorSpec | NumberSpec | None:
        if spec is None or "shape" in spec:
            return None if spec is None else tensor(spec)
        if not isinstance(spec["value"], (bool, int, float)):
            raise ValueError(f"{spec['value']!r} is no number")
        return NumberSpec(str(spec["name"]), spec["value"])

    return ModuleSignature(
        tuple(map(input_spec, value["inputs"])),
        tensors(value["parameters"]),
        tensors(value["buffers"]),
        tensors(value["results"]),
        bool(value["training"]),
        bool(value["batch_statistics"]),
        bool(value.get("multiplies", True)),
    )


# --- names -----------------------------------------------------------------------


KEYWORDS = frozenset(
    {
        "kernel",
        "pipeline",
        "fn",
        "return",
        "require",
        "schedule",
        "when",
        "or",
        "and",
        "not",
        "true",
        "false",
        "inf",
    }
)


def names(facts: ModuleSignature) -> dict[str, TensorSpec | NumberSpec]:
    """Returns the names that a program's parameters may have, and what each stands for.

    An input has its name in forward, a parameter or buffer its dotted name with `_` for `.`. A name that is
    taken, that the language reserves or that is no identifier gets another `_` at its end. Inputs come first,
    then parameters, then buffers.
    """
    by_name: dict[str, TensorSpec | NumberSpec] = {}
    for spec in (*facts.inputs, *facts.state):
        if spec is None:
            continue
        name = re.sub(r"\W", "_", spec.name.replace(".", "_"), flags=re.ASCII)
        name = name if re.match(r"[A-Za-z_]", name) else f"_{name}"
        while name in by_name or name in KEYWORDS:
            name += "_"
        by_name[name] = spec
    return by_name

"""Runs a PyTorch problem file on real tensors and returns its module's signature.

The file's code is executed here: call this in an isolated process only (`ucutlass.tasks.problem_file`).
"""

from __future__ import annotations

import importlib.util
import inspect
import random
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ucutlass.ir.elements import ELEMENTS
from ucutlass.runtime.module.signature import (
    Mode,
    ModuleSignature,
    NumberSpec,
    Precision,
    TensorSpec,
    Unusable,
)

NAMES = ("Model", "get_inputs", "get_init_inputs")

DTYPES = frozenset(e.torch for e in ELEMENTS.values() if e.storable and e.packed == 1)
"""Element types that a program can take or return, by torch's names."""

CAST = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
"""What a precision casts floating tensors to."""

_NEAR = 2.0**-10
"""Share of a result's largest element by which two runs of one call may differ: threads that add in another
order differ by far less, a dropped or drawn element by far more."""

T = TypeVar("T")


@dataclass(slots=True)
class LoadedModule:
    """A loaded problem file. `model` is on the CPU, but for `load_bound`, in its mode and precision, with weights by
    the seed."""

    file: str
    module: ModuleType
    model: torch.nn.Module
    precision: Precision

    def inputs(self, seed: int, device: str = "") -> list[Any]:
        """Returns fresh inputs as the file draws them; on a device where one is named and the file's code can,
        since a CPU takes seconds to draw large ones. Raises Unusable."""
        if device:
            with suppress(Unusable, RuntimeError), torch.device(device):
                return self.inputs(seed)
        seeded(seed)
        inputs = called(self.file, "inputs", "get_inputs()", lambda: list(self.module.get_inputs()))
        return [_input(self.file, i, value, self.precision) for i, value in enumerate(inputs)]

    def forward(self, inputs: Sequence[Any], seed: int = 0, *, copies: bool = True) -> list[torch.Tensor]:
        """Returns the results on copies of these inputs, or without `copies` on the inputs themselves, which a
        forward may change. Raises Unusable."""
        seeded(seed)
        fresh = [x.clone() if isinstance(x, torch.Tensor) and copies else x for x in inputs]
        with torch.no_grad():
            out = called(self.file, "forward", "Model.forward", lambda: self.model(*fresh))
        return results(self.file, out)


def load(file: str, mode: Mode, precision: Precision, seed: int = 0) -> LoadedModule:
    """Imports the file and makes its module. Raises Unusable."""
    spec = importlib.util.spec_from_file_location("ucutlass_problem", file)
    if spec is None or spec.loader is None:
        raise Unusable(file, "unreadable", "its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    loader = spec.loader
    seeded(seed)
    called(file, "import", "the file itself", lambda: loader.exec_module(module))
    if missing := [name for name in NAMES if not callable(getattr(module, name, None))]:
        raise Unusable(file, "lacks", f"it defines no {' and no '.join(missing)}")
    seeded(seed)
    init = called(file, "construct", "get_init_inputs()", lambda: list(module.get_init_inputs()))
    seeded(seed)
    model = called(file, "construct", "Model(*get_init_inputs())", lambda: module.Model(*init))
    if not isinstance(model, torch.nn.Module):
        raise Unusable(file, "lacks", f"Model gives a {type(model).__name__}")
    with_buffers(model)
    match mode:
        case "eval":
            model.eval()
        case "train":
            model.train()
    if precision != "own":
        model = model.to(CAST[precision])
    return LoadedModule(file, module, model, precision)


def load_bound(
    file: str, mode: Mode, precision: Precision, bound: Collection[str], device: str
) -> LoadedModule:
    """Loads the file with its weights drawn on the device, where its code can and a program is given all of them by
    these names, but for what is filled with 0 or 1: a CPU takes seconds to draw large ones, and what is no program's
    parameter is a constant, drawn as ever. Raises Unusable."""
    if device != "cpu":
        with suppress(Unusable, RuntimeError), torch.device(device):
            loaded = load(file, mode, precision)
            state = (*loaded.model.named_parameters(), *loaded.model.named_buffers())
            if all(name in bound or not t.is_floating_point() or _is_filled(t) for name, t in state):
                return loaded
    return load(file, mode, precision)


def _is_filled(tensor: torch.Tensor) -> bool:
    """Returns whether all elements are 0, or all are 1: as no draw gives them, and every device does."""
    return bool((tensor == 0).all() | (tensor == 1).all())


def with_buffers(model: torch.nn.Module) -> None:
    """Makes buffers of tensors that are plain attributes, so that they have names and move with the module."""
    for module in model.modules():
        plain = {name: value for name, value in vars(module).items() if isinstance(value, torch.Tensor)}
        for name, value in plain.items():
            delattr(module, name)
            module.register_buffer(name, value.detach(), persistent=False)


def inspect_file(file: str, mode: Mode, precision: Precision) -> ModuleSignature:
    """Returns everything that a problem needs of a file, after running its module a few times. Raises
    Unusable."""
    loaded = load(file, mode, precision)
    inputs = loaded.inputs(1)
    first_results = loaded.forward(inputs)
    with _Operators() as operators:
        second_results = loaded.forward(inputs)
    if not _all_close(first_results, second_results):
        raise Unusable(file, "stateful", "two calls on equal inputs, from equal seeds, differ")
    if not _all_close(first_results, loaded.forward(inputs, seed=1)):
        raise Unusable(file, "random", f"two seeds give two results{_hint(loaded.model, mode)}")
    statistics = mode == "constructed" and _by_statistics(loaded, inputs, first_results)
    arguments = _arguments(loaded.model, len(inputs))
    return ModuleSignature(
        tuple(_input_spec(file, n, x) for n, x in zip(arguments, inputs, strict=True)),
        _state(file, loaded.model.named_parameters()),
        _state(file, loaded.model.named_buffers()),
        tuple(_tensor(file, f"result {i}", r) for i, r in enumerate(first_results)),
        loaded.model.training,
        statistics,
        any(part in name for name in operators.names for part in MULTIPLYING),
    )


MULTIPLYING = ("mm", "mv", "dot", "matmul", "linear", "linalg", "cdist", "attention", "rnn", "lstm", "gru")
"""In the names of torch's operators that may multiply matrices, other than convolutions."""


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the names of the operators that torch calls in its block."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func))
        return func(*args, **(kwargs or {}))


def seeded(seed: int) -> None:
    """Seeds every generator that a file is likely to draw from."""
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)


def called(file: str, code: str, where: str, function: Callable[[], T]) -> T:
    """Returns the function's value; whatever the file's code raises becomes an Unusable of this code."""
    try:
        return function()
    except Unusable:
        raise
    except Exception as error:
        words = f"{where}: {_error_text(error)}"
        raise Unusable(file, "memory" if out_of_memory(error) else code, words) from error


def results(file: str, out: object) -> list[torch.Tensor]:
    """Returns the tensors that a forward returned, out of its containers. Raises Unusable."""
    leaves: list[Any] = tree_leaves(out)
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor | None):
            raise Unusable(file, "no-tensor", f"a {type(leaf).__name__} is among what it gives")
    tensors = [leaf for leaf in leaves if leaf is not None]
    if not tensors:
        raise Unusable(file, "no-tensor", "it gives nothing")
    return tensors


# --- what is wrong with it -------------------------------------------------------


def _error_text(error: BaseException) -> str:
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}"[:400] if first else type(error).__name__


def out_of_memory(error: BaseException) -> bool:
    """Returns whether an exception says that there was no room for a tensor."""
    message = str(error)
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in message


def _hint(model: torch.nn.Module, mode: Mode) -> str:
    drops = any("dropout" in type(m).__name__.lower() for m in model.modules())
    return "; it has dropout: --mode eval leaves that out" if drops and mode != "eval" else ""


def _all_close(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(_close(x, y) for x, y in zip(a, b, strict=True))


def _close(x: torch.Tensor, y: torch.Tensor) -> bool:
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    # Most have equal bits, which takes a tenth of the memory that it takes to look closer.
    if torch.equal(x, y):
        return True
    if not x.dtype.is_floating_point:
        return False
    finite = x[x.isfinite()].abs()
    most = float(finite.max()) if finite.numel() else 0.0
    return bool(torch.allclose(x, y, rtol=0.0, atol=_NEAR * most, equal_nan=True))


def _by_statistics(loaded: LoadedModule, inputs: Sequence[Any], expected: Sequence[torch.Tensor]) -> bool:
    """Returns whether eval() returns something else, for batch statistics alone. Raises Unusable where
    for anything more differs."""
    with _modes(loaded.model):
        loaded.model.eval()
        if _all_close(expected, loaded.forward(inputs)):
            return False
    with _modes(loaded.model) as before:
        loaded.model.eval()
        for module, training in before:
            if isinstance(module, torch.nn.modules.batchnorm._NormBase):
                module.training = training
        if _all_close(expected, loaded.forward(inputs)):
            return True
    raise Unusable(loaded.file, "mode", "say which is meant: --mode train or --mode eval")


@contextmanager
def _modes(model: torch.nn.Module) -> Iterator[list[tuple[torch.nn.Module, bool]]]:
    before = [(m, m.training) for m in model.modules()]
    try:
        yield before
    finally:
        for module, training in before:
            module.training = training


# --- as facts --------------------------------------------------------------------


def _arguments(model: torch.nn.Module, count: int) -> list[str]:
    """Returns the names of forward's arguments; `x0`, `x1`, .. where it does not name them."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        parameters = {}.values()  # a forward that is no plain function names nothing
    named = [p.name for p in parameters if p.kind in kinds][:count]
    return [*named, *(f"x{i}" for i in range(len(named), count))]


def _input(file: str, index: int, value: Any, precision: Precision) -> Any:
    match value:
        case torch.Tensor():
            floats = value.dtype.is_floating_point and precision != "own"
            return (value.to(CAST[precision]) if floats else value).detach()
        case bool() | int() | float() | str() | None:
            return value
        case _:
            raise Unusable(file, "inputs", f"get_inputs()[{index}] is a {type(value).__name__}")


def _input_spec(file: str, name: str, value: Any) -> TensorSpec | NumberSpec | None:
    match value:
        case torch.Tensor():
            return _tensor(file, name, value)
        case bool() | int() | float():
            return NumberSpec(name, value)
        case _:
            return None


def _state(file: str, named: Iterable[tuple[str, torch.Tensor]]) -> tuple[TensorSpec, ...]:
    """Returns the tensors that can be passed to a program; the others are constants of the module."""
    return tuple(_tensor(file, n, t) for n, t in named if _dtype(t) in DTYPES)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _tensor(file: str, name: str, tensor: torch.Tensor) -> TensorSpec:
    dtype = _dtype(tensor)
    if dtype not in DTYPES or tensor.layout is not torch.strided:
        raise Unusable(file, "dtype", f"{name} is {dtype}, {tensor.layout}")
    return TensorSpec(name, tuple(tensor.shape), dtype)

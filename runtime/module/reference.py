"""The oracle that a program is checked against before it is built: inputs; a module computes, in float64, on
generated numbers.

The module runs twice on the same numbers: in float64, which is its exact meaning, and in float32, which shows
how far rounding may move it. A program is evaluated in float64 without any rounding of its own
(`ucutlass.reference.unrounded`), so the two may differ by float64's round-off alone.

The file's code is executed here: call this in an isolated process only (`ucutlass.tasks.problem_file`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ucutlass.ir.elements import F32
from ucutlass.runtime.distributions import Distribution
from ucutlass.runtime.draws import floats, uniform_integers
from ucutlass.runtime.module.inspection import LoadedModule
from ucutlass.runtime.module.signature import Unusable
from ucutlass.spans import span

InputDraw: TypeAlias = Literal["own", "normal", "integer", "again", "positive", "wide"]

DRAWS: tuple[InputDraw, ...] = ("own", "normal", "integer", "again", "positive", "wide")
"""The file's own inputs and weights; then generated inputs, and once more the file's, drawn anew, each with
other weights. Random points tell two formulas apart, integers leave little room for rounding, one-sided and
wide numbers reach the branches of clamps and the ends of exponentials."""

FEW = 3
LARGE = 2**27
"""Elements of inputs and state together from which only the first FEW draws are used: more takes minutes."""


@dataclass(frozen=True, slots=True, eq=False)
class OracleCase:
    """One case: inputs and state by name in float64 (integers and truth values as they are), the results in
    float64, and by how much a correct float64 result may differ, one number per result."""

    draw: InputDraw
    inputs: Sequence[Any]
    state: Mapping[str, torch.Tensor]
    results: Sequence[torch.Tensor]
    tolerances: Sequence[float]


def cases(
    loaded: LoadedModule, bound: frozenset[str], seed: int, device: str = "cpu"
) -> Iterator[OracleCase]:
    """Yields cases for a program, whose tensors are on the device. `bound` are the state's names that the
    program takes: buffers that it does not take keep their values, as constants of the module. Raises
    Unusable."""
    own_inputs = [_on_device(x, device) for x in loaded.inputs(1, device)]
    own_state = {n: t.detach().to(device, copy=True) for n, t in _state(loaded.model)}
    size = sum(t.numel() for t in (*own_inputs, *own_state.values()) if isinstance(t, torch.Tensor))
    for number, draw in enumerate(DRAWS[:FEW] if size > LARGE else DRAWS):
        generator = torch.Generator(device).manual_seed(seed + number)
        file_inputs = own_inputs
        if draw == "again":
            file_inputs = [_on_device(x, device) for x in loaded.inputs(2 + seed + number, device)]
        inputs = [_input(x, draw, generator) for x in file_inputs]
        state = {
            n: t if draw == "own" else _weights(n, t, bound, loaded, generator) for n, t in own_state.items()
        }
        case = _case(loaded, draw, inputs, state, device)
        own_inputs = [_without_numbers(x) for x in own_inputs]  # of large ones there is no room for both
        del inputs, state, file_inputs
        yield case
        del case


def _case(
    loaded: LoadedModule,
    draw: InputDraw,
    inputs: Sequence[Any],
    state: Mapping[str, torch.Tensor],
    device: str,
) -> OracleCase:
    exact = _run(loaded, inputs, state, torch.float64, device)
    twin = _run(loaded, inputs, state, torch.float32, device)
    for i, (result, rough) in enumerate(zip(exact, twin, strict=True)):
        narrow = result.dtype.is_floating_point and result.dtype != torch.float64
        if narrow or result.shape != rough.shape:
            mismatch = f"result {i} is {result.dtype} of {tuple(result.shape)} there"
            raise Unusable(loaded.file, "widened", mismatch)
    tolerances = [tolerance(x, y) for x, y in zip(exact, twin, strict=True)]
    wide = [_in_dtype(x, torch.float64) for x in inputs]
    return OracleCase(
        draw, wide, {n: _in_dtype(t, torch.float64) for n, t in state.items()}, exact, tolerances
    )


CONDITION = 2.0**-19
"""float64 rounds 2**-29 times as coarsely as float32, so a correct float64 result of the same formula is
within 2**-29 of the float32 run's error; 2**10 is left for formulas that add in another order or cancel
more."""

FLOOR = 2.0**-44
CEILING = 2.0**-20
"""Least and most tolerance, as shares of a result's largest element: some hundred roundings of float64, and a
share that is far below any compute type's own."""


def tolerance(exact: torch.Tensor, twin: torch.Tensor) -> float:
    """Returns how far from `exact` a correct float64 result may be, by the error of the same formula in
    float32;
    0 for integers and truth values."""
    if not exact.dtype.is_floating_point:
        return 0.0
    most = moved = 0.0
    for x, y in parts(exact, twin):
        rough = y.to(torch.float64)
        most = max(most, _largest(x))
        moved = max(moved, _largest(x - rough))
    if not moved and not bool(twin.isfinite().any()):
        moved = most  # where float32 has no number at all, it says nothing of the formula
    return min(max(CONDITION * moved, FLOOR * most), CEILING * most)


PART = 2**26
"""Elements that are compared at once: a problem's results may fill half of the memory."""


def parts(a: torch.Tensor, b: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields two tensors of one shape, flattened, piece by piece."""
    x, y = a.reshape(-1), b.reshape(-1)
    for start in range(0, x.numel(), PART):
        yield x[start : start + PART], y[start : start + PART]


def _largest(x: torch.Tensor) -> float:
    """Returns the largest magnitude among the finite elements; 0 without any."""
    return float(x.abs().nan_to_num(nan=0.0, posinf=0.0).max()) if x.numel() else 0.0


# --- numbers ---------------------------------------------------------------------


def _input(x: Any, draw: InputDraw, chance: torch.Generator) -> Any:
    """Returns an input of the draw. Integers stay between the least and the largest of the file's own, since
    they may be classes, positions or sizes."""
    if not isinstance(x, torch.Tensor) or draw in ("own", "again"):
        return x
    if x.dtype.is_floating_point:
        return _floats(tuple(x.shape), draw, chance)
    if not x.numel():
        return x
    low, high = (0, 1) if x.dtype == torch.bool else (int(x.min()), int(x.max()))
    return uniform_integers(low, high, tuple(x.shape), chance).to(x.dtype)


def _without_numbers(x: Any) -> Any:
    """Returns what later draws need of an input of the file: of floats their extents alone."""
    return x.to("meta") if isinstance(x, torch.Tensor) and x.dtype.is_floating_point else x


def _floats(shape: tuple[int, ...], draw: InputDraw, chance: torch.Generator) -> torch.Tensor:
    if draw == "integer":
        return uniform_integers(-4, 4, shape, chance).to(torch.float32)
    # Rounded to float32, so that both runs of the module see the same numbers.
    return floats(F32, shape, cast(Distribution, draw), chance).to(torch.float32)


_STATISTICS = ("running_mean", "running_var")


def _weights(
    name: str, own: torch.Tensor, bound: frozenset[str], loaded: LoadedModule, chance: torch.Generator
) -> torch.Tensor:
    """Returns other weights of the same scale, so that a fresh module's accidental values, a bias of 0 or a
    gain of 1, are not constants; a buffer changes only where the program takes it or a norm keeps its
    statistics
    there."""
    buffer = name not in {n for n, _ in loaded.model.named_parameters()}
    if not own.dtype.is_floating_point or not own.numel():
        return own
    wide = own.to(torch.float64)
    if buffer:
        if name not in bound and name.rpartition(".")[2] not in _STATISTICS:
            return own
        if bool((wide != 0).any()):
            factor = torch.rand(own.shape, generator=chance, dtype=torch.float64, device=own.device) + 0.5
            return torch.where(wide == 0, wide, wide * factor).to(torch.float32)
    spread = float(wide.std(correction=0)) or 0.5 * (float(wide.abs().mean()) or 1.0)
    noise = torch.randn(own.shape, generator=chance, dtype=torch.float64, device=own.device)
    return (wide + spread * noise).to(torch.float32)


# --- the module ------------------------------------------------------------------


def _state(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


@span("reference")
def _run(
    loaded: LoadedModule,
    inputs: Sequence[Any],
    state: Mapping[str, torch.Tensor],
    dtype: torch.dtype,
    device: str,
) -> list[torch.Tensor]:
    """Returns the results, with the model and everything that it makes in `dtype`. Raises Unusable."""
    model = loaded.model.to(device)
    for name, tensor in _state(model):
        tensor.data = _in_dtype(state[name], dtype).clone()
    arguments = [_copy_in_dtype(x, dtype) for x in inputs]
    try:
        with default_type(dtype), Widened(dtype):
            return replace(loaded, model=model).forward(arguments, copies=False)
    except Unusable as error:
        code = "widened" if error.code == "forward" else error.code
        raise Unusable(loaded.file, code, f"in {dtype}: {error.why}") from error


def _on_device(x: Any, device: str) -> Any:
    return x.to(device) if isinstance(x, torch.Tensor) else x


def _in_dtype(x: Any, dtype: torch.dtype) -> Any:
    return x.to(dtype) if isinstance(x, torch.Tensor) and x.dtype.is_floating_point else x


def _copy_in_dtype(x: Any, dtype: torch.dtype) -> Any:
    """Returns a copy of a tensor. A conversion is one already: of large inputs there is no room for another."""
    converted = _in_dtype(x, dtype)
    return converted.clone() if converted is x and isinstance(x, torch.Tensor) else converted


@contextmanager
def default_type(dtype: torch.dtype) -> Iterator[None]:
    """Makes factories return this element type, with TF32 disabled: TF32 would make the float32 run's error
    thousands of times as large."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = (torch.get_default_dtype(), matmul.allow_tf32, cudnn.allow_tf32)
    torch.set_default_dtype(dtype)
    matmul.allow_tf32 = cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_default_dtype(before[0])
        matmul.allow_tf32, cudnn.allow_tf32 = before[1:]


def _hard_sigmoid(x: torch.Tensor) -> torch.Tensor:
    return (x + 3).clamp_(0, 6).div_(6)


def _hard_swish(x: torch.Tensor) -> torch.Tensor:
    return x * _hard_sigmoid(x)


DEFINITIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = MappingProxyType(
    {"aten::hardsigmoid": _hard_sigmoid, "aten::hardswish": _hard_swish}
)
"""Functions of torch (2.11) that multiply by a single-precision 1/6 on a GPU, of float64 numbers too."""


class Widened(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes a forward's casts and factories of floating element types use this one instead, and computes float64
    numbers in float64."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dtype = dtype

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        keywords = dict(kwargs or {})
        dtype = keywords.get("dtype")
        if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
            keywords["dtype"] = self._dtype
        name = func._schema.name
        definition = DEFINITIONS.get(name.removesuffix("_"))
        if definition is None or args[0].dtype != torch.float64:
            return func(*args, **keywords)
        return args[0].copy_(definition(args[0])) if name.endswith("_") else definition(args[0])

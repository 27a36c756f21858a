"""Calls a compiled kernel from Python: `y = k(x, w, b)` on the current stream.

A call is validated once a signature (shapes, dtypes, strides, device, alignment) and memoised with
its bound kernel. Steady-state calls run in the native launcher; everything it has not seen before
comes to `_Core.slow`, which holds all checks and is also the whole launcher where there is no
native one. Nothing here synchronises, and memory comes from torch's caching allocator alone, so
calls can be captured into CUDA graphs (call each shape once before the capture: the first call
loads the kernel).
"""

from __future__ import annotations

import functools
import operator
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch

from ucutlass.ir.elements import Element
from ucutlass.runtime.arguments import (
    NotATensor,
    Undetermined,
    WrongCount,
    WrongDevice,
    bind,
    check_grad,
    check_overlap,
    check_scalar,
    check_strides,
    check_tensor,
    integer_range,
)
from ucutlass.runtime.entry_codes import BAD_ARGUMENTS, LaunchError
from ucutlass.runtime.launch_sequence import (
    MOST_SCALARS,
    MOST_TENSORS,
    CallScalar,
    KernelLaunch,
    LaunchSequence,
    Runner,
    native_steps,
)
from ucutlass.runtime.launch_spec import LaunchSlot, LaunchSpec, TensorSlot, dtype_of, shape_of
from ucutlass.runtime.library import Native, NoNative, native
from ucutlass.runtime.offsets import check_offsets
from ucutlass.runtime.side_streams import branches
from ucutlass.runtime.torch_device import TorchAllocation, allocator, current, exchange_device

ASKED_EVERY = 64
"""Calls of kernels that are lent for a while, one of which the native launcher brings to Python to look for others."""

ALIGNMENT = 16
"""Bytes: the alignment of `LaunchRequest.aligned`; what TMA and 128-bit loads need."""

# --- what the planner is asked and answers ---------------------------------------


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """What a launch is chosen by: every extent in the order of `LaunchSpec.dims`; whether each
    tensor (parameters, then results) starts at a multiple of 16 bytes; the device."""

    extents: tuple[int, ...]
    aligned: tuple[bool, ...]
    device: torch.device


@dataclass(frozen=True, slots=True)
class BoundKernel:
    """A loaded kernel for a request. `entry` is the address of its entry (ucutlass/kernels/gemm/plan.py);
    `workspace` counts bytes; `keep` owns the entry's library."""

    entry: int
    launch_parameters: tuple[int, ...]
    workspace: int
    keep: object = None


@dataclass(frozen=True, slots=True)
class Lent:
    """Launches of kernels that were planned for another request. `refused` is called where a kernel refuses this one
    at its launch, as some only do then. They serve until `over` returns True, for good where it is None."""

    launches: BoundKernel | LaunchSequence
    refused: Callable[[], object]
    over: Callable[[], bool] | None


Choose: TypeAlias = Callable[[LaunchRequest], "BoundKernel | LaunchSequence | Lent"]


# --- the launcher ----------------------------------------------------------------


class Launcher:
    """A kernel that can be called: `k(*args, out=None)`.

    Arguments are the declared parameters in order; tensors are contiguous in the declared order
    and on one device. Returns the result, or a tuple of the results (with their names as
    attributes where they have names), newly allocated or the tensors of `out`.

    Calls raise a subclass of ArgumentError before anything is launched, LaunchError where the kernel's
    entry fails, and whatever `choose` raises; making one raises Undetermined for a declaration
    without tensors. `choose` is asked once for each Request, and again where what it lent is over or was
    refused, one request at a time. Safe to call
    from many threads.
    """

    spec: LaunchSpec
    route: Literal["native", "python"]
    request_of: Callable[..., tuple[LaunchRequest, list[torch.Tensor], list[float]]]

    def __new__(cls, spec: LaunchSpec, choose: Choose, launcher: Native | NoNative | None = None) -> Launcher:
        if spec.offsets:  # the native launcher would not look at them again
            launcher = NoNative("offsets are looked at before each launch")
        tensors = sum(isinstance(p, TensorSlot) for p in spec.params)
        if tensors + len(spec.results) > MOST_TENSORS or len(spec.params) - tensors > MOST_SCALARS:
            launcher = NoNative(f"it takes at most {MOST_TENSORS} tensors and {MOST_SCALARS} scalars")
        core = _Core(spec, choose, launcher if launcher is not None else native())
        # Python looks `__call__` up on the type: with a type of its own for each kernel, `k(x)` enters
        # the native launcher with no Python frame between (0.3 us a call).
        own = type(cls.__name__, (cls,), {"__call__": staticmethod(core.callable())})
        self: Launcher = object.__new__(own)
        self.spec = spec
        self.request_of = core.request_of
        self.route = "native" if isinstance(core.native, Native) else "python"
        return self

    if TYPE_CHECKING:

        def __call__(self, *args: Any, out: Any = None) -> Any: ...


_DLPACK_DEVICES: Mapping[str, int] = MappingProxyType({"cpu": 1, "cuda": 2})
_PLAIN = (torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A request's launches, what its calls allocate, and of whom its kernels are lent."""

    request: LaunchRequest
    runner: Runner
    results: tuple[TorchAllocation, ...]
    workspace: TorchAllocation | None
    lent: Lent | None

    @property
    def stands(self) -> bool:
        return self.lent is None or self.lent.over is None or not self.lent.over()


class _Core:
    """All of a launcher but its front: it must not know the native callable, which owns it."""

    def __init__(self, spec: LaunchSpec, choose: Choose, launcher: Native | NoNative) -> None:
        self.spec = spec
        self.native = launcher
        self._choose = choose
        self._tensor_slots = [p for p in spec.params if isinstance(p, TensorSlot)]
        if not self._tensor_slots:
            raise Undetermined(f"{spec.name}: takes no tensor, so no call says on which device it runs")
        self._labels = [p.name for p in self._tensor_slots] + _result_labels(spec)
        self._result_type = _result_type(spec)
        self._allocate, self._allocation = allocator(spec.device)
        self._by_request: dict[LaunchRequest, _Prepared] = {}
        self._prepared: dict[tuple[object, ...], _Prepared] = {}
        self._lock = threading.Lock()

    def callable(self) -> Callable[..., Any]:
        if isinstance(self.native, NoNative):
            return functools.partial(self.slow, None)
        return self.native.new(self._native_config())

    def _native_config(self) -> tuple[Any, ...]:
        """Returns the configuration in the order that native/launcher.c `ucutlass_launcher_new` reads."""
        return (
            *_PLAIN,
            float,
            int,
            bool,
            self.slow,
            self.fail,
            self._allocate,
            torch.is_grad_enabled,
            torch.autograd.graph.increment_version,
            exchange_device(self.spec.device),
            self._result_type,
            torch.Tensor.is_neg,
            torch.Tensor.__dlpack_c_exchange_api__,
            _DLPACK_DEVICES[self.spec.device],
            len(self.spec.results),
            tuple(_native_kind(p) for p in self.spec.params),
        )

    def fail(self, code: int, step: int, runner: Runner) -> None:
        raise LaunchError(runner.named(step) if step >= 0 else self.spec.name, code)

    def slow(self, launcher: object, *args: Any, out: Any = None) -> Any:
        """Validates and launches. `launcher` is the native one to teach, or None."""
        run = self._untraced if "torch._dynamo" in sys.modules else self._run
        return run(launcher, args, out)

    @functools.cached_property
    def _untraced(self) -> Callable[[object, tuple[Any, ...], Any], Any]:
        """`_run`, kept out of graphs: Dynamo traces Python frames below a graph break, and would
        walk into the planner. Importing Dynamo takes seconds, so only if it is there already."""
        disable: Callable[..., Any] = torch.compiler.disable
        disabled: Callable[[object, tuple[Any, ...], Any], Any] = disable(self._run)
        return disabled

    def _run(self, launcher: object, args: tuple[Any, ...], out: Any) -> Any:
        tensors, scalars = self._split(args)
        outs = self._outs(out)
        operands = (*tensors, *outs)
        key = (len(outs), *map(_facts, operands))
        prepared = self._prepared.get(key)
        request = self._validate(tensors, outs) if prepared is None else prepared.request
        self._check_state(tensors, outs)
        if self.spec.offsets:
            check_offsets(self.spec, tensors, request.extents)
        if prepared is None or not prepared.stands:
            prepared = self._prepare(request)
        while (results := self._launched(prepared, tensors, scalars, outs)) is None:
            prepared = self._prepare(request)
        if None not in key:
            self._prepared[key] = prepared
        if isinstance(self.native, Native) and launcher is not None:
            self._teach(self.native, launcher, prepared, args, outs)
        if len(results) == 1:
            return results[0]
        return results if self._result_type is None else self._result_type(results)

    # --- checks

    def _split(self, args: tuple[Any, ...]) -> tuple[list[torch.Tensor], list[float]]:
        if len(args) != len(self.spec.params):
            expected = ", ".join(p.name for p in self.spec.params)
            raise WrongCount(
                f"{self.spec.name}: takes {len(self.spec.params)} arguments ({expected}), but got {len(args)}"
            )
        tensors: list[torch.Tensor] = []
        scalars: list[float] = []
        for slot, value in zip(self.spec.params, args, strict=True):
            if isinstance(slot, TensorSlot):
                tensors.append(value)
            else:
                scalars.append(check_scalar(self.spec, slot, value))
        return tensors, scalars

    def _outs(self, out: Any) -> tuple[torch.Tensor, ...]:
        if out is None:
            return ()
        count = len(self.spec.results)
        if count == 1:
            return (out,)
        if not isinstance(out, (tuple, list)):
            raise NotATensor(
                f"{self.spec.name}: out is a {type(out).__name__}, but a tuple of {count} tensors is wanted"
            )
        if len(out) != count:
            raise WrongCount(f"{self.spec.name}: out has {len(out)} tensors, but there are {count} results")
        return tuple(out)

    def request_of(self, *args: Any) -> tuple[LaunchRequest, list[torch.Tensor], list[float]]:
        """Returns what a call would be planned by, and its tensors and scalars. Raises as the call does."""
        tensors, scalars = self._split(args)
        return self._validate(tensors, ()), tensors, scalars

    def _labelled(
        self, tensors: Sequence[Any], outs: Sequence[Any]
    ) -> tuple[tuple[str, Any, TensorSlot], ...]:
        operands = (*tensors, *outs)
        slots = (*self._tensor_slots, *self.spec.results)[: len(operands)]
        return tuple(zip(self._labels[: len(operands)], operands, slots, strict=True))

    def _validate(self, tensors: Sequence[object], outs: Sequence[object]) -> LaunchRequest:
        """Checks everything that a signature settles. Raises the mistakes of ucutlass.runtime.arguments."""
        operands = [
            (label, check_tensor(self.spec, label, slot, tensor), slot)
            for label, tensor, slot in self._labelled(tensors, outs)
        ]
        first, device = operands[0][0], operands[0][1].device
        for label, tensor, _ in operands:
            if tensor.device != device:
                raise WrongDevice(
                    f"{self.spec.name}: {label} is on {tensor.device}, but {first} is on {device}"
                )
        extents = bind(self.spec, [(label, tensor.shape, slot) for label, tensor, slot in operands])
        for label, tensor, _ in operands:
            check_strides(self.spec, label, tensor)
        aligned = tuple(tensor.data_ptr() % ALIGNMENT == 0 for _, tensor, _ in operands)
        fresh = () if outs else (True,) * len(self.spec.results)
        return LaunchRequest(extents, aligned + fresh, device)

    def _check_state(self, tensors: Sequence[torch.Tensor], outs: Sequence[torch.Tensor]) -> None:
        """What a signature leaves open: gradients and overlap."""
        operands = self._labelled(tensors, outs)
        if torch.is_grad_enabled():
            for label, tensor, _ in operands:
                check_grad(self.spec, label, tensor)
        for i in range(len(tensors), len(operands)):
            for j in range(i):
                check_overlap(self.spec, *operands[i][:2], *operands[j][:2])

    # --- launching

    def _prepare(self, request: LaunchRequest) -> _Prepared:
        with self._lock:
            prepared = self._by_request.get(request)
            if prepared is None or not prepared.stands:
                with current(request.device):
                    chosen = self._choose(request)
                prepared = self._by_request[request] = self._as_prepared(request, chosen)
            return prepared

    def _as_prepared(self, request: LaunchRequest, chosen: BoundKernel | LaunchSequence | Lent) -> _Prepared:
        launches = chosen.launches if isinstance(chosen, Lent) else chosen
        sequence = (
            single_launch(self.spec, request.extents, launches)
            if isinstance(launches, BoundKernel)
            else launches
        )
        size = sequence.workspace
        return _Prepared(
            request,
            Runner(self.spec.name, sequence, request.device),
            tuple(
                self._allocation(shape_of(self.spec, r, request.extents), dtype_of(r.elem), request.device)
                for r in self.spec.results
            ),
            self._allocation((size,), torch.uint8, request.device) if size else None,
            chosen if isinstance(chosen, Lent) else None,
        )

    def _launched(
        self,
        p: _Prepared,
        tensors: Sequence[torch.Tensor],
        scalars: Sequence[float],
        outs: Sequence[torch.Tensor],
    ) -> tuple[torch.Tensor, ...] | None:
        """Returns the results, None where a kernel that was lent refuses the request."""
        try:
            return self._launch(p, tensors, scalars, outs)
        except LaunchError as problem:
            if p.lent is None or problem.code != BAD_ARGUMENTS:
                raise
            p.lent.refused()
            with self._lock:
                if self._by_request.get(p.request) is p:
                    del self._by_request[p.request]
            return None

    def _launch(
        self,
        p: _Prepared,
        tensors: Sequence[torch.Tensor],
        scalars: Sequence[float],
        outs: Sequence[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        with current(p.request.device):
            results = tuple(outs) or tuple(self._new(allocation) for allocation in p.results)
            workspace = self._new(p.workspace) if p.workspace else None
            p.runner.run((*tensors, *results), scalars, workspace)
        if outs:
            torch.autograd.graph.increment_version(outs)
        return results

    def _new(self, allocation: TorchAllocation) -> torch.Tensor:
        args, keywords = allocation
        tensor: torch.Tensor = self._allocate(*args, **(keywords or {}))
        return tensor

    def _teach(
        self,
        library: Native,
        launcher: object,
        p: _Prepared,
        args: tuple[Any, ...],
        outs: tuple[torch.Tensor, ...],
    ) -> None:
        series, device = p.runner.series, p.request.device
        if not series.native:
            return
        out = None if not outs else outs[0] if len(self.spec.results) == 1 else outs
        plan = (
            native_steps(series),
            p.results,
            p.workspace,
            (device.index or 0,),
            p.runner,
            series.streams,
            -1 if series.start is None else series.start,
            tuple(x for join in series.joins for x in join),
            functools.partial(_branches, device, series.streams, series.events),
            0 if p.lent is None or p.lent.over is None else ASKED_EVERY,
        )
        library.remember(launcher, args, out, plan)


def _branches(device: torch.device, stream_count: int, events: int, main: int) -> tuple[Any, ...]:
    """Returns the branches as launcher.c `add_branches` reads them."""
    streams = branches(device, main, stream_count, events)
    return streams.streams, streams.events, *streams.functions


def single_launch(spec: LaunchSpec, extents: tuple[int, ...], bound: BoundKernel) -> LaunchSequence:
    """Returns the launch sequence of one kernel, which takes the call's tensors and scalars as they are."""
    tensors = sum(isinstance(p, TensorSlot) for p in spec.params) + len(spec.results)
    scalars = len(spec.params) + len(spec.results) - tensors
    step = KernelLaunch(
        spec.name,
        bound.entry,
        extents,
        bound.launch_parameters,
        tuple(range(tensors)),
        tuple(CallScalar(i) for i in range(scalars)),
        0 if bound.workspace else None,
        keep=bound.keep,
    )
    return LaunchSequence((step,), bound.workspace)


# --- torch -----------------------------------------------------------------------


def _facts(tensor: object) -> object:
    """Returns what validation depends on; None for what must be validated each time."""
    if type(tensor) not in _PLAIN:
        return None
    assert isinstance(tensor, torch.Tensor)
    if tensor.layout is not torch.strided:
        return None
    try:
        aligned = tensor.data_ptr() % ALIGNMENT == 0
    except RuntimeError:
        return None
    return tensor.shape, tensor.dtype, tensor.device, tensor.stride(), tensor.is_neg(), aligned


# --- slots -----------------------------------------------------------------------


def _native_kind(slot: LaunchSlot) -> tuple[int, int, int]:
    """As launcher.c's ScalarKind; 0 for a tensor."""
    if isinstance(slot, TensorSlot):
        return 0, 0, 0
    return {"float": ord("f"), "int": ord("i"), "bool": ord("b")}[slot.elem.kind], *_limits(slot.elem)


def _limits(elem: Element) -> tuple[int, int]:
    return integer_range(elem) if elem.kind == "int" else (0, 0)


def _result_labels(spec: LaunchSpec) -> list[str]:
    if len(spec.results) == 1:
        return ["out"]
    return [f"out[{i}]" + (f" ({r.name})" if r.name else "") for i, r in enumerate(spec.results)]


def _result_type(spec: LaunchSpec) -> type[tuple[Any, ...]] | None:
    """Returns a tuple with the results' names as read-only attributes, made without generated code; names
    that a tuple has itself, or that begin with `_`, are left to positions."""
    if len(spec.results) == 1 or not all(r.name for r in spec.results):
        return None
    getters: dict[str, Any] = {
        r.name: property(operator.itemgetter(i))
        for i, r in enumerate(spec.results)
        if not r.name.startswith("_") and not hasattr(tuple, r.name)
    }
    return type("Results", (tuple,), {"__slots__": (), **getters})

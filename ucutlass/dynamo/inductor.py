"""Graphs as TorchInductor compiles them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import fx


def whole(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Returns a graph of TorchDynamo as TorchInductor compiles it."""
    from torch._guards import TracingContext, tracing
    from torch._inductor.compile_fx import compile_fx

    outer = TracingContext.try_get()
    # In a context of its own: what AOTAutograd notes of the graph there belongs to this compilation.
    own = TracingContext(outer.fake_mode) if outer is not None else None
    if own is not None and outer is not None:
        # The symbols that TorchDynamo gave to the inputs' extents, and the guards that it will check.
        own.tensor_to_context = outer.tensor_to_context
        own.guards_context = outer.guards_context
    with tracing(own):
        call: Callable[..., Any] = compile_fx(graph, list(inputs))  # type: ignore[assignment]
    return call


def start_compilers() -> None:
    """Starts TorchInductor's compiler processes, which import torch for seconds before they compile anything."""
    from torch._inductor import async_compile

    start = getattr(async_compile, "maybe_warm_pool", None)
    if start is not None:  # before PyTorch 2.8 the import has started them
        start()


def inductor(graph: fx.GraphModule, fakes: Sequence[Any]) -> Callable[..., Any]:
    """Returns a graph of ATen operators, which gives a tuple, as TorchInductor compiles it."""
    from torch._dispatch.python import enable_python_dispatcher
    from torch._guards import detect_fake_mode
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    mode = detect_fake_mode(fakes) or nullcontext()
    # The graph has operators whole that TorchInductor lowers only in pieces.
    with torch.no_grad(), mode, enable_python_dispatcher():
        pieces = make_fx(graph, decomposition_table=select_decomp_table())(*fakes)
    (output,) = (node for node in pieces.graph.nodes if node.op == "output")
    # Others rely on the strides of results, which it changes where no user sees them.
    output.meta["user_visible_output_idxs"] = list(range(len(output.args[0])))
    with _strides_kept_to_itself():
        run = compile_fx_inner(pieces, list(fakes))

    def call(*arguments: Any) -> Any:
        return tuple(run(list(arguments)))

    return call


@contextmanager
def _strides_kept_to_itself() -> Iterator[None]:
    """Does not let TorchInductor report the strides of results, which AOTAutograd would take for those of the
    whole graph."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    if context is None:
        yield
        return
    reported, context.output_strides = context.output_strides, None
    try:
        yield
    finally:
        context.output_strides = reported

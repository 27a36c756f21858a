"""Whether a program computes what a PyTorch module does: asked of a process that runs the module's file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ucutlass import frontend, ir, spans
from ucutlass.agent.gpu_calls import GpuCalls, device_at_hand, gpu_at_hand, shared_bytes
from ucutlass.agent.module import TorchModule, bytes_of_module, match_module, memory_limit, process_reply
from ucutlass.agent.module_processes import ModuleCall, in_own_process
from ucutlass.agent.step_time import WAITING
from ucutlass.handoff import program_payload
from ucutlass.runtime import isolation
from ucutlass.runtime.errors import LockTimeout
from ucutlass.runtime.module.signature import Unusable

WIDENED = 12
"""Times a module's bytes that both of them take in float64, about."""

UNSAID = "whether it computes what the problem does cannot be said"


def differs(words: str) -> str:
    """Returns a sentence for where two results differ; "" where they do not."""
    return f"it computes something else than the problem: {words}" if words else ""


def unlike(
    checked: frontend.Checked,
    program: ir.Program,
    module: TorchModule,
    gpu_calls: GpuCalls,
    *,
    seed: int,
    limit: float,
    call: ModuleCall = in_own_process,
) -> str:
    """Returns a sentence that says where the program of a checked file differs from the module on numbers of
    ours, or why that cannot be said; "" where it does not differ. On a GPU, where there is one, both are
    evaluated there, with the GPU lock held, and `gpu_calls` is told what that waited and held: small ones beside others,
    and once more alone where these left no memory."""
    met = match_module(program, module)
    if isinstance(met, str):
        return met
    arguments = {
        **module.arguments(),
        "names": dict(met.keys),
        "program": program_payload(checked),
        "name": program.name,
        "seed": seed,
        "gpu": gpu_at_hand(),
        "wait": gpu_calls.wait,
    }
    shared = WIDENED * bytes_of_module(module) <= shared_bytes(device_at_hand())
    try:
        try:
            return _difference(arguments, module, gpu_calls, limit, call, shared=shared)
        except Unusable as error:
            if error.code != "memory" or not shared:
                raise
        return _difference(arguments, module, gpu_calls, limit, call, shared=False)
    except (Unusable, KeyError, TypeError, ValueError) as error:
        return f"{UNSAID}: {error}"


def _difference(
    arguments: Mapping[str, Any],
    module: TorchModule,
    gpu_calls: GpuCalls,
    limit: float,
    call: ModuleCall,
    *,
    shared: bool,
) -> str:
    """Asks once, `shared` with others that use the GPU. Raises as `process_reply`, and LockTimeout."""
    on_gpu = bool(arguments["gpu"])
    with spans.recording() as record:
        outcome = call(
            "ucutlass.tasks.problem_file:same",
            {**arguments, "shared": shared},
            limit_seconds=limit + (gpu_calls.wait if on_gpu else 0.0),
            memory_bytes=memory_limit(),
        )
    spans.add(record.seconds)
    match outcome:
        case isolation.Raised("LockTimeout", message):
            raise LockTimeout(message, "let the process that holds it end, or give --wait more seconds")
    reply = process_reply(outcome, module.file)
    gpu_calls.took(record.seconds.get(WAITING, 0.0), float(reply.get("held", 0.0)) if on_gpu else 0.0)
    return differs(str(reply["words"]))

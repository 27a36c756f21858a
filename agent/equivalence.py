"""Whether a program computes what a PyTorch module does: asked of a process that runs the module's file."""

from __future__ import annotations

from ucutlass import frontend, ir
from ucutlass.agent.gpu_calls import GpuCalls, local_device
from ucutlass.agent.module import TorchModule, match_module, memory_limit, process_reply
from ucutlass.agent.module_processes import ModuleCall, in_own_process
from ucutlass.handoff import program_payload
from ucutlass.runtime.module.signature import Unusable

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
    evaluated there, under the GPU lock, and `gpu_calls` is told what that waited and held."""
    met = match_module(program, module)
    if isinstance(met, str):
        return met
    with local_device(gpu_calls.wait, gpu_calls.took) as device:
        outcome = call(
            "ucutlass.tasks.problem_file:same",
            {
                **module.arguments(),
                "names": dict(met.keys),
                "program": program_payload(checked),
                "name": program.name,
                "seed": seed,
                "device": device,
            },
            limit_seconds=limit,
            memory_bytes=memory_limit(),
        )
    try:
        return differs(str(process_reply(outcome, module.file)["words"]))
    except (Unusable, KeyError) as error:
        return f"{UNSAID}: {error}"

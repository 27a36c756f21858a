"""Runs one kernel once, judges it and times it, for `ucc run`.

Everything goes in and comes out as JSON values, for `ucutlass.runtime.isolation`; `program` is a payload of
`ucutlass.handoff`, `built` of `ucutlass.tasks.built`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any


def on_gpu(
    program: dict[str, Any],
    built: dict[str, Any],
    name: str,
    sizes: dict[str, int],
    arch: str | None,
    seed: int,
) -> dict[str, Any]:
    """Runs, verifies against the float64 reference, then times over rotated buffers.

    Returns `comparisons` and `problems` of the verdict, `ok` and `state`, of a pipeline `proof` in words and
    `judged_stages`, `device`, and `microseconds` a launch
    with its `spread` (None where the result is wrong: a wrong kernel has no speed), and `torch_share`, what
    torch functions take of a pipeline's time.
    """
    import torch

    from ucutlass.api import LoadedPipeline
    from ucutlass.handoff import checked_of
    from ucutlass.runtime import verify
    from ucutlass.runtime.inputs import generate
    from ucutlass.runtime.stage_times import torch_share
    from ucutlass.tasks.built import loaded_built

    k = loaded_built(checked_of(program), name, arch, built)
    arguments = generate(k.program, sizes, "normal", seed=seed, device="cuda")
    verdict = verify.check(k.program, k.judged(*arguments), arguments)
    timing = _time(k, sizes, seed) if verdict.ok else None
    share = torch_share(k.stage_times(*arguments)) if timing and isinstance(k, LoadedPipeline) else 0.0
    return {
        "device": torch.cuda.get_device_name(0),
        "ok": verdict.ok,
        "state": verdict.state,
        "proof": verdict.proof() if verdict.stages else "",
        "judged_stages": [
            {"name": s.name, "state": s.state, "torch": s.torch, "words": str(s)} for s in verdict.stages
        ],
        "comparisons": [asdict(c) | {"words": str(c)} for c in verdict.comparisons],
        "problems": [str(p.message) for p in verdict.problems],
        "microseconds": timing.median if timing else None,
        "spread": timing.spread if timing else None,
        "torch_share": share,
    }


def _time(k: Any, sizes: dict[str, int], seed: int) -> Any:
    import torch

    from ucutlass.runtime.inputs import generate
    from ucutlass.runtime.timing import compare, sets_for

    first = generate(k.program, sizes, "normal", seed=seed, device="cuda")
    moved = sum(a.numel() * a.element_size() for a in first if isinstance(a, torch.Tensor))
    sets = [[a.clone() if isinstance(a, torch.Tensor) else a for a in first] for _ in range(sets_for(moved))]
    return compare({"kernel": lambda i: k(*sets[i])}, len(sets))["kernel"]


def on_cpu(program: dict[str, Any], name: str, sizes: dict[str, int], seed: int) -> dict[str, Any]:
    """Evaluates the reference interpreter in float64 on random arguments.

    Returns for every result its name, shape, mean and whether all of it is finite.
    """
    from ucutlass import frontend
    from ucutlass.handoff import checked_of
    from ucutlass.reference import evaluate
    from ucutlass.runtime.inputs import generate
    from ucutlass.runtime.launch_spec import results_of

    checked_program = frontend.program(checked_of(program), name)
    results = evaluate(checked_program, generate(checked_program, sizes, "normal", seed=seed))
    return {
        "results": [
            {
                "name": result_name,
                "shape": list(result.shape),
                "mean": float(result.double().mean()),
                "finite": bool(result.double().isfinite().all()),
            }
            for (result_name, _), result in zip(results_of(checked_program), results, strict=True)
        ]
    }

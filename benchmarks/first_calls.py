"""Seconds of the first call of a compiled model, by part: ours beside TorchInductor's, cold and warm.

    python -m benchmarks.first_calls [--models resnet50,densenet121] [--dtype bf16] [--batch 16] [--out FILE.jsonl]

Claim: a user waits seconds, not minutes. Each call is made in a process of its own, one after the other, with the
machine to itself. `cold` has empty cache folders for every compiler, `warm` those that the cold process left.
Models are the BLOCKS here and those of `benchmarks.models`, with random weights, without gradients. A line says the seconds
of the call, which for `from_torch` include the import, and of which:

    tracing      TorchDynamo, AOTAutograd, the call itself: what no other part has
    importing    the graph to programs; a warm process remembers them
    front end, planning, emitting, building    of those programs; building beside the fallback
    fallback     TorchInductor's compilation of the graph, to be timed against
    choosing     timing one against the other

and of the calls after it, made until it is chosen what serves: when that is, the longest call, and the median before
and after; and by what part of its norm the result differs from eager PyTorch's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import harness
from benchmarks.harness import Row
from ucutlass.runtime.switches import CACHE_DIR

if TYPE_CHECKING:
    from torch import Tensor, nn

MODELS = (
    "mlp,residual_block,transformer_block,resnet18,resnet50,efficientnet_b0,densenet121,inception_v3,vit_b_16,convnext_tiny,mobilenet_v3_large,"
    "hf_bert,hf_llama"
)
BACKENDS = ("ucutlass", "time", "inductor")
"""`ucutlass` is ours as it comes, which compiles its rival later; `time` has the option `choose="time"`. Another one is
`from_torch`, `ucutlass.from_torch` and a call of what it returns."""
SECONDS = 300.0
"""Limit of a process."""

CHOICE_SECONDS = 60.0
"""The longest that is waited for a later choice."""

PAUSE_SECONDS = 0.02
"""Between calls, so that the host is no busier than a server's."""


def blocks() -> Mapping[str, tuple[Callable[[], nn.Module], tuple[int, ...]]]:
    """Returns what a person tries first, a few layers each, with the shape of a sample."""
    from torch import nn

    def residual_block() -> nn.Module:
        from torchvision.models.resnet import BasicBlock

        block: nn.Module = BasicBlock(64, 64)
        return block

    def transformer_block() -> nn.Module:
        return nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", batch_first=True, norm_first=True)

    return {
        "mlp": (lambda: nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)), (512, 1024)),
        "residual_block": (residual_block, (64, 56, 56)),
        "transformer_block": (transformer_block, (512, 768)),
    }


def drawn(model: str, batch: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Returns a model with random weights, and inputs."""
    import torch

    from benchmarks.model_cases import CASES

    torch.manual_seed(0)
    if model in CASES:
        return CASES[model].model().eval(), CASES[model].inputs(batch)
    module, shape = blocks()[model]
    return module().eval(), (torch.randn(batch, *shape),)


def called(model: str, backend: str, dtype: str, batch: int, wait: float) -> Row:
    """Returns the seconds of a first call in this process, by part, and of the second."""
    import torch

    import ucutlass
    from benchmarks.model_cases import cast
    from benchmarks.model_measure import DTYPES, parts_of
    from ucutlass import spans
    from ucutlass.dynamo.backend import Report
    from ucutlass.dynamo.backend import backend as backend_of
    from ucutlass.dynamo.options import options_of

    element = DTYPES[dtype]
    module, host_inputs = drawn(model, batch)
    module = cast(module.to("cuda"), element)
    inputs = [x.to("cuda", element if x.is_floating_point() else x.dtype) for x in host_inputs]
    report = Report()
    programs: list[Callable[..., Any]] = []
    if backend == "from_torch":

        def fast(*arguments: Any) -> Any:
            if not programs:
                programs.append(ucutlass.from_torch(module, *arguments))
            return programs[0](*arguments)

    elif backend == "inductor":
        fast = torch.compile(module, dynamic=False)
    else:
        options = options_of({"choose": "time"} if backend == "time" else {})
        fast = torch.compile(module, backend=backend_of(options, report=report), dynamic=False)

    def timed() -> float:
        torch.cuda.synchronize()
        start = time.monotonic()
        fast(*inputs)
        torch.cuda.synchronize()
        return time.monotonic() - start

    with torch.no_grad():
        with spans.recording() as record:
            first = timed()
        eager = module(*inputs).double()
        before = float((fast(*inputs).double() - eager).norm() / eager.norm())
        start, calls = time.monotonic(), [timed() for _ in range(3)]
        with spans.recording() as later_record:
            while backend == "ucutlass" and not report.choices and time.monotonic() < start + wait:
                time.sleep(PAUSE_SECONDS)
                calls.append(timed())
        waited = time.monotonic() - start
        after = [timed() for _ in range(20)]
        error = float((fast(*inputs).double() - eager).norm() / eager.norm())
    return {
        "first": round(first, 3),
        "parts": parts_of(record.seconds, first),
        "later_parts": {name: round(seconds, 2) for name, seconds in later_record.seconds.items()},
        "choice_after": round(waited, 1),
        "longest_later_call": round(max(calls), 3),
        "calls_us": [round(statistics.median(times) * 1e6) for times in (calls, after)],
        "choices": [str(choice) for choice in report.choices],
        "difference_from_eager": max(before, error),
    }


def rows(models: str, backends: str, dtype: str, batch: int, wait: float) -> Iterator[Row]:
    """Yields a row for each model, backend and state of the caches, each from a fresh process."""
    for model in models.split(","):
        for backend in backends.split(","):
            with tempfile.TemporaryDirectory(prefix="first-calls-") as folder:
                for state in ("cold", "warm"):
                    about: Row = {
                        "model": model,
                        "backend": backend,
                        "state": state,
                        "dtype": dtype,
                        "batch": batch,
                    }
                    yield about | _apart([model, backend, dtype, str(batch)], wait, Path(folder))


def _apart(words: list[str], wait: float, folder: Path) -> Row:
    """Returns what `called` does in a process whose compilers keep their caches in a folder."""
    caches = {
        CACHE_DIR: folder / "ucutlass",
        "TORCHINDUCTOR_CACHE_DIR": folder / "inductor",
        "TRITON_CACHE_DIR": folder / "triton",
    }
    command = [sys.executable, "-m", "benchmarks.first_calls", "--wait", str(wait), "--one", *words]
    start = time.monotonic()
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **{name: str(path) for name, path in caches.items()}},
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return {"lost": f"not within {SECONDS:.0f} s"}
    if done.returncode:
        return {"lost": done.stderr[-600:]}
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row | {"process": round(time.monotonic() - start, 1)}


def line_of(row: Row) -> str:
    about = f"{row['model']:24} {row['backend']:9} {row['state']:5}"
    if "lost" in row:
        return f"{about} lost: {row['lost']}"
    parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in row["parts"].items())
    later = (
        f"; chosen after {row['choice_after']:.1f} s, longest call {row['longest_later_call']:.2f} s, "
        f"calls {row['calls_us'][0]} us, then {row['calls_us'][1]} us; {' '.join(row['choices'])}"
    )
    return f"{about} {row['first']:6.1f} s, differs by {row['difference_from_eager']:.4f}: {parts}{later}"


def main() -> None:
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--backends", default=",".join(BACKENDS))
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "f16", "f32"))
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument(
        "--wait", type=float, default=CHOICE_SECONDS, metavar="SECONDS", help="of calls until it is chosen"
    )
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        model, backend, dtype, batch = options.one
        print(json.dumps(called(model, backend, dtype, int(batch), options.wait)))
        return
    for row in rows(options.models, options.backends, options.dtype, options.batch, options.wait):
        if options.out is not None:
            harness.append(options.out, row)
        print(line_of(row), flush=True)


if __name__ == "__main__":
    main()

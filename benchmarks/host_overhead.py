"""Host microseconds per call: a compiled kernel against torch.mm.

    python -m benchmarks.host_overhead --program examples/linear_gelu.ucu --extent M=256 --extent N=256
    python -m benchmarks.host_overhead                 # no program: an entry that does nothing

Without a program the kernel's entry returns at once, so the figure is what the launcher itself
costs: checks, dispatch, allocation of the result; that also runs without a GPU.

Protocol: every variant is called in batches, few enough that the device's queue never fills, with
the device idle before each batch; batches of all variants alternate, in an order that rotates;
garbage collection is off. Reported: median, 5th and 95th percentile over batches of the time of a
batch divided by its calls. `call` is the cost of calling an empty Python function, not deducted.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import ucutlass
from ucutlass.elements import BF16
from ucutlass.extents import Fixed, Free, evaluate
from ucutlass.runtime.declaration import Axis, LaunchSpec, ScalarSlot, TensorSlot, dtype_of, shape_of, spec_of
from ucutlass.runtime.launch import Bound, Launcher
from ucutlass.runtime.library import Native, NoNative, load_entry, native

DEFAULT_EXTENT = 256
WARMUP_CALLS = 200

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

NOTHING = """#include <stdint.h>
int32_t nothing(void* const* t, int64_t const* e, double const* s, int64_t const* k, void* w,
                uint64_t* size, void* stream) {
  (void)t, (void)e, (void)s, (void)k, (void)w, (void)size, (void)stream;
  return 0;
}
"""


def linear_spec(device: str) -> LaunchSpec:
    """linear(x: bf16[M, K], w: bf16[N, K], bias: bf16[N]) -> bf16[M, N]"""
    m, n, k = Axis((0,)), Axis((1,)), Axis((2,))
    return LaunchSpec(
        name="linear",
        dims=(("M", Free("M")), ("N", Free("N")), ("K", Free("K"))),
        params=(TensorSlot("x", BF16, (m, k)), TensorSlot("w", BF16, (n, k)), TensorSlot("bias", BF16, (n,))),
        results=(TensorSlot("", BF16, (m, n)),),
        device=device,
    )


def empty_kernels(folder: Path, spec: LaunchSpec) -> dict[str, Callable[..., Any]]:
    """A launcher for each route, over an entry that does nothing."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        sys.exit("a C compiler is needed for the entry that does nothing; or give --program")
    source, made = folder / "nothing.c", folder / "nothing.so"
    source.write_text(NOTHING)
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(made), str(source)], check=True)
    entry = load_entry(made, "nothing")

    def bound(_: object) -> Bound:
        return Bound(entry.address, (0, 1, 1), 0, entry)

    return {
        "kernel": Launcher(spec, bound),
        "kernel by ctypes": Launcher(spec, bound, NoNative("for comparison")),
    }


def compiled_kernel(program: Path) -> tuple[LaunchSpec, dict[str, Callable[..., Any]]]:
    loaded = ucutlass.load(program)
    return spec_of(loaded.program), {"kernel": loaded}


def arguments_for(spec: LaunchSpec, sizes: Mapping[str, int]) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """The extents, and tensors and numbers, of one call."""
    known: dict[str, int] = {}
    for name, extent in spec.dims:
        if isinstance(extent, Fixed):
            known[name] = extent.value
        elif extent == Free(name):
            known[name] = sizes.get(name, DEFAULT_EXTENT)
    for name, extent in spec.dims:
        if name not in known:
            known[name] = evaluate(extent, known)
    extents = tuple(known[name] for name, _ in spec.dims)

    def value(slot: TensorSlot | ScalarSlot) -> Any:
        if isinstance(slot, ScalarSlot):
            return {"float": 1.0, "int": 1, "bool": True}[slot.elem.kind]
        return torch.zeros(shape_of(spec, slot, extents), dtype=dtype_of(slot.elem), device=spec.device)

    return extents, tuple(value(p) for p in spec.params)


def variants(
    spec: LaunchSpec, kernels: Mapping[str, Callable[..., Any]], sizes: Mapping[str, int]
) -> dict[str, Call]:
    """What is timed, by name."""
    extents, given = arguments_for(spec, sizes)
    outs = tuple(
        torch.empty(shape_of(spec, r, extents), dtype=dtype_of(r.elem), device=spec.device)
        for r in spec.results
    )
    calls: dict[str, Call] = {}
    for name, kernel in kernels.items():
        calls[name] = (kernel, given, {})
        calls[f"{name}, out="] = (kernel, given, {"out": outs[0] if len(outs) == 1 else outs})
    m, n, k = (sizes.get(d, DEFAULT_EXTENT) for d in "MNK")
    a = torch.zeros(m, k, dtype=torch.bfloat16, device=spec.device)
    b = torch.zeros(n, k, dtype=torch.bfloat16, device=spec.device).t()
    c = torch.empty(m, n, dtype=torch.bfloat16, device=spec.device)
    if spec.device == "cpu":  # there the product itself is the host's work: take the least of it
        a, b, c = a[:1, :1], b[:1, :1], torch.empty(1, 1, dtype=torch.bfloat16)
    calls["torch.mm"] = (torch.mm, (a, b), {})
    calls["torch.mm, out="] = (torch.mm, (a, b), {"out": c})
    calls["torch.empty"] = (torch.empty, ((m, n),), {"dtype": torch.bfloat16, "device": a.device})
    calls["call"] = (_nothing, given, {})
    return calls


def _nothing(*_: object) -> None:
    pass


def measure(calls: Mapping[str, Call], device: str, rounds: int, batch: int) -> dict[str, list[float]]:
    """Microseconds per call of every batch."""
    synchronize: Callable[[], object] = torch.cuda.synchronize if device == "cuda" else _nothing
    times: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for function, args, keywords in calls.values():
        for _ in range(WARMUP_CALLS):
            function(*args, **keywords)
    gc.collect()
    gc.disable()
    try:
        for i in range(rounds):
            for name in names[i % len(names) :] + names[: i % len(names)]:
                function, args, keywords = calls[name]
                synchronize()
                start = time.perf_counter_ns()
                for _ in itertools.repeat(None, batch):
                    function(*args, **keywords)
                times[name].append((time.perf_counter_ns() - start) / batch / 1000)
    finally:
        gc.enable()
    return times


def summary(times: Sequence[float]) -> dict[str, float]:
    ordered = sorted(times)
    last = len(ordered) - 1
    return {
        "median_us": statistics.median(ordered),
        "p05_us": ordered[round(0.05 * last)],
        "p95_us": ordered[round(0.95 * last)],
    }


def machine(device: str) -> dict[str, str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return {
        "cpu": next((line.partition(":")[2].strip() for line in lines if "model name" in line), "unknown"),
        "device": torch.cuda.get_device_name() if device == "cuda" else "none",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--program", type=Path, help="a .ucu file with one kernel")
    parser.add_argument(
        "--extent", action="append", default=[], metavar="NAME=N", help="extent of a dimension"
    )
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument("--rounds", type=int, default=200, help="batches of each variant")
    parser.add_argument("--batch", type=int, default=100, help="calls in a batch")
    parser.add_argument("--json", type=Path, help="also write the report here")
    return parser.parse_args(argv)


def show(about: Mapping[str, str], results: Mapping[str, Mapping[str, float]]) -> None:
    print("  ".join(f"{key}: {value}" for key, value in about.items()))
    print(f"{'variant':<24}{'median us':>11}{'p05':>9}{'p95':>9}")
    for name, row in results.items():
        print(f"{name:<24}{row['median_us']:>11.3f}{row['p05_us']:>9.3f}{row['p95_us']:>9.3f}")


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    sizes = {name: int(number) for name, _, number in (e.partition("=") for e in options.extent)}
    with tempfile.TemporaryDirectory() as folder:
        if options.program is None:
            spec = linear_spec(options.device)
            kernels = empty_kernels(Path(folder), spec)
        else:
            spec, kernels = compiled_kernel(options.program)
        times = measure(variants(spec, kernels, sizes), spec.device, options.rounds, options.batch)
    about, results = machine(spec.device), {name: summary(values) for name, values in times.items()}
    show(about, results)
    if options.json is not None:
        report = {
            "machine": about,
            "native_launcher": isinstance(native(), Native),
            "program": str(options.program or "an entry that does nothing"),
            "extents": sizes,
            "protocol": {"rounds": options.rounds, "batch": options.batch, "warmup_calls": WARMUP_CALLS},
            "results": results,
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

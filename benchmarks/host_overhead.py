"""Host microseconds per call: compiled kernels against torch.mm.

    python -m benchmarks.host_overhead --program examples/linear_gelu.ucu --extent M=256 --extent N=256
    python -m benchmarks.host_overhead                 # no program: an entry that does nothing
    python -m benchmarks.host_overhead --also guarded --also chain --json host.json
    python -m benchmarks.host_overhead --dry           # all of it, without a GPU

`guarded` alternates between the shapes of four guarded schedules, and times the first call of shapes
never seen; `chain` is three kernels in a row (`benchmarks.host_programs`), as calls and as a replayed
CUDA graph, against the same in torch ops. Seven kernels are built for the two where the cache lacks them.

Without a program the kernel's entry returns at once, so the figure is what the launcher itself
costs: checks, dispatch, allocation of the result; that also runs without a GPU. A dry run has such
entries everywhere, plans each shape as on a GPU, and takes the calls themselves for a graph's replay:
of it only what the launcher costs means something.

Protocol: every variant is called in batches, few enough that the device's queue never fills, with
the device idle before each batch; batches of all variants alternate, in an order that rotates;
garbage collection is off. Reported: median, 5th and 95th percentile over batches of the time of a
batch divided by its calls, and of the ratio of each batch to that of the same round of what the variant
is held `against`. `call` is the cost of calling an empty Python function, not deducted.
"""

from __future__ import annotations

import argparse
import functools
import gc
import itertools
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import ucutlass
from benchmarks import host_programs
from benchmarks.host_programs import Make, Variant
from ucutlass.files import write
from ucutlass.ir.elements import BF16
from ucutlass.ir.extents import Fixed, Free, evaluate
from ucutlass.runtime.launch import BoundKernel, Launcher
from ucutlass.runtime.launch_spec import (
    LaunchSpec,
    ScalarSlot,
    SlotAxis,
    TensorSlot,
    dtype_of,
    shape_of,
    spec_of,
)
from ucutlass.runtime.library import KernelEntry, Native, NoNative, native

DEFAULT_EXTENT = 256
WARMUP_CALLS = 200
ALSO = ("guarded", "chain")


def linear_spec(device: str) -> LaunchSpec:
    """linear(x: bf16[M, K], w: bf16[N, K], bias: bf16[N]) -> bf16[M, N]"""
    m, n, k = SlotAxis((0,)), SlotAxis((1,)), SlotAxis((2,))
    return LaunchSpec(
        name="linear",
        dims=(("M", Free("M")), ("N", Free("N")), ("K", Free("K"))),
        params=(TensorSlot("x", BF16, (m, k)), TensorSlot("w", BF16, (n, k)), TensorSlot("bias", BF16, (n,))),
        results=(TensorSlot("", BF16, (m, n)),),
        device=device,
    )


def empty_kernels(entry: KernelEntry, spec: LaunchSpec) -> dict[str, Callable[..., Any]]:
    """A launcher for each route, over an entry that does nothing."""

    def bound(_: object) -> BoundKernel:
        return BoundKernel(entry.address, (0, 1, 1), 0, entry)

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
) -> dict[str, Variant]:
    """What is timed, by name."""
    extents, arguments = arguments_for(spec, sizes)
    outs = tuple(
        torch.empty(shape_of(spec, r, extents), dtype=dtype_of(r.elem), device=spec.device)
        for r in spec.results
    )
    named: dict[str, Variant] = {}
    for name, kernel in kernels.items():
        out = outs[0] if len(outs) == 1 else outs
        named[name] = Variant(kernel, ((arguments, {}),), "torch.mm")
        named[f"{name}, out="] = Variant(kernel, ((arguments, {"out": out}),), "torch.mm, out=")
    m, n, k = (sizes.get(d, DEFAULT_EXTENT) for d in "MNK")
    a = torch.zeros(m, k, dtype=torch.bfloat16, device=spec.device)
    b = torch.zeros(n, k, dtype=torch.bfloat16, device=spec.device).t()
    c = torch.empty(m, n, dtype=torch.bfloat16, device=spec.device)
    if spec.device == "cpu":  # there the product itself is the host's work: take the least of it
        a, b, c = a[:1, :1], b[:1, :1], torch.empty(1, 1, dtype=torch.bfloat16)
    new = (((m, n),), {"dtype": torch.bfloat16, "device": a.device})
    return named | {
        "torch.mm": Variant(torch.mm, (((a, b), {}),), ""),
        "torch.mm, out=": Variant(torch.mm, (((a, b), {"out": c}),), ""),
        "torch.empty": Variant(torch.empty, (new,), ""),
        "call": Variant(_nothing, ((arguments, {}),), ""),
    }


def more(
    also: Sequence[str], make: Make, device: str, extent: int, first: int
) -> tuple[dict[str, Variant], dict[str, list[float]]]:
    """Further variants, and microseconds of first calls, by name."""
    named: dict[str, Variant] = {}
    firsts: dict[str, list[float]] = {}
    if "guarded" in also:
        named |= host_programs.guarded(make, device, extent)
        firsts = host_programs.first_calls(make, device, extent, first)
    if "chain" in also:
        capture = host_programs.captured if device == "cuda" else host_programs.played
        named |= host_programs.chain(make, device, extent, capture)
    return named, firsts


def _nothing(*_: object) -> None:
    pass


def measure(variants: Mapping[str, Variant], device: str, rounds: int, batch: int) -> dict[str, list[float]]:
    """Microseconds per call of every batch."""
    synchronize: Callable[[], object] = torch.cuda.synchronize if device == "cuda" else _nothing
    times: dict[str, list[float]] = {name: [] for name in variants}
    names = list(variants)
    batches = {name: [*itertools.islice(itertools.cycle(v.calls), batch)] for name, v in variants.items()}
    for variant in variants.values():
        for args, keywords in itertools.islice(itertools.cycle(variant.calls), WARMUP_CALLS):
            variant.function(*args, **keywords)
    gc.collect()
    gc.disable()
    try:
        for i in range(rounds):
            for name in names[i % len(names) :] + names[: i % len(names)]:
                function = variants[name].function
                synchronize()
                start = time.perf_counter_ns()
                for args, keywords in batches[name]:
                    function(*args, **keywords)
                times[name].append((time.perf_counter_ns() - start) / batch / 1000)
    finally:
        gc.enable()
    return times


def spread(values: Sequence[float], unit: str) -> dict[str, float]:
    ordered = sorted(values)
    last = len(ordered) - 1
    return {
        f"median{unit}": statistics.median(ordered),
        f"p05{unit}": ordered[round(0.05 * last)],
        f"p95{unit}": ordered[round(0.95 * last)],
    }


def summary(times: Mapping[str, Sequence[float]], against: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Each variant's microseconds, and its ratio to its base, round by round."""
    rows: dict[str, dict[str, Any]] = {}
    for name, values in times.items():
        rows[name] = spread(values, "_us")
        if base := against.get(name):
            ratios = [ours / theirs for ours, theirs in zip(values, times[base], strict=True)]
            rows[name] |= {"against": base, "ratio": spread(ratios, "")}
    return rows


def machine(device: str) -> dict[str, str]:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
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
    parser.add_argument(
        "--also", action="append", default=[], choices=ALSO, help="measure this, too; may be repeated"
    )
    parser.add_argument(
        "--dry", action="store_true", help="all of it on the CPU, with entries that do nothing"
    )
    parser.add_argument("--rounds", type=int, default=200, help="batches of each variant")
    parser.add_argument("--batch", type=int, default=100, help="calls in a batch")
    parser.add_argument("--first", type=int, default=64, help="shapes whose first call is timed")
    parser.add_argument("--json", type=Path, help="also write the report here")
    options = parser.parse_args(argv)
    if options.dry and options.program is not None:
        parser.error("--dry takes no --program: nothing is built")
    if not 0 < options.first <= host_programs.FIRST_CALLS_MOST:
        parser.error(f"--first takes 1 to {host_programs.FIRST_CALLS_MOST}")
    if options.dry:
        options.device, options.also = "cpu", list(ALSO)
    if options.also and options.device == "cpu" and not options.dry:
        parser.error("--also needs a GPU, or --dry")
    return options


def show(about: Mapping[str, str], results: Mapping[str, Mapping[str, Any]]) -> None:
    print("  ".join(f"{key}: {value}" for key, value in about.items()))
    print(f"{'variant':<33}{'median us':>11}{'p05':>9}{'p95':>9}  ratio (p05 to p95)")
    for name, row in results.items():
        line = f"{name:<33}{row['median_us']:>11.3f}{row['p05_us']:>9.3f}{row['p95_us']:>9.3f}"
        if ratio := row.get("ratio"):
            line += f"  {ratio['median']:.3f} ({ratio['p05']:.3f} to {ratio['p95']:.3f}) of {row['against']}"
        print(line)


def kernels_of(options: argparse.Namespace, entry: Callable[[], KernelEntry], extent: int) -> Make:
    """What makes the kernels of `--also`."""
    if options.dry:
        return host_programs.planned(entry(), options.device, [])
    square = dict.fromkeys("NK", extent)
    sizes = {
        "guarded": (host_programs.GUARDED, [{**square, "M": m} for m in host_programs.GUARDED_ROWS]),
        "chain": (host_programs.CHAIN, [host_programs.chain_sizes(extent)]),
    }
    return host_programs.compiled(dict(sizes[name] for name in options.also))


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    sizes = {name: int(number) for name, _, number in (e.partition("=") for e in options.extent)}
    extent = sizes.get("N", DEFAULT_EXTENT)
    with tempfile.TemporaryDirectory() as folder:
        entry = functools.cache(lambda: host_programs.nothing(Path(folder)))
        if options.program is None:
            spec = linear_spec(options.device)
            kernels = empty_kernels(entry(), spec)
        else:
            spec, kernels = compiled_kernel(options.program)
        named, firsts = variants(spec, kernels, sizes), dict[str, list[float]]()
        if options.also:
            make = kernels_of(options, entry, extent)
            further, firsts = more(options.also, make, options.device, extent, options.first)
            named |= further
        times = measure(named, options.device, options.rounds, options.batch)
    against = {name: variant.against for name, variant in named.items()}
    about, results = machine(options.device), summary(times, against)
    if firsts:
        ours, theirs = firsts
        results |= summary(firsts, {ours: theirs})
    show(about, results)
    if options.json is not None:
        report = {
            "machine": about,
            "dry": options.dry,
            "native_launcher": isinstance(native(), Native),
            "program": str(options.program or "an entry that does nothing"),
            "also": list(options.also),
            "extents": sizes,
            "protocol": {"rounds": options.rounds, "batch": options.batch, "warmup_calls": WARMUP_CALLS},
            "results": results,
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        write(options.json, json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Can the timing be trusted? One kernel in fresh processes, against itself, and tricks that must be caught.

    python -m benchmarks.trust --out DIR

Claim: medians of fresh processes differ by at most 2 %, a kernel does not differ from itself, and every trick is
caught. Writes DIR/trust.json and DIR/trust.md. Exit status 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.harness import machine, write
from benchmarks.trust_tasks import TRICKS, findings_of
from ucutlass import files
from ucutlass.backend import build_kernel
from ucutlass.frontend import kernel, read
from ucutlass.handoff import program_payload
from ucutlass.runtime import isolation
from ucutlass.runtime.bench import gpu_lock
from ucutlass.runtime.bench.protocol import Protocol
from ucutlass.shapes import complete
from ucutlass.tasks.built import built_payload

EXAMPLE = Path(__file__).parent.parent / "examples" / "linear_gelu.ucu"
SIZES = {"M": 2048, "N": 4096, "K": 4096}
TRICK_SIZES = {"M": 2048, "N": 2048, "K": 2048}

SPREAD_BAR = 0.02
"""(greatest - least) / median of the medians of fresh processes, for kernels over 20 us."""

SAME_BAR = 0.95
"""Share of comparisons of a kernel with itself that must find no difference: 19 of 20."""

FRESH = Protocol(warmup=3.0, min_seconds=1.0, max_seconds=5.0)
SAME = Protocol(warmup=3.0, min_seconds=0.5, max_seconds=4.0)
TRICK = Protocol(warmup=0.5, min_seconds=0.3, max_seconds=4.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    gpu = gpu_lock.gpu_uuid()
    options.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    checked = read(EXAMPLE)
    program = kernel(checked)
    built = build_kernel(checked, program, complete(program, SIZES), "sm90a")
    report: dict[str, Any] = {"machine": machine(), "build_seconds": time.monotonic() - began}

    def keep() -> None:
        report["verdicts"] = verdicts(report)
        write(options.out / "trust.json", report)
        files.write(options.out / "trust.md", markdown(report))

    def waiting(holder: str) -> None:
        print(f"waiting for {holder}", flush=True)

    with gpu_lock.hold_gpu(gpu, timeout_seconds=600.0, on_wait=waiting):
        began = time.monotonic()
        report["tricks"] = {name: tricked(name) for name in TRICKS}
        keep()
        report["same"] = itself(checked.source, options.repeats)
        keep()
        report["fresh"] = []
        handed = {"program": program_payload(checked), "built": built_payload(built)}
        for number in range(options.processes):
            report["fresh"].append(fresh(handed, number))
            keep()
        report["device_seconds"] = time.monotonic() - began
        keep()
    print((options.out / "trust.md").read_text(encoding="utf-8"))
    sys.exit(0 if all(v["ok"] for v in report["verdicts"].values()) else 1)


# --- runs ----------------------------------------------------------------------------


def answered(target: str, arguments: Mapping[str, Any], seconds: float) -> Any:
    """What the process returned, or {"lost": words}."""
    # Processes made by isolate see no working directory; the benchmarks are found by their path.
    here = str(Path(__file__).parent.parent)
    if here not in sys.path:
        sys.path.insert(0, here)
    match isolation.run(target, arguments, limit_seconds=seconds, environ=os.environ):
        case isolation.Returned(value):
            return value
        case other:
            return {"lost": repr(other)[:2000]}


def tricked(name: str) -> Any:
    arguments = {"name": name, "sizes": TRICK_SIZES, "protocol": asdict(TRICK)}
    return answered("benchmarks.trust_tasks:trick", arguments, 120.0)


def itself(text: str, count: int) -> Any:
    arguments = {"text": text, "sizes": SIZES, "count": count, "protocol": asdict(SAME)}
    return answered("benchmarks.trust_tasks:same_twice", arguments, 400.0)


def fresh(kernel: Any, number: int) -> Any:
    """`kernel` is the program and what it was built to, as the process takes them."""
    arguments = {
        **kernel,
        "name": None,
        "sizes": SIZES,
        "arch": "sm90a",
        "seed": number,
        "baselines": [],
        "protocols": [asdict(FRESH)],
        "bandwidth": None,
    }
    return answered("ucutlass.tasks.bench:on_gpu", arguments, 120.0)


# --- verdicts ------------------------------------------------------------------------


def verdicts(report: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Each bar, met or not, with its numbers; what has not run is not met."""
    return {
        "fresh processes": spread(report.get("fresh", ())),
        "A against A": same(report.get("same", ())),
        "tricks": caught(report.get("tricks", {})),
    }


def spread(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of the medians of fresh processes, and of their SM clocks, which explain most of it."""
    firsts = [a["regimes"][0]["outcomes"][0] for a in answers if a.get("regimes")]
    times = [o["span"]["median"] for o in firsts if o.get("trusted")]
    clocks = [o["sm_clock"] for o in firsts if o.get("sm_clock")]
    if len(times) < 2 or len(times) < len(answers):
        return {"ok": False, "words": f"{len(times)} of {len(answers)} processes gave a time to trust"}
    share = (max(times) - min(times)) / statistics.median(times)
    by_clock = (max(clocks) - min(clocks)) / statistics.median(clocks) if clocks else None
    words = (
        f"medians of {len(times)} processes {min(times):.2f} to {max(times):.2f} us: spread {share:.2%}, bar "
        f"{SPREAD_BAR:.0%}"
        + (f"; SM clocks spread {by_clock:.2%}" if by_clock is not None else "; SM clocks unknown")
    )
    return {"ok": share <= SPREAD_BAR, "words": words, "medians": times, "sm_clocks": clocks}


NOTHING: Mapping[str, Any] = {"verdict": None, "ratio": None, "reason": "there was no time to compare"}


def same(reports: Any) -> dict[str, Any]:
    """How many comparisons of a kernel with itself found no difference."""
    if not isinstance(reports, list) and not isinstance(reports, tuple):
        return {"ok": False, "words": f"lost: {reports}"[:500]}
    comparisons = [r["versus"][0] if r["versus"] else NOTHING for r in reports]
    right = sum(v["verdict"] == "no difference" for v in comparisons)
    needed = SAME_BAR * len(comparisons)
    ratios = [v["ratio"]["median"] for v in comparisons if v["ratio"]]
    words = f"{right} of {len(comparisons)} found no difference, bar {SAME_BAR:.0%}"
    if ratios:
        words += f"; ratios {min(ratios):.4f} to {max(ratios):.4f}"
    if reasons := dict.fromkeys(v["reason"] for v in comparisons if v["verdict"] is None):
        words += f"; no verdict: {'; '.join(reasons)}"
    return {"ok": bool(comparisons) and right >= needed, "words": words, "ratios": ratios}


def caught(tricks: Mapping[str, Any]) -> dict[str, Any]:
    """Each trick must have one of its findings, the honest candidate none."""
    missed = [name for name in TRICKS if not _named(name, tricks.get(name, {"lost": "not run"}))]
    words = f"{len(TRICKS) - len(missed)} of {len(TRICKS)} judged rightly"
    return {"ok": not missed, "words": words + (f"; missed: {', '.join(missed)}" if missed else "")}


def _named(name: str, report: Mapping[str, Any]) -> bool:
    if "lost" in report:
        return False
    expected, findings = TRICKS[name].findings, set(findings_of(report))
    if expected:
        return bool(expected & findings)
    return not findings and "failed" not in report["outcomes"][0]


def markdown(report: Mapping[str, Any]) -> str:
    """The table for docs/measurements.md."""
    lines = ["| what | result | bar met |", "|---|---|---|"]
    for name, verdict in verdicts(report).items():
        lines.append(f"| {name} | {verdict['words']} | {'yes' if verdict['ok'] else 'no'} |")
    for name, answer in report.get("tricks", {}).items():
        words = answer.get("lost") or ", ".join(findings_of(answer)) or "nothing said against it"
        lines.append(f"| trick: {name} | {words} | {'yes' if _named(name, answer) else 'no'} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()

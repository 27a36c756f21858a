"""What `benchmarks.everything` runs on a GPU machine, in the order in which it tells most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

GROUP = "4"
"""Kernels in one run of the compiler."""


@dataclass(frozen=True, slots=True)
class Step:
    """`arguments` makes the command behind `python -m` for a folder and the seconds that it may take.

    With fewer seconds left than `least` it is not begun; it gets `most` at most. A step that
    `goes_on` stops in time with exit status 75, and the next call goes on with its rows; one that
    does not is begun anew where it was cut off. `least` and `most` are estimates for 16 cores at
    30 s a kernel.
    """

    name: str
    arguments: Callable[[Path, int], tuple[str, ...]]
    least: int
    most: int
    goes_on: bool = False


_LINEAR = "examples/linear_gelu.ucu"
_GPU = ("pytest", "-v", "--tb=short", "-m", "gpu", "-p", "no:cacheprovider")
_MNK = ("--extent", "M=256", "--extent", "N=256", "--extent", "K=256")

STEPS: tuple[Step, ...] = (
    Step("doctor", lambda d, s: ("ucutlass.cli", "doctor"), 5, 60),
    Step("run", lambda d, s: ("ucutlass.cli", "run", _LINEAR, "-s", "M=4096,N=4096,K=4096"), 60, 200),
    Step(
        "host_overhead",
        lambda d, s: (
            "benchmarks.host_overhead",
            "--program",
            _LINEAR,
            *_MNK,
            "--json",
            str(d / "host_overhead.json"),
        ),
        60,
        150,
    ),
    Step(
        "speed",
        lambda d, s: ("benchmarks.speed", "--out", str(d / "speed.json"), "--seconds", str(s)),
        90,
        300,
        goes_on=True,
    ),
    Step("calibrate", lambda d, s: ("ucutlass.cli", "calibrate", "--limit", str(s), "--wait", "5"), 60, 180),
    Step("trust", lambda d, s: ("benchmarks.trust", "--out", str(d / "trust")), 300, 500),
    Step(
        "correctness",
        lambda d, s: (
            "benchmarks.correctness",
            "--out",
            str(d / "correctness"),
            "--group",
            GROUP,
            "--seconds",
            str(s),
        ),
        90,
        400,
        goes_on=True,
    ),
    Step("advice", lambda d, s: ("benchmarks.advice", "--out", str(d / "advice"), "--ledger"), 380, 530),
    Step(
        "tests_launch",
        lambda d, s: (
            *_GPU,
            "-n",
            "4",
            "--dist",
            "loadfile",
            "tests/runtime_launch",
            "tests/emit/test_functions.py",
            "tests/reference/test_nodes.py",
            "tests/gpu/test_gemm_sm80_on_gpu.py",
            "tests/bench",
        ),
        180,
        400,
    ),
    Step(
        "rule_edges",
        lambda d, s: ("benchmarks.rule_edges", "--out", str(d / "rule_edges"), "--seconds", str(s)),
        150,
        400,
        goes_on=True,
    ),
    Step(
        "mutants",
        lambda d, s: (
            "benchmarks.mutants",
            "--gpu",
            "--honest",
            "100",
            "--json",
            str(d / "mutants.json"),
            "--seconds",
            str(s),
        ),
        120,
        1800,
        goes_on=True,
    ),
    Step("tests_verify", lambda d, s: (*_GPU, "tests/gpu/test_verify_on_gpu.py"), 300, 530),
    Step("tests_pipelines", lambda d, s: (*_GPU, "-n", "4", "tests/gpu/test_pipelines_on_gpu.py"), 90, 300),
    Step(
        "pipelines",
        lambda d, s: (
            "benchmarks.pipelines",
            "--out",
            str(d / "pipelines.json"),
            "--lanes",
            "bf16,tf32",
            "--seconds",
            str(s),
        ),
        180,
        1800,
        goes_on=True,
    ),
    Step(
        "fused",
        lambda d, s: ("benchmarks.speed", "--out", str(d / "speed.json"), "--fused", "--seconds", str(s)),
        120,
        400,
        goes_on=True,
    ),
    Step(
        "tuned",
        lambda d, s: (
            "benchmarks.tuned",
            "--out",
            str(d / "tuned.json"),
            "--stage",
            "auto",
            "--wall",
            "6",
            "--seconds",
            str(s),
        ),
        180,
        2400,
        goes_on=True,
    ),
    Step(
        "frontend", lambda d, s: ("benchmarks.frontend", "--load", "--out", str(d / "frontend.json")), 60, 150
    ),
    Step(
        "build_phases",
        lambda d, s: (
            "benchmarks.build_phases",
            "--repeats",
            "3",
            "--out",
            str(d / "build_phases.json"),
            "--seconds",
            str(s),
        ),
        60,
        150,
    ),
    Step(
        "soundness",
        lambda d, s: (
            "benchmarks.soundness",
            "--accepted",
            "300",
            "--out",
            str(d / "soundness"),
            "--group",
            GROUP,
            "--seconds",
            str(s),
        ),
        90,
        1800,
        goes_on=True,
    ),
    Step(
        "optimise",
        lambda d, s: ("benchmarks.optimise", "--out", str(d / "optimise.json"), "--seconds", str(s)),
        180,
        3600,
        goes_on=True,
    ),
    Step(
        "exhaustive",
        lambda d, s: ("benchmarks.exhaustive", "--out", str(d / "exhaustive.json"), "--seconds", str(s)),
        90,
        600,
        goes_on=True,
    ),
)

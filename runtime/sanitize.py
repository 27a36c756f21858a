"""Runs compute-sanitizer on a process that launches a kernel, and judges whether its report is clean.

The report is NVIDIA's text (Compute Sanitizer documentation, "Compute Sanitizer Tool Examples"), which
every version prints; the summary line decides, the findings before it explain. A tool that is not
installed, or refuses the device, is a tier that is not available: it says so and is not clean.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from ucutlass.runtime import process, switches
from ucutlass.runtime.environment_allowlist import allowed_environment
from ucutlass.runtime.errors import CompilerUnusable

SanitizerTool: TypeAlias = Literal["memcheck", "initcheck", "racecheck", "synccheck"]

TOOLS: tuple[SanitizerTool, ...] = get_args(SanitizerTool)
"""memcheck: out of bounds and misaligned accesses; initcheck: reads of global memory that nothing
wrote; racecheck: hazards in shared memory; synccheck: barriers misused."""

_ERROR_EXIT = 86
_PRINT_LIMIT = 1000

_MORE: Mapping[SanitizerTool, tuple[str, ...]] = {
    # torch asks the driver for entry points that it may lack; a failed launch is seen by the child.
    "memcheck": ("--report-api-errors", "no")
}

ENVIRONMENT: Mapping[str, str] = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
"""Without it torch puts tensors side by side into one allocation, and a write past one is in bounds."""


@dataclass(frozen=True, slots=True)
class SanitizerFinding:
    """`error` is the tool's headline, `where` its offset or source line, `address` the first one
    that it names; `count` adds up equal findings, in hazards for racecheck."""

    severity: Literal["error", "warning"]
    error: str
    kernel: str
    where: str
    address: str
    count: int


@dataclass(frozen=True, slots=True)
class ParsedSanitizerLog:
    """A report's text. `errors` and `warnings` are the summary's, None where it has none; `refusal` is
    the tool's own line where it could not work."""

    findings: tuple[SanitizerFinding, ...]
    errors: int | None
    warnings: int
    refusal: str


@dataclass(frozen=True, slots=True)
class SanitizerReport:
    """What one tool said. `launches` counts those that the process reported as done."""

    tool: SanitizerTool
    status: Literal["clean", "findings", "not available", "failed"]
    message: str
    findings: tuple[SanitizerFinding, ...] = ()
    launches: int = 0

    @property
    def ok(self) -> bool:
        return self.status == "clean"


# --- running -------------------------------------------------------------------------


def find(environ: Mapping[str, str] | None = None) -> Path | None:
    """compute-sanitizer of the CUDA toolkit: of UCUTLASS_CUDA_HOME, CUDA_HOME, CUDA_PATH, PATH, or
    beside the nvcc on PATH; None where there is none. Raises SwitchError."""
    env = os.environ if environ is None else environ
    homes = [switches.read(env).cuda_home, *(env.get(name) for name in ("CUDA_HOME", "CUDA_PATH"))]
    if nvcc := shutil.which("nvcc", path=env.get("PATH", os.defpath)):
        homes.append(Path(nvcc).resolve().parent.parent)
    candidates = [Path(home) / "bin" / "compute-sanitizer" for home in homes if home]
    if on_path := shutil.which("compute-sanitizer", path=env.get("PATH", os.defpath)):
        candidates.append(Path(on_path))
    return next((p for p in candidates if os.access(p, os.X_OK)), None)


def absent(tool: SanitizerTool) -> SanitizerReport:
    """Returns the report of a tool where there is no compute-sanitizer."""
    words = "compute-sanitizer is not installed: it comes with the CUDA toolkit (cuda-sanitizer)"
    return SanitizerReport(tool, "not available", words)


def check(
    tool: SanitizerTool,
    sanitizer: Path,
    command: Sequence[str],
    receipt: Path,
    launches: int,
    *,
    folder: Path,
    limit_seconds: float = 600.0,
    environ: Mapping[str, str] | None = None,
) -> SanitizerReport:
    """Runs `command` under a tool. The command must write the number of launches that it finished
    into `receipt`, as JSON; fewer than `launches` is a failure, whatever the tool says.

    No kernel is filtered by name: the process must launch nothing but what is to be checked, since
    a filter that matches nothing would look clean.
    """
    log = folder / f"{tool}.log"
    receipt.unlink(missing_ok=True)
    options = ["--tool", tool, "--error-exitcode", str(_ERROR_EXIT), "--print-limit", str(_PRINT_LIMIT)]
    # By default it gives up on a process that takes ten seconds to reach CUDA, as importing torch may.
    options += ["--launch-timeout", str(math.ceil(limit_seconds))]
    env = {**allowed_environment(environ), **ENVIRONMENT}
    try:
        status = process.run(
            [str(sanitizer), *options, *_MORE.get(tool, ()), *command],
            folder=folder,
            env=env,
            log=log,
            limit_seconds=limit_seconds,
            cancel=None,
        )
    except CompilerUnusable as error:
        return SanitizerReport(tool, "not available", error.what)
    if not isinstance(status, int):
        words = f"it did not end within {limit_seconds:g} s"
        return SanitizerReport(tool, "failed", words, launches=_launched(receipt))
    text = log.read_text(encoding="utf-8", errors="replace")
    return judge(tool, parse(text), status, _launched(receipt), launches, _last(text))


def _launched(receipt: Path) -> int:
    try:
        count = json.loads(receipt.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0
    return count if isinstance(count, int) else 0


def _last(text: str) -> str:
    """Returns the process's own last line, which says why it ended, or else the tool's."""
    lines = [line for line in text.splitlines() if line.strip("= \t")]
    own = [line for line in lines if not _LINE.match(line)]
    return (own or lines)[-1][:300] if lines else "it printed nothing"


def judge(
    tool: SanitizerTool, parsed: ParsedSanitizerLog, status: int, launched: int, expected: int, last: str = ""
) -> SanitizerReport:
    """Returns the report of a finished run; `status` is its exit status."""
    findings = parsed.findings
    if parsed.refusal and not (_ENDED_EARLY in parsed.refusal and status != 0 and not launched):
        return SanitizerReport(tool, "not available", parsed.refusal, findings, launched)
    if parsed.errors is None:
        return SanitizerReport(
            tool, "failed", f"no summary (exit status {status}): {last}", findings, launched
        )
    if parsed.errors:
        what = "; ".join(f"{f.error} in {f.kernel or '?'}" for f in findings[:3] if f.severity == "error")
        return SanitizerReport(tool, "findings", f"{parsed.errors} errors: {what}", findings, launched)
    if launched != expected:
        words = f"{launched} of {expected} launches ended (exit status {status}): {last}"
        return SanitizerReport(tool, "failed", words, findings, launched)
    if status != 0:
        return SanitizerReport(
            tool, "failed", f"exit status {status} beside 0 errors: {last}", findings, launched
        )
    warned = f", {parsed.warnings} warnings" if parsed.warnings else ""
    return SanitizerReport(tool, "clean", f"0 errors{warned} in {launched} launches", findings, launched)


# --- reading the report --------------------------------------------------------------

_LINE = re.compile(r"^={8,9}(?:\s+(?P<words>.*\S))?\s*$")
_ERRORS = re.compile(r"ERROR SUMMARY: (\d+) errors?$")
_RACES = re.compile(r"RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) errors?, (\d+) warnings?\)$")
_ENDED_EARLY = "terminated before first instrumented API call"
_REFUSALS = re.compile(
    r"Device not supported|Failed to initialize|No attachable process found|Internal Sanitizer Error"
    rf"|{_ENDED_EARLY}|not permitted|[Dd]ebugger.*(?:attach|already)"
)
_DETAIL = re.compile(
    r"(?:at|by thread|and|in|Address|Access|Saved host backtrace|Host Frame|Device Frame|Write Thread"
    r"|Read Thread|Current Value|Incoming Value|Barrier is located|\[\d+ hazards?\])\b|\[|$"
)
_BOOKKEEPING = re.compile(
    r"COMPUTE-SANITIZER|.*SUMMARY:|Target application|Default timeout|Tracking kernels|The application may"
)
_SEVERITY = re.compile(r"^(Error|Warning|WARN|ERROR|Info): ")
_PLACE = re.compile(
    r"(?:^at|access at|Device Frame:|Thread \([\d,]+\) at)\s*"
    r"(?P<name>[^\[].*?)(?P<where>\+0x[0-9a-f]+(?: in \S+)?)"
)
_OLD_PLACE = re.compile(r"^at (?P<where>0x[0-9a-f]+) in (?:\S+:\d+:)?(?P<name>.+)$")
_ADDRESS = re.compile(r"(?:^Address|^Access to|at __shared__) (0x[0-9a-f]+)")
_HAZARDS = re.compile(r"\[(\d+) hazards?\]")


def parse(text: str) -> ParsedSanitizerLog:
    """Reads a report; lines of the process itself, without the prefix, are passed over."""
    lines = [m["words"] or "" for line in text.splitlines() if (m := _LINE.match(line))]
    errors: int | None = None
    warnings = 0
    for words in lines:
        if match := _ERRORS.search(words):
            errors = int(match[1]) + (errors or 0)
        elif match := _RACES.search(words):
            errors, warnings = int(match[1]) + (errors or 0), warnings + int(match[2])
    refusal = next((w for w in lines if _REFUSALS.search(w)), "")
    return ParsedSanitizerLog(tuple(_grouped(_findings(lines))), errors, warnings, refusal)


def _findings(lines: Sequence[str]) -> Iterator[SanitizerFinding]:
    block: list[str] = []
    for words in [*lines, "COMPUTE-SANITIZER"]:
        if _DETAIL.match(words):
            block += [words] if block else []
            continue
        if block:
            yield _finding(block)
        block = [] if _BOOKKEEPING.match(words) or _REFUSALS.search(words) else [words]


def _finding(block: Sequence[str]) -> SanitizerFinding:
    head = _SEVERITY.sub("", block[0])
    warned = _SEVERITY.match(block[0])
    severity: Literal["error", "warning"] = "error"
    if warned and warned[1] in ("Warning", "WARN", "Info"):
        severity = "warning"
    frames = [m for line in block if (m := _PLACE.search(line) or _OLD_PLACE.match(line))]
    # Of the frames of an inlined access the last one is the kernel's; a race names both accesses.
    race = "access at" in block[0]
    kernel = frames[0 if race else -1]["name"].strip() if frames else ""
    address = next((m[1] for line in block if (m := _ADDRESS.search(line))), "")
    hazards = sum(int(n) for line in block for n in _HAZARDS.findall(line))
    error = re.sub(r"(?<=access) at .*", "", head).rstrip(".")
    if race and (other := next((w for w in block[1:] if w.startswith("and ")), "")):
        error += " " + re.sub(r"(?<=access) at .*", "", other)
    where = frames[0]["where"].lstrip("+") if frames else ""
    return SanitizerFinding(severity, error, kernel, where, address, max(1, hazards))


def _grouped(findings: Iterator[SanitizerFinding]) -> list[SanitizerFinding]:
    """Merges equal findings of several threads into one."""
    grouped: dict[tuple[str, str, str, str], SanitizerFinding] = {}
    for f in findings:
        key = (f.severity, f.error, f.kernel, f.where)
        grouped[key] = replace(grouped[key], count=grouped[key].count + f.count) if key in grouped else f
    return list(grouped.values())

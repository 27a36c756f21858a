"""Runs NVRTC and nvJitLink for another process: `python -m ucutlass.runtime.jit.compiler_process JOB`.

The compilers are libraries. Here they may crash, hang or be killed without taking a process along, and
several of them run at once, which their threads hardly do. JOB is a JSON file that `device.run` wrote.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ucutlass.files import put

NAMES = ".names"
"""What the name of a file of NVRTC's kernels has beside the image's: a JSON list of their names in it."""

REFUSED = 10
"""Exit status: a compiler refused its input, and said why on standard output."""

FULL: Mapping[int, int] = MappingProxyType({errno.ENOSPC: 11, errno.EDQUOT: 12})
"""Exit statuses where the disk, or its quota, is full, by the error's number. Words would find no room
either: standard output lies on the same disk."""


def main(job: Path) -> int:
    """Returns the exit status; all that was said is written out."""
    try:
        status = _work(job)
        sys.stdout.flush()
    except OSError as error:
        if error.errno is None or error.errno not in FULL:
            raise
        return FULL[error.errno]
    return status


def _work(job: Path) -> int:
    from ucutlass.runtime.jit import nvjitlink, nvrtc

    seconds: list[tuple[str, float]] = []
    work: Mapping[str, Any] = json.loads(job.read_text(encoding="utf-8"))
    try:
        for unit in work["compile"]:
            start = time.monotonic()
            text = Path(unit["source"]).read_text(encoding="utf-8")
            compiled = nvrtc.compile_program(
                nvrtc.load(work["nvrtc"]),
                text,
                unit["source"],
                unit["options"],
                unit["headers"],
                unit["kernels"],
            )
            put(Path(unit["out"]), compiled.code)
            if compiled.names:
                put(Path(unit["out"] + NAMES), json.dumps(compiled.names))
            seconds.append((f"NVRTC {unit['source']}", time.monotonic() - start))
            sys.stdout.write(compiled.log)
        if link := work["link"]:
            start = time.monotonic()
            parts = {path: Path(path).read_bytes() for path in link["parts"]}
            image, log = nvjitlink.link(nvjitlink.load(link["nvjitlink"]), parts, link["options"])
            put(Path(link["out"]), image)
            seconds.append(("nvJitLink", time.monotonic() - start))
            sys.stdout.write(log)
    except (nvrtc.NvrtcRefused, nvjitlink.LinkRefused) as refused:
        sys.stdout.write(refused.log)
        return REFUSED
    put(Path(work["seconds"]), json.dumps([(name, round(s, 3)) for name, s in seconds]))
    return 0


if __name__ == "__main__":
    # Not sys.exit: it would write what was said before, fail on a full disk, and end with its own status.
    os._exit(main(Path(sys.argv[1])))

"""compute-sanitizer's reports: formats of NVIDIA's documentation and of published runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ucutlass.runtime import sanitize
from ucutlass.runtime.sanitize import SanitizerFinding, find, judge, parse

# Compute Sanitizer documentation, "memcheck_demo Output with Memcheck (Release Build)".
MEMCHECK = """\
========= COMPUTE-SANITIZER
Mallocing memory
========= Invalid __global__ write of size 4 bytes
=========     at unaligned_kernel()+0x50
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x710fdca00001 is misaligned
=========     and is inside the nearest allocation at 0x710fdca00000 of size 4 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: run_unaligned() [0xacd4] in memcheck_demo
=========         Host Frame: main [0xae61] in memcheck_demo
=========
Running unaligned_kernel: no error
========= Invalid __global__ write of size 4 bytes
=========     at out_of_bounds_function()+0xb0 in memcheck_demo.cu:39
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x87654320 is out of bounds
=========     and is 137,179,965,340,896 bytes before the nearest allocation at 0x7cc43a800000 of size 1,024 bytes
=========         Device Frame: out_of_bounds_kernel()+0x30 in memcheck_demo.cu:44
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: main [0xae66] in memcheck_demo
=========
========= Invalid __global__ write of size 4 bytes
=========     at out_of_bounds_function()+0xb0 in memcheck_demo.cu:39
=========     by thread (1,0,0) in block (0,0,0)
=========     Address 0x87654324 is out of bounds
=========         Device Frame: out_of_bounds_kernel()+0x30 in memcheck_demo.cu:44
=========
Running out_of_bounds_kernel: no error
========= ERROR SUMMARY: 3 errors
"""

# The same page, "Block-level Hazards" and "Warp-level Hazards" (the latter with its summary).
RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at sumKernel(int *, int *)+0x90 in block_error.cu:41
=========     and Read access at sumKernel(int *, int *)+0x100 in block_error.cu:51 [508 hazards]
=========
========= Warning: (Warp Level Programming) Potential RAW hazard detected at __shared__ 0x8c in block (0,0,0) :
=========     Write Thread (35,0,0) at sumKernel(int *, int *)+0x90 in warp_error.cu:44
=========     Read Thread (32,0,0) at sumKernel(int *, int *)+0x120 in warp_error.cu:56
=========     Current Value : 35
=========
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""

# The same page, "Initcheck error suppression".
INITCHECK = """\
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at mult(int *, int *, int)+0x60
=========     by thread (122,0,0) in block (0,0,0)
=========     Address 0x7f936fa001e8
=========     Saved host backtrace up to driver entry point at kernel launch time
=========
========= ERROR SUMMARY: 1 error
"""

# The same page, "Divergent Threads" and "Illegal Syncwarp".
SYNCCHECK = """\
========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block.
=========     at [clone myKernel(int *, int *)] outlineSync()+0x11f0 in test.cu:42
=========     by thread (32,0,0) in block (0,0,0)
=========         Device Frame: myKernel(int *, int *)+0xe40 in test.cu:60
=========
========= Barrier error detected. Invalid arguments
=========     at __cuda_sm70_warpsync+0x30
=========     by thread (0,0,0) in block (0,0,0)
=========         Device Frame:__syncwarp(unsigned int)+0xf0 in /usr/local/cuda/include/sm_30_intrinsics.hpp:110
=========         Device Frame:myKernel(int *)+0x3c0 in illegal_syncwarp.cu:48
=========
========= ERROR SUMMARY: 2 errors
"""

CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
CLEAN_RACES = (
    "========= COMPUTE-SANITIZER\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"
)

# As printed where the debugger interface is not there (published log of a virtual machine).
REFUSED = """\
========= COMPUTE-SANITIZER
========= Error: Failed to initialize WDDM debugger interface. Please run EnableDebuggerInterface.bat as an administrator
=========
========= Error: Device not supported. Please refer to the "Supported Devices" section of the sanitizer documentation
=========
========= ERROR SUMMARY: 2 errors
"""

# Where the process ends before it uses CUDA.
NO_CUDA = """\
========= COMPUTE-SANITIZER
========= Error: Target application terminated before first instrumented API call
========= Tracking kernels launched by child processes requires the --target-processes all option.
"""

# The form of older versions (CUDA 11), with addresses before places.
OLD = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at 0x160 in /src/kernel.cu:6:gemm(float*)
=========     by thread (3,0,0) in block (4,0,0)
=========     Address 0x7f6510c00001 is out of bounds
========= ERROR SUMMARY: 1 error
"""


def test_memcheck() -> None:
    parsed = parse(MEMCHECK)
    assert parsed.errors == 3 and not parsed.refusal
    assert parsed.findings == (
        SanitizerFinding(
            "error",
            "Invalid __global__ write of size 4 bytes",
            "unaligned_kernel()",
            "0x50",
            "0x710fdca00001",
            1,
        ),
        SanitizerFinding(
            "error",
            "Invalid __global__ write of size 4 bytes",
            "out_of_bounds_kernel()",
            "0xb0 in memcheck_demo.cu:39",
            "0x87654320",
            2,
        ),
    )


def test_racecheck() -> None:
    parsed = parse(RACECHECK)
    assert (parsed.errors, parsed.warnings) == (1, 1)
    error, warning = parsed.findings
    assert error.error == "Race reported between Write access and Read access"
    assert error.kernel == "sumKernel(int *, int *)" and error.count == 508
    assert error.where == "0x90 in block_error.cu:41"
    assert warning.severity == "warning" and "RAW hazard" in warning.error
    assert warning.address == "0x8c" and warning.kernel == "sumKernel(int *, int *)"


def test_initcheck_and_synccheck() -> None:
    (read,) = parse(INITCHECK).findings
    assert read.error == "Uninitialized __global__ memory read of size 4 bytes"
    assert (read.kernel, read.address) == ("mult(int *, int *, int)", "0x7f936fa001e8")
    divergent, invalid = parse(SYNCCHECK).findings
    assert divergent.error == "Barrier error detected. Divergent thread(s) in block"
    assert divergent.kernel == "myKernel(int *, int *)" and divergent.where == "0x11f0 in test.cu:42"
    assert (
        invalid.error == "Barrier error detected. Invalid arguments" and invalid.kernel == "myKernel(int *)"
    )


def test_older_versions() -> None:
    (one,) = parse(OLD).findings
    assert (one.kernel, one.where) == ("gemm(float*)", "0x160")


@pytest.mark.parametrize("text", [CLEAN, CLEAN_RACES])
def test_clean_needs_every_launch(text: str) -> None:
    assert judge("memcheck", parse(text), 0, 3, 3).ok
    missing = judge("memcheck", parse(text), 0, 2, 3)
    assert missing.status == "failed" and "2 of 3 launches" in missing.message
    assert judge("memcheck", parse(text), 9, 3, 3).status == "failed"


def test_findings_name_the_kernel() -> None:
    report = judge("memcheck", parse(MEMCHECK), 86, 2, 2)
    assert report.status == "findings"
    assert report.message.startswith(
        "3 errors: Invalid __global__ write of size 4 bytes in unaligned_kernel()"
    )


def test_warnings_of_racecheck_are_kept_but_do_not_fail() -> None:
    text = RACECHECK.split("=========\n", 1)[1].replace("(1 error, 1 warning)", "(0 errors, 1 warning)")
    report = judge("racecheck", parse("========= COMPUTE-SANITIZER\n" + text), 0, 1, 1)
    assert report.ok and "1 warnings" in report.message and len(report.findings) == 1


def test_a_refusal_is_a_tier_that_is_not_available() -> None:
    report = judge("memcheck", parse(REFUSED), 1, 0, 1)
    assert report.status == "not available" and "WDDM" in report.message and not report.ok


def test_a_process_that_failed_before_cuda_is_no_fault_of_the_tool() -> None:
    report = judge("memcheck", parse(NO_CUDA), 1, 0, 1, "ImportError: no module")
    assert report.status == "failed" and "ImportError" in report.message
    assert judge("memcheck", parse(NO_CUDA), 0, 1, 1).status == "not available"


def test_host_frames_of_two_lines_are_no_findings() -> None:
    frames = "=========     Host Frame: [0x2774ec]\n=========                in /lib/x86_64-linux-gnu/libcuda.so.1\n"
    text = MEMCHECK.replace(
        "=========         Host Frame: run_unaligned() [0xacd4] in memcheck_demo\n", frames
    )
    assert text != MEMCHECK and parse(text).findings == parse(MEMCHECK).findings


def test_no_summary_is_failure() -> None:
    report = judge("memcheck", parse("Segmentation fault\n"), 139, 0, 1, "Segmentation fault")
    assert report.status == "failed" and "139" in report.message and "Segmentation" in report.message


def test_a_lost_print_limit_still_counts() -> None:
    text = (
        "========= ERROR SUMMARY: 257 errors\n========= ERROR SUMMARY: 157 errors were not printed. Use "
        "--print-limit option to adjust the number of printed errors\n"
    )
    assert parse(text).errors == 257


# --- running ------------------------------------------------------------------------------

FAKE = """#!{python}
import json, os, pathlib, subprocess, sys
tool = sys.argv[sys.argv.index("--tool") + 1]
assert "--error-exitcode" in sys.argv
assert int(sys.argv[sys.argv.index("--launch-timeout") + 1]) >= 2
assert os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] == "1"
print("========= COMPUTE-SANITIZER", flush=True)
status = subprocess.run(sys.argv[sys.argv.index("--") + 1:]).returncode
print({text!r})
sys.exit({status} or status)
"""


def _fake(folder: Path, text: str = "========= ERROR SUMMARY: 0 errors", status: int = 0) -> Path:
    path = folder / "compute-sanitizer"
    path.write_text(FAKE.format(python=sys.executable, text=text, status=status))
    path.chmod(0o755)
    return path


def _command(receipt: Path, launches: int) -> list[str]:
    code = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(sys.argv[2])"
    return ["--", sys.executable, "-c", code, str(receipt), json.dumps(launches)]


def test_a_run_is_read_from_its_report_and_receipt(tmp_path: Path) -> None:
    receipt = tmp_path / "receipt"
    report = sanitize.check(
        "memcheck", _fake(tmp_path), _command(receipt, 2), receipt, 2, folder=tmp_path, limit_seconds=60
    )
    assert report.ok and report.launches == 2, report
    short = sanitize.check(
        "initcheck", _fake(tmp_path), _command(receipt, 1), receipt, 2, folder=tmp_path, limit_seconds=60
    )
    assert short.status == "failed"


def test_an_old_receipt_counts_for_nothing(tmp_path: Path) -> None:
    receipt = tmp_path / "receipt"
    receipt.write_text("2")
    nothing = ["--", sys.executable, "-c", "pass"]
    report = sanitize.check(
        "memcheck", _fake(tmp_path), nothing, receipt, 2, folder=tmp_path, limit_seconds=60
    )
    assert report.status == "failed" and report.launches == 0


def test_a_hang_is_a_failure(tmp_path: Path) -> None:
    receipt = tmp_path / "receipt"
    hang = ["--", sys.executable, "-c", "import time; time.sleep(600)"]
    report = sanitize.check("memcheck", _fake(tmp_path), hang, receipt, 1, folder=tmp_path, limit_seconds=2)
    assert report.status == "failed" and "2 s" in report.message


def test_it_is_found_where_the_toolkit_is(tmp_path: Path) -> None:
    home = tmp_path / "cuda"
    (home / "bin").mkdir(parents=True)
    assert find({"PATH": str(tmp_path / "nowhere")}) is None
    _fake(home / "bin")
    assert find({"CUDA_HOME": str(home), "PATH": ""}) == home / "bin" / "compute-sanitizer"
    assert find({"PATH": str(home / "bin")}) == home / "bin" / "compute-sanitizer"
    assert sanitize.absent("memcheck").status == "not available"
